//! The control plane's view of an elastic thread: averages over windows of 10 ms, smoothed by
//! several factors at once (TOCS '16 section 4.4).
//!
//! A cycle that receives only adds to sums. The averages are computed when a window is over, which
//! is checked about every millisecond. Their meaning:
//!
//! * *queue depth* Q: packets that waited when a cycle began to receive, with those that it took;
//!   the mean over the cycles that received any. A memif and an AF_XDP ring tell how many wait. A
//!   tap does not: after a full batch the packets since it was last seen empty are counted, which
//!   is an upper bound.
//! * *batch size*: packets that such a cycle took.
//! * *iteration time* τ: time that was not idle, divided by the number of cycles that received or
//!   sent. The application is part of it.
//! * *queueing delay*: Q divided by the batch size, times τ: how long a packet that came last waits
//!   until the application has processed its batch. No device tells when a packet came; this is
//!   Little's law for what devices do tell.
//! * *idle*: share of the time in which there was nothing to do, asleep or not.
//!
//! In a window without packets all values but idle are zero.
//!
//! The packets of a window are also counted by its queueing delay, in a histogram that only grows
//! (`ThreadBlock::queueing_delay_ns`): a reader that looks seldom still sees the seconds between.
use super::Metric;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Length of a window.
pub const WINDOW_US: u64 = 10_000;

/// Smoothing factors: `new = α·value + (1 - α)·old`. Fastest first.
pub const ALPHAS: [f64; 3] = [0.5, 0.25, 0.125];

/// A moving average under each factor of [`ALPHAS`].
pub type Smoothed = [f64; ALPHAS.len()];

/// The averages of a thread's windows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WindowMetrics {
    /// Time from a packet's arrival to the end of its batch, µs.
    pub queueing_delay_us: Smoothed,
    /// Queue depth Q, packets.
    pub queue_depth: Smoothed,
    /// Packets that a receiving cycle took.
    pub batch: Smoothed,
    /// Iteration time τ, µs.
    pub iteration_us: Smoothed,
    /// Share of the time without work, 0 to 1.
    pub idle: Smoothed,
    /// Packets received per second.
    pub rate_per_s: Smoothed,
}

const FIELDS: usize = 6;

impl WindowMetrics {
    /// The papers' estimate of the tail of the queueing delay, ⌈Q/B⌉·τ, for the batch bound B and
    /// one of the factors of [`ALPHAS`], µs.
    pub fn tail_us(&self, batch_bound: u32, factor: usize) -> f64 {
        let batches = self.queue_depth[factor] / f64::from(batch_bound.max(1));
        batches.ceil() * self.iteration_us[factor]
    }

    /// Updates the averages after `windows` more windows with these values.
    fn smooth(&mut self, value: &Averages, windows: u64) {
        let fields = self.fields_mut();
        for (field, value) in fields.into_iter().zip(value.fields()) {
            for (old, alpha) in field.iter_mut().zip(ALPHAS) {
                // For one window this is the formula itself.
                let kept = (1.0 - alpha).powi(windows.min(1_000) as i32);
                *old = (1.0 - kept) * value + kept * *old;
            }
        }
    }

    /// The averages after the thread did nothing for this long.
    pub fn after_idle_us(mut self, idle_us: u64) -> WindowMetrics {
        let windows = idle_us / WINDOW_US;
        if windows > 0 {
            self.smooth(&Averages { idle: 1.0, ..Averages::default() }, windows);
        }
        self
    }

    fn fields_mut(&mut self) -> [&mut Smoothed; FIELDS] {
        let WindowMetrics { queueing_delay_us, queue_depth, batch, iteration_us, idle, rate_per_s } =
            self;
        [queueing_delay_us, queue_depth, batch, iteration_us, idle, rate_per_s]
    }
}

/// One window's values, in the order of [`WindowMetrics`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Averages {
    queueing_delay_us: f64,
    queue_depth: f64,
    batch: f64,
    iteration_us: f64,
    idle: f64,
    rate_per_s: f64,
}

impl Averages {
    fn fields(&self) -> [f64; FIELDS] {
        let Averages { queueing_delay_us, queue_depth, batch, iteration_us, idle, rate_per_s } =
            *self;
        [queueing_delay_us, queue_depth, batch, iteration_us, idle, rate_per_s]
    }
}

/// The sums of a window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    /// Cycles that received packets.
    pub receiving: u64,
    /// Packets that they took.
    pub packets: u64,
    /// Packets that waited when they began.
    pub depth: u64,
}

impl Sums {
    /// The averages of a window of this length, with this many cycles that received or sent, and
    /// this many ticks without work.
    fn averages(
        &self,
        (busy_cycles, idle_ticks): (u64, u64),
        length_ticks: u64,
        ticks_per_us: f64,
    ) -> Averages {
        let ratio = |a: u64, b: u64| if b == 0 { 0.0 } else { a as f64 / b as f64 };
        let busy_ticks = length_ticks.saturating_sub(idle_ticks);
        let iteration_us = ratio(busy_ticks, busy_cycles) / ticks_per_us;
        Averages {
            queueing_delay_us: ratio(self.depth, self.packets) * iteration_us,
            queue_depth: ratio(self.depth, self.receiving),
            batch: ratio(self.packets, self.receiving),
            iteration_us,
            idle: ratio(idle_ticks, length_ticks).min(1.0),
            rate_per_s: ratio(self.packets, length_ticks) * ticks_per_us * 1e6,
        }
    }
}

/// The current window, and the averages of those before it.
pub(super) struct Window {
    pub sums: Sums,
    /// When it began, and when it may end at the earliest, ticks.
    since: u64,
    length_ticks: u64,
    ticks_per_us: f64,
    /// The counters of busy cycles and of idle ticks when it began.
    began: (u64, u64),
    metrics: WindowMetrics,
}

impl Window {
    /// A window that begins now. `ticks_per_us` 0: unknown, so there are no windows.
    pub fn new(now: u64, ticks_per_us: u64) -> Window {
        let length_ticks = if ticks_per_us == 0 { u64::MAX } else { WINDOW_US * ticks_per_us };
        Window {
            sums: Sums::default(),
            since: now,
            length_ticks,
            ticks_per_us: ticks_per_us.max(1) as f64,
            began: (0, 0),
            metrics: WindowMetrics::default(),
        }
    }

    /// Whether it is over.
    #[inline]
    pub fn is_over(&self, now: u64) -> bool {
        now.wrapping_sub(self.since) >= self.length_ticks
    }

    /// Ends it and publishes the averages; a very long window counts as several. `counters`: cycles
    /// that received or sent, and ticks without work. Returns the packets of the window and their
    /// queueing delay, ns.
    #[cold]
    pub fn end(&mut self, now: u64, counters: (u64, u64), block: &WindowBlock) -> (u64, u64) {
        let length = now.wrapping_sub(self.since);
        let sums = core::mem::take(&mut self.sums);
        let (busy, idle) = core::mem::replace(&mut self.began, counters);
        let grown = (counters.0.wrapping_sub(busy), counters.1.wrapping_sub(idle));
        let averages = sums.averages(grown, length.max(1), self.ticks_per_us);
        self.metrics.smooth(&averages, (length / self.length_ticks).max(1));
        self.since = now;
        block.publish(&self.metrics);
        (sums.packets, (averages.queueing_delay_us * 1e3) as u64)
    }

    /// Whether a time is at least as long as a window.
    pub fn is_long(&self, from: u64, to: u64) -> bool {
        to.wrapping_sub(from) >= self.length_ticks
    }
}

/// [`WindowMetrics`] in shared memory. One thread writes; a reader never sees half of an update.
#[derive(Debug)]
#[repr(C)]
pub struct WindowBlock {
    /// Odd while it is being written.
    sequence: AtomicU64,
    words: [Metric; FIELDS * ALPHAS.len()],
}

/// Number of tries of a reader while the writer is writing.
const READS_MAX: u32 = 1_000;

impl WindowBlock {
    fn publish(&self, metrics: &WindowMetrics) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        let mut metrics = *metrics;
        let values = metrics.fields_mut().into_iter().flat_map(|field| field.iter());
        for (word, value) in self.words.iter().zip(values) {
            word.set(value.to_bits());
        }
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// A copy; `None` if the writer died while it was writing.
    pub fn read(&self) -> Option<WindowMetrics> {
        for _ in 0..READS_MAX {
            let before = self.sequence.load(Ordering::Acquire);
            let mut metrics = WindowMetrics::default();
            let places = metrics.fields_mut().into_iter().flatten();
            for (place, word) in places.zip(&self.words) {
                *place = f64::from_bits(word.get());
            }
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == before {
                return Some(metrics);
            }
            core::hint::spin_loop();
        }
        None
    }
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
