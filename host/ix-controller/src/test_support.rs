//! Machines and observations for tests.
use crate::{
    Core, DataplaneId, GroupObservation, Machine, Observation, ThreadObservation, ThreadState,
};

/// Core `n` has the hardware threads `n`, `n + cores`, …; 1.2 to 2.4 GHz and turbo.
pub(crate) fn machine(cores: u32, threads_per_core: u32) -> Machine {
    let core =
        |n| Core { cpus: (0..threads_per_core).map(|t| n + t * cores).collect(), package: 0 };
    Machine {
        cores: (0..cores).map(core).collect(),
        clocks_khz: (0..13).map(|n| 1_200_000 + n * 100_000).collect(),
        turbo: true,
    }
}

/// A dataplane with a thread on each of `cpus`, of which `elastic` run; the first that runs owns
/// 128 silent groups.
pub(crate) fn observation(id: u32, cpus: &[u32], elastic: &[u16]) -> Observation {
    let thread = |(number, &cpu): (usize, &u32)| ThreadObservation {
        cpu,
        state: match elastic.contains(&(number as u16)) {
            true => ThreadState::Elastic,
            false => ThreadState::Parked,
        },
        queueing_delay_us: 0.0,
        queue_depth: [0.0; 3],
        batch: 0.0,
        iteration_us: 0.0,
        idle: [1.0; 3],
        rate_per_s: 0.0,
        clock: None,
    };
    let owner = elastic.first().copied().unwrap_or(0);
    Observation {
        dataplane: DataplaneId(id),
        program: "ix-kv".to_owned(),
        batch_bound: 64,
        threads: cpus.iter().enumerate().map(thread).collect(),
        groups: vec![GroupObservation { thread: owner, load: 0.0 }; 128],
    }
}
