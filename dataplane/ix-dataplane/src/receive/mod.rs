//! Steps 1 and 2 of the cycle: poll the devices, and run at most B packets through the protocols.
//!
//! The batch is handled in three passes so that memory is there when it is needed: all headers are
//! parsed (their lines fetched ahead), then flow-table lines and flows are fetched ahead, then each
//! packet meets its flow. Packets of flow groups that another thread owns are handed to it
//! (`handover.rs`), or wait while their group moves (`migration/routes.rs`).
pub mod edge;
pub mod forwarding;
pub mod fragments;
pub mod pressure;
#[cfg(test)]
mod steering_tests;

use crate::config::Config;
use crate::cycle::ElasticThread;
use crate::flows::group::prefetch_flow;
use crate::migration::{Message, Origin, Way};
use crate::observe::metrics::{LocalDrop, Stage, ThreadMetrics};
use crate::receive::edge::Edge;
use crate::receive::forwarding::{Forwarded, Forwarding, Taken};
use crate::receive::fragments::UnderWay;
use crate::receive::pressure::{HELD_UNDER_PRESSURE, Pressure};
use ix_mem::{Mbuf, prefetch_read};
use ix_nic::{RxPacket, Steering};
use ix_tcp::icmp::{ErrorMessage, IcmpError};
use ix_wire::{
    ChecksumMode, DropReason, FlowTuple, IpMeta, Parsed, RxChecks, Toeplitz, flow_group,
};
use std::collections::VecDeque;

/// How many of the packets that wait are taken at once.
///
/// Were it all of them, and all messages in flight among them, both ends of a link would take turns:
/// one works while the other has nothing. Half of them keeps both busy, and the cycle's fixed cost is
/// still shared by many when there are many.
fn share(waiting: usize) -> usize {
    if waiting <= SHARE_MIN { waiting } else { waiting.div_ceil(2).max(SHARE_MIN) }
}

/// So many signals of other threads are told in one cycle: the event array has room for them.
const SIGNALS_MAX: usize = 32;

/// So few packets are taken together.
const SHARE_MIN: usize = 4;

/// A parsed packet of the batch. Its first mbuf stands beside it in `Receive::mbufs`, so that the
/// batch can be walked without moving what was parsed.
pub(crate) struct Work {
    pub parsed: Parsed,
    /// How many continuation mbufs stand in `Receive::tails`.
    pub tails: usize,
    pub port: u8,
    pub group: u8,
    /// As [`Origin::from`].
    pub from: u8,
    pub hash: u64,
    /// The slot in which its flow was seen when the batch began.
    pub guess: u32,
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
    /// What was polled, and beside it where it came from.
    burst: Vec<RxPacket>,
    origins: Vec<Origin>,
    work: Vec<Work>,
    mbufs: Vec<Mbuf>,
    tails: VecDeque<Mbuf>,
    pub(crate) forwarding: Forwarding,
    pub(crate) toeplitz: Vec<Option<Box<Toeplitz>>>,
    /// Datagrams of which fragments have come.
    pub(crate) under_way: UnderWay,
    /// What this batch gives up.
    pub(crate) pressure: Pressure,
    /// What it tells its senders.
    pub(crate) edge: Edge,
}

impl Receive {
    /// For batches of at most `batch` packets.
    pub(crate) fn new(
        batch: usize,
        forwarding: Forwarding,
        steering: &[Steering],
        edge: Edge,
    ) -> Receive {
        let toeplitz = |steering: &Steering| match steering {
            Steering::Rss(key) => Some(Box::new(Toeplitz::new(key))),
            Steering::Software | Steering::Table => None,
        };
        Receive {
            batch,
            first_port: 0,
            burst: Vec::with_capacity(batch),
            origins: Vec::with_capacity(batch),
            work: Vec::with_capacity(batch),
            mbufs: Vec::with_capacity(batch),
            tails: VecDeque::with_capacity(batch),
            forwarding,
            toeplitz: steering.iter().map(toeplitz).collect(),
            under_way: UnderWay::default(),
            pressure: Pressure::None,
            edge,
        }
    }

    /// Whether payload of this batch is given up: of a flow of which the application holds so many
    /// buffers.
    #[inline]
    pub(crate) fn must_drop_payload(&self, in_order: bool, held_bufs: u16) -> bool {
        match self.pressure {
            Pressure::None => false,
            Pressure::Low => !in_order || held_bufs >= HELD_UNDER_PRESSURE,
            Pressure::Critical => true,
        }
    }

    /// Whether packets wait here that no device will ring for.
    pub fn has_backlog(&self) -> bool {
        self.forwarding.has_incoming() || self.forwarding.waits()
    }

    /// The flow group of a tuple on a port, and the hash for the flow table.
    pub fn classify(&self, flow_hash: u64, port: usize, tuple: &FlowTuple) -> usize {
        group_of(&self.toeplitz[port], flow_hash, tuple)
    }

    /// What was parsed, to be handled and given back.
    pub(crate) fn take_batch(&mut self) -> (Vec<Work>, Vec<Mbuf>) {
        (std::mem::take(&mut self.work), std::mem::take(&mut self.mbufs))
    }

    /// The room for the next batch.
    pub(crate) fn give_batch_back(&mut self, work: Vec<Work>, mbufs: Vec<Mbuf>) {
        (self.work, self.mbufs) = (work, mbufs);
    }

    /// The next continuation mbuf of the packet being handled.
    pub fn pop_tail(&mut self) -> Option<Mbuf> {
        self.tails.pop_front()
    }

    /// Continuation mbufs of all packets that are not handled yet.
    pub fn tails_waiting(&self) -> usize {
        self.tails.len()
    }

    /// So many continuation mbufs from `first` on.
    pub fn peek_tails(&self, first: usize, count: usize) -> impl Iterator<Item = &Mbuf> {
        self.tails.iter().skip(first).take(count)
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
        self.parse_burst();
        self.prefetch_flows();
        let mut work = std::mem::take(&mut self.receive.work);
        let mut mbufs = std::mem::take(&mut self.receive.mbufs);
        let captures = self.capture.is_some();
        for (work, mbuf) in work.iter().zip(mbufs.drain(..)) {
            self.io.metrics.group_packets[usize::from(work.group)].add(1);
            match captures {
                false => self.handle(work, mbuf),
                true => self.handle_captured(work, mbuf),
            }
        }
        work.clear();
        (self.receive.work, self.receive.mbufs) = (work, mbufs);
        polled
    }

    /// Step 1: polls up to B packets: those that had to wait first, then those from other threads,
    /// then from the devices in turn.
    fn poll(&mut self) -> usize {
        if self.migrations.is_active() {
            self.poll_replay();
        }
        if self.away.has_kept() {
            self.poll_kept();
        }
        self.poll_threads();
        self.poll_devices()
    }

    /// Polls the devices in turn for what is left of a batch; answers what there is then.
    #[inline]
    pub(crate) fn poll_devices(&mut self) -> usize {
        let keep_back = self.holds_too_many();
        let Receive { batch, first_port, burst, origins, edge, .. } = &mut self.receive;
        let ports = if keep_back { 0 } else { self.io.ports.len() };
        let forwarded = burst.len();
        let (mut left, mut blind) = (0, false);
        for i in 0..ports {
            let index = (*first_port + i) % ports;
            let room = batch.saturating_sub(burst.len());
            if room == 0 {
                break;
            }
            let port = &mut self.io.ports[index];
            let room = room.min(port.nic.waiting().map_or(room, share));
            let taken = port.nic.receive(&self.io.shared.memory, &mut self.io.rx_pool, room, burst);
            origins.resize(burst.len(), Origin { port: index as u8, from: Origin::DEVICE });
            if self.migrations.is_active() {
                self.migrations.polled(index, room, taken);
            }
            // Only a device that gave all it was asked for may have more.
            if taken > 0 && taken >= room {
                match port.nic.backlog() {
                    Some(waiting) => left += waiting,
                    None => blind = true,
                }
            }
        }
        if !burst.is_empty() {
            self.io.metrics.waited(burst.len(), left, blind);
            edge.look(left);
        }
        *first_port = if *first_port + 1 < ports { *first_port + 1 } else { 0 };
        let mut bytes = 0;
        for packet in &burst[forwarded..] {
            let frame = packet.mbuf.bytes(&self.io.shared.memory);
            let head = &frame[..frame.len().min(HEAD_BYTES)];
            head.iter().step_by(64).for_each(|at| prefetch_read(at));
            bytes += frame.len() as u64;
        }
        let counters = &self.io.metrics.counters;
        counters.rx_packets.add((burst.len() - forwarded) as u64);
        counters.rx_bytes.add(bytes);
        burst.len()
    }

    /// Packets that other threads have handed over. A message ends what is taken from its sender: it
    /// is heard when the batch has been handled, and before what came after it.
    #[inline]
    fn poll_threads(&mut self) {
        let Receive { batch, burst, origins, forwarding, .. } = &mut self.receive;
        let mut signals = 0;
        for (from, source) in forwarding.incoming.iter_mut().enumerate() {
            let Some(source) = source else { continue };
            while burst.len() < *batch {
                match source.take(&mut self.io.rx_pool, burst) {
                    Taken::Nothing => break,
                    Taken::Packet(port) => {
                        origins.resize(burst.len(), Origin { port, from: from as u8 });
                    }
                    Taken::Message(Message::Signal(value)) => {
                        self.io.hear_signal(from, value);
                        signals += 1;
                        if signals == SIGNALS_MAX {
                            return;
                        }
                    }
                    Taken::Message(message) => {
                        self.migrations.receive(from, message);
                        break;
                    }
                }
            }
        }
    }

    /// Packets that migrations held.
    #[cold]
    fn poll_replay(&mut self) {
        let Receive { batch, burst, origins, .. } = &mut self.receive;
        let mut more = false;
        while burst.len() < *batch || more {
            match self.migrations.pop_replay() {
                None => break,
                Some(Forwarded::Packet { port, packet }) => {
                    more = packet.more;
                    burst.push(packet);
                    origins.push(Origin { port, from: Origin::REPLAY });
                }
                Some(Forwarded::Message(message)) => {
                    self.migrations.receive(self.io.index, message);
                }
            }
        }
    }

    /// Packets that came while the application was away.
    #[cold]
    fn poll_kept(&mut self) {
        let Receive { batch, burst, origins, .. } = &mut self.receive;
        let mut more = false;
        while burst.len() < *batch || more {
            let Some((port, packet)) = self.away.pop() else { break };
            more = packet.more;
            burst.push(packet);
            origins.push(Origin { port, from: Origin::DEVICE });
        }
    }

    /// First pass: parses the burst into work, hands foreign packets over, drops what is wrong.
    pub(crate) fn parse_burst(&mut self) {
        let mut burst = std::mem::take(&mut self.receive.burst);
        let mut origins = std::mem::take(&mut self.receive.origins);
        let mut packets = burst.drain(..).zip(origins.drain(..));
        while let Some((packet, origin)) = packets.next() {
            let mut tails = 0;
            let mut more = packet.more;
            let mut total_len = packet.mbuf.len();
            while more {
                // A frame's parts come in one burst; one that is cut off at the end of it goes on
                // in the next, where its rest cannot be told from a frame: it fails to parse.
                let Some((tail, _)) = packets.next() else { break };
                more = tail.more;
                total_len += tail.mbuf.len();
                tails += 1;
                self.receive.tails.push_back(tail.mbuf);
            }
            let (parsed, guess) = (Parsed::NONE, u32::MAX);
            let Origin { port, from } = origin;
            self.receive.work.push(Work { parsed, tails, port, group: 0, from, hash: 0, guess });
            match self.classify_packet(&packet.mbuf, total_len, from == Origin::DEVICE) {
                Ok(group) if group.is_none_or(|g| self.migrations.is_home(g, self.io.index)) => {
                    self.receive.mbufs.push(packet.mbuf);
                }
                Ok(group) => self.divert(group.unwrap_or(0), origin, packet.mbuf, tails),
                Err(Refusal::Packet(DropReason::IpFragment)) if tails == 0 => {
                    self.receive.work.pop();
                    self.parse_fragment(origin, packet.mbuf);
                }
                Err(reason) => {
                    self.receive.work.pop();
                    self.drop_refused(port, packet.mbuf, tails, reason);
                }
            }
        }
        drop(packets);
        (self.receive.burst, self.receive.origins) = (burst, origins);
    }

    /// A fragment, and what it makes whole: that is a packet of the batch in its place.
    #[cold]
    fn parse_fragment(&mut self, origin: Origin, mbuf: Mbuf) {
        let Origin { port, from } = origin;
        let mbuf = match self.take_fragment(origin, mbuf) {
            Ok(Some(whole)) => whole,
            Ok(None) => return,
            Err((reason, mbuf)) => return self.drop_refused(port, mbuf, 0, reason),
        };
        let (parsed, guess) = (Parsed::NONE, u32::MAX);
        self.receive.work.push(Work { parsed, tails: 0, port, group: 0, from, hash: 0, guess });
        // Wherever its fragments came from, the whole was asked nowhere yet.
        match self.classify_packet(&mbuf, mbuf.len(), true) {
            Ok(group) if group.is_none_or(|g| self.migrations.is_home(g, self.io.index)) => {
                self.receive.mbufs.push(mbuf);
            }
            Ok(group) => self.divert(group.unwrap_or(0), origin, mbuf, 0),
            Err(reason) => {
                self.receive.work.pop();
                self.drop_refused(port, mbuf, 0, reason);
            }
        }
    }

    /// Gives back a packet that goes no further, and its tails.
    fn drop_refused(&mut self, port: u8, mut mbuf: Mbuf, tails: usize, mut reason: Refusal) {
        if self.packets.is_any() || self.io.gate.steers() {
            match self.take_refused(port, reason, tails, mbuf) {
                Ok(()) => return,
                Err(back) => (mbuf, reason) = back,
            }
        }
        if self.capture.is_some() {
            self.capture_refused(port, &mbuf, tails, reason);
        }
        self.refuse_packet(port, &mbuf, reason);
        self.io.rx_pool.put(mbuf);
        let first_tail = self.receive.tails.len() - tails;
        for mbuf in self.receive.tails.drain(first_tail..) {
            self.io.rx_pool.put(mbuf);
        }
    }

    /// A packet of a group that is another thread's or on its way: sends it on or holds it, if it may
    /// not be handled all the same.
    #[cold]
    fn divert(&mut self, group: usize, origin: Origin, mbuf: Mbuf, tails: usize) {
        let way = self.way(group, origin.from);
        if way == Way::Here {
            return self.receive.mbufs.push(mbuf);
        }
        self.receive.work.pop();
        let first_tail = self.receive.tails.len() - tails;
        self.send_on(way, group, origin, RxPacket { mbuf, more: tails > 0 });
        for left in (0..tails).rev() {
            let Some(mbuf) = self.receive.tails.remove(first_tail) else { break };
            self.send_on(way, group, origin, RxPacket { mbuf, more: left > 0 });
        }
    }

    /// Parses a packet into the last place of `work`, and finds its flow group; `None`: whichever
    /// thread has the packet handles it.
    #[inline]
    fn classify_packet(
        &mut self,
        mbuf: &Mbuf,
        total_len: usize,
        is_new: bool,
    ) -> Result<Option<usize>, Refusal> {
        let ElasticThread { shared, io, receive, .. } = self;
        let Receive { work, toeplitz, .. } = receive;
        let Some(Work { parsed, port, group, hash, .. }) = work.last_mut() else {
            return Err(Refusal::Local(LocalDrop::NoFlow));
        };
        let port = *port as usize;
        let info = &io.ports[port].info;
        let transport =
            if info.partial_checksums { ChecksumMode::AcceptPartial } else { ChecksumMode::Verify };
        let bytes = mbuf.bytes(&shared.memory);
        let checks = RxChecks { transport };
        if info.shared_frames {
            parse_shared(bytes, total_len, checks, parsed)?;
        } else {
            ix_wire::parse_into(bytes, total_len, checks, parsed)?;
        }
        // What another thread has handed over was asked there.
        if is_new && let Some(checks) = io.gate.checks() {
            checks.hears(parsed, total_len, io.now_us).map_err(Refusal::Local)?;
        }
        // Not from what was just parsed: to load in one piece what was stored in several stalls.
        if let Some(eth_dst) = bytes.first_chunk::<6>()
            && *eth_dst != info.mac
            && !ix_wire::is_group_mac(eth_dst)
        {
            return Err(DropReason::EthNotForUs.into());
        }
        let tuple = match parsed {
            Parsed::Tcp(p) => {
                check_destination(&shared.config, &p.ip)?;
                p.tuple()
            }
            Parsed::Udp(p) => {
                check_destination(&shared.config, &p.ip)?;
                p.tuple()
            }
            // ARP is shared by all threads.
            Parsed::Arp(_) => return Ok(None),
            Parsed::Icmp(p) => {
                check_destination(&shared.config, &p.ip)?;
                // An error goes to the thread of the flow it quotes; anything else stays here.
                let Some(error) = IcmpError::parse(bytes, p) else { return Ok(None) };
                *hash = shared.flow_hash.hash(&error.tuple);
                let found = group_of(&toeplitz[port], *hash, &error.tuple);
                *group = found as u8;
                return Ok(Some(found));
            }
        };
        *hash = shared.flow_hash.hash(&tuple);
        let found = group_of(&toeplitz[port], *hash, &tuple);
        *group = found as u8;
        Ok(Some(found))
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
    fn prefetch_flows(&mut self) {
        let ElasticThread { receive, groups, .. } = self;
        let group_of = |work: &Work| match work.parsed {
            Parsed::Tcp(_) => groups[work.group as usize].as_deref(),
            _ => None,
        };
        for work in &receive.work {
            if let Some(group) = group_of(work) {
                group.prefetch(work.hash);
            }
        }
        for work in &mut receive.work {
            if let Some((slot, line)) = group_of(work).and_then(|group| group.guess(work.hash)) {
                work.guess = slot;
                prefetch_flow(line);
            }
        }
    }
}

/// Longest headers that make a packet: Ethernet 14, IPv4 60, TCP 60; the rest of three cache lines.
pub(crate) const HEAD_BYTES: usize = 192;

/// Parses a frame that its sender can still change (a memif peer is hostile): from a copy of its
/// front, so that what was checked is what is used.
#[inline(never)]
fn parse_shared(
    frame: &[u8],
    total_len: usize,
    checks: RxChecks,
    into: &mut Parsed,
) -> Result<(), DropReason> {
    let mut head = [0; HEAD_BYTES];
    let len = frame.len().min(HEAD_BYTES);
    head[..len].copy_from_slice(&frame[..len]);
    ix_wire::parse_copied(&head[..len], frame, total_len, checks, into)
}

/// Whether a packet is for us: our Ethernet address or a group one, our IP address; and from
/// somebody else, for we hear none of our own (the "LAND" attack says otherwise).
#[inline]
pub(crate) fn check_destination(config: &Config, ip: &IpMeta) -> Result<(), DropReason> {
    if !config.is_local(ip.dst) {
        return Err(DropReason::IpNotForUs);
    }
    if config.is_local(ip.src) {
        return Err(DropReason::IpMartianSource);
    }
    Ok(())
}

/// The flow group of a tuple on a port with this table; `hash` is the flow table's.
#[inline]
pub(crate) fn group_of(toeplitz: &Option<Box<Toeplitz>>, hash: u64, tuple: &FlowTuple) -> usize {
    match (toeplitz, tuple.remote.as_v4(), tuple.local.as_v4()) {
        (Some(toeplitz), Some(src), Some(dst)) => {
            let hash = toeplitz.hash_v4(src, dst, tuple.remote_port, tuple.local_port);
            flow_group(hash as u64)
        }
        _ => flow_group(hash),
    }
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn a_share_is_half_and_never_nothing() {
        assert_eq!([0, 1, 3, 4, 5, 8, 9, 64, 1000].map(share), [0, 1, 3, 4, 4, 4, 5, 32, 500]);
    }
}
