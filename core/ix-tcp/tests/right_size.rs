//! The receive buffer follows what the application takes in a round trip, within the memory that is
//! free: RFC 9293 section 3.8.6, RFC 7323 section 2, Linux' `tcp_rcv_space_adjust`.
use crate::support::*;
use ix_tcp::Config;
use ix_wire::Seq;
use proptest::prelude::*;

const FIRST: u32 = 512 << 10;
const MOST: u32 = 4_000_000;
const LONG_US: u64 = 100_000;

fn cfg() -> Config {
    Config::default()
}

/// Offers window scaling.
fn peer(timestamps: bool) -> Offer {
    Offer { timestamps, window_scale: Some(7), ..Offer::ALL }
}

/// A bulk sender on a path of one length, and an application that reads.
struct Bulk {
    script: Script,
    round_trip_us: u64,
    /// The furthest edge that was offered.
    edge: Seq,
    /// Bytes that the application has read.
    taken: u32,
}

impl Bulk {
    fn new(cfg: Config, timestamps: bool, round_trip_us: u64) -> Bulk {
        let mut script = Script::syn_received(cfg, peer(timestamps));
        script.run_for(round_trip_us);
        script.give(ACK, b"");
        script.output();
        let edge = script.seq;
        Bulk { script, round_trip_us, edge, taken: 0 }
    }

    fn window(&self) -> u32 {
        self.script.tcb.info(&self.script.cfg).rcv_wnd_bytes
    }

    /// What is promised to the peer, or held for the application.
    fn charged(&self) -> u32 {
        self.window() + self.script.out.held.0
    }

    /// Sends up to `cwnd` bytes during a round trip, as the window allows, of which the application
    /// reads `reads` bytes at most. Returns how much was sent.
    fn round(&mut self, cwnd: u32, mut reads: u32) -> u32 {
        let segments = cwnd.div_ceil(1448);
        let mut sent = 0;
        for _ in 0..segments {
            let Bulk { script, round_trip_us, .. } = self;
            script.run_for(*round_trip_us / u64::from(segments));
            // It echoes what left us a round trip ago.
            let now_ms = (script.now_us - *round_trip_us) / 1000;
            script.echo = (now_ms as u32).wrapping_add(77);
            let len = script.tcb.info(&script.end.cfg).rcv_wnd_bytes.min(1448).min(cwnd - sent);
            if len == 0 {
                continue;
            }
            script.give(ACK, &vec![5; len as usize]);
            sent += len;
            let part = script.out.held.0.min(reads);
            reads -= part;
            self.read(part);
            self.script.output();
            self.check_edge();
        }
        sent
    }

    fn rounds(&mut self, count: u32, cwnd: u32, reads: u32) -> u32 {
        (0..count).map(|_| self.round(cwnd, reads)).sum()
    }

    fn read(&mut self, bytes: u32) {
        let End { cfg, tcb, out, .. } = &mut self.script.end;
        // Buffers go back as their bytes do.
        let left = out.held.0 - bytes;
        let buffers = out.held.1 - out.held.1.min(left.div_ceil(1448));
        out.held.0 = left;
        out.held.1 -= buffers;
        tcb.recv_done(cfg, bytes, buffers);
        self.taken += bytes;
    }

    /// No edge on the wire is left of an earlier one, but for what the shift cuts off.
    fn check_edge(&mut self) {
        let shift = cfg().window_shift();
        for sent in self.script.end.out.sent.drain(..) {
            let edge = sent.seg.ack + (u32::from(sent.seg.window) << shift);
            assert!((edge - self.edge) > -(1 << shift), "the edge moved left");
            self.edge = self.edge.max(edge);
        }
    }
}

/// A peer that sends twice as much each round trip is never kept waiting for long.
#[test]
fn a_long_path_gets_the_window_that_it_needs() {
    for timestamps in [true, false] {
        let mut bulk = Bulk::new(cfg(), timestamps, LONG_US);
        let mut cwnd = 14_480;
        while cwnd < 2 * MOST {
            let sent = bulk.round(cwnd, u32::MAX);
            assert!(sent >= cwnd.min(MOST) * 3 / 4, "{sent} of {cwnd}, {timestamps}");
            cwnd *= 2;
        }
        let charged = bulk.charged();
        assert!((MOST - 2 * 1460..=MOST).contains(&charged), "{charged}");
        bulk.script.read_all();
        bulk.script.check_no_leak();
    }
}

/// What is enough stays: at first the peer may double its congestion window twice.
#[test]
fn no_path_gets_more_than_it_can_use() {
    for (round_trip_us, cwnd, most) in
        [(100, 30_000, FIRST), (10_000, 200_000, 1_000_000), (LONG_US, 500_000, 2_500_000)]
    {
        let mut bulk = Bulk::new(cfg(), true, round_trip_us);
        bulk.rounds(100, cwnd, u32::MAX);
        assert!(bulk.charged() <= most, "{} at {round_trip_us}", bulk.charged());
    }
}

#[test]
fn an_application_that_does_not_read_sees_the_window_close() {
    let mut bulk = Bulk::new(cfg(), true, LONG_US);
    let sent = bulk.rounds(20, MOST, 0);
    assert!(sent <= FIRST, "{sent} bytes were let in");
    assert!(bulk.window() < 1460, "{}", bulk.window());
    // It reads everything at once: the peer, which waits, is told.
    bulk.read(bulk.script.out.held.0);
    assert!(bulk.script.tcb.needs_output(), "the peer would wait for its persist timer");
    bulk.script.output();
    assert!(bulk.window() >= FIRST - 64);
}

#[test]
fn a_slow_application_gets_no_larger_buffer() {
    let mut bulk = Bulk::new(cfg(), true, LONG_US);
    for _ in 0..40 {
        bulk.round(MOST, FIRST / 4);
        assert!(bulk.charged() <= FIRST, "{}", bulk.charged());
    }
}

/// A large window closes as well, and what was offered is taken.
#[test]
fn an_application_that_stops_reading_gets_what_was_offered() {
    let mut bulk = Bulk::new(cfg(), true, LONG_US);
    bulk.rounds(10, MOST, u32::MAX);
    let offered = bulk.window();
    assert!(offered > MOST / 2);
    let sent = bulk.rounds(5, MOST, 0);
    assert!(sent.abs_diff(offered) <= MOST - offered, "{sent} of {offered}");
    assert_eq!(bulk.script.out.held.0, sent);
    assert!(bulk.window() < 1460);
}

#[test]
fn a_buffer_that_the_application_has_set_stays() {
    for bytes in [100_000, 2 * FIRST] {
        let mut bulk = Bulk::new(cfg(), true, LONG_US);
        bulk.script.end.tcb.set_receive_limit(&cfg(), bytes);
        bulk.rounds(10, MOST, u32::MAX);
        assert!(bulk.charged() <= bytes.next_multiple_of(64).min(FIRST), "{}", bulk.charged());
        bulk.script.end.tcb.set_receive_limit(&cfg(), 0);
        bulk.rounds(10, MOST, u32::MAX);
        assert!(bulk.charged() > 3 * FIRST, "and follows again: {}", bulk.charged());
    }
}

/// None while memory is short, and less than before when it becomes short.
#[test]
fn the_buffer_grows_into_free_memory_only() {
    let mut bulk = Bulk::new(cfg(), true, LONG_US);
    bulk.script.end.out.room = Some(0);
    bulk.rounds(10, MOST, u32::MAX);
    assert!(bulk.charged() <= FIRST, "{}", bulk.charged());
    bulk.script.end.out.room = Some(1 << 20);
    bulk.rounds(10, MOST, u32::MAX);
    assert!((FIRST + 1_000_000..=FIRST + (1 << 20)).contains(&bulk.charged()));
    bulk.script.end.out.room = Some(0);
    let edge = bulk.edge;
    bulk.round(60_000, 0);
    assert!(bulk.edge.le(edge + 1448), "more was offered");
    bulk.round(MOST, u32::MAX);
    bulk.round(MOST, u32::MAX);
    assert!(bulk.charged() <= FIRST, "{}", bulk.charged());
}

/// Out-of-order data uses the larger buffer too.
#[test]
fn a_gap_in_a_large_window_loses_nothing_behind_it() {
    // Two of 850 fill a buffer, and of longer ones there is one in each.
    for len in [1448, 900, 850, 500] {
        let mut bulk = Bulk::new(cfg(), true, LONG_US);
        bulk.rounds(10, MOST, u32::MAX);
        let count = bulk.window() as i32 / len - 1;
        assert!(count > 2_000);
        for at in 1..count {
            bulk.script.give_at(at * len, ACK, &vec![7; len as usize]);
        }
        bulk.script.give_at(0, ACK, &vec![7; len as usize]);
        let got = bulk.script.end.tcb.info(&cfg()).rcv_queued_bytes;
        assert_eq!(got, (count * len) as u32, "segments of {len}");
        bulk.script.read_all();
        bulk.script.check_no_leak();
    }
}

/// Segments after a gap fill a large window; returns the number of buffers that are kept.
fn buffers_behind_a_gap(bulk: &mut Bulk) -> u32 {
    let count = (bulk.window() / 1448 - 1) as i32;
    assert!(count > 2_000);
    for at in 1..count {
        bulk.script.give_at(at * 1448, ACK, &[7; 1448]);
    }
    bulk.script.out.inside.get() as u32
}

/// A window that was offered cannot be taken back, and behind a gap nothing is taken in order: the
/// buffers beyond those of every connection are kept only while memory is free.
#[test]
fn a_gap_in_a_large_window_holds_no_memory_that_others_need() {
    let few = cfg().rcv_buffers_max;
    let mut bulk = Bulk::new(cfg(), true, LONG_US);
    bulk.rounds(10, MOST, u32::MAX);
    bulk.script.end.out.room = Some(0);
    assert_eq!(buffers_behind_a_gap(&mut bulk), few);
    // It becomes short later.
    let mut bulk = Bulk::new(cfg(), true, LONG_US);
    bulk.rounds(10, MOST, u32::MAX);
    assert!(buffers_behind_a_gap(&mut bulk) > 2_000);
    let End { cfg, tcb, out, .. } = &mut bulk.script.end;
    tcb.prune(cfg, out);
    assert_eq!(bulk.script.out.inside.get() as u32, few);
    // The earliest are kept.
    bulk.script.give_at(0, ACK, &[7; 1448]);
    let got = bulk.script.end.tcb.info(&Config::default()).rcv_queued_bytes;
    assert_eq!(got, (few + 1) * 1448);
    bulk.script.read_all();
    bulk.script.check_no_leak();
}

/// What was promised is what the peer may still send and the application hold, until it ends.
#[test]
fn what_is_promised_is_given_back() {
    let mut bulk = Bulk::new(cfg(), true, LONG_US);
    assert_eq!(bulk.script.out.promised, 0);
    bulk.rounds(10, MOST, u32::MAX);
    assert!(bulk.script.out.promised >= bulk.charged() && bulk.charged() > MOST - 2 * 1460);
    // The buffer shrinks, and the edge does not move: the promise is that of the edge.
    bulk.script.end.out.room = Some(0);
    let len = 64 << 10;
    bulk.round(len, 0);
    assert!(bulk.script.out.promised + 1448 >= bulk.charged());
    assert!(bulk.charged() > MOST / 2);
    bulk.rounds(3, MOST, u32::MAX);
    assert_eq!(bulk.script.out.promised, 0);
    bulk.script.end.out.room = None;
    bulk.rounds(10, MOST, u32::MAX);
    assert!(bulk.script.out.promised > FIRST);
    let End { cfg, tcb, out, now_us } = &mut bulk.script.end;
    tcb.abort(cfg, *now_us, out);
    assert_eq!(bulk.script.out.promised, 0);
}

/// Payload of an open window was dropped because memory is short: the peer hears at once that it is
/// missing, and again when there is memory, though the window was open all the time.
#[test]
fn a_peer_whose_data_was_dropped_is_woken() {
    let mut bulk = Bulk::new(cfg(), true, LONG_US);
    bulk.rounds(2, 40_000, u32::MAX);
    bulk.round(60_000, 0);
    bulk.script.settle();
    assert!(bulk.window() > FIRST / 2, "{}", bulk.window());
    assert!(!bulk.script.tcb.needs_output());
    bulk.script.end.tcb.payload_dropped();
    assert!(bulk.script.tcb.needs_output());
    bulk.script.output();
    assert!(!bulk.script.tcb.needs_output());
    bulk.read(20_000);
    assert!(bulk.script.tcb.needs_output());
    bulk.script.output();
    // Once.
    bulk.read(20_000);
    assert!(!bulk.script.tcb.needs_output());
}

/// While many share the memory, a connection begins with little, and grows as what its application
/// takes shows. What was offered before a share became smaller stays.
#[test]
fn a_share_bounds_what_is_offered_at_first() {
    let shared = |rcv_share| Config { rcv_share, ..cfg() };
    let mut bulk = Bulk::new(shared(10), true, LONG_US);
    let sent = bulk.rounds(10, MOST, 0);
    assert!((14_600..16_000).contains(&sent), "{sent}");
    let mut bulk = Bulk::new(shared(10), true, LONG_US);
    bulk.rounds(30, MOST, u32::MAX);
    assert!(bulk.charged() > MOST / 2, "{}", bulk.charged());
    // Its own size, too.
    let mut bulk = Bulk::new(shared(10), true, LONG_US);
    bulk.script.end.tcb.set_receive_limit(&cfg(), 100_000);
    bulk.rounds(10, MOST, u32::MAX);
    assert!(bulk.charged() < 16_000, "{}", bulk.charged());
    bulk.script.end.cfg.rcv_share = u32::MAX;
    bulk.rounds(10, MOST, u32::MAX);
    assert!(bulk.charged() > 90_000, "{}", bulk.charged());
    // What our SYN has offered is what is accepted, though the share is smaller by then.
    let mut script = Script::syn_sent(cfg(), peer(true));
    script.end.cfg.rcv_share = 2;
    let syn_ack = script.syn(SYN | ACK);
    script.end.segment(&syn_ack, b"");
    assert_eq!(script.tcb.info(&script.end.cfg).rcv_wnd_bytes, 65_535);
}

/// A peer that waits for the window of a large buffer hears of it before 32 KB are left of it.
#[test]
fn the_window_of_a_large_buffer_is_updated_early() {
    let mut bulk = Bulk::new(cfg(), true, LONG_US);
    bulk.rounds(10, MOST, u32::MAX);
    let sent = bulk.round(bulk.window() - 200_000, 0);
    bulk.script.output();
    assert!((150_000..250_000).contains(&bulk.window()), "{}", bulk.window());
    bulk.read(sent / 2);
    assert!(bulk.script.tcb.needs_output(), "the peer waits for a round trip");
}

#[derive(Clone, Copy, Debug)]
struct Step {
    cwnd: u32,
    reads: u32,
    room: u32,
    limit: Option<u32>,
    share: u32,
}

fn any_step() -> impl Strategy<Value = Step> {
    let bytes = || prop_oneof![0..20_000u32, 0..2_000_000u32, Just(u32::MAX)];
    let limit = prop_oneof![8 => Just(None), 1 => (0..2 * FIRST).prop_map(Some)];
    let share = prop_oneof![2..400u32, Just(u32::MAX)];
    (1..3_000_000u32, bytes(), bytes(), limit, share)
        .prop_map(|(cwnd, reads, room, limit, share)| Step { cwnd, reads, room, limit, share })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is sent and read and however memory and shares of it change: no edge moves left,
    /// nothing within the window is refused, and no more is promised than was free at some time.
    #[test]
    fn no_edge_moves_left_and_no_promise_is_without_memory(
        timestamps: bool,
        round_trip_us in prop_oneof![Just(50u64), Just(5_000), Just(LONG_US)],
        steps in prop::collection::vec(any_step(), 1..20),
    ) {
        let mut bulk = Bulk::new(cfg(), timestamps, round_trip_us);
        let (mut most, mut all) = (0, 0);
        for step in steps {
            bulk.script.end.out.room = Some(step.room);
            bulk.script.end.cfg.rcv_share = step.share;
            most = most.max(step.room);
            if let Some(limit) = step.limit {
                bulk.script.end.tcb.set_receive_limit(&cfg(), limit);
            }
            all += bulk.round(step.cwnd, step.reads);
            prop_assert_eq!(bulk.script.out.delivered.len() as u32, all);
            prop_assert_eq!(bulk.script.out.held.0, all - bulk.taken);
            prop_assert!(bulk.charged() <= FIRST.saturating_add(most).min(MOST));
        }
    }
}
