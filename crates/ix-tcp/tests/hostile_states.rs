//! RFC 9293 section 3.10.7 state by state, with RFC 5961, 1337, 6191 and 7323: one hand-made segment,
//! and what must follow from it.
mod hostile_support;

use hostile_support::lab::{ACK, FIN, Lab, PEER_SEED, Peer, RST, STATES, SYN};
use hostile_support::{Segment, bytes_at};
use ix_tcp::{Config, DeadReason, State, TcpCounter};
use ix_wire::{Seq, TcpFlags, TcpHeader, TcpOptions};

fn cfg() -> Config {
    Config { delack_us: 1_000, ..Config::default() }
}

fn synchronized() -> impl Iterator<Item = State> {
    STATES.into_iter().filter(|state| state.synchronized())
}

fn lab_in(state: State) -> Lab {
    Lab::in_state(cfg(), Peer::default(), state)
}

/// Exactly one segment: an empty ACK that tells the peer where we stand.
fn assert_one_ack(lab: &mut Lab, what: &str) {
    let sent = lab.take();
    assert_eq!(sent.len(), 1, "{what}: {sent:?}");
    let Segment { hdr, payload } = &sent[0];
    assert!(payload.is_empty(), "{what}: {hdr:?}");
    assert_eq!(hdr.flags, ACK, "{what}: {hdr:?}");
    assert_eq!(hdr.seq, lab.end.out.audit.snd_max(), "{what}: {hdr:?}");
}

fn assert_silent(lab: &mut Lab, what: &str) {
    let sent = lab.take();
    assert!(sent.is_empty(), "{what}: {sent:?}");
}

// --- SYN-SENT (section 3.10.7.3) ------------------------------------------------------------

#[test]
fn syn_sent_resets_an_unacceptable_ack() {
    for wrong in [-2i32, -1, 0, 2, 1000] {
        for flags in [ACK, SYN | ACK, FIN | ACK] {
            let mut lab = lab_in(State::SynSent);
            let ack = lab.peer.iss + wrong as u32;
            let hdr = TcpHeader { ack, ..lab.header(flags) };
            lab.raw(hdr, &[]);
            let sent = lab.take();
            assert_eq!(sent.len(), 1, "ack iss{wrong:+}: {sent:?}");
            assert_eq!(sent[0].hdr.flags, RST);
            assert_eq!(sent[0].hdr.seq, ack);
            assert_eq!(lab.state(), State::SynSent);
        }
    }
}

#[test]
fn syn_sent_heeds_a_reset_only_with_an_acceptable_ack() {
    for (flags, ack, dies) in [
        (RST, 1, false),
        (RST | ACK, 0, false),
        (RST | ACK, 2, false),
        (RST | ACK, 1, true),
        (RST | SYN | ACK, 1, true),
        (RST | SYN, 1, false),
    ] {
        let mut lab = lab_in(State::SynSent);
        let hdr = TcpHeader { ack: lab.peer.iss + ack, ..lab.header(flags) };
        lab.raw(hdr, &[]);
        assert_silent(&mut lab, "a reset is never answered here");
        assert_eq!(lab.state() == State::Closed, dies, "{flags:?} {ack}");
        assert_eq!(lab.end.out.dead, dies.then_some(DeadReason::Refused));
    }
}

#[test]
fn syn_sent_ignores_what_has_neither_syn_nor_rst() {
    for flags in [ACK, ACK | FIN, TcpFlags(0), FIN, TcpFlags::URG, TcpFlags::PSH] {
        let mut lab = lab_in(State::SynSent);
        let hdr = TcpHeader { ack: lab.ack, ..lab.header(flags) };
        lab.raw(hdr, &bytes_at(PEER_SEED, hdr.seq, 10));
        assert_silent(&mut lab, "dropped");
        assert_eq!(lab.state(), State::SynSent);
    }
}

#[test]
fn syn_ack_establishes() {
    let mut lab = lab_in(State::SynSent);
    lab.syn_ack();
    assert_eq!(lab.state(), State::Established);
    assert!(lab.end.out.established);
    assert_one_ack(&mut lab, "third leg");
}

#[test]
fn simultaneous_open() {
    // RFC 9293 figure 7.
    let mut lab = lab_in(State::SynSent);
    lab.syn();
    assert_eq!(lab.state(), State::SynReceived);
    assert!(!lab.end.out.established);
    let sent = lab.take();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].hdr.flags, SYN | ACK);
    assert_eq!((sent[0].hdr.seq, sent[0].hdr.ack), (lab.peer.iss, lab.seq));
    // The peer's SYN-ACK repeats its SYN's number; its ACK part counts.
    let hdr = TcpHeader { seq: lab.peer.irs, options: lab.peer.options, ..lab.header(SYN | ACK) };
    lab.raw(hdr, &[]);
    lab.say(ACK, &[]);
    assert_eq!(lab.state(), State::Established);
    assert!(lab.end.out.established);
    lab.say_data(10);
    assert_eq!(lab.end.out.delivered, 10);
}

#[test]
fn simultaneous_open_by_plain_ack() {
    let mut lab = lab_in(State::SynSent);
    lab.syn();
    lab.take();
    lab.say(ACK, &[]);
    assert_eq!(lab.state(), State::Established);
}

#[test]
fn data_in_a_syn_is_delivered_once_or_sent_again() {
    // TCP-Fuzz: data in a SYN. It may be taken or left; it must not be lost or doubled.
    for passive in [false, true] {
        let mut lab = Lab::new(cfg(), Peer::default(), passive);
        let flags = if passive { SYN } else { SYN | ACK };
        let hdr = TcpHeader { options: lab.peer.options, ..lab.header(flags) };
        let data = bytes_at(PEER_SEED, lab.peer.irs + 1, 20);
        lab.seq += 1;
        lab.raw(hdr, &data);
        lab.say(ACK, &[]);
        lab.data_at(lab.peer.irs + 1, 20);
        lab.wait(10_000);
        assert_eq!(lab.end.out.delivered, 20);
        assert_eq!(lab.take().last().unwrap().hdr.ack, lab.peer.irs + 21);
        lab.end.finish();
    }
}

#[test]
fn garbage_tsecr_in_a_syn_ack_does_not_spoil_the_estimator() {
    // TCP-Fuzz: invalid TSecr in a SYN-ACK.
    for ecr in [0, 1, u32::MAX, 0x8000_0000] {
        let mut lab = lab_in(State::SynSent);
        lab.now_us += 700;
        let options = TcpOptions { timestamp: Some((1000, ecr)), ..lab.peer.options };
        let hdr = TcpHeader { options, ..lab.header(SYN | ACK) };
        lab.seq += 1;
        lab.raw(hdr, &[]);
        let cfg = cfg();
        let info = lab.end.with(|tcb, _, _| tcb.info(&cfg));
        assert!(info.srtt_us <= 2_000, "{info:?}");
        assert!(info.rto_us <= 3_000_000, "{info:?}");
    }
}

#[test]
fn options_that_would_divide_by_zero() {
    for (mss, window_scale, window) in [
        (Some(0), Some(255), 0),
        (Some(1), Some(15), 1),
        (None, None, 0),
        (Some(65_535), None, 65_535),
    ] {
        for passive in [false, true] {
            let options = TcpOptions { mss, window_scale, ..Peer::default().options };
            let peer = Peer { options, window, ..Peer::default() };
            let mut lab = Lab::new(cfg(), peer, passive);
            if passive {
                lab.syn();
                lab.say(ACK, &[]);
            } else {
                lab.syn_ack();
            }
            assert_eq!(lab.state(), State::Established);
            lab.send(5_000);
            lab.wait(3_000_000);
            lab.say_data(100);
            assert_eq!(lab.end.out.delivered, 100);
        }
    }
}

#[test]
fn unanswered_syn_backs_off_and_gives_up() {
    let config = Config { syn_retries: 4, ..cfg() };
    let mut lab = Lab::new(config, Peer::default(), false);
    assert_eq!(lab.take().len(), 1);
    let mut gaps_us = Vec::new();
    let mut last_us = lab.now_us;
    while lab.end.out.dead.is_none() {
        lab.wait(10_000);
        for segment in lab.take() {
            assert_eq!(segment.hdr.flags, SYN);
            gaps_us.push(lab.now_us - last_us);
            last_us = lab.now_us;
        }
        assert!(lab.now_us < 300_000_000);
    }
    let seconds: Vec<u64> = gaps_us.iter().map(|us| (us + 500_000) / 1_000_000).collect();
    assert_eq!(seconds, [1, 2, 4, 8]);
    assert_eq!(lab.end.out.dead, Some(DeadReason::TimedOut));
}

// --- SYN-RECEIVED ---------------------------------------------------------------------------

#[test]
fn syn_received_resets_an_unacceptable_ack() {
    for wrong in [-1i32, 0, 2, 77_777] {
        let mut lab = lab_in(State::SynReceived);
        let ack = lab.peer.iss + wrong as u32;
        let hdr = TcpHeader { ack, ..lab.header(ACK) };
        lab.raw(hdr, &[]);
        assert_eq!(lab.state(), State::SynReceived);
        let sent = lab.take();
        // RFC 9293: <SEQ=SEG.ACK><CTL=RST>; RFC 5961 section 5 lets an ACK stand in for it.
        assert!(sent.len() <= 1, "{sent:?}");
        if let Some(Segment { hdr, .. }) = sent.first() {
            assert!(hdr.flags == RST && hdr.seq == ack || hdr.flags.contains(ACK), "{hdr:?}");
        }
        lab.say(ACK, &[]);
        assert_eq!(lab.state(), State::Established);
    }
}

#[test]
fn syn_received_answers_a_repeated_syn() {
    let mut lab = lab_in(State::SynReceived);
    let hdr = TcpHeader { seq: lab.peer.irs, options: lab.peer.options, ..lab.header(SYN) };
    lab.raw(hdr, &[]);
    assert_eq!(lab.state(), State::SynReceived);
    let sent = lab.take();
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!(sent[0].hdr.ack, lab.peer.irs + 1);
    lab.say(ACK, &[]);
    assert_eq!(lab.state(), State::Established);
}

#[test]
fn syn_received_dies_silently_by_an_exact_reset() {
    let mut lab = lab_in(State::SynReceived);
    lab.say(RST, &[]);
    assert_eq!(lab.state(), State::Closed);
    assert_silent(&mut lab, "RST is not answered");
    assert!(!lab.end.out.established);
}

#[test]
fn data_with_the_third_leg_is_taken() {
    let mut lab = lab_in(State::SynReceived);
    lab.say_data(100);
    assert_eq!(lab.state(), State::Established);
    assert_eq!(lab.end.out.delivered, 100);
}

#[test]
fn data_before_the_third_leg_establishes_too() {
    // The bare ACK was lost; the data's ACK does its work, in order or not.
    let mut lab = lab_in(State::SynReceived);
    lab.data_at(lab.seq + 1000, 1000);
    assert_eq!(lab.state(), State::Established);
    lab.data_at(lab.seq, 1000);
    assert_eq!(lab.end.out.delivered, 2000);
}

#[test]
fn unanswered_syn_ack_gives_up() {
    let config = Config { syn_ack_retries: 3, ..cfg() };
    let mut lab = Lab::new(config, Peer::default(), true);
    lab.syn();
    lab.take();
    lab.wait(120_000_000);
    let sent = lab.take();
    assert_eq!(sent.iter().filter(|segment| segment.hdr.flags == SYN | ACK).count(), 3);
    assert_eq!(lab.state(), State::Closed);
}

#[test]
fn fin_with_the_third_leg() {
    let mut lab = lab_in(State::SynReceived);
    lab.say(ACK | FIN, &[]);
    assert_eq!(lab.state(), State::CloseWait);
    assert!(lab.end.out.established && lab.end.out.eof);
}

// --- Synchronized states: sequence numbers ----------------------------------------------------

#[test]
fn a_segment_outside_the_window_is_answered_by_an_ack() {
    for state in synchronized() {
        for offset in [-100_000i32, -11, 2_000_000, i32::MIN / 2, i32::MAX / 2] {
            let mut lab = lab_in(state);
            let before = lab.end.out.delivered;
            let seq = lab.seq + offset as u32;
            lab.data_at(seq, 10);
            assert_one_ack(&mut lab, &format!("{state:?} {offset:+}"));
            assert_eq!(lab.end.out.delivered, before);
            assert_eq!(lab.state(), state);
            lab.end.finish();
        }
    }
}

#[test]
fn a_reset_outside_the_window_is_nothing() {
    for state in synchronized() {
        for offset in [-100_000i32, -1, 2_000_000, i32::MIN] {
            let mut lab = lab_in(state);
            for flags in [RST, RST | ACK] {
                let hdr = TcpHeader { seq: lab.seq + offset as u32, ..lab.header(flags) };
                lab.raw(hdr, &[]);
            }
            assert_silent(&mut lab, &format!("{state:?} {offset:+}"));
            assert_eq!(lab.state(), state);
        }
    }
}

#[test]
fn a_reset_in_the_window_but_not_exact_is_challenged() {
    // RFC 5961 section 3.2, RFC 9293 section 3.10.7.4 (lwIP CVE-2004-0230).
    for state in synchronized().filter(|state| *state != State::TimeWait) {
        for offset in [1u32, 1000, 30_000] {
            let mut lab = lab_in(state);
            let hdr = TcpHeader { seq: lab.seq + offset, ..lab.header(RST) };
            lab.raw(hdr, &[]);
            assert_eq!(lab.state(), state, "{state:?} +{offset}");
            assert_one_ack(&mut lab, "challenge");
        }
    }
}

#[test]
fn an_exact_reset_kills() {
    for state in synchronized().filter(|state| *state != State::TimeWait) {
        for flags in [RST, RST | ACK] {
            let mut lab = lab_in(state);
            // The acknowledgement of a reset is not looked at in these states.
            let hdr = TcpHeader { ack: Seq(12_345), ..lab.header(flags) };
            lab.raw(hdr, &[]);
            assert_eq!(lab.state(), State::Closed, "{state:?}");
            assert_silent(&mut lab, "RST is not answered");
            assert!(lab.end.out.dead.is_some(), "{state:?}");
        }
    }
}

#[test]
fn time_wait_is_not_assassinated() {
    // RFC 1337.
    let mut lab = lab_in(State::TimeWait);
    lab.say(RST, &[]);
    lab.say(RST | ACK, &[]);
    assert_eq!(lab.state(), State::TimeWait);
    lab.wait(61_000_000);
    assert_eq!(lab.state(), State::Closed);
}

#[test]
fn a_syn_in_a_synchronized_state_is_challenged() {
    // RFC 5961 section 4.2; Zephyr#48465: not ignored.
    for state in synchronized().filter(|state| *state != State::TimeWait) {
        for offset in [0u32, 1, 1000, 0x7000_0000, 0xffff_0000] {
            for flags in [SYN, SYN | ACK] {
                let mut lab = lab_in(state);
                let seq = lab.seq + offset;
                let hdr = TcpHeader { seq, options: lab.peer.options, ..lab.header(flags) };
                lab.raw(hdr, &[]);
                assert_eq!(lab.state(), state, "{state:?} +{offset}");
                assert_one_ack(&mut lab, &format!("{state:?} +{offset} {flags:?}"));
            }
        }
    }
}

#[test]
fn challenges_are_limited() {
    // RFC 5961 section 7.
    let mut lab = lab_in(State::Established);
    for _ in 0..10_000 {
        lab.raw(lab.header(SYN), &[]);
        lab.raw(TcpHeader { seq: lab.seq + 1, ..lab.header(RST) }, &[]);
    }
    let sent = lab.take();
    assert!(!sent.is_empty() && sent.len() <= 100, "{} challenges", sent.len());
    assert!(lab.end.out.stats.get(TcpCounter::ChallengeAcksLimited) > 0);
    assert_eq!(lab.state(), State::Established);
}

#[test]
fn a_segment_without_ack_is_dropped() {
    for state in synchronized() {
        for flags in [TcpFlags(0), FIN, TcpFlags::PSH, TcpFlags::URG] {
            let mut lab = lab_in(state);
            let before = lab.end.out.delivered;
            let payload = bytes_at(PEER_SEED, lab.seq, 10);
            lab.raw(lab.header(flags), &payload);
            assert_eq!(lab.end.out.delivered, before);
            assert_eq!(lab.state(), state);
            assert_silent(&mut lab, &format!("{state:?} {flags:?}"));
            lab.end.finish();
        }
    }
}

#[test]
fn an_ack_of_what_was_never_sent_is_answered_and_dropped() {
    for state in [State::Established, State::FinWait1, State::FinWait2, State::CloseWait] {
        for beyond in [1u32, 1000, 0x4000_0000] {
            let mut lab = lab_in(state);
            let before = lab.end.out.delivered;
            let ack = lab.end.out.audit.snd_max() + beyond;
            let hdr = TcpHeader { ack, ..lab.header(ACK) };
            lab.raw(hdr, &bytes_at(PEER_SEED, lab.seq, 10));
            assert_one_ack(&mut lab, &format!("{state:?} +{beyond}"));
            assert_eq!(lab.end.out.delivered, before, "its data is dropped too");
            assert_eq!(lab.end.out.acked, 0);
            assert_eq!(lab.state(), state);
            lab.end.finish();
        }
    }
}

#[test]
fn an_ack_far_too_old_carries_no_data_in() {
    // RFC 5961 section 5.2: older than the largest window we ever saw.
    let mut lab = lab_in(State::Established);
    let hdr = TcpHeader { ack: lab.ack - 200_000u32, ..lab.header(ACK) };
    lab.raw(hdr, &bytes_at(PEER_SEED, lab.seq, 10));
    assert_eq!(lab.end.out.delivered, 0);
    assert_one_ack(&mut lab, "challenge");
    // One a little old is only a late segment: its data counts.
    let mut lab = lab_in(State::Established);
    lab.send(1000);
    lab.ack += 1000;
    lab.say(ACK, &[]);
    let hdr = TcpHeader { ack: lab.ack - 1000u32, ..lab.header(ACK) };
    lab.raw(hdr, &bytes_at(PEER_SEED, lab.seq, 10));
    assert_eq!(lab.end.out.delivered, 10);
}

#[test]
fn a_bare_ack_is_never_answered() {
    for state in synchronized() {
        let mut lab = lab_in(state);
        for _ in 0..10 {
            lab.say(ACK, &[]);
        }
        assert_silent(&mut lab, &format!("{state:?}"));
        assert_eq!(lab.state(), state);
    }
}

#[test]
fn any_number_of_duplicate_acks() {
    // smoltcp#224: the counter overflowed.
    for sack in [false, true] {
        let mut peer = Peer::default();
        peer.options.sack_permitted = sack;
        let mut lab = Lab::established(cfg(), peer);
        lab.send(20_000);
        for _ in 0..100_000 {
            lab.say(ACK, &[]);
        }
        assert_eq!(lab.state(), State::Established);
        // Limited transmit and fast retransmit, but no storm.
        assert!(lab.take().len() < 100);
    }
}

#[test]
fn duplicate_acks_do_not_hold_up_the_timeout() {
    // smoltcp#62: the retransmission timer was restarted by each ACK.
    let mut peer = Peer::plain();
    peer.window = 2_000;
    let mut lab = Lab::established(cfg(), peer);
    lab.send(1_000);
    lab.take();
    for _ in 0..5_000 {
        lab.wait(1_000);
        lab.say(ACK, &[]);
    }
    let again = lab.take().iter().filter(|segment| !segment.payload.is_empty()).count();
    assert!(again >= 2, "{again} retransmissions in five seconds");
}

// --- Timestamps -------------------------------------------------------------------------------

#[test]
fn paws_drops_an_old_timestamp_and_answers() {
    let mut lab = lab_in(State::Established);
    lab.tsval = 50_000;
    lab.say_data(10);
    lab.take();
    lab.tsval = 49_999;
    lab.data_at(lab.seq, 10);
    assert_eq!(lab.end.out.delivered, 10);
    assert_one_ack(&mut lab, "RFC 7323 section 5.3 R1");
    assert_eq!(lab.end.out.stats.get(TcpCounter::PawsDrop), 1);
    // Equal is not old.
    lab.tsval = 50_000;
    lab.say_data(10);
    assert_eq!(lab.end.out.delivered, 20);
}

#[test]
fn paws_does_not_apply_to_resets() {
    // RFC 7323 section 5.2: a RST may carry any timestamp or none.
    for timestamp in [None, Some((1, 0))] {
        let mut lab = lab_in(State::Established);
        lab.tsval = 50_000;
        lab.say_data(10);
        let options = TcpOptions { timestamp, ..TcpOptions::NONE };
        let hdr = TcpHeader { options, ..lab.header(RST) };
        lab.raw(hdr, &[]);
        assert_eq!(lab.state(), State::Closed);
    }
}

#[test]
fn paws_forgets_after_24_days() {
    // RFC 7323 section 5.5: a clock may have gone half round in an idle connection.
    let hour_us = 3_600_000_000;
    let mut lab = lab_in(State::Established);
    lab.tsval = 0x7000_0000;
    lab.say_data(10);
    lab.wait(23 * 24 * hour_us);
    lab.tsval = 0xf800_0000; // a fast clock, more than half round
    lab.data_at(lab.seq, 10);
    assert_eq!(lab.end.out.delivered, 10, "not yet");
    lab.wait(26 * hour_us);
    lab.say_data(10);
    assert_eq!(lab.end.out.delivered, 20);
    lab.take();
    lab.tsval -= 5;
    lab.data_at(lab.seq, 10);
    assert_eq!(lab.end.out.delivered, 20, "and protects again");
}

#[test]
fn timestamps_wrap() {
    let mut lab = lab_in(State::Established);
    for tsval in [0x7fff_fff0u32, 0xefff_ffff, 0x0000_0005, 0x6000_0000] {
        lab.tsval = tsval;
        lab.say_data(10);
    }
    assert_eq!(lab.end.out.delivered, 40);
}

#[test]
fn a_segment_without_the_negotiated_timestamp_is_dropped() {
    // RFC 7323 section 3.2.
    let mut lab = lab_in(State::Established);
    let hdr = TcpHeader { options: TcpOptions::NONE, ..lab.header(ACK) };
    lab.raw(hdr, &bytes_at(PEER_SEED, lab.seq, 10));
    assert_eq!(lab.end.out.delivered, 0);
    lab.end.finish();
}

#[test]
fn a_timestamp_that_was_not_negotiated_changes_nothing() {
    // RFC 7323 section 3.2, TCP-Fuzz: timestamps switched on after the handshake.
    let mut lab = Lab::established(cfg(), Peer::plain());
    for timestamp in [Some((99, 0)), Some((5, u32::MAX)), None] {
        let options = TcpOptions { timestamp, ..TcpOptions::NONE };
        let hdr = TcpHeader { options, ..lab.header(ACK) };
        let payload = bytes_at(PEER_SEED, lab.seq, 10);
        lab.seq += 10;
        lab.raw(hdr, &payload);
    }
    assert_eq!(lab.end.out.delivered, 30);
    lab.wait(10_000);
    assert!(lab.take().iter().all(|segment| segment.hdr.options.timestamp.is_none()));
}

#[test]
fn the_echo_is_of_the_segment_that_moved_the_window() {
    // RFC 7323 section 4.3 (A)-(C): a hole's later segment must not be echoed; the delayed ACK
    // echoes the first of the segments it covers.
    let mut lab = lab_in(State::Established);
    lab.tsval = 2_000;
    lab.say_data(100);
    lab.tsval = 3_000;
    lab.data_at(lab.seq + 100, 100);
    let sent = lab.take();
    assert_eq!(sent.last().unwrap().hdr.options.timestamp.unwrap().1, 2_000);
    lab.tsval = 4_000;
    lab.data_at(lab.seq, 100);
    let sent = lab.take();
    assert_eq!(sent.last().unwrap().hdr.options.timestamp.unwrap().1, 4_000);
}

#[test]
fn garbage_tsecr_does_not_spoil_the_estimator() {
    for ecr in [0, u32::MAX, 0x8000_0000, 1] {
        let mut lab = lab_in(State::Established);
        for _ in 0..20 {
            lab.send(1_000);
            lab.ack += 1_000;
            lab.now_us += 200;
            let mut hdr = lab.header(ACK);
            hdr.options.timestamp = Some((lab.tsval, ecr));
            lab.raw(hdr, &[]);
        }
        assert_eq!(lab.end.out.acked, 20_000);
        let cfg = cfg();
        let info = lab.end.with(|tcb, _, _| tcb.info(&cfg));
        assert!(info.srtt_us <= 5_000 && info.rto_us <= 1_000_000, "{ecr}: {info:?}");
    }
}

// --- Closing ----------------------------------------------------------------------------------

#[test]
fn close_from_either_side_and_both() {
    // RFC 9293 figures 12 and 13.
    let mut first = lab_in(State::FinWait2);
    first.say(ACK | FIN, &[]);
    assert_eq!(first.state(), State::TimeWait);
    assert_one_ack(&mut first, "ACK of FIN");
    assert_eq!(first.end.out.dead, Some(DeadReason::Closed));

    let mut second = lab_in(State::LastAck);
    second.ack += 1;
    second.say(ACK, &[]);
    assert_eq!(second.state(), State::Closed);
    assert_silent(&mut second, "nothing to say");
    assert_eq!(second.end.out.dead, Some(DeadReason::Closed));

    let mut both = lab_in(State::Closing);
    both.ack += 1;
    both.say(ACK, &[]);
    assert_eq!(both.state(), State::TimeWait);
}

#[test]
fn fin_and_its_ack_in_one_segment() {
    let mut lab = lab_in(State::FinWait1);
    lab.ack += 1;
    lab.say(ACK | FIN, &[]);
    assert_eq!(lab.state(), State::TimeWait);
}

#[test]
fn half_closed_we_still_receive() {
    for state in [State::FinWait1, State::FinWait2] {
        let mut lab = lab_in(state);
        lab.say_data(500);
        lab.say_data(500);
        assert_eq!(lab.end.out.delivered, 1000, "{state:?}");
        lab.wait(300_000);
        assert!(lab.take().iter().any(|segment| segment.hdr.ack == lab.seq), "acknowledged");
        lab.ack = lab.end.out.audit.snd_max();
        lab.say(ACK | FIN, &[]);
        assert!(lab.end.out.eof);
        assert_eq!(lab.state(), State::TimeWait);
    }
}

#[test]
fn half_closed_we_still_send() {
    let mut lab = lab_in(State::CloseWait);
    assert_eq!(lab.send(3_000), 3_000);
    let sent = lab.take();
    assert_eq!(sent.iter().map(|segment| segment.payload.len()).sum::<usize>(), 3_000);
    lab.ack += 3_000;
    lab.say(ACK, &[]);
    assert_eq!(lab.end.out.acked, 3_000);
}

#[test]
fn fin_waits_for_the_data_before_it() {
    let mut lab = lab_in(State::Established);
    let start = lab.seq;
    let hdr = TcpHeader { seq: start + 200, ..lab.header(ACK | FIN) };
    lab.raw(hdr, &bytes_at(PEER_SEED, start + 200, 100));
    assert!(!lab.end.out.eof);
    lab.data_at(start, 100);
    assert!(!lab.end.out.eof);
    assert_eq!(lab.state(), State::Established);
    lab.data_at(start + 100, 100);
    assert_eq!(lab.end.out.delivered, 300);
    assert!(lab.end.out.eof);
    assert_eq!(lab.state(), State::CloseWait);
    assert_eq!(lab.take().last().unwrap().hdr.ack, start + 301);
}

#[test]
fn a_bare_fin_waits_for_the_data_before_it() {
    let mut lab = lab_in(State::Established);
    let start = lab.seq;
    let hdr = TcpHeader { seq: start + 100, ..lab.header(ACK | FIN) };
    lab.raw(hdr, &[]);
    lab.data_at(start, 100);
    assert!(lab.end.out.eof);
    assert_eq!(lab.take().last().unwrap().hdr.ack, start + 101);
}

#[test]
fn data_after_fin_is_never_delivered() {
    // TCP-Fuzz: data after FIN, two FINs.
    for state in [State::CloseWait, State::LastAck, State::Closing, State::TimeWait] {
        let mut lab = lab_in(state);
        lab.say_data(100);
        lab.data_at(lab.seq - 150u32, 200);
        lab.say(ACK | FIN, &[]);
        assert_eq!(lab.end.out.delivered, 0, "{state:?}");
        for segment in lab.take() {
            assert_eq!(segment.hdr.ack, lab.peer.irs + 2, "{state:?}");
        }
        lab.end.finish();
    }
}

#[test]
fn a_second_fin_beyond_the_first_is_nothing() {
    let mut lab = lab_in(State::Established);
    let start = lab.seq;
    // Both out of order: the stream ends at the first FIN in sequence.
    let far = TcpHeader { seq: start + 300, ..lab.header(ACK | FIN) };
    lab.raw(far, &[]);
    let near = TcpHeader { seq: start + 100, ..lab.header(ACK | FIN) };
    lab.raw(near, &[]);
    lab.data_at(start, 100);
    lab.data_at(start + 100, 200);
    assert!(lab.end.out.eof || lab.end.out.delivered == 300);
    lab.wait(1_000_000);
    lab.end.finish();
}

#[test]
fn a_repeated_fin_is_acknowledged_again() {
    for state in [State::CloseWait, State::Closing, State::TimeWait] {
        let mut lab = lab_in(state);
        let hdr = TcpHeader { seq: lab.seq - 1u32, ..lab.header(ACK | FIN) };
        lab.raw(hdr, &[]);
        assert_one_ack(&mut lab, &format!("{state:?}"));
        assert_eq!(lab.state(), state);
    }
}

#[test]
fn a_repeated_fin_restarts_time_wait() {
    let mut lab = lab_in(State::TimeWait);
    lab.wait(40_000_000);
    let hdr = TcpHeader { seq: lab.seq - 1u32, ..lab.header(ACK | FIN) };
    lab.raw(hdr, &[]);
    lab.wait(40_000_000);
    assert_eq!(lab.state(), State::TimeWait);
    lab.wait(21_000_000);
    assert_eq!(lab.state(), State::Closed);
}

#[test]
fn our_fin_is_retransmitted_with_its_data() {
    // demikernel#203, #1537: FIN not retransmitted, or resent without FIN.
    for bytes in [0u64, 100, 5_000] {
        let mut lab = lab_in(State::Established);
        lab.end.append(bytes);
        lab.end.shutdown(lab.now_us);
        lab.end.output(lab.now_us);
        let first = lab.take();
        assert!(first.last().unwrap().hdr.flags.contains(FIN));
        lab.wait(5_000_000);
        let fins = lab.take().iter().filter(|seg| seg.hdr.flags.contains(FIN)).count();
        assert!(fins >= 1, "{bytes} bytes: FIN was not sent again");
        lab.ack = lab.peer.iss + 2 + bytes as u32;
        lab.say(ACK, &[]);
        assert_eq!(lab.state(), State::FinWait2);
        assert_eq!(lab.end.out.acked, bytes);
    }
}

#[test]
fn an_unanswered_fin_gives_up() {
    for state in [State::FinWait1, State::Closing, State::LastAck] {
        let mut lab = lab_in(state);
        lab.wait(600_000_000);
        assert_eq!(lab.state(), State::Closed, "{state:?}");
    }
}

#[test]
fn a_closed_application_answers_data_by_a_reset() {
    // RFC 2525 section 2.17, RFC 9293 section 3.6.1.
    let mut lab = lab_in(State::Established);
    lab.end.close(lab.now_us);
    lab.end.output(lab.now_us);
    assert_eq!(lab.state(), State::FinWait1);
    lab.take();
    lab.say_data(100);
    let sent = lab.take();
    assert!(sent.iter().any(|segment| segment.hdr.flags.contains(RST)), "{sent:?}");
    assert_eq!(lab.state(), State::Closed);
    lab.end.finish();
}

#[test]
fn fin_wait_2_without_application_ends() {
    let mut lab = lab_in(State::Established);
    lab.end.close(lab.now_us);
    lab.end.output(lab.now_us);
    lab.ack += 1;
    lab.say(ACK, &[]);
    assert_eq!(lab.state(), State::FinWait2);
    lab.wait(200_000_000);
    assert_eq!(lab.state(), State::Closed);
}

#[test]
fn fin_wait_2_with_application_stays() {
    let mut lab = lab_in(State::FinWait2);
    lab.wait(3_600_000_000);
    assert_eq!(lab.state(), State::FinWait2);
    lab.say_data(10);
    assert_eq!(lab.end.out.delivered, 10);
}

#[test]
fn abort_sends_one_exact_reset() {
    for state in STATES {
        let mut lab = lab_in(state);
        let now_us = lab.now_us;
        lab.end.with(|tcb, cfg, out| tcb.abort(cfg, now_us, out));
        assert_eq!(lab.state(), State::Closed, "{state:?}");
        let sent = lab.take();
        // RFC 9293 section 3.10.5: no reset in SYN-SENT, CLOSING, LAST-ACK, TIME-WAIT; one where
        // the peer may still believe in the connection.
        let needs = matches!(
            state,
            State::SynReceived
                | State::Established
                | State::FinWait1
                | State::FinWait2
                | State::CloseWait
        );
        assert!(sent.len() <= 1 && (!needs || sent.len() == 1), "{state:?}: {sent:?}");
        for segment in sent {
            assert!(segment.hdr.flags.contains(RST));
            assert_eq!(segment.hdr.seq, lab.end.out.audit.snd_max(), "{state:?}");
        }
        lab.end.finish();
    }
}

#[test]
fn time_wait_gives_way_to_a_newer_syn_only() {
    // RFC 6191, RFC 9293 section 3.6.1.
    let lab = lab_in(State::TimeWait);
    let tcb = lab.end.tcb.as_ref().unwrap();
    let syn = |seq: Seq, timestamp: Option<(u32, u32)>, flags: TcpFlags| {
        let options = TcpOptions { timestamp, ..TcpOptions::NONE };
        TcpHeader { seq, options, ..lab.header(flags) }
    };
    let val = lab.tsval;
    assert!(tcb.gives_way_to(&syn(lab.seq + 1000, Some((val + 1, 0)), SYN)));
    // A newer timestamp is enough, whatever the number.
    assert!(tcb.gives_way_to(&syn(lab.seq - 1000u32, Some((val + 1, 0)), SYN)));
    // The same timestamp needs a newer number.
    assert!(tcb.gives_way_to(&syn(lab.seq + 1000, Some((val, 0)), SYN)));
    assert!(!tcb.gives_way_to(&syn(lab.seq - 1000u32, Some((val, 0)), SYN)));
    assert!(!tcb.gives_way_to(&syn(lab.seq + 1000, Some((val - 1, 0)), SYN)));
    // No SYN, no new connection.
    assert!(!tcb.gives_way_to(&syn(lab.seq + 1000, Some((val + 1, 0)), ACK)));
    assert!(!tcb.gives_way_to(&syn(lab.seq + 1000, Some((val + 1, 0)), SYN | ACK)));
    assert!(!tcb.gives_way_to(&syn(lab.seq + 1000, Some((val + 1, 0)), SYN | RST)));
    for state in STATES.into_iter().filter(|state| *state != State::TimeWait) {
        let lab = lab_in(state);
        let tcb = lab.end.tcb.as_ref().unwrap();
        let hdr = TcpHeader { seq: lab.seq + 1000, ..lab.header(SYN) };
        assert!(!tcb.gives_way_to(&hdr), "{state:?}");
    }
}

#[test]
fn nothing_moves_a_dead_connection() {
    let mut lab = lab_in(State::Established);
    lab.say(RST, &[]);
    for flags in 0..64 {
        lab.raw(lab.header(TcpFlags(flags)), &bytes_at(PEER_SEED, lab.seq, 10));
    }
    lab.wait(1_000_000_000);
    let now_us = lab.now_us;
    lab.end.with(|tcb, cfg, out| {
        assert_eq!(tcb.deadline(), u64::MAX);
        assert_eq!(tcb.send_space(cfg), 0);
        tcb.timer(cfg, now_us, out);
        tcb.recv_done(cfg, 0, 0);
        tcb.shutdown(cfg, now_us, out);
        tcb.close(cfg, now_us, out);
        tcb.abort(cfg, now_us, out);
        tcb.output(cfg, now_us, out);
    });
    assert_silent(&mut lab, "dead");
    lab.end.finish();
}

#[test]
fn urgent_data_is_in_line() {
    // RFC 6093: the pointer is not acted upon, the bytes are data.
    let mut lab = lab_in(State::Established);
    for urgent in [0, 1, 5, 65_535] {
        let payload = bytes_at(PEER_SEED, lab.seq, 10);
        let hdr = TcpHeader { urgent, ..lab.header(ACK | TcpFlags::URG) };
        lab.seq += 10;
        lab.raw(hdr, &payload);
    }
    assert_eq!(lab.end.out.delivered, 40);
}
