//! The broker: the privileged process beside a dataplane. It starts the program, opens and watches
//! its devices, serves the control socket, keeps the filters and rates of its vNIC, and cleans up
//! after it.
//!
//! * [`run`]: the broker of one `ix run`, from the start of a program to its end.
//! * [`control`]: the control socket, both its ends, and the scrape of the metrics.
//! * [`vnic`]: filters and rates, put into the kernel before the reply to a change; [`share`] does
//!   it for several vNICs on one interface.
//! * [`commands`]: commands of the control plane to the dataplane; [`surveys`]: lists of its
//!   connections.
//! * [`apart`]: a dataplane in a process of its own; [`own_user`]: its user; [`attached`]: the
//!   program's processes that share it; `kin`: which processes are the program's.
//! * [`group`]: the control group of a program; `group_locks`: which run has which groups;
//!   [`marks`]: what is known by other means where there is no group; [`warden`]: the end of a
//!   program whose broker was killed.
//! * `run_delays`: whether a dataplane is kept from its hardware thread.
//! * [`program_root`]: a program that must be root; [`low_ports`] binds ports for it, and `view` is
//!   what it sees of the machine's files.
//! * `devices`: links that go down and come back, peers that come and go.
//! * `presence`: neighbours learn the dataplane's addresses before it begins.
//! * `about`: how a run was started, for reports of faults.
//! * [`service_manager`]: what systemd is told of a run.
//! * `counters`: the control page; `survivor`: the process that closes connections at the end.
#![forbid(unsafe_code)]

mod about;
pub mod apart;
pub mod attached;
mod clients;
pub mod commands;
pub mod control;
mod counters;
mod devices;
pub mod group;
mod group_locks;
mod kin;
pub mod leftovers;
pub mod link_rates;
pub mod low_ports;
pub mod marks;
pub mod own_calls;
pub mod own_user;
mod pace;
mod presence;
pub mod program_root;
pub mod run;
mod run_delays;
pub mod service_manager;
pub mod share;
pub mod shared_address;
pub mod surveys;
mod survivor;
mod view;
pub mod vnic;
pub mod warden;
