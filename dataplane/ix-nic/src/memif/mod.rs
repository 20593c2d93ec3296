//! `memif`: a link through shared memory to another process (IX, DPDK, VPP), protocol version 2.0.
//!
//! Two roles. The *client* (the protocol's slave) brings all the memory: rings, and the dataplane's
//! packet memory itself, so that it copies nothing either way. The *server* (master) maps that
//! memory and copies packets out of and into the client's buffers. The broker runs the control
//! socket; the dataplane gets what both sides agreed on as a [`Plan`] and maps it ([`data`]). A
//! peer may come, go and come back at any time.
//!
//! **No value of a peer's is trusted.** Control messages are checked before they reach the
//! dataplane; regions must be sealed against shrinking; descriptors are read once and checked. The
//! client's peer sees all its packet memory and can change received frames
//! ([`crate::NicInfo::shared_frames`]). What remains: a server whose client gives it regions in
//! 2 MB pages dies if that client takes pages away (fallocate) and the machine has none left.
//!
//! **Between two IX** with several queues each pair of queues has a ring each way, so that every
//! ring has one writer, and a page in which the receiver says which flow group goes to which of its
//! queues ([`page`]). With other peers queue `i` of one is linked to queue `i` of the other.
//!
//! What is public here is for the broker's side: the plan, and the first contents of rings and
//! page.
mod data;
mod page;
mod plan;
mod ring;

pub(crate) use data::{MemifNic, QueueLink};
pub use page::{Direction, PAGE_BYTES, Receiver};
pub use plan::{Plan, REGION_BYTES_MAX, REGIONS_MAX, RingPlace};
pub use ring::{COOKIE, LOG2_SIZE_MAX, initialize_ring, ring_bytes};

use std::io;
use std::os::fd::OwnedFd;

/// The two ends of a memif, by the names that other programs use today.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemifRole {
    /// Listens, and maps the client's memory (the protocol's master).
    Server,
    /// Connects, and brings the memory (the protocol's slave).
    Client,
}

impl MemifRole {
    /// As in `role=`.
    pub fn name(self) -> &'static str {
        match self {
            MemifRole::Server => "server",
            MemifRole::Client => "client",
        }
    }

    /// The role that [`MemifRole::name`] names so.
    pub fn from_name(name: &str) -> Option<MemifRole> {
        [MemifRole::Server, MemifRole::Client].into_iter().find(|role| role.name() == name)
    }
}

/// Most queue pairs of a memif: between two IX there is a ring for each pair of queues.
pub const QUEUES_MAX: usize = 16;
/// Number of the region that is the client's packet memory.
pub const PACKETS_REGION: u16 = 1;
/// Largest IP packet: one that fits a client's receive buffer with its Ethernet header.
pub const MTU_MAX: usize = data::BUFFER_BYTES - 14;
/// What the dataplane hears when the peer is gone.
pub const DOWN_LINE: &str = "memif down";

/// What a device does, for people.
pub fn mode(role: MemifRole, queues: usize, peer: Option<&str>) -> String {
    let copies = match role {
        MemifRole::Server => "copying",
        MemifRole::Client => "zero-copy",
    };
    let plural = if queues == 1 { "" } else { "s" };
    let peer = peer.map_or("no peer".to_owned(), |name| format!("peer {name}"));
    format!("{}, {queues} queue{plural}, {copies}, {peer}", role.name())
}

/// Reads an update of the link: a part for each queue.
pub(crate) fn read_update(line: &str, fds: Vec<OwnedFd>) -> Result<Vec<QueueLink>, UpdateError> {
    let plan = Plan::from_line(line).map_err(UpdateError::Line)?;
    data::link(plan, fds).map_err(UpdateError::Map)
}

/// Whether an update says that the peer is gone.
pub(crate) fn is_down(line: &str) -> bool {
    line == DOWN_LINE
}

/// Why an update cannot be read.
pub(crate) enum UpdateError {
    Line(&'static str),
    Map(io::Error),
}
