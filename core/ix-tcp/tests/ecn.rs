//! Explicit congestion notification from outside: RFC 3168, RFC 8257 and RFC 9768.

use crate::support::net::{Link, Net};
use crate::support::{ACK, END_MSS, ISS, Offer, START_US, SYN, Script, pattern, tuple};
use ix_tcp::ecn::{CE, ECT0, NOT_ECT};
use ix_tcp::{Config, CongestionControl, EcnMode, PeerOptions, State, Tcb, TcpCounter};
use ix_wire::EcnBytes;
use ix_wire::{Seq, TcpFlags};

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
        let mut out = crate::support::Recorder::default();
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
    // Section 6.1.1.1: middleboxes may drop SYNs that ask for ECN.
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
    // A packet with CWR that is itself marked begins a new round.
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
    let syn = Script::syn_sent(Config::default(), Offer::ALL).syn(SYN | ECE | CWR);
    let offer = PeerOptions::of_syn(&syn, tuple(1, 2).remote);
    assert!(offer.ecn);
    let cfg = Config::default();
    let mut ack = Script::syn_sent(cfg.clone(), Offer::ALL).syn(ACK);
    ack.options.mss = None;
    let tcb: Tcb<crate::support::Buf> =
        Tcb::accept_cookie(&cfg, tuple(1, 2), &ack, &offer, 0, START_US);
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

const AE: TcpFlags = TcpFlags::AE;
/// ACE at the start: no mark yet.
const FIVE: TcpFlags = AE.union(ECE);

fn accurate() -> Config {
    Config { ecn: EcnMode::AskAccurate, ..Config::default() }
}

/// A client that asked for accurate ECN and got a SYN-ACK with these bits and this ECN field. Its
/// acknowledgement is removed from the record.
fn agreed_accurately(answer: TcpFlags, ecn: u8, acknowledges: TcpFlags) -> Script {
    let mut script = Script::asked(accurate(), Offer::SACK, SYN | AE | CWR | ECE);
    let mut syn_ack = script.syn(SYN | ACK | answer);
    syn_ack.options.ecn_bytes = EcnBytes::new(Some(1), Some(0), Some(1));
    script.segment_with(&syn_ack, b"", ecn);
    script.seq += 1;
    script.output();
    let ack = script.expect(ACK | acknowledges);
    assert_eq!(ack.seg.options.ecn_bytes, EcnBytes::new(Some(1), Some(0), Some(1)));
    script
}

#[test]
fn a_client_asks_for_accurate_ecn() {
    // RFC 9768 tables 2 and 3: the SYN-ACK reports the field of the SYN, the third segment that of
    // the SYN-ACK.
    for (ecn, told) in [(NOT_ECT, CWR), (1, CWR | ECE), (ECT0, AE), (CE, AE | CWR)] {
        let mut script = agreed_accurately(CWR, ecn, told);
        assert!(script.tcb.uses_accurate_ecn());
        script.send(&pattern(100));
        script.output();
        let counts = if ecn == CE { AE | CWR } else { FIVE };
        assert_eq!(script.expect(ACK | counts).seg.ecn, ECT0);
    }
}

#[test]
fn a_syn_that_changed_on_the_way_costs_the_marks() {
    // Section 3.2.2.3: the SYN was sent as not ECN-capable, and arrived otherwise.
    for answer in [CWR | ECE, AE, AE | CWR] {
        let mut script = agreed_accurately(answer, NOT_ECT, CWR);
        script.send(&pattern(100));
        script.output();
        assert_eq!(script.expect(ACK | FIVE).seg.ecn, NOT_ECT);
    }
}

#[test]
fn older_servers_give_what_they_have() {
    // Table 2: ECE alone, and with AE as of the nonce, are RFC 3168's; none and all are no ECN.
    for (answer, classic) in
        [(ECE, true), (AE | ECE, true), (TcpFlags(0), false), (AE | CWR | ECE, false)]
    {
        let mut script = Script::asked(accurate(), Offer::SACK, SYN | AE | CWR | ECE);
        let syn_ack = script.syn(SYN | ACK | answer);
        script.segment(&syn_ack, b"");
        script.seq += 1;
        script.output();
        let ack = script.expect(ACK);
        assert!(ack.seg.options.is_empty() && !script.tcb.uses_accurate_ecn());
        assert_eq!(script.tcb.uses_ecn(), classic, "{answer:?}");
    }
}

#[test]
fn a_syn_for_accurate_ecn_asks_twice() {
    // Section 3.1.4.1.
    let mut script = Script::asked(accurate(), Offer::SACK, SYN | AE | CWR | ECE);
    script.run_to_deadline();
    script.expect(SYN | AE | CWR | ECE);
    script.run_to_deadline();
    script.expect(SYN);
    let syn_ack = script.syn(SYN | ACK | CWR);
    script.segment(&syn_ack, b"");
    assert!(!script.tcb.uses_ecn());
}

/// A server in SYN-RECEIVED after a SYN with these bits and this ECN field.
fn asked_by(mode: EcnMode, bits: TcpFlags, ecn: u8) -> Script {
    let cfg = Config { ecn: mode, ..Config::default() };
    let mut script = Script::syn_received(cfg.clone(), Offer::SACK);
    let mut syn = script.syn(SYN | bits);
    (syn.seq, syn.ack) = (script.seq - 1, Seq(0));
    script.tcb = Tcb::accept(&cfg, tuple(1, 2), &syn, ISS, 0, START_US);
    script.tcb.syn_mark(ecn);
    script.output();
    script
}

#[test]
fn a_server_grants_what_was_asked_for() {
    let all = AE | CWR | ECE;
    for (ecn, told) in [(NOT_ECT, CWR), (1, CWR | ECE), (ECT0, AE), (CE, AE | CWR)] {
        let mut script = asked_by(EcnMode::AcceptAccurate, all, ecn);
        let syn_ack = script.expect(SYN | ACK | told);
        assert_eq!(syn_ack.seg.options.ecn_bytes, EcnBytes::new(Some(1), Some(0), Some(1)));
    }
    // Section 3.1.3: an undefined combination asks too; those that RFC 3168 defined keep their
    // meaning.
    asked_by(EcnMode::AcceptAccurate, AE, NOT_ECT).expect(SYN | ACK | CWR);
    asked_by(EcnMode::AcceptAccurate, CWR | ECE, NOT_ECT).expect(SYN | ACK | ECE);
    asked_by(EcnMode::AcceptAccurate, TcpFlags(0), NOT_ECT).expect(SYN | ACK);
    // Servers that do not know it.
    asked_by(EcnMode::Accept, all, NOT_ECT).expect(SYN | ACK | ECE);
    asked_by(EcnMode::Off, all, NOT_ECT).expect(SYN | ACK);
}

#[test]
fn a_syn_ack_without_an_answer_does_without_more_and_more() {
    // Section 3.1.4.2: first without the option, then without the bits.
    let mut script = asked_by(EcnMode::AcceptAccurate, AE | CWR | ECE, NOT_ECT);
    assert!(!script.expect(SYN | ACK | CWR).seg.options.ecn_bytes.is_none());
    script.run_to_deadline();
    assert!(script.expect(SYN | ACK | CWR).seg.options.ecn_bytes.is_none());
    script.run_to_deadline();
    script.expect(SYN | ACK);
    script.give(ACK, b"");
    assert_eq!(script.state(), State::Established);
    assert!(!script.tcb.uses_ecn());
}

#[test]
fn a_server_judges_the_first_acknowledgement() {
    // Table 4 and section 3.2.2.4: zeros, or a field that is not the SYN-ACK's, cost the marks.
    for (bits, capable) in [
        (CWR, true),
        (FIVE, true),
        (ECE, true),
        (TcpFlags(0), false),
        (CWR | ECE, false),
        (AE, false),
        (AE | CWR, false),
    ] {
        let mut script = asked_by(EcnMode::AcceptAccurate, AE | CWR | ECE, NOT_ECT);
        script.expect(SYN | ACK | CWR);
        script.give(ACK | bits, b"");
        script.send(&pattern(100));
        script.output();
        let sent = script.expect(ACK | FIVE);
        assert_eq!(sent.seg.ecn, if capable { ECT0 } else { NOT_ECT }, "{bits:?}");
        assert_eq!(script.count(TcpCounter::EcnMangled), u64::from(!capable));
    }
}

/// The peer sends `n` packets of ten bytes with this field.
fn packets(script: &mut Script, n: usize, ecn: u8) {
    for _ in 0..n {
        let hdr = script.header(ACK | FIVE);
        script.segment_with(&hdr, &pattern(10), ecn);
        script.seq += 10;
    }
}

#[test]
fn marked_packets_are_counted_for_the_peer() {
    let mut script = agreed_accurately(CWR, NOT_ECT, CWR);
    script.send(b"x");
    script.output();
    script.expect(ACK | FIVE);
    script.ack += 1;
    packets(&mut script, 3, ECT0);
    script.output();
    script.expect_nothing();
    // Marks begin: at once (section 3.2.2.5.1). 6 is AE and CWR.
    packets(&mut script, 1, CE);
    script.output();
    let ack = script.expect(ACK | AE | CWR);
    assert_eq!(ack.seg.options.ecn_bytes, EcnBytes::new(Some(31), Some(10), None));
    // However long the batch, at the sixth.
    packets(&mut script, 8, CE);
    script.expect(ACK | AE);
    script.output();
    script.expect(ACK | AE | CWR);
    assert_eq!(script.count(TcpCounter::CeReceived), 9);
}

#[test]
fn a_count_reduces_the_window_once() {
    let mut script = agreed_accurately(CWR, NOT_ECT, CWR);
    let cwnd = |script: &Script| script.tcb.info(&script.cfg).cwnd_bytes;
    script.send(&pattern(20 * END_MSS));
    script.output();
    let window = cwnd(&script);
    script.out.sent.clear();
    for (segments, bits) in [(2, FIVE), (4, AE | CWR), (6, AE | CWR | ECE), (8, TcpFlags(0))] {
        script.ack = ISS + 1 + segments * END_MSS as u32;
        script.give(ACK | bits, b"");
    }
    assert_eq!(script.count(TcpCounter::EcnReductions), 1);
    assert!(cwnd(&script) < window);
    script.output();
    // CWR is a bit of the count now.
    assert!(script.out.sent.iter().all(|sent| !sent.has(CWR)));
}

#[test]
fn zeros_instead_of_a_count_cost_the_marks() {
    // Section 3.2.2.4, for a client.
    let mut script = agreed_accurately(CWR, NOT_ECT, CWR);
    script.send(&pattern(100));
    script.output();
    assert_eq!(script.expect(ACK | FIVE).seg.ecn, ECT0);
    script.ack += 100;
    script.give(ACK, b"");
    assert_eq!(script.count(TcpCounter::EcnMangled), 1);
    script.send(&pattern(100));
    script.output();
    assert_eq!(script.expect(ACK | FIVE).seg.ecn, NOT_ECT);
    assert_eq!(script.count(TcpCounter::EcnReductions), 0);
}

#[test]
fn a_path_that_clears_the_field_is_found_out() {
    let mut script = agreed_accurately(CWR, NOT_ECT, CWR);
    for round in 0..12 {
        script.send(&pattern(100));
        script.output();
        let sent = script.expect(ACK | FIVE);
        assert_eq!(sent.seg.ecn, if round < 10 { ECT0 } else { NOT_ECT }, "round {round}");
        script.ack += 100;
        let mut hdr = script.header(ACK | FIVE);
        hdr.options.ecn_bytes = EcnBytes::new(Some(1), Some(0), Some(1));
        script.segment(&hdr, b"");
    }
    assert_eq!(script.count(TcpCounter::EcnMangled), 1);
}

#[test]
fn accurate_dctcp_keeps_the_queue_short() {
    let net = transfer(Config { ecn: EcnMode::AskAccurate, ..dctcp() }, 1_000);
    assert!(net.ends.iter().all(|end| end.tcb.uses_accurate_ecn()));
    assert!(net.marks[0] > 0);
    assert!(net.overflows[0] < 200, "{}", net.overflows[0]);
    assert_eq!(net.ends[0].out.stats.get(TcpCounter::EcnMangled), 0);
    assert_eq!(net.ends[1].out.stats.get(TcpCounter::CeReceived), net.marks[0]);
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
