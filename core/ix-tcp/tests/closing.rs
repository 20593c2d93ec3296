//! RFC 9293 section 3.6 (closing a connection), TIME-WAIT (RFC 1337, RFC 6191), and the list of
//! RFC 2525.

use crate::support::*;
use ix_tcp::{Config, DeadReason, State, TcpCounter, TcpEvent};
use ix_wire::{Seq, TcpHeader};

fn cfg() -> Config {
    Config::default()
}

#[test]
fn we_close_first() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    script.send(b"last words");
    script.shutdown();
    script.output();
    // FIN rides on the last data.
    let fin = script.expect(FIN | ACK);
    assert_eq!(fin.payload, b"last words");
    assert_eq!(script.state(), State::FinWait1);
    script.ack += 11;
    script.give(ACK, b"");
    assert_eq!(script.state(), State::FinWait2);
    // Half closed: data still arrives.
    script.give(ACK, b"answer");
    assert_eq!(script.read_all(), b"answer");
    script.give(FIN | ACK, b"");
    assert_eq!(script.state(), State::TimeWait);
    assert_eq!(script.out.events, [TcpEvent::Eof, TcpEvent::Dead(DeadReason::Closed)]);
    script.output();
    script.expect_ack();
    script.run_for(59_000_000);
    assert_eq!(script.state(), State::TimeWait);
    script.run_for(2_000_000);
    assert!(script.tcb.is_dead());
    script.check_no_leak();
}

#[test]
fn the_peer_closes_first() {
    let mut script = Script::close_wait(cfg(), Offer::ALL);
    assert!(script.said(TcpEvent::Eof));
    // Half closed: data can still be sent.
    assert_eq!(script.send(b"more"), 4);
    script.output();
    script.expect_data(b"more");
    script.shutdown();
    script.output();
    script.expect(FIN | ACK);
    assert_eq!(script.state(), State::LastAck);
    script.ack += 5;
    script.give(ACK, b"");
    assert_eq!(script.dead(), Some(DeadReason::Closed));
    assert!(script.tcb.is_dead());
}

/// RFC 9293 section 3.6, figure 13 (demikernel#1537 had it wrong).
#[test]
fn simultaneous_close() {
    let mut script = Script::closing(cfg(), Offer::ALL);
    assert!(script.said(TcpEvent::Eof));
    script.ack += 1;
    script.give(ACK, b"");
    assert_eq!(script.state(), State::TimeWait);

    // FIN that acknowledges ours: at once.
    let mut script = Script::fin_wait_1(cfg(), Offer::ALL);
    script.ack += 1;
    script.give(FIN | ACK, b"");
    assert_eq!(script.state(), State::TimeWait);
}

/// demikernel#203: FIN is retransmitted, and as FIN; with its data too.
#[test]
fn fin_is_retransmitted() {
    for data in [b"".as_slice(), b"tail"] {
        let mut script = Script::settled(cfg(), Offer::BARE);
        script.send(data);
        script.shutdown();
        script.output();
        let first = script.expect(FIN | ACK);
        for _ in 0..5 {
            script.run_to_deadline();
            let again = script.expect(FIN | ACK);
            assert_eq!((again.seg.seq, &again.payload), (first.seg.seq, &first.payload));
            assert!(again.seg.retransmission);
        }
    }
}

/// Acknowledged data is not sent again when only FIN was lost.
#[test]
fn fin_alone_is_retransmitted_when_its_data_arrived() {
    let mut script = Script::settled(cfg(), Offer::BARE);
    script.send(b"tail");
    script.shutdown();
    script.output();
    script.expect(FIN | ACK);
    script.ack += 4;
    script.give(ACK, b"");
    assert_eq!(script.state(), State::FinWait1);
    script.run_to_deadline();
    let again = script.expect(FIN | ACK);
    assert_eq!((again.seg.seq, again.seg.payload_len), (script.ack, 0));
}

/// FIN before the data that it follows is not consumed early.
#[test]
fn fin_out_of_order_waits_for_the_data() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    script.give_at(4, FIN | ACK, b"5678");
    script.output();
    assert_eq!(script.state(), State::Established);
    assert!(!script.said(TcpEvent::Eof));
    script.expect(ACK);
    script.give(ACK, b"1234");
    script.seq += 5;
    assert_eq!(script.read_all(), b"12345678");
    assert_eq!(script.state(), State::CloseWait);
    script.output();
    script.expect_ack();

    // FIN alone, after a gap.
    let mut script = Script::settled(cfg(), Offer::ALL);
    script.give_at(4, FIN | ACK, b"");
    assert!(!script.said(TcpEvent::Eof));
    script.give(ACK, b"1234");
    assert!(script.said(TcpEvent::Eof));
}

/// Data after FIN, and a second FIN.
#[test]
fn data_after_fin_and_two_fins() {
    for state in [Script::close_wait, Script::last_ack, Script::closing, Script::time_wait] {
        let mut script = state(cfg(), Offer::ALL);
        let before = script.state();
        let delivered = script.out.delivered.len();
        script.give_at(0, ACK, b"too late");
        script.give_at(-1, FIN | ACK, b"");
        script.give_at(0, FIN | ACK, b"again");
        script.output();
        assert_eq!(script.state(), before);
        assert_eq!(script.out.delivered.len(), delivered);
        let eofs = script.out.events.iter().filter(|event| **event == TcpEvent::Eof).count();
        assert_eq!(eofs, 1);
        script.check_no_leak();
    }
}

/// RFC 2525 section 2.17, RFC 9293 section 3.6.1: data for an application that has closed the
/// connection causes a reset.
#[test]
fn data_after_close_is_reset() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    script.close();
    script.output();
    let fin = script.expect(FIN | ACK);
    script.give(ACK, b"for nobody");
    let reset = script.expect(RST | ACK);
    assert_eq!(reset.seg.seq, fin.seg.seq + 1);
    assert!(script.tcb.is_dead());
    assert_eq!(script.count(TcpCounter::DataAfterClose), 1);
    script.check_no_leak();
}

#[test]
fn close_delivers_what_was_sent_before() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    script.send(b"parting");
    script.close();
    script.output();
    let fin = script.expect(FIN | ACK);
    assert_eq!(fin.payload, b"parting");
    script.ack += 8;
    script.give(FIN | ACK, b"");
    assert_eq!(script.state(), State::TimeWait);
}

/// An orphan does not wait for its peer for ever.
#[test]
fn orphan_in_fin_wait_2_ends() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    script.close();
    script.output();
    script.expect(FIN | ACK);
    script.ack += 1;
    script.give(ACK, b"");
    assert_eq!(script.state(), State::FinWait2);
    script.run_for(61_000_000);
    assert!(script.tcb.is_dead());

    // One whose application only shut down may wait.
    let mut script = Script::fin_wait_2(cfg(), Offer::ALL);
    script.run_for(3_600_000_000);
    assert_eq!(script.state(), State::FinWait2);
    script.close();
    script.run_for(61_000_000);
    assert!(script.tcb.is_dead());
}

#[test]
fn close_of_an_unborn_connection_is_silent() {
    let mut script = Script::syn_sent(cfg(), Offer::ALL);
    script.close();
    assert!(script.tcb.is_dead());
    script.output();
    script.expect_nothing();
    assert_eq!(script.out.events, []);
}

#[test]
fn close_in_syn_received_sends_fin_after_the_handshake() {
    let mut script = Script::syn_received(cfg(), Offer::ALL);
    script.shutdown();
    script.output();
    script.expect_nothing();
    script.give(ACK, b"");
    script.output();
    script.expect(FIN | ACK);
    assert_eq!(script.state(), State::FinWait1);
}

#[test]
fn abort_resets_in_each_state() {
    for mut script in Script::in_each_state(&cfg(), Offer::ALL) {
        let before = script.state();
        script.out.sent.clear();
        script.give_at(10, ACK, b"queued");
        script.out.sent.clear();
        script.abort();
        let resets = !matches!(before, State::SynSent | State::TimeWait);
        assert_eq!(script.out.sent.len(), usize::from(resets), "{before:?}");
        if resets {
            let reset = script.expect(RST | ACK);
            assert_eq!(reset.seg.payload_len, 0);
        }
        assert!(script.tcb.is_dead());
        assert_eq!(script.tcb.deadline(), u64::MAX);
        script.check_no_leak();
        script.abort();
        script.close();
        script.shutdown();
        script.output();
        script.expect_nothing();
    }
}

/// RFC 1337: a reset does not end TIME-WAIT; old duplicates do no harm.
#[test]
fn time_wait_is_not_assassinated() {
    let mut script = Script::time_wait(cfg(), Offer::ALL);
    script.give_at(0, RST, b"");
    script.give_at(0, RST | ACK, b"");
    script.give_at(5, RST, b"");
    script.give_at(-1, ACK, b"x");
    script.output();
    assert_eq!(script.state(), State::TimeWait);
}

/// RFC 9293 section 3.10.7.4, eighth: the peer's FIN again is acknowledged, and the wait restarts.
#[test]
fn time_wait_acknowledges_the_fin_again() {
    let mut script = Script::time_wait(cfg(), Offer::ALL);
    script.run_for(50_000_000);
    script.give_at(-1, FIN | ACK, b"");
    script.output();
    script.expect_ack();
    script.run_for(50_000_000);
    assert_eq!(script.state(), State::TimeWait);
    script.run_for(11_000_000);
    assert!(script.tcb.is_dead());
}

/// RFC 9293 section 3.10.7.4: a peer that goes on after its FIN is told where we stand, as by
/// Linux; once in half a second, because it may be told so for ever.
#[test]
fn time_wait_acknowledges_what_comes_within_the_window() {
    let mut script = Script::time_wait(cfg(), Offer::ALL);
    script.out.sent.clear();
    for offset in [0, 10] {
        script.give_at(offset, ACK, b"more");
        script.output();
        assert_eq!(script.expect(ACK).seg.ack, script.seq);
        script.give_at(offset, ACK, b"more");
        script.output();
        assert!(script.out.sent.is_empty(), "too soon");
        script.run_for(600_000);
    }
    // Nothing answers an acknowledgement, or two would answer each other.
    script.give(ACK, b"");
    script.output();
    assert!(script.out.sent.is_empty());
}

/// RFC 6191 and RFC 9293 section 3.6.1: a new incarnation may begin early, an old SYN may not.
#[test]
fn time_wait_gives_way_to_a_newer_syn_only() {
    let script = Script::time_wait(cfg(), Offer::ALL);
    let syn = |seq: Seq, ts: Option<u32>| {
        let mut hdr = TcpHeader { seq, flags: SYN, ..script.syn(SYN) };
        hdr.options.timestamp = ts.map(|val| (val, 0));
        hdr
    };
    let (old, new) = (script.seq - 100, script.seq + 100);
    assert!(script.tcb.gives_way_to(&syn(old, Some(701))), "a newer timestamp is enough");
    assert!(script.tcb.gives_way_to(&syn(new, Some(700))));
    assert!(!script.tcb.gives_way_to(&syn(old, Some(700))));
    assert!(!script.tcb.gives_way_to(&syn(new, Some(699))), "older than what we have seen");
    assert!(script.tcb.gives_way_to(&syn(new, None)));
    assert!(!script.tcb.gives_way_to(&syn(old, None)));
    assert!(!script.tcb.gives_way_to(&TcpHeader { flags: SYN | ACK, ..syn(new, Some(800)) }));
    let other = Script::settled(cfg(), Offer::ALL);
    assert!(!other.tcb.gives_way_to(&syn(new, Some(800))));
}

/// A peer that was restarted sends a SYN that is not known to be new. The acknowledgement tells the
/// peer what is left here, and only the reset in reply to it ends TIME-WAIT (RFC 1337, RFC 5961).
#[test]
fn time_wait_ends_by_the_reset_that_answers_a_refused_syn() {
    for offer in [Offer::ALL, Offer::BARE] {
        for offset in [-100, 0, 100_000] {
            let mut script = Script::time_wait(cfg(), offer);
            let mut syn = TcpHeader { seq: script.seq + 5, flags: SYN, ..script.syn(SYN) };
            syn.options.timestamp = offer.timestamps.then_some((600, 0));
            if !offer.timestamps {
                syn.seq = script.seq - 1000;
            }
            script.give_at(0, RST, b"");
            assert_eq!(script.state(), State::TimeWait, "before the SYN");
            assert!(!script.tcb.gives_way_to(&syn));
            script.segment(&syn, b"");
            script.output();
            let ack = script.expect_ack();
            assert_eq!((ack.seg.seq, ack.seg.ack), (script.ack, script.seq));
            // Repeating it does not make it sooner.
            script.segment(&syn, b"");
            script.output();
            script.expect_nothing();
            script.give_at(offset, RST, b"");
            assert_eq!(script.tcb.is_dead(), offset == 0, "a reset {offset} from where we stand");
            script.expect_nothing();
        }
    }
}

/// RFC 9293 section 3.6.1: also when the old incarnation was faster than the clock of initial
/// numbers.
#[test]
fn a_successor_begins_above_all_that_was_sent() {
    let script = Script::time_wait(cfg(), Offer::ALL);
    assert_eq!(script.tcb.successor_floor(), script.ack + 1);
}

/// A FIN does not need a window; what follows it does not come.
#[test]
fn fin_goes_through_a_closed_window() {
    let mut script = Script::settled(cfg(), Offer::ALL);
    script.window = 0;
    script.give(ACK, b"");
    script.shutdown();
    script.output();
    script.expect(FIN | ACK);
}

/// Our window may be closed when the peer's FIN comes.
#[test]
fn fin_is_taken_while_our_window_is_closed() {
    let small = Config { rcv_buf_bytes: 2000, ..cfg() };
    let mut script = Script::settled(small, Offer::BARE);
    script.give(ACK, &[7; 1460]);
    script.give(ACK, &[7; 540]);
    script.output();
    script.run_for(2_000);
    assert_eq!(script.expect_ack().seg.window, 0);
    script.give(FIN | ACK, b"");
    assert_eq!(script.state(), State::CloseWait);
    assert!(script.said(TcpEvent::Eof));
}
