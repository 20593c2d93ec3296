//! The messages that IX's own processes send each other, as types, and the one codec for both ends.
//!
//! * [`channel`]: what the broker and the dataplane say to each other.
//! * [`command`]: what the control plane asks of a running dataplane, and what came of it.
//! * [`capture`]: which packets a capture takes.
//! * [`groups`]: a set of flow groups.
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
pub mod groups;
mod vnic;

pub use channel::{FromImage, ToImage};
pub use codec::{Codec, DecodeError};
pub use command::{BEGIN_US, Command, Order, Outcome};
pub use groups::{GroupSet, GroupSetError};
