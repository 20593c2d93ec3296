//! A dataplane's reported averages: windows of 10 ms, smoothed, as `ix-dataplane` defines them.
use ix_controller::{ALPHAS, Smoothed};

/// Length of a window, µs.
pub const WINDOW_US: u64 = 10_000;

/// Sums over one window of one thread.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    cycles: f64,
    served: f64,
    busy_us: f64,
    waiting: f64,
}

/// A thread's metrics.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    now: Window,
    /// Queue depth.
    pub queue_depth: Smoothed,
    /// Idle part.
    pub idle: Smoothed,
    /// Queueing delay, µs.
    pub delay_us: f64,
    /// Packets per cycle.
    pub batch: f64,
    /// Time of a cycle, µs.
    pub iteration_us: f64,
    /// Packets per second.
    pub rate_per_s: f64,
}

impl Default for Meter {
    /// A thread that has not run: empty and idle.
    fn default() -> Meter {
        Meter {
            now: Window::default(),
            queue_depth: [0.0; 3],
            idle: [1.0; 3],
            delay_us: 0.0,
            batch: 0.0,
            iteration_us: 0.0,
            rate_per_s: 0.0,
        }
    }
}

impl Meter {
    /// Adds cycles that together took this many requests, and found `waiting` when each began.
    pub fn add(&mut self, cycles: f64, served: f64, busy_us: f64, waiting: f64) {
        self.now.cycles += cycles;
        self.now.served += served;
        self.now.busy_us += busy_us;
        self.now.waiting += waiting * cycles;
    }

    /// Ends a window.
    pub fn roll(&mut self) {
        let window = std::mem::take(&mut self.now);
        let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        let mean = |sum: f64| ratio(sum, window.cycles);
        let iteration_us = mean(window.busy_us);
        let delay_us = ratio(window.waiting, window.served) * iteration_us;
        let seconds = WINDOW_US as f64 / 1e6;
        let idle = (1.0 - window.busy_us / WINDOW_US as f64).clamp(0.0, 1.0);
        for (index, alpha) in ALPHAS.into_iter().enumerate() {
            smooth(&mut self.queue_depth[index], mean(window.waiting), alpha);
            smooth(&mut self.idle[index], idle, alpha);
        }
        smooth(&mut self.delay_us, delay_us, ALPHAS[0]);
        smooth(&mut self.batch, mean(window.served), ALPHAS[0]);
        smooth(&mut self.iteration_us, iteration_us, ALPHAS[0]);
        smooth(&mut self.rate_per_s, window.served / seconds, ALPHAS[0]);
    }
}

fn smooth(average: &mut f64, now: f64, alpha: f64) {
    *average += alpha * (now - *average);
}
