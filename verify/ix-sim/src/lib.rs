//! Whole hosts on a simulated network in virtual time.
//!
//! Everything follows from one seed: what goes wrong, when, and how fast hosts are. The hosts run
//! the real dataplane (`ix_dataplane::ElasticThread`) and the real library (`libix`); only devices,
//! clock and threads are simulated. Their application knows what every byte must be.
//!
//! [`plan`] turns a seed into a run, and [`world`] runs it: [`agenda`] orders events, [`wire`] and
//! [`network`] carry frames and add faults, [`host`] is the dataplane with its application
//! ([`peer`]), [`orders`] its control plane; device and clock are those of `ix_rig`. [`audit`]
//! watches the interface between dataplane and application, [`ledger`] what the applications
//! observe, [`observer`] every segment on the wire.
#![forbid(unsafe_code)]

pub mod agenda;
pub mod audit;
mod cli;
pub mod content;
pub mod host;
pub mod ledger;
pub mod lifetimes;
pub mod network;
pub mod observer;
pub mod orders;
pub mod peer;
pub mod plan;
pub mod trace;
pub mod wire;
pub mod world;

pub use cli::cli;
