//! Two ends of the stack against each other on links of every kind: whatever the network does, each
//! byte arrives once and in order, and both ends come to rest.

use crate::support::net::{Link, Net};
use crate::support::{START_US, pattern};
use ix_tcp::{Config, CongestionControl, State, TcpCounter};
use ix_wire::Seq;

const SECOND_US: u64 = 1_000_000;

fn net(link: Link, seed: u64) -> Net {
    let iss = [Seq(seed as u32 ^ 0x1234), Seq(u32::MAX - 500)];
    Net::connect([Config::default(), Config::default()], link, seed, iss, START_US)
}

/// `IX_SEEDS` asks for more.
fn seeds(default: u64) -> u64 {
    std::env::var("IX_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn both_ways_on_a_good_link() {
    let mut net = net(Link::GOOD, 1);
    net.transfer([pattern(1_000_000), pattern(300_001)], 10 * SECOND_US);
    for end in &net.ends {
        assert_eq!(end.count(TcpCounter::Retransmits), 0, "{}", net.describe());
        assert_eq!(end.count(TcpCounter::OutOfOrder), 0);
    }
}

#[test]
fn empty_streams_close() {
    net(Link::GOOD, 2).transfer([vec![], vec![]], SECOND_US);
}

#[test]
fn one_way_only() {
    net(Link::GOOD, 3).transfer([pattern(200_000), vec![]], SECOND_US);
    net(Link::GOOD, 4).transfer([vec![], pattern(200_000)], SECOND_US);
}

/// Whatever is lost and comes again, no segment holds bytes of two messages.
#[test]
fn messages_keep_their_segments() {
    for seed in 0..seeds(40) {
        let mut cfgs = [Config::default(), Config::default()];
        for cfg in &mut cfgs {
            (cfg.sack, cfg.nagle) = (seed & 1 == 0, seed & 2 == 0);
        }
        let loss = (seed % 10) as u32 * 10;
        let link = Link { delay_us: 500, loss, reorder: 30, reorder_us: 500, ..Link::GOOD };
        let iss = [Seq(u32::MAX - seed as u32 % 60_000), Seq(seed as u32)];
        let mut net = Net::connect(cfgs, link, seed, iss, START_US);
        net.message_bytes = [1, 100, 999, 1448, 5000][seed as usize % 5];
        let bytes = 60_000.min(400 * net.message_bytes);
        net.transfer([pattern(bytes), pattern(bytes / 2)], 600 * SECOND_US);
    }
}

/// Loss, reordering and duplication together, both ways, many seeds, every combination of options.
#[test]
fn every_bad_link() {
    for seed in 0..seeds(120) {
        let mut cfgs = [Config::default(), Config::default()];
        for (who, cfg) in cfgs.iter_mut().enumerate() {
            let bits = seed >> (3 * who);
            cfg.sack = bits & 1 == 0;
            cfg.timestamps = bits & 2 == 0;
            cfg.window_scaling = bits & 4 == 0;
            cfg.congestion = match seed % 3 {
                0 => CongestionControl::NewReno,
                1 => CongestionControl::Bbr,
                _ => CongestionControl::Cubic,
            };
            if seed % 5 == 0 {
                cfg.mss = 100 + (seed * 37 % 1000) as u16;
            }
            if seed % 7 == 0 {
                (cfg.rcv_buf_bytes, cfg.rcv_buffers_max) = (4000, 8);
            }
            cfg.nagle = seed % 4 == 0;
        }
        let link = Link {
            delay_us: 10 + seed * 13 % 2000,
            loss: (seed % 10) as u32 * 10,
            reorder: (seed % 4) as u32 * 50,
            reorder_us: 500,
            duplicate: (seed % 6) as u32 * 10,
            ..Link::GOOD
        };
        let iss = [Seq(u32::MAX - seed as u32 % 60_000), Seq(seed as u32)];
        // Near the wrap of a 32-bit microsecond clock (71 min), and of a millisecond one.
        let start_us = (((seed % 3) << 32) | ((seed % 2) << 41)).max(2_000_000) - 1_000_000;
        let mut net = Net::connect(cfgs, link, seed, iss, start_us);
        net.transfer([pattern(60_000), pattern(40_000)], 600 * SECOND_US);
    }
}

/// Mild reordering must not cost much (tailscale#20893: RACK off made it 5 times
/// slower).
#[test]
fn mild_reordering_is_cheap() {
    let time = |reorder: u32| {
        let link = Link { delay_us: 1000, reorder, reorder_us: 300, ..Link::GOOD };
        let mut net = net(link, 9);
        net.transfer([pattern(3_000_000), vec![]], 60 * SECOND_US);
        net.now_us - START_US
    };
    let (straight, reordered) = (time(0), time(20));
    assert!(reordered < 2 * straight, "{reordered} µs against {straight} µs");
}

/// How much of 100 Mbit/s the one way carries, from half a second after the start for two seconds.
fn percent_of_100_mbit(net: &mut Net) -> usize {
    net.to_send[0] = pattern(45_000_000);
    net.cycle(0);
    let began_us = net.now_us + SECOND_US / 2;
    net.run(4 * SECOND_US, |net| net.now_us >= began_us);
    let before = net.received[1].len();
    net.run(4 * SECOND_US, |net| net.now_us >= began_us + 2 * SECOND_US);
    (net.received[1].len() - before) / (12_500 * 20)
}

/// The path of `ix bench loss`: 100 Mbit/s, 10 ms, a queue of as much; 2 % of the packets take up
/// to half a round trip longer. The reordering window grows until no late packet is taken to be
/// lost, and no retransmission timeout comes before it.
#[test]
fn a_path_that_reorders_is_filled() {
    for seed in 0..seeds(8) {
        let mut net = net(
            Link {
                delay_us: 5000,
                reorder: 20,
                reorder_us: 5000,
                bytes_per_ms: 12_500,
                queue_us: 10_000,
                ..Link::GOOD
            },
            seed,
        );
        net.links[1] = Link { delay_us: 5000, ..Link::GOOD };
        let percent = percent_of_100_mbit(&mut net);
        assert!(percent >= 88, "seed {seed}: {percent} % of the path's rate");
        assert_eq!(net.ends[0].count(TcpCounter::Rto), 0, "seed {seed}");
    }
}

/// The same path through a machine that stands still now and then, for longer than a timeout:
/// packets that it delays and then forwards at once are not lost, and do not reduce the rate for
/// long.
#[test]
fn a_path_that_stalls_is_filled() {
    let stalls = Link { stall_every_us: 200_000, stall_us: 25_000, ..Link::GOOD };
    let cfg = Config {
        rcv_buf_bytes: 6 << 20,
        rcv_buffers_max: 60_000,
        snd_buf_bytes: 6 << 20,
        ..Config::default()
    };
    for seed in 0..seeds(4) {
        let link = Link { delay_us: 5000, bytes_per_ms: 12_500, queue_us: 10_000, ..stalls };
        let start_us = START_US + seed * 7_777_777;
        let cfgs = [cfg.clone(), cfg.clone()];
        let mut net = Net::connect(cfgs, link, seed, [Seq(1), Seq(2)], start_us);
        net.links[1] = Link { delay_us: 5000, ..stalls };
        let percent = percent_of_100_mbit(&mut net);
        assert!(percent >= 85, "seed {seed}: {percent} % of the path's rate");
    }
}

/// The congestion window finds a bottleneck and shares its queue without collapse.
#[test]
fn fills_a_bottleneck() {
    for congestion in [CongestionControl::Cubic, CongestionControl::NewReno, CongestionControl::Bbr]
    {
        let cfg = Config { congestion, ..Config::default() };
        // 100 Mbit/s, 2 ms round trip, a queue of one round trip.
        let link = Link { delay_us: 1000, bytes_per_ms: 12_500, queue_us: 2000, ..Link::GOOD };
        let mut net = Net::connect([cfg.clone(), cfg], link, 5, [Seq(1), Seq(2)], START_US);
        net.transfer([pattern(5_000_000), vec![]], 60 * SECOND_US);
        let ideal_us = 5_000_000 * 1520 / 1448 * 1000 / 12_500;
        let took_us = net.now_us - START_US;
        assert!(took_us < ideal_us * 3 / 2, "{congestion:?}: {took_us} µs, ideally {ideal_us}");
        assert!(net.ends[0].count(TcpCounter::Rto) <= 1, "{}", net.describe());
    }
}

/// The path of `ix bench loss`, a faster and a longer one, each with a queue of one round trip:
/// slow start finds the bandwidth and does not overflow the queue.
#[test]
fn slow_start_leaves_room_in_the_queue() {
    for (delay_us, bytes_per_ms) in [(5_000, 12_500), (5_000, 125_000), (25_000, 12_500)] {
        let cfg = Config {
            rcv_buf_bytes: 8 << 20,
            rcv_buffers_max: 60_000,
            snd_buf_bytes: 8 << 20,
            ..Config::default()
        };
        let rtt_us = 2 * delay_us;
        let link = Link { delay_us, bytes_per_ms, queue_us: rtt_us, ..Link::GOOD };
        let mut net = Net::connect([cfg.clone(), cfg], link, 5, [Seq(1), Seq(2)], START_US);
        net.transfer([pattern(8_000_000), vec![]], 60 * SECOND_US);
        let ideal_us = 8_000_000 * 1520 / 1448 * 1000 / bytes_per_ms;
        let (overflows, took_us) = (net.overflows[0], net.now_us - START_US);
        let told = format!("{overflows} overflows, {took_us} µs, ideally {ideal_us}");
        // A tenth of what the path holds; one more doubling would be all of it and more.
        let most = rtt_us * bytes_per_ms / 1_520_000 / 10 + 5;
        assert!(overflows <= most, "{rtt_us} µs, {bytes_per_ms} B/ms: {told}");
        assert!(
            took_us < ideal_us * 5 / 4 + 10 * rtt_us,
            "{rtt_us} µs, {bytes_per_ms} B/ms: {told}"
        );
    }
}

/// gvisor#6113: the smallest possible round-trip time stalls nothing.
#[test]
fn round_trip_of_one_microsecond() {
    let link = Link { delay_us: 0, ..Link::GOOD };
    net(link, 6).transfer([pattern(500_000), pattern(500_000)], 10 * SECOND_US);
}

/// lwIP: both windows closed, both sides with data to send.
#[test]
fn both_windows_closed_and_opened_again() {
    let small = Config { rcv_buf_bytes: 8000, rcv_buffers_max: 16, ..Config::default() };
    for seed in 0..10 {
        let link = Link { loss: (seed as u32) * 30, ..Link::GOOD };
        let cfgs = [small.clone(), small.clone()];
        let mut net = Net::connect(cfgs, link, seed, [Seq(1), Seq(2)], START_US);
        net.reads = [false; 2];
        net.to_send = [pattern(50_000), pattern(50_000)];
        let until = START_US + 20 * SECOND_US;
        net.cycle(0);
        net.cycle(1);
        net.run(40 * SECOND_US, |net| net.now_us >= until);
        assert!(net.ends.iter().all(|end| end.state() == State::Established));
        net.reads = [true; 2];
        net.cycle(0);
        net.cycle(1);
        let streams = std::mem::take(&mut net.to_send);
        net.transfer(streams, 600 * SECOND_US);
    }
}

/// A link that dies for a while: everything arrives after it comes back.
#[test]
fn survives_an_outage() {
    let mut net = net(Link::GOOD, 8);
    net.to_send = [pattern(2_000_000), pattern(2_000_000)];
    net.cycle(0);
    net.run(SECOND_US, |net| net.received[0].len() > 100_000);
    let good = net.links;
    net.links = [Link { loss: 1000, ..Link::GOOD }; 2];
    let back_us = net.now_us + 30 * SECOND_US;
    net.run(100 * SECOND_US, |net| net.now_us > back_us);
    net.links = good;
    let streams = std::mem::take(&mut net.to_send);
    net.transfer(streams, 200 * SECOND_US);
}

/// A retransmission can be lost too, any number of times.
#[test]
fn heavy_loss() {
    // Patient, with frequent tries: the link drops as many as it likes, and the ends must not give
    // up.
    let cfg = Config {
        r2_us: 3_600_000_000,
        max_rto_us: 1_000_000,
        time_wait_us: 240_000_000,
        syn_retries: 60,
        syn_ack_retries: 60,
        ..Config::default()
    };
    for seed in 0..seeds(20) {
        let link = Link { loss: 300, delay_us: 200, ..Link::GOOD };
        let iss = [Seq(seed as u32), Seq(7)];
        let mut net = Net::connect([cfg.clone(), cfg.clone()], link, seed, iss, START_US);
        net.transfer([pattern(30_000), pattern(3_000)], 3600 * SECOND_US);
    }
}
