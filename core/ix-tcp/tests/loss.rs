//! Loss recovery, segment by segment: RFC 2018, 2883, 5681, 6298, 6582, 8985, 9937.

use crate::support::*;
use ix_tcp::{Config, CongestionControl, DeadReason, PathError, Tcb, TcbInfo, TcpCounter};
use ix_wire::Seq;

const MSS: u32 = 1460;

/// With exact timeouts.
fn cfg() -> Config {
    Config { rto_jitter_percent: 0, ..Config::default() }
}

/// A settled connection with a round-trip time of 1 ms, `count` full segments in flight, the first
/// at the returned sequence number.
fn in_flight(cfg: Config, offer: Offer, count: u32) -> (Script, Seq) {
    let mut script = Script::settled(cfg, offer);
    for _ in 0..20 {
        script.send(b"x");
        script.output();
        script.expect_data(b"x");
        script.run_for(1000);
        script.ack += 1;
        script.give(ACK, b"");
    }
    let first = script.ack;
    let mss = script.tcb.info(&script.cfg).mss_bytes;
    let sent = script.send(&pattern((count * mss) as usize));
    assert_eq!(sent as u32, count * mss);
    script.output();
    assert_eq!(script.out.sent.len() as u32, count);
    script.out.sent.clear();
    (script, first)
}

fn seqs(script: &mut Script) -> Vec<(u32, bool)> {
    script.out.sent.drain(..).map(|sent| (sent.seg.seq.0, sent.seg.retransmission)).collect()
}

/// RFC 8985 section 6.2: three segments sacked beyond a hole: it is lost; one retransmission, one
/// response.
#[test]
fn sack_repairs_a_hole() {
    let (mut script, first) = in_flight(cfg(), Offer::SACK, 10);
    let cwnd = script.tcb.info(&cfg()).cwnd_bytes;
    script.run_for(1000);
    for sacked in 2..=4 {
        script.give_sack(first, &[(first + MSS, first + sacked * MSS)]);
        script.output();
    }
    assert_eq!(seqs(&mut script), [(first.0, true)]);
    assert_eq!(script.count(TcpCounter::Recoveries), 1);
    let info = script.tcb.info(&cfg());
    assert_eq!(info.ssthresh_bytes, (cwnd.min(10 * MSS) as f64 * 0.7) as u32);
    assert_eq!(info.in_flight_bytes, 7 * MSS);
    for sacked in 5..=10 {
        script.give_sack(first, &[(first + MSS, first + sacked * MSS)]);
        script.output();
    }
    assert_eq!(seqs(&mut script), [], "nothing else was lost");
    script.run_for(1000);
    script.give_sack(first + 10 * MSS, &[]);
    let info = script.tcb.info(&cfg());
    assert_eq!((info.in_flight_bytes, info.cwnd_bytes), (0, info.ssthresh_bytes));
}

/// RFC 6582: without SACK, three duplicates, then one hole with each partial acknowledgement.
#[test]
fn new_reno_repairs_two_holes() {
    let cfg = Config { congestion: CongestionControl::NewReno, ..cfg() };
    let (mut script, first) = in_flight(cfg.clone(), Offer::BARE, 8);
    script.run_for(1000);
    for _ in 0..2 {
        script.give(ACK, b"");
        script.output();
        script.expect_nothing();
    }
    script.give(ACK, b"");
    script.output();
    assert_eq!(seqs(&mut script), [(first.0, true)]);
    for _ in 0..3 {
        script.give(ACK, b"");
        script.output();
    }
    script.out.sent.clear();
    // Partial: the segment after the first was lost too.
    script.run_for(1000);
    script.ack = first + 4 * MSS;
    script.give(ACK, b"");
    script.output();
    assert_eq!(seqs(&mut script), [(first.0 + 4 * MSS, true)]);
    script.run_for(1000);
    script.ack = first + 8 * MSS;
    script.give(ACK, b"");
    let info = script.tcb.info(&cfg);
    assert_eq!((info.in_flight_bytes, info.cwnd_bytes), (0, 4 * MSS));
    assert_eq!(script.count(TcpCounter::Recoveries), 1);
    assert_eq!(script.count(TcpCounter::Rto), 0);
}

/// smoltcp#224: any number of duplicates.
#[test]
fn a_hundred_thousand_duplicate_acks() {
    for offer in [Offer::BARE, Offer::SACK, Offer::ALL] {
        let (mut script, first) = in_flight(cfg(), offer, 5);
        for _ in 0..100_000 {
            script.give(ACK, b"");
        }
        script.output();
        script.ack = first + 5 * script.tcb.info(&cfg()).mss_bytes;
        script.give(ACK, b"");
        assert_eq!(script.tcb.info(&cfg()).in_flight_bytes, 0);
    }
}

/// What is no duplicate acknowledgement: data, a changed window, nothing outstanding (RFC 5681
/// section 2).
#[test]
fn data_and_window_updates_are_no_duplicate_acks() {
    let (mut script, _) = in_flight(cfg(), Offer::BARE, 5);
    for round in 0..5 {
        script.give(ACK, b"data");
        script.window -= 1 + round;
        script.give(ACK, b"");
    }
    script.output();
    assert!(script.out.sent.iter().all(|sent| sent.seg.payload_len == 0));
    assert_eq!(script.count(TcpCounter::Recoveries), 0);
}

/// Data that finds no memory is still data: no duplicate acknowledgement, wherever it begins.
#[test]
fn data_that_could_not_be_kept_is_no_duplicate_ack() {
    let (mut script, first) = in_flight(cfg(), Offer::BARE, 5);
    let mut hdr = script.header(ACK);
    for _ in 0..5 {
        let End { cfg, tcb, out, now_us } = &mut script.end;
        tcb.segment_without_text(cfg, *now_us, &hdr, 1000, out);
        hdr.seq += 1000;
    }
    script.output();
    assert!(script.out.sent.iter().all(|sent| sent.seg.payload_len == 0));
    assert_eq!(script.count(TcpCounter::Recoveries), 0);
    assert_eq!(script.tcb.rcv_nxt(), script.seq);
    // What it acknowledges counts, also if a part of its text was received before.
    script.give(ACK, &[0; 100]);
    let mut hdr = script.header(ACK);
    (hdr.seq, hdr.ack) = (Seq(script.seq.0 - 100), first + 2 * MSS);
    let End { cfg, tcb, out, now_us } = &mut script.end;
    tcb.segment_without_text(cfg, *now_us, &hdr, 1000, out);
    assert_eq!(script.tcb.info(&script.cfg).in_flight_bytes, 3 * MSS);
}

/// At most 8,192 segments are in flight, also to a peer that takes tiny segments and offers a large
/// window.
#[test]
fn segments_in_flight_are_bounded() {
    let cfg = Config { initial_window_segments: 30_000, snd_buf_bytes: 4 << 20, ..cfg() };
    let offer = Offer { mss: Some(64), window_scale: Some(14), ..Offer::SACK };
    let mut script = Script::settled(cfg, offer);
    while script.send(&pattern(64 << 10)) > 0 {}
    script.output();
    let first = script.out.sent.len();
    assert_eq!(first, 8192);
    script.run_for(1_000);
    script.ack_all();
    script.output();
    assert!(script.out.sent.len() > 1000, "the rest follows");
}

/// gvisor#14092: first sacked, then cumulatively acknowledged, in every order: nothing is left
/// over.
#[test]
fn in_flight_accounting_is_exact() {
    let mut random = ix_random::Rng::new(7);
    for _ in 0..300 {
        let (mut script, first) = in_flight(cfg(), Offer::SACK, 10);
        let mut arrived = [false; 10];
        let mut una = 0;
        while una < 10 {
            script.run_for(200 + random.below(3000));
            arrived[random.below(10) as usize] = true;
            una = arrived.iter().position(|&it| !it).unwrap_or(10);
            let blocks: Vec<_> = (una..10)
                .filter(|&at| arrived[at])
                .map(|at| (first + at as u32 * MSS, first + (at as u32 + 1) * MSS))
                .take(4)
                .collect();
            script.give_sack(first + una as u32 * MSS, &blocks);
            script.output();
            script.out.sent.clear();
        }
        assert_eq!(script.tcb.info(&cfg()).in_flight_bytes, 0);
        script.run_for(5_000_000);
        script.expect_nothing();
    }
}

/// RFC 8985 section 6.2 steps 3 and 5: once a path was seen to reorder, a hole is given a quarter
/// of the round-trip time to fill by itself.
#[test]
fn reordering_is_waited_for() {
    let (mut script, first) = in_flight(cfg(), Offer::SACK, 10);
    script.run_for(1000);
    // The second segment overtook the first.
    script.give_sack(first, &[(first + MSS, first + 2 * MSS)]);
    script.output();
    script.give_sack(first + 2 * MSS, &[]);
    // Then the third seems to be overtaken by all others.
    let hole = first + 2 * MSS;
    script.give_sack(hole, &[(hole + MSS, hole + 8 * MSS)]);
    script.output();
    // The shortest round trip was that of the handshake, 100 µs.
    script.run_for(20);
    assert_eq!(seqs(&mut script), []);
    script.run_for(10);
    assert_eq!(seqs(&mut script), [(hole.0, true)]);
    assert_eq!((script.count(TcpCounter::Tlp), script.count(TcpCounter::Rto)), (0, 0));
}

/// RFC 7323 section 4: the echo of a retransmission gives no sample if something that was sent
/// later caused it.
#[test]
fn late_echo_is_no_round_trip_time() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    script.send(b"a");
    script.output();
    script.expect_data(b"a");
    while script.out.sent.is_empty() {
        script.run_to_deadline();
    }
    script.expect_data(b"a");
    while script.count(TcpCounter::Rto) < 8 {
        script.run_to_deadline();
    }
    let last = script.out.sent.drain(..).next_back().expect("retransmissions");
    let echo = last.seg.options.timestamp.expect("a timestamp").0;
    // The acknowledgement is lost; a second later new data elicits another, with the same echo.
    script.run_for(1_000_000);
    script.send(b"b");
    script.output();
    script.expect_data(b"b");
    script.run_for(100);
    script.echo = echo;
    script.ack += 1;
    script.give(ACK, b"");
    let info = script.tcb.info(&cfg());
    assert!(info.srtt_us < 1000, "{info:?}");
}

/// RFC 8985 section 6.2 step 2: an acknowledgement that arrives too soon to be for the
/// retransmission is for the original, and proves nothing about what was sent since.
#[test]
fn early_ack_of_a_retransmission_condemns_nothing() {
    let (mut script, first) = in_flight(cfg(), Offer::SACK, 10);
    script.run_for(1000);
    script.give_sack(first, &[(first + MSS, first + 5 * MSS)]);
    script.output();
    assert_eq!(seqs(&mut script), [(first.0, true)]);
    // 50 µs later, half of the shortest round trip, the original is acknowledged.
    script.run_for(50);
    script.give_sack(first + 5 * MSS, &[]);
    script.output();
    assert!(seqs(&mut script).iter().all(|(_, again)| !again), "five are still on their way");
}

/// RFC 8985 section 6.3: a timeout takes the oldest segment for lost, not one that was just sent.
#[test]
fn timeout_spares_what_was_just_sent() {
    let (mut script, first) = in_flight(cfg(), Offer::SACK, 3);
    while script.count(TcpCounter::Tlp) == 0 {
        script.run_to_deadline();
    }
    script.out.sent.clear();
    let rto_at_us = script.tcb.deadline();
    script.run_until(rto_at_us - 10);
    script.send(b"fresh");
    script.output();
    script.out.sent.clear();
    while script.count(TcpCounter::Rto) == 0 {
        script.run_to_deadline();
    }
    assert_eq!(seqs(&mut script)[0], (first.0, true));
    assert_eq!(script.now_us, rto_at_us);
    assert_eq!(script.tcb.info(&cfg()).in_flight_bytes, MSS + 5);
}

/// RFC 8985 section 7: the last segments of a burst are probed long before the retransmission
/// timeout.
#[test]
fn tail_loss_probe() {
    let (mut script, first) = in_flight(cfg(), Offer::SACK, 4);
    let rto_at_us = script.now_us + u64::from(script.tcb.info(&cfg()).rto_us);
    script.run_to_deadline();
    assert!(script.now_us < rto_at_us);
    assert_eq!(seqs(&mut script), [(first.0 + 3 * MSS, true)]);
    assert_eq!((script.count(TcpCounter::Tlp), script.count(TcpCounter::Rto)), (1, 0));
    // Its SACK reveals the other three.
    script.run_for(1000);
    script.give_sack(first, &[(first + 3 * MSS, first + 4 * MSS)]);
    script.output();
    script.run_for(3000);
    let again = seqs(&mut script);
    assert_eq!(again[0], (first.0, true));
    script.run_for(1000);
    script.give_sack(first + 4 * MSS, &[]);
    assert_eq!(script.count(TcpCounter::Rto), 0);
}

/// While messages follow each other, the loss timer stays at a time that is early enough. The probe
/// of the last one is sent when it would be if the timer had been set with it (RFC 8985 section
/// 7.2).
#[test]
fn a_timer_that_stays_is_right_when_it_comes() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    let ask = |script: &mut Script| {
        script.send(b"x");
        script.output();
        script.expect_data(b"x");
    };
    let answer = |script: &mut Script| {
        script.run_for(1000);
        script.ack += 1;
        script.give(ACK, b"y");
        script.read_all();
    };
    for _ in 0..20 {
        ask(&mut script);
        answer(&mut script);
    }
    ask(&mut script);
    let stays_at_us = script.tcb.deadline();
    for _ in 0..20 {
        answer(&mut script);
        ask(&mut script);
        assert_eq!(script.tcb.deadline(), stays_at_us, "the timer is set for each message");
    }
    let (asked_us, info) = (script.now_us, script.tcb.info(&script.cfg));
    while script.count(TcpCounter::Tlp) == 0 {
        script.run_to_deadline();
    }
    let wait_us = (2 * info.srtt_us).max(script.cfg.min_pto_us) + script.cfg.max_ack_delay_us;
    assert_eq!(script.now_us - asked_us, u64::from(wait_us));
}

/// RFC 8985 section 7.4: a probe that repaired a loss is a congestion signal; one that was
/// superfluous is not.
#[test]
fn tail_loss_probe_and_congestion() {
    let ssthresh = |dsack: bool| {
        let (mut script, first) = in_flight(cfg(), Offer::SACK, 4);
        script.run_to_deadline();
        assert_eq!(script.count(TcpCounter::Tlp), 1);
        script.out.sent.clear();
        script.run_for(1000);
        script.send(b"more");
        script.output();
        script.out.sent.clear();
        let end = first + 4 * MSS;
        if dsack {
            script.give_sack(end, &[(end - MSS, end)]);
        }
        script.give_sack(end + 4, &[]);
        script.tcb.info(&cfg()).ssthresh_bytes
    };
    assert!(ssthresh(false) < 10 * MSS);
    assert_eq!(ssthresh(true), 1 << 30);
}

/// RFC 6298 section 5: doubles; smoltcp#1023 had no backoff. The data is the same each time.
#[test]
fn retransmission_timeout_backs_off() {
    let mut script = Script::settled(cfg(), Offer::BARE);
    script.send(b"lost");
    script.output();
    script.expect_data(b"lost");
    let mut gaps = Vec::new();
    for _ in 0..8 {
        let before = script.now_us;
        script.run_to_deadline();
        assert!(script.expect_data(b"lost").seg.retransmission);
        gaps.push(script.now_us - before);
    }
    // Less than two segments are out: the peer's delayed ACK is allowed for, once, not doubled.
    let allowance = u64::from(cfg().delayed_ack_allowance_us);
    let bare: Vec<_> = gaps.iter().map(|gap| gap - allowance).collect();
    // A round trip of 100 us, and 5 ms.
    assert_eq!(bare, [5100, 10_200, 20_400, 40_800, 81_600, 163_200, 326_400, 652_800]);
    script.run_for(1_000_000_000);
    assert_eq!(script.dead(), Some(DeadReason::TimedOut));
}

/// The jitter only lengthens, begins with the first doubling, differs for each doubling and between
/// connections. Tested with the SYN, whose timeouts are longest.
#[test]
fn doubled_timeouts_of_connections_fall_out_of_step() {
    let cfg = Config::default();
    let gaps_us = |ts_offset: u32| -> Vec<u64> {
        let mut out = crate::support::Recorder::default();
        let mut now_us = START_US;
        let mut tcb = Tcb::connect(&cfg, tuple(1, 2), ISS, ts_offset, now_us);
        tcb.output(&cfg, now_us, &mut out);
        let mut wait = || {
            let since_us = std::mem::replace(&mut now_us, tcb.deadline());
            tcb.timer(&cfg, now_us, &mut out);
            now_us - since_us
        };
        (0..5).map(|_| wait()).collect()
    };
    let all: Vec<Vec<u64>> = (0..1000).map(|n: u32| gaps_us(n.wrapping_mul(77_777_777))).collect();
    for (doublings, base_us) in [1, 2, 4, 8, 16].map(|s| s * 1_000_000).into_iter().enumerate() {
        let mut extra_us: Vec<u64> = all.iter().map(|gaps| gaps[doublings] - base_us).collect();
        if doublings == 0 {
            assert!(extra_us.iter().all(|extra_us| *extra_us == 0), "the first is exact");
            continue;
        }
        extra_us.sort_unstable();
        let quarter_us = base_us * u64::from(cfg.rto_jitter_percent) / 100;
        assert!(extra_us[999] <= quarter_us);
        // Evenly: no tenth of the range has more than twice its part.
        for tenth in 0..10 {
            let within = |us: &&u64| **us * 10 / (quarter_us + 1) == tenth;
            let count = extra_us.iter().filter(within).count();
            assert!((50..=200).contains(&count), "{count} in tenth {tenth}");
        }
    }
    // A connection that is late at first is not late each time.
    let late = |doublings: usize, gaps: &Vec<u64>| gaps[doublings] > (9 << doublings) * 125_000;
    let both = all.iter().filter(|gaps| late(1, gaps) && late(2, gaps)).count();
    assert!((150..=350).contains(&both), "{both}");
}

/// RFC 4821 sections 7.4 and 7.6.2: a probe of the path is one segment, the next is sent a second
/// after it was lost, and a size is given up after three lost probes.
#[test]
fn the_path_is_tried_by_one_segment_at_a_time() {
    const SHORT: u32 = 984;
    let mut script = Script::settled(cfg(), Offer::SACK);
    script.send(&[1; 1460]);
    script.output();
    let first = script.ack;
    let End { cfg, tcb, out, now_us } = &mut script.end;
    tcb.icmp_error(cfg, *now_us, PathError::FragNeeded { mtu: 1024 }, Some(first), out);
    script.ack += 1460;
    script.give(ACK, b"");
    script.output();
    script.run_for(600_000_000);
    script.out.sent.clear();
    let mut probes = Vec::new();
    for _ in 0..200 {
        script.run_for(100_000);
        script.out.sent.clear();
        let first = script.ack;
        script.send(&[2; 8 * SHORT as usize]);
        script.output();
        let sent: Vec<(Seq, u32)> =
            script.out.sent.drain(..).map(|s| (s.seg.seq, s.seg.payload_len)).collect();
        let long: Vec<&(Seq, u32)> = sent.iter().filter(|(_, len)| *len > SHORT).collect();
        assert!(long.len() <= 1, "{sent:?}");
        script.run_for(100);
        script.ack = first + 8 * SHORT;
        if let Some(&&(seq, len)) = long.first() {
            probes.push((script.now_us, len));
            // It is lost; everything else arrives.
            let all = script.ack;
            script.ack = seq;
            script.give_sack(seq, &[(seq + len, all)]);
            script.output();
            let again: u32 = script.out.sent.drain(..).map(|s| s.seg.payload_len).sum();
            assert_eq!(again, len);
            script.run_for(100);
            script.ack = all;
        }
        script.give(ACK, b"");
        script.output();
    }
    assert!(probes.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 1_000_000), "{probes:?}");
    let lens: Vec<u32> = probes.iter().map(|probe| probe.1).collect();
    let halfway = |high: u32| SHORT + (high - SHORT).div_ceil(2);
    let second = halfway(1459);
    let third = halfway(second - 1);
    assert_eq!(lens[..9], [[1460; 3], [second; 3], [third; 3]].concat()[..]);
    assert_eq!(script.count(TcpCounter::Recoveries), 0);
}

/// smoltcp#62: acknowledgements that acknowledge nothing do not put off the timeout.
#[test]
fn duplicates_do_not_restart_the_timer() {
    for offer in [Offer::BARE, Offer::ALL] {
        let mut script = Script::settled(cfg(), offer);
        script.send(b"lost");
        script.output();
        script.out.sent.clear();
        let sent_us = script.now_us;
        while script.out.sent.is_empty() {
            script.run_for(1000);
            script.give(ACK, b"");
            script.output();
            assert!(script.now_us - sent_us < 200_000, "never sent again");
        }
        assert!(script.out.sent[0].seg.retransmission);
    }
}

/// A Linux peer may delay its acknowledgement 40 ms although our minimum timeout is 5 ms.
#[test]
fn a_delayed_ack_is_no_loss() {
    for offer in [Offer::BARE, Offer::ALL] {
        let mut script = Script::settled(cfg(), offer);
        for _ in 0..50 {
            script.send(b"request");
            script.output();
            script.expect_data(b"request");
            script.run_for(41_000);
            script.expect_nothing();
            script.ack += 7;
            script.give(ACK, b"");
        }
        assert_eq!(script.count(TcpCounter::Retransmits), 0);
    }
}

/// RFC 5681 section 3.1: after a timeout one segment, then slow start; then everything, in order.
#[test]
fn timeout_then_slow_start() {
    let (mut script, first) = in_flight(cfg(), Offer::BARE, 8);
    script.run_to_deadline();
    assert_eq!(seqs(&mut script), [(first.0, true)]);
    assert_eq!(script.tcb.info(&cfg()).cwnd_bytes, MSS);
    script.run_for(1000);
    script.ack = first + MSS;
    script.give(ACK, b"");
    script.output();
    assert_eq!(seqs(&mut script), [(first.0 + MSS, true), (first.0 + 2 * MSS, true)]);
    assert_eq!(script.count(TcpCounter::Rto), 1);
}

/// RFC 2018 section 8: a receiver may forget what it only sacked; the timeout sends it again.
#[test]
fn reneging() {
    let (mut script, first) = in_flight(cfg(), Offer::SACK, 4);
    script.run_for(1000);
    script.give_sack(first, &[(first + MSS, first + 4 * MSS)]);
    script.output();
    script.out.sent.clear();
    script.run_for(1000);
    // The hole is filled, but what lay behind it is gone.
    script.give_sack(first + MSS, &[]);
    let mut again = Vec::new();
    while script.tcb.info(&cfg()).in_flight_bytes > 0 || again.len() < 3 {
        if script.out.sent.is_empty() {
            script.run_to_deadline();
        }
        for (seq, _) in seqs(&mut script) {
            again.push((Seq(seq) - first) as u32 / MSS);
            script.give_sack(script.ack.max(Seq(seq) + MSS), &[]);
            script.output();
        }
    }
    assert_eq!(again, [1, 2, 3]);
    assert_eq!(script.count(TcpCounter::SackReneged), 1);
    assert_eq!(script.tcb.info(&cfg()).in_flight_bytes, 0);
}

/// RFC 3522: the acknowledgement echoes the original's timestamp: no loss, the window comes back.
#[test]
fn spurious_timeout_is_undone() {
    let (mut script, first) = in_flight(cfg(), Offer::ALL, 8);
    let before = script.tcb.info(&cfg());
    let mss = before.mss_bytes;
    let echo = script.echo;
    while script.count(TcpCounter::Rto) == 0 {
        script.run_to_deadline();
    }
    assert!(script.tcb.info(&cfg()).cwnd_bytes < before.cwnd_bytes);
    script.out.sent.clear();
    script.echo = echo;
    script.ack = first + 8 * mss;
    script.give(ACK, b"");
    assert_eq!(script.count(TcpCounter::Undos), 1);
    assert!(script.tcb.info(&cfg()).cwnd_bytes >= before.cwnd_bytes);
    script.run_for(1_000_000);
    script.output();
    script.expect_nothing();
}

/// A timeout in the middle of fast recovery was a mistake: recovery continues, and the window is
/// not reduced a second time for the rest of the same losses (RFC 5681 section 4.3: one reduction
/// per window of data).
#[test]
fn recovery_outlives_a_spurious_timeout() {
    let (mut script, first) = in_flight(cfg(), Offer::ALL, 10);
    let mss = script.tcb.info(&cfg()).mss_bytes;
    script.run_for(1000);
    script.give_sack(first, &[(first + mss, first + 4 * mss)]);
    script.output();
    assert_eq!(script.count(TcpCounter::Recoveries), 1);
    let reduced = script.tcb.info(&cfg()).ssthresh_bytes;
    let echo = script.out.sent.front().expect("a retransmission").seg.options.timestamp;
    while script.count(TcpCounter::Rto) == 0 {
        script.run_to_deadline();
    }
    assert_eq!(script.tcb.info(&cfg()).cwnd_bytes, mss);
    script.out.sent.clear();
    // What recovery had sent again arrives late; so do two more, but not the one between.
    script.echo = echo.expect("timestamps are on").0;
    script.give_sack(first + 4 * mss, &[]);
    assert_eq!(script.count(TcpCounter::Undos), 1);
    script.run_for(1000);
    script.give_sack(first + 4 * mss, &[(first + 5 * mss, first + 10 * mss)]);
    script.output();
    assert_eq!(seqs(&mut script), [(first.0 + 4 * mss, true)]);
    assert_eq!(script.count(TcpCounter::Recoveries), 1);
    script.run_for(1000);
    script.give_sack(first + 10 * mss, &[]);
    let info = script.tcb.info(&cfg());
    assert_eq!((info.ssthresh_bytes, info.cwnd_bytes), (reduced, reduced));
}

/// Ten segments are in flight; those behind the first have come before it, so it was sent again.
/// Returns the first octet, too, and what was known before.
fn reordered() -> (Script, Seq, TcbInfo) {
    let (mut script, first) = in_flight(cfg(), Offer::SACK, 10);
    let before = script.tcb.info(&cfg());
    script.run_for(1000);
    script.give_sack(first, &[(first + MSS, first + 5 * MSS)]);
    script.output();
    assert_eq!(seqs(&mut script), [(first.0, true)]);
    (script, first, before)
}

/// RFC 3708: each retransmission is reported as a duplicate: there was only reordering.
#[test]
fn reordering_is_undone_by_dsack() {
    let (mut script, first, before) = reordered();
    // The late original arrives, then the retransmission.
    script.give_sack(first + 10 * MSS, &[]);
    assert!(script.tcb.info(&cfg()).cwnd_bytes < before.cwnd_bytes);
    script.run_for(1000);
    script.give_sack(first + 10 * MSS, &[(first, first + MSS)]);
    assert_eq!(script.count(TcpCounter::DsackReceived), 1);
    assert_eq!(script.count(TcpCounter::Undos), 1);
    assert!(script.tcb.info(&cfg()).cwnd_bytes >= before.cwnd_bytes);
}

/// The same, where the next recovery has begun before the reports about the first one come: each is
/// undone by the reports of what it has sent again, in any order, and not by those of the other.
#[test]
fn reordering_in_two_recoveries_is_undone_by_dsack() {
    for second_too in [false, true] {
        let (mut script, first, before) = reordered();
        // The late original. What is sent next is late, too.
        script.give_sack(first + 10 * MSS, &[]);
        let once = script.tcb.info(&cfg()).ssthresh_bytes;
        script.send(&[7; 6 * MSS as usize]);
        script.output();
        let sent = seqs(&mut script).len() as u32;
        assert!(sent >= 5, "{sent}");
        let second = first + 10 * MSS;
        script.run_for(1000);
        script.give_sack(second, &[(second + MSS, second + 5 * MSS)]);
        script.output();
        assert_eq!(seqs(&mut script)[0], (second.0, true));
        assert_eq!(script.count(TcpCounter::Recoveries), 2);
        let twice = script.tcb.info(&cfg()).ssthresh_bytes;
        assert!(twice < once);
        // The first retransmission was in vain: one of the two reductions was a mistake.
        let held = (second + MSS, second + 5 * MSS);
        script.give_sack(second, &[(first, first + MSS), held]);
        assert_eq!(script.count(TcpCounter::Undos), 1);
        let left = script.tcb.info(&cfg()).ssthresh_bytes;
        assert!(left > twice && left < before.ssthresh_bytes, "{left} of {before:?}");
        script.run_for(1000);
        script.give_sack(second + sent * MSS, &[]);
        if second_too {
            script.give_sack(second + sent * MSS, &[(second, second + MSS)]);
            assert_eq!(script.count(TcpCounter::Undos), 2);
            let info = script.tcb.info(&cfg());
            assert!(info.cwnd_bytes >= before.cwnd_bytes);
            assert_eq!(info.ssthresh_bytes, before.ssthresh_bytes);
        } else {
            assert!(script.tcb.info(&cfg()).cwnd_bytes < before.cwnd_bytes);
        }
    }
}

/// RFC 2018 section 4 and RFC 2883 section 4: what we report, and in which order.
#[test]
fn our_sack_blocks() {
    let mut script = Script::settled(cfg(), Offer::SACK);
    let base = script.seq;
    let block = |from: u32, to: u32| (base + from, base + to);
    let give = |script: &mut Script, at: i32, len: usize| {
        script.give_at(at, ACK, &pattern(len));
        script.output();
        let ack = script.expect(ACK);
        assert_eq!(ack.seg.ack, base);
        ack.seg.options.sack.as_slice().to_vec()
    };
    assert_eq!(give(&mut script, 100, 100), [block(100, 200)]);
    assert_eq!(give(&mut script, 300, 100), [block(300, 400), block(100, 200)]);
    assert_eq!(give(&mut script, 500, 100), [block(500, 600), block(300, 400), block(100, 200)]);
    assert_eq!(give(&mut script, 200, 100), [block(100, 400), block(500, 600)]);
    // A duplicate within a block.
    assert_eq!(give(&mut script, 120, 30), [block(120, 150), block(100, 400), block(500, 600)],);
    // Reported once.
    assert_eq!(give(&mut script, 600, 10), [block(500, 610), block(100, 400)]);
    // A duplicate below the acknowledgement, when nothing is missing.
    script.give_at(0, ACK, &pattern(100));
    script.give_at(400, ACK, &pattern(100));
    script.seq += 610;
    script.output();
    assert!(script.expect_ack().seg.options.sack.is_empty());
    script.give_at(-50, ACK, &pattern(50));
    script.output();
    assert_eq!(script.expect_ack().seg.options.sack.as_slice(), [block(560, 610)]);
    script.give(ACK, b"more");
    script.settle();
    assert!(script.expect_ack().seg.options.sack.is_empty());
}

/// SACK blocks that name what was never sent, or nothing, or everything, change nothing.
#[test]
fn nonsense_in_sack_blocks() {
    let (mut script, first) = in_flight(cfg(), Offer::SACK, 4);
    let end = first + 4 * MSS;
    let nonsense = [
        (end, end + MSS),
        (end, end),
        (first + MSS, first),
        (first - 5000, first - 4000),
        (first + 10, first + 20),
        (first + 0x7000_0000, first + 0x7000_0001),
    ];
    for block in nonsense {
        script.give_sack(first, &[block, block]);
    }
    assert_eq!(script.tcb.info(&cfg()).in_flight_bytes, 4 * MSS);
    script.give_sack(end, &[]);
    assert_eq!(script.tcb.info(&cfg()).in_flight_bytes, 0);
}

/// RFC 5681 section 4.1: a window from before a long silence is not used at once.
#[test]
fn restart_after_idle() {
    let mut script = Script::settled(cfg(), Offer::BARE);
    for _ in 0..30 {
        script.send(&[0; 60_000]);
        script.output();
        script.run_for(200);
        script.ack_all();
        script.output();
    }
    script.run_for(200);
    script.ack_all();
    let grown = script.tcb.info(&cfg()).cwnd_bytes;
    assert!(grown > 20 * MSS, "{grown}");
    script.out.sent.clear();
    script.run_for(60_000_000);
    script.send(&[0; 60_000]);
    script.output();
    assert_eq!(script.out.sent.len(), 10);
}

/// RFC 7661: a window that is not used does not grow.
#[test]
fn window_grows_only_when_used() {
    let mut script = Script::settled(cfg(), Offer::BARE);
    for _ in 0..1000 {
        script.send(b"small");
        script.output();
        script.run_for(100);
        script.ack_all();
    }
    assert_eq!(script.tcb.info(&cfg()).cwnd_bytes, 10 * MSS);
}

/// RFC 1191, RFC 5927: a smaller path MTU is believed only with a quoted segment in flight; then
/// what was too long goes again in pieces, and nothing is taken for congestion.
#[test]
fn path_mtu_shrinks() {
    let (mut script, first) = in_flight(cfg(), Offer::SACK, 4);
    let icmp = |script: &mut Script, mtu, seq| {
        let End { cfg, tcb, out, now_us } = &mut script.end;
        tcb.icmp_error(cfg, *now_us, PathError::FragNeeded { mtu }, Some(seq), out);
    };
    icmp(&mut script, 1000, first - 1);
    icmp(&mut script, 1000, first + 4 * MSS);
    icmp(&mut script, 9000, first);
    icmp(&mut script, 1500, first);
    assert_eq!(script.tcb.info(&cfg()).mss_bytes, MSS);
    assert_eq!(script.count(TcpCounter::IcmpIgnored), 4);

    icmp(&mut script, 1000, first);
    script.output();
    assert_eq!(script.tcb.info(&cfg()).mss_bytes, 960);
    let mut got = std::collections::BTreeMap::new();
    for _ in 0..100 {
        for sent in std::mem::take(&mut script.out.sent) {
            assert!(sent.payload.len() <= 960);
            got.insert((sent.seg.seq - first) as usize, sent.payload);
        }
        let mut next = 0;
        while let Some(payload) = got.get(&next) {
            next += payload.len();
        }
        script.run_for(1000);
        script.give_sack(first + next as u32, &[]);
        script.output();
    }
    assert_eq!(got.into_values().flatten().collect::<Vec<_>>(), pattern(4 * MSS as usize));
    assert_eq!(script.tcb.info(&cfg()).ssthresh_bytes, 1 << 30, "no congestion");

    // A router that does not say: the next smaller common MTU. One that lies: not below 552.
    let (mut script, first) = in_flight(cfg(), Offer::SACK, 4);
    icmp(&mut script, 0, first);
    assert_eq!(script.tcb.info(&cfg()).mss_bytes, 1452);
    icmp(&mut script, 68, first);
    assert_eq!(script.tcb.info(&cfg()).mss_bytes, 512);
}

/// No transmit buffer: nothing is lost but time.
#[test]
fn no_transmit_buffer() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    script.out.no_buffers = true;
    script.send(b"stuck");
    script.give(ACK, b"request");
    script.output();
    assert!(script.tcb.needs_output());
    assert!(script.tcb.deadline() < script.now_us + 1_000_000);
    script.out.no_buffers = false;
    script.output();
    assert_eq!(script.expect_data(b"stuck").seg.ack, script.seq);

    // Also without another call to output.
    let mut script = Script::settled(cfg(), Offer::ALL);
    script.out.no_buffers = true;
    script.send(b"stuck");
    script.output();
    script.out.no_buffers = false;
    script.run_to_deadline();
    script.expect_data(b"stuck");
}

/// Nagle apart, the tail of each write goes out at once even while the window has room for more.
#[test]
fn window_limits_and_fills_exactly() {
    let mut script = Script::settled(cfg(), Offer { window: 5000, ..Offer::BARE });
    assert_eq!(script.send(&[1; 9000]), 5000);
    script.output();
    let lens: Vec<_> = script.out.sent.iter().map(|sent| sent.payload.len()).collect();
    assert_eq!(lens, [1460, 1460, 1460, 620]);
}
