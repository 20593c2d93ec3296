//! What a controller and the broker tell each other.
use serde::{Deserialize, Serialize};

/// What a controller says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Its process.
    pub pid: u32,
    /// Name of the policy that this dataplane has.
    pub policy: String,
    /// The bound on the queueing delay, µs.
    pub slo_us: f64,
    /// The rung, counted from 1; 0 while there is none.
    pub rung: usize,
    /// How many there are.
    pub rungs: usize,
    /// The rung in words.
    pub configuration: String,
    /// What it did last, in words.
    pub last: String,
    /// Power of the machine, W, where it can be had.
    pub power_w: Option<f64>,
}

/// What an operator asks of the controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wish {
    /// Another number, another wish; 0: none.
    pub serial: u64,
    /// A policy, as TOML; none: as it is.
    pub policy: Option<String>,
    /// A bound on the queueing delay, µs; none: the policy's.
    pub slo_us: Option<f64>,
}
