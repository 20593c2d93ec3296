//! Receive (step 1 and the beginning of step 2): polls the devices, parses the packets, and finds
//! the flow group of each.
//!
//! A batch is processed in three passes, so that memory is in the cache when it is needed. First
//! all headers are parsed (their lines were prefetched), then flow-table lines and flows are
//! prefetched, then each packet is processed with its flow. The cycle calls the passes, and decides
//! about packets of groups that another thread owns.
pub mod admission;
pub mod batch;
pub mod edge;
pub mod fragments;
pub mod pressure;
#[cfg(test)]
mod steering_tests;

use crate::config::Addr6;
use crate::context::Context;
use crate::observe::metrics::LocalDrop;
use crate::ports::Port;
use crate::verdict::Dropped;
use admission::Admission;
use batch::{Batch, Origin, Via, Work, WorkList};
use edge::Edge;
use fragments::UnderWay;
use ix_mem::{Mbuf, prefetch_read};
use ix_nic::{NicInfo, RxPacket};
use ix_tcp::icmp::IcmpError;
use ix_wire::mld::Query;
use ix_wire::ra::Advertisement;
use ix_wire::{
    ChecksumMode, DropReason, FlowTuple, IcmpPacket, IpAddr, Parsed, RxChecks, UdpPacket, ethernet,
    parse_usual, parse_usual_v6,
};

/// How many of the waiting packets are taken at once.
///
/// If all of them were taken, and all messages in flight were among them, both ends of a link would
/// take turns: one works while the other has nothing to do. Half of them keeps both busy, and if
/// there are many, many still share the fixed cost of a cycle.
fn share(waiting: usize) -> usize {
    if waiting <= SHARE_MIN { waiting } else { waiting.div_ceil(2).max(SHARE_MIN) }
}

/// At most this many packets are always taken together.
const SHARE_MIN: usize = 4;

/// State of the receive path.
pub(crate) struct Receive {
    /// Most packets of a batch.
    size: usize,
    first_port: usize,
    first_thread: usize,
    looped_first: bool,
    /// The polled packets; beside it where each came from.
    pub burst: Vec<RxPacket>,
    pub origins: Vec<Origin>,
    /// The parsed packets; beside it the first mbuf of each.
    pub work: WorkList,
    pub mbufs: Vec<Mbuf>,
    pub batch: Batch,
    /// Datagrams of which fragments have arrived.
    pub under_way: UnderWay,
    /// Which packets may be received.
    pub admission: Admission,
}

impl Receive {
    /// For batches of at most `size` packets.
    pub fn new(size: usize, edge: Edge) -> Receive {
        Receive {
            size,
            first_port: 0,
            first_thread: 0,
            looped_first: false,
            burst: Vec::with_capacity(size),
            origins: Vec::with_capacity(size),
            work: WorkList::new(size),
            mbufs: Vec::with_capacity(size),
            batch: Batch::new(size, edge),
            under_way: UnderWay::default(),
            admission: Admission::default(),
        }
    }

    /// Whether the batch has room for another packet.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.burst.len() < self.size
    }

    /// Of this many threads the one from which packets are taken first in this cycle, and the
    /// length up to which the batch is filled with those of other threads: half of what is left.
    #[inline]
    pub fn share_with_threads(&mut self, threads: usize) -> (usize, usize) {
        self.first_thread = if self.first_thread + 1 < threads { self.first_thread + 1 } else { 0 };
        let left = self.size.saturating_sub(self.burst.len());
        // Where only one packet fits it is theirs now and then.
        let odd = self.first_thread.min(1);
        (self.first_thread, self.burst.len() + (left + odd) / 2)
    }

    /// The length up to which the batch is filled with packets to own addresses: half of what is
    /// left.
    pub fn share_with_looped(&mut self) -> usize {
        self.looped_first = !self.looped_first;
        let left = self.size.saturating_sub(self.burst.len());
        // Where only one packet fits it is theirs now and then.
        self.burst.len() + (left + usize::from(self.looped_first)) / 2
    }

    /// Adds one piece of a packet to the batch.
    pub fn push(&mut self, origin: Origin, packet: RxPacket) {
        self.burst.push(packet);
        self.origins.push(origin);
    }

    /// Step 1: polls the devices in turn for the rest of a batch. Returns the number of packets in
    /// the batch. `polled` gets for each port how many packets were asked for and received.
    #[inline]
    pub fn poll_devices(
        &mut self,
        cx: &mut Context,
        ports: &mut [Port],
        mut polled: impl FnMut(usize, usize, usize),
    ) -> usize {
        let Receive { size, first_port, burst, origins, batch, .. } = self;
        let count = ports.len();
        let forwarded = burst.len();
        let (mut left, mut blind) = (0, false);
        let mut next = *first_port;
        for _ in 0..count {
            // Written out: a division takes longer than the rest of an idle turn's poll.
            let index = if next < count { next } else { 0 };
            next = index + 1;
            let room = size.saturating_sub(burst.len());
            if room == 0 {
                break;
            }
            let port = &mut ports[index];
            let room = room.min(port.nic.waiting().map_or(room, share));
            let taken = port.nic.receive(&cx.shared.memory, &mut cx.rx_pool, room, burst);
            if taken > 0 {
                origins.resize(burst.len(), Origin { port: index as u8, from: Via::NEW });
            }
            polled(index, room, taken);
            // Only a device that has returned all that was asked for may have more.
            if taken > 0 && taken >= room {
                match port.nic.backlog() {
                    Some(waiting) => left += waiting,
                    None => blind = true,
                }
            }
        }
        *first_port = if *first_port + 1 < count { *first_port + 1 } else { 0 };
        if burst.is_empty() {
            return 0;
        }
        cx.metrics.waited(burst.len(), left, blind);
        batch.edge.look(left);
        let mut bytes = 0;
        for packet in &burst[forwarded..] {
            let frame = packet.mbuf.bytes(&cx.shared.memory);
            // Written out: the loop over them costs more than they do.
            for at in [0, 64, 128] {
                if let Some(line) = frame.get(at) {
                    prefetch_read(line);
                }
            }
            bytes += frame.len() as u64;
        }
        let counters = &cx.metrics.counters;
        counters.rx_packets.add((burst.len() - forwarded) as u64);
        counters.rx_bytes.add(bytes);
        burst.len()
    }

    /// [`Self::classify_here`] for packets that are rare, and that no filter has checked yet unless
    /// they are `looped`.
    #[inline(never)]
    pub fn classify(
        &mut self,
        cx: &Context,
        ports: &[Port],
        mbuf: &Mbuf,
        total_len: usize,
        looped: bool,
    ) -> Result<Option<usize>, Dropped> {
        self.classify_here(cx, ports, mbuf, total_len, (!looped, looped))
    }

    /// Parses a packet into the last element of `work` and finds its flow group; `None`: any thread
    /// may process it. `is_new`: no receive filter has checked it yet; `may_be_own`: its source may
    /// be one of our addresses.
    #[inline(always)]
    pub fn classify_here(
        &mut self,
        cx: &Context,
        ports: &[Port],
        mbuf: &Mbuf,
        total_len: usize,
        (is_new, may_be_own): (bool, bool),
    ) -> Result<Option<usize>, Dropped> {
        let Receive { work, admission, .. } = self;
        let shared = &cx.shared;
        let Some(Work { parsed, port, group, hash, .. }) = work.last_mut() else {
            return Err(LocalDrop::NoFlow.into());
        };
        let port = *port as usize;
        let at = &ports[port];
        let info = &at.info;
        let bytes = mbuf.bytes(&shared.memory);
        let checks = checks_of(info);
        let usual = if info.shared_frames {
            parse_shared(bytes, total_len, checks, parsed)?
        } else {
            let head = bytes.first_chunk();
            let usual = head.and_then(|head| parse_usual(head, bytes, total_len, checks, parsed));
            if usual.is_none() {
                ix_wire::parse_any(bytes, total_len, checks, parsed)?;
            }
            usual
        };
        // Packets from another thread were checked there.
        if is_new && let Some(checks) = admission.checks() {
            checks.hears(parsed, total_len, cx.now_us)?;
        }
        // Not from the parsed value: loading in one piece what was stored in several stalls the
        // processor.
        if let Some(eth_dst) = bytes.first_chunk::<6>()
            && *eth_dst != info.mac
            && !ix_wire::is_group_mac(eth_dst)
        {
            return Err(DropReason::EthNotForUs.into());
        }
        let tuple = match (usual, &*parsed) {
            (Some(tuple), _) => tuple,
            (None, Parsed::Tcp(p)) => p.tuple(),
            (None, Parsed::Udp(p)) => p.tuple(),
            // The table of neighbours is shared by all threads.
            (None, Parsed::Arp(_) | Parsed::Nd(_)) => return Ok(None),
            // To all hosts of the link, or to a group.
            (None, Parsed::Icmp(p)) if is_of_link(cx, p) => return Ok(None),
            (None, Parsed::Icmp(p)) => {
                check_destination(cx, (p.ip.src, p.ip.dst), may_be_own)?;
                // An error belongs to the flow that it quotes; anything else is processed here.
                let Some(error) = IcmpError::parse(bytes, p) else { return Ok(None) };
                *hash = shared.flow_hash.hash(&error.tuple);
                let found = at.group_of(*hash, &error.tuple);
                *group = found as u8;
                return Ok(Some(found));
            }
        };
        check_destination(cx, (tuple.remote, tuple.local), may_be_own)
            .or_else(|reason| check_group(cx, parsed, reason))?;
        *hash = shared.flow_hash.hash(&tuple);
        let found = at.group_of(*hash, &tuple);
        *group = found as u8;
        Ok(Some(found))
    }

    /// Verifies the transport checksum of the packet that was classified last, whose frame is in
    /// several mbufs: it has not been summed up yet.
    #[cold]
    pub fn verify_tails(&self, cx: &Context, ports: &[Port], mbuf: &Mbuf) -> Result<(), Dropped> {
        let last = self.work.packets().last();
        let Some(Work { parsed, port, tails, .. }) = last else { return Ok(()) };
        let memory = &cx.shared.memory;
        let rest = self.batch.last_tails(*tails).map(|tail| tail.bytes(memory));
        let checks = checks_of(&ports[usize::from(*port)].info);
        Ok(ix_wire::verify_rest(mbuf.bytes(memory), parsed, rest, checks)?)
    }
}

/// Whether a message is a router's or a switch's to all hosts that listen.
fn is_of_link(cx: &Context, packet: &IcmpPacket) -> bool {
    let heard = Query::is(packet) || Advertisement::is(packet) && hears_routers(cx);
    heard && packet.ip.dst.is_multicast()
}

/// Whether routers are listened to.
pub(crate) fn hears_routers(cx: &Context) -> bool {
    cx.shared.config.addr6 == Addr6::Auto
}

/// What the parser verifies of a device's frames.
#[inline]
fn checks_of(info: &NicInfo) -> RxChecks {
    let transport =
        if info.partial_checksums { ChecksumMode::AcceptPartial } else { ChecksumMode::Verify };
    RxChecks { transport }
}

/// Longest headers of a packet: Ethernet 14, IPv4 60, TCP 60. The rest fills three cache lines.
const HEAD_BYTES: usize = 192;
/// The same of IPv6: Ethernet 14, IPv6 40, its extension headers, TCP 60.
pub(crate) const HEAD_BYTES_V6: usize = 14 + 40 + ix_wire::ipv6::CHAIN_BYTES_MAX + 60;

/// Parses a frame that its sender can still change (a memif peer may be hostile): from a copy of
/// its front, so that what was checked is what is used.
#[inline(never)]
fn parse_shared(
    frame: &[u8],
    total_len: usize,
    checks: RxChecks,
    into: &mut Parsed,
) -> Result<Option<FlowTuple>, DropReason> {
    if let Some(head) = frame.first_chunk() {
        // Hidden from the compiler, which would be free to read the frame again instead.
        let head = std::hint::black_box(*head);
        let usual = parse_usual(&head, frame, total_len, checks, into);
        if usual.is_some() {
            return Ok(usual);
        }
    }
    if frame.get(12..14) == Some(&ethernet::TYPE_IPV6.to_be_bytes()) {
        return parse_shared_v6(frame, total_len, checks, into);
    }
    parse_front::<HEAD_BYTES>(frame, total_len, checks, into)?;
    Ok(None)
}

/// The same for IPv6, whose headers may be longer.
#[inline(never)]
fn parse_shared_v6(
    frame: &[u8],
    total_len: usize,
    checks: RxChecks,
    into: &mut Parsed,
) -> Result<Option<FlowTuple>, DropReason> {
    if let Some(head) = frame.first_chunk() {
        // As above.
        let head = std::hint::black_box(*head);
        let usual = parse_usual_v6(&head, frame, total_len, checks, into);
        if usual.is_some() {
            return Ok(usual);
        }
    }
    parse_shared_long_v6(frame, total_len, checks, into)?;
    Ok(None)
}

/// Not inlined, so that the usual packet has a small stack frame.
#[inline(never)]
fn parse_shared_long_v6(
    frame: &[u8],
    total_len: usize,
    checks: RxChecks,
    into: &mut Parsed,
) -> Result<(), DropReason> {
    parse_front::<HEAD_BYTES_V6>(frame, total_len, checks, into)
}

#[inline(always)]
fn parse_front<const BYTES: usize>(
    frame: &[u8],
    total_len: usize,
    checks: RxChecks,
    into: &mut Parsed,
) -> Result<(), DropReason> {
    let mut head = [0; BYTES];
    let len = frame.len().min(BYTES);
    head[..len].copy_from_slice(&frame[..len]);
    ix_wire::parse_copied(&head[..len], frame, total_len, checks, into)
}

/// Whether a packet is for this dataplane: an own or a group Ethernet address, and an own IP
/// address. The source of what a device has received must not be an own address (the "LAND"
/// attack): what we send to ourselves reaches no device.
#[inline]
pub(crate) fn check_destination(
    cx: &Context,
    (src, dst): (IpAddr, IpAddr),
    may_be_own: bool,
) -> Result<(), DropReason> {
    if !cx.is_local(dst) {
        return Err(DropReason::IpNotForUs);
    }
    if cx.is_local(src) && !may_be_own {
        return Err(DropReason::IpMartianSource);
    }
    Ok(())
}

/// The same of a datagram, which may be for several hosts; `refused`: why it is for none of our
/// addresses.
#[cold]
#[inline(never)]
fn check_group(cx: &Context, parsed: &Parsed, refused: DropReason) -> Result<(), DropReason> {
    let Parsed::Udp(UdpPacket { ip, .. }) = parsed else { return Err(refused) };
    let is_heard = refused == DropReason::IpNotForUs && cx.hears(ip.dst);
    match is_heard {
        true if cx.is_local(ip.src) => Err(DropReason::IpMartianSource),
        true => Ok(()),
        false => Err(refused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_half_and_never_nothing() {
        assert_eq!([0, 1, 3, 4, 5, 8, 9, 64, 1000].map(share), [0, 1, 3, 4, 4, 4, 5, 32, 500]);
    }

    #[test]
    fn each_thread_is_first_in_turn_and_devices_get_half_of_the_batch() {
        for (size, shares) in [
            (8, [(1, 4), (2, 4), (0, 4)]),
            (3, [(1, 2), (2, 2), (0, 1)]),
            (1, [(1, 1), (2, 1), (0, 0)]),
        ] {
            let mut receive = Receive::new(size, Edge::new(1, 1, 1));
            assert_eq!([0; 3].map(|_| receive.share_with_threads(3)), shares);
        }
    }

    #[test]
    fn packets_to_own_addresses_leave_half_of_the_batch_to_others() {
        for (size, shares) in [(64, [32, 32]), (3, [2, 1]), (1, [1, 0])] {
            let mut receive = Receive::new(size, Edge::new(1, 1, 1));
            assert_eq!([0; 2].map(|_| receive.share_with_looped()), shares);
        }
    }
}
