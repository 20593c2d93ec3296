//! When and how much is sent and acknowledged: RFC 9293 section 3.8.6, RFC 5681, RFC 6928.
use super::{SECOND_US, acknowledge, cfg, established, payload_bytes};
use ix_tcp::{Config, State};
use ix_tcp_rig::lab::{ACK, Lab, PEER_SEED, Peer, SYN};
use ix_tcp_rig::{Segment, bytes_at};
use ix_wire::TcpOptions;

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
