//! Real epoll sets in which nothing of Linux's was ready lately. The helper watches them, so that
//! `epoll_wait` need not ask Linux each time.
use crate::real;
use crate::slab::Id;
use crate::state::Core;
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_MOD, epoll_event};
use std::os::fd::RawFd;

/// Most reports that are read at a time.
const REPORTS_MAX: usize = 16;

/// Lets the helper watch a real set until something is ready there.
pub fn watch(core: &mut Core, quiet_sets: RawFd, id: Id) {
    let Some(set) = core.sets.get_mut(id) else { return };
    let real_set = set.real;
    let events = (libc::EPOLLIN | libc::EPOLLONESHOT) as u32;
    let mut event = epoll_event { events, u64: id };
    real::own_call();
    let mut control = |op: i32| {
        let call = libc::SYS_epoll_ctl;
        // SAFETY: reads a local; both descriptors are ours.
        unsafe { libc::syscall(call, quiet_sets, op, real_set, &raw mut event) == 0 }
    };
    // A set that cannot be watched is checked from time to time.
    let watched = control(EPOLL_CTL_MOD) || control(EPOLL_CTL_ADD);
    set.linux.watch(watched);
}

/// The helper was woken by quiet sets: they are no longer quiet.
pub fn take_reports(core: &mut Core) {
    let Some(quiet_sets) = core.quiet_sets else { return };
    let mut events = [epoll_event { events: 0, u64: 0 }; REPORTS_MAX];
    let (at, room) = (events.as_mut_ptr(), REPORTS_MAX as i32);
    real::own_call();
    // SAFETY: room of ours for this many.
    let count = unsafe { libc::syscall(libc::SYS_epoll_wait, quiet_sets, at, room, 0) };
    for event in &events[..count.clamp(0, REPORTS_MAX as i64) as usize] {
        if let Some(set) = core.sets.get_mut(event.u64) {
            set.linux.watch(false);
        }
    }
}
