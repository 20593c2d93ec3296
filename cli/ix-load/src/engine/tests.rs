//! Whole runs in virtual time, against a simple server.
use super::*;
use crate::fault::Fault;
use crate::protocol::{Ascii, Binary, Echo, Popularity, Workload};
use crate::records::Records;
use ix_workload::arrivals::Arrival;
use ix_workload::law::Law;
use ix_workload::pattern::Rate;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const SIZE: u32 = 16;

fn setup(connections: u32, depth: u32, rate: Option<f64>) -> Setup {
    let open =
        |rate: f64| Open { arrival: Arrival::Poisson, rate: Rate::Constant(rate), share: 1.0 };
    Setup {
        classes: [ClassSetup { connections, depth }, ClassSetup::default()],
        open: [rate.map(open), None],
        messages_per_connection: u64::MAX,
        timeout_ns: 20 * SECOND,
        drain_ns: SECOND,
        overdue_most: 1 << 20,
        seed: 11,
        noise_seed: 11,
        udp: false,
    }
}

/// An echo server that serves one message after the other, and nothing during a stall.
struct Server {
    service_ns: u64,
    stall: (u64, u64),
    free_ns: u64,
    replies: BinaryHeap<Reverse<(u64, u32, Vec<u8>)>>,
}

impl Server {
    fn new(service_ns: u64) -> Server {
        Server { service_ns, stall: (0, 0), free_ns: 0, replies: BinaryHeap::new() }
    }

    fn take(&mut self, now_ns: u64, index: u32, data: &[u8]) {
        let messages = data.len() as u64 / u64::from(SIZE);
        let mut start_ns = self.free_ns.max(now_ns);
        if (self.stall.0..self.stall.1).contains(&start_ns) {
            start_ns = self.stall.1;
        }
        self.free_ns = start_ns.saturating_add(self.service_ns.saturating_mul(messages));
        self.replies.push(Reverse((self.free_ns, index, data.to_vec())));
    }
}

/// Plays a run of `seconds` to its end; returns all intervals.
fn play(setup: Setup, server: &mut Server, seconds: u64) -> Vec<Interval> {
    play_through(setup, server, seconds, (0, 0))
}

/// Plays a run whose generator stands still from one time to another.
fn play_through(
    setup: Setup,
    server: &mut Server,
    seconds: u64,
    stall: (u64, u64),
) -> Vec<Interval> {
    let mut engine = Engine::new(Echo::new(SIZE, 1, true), setup, 0);
    while let Some(index) = engine.dial(0) {
        engine.connected(index, 0);
    }
    engine.start(Times { start_ns: 0, from_ns: 0, to_ns: seconds * SECOND });
    let (mut now_ns, mut intervals, mut out) = (0, Vec::new(), Vec::new());
    let mut send = |engine: &mut Engine<Echo>, server: &mut Server, index, now_ns| {
        out.clear();
        engine.output(index, now_ns, &mut out);
        if !out.is_empty() {
            server.take(now_ns, index, &out);
        }
    };
    while !engine.is_over() {
        intervals.extend(engine.tick(now_ns).map(|interval| *interval));
        while let Some(index) = engine.dial(now_ns) {
            engine.connected(index, now_ns);
            send(&mut engine, server, index, now_ns);
        }
        while let Some(index) = engine.take_ready() {
            send(&mut engine, server, index, now_ns);
        }
        while engine.take_stuck().is_some() {}
        while let Some(Reverse((at_ns, ..))) = server.replies.peek()
            && *at_ns <= now_ns
            && let Some(Reverse((_, index, data))) = server.replies.pop()
        {
            if engine.input(index, &data, now_ns) == Verdict::Open {
                send(&mut engine, server, index, now_ns);
            }
        }
        let reply_ns = server.replies.peek().map_or(u64::MAX, |Reverse((at_ns, ..))| *at_ns);
        now_ns = now_ns.max(engine.next_ns().min(reply_ns));
        if (stall.0..stall.1).contains(&now_ns) {
            now_ns = stall.1;
        }
    }
    intervals.push(*engine.conclude(now_ns));
    intervals
}

fn total(intervals: Vec<Interval>) -> Interval {
    intervals.into_iter().fold(Interval::default(), |mut sum, interval| {
        sum.merge(interval);
        sum
    })
}

fn quantile_ms(interval: &Interval, quantile: f64) -> f64 {
    interval.classes[0].latency_ns.value_at_quantile(quantile) as f64 / MS as f64
}

/// A server that stalls for 200 ms of 3 s delays every request that was due in the stall: 1 % of
/// all were due in its first 30 ms and waited for more than 170 ms.
#[test]
fn open_loop_sees_a_stall_that_closed_loop_hides() {
    let stalling = || Server { stall: (SECOND, SECOND + 200 * MS), ..Server::new(10_000) };
    let open = total(play(setup(10, 1, Some(10_000.0)), &mut stalling(), 3));
    let p99 = quantile_ms(&open, 0.99);
    assert!((160.0..190.0).contains(&p99), "p99 is {p99} ms");
    assert!(quantile_ms(&open, 0.5) < 1.0);
    let closed = total(play(setup(10, 1, None), &mut stalling(), 3));
    assert!(quantile_ms(&closed, 0.999) < 1.0, "ten of all requests were caught by the stall");
    assert!(quantile_ms(&closed, 1.0) >= 199.0);
}

/// A generator that stands still for 100 ms of 3 s reports it, and the latency without it.
#[test]
fn a_stall_of_the_generator_is_told_apart() {
    let stall = (SECOND, SECOND + 100 * MS);
    let setup = || setup(100, 4, Some(10_000.0));
    let sum = total(play_through(setup(), &mut Server::new(10_000), 3, stall));
    let (counts, load) = (&sum.counts, &sum.classes[0]);
    assert_eq!(counts.stalls, 1);
    assert!((99 * MS..=100 * MS).contains(&counts.stall_most_ns), "{counts:?}");
    assert_eq!(counts.stalled_ns, counts.stall_most_ns);
    assert!(quantile_ms(&sum, 0.99) > 50.0, "it is in the latency");
    // 1000 of 30,000 were due in the stall, and a few in flight.
    assert!((900..1100).contains(&load.in_stalls_ns.len()), "{}", load.in_stalls_ns.len());
    let awake = load.awake_ns();
    assert_eq!(awake.len() + load.in_stalls_ns.len(), load.latency_ns.len());
    // The requests that the stall piled up at the server delay those after them.
    assert!(awake.value_at_quantile(0.9) < MS, "{}", awake.value_at_quantile(0.9));

    let stalling = &mut Server { stall, ..Server::new(10_000) };
    let theirs = total(play(setup(), stalling, 3));
    assert_eq!((theirs.counts.stalls, theirs.classes[0].in_stalls_ns.len()), (0, 0));
}

#[test]
fn latency_at_low_load_is_the_service_time() {
    let open = total(play(setup(100, 1, Some(100.0)), &mut Server::new(20_000), 10));
    assert!((0.0199..0.0201).contains(&quantile_ms(&open, 0.5)), "{}", quantile_ms(&open, 0.5));
    assert_eq!(open.classes[0].answers, open.classes[0].due);
    assert_eq!(open.counts.unfinished, 0);
}

/// M/D/1 at load 0.5: the mean wait is half of the service time.
#[test]
fn waiting_follows_queueing_theory() {
    let open = total(play(setup(1000, 8, Some(50_000.0)), &mut Server::new(10_000), 10));
    let mean_us = open.classes[0].latency_ns.mean() / 1000.0;
    assert!((14.5..15.5).contains(&mean_us), "{mean_us} µs for 15");
}

#[test]
fn a_rate_beyond_the_server_is_not_achieved() {
    let mut intervals = play(setup(10, 1, Some(20_000.0)), &mut Server::new(100_000), 3);
    let drain = intervals.pop().unwrap();
    assert_eq!(drain.second, DRAIN);
    assert_eq!(intervals.iter().map(|i| i.second).collect::<Vec<_>>(), [0, 1, 2]);
    for interval in &intervals {
        assert!((9_900..=10_001).contains(&interval.classes[0].answers));
    }
    let sum = total(intervals);
    assert!(quantile_ms(&sum, 0.99) > 1000.0, "the backlog is in the latency");
    assert!(drain.counts.unfinished > 15_000, "30,000 were not answered in time");
}

#[test]
fn requests_without_an_answer_count_with_their_age() {
    let mut silent = Server::new(u64::MAX);
    let open = total(play(setup(4, 1, Some(1000.0)), &mut silent, 2));
    assert_eq!(open.classes[0].answers, 0);
    assert_eq!(open.counts.unfinished, open.classes[0].due);
    assert_eq!(open.classes[0].latency_ns.len(), open.classes[0].due);
    assert!(quantile_ms(&open, 0.01) > 1000.0, "the drain at least");
}

#[test]
fn a_missing_answer_breaks_the_connection_in_time() {
    let setup = Setup { timeout_ns: 500 * MS, ..setup(4, 1, None) };
    let closed = total(play(setup, &mut Server::new(u64::MAX), 2));
    let kinds: Vec<_> = closed.counts.faults.kinds().map(|(fault, n, _)| (fault, n)).collect();
    // Each connection waits 0.5 s and is opened again 0.1 s later, three times in 2 s.
    assert_eq!(kinds, [(Fault::NoAnswer, 12)]);
}

#[test]
fn the_queue_of_overdue_requests_is_bounded() {
    let setup = Setup { overdue_most: 100, ..setup(1, 1, Some(100_000.0)) };
    let sum = total(play(setup, &mut Server::new(u64::MAX), 1));
    assert_eq!(sum.counts.overdue_most, 100);
    assert_eq!(sum.counts.dropped, sum.classes[0].due - 101);
}

#[test]
fn connections_end_after_their_messages() {
    let setup = Setup { messages_per_connection: 3, ..setup(2, 2, None) };
    let sum = total(play(setup, &mut Server::new(100_000), 1));
    let (answers, opened) = (sum.classes[0].answers, sum.counts.opened);
    assert!((9_900..=10_001).contains(&answers), "{answers}");
    assert!(opened.abs_diff(answers / 3) < 4, "{opened} connections for {answers} messages");
    assert_eq!(sum.counts.faults.total(), 0);
}

#[test]
fn the_measuring_client_has_its_own_figures() {
    let mut both = setup(50, 4, Some(90_000.0));
    both.classes[1] = ClassSetup { connections: 8, depth: 1 };
    both.open[1] =
        Some(Open { arrival: Arrival::Poisson, rate: Rate::Constant(500.0), share: 1.0 });
    let sum = total(play(both, &mut Server::new(10_000), 4));
    let [load, measure] = &sum.classes;
    assert!((1_850..2_150).contains(&measure.answers), "{}", measure.answers);
    assert!(load.answers > 350_000);
    // Both queue in front of the same server: M/D/1 at load 0.905.
    let means = [load, measure].map(|sample| sample.latency_ns.mean());
    assert!((means[0] / means[1] - 1.0).abs() < 0.25, "{means:?}");
}

#[test]
fn a_server_that_is_gone_ends_the_run() {
    let mut engine = Engine::new(Echo::new(SIZE, 1, true), setup(2, 1, None), 0);
    let mut now_ns = 0;
    while engine.gave_up().is_none() {
        assert!(now_ns < 10 * SECOND);
        while let Some(index) = engine.dial(now_ns) {
            engine.closed(index, End::NotConnected("refused".into()), now_ns);
        }
        let _ = engine.tick(now_ns);
        now_ns += MS;
    }
    assert_eq!(engine.gave_up(), Some("refused"));
    assert!(engine.first_fault().is_some_and(|what| what.contains("refused")));
}

fn one<P: Protocol>(protocol: P, udp: bool) -> Engine<P> {
    let mut engine = Engine::new(protocol, Setup { udp, ..setup(1, 1, None) }, 0);
    assert_eq!(engine.dial(0), Some(0));
    engine.connected(0, 0);
    engine.start(Times { start_ns: 0, from_ns: 0, to_ns: 100 * SECOND });
    engine
}

fn workload(values: Law) -> Workload {
    let records = Arc::new(Records::new(100, &Law::Fixed(10.0), values));
    Workload::mixed(records, Popularity::Uniform, 0.0, 3)
}

fn fault_of<P: Protocol>(protocol: P, answer: impl Fn(&[u8]) -> Vec<u8>) -> Option<Fault> {
    let mut engine = one(protocol, false);
    let mut out = Vec::new();
    engine.output(0, 0, &mut out);
    let verdict = engine.input(0, &answer(&out), 5);
    let fault = engine.conclude(9).counts.faults.kinds().next().map(|(fault, ..)| fault);
    assert_eq!(verdict == Verdict::Reset, fault.is_some());
    fault
}

#[test]
fn wrong_answers_are_told_apart() {
    let ascii = |verify| Ascii::new(workload(Law::Fixed(5.0)), verify);
    let key = |out: &[u8]| String::from_utf8_lossy(&out[4..14]).into_owned();
    let value = |record: &str| {
        let mut value = Vec::new();
        let records = Records::new(100, &Law::Fixed(10.0), Law::Fixed(5.0));
        records.put_value(record.parse().unwrap(), 0, &mut value);
        value
    };
    let reply = |key: &str, bytes: usize, value: &[u8], end: &str| {
        let mut all = format!("VALUE {key} 0 {bytes}\r\n").into_bytes();
        all.extend_from_slice(value);
        all.extend_from_slice(end.as_bytes());
        all
    };
    const END: &str = "\r\nEND\r\n";
    type Case<'a> = (Option<Fault>, &'a dyn Fn(&str) -> Vec<u8>);
    let cases: [Case<'_>; 8] = [
        (None, &|k| reply(k, 5, &value(k), END)),
        (None, &|_| b"END\r\n".to_vec()),
        (Some(Fault::WrongValue), &|k| reply(k, 5, b"12345", END)),
        (Some(Fault::WrongLength), &|k| reply(k, 4, &value(k)[..4], END)),
        (Some(Fault::WrongLength), &|k| reply(k, 5, &value(k), "!\r\nEND\r\n")),
        (Some(Fault::WrongKey), &|k| reply("0000000777", 5, &value(k), END)),
        (Some(Fault::ServerError), &|_| b"SERVER_ERROR out of memory\r\n".to_vec()),
        (Some(Fault::BadReply), &|_| b"HTTP/1.1 400 Bad Request\r\n".to_vec()),
    ];
    for (number, (expected, answer)) in cases.into_iter().enumerate() {
        let fault = fault_of(ascii(true), |out| answer(&key(out)));
        assert_eq!(fault, expected, "case {number}");
    }
    assert_eq!(fault_of(ascii(false), |out| reply(&key(out), 5, b"12345", END)), None);
    let twice = |out: &[u8]| [reply(&key(out), 5, &value(&key(out)), END), b"x".to_vec()].concat();
    assert_eq!(fault_of(ascii(true), twice), Some(Fault::BadReply), "more than was asked for");
    let echo = || Echo::new(SIZE, 1, true);
    assert_eq!(fault_of(echo(), <[u8]>::to_vec), None);
    let flipped = |out: &[u8]| out.iter().map(|b| b ^ 1).collect::<Vec<u8>>();
    assert_eq!(fault_of(echo(), flipped), Some(Fault::WrongValue));
    let binary = || Binary::new(workload(Law::Fixed(5.0)), true);
    assert_eq!(fault_of(binary(), |_| b"ERROR\r\n".to_vec()), Some(Fault::BadReply));
    let other = |out: &[u8]| [&[0x81, 0, 0, 0][..], &[0; 8], &out[..12]].concat();
    assert_eq!(fault_of(binary(), other), Some(Fault::WrongKey), "another request's number");
}

/// memcached's answers in a few lines, for requests whose whole record set is there.
fn answer_binary(request: &[u8], records: &Records) -> Vec<u8> {
    let record: u32 = String::from_utf8_lossy(&request[24..34]).parse().unwrap();
    let mut value = Vec::new();
    records.put_value(record, 0, &mut value);
    let mut answer = vec![0x81, 0, 0, 0, 4, 0, 0, 0];
    answer.extend_from_slice(&(value.len() as u32 + 4).to_be_bytes());
    answer.extend_from_slice(&request[12..16]);
    answer.extend_from_slice(&[0; 12]);
    answer.extend_from_slice(&value);
    answer
}

fn answer_ascii(request: &[u8], records: &Records) -> Vec<u8> {
    let key = String::from_utf8_lossy(&request[4..14]).into_owned();
    let mut value = Vec::new();
    records.put_value(key.parse().unwrap(), 0, &mut value);
    [format!("VALUE {key} 0 {}\r\n", value.len()).as_bytes(), &value, b"\r\nEND\r\n"].concat()
}

fn hits_in_pieces<P: Protocol>(
    protocol: P,
    answer: impl Fn(&[u8]) -> Vec<u8>,
    cuts: &[usize],
) -> (u64, u64) {
    let mut engine = one(protocol, false);
    let mut out = Vec::new();
    for round in 0..5 {
        out.clear();
        engine.output(0, round, &mut out);
        let answer = answer(&out);
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % answer.len()).collect();
        ends.extend([0, answer.len()]);
        ends.sort_unstable();
        for piece in ends.windows(2).filter(|piece| piece[0] < piece[1]) {
            assert_eq!(engine.input(0, &answer[piece[0]..piece[1]], round), Verdict::Open);
        }
    }
    let interval = engine.conclude(9);
    (interval.counts.hits, interval.counts.faults.total())
}

proptest! {
    #[test]
    fn answers_may_come_in_any_pieces(
        cuts in prop::collection::vec(any::<usize>(), 0..12),
        bytes in 0..3000u32,
    ) {
        let values = Law::Fixed(bytes.into());
        let records = Records::new(100, &Law::Fixed(10.0), values.clone());
        let ascii = Ascii::new(workload(values.clone()), true);
        let seen = hits_in_pieces(ascii, |out| answer_ascii(out, &records), &cuts);
        prop_assert_eq!(seen, (5, 0));
        let binary = Binary::new(workload(values), true);
        let seen = hits_in_pieces(binary, |out| answer_binary(out, &records), &cuts);
        prop_assert_eq!(seen, (5, 0));
    }

    /// Whatever a server sends, the generator lives.
    #[test]
    fn garbage_is_an_error_and_no_crash(data in prop::collection::vec(any::<u8>(), 1..600)) {
        let mut engine = one(Ascii::new(workload(Law::FbValue), true), false);
        engine.output(0, 0, &mut Vec::new());
        let _ = engine.input(0, &data, 1);
        let mut engine = one(Binary::new(workload(Law::FbValue), true), false);
        engine.output(0, 0, &mut Vec::new());
        let mut near = data.clone();
        near[0] = 0x81;
        let _ = engine.input(0, &near, 1);
        let mut engine = one(Binary::new(workload(Law::FbValue), true), true);
        engine.output_datagram(0, 0, &mut Vec::new());
        engine.input_datagram(0, &data, 1);
        let mut engine = one(crate::protocol::Http::new("h", "/", true), false);
        engine.output(0, 0, &mut Vec::new());
        let _ = engine.input(0, &[b"HTTP/1.1 200 OK\r\n", &data[..]].concat(), 1);
    }
}

#[test]
fn datagrams_are_lost_late_doubled_and_in_parts() {
    let records = Records::new(100, &Law::Fixed(10.0), Law::Fixed(3000.0));
    let mut engine = one(Binary::new(workload(Law::Fixed(3000.0)), true), true);
    let request = |engine: &mut Engine<Binary>, now_ns| {
        let mut out = Vec::new();
        engine.output_datagram(0, now_ns, &mut out).then_some(out)
    };
    let parts = |request: &[u8]| {
        let answer = answer_binary(&request[8..], &records);
        let count = answer.len().div_ceil(1400) as u8;
        let part = |(n, data): (usize, &[u8])| {
            [&request[..2], &[0, n as u8, 0, count, 0, 0], data].concat()
        };
        answer.chunks(1400).enumerate().map(part).collect::<Vec<_>>()
    };
    let first = request(&mut engine, 0).unwrap();
    assert_eq!(request(&mut engine, 0), None, "one at a time");
    let mut pieces = parts(&first);
    assert_eq!(pieces.len(), 3);
    pieces.reverse();
    pieces.push(pieces[0].clone());
    pieces.iter().for_each(|piece| engine.input_datagram(0, piece, 10));
    // The next one is lost, and its answer comes after it was given up.
    let second = request(&mut engine, 20).unwrap();
    let mut sum = Interval::default();
    for ms in 0..22_000 {
        sum.merge(engine.tick(20 + ms * MS).map(|interval| *interval).unwrap_or_default());
    }
    assert_eq!(engine.under_way(), 0);
    parts(&second).iter().for_each(|piece| engine.input_datagram(0, piece, 40 * SECOND));
    assert!(request(&mut engine, 40 * SECOND).is_some(), "there is room again");
    sum.merge(*engine.conclude(50 * SECOND));
    assert_eq!((sum.counts.hits, sum.counts.late), (1, 4));
    let kinds: Vec<_> = sum.counts.faults.kinds().map(|(fault, n, _)| (fault, n)).collect();
    assert_eq!(kinds, [(Fault::NoAnswer, 1)]);
}
