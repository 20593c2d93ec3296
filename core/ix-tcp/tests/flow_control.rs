//! Windows and acknowledgements: RFC 9293 sections 3.8.4 and 3.8.6, RFC 7323 section 2.

use crate::support::*;
use ix_tcp::{Config, DeadReason, State, TcpCounter, TcpEvent};

fn cfg() -> Config {
    Config::default()
}

const HOUR_US: u64 = 3_600_000_000;

/// The promise of the whole system: an echo is one packet in and one packet out.
#[test]
fn acknowledgement_rides_on_the_answer() {
    for make in [Script::established, Script::settled] {
        let mut script = make(cfg(), Offer::ALL);
        for round in 0..100 {
            script.run_for(37);
            script.give(ACK, b"ping");
            assert_eq!(script.read_all(), b"ping");
            script.send(b"pong");
            script.output();
            let answer = script.expect_data(b"pong");
            assert_eq!(answer.seg.ack, script.seq, "round {round}");
            script.expect_nothing();
            script.ack += 4;
        }
        script.give(ACK, b"");
        script.run_for(10_000_000);
        script.expect_nothing();
    }
}

/// RFC 9293 section 3.8.6.3: at least every second full-sized segment, and not later than the
/// delay.
#[test]
fn delayed_acks() {
    let mut script = Script::settled(cfg(), Offer::BARE);
    script.give(ACK, &[0; 1460]);
    script.output();
    script.expect_nothing();
    script.run_for(900);
    script.expect_nothing();
    script.run_for(200);
    script.expect_ack();
    script.run_for(1_000_000);
    script.expect_nothing();

    script.give(ACK, &[0; 1460]);
    script.output();
    script.expect_nothing();
    script.give(ACK, &[0; 1460]);
    script.output();
    script.expect_ack();
    script.run_for(1_000_000);
    script.expect_nothing();
}

/// A window update, and a delayed acknowledgement, for which there is no transmit buffer just then
/// are sent later: nothing else may ever happen on the connection.
#[test]
fn acknowledgements_that_find_no_buffer_are_sent_later() {
    let mut script = Script::settled(cfg(), Offer::BARE);
    while script.tcb.info(&script.cfg).rcv_wnd_bytes > 0 {
        let len = script.tcb.info(&script.cfg).rcv_wnd_bytes.min(1460) as usize;
        script.give(ACK, &vec![0; len]);
        script.output();
    }
    script.out.sent.clear();
    script.out.no_buffers = true;
    script.read_all();
    script.output();
    script.run_for(50_000);
    script.expect_nothing();
    script.out.no_buffers = false;
    script.run_for(50_000);
    assert!(script.expect_ack().seg.window > 0);
    script.run_for(1_000_000);
    script.expect_nothing();

    script.give(ACK, b"data");
    script.out.no_buffers = true;
    script.output();
    script.run_for(50_000);
    script.out.no_buffers = false;
    script.run_for(50_000);
    script.expect_ack();
    script.expect_nothing();
}

#[test]
fn young_connections_acknowledge_at_once() {
    let mut script = Script::established(cfg(), Offer::BARE);
    for _ in 0..10 {
        script.give(ACK, &[0; 100]);
        script.output();
        script.expect_ack();
    }
}

/// However many segments a batch holds, the peer gets an acknowledgement in time (gvisor#11198's
/// class).
#[test]
fn long_batches_are_acknowledged_within() {
    let mut script = Script::settled(cfg(), Offer::BARE);
    for _ in 0..64 {
        script.give(ACK, &[0; 1460]);
    }
    assert_eq!(script.out.sent.len(), 64 / usize::from(cfg().max_stretch_segments));
    script.out.sent.clear();
    script.output();
    assert!(script.out.sent.len() <= 1);
}

/// RFC 5681 section 4.2: out of order, or filling a gap: at once.
#[test]
fn gaps_are_acknowledged_at_once() {
    let mut script = Script::settled(cfg(), Offer::BARE);
    script.give_at(10, ACK, &[0; 10]);
    script.output();
    script.expect_ack();
    script.give(ACK, &[0; 10]);
    script.seq += 10;
    script.output();
    script.expect_ack();
}

/// The right edge never moves left; a window is offered again in worthwhile steps (3.8.6.2.2).
#[test]
fn receiver_avoids_silly_windows() {
    let small = Config { rcv_buf_bytes: 8000, ..cfg() };
    let mut script = Script::settled(small, Offer::BARE);
    let mut edge = script.seq + 8000;
    for len in [1460, 1460, 1460, 1460, 1460, 700] {
        script.give(ACK, &vec![0; len]);
        script.output();
        script.run_for(2000);
        let ack = script.out.sent.drain(..).next_back().unwrap();
        let offered = ack.seg.ack + u32::from(ack.seg.window);
        assert!(offered.ge(edge));
        edge = offered;
    }
    assert_eq!(edge, script.seq);
    // Small reads cause no update until a segment fits.
    let End { cfg, tcb, .. } = &mut script.end;
    tcb.recv_done(cfg, 700, 0);
    script.output();
    script.expect_nothing();
    script.send(b"x");
    script.output();
    assert_eq!(script.expect_data(b"x").seg.window, 0, "not even on the way");
    let End { cfg, tcb, .. } = &mut script.end;
    tcb.recv_done(cfg, 760, 1);
    script.output();
    assert_eq!(script.expect_ack().seg.window, 1460);
}

/// The application's limit takes effect from what was already offered, and a waiting peer is told
/// when the limit ends.
#[test]
fn an_application_bounds_what_it_holds() {
    let mut script = Script::settled(cfg(), Offer::BARE);
    script.tcb.set_receive_limit(&cfg(), 8000);
    let offered = script.tcb.info(&cfg()).rcv_wnd_bytes;
    let mut taken = 0;
    while script.tcb.info(&cfg()).rcv_wnd_bytes > 0 {
        let len = script.tcb.info(&cfg()).rcv_wnd_bytes.min(1460);
        script.give(ACK, &vec![0; len as usize]);
        script.output();
        taken += len;
    }
    assert_eq!(taken, offered, "not more than was offered before");
    script.read_all();
    script.output();
    assert_eq!(script.tcb.info(&cfg()).rcv_wnd_bytes, 8000);
    script.give(ACK, &[0; 8000]);
    script.output();
    script.out.sent.clear();
    script.tcb.set_receive_limit(&cfg(), 0);
    script.output();
    assert!(u32::from(script.expect_ack().seg.window) > 8000, "without a read");
}

/// Small segments must not pin the pool, and nothing within the window is dropped: with the
/// parameters that ship, what an application does not read is joined in few buffers.
#[test]
fn small_segments_are_joined_and_none_is_dropped() {
    let mut script = Script::settled(Config::default(), Offer::ALL);
    let mut offered = 0;
    for at in 0..20_000usize {
        script.give(ACK, &[at as u8]);
        script.output();
        offered = script.out.sent.drain(..).next_back().map_or(offered, |sent| sent.seg.window);
    }
    assert_eq!((script.out.held.0, script.out.delivered.len()), (20_000, 20_000));
    assert!(script.out.held.1 < 20, "{} buffers", script.out.held.1);
    assert_eq!(script.count(TcpCounter::RcvBufferLimit), 0);
    assert!(offered > 0, "the window is open");
    assert!(script.out.delivered.iter().enumerate().all(|(at, byte)| *byte == at as u8));
    script.read_all();
    script.check_no_leak();
}

/// Segments of any length, as many as the window allows: two buffers in a row hold more than one
/// has room for.
#[test]
fn what_is_held_is_bounded_by_the_window() {
    for len in [1, 100, 700, 851, 1460] {
        let mut script = Script::settled(Config::default(), Offer::ALL);
        let mut sent = 0;
        while (script.tcb.info(&script.cfg).rcv_wnd_bytes as usize) >= len {
            script.give(ACK, &vec![7; len]);
            script.output();
            script.out.sent.clear();
            sent += len;
        }
        assert_eq!(script.out.delivered.len(), sent, "segments of {len}");
        let (bytes, buffers) = script.out.held;
        assert!(buffers as usize <= 6 + 2 * bytes as usize / BUFFER_BYTES, "{len}: {buffers}");
        assert!(sent >= 300 << 10 || len < 100, "{len}: only {sent} bytes were let in");
    }
}

/// The same after a gap.
#[test]
fn small_segments_after_a_gap_are_joined() {
    let mut script = Script::settled(Config::default(), Offer::ALL);
    for at in 1..5_000i32 {
        script.give_at(at, ACK, &[at as u8]);
    }
    script.give_at(0, ACK, &[0]);
    assert_eq!(script.out.delivered.len(), 5_000);
    assert!(script.out.delivered.iter().enumerate().all(|(at, byte)| *byte == at as u8));
    assert_eq!(script.count(TcpCounter::RcvBufferLimit), 0);
    assert!(script.out.held.1 < 20, "{} buffers", script.out.held.1);
    script.read_all();
    script.check_no_leak();
}

/// gvisor#9153: out-of-order data may use all room, and never blocks what fills the
/// gap.
#[test]
fn out_of_order_data_uses_all_room_but_yields() {
    let few = Config { rcv_buffers_max: 8, ..cfg() };
    let mut script = Script::settled(few, Offer::SACK);
    for at in (1..12).rev() {
        script.give_at(at * 10, ACK, &[at as u8; 10]);
    }
    assert_eq!(script.count(TcpCounter::OutOfOrderDropped), 3);
    script.give_at(0, ACK, &[0; 10]);
    let got = script.read_all();
    assert_eq!(got.len(), 90);
    script.output();
    assert_eq!(script.out.sent.pop_back().unwrap().seg.ack, script.seq + 90);
    script.check_no_leak();
}

/// A peer that has filled our window stands at its right edge; if we lost what it sent, its
/// acknowledgements must count all the same.
#[test]
fn acks_at_the_right_edge_count() {
    let small = Config { rcv_buf_bytes: 100, ..cfg() };
    let mut script = Script::settled(small, Offer::BARE);
    script.send(b"data");
    script.output();
    script.expect_data(b"data");
    script.ack += 4;
    script.give_at(100, ACK, b"");
    assert_eq!(script.tcb.info(&cfg()).in_flight_bytes, 0);
    script.give_at(100, RST, b"");
    script.output();
    script.expect_nothing();
}

/// RFC 9293 section 3.8.6.1: a closed window is probed, with backoff, for as long as the peer
/// replies.
#[test]
fn closed_window_is_probed_for_hours() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    script.window = 0;
    script.give(ACK, b"");
    script.send(b"waiting");
    script.output();
    script.expect_nothing();
    let mut at_us = Vec::new();
    let end_us = script.now_us + 10 * HOUR_US;
    while script.now_us < end_us {
        script.run_to_deadline();
        let probe = script.expect(ACK);
        assert_eq!(probe.payload, b"w");
        at_us.push(script.now_us);
        script.give(ACK, b"");
        script.output();
    }
    assert!(at_us.windows(3).all(|at| at[2] - at[1] >= (at[1] - at[0]).min(59_000_000)));
    // A minute, and the jitter.
    let most_us = 60_000_000 / 100 * (100 + u64::from(cfg().rto_jitter_percent)) + 1_000_000;
    assert!(at_us.windows(2).all(|at| at[1] - at[0] <= most_us));
    assert_eq!(script.state(), State::Established);
    // Opened: everything at once, from the first byte.
    script.window = 1000;
    script.give(ACK, b"");
    script.output();
    script.expect_data(b"waiting");
    assert_eq!(script.count(TcpCounter::Rto), 0);
}

/// A flow that has had many segments in flight and is idle: the first probe of the closed window,
/// and the override of silly-window avoidance, come as soon as on any other.
#[test]
fn what_waits_for_the_window_of_an_idle_bulk_flow_is_not_late() {
    // The window that the last acknowledgement offers, and how long the next data waits then.
    for (window, at_most_us) in [(0, 60_000), (100, 100_000)] {
        let mut script = Script::settled(cfg(), Offer::ALL);
        assert_eq!(script.send(&pattern(5_000)), 5_000);
        script.output();
        script.run_for(100);
        script.window = window;
        script.ack_all();
        script.output();
        script.run_for(1_000);
        script.expect_nothing();
        script.send(&pattern(1_000));
        script.output();
        script.expect_nothing();
        let appended_us = script.now_us;
        script.run_to_deadline();
        assert!(script.now_us - appended_us <= at_most_us, "{}", script.now_us - appended_us);
        let sent = script.expect(ACK);
        assert_eq!(sent.payload, pattern(1_000)[..sent.payload.len()]);
        assert!(!sent.payload.is_empty());
    }
}

/// But not for an application that has closed: a peer could hold our memory for ever. As on Linux
/// it may for three and a half minutes if it replies, else for two.
#[test]
fn closed_window_does_not_hold_an_orphan() {
    for (replies, keeps_memory) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut script = Script::settled(cfg(), Offer::ALL);
        script.window = 0;
        script.give(ACK, b"");
        script.send(b"waiting");
        if keeps_memory {
            script.tcb.must_progress();
        } else {
            script.close();
        }
        script.output();
        let begin_us = script.now_us;
        while !script.tcb.is_dead() {
            script.run_to_deadline();
            script.out.sent.clear();
            assert!(script.now_us < begin_us + HOUR_US);
            if replies {
                script.give(ACK, b"");
                script.output();
            }
        }
        let lasted_s = (script.now_us - begin_us) / 1_000_000;
        let expected = if replies { 204..281 } else { 120..201 };
        assert!(expected.contains(&lasted_s), "{replies} {keeps_memory}: {lasted_s} s");
    }
}

/// Nor one whose peer opens and closes its window again and again, and takes nothing; and a user
/// timeout ends it as well. An application that waits is not disturbed.
#[test]
fn a_window_that_only_moves_is_no_progress() {
    for (closes, user_timeout_ms) in [(true, 0), (false, 120_000), (false, 0)] {
        let mut script = Script::settled(cfg(), Offer::ALL);
        script.tcb.set_user_timeout(user_timeout_ms);
        script.send(&pattern(20_000));
        if closes {
            script.close();
        }
        script.output();
        let begin_us = script.now_us;
        // What was sent is lost each time.
        for round in 0..60 {
            script.window = [0, 60_000][round % 2];
            script.give(ACK, b"");
            script.output();
            script.run_for(10_000_000);
            script.out.sent.clear();
            if script.tcb.is_dead() {
                break;
            }
        }
        let lasted_us = script.now_us - begin_us;
        if closes || user_timeout_ms > 0 {
            assert!(script.tcb.is_dead() && lasted_us <= 140_000_000, "{lasted_us}");
        } else {
            assert!(!script.tcb.is_dead());
        }
    }
}

/// FIN follows an octet that probed the closed window: both arrive when it opens.
#[test]
fn window_opens_with_fin_behind_the_probe() {
    let mut script = Script::settled(cfg(), Offer::BARE);
    script.window = 0;
    script.give(ACK, b"");
    script.send(b"a");
    script.output();
    script.run_to_deadline();
    assert_eq!(script.expect(ACK).payload, b"a");
    script.shutdown();
    script.output();
    let fin = script.expect(FIN | ACK);
    assert_eq!((fin.seg.seq, fin.payload.len()), (script.ack + 1, 0));
    script.window = 100;
    script.give(ACK, b"");
    script.output();
    script.expect_data(b"a");
    script.ack += 2;
    script.give(ACK, b"");
    assert_eq!(script.state(), State::FinWait2);
}

#[test]
fn unanswered_probes_end_the_connection() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    script.window = 0;
    script.give(ACK, b"");
    script.send(b"waiting");
    script.output();
    script.run_for(HOUR_US);
    assert_eq!(script.dead(), Some(DeadReason::TimedOut));
}

/// The peer took the probe's octet: it is not sent again.
#[test]
fn accepted_probe_counts() {
    let mut script = Script::settled(cfg(), Offer::BARE);
    script.window = 0;
    script.give(ACK, b"");
    script.send(b"abcdef");
    script.output();
    script.run_to_deadline();
    assert_eq!(script.expect(ACK).payload, b"a");
    script.ack += 1;
    script.window = 100;
    script.give(ACK, b"");
    script.output();
    script.expect_data(b"bcdef");
}

/// A lost window update is found out by the probe.
#[test]
fn lost_window_update() {
    let mut script = Script::settled(cfg(), Offer::BARE);
    script.window = 0;
    script.give(ACK, b"");
    script.send(b"data");
    script.output();
    // The update is lost; the reply to the probe tells.
    script.run_to_deadline();
    assert_eq!(script.expect(ACK).payload, b"d");
    script.window = 5000;
    script.give(ACK, b"");
    script.output();
    script.expect_data(b"data");
}

/// gvisor#10243: the application hears that it may go on.
#[test]
fn window_open_is_said() {
    let mut script = Script::settled(cfg(), Offer::BARE);
    script.window = 0;
    script.give(ACK, b"");
    let taken = script.send(&[0; 10_000]);
    assert_eq!(taken, 2 * 1460, "enough to probe with");
    script.output();
    script.window = 50_000;
    script.give(ACK, b"");
    assert!(script.said(TcpEvent::WindowOpen));
    script.output();
    assert_eq!(script.out.sent.len(), 2);
}

/// RFC 9293 section 3.8.6: a window that shrinks below what is sent (edk2 compared windows, not
/// sequence numbers; WL1 and WL2 decide).
#[test]
fn shrunk_window() {
    let mut script = Script::settled(cfg(), Offer::BARE);
    script.send(&[1; 5000]);
    script.output();
    let count = script.out.sent.len();
    assert_eq!(count, 4);
    let last = script.out.sent.pop_back().unwrap();
    script.out.sent.clear();
    script.window = 100;
    script.give(ACK, b"");
    assert_eq!(script.tcb.info(&cfg()).snd_wnd_bytes, 100, "newer is newer, though smaller");
    assert_eq!(script.send(&[2; 1000]), 0);
    script.output();
    script.expect_nothing();
    // All of it did arrive.
    script.ack = last.seg.seq + last.seg.payload_len;
    script.window = 2000;
    script.give(ACK, b"");
    script.send(&[2; 1000]);
    script.output();
    assert_eq!(script.out.sent[0].payload.len(), 1000);
}

#[test]
fn old_segments_do_not_change_the_window() {
    let mut script = Script::settled(cfg(), Offer::BARE);
    script.give(ACK, b"a");
    script.give(ACK, b"bc");
    script.window = 7;
    script.give_at(-3, ACK, b"abcd");
    assert_eq!(script.tcb.info(&cfg()).snd_wnd_bytes, 65_535);
    script.window = 9;
    script.seq += 1;
    script.give(ACK, b"");
    assert_eq!(script.tcb.info(&cfg()).snd_wnd_bytes, 9);
}

/// A peer that shrinks its window to zero with data outstanding does not time out while it replies.
#[test]
fn shrunk_to_zero_is_probed_not_killed() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    script.send(&[1; 3000]);
    script.output();
    script.out.sent.clear();
    script.window = 0;
    script.give(ACK, b"");
    let end_us = script.now_us + HOUR_US;
    while script.now_us < end_us {
        script.run_to_deadline();
        script.out.sent.clear();
        script.give(ACK, b"");
        script.output();
    }
    assert_eq!(script.state(), State::Established);
    script.window = 10_000;
    script.give(ACK, b"");
    script.output();
    let sent: usize = script.out.sent.iter().map(|sent| sent.payload.len()).sum();
    script.ack_all();
    script.run_for(61_000_000);
    assert!(sent > 0 || !script.out.sent.is_empty());
}

/// A peer that has no memory is no black hole, however long the segments are that it does not take:
/// it takes its window back, or replies. One that does neither is.
#[test]
fn a_peer_without_memory_is_no_black_hole() {
    let cases = [
        (0, true, false),
        (0, false, false),
        (1_000, false, false),
        (60_000, true, false),
        (60_000, false, true),
    ];
    for (window, replies, is_hole) in cases {
        let mut script = Script::settled(cfg(), Offer::ALL);
        let mss = script.tcb.info(&script.cfg).mss_bytes;
        script.send(&pattern(10_000));
        script.output();
        script.out.sent.clear();
        script.window = window;
        script.give(ACK, b"");
        script.output();
        let begin_us = script.now_us;
        while script.now_us < begin_us + 4_000_000 {
            script.run_to_deadline();
            let at_once = script.now_us < begin_us + 1_000_000;
            assert!(!at_once || script.count(TcpCounter::PmtuBlackHole) == 0, "too early");
            if replies {
                script.give(ACK, b"");
                script.output();
            }
        }
        let last = script.out.sent.pop_back().expect("a segment").payload;
        let is_whole = last == pattern(10_000)[..mss as usize];
        let holes = script.count(TcpCounter::PmtuBlackHole);
        assert_eq!((is_whole, holes > 0), (!is_hole, is_hole), "{window} {replies}");
        if window > 0 {
            continue;
        }
        // Opened: the rest follows from the first byte, at once and in whole segments.
        script.out.sent.clear();
        script.window = 60_000;
        let mut got = Vec::new();
        for _ in 0..20 {
            script.give(ACK, b"");
            script.output();
            for sent in std::mem::take(&mut script.out.sent) {
                got.extend_from_slice(&sent.payload);
                script.ack = sent.seg.seq + sent.payload.len() as u32;
                script.echo = sent.seg.options.timestamp.expect("as agreed").0;
            }
            script.run_for(100);
        }
        assert!(got == pattern(10_000), "{} bytes", got.len());
    }
}

/// RFC 9293 section 3.8.6.2.1: no small segment because of a small window, but the override timer
/// sends it.
#[test]
fn sender_avoids_silly_windows() {
    let mut script = Script::settled(cfg(), Offer::BARE);
    script.window = 100;
    script.give(ACK, b"");
    script.send(&[1; 1000]);
    script.output();
    script.expect_nothing();
    script.run_to_deadline();
    assert_eq!(script.expect(ACK).payload.len(), 100);
}

/// RFC 9293 section 3.7.4.
#[test]
fn nagle() {
    let mut script = Script::settled(cfg(), Offer::BARE);
    script.tcb.set_nagle(true);
    script.send(b"one");
    script.output();
    script.expect_data(b"one");
    script.send(b"two");
    script.output();
    script.expect_nothing();
    script.send(&[3; 1460]);
    script.output();
    assert_eq!(script.expect(ACK).payload.len(), 1460);
    script.expect_nothing();
    script.ack += 3;
    script.give(ACK, b"");
    script.output();
    script.expect_nothing();
    script.ack += 1460;
    script.give(ACK, b"");
    script.output();
    assert_eq!(script.expect(ACK).payload, [3; 3]);

    script.tcb.set_nagle(false);
    script.send(b"four");
    script.output();
    script.expect_data(b"four");
}

/// RFC 9293 section 3.8.4: off by default, and only after silence.
#[test]
fn keepalive() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    script.run_for(100 * HOUR_US);
    script.expect_nothing();

    let now_us = script.now_us;
    script.tcb.set_keepalive(60, now_us);
    script.run_for(30_000_000);
    script.give(ACK, b"alive");
    script.read_all();
    script.run_for(59_000_000);
    script.out.sent.clear();
    for _ in 0..3 {
        script.run_for(62_000_000);
        let probe = script.expect(ACK);
        assert_eq!((probe.seg.seq, probe.seg.payload_len), (script.ack - 1, 0));
        script.give(ACK, b"");
    }
    script.run_for(HOUR_US);
    assert_eq!(script.count(TcpCounter::KeepaliveProbes), 3 + u64::from(cfg().keepalive_probes));
    assert_eq!(script.dead(), Some(DeadReason::TimedOut));
}

/// RFC 9293 section 3.8.4: the application may choose when, how often and how many.
#[test]
fn keepalive_of_the_applications_choice() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    let now_us = script.now_us;
    script.tcb.set_keepalive_interval(2);
    script.tcb.set_keepalive_probes(3);
    script.tcb.set_keepalive(10, now_us);
    script.run_for(15_500_000);
    assert_eq!((script.count(TcpCounter::KeepaliveProbes), script.dead()), (3, None));
    script.run_for(1_000_000);
    assert_eq!(script.dead(), Some(DeadReason::TimedOut));
}

/// With a user timeout, that decides, and not the number of probes (RFC 5482 section 4.2 asks that
/// the two agree; so does Linux).
#[test]
fn a_user_timeout_ends_keepalive() {
    for (timeout_ms, probes) in [(11_000, 1), (30_500, 11)] {
        let mut script = Script::settled(cfg(), Offer::ALL);
        let now_us = script.now_us;
        script.tcb.set_keepalive_interval(2);
        script.tcb.set_keepalive_probes(3);
        script.tcb.set_user_timeout(timeout_ms);
        script.tcb.set_keepalive(10, now_us);
        script.run_for(HOUR_US);
        assert_eq!(script.dead(), Some(DeadReason::TimedOut));
        assert_eq!(script.count(TcpCounter::KeepaliveProbes), probes);
    }
}

/// The peer's keepalive gets a reply (RFC 9293 section 3.8.4), even if it carries an old octet.
#[test]
fn keepalive_of_the_peer_is_answered() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    for payload in [b"".as_slice(), b"\0"] {
        script.run_for(75_000_000);
        script.give_at(-1, ACK, payload);
        script.output();
        script.expect_ack();
    }
}

/// RFC 7323 section 2: the whole 32-bit range of scaled windows.
#[test]
fn window_scale_extremes() {
    let huge = Config { rcv_buf_bytes: 1 << 30, rcv_buffers_max: 1 << 20, ..cfg() };
    assert_eq!(huge.window_shift(), 14);
    let mut script = Script::settled(huge, Offer { window_scale: Some(14), ..Offer::ALL });
    assert_eq!(script.tcb.info(&cfg()).snd_wnd_bytes, 65_535 << 14);
    script.send(b"x");
    script.output();
    assert_eq!(script.expect_data(b"x").seg.window, 65_535);
    let tiny = Config { rcv_buf_bytes: 1000, rcv_buf_max_bytes: 0, ..cfg() };
    assert_eq!(tiny.window_shift(), 0);
}

/// The send space is about two flights of the congestion window: no less than at the start, however
/// small that window is, and no more than the largest buffer. It never grows without an
/// acknowledgement, which tells the application.
#[test]
fn send_space_follows_the_congestion_window() {
    const FIRST: u32 = 256 << 10;
    const MOST: u32 = 4 << 20;
    let mut script = Script::settled(cfg(), Offer { window_scale: Some(14), ..Offer::ALL });
    assert_eq!(script.tcb.send_space(&cfg()), FIRST);
    let mut before = 0;
    while script.tcb.info(&cfg()).cwnd_bytes < 3 << 20 {
        let space = script.tcb.send_space(&cfg());
        script.send(&pattern(space as usize));
        assert_eq!(script.tcb.send_space(&cfg()), 0);
        script.output();
        script.run_for(1_000);
        let in_flight = script.tcb.info(&cfg()).in_flight_bytes;
        assert!(in_flight <= script.tcb.info(&cfg()).snd_queued_bytes);
        script.ack_all();
        let info = script.tcb.info(&cfg());
        let limit = info.snd_queued_bytes + script.tcb.send_space(&cfg());
        assert_eq!(limit, (2 * info.cwnd_bytes).clamp(FIRST, MOST));
        assert!(limit >= before);
        before = limit;
    }
    assert_eq!(before, MOST);
    // After a timeout the congestion window is small, and what was taken is sent all the same.
    let space = script.tcb.send_space(&cfg());
    script.send(&pattern(space as usize));
    script.output();
    while script.count(TcpCounter::Rto) == 0 {
        script.run_to_deadline();
    }
    assert_eq!(script.tcb.send_space(&cfg()), 0);
    while script.tcb.info(&cfg()).snd_queued_bytes > 0 {
        script.run_for(1_000);
        script.ack_all();
        script.output();
    }
    assert!(script.tcb.send_space(&cfg()) >= FIRST);
}

/// The send space is what the window leaves, bounded by the buffer.
#[test]
fn send_space_follows_the_window() {
    let cfg = Config { snd_buf_bytes: 5000, snd_buf_max_bytes: 0, ..cfg() };
    let mut script = Script::settled(cfg.clone(), Offer::BARE);
    assert_eq!(script.tcb.send_space(&cfg), 5000);
    assert_eq!(script.send(&[0; 9000]), 5000);
    assert_eq!(script.tcb.send_space(&cfg), 0);
    script.output();
    script.ack += 1460;
    script.window = 4000;
    script.give(ACK, b"");
    assert_eq!(script.tcb.send_space(&cfg), 4000 - 3540);
    script.shutdown();
    assert_eq!(script.tcb.send_space(&cfg), 0, "nothing follows a FIN");
}

#[test]
fn a_user_timeout_ends_what_nobody_acknowledges() {
    // RFC 9293 section 3.8.3, RFC 5482: the application says how long, whatever backoff says.
    for (ms, wanted_us) in [(500, 500_000), (30_000, 30_000_000)] {
        let mut script = Script::settled(Config::default(), Offer::SACK);
        script.tcb.set_user_timeout(ms);
        script.send(b"nobody hears");
        script.output();
        let began_us = script.now_us;
        while script.dead().is_none() {
            assert!(script.now_us < began_us + 2 * wanted_us, "{ms} ms: not given up");
            script.run_to_deadline();
        }
        assert_eq!(script.dead(), Some(DeadReason::TimedOut));
        let took_us = script.now_us - began_us;
        assert!((wanted_us..wanted_us + 300_000).contains(&took_us), "{ms} ms: {took_us} µs");
    }
}

/// RFC 9293 section 3.9.1.1: a timeout that comes with the opening holds for it, too.
#[test]
fn a_user_timeout_ends_an_attempt_to_connect() {
    // The first timeout of a SYN comes after a second; nothing is checked before.
    for (ms, wanted_us) in [(300, 1_000_000), (1_500, 1_500_000), (5_000, 5_000_000)] {
        let mut script = Script::syn_sent(Config::default(), Offer::SACK);
        script.tcb.set_user_timeout(ms);
        let began_us = script.now_us;
        while script.dead().is_none() {
            assert!(script.now_us < began_us + 2 * wanted_us, "{ms} ms: not given up");
            script.run_to_deadline();
        }
        assert_eq!(script.dead(), Some(DeadReason::TimedOut));
        let took_us = script.now_us - began_us;
        assert!((wanted_us..wanted_us + 100_000).contains(&took_us), "{ms} ms: {took_us} µs");
    }
}

/// What the application sends meanwhile sets the timer again, and does not change its end.
#[test]
fn a_user_timeout_ends_though_more_is_sent() {
    let mut script = Script::settled(Config::default(), Offer::SACK);
    script.tcb.set_user_timeout(2_000);
    let began_us = script.now_us;
    while script.dead().is_none() {
        assert!(script.now_us < began_us + 3_000_000, "not given up");
        script.send(b"more");
        script.output();
        script.run_for(50_000);
    }
    assert!(script.now_us >= began_us + 2_000_000);
}

/// With a user timeout, a peer that replies to each probe and keeps its window closed is given up
/// too, as on Linux.
#[test]
fn a_user_timeout_ends_a_closed_window() {
    let mut script = Script::settled(Config::default(), Offer::SACK);
    script.window = 0;
    script.give(ACK, b"");
    script.tcb.set_user_timeout(3_000);
    script.send(b"waits");
    script.output();
    let began_us = script.now_us;
    while script.dead().is_none() {
        assert!(script.now_us < began_us + 10_000_000, "not given up");
        script.run_for(100_000);
        if script.dead().is_none() {
            script.give(ACK, b"");
        }
    }
    assert_eq!(script.dead(), Some(DeadReason::TimedOut));
    assert!(script.now_us >= began_us + 3_000_000);
}

#[test]
fn a_user_timeout_begins_anew_with_each_acknowledgement() {
    let mut script = Script::settled(Config::default(), Offer::SACK);
    script.tcb.set_user_timeout(1_000);
    for _ in 0..10 {
        script.send(b"slow");
        script.output();
        script.run_for(700_000);
        script.out.sent.clear();
        script.ack += 4;
        script.give(ACK, b"");
    }
    assert_eq!(script.state(), State::Established);
}
