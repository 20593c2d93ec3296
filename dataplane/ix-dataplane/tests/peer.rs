//! A peer's TCP segments, byte by byte.
use ix_abi::{Call, CallSlot, Endpoint};
use ix_wire::{Checksum, FrameHeader, IpAddr, Seq, TcpFlags, TcpHeader, TcpOptions, ipv4};

/// The dataplane's address.
pub const OURS: IpAddr = IpAddr::v4([10, 0, 0, 2]);
/// The peer's address.
pub const PEER: IpAddr = IpAddr::v4([10, 0, 0, 1]);
/// The peer's Ethernet address.
pub const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// The call that listens at port 80 of all addresses, to which the segments go.
pub fn listen() -> CallSlot {
    let at = Endpoint { addr: ix_abi::v4([0; 4]), port: 80 };
    Call::Listen { at, backlog: 0, cookie: 1, holds: false }.encode()
}

/// A segment without data from `src_port` of the peer to port 80, in a frame to `mac`.
pub fn segment(mac: [u8; 6], src_port: u16, flags: TcpFlags, seq: Seq, ack: Seq) -> Vec<u8> {
    segment_with(mac, src_port, flags, (seq, ack), &[])
}

/// The same, with data.
pub fn segment_with(
    mac: [u8; 6],
    src_port: u16,
    flags: TcpFlags,
    (seq, ack): (Seq, Seq),
    data: &[u8],
) -> Vec<u8> {
    let (dst_port, options) = (80, TcpOptions::NONE);
    let header =
        TcpHeader { src_port, dst_port, seq, ack, flags, window: 1000, urgent: 0, options };
    frame_with(mac, &header, data)
}

/// A segment of the peer with this header and without data, in a frame to `mac`.
pub fn frame_of(mac: [u8; 6], header: &TcpHeader) -> Vec<u8> {
    frame_with(mac, header, &[])
}

/// The same with data.
pub fn frame_with(mac: [u8; 6], header: &TcpHeader, data: &[u8]) -> Vec<u8> {
    let link = FrameHeader {
        eth_src: PEER_MAC,
        eth_dst: mac,
        src: PEER,
        dst: OURS,
        ttl: ipv4::DEFAULT_TTL,
        tos: 0,
        ident: 1,
    };
    let mut frame = vec![0; 128 + data.len()];
    let headers = link.emit_tcp(&mut frame, header, data.len(), Checksum::of(data));
    frame[headers..headers + data.len()].copy_from_slice(data);
    frame.truncate((headers + data.len()).max(60));
    frame
}
