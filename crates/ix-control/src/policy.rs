//! Policies: when to move on a ladder, and the ladder. Written as TOML.
mod ladder;

pub use ladder::{Add, Ladder, Level};

/// What the user chose.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Its name in logs.
    pub name: String,
    /// Upper bound on the queueing delay, µs.
    pub slo_us: f64,
    /// In which order resources are added.
    pub ladder: Ladder,
}
