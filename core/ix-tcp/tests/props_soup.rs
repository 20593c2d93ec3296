//! Random segments, calls and errors in every state. Nothing panics, every buffer is freed, every
//! segment sent is one that a correct TCP may send, and timers come to an end.

use ix_tcp::{Config, CongestionControl, PathError, State, TcpCounter};
use ix_tcp_rig::lab::{Lab, PEER_SEED, Peer, STATES};
use ix_tcp_rig::{Segment, bytes_at};
use ix_wire::{SackBlocks, Seq, TcpFlags, TcpHeader, TcpOptions};
use proptest::prelude::*;

/// A sequence number near something that matters, or anywhere.
#[derive(Clone, Copy, Debug)]
enum Near {
    /// The next sequence number of the peer's stream, or the one that we expect.
    Expected(i32),
    /// The right edge of our window.
    Edge(i32),
    /// Oldest and newest of what we have sent.
    Una(i32),
    Max(i32),
    Anywhere(u32),
}

fn near() -> impl Strategy<Value = Near> {
    let small = prop_oneof![4 => -3i32..4, 2 => -3000i32..3000, 1 => -200_000i32..200_000];
    (0u8..9, small, any::<u32>()).prop_map(|(which, offset, anywhere)| match which {
        0..3 => Near::Expected(offset),
        3 => Near::Edge(offset),
        4 | 5 => Near::Una(offset),
        6 | 7 => Near::Max(offset),
        _ => Near::Anywhere(anywhere),
    })
}

#[derive(Clone, Debug)]
struct Soup {
    flags: TcpFlags,
    seq: Near,
    ack: Near,
    len: usize,
    window: u16,
    timestamp: Option<(i32, i32)>,
    sack: Vec<(Near, Near)>,
    syn_options: bool,
}

fn soup() -> impl Strategy<Value = Soup> {
    let flags = prop_oneof![
        6 => Just(TcpFlags::ACK),
        2 => Just(TcpFlags::ACK | TcpFlags::FIN),
        1 => Just(TcpFlags::SYN | TcpFlags::ACK),
        1 => Just(TcpFlags::SYN),
        1 => Just(TcpFlags::RST),
        1 => (0u16..512).prop_map(TcpFlags),
    ];
    // In order and of an acceptable age, often enough to get anywhere.
    let seq = prop_oneof![3 => Just(Near::Expected(0)), 2 => near()];
    let ack = prop_oneof![2 => Just(Near::Max(0)), 1 => Just(Near::Una(0)), 2 => near()];
    let len = prop_oneof![3 => Just(0usize), 2 => 1usize..100, 2 => 1usize..3000];
    let window = prop_oneof![Just(0u16), Just(65_535), any::<u16>()];
    let stamp = prop_oneof![4 => Just(Some((1, 0))), 1 => (any::<i32>(), any::<i32>()).prop_map(Some),
        1 => Just(None)];
    let sack = proptest::collection::vec((near(), near()), 0..4);
    (flags, seq, ack, len, window, stamp, sack, any::<bool>()).prop_map(
        |(flags, seq, ack, len, window, timestamp, sack, syn_options)| Soup {
            flags,
            seq,
            ack,
            len,
            window,
            timestamp,
            sack,
            syn_options,
        },
    )
}

/// Segments of a peer that is only confused: in the window, acknowledging what is in flight, with
/// SACK blocks inside it. They get far where purely random segments end early.
fn confused() -> impl Strategy<Value = Soup> {
    let seq = prop_oneof![4 => Just(0i32), 2 => 1..20_000i32, 1 => -3_000..0i32];
    let ack = prop_oneof![
        3 => Just(Near::Una(0)),
        2 => (1..5_000i32).prop_map(Near::Una),
        1 => Just(Near::Max(0)),
    ];
    let len = prop_oneof![4 => Just(0usize), 1 => 1usize..1461];
    let window = prop_oneof![1 => Just(0u16), 4 => Just(65_535), 1 => any::<u16>()];
    let block = (0..30_000i32, 1..10_000i32)
        .prop_map(|(left, len)| (Near::Una(left), Near::Una(left + len)));
    let up_to_max = (0..30_000i32).prop_map(|left| (Near::Una(left), Near::Max(0)));
    let sack = proptest::collection::vec(prop_oneof![3 => block, 1 => up_to_max], 0..4);
    (seq, ack, len, window, sack).prop_map(|(seq, ack, len, window, sack)| Soup {
        flags: TcpFlags::ACK,
        seq: Near::Expected(seq),
        ack,
        len,
        window,
        timestamp: Some((1, 0)),
        sack,
        syn_options: false,
    })
}

#[derive(Clone, Debug)]
enum Step {
    Segment(Soup),
    Output,
    Wait(u64),
    Append(u64),
    Read(u64),
    Shutdown,
    Close,
    Abort,
    Icmp(PathError, Option<Near>),
    TransmitFails(u32),
    /// Other flows need memory, or no longer do.
    Share(u32),
}

fn state() -> impl Strategy<Value = usize> {
    let established = STATES.iter().position(|state| *state == State::Established);
    prop_oneof![Just(established.unwrap_or(0)), 0..STATES.len()]
}

fn steps(max: usize) -> impl Strategy<Value = Vec<Step>> {
    prop_oneof![
        proptest::collection::vec(step(soup().boxed(), 1), 0..max),
        proptest::collection::vec(step(confused().boxed(), 0), 0..max),
    ]
}

fn step(soup: BoxedStrategy<Soup>, ends: u32) -> impl Strategy<Value = Step> {
    let error = prop_oneof![
        any::<u16>().prop_map(|mtu| PathError::FragNeeded { mtu }),
        Just(PathError::Soft),
        Just(PathError::Hard),
    ];
    prop_oneof![
        24 => soup.prop_map(Step::Segment),
        8 => Just(Step::Output),
        6 => prop_oneof![5 => 0u64..3_000, 1 => (0u64..1 << 27).prop_map(|us| us >> (us % 24))]
            .prop_map(Step::Wait),
        6 => (1u64..30_000).prop_map(Step::Append),
        4 => (1u64..30_000).prop_map(Step::Read),
        ends => Just(Step::Shutdown),
        ends => Just(Step::Close),
        1 => prop_oneof![20 => Just(Step::Output), ends => Just(Step::Abort)],
        2 => (error, proptest::option::of(prop_oneof![near(), (0..3_000i32).prop_map(Near::Una)])).prop_map(|(error, seq)| Step::Icmp(error, seq)),
        2 => prop_oneof![
            1 => prop_oneof![6 => Just(0u32), 1 => Just(300), 1 => Just(1000)]
                .prop_map(Step::TransmitFails),
            1 => prop_oneof![Just(2u32), Just(u32::MAX)].prop_map(Step::Share),
        ],
    ]
}

fn config() -> impl Strategy<Value = Config> {
    (
        any::<[bool; 5]>(),
        prop_oneof![Just(1460u16), Just(536), Just(9000), 64u16..2000],
        prop_oneof![Just(512u32 << 10), 500u32..20_000, Just(1 << 24)],
        prop_oneof![Just(384u32), 1u32..20],
        prop_oneof![Just(0u16), 1u16..100],
    )
        .prop_map(|(flags, mss, rcv_buf_bytes, rcv_buffers_max, keepalive_idle_s)| Config {
            mss,
            rcv_buf_bytes,
            rcv_buffers_max,
            keepalive_idle_s,
            sack: flags[0],
            timestamps: flags[1],
            window_scaling: flags[2],
            nagle: flags[3],
            congestion: match (flags[4], mss % 3) {
                (true, _) => CongestionControl::Cubic,
                (false, 0) => CongestionControl::NewReno,
                (false, _) => CongestionControl::Bbr,
            },
            ..Config::default()
        })
}

fn peer() -> impl Strategy<Value = Peer> {
    let seqs = prop_oneof![any::<u32>(), Just(u32::MAX - 2), Just(0u32)];
    (
        any::<[bool; 3]>(),
        seqs.clone(),
        seqs,
        prop_oneof![Just(None), Just(Some(1460u16)), any::<u16>().prop_map(Some)],
        0u8..=14,
        any::<u16>(),
    )
        .prop_map(|(flags, irs, iss, mss, shift, window)| Peer {
            irs: Seq(irs),
            iss: Seq(iss),
            window,
            start_us: 1_000_000,
            options: TcpOptions {
                mss,
                window_scale: flags[0].then_some(shift),
                sack_permitted: flags[1],
                timestamp: flags[2].then_some((1_000, 0)),
                ..TcpOptions::NONE
            },
        })
}

struct Pot {
    lab: Lab,
    /// The next number of the endpoint's receive stream, as far as it can be seen from outside.
    last_edge: Seq,
}

impl Pot {
    fn resolve(&self, near: Near) -> Seq {
        let out = &self.lab.end.out;
        let delivered = out.delivered as u32 + u32::from(out.eof);
        match near {
            Near::Expected(offset) => self.lab.peer.irs + 1 + delivered + offset as u32,
            Near::Edge(offset) => out.audit.window_edge().unwrap_or(self.last_edge) + offset as u32,
            Near::Una(offset) => self.lab.peer.iss + 1 + out.acked as u32 + offset as u32,
            Near::Max(offset) => out.audit.snd_max() + offset as u32,
            Near::Anywhere(seq) => Seq(seq),
        }
    }

    fn segment(&mut self, soup: &Soup) {
        let seq = self.resolve(soup.seq);
        let mut sack = SackBlocks::EMPTY;
        for &(left, right) in &soup.sack {
            sack.push(self.resolve(left), self.resolve(right));
        }
        let base = self.lab.end.out.audit.last_tsval().unwrap_or(0);
        let timestamp = soup.timestamp.map(|(val, ecr)| {
            (self.lab.tsval.wrapping_add(val as u32), base.wrapping_add(ecr as u32))
        });
        let mut options = TcpOptions { timestamp, sack, ..TcpOptions::NONE };
        if soup.syn_options {
            options.mss = Some(soup.window);
            options.window_scale = Some(soup.window as u8);
            options.sack_permitted = true;
        }
        let hdr = TcpHeader {
            seq,
            ack: self.resolve(soup.ack),
            window: soup.window,
            urgent: soup.window,
            options,
            ..self.lab.header(soup.flags)
        };
        let data_seq = seq + u32::from(soup.flags.contains(TcpFlags::SYN));
        let payload = bytes_at(PEER_SEED, data_seq, soup.len);
        self.lab.end.segment(&Segment { hdr, payload }, self.lab.now_us);
        if self.lab.end.out.irs.is_none() {
            return;
        }
        // The stream is that of the SYN that the endpoint accepted.
        self.lab.peer.irs = self.lab.end.out.irs.unwrap_or(self.lab.peer.irs);
    }

    fn step(&mut self, step: &Step) {
        let now_us = self.lab.now_us;
        let open = self.lab.end.out.dead.is_none() && !self.lab.end.out.closed;
        match step {
            Step::Segment(soup) => self.segment(soup),
            Step::Output => self.lab.end.output(now_us),
            Step::Wait(us) => self.wait(*us),
            Step::Append(bytes) if open && !self.lab.end.out.shut => {
                self.lab.end.append(*bytes);
            }
            Step::Read(bytes) if open => {
                self.lab.end.read(*bytes);
            }
            Step::Shutdown if open => self.lab.end.shutdown(now_us),
            Step::Close if open => self.lab.end.close(now_us),
            Step::Abort => {
                self.lab.end.with(|tcb, cfg, out| tcb.abort(cfg, now_us, out));
                self.lab.end.out.closed = true;
            }
            Step::Icmp(error, near) => {
                let seq = near.map(|near| self.resolve(near));
                self.lab.end.with(|tcb, cfg, out| {
                    tcb.icmp_error(cfg, now_us, *error, seq, out);
                });
            }
            Step::TransmitFails(rate) => self.lab.end.out.tx_fails = *rate,
            Step::Share(buffers) => self.lab.end.out.cfg.rcv_share = *buffers,
            _ => {}
        }
        if self.lab.end.tcb.as_ref().is_some_and(|tcb| tcb.is_dead()) {
            let tcb = self.lab.end.tcb.as_ref().unwrap();
            assert_eq!(tcb.deadline(), u64::MAX, "a dead connection has timers");
            assert!(!tcb.needs_output());
        }
        self.lab.take();
    }

    /// As `Lab::wait`, but without transmit buffers a timer may have to be asked again.
    fn wait(&mut self, us: u64) {
        let until_us = self.lab.now_us + us;
        let mut turns = 0;
        while let Some(tcb) = &self.lab.end.tcb
            && tcb.deadline() <= until_us
        {
            turns += 1;
            assert!(turns < 20_000, "timers without end");
            self.lab.now_us = self.lab.now_us.max(tcb.deadline());
            let now_us = self.lab.now_us;
            self.lab.end.with(|tcb, cfg, out| {
                tcb.timer(cfg, now_us, out);
                tcb.output(cfg, now_us, out);
            });
            let tcb = self.lab.end.tcb.as_ref().unwrap();
            assert!(
                tcb.deadline() > now_us || turns < 10_000,
                "timer stays due at {now_us} in {:?}",
                tcb.state()
            );
            self.lab.take();
        }
        self.lab.now_us = until_us;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_soup_in_any_state(
        config in config(),
        peer in peer(),
        state in state(),
        start_us in prop_oneof![Just(0u64), Just(u64::from(u32::MAX) - 1000), 0u64..1 << 50],
        steps in steps(120),
    ) {
        let mut lab = Lab::in_state(config, Peer { start_us, ..peer }, STATES[state]);
        lab.end.out.audit.hostile_peer = true;
        let last_edge = lab.peer.irs;
        let mut pot = Pot { lab, last_edge };
        for step in &steps {
            pot.step(step);
        }
        pot.lab.end.finish();
    }

    /// A peer that is silent forever must not keep alive a connection that owes it something, or
    /// that no application uses.
    #[test]
    fn silence_after_any_soup_ends_what_is_owed(
        config in config(),
        peer in peer(),
        state in state(),
        steps in steps(60),
    ) {
        let mut lab = Lab::in_state(config, peer, STATES[state]);
        lab.end.out.audit.hostile_peer = true;
        let last_edge = lab.peer.irs;
        let mut pot = Pot { lab, last_edge };
        for step in &steps {
            pot.step(step);
        }
        pot.lab.end.out.tx_fails = 0;
        let now_us = pot.lab.now_us;
        pot.lab.end.output(now_us);
        pot.lab.take();
        pot.wait(2_000_000_000);
        let state = pot.lab.state();
        let out = &pot.lab.end.out;
        let owes = out.acked < out.appended
            || !matches!(state, State::Established | State::CloseWait | State::FinWait2);
        if owes || out.closed {
            prop_assert!(state == State::Closed, "{:?} after silence, {} of {}", state, out.acked, out.appended);
        }
        pot.lab.end.finish();
    }
}

/// A test of the test: the random segments reach nearly everything that is counted.
#[test]
fn the_soup_reaches_the_rare_paths() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let case = (config(), peer(), state(), steps(120));
    let mut totals = vec![0u64; TcpCounter::COUNT];
    for _ in 0..3_000 {
        let (config, peer, state, steps) = case.new_tree(&mut runner).unwrap().current();
        let mut lab = Lab::in_state(config, peer, STATES[state]);
        lab.end.out.audit.hostile_peer = true;
        let last_edge = lab.peer.irs;
        let mut pot = Pot { lab, last_edge };
        for step in &steps {
            pot.step(step);
        }
        for (counter, count) in pot.lab.end.out.stats.iter() {
            totals[counter.index()] += count;
        }
        pot.lab.end.finish();
    }
    // No random packet is marked.
    let marks = [TcpCounter::CeReceived, TcpCounter::EcnReductions, TcpCounter::EcnMangled];
    // Memory is the dataplane's, which resets those that hold it.
    let elsewhere = [TcpCounter::ResetForBuffers, TcpCounter::ResetForNumbers];
    let missed: Vec<_> = TcpCounter::ALL
        .iter()
        .filter(|counter| totals[counter.index()] == 0)
        .filter(|counter| !marks.contains(counter) && !elsewhere.contains(counter))
        .collect();
    // One is so rare that it depends on the seed; another test covers it.
    assert!(missed.len() <= 1, "never happened: {missed:?}");
}
