//! Timers: the wheel of flows and application, and the application's own.
pub mod app;
pub mod wheel;

/// Wheel tokens with this bit name application timers, all others are handles.
pub(crate) const APP_TIMER: u64 = 1 << 63;
