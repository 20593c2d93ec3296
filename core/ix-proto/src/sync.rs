//! The types that shared words are made of. `verify/loom/` compiles the same code with loom's
//! types, which try all orders that the memory model allows.
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
