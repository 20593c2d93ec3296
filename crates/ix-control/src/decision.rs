//! What the controller decides: a move on the ladder, as steps for the platform, and why.
use crate::{Clock, Configuration, DataplaneId};

/// One thing to be done, in the order of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Hold the cores of these hardware threads at a clock.
    Clock {
        /// Linux's numbers of hardware threads.
        cpus: Vec<u32>,
        /// The clock.
        clock: Clock,
    },
    /// The background job runs on these hardware threads and no others; on none: it is frozen.
    Background {
        /// Linux's numbers of hardware threads.
        cpus: Vec<u32>,
    },
    /// A parked thread runs the cycle again.
    Resume {
        /// Its number in the dataplane.
        thread: u16,
    },
    /// A thread without flow groups leaves its hardware thread to Linux.
    Park {
        /// Its number in the dataplane.
        thread: u16,
    },
    /// Flow groups move.
    Migrate {
        /// From this thread of the dataplane …
        from: u16,
        /// … to this one.
        to: u16,
        /// Their numbers.
        groups: Vec<u16>,
    },
}

/// A decision about one dataplane.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Which.
    pub dataplane: DataplaneId,
    /// Rung before and after, counted from 0. Equal where only flow groups move.
    pub rungs: (usize, usize),
    /// What the new rung is.
    pub configuration: Configuration,
    /// What to do, in this order. A step that fails ends its decision: the controller sees at the
    /// next tick what came of it.
    pub steps: Vec<Step>,
    /// One line for the log, with the numbers that led here.
    pub why: String,
}
