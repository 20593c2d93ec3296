//! Loss: RFC 2018, 5681, 6298, 6582, 8985.
use super::{SECOND_US, acknowledge, cfg, established, payload_bytes, with_window};
use ix_tcp::{DeadReason, State, TcpCounter};
use ix_tcp_rig::lab::{ACK, Lab};
use ix_wire::{SackBlocks, Seq, TcpHeader};

fn with_sack(lab: &Lab, blocks: &[(Seq, Seq)]) -> TcpHeader {
    let mut hdr = lab.header(ACK);
    let mut sack = SackBlocks::EMPTY;
    for &(left, right) in blocks {
        sack.push(left, right);
    }
    hdr.options.sack = sack;
    hdr
}

#[test]
fn timeouts_back_off_and_give_up() {
    // RFC 6298 section 5.5; smoltcp#1023: no backoff.
    let mut lab = with_window(60_000);
    lab.send(1_000);
    lab.take();
    let mut times_us = vec![lab.now_us];
    while lab.end.out.dead.is_none() {
        lab.wait(1_000);
        if payload_bytes(&lab.take()) > 0 {
            times_us.push(lab.now_us);
        }
        assert!(lab.now_us < 2_000 * SECOND_US, "never gives up");
    }
    let gaps: Vec<u64> = times_us.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.len() >= 6, "{gaps:?}");
    // Up to the cap each gap is twice the one before, but for what is added for acknowledgements
    // that the peer may delay.
    let allowance_us = u64::from(cfg().delayed_ack_allowance_us);
    let bare: Vec<u64> = gaps[1..].iter().map(|gap| gap - allowance_us).collect();
    for pair in bare.windows(2).filter(|pair| pair[1] < 59_000_000) {
        assert!(pair[1].abs_diff(2 * pair[0]) <= 2_000, "{gaps:?}");
    }
    assert_eq!(lab.end.out.dead, Some(DeadReason::TimedOut));
    let lasted_us = lab.now_us - times_us[0];
    assert!(lasted_us >= 100 * SECOND_US, "R2 is at least 100 s: {lasted_us}");
}

#[test]
fn the_third_duplicate_retransmits_without_sack() {
    // RFC 5681 section 3.2.
    let mut lab = with_window(60_000);
    lab.send(10_000);
    lab.take();
    lab.now_us += 500;
    for count in 1..=3 {
        lab.say(ACK, &[]);
        let again = lab.take().iter().any(|segment| segment.hdr.seq == lab.peer.iss + 1);
        assert_eq!(again, count == 3, "duplicate {count}");
    }
    let before = lab.end.out.stats.get(TcpCounter::Rto);
    assert_eq!(before, 0);
    acknowledge(&mut lab, 10_000, 60_000);
    assert_eq!(lab.end.out.acked, 10_000);
}

#[test]
fn a_segment_with_data_or_another_window_is_no_duplicate() {
    // RFC 5681 section 2.
    let mut lab = with_window(60_000);
    lab.send(10_000);
    lab.take();
    for step in 0..10 {
        lab.say_data(10);
        let window = 50_000 - step * 10;
        let hdr = TcpHeader { window, ..lab.header(ACK) };
        lab.raw(hdr, &[]);
    }
    let again = lab
        .take()
        .iter()
        .any(|segment| segment.hdr.seq == lab.peer.iss + 1 && !segment.payload.is_empty());
    assert!(!again);
}

#[test]
fn sack_finds_every_hole_at_once() {
    let mut lab = established();
    lab.send(14_000);
    let sent = lab.take();
    assert!(sent.len() >= 9, "{}", sent.len());
    lab.now_us += 1_000;
    // Segments 0, 3 and 6 are lost.
    let range = |index: usize| (sent[index].hdr.seq, sent[index].end());
    let blocks = [(range(7).0, range(8).1), (range(4).0, range(5).1), (range(1).0, range(2).1)];
    let hdr = with_sack(&lab, &blocks);
    lab.raw(hdr, &[]);
    lab.wait(1_000);
    let mut again: Vec<Seq> = lab
        .take()
        .iter()
        .filter(|segment| segment.end().le(range(8).1) && !segment.payload.is_empty())
        .map(|segment| segment.hdr.seq)
        .collect();
    // Recovery is paced by what arrives: continue to acknowledge.
    for block in [(range(7).0, range(8).1), (range(4).0, range(8).1)] {
        lab.ack = if block.0 == range(7).0 { range(3).0 } else { range(6).0 };
        let hdr = with_sack(&lab, &[block]);
        lab.raw(hdr, &[]);
        lab.wait(500);
        again.extend(lab.take().iter().filter(|seg| !seg.payload.is_empty()).map(|s| s.hdr.seq));
    }
    for index in [0, 3, 6] {
        assert!(again.contains(&range(index).0), "hole {index} in {again:?}");
    }
    for index in [1, 2, 4, 5, 7, 8] {
        assert!(!again.contains(&range(index).0), "{index} had arrived: {again:?}");
    }
    assert_eq!(lab.end.out.stats.get(TcpCounter::Rto), 0);
}

#[test]
fn what_was_sacked_and_then_acknowledged_is_not_in_flight() {
    // gvisor#14092: an error in the sums stalls the sender forever.
    let mut lab = established();
    for round in 0..200u32 {
        lab.send(14_000);
        let sent = lab.take();
        assert!(!sent.is_empty(), "round {round}");
        lab.now_us += 1_000;
        let middle = sent.len() / 2;
        let blocks = [(sent[middle].hdr.seq, sent[sent.len() - 1].end())];
        let hdr = with_sack(&lab, &blocks);
        lab.raw(hdr, &[]);
        lab.wait(100);
        while lab.end.out.acked < lab.end.out.appended {
            lab.now_us += 1_000;
            lab.ack = lab.end.out.audit.snd_max();
            lab.say(ACK, &[]);
        }
        lab.take();
        let config = cfg();
        let info = lab.end.with(|tcb, _, _| tcb.info(&config));
        assert_eq!(info.in_flight_bytes, 0, "{round}: {info:?}");
    }
}

#[test]
fn a_peer_that_forgets_what_it_sacked_gets_it_again() {
    // RFC 2018 section 8.
    let mut lab = established();
    lab.send(10_000);
    let sent = lab.take();
    let hdr = with_sack(&lab, &[(sent[1].hdr.seq, sent.last().unwrap().end())]);
    lab.raw(hdr, &[]);
    // It drops its queue: from here it acknowledges only what arrives in order.
    let mut next = sent[0].hdr.seq;
    for _ in 0..400 {
        lab.wait(100_000);
        for segment in lab.take() {
            if segment.hdr.seq == next && !segment.payload.is_empty() {
                next = segment.end();
            }
        }
        lab.ack = next;
        lab.say(ACK, &[]);
    }
    assert_eq!(lab.end.out.acked, 10_000);
}

#[test]
fn sack_blocks_of_nonsense_are_nothing() {
    let mut lab = established();
    lab.send(10_000);
    lab.take();
    let una = lab.ack;
    let max = lab.end.out.audit.snd_max();
    let nonsense = [
        (max, max + 1),
        (max + 100, max + 200),
        (una, max + 1),
        (una - 1_000_000u32, una - 900_000u32),
        (max, una),
        (una, una),
        (una + 0x8000_0000, max),
        (Seq(0), Seq(u32::MAX)),
        (una - 10u32, max),
    ];
    for first in nonsense {
        for second in nonsense {
            let hdr = with_sack(&lab, &[first, second]);
            lab.raw(hdr, &[]);
        }
    }
    lab.wait(5 * SECOND_US);
    lab.ack = lab.end.out.audit.snd_max();
    lab.say(ACK, &[]);
    assert_eq!(lab.end.out.acked, 10_000);
    assert_eq!(lab.state(), State::Established);
}

#[test]
fn sack_from_a_peer_that_did_not_negotiate_it_is_nothing() {
    let mut lab = with_window(60_000);
    lab.send(10_000);
    let sent = lab.take();
    let hdr = with_sack(&lab, &[(sent[1].hdr.seq, sent[6].end())]);
    lab.raw(hdr, &[]);
    assert!(lab.take().is_empty());
}

#[test]
fn retransmissions_carry_the_same_bytes() {
    // Each copy is audited against the stream; here the acknowledgement cuts segments in two.
    let mut lab = established();
    lab.send(10_000);
    let mut acked = 0;
    while acked < 10_000 {
        acked = (acked + 777).min(10_000);
        lab.wait(300_000);
        acknowledge(&mut lab, acked, 65_535);
    }
    assert_eq!(lab.end.out.acked, 10_000);
}
