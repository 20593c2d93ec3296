//! What a program asks of a base before it is made.
use core::ffi::c_int;

/// A base that is to be.
#[derive(Default)]
pub struct event_config {
    /// Without this library's only method.
    pub avoids_epoll: bool,
    /// Features that it must have (`EV_FEATURE_*`).
    pub features: c_int,
}

/// Edges, cheap descriptors and early closes: what epoll has.
pub const FEATURES: c_int = 0x01 | 0x02 | 0x08;

impl event_config {
    /// Whether a base of ours will do.
    pub fn is_met(&self) -> bool {
        !self.avoids_epoll && self.features & !FEATURES == 0
    }
}
