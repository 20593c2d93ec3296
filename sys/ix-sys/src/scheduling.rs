//! Scheduling policies and priorities of threads (sched(7)).
use crate::check;
use std::io;

/// The policy by which the kernel chooses among threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The default policy.
    Other,
    /// Only when no other thread wants the CPU.
    Idle,
    /// Before all threads of the default policy until it waits, with this priority (at least 1).
    Fifo(i32),
    /// The same, in turn with other threads of its priority.
    RoundRobin(i32),
}

/// Sets the policy of a thread; 0 is the calling thread (sched_setscheduler(2)).
pub fn set_policy(thread: i32, policy: Policy) -> io::Result<()> {
    let (number, sched_priority) = match policy {
        Policy::Other => (libc::SCHED_OTHER, 0),
        Policy::Idle => (libc::SCHED_IDLE, 0),
        Policy::Fifo(priority) => (libc::SCHED_FIFO, priority),
        Policy::RoundRobin(priority) => (libc::SCHED_RR, priority),
    };
    let parameter = libc::sched_param { sched_priority };
    // SAFETY: reads a local.
    check(unsafe { libc::sched_setscheduler(thread, number, &raw const parameter) }).map(drop)
}

/// Sets a thread's share among threads of the default policy: -20 is the largest, 19 the smallest
/// (setpriority(2)).
pub fn set_nice(thread: u32, nice: i32) -> io::Result<()> {
    let thread = rustix::process::Pid::from_raw(thread.cast_signed());
    Ok(rustix::process::setpriority_process(thread, nice)?)
}
