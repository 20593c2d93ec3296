//! What an event does with the base that it is assigned to.
use crate::core::event_base;
use crate::event::{Callback, Ev, NEVER, event, list};
use core::ffi::{c_int, c_void};

impl event {
    /// A zeroed event.
    pub fn zeroed() -> event {
        // SAFETY: numbers, null pointers and no function.
        unsafe { core::mem::zeroed() }
    }

    /// `event_assign`.
    pub fn assign(
        &self,
        base: *mut event_base,
        fd: c_int,
        events: i16,
        callback: Option<Callback>,
        arg: *mut c_void,
    ) {
        self.fd.set(fd);
        self.base.set(base.cast());
        self.events.set(events);
        self.callback.set(callback);
        self.arg.set(arg);
        self.flags.set(list::INIT);
        self.interval_us.set(NEVER);
        self.result.set(0);
        self.calls.set(0);
        // SAFETY: null or a base that was not freed, which libevent demands of its callers.
        let priorities = unsafe { base.as_ref() }.map_or(1, event_base::priorities);
        self.priority.set((priorities / 2).min(255) as u8);
    }

    /// A pointer to its base; null before it has one.
    pub fn base_ptr(&self) -> *mut event_base {
        self.base.get().cast()
    }

    /// Its base; `None` before there is one.
    pub fn owner(&self) -> Option<&event_base> {
        // SAFETY: as in `assign`; a base outlives its events.
        unsafe { self.base_ptr().as_ref() }
    }

    fn as_ev(&self) -> Ev {
        Ev(core::ptr::from_ref(self).cast_mut())
    }

    /// Adds the event. Returns false if it cannot wait.
    pub fn add(&self, timeout_us: Option<u64>) -> bool {
        self.owner().is_some_and(|base| base.add(self.as_ev(), timeout_us).is_ok())
    }

    /// Removes the event.
    pub fn delete(&self) {
        if let Some(base) = self.owner() {
            base.remove(self.as_ev());
        }
    }

    /// Removes its timeout.
    pub fn stop_timer(&self) {
        if let Some(base) = self.owner() {
            base.remove_time(self.as_ev());
        }
    }

    /// Activates the event.
    pub fn activate(&self, result: i16) {
        if let Some(base) = self.owner() {
            base.activate(self.as_ev(), result);
        }
    }
}
