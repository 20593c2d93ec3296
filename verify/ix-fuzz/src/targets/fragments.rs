//! Fragments of both families: anything is read or refused, and whatever is put together of pieces
//! of one packet is that packet.
use crate::bytes::Bytes;
use ix_tcp::fragments::{Fragments, TIMEOUT_V6_US};
use ix_wire::{
    Checksum, Fragment, FrameHeader, IpAddr, Parsed, RxChecks, ethernet, ipv4, ipv6, parse,
    parse_fragment,
};

const ROOM_BYTES: usize = 2000;
const DATA_BYTES: usize = 700;

/// Reads anything, then cuts a packet as the input says.
pub fn run(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let is_v6 = bytes.u8().is_multiple_of(2);
    let link = link(is_v6);
    let garbage_len = usize::from(bytes.u8());
    let garbage = bytes.take(garbage_len);
    anything(&link, garbage);
    let data: [u8; DATA_BYTES] = core::array::from_fn(|at| (at * 7 % 251) as u8);
    let mut datagram = vec![0; 8];
    let (src, dst) = ((link.src, 5), (link.dst, 6));
    ix_wire::udp::emit(&mut datagram, src, dst, DATA_BYTES, Checksum::of(&data));
    datagram.extend_from_slice(&data);
    let mut fragments = Fragments::new(ROOM_BYTES);
    let (mut out, mut now_us) = (0i32, 0);
    while !bytes.is_empty() {
        let from = (usize::from(bytes.u8()) * 8).min(datagram.len() - 1) & !7;
        let to = (from + 8 * (1 + usize::from(bytes.u8() % 96))).min(datagram.len());
        let ident = u32::from(bytes.u8() % 3);
        let frame = piece(&link, &datagram, (from, to), ident);
        let Ok(fragment) = parse_fragment(&frame, frame.len()) else {
            // Both ends in one piece, or a first piece without all headers.
            assert!(from == 0 && (to == datagram.len() || to < 8));
            continue;
        };
        assert_eq!(fragment.payload.of(&frame), &datagram[from..to]);
        out += put(&mut fragments, (&frame, &fragment), now_us, &data);
        now_us += bytes.scaled(26);
        while let Some(expired) = fragments.expire(now_us) {
            out -= i32::from(expired.buf.is_some());
        }
    }
    while let Some(expired) = fragments.expire(now_us + TIMEOUT_V6_US) {
        out -= i32::from(expired.buf.is_some());
    }
    assert_eq!(out, 0, "a buffer is lost");
}

/// Stores a fragment; the number of buffers that are held more than before.
fn put(
    fragments: &mut Fragments<Vec<u8>>,
    (frame, fragment): (&[u8], &Fragment),
    now_us: u64,
    data: &[u8],
) -> i32 {
    let (mut taken, mut freed) = (0, 0);
    let take = || {
        taken += 1;
        Some(vec![0; ROOM_BYTES])
    };
    let placed = fragments.place(fragment, now_us, take, |_| freed += 1);
    let Ok(buf) = placed else { return taken - freed };
    let at = usize::from(fragment.offset);
    let payload = fragment.payload.of(frame);
    buf[at..at + payload.len()].copy_from_slice(payload);
    let whole = fragments.take_whole(fragment, |_| freed += 1);
    if let Ok(Some(whole)) = whole {
        freed += 1;
        assert_eq!(whole.buf[8..whole.len], *data, "another datagram");
        reads_again(frame, fragment, &whole.buf[..whole.len]);
    }
    taken - freed
}

/// The whole packet is read as what it holds.
fn reads_again(frame: &[u8], fragment: &Fragment, payload: &[u8]) {
    let headers_len = usize::from(fragment.ip.header_len);
    let packet = &frame[ethernet::HEADER_BYTES..];
    let mut header = packet[..headers_len].to_vec();
    if fragment.ip.dst.is_v6() {
        header = ipv6::kept_headers(packet, headers_len, payload.len()).expect("headers").to_vec();
        ipv6::make_whole(&mut header, payload.len(), 0);
    } else {
        ipv4::make_whole(&mut header, payload.len(), 0);
    }
    let whole = [&frame[..ethernet::HEADER_BYTES], &header, payload].concat();
    match parse(&whole, RxChecks::default()) {
        Ok(Parsed::Udp(packet)) => assert_eq!(packet.payload.of(&whole), &payload[8..]),
        other => panic!("{other:?}"),
    }
}

fn anything(link: &FrameHeader, body: &[u8]) {
    let mut frame = vec![0; 54];
    let next = if link.dst.is_v6() { ipv6::FRAGMENT } else { ipv4::PROTOCOL_UDP };
    let len = link.emit(&mut frame, next, body.len());
    frame.truncate(len);
    frame.extend_from_slice(body);
    for frame in [&frame[..], body] {
        if let Ok(fragment) = parse_fragment(frame, frame.len()) {
            assert_eq!(fragment.payload.of(frame).len(), usize::from(fragment.payload.len));
            assert!(usize::from(fragment.offset) + fragment.payload.of(frame).len() <= 65_535);
        }
    }
}

fn piece(link: &FrameHeader, whole: &[u8], (from, to): (usize, usize), ident: u32) -> Vec<u8> {
    let link = FrameHeader { ident, ..*link };
    let mut frame = vec![0; 62];
    let (protocol, place) = (ipv4::PROTOCOL_UDP, (from, to < whole.len()));
    let len = match link.dst.is_v6() {
        true => link.emit_fragment_v6(&mut frame, protocol, to - from, place, ident),
        false => link.emit_fragment(&mut frame, protocol, to - from, place),
    };
    frame.truncate(len);
    frame.extend_from_slice(&whole[from..to]);
    frame
}

fn link(is_v6: bool) -> FrameHeader {
    let v6 = |last: u8| IpAddr([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    let at = |last: u8| if is_v6 { v6(last) } else { IpAddr::v4([10, 0, 0, last]) };
    let (eth_src, eth_dst) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    FrameHeader { eth_src, eth_dst, src: at(1), dst: at(2), ttl: 64, tos: 0, ident: 0 }
}
