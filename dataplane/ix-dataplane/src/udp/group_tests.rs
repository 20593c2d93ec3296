//! Datagrams to several hosts, in virtual time: what leaves, what comes back, and who is told.
use crate::broker::{FromBroker, UpdateOutcome, UpdateSource};
use crate::calls::Answer;
use crate::config::Config;
use crate::raw::tests::{Host, MAC, OURS, PEER, PEER_MAC, host, host_of, link};
use ix_abi::{
    Call, CallError, DatagramNotes, Endpoint, Event, FlowOption, MulticastOption, SgArray, SgEntry,
    SourceList,
};
use ix_proto::{FromImage, Outcome};
use ix_wire::membership::group_mac;
use ix_wire::{Checksum, FrameHeader, IpAddr};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const PORT: u16 = 4000;
const GROUP: [u8; 4] = [224, 1, 1, 1];
const PEER_AT: Endpoint = Endpoint { addr: ix_abi::v4(PEER), port: 9 };

impl Host {
    fn calls(&mut self, call: Call) -> Answer {
        self.threads[0].elastic.run_call(call)
    }

    fn bound(&mut self, addr: [u8; 16], cookie: u64) -> u32 {
        let at = Endpoint { addr, port: PORT };
        self.calls(Call::UdpBind { at, cookie }).expect("a socket") as u32
    }

    fn listens(&mut self, socket: u32, group: [u8; 4], excludes: bool, list: &[[u8; 4]]) -> Answer {
        let addr = self.arena;
        let all: Vec<u8> = list.iter().flat_map(|source| ix_abi::v4(*source)).collect();
        // SAFETY: transmit memory, which is this test's as it would be the application's.
        unsafe { (addr as *mut u8).copy_from(all.as_ptr(), all.len()) };
        let sources = SourceList { addr, count: list.len() as u64 };
        self.calls(Call::UdpListen { socket, group: ix_abi::v4(group), excludes, sources })
    }

    fn tells(&mut self, socket: u32, to: [u8; 4], bytes: &[u8]) -> (Answer, Vec<Event>) {
        let (array, data) = (self.arena, self.arena + 64);
        // SAFETY: as above.
        unsafe {
            (array as *mut SgEntry).write(SgEntry { base: data, len: bytes.len() as u64 });
            (data as *mut u8).copy_from(bytes.as_ptr(), bytes.len());
        }
        let to = Endpoint { addr: ix_abi::v4(to), port: PORT };
        let sg = SgArray { addr: array, entries: 1 };
        let sent = self.calls(Call::UdpSendV { socket, to, sg, cookie: 77 });
        (sent, self.cycle(0))
    }

    /// What is reported of a change: at once, and again within a second.
    fn reports(&mut self) -> Vec<Vec<u8>> {
        let mut all = self.waits(1);
        all.extend(self.waits(2_000_000));
        all
    }

    fn left(&mut self) -> Vec<Vec<u8>> {
        self.device.take_sent().into_iter().map(|(_, frame)| frame).collect()
    }
}

/// A datagram of the peer's.
fn datagram(from: [u8; 4], to: [u8; 4], port: u16, payload: &[u8]) -> Vec<u8> {
    let dst = IpAddr::v4(to);
    let to_group = FrameHeader { src: IpAddr::v4(from), dst, ttl: 3, ..link(group_mac(dst)) };
    let mut frame = vec![0; 42];
    to_group.emit_udp(&mut frame, 9, port, payload.len(), Checksum::of(payload));
    [&frame, payload].concat()
}

/// Who is told of these datagrams, and their bytes.
fn told(events: &[Event]) -> Vec<(u64, Vec<u8>)> {
    let one = |event: &Event| match event {
        Event::UdpRecv { cookie, data, .. } => {
            // SAFETY: received memory, as long as the host of the test is there.
            let bytes = unsafe {
                core::slice::from_raw_parts(data.addr as *const u8, data.len as usize).to_vec()
            };
            Some((*cookie, bytes))
        }
        _ => None,
    };
    events.iter().filter_map(one).collect()
}

/// The message of a report, and where it goes.
fn report(frame: &[u8]) -> (&[u8], &[u8]) {
    assert_eq!((frame[23], frame[22]), (2, 1), "IGMP, one hop");
    (&frame[30..34], &frame[38..])
}

#[test]
fn a_group_is_heard_from_joining_to_leaving() {
    let mut host = host(1, "");
    let socket = host.bound(ix_abi::v4([0; 4]), 5);
    let frame = datagram(PEER, GROUP, PORT, b"news");
    assert!(told(&host.hears(&frame)).is_empty());
    assert_eq!(host.drops("ip_not_for_us"), 1, "a group of nobody here");
    assert_eq!(host.listens(socket, GROUP, true, &[]), Ok(0));
    let sent = host.reports();
    assert_eq!(sent.len(), 2, "the report is repeated");
    let (to, message) = report(&sent[0]);
    assert_eq!(to, [224, 0, 0, 22]);
    assert_eq!((message[0], &message[6..]), (0x22, &[0, 1, 4, 0, 0, 0, 224, 1, 1, 1][..]));
    let [event] = host.hears(&frame)[..] else { panic!("one event") };
    let Event::UdpRecv { peer, local, notes, .. } = event else { panic!("a datagram") };
    assert_eq!((peer, local), (PEER_AT, ix_abi::v4(GROUP)));
    assert_eq!(notes, DatagramNotes::new(3, 0, 0));
    assert_eq!(told(&[event]), [(5, b"news".to_vec())]);
    // No answer goes to whoever sends to a group, and nobody else's port is told.
    assert!(told(&host.hears(&datagram(PEER, GROUP, PORT + 1, b"x"))).is_empty());
    assert_eq!((host.drops("udp_no_socket"), host.left().len()), (1, 0));
    // What says that it comes from ourselves does not.
    assert!(told(&host.hears(&datagram(OURS, GROUP, PORT, b"x"))).is_empty());
    assert_eq!(host.drops("ip_martian_source"), 1);
    assert_eq!(host.listens(socket, GROUP, false, &[]), Ok(0));
    let sent = host.reports();
    assert_eq!(sent.len(), 2);
    assert_eq!(report(&sent[0]).1[8], 3, "to no source");
    assert!(told(&host.hears(&frame)).is_empty());
    // A socket that ends has left.
    assert_eq!(host.listens(socket, GROUP, true, &[]), Ok(0));
    assert_eq!(host.calls(Call::UdpUnbind { socket }), Ok(0));
    host.waits(10_000_000);
    assert!(told(&host.hears(&frame)).is_empty());
    assert_eq!(host.drops("ip_not_for_us"), 3);
}

#[test]
fn every_socket_of_the_port_that_wants_it_gets_it() {
    let mut host = host(1, "");
    let any = host.bound(ix_abi::v4([0; 4]), 1);
    let of_group = host.bound(ix_abi::v4(GROUP), 2);
    host.bound(ix_abi::v4(OURS), 3);
    assert_eq!(host.listens(any, GROUP, true, &[[10, 0, 0, 8]]), Ok(0));
    host.cycle(0);
    let mut heard = |from: [u8; 4], to| {
        let mut all = told(&host.hears(&datagram(from, to, PORT, b"to all")));
        assert!(all.iter().all(|(_, bytes)| bytes == b"to all"));
        all.sort_unstable();
        all.into_iter().map(|(cookie, _)| cookie).collect::<Vec<_>>()
    };
    assert_eq!(heard(PEER, GROUP), [1, 2]);
    // The first one does not listen to this source; the other one has not said so.
    assert_eq!(heard([10, 0, 0, 8], GROUP), [2]);
    for to in [[255; 4], [10, 0, 0, 255]] {
        assert_eq!(heard(PEER, to), [1], "a broadcast");
    }
    assert!(heard(PEER, [10, 0, 1, 255]).is_empty(), "of another network");
    // Its own address is for the third one alone.
    assert_eq!(host.listens(of_group, GROUP, false, &[PEER, PEER]), Ok(0));
    let only: Vec<u64> = told(&host.hears(&datagram([10, 0, 0, 7], GROUP, PORT, b"")))
        .into_iter()
        .map(|(cookie, _)| cookie)
        .collect();
    assert_eq!(only, [1]);
}

#[test]
fn sending_to_groups() {
    let mut host = host(1, "");
    let socket = host.bound(ix_abi::v4([0; 4]), 5);
    let (sent, events) = host.tells(socket, GROUP, b"hello");
    assert_eq!((sent, told(&events)), (Ok(5), vec![]), "nobody here listens");
    let sent = host.left();
    let [frame] = &sent[..] else { panic!("one frame") };
    assert_eq!((&frame[..6], &frame[6..12]), (&[1, 0, 0x5e, 1, 1, 1][..], &MAC[..]));
    assert_eq!((frame[22], &frame[26..30], &frame[42..]), (1, &OURS[..], &b"hello"[..]));
    host.listens(socket, GROUP, true, &[]).expect("listens");
    host.waits(10_000_000);
    let (sent, events) = host.tells(socket, GROUP, b"hello");
    assert_eq!((sent, told(&events)), (Ok(5), vec![(5, b"hello".to_vec())]), "comes back");
    assert_eq!(host.left().len(), 1);
    let how = |loops, stays| FlowOption::Multicast(MulticastOption { loops, stays, device: None });
    for (option, leave, back) in
        [(how(false, false), 1, 0), (how(true, true), 0, 1), (how(true, false), 1, 1)]
    {
        assert_eq!(host.calls(Call::UdpSetOpt { socket, option }), Ok(0));
        let (sent, events) = host.tells(socket, GROUP, b"x");
        assert_eq!((sent, told(&events).len(), host.left().len()), (Ok(1), back, leave));
    }
    let option = FlowOption::HopLimit(9);
    assert_eq!(host.calls(Call::UdpSetOpt { socket, option }), Ok(0));
    assert_eq!(host.tells(socket, GROUP, b"x").0, Ok(1));
    assert_eq!(host.left()[0][22], 9);
    let (_, events) = host.tells(socket, [10, 0, 0, 255], b"all");
    assert_eq!(told(&events), [(5, b"all".to_vec())], "a broadcast comes back, as on Linux");
    assert_eq!(host.left()[0][..6], [0xff; 6]);
}

/// RFC 3376 sections 4.1 and 5.2, and the earlier versions.
#[test]
fn questions_are_answered_in_their_version() {
    let mut host = host(1, "");
    let socket = host.bound(ix_abi::v4([0; 4]), 5);
    host.listens(socket, GROUP, true, &[]).expect("listens");
    host.reports();
    let query = |message: &[u8]| {
        let mut frame = vec![1, 0, 0x5e, 0, 0, 1];
        frame.extend(PEER_MAC);
        frame.extend([8, 0, 0x46, 0xc0, 0, 24 + message.len() as u8, 0, 0, 0, 0, 1, 2, 0, 0]);
        frame.extend([PEER, [224, 0, 0, 1], [0x94, 4, 0, 0]].concat());
        frame.extend(message);
        for (from, to, at) in [(14, 38, 10), (38, frame.len(), 2)] {
            let check = Checksum::of(&frame[from..to]).finish();
            frame[from + at..from + at + 2].copy_from_slice(&check.to_be_bytes());
        }
        frame
    };
    let v3 = query(&[0x11, 10, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0]);
    host.hears(&v3);
    let sent = host.waits(2_000_000);
    assert_eq!(sent.len(), 1);
    assert_eq!(report(&sent[0]).1[7..9], [1, 2], "all sources but none, as before");
    for (message, dst, kind) in
        [([0x11, 10, 0, 0, 0, 0, 0, 0], GROUP, 0x16), ([0x11, 0, 0, 0, 0, 0, 0, 0], GROUP, 0x12)]
    {
        host.hears(&query(&message));
        let sent = host.waits(11_000_000);
        assert_eq!(sent.len(), 1);
        let (to, message) = report(&sent[0]);
        assert_eq!((to, message[0], &message[4..]), (&dst[..], kind, &GROUP[..]));
    }
    assert_eq!(host.drops("ip_unknown_protocol") + host.drops("igmp_invalid"), 0);
    host.hears(&query(&[0x11, 10, 0, 0, 10, 0, 0, 1]));
    assert_eq!((host.drops("igmp_invalid"), host.waits(20_000_000).len()), (1, 0));
    // No question, and no answer that it was not understood.
    host.hears(&query(&[0x16, 0, 0, 0, 224, 1, 1, 9]));
    assert_eq!((host.drops("ip_unknown_protocol"), host.waits(20_000_000).len()), (1, 0));
}

#[test]
fn groups_of_ipv6_are_reported_and_heard() {
    const OURS_V6: IpAddr = IpAddr([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    const PEER_V6: IpAddr = IpAddr([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let group = IpAddr([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34]);
    let mut host = host_of(1, Config::with_address(OURS_V6, 64));
    host.waits(10_000_000);
    let socket = host.bound([0; 16], 5);
    let sources = SourceList::default();
    let listen = Call::UdpListen { socket, group: group.0, excludes: true, sources };
    assert_eq!(host.calls(listen), Ok(0));
    let sent = host.reports();
    assert_eq!(sent.len(), 2);
    assert_eq!(
        (sent[0][62], &sent[0][70..74], &sent[0][74..90]),
        (143, &[4, 0, 0, 0][..], &group.0[..])
    );
    let mut frame = vec![0; 62];
    let to_group = FrameHeader { src: PEER_V6, dst: group, ..link(group_mac(group)) };
    to_group.emit_udp(&mut frame, 9, PORT, 2, Checksum::of(b"v6"));
    frame.extend(b"v6");
    assert_eq!(told(&host.hears(&frame)), [(5, b"v6".to_vec())]);
}

#[test]
fn wrong_requests_are_refused() {
    let mut host = host(1, "");
    let socket = host.bound(ix_abi::v4([0; 4]), 5);
    assert_eq!(host.listens(socket, [10, 0, 0, 1], true, &[]), Err(CallError::Invalid));
    assert_eq!(host.listens(socket, GROUP, false, &[GROUP]), Err(CallError::Invalid));
    assert_eq!(host.listens(socket + 1, GROUP, true, &[]), Err(CallError::BadHandle));
    let arena = host.arena;
    for (addr, count, error) in [
        (arena, 65, CallError::Invalid),
        (arena, u64::MAX, CallError::Invalid),
        (8, 1, CallError::Fault),
        (u64::MAX, 2, CallError::Fault),
    ] {
        let sources = SourceList { addr, count };
        let group = ix_abi::v4(GROUP);
        let listen = Call::UdpListen { socket, group, excludes: false, sources };
        assert_eq!(host.calls(listen), Err(error), "{addr:x} {count}");
    }
    let v6 = Call::UdpListen {
        socket,
        group: [0xff; 16],
        excludes: true,
        sources: SourceList::default(),
    };
    assert_eq!(host.calls(v6), Err(CallError::Invalid), "of the other family");
    // A bounded number of groups.
    let mut answers = (0..1100u16).map(|n| {
        let [a, b] = n.to_be_bytes();
        host.listens(socket, [239, 1, a, b], true, &[])
    });
    assert_eq!(answers.by_ref().take_while(|answer| *answer == Ok(0)).count(), 1024);
    assert_eq!(answers.next(), Some(Err(CallError::NoResource)));
}

/// A broker that has room for what it is told, or has none.
struct Broker {
    said: Arc<Mutex<Vec<Vec<IpAddr>>>>,
    is_full: Arc<AtomicBool>,
}

impl UpdateSource for Broker {
    fn fd(&self) -> RawFd {
        -1
    }
    fn next(&mut self) -> Option<FromBroker> {
        None
    }
    fn tell(&mut self, _: usize, _: UpdateOutcome) {}
    fn tell_outcome(&mut self, _: u64, _: &Outcome) {}
    fn tell_surveyed(&mut self, _: u64) {}
    fn say(&mut self, message: &FromImage) -> bool {
        let FromImage::Groups { groups } = message else { return true };
        if self.is_full.load(Ordering::Relaxed) {
            return false;
        }
        self.said.lock().unwrap().push(groups.clone());
        true
    }
}

/// A program may change groups in each call. The broker hears all of them once for a batch, not
/// more often than every 20 ms, and what it had no room for again.
#[test]
fn the_broker_hears_groups_now_and_then_and_the_last_ones_always() {
    const GROUPS: usize = 500;
    let (said, is_full) = (Arc::default(), Arc::default());
    let broker = Broker { said: Arc::clone(&said), is_full: Arc::clone(&is_full) };
    let mut host = host(1, "");
    host.threads[0].elastic.io.cx.shared.updates.set_source(Box::new(broker));
    let socket = host.bound(ix_abi::v4([0; 4]), 5);
    let heard = || said.lock().unwrap().iter().map(Vec::len).collect::<Vec<_>>();
    let of = |nth: usize| [239, 2, (nth >> 8) as u8, nth as u8];
    for nth in 0..GROUPS {
        assert_eq!(host.listens(socket, of(nth), true, &[]), Ok(0));
    }
    host.waits(1);
    assert_eq!(heard(), [GROUPS]);
    // Not again because something else is due.
    host.waits(1_000_000);
    assert_eq!(heard(), [GROUPS]);
    is_full.store(true, Ordering::Relaxed);
    for nth in 1..GROUPS {
        assert_eq!(host.listens(socket, of(nth), false, &[]), Ok(0));
    }
    host.waits(100_000);
    host.waits(100_000);
    assert_eq!(heard(), [GROUPS]);
    is_full.store(false, Ordering::Relaxed);
    host.waits(20_000);
    assert_eq!(heard(), [GROUPS, 1]);
    for nth in 0..200 {
        assert_eq!(host.listens(socket, of(1), nth % 2 == 0, &[]), Ok(0));
        host.waits(1000);
    }
    assert_eq!(heard().len(), 2 + 200 / 20);
    host.waits(20_000);
    assert_eq!(heard().last(), Some(&1));
}

/// More sources than a report has room for are reported in parts, and keep nothing else away.
#[test]
fn many_sources_are_reported_in_several_messages() {
    const SOURCES: usize = 64;
    let mut host = host(1, "");
    host.waits(10_000_000);
    for nth in 0..5u8 {
        let at = Endpoint { addr: ix_abi::v4([0; 4]), port: PORT + u16::from(nth) };
        let socket = host.calls(Call::UdpBind { at, cookie: 1 }).expect("a socket") as u32;
        let sources: Vec<[u8; 4]> = (0..SOURCES as u8).map(|n| [10, 1, nth, n]).collect();
        assert_eq!(host.listens(socket, GROUP, false, &sources), Ok(0));
        assert_eq!(host.listens(socket, [239, 3, 0, nth], true, &[]), Ok(0));
    }
    let sent = host.waits(1);
    // A record begins with its type, and its number of sources; the group follows.
    let records = sent.iter().flat_map(|frame| {
        let message = report(frame).1;
        let mut left = &message[8..];
        let mut records = Vec::new();
        for _ in 0..u16::from_be_bytes([message[6], message[7]]) {
            let count = usize::from(u16::from_be_bytes([left[2], left[3]]));
            records.push((left[0], [left[4], left[5], left[6], left[7]], count));
            left = &left[8 + 4 * count..];
        }
        records
    });
    let records: Vec<_> = records.collect();
    let of_sources = records.iter().filter(|(_, group, _)| *group == GROUP);
    assert_eq!(of_sources.clone().map(|(.., count)| count).sum::<usize>(), 5 * SOURCES);
    assert!(of_sources.count() > 1, "{records:?}");
    assert_eq!(records.iter().filter(|(kind, ..)| *kind == 4).count(), 5, "{records:?}");
}
