//! The control socket, both its ends, and the commands that speak over it: `ix ctl`, `ix cp`,
//! `ix top`, `ix pcap`.
pub mod commands;
pub mod control;
pub mod cp;
pub mod ctl;
pub mod pcap;
pub mod stats;
pub mod surveys;
pub mod top;
