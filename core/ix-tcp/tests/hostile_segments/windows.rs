//! Flow control: RFC 9293 section 3.8.6, RFC 7323 section 2.
use super::{SECOND_US, acknowledge, cfg, payload_bytes, with_window};
use ix_tcp::{Config, DeadReason, State};
use ix_tcp_rig::bytes_at;
use ix_tcp_rig::lab::{ACK, FIN, Lab, PEER_SEED, Peer, RST};
use ix_wire::TcpHeader;

#[test]
fn a_window_closed_for_an_hour_is_probed_and_never_given_up() {
    // RFC 9293 section 3.8.6.1: as long as the peer replies, however long.
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
    let config = Config { rcv_buf_bytes: 8_000, rcv_buf_max_bytes: 0, ..cfg() };
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
    let config = Config { rcv_buf_bytes: 8_000, rcv_buf_max_bytes: 0, ..cfg() };
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
    let config = Config { rcv_buf_bytes: 5_000, rcv_buf_max_bytes: 0, ..cfg() };
    let mut lab = Lab::established(config, Peer::default());
    for _ in 0..6 {
        lab.say_data(1_000);
    }
    assert_eq!(lab.end.out.delivered, 5_000);
    assert_eq!(lab.take().last().unwrap().hdr.ack, lab.peer.irs + 5_001);
    // A probe of the closed window gets a reply, and is not accepted.
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
    let hdr = lab.header(RST);
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
