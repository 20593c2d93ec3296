//! Streams between the core and an independent, primitive TCP: each combination of options, each
//! kind of link, each side opening.

use ix_tcp::{Config, DeadReason, State};
use ix_tcp_rig::model_peer::{ModelConfig, ModelPeer};
use ix_tcp_rig::{Endpoint, LinkModel, Network, Rng, reversed, tuple};
use ix_wire::Seq;

const LOSSY: LinkModel =
    LinkModel { loss: 50, duplicate: 20, reorder: 50, reorder_us: 3_000, ..LinkModel::CLEAN };
const TERRIBLE: LinkModel = LinkModel {
    delay_us: 2_000,
    jitter_us: 1_500,
    loss: 250,
    duplicate: 100,
    reorder: 200,
    reorder_us: 30_000,
    ..LinkModel::CLEAN
};

struct Case {
    cfg: Config,
    model: ModelConfig,
    link: LinkModel,
    sends: u64,
    seed: u64,
    iss: (Seq, Seq),
    start_us: u64,
}

impl Case {
    fn new(model: ModelConfig, link: LinkModel, seed: u64) -> Case {
        let iss = (Seq(0xffff_f000), Seq(0xffff_ff00));
        // No end gives up because of many losses in a row.
        let cfg = Config { time_wait_us: 1_000_000, r2_us: u32::MAX, ..Config::default() };
        Case { cfg, model, link, sends: 100_000, seed, iss, start_us: 1_000_000 }
    }

    /// Streams both ways to the end; returns the virtual time that it took.
    fn run(self) -> (Network<Endpoint, ModelPeer>, u64) {
        let (own, peer) = (0xaaaa, 0x5555);
        let model = ModelPeer::new(self.model.clone(), reversed(&tuple()), self.iss.1, (peer, own));
        let mut end = if self.model.active {
            Endpoint::listen(self.cfg, tuple(), self.iss.0, own, peer)
        } else {
            Endpoint::connect(self.cfg, tuple(), self.iss.0, own, peer, self.start_us)
        };
        end.app.sends = self.sends;
        let mut network = Network::new(end, model, self.link, self.seed, self.start_us);
        let limit_us = self.start_us + 3_600_000_000;
        let now_us = network.run_until(limit_us, |end, model| {
            model.finished() && end.tcb.as_ref().is_some_and(|tcb| tcb.is_dead())
        });
        assert_eq!(network.left.out.delivered, self.model.sends);
        assert_eq!(network.right.received, self.sends);
        assert_eq!(network.left.out.acked, self.sends);
        assert!(network.left.out.eof);
        assert_eq!(network.left.out.dead, Some(DeadReason::Closed));
        assert!(!network.right.reset, "an orderly close was reset");
        network.left.finish();
        (network, now_us - self.start_us)
    }
}

fn options() -> impl Iterator<Item = ModelConfig> {
    (0..16u32).map(|bits| ModelConfig {
        active: bits & 1 != 0,
        sack: bits & 2 != 0,
        timestamps: bits & 4 != 0,
        window_scale: (bits & 8 != 0).then_some(7),
        sends: 60_000,
        ..ModelConfig::default()
    })
}

#[test]
fn the_model_understands_itself() {
    // A test of the test: two models, no core.
    for seed in 0..20 {
        let cfg = ModelConfig { sends: 50_000, ..ModelConfig::default() };
        let passive = ModelConfig { active: false, ..cfg.clone() };
        let left = ModelPeer::new(cfg, tuple(), Seq(u32::MAX - 10), (1, 2));
        let right = ModelPeer::new(passive, reversed(&tuple()), Seq(5), (2, 1));
        let mut network = Network::new(left, right, LOSSY, seed, 0);
        network.run_until(600_000_000, |left, right| left.finished() && right.finished());
        assert_eq!((network.left.received, network.right.received), (50_000, 50_000));
    }
}

#[test]
fn every_combination_of_options_on_a_clean_link() {
    for model in options() {
        let (network, took_us) = Case::new(model.clone(), LinkModel::CLEAN, 1).run();
        let stats = &network.left.out.stats;
        assert_eq!(stats.get(ix_tcp::TcpCounter::Retransmits), 0, "{model:?}");
        assert!(took_us < 2_500_000, "{took_us} us, {model:?}");
    }
}

#[test]
fn every_combination_of_options_on_a_lossy_link() {
    for (index, model) in options().enumerate() {
        for seed in 0..4 {
            Case::new(model.clone(), LOSSY, 100 * index as u64 + seed).run();
        }
    }
}

#[test]
fn every_combination_of_options_on_a_terrible_link() {
    for (index, model) in options().enumerate() {
        let mut case = Case::new(model, TERRIBLE, 1000 + index as u64);
        case.sends = 20_000;
        case.model.sends = 20_000;
        case.run();
    }
}

#[test]
fn new_reno_and_cubic() {
    for (_, congestion) in ix_tcp::CongestionControl::ALL {
        for sack in [false, true] {
            let model = ModelConfig { sack, sends: 1000, ..ModelConfig::default() };
            let mut case = Case::new(model, LOSSY, 77);
            case.cfg.congestion = congestion;
            case.sends = 300_000;
            case.run();
        }
    }
}

#[test]
fn a_peer_that_keeps_nothing_out_of_order() {
    for seed in 0..8 {
        let model = ModelConfig {
            sack: false,
            keeps_out_of_order: false,
            sends: 10_000,
            ..ModelConfig::default()
        };
        Case::new(model, LOSSY, seed).run();
    }
}

#[test]
fn a_peer_that_delays_its_acknowledgements() {
    for seed in 0..4 {
        let model = ModelConfig { delayed_ack_us: 40_000, sends: 10_000, ..ModelConfig::default() };
        let clean = Case::new(model.clone(), LinkModel::CLEAN, seed).run().0;
        // Its delay is longer than our minimum timeout, and still no loss.
        assert_eq!(clean.left.out.stats.get(ix_tcp::TcpCounter::Rto), 0);
        Case::new(model, LOSSY, seed).run();
    }
}

#[test]
fn segments_from_tiny_to_none_said() {
    for mss in [None, Some(1), Some(64), Some(88), Some(536), Some(9000)] {
        for link in [LinkModel::CLEAN, LOSSY] {
            let model = ModelConfig { mss, sends: 10_000, ..ModelConfig::default() };
            let mut case = Case::new(model, link, 5);
            case.sends = 20_000;
            case.run();
        }
    }
}

#[test]
fn windows_from_one_octet_to_the_largest_scale() {
    for (buffer_bytes, window_scale) in [
        (1, None),
        (1, Some(0)),
        (100, Some(0)),
        (1460, None),
        (2921, Some(1)),
        (65_535, None),
        (1 << 20, Some(14)),
        (1 << 30, Some(14)),
    ] {
        let model = ModelConfig { buffer_bytes, window_scale, sends: 5_000, ..Default::default() };
        let mut case = Case::new(model, LinkModel::CLEAN, 9);
        case.sends = if buffer_bytes < 1000 { 200 } else { 200_000 };
        case.run();
    }
}

#[test]
fn a_slow_reader_closes_its_window_again_and_again() {
    for (seed, link) in [LinkModel::CLEAN, LOSSY, TERRIBLE].into_iter().enumerate() {
        let model = ModelConfig {
            buffer_bytes: 8_000,
            read_bytes: 3_000,
            read_every_us: 50_000,
            sends: 1_000,
            ..ModelConfig::default()
        };
        let mut case = Case::new(model, link, seed as u64);
        case.sends = 60_000;
        case.run();
    }
}

#[test]
fn silly_windows_do_not_make_silly_segments() {
    // RFC 9293 section 3.8.6.2.1: a peer that offers each freed octet.
    let model = ModelConfig {
        buffer_bytes: 8_000,
        read_bytes: 10,
        read_every_us: 100,
        silly_window: true,
        sends: 0,
        ..ModelConfig::default()
    };
    let mut case = Case::new(model, LinkModel::CLEAN, 3);
    case.sends = 60_000;
    let (network, _) = case.run();
    let segments = network.left.out.audit.segments;
    assert!(segments < 300, "{segments} segments for 60000 bytes");
}

#[test]
fn a_peer_that_takes_back_its_window() {
    for seed in 0..8 {
        let model = ModelConfig {
            shrinks_window: true,
            buffer_bytes: 20_000,
            read_bytes: 5_000,
            read_every_us: 3_000,
            sends: 5_000,
            ..ModelConfig::default()
        };
        Case::new(model, LOSSY, seed).run();
    }
}

#[test]
fn our_own_reader_is_slow() {
    for (seed, read_max) in [1u64, 100, 1460, 5_000].into_iter().enumerate() {
        let model = ModelConfig { sends: 30_000, ..ModelConfig::default() };
        let mut case = Case::new(model, LOSSY, seed as u64);
        case.cfg.rcv_buf_bytes = 6_000;
        case.sends = 1_000;
        let (own, peer) = (0xaaaa, 0x5555);
        let model = ModelPeer::new(case.model.clone(), reversed(&tuple()), case.iss.1, (peer, own));
        let mut end = Endpoint::listen(case.cfg, tuple(), case.iss.0, own, peer);
        end.app.sends = case.sends;
        end.app.read_max = read_max;
        end.app.read_every_us = 500;
        let mut network = Network::new(end, model, case.link, case.seed, case.start_us);
        network.run_until(3_600_000_000, |end, model| {
            model.finished() && end.out.held.is_empty() && end.out.eof
        });
        assert_eq!(network.left.out.delivered, 30_000);
        network.left.finish();
    }
}

#[test]
fn few_buffers_for_small_segments() {
    // Windows are charged by buffers: many small segments must not deadlock.
    let model = ModelConfig { in_flight_max: 200, sends: 50_000, ..ModelConfig::default() };
    let mut case = Case::new(model, LOSSY, 4);
    case.cfg.rcv_buffers_max = 4;
    case.run();
}

#[test]
fn random_everything() {
    for seed in 0..600u64 {
        let mut rng = Rng::new(seed + 1);
        let pick = |rng: &mut Rng, of: &[u64]| of[rng.below(of.len() as u64) as usize];
        let model = ModelConfig {
            active: rng.per_mille(500),
            mss: [None, Some(100), Some(536), Some(1460)][rng.below(4) as usize],
            window_scale: [None, Some(0), Some(3), Some(14)][rng.below(4) as usize],
            sack: rng.per_mille(500),
            timestamps: rng.per_mille(500),
            buffer_bytes: pick(&mut rng, &[700, 3_000, 20_000, 60_000]) as u32,
            keeps_out_of_order: rng.per_mille(800),
            delayed_ack_us: pick(&mut rng, &[0, 1_000, 40_000]),
            shrinks_window: rng.per_mille(100),
            sends: rng.below(20_000),
            in_flight_max: pick(&mut rng, &[100, 3_000, 20_000]) as u32,
            ..ModelConfig::default()
        };
        let link = LinkModel {
            delay_us: rng.below(3_000),
            jitter_us: rng.below(500),
            loss: rng.below(150) as u32,
            duplicate: rng.below(100) as u32,
            reorder: rng.below(200) as u32,
            reorder_us: rng.below(10_000),
            payload_max: usize::MAX,
        };
        let mut case = Case::new(model, link, seed);
        case.sends = rng.below(40_000);
        case.iss = (Seq(rng.next_u64() as u32), Seq(rng.next_u64() as u32));
        case.start_us = pick(&mut rng, &[1, 4_294_000_000, 4_294_967_295_000, 1 << 50]);
        case.cfg.delack_us = pick(&mut rng, &[1, 1_000, 100_000]) as u32;
        case.cfg.rcv_buf_bytes = pick(&mut rng, &[2_000, 30_000, 500_000]) as u32;
        case.cfg.nagle = rng.per_mille(500);
        case.cfg.sack = rng.per_mille(800);
        case.cfg.timestamps = rng.per_mille(800);
        case.cfg.window_scaling = rng.per_mille(800);
        if case.model.window_scale == Some(14) {
            // Below a unit of its scale a peer could only ever offer nothing.
            case.model.buffer_bytes = 100_000;
        }
        println!("seed {seed}: {:?} {:?} {:?}", case.model, case.link, case.cfg);
        case.run();
    }
}

#[test]
fn nothing_is_left_of_a_finished_connection() {
    let (network, _) = Case::new(ModelConfig::default(), LinkModel::CLEAN, 1).run();
    assert_eq!(network.left.state(), State::Closed);
}
