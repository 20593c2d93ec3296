//! Two endpoints, both audited, over links of every kind: what one application writes, the other
//! reads, and at the end nothing is left.

use ix_tcp::{Config, CongestionControl, DeadReason, State, TcpCounter};
use ix_tcp_rig::{Endpoint, LinkModel, Network, Rng, Segment, reversed, tuple};
use ix_wire::{Seq, TcpFlags};

const SECOND_US: u64 = 1_000_000;

type Pair = Network<Endpoint, Endpoint>;

#[derive(Clone, Debug)]
struct Setup {
    cfgs: [Config; 2],
    link: LinkModel,
    seed: u64,
    iss: [Seq; 2],
    start_us: u64,
    sends: [u64; 2],
    simultaneous: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        // No end gives up because of many losses in a row.
        let cfg = Config { r2_us: u32::MAX, ..Config::default() };
        Setup {
            cfgs: [cfg.clone(), cfg],
            link: LinkModel::CLEAN,
            seed: 1,
            iss: [Seq(0xffff_fff0), Seq(0x7fff_fff0)],
            start_us: 1_000_000,
            sends: [200_000, 100_000],
            simultaneous: false,
        }
    }
}

impl Setup {
    fn network(&self) -> Pair {
        let [left_cfg, right_cfg] = self.cfgs.clone();
        let [left_iss, right_iss] = self.iss;
        let start_us = self.start_us;
        let other = reversed(&tuple());
        let mut left = Endpoint::connect(left_cfg, tuple(), left_iss, 1, 2, start_us);
        let mut right = if self.simultaneous {
            Endpoint::connect(right_cfg, other, right_iss, 2, 1, start_us)
        } else {
            Endpoint::listen(right_cfg, other, right_iss, 2, 1)
        };
        left.app.sends = self.sends[0];
        right.app.sends = self.sends[1];
        Network::new(left, right, self.link, self.seed, start_us)
    }

    /// Both streams to the end; returns how long they took, without TIME-WAIT.
    fn run(&self) -> (Pair, u64) {
        let mut network = self.network();
        let took_us = finish(&mut network, 3_600 * SECOND_US);
        (network, took_us)
    }
}

fn read_all(end: &Endpoint, expected: u64) -> bool {
    end.out.delivered == expected && end.out.eof && end.out.held.is_empty()
}

/// Runs both streams to their ends and both endpoints to CLOSED, and checks what is left.
fn finish(network: &mut Pair, patience_us: u64) -> u64 {
    let start_us = network.now_us;
    let sends = [network.left.app.sends, network.right.app.sends];
    let deadline_us = start_us + patience_us;
    let took_us = network.run_until(deadline_us, |left, right| {
        read_all(left, sends[1]) && read_all(right, sends[0])
    }) - start_us;
    let dead = |end: &Endpoint| end.tcb.as_ref().is_some_and(|tcb| tcb.is_dead());
    network.run_until(deadline_us + 400 * SECOND_US, |left, right| dead(left) && dead(right));
    for end in [&mut network.left, &mut network.right] {
        assert_eq!(end.out.dead, Some(DeadReason::Closed));
        assert_eq!(end.out.acked, end.out.appended);
        end.finish();
    }
    took_us
}

fn count(end: &Endpoint, counter: TcpCounter) -> u64 {
    end.out.stats.get(counter)
}

#[test]
fn a_clean_link_sees_nothing_twice() {
    for simultaneous in [false, true] {
        let setup = Setup { simultaneous, sends: [3_000_000, 1_000_000], ..Setup::default() };
        let (network, took_us) = setup.run();
        for end in [&network.left, &network.right] {
            for counter in [
                TcpCounter::Retransmits,
                TcpCounter::OutOfOrder,
                TcpCounter::DuplicateSegments,
                TcpCounter::ChallengeAcks,
                TcpCounter::BadAck,
                TcpCounter::PawsDrop,
            ] {
                // In a simultaneous open each SYN is sent again, with an ACK.
                let allowed = u64::from(simultaneous);
                assert!(count(end, counter) <= allowed, "{}", counter.name());
            }
        }
        assert!(took_us < 100_000, "{took_us} us for 4 MB at 100 us");
    }
}

#[test]
fn simultaneous_open_and_close_under_loss() {
    for seed in 0..100 {
        let setup = Setup {
            simultaneous: true,
            link: LinkModel { loss: 200, jitter_us: 100, ..LinkModel::CLEAN },
            sends: [0, 0],
            seed,
            ..Setup::default()
        };
        setup.run();
    }
}

#[test]
fn random_everything() {
    for seed in 0..300u64 {
        let mut rng = Rng::new(seed * 7 + 5);
        let mut setup = Setup { seed, ..Setup::default() };
        for cfg in &mut setup.cfgs {
            cfg.sack = rng.per_mille(700);
            cfg.timestamps = rng.per_mille(700);
            cfg.window_scaling = rng.per_mille(700);
            cfg.nagle = rng.per_mille(300);
            cfg.mss = [64, 100, 536, 1460, 8960][rng.below(5) as usize];
            cfg.rcv_buf_bytes = [300, 5_000, 65_535, 1 << 20][rng.below(4) as usize];
            cfg.rcv_buffers_max = [1, 3, 20, 384][rng.below(4) as usize];
            cfg.snd_buf_bytes = [1, 2_000, 1 << 20][rng.below(3) as usize];
            cfg.snd_buf_max_bytes = 0;
            cfg.delack_us = [1, 1_000, 200_000][rng.below(3) as usize];
            cfg.max_stretch_segments = 1 + rng.below(16) as u8;
            cfg.congestion =
                [CongestionControl::Cubic, CongestionControl::NewReno, CongestionControl::Bbr]
                    [rng.below(3) as usize];
        }
        let delay_us = [0, 1, 20, 1_000, 50_000][rng.below(5) as usize];
        setup.link = LinkModel {
            delay_us,
            jitter_us: rng.below(delay_us + 1),
            loss: rng.below(200) as u32,
            duplicate: rng.below(100) as u32,
            reorder: rng.below(300) as u32,
            reorder_us: 1 + rng.below(4 * delay_us + 10),
            payload_max: usize::MAX,
        };
        setup.iss = [Seq(rng.next_u64() as u32), Seq(u32::MAX - rng.below(3_000) as u32)];
        setup.start_us = [1, (1 << 32) - 5_000, 4_294_967_295_000, 1 << 52][rng.below(4) as usize];
        setup.sends = [rng.below(20_000), rng.below(20_000)];
        setup.simultaneous = rng.per_mille(200);
        if setup.cfgs.iter().any(|cfg| cfg.snd_buf_bytes == 1 || cfg.rcv_buffers_max == 1) {
            // One octet or one buffer per round trip.
            setup.sends = [rng.below(300), rng.below(300)];
        }
        let mut network = setup.network();
        for end in [&mut network.left, &mut network.right] {
            end.app.write_max = [1, 100, 100_000][rng.below(3) as usize];
            end.app.read_max = [7, 1_000, u64::MAX][rng.below(3) as usize];
            end.app.read_every_us = rng.below(2_000);
            end.out.tx_fails = if rng.per_mille(300) { 100 } else { 0 };
        }
        println!("seed {seed} {setup:?} {:?} {:?}", network.left.app, network.right.app);
        finish(&mut network, 40_000 * SECOND_US);
    }
}

#[test]
fn round_trips_of_a_microsecond_and_less() {
    // gvisor#6113.
    for delay_us in [0, 1] {
        let link = LinkModel { delay_us, ..LinkModel::CLEAN };
        let (network, took_us) = Setup { link, ..Setup::default() }.run();
        assert!(took_us < 200_000, "{took_us}");
        assert_eq!(count(&network.left, TcpCounter::Rto), 0);
    }
}

#[test]
fn both_windows_closed_for_an_hour() {
    // lwIP livelocked with zero windows on both sides.
    let mut setup = Setup::default();
    for cfg in &mut setup.cfgs {
        cfg.rcv_buf_bytes = 4_000;
    }
    let mut network = setup.network();
    network.left.app.read_max = 0;
    network.right.app.read_max = 0;
    let hour_us = network.now_us + 3_600 * SECOND_US;
    let mut carried = Vec::new();
    network.filter = Some(Box::new(|_, _, _| false));
    let mut watch_us = network.now_us + 60 * SECOND_US;
    while network.now_us < hour_us {
        let at_us = watch_us;
        network.left.wake_us = at_us;
        network.run_until(hour_us + 100 * SECOND_US, |left, _| left.woken_us >= at_us);
        carried.push(network.carried);
        watch_us += 60 * SECOND_US;
    }
    assert_eq!(network.left.state(), State::Established);
    assert_eq!(network.right.state(), State::Established);
    let last_half_hour = carried[59] - carried[29];
    assert!((30..400).contains(&last_half_hour), "{last_half_hour} segments in half an hour");
    network.left.app.read_max = u64::MAX;
    network.right.app.read_max = u64::MAX;
    let now_us = network.now_us;
    network.left.wake_us = now_us;
    network.right.wake_us = now_us;
    let took_us = finish(&mut network, 200 * SECOND_US);
    assert!(took_us < 5 * SECOND_US, "{took_us} us after both windows opened");
}

#[test]
fn a_blind_attacker_changes_nothing() {
    // RFC 5961: a host that does not know the numbers cannot stop, delay or end the connection.
    for seed in 0..20 {
        let setup = Setup { sends: [300_000, 300_000], seed, ..Setup::default() };
        let quiet_us = setup.run().1;
        let mut network = setup.network();
        let mut rng = Rng::new(seed + 99);
        network.inject = Some(Box::new(move |real: &Segment| {
            if real.hdr.flags.contains(TcpFlags::SYN) {
                return None; // which of the two replies to a SYN comes first is another question
            }
            let flags =
                [TcpFlags::RST, TcpFlags::SYN, TcpFlags::ACK, TcpFlags::RST | TcpFlags::ACK]
                    [rng.below(4) as usize];
            let mut forged = Segment { hdr: real.hdr, payload: Vec::new() };
            forged.hdr.flags = flags;
            forged.hdr.seq = Seq(rng.next_u64() as u32);
            forged.hdr.ack = Seq(rng.next_u64() as u32);
            if rng.per_mille(500) {
                forged.hdr.options.timestamp = Some((rng.next_u64() as u32, rng.next_u64() as u32));
            }
            Some(forged)
        }));
        for end in [&mut network.left, &mut network.right] {
            end.out.audit.hostile_peer = true;
        }
        let took_us = finish(&mut network, 600 * SECOND_US);
        assert!(took_us <= 2 * quiet_us + 200_000, "{took_us} against {quiet_us}");
    }
}

#[test]
fn a_path_with_a_smaller_mtu_says_so() {
    // RFC 1191: big segments vanish, the router tells; the stream goes on at once.
    for mtu in [600u16, 1_006, 1_400] {
        let setup = Setup {
            link: LinkModel { payload_max: usize::from(mtu) - 52, ..LinkModel::CLEAN },
            ..Setup::default()
        };
        let mut network = setup.network();
        network.too_big = Some(mtu);
        let took_us = finish(&mut network, 60 * SECOND_US);
        assert!(took_us < SECOND_US, "{took_us} us with an MTU of {mtu}");
        assert!(count(&network.left, TcpCounter::PmtuReduced) > 0);
    }
}

#[test]
fn loss_costs_time_but_not_much_of_it() {
    // One in a hundred, each option set: never a crawl (a megabyte at 1 ms and 1 % in seconds).
    for (sack, timestamps) in [(true, true), (true, false), (false, true), (false, false)] {
        for congestion in
            [CongestionControl::Cubic, CongestionControl::NewReno, CongestionControl::Bbr]
        {
            let mut setup = Setup {
                link: LinkModel { delay_us: 500, loss: 10, ..LinkModel::CLEAN },
                sends: [1_000_000, 0],
                seed: 3,
                ..Setup::default()
            };
            for cfg in &mut setup.cfgs {
                (cfg.sack, cfg.timestamps, cfg.congestion) = (sack, timestamps, congestion);
            }
            let took_us = setup.run().1;
            assert!(took_us < 3 * SECOND_US, "{took_us} us, sack {sack}, {congestion:?}");
        }
    }
}

#[test]
fn reordering_alone_is_no_loss() {
    // RACK waits a quarter of a round trip; tailscale#20893.
    let setup = Setup {
        link: LinkModel { delay_us: 1_000, reorder: 100, reorder_us: 200, ..LinkModel::CLEAN },
        sends: [2_000_000, 0],
        ..Setup::default()
    };
    let (network, _) = setup.run();
    let sent = network.left.out.audit.segments;
    let again = count(&network.left, TcpCounter::Retransmits);
    assert!(again * 50 <= sent, "{again} of {sent} sent again");
    assert_eq!(count(&network.left, TcpCounter::Rto), 0);
}

#[test]
fn abort_in_the_middle_of_everything() {
    for seed in 0..50u64 {
        let setup = Setup {
            link: LinkModel { loss: 50, reorder: 100, reorder_us: 500, ..LinkModel::CLEAN },
            seed,
            ..Setup::default()
        };
        let mut network = setup.network();
        let half = 1 + seed * 2_000;
        network.run_until(600 * SECOND_US, |_, right| right.out.delivered >= half);
        let now_us = network.now_us;
        network.left.with(|tcb, cfg, out| tcb.abort(cfg, now_us, out));
        network.left.out.closed = true;
        network.left.app.sends = network.left.out.appended;
        network.left.out.shut = true;
        assert_eq!(network.left.state(), State::Closed);
        network.left.finish();
        network.left.gone = true;
        // The reset may be lost; then the next segment causes another.
        network.run_until(now_us + 1_000 * SECOND_US, |_, right| right.out.dead.is_some());
        assert_eq!(network.right.out.dead, Some(DeadReason::Reset));
        network.right.finish();
    }
}
