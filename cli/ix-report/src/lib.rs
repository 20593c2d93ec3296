//! What all commands of `ix` share: [`problem::Problem`], one line that says what went wrong, why and
//! what to do; tables and JSON of results; the machine they were measured on; counters of what a
//! message costs.
pub mod cost;
#[cfg(test)]
mod cost_sample;
pub mod domain;
pub mod machine;
pub mod meter;
pub mod problem;
pub mod report;
pub mod wall;
