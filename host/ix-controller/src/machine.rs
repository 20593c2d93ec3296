//! What a controller can give and take on a machine: cores, their hardware threads, clocks.

/// A clock that a core can be held at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Clock {
    /// Fixed, in kHz.
    Khz(u32),
    /// As fast as heat and power allow.
    Turbo,
}

/// A core and its hardware threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// Linux's numbers of its hardware threads, ascending.
    pub cpus: Vec<u32>,
    /// The processor package that it is part of.
    pub package: u32,
}

/// A machine. What it lacks is empty, and ladders skip the rungs that would need it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Cores that are online.
    pub cores: Vec<Core>,
    /// Clocks that cores can be held at, ascending; empty if there are none.
    pub clocks_khz: Vec<u32>,
    /// Whether turbo can be switched.
    pub turbo: bool,
}

impl Machine {
    /// The core that a hardware thread belongs to.
    pub fn core_of(&self, cpu: u32) -> Option<usize> {
        self.cores.iter().position(|core| core.cpus.contains(&cpu))
    }

    /// All hardware threads, ascending.
    pub fn cpus(&self) -> Vec<u32> {
        let mut cpus: Vec<u32> = self.cores.iter().flat_map(|core| core.cpus.clone()).collect();
        cpus.sort_unstable();
        cpus
    }

    /// The slowest clock.
    pub fn lowest(&self) -> Option<Clock> {
        self.clocks_khz.first().copied().map(Clock::Khz)
    }

    /// The fastest clock that can be held.
    pub fn nominal(&self) -> Option<Clock> {
        self.clocks_khz.last().copied().map(Clock::Khz)
    }
}
