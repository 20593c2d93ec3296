//! A configuration: the part of the machine that one dataplane has. A ladder is an ordered list of
//! configurations.
use crate::Clock;
use std::fmt;

/// The part of a machine that a dataplane has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Configuration {
    /// Cores.
    pub cores: u32,
    /// Hardware threads of each core.
    pub threads_per_core: u32,
    /// Their clock; `None` if the controller cannot set it.
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
