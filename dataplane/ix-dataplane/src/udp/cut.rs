//! Datagrams that may be sent in fragments (RFC 791 section 3.2, RFC 8200 section 4.5), or in
//! several buffers. Off the common path, because a socket must ask for the one, and a device have
//! long frames for the other.
use crate::context::Context;
use crate::io::Io;
use ix_abi::{CallError, SG_MAX, SgArray, SgEntry};
use ix_mem::Mbuf;
use ix_wire::{Checksum, FrameHeader, ethernet, frame, ipv4, ipv6, udp};

/// Longest payload of a datagram over IPv4.
const PAYLOAD_BYTES_MAX: u64 = 65_507;
/// Longest payload of a datagram over IPv6.
const PAYLOAD_BYTES_MAX_V6: u64 = 65_527;

/// A datagram to send.
pub(crate) struct Parts {
    /// One frame, or the frames of its fragments in order; each may be a chain of buffers.
    pub mbufs: Vec<Mbuf>,
    /// Bytes of its payload.
    pub len: usize,
}

/// The application's bytes. Each piece of the scatter-gather array is read once.
struct Pieces {
    entries: [SgEntry; SG_MAX],
    next: usize,
}

/// Builds a datagram for packets of at most `mtu` bytes. If it `may_be_cut` it is, over IPv4,
/// without DF, and in fragments if it is longer, all with this identification; else it is refused
/// then. After an error no frame is left.
#[cold]
pub(crate) fn cut(
    io: &mut Io,
    device: u8,
    (header, ident): (&FrameHeader, u32),
    ports: (u16, u16),
    sg: SgArray,
    (mtu, may_be_cut): (usize, bool),
) -> Result<Parts, CallError> {
    let is_v6 = header.dst.is_v6();
    let len_max = if is_v6 { PAYLOAD_BYTES_MAX_V6 } else { PAYLOAD_BYTES_MAX };
    let mut pieces = Pieces { entries: [SgEntry::default(); SG_MAX], next: 0 };
    let mut len = 0u64;
    for index in 0..sg.entries {
        let (shared, shift) = (&io.cx.shared, io.cx.shift);
        let mut entry = shared.read_sg(shift, sg, index).ok_or(CallError::Fault)?;
        len = len.saturating_add(entry.len);
        if entry.len > 0 && len <= len_max {
            entry.base = shared.sendable(shift, &entry).ok_or(CallError::Fault)?;
        }
        *pieces.entries.get_mut(index as usize).ok_or(CallError::Invalid)? = entry;
    }
    if len > len_max {
        return Err(CallError::TooLong);
    }
    let (len, whole) = (len as usize, len as usize + udp::HEADER_BYTES);
    let headers_bytes = frame::headers_bytes_to(header.dst);
    let room = mtu + ethernet::HEADER_BYTES - headers_bytes;
    if whole > room && !may_be_cut {
        return Err(CallError::TooLong);
    }
    let each = match is_v6 {
        _ if whole <= room => whole,
        true => (room - ipv6::FRAGMENT_BYTES) & !7,
        false => room & !7,
    };
    let mut mbufs = Vec::with_capacity(whole.div_ceil(each));
    let header = Header { frame: *header, ident, may_be_cut, is_cut: whole > room };
    let built = fill(io, device, &header, ports, (len, each), &mut pieces, &mut mbufs);
    if let Err(code) = built {
        let Context { tx_pool, shared, .. } = &mut io.cx;
        mbufs.into_iter().for_each(|mbuf| tx_pool.put_frame(&shared.memory, mbuf));
        return Err(code);
    }
    Ok(Parts { mbufs, len })
}

fn fill(
    io: &mut Io,
    device: u8,
    header: &Header,
    (src_port, dst_port): (u16, u16),
    (len, each): (usize, usize),
    pieces: &mut Pieces,
    mbufs: &mut Vec<Mbuf>,
) -> Result<(), CallError> {
    let whole = len + udp::HEADER_BYTES;
    let mut sum = Checksum::new();
    for offset in (0..whole).step_by(each) {
        let part = each.min(whole - offset);
        let bytes_of_it = header.len() + part;
        let mut mbuf = io.take_tx_frames(device, bytes_of_it).ok_or(CallError::NoResource)?;
        let bytes = mbuf.bytes_mut(&io.cx.shared.memory);
        let place = (offset, offset + part < whole);
        let at = header.emit(bytes, part, place);
        // The first one has the UDP header, which is written when all bytes are summed up.
        let at = if offset == 0 { at + udp::HEADER_BYTES } else { at };
        let memory = &io.cx.shared.memory;
        let mut taken = pieces.take(memory, &mut bytes[at..]);
        sum.add_bytes(&bytes[at..]);
        for tail in mbuf.tails_mut(memory) {
            taken = taken && pieces.take(memory, tail);
            sum.add_bytes(tail);
        }
        mbufs.push(mbuf);
        if !taken {
            return Err(CallError::Fault);
        }
    }
    let first = mbufs.first_mut().ok_or(CallError::Invalid)?.bytes_mut(&io.cx.shared.memory);
    let (src, dst) = ((header.frame.src, src_port), (header.frame.dst, dst_port));
    udp::emit(&mut first[header.len()..], src, dst, len, sum);
    Ok(())
}

/// The headers of each frame of a datagram.
struct Header {
    frame: FrameHeader,
    ident: u32,
    may_be_cut: bool,
    /// The datagram needs more than one frame.
    is_cut: bool,
}

impl Header {
    /// Bytes before the payload of a frame.
    fn len(&self) -> usize {
        let fragment = self.is_cut && self.frame.dst.is_v6();
        let fragment_bytes = if fragment { ipv6::FRAGMENT_BYTES } else { 0 };
        frame::headers_bytes_to(self.frame.dst) + fragment_bytes
    }

    /// Writes them in front of `part` octets at this place of the datagram; returns their length.
    /// Over IPv6 a datagram in one frame has no fragment header (RFC 8021).
    fn emit(&self, bytes: &mut [u8], part: usize, place: (usize, bool)) -> usize {
        let (protocol, header) = (ipv4::PROTOCOL_UDP, &self.frame);
        match header.dst.is_v6() {
            true if self.is_cut => {
                header.emit_fragment_v6(bytes, protocol, part, place, self.ident)
            }
            true => header.emit(bytes, protocol, part),
            false if !self.may_be_cut => header.emit(bytes, protocol, part),
            false => header.emit_fragment(bytes, protocol, part, place),
        }
    }
}

impl Pieces {
    /// Copies the next bytes; false if some are not in memory that the application may use.
    fn take(&mut self, memory: &ix_mem::PacketMemory, mut to: &mut [u8]) -> bool {
        while !to.is_empty() {
            let Some(entry) = self.entries.get_mut(self.next) else { return false };
            let n = (entry.len as usize).min(to.len());
            let (now, later) = to.split_at_mut(n);
            if n > 0 && !memory.copy_from_app(entry.base, now) {
                return false;
            }
            entry.base = entry.base.wrapping_add(n as u64);
            entry.len -= n as u64;
            self.next += usize::from(entry.len == 0);
            to = later;
        }
        true
    }
}
