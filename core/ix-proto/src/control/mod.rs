//! The words of the control socket, for both of its ends: lines of JSON.
//!
//! * [`line`]: the greeting, and what the broker sends.
//! * [`request`]: what a client asks, with [`query`] for connections.
//! * [`refusal`]: why a request is refused.
//! * [`answer`]: what a request returns, with [`status`], [`connections`], [`vnic`] and
//!   [`controller`].
//!
//! A request with an unknown key is refused. An answer is read leniently: what is new is passed
//! over.
pub mod answer;
pub mod connections;
pub mod controller;
pub mod line;
pub mod query;
pub mod refusal;
pub mod request;
pub mod status;
#[cfg(test)]
mod tests;
pub(crate) mod text;
pub mod vnic;

pub use answer::{About, Answer, CaptureStarted, PolicySet};
pub use connections::{Connection, Connections};
pub use controller::{PolicyRequest, Report};
pub use line::{Greeting, Hello, Line, Role};
pub use query::{CONNECTIONS_MAX, INTERVAL_MAX_MS, PeerFilter, Query, Sort, StateFilter, TcpState};
pub use refusal::{Code, Refusal, Refused};
pub use request::{CaptureWish, Request, Topic, VnicDevice};
pub use status::{
    Commands, CycleTicks, Group, Hardware, Look, MemoryUse, OwnCalls, Sharer, Sharing, Starting,
    Status, TIME_BOUNDS_US, Thread, Times, Wall, Window,
};

/// Version of the protocol. A change that an older client could misread is a new one.
pub const PROTOCOL: u64 = 1;
