//! Explicit congestion notification from outside: RFC 3168 and RFC 8257.
mod support;

use ix_tcp::ecn::{CE, ECT0, NOT_ECT};
use ix_tcp::{Config, CongestionControl, EcnMode, PeerOptions, State, Tcb, TcpCounter};
use ix_wire::{Seq, TcpFlags};
use support::net::{Link, Net};
use support::{ACK, END_MSS, ISS, Offer, START_US, SYN, Script, pattern, tuple};

const ECE: TcpFlags = TcpFlags::ECE;
const CWR: TcpFlags = TcpFlags::CWR;

fn asking() -> Config {
    Config { ecn: EcnMode::Ask, ..Config::default() }
}

fn dctcp() -> Config {
    Config { congestion: CongestionControl::Dctcp, ..Config::default() }
}

/// An established connection of a client that asked for ECN and got it.
fn agreed(cfg: Config) -> Script {
    let mut script = Script::asked(cfg, Offer::SACK, SYN | ECE | CWR);
    let syn_ack = script.syn(SYN | ACK | ECE);
    script.segment(&syn_ack, b"");
    script.seq += 1;
    script.output();
    script.expect(ACK);
    assert!(script.tcb.uses_ecn());
    script
}

#[test]
fn a_client_asks_and_a_server_grants() {
    // RFC 3168 section 6.1.1: SYN with ECE and CWR, SYN-ACK with ECE alone, neither ECN-capable.
    let mut script = agreed(asking());
    script.send(&pattern(100));
    script.output();
    assert_eq!(script.expect(ACK).seg.ecn, ECT0);

    let mut syn = Script::syn_sent(Config::default(), Offer::SACK).syn(SYN | ECE | CWR);
    syn.ack = Seq(0);
    for (mode, flags) in [(EcnMode::Accept, SYN | ACK | ECE), (EcnMode::Off, SYN | ACK)] {
        let cfg = Config { ecn: mode, ..Config::default() };
        let mut tcb = Tcb::accept(&cfg, tuple(1, 2), &syn, ISS, 0, START_US);
        let mut out = support::Recorder::default();
        tcb.output(&cfg, START_US, &mut out);
        assert_eq!((out.sent[0].seg.flags, out.sent[0].seg.ecn), (flags, NOT_ECT));
    }
}

#[test]
fn who_does_not_grant_is_not_sent_marks() {
    // Without ECE, and with both bits: a peer that only mirrors reserved bits (section 6.1.1).
    for answer in [SYN | ACK, SYN | ACK | ECE | CWR] {
        let mut script = Script::asked(asking(), Offer::SACK, SYN | ECE | CWR);
        let syn_ack = script.syn(answer);
        script.segment(&syn_ack, b"");
        script.seq += 1;
        script.output();
        script.expect(ACK);
        script.send(&pattern(100));
        script.output();
        assert_eq!(script.expect(ACK).seg.ecn, NOT_ECT);
    }
}

#[test]
fn a_syn_sent_again_asks_no_more() {
    // Section 6.1.1.1: boxes on the way may drop SYNs that ask.
    let mut script = Script::asked(asking(), Offer::SACK, SYN | ECE | CWR);
    script.run_to_deadline();
    assert_eq!(script.expect(SYN).seg.flags, SYN);
    let syn_ack = script.syn(SYN | ACK | ECE);
    script.segment(&syn_ack, b"");
    assert_eq!(script.state(), State::Established);
    assert!(!script.tcb.uses_ecn());
}

#[test]
fn a_mark_is_echoed_until_the_sender_has_reduced() {
    // Section 6.1.3.
    let mut script = agreed(asking());
    let hdr = script.header(ACK);
    script.segment_with(&hdr, &pattern(10), CE);
    script.seq += 10;
    script.output();
    script.expect(ACK | ECE);
    for flags in [ACK, ACK] {
        let hdr = script.header(flags);
        script.segment_with(&hdr, &pattern(10), ECT0);
        script.seq += 10;
        script.settle();
        script.expect(ACK | ECE);
    }
    let hdr = script.header(ACK | CWR);
    script.segment_with(&hdr, &pattern(10), ECT0);
    script.seq += 10;
    script.settle();
    script.expect(ACK);
    // A packet that says CWR and is marked itself begins anew.
    let hdr = script.header(ACK | CWR);
    script.segment_with(&hdr, &pattern(10), CE);
    script.seq += 10;
    script.settle();
    script.expect(ACK | ECE);
    assert_eq!(script.count(TcpCounter::CeReceived), 2);
}

#[test]
fn an_echo_reduces_once_a_window_and_is_answered_by_cwr() {
    // Section 6.1.2; CUBIC reduces to 0.7 (RFC 9438 section 4.6).
    let mut script = agreed(asking());
    let cwnd = |script: &Script| script.tcb.info(&script.cfg).cwnd_bytes;
    script.send(&pattern(20 * END_MSS));
    script.output();
    let window = cwnd(&script);
    assert_eq!(script.out.sent.len() * END_MSS, window as usize);
    script.out.sent.clear();
    let end = ISS + 1 + window;
    for segments in 1..=3u32 {
        script.ack = ISS + 1 + segments * END_MSS as u32;
        script.give(ACK | ECE, b"");
    }
    assert_eq!(cwnd(&script), window * 7 / 10);
    assert_eq!(script.count(TcpCounter::EcnReductions), 1);
    assert_eq!(script.count(TcpCounter::Recoveries), 0);
    // All of the window is acknowledged; the next new segment says CWR, once.
    script.ack = end;
    script.give(ACK, b"");
    script.output();
    let first = script.expect(ACK | CWR);
    assert_eq!((first.seg.seq, first.seg.ecn), (end, ECT0));
    script.expect(ACK);
    script.out.sent.clear();
    // A later window is another one.
    script.ack = end + END_MSS as u32;
    script.give(ACK | ECE, b"");
    assert_eq!(script.count(TcpCounter::EcnReductions), 2);
}

fn run_until_sent(script: &mut Script) {
    while script.out.sent.is_empty() {
        script.run_to_deadline();
    }
}

#[test]
fn only_new_data_is_ecn_capable() {
    // Sections 6.1.4 to 6.1.6: no acknowledgement, retransmission, or window probe.
    let mut script = agreed(asking());
    script.send(&pattern(100));
    script.output();
    assert_eq!(script.expect(ACK).seg.ecn, ECT0);
    run_until_sent(&mut script);
    let again = script.expect(ACK);
    assert_eq!((again.payload.len(), again.seg.ecn), (100, NOT_ECT));
    script.ack += 100;
    script.window = 0;
    script.give(ACK, b"0123456789");
    script.settle();
    assert_eq!(script.expect(ACK).seg.ecn, NOT_ECT);
    script.send(&pattern(100));
    script.output();
    run_until_sent(&mut script);
    let probe = script.expect(ACK);
    assert_eq!((probe.payload.len(), probe.seg.ecn), (1, NOT_ECT));
}

#[test]
fn marks_mean_nothing_where_nobody_agreed() {
    let mut script = Script::settled(Config::default(), Offer::SACK);
    let hdr = script.header(ACK | ECE | CWR);
    script.segment_with(&hdr, &pattern(10), CE);
    script.seq += 10;
    script.settle();
    script.expect(ACK);
    assert_eq!(script.count(TcpCounter::CeReceived), 0);
    assert_eq!(script.count(TcpCounter::EcnReductions), 0);
}

#[test]
fn a_mark_outside_the_window_is_not_echoed() {
    let mut script = agreed(asking());
    let mut hdr = script.header(ACK);
    hdr.seq = Seq(hdr.seq.0.wrapping_add(1 << 30));
    script.segment_with(&hdr, &pattern(10), CE);
    assert_eq!(script.count(TcpCounter::CeReceived), 0);
}

#[test]
fn syn_cookies_remember_ecn() {
    let offer =
        PeerOptions::of_syn(&Script::syn_sent(Config::default(), Offer::ALL).syn(SYN | ECE | CWR));
    assert!(offer.ecn);
    let cfg = Config::default();
    let mut ack = Script::syn_sent(cfg.clone(), Offer::ALL).syn(ACK);
    ack.options.mss = None;
    let tcb: Tcb<support::Buf> = Tcb::accept_cookie(&cfg, tuple(1, 2), &ack, &offer, 0, START_US);
    assert!(tcb.uses_ecn());
}

#[test]
fn dctcp_echoes_exactly_what_was_marked() {
    // RFC 8257 section 3.2: when the mark changes, what waits is acknowledged at once with the old.
    let mut script = agreed(dctcp());
    script.send(b"x");
    script.output();
    script.expect_data(b"x");
    script.ack += 1;
    let mut got = Vec::new();
    for ecn in [ECT0, ECT0, ECT0, CE, CE, CE, ECT0, ECT0] {
        let hdr = script.header(ACK);
        script.segment_with(&hdr, &pattern(10), ecn);
        script.seq += 10;
        got.extend(script.out.sent.drain(..).map(|sent| (sent.seg.ack, sent.has(ECE))));
    }
    script.settle();
    got.extend(script.out.sent.drain(..).map(|sent| (sent.seg.ack, sent.has(ECE))));
    let begin = script.seq - 80;
    assert_eq!(got, [(begin + 30, false), (begin + 60, true), (begin + 80, false)]);
}

#[test]
fn dctcp_without_ecn_is_cubic() {
    let mut script = Script::asked(dctcp(), Offer::SACK, SYN | ECE | CWR);
    let syn_ack = script.syn(SYN | ACK);
    script.segment(&syn_ack, b"");
    assert_eq!(script.tcb.congestion(), CongestionControl::Cubic);
}

/// A bulk transfer over 100 Mbit/s with 10 ms of queue that marks from 1 ms on.
fn transfer(cfg: Config, mark_us: u64) -> Net {
    let link =
        Link { delay_us: 500, bytes_per_ms: 12_500, queue_us: 10_000, mark_us, ..Link::GOOD };
    let mut net = Net::connect([cfg.clone(), cfg], link, 1, [Seq(7), Seq(9)], START_US);
    let began_us = net.now_us;
    net.transfer([pattern(20_000_000), Vec::new()], 60_000_000);
    let rate = 20_000_000 * 1000 / (net.now_us - began_us);
    assert!(rate > 11_000, "{rate} bytes a millisecond of 12500");
    net
}

#[test]
fn marks_instead_of_losses() {
    let plain = transfer(Config::default(), 0);
    assert!(plain.overflows[0] > 0);
    let marked = transfer(asking(), 2_000);
    assert!(marked.marks[0] > 0);
    assert!(marked.overflows[0] < plain.overflows[0]);
}

#[test]
fn dctcp_keeps_the_queue_short() {
    let net = transfer(dctcp(), 1_000);
    assert!(net.marks[0] > 0);
    let end = &net.ends[0];
    assert_eq!(end.out.stats.get(TcpCounter::Rto), 0);
    // After slow start the queue stays about its threshold: of 20 MB, hardly a packet is lost.
    assert!(net.overflows[0] < 200, "{}", net.overflows[0]);
}
