//! Several processes of a program on one elastic thread: who owns what, what waits for one that
//! computes, and what is left of one that has ended.
use crate::peer::{OURS, PEER, PEER_MAC, segment, segment_with};
use ix_abi::{Call, CallError, CallSlot, Endpoint, Event, Handle, SgArray, WillEntry, WillState};
use ix_dataplane::{CallArray, Config, EventWriter};
use ix_mem::{MemoryFds, Sizes};
use ix_rig::{Arrays, Rig, RigOptions, SimDevice, SimOptions, VirtualClock};
use ix_wire::{Checksum, FrameHeader, Parsed, RxChecks, Seq, TcpFlags, TcpHeader, TcpPacket, ipv4};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const PORT: u16 = 80;
const SIZES: Sizes = Sizes { rx_frames: 1024, tx_frames: 1024, arena_bytes: 2 << 20 };

/// A dataplane with two processes, of which the first is attachment 0.
struct Two {
    rig: Rig,
    device: SimDevice,
    mac: [u8; 6],
    /// The elastic thread that is meant.
    at: usize,
    /// Of the second one, for each elastic thread.
    arrays: Vec<Arrays>,
    /// Its transmit memory.
    arena: File,
    now_us: u64,
}

/// What the peer knows of its connection.
struct Peer {
    port: u16,
    /// What it sends next, and what it expects.
    seq: Seq,
    ack: Seq,
}

impl Two {
    fn new() -> Two {
        Two::with(1)
    }

    /// So many elastic threads.
    fn with(threads: usize) -> Two {
        Two::on(SimOptions { queues: threads, ..SimOptions::default() })
    }

    /// An elastic thread for each queue of this device.
    fn on(options: SimOptions) -> Two {
        let clock = VirtualClock::default();
        let threads = options.queues;
        let device = SimDevice::new(options, &clock);
        let mac = device.options().mac;
        let config = Config { arp: vec![(PEER, PEER_MAC)], ..Config::with_address(OURS, 24) };
        let options = RigOptions { config, sizes: Some(SIZES), clock };
        let mut rig = Rig::new(options, device.nics());
        let arrays: Vec<Arrays> = (0..threads).map(|_| Arrays::new()).collect();
        let fds = MemoryFds::for_another_process(SIZES).unwrap();
        let shift = rig.shared.memory.add_arena(0, fds.arena.as_fd()).unwrap();
        for (thread, arrays) in rig.threads.iter_mut().zip(&arrays) {
            // SAFETY: the arrays outlive the rig's thread here, and are used for nothing else.
            let (calls, events) =
                unsafe { (CallArray::new(arrays.calls()), EventWriter::new(arrays.events())) };
            thread.elastic.begin_attachment(1, calls, events, (shift, 1));
        }
        let arena = File::from(fds.arena);
        let mut two = Two { rig, device, mac, at: 0, arrays, arena, now_us: 0 };
        for at in (0..threads).rev() {
            two.at = at;
            two.run(0, &[]);
        }
        two.device.take_sent(); // the announcement of our address
        two
    }

    /// A process comes with calls, waits one cycle and computes again: codes and events.
    fn run(&mut self, number: u8, calls: &[Call]) -> (Vec<i64>, Vec<Event>) {
        let codes = self.come(number, calls);
        self.turn();
        (codes, self.go(number))
    }

    /// A process comes, and waits.
    fn come(&mut self, number: u8, calls: &[Call]) -> Vec<i64> {
        let thread = &mut self.rig.threads[self.at];
        let arrays = if number == 0 { &mut thread.arrays } else { &mut self.arrays[self.at] };
        let slots: Vec<CallSlot> = calls.iter().map(|call| call.encode()).collect();
        slots.iter().enumerate().for_each(|(index, slot)| arrays.set_call(index, *slot));
        thread.elastic.begin_for(number, slots.len(), self.now_us);
        arrays.first_calls(slots.len()).map(|slot| slot.ret).collect()
    }

    /// It has its events, and computes.
    fn go(&mut self, number: u8) -> Vec<Event> {
        let thread = &mut self.rig.threads[self.at];
        thread.elastic.set_present(number, false);
        let arrays = if number == 0 { &thread.arrays } else { &self.arrays[self.at] };
        let count = thread.elastic.events_for(number);
        arrays.first_events(count).map(|slot| Event::decode(&slot).unwrap()).collect()
    }

    fn turn(&mut self) {
        self.now_us += 10;
        self.rig.threads[self.at].elastic.turn(self.now_us);
    }

    /// All elastic threads make turns for this time.
    fn spin(&mut self, us: u64) {
        let (at, end_us) = (self.at, self.now_us + us);
        while self.now_us < end_us {
            for thread in 0..self.rig.threads.len() {
                self.at = thread;
                self.turn();
            }
        }
        self.at = at;
    }

    fn listen(&mut self, number: u8) {
        let at = Endpoint { addr: ix_abi::v4([0; 4]), port: PORT };
        let listen = Call::Listen { at, backlog: 0, cookie: 100 + u64::from(number), holds: false };
        assert!(self.run(number, &[listen]).0[0] > 0);
    }

    /// The peer's next segment arrives, with data.
    fn deliver(&mut self, peer: &mut Peer, flags: TcpFlags, data: &[u8]) {
        let numbers = (peer.seq, peer.ack);
        self.device.deliver(segment_with(self.mac, peer.port, flags, numbers, data));
        peer.seq += data.len() as u32;
    }

    fn sent(&mut self) -> Option<TcpPacket> {
        let frame = self.device.next_sent()?;
        let Ok(Parsed::Tcp(packet)) = ix_wire::parse(&frame, RxChecks::default()) else {
            panic!("no segment")
        };
        Some(packet)
    }

    /// A peer opens a connection while these processes wait; the knock, and who heard it.
    fn knock(&mut self, port: u16, present: &[u8]) -> (Peer, u8, Handle) {
        present.iter().for_each(|number| drop(self.come(*number, &[])));
        self.device.deliver(segment(self.mac, port, TcpFlags::SYN, Seq(1), Seq(0)));
        self.turn(); // receives
        self.turn(); // sends
        let reply = self.sent().expect("a SYN-ACK");
        assert_eq!(reply.header.flags, TcpFlags::SYN | TcpFlags::ACK);
        let mut peer = Peer { port, seq: Seq(2), ack: reply.header.seq + 1 };
        self.deliver(&mut peer, TcpFlags::ACK, &[]);
        self.turn();
        let mut heard = Vec::new();
        for number in present {
            for event in self.go(*number) {
                let Event::Knock { listener, handle, .. } = event else { panic!("{event:?}") };
                assert_eq!(listener, 100 + u64::from(*number), "the cookie of its own listener");
                heard.push((*number, handle));
            }
        }
        let [(number, handle)] = heard[..] else { panic!("{heard:?}") };
        (peer, number, handle)
    }

    /// A connection of this process, which then computes.
    fn connection(&mut self, port: u16, number: u8) -> (Peer, Handle) {
        let (peer, who, handle) = self.knock(port, &[number]);
        assert_eq!(who, number);
        assert_eq!(self.run(number, &[Call::Accept { handle, cookie: port.into() }]).0, [0]);
        (peer, handle)
    }
}

fn refused(error: CallError) -> i64 {
    -error.code()
}

#[test]
fn processes_that_listen_at_one_address_take_turns() {
    let mut two = Two::new();
    two.listen(0);
    two.listen(1);
    let at = Endpoint { addr: ix_abi::v4([0; 4]), port: PORT };
    let again = two.run(1, &[Call::Listen { at, backlog: 0, cookie: 7, holds: false }]).0;
    assert_eq!(again, [refused(CallError::InUse)], "only once each");
    let heard: Vec<u8> = (0..6).map(|n| two.knock(1000 + n, &[0, 1]).1).collect();
    assert_eq!(heard.iter().filter(|number| **number == 0).count(), 3, "{heard:?}");
    // One that computes gets none.
    assert!((0..6).all(|n| two.knock(2000 + n, &[1]).1 == 1));
}

#[test]
fn a_process_cannot_name_what_is_not_its_own() {
    let mut two = Two::new();
    two.listen(0);
    two.listen(1);
    let (_, handle) = two.connection(1000, 1);
    let at = Endpoint { addr: ix_abi::v4([0; 4]), port: 9 };
    let (own, _) = two.run(
        1,
        &[Call::UdpBind { at, cookie: 1 }, Call::TimerSet { cookie: 1, delay_us: 1_000_000 }],
    );
    let [socket, timer] = own[..] else { panic!("{own:?}") };
    let foreign = [
        Call::RecvDone { handle, bytes: 0 },
        Call::Close { handle },
        Call::Abort { handle },
        Call::SetCookie { handle, cookie: 1 },
        Call::Accept { handle, cookie: 1 },
        Call::UdpUnbind { socket: socket as u32 },
        Call::TimerCancel { timer: timer as u64 },
    ];
    let (codes, _) = two.run(0, &foreign);
    assert_eq!(codes, [refused(CallError::BadHandle); 7]);
    let (codes, _) = two.run(1, &foreign[..1]);
    assert_eq!(codes, [0], "its own");
}

#[test]
fn data_for_a_process_that_computes_is_acknowledged_and_waits_for_it() {
    let mut two = Two::new();
    two.listen(1);
    let (mut peer, handle) = two.connection(1000, 1);
    two.come(0, &[]);
    two.deliver(&mut peer, TcpFlags::ACK | TcpFlags::PSH, b"first");
    two.deliver(&mut peer, TcpFlags::ACK | TcpFlags::PSH, b"second");
    two.turn();
    two.turn();
    assert_eq!(two.sent().expect("an acknowledgement").header.ack, peer.seq);
    // Its end changes the connection, so that waits.
    two.deliver(&mut peer, TcpFlags::ACK | TcpFlags::FIN, &[]);
    two.turn();
    two.turn();
    assert!(two.sent().is_none(), "the end is not acknowledged yet");
    assert_eq!(two.go(0), [], "nothing of this is the other one's");
    let (_, events) = two.run(1, &[]);
    let lens: Vec<u32> = events
        .iter()
        .filter_map(|event| match event {
            Event::Recv { cookie: 1000, handle: of, data, .. } if *of == handle => Some(data.len),
            _ => None,
        })
        .collect();
    assert_eq!(lens, [5, 6]);
    assert_eq!(events.last(), Some(&Event::Eof { cookie: 1000, handle }));
}

/// While all processes compute on hardware threads of their own the next batch is received. What it
/// causes to be sent waits for their calls, so that one segment carries reply and acknowledgement.
#[test]
fn what_is_received_ahead_is_acknowledged_with_the_reply() {
    let mut two = Two::new();
    two.listen(1);
    let (mut peer, handle) = two.connection(1000, 1);
    two.spin(100);
    two.device.take_sent();
    two.deliver(&mut peer, TcpFlags::ACK | TcpFlags::PSH, b"request");
    let now_us = two.now_us;
    assert_eq!(two.rig.threads[0].elastic.receive_ahead(now_us), 1);
    assert_eq!(two.rig.threads[0].elastic.receive_ahead(now_us), 0);
    assert!(two.sent().is_none(), "nothing is sent yet");
    // It returns, is told before a cycle has run, and computes.
    assert!(!two.rig.threads[0].elastic.owes_a_cycle());
    two.come(1, &[]);
    let events = two.go(1);
    let [Event::Recv { cookie: 1000, data, .. }] = events[..] else { panic!("{events:?}") };
    assert_eq!(data.len, 7);
    // Its reply leaves when it computes again.
    let base = two.rig.shared.memory.arena().0 as u64;
    let words = [(base + 4096).to_ne_bytes(), 5u64.to_ne_bytes()].concat();
    two.arena.write_all_at(&words, 0).unwrap();
    let sg = SgArray { addr: base, entries: 1 };
    let calls = [
        Call::RecvDone { handle, bytes: 7 },
        Call::SendV { handle, sg, fin: false, eor: false, done: 0 },
    ];
    assert_eq!(two.come(1, &calls), [0, 5]);
    assert_eq!(two.go(1), []);
    two.rig.threads[0].elastic.send_behind(now_us);
    let reply = two.sent().expect("a reply");
    assert_eq!((reply.header.ack, reply.payload.len), (peer.seq, 5));
    assert!(two.sent().is_none(), "one segment");
    // An end waits for a cycle with the process.
    two.deliver(&mut peer, TcpFlags::ACK | TcpFlags::FIN, &[]);
    assert_eq!(two.rig.threads[0].elastic.receive_ahead(now_us), 1);
    two.come(1, &[]);
    assert!(two.rig.threads[0].elastic.owes_a_cycle(), "its end was kept");
    two.turn();
    assert_eq!(two.go(1), [Event::Eof { cookie: 1000, handle }]);
}

#[test]
fn datagrams_and_timers_wait_for_their_process() {
    let mut two = Two::new();
    let at = Endpoint { addr: ix_abi::v4([0; 4]), port: 9 };
    let bind = Call::UdpBind { at, cookie: 9 };
    two.run(1, &[bind, Call::TimerSet { cookie: 10, delay_us: 20 }]);
    two.come(0, &[]);
    let header = FrameHeader {
        eth_src: PEER_MAC,
        eth_dst: two.mac,
        src: PEER,
        dst: OURS,
        ttl: ipv4::DEFAULT_TTL,
        tos: 0,
        ident: 1,
    };
    let mut frame = vec![0; 60];
    header.emit_udp(&mut frame, 5, 9, 18, Checksum::of(&[0; 18]));
    // More than it may keep: the rest is lost, and harms nobody else.
    for _ in 0..600 {
        two.device.deliver(frame.clone());
        two.turn();
    }
    assert_eq!(two.go(0), []);
    let events: Vec<Event> = (0..20).flat_map(|_| two.run(1, &[]).1).collect();
    assert!(events.contains(&Event::Timer { cookie: 10 }), "{events:?}");
    let heard = |event: &&Event| matches!(event, Event::UdpRecv { cookie: 9, .. });
    let count = events.iter().filter(heard).count();
    assert!((60..300).contains(&count), "{count}");
}

/// Each of them would get another one where none is named, and what the port is claimed for would
/// belong to no socket.
#[test]
fn processes_share_a_port_that_they_name_and_an_address_that_is_theirs() {
    let mut two = Two::new();
    let share = |addr: [u8; 4], port, takes| {
        let at = Endpoint { addr: ix_abi::v4(addr), port };
        Call::UdpShare { at, cookie: 9, takes }
    };
    let wrong = [share([0; 4], 0, false), share([0; 4], 0, true), share([10, 0, 0, 99], 9, true)];
    let invalid = refused(CallError::Invalid);
    let not_local = refused(CallError::NotLocal);
    for number in [0, 1] {
        assert_eq!(two.run(number, &wrong).0, [invalid, invalid, not_local]);
    }
    let first = two.run(0, &[share([0; 4], 9, true)]).0[0];
    let second = two.run(1, &[share([0; 4], 9, true), share([0; 4], 9, false)]).0;
    assert!(first >= 0 && second[0] >= 0 && first != second[0], "{first} {second:?}");
    assert_eq!(second[0], second[1], "one for each process");
    let unbind = |socket: i64| Call::UdpUnbind { socket: socket as u32 };
    let stranger = two.run(0, &[unbind(second[0])]).0;
    assert_eq!(stranger, [refused(CallError::BadHandle)], "each has its own");
    assert_eq!(two.run(0, &[unbind(first)]).0, [0]);
    assert_eq!(two.run(1, &[unbind(second[0])]).0, [0]);
}

#[test]
fn what_is_sent_is_the_senders_own() {
    let mut two = Two::new();
    two.listen(1);
    let (_, handle) = two.connection(1000, 1);
    let (base, _) = two.rig.shared.memory.arena();
    let base = base as u64;
    let to = base + 4096;
    let words = [to.to_ne_bytes(), 6u64.to_ne_bytes()].concat();
    two.arena.write_all_at(&words, 0).unwrap();
    two.arena.write_all_at(b"theirs", 4096).unwrap();
    let sg = SgArray { addr: base, entries: 1 };
    let info = Call::GetInfo { handle, to: base + 8192 };
    let (codes, _) =
        two.run(1, &[Call::SendV { handle, sg, fin: false, eor: false, done: 0 }, info]);
    assert_eq!(codes, [6, 0]);
    two.come(1, &[]);
    two.turn();
    let mut frames = std::iter::from_fn(|| two.device.next_sent());
    assert!(frames.any(|frame| frame.ends_with(b"theirs")));
    let mut written = [0; 80];
    two.arena.read_exact_at(&mut written, 8192).unwrap();
    assert_ne!(written, [0; 80], "the information is in its own memory");
}

#[test]
fn a_process_that_ends_takes_nothing_along() {
    let mut two = Two::new();
    two.listen(0);
    two.listen(1);
    let (_, of_first) = two.connection(999, 0);
    let (mut read, _) = two.connection(1000, 1);
    let (mut unread, _) = two.connection(1001, 1);
    let (_, knocking, waits) = two.knock(1002, &[1]);
    assert_eq!(knocking, 1);
    two.come(1, &[]);
    two.deliver(&mut unread, TcpFlags::ACK | TcpFlags::PSH, b"unread");
    two.turn();
    two.go(1);
    two.turn();
    while two.sent().is_some() {}
    two.come(0, &[]);
    two.rig.threads[0].elastic.end_process(1, two.now_us);
    two.turn();
    let mut ends: Vec<(u16, bool)> = std::iter::from_fn(|| two.sent())
        .map(|packet| {
            let flags = packet.header.flags;
            (packet.header.dst_port, flags.contains(TcpFlags::RST))
        })
        .collect();
    ends.sort_unstable();
    assert_eq!(ends, [(1000, false), (1001, true)], "FIN, and RST for what was not read");
    // Who has knocked there knocks at the other process.
    let events = two.go(0);
    let [Event::Knock { listener: 100, handle, .. }] = events[..] else { panic!("{events:?}") };
    assert_eq!(handle, waits);
    assert_eq!(two.run(0, &[Call::Accept { handle, cookie: 5 }]).0, [0]);
    assert_eq!(two.run(0, &[Call::RecvDone { handle: of_first, bytes: 0 }]).0, [0]);
    // The end goes on without a process.
    two.come(0, &[]);
    read.ack += 1;
    two.deliver(&mut read, TcpFlags::ACK | TcpFlags::FIN, &[]);
    two.turn();
    two.turn();
    assert_eq!(two.sent().expect("the last acknowledgement").header.ack, read.seq + 1);
    assert_eq!(two.go(0), []);
    // Frames that the process held are back.
    two.now_us += 200_000;
    two.come(0, &[]);
    two.turn();
    assert_eq!(two.rig.metrics().total("rx_frames_in_use"), Some(0));
}

#[test]
fn a_connection_goes_to_another_process_with_what_was_not_read() {
    let mut two = Two::new();
    two.listen(1);
    let (mut peer, handle) = two.connection(1000, 1);
    let (base, _) = two.rig.shared.memory.arena();
    let base = base as u64;
    let words = [(base + 4096).to_ne_bytes(), 4u64.to_ne_bytes()].concat();
    two.arena.write_all_at(&words, 0).unwrap();
    two.arena.write_all_at(b"mine", 4096).unwrap();
    two.come(1, &[]);
    two.deliver(&mut peer, TcpFlags::ACK | TcpFlags::PSH, b"first");
    two.deliver(&mut peer, TcpFlags::ACK | TcpFlags::PSH, b"second");
    two.turn();
    assert_eq!(two.go(1).len(), 2);
    let give = |to| Call::Give { handle, to, token: 77 };
    let refusals = two.run(1, &[give(1), give(2), give(64), give(u32::MAX - 1)]).0;
    assert_eq!(refusals, [refused(CallError::Invalid); 4], "no such process, or itself");
    assert_eq!(two.run(0, &[give(1)]).0, [refused(CallError::BadHandle)], "not its own");
    let sg = SgArray { addr: base, entries: 1 };
    let calls = [
        Call::RecvDone { handle, bytes: 7 },
        Call::SendV { handle, sg, fin: false, eor: false, done: 0 },
        give(0),
    ];
    assert_eq!(two.run(1, &calls).0, [0, 4, 0]);
    assert_eq!(two.run(1, &[give(0)]).0, [refused(CallError::BadHandle)], "given away");
    let (_, events) = two.run(0, &[]);
    let from = Endpoint { addr: PEER.0, port: 1000 };
    assert_eq!(events, [Event::Given { token: 77, handle, peer: from, from: 1, returned: 7 }]);
    let (codes, events) = two.run(0, &[Call::Accept { handle, cookie: 5 }]);
    assert_eq!(codes, [0]);
    let [Event::Recv { cookie: 5, data, .. }] = events[..] else { panic!("{events:?}") };
    assert_eq!(data.len, 4, "without the seven bytes that were returned");
    assert_eq!(two.run(0, &[Call::RecvDone { handle, bytes: 4 }]).0, [0]);
    // What the giver has sent is acknowledged: it hears that, and nobody else.
    two.come(0, &[]);
    let mut frames = std::iter::from_fn(|| two.device.next_sent());
    assert!(frames.any(|frame| frame.ends_with(b"mine")));
    peer.ack += 4;
    two.deliver(&mut peer, TcpFlags::ACK, &[]);
    two.turn();
    assert_eq!(two.go(0), []);
    let (_, events) = two.run(1, &[]);
    assert_eq!(events, [Event::Sent { cookie: 1000, handle, bytes: 4, window: 0 }]);
    // What comes now is the other one's.
    two.come(0, &[]);
    two.deliver(&mut peer, TcpFlags::ACK | TcpFlags::FIN, b"last");
    two.turn();
    let events = two.go(0);
    assert!(matches!(events[..], [Event::Recv { cookie: 5, .. }, Event::Eof { cookie: 5, .. }]));
}

#[test]
fn the_end_of_a_stream_is_announced_to_who_gets_the_connection() {
    let mut two = Two::new();
    two.listen(1);
    let (mut peer, handle) = two.connection(1000, 1);
    two.come(1, &[]);
    two.deliver(&mut peer, TcpFlags::ACK | TcpFlags::FIN, b"all");
    two.turn();
    assert_eq!(two.go(1).len(), 2);
    assert_eq!(two.run(1, &[Call::Give { handle, to: 0, token: 1 }]).0, [0]);
    // The giver ends before the other one has heard.
    two.rig.threads[0].elastic.end_process(1, two.now_us);
    let (_, events) = two.run(0, &[]);
    assert!(matches!(events[..], [Event::Given { token: 1, .. }]), "{events:?}");
    let (_, events) = two.run(0, &[Call::Accept { handle, cookie: 5 }]);
    let [Event::Recv { data, .. }, Event::Eof { cookie: 5, .. }] = events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(data.len, 3);
}

#[test]
fn a_process_that_is_nudged_returns_whether_it_waits_or_computes() {
    let mut two = Two::new();
    two.run(0, &[]);
    two.run(1, &[]);
    let nudge = |to| Call::Nudge { to };
    let nudged = Event::Signal { from: 0, value: 0 };
    // The other one waits.
    two.come(0, &[]);
    assert_eq!(two.come(1, &[nudge(0)]), [0]);
    two.turn();
    assert_eq!((two.go(0), two.go(1)), (vec![nudged], vec![]));
    // It computes: it hears it once, however often it was nudged.
    assert_eq!(two.run(1, &[nudge(0), nudge(0)]).0, [0; 2]);
    assert_eq!(two.run(0, &[]).1, [nudged]);
    assert_eq!(two.run(0, &[]).1, []);
    let refusals = two.run(1, &[nudge(2), nudge(64), nudge(u32::MAX)]).0;
    assert_eq!(refusals, [refused(CallError::Invalid); 3], "no such process");
}

#[test]
fn what_a_process_has_left_to_others_is_theirs_when_it_ends() {
    let mut two = Two::new();
    two.listen(1);
    let (mut peer, handle) = two.connection(1000, 1);
    let (mut lost, other) = two.connection(1001, 1);
    let left = Call::Give { handle, to: ix_abi::GIVE_AT_END, token: 9 };
    let back = |token| Call::Give { handle: other, to: ix_abi::GIVE_AT_END, token };
    assert_eq!(two.run(1, &[left, back(8), back(0)]).0, [0; 3]);
    two.come(1, &[]);
    two.deliver(&mut peer, TcpFlags::ACK | TcpFlags::PSH, b"read");
    two.deliver(&mut peer, TcpFlags::ACK | TcpFlags::PSH, b"not");
    two.turn();
    assert_eq!(two.go(1).len(), 2);
    // It keeps and uses the connection as before.
    assert_eq!(two.run(1, &[Call::RecvDone { handle, bytes: 4 }]), (vec![0], vec![]));
    two.rig.threads[0].elastic.end_process(1, two.now_us);
    let (_, events) = two.run(0, &[]);
    let [Event::Given { token: 9, handle: given, from: 1, returned: 4, .. }] = events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(given, handle);
    let (codes, events) = two.run(0, &[Call::Accept { handle, cookie: 5 }]);
    assert_eq!(codes, [0]);
    let [Event::Recv { cookie: 5, data, .. }] = events[..] else { panic!("{events:?}") };
    assert_eq!(data.len, 3, "without what was returned");
    two.come(0, &[]);
    two.deliver(&mut peer, TcpFlags::ACK | TcpFlags::PSH, b"more");
    two.deliver(&mut lost, TcpFlags::ACK, &[]);
    two.turn();
    assert!(matches!(two.go(0)[..], [Event::Recv { cookie: 5, .. }]));
}

#[test]
fn a_listener_in_reserve_gets_what_nobody_else_would() {
    let mut two = Two::new();
    let listen = |two: &mut Two, number: u8| {
        let at = Endpoint { addr: ix_abi::v4([0; 4]), port: PORT };
        let cookie = 100 + u64::from(number);
        two.run(number, &[Call::Listen { at, backlog: 0, cookie, holds: false }]).0[0] as u64
    };
    let turn = |listener, freed| Call::Backlog { listener, backlog: 0, freed };
    let (reserve, other) = (listen(&mut two, 0), listen(&mut two, 1));
    assert_eq!(two.run(0, &[turn(reserve, ix_abi::IN_RESERVE)]).0, [0]);
    let foreign = two.run(1, &[turn(reserve, ix_abi::IN_TURN)]).0;
    assert_eq!(foreign, [refused(CallError::BadHandle)]);
    let knocked = |two: &mut Two, port| two.knock(port, &[0, 1]).1;
    assert_eq!([1000, 1001, 1002].map(|port| knocked(&mut two, port)), [1; 3]);
    assert_eq!(two.run(1, &[Call::Unlisten { listener: other }]).0, [0]);
    let _ = two.run(0, &[]);
    assert_eq!(knocked(&mut two, 1003), 0, "nobody else listens");
    listen(&mut two, 1);
    assert_eq!(two.run(0, &[turn(reserve, ix_abi::IN_TURN)]).0, [0]);
    let mut all = [1004, 1005].map(|port| knocked(&mut two, port));
    all.sort_unstable();
    assert_eq!(all, [0, 1], "in turn again");
}

/// Process 1 has received this on one connection, and sends it on by another one without a copy.
const FORWARDED: &[u8] = b"sent on without a copy";

impl Two {
    /// The connection that it came on, and the one that it leaves by, with its handle.
    fn forward(&mut self) -> (Peer, Peer, Handle) {
        self.listen(0);
        self.listen(1);
        let (mut from, _) = self.connection(1000, 1);
        let (to, handle) = self.connection(1001, 1);
        self.come(1, &[]);
        self.deliver(&mut from, TcpFlags::ACK | TcpFlags::PSH, FORWARDED);
        self.turn();
        let events = self.go(1);
        let [Event::Recv { data, .. }] = events[..] else { panic!("{events:?}") };
        assert_eq!(data.len as usize, FORWARDED.len());
        self.send_received(handle, data.addr);
        (from, to, handle)
    }

    fn send_received(&mut self, handle: Handle, addr: u64) {
        let words = [addr.to_ne_bytes(), (FORWARDED.len() as u64).to_ne_bytes()].concat();
        self.arena.write_all_at(&words, 0).unwrap();
        let sg = SgArray { addr: self.rig.shared.memory.arena().0 as u64, entries: 1 };
        let codes = self.run(1, &[Call::SendV { handle, sg, fin: false, eor: false, done: 0 }]).0;
        assert_eq!(codes, [FORWARDED.len() as i64]);
    }

    /// Another process's data fills all receive frames that are free.
    fn fill_frames(&mut self) {
        while self.device.next_sent().is_some() {}
        let (mut peer, handle) = self.connection(2000, 0);
        for _ in 0..1200 {
            self.come(0, &[Call::RecvDone { handle, bytes: 100 }]);
            self.deliver(&mut peer, TcpFlags::ACK | TcpFlags::PSH, &[b'X'; 100]);
            self.turn();
            self.go(0);
        }
    }

    /// Payloads that are sent again to this port of the peer after a time.
    fn sent_again(&mut self, port: u16) -> Vec<Vec<u8>> {
        while self.device.next_sent().is_some() {}
        let mut payloads = Vec::new();
        for _ in 0..200 {
            self.now_us += 10_000;
            self.come(0, &[]);
            self.turn();
            self.go(0);
            while let Some(frame) = self.device.next_sent() {
                let Ok(Parsed::Tcp(packet)) = ix_wire::parse(&frame, RxChecks::default()) else {
                    continue;
                };
                let payload = packet.payload.of(&frame);
                if packet.header.dst_port == port && !payload.is_empty() {
                    payloads.push(payload.to_vec());
                }
            }
        }
        payloads
    }

    fn rx_frames_in_use(&mut self) -> Option<u64> {
        self.now_us += 200_000;
        self.come(0, &[]);
        self.turn();
        self.rig.metrics().total("rx_frames_in_use")
    }
}

#[test]
fn received_frames_that_are_sent_on_stay_until_they_are_acknowledged() {
    let mut two = Two::new();
    let (_, mut to, _) = two.forward();
    two.rig.threads[0].elastic.end_process(1, two.now_us);
    two.turn();
    two.fill_frames();
    let again = two.sent_again(to.port);
    assert!(!again.is_empty(), "it was not acknowledged");
    assert!(again.iter().all(|payload| payload == FORWARDED), "{again:?}");
    // The data and FIN.
    to.ack += FORWARDED.len() as u32 + 1;
    two.deliver(&mut to, TcpFlags::ACK | TcpFlags::FIN, &[]);
    two.come(0, &[]);
    two.turn();
    assert_eq!(two.rx_frames_in_use(), Some(1), "all but the one that fills");
}

#[test]
fn received_frames_that_are_sent_on_by_a_connection_that_was_given_away_stay_too() {
    let mut two = Two::new();
    let (_, mut to, handle) = two.forward();
    two.run(0, &[]);
    assert_eq!(two.run(1, &[Call::Give { handle, to: 0, token: 1 }]).0, [0]);
    let (_, events) = two.run(0, &[]);
    assert!(matches!(events[..], [Event::Given { token: 1, .. }]), "{events:?}");
    assert_eq!(two.run(0, &[Call::Accept { handle, cookie: 5 }]).0, [0]);
    two.rig.threads[0].elastic.end_process(1, two.now_us);
    two.turn();
    assert!(two.rig.shared.mourning.is_mourned(1), "who gets its number would hear SENT of it");
    two.fill_frames();
    let again = two.sent_again(to.port);
    assert!(!again.is_empty(), "it was not acknowledged");
    assert!(again.iter().all(|payload| payload == FORWARDED), "{again:?}");
    to.ack += FORWARDED.len() as u32;
    two.deliver(&mut to, TcpFlags::ACK, &[]);
    two.come(0, &[]);
    two.turn();
    assert_eq!(two.rx_frames_in_use(), Some(1), "all but the one that fills");
    assert!(!two.rig.shared.mourning.is_mourned(1));
}

#[test]
fn frames_of_a_process_come_back_where_what_it_sends_on_is_reset() {
    let mut two = Two::new();
    let (_, mut to, _) = two.forward();
    two.rig.threads[0].elastic.end_process(1, two.now_us);
    two.turn();
    two.deliver(&mut to, TcpFlags::RST | TcpFlags::ACK, &[]);
    two.come(0, &[]);
    two.turn();
    assert_eq!(two.rx_frames_in_use(), Some(0));
    assert!(!two.rig.shared.mourning.is_mourned(1));
}

/// To end a listener takes a look at each flow, because any may wait there. However many end, it is
/// one look at each.
#[test]
fn many_listeners_that_end_at_once_cost_as_much_as_one() {
    const FLOWS: usize = 60_000;
    const LISTENERS: u16 = 1000;
    let mut two = Two::new();
    let mut flows = 0;
    for port in 1.. {
        let to = Endpoint { addr: PEER.0, port };
        let connect = Call::Connect { cookie: 1, to, congestion: None, local_port: 0 };
        let codes = two.run(0, &[connect; 1000]).0;
        flows += codes.iter().filter(|code| **code >= 0).count();
        two.device.take_sent();
        if flows >= FLOWS {
            break;
        }
    }
    let listen = |port| {
        let at = Endpoint { addr: ix_abi::v4([0; 4]), port };
        Call::Listen { at, backlog: 0, cookie: 1, holds: true }
    };
    let mut end = |number: u8, count: u16| {
        let listens: Vec<Call> = (1..=count).map(listen).collect();
        let ids = two.run(number, &listens).0;
        let ids = ids.into_iter().map(|id| u64::try_from(id).expect("a listener"));
        let ends: Vec<Call> = ids.map(|listener| Call::Unlisten { listener }).collect();
        let since = Instant::now();
        match number {
            0 => assert!(two.run(0, &ends).0.iter().all(|code| *code == 0)),
            _ => two.rig.threads[0].elastic.end_process(1, two.now_us),
        }
        since.elapsed()
    };
    let one = (0..5).map(|_| end(0, 1)).min().expect("five");
    let many = (0..5).map(|_| end(0, LISTENERS)).min().expect("five");
    assert!(many < 50 * one, "{many:?} for {LISTENERS}, {one:?} for one");
    let process = end(1, LISTENERS);
    let most = Duration::from_millis(100);
    assert!(process < most, "{process:?} at the end of a process, {one:?} for one");
}

/// A process may have as many UDP sockets as there are ports, and its end moves none of them twice.
#[test]
fn a_process_that_leaves_many_sockets_holds_up_nobody() {
    let mut two = Two::new();
    let mut bind = |number: u8, ports: std::ops::RangeInclusive<u16>| {
        let ports: Vec<u16> = ports.collect();
        for some in ports.chunks(1000) {
            let call = |port: &u16| {
                let at = Endpoint { addr: ix_abi::v4([0; 4]), port: *port };
                Call::UdpBind { at, cookie: 1 }
            };
            let calls: Vec<Call> = some.iter().map(call).collect();
            assert!(two.run(number, &calls).0.iter().all(|code| *code >= 0));
        }
    };
    bind(1, 1..=60_000);
    bind(0, 60_001..=60_001);
    // A port that is in use is found at once, however many are.
    let taken = Call::PacketBind { device: 0, kind: 3, number: 60_001, cookie: 1 };
    let since = Instant::now();
    let codes = two.run(0, &[taken; 2000]).0;
    let searched = since.elapsed();
    assert!(codes.iter().all(|code| *code == refused(CallError::InUse)), "{codes:?}");
    let since = Instant::now();
    two.rig.threads[0].elastic.end_process(1, two.now_us);
    let ended = since.elapsed();
    let most = Duration::from_millis(100);
    assert!(ended < most && searched < most, "{ended:?} to end, {searched:?} to search");
    let at = Endpoint { addr: ix_abi::v4([0; 4]), port: 1 };
    let again = [60_001, 1].map(|port| Call::UdpBind { at: Endpoint { port, ..at }, cookie: 1 });
    let codes = two.run(0, &again).0;
    assert!(codes[0] == refused(CallError::InUse) && codes[1] >= 0, "{codes:?}");
}

#[test]
fn a_process_that_leaves_many_connections_holds_up_nobody() {
    const CONNECTIONS: u16 = 500;
    /// Most that end in one cycle. The first one sends what was closed before it, too.
    const AT_ONCE: usize = 2 * 64;
    let mut two = Two::new();
    let at = Endpoint { addr: ix_abi::v4([0; 4]), port: PORT };
    let listen = Call::Listen { at, backlog: 0, cookie: 100, holds: false };
    let listener = u64::try_from(two.run(0, &[listen]).0[0]).expect("a listener");
    let (mut other, _) = two.connection(999, 0);
    assert_eq!(two.run(0, &[Call::Unlisten { listener }]).0, [0]);
    two.listen(1);
    for port in 1000..1000 + CONNECTIONS {
        two.connection(port, 1);
    }
    while two.sent().is_some() {}
    two.rig.threads[0].elastic.end_process(1, two.now_us);
    two.deliver(&mut other, TcpFlags::ACK | TcpFlags::PSH, b"data");
    two.come(0, &[]);
    let mut ends = 0;
    let mut heard = Vec::new();
    for _ in 0..CONNECTIONS {
        two.turn();
        let sent = std::iter::from_fn(|| two.sent());
        let now = sent.filter(|packet| packet.header.flags.contains(TcpFlags::FIN)).count();
        assert!(now <= AT_ONCE, "{now} connections end in one cycle");
        ends += now;
        if heard.is_empty() {
            heard = two.go(0);
            assert!(!heard.is_empty(), "the other process waits");
        }
    }
    assert_eq!(ends, usize::from(CONNECTIONS));
    assert!(two.rig.shared.mourning.is_over(1));
}

/// What knocks at a listener that ends is reset, a few connections in each cycle, or goes to
/// another process that listens there.
#[test]
fn a_listener_that_ends_with_many_connections_holds_up_nobody() {
    const CONNECTIONS: u16 = 500;
    const AT_ONCE: usize = 64;
    for ends_with_its_process in [false, true] {
        let mut two = Two::new();
        let at = Endpoint { addr: ix_abi::v4([0; 4]), port: PORT };
        let listen = Call::Listen { at, backlog: 0, cookie: 100, holds: true };
        let own = u64::try_from(two.run(0, &[listen]).0[0]).expect("a listener");
        let (mut other, _) = two.connection(999, 0);
        assert_eq!(two.run(0, &[Call::Unlisten { listener: own }]).0, [0]);
        let listen = Call::Listen { at, backlog: 0, cookie: 101, holds: true };
        let listener = u64::try_from(two.run(1, &[listen]).0[0]).expect("a listener");
        let mut handles = Vec::new();
        for port in 1000..1000 + CONNECTIONS {
            handles.push(two.knock(port, &[1]).2);
        }
        // One handshake is under way.
        two.come(1, &[]);
        two.device.deliver(segment(two.mac, 3000, TcpFlags::SYN, Seq(1), Seq(0)));
        two.turn();
        two.turn();
        let syn_ack = std::iter::from_fn(|| two.sent()).last().expect("a SYN-ACK").header;
        two.go(1);
        if ends_with_its_process {
            two.rig.threads[0].elastic.end_process(1, two.now_us);
        } else {
            assert_eq!(two.run(1, &[Call::Unlisten { listener }]).0, [0]);
        }
        // Its last acknowledgement comes too late.
        let late = segment(two.mac, 3000, TcpFlags::ACK, Seq(2), syn_ack.seq + 1);
        two.device.deliver(late);
        two.deliver(&mut other, TcpFlags::ACK | TcpFlags::PSH, b"data");
        two.come(0, &[]);
        let resets_of = |two: &mut Two| {
            let sent = std::iter::from_fn(|| two.sent());
            sent.filter(|packet| packet.header.flags.contains(TcpFlags::RST)).count()
        };
        // The call has looked at some, and so has the cycle after it.
        let (mut resets, mut heard) = (resets_of(&mut two), Vec::new());
        assert!(resets <= 2 * AT_ONCE, "{resets} connections are reset at once");
        for _ in 0..CONNECTIONS {
            two.turn();
            let now = resets_of(&mut two);
            // Those of a cycle may leave in the next one.
            assert!(now <= 2 * AT_ONCE, "{now} connections are reset in one cycle");
            resets += now;
            if heard.is_empty() {
                heard = two.go(0);
                assert!(!heard.is_empty(), "the other process waits");
            }
        }
        assert_eq!(resets, usize::from(CONNECTIONS) + 1, "{ends_with_its_process}");
        if !ends_with_its_process {
            let (codes, events) = two.run(1, &[Call::Accept { handle: handles[0], cookie: 1 }]);
            assert_eq!((codes, events), (vec![refused(CallError::BadHandle)], vec![]));
        }
        // Its address is free, and serves.
        two.listen(0);
        two.connection(4000, 0);
    }
}

/// While connections that wait at a listener that has ended are looked at, they can go to another
/// elastic thread: none waits there for ever.
#[test]
fn connections_of_a_listener_that_ends_do_not_migrate() {
    const CONNECTIONS: usize = 450;
    let mut two = Two::with(2);
    let at = Endpoint { addr: ix_abi::v4([0; 4]), port: PORT };
    let listen = Call::Listen { at, backlog: 0, cookie: 100, holds: false };
    let listener = u64::try_from(two.run(0, &[listen]).0[0]).expect("a listener");
    let mut knocking = 0;
    for port in 1000.. {
        two.come(0, &[]);
        two.device.deliver(segment(two.mac, port, TcpFlags::SYN, Seq(1), Seq(0)));
        two.turn();
        two.turn();
        // Half of the ports are the other elastic thread's.
        if let Some(reply) = two.sent() {
            let ack = reply.header.seq + 1;
            two.device.deliver(segment(two.mac, port, TcpFlags::ACK, Seq(2), ack));
            two.turn();
            knocking += two.go(0).len();
        } else {
            two.at = 1;
            two.run(0, &[]);
            two.turn();
            two.at = 0;
            two.device.take_sent();
        }
        if knocking == CONNECTIONS {
            break;
        }
    }
    two.at = 1;
    two.run(0, &[]);
    two.at = 0;
    while two.sent().is_some() {}
    assert_eq!(two.run(0, &[Call::Unlisten { listener }]).0, [0]);
    let groups = two.rig.threads[0].elastic.groups_here();
    two.rig.threads[0].elastic.migrate(groups, 1, 7).expect("it begins");
    for _ in 0..1000 {
        for at in [1, 0] {
            two.at = at;
            two.come(0, &[]);
            two.turn();
        }
    }
    let resets = std::iter::from_fn(|| two.sent());
    // The other thread has refused SYNs, with sequence number 0.
    let is_one = |header: TcpHeader| header.flags.contains(TcpFlags::RST) && header.seq != Seq(0);
    let resets = resets.filter(|packet| is_one(packet.header)).count();
    assert_eq!(resets, CONNECTIONS);
}

#[test]
fn a_migration_does_not_wait_for_a_process_that_computes_for_too_long() {
    let mut two = Two::with(2);
    // A port whose connection is on the first elastic thread.
    let at_first = |port: &u16| {
        let probe = segment(two.mac, *port, TcpFlags::RST, Seq(1), Seq(0));
        two.device.deliver(probe) == 0
    };
    let port = (1000..).find(at_first).unwrap();
    two.listen(0);
    let (mut peer, handle) = two.connection(port, 0);
    for at in [1, 0] {
        two.at = at;
        two.run(1, &[]); // it computes from now on
        two.come(0, &[]);
    }
    let groups = two.rig.threads[0].elastic.groups_here();
    let count = groups.iter().count();
    two.rig.threads[0].elastic.migrate(groups, 1, 7).unwrap();
    two.spin(1_000);
    let leaves = two.go(0);
    let is_leaves = |event: &Event| matches!(event, Event::GroupLeaves { to: 1, .. });
    assert!(leaves.len() == count && leaves.iter().all(is_leaves), "{leaves:?}");
    two.come(0, &[]);
    two.deliver(&mut peer, TcpFlags::ACK | TcpFlags::PSH, b"data");
    two.spin(5_000);
    assert_eq!(two.go(0), [], "the process that computes may still return");
    two.come(0, &[]);
    two.spin(6_000);
    let arrived = two.go(0);
    let is_back = |event: &Event| matches!(event, Event::GroupArrived { from: 1, .. });
    assert!(arrived.len() == count && arrived.iter().all(is_back), "{arrived:?}");
    // It may give its connections other names before it hears of them again.
    two.come(0, &[Call::SetCookie { handle, cookie: 5 }]);
    two.spin(11_000);
    let events = two.go(0);
    let [Event::Recv { cookie: 5, .. }] = events[..] else { panic!("{events:?}") };
    let record = two.rig.threads[0].elastic.take_migration().expect("an end");
    assert_eq!((record.end, record.command), (ix_proto::MigrationEnd::Refused, 7));
    assert_eq!(two.rig.threads[0].elastic.groups_here(), groups);
    // The other one hears of all that when it returns, and of nothing else.
    let (_, events) = two.run(1, &[]);
    let [leaves, arrived] = [&events[..count], &events[count..]];
    assert!(leaves.iter().all(is_leaves) && arrived.iter().all(is_back), "{events:?}");
    assert_eq!(arrived.len(), count);
    // Nobody computes for long: the groups go.
    two.run(1, &[]);
    two.at = 1;
    two.run(1, &[]);
    two.come(1, &[]);
    two.at = 0;
    two.come(1, &[]);
    two.come(0, &[]);
    two.rig.threads[0].elastic.migrate(groups, 1, 8).unwrap();
    for _ in 0..20 {
        two.spin(200);
        for at in [1, 0] {
            two.at = at;
            two.come(0, &[]);
            two.come(1, &[]);
        }
    }
    assert!(two.rig.threads[0].elastic.groups_here().is_empty());
}

#[test]
fn the_last_process_is_alone_again_and_what_the_others_left_ends_where_it_arrives() {
    let mut two = Two::with(2);
    let at_first = |port: &u16| {
        let probe = segment(two.mac, *port, TcpFlags::RST, Seq(1), Seq(0));
        two.device.deliver(probe) == 0
    };
    let port = (1000..).find(at_first).unwrap();
    two.listen(1);
    two.connection(port, 1);
    two.come(0, &[]);
    two.at = 1;
    two.run(0, &[]);
    // The second elastic thread hears of the end before the first one.
    two.rig.threads[1].elastic.end_process(1, two.now_us);
    two.at = 0;
    two.come(1, &[]);
    let groups = two.rig.threads[0].elastic.groups_here();
    two.rig.threads[0].elastic.migrate(groups, 1, 7).unwrap();
    two.spin(1_000);
    while two.sent().is_some() {}
    // Both return on the first one; on the second one the only one does, and once more when it has
    // heard.
    two.come(1, &[]);
    for at in [0, 1, 1] {
        two.at = at;
        two.come(0, &[]);
        two.spin(200);
    }
    two.at = 0;
    assert!(two.rig.threads[0].elastic.groups_here().is_empty());
    let end = std::iter::from_fn(|| two.sent()).find(|packet| packet.header.dst_port == port);
    let flags = end.expect("the end of its connection").header.flags;
    assert!(flags.contains(TcpFlags::FIN) || flags.contains(TcpFlags::RST), "{flags:?}");
    two.rig.threads[0].elastic.end_process(1, two.now_us);
    // Who is alone gets all the time that it wants before groups leave.
    two.at = 1;
    two.come(0, &[]);
    let groups = two.rig.threads[1].elastic.groups_here();
    two.rig.threads[1].elastic.migrate(groups, 0, 8).unwrap();
    two.spin(1_000);
    assert!(!two.go(0).is_empty(), "it is told");
    two.spin(50_000);
    assert_eq!(two.rig.threads[1].elastic.groups_here(), groups, "it computes");
    for _ in 0..20 {
        for at in [0, 1] {
            two.at = at;
            two.come(0, &[]);
        }
        two.spin(200);
    }
    assert!(two.rig.threads[1].elastic.groups_here().is_empty());
}

#[test]
fn a_process_that_computes_hears_of_moved_groups_before_anything_else() {
    let mut two = Two::with(2);
    for at in [1, 0] {
        two.at = at;
        two.run(1, &[]);
        two.come(0, &[]);
    }
    let groups = two.rig.threads[0].elastic.groups_here();
    two.rig.threads[0].elastic.migrate(groups, 1, 7).unwrap();
    two.spin(1_000);
    // It returns for the first time: it has not heard, so the groups do not go yet.
    two.come(0, &[]);
    let (_, events) = two.run(1, &[]);
    assert!(events.iter().all(|event| matches!(event, Event::GroupLeaves { .. })), "{events:?}");
    assert_eq!(two.rig.threads[0].elastic.groups_here(), groups);
    // The second time it has.
    two.run(1, &[]);
    assert!(two.rig.threads[0].elastic.groups_here().is_empty());
}

/// Data of a connection whose group leaves is announced where it arrives, or when it stays: not to
/// a process that has just given its name of the connection away.
#[test]
fn news_of_what_is_moving_wait_until_it_has_its_new_name() {
    for begins_late in [false, true] {
        let mut two = Two::with(2);
        let at_first = |port: &u16| {
            let probe = segment(two.mac, *port, TcpFlags::RST, Seq(1), Seq(0));
            two.device.deliver(probe) == 0
        };
        let port = (1000..).find(at_first).unwrap();
        two.listen(0);
        let (mut peer, handle) = two.connection(port, 0);
        for at in [1, 0] {
            two.at = at;
            two.run(1, &[]); // it computes from now on
            two.run(0, &[]); // and so does this one
        }
        // Its data waits for the process.
        two.deliver(&mut peer, TcpFlags::ACK | TcpFlags::PSH, b"data");
        if !begins_late {
            two.spin(100);
        }
        let groups = two.rig.threads[0].elastic.groups_here();
        let count = groups.iter().count();
        two.rig.threads[0].elastic.migrate(groups, 1, 7).unwrap();
        two.spin(1_000);
        let (_, leaves) = two.run(0, &[]);
        let is_leaves = |event: &Event| matches!(event, Event::GroupLeaves { to: 1, .. });
        assert!(leaves.len() == count && leaves.iter().all(is_leaves), "{leaves:?}");
        // It has given up its names, and waits. The other one still computes.
        two.come(0, &[]);
        two.spin(1_000);
        assert_eq!(two.go(0), [], "no name that it does not know");
        two.come(0, &[]);
        two.spin(10_000);
        let arrived = two.go(0);
        let is_back = |event: &Event| matches!(event, Event::GroupArrived { from: 1, .. });
        assert!(arrived.len() == count && arrived.iter().all(is_back), "{arrived:?}");
        two.come(0, &[Call::SetCookie { handle, cookie: 5 }]);
        two.spin(11_000);
        let events = two.go(0);
        let [Event::Recv { cookie: 5, .. }] = events[..] else { panic!("{events:?}") };
    }
}

/// A connection whose group is leaving stays with its process: another one may have heard of the
/// group already, and would not take it along.
#[test]
fn a_connection_that_is_moving_is_not_given_away() {
    let mut two = Two::with(2);
    let at_first = |port: &u16| {
        let probe = segment(two.mac, *port, TcpFlags::RST, Seq(1), Seq(0));
        two.device.deliver(probe) == 0
    };
    let port = (1000..).find(at_first).unwrap();
    two.listen(0);
    let (_, handle) = two.connection(port, 0);
    for at in [1, 0] {
        two.at = at;
        two.run(0, &[]); // it computes from now on
        two.run(1, &[]);
        two.come(1, &[]);
    }
    let give = Call::Give { handle, to: 1, token: 3 };
    let groups = two.rig.threads[0].elastic.groups_here();
    two.rig.threads[0].elastic.migrate(groups, 1, 7).unwrap();
    two.spin(1_000);
    assert!(!two.go(1).is_empty(), "it has heard that they leave");
    two.come(1, &[]);
    assert_eq!(two.come(0, &[give]), [refused(CallError::State)]);
    two.go(0);
    two.spin(30_000);
    // They stayed, and it may be given.
    two.run(0, &[]);
    assert_eq!(two.come(0, &[give]), [0]);
}

/// What waits for a process that computes goes along with its flow group, in order.
#[test]
fn what_waits_for_a_process_goes_with_its_group() {
    // Where packets go in the device does not change in time.
    let lag_us = Some(1_000_000);
    let mut two = Two::on(SimOptions { queues: 2, lag_us, ..SimOptions::default() });
    let header = FrameHeader {
        eth_src: PEER_MAC,
        eth_dst: two.mac,
        src: PEER,
        dst: OURS,
        ttl: ipv4::DEFAULT_TTL,
        tos: 0,
        ident: 1,
    };
    let datagram = |port: u16, len: usize| {
        let mut frame = vec![0; 42 + len];
        header.emit_udp(&mut frame, port, 9, len, Checksum::of(&vec![0; len]));
        frame
    };
    // Their flow groups are on both threads.
    const SENDERS: usize = 16;
    let deliver = |two: &mut Two, more: usize| {
        for sender in 0..SENDERS {
            two.device.deliver(datagram(1000 + sender as u16, sender + more));
        }
        two.spin(100);
    };
    let at = Endpoint { addr: ix_abi::v4([0; 4]), port: 9 };
    for thread in [1, 0] {
        two.at = thread;
        two.run(1, &[Call::UdpBind { at, cookie: 9 }]);
        two.come(0, &[]);
    }
    deliver(&mut two, SENDERS);
    let groups = two.rig.threads[0].elastic.groups_here();
    two.rig.threads[0].elastic.migrate(groups, 1, 7).unwrap();
    two.spin(1_000);
    deliver(&mut two, 2 * SENDERS);
    let mut lens = Vec::new();
    for _ in 0..20 {
        for thread in [0, 1] {
            two.at = thread;
            two.come(0, &[]);
            two.come(1, &[]);
            two.spin(200);
            let len = |event: Event| match event {
                Event::UdpRecv { data, .. } => Some(data.len as usize),
                _ => None,
            };
            lens.extend(two.go(1).into_iter().filter_map(len));
        }
    }
    assert!(two.rig.threads[0].elastic.groups_here().is_empty());
    for sender in 0..SENDERS {
        let of_it = lens.iter().filter(|len| **len % SENDERS == sender).copied();
        assert_eq!(of_it.collect::<Vec<_>>(), [sender + SENDERS, sender + 2 * SENDERS]);
    }
}

/// A process may leave as many connections as there are. They are looked at a few at a time, soon,
/// until nothing is left.
#[test]
fn what_many_connections_of_a_process_leave_is_looked_at_a_few_at_a_time() {
    const FLOWS: u16 = 600;
    const LOOK_US: u64 = 1_000;
    let mut two = Two::new();
    two.listen(1);
    let sg = two.piece(4);
    let mut peers: Vec<Peer> = Vec::new();
    for port in 1000..1000 + FLOWS {
        let (peer, handle) = two.connection(port, 1);
        assert_eq!(
            two.run(1, &[Call::SendV { handle, sg, fin: false, eor: false, done: 0 }]).0,
            [4]
        );
        two.device.take_sent();
        peers.push(peer);
    }
    two.rig.threads[0].elastic.end_process(1, two.now_us);
    assert!(two.rig.shared.mourning.is_mourned(1), "nothing was acknowledged");
    for peer in &mut peers {
        two.deliver(peer, TcpFlags::RST | TcpFlags::ACK, &[]);
        two.turn();
    }
    let mut looks = 0;
    while two.rig.shared.mourning.is_mourned(1) {
        let due_us = two.rig.threads[0].elastic.next_deadline_us();
        assert!(due_us.is_some_and(|due_us| due_us <= two.now_us + LOOK_US), "{due_us:?}");
        two.now_us += LOOK_US;
        two.turn();
        looks += 1;
    }
    assert!((2..20).contains(&looks), "{looks}");
    // Then there is nothing to look at.
    for _ in 0..2 {
        two.now_us += LOOK_US;
        two.turn();
    }
    let due_us = two.rig.threads[0].elastic.next_deadline_us();
    assert!(due_us.is_none_or(|due_us| due_us > two.now_us + LOOK_US), "{due_us:?}");
}

impl Two {
    /// A piece of transmit memory of this many bytes, to be sent.
    fn piece(&self, bytes: u64) -> SgArray {
        let base = self.rig.shared.memory.arena().0 as u64;
        let words = [(base + 4096).to_ne_bytes(), bytes.to_ne_bytes()].concat();
        self.arena.write_all_at(&words, 0).unwrap();
        SgArray { addr: base, entries: 1 }
    }

    /// Whether there is a RST among what was sent.
    fn has_reset(&mut self) -> bool {
        let mut is_reset = false;
        while let Some(frame) = self.device.next_sent() {
            if let Ok(Parsed::Tcp(packet)) = ix_wire::parse(&frame, RxChecks::default()) {
                is_reset |= packet.header.flags.contains(TcpFlags::RST);
            }
        }
        is_reset
    }
}

/// A peer that keeps windows closed could keep the number of each process that served it.
#[test]
fn where_numbers_are_short_a_dead_process_whose_peer_takes_nothing_loses_its_connection() {
    const STEP_US: u64 = 50_000;
    let mut two = Two::new();
    two.listen(1);
    let sg = two.piece(4);
    let (_, handle) = two.connection(1000, 1);
    assert_eq!(two.run(1, &[Call::SendV { handle, sg, fin: false, eor: false, done: 0 }]).0, [4]);
    let reset_in = |two: &mut Two, us: u64| {
        let end_us = two.now_us + us;
        let mut is_reset = false;
        while two.now_us < end_us {
            two.now_us += STEP_US;
            let wanted = two.rig.shared.mourning.is_any_wanted();
            two.rig.shared.mourning.want(if wanted { 1 << 1 } else { 0 });
            two.turn();
            is_reset |= two.has_reset();
        }
        is_reset
    };
    two.rig.threads[0].elastic.end_process(1, two.now_us);
    assert!(!reset_in(&mut two, 3_000_000), "there are numbers enough");
    assert!(!two.rig.shared.mourning.is_over(1));
    two.rig.shared.mourning.want(1 << 1);
    assert!(reset_in(&mut two, 500_000));
    assert!(two.rig.shared.mourning.is_over(1));
}

#[test]
fn where_numbers_are_short_a_peer_that_takes_what_it_is_sent_is_not_reset() {
    let mut two = Two::new();
    two.listen(1);
    let sg = two.piece(40);
    let (mut peer, handle) = two.connection(1000, 1);
    assert_eq!(two.run(1, &[Call::SendV { handle, sg, fin: false, eor: false, done: 0 }]).0, [40]);
    two.rig.threads[0].elastic.end_process(1, two.now_us);
    // A byte each 0.7 s, by a peer that is slow.
    for _ in 0..39 {
        for _ in 0..7 {
            two.now_us += 100_000;
            two.rig.shared.mourning.want(1 << 1);
            two.turn();
        }
        peer.ack += 1;
        two.deliver(&mut peer, TcpFlags::ACK, &[]);
        two.turn();
        assert!(!two.has_reset());
        assert!(!two.rig.shared.mourning.is_over(1));
    }
    // The last byte and FIN.
    peer.ack += 2;
    two.deliver(&mut peer, TcpFlags::ACK, &[]);
    for _ in 0..3 {
        two.now_us += 100_000;
        two.turn();
    }
    assert!(two.rig.shared.mourning.is_over(1));
}

impl Two {
    /// The second process has ended and left this, behind `calls` calls of its last batch.
    fn ends_with_will(&mut self, calls: usize, entries: Vec<WillEntry>) {
        let state = WillState { list: 0, count: entries.len(), calls };
        let elastic = &mut self.rig.threads[0].elastic;
        elastic.carry_out_will(1, 0, (state, entries), self.now_us);
        elastic.end_process(1, self.now_us);
    }

    /// What the peer gets until the end; it acknowledges all. `None`: it is reset.
    fn rest(&mut self, peer: &mut Peer) -> Option<usize> {
        let mut bytes = 0;
        for _ in 0..10_000 {
            self.turn();
            let Some(packet) = self.sent() else { continue };
            let flags = packet.header.flags;
            if flags.0 & TcpFlags::RST.0 != 0 {
                return None;
            }
            if packet.header.seq == peer.ack {
                bytes += usize::from(packet.payload.len);
                peer.ack += packet.payload.len as u32;
            }
            if flags.0 & TcpFlags::FIN.0 != 0 {
                return Some(bytes);
            }
            self.deliver(peer, TcpFlags::ACK, &[]);
        }
        panic!("no end")
    }
}

#[test]
fn what_a_process_has_left_to_be_done_is_done_before_its_connections_end() {
    let mut two = Two::new();
    two.listen(1);
    let (mut peer, _, handle) = two.knock(1000, &[1]);
    two.come(0, &[]);
    two.deliver(&mut peer, TcpFlags::ACK | TcpFlags::PSH, b"ask");
    two.turn();
    let base = two.rig.shared.memory.arena().0 as u64;
    let entry = |base, len| WillEntry { handle, at_end: 0, base, len };
    // It was accepted and read, and the answer is longer than the window.
    let read = [entry(0, 0), entry(0, 3)];
    let sent = [entry(base + 4096, 5), entry(base + 8192, 700_000), entry(base + 8192, 1)];
    two.ends_with_will(0, [&read[..], &sent].concat());
    assert_eq!(two.rest(&mut peer), Some(700_006));
}

#[test]
fn what_was_not_read_resets_the_connection_all_the_same() {
    let mut two = Two::new();
    two.listen(1);
    let (mut peer, handle) = two.connection(1000, 1);
    two.deliver(&mut peer, TcpFlags::ACK | TcpFlags::PSH, b"ask");
    two.turn();
    two.ends_with_will(0, vec![WillEntry { handle, at_end: 0, base: 0, len: 2 }]);
    assert_eq!(two.rest(&mut peer), None);
}

#[test]
fn what_the_window_has_not_taken_of_the_last_batch_comes_first() {
    let mut two = Two::new();
    two.listen(1);
    let (mut peer, handle) = two.connection(1000, 1);
    two.spin(100);
    two.device.take_sent();
    let base = two.rig.shared.memory.arena().0 as u64;
    let words = [(base + 4096).to_ne_bytes(), 1_000_000u64.to_ne_bytes()].concat();
    two.arena.write_all_at(&words, 0).unwrap();
    let sg = SgArray { addr: base, entries: 1 };
    let taken = two.come(1, &[Call::SendV { handle, sg, fin: false, eor: false, done: 0 }])[0];
    assert!((1..1_000_000).contains(&taken), "{taken}");
    two.ends_with_will(1, vec![WillEntry { handle, at_end: 0, base: base + 4096, len: 7 }]);
    assert_eq!(two.rest(&mut peer), Some(1_000_007));
}

#[test]
fn a_will_harms_only_who_has_made_it() {
    let mut two = Two::new();
    two.listen(0);
    let (mut peer, kept) = two.connection(1000, 0);
    two.run(0, &[]);
    two.listen(1);
    let (_, own) = two.connection(1001, 1);
    let (base, bytes) = two.rig.shared.memory.arena();
    let (base, end) = (base as u64, (base + bytes) as u64);
    let mut entries = Vec::new();
    for handle in [kept, own, 0, u64::MAX, own ^ 1 << 40] {
        for base in [0, 1, base, end - 1, end, u64::MAX, base - 1] {
            for len in [0, 1, 2 << 20, 1 << 26, 1 << 32, u64::MAX] {
                entries.push(WillEntry { handle, at_end: len, base, len });
            }
        }
    }
    two.ends_with_will(ix_abi::CALLS_MAX, entries);
    two.spin(1000);
    two.device.take_sent();
    two.come(0, &[]);
    two.deliver(&mut peer, TcpFlags::ACK | TcpFlags::PSH, b"on");
    two.turn();
    let heard = two.go(0);
    assert!(
        heard.iter().any(|event| matches!(event, Event::Recv { cookie: 1000, .. })),
        "{heard:?}"
    );
}
