//! The control plane: watches dataplanes and gives them just the resources that their load needs.
//!
//! ```text
//! Platform::observe → [Observation] → Controller::tick → [Decision] → Platform::apply
//! ```
//!
//! [`Controller`] is pure. Two kinds of [`Platform`] stand around it: this machine, and models of
//! others in virtual time.
#![forbid(unsafe_code)]

mod climber;
mod configuration;
mod controller;
mod decision;
pub mod linux;
mod machine;
mod observation;
mod placement;
mod platform;
pub mod policy;
#[cfg(test)]
mod test_support;
mod turn;

pub use configuration::Configuration;
pub use controller::Controller;
pub use decision::{Decision, Step, ranges};
pub use machine::{Clock, Core, Machine};
pub use observation::{
    ALPHAS, DataplaneId, GroupObservation, Observation, Smoothed, ThreadObservation, ThreadState,
};
pub use platform::{Platform, StepError};
pub use policy::Policy;
pub use turn::{ControlLoop, Event, TICK_US};
