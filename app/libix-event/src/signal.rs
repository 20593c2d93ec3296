//! Signals as events: a handler counts them and rings the bell of the base that waits for them.
use core::ffi::c_int;
use std::io;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Signals there are.
pub const SIGNALS: usize = 65;

/// How often each came and was not told yet.
static COUNTS: [AtomicU32; SIGNALS] = [const { AtomicU32::new(0) }; SIGNALS];
/// The bell (an eventfd) of the base that waits for each; -1: none does.
static BELLS: [AtomicI32; SIGNALS] = [const { AtomicI32::new(-1) }; SIGNALS];

extern "C" fn on_signal(signal: c_int) {
    let (Some(count), Some(bell)) = (COUNTS.get(signal as usize), BELLS.get(signal as usize))
    else {
        return;
    };
    count.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the calling thread's own errno, which a handler must leave as it was.
    let errno = unsafe { *libc::__errno_location() };
    ring(bell.load(Ordering::SeqCst));
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Makes a bell readable. Safe in a signal handler.
pub fn ring(bell: c_int) {
    // SAFETY: eight bytes of a local; a bad descriptor is an error that changes nothing.
    unsafe { libc::write(bell, (&1u64 as *const u64).cast(), 8) };
}

/// A new bell.
pub fn new_bell() -> io::Result<c_int> {
    // SAFETY: a plain call.
    let bell = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    if bell < 0 { Err(io::Error::last_os_error()) } else { Ok(bell) }
}

/// Makes a bell silent again.
pub fn hush(bell: c_int) {
    let mut count = 0u64;
    // SAFETY: eight bytes of a local.
    unsafe { libc::read(bell, (&mut count as *mut u64).cast(), 8) };
}

/// A signal's action before it was an event.
pub struct Before(libc::sigaction);

/// From now on the signal rings this bell.
pub fn begin(signal: c_int, bell: c_int) -> io::Result<Before> {
    let place = BELLS.get(signal as usize).ok_or(io::ErrorKind::InvalidInput)?;
    place.store(bell, Ordering::SeqCst);
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

/// The signal does again what it did before.
pub fn end(signal: c_int, before: &Before) {
    // SAFETY: an action that was in force.
    unsafe { libc::sigaction(signal, &before.0, core::ptr::null_mut()) };
    if let (Some(bell), Some(count)) = (BELLS.get(signal as usize), COUNTS.get(signal as usize)) {
        bell.store(-1, Ordering::SeqCst);
        count.store(0, Ordering::SeqCst);
    }
}

/// How often the signal came since it was asked last.
pub fn take(signal: c_int) -> u32 {
    COUNTS.get(signal as usize).map_or(0, |count| count.swap(0, Ordering::SeqCst))
}
