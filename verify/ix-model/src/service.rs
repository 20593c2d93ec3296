//! How fast requests are served: the time of a cycle by configuration.
use crate::papers as p;

/// What runs memcached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// A dataplane: polls, batches, gains from the second hardware thread.
    Ix,
    /// Linux 4.2: sleeps, interrupts, no gain from the second hardware thread.
    Linux,
}

/// What memcached is asked (TOCS 5.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Short keys and values, 99 % GET: the papers' for everything dynamic.
    Usr,
    /// Keys of 20 to 70 B, values up to 1 KB, 75 % GET.
    Etc,
}

/// What a hardware thread is part of at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Clock of the package.
    pub khz: u32,
    /// Cores that serve.
    pub cores: u32,
    /// Hardware threads of its core that serve, itself included.
    pub threads_on_core: u32,
    /// Whether the background job runs on its core as well.
    pub shared: bool,
}

/// Time of a cycle: `fixed_us` and `request_us` for each request in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Whatever is in the cycle, µs.
    pub fixed_us: f64,
    /// Each request, µs.
    pub request_us: f64,
}

impl Cost {
    /// Of a hardware thread.
    pub fn of(system: System, workload: Workload, place: Place) -> Cost {
        let (request_us, overhead) = match (system, workload) {
            (System::Ix, Workload::Usr) => (p::REQUEST_US, p::CYCLE_OVERHEAD),
            (System::Ix, Workload::Etc) => (p::REQUEST_US * p::ETC_OVER_USR, p::CYCLE_OVERHEAD),
            (System::Linux, Workload::Usr) => (p::REQUEST_LINUX_US, 0.0),
            (System::Linux, Workload::Etc) => (p::REQUEST_LINUX_US * p::ETC_OVER_USR_LINUX, 0.0),
        };
        let request_us = request_us * slowdown(system, place);
        Cost { fixed_us: request_us * overhead, request_us }
    }

    /// A cycle of so many requests, µs.
    pub fn cycle_us(&self, batch: f64) -> f64 {
        self.fixed_us + batch * self.request_us
    }

    /// A request in a cycle of so many, µs.
    pub fn each_us(&self, batch: f64) -> f64 {
        self.request_us + self.fixed_us / batch
    }

    /// Requests a second in full batches.
    pub fn most_per_s(&self) -> f64 {
        1e6 / self.each_us(f64::from(p::BATCH_BOUND))
    }
}

/// How much longer a request takes than on one thread of one core at the nominal clock.
fn slowdown(system: System, place: Place) -> f64 {
    let nominal = f64::from(p::CLOCKS_KHZ[p::CLOCKS_KHZ.len() - 1]);
    // Throughput is about proportional to the clock (SoCC 4.3), the uncore's being the same one.
    let clock = nominal / f64::from(place.khz);
    let gain = match system {
        System::Ix if place.threads_on_core > 1 => p::HYPERTHREAD_GAIN,
        _ => 1.0,
    };
    let cores = f64::from(place.cores);
    let contention = 1.0 + p::COHERENCY * cores * (cores - 1.0);
    let shared = if place.shared { 2.0 } else { 1.0 };
    clock * f64::from(place.threads_on_core) / gain * contention * shared
}
