//! Hostile packets while honest clients are served.
use crate::support::frames::{
    self, ETHERNET, FIN, L4, Macs, PSH, SYN, Seen, Segment, URG, stranger,
};
use crate::support::stats::Stats;
use crate::support::traffic::Steady;
use crate::support::{CLIENT, Nic, PATIENCE, SERVICE, SERVICE_V6, TestNet};
use ix_random::Rng;
use ix_testbed::PacketSocket;
use ix_wire::DropReason;
use std::collections::BTreeSet;
use std::net::{Ipv6Addr, SocketAddrV4};
use std::time::{Duration, Instant};

/// Every header field wrong, one at a time: each such packet is counted under its reason.
#[test]
fn malformed_packets_are_counted() {
    for nic in Nic::ALL {
        let Some(net) = TestNet::new("malformed_packets_are_counted", nic, 1) else { return };
        let service = net.serve(&["100"]);
        let (wire, macs) = (net.wire(), net.macs());
        net.client.run(|| {
            Steady::during(100, |steady| {
                for (reason, reaches_afxdp, frame) in malformed(macs) {
                    if nic == Nic::Afxdp && !reaches_afxdp {
                        continue;
                    }
                    let counter = format!("drops.{reason}");
                    let before = service.stats().total(&counter);
                    for _ in 0..5 {
                        wire.send(&frame).unwrap_or_else(|e| panic!("{reason}: {e}"));
                    }
                    service.wait_until(&counter, PATIENCE, |s| s.total(&counter) == before + 5);
                }
                steady.goes_on();
            });
        });
        service.finish(PATIENCE);
    }
}

/// Drop reasons that no frame of [`malformed`] causes, and why.
const NOT_MALFORMED: [(DropReason, &str); 1] =
    [(DropReason::EthTruncated, "Linux sends no frame that is shorter than its header")];

/// A change that adds a drop reason adds a frame that causes it on a real device, or says why there
/// is none.
#[test]
fn every_drop_reason_has_a_malformed_frame() {
    let macs = Macs { to: [2, 0, 0, 0, 0, 2], from: [2, 0, 0, 0, 0, 1] };
    let caused: BTreeSet<_> = malformed(macs).into_iter().map(|(reason, ..)| reason).collect();
    let excused = NOT_MALFORMED.map(|(reason, _)| reason.name());
    for reason in DropReason::ALL {
        let name = reason.name();
        assert_ne!(caused.contains(name), excused.contains(&name), "{name}");
    }
    let known = |name: &&str| DropReason::ALL.iter().any(|reason| reason.name() == *name);
    assert!(caused.iter().all(known), "frames for a reason that does not exist: {caused:?}");
}

/// Drop reason, whether the XDP program takes such a frame for ours, and the frame.
fn malformed(macs: Macs) -> Vec<(&'static str, bool, Vec<u8>)> {
    let good = stranger(macs).frame();
    let mut all = link_malformed(macs, &good);
    let mut ip = |reason, change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.clone();
        change(&mut frame);
        if reason != "ip_bad_checksum" {
            frames::fix_ip_checksum(&mut frame);
        }
        all.push((reason, true, frame));
    };
    ip("ip_bad_checksum", &|f| f[ETHERNET + 10] ^= 1);
    ip("ip_bad_header_length", &|f| f[ETHERNET] = 0x44);
    ip("ip_bad_total_length", &|f| f[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&[0, 19]));
    ip("ip_bad_total_length", &|f| f[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&[0xff, 0xff]));
    ip("ip_bad_option", &|f| insert_ip_options(f, &[7, 1, 0, 0]));
    ip("ip_bad_option", &|f| insert_ip_options(f, &[7, 40, 4, 0]));
    ip("ip_source_route", &|f| insert_ip_options(f, &[131, 7, 4, 10, 88, 0, 9, 0]));
    // A piece that begins within the transport's header, and one beyond the longest datagram.
    ip("ip_fragment", &|f| f[ETHERNET + 6..ETHERNET + 8].copy_from_slice(&[0x20, 1]));
    ip("ip_fragment", &|f| f[ETHERNET + 6..ETHERNET + 8].copy_from_slice(&[0x1f, 0xff]));
    for source in [[127, 0, 0, 1], [224, 0, 0, 1], [255; 4], [0; 4]] {
        ip("ip_martian_source", &|f| f[ETHERNET + 12..ETHERNET + 16].copy_from_slice(&source));
    }
    // A question about groups without the sum that it needs.
    ip("igmp_invalid", &|f| {
        f[ETHERNET + 9] = 2;
        f[L4..L4 + 4].copy_from_slice(&[0x11, 0, 0, 0]);
    });
    ip("tcp_truncated", &|f| {
        f.truncate(L4 + 19);
        f[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&[0, 39]);
    });
    all.extend(transport_malformed(macs, &good));
    all.extend(v6_malformed(macs).into_iter().map(|(reason, frame)| (reason, false, frame)));
    all
}

/// The same over IPv6. The dataplane has no such address, so that AF_XDP leaves them to Linux.
fn v6_malformed(macs: Macs) -> Vec<(&'static str, Vec<u8>)> {
    let (them, us) = (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), SERVICE_V6);
    let packet = |next: u8, body: &[u8]| frames::ipv6(macs, them, us, next, body);
    // A header in front of no next header.
    let alone = |kind: u8, header: [u8; 7]| packet(kind, &[&[59], &header[..]].concat());
    let solicitation = |octets: [u8; 2], options: &[u8]| {
        let head = [135, octets[0], 0, 0, 0, 0, 0, 0];
        frames::icmpv6(macs, them, us, &[&head[..], &us.octets()[..], options].concat())
    };
    let from_afar = {
        let mut frame = solicitation([0, 0], &[]);
        frame[ETHERNET + 7] = 254;
        frame
    };
    let all_hosts = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let query = [&[130, 0, 0, 0, 0, 0, 0, 0][..], &[0; 16]].concat();
    let query_from_afar = frames::icmpv6(macs, them, all_hosts, &query);
    let chain: Vec<u8> = [60, 0, 1, 4, 0, 0, 0, 0].repeat(100);
    vec![
        ("ip6_extension", packet(60, &chain)),
        ("ip6_extension", alone(60, [9, 0, 0, 0, 0, 0, 0])),
        ("ip6_extension", alone(60, [0, 1, 9, 0, 0, 0, 0])),
        ("ip6_option", alone(0, [0, 0x41, 4, 0, 0, 0, 0])),
        ("ip6_option", alone(60, [0, 0xc1, 4, 0, 0, 0, 0])),
        ("ip6_routing", alone(43, [0, 0, 1, 0, 0, 0, 0])),
        ("ip6_fragment", alone(44, [0, 0, 1, 0, 0, 0, 1])),
        ("nd_invalid", from_afar),
        ("nd_invalid", solicitation([1, 0], &[])),
        ("nd_invalid", solicitation([0, 0], &[1, 0, 2, 0, 0, 0, 0, 9])),
        ("mld_invalid", query_from_afar),
        ("ip_martian_source", frames::ipv6(macs, Ipv6Addr::LOCALHOST, us, 59, &[])),
        ("ip_martian_destination", frames::ipv6(macs, them, Ipv6Addr::LOCALHOST, 59, &[])),
        ("ip_unknown_protocol", packet(132, &[0; 40])),
        ("ip_bad_total_length", packet(59, &[0; 40])[..ETHERNET + 60].to_vec()),
    ]
}

fn link_malformed(macs: Macs, good: &[u8]) -> Vec<(&'static str, bool, Vec<u8>)> {
    let mut all = Vec::new();
    let mut changed = |reason, reaches, change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.to_vec();
        change(&mut frame);
        all.push((reason, reaches, frame));
    };
    changed("eth_bad_source", true, &|f| f[6] |= 1);
    changed("eth_not_for_us", true, &|f| f[5] ^= 0x40);
    changed("eth_unknown_type", false, &|f| f[12..14].copy_from_slice(&[0x88, 0xb5]));
    changed("eth_vlan", false, &|f| drop(f.splice(12..12, [0x81, 0, 0, 7])));
    changed("ip_truncated", false, &|f| f.truncate(ETHERNET + 19));
    changed("ip_bad_version", true, &|f| f[ETHERNET] = 0x65);
    changed("ip_martian_destination", false, &|f| {
        f[ETHERNET + 16] = 127;
        frames::fix_ip_checksum(f);
    });
    changed("ip_not_for_us", false, &|f| {
        f[ETHERNET + 19] = 77;
        frames::fix_ip_checksum(f);
        frames::fix_tcp_checksum(f);
    });
    let (us, them) = ((macs.from, CLIENT), (macs.to, *SERVICE.ip()));
    let arp = frames::arp(macs, 1, us, them);
    all.push(("arp_truncated", false, arp[..41].to_vec()));
    let mut token_ring = arp;
    token_ring[15] = 6;
    all.push(("arp_unsupported", false, token_ring));
    all.push(("arp_bad_operation", true, frames::arp(macs, 9, us, them)));
    all.push(("arp_bad_sender", true, frames::arp(macs, 1, ([0xff; 6], CLIENT), them)));
    all
}

fn transport_malformed(macs: Macs, good: &[u8]) -> Vec<(&'static str, bool, Vec<u8>)> {
    let mut all = Vec::new();
    let mut add = |reason, frame| all.push((reason, true, frame));
    let mut tcp = good.to_vec();
    tcp[L4 + 30] ^= 4;
    add("tcp_bad_checksum", tcp);
    for offset in [0x40, 0xf0] {
        let mut tcp = stranger(macs);
        tcp.payload.truncate(10);
        let mut tcp = tcp.frame();
        tcp[L4 + 12] = offset;
        frames::fix_tcp_checksum(&mut tcp);
        add("tcp_bad_data_offset", tcp);
    }
    add("tcp_not_unicast", [&[0xff; 6], &good[6..]].concat());
    let (from, to) = (SocketAddrV4::new(CLIENT, 5555), SERVICE);
    let udp = frames::udp(macs, from, to, &[1, 2, 3]);
    for length in [7, 12] {
        let mut udp = udp.clone();
        udp[L4 + 5] = length;
        add("udp_bad_length", udp);
    }
    let mut flipped = udp;
    flipped[L4 + 8] ^= 1;
    add("udp_bad_checksum", flipped);
    let raw = |protocol, body: &[u8]| frames::ipv4(macs, CLIENT, *SERVICE.ip(), protocol, body);
    add("udp_truncated", raw(frames::UDP, &[0; 7]));
    add("icmp_truncated", raw(frames::ICMP, &[8, 0, 0]));
    add("ip_unknown_protocol", raw(99, &[0; 40]));
    let mut ping = frames::ping(macs, CLIENT, *SERVICE.ip(), b"hello");
    ping[L4 + 9] ^= 1;
    add("icmp_bad_checksum", ping);
    // A host that sends to itself sends nothing on a wire ("LAND").
    let mut land = stranger(macs);
    (land.from, land.flags) = (SERVICE, SYN);
    add("ip_martian_source", land.frame());
    all
}

fn insert_ip_options(frame: &mut Vec<u8>, options: &[u8]) {
    let at = ETHERNET + 20;
    frame.splice(at..at, options.iter().copied());
    frame[ETHERNET] = 0x40 | (5 + options.len() as u8 / 4);
    let total = (frame.len() - ETHERNET) as u16;
    frame[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&total.to_be_bytes());
}

/// Somebody who knows a connection's four numbers, but not where it is, cannot touch it; neither
/// can anything that a wire does to its real segments.
#[test]
fn a_connection_under_fire_is_untouched() {
    for nic in Nic::ALL {
        let Some(net) = TestNet::new("a_connection_under_fire_is_untouched", nic, 1) else {
            return;
        };
        let service = net.serve(&["100"]);
        let (wire, macs) = (net.wire(), net.macs());
        let sent = net.client.run(|| {
            Steady::during(100, |steady| {
                let mut sent = 0;
                for volley in [flips, truncations, control_bits, garbage, options, icmp_errors] {
                    let now = sniff(&wire, steady.local);
                    let frames = volley(macs, now);
                    sent += frames.len() as u64;
                    for frame in &frames {
                        // The queue of a busy machine may be full: as if the wire had lost it.
                        let _ = wire.send(frame);
                    }
                    steady.goes_on();
                }
                sent
            })
        });
        // Linux resets what garbage has opened.
        let stats = service.finish(Duration::from_secs(30));
        let tcp = [
            "bad_ack",
            "bad_flags",
            "challenge_acks",
            "challenge_acks_limited",
            "icmp_ignored",
            "inexact_rst",
            "out_of_window",
            "timestamp_missing",
        ];
        let tcp = tcp.iter().map(|name| stats.total(&format!("tcp.{name}"))).sum::<u64>();
        let counted = stats.drops() + tcp;
        assert!(counted > sent / 2, "{nic:?}: of {sent} {counted} were counted: {stats}");
    }
}

/// A segment that the service has just sent to a client: says where their connection is.
fn sniff(wire: &PacketSocket, client: SocketAddrV4) -> Seen {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let frame = wire.receive(Duration::from_millis(100)).expect("receive");
        if let Some(seen) = frame.and_then(|f| frames::read_tcp(&f)).filter(|s| s.to == client) {
            return seen;
        }
    }
    panic!("the connection is silent");
}

/// Somewhere else in the sequence space; no single flipped bit leads from there to the window.
const FAR: u32 = 0x5000_0000;

fn far(macs: Macs, now: Seen) -> Segment {
    Segment { seq: now.ack.wrapping_add(FAR), ack: now.seq, from: now.to, ..stranger(macs) }
}

/// Every bit of the headers once, as it came and with good checksums.
fn flips(macs: Macs, now: Seen) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for bit in 0..(L4 + 20) * 8 {
        let mut frame = far(macs, now).frame();
        frame[bit / 8] ^= 1 << (bit % 8);
        all.push(frame.clone());
        if frame[12..14] == [8, 0] && frame[ETHERNET] == 0x45 {
            frames::fix_ip_checksum(&mut frame);
            frames::fix_tcp_checksum(&mut frame);
            all.push(frame);
        }
    }
    all
}

/// Every length once, as it came and with a total length to match.
fn truncations(macs: Macs, now: Seen) -> Vec<Vec<u8>> {
    let whole = far(macs, now).frame();
    let mut all = Vec::new();
    for len in ETHERNET..whole.len() {
        let mut frame = whole[..len].to_vec();
        all.push(frame.clone());
        if len >= L4 {
            frame[ETHERNET + 2..ETHERNET + 4]
                .copy_from_slice(&((len - ETHERNET) as u16).to_be_bytes());
            frames::fix_ip_checksum(&mut frame);
            all.push(frame);
        }
    }
    all
}

/// Every combination of control bits (a "Christmas tree" among them), from far away, without ACK
/// numbers that fit, at the connection, at the listener and at a closed port.
fn control_bits(macs: Macs, now: Seen) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(7);
    let mut all = Vec::new();
    for flags in 0..=255u8 {
        let blind = rng.next_u64() as u32;
        let at_it = Segment { flags, ack: now.seq.wrapping_add(blind), ..far(macs, now) };
        all.push(at_it.frame());
        for port in [SERVICE.port(), 4321] {
            let to = SocketAddrV4::new(*SERVICE.ip(), port);
            all.push(Segment { flags, to, ..stranger(macs) }.frame());
        }
    }
    all.push(Segment { flags: FIN | PSH | URG, ..far(macs, now) }.frame());
    all
}

/// Nothing but noise behind the addresses.
fn garbage(macs: Macs, _: Seen) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(8);
    let noise = |i: u64| {
        let mut frame = stranger(macs).frame();
        let from = [ETHERNET, L4][(i % 2) as usize];
        frame[from..].iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
        frame[ETHERNET + 16..ETHERNET + 20].copy_from_slice(&SERVICE.ip().octets());
        frame
    };
    (0..2000).map(noise).collect()
}

/// Options that end nowhere, repeat, or say nonsense, on SYNs and on the connection.
fn options(macs: Macs, now: Seen) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(9);
    let mut all = Vec::new();
    for i in 0..300u16 {
        let mut options: Vec<u8> =
            (0..4 * (1 + rng.below(10))).map(|_| rng.next_u64() as u8).collect();
        options[0] = [0, 1, 2, 3, 4, 5, 8, 30, 34, 255][usize::from(i) % 10];
        options[1] = [0, 1, 2, 3, 4, 10, 18, 40, 41, 255][usize::from(i / 10) % 10];
        all.push(Segment { options: options.clone(), ..far(macs, now) }.frame());
        let from = SocketAddrV4::new(CLIENT, 6000 + i);
        let payload = Vec::new();
        all.push(Segment { options, from, payload, flags: SYN, ..stranger(macs) }.frame());
    }
    all
}

/// ICMP errors that quote the connection, but nothing that is in flight (RFC 5927 section 4).
fn icmp_errors(macs: Macs, now: Seen) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for code in [0, 1, 2, 3, 4, 13] {
        for offset in [FAR, 0x8000_0000, 0xf000_0000] {
            let macs = Macs { to: macs.from, from: macs.to };
            let quoted = Segment {
                from: SERVICE,
                to: now.to,
                seq: now.seq.wrapping_add(offset),
                ..stranger(macs)
            };
            let mut body = vec![3, code, 0, 0, 0, 0, 0, 68];
            body.extend(&quoted.frame()[ETHERNET..L4 + 8]);
            let sum = frames::checksum(&body);
            body[2..4].copy_from_slice(&sum.to_be_bytes());
            let macs = Macs { to: macs.from, from: macs.to };
            all.push(frames::ipv4(macs, CLIENT, *SERVICE.ip(), frames::ICMP, &body));
        }
    }
    all
}

/// Real segments of the connection, exactly in place, but damaged on the wire.
#[test]
fn damaged_copies_of_real_segments_are_dropped() {
    for nic in Nic::ALL {
        let name = "damaged_copies_of_real_segments_are_dropped";
        let Some(net) = TestNet::new(name, nic, 1) else { return };
        let service = net.serve(&["100"]);
        let (wire, macs) = (net.wire(), net.macs());
        net.client.run(|| {
            Steady::during(100, |steady| {
                for i in 0..500u64 {
                    let now = sniff(&wire, steady.local);
                    let exact = Segment { seq: now.ack, ack: now.seq, ..far(macs, now) };
                    let mut frame = exact.frame();
                    // In the data, so that nothing but the checksum can tell. Two flipped bits of
                    // one weight in one column may cancel out; one cannot.
                    frame[L4 + 20 + i as usize % 64] ^= 1 << (i % 8);
                    wire.send(&frame).expect("send");
                    // A link holds a few hundred packets for a host that is not there for a moment.
                    if i % 50 == 49 {
                        let told = |stats: &Stats| stats.total("drops.tcp_bad_checksum") > i;
                        service.wait_until("it has seen them", PATIENCE, told);
                    }
                }
                steady.goes_on();
            });
        });
        let stats = service.finish(PATIENCE);
        assert_eq!(stats.total("drops.tcp_bad_checksum"), 500, "{nic:?}");
    }
}
