//! RFC 7323.
use super::{assert_one_ack, cfg, lab_in};
use ix_tcp::{State, TcpCounter};
use ix_tcp_rig::bytes_at;
use ix_tcp_rig::lab::{ACK, Lab, PEER_SEED, Peer, RST};
use ix_wire::{TcpHeader, TcpOptions};

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
