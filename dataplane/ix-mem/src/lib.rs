//! Packet memory of one dataplane process, per-thread pools of it, and single-producer rings.
//!
//! [`PacketMemory`] is one virtual range (so that a device registers it once): a receive area that
//! the application may read, a frame area for packets that we build, and transmit memory that the
//! application writes. Frames are [`FRAME_BYTES`] long; an [`Mbuf`] is the *owning* name of one
//! frame and of the bytes in use: it is neither `Clone` nor `Copy`, and only [`Pool`] makes it.
mod lent;
mod list;
mod mbuf;
mod memory;
mod pool;
mod prefetch;
pub mod spsc;
mod sync;

pub use lent::LentFrames;
pub use list::MbufList;
pub use mbuf::Mbuf;
pub use memory::{MemoryError, PacketMemory, PageKind, Sizes, memory_fd};
pub use pool::Pool;
pub use prefetch::{prefetch_read, prefetch_write};

/// Bytes of one frame. A standard Ethernet frame with headroom fits into one.
pub const FRAME_BYTES: usize = 2048;

/// Free bytes in front of a received or built packet (XDP wants 256 in front for itself).
pub const HEADROOM_BYTES: usize = 256;

/// Bytes of a packet that one frame has room for behind its headroom.
pub const ROOM_BYTES: usize = FRAME_BYTES - HEADROOM_BYTES;
