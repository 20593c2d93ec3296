//! What flows and protocols use to speak to the outside: devices, pools, neighbours and the event
//! array of one elastic thread.
use crate::egress::gate::IoGate;
use crate::events::EventWriter;
use crate::flows::flow::Side;
use crate::neighbors::NeighborCopy;
use crate::observe::metrics::{LocalDrop, ThreadMetrics};
use crate::shared::Shared;
use crate::tcp::output::FlowOutput;
use ix_mem::{HEADROOM_BYTES, Mbuf, MbufList, Pool};
use ix_nic::{Fence, Nic, NicInfo, SetReta};
use ix_tcp::SegmentOut;
use ix_tcp::ack_limit::ChallengeLimit;
use ix_tcp::arp::PendingQueue;
use ix_tcp::icmp::ErrorLimiter;
use ix_wire::{Checksum, FLOW_GROUPS, FlowTuple, FrameHeader, MacAddr, ethernet, ipv4};
use std::collections::VecDeque;
use std::sync::Arc;

/// Challenge acknowledgements a second of one elastic thread, about (RFC 5961 section 7).
const CHALLENGES_PER_S: u32 = 1000;

/// One device as one elastic thread sees it: its own queue pair.
pub struct Port {
    /// The queue pair.
    pub nic: Box<dyn Nic>,
    /// What the device is.
    pub info: NicInfo,
    /// Built packets that wait for step 6.
    pub queue: VecDeque<Mbuf>,
    /// Of these, so many at the front that the gate has let pass.
    pub(crate) passed: usize,
    /// Packets that the device was given so far.
    pub(crate) handed: u64,
    /// Its redirection table, if this process can write it.
    pub reta: Option<Arc<dyn SetReta>>,
}

/// The outside of one elastic thread.
pub struct Io {
    /// What all threads share.
    pub shared: Arc<Shared>,
    /// Number of this elastic thread.
    pub index: usize,
    /// Devices.
    pub ports: Vec<Port>,
    /// Frames to receive into.
    pub rx_pool: Pool,
    /// Frames to build packets in.
    pub tx_pool: Pool,
    /// This thread's copy of the ARP table.
    pub neighbors: NeighborCopy,
    /// The event array.
    pub events: EventWriter,
    /// Counters and histograms.
    pub metrics: ThreadMetrics,
    /// Time of this cycle, µs.
    pub now_us: u64,
    /// Receive frames that the flows of each group hold: they leave with their group.
    pub flow_frames: Box<[u32; FLOW_GROUPS]>,
    /// Buffers of flows that are gone, until the application has come back.
    pub graveyard: Vec<MbufList>,
    /// Packets whose next hop's address is not known yet.
    pub pending: PendingQueue<(u8, Mbuf)>,
    /// Limit of the ICMP errors we send.
    pub icmp_errors: ErrorLimiter,
    /// Limit of the challenge acknowledgements of all connections (RFC 5961 section 7).
    pub challenges: ChallengeLimit,
    /// Next IPv4 identification.
    pub ip_ident: u16,
    /// What may pass.
    pub(crate) gate: IoGate,
}

impl Io {
    /// The outside of thread `index` with these queue pairs and pools.
    pub fn new(
        shared: Arc<Shared>,
        index: usize,
        nics: Vec<Box<dyn Nic>>,
        (rx_pool, tx_pool): (Pool, Pool),
        events: EventWriter,
        metrics: ThreadMetrics,
    ) -> Io {
        let port = |nic: Box<dyn Nic>| {
            let info = nic.info().clone();
            let reta = nic.reta();
            Port { nic, info, queue: VecDeque::with_capacity(1024), passed: 0, handed: 0, reta }
        };
        let challenge_key = crate::tcp::secrets::key_of(&shared.config.secret);
        let ports = nics.into_iter().map(port).collect();
        Io {
            neighbors: NeighborCopy::new(index),
            shared,
            index,
            ports,
            rx_pool,
            tx_pool,
            events,
            metrics,
            now_us: 0,
            flow_frames: Box::new([0; FLOW_GROUPS]),
            graveyard: Vec::new(),
            pending: PendingQueue::new(),
            icmp_errors: ErrorLimiter::default(),
            challenges: ChallengeLimit::new(challenge_key, CHALLENGES_PER_S),
            ip_ident: index as u16,
            gate: IoGate::new(),
        }
    }

    /// These devices' redirection tables can be written.
    pub(crate) fn set_tables(&mut self, tables: &[Option<Arc<dyn SetReta>>]) {
        for (port, table) in self.ports.iter_mut().zip(tables) {
            if table.is_some() {
                port.reta = table.clone();
            }
        }
    }

    /// A device has another link: its table, which begins as all do, says where this thread's groups
    /// are.
    pub(crate) fn refresh_table(&mut self, device: usize) {
        let Some(port) = self.ports.get_mut(device) else { return };
        let Some(reta) = port.nic.reta() else { return };
        for group in self.shared.groups_of(self.index).iter() {
            // Where it cannot be written packets are handed over.
            let _ = reta.set(group, self.index);
        }
        port.reta = Some(reta);
    }

    /// The time of the cycle that begins.
    pub fn begin_cycle(&mut self, now_us: u64) {
        self.now_us = now_us;
        self.check_neighbors();
        self.check_gate();
    }

    /// The application has come back: buffers that it could still read are free now.
    pub fn empty_graveyard(&mut self) {
        for mut held in self.graveyard.drain(..) {
            while let Some(mbuf) = held.pop(&self.shared.memory) {
                self.rx_pool.put(mbuf);
            }
        }
    }

    /// The outside as one flow sees it.
    #[inline]
    pub fn of<'a>(&'a mut self, side: &'a mut Side) -> FlowOutput<'a> {
        FlowOutput { io: self, side }
    }

    /// Step 6: hands all built packets to the devices, one doorbell each; answers how many were
    /// handed over.
    pub fn transmit(&mut self) -> usize {
        self.pass_gate();
        let mut sent = 0;
        for port in &mut self.ports {
            let waiting = port.queue.len();
            if waiting > 0 {
                port.nic.transmit(&self.shared.memory, &mut self.tx_pool, &mut port.queue);
                let handed = waiting - port.queue.len();
                port.handed += handed as u64;
                port.passed = port.queue.len();
                sent += handed;
            }
            port.nic.kick(&self.shared.memory, &mut self.tx_pool);
        }
        sent
    }

    /// What the devices have been given, and peers may not have taken yet.
    pub(crate) fn fences(&mut self) -> Vec<Box<dyn Fence>> {
        self.ports.iter_mut().filter_map(|port| port.nic.fence()).collect()
    }

    /// Wakes another elastic thread if it sleeps.
    pub(crate) fn ring_thread(&self, index: usize) {
        let waker = &self.shared.wakers[index];
        if waker.must_ring() {
            crate::run::runner::ring(waker.fd());
        }
    }

    /// Sends a segment that belongs to no flow, back to where its cause came from.
    pub(crate) fn send_reply(
        &mut self,
        port: u8,
        eth_dst: MacAddr,
        tuple: &FlowTuple,
        segment: &SegmentOut,
    ) {
        let Some(mut mbuf) = self.tx_pool.take() else {
            self.metrics.drop_local(LocalDrop::NoTxFrame);
            return;
        };
        let header = segment.header(tuple);
        let len = ethernet::HEADER_BYTES + ipv4::HEADER_BYTES + header.len();
        mbuf.set_range(HEADROOM_BYTES, len);
        let frame = self.frame_header(port, eth_dst, tuple);
        let bytes = mbuf.bytes_mut(&self.shared.memory);
        frame.emit_tcp(bytes, &header, 0, Checksum::new());
        self.ports[port as usize].queue.push_back(mbuf);
    }

    /// Link and network header of the next packet from us.
    #[inline]
    pub(crate) fn frame_header(
        &mut self,
        port: u8,
        eth_dst: MacAddr,
        tuple: &FlowTuple,
    ) -> FrameHeader {
        self.ip_ident = self.ip_ident.wrapping_add(1);
        FrameHeader {
            eth_src: self.ports[port as usize].info.mac,
            eth_dst,
            src: tuple.local,
            dst: tuple.remote,
            ttl: self.shared.config.ttl,
            tos: 0,
            ident: self.ip_ident,
        }
    }
}
