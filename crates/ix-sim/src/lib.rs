//! Whole hosts on a simulated network in virtual time.
//!
//! Everything follows from one seed: what goes wrong, when, and how fast hosts are. The hosts run
//! the real dataplane and the real library; only devices, clock and threads are simulated.
pub mod agenda;
pub mod network;
pub mod nic;
pub mod rng;
pub mod wire;
