//! What protocols use to send: the context, the devices, next hops, and limits for unrequested
//! packets.
use crate::attachment::Attachments;
use crate::context::Context;
use crate::neighbors::Neighbors;
use crate::observe::metrics::{LocalDrop, ThreadMetrics};
use crate::ports::Port;
use crate::shared::{Shared, key_of};
use ix_mem::{HEADROOM_BYTES, Mbuf, Pool};
use ix_nic::Nic;
use ix_tcp::SegmentOut;
use ix_tcp::ack_limit::ChallengeLimit;
use ix_tcp::arp::Resolution;
use ix_tcp::icmp::{ErrorLimiter, ErrorMessage};
use ix_wire::{Checksum, FlowTuple, FrameHeader, IpAddr, MacAddr, ethernet, ipv4};
use std::sync::Arc;

/// Challenge acknowledgements per second of one elastic thread, on average (RFC 5961 section 7).
const CHALLENGES_PER_S: u32 = 1000;

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
    /// Next IPv4 identification.
    pub ip_ident: u16,
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
        let challenges = ChallengeLimit::new(key_of(&shared.config.secret), CHALLENGES_PER_S);
        Io {
            cx: Context::new(shared, index, pools, attached, metrics),
            ports: nics.into_iter().map(Port::new).collect(),
            neighbors: Neighbors::new(index),
            icmp_errors: ErrorLimiter::default(),
            challenges,
            ip_ident: index as u16,
        }
    }

    /// The Ethernet address for packets to `remote`.
    pub(crate) fn resolve(&mut self, remote: IpAddr) -> Resolution {
        self.neighbors.resolve(&mut self.cx, &mut self.ports, remote)
    }

    /// Makes `mac`, from `version` of the neighbour table, the address of the next hop to `remote`.
    /// False while that address is unknown.
    #[inline]
    pub(crate) fn refresh_mac(
        &mut self,
        (mac, version): (&mut MacAddr, &mut u32),
        remote: IpAddr,
    ) -> bool {
        if *version == self.neighbors.version() {
            return true;
        }
        match self.resolve(remote) {
            Resolution::Known(known) => {
                (*mac, *version) = (known, self.neighbors.version());
                true
            }
            Resolution::Pending | Resolution::Failed => false,
        }
    }

    /// Stores a built packet until its next hop is known; drops it if that has just failed.
    pub(crate) fn wait_for_neighbor(&mut self, remote: IpAddr, port: u8, mbuf: Mbuf) {
        self.neighbors.wait_for(&mut self.cx, &mut self.ports, remote, port, mbuf);
    }

    /// Sends a segment that belongs to no flow to the sender of the packet that caused it.
    pub(crate) fn send_reply(
        &mut self,
        port: u8,
        eth_dst: MacAddr,
        tuple: &FlowTuple,
        segment: &SegmentOut,
    ) {
        let Some(mut mbuf) = self.cx.tx_pool.take() else {
            self.cx.metrics.drop_local(LocalDrop::NoTxFrame);
            return;
        };
        let header = segment.header(tuple);
        let len = ethernet::HEADER_BYTES + ipv4::HEADER_BYTES + header.len();
        mbuf.set_range(HEADROOM_BYTES, len);
        let frame = self.frame_header(port, eth_dst, tuple);
        let bytes = mbuf.bytes_mut(&self.cx.shared.memory);
        frame.emit_tcp(bytes, &header, 0, Checksum::new());
        self.ports[port as usize].queue.push_back(mbuf);
    }

    /// Sends an ICMP error about `received`, unless the limit is reached.
    pub(crate) fn send_icmp_error(&mut self, port: u8, message: &ErrorMessage, received: &[u8]) {
        if !self.icmp_errors.allow(self.cx.now_us) {
            return;
        }
        let Some(mut mbuf) = self.cx.tx_pool.take() else {
            return self.cx.metrics.drop_local(LocalDrop::NoTxFrame);
        };
        mbuf.set_range(HEADROOM_BYTES, ErrorMessage::FRAME_BYTES_MAX);
        self.ip_ident = self.ip_ident.wrapping_add(1);
        let len = message.emit(received, self.ip_ident, mbuf.bytes_mut(&self.cx.shared.memory));
        mbuf.truncate(len);
        self.ports[port as usize].queue.push_back(mbuf);
    }

    /// Ethernet and IP header of the next packet to send.
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
            ttl: self.cx.shared.config.ttl,
            tos: 0,
            ident: self.ip_ident,
        }
    }
}
