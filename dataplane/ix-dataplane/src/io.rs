//! What protocols use to send: the context, the devices, next hops, and limits for unrequested
//! packets.
use crate::attachment::Attachments;
use crate::context::Context;
use crate::neighbors::Neighbors;
use crate::observe::metrics::{LocalDrop, ThreadMetrics};
use crate::ports::Port;
use crate::shared::{Shared, key_of};
use ix_mem::{HEADROOM_BYTES, Mbuf, Pool, ROOM_BYTES};
use ix_nic::Nic;
use ix_tcp::ack_limit::ChallengeLimit;
use ix_tcp::arp::Resolution;
use ix_tcp::icmp::{ErrorLimiter, ErrorMessage};
use ix_tcp::idents::Idents;
use ix_tcp::{Asker, SegmentOut};
use ix_wire::{Checksum, FlowTuple, FrameHeader, MacAddr, frame};
use std::sync::Arc;

/// Challenge acknowledgements per second of one elastic thread, on average (RFC 5961 section 7).
const CHALLENGES_PER_S: u32 = 1000;

/// Identification of packets that no router may fragment (RFC 6864 section 4.1). If it counted all
/// packets, each peer would learn how many packets others get (RFC 7739).
const ATOMIC: u32 = 0;

/// The connections of one elastic thread to the outside.
pub struct Io {
    /// What every part gets.
    pub cx: Context,
    /// Devices.
    pub ports: Vec<Port>,
    /// Next hops.
    pub neighbors: Neighbors,
    /// Limit of sent ICMP errors.
    pub icmp_errors: ErrorLimiter,
    /// Limit of the challenge acknowledgements of all connections (RFC 5961 section 7).
    pub challenges: ChallengeLimit,
    /// Identifications of datagrams that may be cut on their way.
    pub idents: Idents,
}

impl Io {
    /// Those of thread `index`, with these queue pairs and pools.
    pub fn new(
        shared: Arc<Shared>,
        index: usize,
        nics: Vec<Box<dyn Nic>>,
        pools: (Pool, Pool),
        attached: Attachments,
        metrics: ThreadMetrics,
    ) -> Io {
        let key = key_of(&shared.config.secret);
        let challenges = ChallengeLimit::new(key, CHALLENGES_PER_S);
        let idents = Idents::new(key, index, shared.threads());
        Io {
            cx: Context::new(shared, index, pools, attached, metrics),
            ports: nics.into_iter().map(Port::new).collect(),
            neighbors: Neighbors::new(index),
            icmp_errors: ErrorLimiter::default(),
            challenges,
            idents,
        }
    }

    /// The Ethernet address for packets between these ends by a device.
    pub(crate) fn resolve(&mut self, ends: (&FlowTuple, Asker), port: u8) -> Resolution {
        self.neighbors.resolve(&mut self.cx, &mut self.ports, ends, port)
    }

    /// Makes `mac`, from `version` of the neighbour table, the address of the next hop between
    /// these ends by a device. False while that address is unknown.
    #[inline]
    pub(crate) fn refresh_mac(
        &mut self,
        (mac, version): (&mut MacAddr, &mut u32),
        ends: (&FlowTuple, Asker),
        port: u8,
    ) -> bool {
        if *version == self.neighbors.version() {
            return true;
        }
        match self.resolve(ends, port) {
            Resolution::Known(known) => {
                (*mac, *version) = (known, self.neighbors.version());
                true
            }
            Resolution::Pending | Resolution::Failed => false,
        }
    }

    /// Stores a built packet until its next hop is known; drops it if that has just failed.
    pub(crate) fn wait_for_neighbor(&mut self, ends: (&FlowTuple, Asker), port: u8, mbuf: Mbuf) {
        self.neighbors.wait_for(&mut self.cx, &mut self.ports, ends, port, mbuf);
    }

    /// Sends a built packet, or stores it until its next hop is known.
    #[inline]
    pub(crate) fn send_or_wait(
        &mut self,
        ends: (&FlowTuple, Asker),
        port: u8,
        hop: &Resolution,
        mbuf: Mbuf,
    ) {
        match hop {
            Resolution::Known(_) => self.ports[usize::from(port)].queue.push_back(mbuf),
            _ => self.wait_for_neighbor(ends, port, mbuf),
        }
    }

    /// Whether a flow with data in flight may send more by a device. Some frames always stay free
    /// for others, so that few flows with large windows do not keep them from sending (as small
    /// queues do on Linux).
    #[inline]
    pub(crate) fn has_room(&self, port: u8) -> bool {
        let (free, owned) = (self.cx.tx_pool.free(), self.cx.tx_pool.owned());
        free * 8 >= owned && self.ports[usize::from(port)].has_room(owned)
    }

    /// A frame to build a packet in that leaves by a device. When few are left, a device that has
    /// more than its share gets none: one that takes nothing does not keep the others from sending.
    #[inline]
    pub(crate) fn take_tx_frame(&mut self, port: u8) -> Option<Mbuf> {
        if self.ports.len() > 1 && self.cx.tx_pool.free() * 4 < self.cx.tx_pool.owned() {
            let port = &self.ports[usize::from(port)];
            let its = port.queue.len() + port.nic.frames_held().1;
            if its * self.ports.len() > self.cx.tx_pool.owned() {
                return None;
            }
        }
        self.cx.tx_pool.take()
    }

    /// The same for a packet of `len` bytes, which are all in use, in several buffers if need be.
    pub(crate) fn take_tx_frames(&mut self, port: u8, len: usize) -> Option<Mbuf> {
        let mut first = self.take_tx_frame(port)?;
        first.set_range(HEADROOM_BYTES, len.min(ROOM_BYTES));
        let Context { tx_pool, shared, .. } = &mut self.cx;
        if len > ROOM_BYTES && !tx_pool.extend(&shared.memory, &mut first, len - ROOM_BYTES) {
            tx_pool.put(first);
            return None;
        }
        Some(first)
    }

    /// Sends a segment that belongs to no flow to the sender of the packet that caused it.
    pub(crate) fn send_reply(
        &mut self,
        port: u8,
        eth_dst: MacAddr,
        tuple: &FlowTuple,
        segment: &SegmentOut,
    ) {
        let hops = self.cx.hop_limit(tuple.remote);
        self.send_reply_with(port, eth_dst, tuple, segment, (hops, 0));
    }

    /// The same with this hop limit and type of service.
    pub(crate) fn send_reply_with(
        &mut self,
        port: u8,
        eth_dst: MacAddr,
        tuple: &FlowTuple,
        segment: &SegmentOut,
        (ttl, tos): (u8, u8),
    ) {
        let Some(mut mbuf) = self.take_tx_frame(port) else {
            self.cx.metrics.drop_local(LocalDrop::NoTxFrame);
            return;
        };
        let header = segment.header(tuple);
        let len = frame::headers_bytes_to(tuple.remote) + header.len();
        mbuf.set_range(HEADROOM_BYTES, len);
        let mut headers = self.frame_header(port, eth_dst, tuple);
        headers.ident = self.label_of(tuple);
        (headers.ttl, headers.tos) = (ttl, tos);
        let bytes = mbuf.bytes_mut(&self.cx.shared.memory);
        headers.emit_tcp(bytes, &header, 0, Checksum::new());
        self.ports[port as usize].queue.push_back(mbuf);
    }

    /// Sends an ICMP error about `received`, unless the limit is reached.
    pub(crate) fn send_icmp_error(&mut self, port: u8, message: &ErrorMessage, received: &[u8]) {
        if !self.icmp_errors.allow(self.cx.now_us) {
            return;
        }
        let Some(mut mbuf) = self.take_tx_frame(port) else {
            return self.cx.metrics.drop_local(LocalDrop::NoTxFrame);
        };
        mbuf.set_range(HEADROOM_BYTES, ErrorMessage::FRAME_BYTES_MAX);
        let len = message.emit(received, ATOMIC, mbuf.bytes_mut(&self.cx.shared.memory));
        mbuf.truncate(len);
        self.ports[port as usize].queue.push_back(mbuf);
    }

    /// The flow label of a packet of this flow; nothing over IPv4.
    #[inline]
    pub(crate) fn label_of(&self, tuple: &FlowTuple) -> u32 {
        match tuple.remote.is_v6() {
            true => self.cx.shared.flow_label(self.cx.shared.flow_hash.hash(tuple)),
            false => ATOMIC,
        }
    }

    /// Ethernet and IP header of a packet to send, without a flow label.
    #[inline]
    pub(crate) fn frame_header(
        &self,
        port: u8,
        eth_dst: MacAddr,
        tuple: &FlowTuple,
    ) -> FrameHeader {
        FrameHeader {
            eth_src: self.ports[port as usize].info.mac,
            eth_dst,
            src: tuple.local,
            dst: tuple.remote,
            ttl: self.cx.hop_limit(tuple.remote),
            tos: 0,
            ident: ATOMIC,
        }
    }
}
