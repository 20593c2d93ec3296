//! Merges the segments of one flow that wait for transmission into one long frame.
//!
//! For Linux a frame of many segments costs nearly as little as one segment. Linux must be able to
//! cut the frame into exactly the segments that were merged (it does when it forwards the frame).
//! So all their headers must be equal except for what the cutting fills in: the lengths, the
//! sequence number and the identification, which count up, PSH, which the last one has, and the
//! checksums.
use super::vnet::{self, Segments};
use ix_mem::{Mbuf, PacketMemory};
use ix_wire::vlan::TAG_BYTES;
use ix_wire::{Checksum, IpAddr, TcpFlags, ethernet};

/// Most buffers of a frame: enough for 64 KiB at the usual MTU, of one buffer each, and at a large
/// one, of several.
pub(super) const BUFFERS_MAX: usize = 64;
/// Longest headers: virtio_net, Ethernet with a tag, IPv4 and TCP with all options.
pub(super) const HEADERS_BYTES_MAX: usize =
    vnet::HEADER_BYTES + TAG_BYTES + IP_AT + IPV4_BYTES + 60;

const IP_AT: usize = 14;
const IPV4_BYTES: usize = 20;
const TCP_AT: usize = IP_AT + IPV4_BYTES;
const TCP_BYTES: usize = 20;
/// Offset from [`Frame::head`].
const IP_LEN_AT: usize = IP_AT + 2;
const IP_IDENT_AT: usize = IP_AT + 4;
const IP_FRAGMENT_AT: usize = IP_AT + 6;
const IP_PROTOCOL_AT: usize = IP_AT + 9;
const IP_CHECKSUM_AT: usize = IP_AT + 10;
const ADDRESSES_AT: usize = IP_AT + 12;
const SEQ_AT: usize = TCP_AT + 4;
const ACK_AT: usize = TCP_AT + 8;
const FLAGS_AT: usize = TCP_AT + 13;
const WINDOW_AT: usize = TCP_AT + 14;
const TCP_CHECKSUM_AT: usize = TCP_AT + 16;
const URGENT_AT: usize = TCP_AT + 18;

const TYPE_IPV4: u16 = 0x0800;
/// Version 4, no options.
const VERSION_IHL: u8 = 0x45;
const DONT_FRAGMENT: u16 = 0x4000;
const PROTOCOL_TCP: u8 = 6;
const PSH: u8 = TcpFlags::PSH.0 as u8;
const ACK: u8 = TcpFlags::ACK.0 as u8;

/// A packet that waits: the bytes of its first buffer, which has all headers.
#[derive(Clone, Copy)]
pub(super) struct Frame<'a> {
    /// Where a frame without a tag would begin, if its IP header is to be at the usual place: the
    /// bytes of the frame behind `front`.
    head: &'a [u8],
    /// As many bytes as a tag has, if there is one.
    front: &'a [u8],
    /// Bytes of all buffers, without `front`.
    len: usize,
    /// Number of buffers.
    buffers: usize,
}

impl<'a> Frame<'a> {
    pub fn of(mbuf: &'a Mbuf, memory: &'a PacketMemory) -> Frame<'a> {
        Frame::new(mbuf.bytes(memory), mbuf.frame_len(memory), mbuf.buffers(memory))
    }

    /// A frame of `len` bytes in so many buffers, of which this is the first.
    pub fn new(first: &'a [u8], len: usize, buffers: usize) -> Frame<'a> {
        let (front, head) = first.split_at(front_bytes(first));
        Frame { head, front, len: len - front.len(), buffers }
    }
}

/// Bytes of a frame's tag.
fn front_bytes(frame: &[u8]) -> usize {
    match frame.get(12..14) == Some(&ethernet::TYPE_VLAN.to_be_bytes()) {
        true => TAG_BYTES.min(frame.len()),
        false => 0,
    }
}

/// Consecutive segments that make one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Number of segments, at least two.
    pub segments: usize,
    /// Bytes of all headers of each, and of a tag.
    pub front_len: usize,
    /// Bytes of all headers of each.
    header_len: usize,
    /// Payload of each but the last, bytes.
    segment_len: usize,
    /// Payload of all, bytes.
    payload_len: usize,
    /// Buffers of all.
    buffers: usize,
}

impl Run {
    /// The longest run at the front of `frames`, if it has two segments.
    pub fn of<'a>(mut frames: impl Iterator<Item = Frame<'a>>) -> Option<Run> {
        let first = frames.next()?;
        let second = frames.next()?;
        let mut run = Run::begin(first)?;
        if !run.goes_on(first, second) {
            return None;
        }
        let mut ends = run.append(second);
        while !ends {
            let goes_on = |next: &Frame<'_>| run.goes_on(first, *next);
            let Some(next) = frames.next().filter(goes_on) else { break };
            ends = run.append(next);
        }
        Some(run)
    }

    /// A run of one frame that others may follow.
    fn begin(first: Frame<'_>) -> Option<Run> {
        let head = first.head.first_chunk::<{ TCP_AT + TCP_BYTES }>()?;
        let header_len = TCP_AT + usize::from(head[TCP_AT + 12] >> 4) * 4;
        let plain = be16(head, 12) == TYPE_IPV4
            && head[IP_AT] == VERSION_IHL
            && head[IP_PROTOCOL_AT] == PROTOCOL_TCP
            && be16(head, IP_FRAGMENT_AT) & !DONT_FRAGMENT == 0
            && usize::from(be16(head, IP_LEN_AT)) == first.len - IP_AT
            && head[FLAGS_AT] == ACK;
        let carries = header_len >= TCP_AT + TCP_BYTES && first.len > header_len;
        let (segment_len, buffers) = (first.len.saturating_sub(header_len), first.buffers);
        let (payload_len, front_len) = (segment_len, first.front.len() + header_len);
        let run = Run { segments: 1, front_len, header_len, segment_len, payload_len, buffers };
        (plain && carries).then_some(run)
    }

    /// Whether `next` continues the run, whose first segment is `first`.
    fn goes_on<'a>(&self, first: Frame<'a>, next: Frame<'a>) -> bool {
        let headers = |frame: Frame<'a>| frame.head.get(..self.header_len);
        let (Some(a), Some(b)) = (headers(first), headers(next)) else {
            return false;
        };
        let same = |from: usize, to: usize| a[from..to] == b[from..to];
        let ip_len = self.header_len - IP_AT + self.payload_len + next.len - self.header_len;
        first.front == next.front
            && same(ADDRESSES_AT, SEQ_AT)
            && be32(b, SEQ_AT) == be32(a, SEQ_AT).wrapping_add(self.payload_len as u32)
            && next.len > self.header_len
            && next.len <= first.len
            && self.buffers + next.buffers <= BUFFERS_MAX
            && ip_len <= usize::from(u16::MAX)
            && usize::from(be16(b, IP_LEN_AT)) == next.len - IP_AT
            && be16(b, IP_IDENT_AT) == be16(a, IP_IDENT_AT).wrapping_add(self.segments as u16)
            && same(0, IP_LEN_AT)
            && same(IP_FRAGMENT_AT, IP_CHECKSUM_AT)
            && same(ACK_AT, FLAGS_AT)
            && b[FLAGS_AT] & !PSH == a[FLAGS_AT]
            && same(WINDOW_AT, TCP_CHECKSUM_AT)
            && same(URGENT_AT, self.header_len)
    }

    /// Adds a segment to the run. Returns whether none can follow it.
    fn append(&mut self, next: Frame<'_>) -> bool {
        let payload_len = next.len - self.header_len;
        self.segments += 1;
        self.buffers += next.buffers;
        self.payload_len += payload_len;
        payload_len < self.segment_len || next.head[FLAGS_AT] & PSH != 0
    }

    /// Writes the headers of the long frame, the `virtio_net_hdr` first; returns their length. The
    /// payloads of all segments follow them. `first` and `last` are the run's first and last
    /// segment.
    pub fn headers(&self, first: &[u8], last: &[u8], to: &mut [u8; HEADERS_BYTES_MAX]) -> usize {
        let front = self.front_len - self.header_len;
        let segments = Segments {
            header_len: self.front_len,
            segment_len: self.segment_len,
            tcp_at: front + TCP_AT,
            checksum_at: TCP_CHECKSUM_AT - TCP_AT,
        };
        let (vnet, frame) = to.split_at_mut(vnet::HEADER_BYTES);
        vnet.copy_from_slice(&segments.to_bytes());
        frame[..self.front_len].copy_from_slice(&first[..self.front_len]);
        let (frame, last) = (&mut frame[front..], &last[front..]);
        let tcp_len = self.header_len - TCP_AT + self.payload_len;
        put16(frame, IP_LEN_AT, (IPV4_BYTES + tcp_len) as u16);
        put16(frame, IP_CHECKSUM_AT, 0);
        put16(frame, IP_CHECKSUM_AT, Checksum::of(&frame[IP_AT..TCP_AT]).finish());
        let address =
            |at: usize| IpAddr::v4([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
        let (src, dst) = (address(ADDRESSES_AT), address(ADDRESSES_AT + 4));
        let partial = Checksum::pseudo_header(src, dst, PROTOCOL_TCP, tcp_len).fold();
        put16(frame, TCP_CHECKSUM_AT, partial);
        frame[FLAGS_AT] = last[FLAGS_AT];
        vnet::HEADER_BYTES + self.front_len
    }
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
