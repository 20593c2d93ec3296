//! Properties of the parser: total, and the inverse of what builds packets.
use ix_wire::*;
use proptest::prelude::*;

fn mac() -> impl Strategy<Value = MacAddr> {
    any::<MacAddr>().prop_map(|mut mac| {
        mac[0] &= !1;
        mac[5] |= 1; // not zero
        mac
    })
}

fn unicast() -> impl Strategy<Value = [u8; 4]> {
    any::<[u8; 4]>().prop_map(|mut ip| {
        ip[0] = if matches!(ip[0], 0 | 127 | 224..=255) { 10 } else { ip[0] };
        ip
    })
}

fn link() -> impl Strategy<Value = FrameHeader> {
    let macs = (mac(), mac());
    let ips = (unicast(), unicast());
    (macs, ips, any::<u8>(), any::<u8>(), any::<u16>()).prop_map(|(macs, ips, ttl, tos, ident)| {
        FrameHeader {
            eth_src: macs.0,
            eth_dst: macs.1,
            src: IpAddr::v4(ips.0),
            dst: IpAddr::v4(ips.1),
            ttl,
            tos,
            ident: ident.into(),
        }
    })
}

fn options() -> impl Strategy<Value = TcpOptions> {
    let blocks = prop::collection::vec(any::<(u32, u32)>(), 0..=4);
    let shift = prop::option::of(0u8..=14);
    let ecn = any::<[Option<u32>; 3]>().prop_map(|[a, b, c]| EcnBytes::new(a, b, c));
    let stamp = any::<Option<(u32, u32)>>();
    let mixed = (any::<Option<u16>>(), shift, any::<bool>(), stamp, blocks, ecn).prop_map(
        |(mss, window_scale, sack_permitted, timestamp, blocks, ecn_bytes)| {
            let mut sack = SackBlocks::EMPTY;
            blocks.into_iter().for_each(|(left, right)| sack.push(Seq(left), Seq(right)));
            TcpOptions { mss, window_scale, sack_permitted, timestamp, sack, ecn_bytes }
        },
    );
    // Nearly all real segments are like this one, which has a path of its own.
    let usual = any::<(u32, u32)>()
        .prop_map(|timestamp| TcpOptions { timestamp: Some(timestamp), ..TcpOptions::NONE });
    prop_oneof![mixed, usual]
}

prop_compose! {
    fn header()(ports: (u16, u16), seq: u32, ack: u32, flags in 0u16..512, window: u16, urgent: u16,
        options in options()) -> TcpHeader {
        TcpHeader {
            src_port: ports.0,
            dst_port: ports.1,
            seq: Seq(seq),
            ack: Seq(ack),
            flags: TcpFlags(flags),
            window,
            urgent,
            options,
        }
    }
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..100)
}

fn checks() -> impl Strategy<Value = RxChecks> {
    use ChecksumMode::*;
    prop::sample::select(vec![Verify, AcceptPartial, Skip])
        .prop_map(|transport| RxChecks { transport })
}

/// A frame that parses.
fn valid_frame() -> impl Strategy<Value = Vec<u8>> {
    let kinds = (0..4, link(), header(), payload());
    kinds.prop_map(|(kind, link, header, payload)| {
        let mut frame = vec![0; frame::HEADERS_BYTES_MAX];
        let sum = Checksum::of(&payload);
        let len = match kind {
            0 => link.emit_tcp(&mut frame, &header, payload.len(), sum),
            1 => link.emit_udp(&mut frame, header.src_port, 9, payload.len(), sum),
            2 => {
                let icmp = icmp::IcmpHeader { kind: 3, code: 4, rest: [0, 0, 5, 0] };
                link.emit_icmp(&mut frame, &icmp, payload.len(), sum)
            }
            _ => ArpPacket {
                operation: ArpOperation::Reply,
                sender_mac: link.eth_src,
                sender_ip: [10, 0, 0, 1],
                target_mac: link.eth_dst,
                target_ip: [10, 0, 0, 2],
            }
            .emit_frame(&mut frame),
        };
        frame.truncate(len);
        frame.extend(payload);
        frame
    })
}

/// Whatever is returned must lie within the frame.
fn check_bounds(frame: &[u8], total_len: usize, checks: RxChecks) {
    let payload = match parse_first(frame, total_len, checks) {
        Ok(Parsed::Tcp(packet)) => packet.payload,
        Ok(Parsed::Udp(packet)) => packet.payload,
        Ok(Parsed::Icmp(packet)) => packet.payload,
        Ok(Parsed::Arp(_) | Parsed::Nd(_)) | Err(_) => return,
    };
    assert!(payload.range().end <= frame.len());
    assert!(payload.range().end + usize::from(payload.more) <= total_len.max(frame.len()));
}

proptest! {
    #[test]
    fn any_bytes_give_a_value_or_a_reason(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        total_len in 0usize..70_000,
        checks in checks(),
    ) {
        check_bounds(&bytes, total_len, checks);
        let _ = TcpHeader::parse(&bytes);
        let _ = TcpOptions::parse(&bytes);
        let _ = ArpPacket::parse(&bytes);
        let _ = icmp::IcmpHeader::parse(&bytes);
        let _ = udp::UdpHeader::parse(&bytes, total_len);
    }

    /// Mutations after which the IP checksum is corrected, so that they get past it.
    #[test]
    fn mutated_frames_give_a_value_or_a_reason(
        mut frame in valid_frame(),
        mutations in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        mend: bool,
        cut in any::<prop::sample::Index>(),
        total_len in 0usize..70_000,
        checks in checks(),
    ) {
        for (at, byte) in mutations {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        if mend && frame.len() >= 34 {
            let header_len = (usize::from(frame[14] & 0xf) * 4).min(frame.len() - 14);
            frame[24..26].fill(0);
            let check = checksum::checksum(&frame[14..14 + header_len]);
            frame[24..26].copy_from_slice(&check.to_be_bytes());
        }
        check_bounds(&frame, frame.len(), checks);
        let cut = cut.index(frame.len() + 1);
        check_bounds(&frame[..cut], total_len, checks);
    }

    #[test]
    fn one_flipped_bit_of_a_packet_is_noticed(
        frame in valid_frame(),
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let mut flipped = frame.clone();
        let at = 14 + at.index(frame.len() - 14);
        flipped[at] ^= 1 << bit;
        let is_ip = frame[12..14] == [8, 0];
        let is_udp = is_ip && frame[23] == ipv4::PROTOCOL_UDP;
        // A wrong UDP length makes the sum cover other bytes, which may fit by chance; and a
        // checksum that became zero counts as none.
        let may_pass = is_udp && (matches!(at, 38 | 39) || flipped[40..42] == [0, 0]);
        if is_ip && !may_pass {
            prop_assert!(parse(&flipped, RxChecks::default()).is_err());
        }
    }

    #[test]
    fn tcp_round_trip(link in link(), header in header(), payload in payload(), pad in 0usize..50) {
        let mut frame = vec![0; frame::HEADERS_BYTES_MAX];
        let len = link.emit_tcp(&mut frame, &header, payload.len(), Checksum::of(&payload));
        prop_assert_eq!(len, 34 + header.len());
        frame.truncate(len);
        if let Some(timestamp) = header.options.only_timestamp() {
            let TcpHeader { src_port, dst_port, seq, ack, flags, window, .. } = header;
            let usual = UsualTcp { src_port, dst_port, seq, ack, flags, window, timestamp };
            let mut same = [0; frame::USUAL_HEADERS_BYTES];
            link.emit_usual_tcp(&mut same, &usual, payload.len(), Checksum::of(&payload));
            let plain = TcpHeader { urgent: 0, ..header };
            link.emit_tcp(&mut frame, &plain, payload.len(), Checksum::of(&payload));
            prop_assert_eq!(&frame[..], &same[..]);
            link.emit_tcp(&mut frame, &header, payload.len(), Checksum::of(&payload));
        }
        if let Some(timestamp) = header.options.only_timestamp() {
            // The same over IPv6, whose addresses these become.
            let over_v6 = |address: IpAddr| {
                let mut octets = address.0;
                octets[..12].copy_from_slice(&[0x20, 1, 0xd, 0xb8, 0xff, 0xff, 3, 4, 5, 6, 7, 8]);
                IpAddr(octets)
            };
            let link = FrameHeader { src: over_v6(link.src), dst: over_v6(link.dst), ..link };
            let TcpHeader { src_port, dst_port, seq, ack, flags, window, .. } = header;
            let usual = UsualTcp { src_port, dst_port, seq, ack, flags, window, timestamp };
            let mut same = [0; frame::USUAL_HEADERS_BYTES_V6];
            let mut general = [0; frame::USUAL_HEADERS_BYTES_V6];
            let plain = TcpHeader { urgent: 0, ..header };
            link.emit_usual_tcp_v6(&mut same, &usual, payload.len(), Checksum::of(&payload));
            link.emit_tcp(&mut general, &plain, payload.len(), Checksum::of(&payload));
            prop_assert_eq!(same, general);
        }
        frame.extend(&payload);
        frame.resize(frame.len() + pad, 0xa5);
        let Ok(Parsed::Tcp(packet)) = parse(&frame, RxChecks::default()) else {
            return Err(TestCaseError::fail("did not parse"));
        };
        prop_assert_eq!(packet.payload.of(&frame), &payload[..]);
        // SACK blocks that did not fit are missing, the last first; everything else is unchanged.
        let kept = packet.header.options.sack;
        prop_assert!(header.options.sack.as_slice().starts_with(kept.as_slice()));
        // The first block brings the option's own four octets.
        let block = if kept.as_slice().is_empty() { 12 } else { 8 };
        let is_full = header.options.len() + block > tcp::OPTIONS_BYTES_MAX;
        prop_assert!(kept == header.options.sack || is_full);
        let expected = TcpHeader { options: TcpOptions { sack: kept, ..header.options }, ..header };
        prop_assert_eq!(packet.header, expected);
        prop_assert_eq!((packet.ip.src, packet.ip.dst), (link.src, link.dst));
        prop_assert_eq!((packet.ip.eth_src, packet.ip.eth_dst), (link.eth_src, link.eth_dst));
        prop_assert_eq!((packet.ip.ttl, packet.ip.tos), (link.ttl, link.tos));

        // The same checksum as for a segment in one piece.
        let mut whole = frame[34..34 + header.len() + payload.len()].to_vec();
        whole[16..18].fill(0xff);
        tcp::fill_checksum(&mut whole, link.src, link.dst);
        prop_assert_eq!(&whole[..], &frame[34..34 + whole.len()]);
    }

    #[test]
    fn udp_round_trip(link in link(), ports: (u16, u16), payload in payload()) {
        let mut frame = vec![0; frame::HEADERS_BYTES_MAX];
        let sum = Checksum::of(&payload);
        let len = link.emit_udp(&mut frame, ports.0, ports.1, payload.len(), sum);
        frame.truncate(len);
        frame.extend(&payload);
        let Ok(Parsed::Udp(packet)) = parse(&frame, RxChecks::default()) else {
            return Err(TestCaseError::fail("did not parse"));
        };
        prop_assert_eq!((packet.src_port, packet.dst_port), ports);
        prop_assert_eq!(packet.payload.of(&frame), &payload[..]);
    }

    #[test]
    fn icmp_round_trip(link in link(), kind: u8, code: u8, rest: [u8; 4], payload in payload()) {
        let header = icmp::IcmpHeader { kind, code, rest };
        let mut frame = vec![0; frame::HEADERS_BYTES_MAX];
        let len = link.emit_icmp(&mut frame, &header, payload.len(), Checksum::of(&payload));
        frame.truncate(len);
        frame.extend(&payload);
        let Ok(Parsed::Icmp(packet)) = parse(&frame, RxChecks::default()) else {
            return Err(TestCaseError::fail("did not parse"));
        };
        prop_assert_eq!(packet.header, header);
        prop_assert_eq!(packet.payload.of(&frame), &payload[..]);
    }

    #[test]
    fn arp_round_trip(
        reply: bool, sender_mac in mac(), sender_ip in unicast(),
        target_mac: [u8; 6], target_ip: [u8; 4],
    ) {
        let operation = if reply { ArpOperation::Reply } else { ArpOperation::Request };
        let packet = ArpPacket { operation, sender_mac, sender_ip, target_mac, target_ip };
        let mut bytes = [0; arp::PACKET_BYTES];
        packet.emit(&mut bytes);
        prop_assert_eq!(ArpPacket::parse(&bytes), Ok(packet));
    }
}
