//! Calls about descriptors.
use super::{answer, fail, uring};
use crate::fds::{self, Entry};
use crate::lock::lock;
use crate::ops::{self, Instead};
use crate::{kept_numbers, log, mem, numbers, real, receive};
use libc::{F_DUPFD, F_DUPFD_CLOEXEC, O_NONBLOCK, c_int, c_uint, c_ulong};

/// Linux's number, which the `libc` crate lacks.
const F_SETSIG: c_int = 10;
/// The same.
const SIOCATMARK: c_ulong = 0x8905;
/// The same.
const SIOCOUTQNSD: c_ulong = 0x894b;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    match fds::get(fd) {
        Entry::Linux => {
            if uring::are_any() {
                uring::closes(fd as u32, fd as u32);
            }
            // SAFETY: the C library's `close` gets the program's own arguments.
            let result = unsafe { real::close(fd) };
            numbers::freed(fd);
            return result;
        }
        Entry::Private | Entry::Kept => return fail(libc::EBADF) as c_int,
        _ => {}
    }
    ops::linger(fd);
    let mut core = lock();
    let entry = ops::close_number(&mut core, fd);
    ops::drop_entry(&mut core, entry);
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let on_linux = |from: c_uint, to: c_uint| {
        // SAFETY: the C library's `close_range` gets the program's own arguments.
        if from > to { 0 } else { unsafe { real::close_range(from, to, flags) } }
    };
    kept_numbers::make_room(usize::MAX, 0);
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0 || first > last {
        for (fd, _) in fds::within(first, last) {
            let _ = ops::descriptor_flags(fd, Some(libc::FD_CLOEXEC));
        }
        // SAFETY: the C library's `close_range` gets the program's own arguments.
        return unsafe { real::close_range(first, last, flags) };
    }
    if uring::are_any() {
        uring::closes(first, last);
    }
    let mut from = first;
    let mut result = 0;
    for (fd, entry) in fds::within(first, last) {
        if entry == Entry::Private {
            if fd as c_uint > from {
                result |= on_linux(from, fd as c_uint - 1);
            }
            from = fd as c_uint + 1;
        } else {
            // SAFETY: `close` demands no more than this function does.
            unsafe { close(fd) };
        }
    }
    let result = if from > last { result } else { result | on_linux(from, last) };
    numbers::freed(first.min(c_int::MAX as c_uint) as c_int);
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: `close_range` demands no more than this function does.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    kept_numbers::make_room(1, 0);
    if let Err(errno) = ops::before_linux(fd) {
        return fail(errno) as c_int;
    }
    // SAFETY: the C library's `dup` gets the program's own arguments.
    let new = unsafe { real::dup(fd) };
    if new >= 0 && fds::is_ours(fd) {
        ops::duplicated(fd, new);
    }
    new
}

/// A `dup` that replaces a number.
fn over(fd: c_int, to: c_int, dup: impl FnOnce() -> c_int) -> c_int {
    if fds::get(to) == Entry::Private {
        return fail(libc::EBADF) as c_int;
    }
    if fds::is_ours(fd) || fds::is_ours(to) {
        return ops::duplicate_over(fd, to, dup).unwrap_or_else(|errno| fail(errno) as c_int);
    }
    let new = dup();
    if new >= 0 && fds::is_ours(to) {
        // Another thread has got the number for a socket meanwhile, and has lost it again.
        ops::duplicated(fd, to);
    }
    new
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: the C library's `dup2` gets the program's own arguments.
    over(fd, to, || unsafe { real::dup2(fd, to) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: the C library's `dup3` gets the program's own arguments.
    over(fd, to, || unsafe { real::dup3(fd, to, flags) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    if command == F_DUPFD || command == F_DUPFD_CLOEXEC {
        kept_numbers::make_room(1, argument as c_int);
    }
    if !fds::is_ours(fd) {
        // SAFETY: the C library's `fcntl` gets the program's own arguments.
        return unsafe { real::fcntl(fd, command, argument) };
    }
    let noted = match command {
        libc::F_GETFD => ops::descriptor_flags(fd, None),
        libc::F_SETFD => ops::descriptor_flags(fd, Some(argument as c_int)),
        libc::F_GETFL => ops::file_flags(fd, None),
        libc::F_SETFL => ops::file_flags(fd, Some(argument as c_int)),
        _ => Err(Instead::Linux),
    };
    if noted != Err(Instead::Linux) {
        return answer(fd, noted, || -1) as c_int;
    }
    if let Err(errno) = ops::before_linux(fd) {
        return fail(errno) as c_int;
    }
    // SAFETY: the C library's `fcntl` gets the program's own arguments.
    let result = unsafe { real::fcntl(fd, command, argument) };
    if result < 0 {
        return result;
    }
    match command {
        F_DUPFD | F_DUPFD_CLOEXEC => ops::duplicated(fd, result),
        libc::F_SETFL => {
            ops::set_nonblocking(fd, argument as c_int & O_NONBLOCK != 0);
            ops::keep_nonblocking(fd);
        }
        libc::F_GETFL => {
            // The Linux socket of a listener of both sides never blocks, so its flag is not the
            // program's.
            return match ops::is_nonblocking(fd) {
                Ok(true) => result | O_NONBLOCK,
                Ok(false) => result & !O_NONBLOCK,
                Err(_) => result,
            };
        }
        libc::F_SETOWN | F_SETSIG if matches!(fds::get(fd), Entry::Socket(_)) => {
            let text = "sockets of IX send no signals for input and output (F_SETOWN, O_ASYNC); \
                        configure the program to use epoll";
            log::once(log::Once::AsyncIo, text);
        }
        _ => {}
    }
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: `fcntl` demands no more than this function does.
    unsafe { fcntl(fd, command, argument) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    // SAFETY: the C library's `ioctl` gets the program's own arguments.
    let on_linux = || unsafe { real::ioctl(fd, request, argument) as isize };
    if !fds::is_ours(fd) {
        return on_linux() as c_int;
    }
    let has_int = mem::is_possible(argument as *const c_int, size_of::<c_int>());
    match request {
        libc::FIONBIO | libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD | SIOCATMARK if !has_int => {
            fail(libc::EFAULT) as c_int
        }
        libc::FIONBIO => {
            // SAFETY: for this request the argument is a pointer to an int.
            let on = unsafe { *(argument as *const c_int) } != 0;
            let flags = if on { O_NONBLOCK } else { 0 };
            let noted = ops::file_flags(fd, Some(flags));
            if noted != Err(Instead::Linux) {
                return answer(fd, noted, || -1) as c_int;
            }
            let result = on_linux();
            if result == 0 {
                ops::set_nonblocking(fd, on);
                ops::keep_nonblocking(fd);
            }
            result as c_int
        }
        libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD => {
            let bytes = match request {
                SIOCOUTQNSD => receive::unsent(fd),
                libc::FIONREAD => receive::queued(fd).map(|(unread, _)| unread),
                _ => receive::queued(fd).map(|(_, unacked)| unacked),
            };
            let told = bytes.map(|bytes| {
                // SAFETY: for these requests the argument is a pointer to an int.
                unsafe { *(argument as *mut c_int) = bytes.min(c_int::MAX as usize) as c_int };
                0
            });
            answer(fd, told, on_linux) as c_int
        }
        // Urgent data is received in line, so there is never a mark.
        SIOCATMARK if receive::queued(fd) != Err(Instead::Linux) => {
            // SAFETY: for this request the argument is a pointer to an int.
            unsafe { *(argument as *mut c_int) = 0 };
            0
        }
        libc::FIOCLEX | libc::FIONCLEX => {
            let flags = if request == libc::FIOCLEX { libc::FD_CLOEXEC } else { 0 };
            answer(fd, ops::descriptor_flags(fd, Some(flags)), on_linux) as c_int
        }
        _ => answer(fd, Err::<isize, _>(Instead::Linux), on_linux) as c_int,
    }
}
