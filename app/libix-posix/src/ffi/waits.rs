//! Calls that wait for several descriptors.
use super::answer;
use crate::mem::{is_possible, is_readable};
use crate::ops::{self, Instead, Outcome};
use crate::{cancel, epoll, fds, kept_numbers, log, poll, real, signals};
use core::ptr::null_mut;
use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use std::time::{Duration, Instant};

/// Runs a call with another signal mask, as `ppoll` does.
///
/// # Safety
/// `mask` is null or points to a mask.
pub(super) unsafe fn with_mask<R>(
    mask: *const sigset_t,
    call: impl FnOnce() -> Outcome<R>,
) -> Outcome<R> {
    signals::reset();
    if mask.is_null() {
        return call();
    }
    // The C library's functions would fault, where the call on Linux returns EFAULT.
    if !is_readable(mask.cast(), 8) {
        return Err(libc::EFAULT.into());
    }
    let mut before = core::mem::MaybeUninit::<sigset_t>::zeroed();
    // The handler of a pending signal runs as soon as the mask is set, and ends the call.
    // SAFETY: the program's mask, or the one that was in force before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, before.as_mut_ptr()) };
    let result = call();
    let errno = real::errno();
    // SAFETY: the program's mask, or the one that was in force before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut()) };
    real::set_errno(errno);
    result
}

/// When a wait of `time` is over; `None` (never) for null.
///
/// # Safety
/// `time` is null or can be read.
unsafe fn until(time: *const timespec) -> Result<Option<Instant>, i32> {
    // SAFETY: the caller's promise.
    let time = unsafe { duration(time) }?;
    Ok(time.and_then(|time| Instant::now().checked_add(time)))
}

/// How long a wait is; `None` (no limit) for null.
///
/// # Safety
/// `time` is null or can be read.
pub(super) unsafe fn duration(time: *const timespec) -> Result<Option<Duration>, i32> {
    if time.is_null() {
        return Ok(None);
    }
    if !is_possible(time, size_of::<timespec>()) {
        return Err(libc::EFAULT);
    }
    // SAFETY: a structure of the program's, which waits for this call.
    let time = unsafe { &*time };
    if time.tv_sec < 0 || !(0..1_000_000_000).contains(&time.tv_nsec) {
        return Err(libc::EINVAL);
    }
    Ok(Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    if size <= 0 {
        return super::fail(libc::EINVAL) as c_int;
    }
    // SAFETY: `epoll_create1` demands no more than this function does.
    unsafe { epoll_create1(0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    kept_numbers::make_room(1, 0);
    // SAFETY: the C library's `epoll_create1` gets the program's own arguments.
    let fd = unsafe { real::epoll_create1(flags) };
    if fd >= 0 {
        epoll::set_made(fd);
    }
    fd
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(
    set: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: the C library's `epoll_ctl` gets the program's own arguments.
    let on_linux = || unsafe { real::epoll_ctl(set, op, fd, event) };
    if !fds::is_ours(set) {
        return on_linux();
    }
    let has_event = is_possible(event, size_of::<epoll_event>());
    // SAFETY: a structure of the program's, which waits for this call.
    let event = has_event.then(|| unsafe { event.read_unaligned() });
    let outcome = epoll::control(set, op, fd, event, on_linux).map(|n| n as isize);
    if outcome == Err(Instead::Linux)
        && let Err(errno) = ops::before_linux(fd)
    {
        return super::fail(errno) as c_int;
    }
    answer(set, outcome, || on_linux() as isize) as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: `epoll_pwait` demands no more than this function does.
    unsafe { epoll_pwait(set, events, count, timeout_ms, core::ptr::null()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the C library's `epoll_pwait` gets the program's own arguments.
    let on_linux = || unsafe { real::epoll_pwait(set, events, count, timeout_ms, mask) as isize };
    if !fds::is_ours(set) || count <= 0 {
        return on_linux() as c_int;
    }
    cancel::point(|| {
        if !is_possible(events, count as usize * size_of::<epoll_event>()) {
            return super::fail(libc::EFAULT) as c_int;
        }
        // SAFETY: the program has room for this many events there.
        let slice = unsafe { core::slice::from_raw_parts_mut(events, count as usize) };
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        // SAFETY: null, or a mask of the program's.
        let outcome = unsafe { with_mask(mask, || epoll::wait_set(set, slice, timeout)) };
        answer(set, outcome, on_linux) as c_int
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's own arguments, by the system call itself.
    let on_linux = || unsafe {
        libc::syscall(libc::SYS_epoll_pwait2, set, events, count, timeout, mask, 8) as isize
    };
    if !fds::is_ours(set) || count <= 0 {
        return on_linux() as c_int;
    }
    cancel::point(|| {
        if !is_possible(events, count as usize * size_of::<epoll_event>()) {
            return super::fail(libc::EFAULT) as c_int;
        }
        // SAFETY: null, or a time of the program's.
        let timeout = match unsafe { duration(timeout) } {
            Ok(timeout) => timeout,
            Err(errno) => return super::fail(errno) as c_int,
        };
        // SAFETY: the program has room for this many events there.
        let slice = unsafe { core::slice::from_raw_parts_mut(events, count as usize) };
        // SAFETY: null, or a mask of the program's.
        let outcome = unsafe { with_mask(mask, || epoll::wait_set(set, slice, timeout)) };
        answer(set, outcome, on_linux) as c_int
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    // SAFETY: the C library's `poll` gets the program's own arguments.
    let on_linux = || unsafe { real::poll(fds, count, timeout_ms) as isize };
    if count == 0 || !is_possible(fds, (count as usize).saturating_mul(size_of::<pollfd>())) {
        return on_linux() as c_int;
    }
    cancel::point(|| {
        signals::reset();
        // SAFETY: the program passes an array of this many descriptors.
        let slice = unsafe { core::slice::from_raw_parts_mut(fds, count as usize) };
        answer(-1, poll::poll(slice, epoll::until_ms(timeout_ms)), on_linux) as c_int
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
    room: size_t,
) -> c_int {
    if count as usize * size_of::<pollfd>() > room {
        log::fatal("a program polls beyond its array");
    }
    // SAFETY: `poll` demands no more than this function does.
    unsafe { poll(fds, count, timeout_ms) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the C library's `ppoll` gets the program's own arguments.
    let on_linux = || unsafe { real::ppoll(fds, count, timeout, mask) as isize };
    if count == 0 || !is_possible(fds, (count as usize).saturating_mul(size_of::<pollfd>())) {
        return on_linux() as c_int;
    }
    cancel::point(|| {
        // SAFETY: null, or a time of the program's.
        let until = match unsafe { until(timeout) } {
            Ok(until) => until,
            Err(errno) => return super::fail(errno) as c_int,
        };
        // SAFETY: the program passes an array of this many descriptors.
        let slice = unsafe { core::slice::from_raw_parts_mut(fds, count as usize) };
        // SAFETY: null, or a mask of the program's.
        let outcome = unsafe { with_mask(mask, || poll::poll(slice, until)) };
        answer(-1, outcome, on_linux) as c_int
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    if count as usize * size_of::<pollfd>() > room {
        log::fatal("a program polls beyond its array");
    }
    // SAFETY: `ppoll` demands no more than this function does.
    unsafe { ppoll(fds, count, timeout, mask) }
}

/// Whether each of these is null or at a possible address for a set of `count` bits.
fn are_sets(sets: [*mut fd_set; 3], count: c_int) -> bool {
    let bytes = (count.max(0) as usize).div_ceil(64) * 8;
    sets.into_iter().all(|set| set.is_null() || is_possible(set, bytes))
}

/// The words of a set that have the bits below `count`.
///
/// # Safety
/// `set` is null or points to that many bits.
unsafe fn words<'a>(set: *mut fd_set, count: c_int) -> &'a mut [u64] {
    if set.is_null() {
        return &mut [];
    }
    let words = (count.max(0) as usize).div_ceil(64);
    // SAFETY: a set has a bit for each descriptor below `count`.
    unsafe { core::slice::from_raw_parts_mut(set.cast(), words) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the C library's `select` gets the program's own arguments.
    let on_linux = || unsafe { real::select(count, read, write, except, timeout) as isize };
    let has_time = timeout.is_null() || is_possible(timeout, size_of::<timeval>());
    if count <= 0 || !has_time || !are_sets([read, write, except], count) {
        return on_linux() as c_int;
    }
    cancel::point(|| {
        let start = Instant::now();
        // SAFETY: null, or a time of the program's.
        let limit = match unsafe { timeout.as_ref() } {
            None => None,
            Some(time) if time.tv_sec < 0 || time.tv_usec < 0 => return on_linux() as c_int,
            Some(time) => Some(
                Duration::from_secs(time.tv_sec as u64)
                    + Duration::from_micros(time.tv_usec as u64),
            ),
        };
        let until = limit.and_then(|limit| start.checked_add(limit));
        // SAFETY: each is null, or a set of `count` bits.
        let sets = unsafe { (words(read, count), words(write, count), words(except, count)) };
        let outcome = poll::select(count, sets.0, sets.1, sets.2, until);
        // As Linux does, writes how much time is left.
        if let (Some(limit), Some(timeout), true) =
            // SAFETY: null, or a time of the program's.
            (limit, unsafe { timeout.as_mut() }, outcome != Err(crate::ops::Instead::Linux))
        {
            let left = limit.saturating_sub(start.elapsed());
            (timeout.tv_sec, timeout.tv_usec) =
                (left.as_secs() as i64, i64::from(left.subsec_micros()));
        }
        answer(-1, outcome, on_linux) as c_int
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the C library's `pselect` gets the program's own arguments.
    let on_linux = || unsafe { real::pselect(count, read, write, except, timeout, mask) as isize };
    if count <= 0 || !are_sets([read, write, except], count) {
        return on_linux() as c_int;
    }
    cancel::point(|| {
        // SAFETY: null, or a time of the program's.
        let until = match unsafe { until(timeout) } {
            Ok(until) => until,
            Err(errno) => return super::fail(errno) as c_int,
        };
        // SAFETY: each is null, or a set of `count` bits.
        let sets = unsafe { (words(read, count), words(write, count), words(except, count)) };
        let outcome =
            // SAFETY: null, or a mask of the program's.
            unsafe { with_mask(mask, || poll::select(count, sets.0, sets.1, sets.2, until)) };
        answer(-1, outcome, on_linux) as c_int
    })
}
