//! What the old thread has built for flows that leave, and not sent yet. TCP has counted it as sent,
//! so it must neither be lost nor be overtaken by what the new thread builds.
//!
//! What waits for a time that nobody knows (its next hop's address, its turn in a rate) goes along.
//! What waits for room in a device leaves from the old thread, and the groups stay shut until then.
use super::message::Message;
use crate::cycle::ElasticThread;
use crate::group_set::GroupSet;
use crate::io::Io;
use crate::observe::capture::{Protocol, Subject};
use crate::observe::metrics::LocalDrop;
use crate::receive::group_of;
use ix_mem::{HEADROOM_BYTES, Mbuf};
use ix_wire::IpAddr;

/// A packet that goes along. A copy: transmit frames stay with their thread's pool.
pub struct Unsent {
    port: u8,
    /// The next hop whose address it waits for.
    hop: Option<IpAddr>,
    frame: Box<[u8]>,
}

impl ElasticThread {
    /// Takes out what does not leave before these groups do, oldest first for each flow.
    pub(super) fn take_unsent(&mut self, groups: &GroupSet) -> Vec<Unsent> {
        let ElasticThread { io, receive, .. } = self;
        let Io { pending, gate, shared, tx_pool, .. } = io;
        let leaves = |&(port, ref mbuf): &(u8, Mbuf)| {
            let subject = Subject::of(mbuf.bytes(&shared.memory), true);
            // Datagrams are their sockets', which belong to the thread.
            let tcp = subject.protocol == Some(Protocol::Tcp);
            let Some(tuple) = subject.tuple().filter(|_| tcp) else { return false };
            let hash = shared.flow_hash.hash(&tuple);
            groups.contains(group_of(&receive.toeplitz[usize::from(port)], hash, &tuple))
        };
        let mut unsent = Vec::new();
        let mut copy = |hop, (port, mbuf): (u8, Mbuf)| {
            unsent.push(Unsent { port, hop, frame: mbuf.bytes(&shared.memory).into() });
            tx_pool.put(mbuf);
        };
        gate.take_waiting(leaves).into_iter().for_each(|one| copy(None, one));
        pending.extract(leaves).into_iter().for_each(|(hop, one)| copy(Some(hop), one));
        unsent
    }

    /// Gives the devices all that they take now.
    pub(super) fn transmit_all(&mut self) {
        loop {
            let sent = match self.capture {
                None => self.io.transmit(),
                Some(_) => self.transmit_captured(),
            };
            self.io.metrics.counters.tx_packets.add(sent as u64);
            if sent == 0 || self.io.ports.iter().all(|port| port.queue.is_empty()) {
                return;
            }
        }
    }

    /// The new thread of groups that are gone hears when the devices have taken the last packet
    /// that was built for them here.
    pub(super) fn step_unsent(&mut self) {
        for at in 0..self.migrations.outgoing.len() {
            let ports = &self.io.ports;
            let Some((to, serial)) = self.migrations.outgoing[at].has_sent(ports) else { continue };
            let fences = self.io.fences();
            self.tell_thread(to, Message::Sent(serial, fences));
        }
    }
}

impl Io {
    /// They leave from here, before all else of these flows.
    pub(super) fn send_unsent(&mut self, unsent: Vec<Unsent>) {
        for Unsent { port, hop, frame } in unsent {
            let Some(mut mbuf) = self.tx_pool.take() else {
                self.metrics.drop_local(LocalDrop::NoTxFrame);
                continue;
            };
            mbuf.set_range(HEADROOM_BYTES, frame.len());
            mbuf.bytes_mut(&self.shared.memory).copy_from_slice(&frame);
            match hop {
                Some(hop) => self.wait_for_hop(hop, port, mbuf),
                None => self.ports[usize::from(port)].queue.push_back(mbuf),
            }
        }
    }

    /// Up to which packet each device must be given those that wait for room in it now.
    pub(super) fn unsent(&self) -> Option<Vec<u64>> {
        let queued = self.ports.iter().any(|port| !port.queue.is_empty());
        queued.then(|| self.ports.iter().map(|p| p.handed + p.queue.len() as u64).collect())
    }
}
