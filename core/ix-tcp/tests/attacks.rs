//! Segments that are not the peer's, or not what it should have sent: RFC 5961, RFC 7323 section 5,
//! and TCP-Fuzz's findings.

use crate::support::*;
use ix_tcp::{Config, DeadReason, State, TcpCounter};
use ix_wire::{Seq, TcpFlags, TcpHeader};

fn cfg() -> Config {
    Config::default()
}

/// RFC 5961 section 3.2 (lwIP CVE-2004-0230, TLDK: anywhere in the window).
#[test]
fn reset_only_at_rcv_nxt() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    for offset in [1, 1000, 60_000] {
        script.run_for(1_000_000);
        script.give_at(offset, RST, b"");
        assert_eq!(script.state(), State::Established);
        script.output();
        script.expect_ack();
    }
    for offset in [-1, -60_000, 0x2000_0000, i32::MIN] {
        script.run_for(1_000_000);
        script.give_at(offset, RST, b"");
        script.output();
        script.expect_nothing();
    }
    assert_eq!(script.count(TcpCounter::InexactRst), 3);
    script.give_at(0, RST, b"");
    assert_eq!(script.dead(), Some(DeadReason::Reset));
    script.output();
    script.expect_nothing();
}

#[test]
fn exact_reset_in_each_state() {
    for mut script in Script::in_each_state(&cfg(), Offer::ALL) {
        let before = script.state();
        script.out.sent.clear();
        let sent_syn = before == State::SynSent;
        script.give_at(0, if sent_syn { RST | ACK } else { RST }, b"");
        script.output();
        script.expect_nothing();
        let expected = match before {
            State::SynSent | State::SynReceived => Some(DeadReason::Refused),
            State::Closing | State::LastAck | State::TimeWait => Some(DeadReason::Closed),
            _ => Some(DeadReason::Reset),
        };
        assert_eq!(script.dead(), expected, "{before:?}");
        assert_eq!(script.tcb.is_dead(), before != State::TimeWait);
        script.check_no_leak();
    }
}

/// RFC 5961 section 4.2; Zephyr#48465 ignored it, so that a restarted peer hung.
#[test]
fn syn_in_a_synchronized_state_is_challenged() {
    for mut script in Script::in_each_state(&cfg(), Offer::ALL) {
        let before = script.state();
        if matches!(before, State::SynSent | State::SynReceived | State::TimeWait) {
            continue;
        }
        let seq = script.seq;
        for at in [seq, seq + 10, seq - 100, seq + 0x4000_0000] {
            script.run_for(1_000_000);
            script.out.sent.clear();
            let syn = TcpHeader { seq: at, ..script.syn(SYN) };
            script.segment(&syn, b"");
            script.output();
            assert_eq!(script.state(), before);
            let answer = script.expect(ACK);
            assert_eq!((answer.seg.ack, answer.seg.payload_len), (seq, 0));
        }
    }
}

/// RFC 5961 section 5.2: acknowledgements too far off are challenged and have no effect.
#[test]
fn wild_acks_are_challenged() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    script.send(b"abc");
    script.output();
    let una = script.expect_data(b"abc").seg.seq;
    for ack in [una + 4, una + 100_000, una - 65_536, una + 0x7fff_ffff, una + 0x8000_0000] {
        script.run_for(600_000);
        script.out.sent.clear();
        script.ack = ack;
        script.give_at(0, ACK, b"injected");
        script.output();
        assert_eq!(script.out.delivered, b"", "{ack:?}");
        let answer = script.expect(ACK);
        assert_eq!((answer.seg.ack, answer.seg.payload_len), (script.seq, 0));
        assert_eq!(script.tcb.info(&cfg()).in_flight_bytes, 3);
    }
    // Old ones are only old.
    script.ack = una - 100;
    script.give(ACK, b"late");
    assert_eq!(script.read_all(), b"late");
}

/// RFC 5961 section 7: challenges are limited, so that two confused ends do not flood each other.
#[test]
fn challenges_are_limited() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    for _ in 0..1000 {
        script.run_for(100);
        script.give_at(1, RST, b"");
        script.output();
    }
    assert!(script.out.sent.len() <= 3, "{}", script.out.sent.len());
    assert!(script.count(TcpCounter::ChallengeAcksLimited) > 900);
}

#[test]
fn segments_without_ack_are_dropped() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    for flags in [TcpFlags(0), TcpFlags::PSH, FIN, TcpFlags::URG] {
        script.give_at(0, flags, b"x");
        script.output();
        script.expect_nothing();
    }
    assert_eq!(script.count(TcpCounter::BadFlags), 4);
    assert_eq!(script.out.delivered, b"");
    assert_eq!(script.state(), State::Established);
}

/// RFC 9293 section 3.8.5: urgent data is in line.
#[test]
fn urgent_data_is_data() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    script.give(ACK | TcpFlags::URG, b"now!");
    assert_eq!(script.read_all(), b"now!");
}

/// RFC 7323 section 5.3.
#[test]
fn paws_drops_old_segments_and_acknowledges() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    script.ts = 1000;
    script.give(ACK, b"new");
    script.settle();
    script.expect_ack();
    script.ts = 999;
    script.give_at(0, ACK, b"old");
    script.output();
    script.expect_ack();
    assert_eq!(script.read_all(), b"new");
    assert_eq!(script.count(TcpCounter::PawsDrop), 1);
    // A reset has no timestamp worth a check.
    script.ts = 0;
    script.give_at(0, RST, b"");
    assert_eq!(script.dead(), Some(DeadReason::Reset));
}

/// RFC 7323 section 5.5: after 24 days of silence the last timestamp proves nothing.
#[test]
fn paws_forgets_after_24_days() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    script.ts = 0x9000_0000;
    script.run_for(23 * 86_400 * 1_000_000);
    script.give_at(0, ACK, b"x");
    assert_eq!(script.read_all(), b"");
    script.run_for(2 * 86_400 * 1_000_000);
    script.give(ACK, b"x");
    assert_eq!(script.read_all(), b"x");
}

/// RFC 7323 section 3.2: switched off after the handshake, they are dropped but kill nothing;
/// switched on, ignored.
#[test]
fn timestamps_switched_on_or_off() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    script.offer.timestamps = false;
    script.give_at(0, ACK, b"bare");
    script.output();
    script.expect_nothing();
    assert_eq!(script.count(TcpCounter::TimestampMissing), 1);
    script.offer.timestamps = true;
    script.give(ACK, b"good");
    assert_eq!(script.read_all(), b"good");

    let mut script = Script::settled(cfg(), Offer::BARE);
    script.offer.timestamps = true;
    for ts in [5, 0x9000_0000, 3] {
        script.ts = ts;
        script.give(ACK, b"x");
    }
    assert_eq!(script.read_all(), b"xxx");
    script.settle();
    assert_eq!(script.expect(ACK).seg.options.timestamp, None);
}

/// RFC 7323 section 4.3: what is echoed is the timestamp of the oldest unacknowledged segment.
#[test]
fn delayed_ack_echoes_the_earliest_timestamp() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    script.ts = 800;
    script.give(ACK, b"a");
    script.output();
    script.ts = 805;
    script.give(ACK, b"b");
    script.output();
    script.run_for(2_000);
    let ack = script.expect_ack();
    assert_eq!(ack.seg.options.timestamp.unwrap().1, 800);
}

/// A wrong TSecr must not spoil the timeout.
#[test]
fn garbage_tsecr_does_not_spoil_the_round_trip_time() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    for garbage in [0, 1, 0x7fff_ffff, 0xdead_beef] {
        script.send(b"data");
        script.output();
        script.expect_data(b"data");
        script.run_for(150);
        script.ack += 4;
        script.echo = garbage;
        script.give(ACK, b"");
    }
    let info = script.tcb.info(&cfg());
    assert!(info.srtt_us <= 200, "{info:?}");
    assert_eq!(info.rto_us, info.srtt_us + cfg().min_rto_us);
}

/// Overlapping segments of different lengths; the first copy of each byte stays.
#[test]
fn overlapping_segments() {
    let stream = pattern(400);
    let mut script = Script::settled(cfg(), Offer::ALL);
    let cuts = [(300, 350), (100, 200), (150, 250), (90, 260), (50, 120), (340, 400), (255, 310)];
    for (from, to) in cuts {
        script.give_at(from, ACK, &stream[from as usize..to]);
    }
    script.output();
    assert_eq!(script.out.delivered, b"");
    script.give_at(0, ACK, &stream[..60]);
    script.seq += 400;
    assert!(script.read_all() == stream);
    script.out.sent.clear();
    script.give(ACK, b"end");
    script.check_no_leak();
}

/// Data beyond the window is cut off, at every edge.
#[test]
fn data_beyond_the_window_is_cut_off() {
    let small = Config { rcv_buf_bytes: 100, ..cfg() };
    let mut script = Script::settled(small, Offer::BARE);
    script.give_at(0, FIN | ACK, &[1; 150]);
    script.seq += 100;
    assert_eq!(script.out.delivered.len(), 100);
    assert_eq!(script.state(), State::Established, "FIN lay beyond");
    script.output();
    assert_eq!(script.expect_ack().seg.window, 0);
    script.give_at(0, ACK, &[1; 1]);
    script.output();
    script.expect_ack();
    script.read_all();
    script.give_at(500, ACK, &[1; 1]);
    script.output();
    script.expect_ack();
    assert_eq!(script.count(TcpCounter::OutOfWindow), 3);
    script.check_no_leak();
}

/// ACKs that arrive with a closed window are processed (RFC 9293 section 3.10.7.4, first).
#[test]
fn closed_window_still_takes_acks_and_windows() {
    let small = Config { rcv_buf_bytes: 100, ..cfg() };
    let mut script = Script::settled(small, Offer::BARE);
    script.window = 0;
    script.give(ACK, &[1; 100]);
    script.settle();
    script.expect_ack();
    script.send(b"answer");
    script.output();
    script.expect_nothing();
    // A probe of our closed window, which opens theirs.
    script.window = 500;
    script.give_at(0, ACK, &[1]);
    script.output();
    let data = script.expect_data(b"answer");
    assert_eq!(data.seg.window, 0);
    script.ack += 6;
    script.give_at(0, ACK, &[1]);
    assert_eq!(script.tcb.info(&cfg()).in_flight_bytes, 0);
}

/// Any header at all in any state; the soup is stirred with likely values.
#[test]
fn segment_soup_in_every_state() {
    let mut random = ix_random::Rng::new(42);
    for round in 0..300u64 {
        let offer = [Offer::ALL, Offer::BARE, Offer::SACK][round as usize % 3];
        for mut script in Script::in_each_state(&cfg(), offer) {
            for _ in 0..20 {
                let near = |random: &mut ix_random::Rng, seq: Seq| match random.below(4) {
                    0 => Seq(random.next_u64() as u32),
                    1 => seq,
                    2 => seq + random.below(3000) as u32,
                    _ => seq - random.below(3000) as u32,
                };
                let (seq, ack) = (near(&mut random, script.seq), near(&mut random, script.ack));
                let mut hdr = TcpHeader {
                    seq,
                    ack,
                    ..script.header(TcpFlags(random.next_u64() as u16 & 0x1ff))
                };
                if random.per_mille(700) {
                    hdr.flags = ACK;
                }
                hdr.window = [0, 1, random.next_u64() as u16][random.below(3) as usize];
                if random.per_mille(100) {
                    hdr.options.timestamp =
                        Some((random.next_u64() as u32, random.next_u64() as u32));
                }
                for _ in 0..random.below(5) {
                    let left = near(&mut random, ack);
                    hdr.options.sack.push(left, left + random.below(2000) as u32);
                }
                let payload = pattern(random.below(4) as usize * random.below(800) as usize);
                script.segment(&hdr, &payload);
                match random.below(8) {
                    0 => drop(script.read_all()),
                    1 => drop(script.send(&payload)),
                    2 => script.shutdown(),
                    3 if random.per_mille(100) => script.close(),
                    4 => {
                        let us = random.below(100_000);
                        script.run_for(us);
                    }
                    _ => {}
                }
                script.output();
                script.out.events.clear();
            }
            script.check_no_leak();
        }
    }
}

/// The answer to a keepalive probe needs nothing of the budget that connections share: thousands of
/// clients with keepalive would be given up. Each connection answers twice a second at most.
#[test]
fn a_keepalive_probe_is_answered_whatever_other_connections_have_used() {
    let mut script = Script::settled(Config::default(), Offer::ALL);
    script.out.no_challenges = true;
    for _ in 0..10 {
        script.run_for(1_000_000);
        for _ in 0..3 {
            script.give_at(-1, ACK, b"");
            script.output();
        }
        script.expect_ack();
        script.expect_nothing();
    }
    // A blind attacker's reset does.
    script.run_for(1_000_000);
    script.give_at(100, RST, b"");
    script.output();
    script.expect_nothing();
}
