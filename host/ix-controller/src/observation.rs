//! The controller's observation of one dataplane at a tick: plain numbers from any source.

/// Identifies one dataplane while it runs (process ID of its program).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataplaneId(pub u32);

/// What a dataplane's hardware thread does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadState {
    /// Runs the cycle: polls its queues, serves its flow groups.
    Elastic,
    /// Its hardware thread belongs to Linux.
    Parked,
    /// An ordinary Linux thread: the application's background thread.
    Background,
}

/// A moving average under each of the papers' smoothing factors, fastest first.
pub type Smoothed = [f64; 3];

/// The smoothing factors α of [`Smoothed`], in its order.
pub const ALPHAS: [f64; 3] = [0.5, 0.25, 0.125];

/// One thread of a dataplane. Averages are of windows of 10 ms.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadObservation {
    /// The hardware thread that it is pinned to.
    pub cpu: u32,
    /// What it does.
    pub state: ThreadState,
    /// From a packet's arrival in the software to the end of its batch, µs (α = 0.5).
    pub queueing_delay_us: f64,
    /// Queue depth Q: packets that waited when a cycle began.
    pub queue_depth: Smoothed,
    /// Packets per cycle.
    pub batch: f64,
    /// Iteration time τ of a busy cycle, µs.
    pub iteration_us: f64,
    /// Share of idle time, 0 to 1.
    pub idle: Smoothed,
    /// Packets per second.
    pub rate_per_s: f64,
    /// The clock that its core is held at, if known.
    pub clock: Option<crate::Clock>,
}

impl ThreadObservation {
    /// Whether the controller may resume or park it. A background thread belongs to the
    /// application.
    pub fn is_ours(&self) -> bool {
        self.state != ThreadState::Background
    }

    /// The papers' estimate of the tail: ⌈Q/B⌉·τ, µs.
    pub fn tail_us(&self, batch_bound: u32) -> f64 {
        (self.queue_depth[0] / f64::from(batch_bound.max(1))).ceil() * self.iteration_us
    }

    /// How long a packet may wait now, µs: the measured delay or the estimated tail, whichever is
    /// longer.
    pub fn delay_us(&self, batch_bound: u32) -> f64 {
        self.queueing_delay_us.max(self.tail_us(batch_bound))
    }
}

/// One flow group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupObservation {
    /// The thread that owns it.
    pub thread: u16,
    /// Its packets per second, or a proportional number.
    pub load: f64,
}

/// One dataplane at one tick.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// The dataplane.
    pub dataplane: DataplaneId,
    /// Its program's name, for the log and for policies that name programs.
    pub program: String,
    /// Batch bound B.
    pub batch_bound: u32,
    /// Its threads by number, in any state.
    pub threads: Vec<ThreadObservation>,
    /// Its flow groups by number.
    pub groups: Vec<GroupObservation>,
}

impl Observation {
    /// Numbers of the threads that run the cycle.
    pub fn elastic(&self) -> impl Iterator<Item = usize> + '_ {
        let running = |t: &ThreadObservation| t.state == ThreadState::Elastic;
        self.threads.iter().enumerate().filter(move |(_, t)| running(t)).map(|(i, _)| i)
    }
}
