//! Parses the packet that nearly every one is, with all its fields at fixed places.
use crate::frame::{USUAL_HEADERS_BYTES, USUAL_HEADERS_BYTES_V6, USUAL_TCP_BYTES};
use crate::packet::{ChecksumMode, IpMeta, Parsed, Payload, RxChecks, TcpPacket};
use crate::{
    Checksum, FlowTuple, IpAddr, Seq, TcpHeader, TcpOptions, be16, be32, ethernet, ipv4, ipv6, tcp,
};

/// Parses what nearly every packet is: IPv4 without options and not a fragment, TCP with a
/// timestamp alone, whole in `frame`, and nothing wrong with it. All is at fixed places. Returns
/// whose it is, so that nobody needs to read that from `into`: to load in one piece what was stored
/// in several stalls the processor. `None`: `into` is as it was, and [`crate::parse_any`] says what
/// it is or what is wrong.
///
/// `head` is the front of `frame`, or a copy of it where the sender can still change the frame.
#[inline(always)]
pub fn parse_usual(
    head: &[u8; USUAL_HEADERS_BYTES],
    frame: &[u8],
    total_len: usize,
    checks: RxChecks,
    into: &mut Parsed,
) -> Option<FlowTuple> {
    const IP: usize = ethernet::HEADER_BYTES;
    const TCP: usize = IP + ipv4::HEADER_BYTES;
    const IP_BYTES_MIN: usize = USUAL_HEADERS_BYTES - IP;
    let ip_len = usize::from(be16(head, IP + 2));
    let (src, dst) = (be32(head, IP + 12), be32(head, IP + 16));
    let is_usual = be32(head, IP - 2) >> 8 == u32::from(ethernet::TYPE_IPV4) << 8 | 0x45
        && !ipv4::is_part(be16(head, IP + 6))
        && head[IP + 9] == ipv4::PROTOCOL_TCP
        && usize::from(head[TCP + 12] >> 4) * 4 == tcp::HEADER_BYTES + tcp::TIMESTAMP_BYTES
        && be32(head, TCP + tcp::HEADER_BYTES) == u32::from_be_bytes(tcp::TIMESTAMP_ONLY)
        && (head[0] | head[6]) & 1 == 0
        && ip_len >= IP_BYTES_MIN
        && total_len <= frame.len();
    if !is_usual || ipv4::is_martian_source(src) || !ipv4::is_unicast_destination(dst) {
        return None;
    }
    let payload = frame.get(USUAL_HEADERS_BYTES..IP + ip_len)?;
    if !ipv4::is_header_valid(head) {
        return None;
    }
    let partial = match checks.transport {
        ChecksumMode::Skip => false,
        mode => {
            let mut sum = Checksum::new();
            sum.add_u32(src);
            sum.add_u32(dst);
            sum.add_u32(u32::from(ipv4::PROTOCOL_TCP) + (ip_len - ipv4::HEADER_BYTES) as u32);
            // As the long way does: a packet whose right checksum happens to be equal to the
            // partial one is accepted either way.
            let is_partial =
                mode == ChecksumMode::AcceptPartial && be16(head, TCP + 16) == sum.fold();
            if !is_partial {
                for word in head[TCP..].as_chunks::<4>().0 {
                    sum.add_u32(u32::from_be_bytes(*word));
                }
                sum.add_bytes(payload);
                if !sum.is_valid() {
                    return None;
                }
            }
            is_partial
        }
    };
    let (src, dst) = (IpAddr::from_v4(src), IpAddr::from_v4(dst));
    let (src_port, dst_port) = (be16(head, TCP), be16(head, TCP + 2));
    let [eth_dst, eth_src, ..] = head.as_chunks::<6>().0 else { return None };
    *into = Parsed::Tcp(TcpPacket {
        ip: IpMeta {
            src,
            dst,
            ttl: head[IP + 8],
            tos: head[IP + 1],
            dont_fragment: ipv4::is_not_to_be_cut(be16(head, IP + 6)),
            header_len: ipv4::HEADER_BYTES as u8,
            eth_src: *eth_src,
            eth_dst: *eth_dst,
        },
        header: TcpHeader {
            src_port,
            dst_port,
            seq: Seq(be32(head, TCP + 4)),
            ack: Seq(be32(head, TCP + 8)),
            flags: tcp::flags_of(be16(head, TCP + 12)),
            window: be16(head, TCP + 14),
            urgent: be16(head, TCP + 18),
            options: TcpOptions {
                timestamp: Some((be32(head, TCP + 24), be32(head, TCP + 28))),
                ..TcpOptions::NONE
            },
        },
        payload: Payload { start: USUAL_HEADERS_BYTES as u16, len: payload.len() as u16, more: 0 },
        partial,
    });
    Some(FlowTuple { local: dst, remote: src, local_port: dst_port, remote_port: src_port })
}

/// As [`parse_usual`], for IPv6 without extension headers. IPv4 has the same steps written out: by
/// the functions below it takes 20 instructions more.
#[inline(always)]
pub fn parse_usual_v6(
    head: &[u8; USUAL_HEADERS_BYTES_V6],
    frame: &[u8],
    total_len: usize,
    checks: RxChecks,
    into: &mut Parsed,
) -> Option<FlowTuple> {
    const IP: usize = ethernet::HEADER_BYTES;
    const TCP: usize = IP + ipv6::HEADER_BYTES;
    let tcp_len = usize::from(be16(head, IP + 4));
    let is_usual = be32(head, IP - 2) >> 12 == u32::from(ethernet::TYPE_IPV6) << 4 | 6
        && head[IP + ipv6::NEXT_HEADER_AT] == ipv4::PROTOCOL_TCP
        && has_timestamp_alone(head, TCP)
        && (head[0] | head[6]) & 1 == 0
        && tcp_len >= USUAL_TCP_BYTES
        && total_len <= frame.len();
    let [src, dst] = head[IP + ipv6::ADDRESSES_AT..TCP].as_chunks().0 else { return None };
    if !is_usual || src[0] == 0xff || dst[0] == 0xff {
        return None;
    }
    if ipv6::is_martian(src) || ipv6::is_martian(dst) {
        return None;
    }
    let payload = frame.get(USUAL_HEADERS_BYTES_V6..TCP + tcp_len)?;
    let tcp = head.last_chunk::<USUAL_TCP_BYTES>()?;
    let (src, dst) = (IpAddr(*src), IpAddr(*dst));
    let partial = verify(tcp, payload, checks, || {
        Checksum::pseudo_header(src, dst, ipv4::PROTOCOL_TCP, tcp_len)
    })?;
    let (src_port, dst_port) = (be16(head, TCP), be16(head, TCP + 2));
    let [eth_dst, eth_src, ..] = head.as_chunks::<6>().0 else { return None };
    *into = Parsed::Tcp(TcpPacket {
        ip: IpMeta {
            src,
            dst,
            ttl: head[IP + 7],
            tos: head[IP] << 4 | head[IP + 1] >> 4,
            dont_fragment: true,
            header_len: ipv6::HEADER_BYTES as u8,
            eth_src: *eth_src,
            eth_dst: *eth_dst,
        },
        header: tcp_header(tcp),
        payload: Payload {
            start: USUAL_HEADERS_BYTES_V6 as u16,
            len: payload.len() as u16,
            more: 0,
        },
        partial,
    });
    Some(FlowTuple { local: dst, remote: src, local_port: dst_port, remote_port: src_port })
}

/// Whether the TCP header at `at` has a timestamp and no other option.
#[inline(always)]
fn has_timestamp_alone(head: &[u8], at: usize) -> bool {
    usize::from(head[at + 12] >> 4) * 4 == tcp::HEADER_BYTES + tcp::TIMESTAMP_BYTES
        && be32(head, at + tcp::HEADER_BYTES) == u32::from_be_bytes(tcp::TIMESTAMP_ONLY)
}

/// Verifies the checksum of a segment, with the sum of its pseudo-header; returns whether it is
/// partial, `None` if it is wrong.
#[inline(always)]
fn verify(
    tcp: &[u8; USUAL_TCP_BYTES],
    payload: &[u8],
    checks: RxChecks,
    pseudo_header: impl FnOnce() -> Checksum,
) -> Option<bool> {
    if checks.transport == ChecksumMode::Skip {
        return Some(false);
    }
    let mut sum = pseudo_header();
    // As the long way does: a packet whose right checksum happens to be equal to the partial one is
    // accepted either way.
    if checks.transport == ChecksumMode::AcceptPartial && be16(tcp, 16) == sum.fold() {
        return Some(true);
    }
    for word in tcp.as_chunks::<4>().0 {
        sum.add_u32(u32::from_be_bytes(*word));
    }
    sum.add_bytes(payload);
    sum.is_valid().then_some(false)
}

#[inline(always)]
fn tcp_header(tcp: &[u8; USUAL_TCP_BYTES]) -> TcpHeader {
    TcpHeader {
        src_port: be16(tcp, 0),
        dst_port: be16(tcp, 2),
        seq: Seq(be32(tcp, 4)),
        ack: Seq(be32(tcp, 8)),
        flags: tcp::flags_of(be16(tcp, 12)),
        window: be16(tcp, 14),
        urgent: be16(tcp, 18),
        options: TcpOptions { timestamp: Some((be32(tcp, 24), be32(tcp, 28))), ..TcpOptions::NONE },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::parse_any_v6;
    use crate::parse_any;
    use crate::{FrameHeader, TcpFlags, UsualTcp};
    use proptest::prelude::*;

    const HEADER: UsualTcp = UsualTcp {
        src_port: 7,
        dst_port: 4000,
        seq: Seq(0x0102_0304),
        ack: Seq(0xfffe_fdfc),
        flags: TcpFlags::ACK.union(TcpFlags::PSH),
        window: 0x8001,
        timestamp: (0x1111_2222, 0x3333_4444),
    };

    fn frame(payload: &[u8]) -> Vec<u8> {
        let link = FrameHeader {
            eth_src: [2, 0, 0, 0, 0, 1],
            eth_dst: [2, 0, 0, 0, 0, 2],
            src: IpAddr::v4([10, 0, 0, 1]),
            dst: IpAddr::v4([10, 0, 0, 2]),
            ttl: 64,
            tos: 2,
            ident: 0x1234,
        };
        let mut frame = vec![0; USUAL_HEADERS_BYTES];
        let head = frame.first_chunk_mut().unwrap();
        link.emit_usual_tcp(head, &HEADER, payload.len(), Checksum::of(payload));
        frame.extend_from_slice(payload);
        frame
    }

    fn frame_v6(payload: &[u8]) -> Vec<u8> {
        let link = FrameHeader {
            eth_src: [2, 0, 0, 0, 0, 1],
            eth_dst: [2, 0, 0, 0, 0, 2],
            src: "2001:db8::1".parse().unwrap(),
            dst: "2001:db8::2".parse().unwrap(),
            ttl: 64,
            tos: 2,
            ident: 0x1_2345,
        };
        let mut frame = vec![0; USUAL_HEADERS_BYTES_V6];
        let head = frame.first_chunk_mut().unwrap();
        link.emit_usual_tcp_v6(head, &HEADER, payload.len(), Checksum::of(payload));
        frame.extend_from_slice(payload);
        frame
    }

    /// Both ways: whether the short one took it, and what the long one says.
    fn both(frame: &[u8], total_len: usize, transport: ChecksumMode) -> (bool, bool) {
        let (mut short, mut long) = (Parsed::NONE, Parsed::NONE);
        let checks = RxChecks { transport };
        let is_v6 = frame.get(12..14) == Some(&[0x86, 0xdd]);
        let taken = match is_v6 {
            true => frame
                .first_chunk()
                .and_then(|head| parse_usual_v6(head, frame, total_len, checks, &mut short)),
            false => frame
                .first_chunk()
                .and_then(|head| parse_usual(head, frame, total_len, checks, &mut short)),
        };
        let known = match is_v6 && frame[6] & 1 == 0 {
            true => parse_any_v6(frame, total_len, checks, &mut long).is_ok(),
            false => parse_any(frame, total_len, checks, &mut long).is_ok(),
        };
        if let Some(tuple) = taken {
            assert!(known, "the long way refuses it");
            assert_eq!(short, long);
            assert!(matches!(long, Parsed::Tcp(packet) if packet.tuple() == tuple));
        } else {
            assert_eq!(short, Parsed::NONE, "written, and not taken");
        }
        (taken.is_some(), known)
    }

    const MODES: [ChecksumMode; 3] =
        [ChecksumMode::Verify, ChecksumMode::AcceptPartial, ChecksumMode::Skip];

    #[test]
    fn the_usual_packet_goes_the_short_way() {
        for bytes in [0, 1, 2, 63, 64, 1448] {
            let payload: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
            for mut frame in [frame(&payload), frame_v6(&payload)] {
                for mode in MODES {
                    assert_eq!(both(&frame, frame.len(), mode), (true, true), "{bytes} {mode:?}");
                }
                // What pads a short Ethernet frame is no payload.
                frame.extend([0xff; 6]);
                assert_eq!(both(&frame, frame.len(), ChecksumMode::Verify), (true, true));
                // It goes on in another buffer.
                assert!(!both(&frame, frame.len() + 1, ChecksumMode::Verify).0);
            }
        }
        for mut frame in [frame(&[]), frame_v6(&[])] {
            frame.pop();
            assert!(!both(&frame, frame.len(), ChecksumMode::Skip).0);
        }
    }

    #[test]
    fn what_is_not_the_usual_packet_of_ipv6_goes_the_long_way() {
        let long = |change: fn(&mut Vec<u8>)| {
            let mut frame = frame_v6(b"payload");
            change(&mut frame);
            both(&frame, frame.len(), ChecksumMode::Skip)
        };
        // An extension header; a group; no timestamp; a mapped address; another version.
        assert!(!long(|frame| frame[20] = 0).0);
        assert_eq!(long(|frame| frame[38] = 0xff), (false, false));
        assert_eq!(long(|frame| frame[22] = 0xff), (false, false));
        assert_eq!(long(|frame| frame[76] = 5), (false, true));
        assert_eq!(long(|frame| frame[22..32].fill(0)), (false, false));
        assert_eq!(long(|frame| frame[14] = 0x45), (false, false));
        // Any traffic class and flow label will do.
        assert_eq!(long(|frame| frame[14..18].copy_from_slice(&[0x6f; 4])), (true, true));
    }

    #[test]
    fn a_sum_of_the_pseudo_header_is_partial() {
        let mut frame = frame(b"payload");
        let mut sum = Checksum::pseudo_header_v4([10, 0, 0, 1], [10, 0, 0, 2], 6, 32 + 7);
        sum.add_u32(0);
        frame[50..52].copy_from_slice(&sum.fold().to_be_bytes());
        assert_eq!(both(&frame, frame.len(), ChecksumMode::AcceptPartial), (true, true));
        assert_eq!(both(&frame, frame.len(), ChecksumMode::Verify), (false, false));
        let mut frame = frame_v6(b"payload");
        let [src, dst] = ["2001:db8::1", "2001:db8::2"].map(|text| text.parse().unwrap());
        let sum = Checksum::pseudo_header(src, dst, 6, 32 + 7);
        frame[70..72].copy_from_slice(&sum.fold().to_be_bytes());
        assert_eq!(both(&frame, frame.len(), ChecksumMode::AcceptPartial), (true, true));
        assert_eq!(both(&frame, frame.len(), ChecksumMode::Verify), (false, false));
    }

    proptest! {
        /// Whatever is changed, the short way takes only what the long way reads the same.
        #[test]
        fn the_short_way_reads_as_the_long_one(
            changes in prop::collection::vec((0..USUAL_HEADERS_BYTES + 8, any::<u8>()), 0..3),
            cut in 0..12usize,
            heal in any::<bool>(),
            mode in prop::sample::select(&MODES[..]),
        ) {
            let mut frame = frame(b"12345678");
            for (at, value) in changes {
                frame[at] = value;
            }
            if heal {
                frame[24..26].fill(0);
                let sum = Checksum::of(&frame[14..34]).finish();
                frame[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            frame.truncate(USUAL_HEADERS_BYTES + 8 - cut.saturating_sub(4));
            both(&frame, frame.len(), mode);
        }

        /// The same of IPv6, with the address of a group, a mapped one, and none.
        #[test]
        fn the_short_way_of_ipv6_reads_as_the_long_one(
            changes in prop::collection::vec((0..USUAL_HEADERS_BYTES_V6 + 8, any::<u8>()), 0..3),
            cut in 0..12usize,
            martian in prop::option::of((prop::sample::select(&[22, 38][..]), 0..17usize)),
            mode in prop::sample::select(&MODES[..]),
        ) {
            let mut frame = frame_v6(b"12345678");
            if let Some((at, bytes)) = martian {
                frame[at..at + bytes].fill(0);
            }
            for (at, value) in changes {
                frame[at] = value;
            }
            frame.truncate(USUAL_HEADERS_BYTES_V6 + 8 - cut.saturating_sub(4));
            both(&frame, frame.len(), mode);
        }
    }
}
