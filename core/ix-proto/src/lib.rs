//! The messages that IX's own processes send each other, as types, and the one codec for both ends.
//!
//! * [`channel`]: what the broker and the dataplane say to each other.
//! * [`limits`]: how much one message carries.
//! * [`config`]: what a dataplane begins with.
//! * [`device`]: what a device is, and how it changes; [`memif`]: the same of a memif's link.
//! * [`command`]: what the control plane asks of a running dataplane, and what came of it.
//! * [`capture`]: which packets a capture takes.
//! * [`groups`]: a set of flow groups.
//! * [`observed`]: what elastic threads are, and what migrations were.
//! * [`routes`]: where packets go, of an address that is Linux's as well.
//! * [`crossing`]: the words by which a program and a dataplane in another process cross the wall.
//! * `control` (a feature): requests and answers of the control socket, as lines of JSON.
//! * [`survey`]: what is known of each connection, in memory that both sides map.
//! * [`codec`]: how a value becomes bytes. Both ends are of the same release, so there is no
//!   version.
//!
//! Nothing here does I/O. A decoder gets bytes that may be anything: it returns an error, never
//! panics, and allocates no more than the bytes can fill.
#![forbid(unsafe_code)]

pub mod capture;
pub mod channel;
pub mod codec;
pub mod command;
pub mod config;
#[cfg(feature = "control")]
pub mod control;
pub mod crossing;
pub mod device;
pub mod groups;
pub mod keeper;
pub mod limits;
pub mod memif;
pub mod observed;
pub mod routes;
pub mod survey;
mod sync;
mod tcp;
mod vnic;

pub use channel::{ClaimRefused, FromImage, SharedPort, ToImage};
pub use codec::{Codec, DecodeError};
pub use command::{BEGIN_US, Command, Order, Outcome};
pub use config::{Config, Start};
pub use device::{DeviceChange, NicInfo};
pub use groups::{GroupSet, GroupSetError};
pub use observed::{MigrationEnd, MigrationRecord, ThreadState};
