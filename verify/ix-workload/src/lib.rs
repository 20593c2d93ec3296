//! What clients ask and when, as functions of a seed: distributions of sizes and gaps ([`law`]),
//! arrivals of requests ([`arrivals`]), rates that change over time ([`pattern`]). The load
//! generator plays them, the model of the papers' server computes with them.
#![forbid(unsafe_code)]

pub mod arrivals;
pub mod law;
pub mod pattern;
