//! Datagrams that may be sent in fragments (RFC 791 section 3.2). Off the common path, because a
//! socket must ask for it.
use crate::io::Io;
use ix_abi::{CallError, SG_MAX, SgArray, SgEntry};
use ix_mem::{HEADROOM_BYTES, Mbuf, ROOM_BYTES};
use ix_wire::{Checksum, FrameHeader, ethernet, ipv4, udp};

/// Bytes before the payload of a fragment.
const HEADERS_BYTES: usize = ethernet::HEADER_BYTES + ipv4::HEADER_BYTES;
/// Longest payload of a datagram over IPv4.
const PAYLOAD_BYTES_MAX: u64 = 65_507;

/// A datagram to send.
pub(crate) struct Parts {
    /// One frame, or the frames of its fragments in order.
    pub mbufs: Vec<Mbuf>,
    /// Bytes of its payload.
    pub len: usize,
}

/// The application's bytes. Each piece of the scatter-gather array is read once.
struct Pieces {
    entries: [SgEntry; SG_MAX],
    next: usize,
}

/// Builds a datagram without DF, in fragments if it is longer than `mtu`. After an error no frame
/// is left.
#[cold]
pub(crate) fn cut(
    io: &mut Io,
    device: u8,
    header: &FrameHeader,
    ports: (u16, u16),
    sg: SgArray,
    mtu: usize,
) -> Result<Parts, CallError> {
    let mut pieces = Pieces { entries: [SgEntry::default(); SG_MAX], next: 0 };
    let mut len = 0u64;
    for index in 0..sg.entries {
        let (shared, shift) = (&io.cx.shared, io.cx.shift);
        let mut entry = shared.read_sg(shift, sg, index).ok_or(CallError::Fault)?;
        len = len.saturating_add(entry.len);
        if entry.len > 0 && len <= PAYLOAD_BYTES_MAX {
            entry.base = shared.sendable(shift, &entry).ok_or(CallError::Fault)?;
        }
        *pieces.entries.get_mut(index as usize).ok_or(CallError::Invalid)? = entry;
    }
    if len > PAYLOAD_BYTES_MAX {
        return Err(CallError::TooLong);
    }
    let (len, whole) = (len as usize, len as usize + udp::HEADER_BYTES);
    let room = (mtu - ipv4::HEADER_BYTES).min(ROOM_BYTES - HEADERS_BYTES);
    let each = if whole <= room { whole } else { room & !7 };
    let mut mbufs = Vec::with_capacity(whole.div_ceil(each));
    let built = fill(io, device, header, ports, (len, each), &mut pieces, &mut mbufs);
    if let Err(code) = built {
        mbufs.into_iter().for_each(|mbuf| io.cx.tx_pool.put(mbuf));
        return Err(code);
    }
    Ok(Parts { mbufs, len })
}

fn fill(
    io: &mut Io,
    device: u8,
    header: &FrameHeader,
    (src_port, dst_port): (u16, u16),
    (len, each): (usize, usize),
    pieces: &mut Pieces,
    mbufs: &mut Vec<Mbuf>,
) -> Result<(), CallError> {
    let whole = len + udp::HEADER_BYTES;
    let mut sum = Checksum::new();
    for offset in (0..whole).step_by(each) {
        let part = each.min(whole - offset);
        let mut mbuf = io.take_tx_frame(device).ok_or(CallError::NoResource)?;
        mbuf.set_range(HEADROOM_BYTES, HEADERS_BYTES + part);
        let bytes = mbuf.bytes_mut(&io.cx.shared.memory);
        let place = (offset, offset + part < whole);
        let at = header.emit_fragment(bytes, ipv4::PROTOCOL_UDP, part, place);
        // The first one has the UDP header, which is written when all bytes are summed up.
        let at = if offset == 0 { at + udp::HEADER_BYTES } else { at };
        let taken = pieces.take(&io.cx.shared.memory, &mut bytes[at..]);
        sum.add_bytes(&bytes[at..]);
        mbufs.push(mbuf);
        if !taken {
            return Err(CallError::Fault);
        }
    }
    let first = mbufs.first_mut().ok_or(CallError::Invalid)?.bytes_mut(&io.cx.shared.memory);
    let (src, dst) = ((header.src, src_port), (header.dst, dst_port));
    udp::emit(&mut first[HEADERS_BYTES..], src, dst, len, sum);
    Ok(())
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
