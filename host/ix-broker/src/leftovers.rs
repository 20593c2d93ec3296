//! What is left of a program's process when it has ended: the one that closed its connections.
use std::time::{Duration, Instant};

/// So long after its connections are closed, at most.
const PATIENCE: Duration = Duration::from_millis(100);

/// Takes leave of all children of this process; those that do not end are made to. For `ix run`,
/// whose only child was the program.
pub fn reap() {
    let end = Instant::now() + PATIENCE;
    loop {
        // SAFETY: no pointers; any child will do.
        match unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } {
            0 if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
            0 => return kill_children(),
            pid if pid > 0 => {}
            _ => return,
        }
    }
}

fn kill_children() {
    let children = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    for pid in children.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()) {
        // SAFETY: no pointers; children that were not waited for keep their numbers.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, std::ptr::null_mut(), 0);
        }
    }
}
