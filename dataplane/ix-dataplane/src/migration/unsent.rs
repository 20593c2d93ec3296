//! Packets that the old thread has built for leaving flows and not sent yet. TCP counts them as
//! sent, so they must not be lost or overtaken by packets of the new thread.
//!
//! Packets whose wait no thread can predict (for the next hop's address, or for a rate) come along.
//! Packets that wait for room in a device are sent by the old thread, and the groups stay closed
//! until then.
use crate::egress::qdisc::Qdisc;
use crate::io::Io;
use crate::observe::capture::Subject;
use crate::observe::metrics::LocalDrop;
use ix_mem::Mbuf;
use ix_proto::GroupSet;
use ix_proto::capture::Protocol;
use ix_tcp::Asker;
use ix_wire::IpAddr;

/// A packet that comes along. It is a copy, because transmit frames stay with their thread's pool.
pub struct Unsent {
    port: u8,
    /// The next hop whose address it waits for.
    hop: Option<IpAddr>,
    frame: Box<[u8]>,
}

/// Removes packets that will not be sent before these groups leave, oldest first for each flow.
pub(crate) fn take(groups: &GroupSet, io: &mut Io, qdisc: &mut Qdisc) -> Vec<Unsent> {
    let Io { cx, ports, neighbors, .. } = io;
    let shared = &cx.shared;
    let leaves = |&(port, ref mbuf): &(u8, Mbuf)| {
        let subject = Subject::of(mbuf.bytes(&shared.memory), true);
        // Datagrams belong to their sockets, which belong to the thread.
        let tcp = subject.protocol == Some(Protocol::Tcp);
        let Some(tuple) = subject.tuple().filter(|_| tcp) else { return false };
        let hash = shared.flow_hash.hash(&tuple);
        groups.contains(ports[usize::from(port)].group_of(hash, &tuple))
    };
    let mut unsent = Vec::new();
    let mut copy = |hop, (port, mbuf): (u8, Mbuf)| {
        let frame = mbuf.pieces(&shared.memory).collect::<Vec<_>>().concat();
        unsent.push(Unsent { port, hop, frame: frame.into() });
        cx.tx_pool.put_frame(&shared.memory, mbuf);
    };
    qdisc.take_waiting(leaves).into_iter().for_each(|one| copy(None, one));
    neighbors.take_waiting(leaves).into_iter().for_each(|(hop, one)| copy(Some(hop), one));
    unsent
}

/// Sends packets that came along, before all others of these flows.
pub(crate) fn send(io: &mut Io, unsent: Vec<Unsent>) {
    let Io { cx, ports, neighbors, .. } = io;
    for Unsent { port, hop, frame } in unsent {
        let Some(mut mbuf) = cx.tx_pool.take_frame(&cx.shared.memory, frame.len()) else {
            cx.metrics.drop_local(LocalDrop::NoTxFrame);
            continue;
        };
        mbuf.write_at(&cx.shared.memory, 0, &frame);
        match hop {
            Some(hop) => neighbors.wait_for_hop(cx, ports, (hop, Asker::Own), (port, mbuf)),
            None => ports[usize::from(port)].queue.push_back(mbuf),
        }
    }
}
