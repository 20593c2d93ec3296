//! `memif`: a link through shared memory to another process (IX, DPDK, VPP), protocol version 2.0.
//!
//! There are two roles. The *client* (the protocol's slave) brings all memory: the rings, and the
//! dataplane's packet memory itself, so that it never copies a packet. The *server* (master) maps
//! that memory and copies packets out of and into the client's buffers. The broker runs the control
//! socket. The dataplane gets what both sides have agreed on as a [`Plan`] and maps it ([`data`]).
//! A peer may come and go at any time.
//!
//! **No value of a peer is trusted.** Control messages are checked before they reach the dataplane;
//! regions must be sealed against shrinking; descriptors are read once and checked. The client's
//! peer sees all of its frames and can change received ones ([`crate::NicInfo::shared_frames`]); it
//! does not see the application's transmit memory. One risk remains: if a client gives regions in 2
//! MB pages and takes pages away (fallocate) while the machine has none left, the server dies.
//!
//! **Between two IX** with several queues, each pair of queues has a ring in each direction, so
//! that every ring has one writer. In a shared page the receiver says which flow group goes to
//! which of its queues ([`page`]). With other peers, queue `i` of one is linked to queue `i` of the
//! other.
//!
//! What is public here is for the broker: the plan, and the first contents of rings and page.
mod data;
mod page;
mod ring;

pub(crate) use data::{MemifNic, QueueLink, link};
pub use ix_proto::memif::{
    LOG2_SIZE_MAX, MemifRole, PAGE_BYTES, Plan, PlanError, QUEUES_MAX, REGION_BYTES_MAX,
    REGIONS_MAX, RingPlace, ring_bytes,
};
pub use page::{Direction, Receiver};
pub use ring::{COOKIE, initialize_ring};

/// Number of the region of the frames that a client receives into.
pub const RECEIVE_REGION: u16 = 1;
/// Number of the region of the frames that a client builds packets in.
pub const HEADERS_REGION: u16 = 2;

/// The device's mode, for display.
pub fn mode(role: MemifRole, queues: usize, peer: Option<&str>) -> String {
    let copies = match role {
        MemifRole::Server => "copying",
        MemifRole::Client => "zero-copy",
    };
    let plural = if queues == 1 { "" } else { "s" };
    let peer = peer.map_or("no peer".to_owned(), |name| format!("peer {name}"));
    format!("{}, {queues} queue{plural}, {copies}, {peer}", role.name())
}
