//! The configuration of a base before it is made.
use core::ffi::c_int;

/// Configuration of a base.
#[derive(Default)]
pub struct event_config {
    /// The program excluded this library's only method.
    pub avoids_epoll: bool,
    /// Features that the base must have (`EV_FEATURE_*`).
    pub features: c_int,
}

/// Edge triggering, cheap descriptors and early close: the features of epoll.
pub const FEATURES: c_int = 0x01 | 0x02 | 0x08;

impl event_config {
    /// Whether a base of ours has the features.
    pub fn is_met(&self) -> bool {
        !self.avoids_epoll && self.features & !FEATURES == 0
    }
}
