//! Large receive windows of flows that share the frames of a thread: what is offered to all of them
//! is there, and what is not is asked for again.
use crate::peer::{OURS, PEER, PEER_MAC, frame_with, listen};
use ix_abi::{Call, CallSlot, EVENTS_MAX, Event, EventSlot, SgArray, event_kind};
use ix_dataplane::Config;
use ix_mem::Sizes;
use ix_rig::{BareRig, RigOptions, SimDevice, SimOptions, VirtualClock};
use ix_wire::{Parsed, RxChecks, Seq, TcpFlags, TcpHeader, TcpOptions};

const SEGMENT: usize = 1460;
const ROUND_TRIP_US: u64 = 100_000;
/// Segments that arrive at once.
const BURST: usize = 16;

/// A connection whose peer sends bulk data.
struct Flow {
    port: u16,
    handle: u64,
    ours: Seq,
    /// What the peer sends next, and what was acknowledged.
    next: Seq,
    acked: Seq,
    /// Right edge of the window.
    edge: Seq,
    /// Bytes that the application has and has not returned.
    held: u64,
}

struct Host {
    rig: BareRig,
    device: SimDevice,
    clock: VirtualClock,
    flows: Vec<Flow>,
    /// The application returns what it gets at once.
    reads: bool,
    shift: u8,
}

impl Host {
    fn new(rx_frames: usize, flows: u16) -> Host {
        let clock = VirtualClock::default();
        let device = SimDevice::new(SimOptions::default(), &clock);
        let config =
            Config { arp: vec![(PEER, PEER_MAC)], rx_frames, ..Config::with_address(OURS, 24) };
        let sizes = Some(Sizes { rx_frames, tx_frames: 1024, arena_bytes: 2 << 20 });
        let shift = config.tcp.window_shift();
        let rig = BareRig::new(RigOptions { config, sizes, clock: clock.clone() }, device.nics());
        let mut host = Host { rig, device, clock, flows: Vec::new(), reads: true, shift };
        host.run(&[listen()]);
        (0..flows).for_each(|nth| host.connect(nth));
        host
    }

    fn run(&mut self, calls: &[CallSlot]) -> Vec<EventSlot> {
        self.rig.run(0, calls, self.clock.now_us()).1
    }

    fn connect(&mut self, nth: u16) {
        let (port, options) =
            (1000 + nth, TcpOptions { window_scale: Some(7), ..TcpOptions::NONE });
        self.put(port, TcpFlags::SYN, (Seq(1), Seq(0)), options, 0);
        self.run(&[]);
        self.run(&[]);
        let syn_ack = *self.sent().last().expect("a SYN-ACK");
        let (ours, offered) = (syn_ack.seq + 1, u32::from(syn_ack.window));
        self.clock.advance(ROUND_TRIP_US);
        self.put(port, TcpFlags::ACK, (Seq(2), ours), TcpOptions::NONE, 0);
        let knocks = self.run(&[]);
        let knock = knocks.iter().find(|e| e.kind == event_kind::KNOCK).expect("a knock");
        let handle = knock.handle;
        self.run(&[Call::Accept { handle, cookie: nth.into() }.encode()]);
        let (next, edge) = (Seq(2), Seq(2) + offered);
        self.flows.push(Flow { port, handle, ours, next, acked: next, edge, held: 0 });
    }

    fn put(
        &mut self,
        src_port: u16,
        flags: TcpFlags,
        (seq, ack): (Seq, Seq),
        options: TcpOptions,
        len: usize,
    ) {
        let dst_port = 80;
        let header =
            TcpHeader { src_port, dst_port, seq, ack, flags, window: 1000, urgent: 0, options };
        let mac = self.device.options().mac;
        self.device.deliver(frame_with(mac, &header, &vec![7; len]));
    }

    /// The segments that were sent; acknowledgements move the windows, and none back.
    fn sent(&mut self) -> Vec<TcpHeader> {
        let frames = std::iter::from_fn(|| self.device.next_sent());
        let segments =
            frames.filter_map(|frame| match ix_wire::parse(&frame, RxChecks::default()) {
                Ok(Parsed::Tcp(segment)) => Some(segment.header),
                _ => None,
            });
        let segments: Vec<TcpHeader> = segments.collect();
        for header in segments.iter().filter(|header| !header.flags.contains(TcpFlags::SYN)) {
            let Some(flow) = self.flows.iter_mut().find(|flow| flow.port == header.dst_port) else {
                continue;
            };
            flow.acked = flow.acked.max(header.ack);
            if header.flags.contains(TcpFlags::RST) {
                continue;
            }
            let edge = header.ack + (u32::from(header.window) << self.shift);
            assert!(
                flow.edge.lt(edge + (1 << self.shift)),
                "{:?} goes back to {edge:?}",
                flow.edge
            );
            flow.edge = flow.edge.max(edge);
        }
        segments
    }

    /// One cycle with what has arrived; the application gets it, and returns it if it reads.
    fn cycle(&mut self) -> Vec<TcpHeader> {
        let mut calls = Vec::new();
        for event in self.run(&[]) {
            if let Ok(Event::Recv { cookie, handle, data, .. }) = Event::decode(&event) {
                let bytes = u64::from(data.len);
                match self.reads {
                    true => calls.push(Call::RecvDone { handle, bytes }.encode()),
                    false => self.flows[cookie as usize].held += bytes,
                }
            }
        }
        self.run(&calls);
        self.sent()
    }

    /// A peer sends what its window allows, at most `most` bytes; how much that was.
    fn send(&mut self, nth: usize, most: usize) -> usize {
        let mut sent = 0;
        loop {
            let mut burst = 0;
            while burst < BURST {
                let Flow { port, ours, next, edge, .. } = self.flows[nth];
                let room = (edge - next).max(0) as usize;
                let len = SEGMENT.min(room).min(most - sent);
                if len == 0 {
                    break;
                }
                self.put(port, TcpFlags::ACK, (next, ours), TcpOptions::NONE, len);
                self.flows[nth].next += len as u32;
                (burst, sent) = (burst + 1, sent + len);
            }
            if burst == 0 {
                return sent;
            }
            self.cycle();
            self.clock.advance(10);
        }
    }

    /// What delayed acknowledgements wait for.
    fn settle(&mut self) {
        for _ in 0..5 {
            self.clock.advance(10_000);
            self.cycle();
        }
    }

    fn total(&self, counter: &str) -> u64 {
        self.rig.metrics().total(counter).expect("a counter")
    }
}

/// Flows grow while the program reads. Then it pauses, and all peers send what they were offered.
#[test]
fn what_is_offered_to_all_flows_is_there() {
    for (rx_frames, flows) in [(16_384, 6), (8_192, 2), (4_096, 3)] {
        let mut host = Host::new(rx_frames, flows);
        for _ in 0..8 {
            for nth in 0..host.flows.len() {
                host.send(nth, 2_000_000);
            }
            host.settle();
            host.clock.advance(ROUND_TRIP_US);
        }
        let edges: Vec<i32> = host.flows.iter().map(|flow| flow.edge - flow.next).collect();
        let all: i32 = edges.iter().sum();
        assert!(all > 600_000 * i32::from(flows), "they have not grown: {edges:?}");
        host.reads = false;
        for _ in 0..3 {
            for nth in 0..host.flows.len() {
                host.send(nth, usize::MAX);
            }
            host.settle();
        }
        assert_eq!(host.total("drops.rx_pressure"), 0, "of {edges:?}, {rx_frames} frames");
        for flow in &host.flows {
            assert_eq!(flow.acked, flow.next);
        }
        // At rest nothing is promised, which the dataplane itself checks.
        for nth in 0..host.flows.len() {
            let handle = host.flows[nth].handle;
            host.run(&[Call::Abort { handle }.encode()]);
        }
        host.settle();
        assert_eq!(host.total("flows"), 0);
    }
}

/// The first segment of a large window is lost: with the second copy of it more pieces become
/// readable than the event array holds. All of them are announced.
#[test]
fn more_data_at_once_than_there_are_events_is_announced() {
    let mut host = Host::new(16_384, 1);
    for _ in 0..16 {
        host.send(0, 8_000_000);
        host.settle();
        host.clock.advance(ROUND_TRIP_US);
    }
    host.reads = false;
    let Flow { port, ours, next: lost, .. } = host.flows[0];
    host.flows[0].next += SEGMENT as u32;
    let bytes = host.send(0, usize::MAX) + SEGMENT;
    assert!(bytes > EVENTS_MAX * SEGMENT, "{bytes} are no more than the array holds");
    assert_eq!(host.flows[0].held, 0);
    host.put(port, TcpFlags::ACK, (lost, ours), TcpOptions::NONE, SEGMENT);
    let mut heard = 0;
    for _ in 0..3 {
        let pieces = host.run(&[]).into_iter().filter_map(|event| match Event::decode(&event) {
            Ok(Event::Recv { data, .. }) => Some(data.len as usize),
            _ => None,
        });
        heard += pieces.sum::<usize>();
    }
    assert_eq!(heard, bytes);
}

/// Connections that were fast once and are idle leave the memory to those that are fast now. What
/// they were offered remains theirs.
#[test]
fn idle_connections_do_not_keep_others_small() {
    let mut host = Host::new(16_384, 12);
    let grow = |host: &mut Host, which: std::ops::Range<usize>| {
        for _ in 0..12 {
            for nth in which.clone() {
                host.send(nth, 2_000_000);
            }
            host.settle();
            host.clock.advance(ROUND_TRIP_US);
        }
        let windows = host.flows[which].iter().map(|flow| flow.edge - flow.next);
        windows.sum::<i32>()
    };
    let first = grow(&mut host, 0..6);
    assert!(first > 600_000 * 6, "they have not grown: {first}");
    let edges: Vec<Seq> = host.flows[..6].iter().map(|flow| flow.edge).collect();
    host.clock.advance(2_000_000);
    let second = grow(&mut host, 6..12);
    assert!(second > first / 2, "{second} after {first}");
    // The first generation begins again, with all that it was offered.
    for (nth, edge) in edges.into_iter().enumerate() {
        assert!(edge.le(host.flows[nth].edge));
        host.send(nth, (edge - host.flows[nth].next) as usize);
    }
    host.settle();
    for flow in &host.flows {
        assert_eq!(flow.acked, flow.next);
    }
    assert_eq!(host.total("drops.rx_pressure"), 0);
}

/// Peers send all that they may, and the application keeps it, because they take nothing of its
/// answers. Each has its share, nobody is reset, and another one is served all the time.
#[test]
fn slow_readers_have_shares_and_another_is_served() {
    const SLOW: usize = 60;
    let mut host = Host::new(1_024, SLOW as u16 + 1);
    host.reads = false;
    for nth in 0..SLOW {
        host.send(nth, usize::MAX);
    }
    host.settle();
    answer_all(&mut host, SLOW);
    for _ in 0..30 {
        host.clock.advance(100_000);
        host.send(SLOW, SEGMENT);
        let Flow { handle, held: bytes, .. } = host.flows[SLOW];
        assert_eq!(bytes, SEGMENT as u64, "it was not served");
        host.flows[SLOW].held = 0;
        host.run(&[Call::RecvDone { handle, bytes }.encode()]);
        host.sent();
    }
    assert_eq!(host.total("tcp.reset_for_buffers"), 0);
    let held: Vec<u64> = host.flows[..SLOW].iter().map(|flow| flow.held).collect();
    assert!(held.iter().all(|bytes| *bytes >= SEGMENT as u64), "all have something: {held:?}");
    // The application reads at last. What was lost is sent again, and all of it arrives.
    host.reads = true;
    for nth in 0..SLOW {
        let Flow { handle, held: bytes, acked, .. } = host.flows[nth];
        host.run(&[Call::RecvDone { handle, bytes }.encode()]);
        host.sent();
        let end = acked + 500_000;
        let mut tries = 0..50;
        while host.flows[nth].acked.lt(end) {
            let Flow { acked, .. } = host.flows[nth];
            tries.next().unwrap_or_else(|| panic!("flow {nth} is still at {acked:?} of {end:?}"));
            host.flows[nth].next = acked;
            host.send(nth, (end - acked) as usize);
            host.settle();
        }
    }
}

/// A flow holds its share, and more. Small segments fill its last buffer all the same.
#[test]
fn small_segments_need_no_share() {
    const FLOWS: usize = 60;
    let mut host = Host::new(1_024, FLOWS as u16);
    host.reads = false;
    host.send(0, 4 * SEGMENT);
    for nth in 1..FLOWS {
        host.send(nth, usize::MAX);
    }
    host.settle();
    let before = host.total("drops.rx_pressure");
    let at = host.flows[0].next;
    host.send(0, SEGMENT);
    assert_eq!(host.total("drops.rx_pressure"), before + 1, "it has more than its share");
    host.flows[0].next = at;
    for _ in 0..30 {
        host.send(0, 8);
    }
    host.settle();
    assert_eq!(host.total("drops.rx_pressure"), before + 1);
    assert_eq!(host.flows[0].held, 4 * SEGMENT as u64 + 240);
}

/// The application answers each of these flows with a few bytes.
fn answer_all(host: &mut Host, flows: usize) {
    let (base, _) = host.rig.transmit_memory();
    host.rig.write(base, &[base + 64, 10]);
    let sg = SgArray { addr: base, entries: 1 };
    for some in (0..flows).collect::<Vec<_>>().chunks(64) {
        let calls: Vec<CallSlot> = some
            .iter()
            .map(|nth| {
                let handle = host.flows[*nth].handle;
                Call::SendV { handle, sg, fin: false, eor: false, done: 0 }.encode()
            })
            .collect();
        host.run(&calls);
    }
}

/// More peers than there are frames send a segment each, and take nothing of what they are sent.
/// Some are reset, and another one is served. Those that wait only for the application are not.
#[test]
fn those_that_take_nothing_give_way_when_no_frame_is_left() {
    const HOLDERS: usize = 1_020;
    let mut host = Host::new(1_024, HOLDERS as u16 + 1);
    host.reads = false;
    for nth in 0..HOLDERS {
        host.send(nth, SEGMENT);
    }
    host.settle();
    let put = |host: &mut Host, len: usize| {
        let Flow { port, ours, next, .. } = host.flows[HOLDERS];
        host.put(port, TcpFlags::ACK, (next, ours), TcpOptions::NONE, len);
        host.cycle();
        host.flows[HOLDERS].held
    };
    // No peer keeps another waiting: the application may return what it has at any time.
    assert_eq!(put(&mut host, SEGMENT), 0);
    assert_eq!(host.total("tcp.reset_for_buffers"), 0);
    // The application answers, and the peers take nothing.
    answer_all(&mut host, HOLDERS);
    for _ in 0..30 {
        host.clock.advance(100_000);
        host.cycle();
    }
    assert_eq!(host.total("tcp.reset_for_buffers"), 0, "nothing has come that needs a frame");
    let mut served = 0;
    for _ in 0..10 {
        served = served.max(put(&mut host, SEGMENT));
    }
    let reset = host.total("tcp.reset_for_buffers");
    assert_eq!(served, SEGMENT as u64, "another one is served after {reset} resets");
    assert!((1..HOLDERS as u64 / 4).contains(&reset), "{reset}");
}

/// A peer whose data was dropped in its open window learns of it, and again when there is memory.
#[test]
fn who_was_dropped_in_an_open_window_is_woken() {
    const FLOWS: usize = 60;
    let mut host = Host::new(1_024, FLOWS as u16);
    host.reads = false;
    for nth in 0..FLOWS {
        host.send(nth, usize::MAX);
    }
    host.settle();
    let dropped = host.total("drops.rx_pressure");
    assert!(dropped > 0);
    let waits = host.flows.iter().find(|flow| flow.acked.lt(flow.next)).expect("one that waits");
    let Flow { port, handle, ours, acked, held: bytes, .. } = *waits;
    host.put(port, TcpFlags::ACK, (acked, ours), TcpOptions::NONE, SEGMENT);
    let sent = host.cycle();
    assert_eq!(host.total("drops.rx_pressure"), dropped + 1);
    assert!(sent.iter().any(|header| header.dst_port == port), "it hears that it is missing");
    host.settle();
    assert!(bytes > 0);
    host.run(&[Call::RecvDone { handle, bytes }.encode()]);
    let sent = host.sent();
    assert!(sent.iter().any(|header| header.dst_port == port), "it hears that there is room");
}
