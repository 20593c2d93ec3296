//! The interface between decisions and the host that carries them out.
use crate::{DataplaneId, Machine, Observation, Step};
use std::fmt;

/// Why a step was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepError {
    /// One line: what, why, what to do.
    pub line: String,
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl std::error::Error for StepError {}

/// A host with its dataplanes: this machine, or a model of one.
pub trait Platform {
    /// The resources of the host. They may change: hardware threads go offline.
    fn machine(&mut self) -> Machine;

    /// The dataplanes that reply, in their present state.
    fn observe(&mut self, now_us: u64) -> Vec<Observation>;

    /// Carries out one step. Clock and background steps concern the host, the others the dataplane.
    fn apply(&mut self, now_us: u64, dataplane: DataplaneId, step: &Step) -> Result<(), StepError>;
}
