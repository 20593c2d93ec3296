//! Windows, probes, timeouts, path errors and loss recovery, one endpoint against hand-made
//! segments: RFC 9293 section 3.8, RFC 5681, 5927, 6298, 6582, 6675, 6928, 7323, 2018.
mod hostile_support;

use hostile_support::lab::{ACK, FIN, Lab, PEER_SEED, Peer, SYN};
use hostile_support::{Segment, bytes_at};
use ix_tcp::{Config, DeadReason, PathError, State, TcpCounter};
use ix_wire::{SackBlocks, Seq, TcpHeader, TcpOptions};

const SECOND_US: u64 = 1_000_000;

fn cfg() -> Config {
    Config::default()
}

fn established() -> Lab {
    Lab::established(cfg(), Peer::default())
}

/// A peer whose window has no scale, so that window fields are bytes.
fn with_window(window: u16) -> Lab {
    Lab::established(cfg(), Peer { window, ..Peer::plain() })
}

fn payload_bytes(sent: &[Segment]) -> usize {
    sent.iter().map(|segment| segment.payload.len()).sum()
}

/// The peer acknowledges up to `bytes` of our stream, with `window`.
fn acknowledge(lab: &mut Lab, bytes: u32, window: u16) {
    lab.ack = lab.peer.iss + 1 + bytes;
    let hdr = TcpHeader { window, ..lab.header(ACK) };
    lab.raw(hdr, &[]);
}

fn with_sack(lab: &Lab, blocks: &[(Seq, Seq)]) -> TcpHeader {
    let mut hdr = lab.header(ACK);
    let mut sack = SackBlocks::EMPTY;
    for &(left, right) in blocks {
        sack.push(left, right);
    }
    hdr.options.sack = sack;
    hdr
}

// --- Windows and probes -----------------------------------------------------------------------

#[test]
fn a_window_closed_for_an_hour_is_probed_and_never_given_up() {
    // RFC 9293 section 3.8.6.1: as long as the peer answers, however long.
    let mut lab = with_window(0);
    lab.send(5_000);
    let mut probes_us = Vec::new();
    let start_us = lab.now_us;
    while lab.now_us < start_us + 3_600 * SECOND_US {
        lab.wait(50_000);
        for probe in lab.take() {
            assert!(probe.payload.len() <= 1, "{} bytes into a closed window", probe.payload.len());
            probes_us.push(lab.now_us - start_us);
            acknowledge(&mut lab, 0, 0);
        }
    }
    assert_eq!(lab.state(), State::Established);
    assert!(probes_us.len() >= 58, "{} probes in an hour", probes_us.len());
    assert!(probes_us.len() <= 100, "{} probes in an hour", probes_us.len());
    let gaps: Vec<u64> = probes_us.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.windows(2).all(|pair| pair[1] + 100_000 >= pair[0]), "backs off: {gaps:?}");
    // The update comes on its own: data flows at once.
    lab.take();
    acknowledge(&mut lab, 0, 5_000);
    assert_eq!(payload_bytes(&lab.take()), 5_000.min(lab.end.out.appended as usize));
}

#[test]
fn a_probe_that_is_accepted_moves_the_stream() {
    let mut lab = with_window(0);
    let appended = lab.send(1_000) as u32;
    lab.wait(5 * SECOND_US);
    let probe = lab.take().into_iter().find(|segment| !segment.payload.is_empty());
    let Some(probe) = probe else { return }; // probes without data are as good
    assert_eq!(probe.payload.len(), 1);
    acknowledge(&mut lab, 1, 0);
    assert_eq!(lab.end.out.acked, 1);
    acknowledge(&mut lab, 1, 65_535);
    assert_eq!(payload_bytes(&lab.take()) as u32, appended - 1);
    acknowledge(&mut lab, appended, 65_535);
    assert_eq!(lab.end.out.acked, u64::from(appended));
}

#[test]
fn a_window_that_opens_by_an_octet_during_a_probe_does_not_confuse() {
    // The probe crosses an update; then its acknowledgement comes.
    let mut lab = with_window(0);
    lab.send(1_000);
    lab.wait(5 * SECOND_US);
    lab.take();
    acknowledge(&mut lab, 0, 10_000);
    acknowledge(&mut lab, 1, 10_000);
    acknowledge(&mut lab, 1_000, 10_000);
    assert_eq!(lab.end.out.acked, 1_000);
    assert_eq!(lab.send(500), 500);
    assert_eq!(payload_bytes(&lab.take()), 1_500);
}

#[test]
fn unanswered_probes_end_the_connection() {
    let mut lab = with_window(0);
    lab.send(1_000);
    lab.wait(1_200 * SECOND_US);
    assert_eq!(lab.end.out.dead, Some(DeadReason::TimedOut));
}

#[test]
fn fin_into_a_closed_window_gets_through() {
    let mut lab = with_window(0);
    lab.end.shutdown(lab.now_us);
    lab.end.output(lab.now_us);
    lab.wait(10 * SECOND_US);
    let fin = lab.take().iter().any(|segment| segment.hdr.flags.contains(FIN));
    assert!(fin, "a FIN needs no window");
    let mut lab = with_window(0);
    lab.send(1);
    lab.end.shutdown(lab.now_us);
    lab.end.output(lab.now_us);
    lab.wait(10 * SECOND_US);
    acknowledge(&mut lab, 1, 0);
    lab.wait(100 * SECOND_US);
    assert!(lab.take().iter().any(|segment| segment.hdr.flags.contains(FIN)));
    acknowledge(&mut lab, 2, 0);
    assert_eq!(lab.state(), State::FinWait2);
}

#[test]
fn the_window_is_taken_from_the_newest_segment() {
    // WL1 and WL2: an old segment that arrives late must not close or open the window.
    let mut lab = with_window(2_000);
    let start = lab.seq;
    let newer = TcpHeader { seq: start + 10, window: 8_000, ..lab.header(ACK) };
    lab.raw(newer, &bytes_at(PEER_SEED, start + 10, 10));
    let older = TcpHeader { seq: start, window: 100, ..lab.header(ACK) };
    lab.raw(older, &bytes_at(PEER_SEED, start, 10));
    lab.take();
    assert_eq!(lab.send(8_000), 8_000);
    assert_eq!(payload_bytes(&lab.take()), 8_000);
    // The same sequence number, an older acknowledgement.
    lab.seq = start + 20;
    acknowledge(&mut lab, 8_000, 5_000);
    acknowledge(&mut lab, 4_000, 60_000);
    lab.take();
    lab.send(60_000);
    assert_eq!(payload_bytes(&lab.take()), 5_000);
}

#[test]
fn a_smaller_window_with_the_same_numbers_counts() {
    // edk2's bug: only a growing window was believed.
    let mut lab = with_window(10_000);
    acknowledge(&mut lab, 0, 1_000);
    lab.send(10_000);
    lab.wait(SECOND_US); // a small part of a large window may be held back for a while
    assert_eq!(lab.end.out.audit.snd_max(), lab.peer.iss + 1_001);
}

#[test]
fn a_shrunk_window_is_survived() {
    // RFC 9293 section 3.8.6, RFC 7323 section 2.4: in flight beyond the new edge.
    let mut lab = with_window(10_000);
    lab.send(8_000);
    assert_eq!(payload_bytes(&lab.take()), 8_000);
    acknowledge(&mut lab, 2_000, 1_000);
    lab.send(100);
    assert_eq!(payload_bytes(&lab.take()), 0, "nothing new beyond the edge");
    // The peer took it all anyway.
    acknowledge(&mut lab, 8_000, 10_000);
    assert_eq!(lab.end.out.acked, 8_000);
    // And this time it did not: it must come again, although beyond the shrunk edge.
    lab.take();
    lab.send(5_000);
    lab.take();
    acknowledge(&mut lab, 8_100, 0);
    for _ in 0..200 {
        lab.wait(SECOND_US);
        acknowledge(&mut lab, 8_100, 0);
    }
    assert_eq!(lab.state(), State::Established);
    lab.take();
    acknowledge(&mut lab, 8_100, 10_000);
    lab.wait(70 * SECOND_US);
    let appended = lab.end.out.appended as u32;
    let again = lab.take();
    assert!(again.iter().any(|segment| segment.hdr.seq == lab.peer.iss + 8_101), "{again:?}");
    acknowledge(&mut lab, appended, 10_000);
    assert_eq!(lab.end.out.acked, u64::from(appended));
}

#[test]
fn the_application_hears_of_an_opened_window() {
    // gvisor#10243: the sender stayed idle.
    let mut lab = with_window(0);
    while lab.send(100_000) > 0 {}
    let before = lab.end.out.window_opens;
    acknowledge(&mut lab, 0, 60_000);
    assert!(lab.end.out.window_opens > before);
    assert!(lab.send(100_000) > 0);
}

#[test]
fn reading_octet_by_octet_makes_no_silly_windows() {
    // RFC 9293 section 3.8.6.2.2.
    let config = Config { rcv_buf_bytes: 8_000, ..cfg() };
    let mut lab = Lab::established(config, Peer::default());
    for _ in 0..8 {
        lab.say_data(1_000);
    }
    lab.wait(100_000);
    let closed = lab.take().last().unwrap().hdr;
    assert_eq!(closed.window, 0);
    let mut updates = Vec::new();
    for _ in 0..8_000 {
        lab.end.read(1);
        lab.end.output(lab.now_us);
        updates.extend(lab.take());
    }
    assert!((1..=8).contains(&updates.len()), "{} updates for 8000 octets", updates.len());
    let last = updates.last().unwrap().hdr;
    assert!(u32::from(last.window) >= 4_000, "{last:?}");
    assert!(updates.iter().all(|update| update.hdr.window >= 1_460), "{updates:?}");
}

#[test]
fn a_probe_does_not_squeeze_a_silly_window_out_of_us() {
    // An acknowledgement that goes out anyway must not offer the few octets that are free either.
    let config = Config { rcv_buf_bytes: 8_000, ..cfg() };
    let mut lab = Lab::established(config, Peer::default());
    for _ in 0..8 {
        lab.say_data(1_000);
    }
    lab.wait(100_000);
    for read in 1..1_460 {
        lab.end.read(1);
        lab.end.output(lab.now_us);
        lab.take();
        lab.data_at(lab.seq, 1);
        let sent = lab.take();
        assert_eq!((sent.len(), sent[0].hdr.window), (1, 0), "after {read} octets");
    }
    lab.end.read(1);
    lab.data_at(lab.seq, 1);
    assert_eq!(lab.take()[0].hdr.window, 1_460);
}

#[test]
fn data_beyond_the_window_is_not_taken() {
    let config = Config { rcv_buf_bytes: 5_000, ..cfg() };
    let mut lab = Lab::established(config, Peer::default());
    for _ in 0..6 {
        lab.say_data(1_000);
    }
    assert_eq!(lab.end.out.delivered, 5_000);
    assert_eq!(lab.take().last().unwrap().hdr.ack, lab.peer.irs + 5_001);
    // A probe of the closed window is answered, and not taken.
    lab.data_at(lab.peer.irs + 5_001, 1);
    let sent = lab.take();
    assert_eq!((sent.len(), sent[0].hdr.window), (1, 0));
    assert_eq!(sent[0].hdr.ack, lab.peer.irs + 5_001);
    // The half of a segment that fits is taken.
    lab.end.read(2_500);
    lab.end.output(lab.now_us);
    lab.seq = lab.peer.irs + 5_001;
    lab.say_data(9_000);
    assert_eq!(lab.end.out.delivered, 7_500);
}

#[test]
fn a_closed_window_of_ours_still_hears_acknowledgements_and_resets() {
    // RFC 9293 section 3.10.7.4: special allowance with a receive window of zero.
    let config = Config { rcv_buf_bytes: 1_000, ..cfg() };
    let mut lab = Lab::established(config.clone(), Peer::default());
    lab.say_data(1_000);
    lab.send(3_000);
    lab.ack += 3_000;
    // The peer's probe carries the acknowledgement.
    lab.data_at(lab.seq, 1);
    assert_eq!(lab.end.out.acked, 3_000);
    let hdr = lab.header(hostile_support::lab::RST);
    lab.raw(hdr, &[]);
    assert_eq!(lab.state(), State::Closed);
}

#[test]
fn buffers_bound_the_window_too() {
    let config = Config { rcv_buffers_max: 10, ..cfg() };
    let mut lab = Lab::established(config, Peer::default());
    for _ in 0..40 {
        lab.say_data(1);
    }
    assert!(lab.end.out.held.len() <= 10);
    let got = lab.end.out.delivered as u32;
    lab.wait(100_000);
    assert_eq!(lab.take().last().unwrap().hdr.ack, lab.peer.irs + 1 + got);
    lab.end.read(u64::MAX);
    lab.end.output(lab.now_us);
    lab.seq = lab.peer.irs + 1 + got;
    lab.say_data(1_000);
    assert_eq!(lab.end.out.delivered, u64::from(got) + 1_000);
}

// --- Sending ----------------------------------------------------------------------------------

#[test]
fn the_first_flight_is_the_initial_window() {
    for (mss, segments) in [(1460u16, 10usize), (536, 10)] {
        let mut peer = Peer { window: 65_535, ..Peer::plain() };
        peer.options.mss = Some(mss);
        let mut lab = Lab::established(cfg(), peer);
        lab.send(1 << 20);
        let sent = lab.take();
        assert_eq!(sent.len(), segments);
        assert!(sent.iter().all(|segment| segment.payload.len() == usize::from(mss)));
    }
}

#[test]
fn slow_start_doubles_the_flight() {
    let mut peer = Peer::plain();
    peer.options.window_scale = Some(7);
    let mut lab = Lab::established(cfg(), peer);
    lab.send(1 << 20);
    let mut acked = 0;
    let mut flights = Vec::new();
    for _ in 0..4 {
        let flight = lab.take();
        flights.push(flight.len());
        lab.now_us += 1_000;
        for segment in flight {
            acked += segment.payload.len() as u32;
            acknowledge(&mut lab, acked, 65_535);
        }
    }
    assert_eq!(flights, [10, 20, 40, 80]);
}

#[test]
fn an_idle_connection_restarts_with_the_initial_window() {
    // RFC 5681 section 4.1.
    let mut peer = Peer::plain();
    peer.options.window_scale = Some(7);
    let mut lab = Lab::established(cfg(), peer);
    let mut acked = 0;
    while acked < 500_000 {
        lab.send(1 << 20);
        lab.now_us += 1_000;
        acked += payload_bytes(&lab.take()) as u32;
        acknowledge(&mut lab, acked, 65_535);
    }
    let mut total = acked + payload_bytes(&lab.take()) as u32;
    while u64::from(total) < lab.end.out.appended {
        acknowledge(&mut lab, total, 65_535);
        total += payload_bytes(&lab.take()) as u32;
    }
    acknowledge(&mut lab, total, 65_535);
    lab.take();
    lab.wait(10 * SECOND_US);
    lab.send(1 << 20);
    assert_eq!(lab.take().len(), 10);
}

#[test]
fn nagle_holds_small_segments_back_and_can_be_off() {
    for nagle in [false, true] {
        let mut lab = established();
        lab.end.with(|tcb, _, _| tcb.set_nagle(nagle));
        for _ in 0..5 {
            lab.send(10);
        }
        let sent = lab.take();
        assert_eq!(sent.len(), if nagle { 1 } else { 5 });
        lab.ack = lab.end.out.audit.snd_max();
        lab.say(ACK, &[]);
        assert_eq!(payload_bytes(&lab.take()), if nagle { 40 } else { 0 });
    }
}

#[test]
fn an_echo_is_one_packet_in_one_packet_out() {
    let mut lab = established();
    for round in 1..50u64 {
        let hdr = lab.header(ACK);
        let payload = bytes_at(PEER_SEED, lab.seq, 64);
        lab.seq += 64;
        let segment = Segment { hdr, payload };
        lab.end.segment(&segment, lab.now_us);
        lab.end.read(64);
        lab.end.append(64);
        lab.end.output(lab.now_us);
        let sent = lab.take();
        assert_eq!(sent.len(), 1, "round {round}: {sent:?}");
        assert_eq!((sent[0].payload.len(), sent[0].hdr.ack), (64, lab.seq));
        lab.ack += 64;
        lab.now_us += 20;
    }
}

#[test]
fn acknowledgements_are_delayed_but_not_for_long() {
    // RFC 9293 section 3.8.6.3: at least each second full-sized segment, within half a second.
    let mut lab = established();
    for _ in 0..40 {
        lab.say_data(1_448);
    }
    lab.wait(SECOND_US);
    lab.take();
    lab.say_data(100);
    let at_once = lab.take().len();
    lab.wait(u64::from(cfg().delack_us));
    assert_eq!(at_once + lab.take().len(), 1);
    lab.say_data(1_448);
    lab.say_data(1_448);
    let sent = lab.take();
    assert_eq!(sent.last().map(|segment| segment.hdr.ack), Some(lab.seq));
}

#[test]
fn a_gap_is_reported_at_once_and_so_is_its_end() {
    // RFC 5681 section 4.2, RFC 2018 section 4.
    let mut lab = established();
    let start = lab.seq;
    for block in [3u32, 5, 7] {
        lab.data_at(start + block * 100, 100);
        let sent = lab.take();
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0].hdr.ack, start);
        let first = sent[0].hdr.options.sack.as_slice()[0];
        assert_eq!(first, (start + block * 100, start + block * 100 + 100), "latest first");
        assert_eq!(sent[0].hdr.options.sack.len(), (block as usize - 1) / 2);
    }
    lab.data_at(start, 300);
    let sent = lab.take();
    assert_eq!((sent.len(), sent[0].hdr.ack), (1, start + 400));
    // A duplicate is told by a DSACK (RFC 2883).
    lab.data_at(start, 100);
    let sent = lab.take();
    assert_eq!(sent[0].hdr.options.sack.as_slice()[0], (start, start + 100));
    lab.data_at(start + 500, 100);
    let sent = lab.take();
    assert_eq!(sent[0].hdr.options.sack.as_slice()[0], (start + 500, start + 600));
}

// --- Loss -------------------------------------------------------------------------------------

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
    // Recovery is paced by what arrives: acknowledge on.
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
    // gvisor#14092: a leak in the accounts stalls the sender for ever.
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
    // It reboots its queue: acknowledges only what comes in order from here.
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

// --- Keepalive --------------------------------------------------------------------------------

#[test]
fn keepalive_is_off_unless_asked_for() {
    let mut lab = established();
    lab.wait(24 * 3_600 * SECOND_US);
    assert!(lab.take().is_empty());
    assert_eq!(lab.state(), State::Established);
}

#[test]
fn keepalive_probes_answered_or_not() {
    // RFC 9293 section 3.8.4: SEG.SEQ = SND.NXT-1, and one lost probe is no death.
    let config = Config {
        keepalive_idle_s: 60,
        keepalive_interval_us: 10_000_000,
        keepalive_probes: 3,
        ..cfg()
    };
    let mut lab = Lab::established(config, Peer::default());
    for _ in 0..10 {
        lab.wait(59 * SECOND_US);
        assert!(lab.take().is_empty());
        lab.wait(2 * SECOND_US);
        let sent = lab.take();
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0].hdr.seq, lab.end.out.audit.snd_max() - 1u32);
        lab.say(ACK, &[]);
        assert!(lab.take().is_empty());
    }
    lab.wait(60 * SECOND_US);
    lab.wait(25 * SECOND_US);
    assert_eq!(lab.take().len(), 3);
    assert_eq!(lab.state(), State::Established);
    lab.wait(60 * SECOND_US);
    assert_eq!(lab.end.out.dead, Some(DeadReason::TimedOut));
}

#[test]
fn the_peers_keepalive_is_answered() {
    for len in [0, 1] {
        let mut lab = established();
        lab.say_data(100);
        lab.wait(SECOND_US);
        lab.take();
        lab.data_at(lab.seq - 1u32, len);
        let sent = lab.take();
        assert_eq!(sent.len(), 1, "{len} octets");
        assert_eq!(sent[0].hdr.ack, lab.seq);
        assert_eq!(lab.end.out.delivered, 100);
    }
}

// --- ICMP -------------------------------------------------------------------------------------

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

// --- Transmit buffers -------------------------------------------------------------------------

#[test]
fn without_transmit_buffers_nothing_is_lost_and_nothing_spins() {
    let mut lab = established();
    lab.end.out.tx_fails = 1000;
    lab.send(3_000);
    lab.say_data(100);
    lab.say_data(100);
    assert!(lab.take().is_empty());
    assert!(lab.end.tcb.as_ref().unwrap().needs_output());
    lab.end.out.tx_fails = 0;
    lab.end.output(lab.now_us);
    let sent = lab.take();
    assert_eq!(payload_bytes(&sent), 3_000);
    assert_eq!(sent.last().unwrap().hdr.ack, lab.seq);
    assert!(!lab.end.tcb.as_ref().unwrap().needs_output());
}

#[test]
fn a_syn_without_a_buffer_goes_out_later() {
    let mut lab = Lab::new(cfg(), Peer::default(), true);
    lab.end.out.tx_fails = 1000;
    lab.syn();
    assert!(lab.take().is_empty());
    lab.end.out.tx_fails = 0;
    lab.wait(5 * SECOND_US);
    let sent = lab.take();
    assert!(!sent.is_empty());
    assert_eq!(sent[0].hdr.flags, SYN | ACK);
    lab.say(ACK, &[]);
    assert_eq!(lab.state(), State::Established);
}

#[test]
fn options_of_the_syn_say_what_we_can() {
    let mut lab = Lab::new(cfg(), Peer::default(), false);
    let syn = lab.take().remove(0).hdr;
    assert_eq!(syn.options.mss, Some(1460));
    assert!(syn.options.sack_permitted && syn.options.timestamp.is_some());
    assert!(syn.options.window_scale.is_some());
    let config = Config { sack: false, timestamps: false, window_scaling: false, ..cfg() };
    let mut lab = Lab::new(config, Peer::default(), false);
    let syn = lab.take().remove(0).hdr;
    assert_eq!(syn.options, TcpOptions { mss: Some(1460), ..TcpOptions::NONE });
}
