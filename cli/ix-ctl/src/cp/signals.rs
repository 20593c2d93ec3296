//! Signals of `ix cp`: SIGHUP reads the policy again, SIGINT and SIGTERM end it.
use ix_report::problem::{Problem, Result};
use ix_sys::signal;

/// Begins to note them.
pub(super) fn catch() -> Result<()> {
    let signals = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];
    signals
        .into_iter()
        .try_for_each(signal::catch)
        .map_err(|e| Problem::new("cannot catch signals", e))
}

/// Whether a signal has asked for the end.
pub(super) fn ended() -> bool {
    signal::count(libc::SIGINT) + signal::count(libc::SIGTERM) > 0
}

/// Whether a signal has asked to read the policy again; once for each time.
pub(super) fn take_reload() -> bool {
    signal::take(libc::SIGHUP) > 0
}

/// The calling thread gets none: they are for the broker.
pub(super) fn block_all() {
    signal::block_all();
}
