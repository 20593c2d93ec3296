//! Packet formats, checksums and flow hashes.
//!
//! Parsing is total: any bytes give a value or a [`DropReason`], and each reason is a drop counter.
//! The receive path calls only [`parse`]: it takes a whole Ethernet frame, verifies every length
//! and checksum, and returns what the frame holds. Each module has one format, and what builds it
//! in place.
//!
//! Values are in host byte order; addresses are bytes as on the wire. Nothing here allocates, and
//! nothing panics on received bytes. Functions that build headers panic if the buffer is shorter
//! than the header, which is an error of the caller and never of a peer.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod addr;
pub mod arp;
pub mod checksum;
mod drop_reason;
pub mod ethernet;
pub mod frame;
pub mod hash;
pub mod icmp;
pub mod icmp6;
pub mod igmp;
pub mod ipv4;
pub mod ipv6;
pub mod membership;
pub mod mld;
pub mod nd;
mod packet;
mod parse;
pub mod ra;
mod seq;
mod source;
pub mod tcp;
pub mod udp;
mod usual;
pub mod vlan;

pub use addr::{At, BROADCAST_MAC, FlowTuple, IpAddr, IpAddrError, MacAddr, is_group_mac};
pub use arp::{ArpOperation, ArpPacket};
pub use checksum::Checksum;
pub use drop_reason::DropReason;
pub use frame::{FrameHeader, UsualTcp};
pub use hash::{FLOW_GROUPS, FlowHash, Toeplitz, flow_group};
pub use nd::{NdKind, NdPacket};
pub use packet::{
    ChecksumMode, IcmpPacket, IpMeta, Parsed, Payload, RxChecks, TcpPacket, UdpPacket,
};
pub use parse::{
    Fragment, parse, parse_any, parse_copied, parse_first, parse_fragment, parse_into, parse_ip,
    parse_problem, verify_rest,
};
pub use seq::Seq;
pub use source::best_source;
pub use tcp::{EcnBytes, SackBlocks, TcpFlags, TcpHeader, TcpOptions};
pub use usual::{parse_usual, parse_usual_v6};
pub use vlan::{VlanId, VlanIdError};

/// The first `N` bytes of a buffer that a header is built in.
///
/// # Panics
/// When the buffer is shorter.
#[inline]
fn head<const N: usize>(buffer: &mut [u8]) -> &mut [u8; N] {
    buffer.first_chunk_mut().expect("no room for a header")
}

#[inline]
fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Stores 32-bit words, in network byte order, at the front of `out`.
#[inline]
fn put_words(out: &mut [u8], words: &[u32]) {
    for (place, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *place = word.to_be_bytes();
    }
}
