//! The control socket, both its ends, and the commands that speak over it: `ix ctl`, `ix cp`,
//! `ix top`, `ix pcap`; and the filters and rates of a dataplane's vNIC.
pub mod commands;
pub mod control;
pub mod cp;
pub mod ctl;
pub mod link_rates;
pub mod pcap;
pub mod stats;
pub mod surveys;
pub mod top;
pub mod vnic;
