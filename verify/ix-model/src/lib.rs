//! The papers' server in virtual time: `ix bench pareto` sweeps it, and the controller drives it in
//! `ix bench dynamic --platform simulated`.
//!
//! [`papers`] has every constant with its source, fixed before any policy was tuned. [`service`]
//! and [`power`] turn a configuration into speed and watts, [`queue`] serves requests in ticks,
//! [`server`] puts it behind [`ix_controller::Platform`]. [`pareto`] sweeps the static
//! configurations; [`mod@run`] closes the loop around a controller.
//!
//! `ix-controller` does not depend on this crate: a policy cannot read the model.
#![forbid(unsafe_code)]

mod latency;
mod meter;
mod migration;
pub mod papers;
pub mod pareto;
pub mod pattern;
pub mod power;
pub mod queue;
pub mod run;
pub mod server;
pub mod service;
pub mod space;

pub use pattern::Pattern;
pub use server::Server;
