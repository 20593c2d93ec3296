//! The elastic thread: cycle, flow groups, timers, batched system calls, metrics.
//!
//! [`ElasticThread`] owns everything that one hardware thread needs to run packets to completion;
//! `thread.rs` has the six steps in order. The steps' own files: `receive.rs` (1: poll, parse,
//! classify, fetch ahead), `inbound.rs` (2: what each packet does), `calls.rs` (4: batched system
//! calls), `wheel.rs` (5: timers), `io.rs` and `output.rs` (6: packets that leave, events that come
//! of them). [`Runner`] is `run_io` on Linux: a clock, bounded spinning, sleep on the doorbells.
mod app_memory;
mod app_timers;
mod arena;
mod away;
mod boot;
mod calls;
pub mod capture;
mod clock;
mod commands;
pub mod config;
mod connections;
mod cut;
mod door;
mod edge;
mod events;
mod flow;
mod flow_group;
mod flow_table;
mod fragments;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod gate;
#[cfg(test)]
mod gate_tests;
mod group_set;
mod guard;
pub mod handle;
mod handover;
pub mod histogram;
mod icmp;
mod inbound;
mod io;
mod life;
mod listeners;
pub mod metrics;
mod migration;
mod neighbors;
mod output;
mod packets;
#[cfg(test)]
mod packets_tests;
mod pressure;
mod receive;
mod runner;
mod secrets;
mod sendq;
mod shared;
mod spare;
#[cfg(test)]
mod steering_tests;
mod survey;
mod sync;
mod thread;
mod timers;
mod udp;
#[cfg(test)]
mod udp_tests;
mod updates;
mod waker;
mod wheel;
mod winding_up;

pub use boot::{AppAccess, BootError, Dataplane, Device};
pub use calls::CallArray;
pub use clock::{Clock, ticks};
pub use commands::{BEGIN_US, Command, Outcome};
pub use config::Config;
pub use events::EventWriter;
pub use group_set::{GroupSet, GroupSetError};
pub use handover::{Forwarding, forwarding};
pub use io::Io;
pub use life::Lives;
pub use migration::{MigrateError, MigrationEnd, MigrationRecord};
pub use runner::{RunOutcome, Runner};
pub use shared::{Shared, Waker};
pub use survey::{FlowRecord, SurveyArea};
pub use thread::{CycleReport, ElasticThread};
pub use updates::{CommandMessage, FromBroker, Update, UpdateOutcome, UpdateSource, Updates};
pub use winding_up::WoundUp;
