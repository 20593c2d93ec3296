//! Steps 1 and 2 of the cycle: poll the devices, and run at most B packets through the protocols.
//!
//! The batch is handled in three passes so that memory is there when it is needed: all headers are
//! parsed (their lines fetched ahead), then flow-table lines and flows are fetched ahead, then each
//! packet meets its flow. Packets of flow groups that another thread owns are handed to it.
use crate::flow_group::FlowGroup;
use crate::metrics::{LocalDrop, Stage, ThreadMetrics};
use crate::pressure::Pressure;
use crate::thread::ElasticThread;
use ix_mem::{Mbuf, prefetch_read, spsc};
use ix_nic::{RxPacket, Steering};
use ix_tcp::icmp::{ErrorMessage, IcmpError};
use ix_wire::{
    ChecksumMode, DropReason, FlowTuple, IcmpPacket, IpMeta, MacAddr, Parsed, RxChecks, Toeplitz,
    flow_group,
};
use std::collections::VecDeque;

/// A packet on its way to the elastic thread that owns its flow group.
pub struct Forwarded {
    port: u8,
    packet: RxPacket,
}

/// Rings between elastic threads: `outgoing[i]` leads to thread i, `incoming[i]` comes from it.
#[derive(Default)]
pub struct Forwarding {
    /// To each other thread.
    pub outgoing: Vec<Option<spsc::Producer<Forwarded>>>,
    /// From each other thread.
    pub incoming: Vec<Option<spsc::Consumer<Forwarded>>>,
}

/// Slots of a forwarding ring.
const FORWARD_SLOTS: usize = 4096;

/// The rings between `threads` elastic threads, one set for each.
pub fn forwarding(threads: usize) -> Vec<Forwarding> {
    let mut all: Vec<Forwarding> = Vec::new();
    all.resize_with(threads, || Forwarding {
        outgoing: (0..threads).map(|_| None).collect(),
        incoming: (0..threads).map(|_| None).collect(),
    });
    for from in 0..threads {
        for to in (0..threads).filter(|to| *to != from) {
            let (producer, consumer) = spsc::ring(FORWARD_SLOTS);
            all[from].outgoing[to] = Some(producer);
            all[to].incoming[from] = Some(consumer);
        }
    }
    all
}

/// A parsed packet of the batch. Its first mbuf stands beside it in `Receive::mbufs`, so that the
/// batch can be walked without moving what was parsed.
pub(crate) struct Work {
    pub parsed: Parsed,
    /// How many continuation mbufs stand in `Receive::tails`.
    pub tails: usize,
    pub port: u8,
    pub group: u8,
    pub hash: u64,
}

/// Why a packet goes no further.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    /// It is malformed or not for us.
    Packet(DropReason),
    /// It is well formed, but there is no use or no room for it.
    Local(LocalDrop),
}

impl Refusal {
    pub(crate) fn count(self, metrics: &ThreadMetrics) {
        match self {
            Refusal::Packet(reason) => metrics.drop_packet(reason),
            Refusal::Local(reason) => metrics.drop_local(reason),
        }
    }
}

impl From<DropReason> for Refusal {
    fn from(reason: DropReason) -> Refusal {
        Refusal::Packet(reason)
    }
}

/// State of the receive path.
pub struct Receive {
    batch: usize,
    first_port: usize,
    burst: Vec<RxPacket>,
    /// Polled, but not handled yet because the event array was full.
    backlog: VecDeque<(u8, RxPacket)>,
    work: Vec<Work>,
    mbufs: Vec<Mbuf>,
    tails: VecDeque<Mbuf>,
    forwarding: Forwarding,
    toeplitz: Vec<Option<Box<Toeplitz>>>,
    /// What this batch gives up.
    pub(crate) pressure: Pressure,
}

impl Receive {
    /// For batches of at most `batch` packets.
    pub fn new(batch: usize, forwarding: Forwarding, steering: &[Steering]) -> Receive {
        let toeplitz = |steering: &Steering| match steering {
            Steering::Rss(key) => Some(Box::new(Toeplitz::new(key))),
            Steering::Software | Steering::Table => None,
        };
        Receive {
            batch,
            first_port: 0,
            burst: Vec::with_capacity(batch),
            backlog: VecDeque::with_capacity(batch),
            work: Vec::with_capacity(batch),
            mbufs: Vec::with_capacity(batch),
            tails: VecDeque::with_capacity(batch),
            forwarding,
            toeplitz: steering.iter().map(toeplitz).collect(),
            pressure: Pressure::None,
        }
    }

    /// Whether payload of this batch is given up.
    #[inline]
    pub(crate) fn must_drop_payload(&self, in_order: bool) -> bool {
        match self.pressure {
            Pressure::None => false,
            Pressure::Low => !in_order,
            Pressure::Critical => true,
        }
    }

    /// Whether packets wait here that no device will ring for.
    pub fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
            || self.forwarding.incoming.iter().flatten().any(|ring| !ring.is_empty())
    }

    /// The flow group of a tuple on a port, and the hash for the flow table.
    pub fn classify(&self, flow_hash: u64, port: usize, tuple: &FlowTuple) -> usize {
        match (&self.toeplitz[port], tuple.remote.as_v4(), tuple.local.as_v4()) {
            (Some(toeplitz), Some(src), Some(dst)) => {
                let hash = toeplitz.hash_v4(src, dst, tuple.remote_port, tuple.local_port);
                flow_group(hash as u64)
            }
            _ => flow_group(flow_hash),
        }
    }

    /// The next continuation mbuf of the packet being handled.
    pub fn pop_tail(&mut self) -> Option<Mbuf> {
        self.tails.pop_front()
    }

    /// The same, cut to what is left of the payload.
    pub fn take_tail(&mut self, left: &mut usize) -> Option<Mbuf> {
        let mut mbuf = self.tails.pop_front()?;
        mbuf.truncate(*left);
        *left -= mbuf.len();
        Some(mbuf)
    }
}

impl ElasticThread {
    /// Polls and handles one batch; answers the number of packets.
    pub(crate) fn receive_batch(&mut self) -> usize {
        if !self.io.events.has_room() {
            self.io.metrics.counters.event_back_pressure.add(1);
            return 0;
        }
        let polled = self.poll();
        if polled == 0 {
            return 0;
        }
        self.io.metrics.enter(Stage::Process);
        self.receive.pressure = self.io.rx_pressure(polled);
        self.parse_backlog();
        self.prefetch_flows();
        let mut work = std::mem::take(&mut self.receive.work);
        let mut mbufs = std::mem::take(&mut self.receive.mbufs);
        for (work, mbuf) in work.iter().zip(mbufs.drain(..)) {
            self.handle(work, mbuf);
        }
        work.clear();
        (self.receive.work, self.receive.mbufs) = (work, mbufs);
        polled
    }

    /// Step 1: fills the backlog up to B packets, from the other threads first, then from the
    /// devices in turn.
    fn poll(&mut self) -> usize {
        let Receive { batch, first_port, burst, backlog, forwarding, .. } = &mut self.receive;
        for ring in forwarding.incoming.iter_mut().flatten() {
            while backlog.len() < *batch {
                let Some(forwarded) = ring.pop() else { break };
                self.io.rx_pool.adopt(&forwarded.packet.mbuf);
                backlog.push_back((forwarded.port, forwarded.packet));
            }
        }
        let ports = self.io.ports.len();
        for i in 0..ports {
            let index = (*first_port + i) % ports;
            let room = batch.saturating_sub(backlog.len());
            if room == 0 {
                break;
            }
            let port = &mut self.io.ports[index];
            port.nic.receive(&self.io.shared.memory, &mut self.io.rx_pool, room, burst);
            for packet in burst.drain(..) {
                prefetch_read(packet.mbuf.bytes(&self.io.shared.memory).as_ptr());
                self.io.metrics.counters.rx_packets.add(1);
                self.io.metrics.counters.rx_bytes.add(packet.mbuf.len() as u64);
                backlog.push_back((index as u8, packet));
            }
        }
        *first_port = (*first_port + 1) % ports.max(1);
        backlog.len()
    }

    /// First pass: parses the backlog into work, hands foreign packets over, drops what is wrong.
    fn parse_backlog(&mut self) {
        while let Some((port, packet)) = self.receive.backlog.pop_front() {
            let mut tails = 0;
            let mut more = packet.more;
            let mut total_len = packet.mbuf.len();
            while more {
                // A frame's parts come in one burst; one that is cut off at the end of it goes on
                // in the next, where its rest cannot be told from a frame: it fails to parse.
                let Some((_, tail)) = self.receive.backlog.pop_front() else { break };
                more = tail.more;
                total_len += tail.mbuf.len();
                tails += 1;
                self.receive.tails.push_back(tail.mbuf);
            }
            let first_tail = self.receive.tails.len() - tails;
            match self.classify_packet(port, &packet.mbuf, total_len) {
                Ok((parsed, group, hash)) if self.shared.owner(group) == self.io.index => {
                    let group = group as u8;
                    self.receive.work.push(Work { parsed, tails, port, group, hash });
                    self.receive.mbufs.push(packet.mbuf);
                }
                Ok((_, group, _)) => {
                    let owner = self.shared.owner(group);
                    let more = tails > 0;
                    self.forward(owner, port, RxPacket { mbuf: packet.mbuf, more });
                    for left in (0..tails).rev() {
                        let Some(mbuf) = self.receive.tails.remove(first_tail) else { break };
                        self.forward(owner, port, RxPacket { mbuf, more: left > 0 });
                    }
                }
                Err(reason) => {
                    self.refuse_packet(port, &packet.mbuf, reason);
                    self.io.rx_pool.put(packet.mbuf);
                    for mbuf in self.receive.tails.drain(first_tail..) {
                        self.io.rx_pool.put(mbuf);
                    }
                }
            }
        }
    }

    fn classify_packet(
        &self,
        port: u8,
        mbuf: &Mbuf,
        total_len: usize,
    ) -> Result<(Parsed, usize, u64), Refusal> {
        let info = &self.io.ports[port as usize].info;
        let transport =
            if info.partial_checksums { ChecksumMode::AcceptPartial } else { ChecksumMode::Verify };
        let bytes = mbuf.bytes(&self.shared.memory);
        let checks = RxChecks { transport };
        let parsed = if total_len == bytes.len() {
            ix_wire::parse(bytes, checks)?
        } else {
            ix_wire::parse_first(bytes, total_len, checks)?
        };
        let (ip, tuple) = match &parsed {
            // ARP is shared by all threads: whoever polled it handles it.
            Parsed::Arp(_) => return Ok((parsed, self.own_group()?, 0)),
            Parsed::Icmp(p) => {
                self.check_destination(&p.ip, info.mac)?;
                let group = self.icmp_group(p, bytes, port as usize);
                return Ok((parsed, group, 0));
            }
            Parsed::Tcp(p) => (&p.ip, p.tuple()),
            Parsed::Udp(p) => (&p.ip, p.tuple()),
        };
        self.check_destination(ip, info.mac)?;
        let hash = self.shared.flow_hash.hash(&tuple);
        Ok((parsed, self.receive.classify(hash, port as usize, &tuple), hash))
    }

    /// Whether a packet is for us: our Ethernet address or a group one, our IP address; and from
    /// somebody else, for we hear none of our own (the "LAND" attack says otherwise).
    fn check_destination(&self, ip: &IpMeta, mac: MacAddr) -> Result<(), DropReason> {
        if ip.eth_dst != mac && !ix_wire::is_group_mac(&ip.eth_dst) {
            return Err(DropReason::EthNotForUs);
        }
        if !self.shared.config.is_local(ip.dst) {
            return Err(DropReason::IpNotForUs);
        }
        if self.shared.config.is_local(ip.src) {
            return Err(DropReason::IpMartianSource);
        }
        Ok(())
    }

    /// Any flow group of this thread, for packets that belong to none.
    fn own_group(&self) -> Result<usize, Refusal> {
        let own = self.groups.iter().position(Option::is_some);
        own.ok_or(Refusal::Local(LocalDrop::NoFlow))
    }

    /// An ICMP error goes to the thread of the flow it quotes; anything else stays here.
    fn icmp_group(&self, packet: &IcmpPacket, bytes: &[u8], port: usize) -> usize {
        match IcmpError::parse(bytes, packet) {
            Some(error) => {
                let hash = self.shared.flow_hash.hash(&error.tuple);
                self.receive.classify(hash, port, &error.tuple)
            }
            None => self.own_group().unwrap_or(0),
        }
    }

    /// A packet that goes no further: counted, and answered where that is the rule.
    fn refuse_packet(&mut self, port: u8, mbuf: &Mbuf, reason: Refusal) {
        reason.count(&self.io.metrics);
        if let Refusal::Packet(DropReason::IpUnknownProtocol) = reason {
            let shared = self.shared.clone();
            let bytes = mbuf.bytes(&shared.memory);
            if let Some(message) = ErrorMessage::protocol_unreachable(bytes) {
                self.io.send_icmp_error(port, &message, bytes);
            }
        }
    }

    /// Second pass: asks for the flow-table lines of the batch, then for the flows.
    fn prefetch_flows(&self) {
        for work in &self.receive.work {
            if let (Parsed::Tcp(_), Some(group)) = (&work.parsed, self.group_ref(work.group)) {
                group.prefetch(work.hash);
            }
        }
        for work in &self.receive.work {
            if let (Parsed::Tcp(_), Some(group)) = (&work.parsed, self.group_ref(work.group))
                && let Some(flow) = group.guess(work.hash)
            {
                let line = (flow as *const crate::flow::Flow).cast::<[u8; 64]>();
                for i in 0..4 {
                    prefetch_read(line.wrapping_add(i));
                }
            }
        }
    }

    fn group_ref(&self, group: u8) -> Option<&FlowGroup> {
        self.groups[group as usize].as_deref()
    }

    /// A packet that another thread must handle. A full ring loses it, as a NIC's would.
    fn forward(&mut self, owner: usize, port: u8, packet: RxPacket) {
        let ring = self.receive.forwarding.outgoing.get_mut(owner).and_then(|r| r.as_mut());
        self.io.rx_pool.disown(&packet.mbuf);
        let refused = match ring {
            Some(ring) => ring.push(Forwarded { port, packet }).err(),
            None => Some(Forwarded { port, packet }),
        };
        match refused {
            None => {
                self.io.metrics.counters.forwarded.add(1);
                self.io.ring_thread(owner);
            }
            Some(forwarded) => {
                self.io.metrics.drop_local(LocalDrop::ForwardFull);
                self.io.rx_pool.adopt(&forwarded.packet.mbuf);
                self.io.rx_pool.put(forwarded.packet.mbuf);
            }
        }
    }
}
