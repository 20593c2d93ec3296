//! Signals as events: a handler counts them and wakes the base that waits for them.
use core::ffi::c_int;
use std::io;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// One more than the highest signal number.
pub const SIGNALS: usize = 65;

/// How often each signal was received since it was last reported.
static COUNTS: [AtomicU32; SIGNALS] = [const { AtomicU32::new(0) }; SIGNALS];
/// The wake descriptor (an eventfd) of the base that waits for each signal; -1 if none does.
static WAKE_FDS: [AtomicI32; SIGNALS] = [const { AtomicI32::new(-1) }; SIGNALS];

extern "C" fn on_signal(signal: c_int) {
    let (Some(count), Some(wake_fd)) = (COUNTS.get(signal as usize), WAKE_FDS.get(signal as usize))
    else {
        return;
    };
    count.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the calling thread's own errno, which a handler must leave as it was.
    let errno = unsafe { *libc::__errno_location() };
    wake_up(wake_fd.load(Ordering::SeqCst));
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Makes a wake descriptor readable. Safe in a signal handler.
pub fn wake_up(wake_fd: c_int) {
    // SAFETY: eight bytes of a local; a bad descriptor is an error that changes nothing.
    unsafe { libc::write(wake_fd, (&1u64 as *const u64).cast(), 8) };
}

/// A new wake descriptor.
pub fn new_wake_fd() -> io::Result<c_int> {
    // SAFETY: a plain call.
    let wake_fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    if wake_fd < 0 { Err(io::Error::last_os_error()) } else { Ok(wake_fd) }
}

/// Resets a wake descriptor.
pub fn clear_wake_fd(wake_fd: c_int) {
    let mut count = 0u64;
    // SAFETY: eight bytes of a local.
    unsafe { libc::read(wake_fd, (&mut count as *mut u64).cast(), 8) };
}

/// The action of a signal before it was an event.
pub struct Before(libc::sigaction);

/// From now on the signal writes this wake descriptor.
pub fn begin(signal: c_int, wake_fd: c_int) -> io::Result<Before> {
    let place = WAKE_FDS.get(signal as usize).ok_or(io::ErrorKind::InvalidInput)?;
    place.store(wake_fd, Ordering::SeqCst);
    // SAFETY: all-zero is a valid action before its fields are set; locals.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        let mut before: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_signal as extern "C" fn(c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigfillset(&mut action.sa_mask);
        if libc::sigaction(signal, &action, &mut before) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Before(before))
    }
}

/// Restores the action of a signal.
pub fn end(signal: c_int, before: &Before) {
    // SAFETY: an action that was set before.
    unsafe { libc::sigaction(signal, &before.0, core::ptr::null_mut()) };
    if let (Some(wake_fd), Some(count)) =
        (WAKE_FDS.get(signal as usize), COUNTS.get(signal as usize))
    {
        wake_fd.store(-1, Ordering::SeqCst);
        count.store(0, Ordering::SeqCst);
    }
}

/// How often the signal was received since the last call.
pub fn take(signal: c_int) -> u32 {
    COUNTS.get(signal as usize).map_or(0, |count| count.swap(0, Ordering::SeqCst))
}
