//! Egress: what may leave, and when.
pub mod gate;
#[cfg(test)]
mod gate_tests;
