//! Packet memory of one dataplane process, per-thread pools of it, and single-producer rings.
//!
//! [`PacketMemory`] is one virtual range, so that a device registers it once. It has a receive
//! area, which the application may read, frames in which the dataplane builds packets, and transmit
//! memory, which the application writes. Frames are [`FRAME_BYTES`] long. An [`Mbuf`] is the
//! *owning* name of one frame and of its bytes in use: it is neither `Clone` nor `Copy`, and only
//! [`Pool`] makes it.
mod chain;
mod lent;
mod list;
mod mbuf;
mod memory;
mod pool;
mod prefetch;
pub mod spsc;
mod sync;

pub use chain::buffers_for;
pub use lent::LentFrames;
pub use list::MbufList;
pub use mbuf::Mbuf;
pub use memory::{MemoryError, MemoryFds, OTHER_ARENAS, PacketMemory, PageKind, Sizes};
pub use pool::Pool;
pub use prefetch::{prefetch_read, prefetch_write};

/// Bytes of one frame. A standard Ethernet frame with headroom fits into one.
pub const FRAME_BYTES: usize = 2048;

/// Free bytes in front of a received or built packet. XDP reserves 256 bytes there.
pub const HEADROOM_BYTES: usize = 256;

/// Bytes of a packet that fit into one frame behind its headroom.
pub const ROOM_BYTES: usize = FRAME_BYTES - HEADROOM_BYTES;
