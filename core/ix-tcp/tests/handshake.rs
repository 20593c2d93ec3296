//! RFC 9293 section 3.5 (opening a connection), its options, and the refusals of section 3.10.7.

use crate::support::*;
use ix_tcp::{
    Config, DeadReason, Listener, PathError, State, SynVerdict, Tcb, TcpCounter, TcpEvent,
    cookie_syn_ack, reset_for,
};
use ix_wire::{FlowTuple, IpAddr, Seq, TcpFlags, TcpHeader};

/// With exact timeouts.
fn cfg() -> Config {
    Config { rto_jitter_percent: 0, ..Config::default() }
}

#[test]
fn active_open_sends_syn_with_all_options_and_completes() {
    let tcb = Tcb::connect(&cfg(), tuple(1, 2), ISS, 77, START_US);
    let mut end = End::new(cfg(), tcb, START_US);
    assert!(end.tcb.needs_output());
    end.output();
    let syn = end.out.sent.pop_front().unwrap();
    assert_eq!((syn.seg.seq, syn.seg.flags, syn.seg.ack), (ISS, SYN, Seq(0)));
    let options = syn.seg.options;
    assert_eq!((options.mss, options.sack_permitted), (Some(1460), true));
    assert_eq!(options.window_scale, Some(cfg().window_shift()));
    assert_eq!(options.timestamp.unwrap().1, 0);
    assert_eq!(syn.seg.window, 65_535);

    let mut script = Script::syn_sent(cfg(), Offer::ALL);
    let syn_ack = script.syn(SYN | ACK);
    script.segment(&syn_ack, b"");
    script.seq += 1;
    assert_eq!(script.state(), State::Established);
    assert!(script.said(TcpEvent::Established));
    script.output();
    let ack = script.expect_ack();
    assert_eq!(ack.seg.options.timestamp.unwrap().1, 700, "echoes the SYN-ACK's timestamp");
}

#[test]
fn passive_open_answers_only_what_was_offered() {
    let syn = |script: &mut Script| script.tcb.info(&cfg()).mss_bytes;
    let mut all = Script::syn_received(cfg(), Offer::ALL);
    assert_eq!(syn(&mut all), 1448, "timestamps come off the MSS");
    let mut bare = Script::syn_received(cfg(), Offer { mss: None, ..Offer::BARE });
    assert_eq!(syn(&mut bare), 536, "RFC 9293 3.7.1: the default");

    let hdr = TcpHeader { seq: IRS, flags: SYN, window: 100, ..TcpHeader::default() };
    let mut end = End::new(cfg(), Tcb::accept(&cfg(), tuple(1, 2), &hdr, ISS, 0, 0), 0);
    end.output();
    let options = end.out.sent[0].seg.options;
    assert_eq!(
        (options.window_scale, options.sack_permitted, options.timestamp),
        (None, false, None)
    );
}

#[test]
fn windows_of_syn_segments_are_not_scaled() {
    let offer = Offer { window_scale: Some(7), window: 1000, ..Offer::ALL };
    let mut script = Script::syn_sent(cfg(), offer);
    let syn_ack = script.syn(SYN | ACK);
    script.segment(&syn_ack, b"");
    assert_eq!(script.tcb.info(&cfg()).snd_wnd_bytes, 1000);
    script.seq += 1;
    script.give(ACK, b"");
    assert_eq!(script.tcb.info(&cfg()).snd_wnd_bytes, 128_000);
}

/// An invalid TSecr in a SYN-ACK harms nothing.
#[test]
fn garbage_tsecr_in_syn_ack() {
    for garbage in [0, 1, 0x7fff_ffff, 0xffff_ffff] {
        let mut script = Script::syn_sent(cfg(), Offer::ALL);
        script.run_for(300);
        script.echo = garbage;
        let syn_ack = script.syn(SYN | ACK);
        script.segment(&syn_ack, b"");
        assert_eq!(script.state(), State::Established);
        assert!(script.tcb.info(&cfg()).srtt_us <= 300);
    }
}

/// RFC 9293 section 3.5, figure 8.
#[test]
fn simultaneous_open() {
    let mut script = Script::syn_sent(cfg(), Offer::ALL);
    script.ack = Seq(0);
    let syn = script.syn(SYN);
    script.segment(&syn, b"");
    assert_eq!(script.state(), State::SynReceived);
    script.output();
    let syn_ack = script.expect(SYN | ACK);
    assert_eq!((syn_ack.seg.seq, syn_ack.seg.ack), (ISS, IRS + 1));
    script.ack = ISS + 1;
    let syn_ack = script.syn(SYN | ACK);
    script.segment(&syn_ack, b"");
    assert_eq!(script.state(), State::Established);
    assert!(script.said(TcpEvent::Established));
}

#[test]
fn syn_is_retransmitted_with_backoff_and_given_up() {
    let mut script = Script::syn_sent(cfg(), Offer::ALL);
    let mut at_s = Vec::new();
    for _ in 0..6 {
        script.run_to_deadline();
        let syn = script.expect(SYN);
        assert!(syn.seg.retransmission);
        at_s.push((script.now_us - START_US) / 1_000_000);
    }
    assert_eq!(at_s, [1, 3, 7, 15, 31, 63]);
    script.run_for(70_000_000);
    script.expect_nothing();
    assert_eq!(script.dead(), Some(DeadReason::TimedOut));
    assert!(script.tcb.is_dead());
    assert_eq!(script.tcb.deadline(), u64::MAX);
}

/// RFC 5681 section 3.1: after a lost SYN the initial window is one segment.
#[test]
fn lost_syn_makes_a_small_initial_window() {
    let mut script = Script::syn_sent(cfg(), Offer::ALL);
    script.run_for(1_000_000);
    script.expect(SYN);
    let syn_ack = script.syn(SYN | ACK);
    script.segment(&syn_ack, b"");
    assert_eq!(script.tcb.info(&cfg()).cwnd_bytes, 1448);
}

/// RFC 6298 section 5.7: and data begins with a timeout of three seconds, unless a round trip was
/// measured.
#[test]
fn lost_syn_makes_a_long_initial_timeout() {
    let mut script = Script::syn_sent(cfg(), Offer::BARE);
    script.run_for(1_000_000);
    script.expect(SYN);
    let syn_ack = script.syn(SYN | ACK);
    script.segment(&syn_ack, b"");
    script.send(b"data");
    script.output();
    script.expect(ACK);
    script.run_for(2_900_000);
    script.expect_nothing();
    script.run_for(200_000);
    script.expect(ACK);
}

#[test]
fn syn_ack_is_retransmitted_by_timer_and_for_a_repeated_syn() {
    let mut script = Script::syn_received(cfg(), Offer::ALL);
    script.run_for(1_000_000);
    script.expect(SYN | ACK);
    script.seq = IRS;
    let syn = TcpHeader { ack: Seq(0), ..script.syn(SYN) };
    script.segment(&syn, b"");
    script.output();
    script.expect(SYN | ACK);
    script.run_for(200_000_000);
    assert_eq!(script.dead(), Some(DeadReason::TimedOut));
}

/// RFC 9293 section 3.10.7.3, first: an unacceptable ACK is refused, unless it is itself a reset.
#[test]
fn wrong_ack_in_syn_sent_is_reset() {
    for ack in [ISS, ISS + 2, ISS - 1000, ISS + 0x4000_0000] {
        let mut script = Script::syn_sent(cfg(), Offer::ALL);
        script.ack = ack;
        let hdr = script.syn(SYN | ACK);
        script.segment(&hdr, b"");
        let reset = script.expect(RST);
        assert_eq!(reset.seg.seq, ack);
        assert_eq!(script.state(), State::SynSent);
        // FreeRTOS+TCP#700: a reset with a wrong ACK is ignored.
        let hdr = script.syn(RST | ACK);
        script.segment(&hdr, b"");
        script.output();
        script.expect_nothing();
        assert_eq!(script.state(), State::SynSent);
    }
}

/// The reply was for an old connection, which our reset has ended: the SYN is sent again at once,
/// but only once, whatever an attacker sends.
#[test]
fn the_syn_goes_again_soon_after_a_reset_for_a_wrong_ack() {
    let mut script = Script::syn_sent(cfg(), Offer::ALL);
    for round in 0..3 {
        script.ack = ISS - 1000;
        script.give(ACK, b"");
        script.expect(RST);
        script.run_for(10_000);
        if round == 0 {
            let syn = script.expect(SYN);
            assert_eq!((syn.seg.seq, syn.seg.retransmission), (ISS, true));
        }
        script.expect_nothing();
    }
    script.ack = ISS + 1;
    let hdr = script.syn(SYN | ACK);
    script.segment(&hdr, b"");
    assert_eq!(script.state(), State::Established);
}

#[test]
fn reset_with_the_right_ack_refuses_the_connection() {
    let mut script = Script::syn_sent(cfg(), Offer::ALL);
    script.give(RST, b"");
    assert_eq!(script.state(), State::SynSent, "a reset without ACK proves nothing");
    script.give(RST | ACK, b"");
    assert_eq!(script.dead(), Some(DeadReason::Refused));
    script.output();
    script.expect_nothing();
}

#[test]
fn wrong_ack_in_syn_received_is_reset() {
    for ack in [ISS, ISS + 2] {
        let mut script = Script::syn_received(cfg(), Offer::ALL);
        script.ack = ack;
        script.give(ACK, b"");
        let reset = script.expect(RST);
        assert_eq!(reset.seg.seq, ack);
        assert_eq!(script.state(), State::SynReceived);
    }
}

/// Data in a SYN-ACK is taken, and so is data with the handshake's last ACK.
#[test]
fn data_with_the_handshake() {
    let mut script = Script::syn_sent(cfg(), Offer::ALL);
    let syn_ack = script.syn(SYN | ACK);
    script.segment(&syn_ack, b"hello");
    assert_eq!(script.read_all(), b"hello");

    let mut script = Script::syn_received(cfg(), Offer::ALL);
    script.give(ACK, b"hello");
    assert_eq!(script.out.events, [TcpEvent::Established]);
    assert_eq!(script.read_all(), b"hello");
}

#[test]
fn fin_with_the_handshake() {
    let mut script = Script::syn_received(cfg(), Offer::ALL);
    script.give(FIN | ACK, b"bye");
    assert_eq!(script.out.events, [TcpEvent::Established, TcpEvent::Eof]);
    assert_eq!(script.state(), State::CloseWait);
    script.output();
    script.expect_ack();
}

#[test]
fn data_appended_before_the_handshake_goes_out_after_it() {
    let mut script = Script::syn_sent(cfg(), Offer::ALL);
    assert_eq!(script.send(b"early"), 5);
    script.shutdown();
    script.output();
    script.expect_nothing();
    let syn_ack = script.syn(SYN | ACK);
    script.segment(&syn_ack, b"");
    script.output();
    let data = script.expect(FIN | ACK);
    assert_eq!((data.payload.as_slice(), data.seg.seq), (b"early".as_slice(), ISS + 1));
    assert_eq!(script.state(), State::FinWait1);
}

/// Retried when there was no buffer for it.
#[test]
fn syn_without_a_buffer_is_sent_later() {
    let tcb = Tcb::connect(&cfg(), tuple(1, 2), ISS, 77, START_US);
    let mut end = End::new(cfg(), tcb, START_US);
    end.out.no_buffers = true;
    end.output();
    assert!(end.tcb.needs_output());
    assert!(end.tcb.deadline() < u64::MAX);
    end.out.no_buffers = false;
    end.run_for(500_000);
    assert_eq!(end.out.sent.len(), 1);
    assert_eq!(end.out.sent[0].seg.flags, SYN);
}

#[test]
fn icmp_errors_before_and_after_the_handshake() {
    let mut script = Script::syn_sent(cfg(), Offer::ALL);
    let now_us = script.now_us;
    let icmp = |script: &mut Script, error, seq| {
        let End { cfg, tcb, out, .. } = &mut script.end;
        tcb.icmp_error(cfg, now_us, error, seq, out);
    };
    // RFC 5927 4.1: quoting nothing in flight, it is ignored.
    icmp(&mut script, PathError::Hard, Some(ISS + 1));
    icmp(&mut script, PathError::Hard, None);
    assert_eq!(script.state(), State::SynSent);
    assert_eq!(script.count(TcpCounter::IcmpIgnored), 2);
    // RFC 1122 4.2.3.9: soft errors do not abort, but say why in the end.
    icmp(&mut script, PathError::Soft, Some(ISS));
    assert_eq!(script.state(), State::SynSent);
    script.run_for(200_000_000);
    assert_eq!(script.dead(), Some(DeadReason::Unreachable));

    let mut script = Script::syn_sent(cfg(), Offer::ALL);
    icmp(&mut script, PathError::Hard, Some(ISS));
    assert_eq!(script.dead(), Some(DeadReason::Refused));

    let mut script = Script::settled(cfg(), Offer::ALL);
    script.send(b"data");
    script.output();
    let seq = script.expect_data(b"data").seg.seq;
    icmp(&mut script, PathError::Hard, Some(seq));
    assert_eq!(script.state(), State::Established, "RFC 5927 5.2");
}

/// RFC 9293 section 3.10.7.1.
#[test]
fn segments_for_no_connection_are_reset() {
    let hdr =
        |flags: TcpFlags| TcpHeader { seq: Seq(100), ack: Seq(900), flags, ..TcpHeader::default() };
    assert_eq!(reset_for(&hdr(RST), 0), None);
    assert_eq!(reset_for(&hdr(RST | ACK), 3), None);
    let reset = reset_for(&hdr(ACK | FIN), 3).unwrap();
    assert_eq!((reset.seq, reset.flags), (Seq(900), RST));
    let reset = reset_for(&hdr(SYN), 0).unwrap();
    assert_eq!((reset.seq, reset.ack, reset.flags), (Seq(0), Seq(101), RST | ACK));
    let reset = reset_for(&hdr(FIN), 10).unwrap();
    assert_eq!((reset.seq, reset.ack), (Seq(0), Seq(111)));
}

/// The backlog is bounded and does not leak.
#[test]
fn backlog() {
    let mut listener = Listener::new(2, 3);
    for _ in 0..3 {
        assert_eq!(listener.on_syn(), SynVerdict::Accept);
    }
    assert_eq!(listener.on_syn(), SynVerdict::Cookie);
    listener.established();
    assert_eq!(listener.on_syn(), SynVerdict::Accept);
    assert!(listener.on_cookie());
    assert!(!listener.on_cookie(), "two wait already");
    assert_eq!(listener.on_syn(), SynVerdict::Drop);
    listener.accepted();
    listener.accepted();
    for _ in 0..3 {
        listener.half_open_died();
    }
    assert_eq!((listener.half_open(), listener.knocking()), (0, 0));
}

/// The header of IPv6 has 20 octets more (RFC 8200 section 8.3); no link has an MTU below 1280 (RFC
/// 8201 section 4).
#[test]
fn over_ipv6_segments_are_shorter() {
    let v6 = |last: u8| IpAddr([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    let tuple = FlowTuple { local: v6(1), remote: v6(2), ..tuple(1, 2) };
    let mut end = End::new(cfg(), Tcb::connect(&cfg(), tuple, ISS, 77, START_US), START_US);
    end.output();
    let syn = end.out.sent.pop_front().expect("a SYN");
    assert_eq!(syn.seg.options.mss, Some(1440));
    let offered = TcpHeader { seq: IRS, flags: SYN, ..TcpHeader::default() };
    assert_eq!(cookie_syn_ack(&cfg(), v6(2), &offered, ISS, 4242).options.mss, Some(1440));
    let mut answer = Script::established(cfg(), Offer::ALL).syn(SYN | ACK);
    (answer.seq, answer.ack, answer.options.mss) = (IRS, ISS + 1, Some(9000));
    end.tcb.segment(&end.cfg, START_US, &answer, None, &mut end.out);
    assert_eq!(end.tcb.state(), State::Established);
    assert_eq!(end.tcb.info(&end.cfg).mss_bytes, 1440 - 12);
    end.send(&[7; 4000]);
    end.output();
    for (mtu, mss) in [(1400, 1400 - 72), (1000, 1280 - 72)] {
        let error = PathError::FragNeeded { mtu };
        end.tcb.icmp_error(&end.cfg, START_US, error, Some(ISS + 1), &mut end.out);
        assert_eq!(end.tcb.info(&end.cfg).mss_bytes, mss);
    }
}

#[test]
fn cookie_answer_and_connection() {
    let syn = |offer: Offer| TcpHeader {
        seq: IRS,
        flags: SYN,
        window: 5000,
        options: Script::established(cfg(), offer).syn(SYN).options,
        ..TcpHeader::default()
    };
    let answer = cookie_syn_ack(&cfg(), tuple(1, 2).remote, &syn(Offer::ALL), ISS, 4242);
    assert_eq!((answer.seq, answer.ack, answer.flags), (ISS, IRS + 1, SYN | ACK));
    assert_eq!(answer.options.timestamp, Some((4242, 700)));
    assert!(answer.options.sack_permitted && answer.options.window_scale.is_some());
    // Without timestamps nothing can carry what was agreed.
    let answer = cookie_syn_ack(&cfg(), tuple(1, 2).remote, &syn(Offer::SACK), ISS, 4242);
    assert!(!answer.options.sack_permitted && answer.options.window_scale.is_none());

    let mut ack =
        TcpHeader { seq: IRS + 1, ack: ISS + 1, flags: ACK, window: 10, ..TcpHeader::default() };
    ack.options.timestamp = Some((701, 4242));
    let offer = Offer { window_scale: Some(3), ..Offer::ALL };
    let tcb = Tcb::accept_cookie(&cfg(), tuple(1, 2), &ack, &peer_options(offer), 0, START_US);
    let mut end = End::new(cfg(), tcb, START_US);
    assert_eq!(end.state(), State::Established);
    end.segment(&ack, b"request");
    assert_eq!(end.read_all(), b"request");
    assert_eq!(end.tcb.info(&cfg()).snd_wnd_bytes, 80);
    end.send(b"answer");
    end.output();
    let sent = end.out.sent.pop_front().unwrap();
    assert_eq!((sent.seg.seq, sent.seg.ack), (ISS + 1, IRS + 8));
    assert_eq!(sent.payload, b"answer");
}
