//! Datagrams in virtual time: what routers say of them, and those that are longer than a packet.
use crate::calls::Answer;
use crate::config::Config;
use crate::raw::tests::{Host, MAC, OURS, PEER, PEER_MAC, host, host_of, link};
use ix_abi::{Call, CallError, Endpoint, Event, FlowOption, IcmpMessage, RxData, SgArray, SgEntry};
use ix_wire::icmp::IcmpHeader;
use ix_wire::{Checksum, FrameHeader, IpAddr, NdKind, NdPacket, Parsed, RxChecks};

const PORT: u16 = 4000;
const ROUTER: [u8; 4] = [10, 0, 0, 77];
const OURS_V6: IpAddr = IpAddr([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
const PEER_V6: IpAddr = IpAddr([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);

impl Host {
    fn udp_socket(&mut self) -> u32 {
        let at = Endpoint { addr: [0; 16], port: PORT };
        self.threads[0].elastic.run_call(Call::UdpBind { at, cookie: 5 }).expect("a socket") as u32
    }

    /// The peer, of the host's own family.
    fn peer(&self) -> Endpoint {
        let (own, _) = self.threads[0].elastic.shared.config.host_addrs[0];
        let peer = if own.is_v6() { PEER_V6 } else { IpAddr::v4(PEER) };
        Endpoint { addr: peer.0, port: 9 }
    }

    fn fragment_bytes(&mut self, socket: u32, bytes: u16) {
        let option = FlowOption::FragmentBytes(bytes);
        let call = Call::UdpSetOpt { socket, option };
        assert_eq!(self.threads[0].elastic.run_call(call), Ok(0));
    }

    /// Sends bytes in three pieces; the frames that leave.
    fn sends(&mut self, socket: u32, bytes: &[u8]) -> (Answer, Vec<Vec<u8>>) {
        let (array, data) = (self.arena, self.arena + 4096);
        let cuts = [0, bytes.len().min(3), bytes.len() * 2 / 3, bytes.len()];
        let piece = |n: usize| SgEntry {
            base: data + cuts[n] as u64,
            len: cuts[n + 1].saturating_sub(cuts[n]) as u64,
        };
        // SAFETY: transmit memory, which is this test's as it would be the application's.
        unsafe {
            (array as *mut [SgEntry; 3]).write([piece(0), piece(1), piece(2)]);
            (data as *mut u8).copy_from(bytes.as_ptr(), bytes.len());
        }
        let to = self.peer();
        let sg = SgArray { addr: array, entries: 3 };
        let sent = self.threads[0].elastic.run_call(Call::UdpSendV { socket, to, sg, cookie: 77 });
        self.cycle(0);
        (sent, self.device.take_sent().into_iter().map(|(_, frame)| frame).collect())
    }
}

/// What a router says of a datagram of ours.
fn complaint(kind: u8, code: u8, rest: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let ours = FrameHeader { src: IpAddr::v4(OURS), dst: IpAddr::v4(PEER), ..link(PEER_MAC) };
    let mut quoted = vec![0; 42];
    ours.emit_udp(&mut quoted, PORT, 9, payload.len(), Checksum::of(payload));
    let quote = [&quoted[14..], payload].concat();
    let mut frame = vec![0; 42];
    let header = FrameHeader { src: IpAddr::v4(ROUTER), ..link(MAC) };
    let message = IcmpHeader { kind, code, rest };
    header.emit_icmp(&mut frame, &message, quote.len(), Checksum::of(&quote));
    [frame, quote].concat()
}

/// RFC 1122 section 4.1.3.3, with all that is known; the buffers are lent, and no more of them than
/// there are for the application.
#[test]
fn what_routers_say_is_handed_on() {
    let mut host = host(1, "");
    host.udp_socket();
    for (kind, code, rest, why, detail) in [
        (3, 3, [0; 4], CallError::Refused, 0),
        (3, 4, [0, 0, 5, 120], CallError::TooLong, 1400),
        (3, 13, [9; 4], CallError::Unreachable, 0),
        (12, 0, [7, 0, 0, 0], CallError::Unreachable, 7),
    ] {
        let [event] = host.hears(&complaint(kind, code, rest, b"question"))[..] else {
            panic!("one event")
        };
        let quoted = quoted(&event);
        let peer = Endpoint { addr: ix_abi::v4(PEER), port: 9 };
        let icmp = IcmpMessage { kind, code, detail, by: ix_abi::v4(ROUTER) };
        assert_eq!(event, Event::UdpError { cookie: 5, peer, why, icmp, quoted });
        assert_eq!(bytes_of(quoted), b"question");
        let thread = &mut host.threads[0].elastic;
        assert_eq!(thread.run_call(Call::UdpRecvDone { data: quoted.addr }), Ok(0));
        assert_eq!(
            thread.run_call(Call::UdpRecvDone { data: quoted.addr }),
            Err(CallError::BadHandle)
        );
    }
    // Eight bytes behind the IP header are all that need be quoted.
    let short = host.hears(&complaint(3, 3, [0; 4], b""));
    assert_eq!((short.len(), quoted(&short[0])), (1, RxData::default()));
    let most = host.threads[0].elastic.io.cx.lent_max();
    let said: Vec<Event> =
        (0..most + 5).flat_map(|_| host.hears(&complaint(3, 3, [0; 4], b"x"))).collect();
    let said: Vec<RxData> = said.iter().map(quoted).collect();
    assert_eq!(said.len(), most + 5, "each is told");
    assert_eq!(said.iter().filter(|quoted| quoted.len == 1).count(), most, "not all with bytes");
    for quoted in said.iter().filter(|quoted| quoted.len == 1) {
        assert_eq!(
            host.threads[0].elastic.run_call(Call::UdpRecvDone { data: quoted.addr }),
            Ok(0)
        );
    }
    assert_eq!(
        quoted(&host.hears(&complaint(3, 3, [0; 4], b"y"))[0]).len,
        1,
        "the buffers came back"
    );
    // Of nobody's datagram nothing is said.
    let mut other = complaint(3, 3, [0; 4], b"x");
    other[14 + 20 + 8 + 20 + 1] ^= 1;
    let icmp = other[34..].to_vec();
    let sum = |bytes: &[u8]| Checksum::of(bytes).finish().to_be_bytes();
    let mut fresh = icmp;
    fresh[2..4].fill(0);
    let check = sum(&fresh);
    fresh[2..4].copy_from_slice(&check);
    other[34..].copy_from_slice(&fresh);
    assert!(host.hears(&other).is_empty());
}

/// What an ICMP message quoted of a datagram.
fn quoted(event: &Event) -> RxData {
    match event {
        Event::UdpError { quoted, .. } => *quoted,
        _ => panic!("not about a datagram: {event:?}"),
    }
}

fn bytes_of(data: RxData) -> &'static [u8] {
    // SAFETY: received memory, which is the test's until it gives it back; it does so afterwards.
    unsafe { core::slice::from_raw_parts(data.addr as *const u8, data.len as usize) }
}

/// RFC 791 section 3.2: fragments that another host puts together to what was sent, by its own
/// checksum.
#[test]
fn long_datagrams_are_cut_where_that_is_asked_for() {
    let mut host = host(1, "");
    let socket = host.udp_socket();
    // The next hop is known.
    host.hears(&arp_reply());
    let bytes: Vec<u8> = (0..20_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
    assert_eq!(host.sends(socket, &bytes[..1473]).0, Err(CallError::TooLong));
    for (mtu, len) in
        [(0xffff, 0), (0xffff, 1472), (0xffff, 1473), (0xffff, 20_000), (1000, 973), (69, 500)]
    {
        host.fragment_bytes(socket, mtu);
        let (sent, frames) = host.sends(socket, &bytes[..len]);
        assert_eq!(sent, Ok(len as u64));
        let longest = frames.iter().map(Vec::len).max().unwrap_or_default();
        assert!(longest <= 14 + mtu.min(1500) as usize, "{longest} of {mtu}");
        assert_eq!(put_together(&frames), bytes[..len], "{mtu} {len}");
    }
    // Nothing is left behind by what cannot be sent.
    let free = host.threads[0].elastic.io.cx.tx_pool.free();
    let (sent, frames) = host.sends(socket, &vec![0; 66_000]);
    assert_eq!((sent, frames.len()), (Err(CallError::TooLong), 0));
    let (sent, frames) = host.sends(socket, &vec![0; 60_000]);
    assert_eq!((sent, frames.len()), (Err(CallError::NoResource), 0), "more frames than there are");
    assert_eq!(host.threads[0].elastic.io.cx.tx_pool.free(), free);
    host.fragment_bytes(socket, 0);
    assert_eq!(host.sends(socket, &bytes[..1473]).0, Err(CallError::TooLong));
}

fn arp_reply() -> Vec<u8> {
    let mut frame = [&MAC[..], &PEER_MAC, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]].concat();
    frame.extend([&PEER_MAC[..], &PEER, &MAC, &OURS].concat());
    frame.resize(60, 0);
    frame
}

/// The payload of a datagram that came in these frames, as a naive host reads it.
fn put_together(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (index, frame) in frames.iter().enumerate() {
        let total = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
        let word = u16::from_be_bytes([frame[20], frame[21]]);
        assert_eq!(word & 0x4000, 0, "no DF");
        assert_eq!(usize::from(word & 0x1fff) * 8, payload.len(), "in order, without gaps");
        assert_eq!(word & 0x2000 != 0, index + 1 < frames.len(), "more follow");
        assert_eq!(frame[18..20], frames[0][18..20], "one identification");
        assert!(Checksum::of(&frame[14..34]).is_valid());
        payload.extend_from_slice(&frame[34..14 + total]);
    }
    let whole = link_of(&frames[0], payload);
    match ix_wire::parse(&whole, RxChecks::default()) {
        Ok(Parsed::Udp(packet)) => packet.payload.of(&whole).to_vec(),
        other => panic!("{other:?}"),
    }
}

/// One frame of a whole datagram, its header that of the first fragment.
fn link_of(first: &[u8], payload: Vec<u8>) -> Vec<u8> {
    let mut head = first[..34].to_vec();
    ix_wire::ipv4::make_whole(&mut head[14..34], payload.len(), 0);
    [head, payload].concat()
}

/// A host of IPv6 that knows its peer.
fn host_v6() -> Host {
    let mut config = Config::with_address(OURS_V6, 64);
    config.arp = vec![(PEER_V6, PEER_MAC)];
    let mut host = host_of(1, config);
    // Reports of its groups.
    assert_eq!(host.waits(2_000_000).len(), 2);
    host
}

fn link_v6() -> FrameHeader {
    FrameHeader { src: PEER_V6, dst: OURS_V6, ..link(MAC) }
}

/// RFC 8200 section 4.5, read by hand: every header of every frame.
#[test]
fn long_datagrams_over_ipv6_are_cut() {
    let mut host = host_v6();
    let socket = host.udp_socket();
    let bytes: Vec<u8> = (0..20_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
    assert_eq!(host.sends(socket, &bytes[..1453]).0, Err(CallError::TooLong));
    let mut idents = Vec::new();
    for (mtu, longest, len) in [
        (0xffff, 1500, 0),
        (0xffff, 1500, 1452),
        (0xffff, 1500, 1453),
        (0xffff, 1500, 20_000),
        (1400, 1400, 1353),
        // No link has less than 1280.
        (68, 1280, 1232),
        (68, 1280, 9000),
    ] {
        host.fragment_bytes(socket, mtu);
        let (sent, frames) = host.sends(socket, &bytes[..len]);
        assert_eq!(sent, Ok(len as u64));
        let mut whole = Vec::new();
        for (index, frame) in frames.iter().enumerate() {
            assert!(frame.len() <= 14 + longest);
            let payload_len = usize::from(u16::from_be_bytes([frame[18], frame[19]]));
            assert_eq!((frame.len(), frame[14] >> 4), (54 + payload_len, 6));
            if frames.len() == 1 {
                assert_eq!(frame[20], 17, "no fragment header (RFC 8021)");
                whole.extend_from_slice(&frame[54..]);
                continue;
            }
            assert_eq!((frame[20], frame[54], frame[55]), (44, 17, 0));
            let word = u16::from_be_bytes([frame[56], frame[57]]);
            assert_eq!(usize::from(word & !7), whole.len(), "in order, without gaps");
            assert_eq!((word & 1 == 1, word & 6), (index + 1 < frames.len(), 0));
            assert_eq!(frame[58..62], frames[0][58..62], "one identification");
            whole.extend_from_slice(&frame[62..]);
        }
        if frames.len() > 1 {
            idents.push(frames[0][58..62].to_vec());
        }
        let mut sum = Checksum::pseudo_header(OURS_V6, PEER_V6, 17, whole.len());
        sum.add_bytes(&whole);
        assert!(sum.is_valid() && whole[8..] == bytes[..len], "{mtu} {len}");
    }
    assert!(idents.windows(2).all(|two| two[0] != two[1]), "{idents:?}");
    let (sent, _) = host.sends(socket, &vec![0; 65_528]);
    assert_eq!(sent, Err(CallError::TooLong));
}

/// Fragments of a packet whose payload begins with `next`, from the peer: pieces of `bytes`.
fn fragments_v6(next: u8, bytes: &[u8], pieces: &[(usize, usize)]) -> Vec<Vec<u8>> {
    let fragment = |&(from, to): &(usize, usize)| {
        let mut frame = vec![0; 62];
        let place = (from, to < bytes.len());
        link_v6().emit_fragment_v6(&mut frame, next, to - from, place, 0x1234_5678);
        [&frame, &bytes[from..to]].concat()
    };
    pieces.iter().map(fragment).collect()
}

/// A datagram from the peer to the socket, without its IP header.
fn datagram_v6(bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 62];
    link_v6().emit_udp(&mut frame, 9, PORT, bytes.len(), Checksum::of(bytes));
    [&frame[54..], bytes].concat()
}

#[test]
fn fragments_over_ipv6_are_put_together() {
    let mut host = host_v6();
    host.udp_socket();
    let bytes: Vec<u8> = (0..1900u32).map(|n| ((n * 3) >> 1) as u8).collect();
    let datagram = datagram_v6(&bytes);
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let all = fragments_v6(17, &datagram, &[(0, 800), (800, 1600), (1600, 1908)]);
        let events: Vec<Event> = order.iter().flat_map(|n| host.hears(&all[*n])).collect();
        let [Event::UdpRecv { data, peer, .. }] = events[..] else { panic!("{events:?}") };
        assert_eq!((bytes_of(data), peer.addr), (&bytes[..], PEER_V6.0));
        host.threads[0].elastic.run_call(Call::UdpRecvDone { data: data.addr }).expect("ours");
    }
    // RFC 5722: of one that overlaps nothing is left, whatever else comes.
    let free = host.threads[0].elastic.io.cx.rx_pool.free();
    let overlap = fragments_v6(17, &datagram, &[(0, 800), (792, 1600), (800, 1600), (1600, 1908)]);
    assert!(overlap.iter().flat_map(|frame| host.hears(frame)).next().is_none());
    assert_eq!(host.drops("ip6_fragment"), 3);
    // RFC 8200 section 4.5: after a minute the sender is told, and not before.
    assert_eq!(host.waits(61_000_000), Vec::<Vec<u8>>::new(), "not of what was refused");
    let first = fragments_v6(17, &datagram, &[(0, 800)]).remove(0);
    host.hears(&first);
    assert_eq!(host.waits(59_000_000), Vec::<Vec<u8>>::new());
    let told = host.waits(2_000_000);
    let [error] = &told[..] else { panic!("{} frames", told.len()) };
    assert_eq!((error[20], &error[54..56]), (58, &[3, 1][..]));
    assert_eq!(error[62..], first[14..], "the fragment as it came");
    assert_eq!(host.threads[0].elastic.io.cx.rx_pool.free(), free);
}

/// As long as IPv4 can have it: in several buffers, of which each has an event, and whose checksum
/// is verified.
#[test]
fn the_longest_datagrams_come_in_several_pieces() {
    let mut host = host_v6();
    host.udp_socket();
    let free = host.threads[0].elastic.io.cx.rx_pool.free();
    let bytes: Vec<u8> = (0..65_507u32).map(|n| ((n * 7) >> 3) as u8).collect();
    let datagram = datagram_v6(&bytes);
    let each = 1448;
    let pieces: Vec<_> = (0..datagram.len().div_ceil(each))
        .map(|n| (n * each, ((n + 1) * each).min(datagram.len())))
        .collect();
    let mut all = fragments_v6(17, &datagram, &pieces);
    for _ in 0..2 {
        all.reverse();
        let events: Vec<Event> = all.iter().flat_map(|frame| host.hears(frame)).collect();
        let mut whole = Vec::new();
        for (number, event) in events.iter().enumerate() {
            let Event::UdpRecv { data, notes, peer, .. } = event else { panic!("{event:?}") };
            let left = events.len() - number - 1;
            assert_eq!((peer.addr, usize::from(notes.follows())), (PEER_V6.0, left));
            whole.extend_from_slice(bytes_of(*data));
        }
        assert!(whole == bytes && events.len() > 30, "{} pieces", events.len());
        for event in events {
            let Event::UdpRecv { data, .. } = event else { continue };
            let done = Call::UdpRecvDone { data: data.addr };
            host.threads[0].elastic.run_call(done).expect("ours");
        }
    }
    assert_eq!(host.threads[0].elastic.io.cx.rx_pool.free(), free);
    let last = all.last_mut().expect("a fragment");
    *last.last_mut().expect("an octet") ^= 1;
    assert!(all.iter().flat_map(|frame| host.hears(frame)).next().is_none());
    assert_eq!(host.drops("udp_bad_checksum"), 1);
    // Longer than any datagram may be: with what it has refused nothing stays behind.
    let end = fragments_v6(17, &[0; 70_000], &[(64_800, 65_528)]).remove(0);
    assert!(host.hears(&end).is_empty());
    assert_eq!(host.drops("ip6_fragment"), 1);
    assert_eq!(host.threads[0].elastic.io.cx.rx_pool.free(), free);
}

/// RFC 6980 section 5: not of a packet that came in fragments.
#[test]
fn neighbour_discovery_in_fragments_is_not_heard() {
    let mut host = host_v6();
    let packet = NdPacket {
        kind: NdKind::Solicitation,
        src: PEER_V6,
        dst: OURS_V6,
        eth_src: PEER_MAC,
        target: OURS_V6,
        link: Some(PEER_MAC),
    };
    let mut frame = vec![0; ix_wire::nd::FRAME_BYTES_MAX];
    let len = packet.emit_frame(&mut frame, MAC);
    host.hears(&frame[..len]);
    assert_eq!(host.waits(0).len(), 1, "answered");
    let mut pieces = fragments_v6(58, &frame[54..len], &[(0, 16), (16, len - 54)]);
    pieces.iter_mut().for_each(|frame| frame[21] = 255);
    for piece in &pieces {
        host.hears(piece);
    }
    assert_eq!((host.waits(0).len(), host.drops("nd_invalid")), (0, 1));
}
