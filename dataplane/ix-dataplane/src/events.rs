//! The event array of an elastic thread: filled by the dataplane, read by the application.
use ix_abi::{EVENTS_MAX, Event, EventSlot};

/// Event slots that must be free before another packet or timer is handled: more than one packet
/// can produce (all of a flow's out-of-order queue becoming readable, and a few more).
pub const RESERVE: usize = 640;

/// Writer of one event array. The application can read the array at any time, so nothing here is
/// ever read back from it.
pub struct EventWriter {
    array: *mut EventSlot,
    count: usize,
    /// The application reads the array: nothing may be written.
    muted: bool,
    /// What had to be said all the same.
    late: Vec<Event>,
}

// SAFETY: the pointer is to memory that one elastic thread writes; the writer moves with it.
unsafe impl Send for EventWriter {}

impl EventWriter {
    /// # Safety
    /// `array` points to [`EVENTS_MAX`] events that outlive the writer and that nobody else writes.
    pub unsafe fn new(array: *mut EventSlot) -> EventWriter {
        EventWriter { array, count: 0, muted: false, late: Vec::new() }
    }

    /// Events since the last [`EventWriter::reset`].
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether another packet or timer may be handled in this cycle.
    pub fn has_room(&self) -> bool {
        EVENTS_MAX - self.count >= RESERVE
    }

    /// The application has consumed everything.
    pub fn reset(&mut self) {
        self.count = 0;
    }

    /// Whether nothing may be said now.
    #[inline]
    pub fn is_muted(&self) -> bool {
        self.muted
    }

    /// From now on nothing may be said, or may again.
    pub fn set_muted(&mut self, muted: bool) {
        self.muted = muted;
    }

    /// Says what nobody could hear.
    pub fn unmute_all(&mut self) {
        self.muted = false;
        for event in std::mem::take(&mut self.late) {
            self.push(event);
        }
    }

    /// Appends. Callers keep [`EventWriter::has_room`], which makes an overflow impossible; were it
    /// to happen all the same, the last slot is kept and the fault is visible in debug builds.
    #[inline(always)]
    pub fn push(&mut self, event: Event) {
        debug_assert!(self.count < EVENTS_MAX, "event array overflow");
        if self.muted {
            return self.late.push(event);
        }
        if self.count < EVENTS_MAX {
            // SAFETY: the index is below EVENTS_MAX, and the array is ours to write (`new`).
            unsafe { self.array.add(self.count).write(event.encode()) };
            self.count += 1;
        }
    }
}
