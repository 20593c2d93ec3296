//! The event array of an elastic thread: filled by the dataplane, read by the application.
use ix_abi::{EVENTS_MAX, Event, EventSlot};

/// Event slots that must be free before another packet or timer is processed: more than one packet
/// can need (all of a flow's out-of-order queue becomes readable, and a few more).
pub const RESERVE: usize = 640;

/// The writer of one event array. The application can read the array at any time; nothing is ever
/// read back from it.
pub struct EventWriter {
    array: *mut EventSlot,
    count: usize,
    /// The application reads the array: no event may be written.
    muted: bool,
    /// Events that could not be written.
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

    /// Number of events since the last [`EventWriter::reset`].
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether another packet or timer may be processed in this cycle.
    pub fn has_room(&self) -> bool {
        EVENTS_MAX - self.count >= RESERVE
    }

    /// Empties the array: the application has processed all events.
    pub fn reset(&mut self) {
        self.count = 0;
    }

    /// True if no event may be written now.
    #[inline]
    pub fn is_muted(&self) -> bool {
        self.muted
    }

    /// Sets whether events may be written.
    pub fn set_muted(&mut self, muted: bool) {
        self.muted = muted;
    }

    /// Writes the events that could not be written before.
    pub fn unmute_all(&mut self) {
        self.muted = false;
        for event in std::mem::take(&mut self.late) {
            self.push(event);
        }
    }

    /// Appends an event. Callers check [`EventWriter::has_room`] first, so an overflow is
    /// impossible. If it did happen, the last slot would be kept and debug builds would panic.
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
