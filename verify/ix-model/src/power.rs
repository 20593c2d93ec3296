//! What the package draws.
use crate::papers as p;
use crate::service::System;

/// A core's part in the package's power.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CoreLoad {
    /// Hardware threads in use; 0: the core sleeps and draws nothing.
    pub threads: u32,
    /// Part of the time with work; a core that polls is always busy.
    pub busy: f64,
}

/// Watts of the package at a clock. `turbo_heat`: 0 cold to 1 hot, matters in turbo only.
pub fn package_w(khz: u32, cores: &[CoreLoad], requests_per_s: f64, turbo_heat: f64) -> f64 {
    let voltage = voltage(khz);
    let switching = f64::from(khz) / f64::from(p::CLOCKS_KHZ[0]) * voltage * voltage;
    let of_core = |core: &CoreLoad| {
        if core.threads == 0 {
            return 0.0;
        }
        let second = p::HYPERTHREAD_W * f64::from(core.threads - 1);
        let polling = p::CORE_W * switching * (1.0 + second);
        (p::CORE_LEAKAGE_W * voltage * voltage + polling) * core.busy
    };
    let heat = if khz > nominal_khz() { p::TURBO_HOT_W * turbo_heat } else { 0.0 };
    p::PACKAGE_W
        + p::UNCORE_W * switching
        + cores.iter().map(of_core).sum::<f64>()
        + p::MILLION_REQUESTS_W * requests_per_s / 1e6
        + heat
}

/// How busy a core is as far as power is concerned, with work for a part of the time.
pub fn busy(system: System, with_work: f64) -> f64 {
    match system {
        System::Ix => 1.0,
        System::Linux => p::LINUX_IDLE + (1.0 - p::LINUX_IDLE) * with_work.clamp(0.0, 1.0),
    }
}

/// Heat after so many seconds in turbo, or out of it.
pub fn heat(before: f64, turbo: bool, seconds: f64) -> f64 {
    let goal = if turbo { 1.0 } else { 0.0 };
    goal + (before - goal) * (-seconds / p::HEAT_TIME_S).exp()
}

fn nominal_khz() -> u32 {
    p::CLOCKS_KHZ[p::CLOCKS_KHZ.len() - 1]
}

/// Voltage over that of the lowest clock.
fn voltage(khz: u32) -> f64 {
    if khz > nominal_khz() {
        return p::VOLTAGE_TURBO;
    }
    let (low, high) = (f64::from(p::CLOCKS_KHZ[0]), f64::from(nominal_khz()));
    1.0 + (p::VOLTAGE_NOMINAL - 1.0) * (f64::from(khz) - low) / (high - low)
}
