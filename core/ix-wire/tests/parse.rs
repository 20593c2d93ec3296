//! The receive path's parser from the outside: every drop reason, every acceptance rule.
use ix_wire::*;

const OURS: MacAddr = [2, 0, 0, 0, 0, 2];
const PEER: MacAddr = [2, 0, 0, 0, 0, 1];

fn link() -> FrameHeader {
    FrameHeader {
        eth_src: PEER,
        eth_dst: OURS,
        src: IpAddr::v4([10, 0, 0, 1]),
        dst: IpAddr::v4([10, 0, 0, 2]),
        ttl: 64,
        tos: 2,
        ident: 0x1234,
    }
}

fn tcp_header() -> TcpHeader {
    TcpHeader {
        src_port: 40_000,
        dst_port: 80,
        seq: Seq(0xffff_fff0),
        ack: Seq(7),
        flags: TcpFlags::ACK | TcpFlags::PSH,
        window: 0xfedc,
        urgent: 3,
        options: TcpOptions { timestamp: Some((1, 2)), ..TcpOptions::NONE },
    }
}

fn tcp_frame_of(link: FrameHeader, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; frame::HEADERS_BYTES_MAX];
    let len = link.emit_tcp(&mut frame, &tcp_header(), payload.len(), Checksum::of(payload));
    frame.truncate(len);
    frame.extend_from_slice(payload);
    frame
}

fn tcp_frame(payload: &[u8]) -> Vec<u8> {
    tcp_frame_of(link(), payload)
}

fn udp_frame(payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; frame::HEADERS_BYTES_MAX];
    let len = link().emit_udp(&mut frame, 5000, 53, payload.len(), Checksum::of(payload));
    frame.truncate(len);
    frame.extend_from_slice(payload);
    frame
}

fn icmp_frame(payload: &[u8]) -> Vec<u8> {
    let header = icmp::IcmpHeader { kind: icmp::ECHO_REQUEST, code: 0, rest: [1, 2, 3, 4] };
    let mut frame = vec![0; frame::HEADERS_BYTES_MAX];
    let len = link().emit_icmp(&mut frame, &header, payload.len(), Checksum::of(payload));
    frame.truncate(len);
    frame.extend_from_slice(payload);
    frame
}

fn arp_packet() -> ArpPacket {
    ArpPacket {
        operation: ArpOperation::Request,
        sender_mac: PEER,
        sender_ip: [10, 0, 0, 1],
        target_mac: [0; 6],
        target_ip: [10, 0, 0, 2],
    }
}

fn arp_frame(packet: ArpPacket) -> Vec<u8> {
    let mut frame = vec![0; 60];
    packet.emit_frame(&mut frame);
    frame
}

fn verify() -> RxChecks {
    RxChecks { transport: ChecksumMode::Verify }
}

fn accept_partial() -> RxChecks {
    RxChecks { transport: ChecksumMode::AcceptPartial }
}

/// Changes the IP header with `edit` and corrects its checksum.
fn with_ip(mut frame: Vec<u8>, edit: impl FnOnce(&mut [u8])) -> Vec<u8> {
    edit(&mut frame[14..]);
    frame[24..26].fill(0);
    let header_len = (usize::from(frame[14] & 0xf) * 4).min(frame.len() - 14);
    let check = checksum::checksum(&frame[14..14 + header_len]);
    frame[24..26].copy_from_slice(&check.to_be_bytes());
    frame
}

/// Puts IP options into a frame that has none.
fn with_ip_options(frame: Vec<u8>, options: &[u8]) -> Vec<u8> {
    assert_eq!(options.len() % 4, 0);
    let mut longer = frame[..34].to_vec();
    longer.extend_from_slice(options);
    longer.extend_from_slice(&frame[34..]);
    with_ip(longer, |ip| {
        ip[0] += options.len() as u8 / 4;
        let total = u16::from_be_bytes([ip[2], ip[3]]) + options.len() as u16;
        ip[2..4].copy_from_slice(&total.to_be_bytes());
    })
}

fn with_bytes(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

fn reason(frame: &[u8]) -> Option<DropReason> {
    parse(frame, verify()).err()
}

fn tcp_of(frame: &[u8], checks: RxChecks) -> TcpPacket {
    match parse(frame, checks) {
        Ok(Parsed::Tcp(packet)) => packet,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tcp_segment() {
    let frame = tcp_frame(b"hello");
    let packet = tcp_of(&frame, verify());
    assert_eq!(packet.header, tcp_header());
    assert_eq!(packet.payload.of(&frame), b"hello");
    assert_eq!(packet.payload.more, 0);
    assert!(!packet.partial);
    assert_eq!(packet.tuple().local_port, 80);
    assert_eq!(packet.tuple().remote, link().src);
    let IpMeta { src, dst, ttl, tos, dont_fragment, header_len, eth_src, eth_dst } = packet.ip;
    assert_eq!((src, dst, ttl, tos), (link().src, link().dst, 64, link().tos));
    assert_eq!(packet.ip.ecn(), 2);
    assert_eq!((dont_fragment, header_len, eth_src, eth_dst), (true, 20, PEER, OURS));
}

#[test]
fn a_fragment() {
    let cut = |offset: u16, more: bool, len: u16| {
        let mut frame = with_ip(udp_frame(&[7; 100]), |ip| {
            let more = if more { 0x2000 } else { 0 };
            let word = (more | (offset / 8)).to_be_bytes();
            ip[2..4].copy_from_slice(&(20 + len).to_be_bytes());
            ip[6..8].copy_from_slice(&word);
        });
        frame.resize(14 + 20 + 108, 7);
        frame
    };
    let read = |frame: &[u8]| parse_fragment(frame, frame.len());
    let frame = cut(0, true, 48);
    assert_eq!(reason(&frame), Some(DropReason::IpFragment));
    let first = read(&frame).unwrap();
    assert_eq!((first.offset, first.more, first.ident), (0, true, 0x1234));
    assert_eq!((first.payload.start, first.payload.len), (34, 48));
    assert_eq!((first.protocol, first.ip.src), (ipv4::PROTOCOL_UDP, link().src));
    let last = read(&cut(48, false, 13)).unwrap();
    assert_eq!((last.offset, last.more, last.payload.len), (48, false, 13));
    // In turn: not a fragment, length not a multiple of eight, empty, beyond 65,535.
    for wrong in [cut(0, false, 48), cut(0, true, 47), cut(48, true, 0), cut(65_528, true, 8)] {
        assert_eq!(read(&wrong), Err(DropReason::IpFragment));
    }
    assert_eq!(read(&with_bytes(frame, 24, &[1, 1])), Err(DropReason::IpBadChecksum));
    // Made whole again, it is the datagram.
    let whole = udp_frame(&[7; 100]);
    let mut header = cut(0, true, 48)[14..34].to_vec();
    ipv4::make_whole(&mut header, 108, 2);
    let expected = with_ip(whole, |ip| ip[6..8].fill(0));
    assert_eq!(header, expected[14..34]);
}

#[test]
fn udp_icmp_and_arp() {
    let frame = udp_frame(b"query");
    let Ok(Parsed::Udp(udp)) = parse(&frame, verify()) else { panic!() };
    assert_eq!((udp.src_port, udp.dst_port, udp.partial), (5000, 53, false));
    assert_eq!(udp.payload.of(&frame), b"query");

    let frame = icmp_frame(b"ping");
    let Ok(Parsed::Icmp(echo)) = parse(&frame, verify()) else { panic!() };
    assert_eq!((echo.header.kind, echo.header.rest), (icmp::ECHO_REQUEST, [1, 2, 3, 4]));
    assert_eq!(echo.payload.of(&frame), b"ping");

    let frame = arp_frame(arp_packet());
    assert_eq!(frame[..6], BROADCAST_MAC);
    assert_eq!(parse(&frame, verify()), Ok(Parsed::Arp(arp_packet())));
}

#[test]
fn every_drop_reason_has_a_frame() {
    use DropReason::*;
    let tcp = || tcp_frame(b"data");
    let ip = |edit: fn(&mut [u8])| with_ip(tcp(), edit);
    let arp = |edit: fn(&mut ArpPacket)| {
        let mut packet = arp_packet();
        edit(&mut packet);
        arp_frame(packet)
    };
    let cases = [
        (EthTruncated, tcp()[..13].to_vec()),
        (EthBadSource, with_bytes(tcp(), 6, &[1])),
        (EthVlan, with_bytes(tcp(), 12, &[0x81, 0])),
        (EthVlan, with_bytes(tcp(), 12, &[0x88, 0xa8])),
        (IpBadVersion, with_bytes(tcp(), 12, &[0x86, 0xdd])),
        (EthUnknownType, with_bytes(tcp(), 12, &[0x00, 0x2e])),
        (ArpTruncated, arp_frame(arp_packet())[..41].to_vec()),
        (ArpUnsupported, with_bytes(arp_frame(arp_packet()), 15, &[6])),
        (ArpUnsupported, with_bytes(arp_frame(arp_packet()), 19, &[16])),
        (ArpBadOperation, with_bytes(arp_frame(arp_packet()), 21, &[3])),
        (ArpBadSender, arp(|p| p.sender_ip = [224, 0, 0, 1])),
        (ArpBadSender, arp(|p| p.sender_ip = [255; 4])),
        (ArpBadSender, arp(|p| p.sender_ip = [127, 0, 0, 1])),
        (ArpBadSender, with_bytes(arp_frame(arp_packet()), 22, &[1])),
        (ArpBadSender, with_bytes(arp_frame(arp_packet()), 22, &[0; 6])),
        (IpTruncated, tcp()[..33].to_vec()),
        (IpBadVersion, ip(|ip| ip[0] = 0x65)),
        (IpBadHeaderLength, ip(|ip| ip[0] = 0x44)),
        (IpBadHeaderLength, with_ip(tcp()[..40].to_vec(), |ip| ip[0] = 0x4f)),
        (IpBadTotalLength, ip(|ip| ip[2..4].copy_from_slice(&[0, 19]))),
        (IpBadTotalLength, tcp()[..tcp().len() - 1].to_vec()),
        (IpBadChecksum, with_bytes(tcp(), 22, &[63])),
        (IpBadChecksum, with_bytes(with_ip_options(tcp(), &[1, 1, 1, 0]), 22, &[63])),
        (IpBadOption, with_ip_options(tcp(), &[7, 0, 0, 0])),
        (IpBadOption, with_ip_options(tcp(), &[7, 1, 0, 0])),
        (IpBadOption, with_ip_options(tcp(), &[7, 5, 0, 0])),
        (IpBadOption, with_ip_options(tcp(), &[1, 1, 1, 7])),
        (IpSourceRoute, with_ip_options(tcp(), &[131, 3, 4, 0])),
        (IpSourceRoute, with_ip_options(tcp(), &[1, 137, 3, 4])),
        (IpFragment, ip(|ip| ip[6] = 0x20)),
        (IpFragment, ip(|ip| ip[7] = 1)),
        (IpMartianSource, ip(|ip| ip[12] = 0)),
        (IpMartianSource, ip(|ip| ip[12] = 127)),
        (IpMartianSource, ip(|ip| ip[12] = 224)),
        (IpMartianSource, ip(|ip| ip[12] = 239)),
        (IpMartianSource, ip(|ip| ip[12..16].fill(255))),
        (IpMartianDestination, ip(|ip| ip[16] = 127)),
        (IpMartianDestination, ip(|ip| ip[16] = 0)),
        (IpUnknownProtocol, ip(|ip| ip[9] = 132)),
        (IcmpTruncated, with_ip(icmp_frame(b""), |ip| ip[3] = 27)),
        (IcmpBadChecksum, with_bytes(icmp_frame(b"ping"), 42, b"pong")),
        (UdpTruncated, with_ip(udp_frame(b""), |ip| ip[3] = 27)),
        (UdpBadLength, with_bytes(udp_frame(b"query"), 38, &[0, 7])),
        (UdpBadLength, with_bytes(udp_frame(b"query"), 38, &[0, 14])),
        (UdpBadChecksum, with_bytes(udp_frame(b"query"), 42, b"Q")),
        (TcpTruncated, with_ip(tcp(), |ip| ip[3] = 39)),
        (TcpBadDataOffset, with_bytes(tcp(), 46, &[0x40])),
        (TcpBadDataOffset, with_bytes(tcp(), 46, &[0xa0])),
        (TcpBadChecksum, with_bytes(tcp(), 66, b"D")),
        (TcpNotUnicast, with_bytes(tcp(), 0, &BROADCAST_MAC)),
        (TcpNotUnicast, ip(|ip| ip[16] = 224)),
        (TcpNotUnicast, ip(|ip| ip[16..20].fill(255))),
    ];
    let cases = cases.into_iter().chain(crate::parse_v6::refused_frames());
    let mut seen = [false; DropReason::COUNT];
    for (expected, frame) in cases {
        assert_eq!(reason(&frame), Some(expected), "{frame:02x?}");
        seen[expected.index()] = true;
    }
    // The parser does not know the dataplane's addresses: the caller checks these two.
    seen[EthNotForUs.index()] = true;
    seen[IpNotForUs.index()] = true;
    // Queries are read by a parser of their own (`mld.rs`, `igmp.rs`).
    seen[MldInvalid.index()] = true;
    seen[IgmpInvalid.index()] = true;
    for reason in DropReason::ALL {
        assert!(seen[reason.index()], "no frame for {}", reason.name());
    }
}

#[test]
fn ethernet_padding_is_no_payload() {
    let mut frame = tcp_frame(b"x");
    frame.resize(90, 0xee);
    assert_eq!(tcp_of(&frame, verify()).payload.of(&frame), b"x");
    let mut frame = udp_frame(b"x");
    frame.resize(60, 0xee);
    let Ok(Parsed::Udp(udp)) = parse(&frame, verify()) else { panic!() };
    assert_eq!(udp.payload.of(&frame), b"x");
}

#[test]
fn ip_options_are_skipped() {
    for options in [&[1, 1, 1, 0][..], &[7, 7, 4, 0, 0, 0, 0, 0], &[0, 9, 9, 9], &[148, 4, 0, 0]] {
        let frame = with_ip_options(tcp_frame(b"data"), options);
        let packet = tcp_of(&frame, verify());
        assert_eq!(packet.payload.of(&frame), b"data");
        assert_eq!(usize::from(packet.ip.header_len), 20 + options.len());
    }
}

/// RFC 1122 section 3.2.1.7: a host must not discard a datagram for a TTL below 2.
#[test]
fn rfc1122_3_2_1_7_ttl_zero_is_accepted() {
    let frame = with_ip(tcp_frame(b""), |ip| ip[8] = 0);
    assert_eq!(tcp_of(&frame, verify()).ip.ttl, 0);
}

#[test]
fn reserved_tcp_bits_are_ignored() {
    let mut frame = tcp_frame(b"");
    // The fourth of them is AE (RFC 9768).
    frame[46] |= 0x0e;
    frame[50..52].fill(0);
    tcp::fill_checksum(&mut frame[34..], link().src, link().dst);
    assert_eq!(tcp_of(&frame, verify()).header, tcp_header());
}

/// What a Linux peer on the same machine leaves in the checksum field.
fn make_partial(frame: &mut [u8]) {
    let protocol = frame[23];
    let len = frame.len() - 34;
    let at = 34 + if protocol == ipv4::PROTOCOL_TCP { 16 } else { 6 };
    let sum = Checksum::pseudo_header(link().src, link().dst, protocol, len).fold();
    frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn partial_checksums_are_accepted_only_where_asked_for_and_only_exact() {
    for mut frame in [tcp_frame(b"hello"), udp_frame(b"hello")] {
        let partial = |frame: &[u8], checks| match parse(frame, checks) {
            Ok(Parsed::Tcp(packet)) => Some(packet.partial),
            Ok(Parsed::Udp(packet)) => Some(packet.partial),
            _ => None,
        };
        assert_eq!(partial(&frame, accept_partial()), Some(false));
        make_partial(&mut frame);
        assert_eq!(partial(&frame, verify()), None);
        assert_eq!(partial(&frame, accept_partial()), Some(true));
        let at = if frame[23] == ipv4::PROTOCOL_TCP { 51 } else { 41 };
        frame[at] ^= 1;
        assert_eq!(partial(&frame, accept_partial()), None);
        assert_eq!(partial(&frame, RxChecks { transport: ChecksumMode::Skip }), Some(false));
    }
}

#[test]
fn udp_without_checksum_is_accepted() {
    let frame = with_bytes(udp_frame(b"query"), 40, &[0, 0]);
    assert!(matches!(parse(&frame, verify()), Ok(Parsed::Udp(packet)) if !packet.partial));
}

/// RFC 768: a computed checksum of zero is sent as all ones.
#[test]
fn udp_checksum_is_never_sent_as_zero() {
    let zero_sum = (0..=u16::MAX)
        .map(|word| udp_frame(&word.to_be_bytes()))
        .find(|frame| frame[40..42] == [0xff, 0xff])
        .expect("one of all words makes the sum zero");
    assert_eq!(reason(&zero_sum), None);
    for word in 0..=u16::MAX {
        assert_ne!(udp_frame(&word.to_be_bytes())[40..42], [0, 0]);
    }
}

#[test]
fn a_udp_datagram_may_be_shorter_than_its_packet() {
    let mut frame = udp_frame(b"query");
    frame.extend_from_slice(b"junk");
    let frame = with_ip(frame, |ip| ip[3] += 4);
    let Ok(Parsed::Udp(udp)) = parse(&frame, verify()) else { panic!() };
    assert_eq!(udp.payload.of(&frame), b"query");
}

#[test]
fn the_first_buffer_of_a_long_frame() {
    let payload = vec![7; 40_000];
    let mut frame = tcp_frame(&payload);
    make_partial(&mut frame);
    let first = &frame[..2000];
    assert_eq!(reason(first), Some(DropReason::IpBadTotalLength));
    for checks in [verify(), accept_partial()] {
        let Ok(Parsed::Tcp(packet)) = parse_first(first, frame.len(), checks) else { panic!() };
        assert!(packet.partial);
        assert_eq!(packet.payload.of(first), &payload[..2000 - 66]);
        assert_eq!(usize::from(packet.payload.more), 40_000 - (2000 - 66));
    }
    // A real checksum cannot be verified from the first buffer alone; it does not count as partial.
    let frame = tcp_frame(&payload);
    let parsed = parse_first(&frame[..2000], frame.len(), verify());
    assert!(matches!(parsed, Ok(Parsed::Tcp(packet)) if !packet.partial));
    // Longer than all buffers together.
    assert_eq!(
        parse_first(&frame[..2000], frame.len() - 1, verify()),
        Err(DropReason::IpBadTotalLength)
    );
    // All headers must be in the first buffer.
    assert_eq!(parse_first(&frame[..50], frame.len(), verify()), Err(DropReason::TcpTruncated));
    // A frame that ends in the first buffer is verified as usual.
    let mut short = tcp_frame(b"data");
    short[68] ^= 1;
    assert_eq!(parse_first(&short, 2000, verify()), Err(DropReason::TcpBadChecksum));
}

#[test]
fn the_other_buffers_of_a_long_frame_are_verified() {
    let payload: Vec<u8> = (0..40_001u32).map(|n| (n * 7) as u8).collect();
    let in_pieces = |frame: &[u8], each: usize, checks: RxChecks| {
        let first = &frame[..each];
        let parsed = parse_first(first, frame.len(), checks).expect("a first buffer");
        verify_rest(first, &parsed, frame[each..].chunks(each), checks)
    };
    for (good, failed) in [
        (tcp_frame(&payload), DropReason::TcpBadChecksum),
        (udp_frame(&payload), DropReason::UdpBadChecksum),
        (icmp_frame(&payload), DropReason::IcmpBadChecksum),
    ] {
        for each in [1999, 2000, 20_000] {
            assert_eq!(in_pieces(&good, each, verify()), Ok(()));
            for at in [each - 1, each, good.len() - 1] {
                let mut bad = good.clone();
                bad[at] ^= 1;
                assert_eq!(in_pieces(&bad, each, verify()), Err(failed), "byte {at}");
                assert_eq!(in_pieces(&bad, each, accept_partial()), Err(failed), "byte {at}");
            }
            // A buffer is missing.
            let parsed = parse_first(&good[..each], good.len(), verify()).expect("a first buffer");
            let rest = good[each..].chunks(each).skip(1);
            assert_eq!(verify_rest(&good[..each], &parsed, rest, verify()), Err(failed));
            // What follows the packet is no part of it.
            let mut padded = good.clone();
            padded.extend([9; 3000]);
            assert_eq!(in_pieces(&padded, each, verify()), Ok(()));
        }
    }
    // Linux leaves the sum of the pseudo-header, where no device finishes it.
    let mut partial = tcp_frame(&payload);
    make_partial(&mut partial);
    assert_eq!(in_pieces(&partial, 2000, accept_partial()), Ok(()));
    assert_eq!(in_pieces(&partial, 2000, verify()), Err(DropReason::TcpBadChecksum));
    // A datagram without a checksum.
    let mut none = udp_frame(&payload);
    none[40..42].copy_from_slice(&[0, 0]);
    assert_eq!(in_pieces(&none, 2000, verify()), Ok(()));
}

#[test]
fn an_echo_reply_is_the_request_with_another_type() {
    for payload in [&b""[..], b"x", &[0xff; 1000]] {
        let mut frame = icmp_frame(payload);
        icmp::echo_request_to_reply(&mut frame[34..]);
        let Ok(Parsed::Icmp(reply)) = parse(&frame, verify()) else { panic!() };
        assert_eq!((reply.header.kind, reply.header.rest), (icmp::ECHO_REPLY, [1, 2, 3, 4]));
        assert_eq!(reply.payload.of(&frame), payload);
    }
}

#[test]
fn the_ip_part_of_an_unknown_protocol() {
    let frame = with_ip(tcp_frame(b"data"), |ip| ip[9] = 132);
    let (meta, protocol) = parse_ip(&frame).unwrap();
    assert_eq!((meta.src, meta.eth_src, protocol), (link().src, PEER, 132));
    assert_eq!(parse_ip(&arp_frame(arp_packet())), Err(DropReason::EthUnknownType));
    let fragment = with_ip(frame, |ip| ip[6] = 0x20);
    assert_eq!(parse_ip(&fragment), Err(DropReason::IpFragment));
}

/// The copying parser, with the frame behind the copy unchanged.
fn copied(frame: &[u8], head: usize, checks: RxChecks) -> Result<Parsed, DropReason> {
    let mut parsed = Parsed::NONE;
    parse_copied(&frame[..head.min(frame.len())], frame, frame.len(), checks, &mut parsed)
        .map(|()| parsed)
}

#[test]
fn a_copy_of_the_front_says_what_the_whole_frame_says() {
    let payload: Vec<u8> = (0..600u32).map(|i| (i * 7) as u8).collect();
    for len in [0, 1, 37, 118, 119, 150, 151, 400, 599] {
        let data = &payload[..len];
        for mut frame in [tcp_frame(data), udp_frame(data), icmp_frame(data)] {
            frame.extend_from_slice(&[0; 9]); // padding of a short Ethernet frame
            let whole = parse(&frame, verify());
            assert!(whole.is_ok());
            for head in [134, 135, 192, frame.len()] {
                assert_eq!(copied(&frame, head, verify()), whole, "{len} bytes, copy of {head}");
            }
            if len == 0 {
                continue;
            }
            // A wrong byte of payload, before or behind the end of the copy, is detected.
            for at in [frame.len() - 10, frame.len() - 9 - len] {
                frame[at] ^= 0x40;
                assert_eq!(copied(&frame, 134, verify()), parse(&frame, verify()));
                assert!(copied(&frame, 134, verify()).is_err(), "{len} bytes, wrong at {at}");
                frame[at] ^= 0x40;
            }
        }
    }
    assert_eq!(copied(&arp_frame(arp_packet()), 192, verify()), Ok(Parsed::Arp(arp_packet())));
}

/// The sender changes the frame after it was copied: only the payload changes.
#[test]
fn headers_come_from_the_copy_alone() {
    let frame = tcp_frame(&[7; 500]);
    let head = frame[..192].to_vec();
    let wanted = parse(&frame, verify());
    let mut changed = frame.clone();
    changed[..66].fill(0xff);
    let mut parsed = Parsed::NONE;
    assert_eq!(parse_copied(&head, &changed, frame.len(), verify(), &mut parsed), Ok(()));
    assert_eq!(Ok(parsed), wanted);
}

/// The sum of the pseudo-header alone is an invalid checksum from a peer that must have finished
/// it.
#[test]
fn a_partial_checksum_is_partial_in_a_copy_too() {
    let mut frame = tcp_frame(&[7; 500]);
    let sum = Checksum::pseudo_header(link().src, link().dst, 6, frame.len() - 34).fold();
    frame[50..52].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(copied(&frame, 192, verify()), Err(DropReason::TcpBadChecksum));
    let lenient = RxChecks { transport: ChecksumMode::AcceptPartial };
    assert_eq!(copied(&frame, 192, lenient), parse(&frame, lenient));
    assert!(copied(&frame, 192, lenient).is_ok());
}
