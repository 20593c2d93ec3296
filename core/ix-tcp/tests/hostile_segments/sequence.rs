//! Sequence and acknowledgement numbers, RST and SYN in synchronized states: RFC 9293 section
//! 3.10.7.4, RFC 5961, RFC 1337.
use super::{assert_one_ack, assert_silent, cfg, lab_in, synchronized};
use ix_tcp::{State, TcpCounter};
use ix_tcp_rig::bytes_at;
use ix_tcp_rig::lab::{ACK, FIN, Lab, PEER_SEED, Peer, RST, SYN};
use ix_wire::{Seq, TcpFlags, TcpHeader};

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
