//! RFC 9293 sections 3.6 and 3.10.4, RFC 2525, RFC 6191.
use super::{assert_one_ack, assert_silent, lab_in};
use ix_tcp::{DeadReason, State};
use ix_tcp_rig::bytes_at;
use ix_tcp_rig::lab::{ACK, FIN, PEER_SEED, RST, STATES, SYN};
use ix_wire::{Seq, TcpFlags, TcpHeader, TcpOptions};

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
