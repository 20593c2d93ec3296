//! A file of the run, where all processes of a run count system calls that they make by
//! instructions of their own, and keep what the library says. `ix ctl stats` shows the one, `ix ctl
//! dump` has the other.
use crate::fds;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use ix_abi::{
    OWN_CALLS_BYTES, OWN_FILE_BYTES, OWN_SITES_MAX, OwnSite, REFUSED_BIND_AT, RefusedBind,
    SAID_BYTES,
};
use std::os::fd::RawFd;

static PAGE: AtomicPtr<OwnSite> = AtomicPtr::new(null_mut());

/// The file's descriptor, which executed programs inherit. It is negative if there is no file.
static FILE: AtomicI32 = AtomicI32::new(-1);

/// Returns the file's descriptor, or a negative number if there is no file.
pub fn file() -> RawFd {
    FILE.load(Ordering::Relaxed)
}

/// At the start of a process: maps the page, and moves its descriptor out of the program's way.
/// Without it nothing is shown.
pub fn begin(fd: RawFd) {
    FILE.store(fds::copy_out_of_the_way(fd).unwrap_or(-1), Ordering::Relaxed);
    // SAFETY: all zero is a valid value, which is filled; then a new mapping.
    unsafe {
        let mut status: libc::stat = core::mem::zeroed();
        if libc::syscall(libc::SYS_fstat, fd, &raw mut status) != 0 {
            return;
        }
        if status.st_size != OWN_FILE_BYTES as i64 {
            return;
        }
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let page = libc::mmap(null_mut(), OWN_CALLS_BYTES, rights, libc::MAP_SHARED, fd, 0);
        libc::syscall(libc::SYS_close, fd);
        if page != libc::MAP_FAILED {
            PAGE.store(page.cast(), Ordering::Release);
        }
    }
}

/// The sites of all processes.
pub fn sites() -> &'static [OwnSite] {
    let page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        return &[];
    }
    // SAFETY: mapped above, never unmapped, and all zero or counts at any time.
    unsafe { core::slice::from_raw_parts(page, OWN_SITES_MAX) }
}

/// Keeps a line at this place of the text. One that has no room is left out.
pub fn keep_line(at: usize, line: &[u8]) {
    let file = file();
    if file < 0 || at.checked_add(line.len()).is_none_or(|end| end > SAID_BYTES) {
        return;
    }
    // SAFETY: bytes and their number; the system call itself, because the C name may be a
    // sanitizer's. If it fails, reports lack the line.
    unsafe {
        let at = OWN_CALLS_BYTES + at;
        libc::syscall(libc::SYS_pwrite64, file, line.as_ptr(), line.len(), at);
    }
}

/// The program was refused a port that it named: said at its end if it never used IX, unless the
/// user was `told`.
pub fn bind_was_refused(errno: i32, port: u16, told: bool) {
    note_bind(errno, port, told);
}

/// The program has a port: what it was refused before is not said.
pub fn bind_was_made() {
    note_bind(0, 0, false);
}

fn note_bind(errno: i32, port: u16, told: bool) {
    let page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        return;
    }
    // SAFETY: behind the sites, in the same page, which is never unmapped; aligned as it.
    let refused = unsafe { &*page.byte_add(REFUSED_BIND_AT).cast::<RefusedBind>() };
    refused.port.store(port.into(), Ordering::Relaxed);
    refused.told.store(told.into(), Ordering::Relaxed);
    refused.errno.store(errno as u32, Ordering::Relaxed);
}
