//! The papers' 224 static configurations (TOCS 5.3).
use crate::papers::{CLOCKS_KHZ, CORES, THREADS_PER_CORE, TURBO_KHZ};
use ix_controller::{Clock, Configuration, Core, Machine};

/// The server as the controller sees it: core `c` has the hardware threads `c` and `c + 8`, as
/// Linux numbers them.
pub fn machine() -> Machine {
    let cpus = |core| (0..THREADS_PER_CORE).map(|thread| core + thread * CORES).collect();
    Machine {
        cores: (0..CORES).map(|core| Core { cpus: cpus(core), package: 0 }).collect(),
        clocks_khz: CLOCKS_KHZ.to_vec(),
        turbo: true,
    }
}

/// The core of a hardware thread.
pub fn core_of(cpu: u32) -> usize {
    (cpu % CORES) as usize
}

/// The 14 clocks, slowest first.
pub fn clocks() -> impl Iterator<Item = Clock> {
    CLOCKS_KHZ.into_iter().map(Clock::Khz).chain([Clock::Turbo])
}

/// A clock's frequency.
pub fn khz(clock: Clock) -> u32 {
    match clock {
        Clock::Khz(khz) => khz,
        Clock::Turbo => TURBO_KHZ,
    }
}

/// All static configurations: one to eight cores, one or two hardware threads of each, 14 clocks.
pub fn all() -> Vec<Configuration> {
    let mut all = Vec::new();
    for cores in 1..=CORES {
        for threads_per_core in 1..=THREADS_PER_CORE {
            let of = |clock| Configuration { cores, threads_per_core, clock: Some(clock) };
            all.extend(clocks().map(of));
        }
    }
    all
}

/// The configuration that has everything.
pub fn most() -> Configuration {
    Configuration { cores: CORES, threads_per_core: THREADS_PER_CORE, clock: Some(Clock::Turbo) }
}

/// Hardware threads of a configuration, first threads of cores before second ones.
pub fn cpus(configuration: &Configuration) -> impl Iterator<Item = u32> {
    let cores = configuration.cores;
    (0..configuration.threads_per_core).flat_map(move |t| (0..cores).map(move |c| c + t * CORES))
}

/// A configuration's frequency; one that leaves the clock alone runs at the nominal one.
pub fn khz_of(configuration: &Configuration) -> u32 {
    configuration.clock.map_or(CLOCKS_KHZ[CLOCKS_KHZ.len() - 1], khz)
}
