//! Monotonic time.
use std::sync::OnceLock;
use std::time::Instant;

/// Nanoseconds since the program first asked.
pub fn now_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}
