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
use ix_mem::{FRAME_BYTES, Mbuf, Pool};
use ix_tcp::fragments::{Fragments, Refused, Whole};
use ix_tcp::icmp::ErrorMessage;
use ix_wire::{DropReason, FlowTuple, Fragment, IpMeta, ethernet, ipv4, ipv6, is_group_mac};

/// Offset of a datagram's payload in its first frame: behind the longest Ethernet and IP headers.
const PAYLOAD_AT: usize = 80;
/// Octets of payload in its first frame; the following ones are full of them.
const FIRST_BYTES: usize = FRAME_BYTES - PAYLOAD_AT;
/// Longest payload that is reassembled: of IPv4 with its shortest header. Over IPv6 there is room
/// for a fragment header beside it.
const PAYLOAD_BYTES_MAX: usize = 65_535 - ipv4::HEADER_BYTES;
/// Following frames of incomplete datagrams: at most this part of the thread's frames.
const PART_OF_FRAMES: usize = 8;

/// Incomplete datagrams of one elastic thread. Made with the first fragment, because most threads
/// receive none.
#[derive(Default)]
pub(crate) struct UnderWay(Option<Box<Under>>);

struct Under {
    fragments: Fragments<Frames>,
    /// Following frames of all incomplete datagrams.
    following: usize,
    /// The device of the latest fragment. Errors for expired datagrams are sent by it.
    port: u8,
}

impl UnderWay {
    /// When the next datagram expires.
    pub fn deadline_us(&self) -> Option<u64> {
        self.0.as_ref()?.fragments.deadline_us()
    }
}

/// The frames of a datagram, in order.
struct Frames {
    first: Mbuf,
    following: Vec<Mbuf>,
}

impl Frames {
    fn free(self, following: &mut usize, pool: &mut Pool) {
        *following -= self.following.len();
        pool.put(self.first);
        self.following.into_iter().for_each(|mbuf| pool.put(mbuf));
    }
}

/// A complete datagram as a frame of one or more buffers.
pub(crate) struct WholeFrame {
    pub first: Mbuf,
    pub tails: Vec<Mbuf>,
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

/// Reads the headers from a copy, because the sender may still be able to change the frame. It has
/// `total_len` bytes, in this buffer and others. `may_be_own`: its source may be one of our
/// addresses.
#[cold]
pub(crate) fn read(
    cx: &Context,
    port: &Port,
    mbuf: &Mbuf,
    total_len: usize,
    may_be_own: bool,
) -> Result<Read, Dropped> {
    let frame = mbuf.bytes(&cx.shared.memory);
    let mut head = [0; HEAD_BYTES_V6];
    let len = frame.len().min(HEAD_BYTES_V6);
    head[..len].copy_from_slice(&frame[..len]);
    let fragment = ix_wire::parse_fragment(&head[..len], total_len)?;
    let Fragment { ip, protocol, ident, .. } = &fragment;
    if ip.eth_dst != port.info.mac && !is_group_mac(&ip.eth_dst) {
        return Err(DropReason::EthNotForUs.into());
    }
    check_destination(cx, (ip.src, ip.dst), may_be_own)?;
    let (local, remote) = (ip.dst, ip.src);
    // Identifications of IPv4 have 16 bits; those of IPv6 may count in any of their 32.
    let local_port = (*ident ^ *ident >> 16) as u16;
    let tuple = FlowTuple { local, remote, local_port, remote_port: u16::from(*protocol) };
    let group = port.group_of(cx.shared.flow_hash.hash(&tuple), &tuple);
    Ok(Read { head, fragment, group })
}

impl UnderWay {
    /// Stores a fragment, from its first buffer and the `tails`, which stay the caller's. Returns
    /// the frame of the datagram if it is complete now, or the first buffer if it is refused.
    #[cold]
    pub fn take<'a>(
        &mut self,
        cx: &mut Context,
        port: u8,
        read: &Read,
        (mbuf, tails): (Mbuf, impl Iterator<Item = &'a Mbuf>),
    ) -> Result<Option<WholeFrame>, (Dropped, Mbuf)> {
        let Read { head, fragment, .. } = read;
        let under = self.0.get_or_insert_with(|| {
            let fragments = Fragments::new(PAYLOAD_BYTES_MAX);
            Box::new(Under { fragments, following: 0, port: 0 })
        });
        under.port = port;
        let Under { fragments, following, .. } = &mut **under;
        let (mut freed, pool) = (Vec::new(), &mut cx.rx_pool);
        let most = pool.owned() / PART_OF_FRAMES;
        let take = || pool.take().map(|first| Frames { first, following: Vec::new() });
        let placed = fragments.place(fragment, cx.now_us, take, |buf| freed.push(buf));
        let done = match placed {
            Ok(into) => match make_room(into, fragment, following, most, &mut cx.rx_pool) {
                true => {
                    let memory = &cx.shared.memory;
                    let tails = tails.map(|tail| tail.bytes(memory));
                    let pieces = core::iter::once(mbuf.bytes(memory)).chain(tails);
                    copy_into(memory, head, fragment, pieces, into);
                    fragments.take_whole(fragment, |buf| freed.push(buf))
                }
                false => {
                    fragments.give_up(fragment, |buf| freed.push(buf));
                    Err(Refused::NoBuffer)
                }
            },
            Err(refused) => Err(refused),
        };
        freed.into_iter().for_each(|buf| buf.free(following, &mut cx.rx_pool));
        match done {
            Ok(Some(whole)) if is_too_long(&whole) => {
                whole.buf.free(following, &mut cx.rx_pool);
                Err((bad_fragment(fragment.ip.dst.is_v6()).into(), mbuf))
            }
            Ok(whole) => {
                cx.rx_pool.put(mbuf);
                Ok(whole.map(|whole| {
                    *following -= whole.buf.following.len();
                    finish(cx, whole)
                }))
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
            let Some(Frames { first: mut buf, following }) = expired.buf else { continue };
            under.following -= following.len();
            following.into_iter().for_each(|mbuf| io.cx.rx_pool.put(mbuf));
            if let Some(ip) = expired.first
                && let Some(message) = ErrorMessage::reassembly_timeout(ip)
            {
                // The first fragment: its header and its payload, of IPv4 as much as RFC 792 wants.
                let headers_len = headers_len(&ip);
                let payload_len = if expired.is_v6 { FIRST_BYTES } else { 8 };
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

/// Whether the length of a datagram does not fit its header: of IPv4 that of the packet, of IPv6
/// that of what is behind the header, with a fragment header.
fn is_too_long(whole: &Whole<Frames>) -> bool {
    let header_bytes = match whole.ip.dst.is_v6() {
        true => ipv6::FRAGMENT_BYTES,
        false => usize::from(whole.ip.header_len),
    };
    header_bytes + whole.len > usize::from(u16::MAX)
}

/// Takes the frames that a fragment reaches into. False: there are too few.
fn make_room(
    into: &mut Frames,
    fragment: &Fragment,
    following: &mut usize,
    most: usize,
    pool: &mut Pool,
) -> bool {
    let end = usize::from(fragment.offset) + usize::from(fragment.payload.len);
    let needed = end.saturating_sub(FIRST_BYTES).div_ceil(FRAME_BYTES);
    while into.following.len() < needed {
        let Some(mbuf) = (*following < most).then(|| pool.take()).flatten() else { return false };
        into.following.push(mbuf);
        *following += 1;
    }
    true
}

/// Makes a frame of a complete datagram.
fn finish(cx: &Context, whole: Whole<Frames>) -> WholeFrame {
    let Whole { buf: Frames { mut first, following: mut tails }, ip, ecn, len } = whole;
    let headers_len = headers_len(&ip);
    first.set_range(PAYLOAD_AT - headers_len, headers_len + len.min(FIRST_BYTES));
    let mut left = len.saturating_sub(FIRST_BYTES);
    for tail in &mut tails {
        tail.set_range(0, left.min(FRAME_BYTES));
        left -= left.min(FRAME_BYTES);
    }
    let bytes = first.bytes_mut(&cx.shared.memory);
    let header = &mut bytes[ethernet::HEADER_BYTES..headers_len];
    match ip.dst.is_v6() {
        true => ipv6::make_whole(header, len, ecn),
        false => ipv4::make_whole(header, len, ecn),
    }
    WholeFrame { first, tails }
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
fn copy_into<'a>(
    memory: &ix_mem::PacketMemory,
    head: &Head,
    fragment: &Fragment,
    pieces: impl Iterator<Item = &'a [u8]>,
    into: &mut Frames,
) {
    let (mut skip, mut left) = (usize::from(fragment.payload.start), fragment.payload.len.into());
    // Counted from the front of the first frame.
    let mut at = PAYLOAD_AT + usize::from(fragment.offset);
    for piece in pieces {
        let mut from = piece.get(skip..).unwrap_or(&[]);
        skip = skip.saturating_sub(piece.len());
        from = &from[..from.len().min(left)];
        left -= from.len();
        while !from.is_empty() {
            let frame = match at / FRAME_BYTES {
                0 => Some(&mut into.first),
                number => into.following.get_mut(number - 1),
            };
            let Some(frame) = frame else { break };
            frame.set_range(0, FRAME_BYTES);
            let place = &mut frame.bytes_mut(memory)[at % FRAME_BYTES..];
            let (part, rest) = from.split_at(from.len().min(place.len()));
            place[..part.len()].copy_from_slice(part);
            (from, at) = (rest, at + part.len());
        }
    }
    if fragment.offset == 0 {
        into.first.set_range(0, FRAME_BYTES);
        let into = into.first.bytes_mut(memory);
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
