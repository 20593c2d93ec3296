//! What leaves of Multicast Listener Discovery, octet by octet, in virtual time.
use crate::config::Config;
use crate::raw::tests::{Host, MAC, PEER_MAC, host_of};
use ix_wire::{Checksum, IpAddr};

const OURS: IpAddr = IpAddr([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xab, 0xcd, 2]);
/// The solicited-node group of `OURS` (RFC 4291 section 2.7.1).
const GROUP: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xab, 0xcd, 2];
const ROUTER: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
const ALL_NODES: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const ROUTER_ALERT: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];

fn host() -> Host {
    host_of(1, Config::with_address(OURS, 64))
}

/// A query after RFC 3810 section 5.1: what follows the IPv6 header, without options.
fn query(rest: &[u8]) -> Vec<u8> {
    let message = [&[130, 0, 0, 0, 0x27, 0x10, 0, 0][..], rest].concat();
    frame(&ROUTER_ALERT, &message)
}

fn frame(options: &[u8], message: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x33, 0x33, 0, 0, 0, 1];
    frame.extend(PEER_MAC);
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend(((options.len() + message.len()) as u16).to_be_bytes());
    frame.extend([if options.is_empty() { 58 } else { 0 }, 1]);
    frame.extend([ROUTER, ALL_NODES].concat());
    frame.extend(options);
    let at = frame.len();
    frame.extend(message);
    let mut sum = Checksum::pseudo_header(IpAddr(ROUTER), IpAddr(ALL_NODES), 58, message.len());
    sum.add_bytes(message);
    frame[at + 2..at + 4].copy_from_slice(&sum.finish().to_be_bytes());
    frame
}

/// A message of ours: to which group, and its octets, with what all of them have checked.
fn message(frame: &[u8]) -> ([u8; 16], Vec<u8>) {
    let dst: [u8; 16] = frame[38..54].try_into().expect("sixteen octets");
    assert_eq!(frame[..6], [0x33, 0x33, dst[12], dst[13], dst[14], dst[15]]);
    assert_eq!((&frame[6..12], &frame[12..14]), (&MAC[..], &[0x86, 0xdd][..]));
    assert_eq!((frame[20], frame[21]), (0, 1), "hop-by-hop options, one hop");
    assert_eq!(frame[22..38], [0; 16], "no link-local address");
    assert_eq!(frame[54..62], ROUTER_ALERT);
    assert_eq!(usize::from(u16::from_be_bytes([frame[18], frame[19]])), frame.len() - 54);
    let message = &frame[62..];
    let mut sum = Checksum::pseudo_header(IpAddr([0; 16]), IpAddr(dst), 58, message.len());
    sum.add_bytes(message);
    assert!(sum.is_valid());
    (dst, message.to_vec())
}

/// RFC 3810 sections 5.2 and 6: twice when the address begins, then when somebody asks.
#[test]
fn groups_are_reported() {
    let mut host = host();
    let report = |kind: u8| {
        let mut all = vec![143, 0, 0, 0, 0, 0, 0, 1, kind, 0, 0, 0];
        all.extend(GROUP);
        all
    };
    let to_routers = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x16];
    let is = |frame: &[u8], kind: u8| {
        let (dst, mut message) = message(frame);
        message[2..4].fill(0);
        assert_eq!((dst, message), (to_routers, report(kind)));
    };
    let sent = host.waits(2_000_000);
    assert_eq!(sent.len(), 2);
    sent.iter().for_each(|frame| is(frame, 4));
    assert_eq!(host.waits(100_000_000).len(), 0);
    // For all, for our group, for some of its sources.
    let one_source = [&GROUP[..], &[0, 0, 0, 1], &ROUTER].concat();
    for asked in [[&[0; 20][..]].concat(), [&GROUP[..], &[0; 4]].concat(), one_source] {
        host.hears(&query(&asked));
        let sent = host.waits(10_000_000);
        assert_eq!(sent.len(), 1);
        is(&sent[0], 2);
    }
    let mut other = GROUP;
    other[15] = 3;
    host.hears(&query(&[&other[..], &[0; 4]].concat()));
    assert_eq!(host.waits(10_000_000).len(), 0, "not our group");
    // RFC 2710.
    host.hears(&query(&[0; 16]));
    let sent = host.waits(10_000_000);
    let (dst, message) = message(&sent[0]);
    assert_eq!((sent.len(), dst, message[0], &message[8..]), (1, GROUP, 131, &GROUP[..]));
}

/// Sections 5.1 and 6.2.
#[test]
fn false_questions_are_counted() {
    let mut host = host();
    host.waits(2_000_000);
    let good = query(&[0; 20]);
    let with = |at: usize, octet: u8| {
        let mut frame = good.clone();
        frame[at] = octet;
        frame
    };
    let plain = [&[130, 0, 0, 0, 0, 0, 0, 0][..], &[0; 20]].concat();
    let mut from_afar = query(&[0; 20]);
    from_afar[22] = 0x20;
    // The sum of the addresses is the same.
    from_afar[24] = 0xde;
    let wrong = [
        with(21, 2),
        with(56, 1),
        from_afar,
        frame(&[], &plain),
        query(&[0; 15]),
        query(&[0; 19]),
        query(&[&[0; 19][..], &[1]].concat()),
        query(&[&ROUTER[..], &[0; 4]].concat()),
    ];
    for (index, frame) in wrong.iter().enumerate() {
        host.hears(frame);
        assert_eq!(host.drops("mld_invalid"), index as u64 + 1, "{index}");
    }
    assert_eq!(host.waits(20_000_000).len(), 0);
    host.hears(&good);
    assert_eq!(host.waits(20_000_000).len(), 1);
}
