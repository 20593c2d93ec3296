//! The event array of an elastic thread: filled by the dataplane, read by the application.
use ix_abi::{Cookie, EVENTS_MAX, Event, EventSlot, Handle, RxData, SentNews};
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
    /// The flow whose data the newest event brings, if it does so; 0: none.
    brought: Handle,
    /// The count after that event.
    brought_at: usize,
}

// SAFETY: the pointer is to memory that one elastic thread writes; the writer moves with it.
unsafe impl Send for EventWriter {}

impl EventWriter {
    /// # Safety
    /// `array` points to [`EVENTS_MAX`] events that outlive the writer and that nobody else writes.
    pub unsafe fn new(array: *mut EventSlot) -> EventWriter {
        EventWriter { room: EVENTS_MAX, ..EventWriter::of(array) }
    }

    /// The writer for an application that has ended: all events are dropped.
    pub fn closed() -> EventWriter {
        EventWriter::of(core::ptr::null_mut())
    }

    fn of(array: *mut EventSlot) -> EventWriter {
        let late = VecDeque::new();
        EventWriter { array, count: 0, room: 0, muted: false, late, brought: 0, brought_at: 0 }
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
        self.brought = 0;
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

    /// Appends the event that brings data of a flow.
    #[inline(always)]
    pub fn push_recv(&mut self, cookie: Cookie, handle: Handle, data: RxData) {
        let before = self.count;
        self.push(Event::Recv { cookie, handle, data, news: SentNews::NONE });
        if self.count > before {
            (self.brought, self.brought_at) = (handle, self.count);
        }
    }

    /// Tells with the newest event, if it brings data of this flow, what was acknowledged. False:
    /// it needs an event of its own.
    #[inline]
    pub fn tell_sent(&mut self, handle: Handle, news: SentNews) -> bool {
        if self.brought != handle || self.brought_at != self.count {
            return false;
        }
        self.brought = 0;
        // SAFETY: `brought` is not 0, so that event is in the array, which is ours to write
        // (`new`), and the application has not been told of it yet.
        unsafe { (&raw mut (*self.array.add(self.count - 1)).more).write(news.word()) };
        true
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
    fn what_was_acknowledged_is_told_with_data_of_the_same_flow_alone() {
        let mut array = vec![EventSlot::default(); EVENTS_MAX];
        // SAFETY: of that size, and it lives longer.
        let mut events = unsafe { EventWriter::new(array.as_mut_ptr()) };
        let (data, news) = (RxData { addr: 0x9000, len: 64 }, SentNews::new(64, 1000));
        assert!(!events.tell_sent(7, news), "no event");
        events.push_recv(1, 7, data);
        assert!(!events.tell_sent(8, news), "another flow's");
        assert!(events.tell_sent(7, news));
        assert!(!events.tell_sent(7, news), "told already");
        events.push_recv(1, 7, data);
        events.push(Event::Eof { cookie: 1, handle: 7 });
        assert!(!events.tell_sent(7, news), "not the newest event");
        events.push_recv(1, 7, data);
        events.reset();
        assert!(!events.tell_sent(7, news), "of the last cycle");
        events.push(Event::Knock { listener: 1, handle: 9, peer: Default::default() });
        assert!(!events.tell_sent(7, news), "in the place of that of the last cycle");
        events.set_muted(true);
        events.push_recv(1, 7, data);
        assert!(!events.tell_sent(7, news), "not written yet");
        let told = Event::Recv { cookie: 1, handle: 7, data, news };
        let untold = Event::Recv { cookie: 1, handle: 7, data, news: SentNews::NONE };
        let later = [&array[1], &array[3]].map(Event::decode);
        assert_eq!(later, [Ok(untold), Ok(untold)]);
        // The knock has taken the place of the first one, which was told.
        assert_eq!((array[0].kind, array[0].more), (ix_abi::event_kind::KNOCK, 0));
        events.set_muted(false);
        events.reset();
        events.push_recv(1, 7, data);
        assert!(events.tell_sent(7, news));
        assert_eq!(Event::decode(&array[0]), Ok(told));
    }

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
