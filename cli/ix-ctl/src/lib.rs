//! The commands that speak over the control socket: `ix ctl`, `ix cp`, `ix top`, `ix pcap`,
//! `ix exporter`.
#![forbid(unsafe_code)]

pub mod cp;
pub mod ctl;
pub mod exporter;
pub mod pcap;
pub mod stats;
pub mod top;
