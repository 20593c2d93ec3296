//! The targets.
pub mod abi;
pub mod checksum;
pub mod control;
pub mod fragments;
pub mod link;
pub mod memcached;
pub mod memif;
pub mod models;
mod rig;
pub mod tcp;
pub mod toeplitz;
pub mod wire;
