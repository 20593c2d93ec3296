//! A network of two nodes in virtual time: loss, reordering, duplication, delay, all from a seed.
use super::{Rng, Segment};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something with a TCP inside.
pub trait Node {
    /// A segment arrives.
    fn arrive(&mut self, segment: &Segment, now_us: u64);
    /// Timers that are due, the application, output.
    fn turn(&mut self, now_us: u64);
    /// When it wants its next turn even if nothing arrives.
    fn next_turn_us(&self) -> u64;
    /// Takes what it has sent.
    fn take_sent(&mut self) -> Vec<Segment>;
    /// A router answers `segment` with "fragmentation needed".
    fn too_big(&mut self, _segment: &Segment, _mtu: u16, _now_us: u64) {}
}

/// What the link does to segments. Rates are per mille.
#[derive(Clone, Copy, Debug)]
pub struct LinkModel {
    /// Delay of each segment, µs.
    pub delay_us: u64,
    /// Up to so much more, µs.
    pub jitter_us: u64,
    /// Segments that are lost.
    pub loss: u32,
    /// Segments that arrive twice.
    pub duplicate: u32,
    /// Segments that are held back.
    pub reorder: u32,
    /// Extra delay of a reordered segment.
    pub reorder_us: u64,
    /// Segments with more payload than this vanish (a path MTU black hole).
    pub payload_max: usize,
}

impl LinkModel {
    /// A link that only delays.
    pub const CLEAN: LinkModel = LinkModel {
        delay_us: 50,
        jitter_us: 0,
        loss: 0,
        duplicate: 0,
        reorder: 0,
        reorder_us: 0,
        payload_max: usize::MAX,
    };
}

struct Flying {
    segment: Segment,
    to_right: bool,
}

/// Two nodes and what is on its way between them.
pub struct Network<L, R> {
    /// The node on the left.
    pub left: L,
    /// The node on the right.
    pub right: R,
    /// What the link between them does.
    pub model: LinkModel,
    /// Virtual time, µs.
    pub now_us: u64,
    /// Called with each segment before it flies: true drops it.
    #[allow(clippy::type_complexity)]
    pub filter: Option<Box<dyn FnMut(&mut Segment, bool, u64) -> bool>>,
    /// Makes a forged segment that arrives with each real one.
    #[allow(clippy::type_complexity)]
    pub inject: Option<Box<dyn FnMut(&Segment) -> Option<Segment>>>,
    /// MTU that a router names when a segment exceeds `payload_max`.
    pub too_big: Option<u16>,
    rng: Rng,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    flying: Vec<Option<Flying>>,
    order: u64,
    /// Segments that arrived.
    pub carried: u64,
}

impl<L: Node, R: Node> Network<L, R> {
    /// Two nodes on a link whose faults follow from the seed.
    pub fn new(left: L, right: R, model: LinkModel, seed: u64, now_us: u64) -> Self {
        Network {
            left,
            right,
            model,
            now_us,
            filter: None,
            inject: None,
            too_big: None,
            rng: Rng::new(seed),
            queue: BinaryHeap::new(),
            flying: Vec::new(),
            order: 0,
            carried: 0,
        }
    }

    /// Runs until `done`, or panics at `deadline_us`. Returns the time.
    pub fn run_until(&mut self, deadline_us: u64, mut done: impl FnMut(&L, &R) -> bool) -> u64 {
        self.turns();
        let (mut same_instant, mut last_us) = (0, self.now_us);
        while !done(&self.left, &self.right) {
            let arrival_us = self.queue.peek().map_or(u64::MAX, |Reverse((at_us, ..))| *at_us);
            let turn_us = self.left.next_turn_us().min(self.right.next_turn_us());
            let next_us = arrival_us.min(turn_us).max(self.now_us);
            assert!(next_us != u64::MAX, "stalled for ever at {} us", self.now_us);
            assert!(next_us <= deadline_us, "not done at {} us", self.now_us);
            same_instant = if next_us == last_us { same_instant + 1 } else { 0 };
            assert!(same_instant < 100_000, "the clock stands still at {next_us} us");
            (last_us, self.now_us) = (next_us, next_us);
            self.arrivals();
            self.turns();
        }
        self.now_us
    }

    fn arrivals(&mut self) {
        while let Some(&Reverse((at_us, _, index))) = self.queue.peek() {
            if at_us > self.now_us {
                break;
            }
            self.queue.pop();
            let flying = self.flying[index].take().expect("flies once");
            if flying.to_right {
                self.right.arrive(&flying.segment, self.now_us);
            } else {
                self.left.arrive(&flying.segment, self.now_us);
            }
        }
        if self.queue.is_empty() {
            self.flying.clear();
        }
    }

    fn turns(&mut self) {
        self.left.turn(self.now_us);
        for segment in self.left.take_sent() {
            self.send(segment, true);
        }
        self.right.turn(self.now_us);
        for segment in self.right.take_sent() {
            self.send(segment, false);
        }
    }

    fn send(&mut self, mut segment: Segment, to_right: bool) {
        self.carried += 1;
        assert!(self.carried < 5_000_000, "a storm of segments");
        let now_us = self.now_us;
        if self.filter.as_mut().is_some_and(|filter| filter(&mut segment, to_right, now_us)) {
            return;
        }
        let model = self.model;
        if segment.payload.len() > model.payload_max {
            if let Some(mtu) = self.too_big {
                if to_right {
                    self.left.too_big(&segment, mtu, now_us);
                } else {
                    self.right.too_big(&segment, mtu, now_us);
                }
            }
            return;
        }
        if let Some(forged) = self.inject.as_mut().and_then(|inject| inject(&segment)) {
            self.fly(forged, to_right, now_us + model.delay_us);
        }
        if self.rng.per_mille(model.loss) {
            return;
        }
        let copies = 1 + u32::from(self.rng.per_mille(model.duplicate));
        for _ in 0..copies {
            let mut at_us = self.now_us + model.delay_us + self.rng.below(model.jitter_us + 1);
            if self.rng.per_mille(model.reorder) {
                at_us += 1 + self.rng.below(model.reorder_us);
            }
            self.fly(segment.clone(), to_right, at_us);
        }
    }

    fn fly(&mut self, segment: Segment, to_right: bool, at_us: u64) {
        self.order += 1;
        self.flying.push(Some(Flying { segment, to_right }));
        self.queue.push(Reverse((at_us, self.order, self.flying.len() - 1)));
    }
}
