//! The arrays that application and dataplane share for one elastic thread.
use ix_abi::{CALLS_MAX, CallSlot, EVENTS_MAX, EventSlot, ThreadArea, ThreadStatus};

/// Call array, event array and status of one elastic thread. Both sides know them by address,
/// so they are read and written through pointers only.
pub struct Arrays {
    calls: *mut [CallSlot],
    events: *mut [EventSlot],
    status: *mut ThreadStatus,
}

impl Default for Arrays {
    fn default() -> Arrays {
        Arrays::new()
    }
}

impl Arrays {
    /// Arrays as they are before the first cycle.
    pub fn new() -> Arrays {
        Arrays {
            calls: Box::into_raw(vec![CallSlot::default(); CALLS_MAX].into_boxed_slice()),
            events: Box::into_raw(vec![EventSlot::default(); EVENTS_MAX].into_boxed_slice()),
            status: Box::into_raw(Box::new(ThreadStatus::default())),
        }
    }

    /// Their addresses, as the application gets them.
    pub fn area(&self) -> ThreadArea {
        ThreadArea {
            calls: self.calls().expose_provenance() as u64,
            events: self.events().expose_provenance() as u64,
            status: self.status.expose_provenance() as u64,
            cpu: 0,
            attachment: 0,
            will: 0,
        }
    }

    /// The call array, of [`CALLS_MAX`] slots.
    pub fn calls(&self) -> *mut CallSlot {
        self.calls.cast()
    }

    /// The event array, of [`EVENTS_MAX`] slots.
    pub fn events(&self) -> *mut EventSlot {
        self.events.cast()
    }

    /// The call in slot `index`, with its return code after a cycle.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn call(&self, index: usize) -> CallSlot {
        assert!(index < CALLS_MAX);
        // SAFETY: within the array, which lives as long as self. Volatile, as in the dataplane.
        unsafe { self.calls().add(index).read_volatile() }
    }

    /// Writes slot `index`, as an application does before a cycle.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn set_call(&mut self, index: usize, call: CallSlot) {
        assert!(index < CALLS_MAX);
        // SAFETY: as in `call`; the dataplane writes only within a cycle.
        unsafe { self.calls().add(index).write_volatile(call) }
    }

    /// The first `count` calls.
    pub fn first_calls(&self, count: usize) -> impl Iterator<Item = CallSlot> {
        (0..count).map(|index| self.call(index))
    }

    /// The event in slot `index`.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn event(&self, index: usize) -> EventSlot {
        assert!(index < EVENTS_MAX);
        // SAFETY: within the array, which lives as long as self.
        unsafe { self.events().add(index).read_volatile() }
    }

    /// The first `count` events.
    pub fn first_events(&self, count: usize) -> impl Iterator<Item = EventSlot> {
        (0..count).map(|index| self.event(index))
    }

    /// Writes the time of a cycle, which the application reads after it.
    pub(crate) fn set_now(&mut self, now_us: u64) {
        // SAFETY: the status lives as long as self; the library reads it between gate calls.
        unsafe { (*self.status).now_us = now_us };
    }
}

impl Drop for Arrays {
    fn drop(&mut self) {
        // SAFETY: each was made by `Box::into_raw` in `new`. The owner drops the elastic thread
        // that writes them first (`RigThread`), and the library's thread before that (`enter`).
        unsafe {
            drop(Box::from_raw(self.calls));
            drop(Box::from_raw(self.events));
            drop(Box::from_raw(self.status));
        }
    }
}
