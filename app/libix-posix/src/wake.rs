//! Waking a thread that sleeps: each has an eventfd, its wake descriptor.
use crate::fds;
use crate::{log, pid, real};
use std::cell::RefCell;
use std::os::fd::RawFd;
use std::time::Duration;

/// Wakes the thread that sleeps on this descriptor.
#[cold]
pub fn wake(wake_fd: RawFd) {
    let one = 1u64;
    real::own_call();
    // SAFETY: writes eight bytes from a local, by the system call itself: `write` is ours. If the
    // counter is full, the thread is being woken already.
    unsafe { libc::syscall(libc::SYS_write, wake_fd, &raw const one, 8) };
}

/// Resets a wake descriptor, so that the next sleep on it lasts.
pub fn clear(wake_fd: RawFd) {
    let mut count = 0u64;
    real::own_call();
    // SAFETY: reads eight bytes into a local; the descriptor is non-blocking.
    unsafe { libc::syscall(libc::SYS_read, wake_fd, &raw mut count, 8) };
}

/// A new wake descriptor, at a high number that the program does not use.
pub fn new_fd() -> RawFd {
    // SAFETY: no pointers.
    let fd =
        unsafe { libc::syscall(libc::SYS_eventfd2, 0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    out_of_the_way(fd)
}

fn out_of_the_way(fd: libc::c_long) -> RawFd {
    if fd < 0 {
        log::fatal("no descriptor to wake a thread with: raise `ulimit -n`");
    }
    let fd = fd as RawFd;
    match fds::copy_out_of_the_way(fd) {
        Some(copy) => {
            // SAFETY: ours alone.
            unsafe { libc::syscall(libc::SYS_close, fd) };
            copy
        }
        None => fd,
    }
}

/// The same that [`set_timer`] wakes.
pub fn new_timer() -> RawFd {
    // SAFETY: no pointers.
    let fd = unsafe {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        libc::syscall(libc::SYS_timerfd_create, libc::CLOCK_MONOTONIC, flags)
    };
    out_of_the_way(fd)
}

/// Wakes the thread that sleeps on this descriptor of [`new_timer`] after a time below a second;
/// zero: does not.
pub fn set_timer(timer: RawFd, after: Duration) {
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let after = libc::timespec { tv_sec: 0, tv_nsec: after.subsec_nanos().into() };
    let once = libc::itimerspec { it_interval: zero, it_value: after };
    real::own_call();
    // SAFETY: reads a local; the old value is not asked for.
    unsafe { libc::syscall(libc::SYS_timerfd_settime, timer, 0, &raw const once, 0) };
}

/// The calling thread's wake descriptor. A forked child does not share its parent's.
pub fn own_fd() -> RawFd {
    thread_local! { static OWN: RefCell<Option<(i32, WakeFd)>> = const { RefCell::new(None) }; }
    let pid = pid::own();
    OWN.with_borrow_mut(|own| match own {
        Some((owner, wake_fd)) if *owner == pid => wake_fd.0,
        _ => own.insert((pid, WakeFd(new_fd()))).1.0,
    })
}

/// A wake descriptor that is closed with its thread.
struct WakeFd(RawFd);

impl Drop for WakeFd {
    fn drop(&mut self) {
        fds::close_private(self.0);
    }
}
