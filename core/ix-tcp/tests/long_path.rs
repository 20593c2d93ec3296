//! Paths with long round trips, with the defaults that ship, which know data centres: RFC 6298, RFC
//! 8985 section 7.2, RFC 5681 section 4.1.

use crate::support::*;
use ix_tcp::{Config, TcpCounter};

const MSS: u32 = 1460;

/// The shipped defaults, with exact timeouts.
fn cfg() -> Config {
    Config { rto_jitter_percent: 0, ..Config::default() }
}

/// Sends `bytes`, all of which the peer acknowledges a round trip later.
fn exchange(script: &mut Script, bytes: &[u8], round_trip_us: u64) {
    assert_eq!(script.send(bytes), bytes.len());
    script.output();
    script.run_for(round_trip_us);
    script.ack_all();
    script.output();
}

/// A connection after 20 requests on a path whose round trips are all the same.
fn steady(round_trip_us: u64) -> Script {
    steady_with(Offer::SACK, round_trip_us)
}

/// The same with a peer that offers this.
fn steady_with(offer: Offer, round_trip_us: u64) -> Script {
    let mut script = Script::syn_received(cfg(), offer);
    script.run_for(round_trip_us);
    script.give(ACK, b"");
    script.output();
    for _ in 0..20 {
        exchange(&mut script, b"request", round_trip_us);
    }
    script.out.sent.clear();
    assert_eq!(script.count(TcpCounter::Retransmits), 0);
    script
}

/// Sends so many full segments at once.
fn burst(script: &mut Script, segments: u32) {
    assert_eq!(script.send(&pattern((segments * MSS) as usize)) as u32, segments * MSS);
    script.output();
    assert_eq!(script.out.sent.len() as u32, segments);
}

/// With steady round trips the variance goes to zero. The timeout must leave room for jitter
/// nevertheless.
#[test]
fn the_timeout_does_not_become_the_round_trip() {
    for (round_trip_us, spike_us) in [(1_000, 4_000), (20_000, 15_000), (80_000, 60_000)] {
        let mut script = steady(round_trip_us);
        let info = script.tcb.info(&cfg());
        let room_us = u64::from(info.rto_us - info.srtt_us);
        assert!(room_us >= spike_us, "{info:?}");
        burst(&mut script, 4);
        if round_trip_us >= 20_000 {
            script.run_for(round_trip_us + spike_us);
            script.ack_all();
            assert_eq!(script.count(TcpCounter::Retransmits), 0);
        }
    }
}

/// RFC 8985 section 7.2: where two round trips are longer than the timeout, the probe is sent at
/// the timeout's time, and the timeout follows.
#[test]
fn the_tail_is_probed_where_the_timeout_comes_first() {
    let mut script = steady(300_000);
    let rto_us = u64::from(script.tcb.info(&cfg()).rto_us);
    assert!(rto_us < 600_000);
    burst(&mut script, 4);
    let sent_us = script.now_us;
    script.run_to_deadline();
    assert_eq!(script.now_us, sent_us + rto_us);
    assert_eq!((script.count(TcpCounter::Tlp), script.count(TcpCounter::Rto)), (1, 0));
    script.run_to_deadline();
    assert_eq!(script.now_us, sent_us + 2 * rto_us);
    assert_eq!((script.count(TcpCounter::Tlp), script.count(TcpCounter::Rto)), (1, 1));
}

/// A path whose round trip grows from 1 to 300 ms. The timeout expires in vain, and the answer
/// tells, by the timestamp of the first copy or by arriving within the longer timeout, how long the
/// path is now. Linux sends two needless copies.
#[test]
fn a_round_trip_that_grows_is_learnt() {
    for (offer, copies_max) in [(Offer::ALL, 4), (Offer::SACK, 12)] {
        let mut script = steady_with(offer, 1_000);
        for _ in 0..15 {
            script.send(b"request");
            script.output();
            let stamp = script.out.sent.front().and_then(|sent| sent.seg.options.timestamp);
            script.run_for(300_000);
            let ends =
                script.end.out.sent.drain(..).map(|sent| sent.seg.seq + sent.seg.payload_len);
            script.ack = ends.fold(script.ack, ix_wire::Seq::max);
            let mut hdr = script.header(ACK);
            if let (Some((ours, _)), Some((_, ecr))) = (stamp, &mut hdr.options.timestamp) {
                *ecr = ours;
            }
            script.end.segment(&hdr, b"");
            script.output();
        }
        let copies = script.count(TcpCounter::Retransmits);
        assert!(copies <= copies_max, "{offer:?}: {copies} needless copies");
        let info = script.tcb.info(&cfg());
        assert!(info.srtt_us > 150_000, "{offer:?}: {info:?}");
    }
}

/// RFC 8961 section 4: the timeout stays long until something that was sent once is acknowledged.
#[test]
fn the_back_off_outlives_an_acknowledgement_of_what_was_sent_again() {
    let mut script = steady(1_000);
    script.send(b"request");
    script.output();
    for _ in 0..4 {
        script.run_to_deadline();
    }
    let backoff = script.tcb.loss_info().backoff;
    assert!(backoff >= 2, "{backoff}");
    script.ack_all();
    assert_eq!(script.tcb.loss_info().backoff, backoff);
    exchange(&mut script, b"request", 1_000);
    assert_eq!(script.tcb.loss_info().backoff, 0);
}

/// The same for several segments, of which only the first one, which was sent again, is
/// acknowledged: what was sent once behind it has not arrived yet.
#[test]
fn the_back_off_outlives_an_acknowledgement_of_the_first_of_several() {
    let mut script = steady(1_000);
    burst(&mut script, 3);
    while script.count(TcpCounter::Rto) < 3 {
        script.run_to_deadline();
    }
    let backoff = script.tcb.loss_info().backoff;
    assert!(backoff >= 2, "{backoff}");
    script.ack += MSS;
    script.give(ACK, b"");
    assert_eq!(script.tcb.loss_info().backoff, backoff);
}

/// A client that thinks for some milliseconds between its requests is not idle.
#[test]
fn a_short_pause_keeps_the_congestion_window() {
    let mut script = steady(80_000);
    for _ in 0..4 {
        let space = script.tcb.send_space(&script.cfg) as usize;
        let cwnd = script.tcb.info(&cfg()).cwnd_bytes as usize;
        exchange(&mut script, &pattern(space.min(cwnd)), 80_000);
    }
    let grown = script.tcb.info(&cfg()).cwnd_bytes;
    assert!(grown > 20 * MSS, "{grown}");
    for pause_us in [2_000, 20_000, 50_000] {
        script.run_for(pause_us);
        exchange(&mut script, b"request", 80_000);
        assert!(script.tcb.info(&cfg()).cwnd_bytes >= grown, "after {pause_us} us");
    }
    script.run_for(5_000_000);
    script.send(b"request");
    script.output();
    assert_eq!(script.tcb.info(&cfg()).cwnd_bytes, 10 * MSS);
}
