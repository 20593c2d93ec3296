//! What all commands of `ix` share: [`problem::Problem`], one line that says what went wrong, why
//! and what to do; tables and JSON of results; the machine they were measured on; counters of what
//! a message costs.
#![forbid(unsafe_code)]

pub mod control_log;
pub mod cost;
#[cfg(any(test, feature = "samples"))]
pub mod cost_sample;
pub mod domain;
pub mod figure;
pub mod machine;
pub mod output;
pub mod report;
pub mod results;
pub mod table;
pub mod wall;

pub use ix_problem as problem;
pub use ix_sys::meter;
