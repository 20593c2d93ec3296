//! Scatter-gather arrays that reach beyond transmit memory: what stands before is taken and said,
//! so that the dataplane never keeps pieces that the connection does not count.
use crate::peer::{OURS, PEER, PEER_MAC, listen, segment, segment_with};
use ix_abi::{Call, CallError, Event, SG_MAX, SentNews, SgArray};
use ix_dataplane::Config;
use ix_mem::Sizes;
use ix_rig::{BareRig, RigOptions, SimDevice, SimOptions, VirtualClock};
use ix_wire::{Parsed, RxChecks, Seq, TcpFlags};

/// Bytes of an entry of the array.
const ENTRY: u64 = 16;

/// A connection that was accepted.
fn accepted() -> (SimDevice, BareRig, u64) {
    let clock = VirtualClock::default();
    let device = SimDevice::new(SimOptions::default(), &clock);
    let mac = device.options().mac;
    let config = Config { arp: vec![(PEER, PEER_MAC)], ..Config::with_address(OURS, 24) };
    let sizes = Some(Sizes { rx_frames: 64, tx_frames: 64, arena_bytes: 2 << 20 });
    let mut rig = BareRig::new(RigOptions { config, sizes, clock }, device.nics());
    let (codes, _) = rig.run(0, &[listen()], 0);
    assert!(codes[0] > 0);
    device.take_sent();
    device.deliver(segment(mac, 1000, TcpFlags::SYN, Seq(1), Seq(0)));
    rig.run(0, &[], 0);
    rig.run(0, &[], 0);
    let reply = device.next_sent().expect("a SYN-ACK");
    let Ok(Parsed::Tcp(reply)) = ix_wire::parse(&reply, RxChecks::default()) else {
        panic!("no segment")
    };
    device.deliver(segment(mac, 1000, TcpFlags::ACK, Seq(2), reply.header.seq + 1));
    let (_, events) = rig.run(0, &[], 0);
    let handle = events.first().expect("a knock").handle;
    rig.run(0, &[Call::Accept { handle, cookie: 7 }.encode()], 0);
    (device, rig, handle)
}

#[test]
fn an_array_over_the_end_of_transmit_memory_sends_what_stands_before() {
    let (device, mut rig, handle) = accepted();
    device.take_sent();
    // All entries but the last lie in transmit memory, at its very end; each names one byte apart.
    let (base, bytes) = rig.transmit_memory();
    let within = SG_MAX as u64 - 1;
    let array = base + bytes - within * ENTRY;
    for entry in 0..within {
        rig.write(array + entry * ENTRY, &[base + 2 * entry, 1]);
    }
    let sg = SgArray { addr: array, entries: SG_MAX as u64 };
    let (codes, _) =
        rig.run(0, &[Call::SendV { handle, sg, fin: false, eor: false, done: 0 }.encode()], 0);
    assert_eq!(codes, [within as i64]);
    // Nothing stands before: a fault, and nothing is kept.
    let beyond = SgArray { addr: base + bytes, entries: 1 };
    let (codes, _) = rig.run(
        0,
        &[Call::SendV { handle, sg: beyond, fin: false, eor: false, done: 0 }.encode()],
        0,
    );
    assert_eq!(codes, [CallError::encode(Err(CallError::Fault))]);
}

/// The control bits of what was sent.
fn flags(device: &SimDevice) -> Vec<TcpFlags> {
    let parsed = std::iter::from_fn(|| device.next_sent()).map(|frame| {
        match ix_wire::parse(&frame, RxChecks::default()) {
            Ok(Parsed::Tcp(segment)) => segment.header.flags,
            other => panic!("{other:?}"),
        }
    });
    parsed.collect()
}

/// FIN follows the last byte in the same segment, but only if all bytes were taken.
#[test]
fn fin_goes_with_the_last_byte_if_all_are_taken() {
    let (device, mut rig, handle) = accepted();
    device.take_sent();
    let (base, bytes) = rig.transmit_memory();
    let send = |entries| {
        let sg = SgArray { addr: base, entries };
        Call::SendV { handle, sg, fin: true, eor: false, done: 0 }.encode()
    };
    // A bad entry behind a good one.
    rig.write(base, &[base + 64, 10]);
    rig.write(base + ENTRY, &[base + bytes, 10]);
    let (codes, _) = rig.run(0, &[send(2)], 0);
    assert_eq!(codes, [10]);
    assert_eq!(flags(&device), [TcpFlags::ACK | TcpFlags::PSH]);
    let (codes, _) = rig.run(0, &[send(1)], 0);
    assert_eq!(codes, [10]);
    assert_eq!(flags(&device), [TcpFlags::ACK | TcpFlags::PSH | TcpFlags::FIN]);
    // Nothing more after the end.
    let (codes, _) = rig.run(0, &[send(1), Call::Shutdown { handle }.encode()], 0);
    assert_eq!(codes, [CallError::encode(Err(CallError::State)); 2]);

    // More than the window takes.
    let (device, mut rig, handle) = accepted();
    device.take_sent();
    let (base, _) = rig.transmit_memory();
    rig.write(base, &[base + 64, 1 << 20]);
    let sg = SgArray { addr: base, entries: 1 };
    let (codes, _) =
        rig.run(0, &[Call::SendV { handle, sg, fin: true, eor: false, done: 0 }.encode()], 0);
    assert!(0 < codes[0] && codes[0] < 1 << 20, "{codes:?}");
    assert!(flags(&device).iter().all(|flags| !flags.contains(TcpFlags::FIN)));
}

/// A request that acknowledges the last answer is one event, and the answer that gives it back is
/// one call.
#[test]
fn a_message_is_one_event_and_one_call() {
    const TEXT: TcpFlags = TcpFlags::ACK.union(TcpFlags::PSH);
    let (device, mut rig, handle) = accepted();
    device.take_sent();
    let mac = device.options().mac;
    let (base, _) = rig.transmit_memory();
    rig.write(base, &[base + 64, 10]);
    let send = |done| {
        let sg = SgArray { addr: base, entries: 1 };
        Call::SendV { handle, sg, fin: false, eor: false, done }.encode()
    };
    let sent = || {
        let frame = device.next_sent().expect("a segment");
        match ix_wire::parse(&frame, RxChecks::default()) {
            Ok(Parsed::Tcp(segment)) => segment,
            other => panic!("{other:?}"),
        }
    };
    // What acknowledges nothing of ours is answered with our number.
    device.deliver(segment_with(mac, 1000, TEXT, (Seq(2), Seq(0)), b"astray"));
    rig.run(0, &[], 0);
    rig.run(0, &[], 0);
    let first = sent().header.seq;
    device.take_sent();
    device.deliver(segment_with(mac, 1000, TEXT, (Seq(2), first), b"request"));
    let (_, events) = rig.run(0, &[], 0);
    let [event] = events[..] else { panic!("{events:?}") };
    let Ok(Event::Recv { cookie: 7, data, news: SentNews::NONE, .. }) = Event::decode(&event)
    else {
        panic!("{event:?}")
    };
    assert_eq!(data.len, 7);
    // More than was received: nothing is given back, and nothing is sent.
    let (codes, _) = rig.run(0, &[send(8), send(u64::MAX)], 0);
    assert_eq!(codes, [CallError::encode(Err(CallError::Invalid)); 2]);
    assert!(std::iter::from_fn(|| device.next_sent()).all(|frame| frame.len() < 66 + 10));
    let (codes, _) = rig.run(0, &[send(7)], 0);
    assert_eq!(codes, [10]);
    let answer = sent();
    assert_eq!((answer.header.seq, answer.header.ack, answer.payload.len), (first, Seq(9), 10));
    // It was given back: not once more.
    let (codes, _) = rig.run(0, &[Call::RecvDone { handle, bytes: 1 }.encode()], 0);
    assert_eq!(codes, [CallError::encode(Err(CallError::Invalid))]);
    device.deliver(segment_with(mac, 1000, TEXT, (Seq(9), first + 10), b"more"));
    let (_, events) = rig.run(0, &[], 0);
    let [event] = events[..] else { panic!("{events:?}") };
    let Ok(Event::Recv { data, news, .. }) = Event::decode(&event) else { panic!("{event:?}") };
    assert_eq!((data.len, news.bytes()), (4, 10));
    assert!(news.window() > 0, "{news:?}");
    // Without data it is an event of its own.
    let (codes, _) = rig.run(0, &[send(0)], 0);
    assert_eq!(codes, [10]);
    device.deliver(segment(mac, 1000, TcpFlags::ACK, Seq(13), first + 20));
    let (_, events) = rig.run(0, &[], 0);
    let [event] = events[..] else { panic!("{events:?}") };
    assert!(matches!(Event::decode(&event), Ok(Event::Sent { cookie: 7, bytes: 10, .. })));
}
