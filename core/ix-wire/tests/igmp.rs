//! The Internet Group Management Protocol, octet by octet.
use ix_wire::igmp::{
    ALL_HOSTS, ALL_IGMP_ROUTERS, ALL_ROUTERS, FRAME_BYTES_MAX, LEAVE_V2, PROTOCOL, REPORT,
    REPORT_V1, REPORT_V2, emit_older, emit_report, read_query,
};
use ix_wire::membership::{Query, Record, RecordKind, group_mac};
use ix_wire::{Checksum, DropReason, IpAddr, MacAddr, parse_ip};

const IP_BYTES: usize = 24;
const ROUTER_ALERT: [u8; 4] = [0x94, 4, 0, 0];

const OURS: IpAddr = IpAddr::v4([10, 0, 0, 2]);
const MAC: MacAddr = [2, 0, 0, 0, 0, 1];
const GROUP: IpAddr = IpAddr::v4([239, 129, 2, 3]);
const SOURCES: [IpAddr; 2] = [IpAddr::v4([10, 0, 0, 8]), IpAddr::v4([10, 0, 0, 9])];

/// A message from a router, with the option, one hop and right checksums.
fn message(dst: IpAddr, message: &[u8]) -> Vec<u8> {
    let mut frame = group_mac(dst).to_vec();
    frame.extend(MAC);
    frame.extend([8, 0, 0x46, 0xc0]);
    frame.extend(((IP_BYTES + message.len()) as u16).to_be_bytes());
    frame.extend([0, 0, 0, 0, 1, PROTOCOL, 0, 0, 10, 0, 0, 1]);
    frame.extend(&dst.0[12..]);
    frame.extend(ROUTER_ALERT);
    frame.extend(message);
    for (from, to, at) in [(14, 14 + IP_BYTES, 10), (14 + IP_BYTES, frame.len(), 2)] {
        let check = Checksum::of(&frame[from..to]).finish();
        frame[from + at..from + at + 2].copy_from_slice(&check.to_be_bytes());
    }
    frame
}

/// RFC 3376 section 7.1: the lengths and the code tell the versions apart.
#[test]
fn questions_of_each_version() {
    let to_all = |bytes: &[u8]| read_query(&message(ALL_HOSTS, bytes));
    let query =
        |group, tenths: u64, older| Some(Ok(Query { group, within_us: tenths * 100_000, older }));
    assert_eq!(to_all(&[0x11, 0, 0, 0, 0, 0, 0, 0]), query(None, 100, 1));
    assert_eq!(to_all(&[0x11, 25, 0, 0, 0, 0, 0, 0]), query(None, 25, 2));
    assert_eq!(to_all(&[0x11, 25, 0, 0, 0, 0, 0, 0, 2, 60, 0, 0]), query(None, 25, 0));
    // Section 4.1.1: 0x8f is (15 | 16) << 3, 0xff the longest.
    for (code, tenths) in [(0x8f, 248), (0xff, 31_744)] {
        let long = [0x11, code, 0, 0, 0, 0, 0, 0, 2, 60, 0, 0];
        assert_eq!(to_all(&long), query(None, tenths, 0));
    }
    let of_group = [0x11, 10, 0, 0, 239, 129, 2, 3, 2, 60, 0, 1, 10, 0, 0, 8];
    assert_eq!(read_query(&message(GROUP, &of_group)), query(Some(GROUP), 10, 0));
}

#[test]
fn wrong_questions_are_refused_and_other_messages_are_none() {
    let general = [0x11, 25, 0, 0, 0, 0, 0, 0, 2, 60, 0, 0];
    let good = message(ALL_HOSTS, &general);
    let mut from_afar = good.clone();
    from_afar[14 + 8] = 2;
    from_afar[14 + 10..14 + 12].fill(0);
    let check = Checksum::of(&from_afar[14..14 + IP_BYTES]).finish();
    from_afar[14 + 10..14 + 12].copy_from_slice(&check.to_be_bytes());
    assert_eq!(read_query(&from_afar), Some(Err(DropReason::IgmpInvalid)));
    for (dst, bytes) in [
        (ALL_HOSTS, &general[..11]),
        (ALL_HOSTS, &[0x11, 25, 0, 0, 0, 0, 0, 0, 2, 60, 0, 1][..]),
        (ALL_HOSTS, &[0x11, 25, 0, 0, 10, 0, 0, 1][..]),
        (GROUP, &general[..]),
    ] {
        assert_eq!(read_query(&message(dst, bytes)), Some(Err(DropReason::IgmpInvalid)));
    }
    let mut changed = good.clone();
    *changed.last_mut().expect("bytes") ^= 1;
    assert_eq!(read_query(&changed), Some(Err(DropReason::IgmpInvalid)), "its checksum");
    for kind in [REPORT_V1, REPORT_V2, REPORT] {
        assert_eq!(read_query(&message(GROUP, &[kind, 0, 0, 0, 0, 0, 0, 0])), None);
    }
    for len in 0..good.len() {
        let _ = read_query(&good[..len]);
    }
}

/// Section 4.2, octet by octet.
#[test]
fn reports_are_as_the_rfc_has_them() {
    let mut frame = [0; FRAME_BYTES_MAX];
    let records = [
        Record { kind: RecordKind::Joined, group: GROUP, sources: &[] },
        Record { kind: RecordKind::Allows, group: GROUP, sources: &SOURCES },
    ];
    let (len, count) = emit_report(&mut frame, MAC, OURS, &records);
    let frame = &frame[..len];
    assert_eq!((count, len), (2, 14 + 24 + 8 + 8 + 16));
    assert_eq!(frame[..12], [1, 0, 0x5e, 0, 0, 22, 2, 0, 0, 0, 0, 1]);
    let (ip, protocol) = parse_ip(frame).expect("a packet");
    assert_eq!((ip.src, ip.dst, ip.ttl, ip.tos), (OURS, ALL_IGMP_ROUTERS, 1, 0xc0));
    assert_eq!((protocol, &frame[34..38]), (PROTOCOL, &ROUTER_ALERT[..]));
    let message = &frame[38..];
    assert!(Checksum::of(message).is_valid());
    assert_eq!((message[0], &message[4..8]), (0x22, &[0, 0, 0, 2][..]));
    assert_eq!(message[8..16], [4, 0, 0, 0, 239, 129, 2, 3]);
    assert_eq!(message[16..24], [5, 0, 0, 2, 239, 129, 2, 3]);
    assert_eq!(message[24..], [10, 0, 0, 8, 10, 0, 0, 9]);
}

#[test]
fn earlier_versions_speak_to_the_group() {
    let record = |kind| Record { kind, group: GROUP, sources: &[] };
    for (kind, version, expected) in [
        (RecordKind::Joined, 1, Some((REPORT_V1, GROUP))),
        (RecordKind::Listens, 2, Some((REPORT_V2, GROUP))),
        (RecordKind::Left, 2, Some((LEAVE_V2, ALL_ROUTERS))),
        (RecordKind::Left, 1, None),
        (RecordKind::Blocks, 2, None),
    ] {
        let mut frame = [0; FRAME_BYTES_MAX];
        let len = emit_older(&mut frame, MAC, OURS, &record(kind), version);
        let sent = len.map(|len| {
            let (ip, _) = parse_ip(&frame[..len]).expect("a packet");
            assert_eq!(frame[..6], group_mac(ip.dst));
            assert_eq!(frame[42..46], [239, 129, 2, 3]);
            assert!(Checksum::of(&frame[38..len]).is_valid());
            (frame[38], ip.dst)
        });
        assert_eq!(sent, expected, "{kind:?} {version}");
    }
}

/// What does not fit into a message goes into the next one.
#[test]
fn a_report_takes_as_many_records_as_fit() {
    let sources = [SOURCES[0]; 64];
    let records = [Record { kind: RecordKind::Joined, group: GROUP, sources: &sources }; 6];
    let mut frame = [0; FRAME_BYTES_MAX];
    let (len, count) = emit_report(&mut frame, MAC, OURS, &records);
    assert_eq!((len, count), (14 + 24 + 8 + 4 * 264, 4));
}
