//! Events.
use super::{at, put, span_us, timeval_of};
use crate::core::{event_base, now_us};
use crate::event::{Callback, Ev, event, list, what};
use core::ffi::{c_int, c_short, c_void};
use core::ptr::null_mut;
use libc::timeval;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The base of programs with only one (`event_init`).
pub(super) static CURRENT: AtomicPtr<event_base> = AtomicPtr::new(null_mut());

/// Returned by `event_self_cbarg`; `event_new` replaces it by the event itself.
static SELF: u8 = 0;

#[unsafe(no_mangle)]
extern "C" fn event_self_cbarg() -> *mut c_void {
    (&raw const SELF).cast_mut().cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_assign(
    ev: *mut event,
    base: *mut event_base,
    fd: c_int,
    events: c_short,
    callback: Option<Callback>,
    arg: *mut c_void,
) -> c_int {
    let Some(this) = at!(ev) else { return -1 };
    if events & what::SIGNAL != 0 && events & what::IO != 0 {
        crate::log::warn("event_assign: EV_SIGNAL cannot be with EV_READ, EV_WRITE or EV_CLOSED");
        return -1;
    }
    let base = if base.is_null() { CURRENT.load(Ordering::SeqCst) } else { base };
    let arg = if arg == event_self_cbarg() { ev.cast() } else { arg };
    this.assign(base, fd, events, callback, arg);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_set(
    ev: *mut event,
    fd: c_int,
    events: c_short,
    callback: Option<Callback>,
    arg: *mut c_void,
) {
    // SAFETY: this function's own arguments.
    unsafe { event_assign(ev, null_mut(), fd, events, callback, arg) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_base_set(base: *mut event_base, ev: *mut event) -> c_int {
    let (Some(this), Some(whose)) = (at!(ev), at!(base)) else { return -1 };
    if this.flags.get() != list::INIT {
        return -1;
    }
    this.base.set(base.cast());
    this.priority.set((whose.priorities() / 2).min(255) as u8);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_new(
    base: *mut event_base,
    fd: c_int,
    events: c_short,
    callback: Option<Callback>,
    arg: *mut c_void,
) -> *mut event {
    let ev = Box::into_raw(Box::new(event::zeroed()));
    // SAFETY: just made.
    if unsafe { event_assign(ev, base, fd, events, callback, arg) } != 0 {
        // SAFETY: just made; there is no other reference.
        drop(unsafe { Box::from_raw(ev) });
        return null_mut();
    }
    ev
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_free(ev: *mut event) {
    let Some(this) = at!(ev) else { return };
    this.delete();
    // SAFETY: of `event_new`.
    drop(unsafe { Box::from_raw(ev) });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_add(ev: *mut event, timeout: *const timeval) -> c_int {
    let Some(this) = at!(ev) else { return -1 };
    let Some(base) = this.owner() else {
        crate::log::warn("event_add: the event has no base");
        return -1;
    };
    match base.add(Ev(ev), span_us(timeout)) {
        Ok(()) => 0,
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
            crate::log::warn(&format!("event_add: descriptor {}: {error}", this.fd.get()));
            crate::util::set_errno(errno);
            -1
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_del(ev: *mut event) -> c_int {
    let Some(this) = at!(ev) else { return -1 };
    this.delete();
    if this.owner().is_some() { 0 } else { -1 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_del_block(ev: *mut event) -> c_int {
    // SAFETY: this function's own arguments.
    unsafe { event_del(ev) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_del_noblock(ev: *mut event) -> c_int {
    let Some(this) = at!(ev) else { return -1 };
    let Some(base) = this.owner() else { return -1 };
    base.remove_at_once(Ev(ev));
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_remove_timer(ev: *mut event) -> c_int {
    let Some(this) = at!(ev) else { return -1 };
    this.stop_timer();
    if this.owner().is_some() { 0 } else { -1 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_active(ev: *mut event, result: c_int, _calls: c_short) {
    if let Some(this) = at!(ev) {
        this.activate(result as i16);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_pending(ev: *const event, events: c_short, time: *mut timeval) -> c_int {
    let Some(this) = at!(ev) else { return 0 };
    let mut is = 0;
    if this.is_in(list::INSERTED) {
        is |= this.events.get() & (what::IO | what::SIGNAL);
    }
    if this.is_in(list::ACTIVE) {
        is |= this.result.get();
    }
    if this.is_in(list::TIMEOUT) {
        is |= what::TIMEOUT;
    }
    is &= events & (what::TIMEOUT | what::IO | what::SIGNAL);
    if is & what::TIMEOUT != 0 {
        let left_us = this.due[0].get().saturating_sub(now_us());
        put!(time, timeval_of(super::base::wall_us() + left_us));
    }
    is.into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_initialized(ev: *const event) -> c_int {
    at!(ev).is_some_and(|this| this.is_in(list::INIT)).into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_priority_set(ev: *mut event, priority: c_int) -> c_int {
    let Some(this) = at!(ev) else { return -1 };
    let levels = this.owner().map_or(0, event_base::priorities);
    if this.is_in(list::ACTIVE) || priority < 0 || priority as usize >= levels {
        return -1;
    }
    this.priority.set(priority as u8);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_get_priority(ev: *const event) -> c_int {
    at!(ev).map_or(-1, |this| this.priority.get().into())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_get_fd(ev: *const event) -> c_int {
    at!(ev).map_or(-1, |this| this.fd.get())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_get_base(ev: *const event) -> *mut event_base {
    at!(ev).map_or(null_mut(), |this| this.base_ptr())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_get_events(ev: *const event) -> c_short {
    at!(ev).map_or(0, |this| this.events.get())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_get_callback(ev: *const event) -> Option<Callback> {
    at!(ev).and_then(|this| this.callback.get())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_get_callback_arg(ev: *const event) -> *mut c_void {
    at!(ev).map_or(null_mut(), |this| this.arg.get())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_get_assignment(
    ev: *const event,
    base: *mut *mut event_base,
    fd: *mut c_int,
    events: *mut c_short,
    callback: *mut Option<Callback>,
    arg: *mut *mut c_void,
) {
    let Some(this) = at!(ev) else { return };
    put!(base, this.base_ptr());
    put!(fd, this.fd.get());
    put!(events, this.events.get());
    put!(callback, this.callback.get());
    put!(arg, this.arg.get());
}

#[unsafe(no_mangle)]
extern "C" fn event_get_struct_event_size() -> usize {
    size_of::<event>()
}

/// An event that is freed after its only callback.
struct Once {
    ev: event,
    callback: Option<Callback>,
    arg: *mut c_void,
}

unsafe extern "C" fn on_once(fd: c_int, result: c_short, arg: *mut c_void) {
    // SAFETY: of `Box::into_raw` below; it is called once.
    let once = unsafe { Box::from_raw(arg.cast::<Once>()) };
    once.ev.delete();
    if let Some(callback) = once.callback {
        // SAFETY: the program's function with its argument.
        unsafe { callback(fd, result, once.arg) };
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn event_base_once(
    base: *mut event_base,
    fd: c_int,
    events: c_short,
    callback: Option<Callback>,
    arg: *mut c_void,
    timeout: *const timeval,
) -> c_int {
    if base.is_null() || events & (what::SIGNAL | what::PERSIST) != 0 {
        return -1;
    }
    let is_time = events & what::IO == 0;
    if is_time && events & what::TIMEOUT == 0 {
        return -1;
    }
    let once = Box::into_raw(Box::new(Once { ev: event::zeroed(), callback, arg }));
    // SAFETY: just made; it is freed when it is called.
    let ev = unsafe { &(*once).ev };
    let (fd, events) = if is_time { (-1, 0) } else { (fd, events & what::IO) };
    ev.assign(base, fd, events, Some(on_once), once.cast());
    if is_time && span_us(timeout).is_none_or(|us| us == 0) {
        ev.activate(what::TIMEOUT);
        return 0;
    }
    if ev.add(span_us(timeout)) {
        return 0;
    }
    // SAFETY: it waits for nothing, so there is no other reference.
    drop(unsafe { Box::from_raw(once) });
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_once(
    fd: c_int,
    events: c_short,
    callback: Option<Callback>,
    arg: *mut c_void,
    timeout: *const timeval,
) -> c_int {
    let base = CURRENT.load(Ordering::SeqCst);
    // SAFETY: this function's own arguments.
    unsafe { event_base_once(base, fd, events, callback, arg, timeout) }
}
