//! A configuration: how much of the machine one dataplane has. A ladder is an ordered list of them.
use crate::Clock;
use std::fmt;

/// How much of a machine a dataplane has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Configuration {
    /// Cores.
    pub cores: u32,
    /// Hardware threads of each core.
    pub threads_per_core: u32,
    /// Their clock; `None` where it is not the controller's to set.
    pub clock: Option<Clock>,
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Clock::Khz(khz) => write!(f, "{:.2} GHz", f64::from(*khz) / 1e6),
            Clock::Turbo => f.write_str("turbo"),
        }
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}×{}", self.cores, self.threads_per_core)?;
        self.clock.map_or(Ok(()), |clock| write!(f, " at {clock}"))
    }
}
