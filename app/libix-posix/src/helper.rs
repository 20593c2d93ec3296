//! The helper: a thread of ours for each elastic thread. It drives when no thread of the program
//! has run a cycle for a millisecond, so that peers are answered while the program computes.
use crate::elastic_thread::{Alarm, Role, TICK};
use crate::lock::lock;
use crate::state::Core;
use crate::{cycle, fds, filtered, kept_numbers, quiet_sets, signals, wake};
use libix::raw::Wait;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// Starts a helper for each elastic thread.
pub fn start(core: &mut Core) {
    kept_numbers::limit(core);
    // SAFETY: no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC) } as RawFd;
    core.quiet_sets = fds::copy_out_of_the_way(fd);
    // SAFETY: ours alone.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    for elastic in 0..core.elastic_count {
        // Made here: the process may have no descriptor left when the thread begins.
        let wake_fd = wake::new_timer();
        signals::spawn("ix-helper", move || help(elastic, wake_fd));
    }
}

/// What a helper does until the process ends. The first helper also watches the quiet sets.
fn help(index: usize, wake_fd: RawFd) {
    filtered::helps();
    let mut seen = u64::MAX;
    let mut numbers = QuietNumbers { changes: 0, since: Instant::now() };
    loop {
        let mut core = lock();
        let rest = numbers.give_back_if_quiet(&mut core);
        let stays_out = core.stay_out > 0;
        let own = &mut core.elastic_threads[index];
        own.helper_sleeps = None;
        let unchanged = own.cycle == seen;
        seen = own.cycle;
        let is_free = own.role == Role::Free && own.wants_role.is_empty() && !stays_out;
        let come_out = filtered::come_out();
        if is_free && (unchanged || come_out.is_some()) {
            let wait = rest.map_or(Wait::Forever, |rest| Wait::Us(rest.as_micros() as u64));
            (core, _) = cycle::run(core, index, wait, come_out, Role::Helper);
            seen = core.elastic_threads[index].cycle;
            drop(core);
            come_out.into_iter().for_each(wake::clear);
            continue;
        }
        let idle = own.role == Role::Program && unchanged;
        if idle {
            own.helper_sleeps = Some(Alarm::new(wake_fd));
        }
        let quiet_sets = core.quiet_sets.filter(|_| index == 0);
        drop(core);
        if signals::sleep(wake_fd, quiet_sets, if idle { rest } else { Some(TICK) }) {
            quiet_sets::take_reports(&mut lock());
        }
    }
}

/// Gives the kept numbers back to Linux when the program has opened and closed no sockets for a
/// while.
struct QuietNumbers {
    changes: u64,
    since: Instant,
}

impl QuietNumbers {
    /// How long the program must have been quiet.
    const QUIET: Duration = Duration::from_millis(100);
    /// How many go back at a time. The lock is held meanwhile.
    const AT_ONCE: usize = 16;

    /// Gives some back if it is time. Returns when to call again; `None` if no number is kept.
    fn give_back_if_quiet(&mut self, core: &mut Core) -> Option<Duration> {
        if core.numbers.changes != self.changes {
            (self.changes, self.since) = (core.numbers.changes, Instant::now());
        }
        if core.numbers.len() == 0 {
            return None;
        }
        let left = Self::QUIET.saturating_sub(self.since.elapsed());
        if !left.is_zero() {
            return Some(left);
        }
        kept_numbers::give_back(core, Self::AT_ONCE, 0);
        Some(TICK)
    }
}
