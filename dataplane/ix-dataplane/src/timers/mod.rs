//! Timers: the wheel of the flows, and the application's own.
pub mod app;
pub mod wheel;
