//! Ladders: the order in which resources are added.
use crate::{Configuration, Machine};

/// A quantity that a ladder names without knowing the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// As little as there is.
    Lowest,
    /// All there is, of clocks: the fastest that can be held.
    Highest,
    /// So much.
    Exactly(u32),
}

/// What a part of the ladder adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Add {
    /// Cores, one a rung.
    Cores,
    /// The other hardware threads of all cores, in one rung.
    Hyperthreads,
    /// The next faster clock, one a rung.
    Clock,
    /// Turbo, in one rung.
    Turbo,
    /// Everything there is, in one rung.
    Everything,
}

/// The order in which resources are added, as data.
#[derive(Clone, Debug, PartialEq)]
pub struct Ladder {
    /// Cores of the lowest rung.
    pub cores: Level,
    /// Hardware threads of a core on the lowest rung.
    pub threads_per_core: Level,
    /// Clock of the lowest rung.
    pub clock: Level,
    /// What is added to it, in this order.
    pub add: Vec<Add>,
    /// Cores that no dataplane uses go to the background job.
    pub background: bool,
}

impl Ladder {
    /// The rungs on a machine for a dataplane that may have so many cores and hardware threads of
    /// each. What the machine lacks is skipped.
    pub fn rungs(
        &self,
        _machine: &Machine,
        _cores: u32,
        _threads_per_core: u32,
    ) -> Vec<Configuration> {
        Vec::new()
    }
}
