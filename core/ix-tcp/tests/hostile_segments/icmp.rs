//! ICMP errors: RFC 1191, RFC 5927.
use super::{SECOND_US, cfg, established};
use ix_tcp::{DeadReason, PathError, State, TcpCounter};
use ix_tcp_rig::lab::{ACK, Lab, Peer};
use ix_wire::Seq;

fn icmp(lab: &mut Lab, error: PathError, seq: Seq) {
    let now_us = lab.now_us;
    lab.end.with(|tcb, cfg, out| {
        tcb.icmp_error(cfg, now_us, error, Some(seq), out);
        tcb.output(cfg, now_us, out);
    });
}

#[test]
fn a_black_hole_is_left_by_frag_needed() {
    let mut lab = established();
    lab.send(5_000);
    let first = lab.take();
    assert!(first[0].payload.len() > 1_200);
    let first = lab.peer.iss + 1;
    icmp(&mut lab, PathError::FragNeeded { mtu: 1_000 }, first);
    let again = lab.take();
    assert!(!again.is_empty(), "at once, without a timeout (RFC 1191 section 6.4)");
    lab.wait(10 * SECOND_US);
    lab.send(5_000);
    for segment in again.iter().chain(&lab.take()) {
        let packet = 20 + segment.hdr.len() + segment.payload.len();
        assert!(packet <= 1_000, "{packet} bytes into an MTU of 1000");
    }
    lab.ack = lab.peer.iss + 5_001;
    lab.say(ACK, &[]);
    assert_eq!(lab.end.out.acked, 5_000);
}

#[test]
fn frag_needed_never_raises_and_never_starves() {
    // RFC 1191 section 3, RFC 5927 section 7.
    for mtu in [0, 1, 67, 68, 576, 1_499, 1_500, 9_000, 65_535] {
        let mut lab = established();
        lab.send(5_000);
        lab.take();
        let first = lab.peer.iss + 1;
        icmp(&mut lab, PathError::FragNeeded { mtu }, first);
        let config = cfg();
        let info = lab.end.with(|tcb, _, _| tcb.info(&config));
        assert!((100..=1_448).contains(&info.mss_bytes), "{mtu}: {info:?}");
        lab.wait(30 * SECOND_US);
        lab.ack = lab.peer.iss + 5_001;
        lab.say(ACK, &[]);
        assert_eq!(lab.end.out.acked, 5_000);
    }
}

#[test]
fn icmp_that_quotes_nothing_in_flight_is_forged() {
    // RFC 5927 section 4.1.
    let errors = [PathError::FragNeeded { mtu: 576 }, PathError::Hard, PathError::Soft];
    for error in errors {
        let mut lab = established();
        lab.send(5_000);
        lab.take();
        let max = lab.end.out.audit.snd_max();
        for seq in [max, max + 1, lab.peer.iss, lab.peer.iss - 100u32, max + 0x8000_0000] {
            icmp(&mut lab, error, seq);
        }
        assert_eq!(lab.end.out.stats.get(TcpCounter::IcmpIgnored), 5);
        assert!(lab.take().is_empty());
        let config = cfg();
        let info = lab.end.with(|tcb, _, _| tcb.info(&config));
        assert_eq!(info.mss_bytes, 1_448);
        assert_eq!(lab.state(), State::Established);
    }
}

#[test]
fn hard_errors_do_not_end_an_established_connection() {
    // RFC 5927 section 5.2, RFC 9293 section 3.9.2.2.
    for error in [PathError::Hard, PathError::Soft] {
        let mut lab = established();
        lab.send(1_000);
        for _ in 0..10 {
            let first = lab.peer.iss + 1;
            icmp(&mut lab, error, first);
        }
        assert_eq!(lab.state(), State::Established);
        lab.ack += 1_000;
        lab.say(ACK, &[]);
        assert_eq!(lab.end.out.acked, 1_000);
    }
}

#[test]
fn a_hard_error_refuses_a_connection_in_the_making() {
    let mut lab = Lab::new(cfg(), Peer::default(), false);
    let iss = lab.peer.iss;
    icmp(&mut lab, PathError::Hard, iss + 1);
    icmp(&mut lab, PathError::Hard, iss - 1u32);
    icmp(&mut lab, PathError::Soft, iss);
    assert_eq!(lab.state(), State::SynSent);
    icmp(&mut lab, PathError::Hard, iss);
    assert_eq!(lab.end.out.dead, Some(DeadReason::Refused));
}
