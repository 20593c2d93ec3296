//! The page at the end of this library's file, where all processes of a run count system calls that
//! they make by instructions of their own. `ix ctl stats` shows it.
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use ix_abi::{OWN_CALLS_BYTES, OWN_SITES_MAX, OwnSite};
use std::os::fd::RawFd;

static PAGE: AtomicPtr<OwnSite> = AtomicPtr::new(null_mut());

/// At the start of a process: maps the page. Without it nothing is shown.
pub fn begin(library: RawFd) {
    // SAFETY: all zero is a valid value, which is filled; then a new mapping.
    unsafe {
        let mut status: libc::stat = core::mem::zeroed();
        if libc::syscall(libc::SYS_fstat, library, &raw mut status) != 0 {
            return;
        }
        let at = status.st_size - OWN_CALLS_BYTES as i64;
        if at <= 0 || at % OWN_CALLS_BYTES as i64 != 0 {
            return;
        }
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let page = libc::mmap(null_mut(), OWN_CALLS_BYTES, rights, libc::MAP_SHARED, library, at);
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
