//! The draft's example test cases, on a path with a bottleneck and its queue.
use super::*;
use std::collections::VecDeque;

const MSS: u32 = 1448;
/// 10 Mbit/s, 1.25 MB a second.
const RATE: u64 = 1_250_000;
const RTT_US: u64 = 40_000;
/// The product of both.
const BDP: u32 = 50_000;
const SECOND_US: u64 = 1_000_000;

struct Packet {
    sent_us: u64,
    /// When its acknowledgement, or the proof of its loss, arrives.
    heard_us: u64,
    is_lost: bool,
}

/// A sender with BBR, and the path.
struct Path {
    bbr: Bbr,
    now_us: u64,
    rate: u64,
    queue_bytes: u64,
    /// Every packet of this number is lost; 0: none.
    loses_each: u64,
    /// The application sends a packet each so often; 0: always.
    app_every_us: u64,
    idle_at_us: u64,
    next_send_us: u64,
    sent: u64,
    delivered: u64,
    in_flight: u32,
    under_way: VecDeque<Packet>,
    /// In fast recovery until this packet is heard of.
    recover: Option<u64>,
    /// States in the order in which they were entered, with times.
    seen: Vec<(u64, State)>,
    /// Does not send.
    is_silent: bool,
}

impl Path {
    fn new() -> Path {
        let now_us = SECOND_US;
        Path {
            bbr: Bbr::new(10 * MSS, MSS as u16, RTT_US as u32, 12345, now_us),
            now_us,
            rate: RATE,
            queue_bytes: 4 * u64::from(BDP),
            loses_each: 0,
            app_every_us: 0,
            idle_at_us: 0,
            next_send_us: 0,
            sent: 0,
            delivered: 0,
            in_flight: 0,
            under_way: VecDeque::new(),
            recover: None,
            seen: vec![(now_us, State::Startup)],
            is_silent: false,
        }
    }

    fn note(&mut self) {
        if self.seen.last().is_none_or(|(_, state)| *state != self.bbr.state) {
            self.seen.push((self.now_us, self.bbr.state));
        }
    }

    fn send(&mut self) {
        self.bbr.sent(self.now_us, self.in_flight, MSS);
        self.in_flight += MSS;
        self.sent += 1;
        let queued = self.idle_at_us.saturating_sub(self.now_us) * self.rate / 1_000_000;
        let is_lost = queued + u64::from(MSS) > self.queue_bytes
            || self.loses_each > 0 && self.sent.is_multiple_of(self.loses_each);
        if !is_lost {
            let begins_us = self.idle_at_us.max(self.now_us);
            self.idle_at_us = begins_us + u64::from(MSS) * 1_000_000 / self.rate;
        }
        let heard_us = self.idle_at_us.max(self.now_us) + RTT_US;
        self.under_way.push_back(Packet { sent_us: self.now_us, heard_us, is_lost });
        self.next_send_us = self.next_send_us.max(self.now_us)
            + u64::from(MSS) * 1_000_000 / self.bbr.pacing_rate();
    }

    fn hear(&mut self, packet: &Packet) {
        self.in_flight -= MSS;
        if packet.is_lost {
            let end = packet.sent_us as u32;
            self.bbr.lost(packet.sent_us, MSS, end);
            if self.recover.is_none() {
                self.recover = Some(self.sent);
                self.bbr.enter_recovery();
            }
            return;
        }
        self.delivered += 1;
        let heard = self.sent - u64::from(self.in_flight / MSS);
        if self.recover.is_some_and(|until| heard >= until) {
            self.recover = None;
            self.bbr.leave_recovery();
        }
        self.bbr.acknowledged(packet.sent_us, true);
        let progress = Progress {
            delivered: MSS,
            in_flight: self.in_flight,
            is_cwnd_limited: self.in_flight + MSS > self.bbr.cwnd_bytes(),
            has_sack: true,
        };
        self.bbr.on_ack(&progress, self.now_us);
        if self.app_every_us > 0 || self.is_silent {
            self.bbr.limited_by_application(self.in_flight);
        }
    }

    /// Until `done`, or panics after so long.
    fn run_until(&mut self, limit_us: u64, done: impl Fn(&Path) -> bool) {
        let end_us = self.now_us + limit_us;
        while !done(self) {
            assert!(self.now_us < end_us, "{:?} {:?}", self.seen, self.bbr);
            let may_send = !self.is_silent && self.in_flight + MSS <= self.bbr.cwnd_bytes();
            let send_us = if may_send { self.next_send_us.max(self.now_us) } else { u64::MAX };
            let heard_us = self.under_way.front().map_or(u64::MAX, |packet| packet.heard_us);
            if send_us == u64::MAX && heard_us == u64::MAX {
                self.now_us = end_us;
            } else if heard_us <= send_us {
                self.now_us = heard_us;
                let packet = self.under_way.pop_front().expect("looked at above");
                self.hear(&packet);
            } else {
                self.now_us = send_us;
                self.send();
                if self.app_every_us > 0 {
                    self.next_send_us = self.now_us + self.app_every_us;
                    self.bbr.limited_by_application(self.in_flight);
                }
            }
            self.note();
        }
    }

    fn run(&mut self, us: u64) {
        let end_us = self.now_us + us;
        self.run_until(us + SECOND_US, |path| path.now_us >= end_us);
    }

    fn run_to(&mut self, state: State) {
        self.run_until(60 * SECOND_US, |path| path.bbr.state == state);
    }

    /// What arrives in the next seconds, bytes per second.
    fn goodput(&mut self, seconds: u64) -> u64 {
        let before = self.delivered;
        self.run(seconds * SECOND_US);
        (self.delivered - before) * u64::from(MSS) / seconds
    }
}

#[test]
fn startup_ends_on_a_plateau_and_drain_when_the_queue_is_empty() {
    let mut path = Path::new();
    path.run_to(State::Drain);
    assert!(path.bbr.full_bw_reached && path.bbr.full_bw_count == 3);
    let bw = path.bbr.max_bw;
    assert!(bw.abs_diff(RATE) <= RATE / 50, "{bw}");
    assert!(path.in_flight > BDP, "{}", path.in_flight);
    assert!(path.bbr.pacing_rate() <= RATE / 2, "{}", path.bbr.pacing_rate());
    path.run_until(SECOND_US, |path| path.bbr.state != State::Drain);
    assert!(matches!(path.bbr.state, State::Down | State::Cruise));
    assert!(path.in_flight <= path.bbr.inflight(100), "{}", path.in_flight);
}

#[test]
fn the_path_is_filled_and_its_queue_stays_short() {
    let mut path = Path::new();
    path.run(2 * SECOND_US);
    let (mut longest, before) = (0, path.seen.len());
    for _ in 0..400 {
        path.run(10_000);
        longest = longest.max(path.idle_at_us.saturating_sub(path.now_us));
    }
    // A probe for bandwidth queues a quarter of a round trip in each of three, until it sees a
    // plateau, and never more than the window allows.
    assert!(longest <= RTT_US * 5 / 4, "{longest}");
    assert!(path.goodput(4) >= RATE * 9 / 10);
    let states: Vec<State> = path.seen[before..].iter().map(|(_, state)| *state).collect();
    for pair in states.windows(2) {
        let follows = matches!(
            pair,
            [State::Down, State::Cruise | State::Refill | State::ProbeRtt]
                | [State::Cruise, State::Refill | State::ProbeRtt]
                | [State::Refill, State::Up | State::ProbeRtt]
                | [State::Up, State::Down | State::ProbeRtt]
                | [State::ProbeRtt, State::Cruise]
        );
        assert!(follows, "{pair:?} of {states:?}");
    }
    assert!(states.contains(&State::Up) && states.contains(&State::Cruise), "{states:?}");
}

#[test]
fn losses_end_startup_even_when_the_application_is_slow() {
    let mut path = Path::new();
    // Half of the path's rate, and one packet in twelve is lost.
    path.app_every_us = u64::from(MSS) * 2_000_000 / RATE;
    path.run(SECOND_US);
    assert_eq!(path.bbr.state, State::Startup);
    path.app_every_us = 300;
    path.rate = 100 * RATE;
    path.loses_each = 12;
    path.run_until(5 * SECOND_US, |path| path.bbr.state != State::Startup);
    assert!(path.bbr.full_bw_reached);
    assert_ne!(path.bbr.inflight_longterm, INFINITE);
}

#[test]
fn a_slow_application_without_losses_stays_in_startup() {
    let mut path = Path::new();
    path.app_every_us = u64::from(MSS) * 4_000_000 / RATE;
    path.run(4 * SECOND_US);
    assert_eq!(path.bbr.state, State::Startup);
    assert!(!path.bbr.full_bw_reached);
}

#[test]
fn the_round_trip_is_probed_after_five_seconds_for_a_fifth() {
    let mut path = Path::new();
    // A standing queue of others: the shortest round trip is not seen again.
    path.run(SECOND_US);
    path.run_to(State::ProbeRtt);
    let began_us = path.now_us;
    assert!(began_us - SECOND_US >= 5 * SECOND_US, "{began_us}");
    path.run(100_000);
    assert_eq!(path.bbr.state, State::ProbeRtt);
    assert!(path.in_flight <= BDP / 2 + MSS, "{}", path.in_flight);
    path.run_until(SECOND_US, |path| path.bbr.state != State::ProbeRtt);
    assert_eq!(path.bbr.state, State::Cruise);
    assert!(path.now_us - began_us >= PROBE_RTT_DURATION_US);
    let rtt_us = u64::from(path.bbr.min_rtt_us);
    assert!((RTT_US..RTT_US + 3_000).contains(&rtt_us), "{rtt_us}");
}

#[test]
fn an_idle_time_stands_for_probing_the_round_trip() {
    let mut path = Path::new();
    path.run(2 * SECOND_US);
    path.is_silent = true;
    path.run_until(8 * SECOND_US, |path| path.in_flight == 0);
    path.now_us += 6 * SECOND_US;
    path.is_silent = false;
    path.run_until(SECOND_US, |path| path.in_flight > 0);
    assert!(path.bbr.idle_restart);
    path.run(SECOND_US);
    let after_us = path.now_us - SECOND_US - RTT_US;
    let probed =
        path.seen.iter().any(|(at_us, state)| *at_us > after_us && *state == State::ProbeRtt);
    assert!(!probed, "{:?}", path.seen);
}

#[test]
fn a_probe_that_loses_much_ends_and_is_remembered() {
    let mut path = Path::new();
    path.run(SECOND_US);
    path.run_to(State::Up);
    path.loses_each = 10;
    path.run_until(SECOND_US, |path| path.bbr.state != State::Up);
    assert_eq!(path.bbr.state, State::Down);
    assert!(path.bbr.prev_probe_too_high);
    let longterm = path.bbr.inflight_longterm;
    assert!((BDP * 7 / 10..=2 * BDP).contains(&longterm), "{longterm}");
    // If it turns out that nothing was lost, the probe begins again.
    path.bbr.undo();
    assert_eq!((path.bbr.state, path.bbr.inflight_longterm), (State::Refill, INFINITE));
}

#[test]
fn losses_while_cruising_lower_the_short_term_model() {
    let mut path = Path::new();
    path.run(SECOND_US);
    path.run_to(State::Cruise);
    let before = path.bbr.bw;
    path.loses_each = 5;
    path.run(4 * RTT_US);
    path.loses_each = 0;
    let bbr = &path.bbr;
    if bbr.state == State::Cruise {
        assert!(bbr.bw_shortterm < before && bbr.bw == bbr.bw_shortterm, "{bbr:?}");
        // At most a factor of Beta in each round trip.
        assert!(bbr.bw >= before * 24 / 100, "{} of {before}", bbr.bw);
    }
    path.run_to(State::Refill);
    assert_eq!(path.bbr.bw_shortterm, u64::MAX);
    assert!(path.goodput(4) >= RATE * 8 / 10);
}

#[test]
fn one_percent_of_loss_costs_little() {
    let mut path = Path::new();
    path.loses_each = 100;
    path.run(2 * SECOND_US);
    let goodput = path.goodput(10);
    assert!(goodput >= RATE * 9 / 10, "{goodput}");
}

#[test]
fn ten_times_the_rate_is_found_and_a_tenth_too() {
    let mut path = Path::new();
    path.run(3 * SECOND_US);
    path.rate = 10 * RATE;
    path.queue_bytes *= 10;
    path.run(12 * SECOND_US);
    let goodput = path.goodput(4);
    assert!(goodput >= 8 * RATE, "{goodput}");
    path.rate = RATE;
    path.queue_bytes /= 10;
    path.run(20 * SECOND_US);
    let bw = path.bbr.max_bw;
    assert!(bw <= RATE * 11 / 10, "{bw}");
    let goodput = path.goodput(4);
    assert!(goodput >= RATE * 8 / 10, "{goodput}");
}

#[test]
fn a_path_of_less_than_a_packet_keeps_four_in_flight() {
    let mut path = Path::new();
    path.rate = 20_000;
    path.queue_bytes = 100_000;
    path.run(20 * SECOND_US);
    assert!(path.bbr.cwnd_bytes() >= MIN_PIPE_SEGMENTS * MSS, "{:?}", path.bbr);
    let goodput = path.goodput(10);
    assert!(goodput >= 18_000, "{goodput}");
}

#[test]
fn a_timeout_leaves_one_packet_and_what_it_took_comes_back() {
    let mut path = Path::new();
    path.run(2 * SECOND_US);
    let before = path.bbr.cwnd_bytes();
    path.bbr.on_rto(0);
    assert_eq!(path.bbr.cwnd_bytes(), MSS);
    path.bbr.leave_recovery();
    assert_eq!(path.bbr.cwnd_bytes(), before);
}

#[test]
fn a_round_trip_that_loses_more_than_the_mean_by_chance_is_no_congestion() {
    let mut bbr = Path::new().bbr;
    let too_high = |bbr: &Bbr, lost: u64, packets: u32| {
        bbr.is_inflight_too_high(lost * u64::from(MSS), packets * MSS)
    };
    // In flight, and the most that is lost of so many by chance where 2 % are lost.
    for (packets, most) in [(4, 1), (50, 3), (100, 4), (200, 8), (700, 21)] {
        assert!(!too_high(&bbr, most, packets), "{packets}");
        assert!(too_high(&bbr, most + 1, packets), "{packets}");
    }
    bbr.has_sack = false;
    assert!(too_high(&bbr, 1, 700) && !too_high(&bbr, 0, 700));
}

#[test]
fn a_mark_while_cruising_lowers_the_short_term_model() {
    let mut path = Path::new();
    path.run(SECOND_US);
    path.run_to(State::Cruise);
    path.bbr.marked(path.in_flight);
    path.run(2 * RTT_US);
    assert_eq!(path.bbr.state, State::Cruise);
    assert_ne!(path.bbr.inflight_shortterm, INFINITE);
}

#[test]
fn the_volume_at_which_losses_crossed_the_threshold() {
    // 100 packets in flight, the last of which is the third that is lost: 2 % are crossed before.
    assert_eq!(inflight_at_loss(100 * MSS, 3 * u64::from(MSS), MSS), 99 * MSS);
    // 10 packets as one: none lost before, 90 in flight before.
    let at = inflight_at_loss(100 * MSS, 10 * u64::from(MSS), 10 * MSS);
    let want = 90.0 + 0.02 * 90.0 / 0.98;
    assert!((f64::from(at) / f64::from(MSS) - want).abs() < 0.01, "{at}");
}
