//! Fragments of IP datagrams: processed where the parser refuses them, off the common path.
//!
//! All fragments of a datagram are stored by one thread: the owner of the flow group that is
//! computed from what they have in common, whichever queues they arrive on. A complete datagram is
//! a frame like any other: it is parsed, and handed to the thread of its flow.
use super::{HEAD_BYTES_V6, check_destination};
use crate::context::Context;
use crate::io::Io;
use crate::observe::metrics::LocalDrop;
use crate::ports::Port;
use crate::verdict::Dropped;
use ix_mem::{FRAME_BYTES, Mbuf};
use ix_tcp::fragments::{Fragments, Refused, Whole};
use ix_tcp::icmp::ErrorMessage;
use ix_wire::{DropReason, FlowTuple, Fragment, IpMeta, ethernet, ipv4, ipv6, is_group_mac};

/// Offset of a datagram's payload in its frame: behind the longest Ethernet and IP headers.
const PAYLOAD_AT: usize = 80;
/// Longest payload that is reassembled: what one frame holds.
const PAYLOAD_BYTES_MAX: usize = FRAME_BYTES - PAYLOAD_AT;

/// Incomplete datagrams of one elastic thread. Made with the first fragment, because most threads
/// receive none.
#[derive(Default)]
pub(crate) struct UnderWay(Option<Box<Under>>);

struct Under {
    fragments: Fragments<Mbuf>,
    /// The device of the latest fragment. Errors for expired datagrams are sent by it.
    port: u8,
}

impl UnderWay {
    /// When the next datagram expires.
    pub fn deadline_us(&self) -> Option<u64> {
        self.0.as_ref()?.fragments.deadline_us()
    }
}

/// The front of a frame with all of its headers.
type Head = [u8; HEAD_BYTES_V6];

/// A fragment whose headers were read.
pub(crate) struct Read {
    head: Head,
    fragment: Fragment,
    /// The flow group whose owner stores the fragments of its datagram.
    pub group: usize,
}

/// Reads the headers from a copy, because the sender may still be able to change the frame.
#[cold]
pub(crate) fn read(cx: &Context, port: &Port, mbuf: &Mbuf) -> Result<Read, Dropped> {
    let frame = mbuf.bytes(&cx.shared.memory);
    let mut head = [0; HEAD_BYTES_V6];
    let len = frame.len().min(HEAD_BYTES_V6);
    head[..len].copy_from_slice(&frame[..len]);
    let fragment = ix_wire::parse_fragment(&head[..len], frame.len())?;
    let Fragment { ip, protocol, ident, .. } = &fragment;
    if ip.eth_dst != port.info.mac && !is_group_mac(&ip.eth_dst) {
        return Err(DropReason::EthNotForUs.into());
    }
    check_destination(cx, ip)?;
    let (local, remote) = (ip.dst, ip.src);
    // Identifications of IPv4 have 16 bits; those of IPv6 may count in any of their 32.
    let local_port = (*ident ^ *ident >> 16) as u16;
    let tuple = FlowTuple { local, remote, local_port, remote_port: u16::from(*protocol) };
    let group = port.group_of(cx.shared.flow_hash.hash(&tuple), &tuple);
    Ok(Read { head, fragment, group })
}

impl UnderWay {
    /// Stores a fragment. Returns the frame of the datagram if it is complete now, or the fragment
    /// if it is refused.
    #[cold]
    pub fn take(
        &mut self,
        cx: &mut Context,
        port: u8,
        read: &Read,
        mbuf: Mbuf,
    ) -> Result<Option<Mbuf>, (Dropped, Mbuf)> {
        let Read { head, fragment, .. } = read;
        let under = self.0.get_or_insert_with(|| {
            Box::new(Under { fragments: Fragments::new(PAYLOAD_BYTES_MAX), port: 0 })
        });
        under.port = port;
        let (mut freed, pool) = (Vec::new(), &mut cx.rx_pool);
        let take = || pool.take();
        let placed = under.fragments.place(fragment, cx.now_us, take, |buf| freed.push(buf));
        let done = match placed {
            Ok(into) => {
                copy_into(&cx.shared.memory, head, fragment, &mbuf, into);
                under.fragments.take_whole(fragment, |buf| freed.push(buf))
            }
            Err(refused) => Err(refused),
        };
        freed.into_iter().for_each(|buf| cx.rx_pool.put(buf));
        match done {
            Ok(whole) => {
                cx.rx_pool.put(mbuf);
                Ok(whole.map(|whole| finish(cx, whole)))
            }
            Err(Refused::Duplicate) => {
                cx.rx_pool.put(mbuf);
                Ok(None)
            }
            Err(Refused::NoBuffer) => Err((LocalDrop::RxPressure.into(), mbuf)),
            Err(_) => Err((bad_fragment(fragment.ip.dst.is_v6()).into(), mbuf)),
        }
    }

    /// Drops datagrams that were not complete in time, and tells their senders (RFC 1122 section
    /// 3.3.2, RFC 8200 section 4.5).
    pub fn expire(&mut self, io: &mut Io) {
        let Some(mut under) = self.0.take() else { return };
        while let Some(expired) = under.fragments.expire(io.cx.now_us) {
            io.cx.metrics.drop_packet(bad_fragment(expired.is_v6));
            let Some(mut buf) = expired.buf else { continue };
            if let Some(ip) = expired.first
                && let Some(message) = ErrorMessage::reassembly_timeout(ip)
            {
                // The first fragment: its header and its payload, of IPv4 as much as RFC 792 wants.
                let headers_len = headers_len(&ip);
                let payload_len = if expired.is_v6 { PAYLOAD_BYTES_MAX } else { 8 };
                buf.set_range(PAYLOAD_AT - headers_len, headers_len + payload_len);
                let shared = io.cx.shared.clone();
                io.send_icmp_error(under.port, &message, buf.bytes(&shared.memory));
            }
            io.cx.rx_pool.put(buf);
        }
        if !under.fragments.is_empty() {
            self.0 = Some(under);
        }
    }
}

/// Makes a frame of a complete datagram.
fn finish(cx: &Context, whole: Whole<Mbuf>) -> Mbuf {
    let Whole { mut buf, ip, ecn, len } = whole;
    let headers_len = headers_len(&ip);
    buf.set_range(PAYLOAD_AT - headers_len, headers_len + len);
    let bytes = buf.bytes_mut(&cx.shared.memory);
    let header = &mut bytes[ethernet::HEADER_BYTES..headers_len];
    match ip.dst.is_v6() {
        true => ipv6::make_whole(header, len, ecn),
        false => ipv4::make_whole(header, len, ecn),
    }
    buf
}

/// Bytes of the headers that are kept in front of a datagram.
fn headers_len(ip: &IpMeta) -> usize {
    let kept = if ip.dst.is_v6() { ipv6::KEPT_BYTES } else { usize::from(ip.header_len) };
    ethernet::HEADER_BYTES + kept
}

/// The reason why a fragment of this family is dropped.
fn bad_fragment(is_v6: bool) -> DropReason {
    if is_v6 { DropReason::Ip6Fragment } else { DropReason::IpFragment }
}

/// Copies a fragment's payload to its place, and a first fragment's headers in front of it.
fn copy_into(
    memory: &ix_mem::PacketMemory,
    head: &Head,
    fragment: &Fragment,
    from: &Mbuf,
    into: &mut Mbuf,
) {
    into.set_range(0, FRAME_BYTES);
    let (from, into) = (fragment.payload.of(from.bytes(memory)), into.bytes_mut(memory));
    let at = PAYLOAD_AT + usize::from(fragment.offset);
    if let Some(place) = into.get_mut(at..at + from.len()) {
        place.copy_from_slice(from);
    }
    if fragment.offset == 0 {
        let headers_len = headers_len(&fragment.ip);
        let (eth, packet) = head.split_at(ethernet::HEADER_BYTES);
        let (kept_eth, kept) =
            into[PAYLOAD_AT - headers_len..PAYLOAD_AT].split_at_mut(ethernet::HEADER_BYTES);
        kept_eth.copy_from_slice(eth);
        let header_len = usize::from(fragment.ip.header_len);
        if !fragment.ip.dst.is_v6() {
            kept.copy_from_slice(&packet[..header_len]);
        } else if let Some(of_v6) =
            ipv6::kept_headers(packet, header_len, usize::from(fragment.payload.len))
        {
            kept.copy_from_slice(&of_v6);
        }
    }
}
