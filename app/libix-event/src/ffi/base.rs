//! Bases and their loops.
use super::event::{CURRENT, event_base_once};
use super::{at, put, timeval_of};
use crate::config::{FEATURES, event_config};
use crate::core::event_base;
use crate::event::what;
use core::ffi::{CStr, c_char, c_int, c_short, c_uint, c_void};
use core::ptr::{null, null_mut};
use libc::timeval;
use std::sync::atomic::Ordering;

/// The version that programs see.
const VERSION: &CStr = c"2.1.12-stable";
const VERSION_NUMBER: u32 = 0x0201_0c00;

#[unsafe(no_mangle)]
extern "C" fn event_get_version() -> *const c_char {
    VERSION.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn event_get_version_number() -> u32 {
    VERSION_NUMBER
}

#[unsafe(no_mangle)]
extern "C" fn event_base_new() -> *mut event_base {
    match event_base::new() {
        Ok(base) => Box::into_raw(Box::new(base)),
        Err(error) => {
            crate::log::warn(&format!("event_base_new: {error}"));
            null_mut()
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_base_new_with_config(config: *const event_config) -> *mut event_base {
    if at!(config).is_some_and(|config| !config.is_met()) { null_mut() } else { event_base_new() }
}

#[unsafe(no_mangle)]
extern "C" fn event_init() -> *mut event_base {
    let base = event_base_new();
    CURRENT.store(base, Ordering::SeqCst);
    base
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_base_free(base: *mut event_base) {
    let base = if base.is_null() { CURRENT.load(Ordering::SeqCst) } else { base };
    let Some(this) = at!(base) else { return };
    let _ = CURRENT.compare_exchange(base, null_mut(), Ordering::SeqCst, Ordering::SeqCst);
    this.forget_all();
    // SAFETY: of `event_base_new`.
    drop(unsafe { Box::from_raw(base) });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_base_free_nofinalize(base: *mut event_base) {
    // SAFETY: this function's own arguments.
    unsafe { event_base_free(base) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_base_loop(base: *mut event_base, flags: c_int) -> c_int {
    at!(base).map_or(-1, |base| base.run(flags))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_base_dispatch(base: *mut event_base) -> c_int {
    at!(base).map_or(-1, |base| base.run(0))
}

#[unsafe(no_mangle)]
extern "C" fn event_dispatch() -> c_int {
    event_loop(0)
}

#[unsafe(no_mangle)]
extern "C" fn event_loop(flags: c_int) -> c_int {
    at!(CURRENT.load(Ordering::SeqCst)).map_or(-1, |base| base.run(flags))
}

unsafe extern "C" fn on_exit(_: c_int, _: c_short, base: *mut c_void) {
    if let Some(base) = at!(base.cast::<event_base>()) {
        base.end(false);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_base_loopexit(base: *mut event_base, time: *const timeval) -> c_int {
    // SAFETY: this function's own arguments.
    unsafe { event_base_once(base, -1, what::TIMEOUT, Some(on_exit), base.cast(), time) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_loopexit(time: *const timeval) -> c_int {
    // SAFETY: this function's own arguments.
    unsafe { event_base_loopexit(CURRENT.load(Ordering::SeqCst), time) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_base_loopbreak(base: *mut event_base) -> c_int {
    at!(base).map_or(-1, |base| {
        base.end(true);
        0
    })
}

#[unsafe(no_mangle)]
extern "C" fn event_loopbreak() -> c_int {
    // SAFETY: null or the program's.
    unsafe { event_base_loopbreak(CURRENT.load(Ordering::SeqCst)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_base_loopcontinue(base: *mut event_base) -> c_int {
    at!(base).map_or(-1, |base| {
        base.again();
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_base_got_exit(base: *mut event_base) -> c_int {
    at!(base).is_some_and(|base| base.was_ended(false)).into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_base_got_break(base: *mut event_base) -> c_int {
    at!(base).is_some_and(|base| base.was_ended(true)).into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_base_priority_init(base: *mut event_base, levels: c_int) -> c_int {
    let levels = usize::try_from(levels).ok().filter(|levels| *levels <= 256);
    let done = at!(base).zip(levels).is_some_and(|(base, levels)| base.set_priorities(levels));
    if done { 0 } else { -1 }
}

#[unsafe(no_mangle)]
extern "C" fn event_priority_init(levels: c_int) -> c_int {
    // SAFETY: null or the program's.
    unsafe { event_base_priority_init(CURRENT.load(Ordering::SeqCst), levels) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_base_get_npriorities(base: *mut event_base) -> c_int {
    at!(base).map_or(0, |base| base.priorities() as c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_base_get_num_events(base: *mut event_base, _: c_uint) -> c_int {
    at!(base).map_or(0, |base| base.events() as c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_base_get_features(_: *const event_base) -> c_int {
    FEATURES
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_base_get_method(_: *const event_base) -> *const c_char {
    c"epoll".as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn event_get_method() -> *const c_char {
    c"epoll".as_ptr()
}

/// A list that ends with null.
struct Methods([*const c_char; 2]);

// SAFETY: pointers to constants.
unsafe impl Sync for Methods {}

#[unsafe(no_mangle)]
extern "C" fn event_get_supported_methods() -> *const *const c_char {
    static METHODS: Methods = Methods([c"epoll".as_ptr(), null()]);
    METHODS.0.as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_reinit(base: *mut event_base) -> c_int {
    if at!(base).is_some_and(|base| base.renew().is_ok()) { 0 } else { -1 }
}

/// Time of day, µs.
pub(super) fn wall_us() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    since.as_micros() as u64
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_base_gettimeofday_cached(
    _: *mut event_base,
    time: *mut timeval,
) -> c_int {
    put!(time, timeval_of(wall_us()));
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_base_update_cache_time(_: *mut event_base) -> c_int {
    0
}

/// Common timeouts are a hint: here they cost the same as others.
#[unsafe(no_mangle)]
unsafe extern "C" fn event_base_init_common_timeout(
    _: *mut event_base,
    time: *const timeval,
) -> *const timeval {
    time
}

#[unsafe(no_mangle)]
extern "C" fn event_config_new() -> *mut event_config {
    Box::into_raw(Box::default())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_config_free(config: *mut event_config) {
    if !config.is_null() {
        // SAFETY: of `event_config_new`.
        drop(unsafe { Box::from_raw(config) });
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_config_avoid_method(
    config: *mut event_config,
    method: *const c_char,
) -> c_int {
    if config.is_null() || method.is_null() {
        return -1;
    }
    // SAFETY: a configuration and a C string, as libevent asks.
    unsafe { (*config).avoids_epoll |= CStr::from_ptr(method) == c"epoll" };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_config_require_features(
    config: *mut event_config,
    features: c_int,
) -> c_int {
    // SAFETY: null or a configuration, as libevent asks.
    match unsafe { config.as_mut() } {
        Some(config) => {
            config.features = features;
            0
        }
        None => -1,
    }
}

/// Flags choose among variants of libevent; here there is one.
#[unsafe(no_mangle)]
unsafe extern "C" fn event_config_set_flag(config: *mut event_config, _: c_int) -> c_int {
    if config.is_null() { -1 } else { 0 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_config_set_num_cpus_hint(config: *mut event_config, _: c_int) -> c_int {
    if config.is_null() { -1 } else { 0 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_config_set_max_dispatch_interval(
    config: *mut event_config,
    _: *const timeval,
    _: c_int,
    _: c_int,
) -> c_int {
    if config.is_null() { -1 } else { 0 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn event_set_log_callback(logger: Option<crate::log::Logger>) {
    crate::log::set(logger);
}

#[unsafe(no_mangle)]
extern "C" fn event_set_fatal_callback(_: Option<unsafe extern "C" fn(c_int)>) {}

#[unsafe(no_mangle)]
extern "C" fn event_enable_debug_mode() {}

#[unsafe(no_mangle)]
extern "C" fn event_enable_debug_logging(_: u32) {}

#[unsafe(no_mangle)]
extern "C" fn libevent_global_shutdown() {}

/// Bases can always be used by several threads.
#[unsafe(no_mangle)]
extern "C" fn evthread_use_pthreads() -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn evthread_make_base_notifiable(base: *mut event_base) -> c_int {
    if base.is_null() { -1 } else { 0 }
}
