//! The elastic thread: cycle, flow groups, timers, batched system calls, metrics.
//!
//! [`ElasticThread`] owns everything that one hardware thread needs to run packets to completion.
//! `cycle/` has the six steps and knows all parts; each part has a folder or a file of its own
//! (ARCHITECTURE.md lists them). [`Runner`] is `run_io` on Linux: a clock, bounded spinning, sleep
//! on the doorbells.
mod attachment;
mod broker;
mod calls;
mod clock;
pub mod config;
mod context;
mod cycle;
mod doorbell;
mod egress;
mod events;
mod flows;
mod forwarding;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod icmp;
mod io;
mod life;
mod looped;
mod migration;
mod neighbors;
mod observe;
mod ports;
mod promises;
mod raw;
mod receive;
mod run;
mod shared;
mod sync;
mod tcp;
#[cfg(test)]
mod test_rig;
mod timers;
mod udp;
mod verdict;

pub use broker::{FromBroker, OrderMessage, Update, UpdateOutcome, UpdateSource, Updates};
pub use calls::CallArray;
pub use clock::{Clock, ticks};
pub use config::{Config, memory_sizes};
pub use cycle::{CycleReport, ElasticThread};
pub use events::EventWriter;
pub use flows::handle;
pub use forwarding::{Forwarding, forwarding};
pub use io::Io;
pub use ix_proto::{
    BEGIN_US, Command, GroupSet, GroupSetError, MigrationEnd, MigrationRecord, Order, Outcome,
};
pub use life::Lives;
pub use migration::MigrateError;
pub use observe::survey::SurveyArea;
pub use observe::{capture, histogram, metrics};
pub use run::assembly::{ThreadParts, elastic_threads, equal_parts, pools};
pub use run::boot::{AppAccess, BootError, Dataplane, Device, Reach};
pub use run::crossing::CrossingPages;
pub use run::roster::{AttachRefused, Life, Shares};
pub use run::runner::{Alone, Callers, RunOutcome, Runner};
pub use run::winding_up::WoundUp;
pub use shared::{Shared, Waker};
