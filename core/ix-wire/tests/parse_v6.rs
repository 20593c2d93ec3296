//! IPv6 in the receive path's parser, from the outside: extension headers, ICMPv6, Neighbour
//! Discovery. Numbers and layouts are those of the RFCs.
use ix_wire::*;
use proptest::prelude::*;

const OURS: MacAddr = [2, 0, 0, 0, 0, 2];
const PEER: MacAddr = [2, 0, 0, 0, 0, 1];
const OUR_IP: &str = "2001:db8::2";
const PEER_IP: &str = "2001:db8::1";
/// The solicited-node group of `OUR_IP` (RFC 4291 section 2.7.1).
const OUR_GROUP: &str = "ff02::1:ff00:2";

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn link() -> FrameHeader {
    let (src, dst) = (ip(PEER_IP), ip(OUR_IP));
    FrameHeader { eth_src: PEER, eth_dst: OURS, src, dst, ttl: 64, tos: 0xb9, ident: 0 }
}

fn finish(mut frame: Vec<u8>, len: usize, payload: &[u8]) -> Vec<u8> {
    frame.truncate(len);
    frame.extend_from_slice(payload);
    frame
}

fn tcp_frame_of(link: FrameHeader, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; frame::HEADERS_BYTES_MAX];
    let header = TcpHeader {
        src_port: 40_000,
        dst_port: 80,
        flags: TcpFlags::ACK,
        options: TcpOptions { timestamp: Some((1, 2)), ..TcpOptions::NONE },
        ..TcpHeader::default()
    };
    let len = link.emit_tcp(&mut frame, &header, payload.len(), Checksum::of(payload));
    finish(frame, len, payload)
}

fn udp_frame(payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; frame::HEADERS_BYTES_MAX];
    let len = link().emit_udp(&mut frame, 5000, 53, payload.len(), Checksum::of(payload));
    finish(frame, len, payload)
}

fn icmp_frame_of(link: FrameHeader, kind: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; frame::HEADERS_BYTES_MAX];
    let header = icmp::IcmpHeader { kind, code: 0, rest: [1, 2, 3, 4] };
    let len = link.emit_icmp(&mut frame, &header, body.len(), Checksum::of(body));
    finish(frame, len, body)
}

fn nd_frame(packet: NdPacket) -> Vec<u8> {
    let mut frame = vec![0; nd::FRAME_BYTES_MAX];
    let len = packet.emit_frame(&mut frame, OURS);
    finish(frame, len, &[])
}

fn solicitation() -> NdPacket {
    NdPacket {
        kind: NdKind::Solicitation,
        src: ip(PEER_IP),
        dst: ip(OUR_GROUP),
        eth_src: PEER,
        target: ip(OUR_IP),
        link: Some(PEER),
    }
}

/// Puts extension headers into a frame that has none: `first` is the number of the first, and their
/// last says what the packet is.
fn with_chain(frame: Vec<u8>, first: u8, chain: &[u8]) -> Vec<u8> {
    let mut longer = frame[..54].to_vec();
    longer.extend_from_slice(chain);
    longer.extend_from_slice(&frame[54..]);
    longer[20] = first;
    let len = u16::from_be_bytes([longer[18], longer[19]]) + chain.len() as u16;
    longer[18..20].copy_from_slice(&len.to_be_bytes());
    longer
}

/// Changes a message of Neighbour Discovery and corrects its checksum.
fn with_nd(packet: NdPacket, edit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = nd_frame(packet);
    edit(&mut frame);
    let len = frame.len() - 54;
    frame[18..20].copy_from_slice(&(len as u16).to_be_bytes());
    frame[56..58].fill(0);
    let address = |at: usize| IpAddr(std::array::from_fn(|i| frame[at + i]));
    let mut sum = Checksum::pseudo_header(address(22), address(38), 58, len);
    sum.add_bytes(&frame[54..]);
    let check = sum.finish().to_be_bytes();
    frame[56..58].copy_from_slice(&check);
    frame
}

fn reason(frame: &[u8]) -> Option<DropReason> {
    parse(frame, RxChecks::default()).err()
}

/// Frames, each with the reason why it is refused.
pub fn refused_frames() -> Vec<(DropReason, Vec<u8>)> {
    use DropReason::*;
    let tcp = || tcp_frame_of(link(), b"data");
    let with = |frame: Vec<u8>, at: usize, bytes: &[u8]| {
        let mut frame = frame;
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let from = |src: &str| tcp_frame_of(FrameHeader { src: ip(src), ..link() }, b"");
    let to = |dst: &str| tcp_frame_of(FrameHeader { dst: ip(dst), ..link() }, b"");
    // Eight octets of padding: the shortest options header, six of them.
    let pads = |count: usize| -> Vec<u8> {
        let one = |last: bool| [if last { 6 } else { 60 }, 0, 1, 4, 0, 0, 0, 0];
        (1..=count).flat_map(|n| one(n == count)).collect()
    };
    let mut long = vec![0; 208];
    long[..2].copy_from_slice(&[6, 25]);
    let nd = solicitation;
    let advertised = |solicited| NdPacket {
        kind: NdKind::Advertisement { router: false, solicited, overrides: true },
        ..nd()
    };
    vec![
        (IpTruncated, tcp()[..53].to_vec()),
        (IpBadVersion, with(tcp(), 14, &[0x45])),
        (IpBadTotalLength, tcp()[..tcp().len() - 1].to_vec()),
        (IpMartianSource, with(tcp(), 22, &ip("::1").0)),
        (IpMartianSource, with(tcp(), 22, &ip("::").0)),
        (IpMartianSource, with(tcp(), 22, &ip("10.0.0.1").0)),
        (IpMartianSource, from("ff02::1")),
        (IpMartianSource, icmp_frame_of(FrameHeader { src: ip("::"), ..link() }, 128, b"ping")),
        (IpMartianDestination, to("::1")),
        (IpMartianDestination, to("::")),
        (IpMartianDestination, with(tcp(), 38, &ip("10.0.0.2").0)),
        (Ip6Extension, with_chain(tcp(), 60, &[6, 0, 1, 5, 0, 0, 0, 0])),
        (Ip6Extension, with_chain(tcp(), 60, &[6, 0, 0, 0, 0, 0, 0, 1])),
        (Ip6Extension, with_chain(tcp(), 60, &[6, 200, 1, 4, 0, 0, 0, 0])),
        (Ip6Extension, with_chain(tcp(), 60, &[0, 0, 1, 4, 0, 0, 0, 0])),
        (Ip6Extension, with_chain(tcp(), 60, &pads(7))),
        (Ip6Extension, with_chain(tcp(), 60, &long)),
        (Ip6Option, with_chain(tcp(), 60, &[6, 0, 0x41, 4, 0, 0, 0, 0])),
        (Ip6Option, with_chain(tcp(), 0, &[6, 0, 0x81, 4, 0, 0, 0, 0])),
        (Ip6Option, with_chain(tcp(), 60, &[6, 0, 0xc1, 4, 0, 0, 0, 0])),
        (Ip6Routing, with_chain(tcp(), 43, &[6, 0, 0, 1, 0, 0, 0, 0])),
        (Ip6Fragment, with_chain(tcp(), 44, &[6, 0, 0, 1, 0, 0, 0, 9])),
        (Ip6Fragment, with_chain(tcp(), 44, &[6, 0, 0, 8, 0, 0, 0, 9])),
        (IpUnknownProtocol, with(tcp(), 20, &[132])),
        (IpUnknownProtocol, with(tcp(), 20, &[59])),
        // ICMP of IPv4 is no protocol of IPv6.
        (IpUnknownProtocol, with(tcp(), 20, &[1])),
        (IcmpTruncated, with(icmp_frame_of(link(), 128, b""), 19, &[7])),
        (IcmpBadChecksum, with(icmp_frame_of(link(), 128, b"ping"), 62, b"pong")),
        (UdpTruncated, with(udp_frame(b""), 19, &[7])),
        (UdpBadChecksum, with(udp_frame(b"query"), 62, b"Q")),
        (UdpBadChecksum, with(udp_frame(b"query"), 60, &[0, 0])),
        (TcpTruncated, with(tcp(), 19, &[19])),
        (TcpBadChecksum, with(tcp(), 86, b"D")),
        (TcpNotUnicast, to("ff02::1")),
        (TcpNotUnicast, with(tcp(), 0, &[0x33, 0x33])),
        // RFC 4861 section 7.1.1.
        (NdInvalid, with_nd(nd(), |f| f[21] = 254)),
        (NdInvalid, with_nd(nd(), |f| f[55] = 1)),
        (NdInvalid, with_nd(nd(), |f| f.truncate(54 + 23))),
        (NdInvalid, with_nd(nd(), |f| f[62] = 0xff)),
        (NdInvalid, with_nd(nd(), |f| f[79] = 0)),
        (NdInvalid, with_nd(nd(), |f| f[79] = 2)),
        (NdInvalid, with_nd(nd(), |f| f[80] |= 1)),
        (NdInvalid, with_nd(nd(), |f| f.push(0))),
        (NdInvalid, nd_frame(NdPacket { src: ip("::"), ..nd() })),
        (NdInvalid, nd_frame(NdPacket { src: ip("::"), dst: ip(OUR_IP), link: None, ..nd() })),
        // Section 7.1.2.
        (NdInvalid, nd_frame(advertised(true))),
        (NdInvalid, nd_frame(NdPacket { src: ip("::"), ..advertised(false) })),
        // RFC 6980.
        (NdInvalid, with_chain(nd_frame(nd()), 44, &[58, 0, 0, 0, 0, 0, 0, 9])),
    ]
}

#[test]
fn a_segment_and_a_datagram() {
    let frame = tcp_frame_of(link(), b"hello");
    let Ok(Parsed::Tcp(tcp)) = parse(&frame, RxChecks::default()) else { panic!() };
    assert_eq!(tcp.payload.of(&frame), b"hello");
    let IpMeta { src, dst, ttl, tos, dont_fragment, header_len, eth_src, eth_dst } = tcp.ip;
    assert_eq!((src, dst, ttl, tos), (ip(PEER_IP), ip(OUR_IP), 64, 0xb9));
    assert_eq!((dont_fragment, header_len, eth_src, eth_dst), (true, 40, PEER, OURS));
    assert_eq!(frame[14..18], [0x6b, 0x90, 0, 0], "version, traffic class, flow label");

    let frame = udp_frame(b"query");
    let Ok(Parsed::Udp(udp)) = parse(&frame, RxChecks::default()) else { panic!() };
    assert_eq!((udp.src_port, udp.dst_port, udp.payload.of(&frame)), (5000, 53, &b"query"[..]));
}

#[test]
fn ethernet_padding_is_no_payload() {
    let mut frame = udp_frame(b"x");
    frame.resize(90, 0xee);
    let Ok(Parsed::Udp(udp)) = parse(&frame, RxChecks::default()) else { panic!() };
    assert_eq!(udp.payload.of(&frame), b"x");
}

/// RFC 8200 sections 4.1 and 4.2; RFC 5095 lets a route at its end pass; RFC 6946 a fragment that
/// is the whole packet.
#[test]
fn harmless_extension_headers_are_skipped() {
    let chains: [(u8, &[u8]); 6] = [
        (0, &[6, 0, 5, 2, 0, 0, 1, 0]),
        (60, &[6, 0, 0x1e, 4, 1, 2, 3, 4]),
        (60, &[60, 0, 1, 4, 0, 0, 0, 0, 6, 0, 1, 0, 0, 0, 0, 0]),
        (43, &[6, 0, 0, 0, 0, 0, 0, 0]),
        (44, &[6, 0x77, 0, 0, 0, 0, 0, 9]),
        (0, &[43, 0, 1, 4, 0, 0, 0, 0, 60, 0, 4, 0, 0, 0, 0, 0, 6, 0, 1, 4, 0, 0, 0, 0]),
    ];
    for (first, chain) in chains {
        let frame = with_chain(tcp_frame_of(link(), b"data"), first, chain);
        let Ok(Parsed::Tcp(tcp)) = parse(&frame, RxChecks::default()) else {
            panic!("{chain:?}: {:?}", reason(&frame))
        };
        assert_eq!(tcp.payload.of(&frame), b"data");
        assert_eq!(usize::from(tcp.ip.header_len), 40 + chain.len());
    }
}

/// RFC 4443 section 3.4, RFC 8200 sections 4 and 4.2, RFC 5095 section 3.
#[test]
fn the_sender_learns_what_was_not_understood() {
    let problem = |frame: Vec<u8>| {
        parse_problem(&frame).map(|(_, p): (_, ipv6::Problem)| (p.code, p.pointer))
    };
    let tcp = || tcp_frame_of(link(), b"");
    let group = || tcp_frame_of(FrameHeader { dst: ip("ff02::1"), ..link() }, b"");
    let with_next = |next: u8| {
        let mut frame = tcp();
        frame[20] = next;
        frame
    };
    assert_eq!(problem(with_next(132)), Some((1, 6)));
    assert_eq!(problem(with_next(59)), None, "no next header");
    let hidden = with_chain(tcp(), 60, &[132, 0, 1, 4, 0, 0, 0, 0]);
    assert_eq!(problem(hidden), Some((1, 40)));
    let late = with_chain(tcp(), 60, &[0, 0, 1, 4, 0, 0, 0, 0]);
    assert_eq!(problem(late), Some((1, 40)), "hop-by-hop options come first");
    let option = |kind: u8| [6, 0, 0, 0, kind, 2, 0, 0];
    for (kind, to_one, to_all) in
        [(0x40, None, None), (0x80, Some((2, 44)), Some((2, 44))), (0xc0, Some((2, 44)), None)]
    {
        assert_eq!(problem(with_chain(tcp(), 60, &option(kind))), to_one, "{kind:#x}");
        assert_eq!(problem(with_chain(group(), 60, &option(kind))), to_all, "{kind:#x}");
    }
    assert_eq!(problem(with_chain(tcp(), 43, &[6, 0, 0, 1, 0, 0, 0, 0])), Some((0, 42)));
    assert_eq!(problem(with_chain(tcp(), 44, &[6, 0, 0, 8, 0, 0, 0, 9])), None);
    // Nor of what is known: a hostile peer may have changed the frame since it was refused.
    for known in [tcp(), udp_frame(b""), icmp_frame_of(link(), 128, b"")] {
        assert_eq!(problem(known), None);
    }
}

/// RFC 4443 section 2.4 (e.1): no error about an error, wherever what is wrong stands.
#[test]
fn nobody_is_told_of_what_is_wrong_in_an_error() {
    let bad_option = |next: u8| [next, 0, 0, 0, 0x80, 2, 0, 0];
    for kind in 0..=255 {
        let frame = with_chain(icmp_frame_of(link(), kind, b"body"), 60, &bad_option(58));
        assert_eq!(parse_problem(&frame).is_some(), kind >= 128, "{kind}");
        let far = [bad_option(60), [58, 0, 1, 4, 0, 0, 0, 0]].concat();
        let frame = with_chain(icmp_frame_of(link(), kind, b"body"), 60, &far);
        assert_eq!(parse_problem(&frame).is_some(), kind >= 128, "{kind}");
        // What follows is not there: it may be an error.
        assert_eq!(parse_problem(&frame[..frame.len() - 12]), None);
    }
}

#[test]
fn an_echo_request_becomes_its_reply() {
    for len in [0, 1, 56, 1400] {
        let body: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let mut frame = icmp_frame_of(link(), icmp6::ECHO_REQUEST, &body);
        icmp6::echo_request_to_reply(&mut frame[54..]);
        let Ok(Parsed::Icmp(reply)) = parse(&frame, RxChecks::default()) else { panic!() };
        assert_eq!((reply.header.kind, reply.header.rest), (129, [1, 2, 3, 4]));
        assert_eq!(reply.payload.of(&frame), body);
    }
}

#[test]
fn messages_of_neighbours() {
    let flags = |router, solicited, overrides| {
        let kind = NdKind::Advertisement { router, solicited, overrides };
        NdPacket { kind, dst: ip(OUR_IP), ..solicitation() }
    };
    let check = NdPacket { src: ip("::"), link: None, ..solicitation() };
    let packets = [
        solicitation(),
        NdPacket { dst: ip(OUR_IP), link: None, ..solicitation() },
        check,
        flags(true, false, true),
        flags(false, true, false),
        NdPacket { dst: ipv6::ALL_NODES, link: None, ..flags(false, false, true) },
    ];
    for packet in packets {
        let frame = nd_frame(packet);
        assert_eq!(parse(&frame, RxChecks::default()), Ok(Parsed::Nd(packet)));
    }
    // RFC 4861 sections 4.3 and 4.6.1, RFC 2464 section 7.
    let frame = nd_frame(solicitation());
    assert_eq!(frame[..6], [0x33, 0x33, 0xff, 0, 0, 2]);
    assert_eq!((frame[20], frame[21], frame[54], frame[55]), (58, 255, 135, 0));
    assert_eq!(frame[78..], [1, 1, 2, 0, 0, 0, 0, 1]);
    assert_eq!(nd_frame(flags(true, true, true))[58], 0xe0);
    // Unknown options, of other lengths and kinds, do not matter.
    let unknown = with_nd(solicitation(), |f| {
        f.splice(78..78, [14, 1, 1, 2, 3, 4, 5, 6, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    });
    assert_eq!(parse(&unknown, RxChecks::default()), Ok(Parsed::Nd(solicitation())));
}

/// What follows the extension headers, if the packet may pass: RFC 8200 section 4 read once more,
/// with an index and no state.
fn naive(chain: &[u8], first: u8) -> Option<(u8, usize)> {
    let (mut next, mut at) = (first, 0);
    for number in 0.. {
        if ![0, 43, 44, 60].contains(&next) {
            return Some((next, at));
        }
        if number == 6 || next == 0 && number > 0 {
            return None;
        }
        let units = if next == 44 { 0 } else { usize::from(*chain.get(at + 1)?) };
        let end = at + 8 + 8 * units;
        let header = chain.get(at..end)?;
        let passes = match next {
            43 => header[3] == 0,
            44 => header[2] == 0 && header[3] & 0xf9 == 0,
            _ => options_pass(&header[2..]),
        };
        if end > 200 || !passes {
            return None;
        }
        (next, at) = (header[0], end);
    }
    None
}

fn options_pass(options: &[u8]) -> bool {
    match options {
        [] => true,
        [0, rest @ ..] => options_pass(rest),
        [kind, len, rest @ ..] => {
            rest.get(usize::from(*len)..).is_some_and(|rest| (*kind < 0x40) && options_pass(rest))
        }
        [_] => false,
    }
}

/// A chain of which many are nearly right.
fn chain() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let number = || prop::sample::select(vec![0u8, 43, 44, 60, 60, 6, 6, 17, 59]);
    let octet = || prop::sample::select(vec![0u8, 0, 0, 1, 1, 2, 4, 5, 0x3e, 0x41, 0xc2]);
    let header =
        (number(), 0u8..3, prop::collection::vec(octet(), 22)).prop_map(|(next, units, body)| {
            let mut header = vec![next, units];
            header.extend_from_slice(&body[..6 + 8 * usize::from(units)]);
            header
        });
    (number(), prop::collection::vec(header, 0..9)).prop_map(|(first, all)| (first, all.concat()))
}

proptest! {
    #[test]
    fn the_walk_agrees_with_the_naive_one((first, chain) in chain(), protocol: u8) {
        let mut frame = with_chain(udp_frame(b""), first, &chain);
        frame[54 + chain.len()..].fill(protocol);
        let walked = parse_ip(&frame).ok().map(|(ip, next)| (next, usize::from(ip.header_len) - 40));
        prop_assert_eq!(walked, naive(&frame[54..], first));
    }

    #[test]
    fn any_bytes_give_a_value_or_a_reason(
        mut bytes in prop::collection::vec(any::<u8>(), 54..250),
        first in prop::sample::select(vec![0u8, 6, 17, 43, 44, 58, 60]),
        shared in 0usize..250,
    ) {
        bytes[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
        let len = bytes.len() as u16 - 54;
        bytes[18..20].copy_from_slice(&len.to_be_bytes());
        bytes[20] = first;
        let checks = RxChecks { transport: ChecksumMode::Skip };
        let _ = parse(&bytes, checks);
        let _ = parse_problem(&bytes);
        let mut copied = Parsed::NONE;
        let head = &bytes[..shared.min(bytes.len())];
        let _ = parse_copied(head, &bytes, bytes.len(), checks, &mut copied);
    }

    #[test]
    fn what_is_built_is_parsed(
        src: [u8; 15], dst: [u8; 15], body in prop::collection::vec(any::<u8>(), 0..100),
        cut in 0usize..100,
    ) {
        let address = |rest: [u8; 15]| {
            let mut octets = [0x20; 16];
            octets[1..].copy_from_slice(&rest);
            IpAddr(octets)
        };
        let link = FrameHeader { src: address(src), dst: address(dst), ..link() };
        let checks = RxChecks::default();
        for frame in [tcp_frame_of(link, &body), icmp_frame_of(link, 1, &body)] {
            let parsed = parse(&frame, checks);
            prop_assert!(parsed.is_ok(), "{:?}", parsed);
            // From a copy of its front, which memory of a peer needs.
            let mut copied = Parsed::NONE;
            let head = &frame[..frame.len() - cut.min(body.len())];
            prop_assert_eq!(parse_copied(head, &frame, frame.len(), checks, &mut copied), Ok(()));
            prop_assert_eq!(Ok(copied), parsed);
            // In two buffers.
            let first = parse_first(head, frame.len(), checks).expect("the headers are there");
            let rest = [&frame[head.len()..]];
            prop_assert_eq!(verify_rest(head, &first, rest.into_iter(), checks), Ok(()));
            let mut wrong = frame[head.len()..].to_vec();
            if let Some(octet) = wrong.first_mut() {
                *octet ^= 1;
                prop_assert!(verify_rest(head, &first, [&wrong[..]].into_iter(), checks).is_err());
            }
        }
    }
}

/// A packet from the peer with this payload, whose first header is `next`.
fn packet(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 54];
    link().emit(&mut frame, next, payload.len());
    finish(frame, 54, payload)
}

/// A fragment header: next header, offset and flags, identification.
fn fragment_header(next: u8, word: u16, ident: u32) -> [u8; 8] {
    let [a, b] = word.to_be_bytes();
    let [c, d, e, f] = ident.to_be_bytes();
    [next, 0, a, b, c, d, e, f]
}

/// RFC 8200 section 4.5: what is read of a fragment, also behind other headers.
#[test]
fn fragments_are_read() {
    let udp = [19, 137, 0, 53, 0, 28, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let read = |frame: &[u8]| parse_fragment(frame, frame.len());
    let first = packet(44, &[&fragment_header(17, 1, 0xabcd_0123)[..], &udp].concat());
    assert_eq!(reason(&first), Some(DropReason::Ip6Fragment));
    let Ok(got) = read(&first) else { panic!("{:?}", read(&first)) };
    assert_eq!((got.ident, got.offset, got.more, got.headers_bytes), (0xabcd_0123, 0, true, 8));
    assert_eq!((got.protocol, got.payload.of(&first)), (44, &udp[..]));
    assert_eq!((got.ip.src, got.ip.dst, got.ip.ecn()), (ip(PEER_IP), ip(OUR_IP), 1));
    let options = [44, 0, 1, 4, 0, 0, 0, 0];
    let last = [&options[..], &fragment_header(17, 0x558, 9), &[7; 5]].concat();
    let last = packet(0, &last);
    let Ok(got) = read(&last) else { panic!("{:?}", read(&last)) };
    assert_eq!((got.ident, got.offset, got.more, got.headers_bytes), (9, 0x558, false, 0));
    assert_eq!((got.payload.of(&last), got.ip.header_len), (&[7; 5][..], 56));
    // All that says something of the whole packet is kept: its addresses, and what it holds.
    let kept = ipv6::kept_headers(&last[14..], 56, 5).expect("its headers");
    assert_eq!((kept[6], kept[40], &kept[4..6]), (44, 17, &[0, 13][..]));
    assert_eq!(kept[8..40], last[22..54]);
}

/// RFC 8200 section 4.5 and RFC 7112: what cannot be a fragment, and what its sender is told.
#[test]
fn impossible_fragments_are_refused() {
    let told = |next: u8, word: u16, payload: &[u8]| {
        let frame = packet(44, &[&fragment_header(next, word, 9)[..], payload].concat());
        let refused = parse_fragment(&frame, frame.len()).err();
        assert_eq!(reason(&frame), Some(DropReason::Ip6Fragment));
        assert_ne!(refused, None, "{next} {word:#x}");
        parse_problem(&frame).map(|(_, p): (_, ipv6::Problem)| (p.code, p.pointer))
    };
    assert_eq!(told(17, 1, &[0; 15]), Some((0, 4)), "no multiple of eight");
    assert_eq!(told(17, 0xfff8, &[0; 8]), Some((0, 42)), "beyond 65,535");
    assert_eq!(told(17, 9, &[]), None, "nothing");
    // The first one has all headers.
    assert_eq!(told(6, 1, &[0; 16]), Some((3, 0)));
    assert_eq!(told(60, 1, &[6, 1, 1, 4, 0, 0, 0, 0]), Some((3, 0)));
    // What it holds is not known: it may be an error, about which there is none.
    assert_eq!(told(60, 1, &[60, 0, 1, 4, 0, 0, 0, 0]), None);
    let whole = packet(17, &[0; 8]);
    assert_eq!(parse_fragment(&whole, whole.len()), Err(DropReason::Ip6Fragment));
    assert!(parse_fragment(&packet(44, &[17, 0, 0]), 57).is_err());
}

proptest! {
    /// Any bytes are read or refused, and what is read lies within them.
    #[test]
    fn fragments_are_within_their_frames(
        next in prop_oneof![Just(44u8), Just(0), Just(60), Just(43), any::<u8>()],
        mut body in prop::collection::vec(any::<u8>(), 0..200),
        header in prop::option::of((0usize..4, any::<u16>())),
    ) {
        if let (Some((at, word)), true) = (header, body.len() >= 40) {
            let word = word & 0x1f9;
            body[at * 8..at * 8 + 8].copy_from_slice(&fragment_header(17, word, 1));
        }
        let frame = packet(next, &body);
        if let Ok(got) = parse_fragment(&frame, frame.len()) {
            let len = usize::from(got.payload.len);
            prop_assert_eq!(got.payload.of(&frame).len(), len);
            prop_assert!(len > 0 && (!got.more || len % 8 == 0) && got.offset % 8 == 0);
            prop_assert!(usize::from(got.headers_bytes) <= len);
            prop_assert!(usize::from(got.offset) + len <= 65_535);
            let header_len = usize::from(got.ip.header_len);
            prop_assert!(ipv6::kept_headers(&frame[14..], header_len, len).is_some());
        }
    }
}
