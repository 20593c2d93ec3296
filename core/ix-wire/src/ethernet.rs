//! Ethernet II.
use crate::{MacAddr, head};

/// Bytes of an Ethernet header.
pub const HEADER_BYTES: usize = 14;
/// The shortest frame on a wire, without its check sequence. Devices pad; receivers trim.
pub const FRAME_BYTES_MIN: usize = 60;

/// EtherType of IPv4.
pub const TYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const TYPE_ARP: u16 = 0x0806;
/// EtherType of an 802.1Q tag.
pub const TYPE_VLAN: u16 = 0x8100;
/// EtherType of an 802.1ad service tag.
pub const TYPE_SERVICE_VLAN: u16 = 0x88a8;
/// EtherType of IPv6.
pub const TYPE_IPV6: u16 = 0x86dd;

/// Writes an Ethernet header at the front of `frame`; returns its length.
///
/// # Panics
/// When `frame` is shorter than the header.
#[inline]
pub fn emit(frame: &mut [u8], dst: MacAddr, src: MacAddr, ethertype: u16) -> usize {
    let header = head::<HEADER_BYTES>(frame);
    header[0..6].copy_from_slice(&dst);
    header[6..12].copy_from_slice(&src);
    header[12..14].copy_from_slice(&ethertype.to_be_bytes());
    HEADER_BYTES
}
