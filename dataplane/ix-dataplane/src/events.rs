//! The event array of an elastic thread: filled by the dataplane, read by the application.
use ix_abi::{EVENTS_MAX, Event, EventSlot};
use std::collections::VecDeque;

/// Event slots that must be free before another packet or timer is processed: more than one packet
/// can need (all of a flow's out-of-order queue becomes readable, and a few more).
pub const RESERVE: usize = 640;

/// The writer of one event array. The application can read the array at any time; nothing is ever
/// read back from it.
pub struct EventWriter {
    array: *mut EventSlot,
    count: usize,
    /// Slots of the array; 0: nobody reads it any more, and events are dropped.
    room: usize,
    /// The application reads the array: no event may be written.
    muted: bool,
    /// Events that could not be written.
    late: VecDeque<Event>,
}

// SAFETY: the pointer is to memory that one elastic thread writes; the writer moves with it.
unsafe impl Send for EventWriter {}

impl EventWriter {
    /// # Safety
    /// `array` points to [`EVENTS_MAX`] events that outlive the writer and that nobody else writes.
    pub unsafe fn new(array: *mut EventSlot) -> EventWriter {
        EventWriter { array, count: 0, room: EVENTS_MAX, muted: false, late: VecDeque::new() }
    }

    /// The writer for an application that has ended: all events are dropped.
    pub fn closed() -> EventWriter {
        let array = core::ptr::null_mut();
        EventWriter { array, count: 0, room: 0, muted: false, late: VecDeque::new() }
    }

    /// Number of events that could not be written yet.
    pub fn late(&self) -> usize {
        self.late.len()
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

    /// Writes the events that could not be written before, as many as there is room for.
    #[inline]
    pub fn write_late(&mut self) {
        if !self.late.is_empty() {
            self.write_all_late();
        }
    }

    #[cold]
    fn write_all_late(&mut self) {
        // Muted, each would come back.
        while !self.muted && self.has_room() {
            let Some(event) = self.late.pop_front() else { return };
            self.push(event);
        }
    }

    /// Appends an event. Callers check [`EventWriter::has_room`] first for what packets and timers
    /// cause. What other processes of the program cause may be more, and is written later.
    #[inline(always)]
    pub fn push(&mut self, event: Event) {
        if self.muted || self.count >= self.room {
            return self.push_late(event);
        }
        // SAFETY: the index is below EVENTS_MAX, for `room` is at most that, and the array is ours
        // to write (`new`).
        unsafe { self.array.add(self.count).write(event.encode()) };
        self.count += 1;
    }

    #[cold]
    #[inline(never)]
    fn push_late(&mut self, event: Event) {
        if self.room > 0 {
            self.late.push_back(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_late_waits_while_no_event_may_be_written() {
        let mut array = vec![EventSlot::default(); EVENTS_MAX];
        // SAFETY: of that size, and it lives longer.
        let mut events = unsafe { EventWriter::new(array.as_mut_ptr()) };
        events.set_muted(true);
        for cookie in 0..3 {
            events.push(Event::Eof { cookie, handle: 1 });
        }
        events.write_late();
        assert_eq!((events.count(), events.late()), (0, 3));
        events.set_muted(false);
        events.write_late();
        assert_eq!((events.count(), events.late()), (3, 0));
    }
}
