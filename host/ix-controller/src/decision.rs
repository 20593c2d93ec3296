//! The controller's decisions: a move on the ladder as steps for the platform, with the reason.
use crate::{Clock, Configuration, DataplaneId};
use std::fmt;

/// One step of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Hold the cores of these hardware threads at a clock.
    Clock {
        /// Linux's numbers of hardware threads.
        cpus: Vec<u32>,
        /// The clock.
        clock: Clock,
    },
    /// The background job runs on these hardware threads only; if there are none, it is frozen.
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
    /// The dataplane.
    pub dataplane: DataplaneId,
    /// Its program's name.
    pub program: String,
    /// Rung before and after, counted from 0. Equal if only flow groups move.
    pub rungs: (usize, usize),
    /// The highest rung.
    pub top: usize,
    /// The configuration of the new rung.
    pub configuration: Configuration,
    /// The steps, in order. A step that fails ends its decision: the controller sees the result at
    /// the next tick.
    pub steps: Vec<Step>,
    /// The reason, with numbers.
    pub why: String,
}

impl fmt::Display for Decision {
    /// Writes one line for the log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = self.rungs;
        let way = match from.cmp(&to) {
            std::cmp::Ordering::Less => "up to",
            std::cmp::Ordering::Greater => "down to",
            std::cmp::Ordering::Equal => "stays at",
        };
        let Decision { dataplane, program, top, configuration, why, .. } = self;
        write!(f, "{program} ({}) {way} {configuration}, rung ", dataplane.0)?;
        write!(f, "{} of {}: {why}", to + 1, top + 1)?;
        for (n, step) in self.steps.iter().enumerate() {
            write!(f, "{} {step}", if n == 0 { ";" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Clock { cpus, clock } => write!(f, "clock {clock} on {}", ranges(cpus)),
            Step::Background { cpus } if cpus.is_empty() => f.write_str("freeze background"),
            Step::Background { cpus } => write!(f, "background on {}", ranges(cpus)),
            Step::Resume { thread } => write!(f, "resume {thread}"),
            Step::Park { thread } => write!(f, "park {thread}"),
            Step::Migrate { from, to, groups } => {
                write!(f, "move {} groups {from}→{to}", groups.len())
            }
        }
    }
}

/// Formats numbers as the kernel writes lists of hardware threads: `0-3,8`.
pub fn ranges(numbers: &[u32]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let runs = sorted.chunk_by(|a, b| a + 1 == *b);
    let text = |run: &[u32]| match run {
        [one] => one.to_string(),
        run => format!("{}-{}", run[0], run[run.len() - 1]),
    };
    runs.map(text).collect::<Vec<_>>().join(",")
}
