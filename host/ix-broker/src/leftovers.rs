//! The child processes that are left when the program has ended: the survivor, which closed its
//! connections.
use ix_sys::process;
use std::time::{Duration, Instant};

/// Longest wait for the children's end after the connections are closed.
const PATIENCE: Duration = Duration::from_millis(100);

/// Waits for all children of this process, and kills those that do not end in time. For `ix run`,
/// whose only child was the program.
pub fn reap() {
    let end = Instant::now() + PATIENCE;
    loop {
        match process::wait_for_any() {
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
            Ok(None) => return kill_children(),
            Ok(Some(_)) => {}
            Err(_) => return,
        }
    }
}

fn kill_children() {
    let children = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    for pid in children.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()) {
        // A child keeps its number until its parent has waited for it.
        let _ = process::kill(pid, libc::SIGKILL);
        let _ = process::wait(pid, true);
    }
}
