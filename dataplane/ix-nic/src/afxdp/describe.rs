//! What the device shall do with a sent frame, in front of it (`struct xsk_tx_metadata`).
//!
//! Only `ix bench afxdp` asks for it ([`crate::XdpFeatures::describes`]): without a driver that
//! makes checksums from it, which is one with zero-copy, it costs more than it saves.
use ix_mem::{Mbuf, PacketMemory};

/// Bytes in front of a frame: flags, then where the checksum begins and where it goes.
pub(super) const DESCRIPTION_BYTES: usize = 24;

const ETHERNET_BYTES: usize = 14;
const PROTOCOL_AT: usize = ETHERNET_BYTES + 9;
const ADDRESSES_END: usize = ETHERNET_BYTES + 20;

/// Asks for the checksum of a frame, whose field has the sum of the pseudo-header. Returns the
/// options of its descriptor: none if it is no TCP or UDP over IPv4 without options.
pub(super) fn describe(mbuf: &mut Mbuf, memory: &PacketMemory) -> u32 {
    let (offset, len) = (mbuf.offset(), mbuf.len());
    let (Some(front), Some(at)) = (offset.checked_sub(DESCRIPTION_BYTES), field(mbuf, memory))
    else {
        return 0;
    };
    mbuf.set_range(front, len + DESCRIPTION_BYTES);
    if let Some(description) = mbuf.bytes_mut(memory).first_chunk_mut::<DESCRIPTION_BYTES>() {
        *description = [0; DESCRIPTION_BYTES];
        let flags = u64::from(libc::XDP_TXMD_FLAGS_CHECKSUM);
        description[..8].copy_from_slice(&flags.to_ne_bytes());
        description[8..10].copy_from_slice(&(ADDRESSES_END as u16).to_ne_bytes());
        description[10..12].copy_from_slice(&at.to_ne_bytes());
    }
    mbuf.set_range(offset, len);
    libc::XDP_TX_METADATA
}

/// Where the checksum of a frame is, from the beginning of its TCP or UDP header.
fn field(mbuf: &Mbuf, memory: &PacketMemory) -> Option<u16> {
    let frame = mbuf.bytes(memory);
    let (tcp, udp) = (ADDRESSES_END + 20, ADDRESSES_END + 8);
    match (frame.get(12..15)?, *frame.get(PROTOCOL_AT)?) {
        ([8, 0, 0x45], 6) if frame.len() >= tcp => Some(16),
        ([8, 0, 0x45], 17) if frame.len() >= udp => Some(6),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_mem::Sizes;

    #[test]
    fn the_description_stands_in_front_and_the_frame_stays() {
        let sizes = Sizes { rx_frames: 1, tx_frames: 1, arena_bytes: 0 };
        let memory = PacketMemory::new(sizes).expect("memory");
        let (_, mut pool) = memory.take_pools().expect("pools");
        let mut mbuf = pool.take().expect("a frame");
        let mut udp = [7; 60];
        udp[12..15].copy_from_slice(&[8, 0, 0x45]);
        udp[PROTOCOL_AT] = 17;
        for (len, wanted) in [(60, libc::XDP_TX_METADATA), (41, 0), (20, 0)] {
            mbuf.set_range(ix_mem::HEADROOM_BYTES, len);
            mbuf.bytes_mut(&memory).copy_from_slice(&udp[..len]);
            assert_eq!(describe(&mut mbuf, &memory), wanted, "{len}");
            assert_eq!(mbuf.bytes(&memory), &udp[..len]);
        }
        mbuf.set_range(ix_mem::HEADROOM_BYTES - DESCRIPTION_BYTES, 12);
        assert_eq!(mbuf.bytes(&memory), [2, 0, 0, 0, 0, 0, 0, 0, 34, 0, 6, 0]);
        pool.put(mbuf);
    }
}
