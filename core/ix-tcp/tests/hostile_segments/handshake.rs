//! SYN-SENT and SYN-RECEIVED: RFC 9293 sections 3.10.7.3 and 3.10.7.4.
use super::{assert_one_ack, assert_silent, cfg, lab_in};
use ix_tcp::{Config, DeadReason, State};
use ix_tcp_rig::lab::{ACK, FIN, Lab, PEER_SEED, Peer, RST, SYN};
use ix_tcp_rig::{Segment, bytes_at};
use ix_wire::{TcpFlags, TcpHeader, TcpOptions};

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

/// RFC 9293 section 3.10.7.4: what is not acceptable is acknowledged in SYN-RECEIVED, as in all
/// later states, however the connection began.
#[test]
fn syn_received_acknowledges_what_it_does_not_take() {
    let (far, within) = (1 << 20, 1000);
    for (what, flags, seq, len) in [
        ("text beyond the window", ACK, far, 100),
        ("text before the window", ACK, 0u32.wrapping_sub(100), 50),
        ("an empty segment beyond the window", ACK, far, 0),
        ("a FIN beyond the window", ACK | FIN, far, 0),
        ("a SYN within the window", SYN, within, 0),
        ("a SYN-ACK within the window", SYN | ACK, within, 0),
        ("a reset within the window, not at its edge", RST, within, 0),
    ] {
        for simultaneous in [false, true] {
            let mut lab = match simultaneous {
                false => lab_in(State::SynReceived),
                true => lab_in(State::SynSent),
            };
            if simultaneous {
                lab.syn();
                lab.take();
            }
            assert_eq!(lab.state(), State::SynReceived);
            let hdr = TcpHeader { seq: lab.peer.irs + 1 + seq, ..lab.header(flags) };
            lab.raw(hdr, &bytes_at(PEER_SEED, hdr.seq, len));
            assert_one_ack(&mut lab, what);
            assert_eq!(lab.state(), State::SynReceived, "{what}");
            assert!(!lab.end.with(|tcb, _, _| tcb.needs_output()), "{what}");
            lab.say(ACK, &[]);
            assert_eq!(lab.state(), State::Established, "{what}");
            lab.say_data(10);
            assert_eq!(lab.end.out.delivered, 10, "{what}");
        }
    }
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
