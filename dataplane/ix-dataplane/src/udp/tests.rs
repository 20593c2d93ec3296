//! Datagrams in virtual time: what routers say of them, and those that are longer than a packet.
use crate::calls::Answer;
use crate::raw::tests::{Host, MAC, OURS, PEER, PEER_MAC, host, link};
use ix_abi::{Call, CallError, Endpoint, Event, FlowOption, IcmpMessage, RxData, SgArray, SgEntry};
use ix_wire::icmp::IcmpHeader;
use ix_wire::{Checksum, FrameHeader, IpAddr, Parsed, RxChecks};

const PORT: u16 = 4000;
const ROUTER: [u8; 4] = [10, 0, 0, 77];

impl Host {
    fn udp_socket(&mut self) -> u32 {
        let at = Endpoint { addr: ix_abi::v4([0; 4]), port: PORT };
        self.threads[0].elastic.run_call(Call::UdpBind { at, cookie: 5 }).expect("a socket") as u32
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
        let to = Endpoint { addr: ix_abi::v4(PEER), port: 9 };
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
    let set = |host: &mut Host, bytes: u16| {
        let option = FlowOption::FragmentBytes(bytes);
        host.threads[0].elastic.run_call(Call::UdpSetOpt { socket, option })
    };
    for (mtu, len) in
        [(0xffff, 0), (0xffff, 1472), (0xffff, 1473), (0xffff, 20_000), (1000, 973), (69, 500)]
    {
        assert_eq!(set(&mut host, mtu), Ok(0));
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
    assert_eq!(set(&mut host, 0), Ok(0));
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
