//! Messages between a controller and the broker.
use serde::{Deserialize, Serialize};

/// A controller's report about itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Its process.
    pub pid: u32,
    /// Name of this dataplane's policy.
    pub policy: String,
    /// The bound on the queueing delay, µs.
    pub slo_us: f64,
    /// The rung, counted from 1; 0: not on the ladder yet.
    pub rung: usize,
    /// Number of rungs.
    pub rungs: usize,
    /// The rung's configuration, in words.
    pub configuration: String,
    /// The controller's last decision, in words.
    pub last: String,
    /// Power of the machine, W, if it can be measured.
    pub power_w: Option<f64>,
}

/// What operators have asked of the controller: another policy, another bound, or both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyRequest {
    /// Rises with each request; 0: there was none.
    pub serial: u64,
    /// A policy, as TOML; none: unchanged.
    pub policy: Option<String>,
    /// A bound on the queueing delay, µs; none: the policy's.
    pub slo_us: Option<f64>,
}
