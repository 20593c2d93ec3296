//! Bulk data over wide-area paths in virtual time, with the defaults that ship: what arrives of
//! what the path can carry. The path has 100 Mbit/s and a queue of one product of rate and round
//! trip, as in `ix bench loss`.

use crate::support::*;
use ix_tcp::{Config, CongestionControl, State, TcpCounter};
use ix_wire::Seq;
use net::{Link, Net};

/// 100 Mbit/s.
const BYTES_PER_MS: u64 = 12_500;
/// Payload of a segment, and its bytes on the link.
const SEGMENT_BYTES: (u64, u64) = (1448, 1508);
const SECOND_US: u64 = 1_000_000;

/// There and back.
fn path(round_trip_us: u64, loss_per_mille: u32) -> [Link; 2] {
    let back = Link { delay_us: round_trip_us / 2, ..Link::GOOD };
    [
        Link { bytes_per_ms: BYTES_PER_MS, queue_us: round_trip_us, loss: loss_per_mille, ..back },
        back,
    ]
}

/// A connection whose sender never runs out of data.
fn bulk(congestion: CongestionControl, links: [Link; 2], seed: u64, bytes: u64) -> Net {
    let cfg = Config { congestion, ..Config::default() };
    // The SYN is there at once, so the SYN-ACK takes the whole round trip.
    let delay_us = links[0].delay_us + links[1].delay_us;
    let whole = Link { delay_us, ..Link::GOOD };
    let mut net = Net::connect([cfg.clone(), cfg], whole, seed, [Seq(7), Seq(9)], START_US);
    net.run(2 * delay_us + SECOND_US, |net| net.ends[0].state() == State::Established);
    net.links = links;
    net.to_send[0] = vec![0x5a; bytes as usize];
    net.cycle(0);
    net
}

/// Percent of what the path can carry that arrive within `us`.
fn percent(net: &mut Net, us: u64) -> u64 {
    let (before, end_us) = (net.received[1].len(), net.now_us + us);
    net.run(2 * us, |net| net.now_us >= end_us);
    let got = (net.received[1].len() - before) as u64;
    let (payload, size) = SEGMENT_BYTES;
    got * 100 / (us / 1000 * BYTES_PER_MS * payload / size)
}

/// The same of some seconds, after ten round trips, as the mean of three seeds.
fn mean_percent(congestion: CongestionControl, round_trip_us: u64, loss_per_mille: u32) -> u64 {
    mean_percent_late(congestion, round_trip_us, loss_per_mille, 0)
}

/// The same where timers run up to `late_us` late, as on a busy machine.
fn mean_percent_late(
    congestion: CongestionControl,
    round_trip_us: u64,
    loss_per_mille: u32,
    late_us: u64,
) -> u64 {
    let (begin_us, us) = (10 * round_trip_us, 5 * SECOND_US);
    let bytes = (begin_us + us) / 1000 * BYTES_PER_MS;
    let of = |seed| {
        let mut net = bulk(congestion, path(round_trip_us, loss_per_mille), seed, bytes);
        net.late_us = late_us;
        percent(&mut net, begin_us);
        percent(&mut net, us)
    };
    (1..=3).map(of).sum::<u64>() / 3
}

#[test]
fn paths_without_loss_are_filled() {
    for congestion in [CongestionControl::Cubic, CongestionControl::Bbr] {
        for round_trip_us in [1_000, 10_000, 80_000, 300_000] {
            let got = mean_percent(congestion, round_trip_us, 0);
            assert!(got >= 93, "{congestion:?}, {round_trip_us} us: {got} %");
        }
    }
}

/// BBR takes losses of up to 2 % for noise (its LossThresh), however they fall; CUBIC cannot.
#[test]
fn bbr_fills_paths_that_lose_one_percent() {
    for (round_trip_us, late_us) in [(10_000, 0), (80_000, 0), (80_000, 500), (80_000, 2_000)] {
        let got = mean_percent_late(CongestionControl::Bbr, round_trip_us, 10, late_us);
        assert!(got >= 90, "{round_trip_us} us, {late_us} us late: {got} %");
        let cubic = mean_percent(CongestionControl::Cubic, round_trip_us, 10);
        assert!(got >= 4 * cubic, "{round_trip_us} us: {got} %, CUBIC {cubic} %");
    }
}

/// On a path that keeps the order, what is taken to be lost was lost: it is sent again once, and
/// the reduction of the window stays. Retransmissions of one recovery that are acknowledged in the
/// next are no sign that the next is a mistake.
#[test]
fn where_packets_are_lost_and_never_overtake_nothing_is_undone() {
    for congestion in [CongestionControl::Cubic, CongestionControl::Bbr] {
        for loss_per_mille in [0, 10] {
            let mut net = bulk(congestion, path(80_000, loss_per_mille), 1, 40_000_000);
            percent(&mut net, 4 * SECOND_US);
            let sender = &net.ends[0];
            let told = format!("{congestion:?}, {loss_per_mille} in 1,000");
            assert_eq!(sender.count(TcpCounter::Undos), 0, "{told}");
            let again = sender.count(TcpCounter::Retransmits);
            let lost = net.losses[0] + net.overflows[0];
            assert!(again <= lost + sender.count(TcpCounter::Tlp), "{told}: {again} of {lost}");
        }
    }
}

/// What a peer with receive offload acknowledges at once opens the window by as much. Without loss
/// slow start takes the round trips that doubling takes, and two more.
#[test]
fn slow_start_doubles_on_a_long_path() {
    let mut net = bulk(CongestionControl::Cubic, path(80_000, 0), 1, 3_000_000);
    let began_us = net.now_us;
    // 10 + 20 + ... + 160 segments are 310; what the window is then fills 40 % of the path.
    net.run(60 * SECOND_US, |net| net.received[1].len() >= 310 * 1448);
    let round_trips = (net.now_us - began_us) / 80_000;
    assert!(round_trips <= 7, "{round_trips}");
    assert_eq!(net.ends[0].count(TcpCounter::Retransmits), 0);
}

/// Jitter of a tenth of the round trip each way, which keeps the order: slow start neither stops at
/// half of the path nor overflows its queue.
#[test]
fn jitter_does_not_mislead_slow_start() {
    for seed in 1..=4 {
        let mut links = path(80_000, 0);
        links.iter_mut().for_each(|link| link.jitter_us = 8_000);
        let mut net = bulk(CongestionControl::Cubic, links, seed, 40_000_000);
        percent(&mut net, 10 * 80_000);
        let got = percent(&mut net, 2 * SECOND_US);
        assert!(got >= 93, "seed {seed}: {got} %");
        assert!(net.overflows[0] <= 100, "seed {seed}: {} overflows", net.overflows[0]);
    }
}

/// With 80 ms a window of hundreds of segments leaves in pieces: no more than the bucket of 64 and
/// a half millisecond of its rate at once.
#[test]
fn large_windows_are_paced() {
    let mut net = bulk(CongestionControl::Cubic, path(80_000, 0), 1, 20_000_000);
    let (mut last_us, mut burst, mut longest) = (0, 0, 0);
    let mut before = net.transmitted[0];
    net.run(10 * SECOND_US, |net| {
        if net.now_us != last_us {
            (last_us, burst) = (net.now_us, 0);
        }
        burst += net.transmitted[0] - before;
        before = net.transmitted[0];
        longest = longest.max(burst);
        net.received[1].len() >= 10_000_000
    });
    assert!(longest <= 80, "{longest}");
    assert!(net.ends[0].tcb.info(&net.ends[0].cfg).cwnd_bytes > 400 * 1448);
}

/// A limit of the application holds whatever the congestion control says, and for small flights.
#[test]
fn the_applications_limit_of_the_rate_holds() {
    for (congestion, limit) in [
        (CongestionControl::Cubic, 5_000),
        (CongestionControl::Cubic, 50_000),
        (CongestionControl::Cubic, 2_000_000),
        (CongestionControl::Bbr, 500_000),
    ] {
        for round_trip_us in [200, 20_000] {
            let mut net = bulk(congestion, path(round_trip_us, 0), 1, 0);
            net.ends[0].tcb.set_max_pacing_rate(Some(limit));
            net.to_send[0] = vec![0x5a; 12 * limit as usize];
            net.cycle(0);
            let before = net.received[1].len() as u64;
            let end_us = net.now_us + 5 * SECOND_US;
            net.run(9 * SECOND_US, |net| net.now_us >= end_us);
            let rate = (net.received[1].len() as u64 - before) / 5;
            let told = format!("{congestion:?}, {round_trip_us} us: {rate} of {limit}");
            assert!(rate <= limit * 103 / 100 + 1448 && rate >= limit * 80 / 100, "{told}");
            net.ends[0].tcb.set_max_pacing_rate(None);
        }
    }
}
