//! Requests in flight: a ring of `depth` places for each connection, all in one array.
use crate::protocol::Ask;

/// A request in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    pub(super) due_ns: u64,
    pub(super) sent_ns: u64,
    pub(super) ask: Ask,
}

/// A connection's places, and which of them are used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) first: u32,
    pub(super) depth: u32,
    pub(super) head: u32,
    pub(super) len: u32,
}

impl Window {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn place(&self, nth: u32) -> usize {
        let at = self.head + nth;
        (self.first + if at >= self.depth { at - self.depth } else { at }) as usize
    }
}

#[derive(Default)]
pub(super) struct Slots {
    all: Vec<Slot>,
    used: usize,
}

impl Slots {
    /// Adds places for one more connection; returns the first.
    pub(super) fn add(&mut self, depth: u32) -> u32 {
        let first = self.all.len();
        self.all.resize(first + depth as usize, Slot::default());
        first as u32
    }

    /// Requests in flight on all connections.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    #[inline]
    pub(super) fn has_room(&self, window: Window) -> bool {
        window.len < window.depth
    }

    /// The oldest request.
    #[inline]
    pub(super) fn front(&self, window: Window) -> Option<Slot> {
        (window.len > 0).then(|| self.all[window.place(0)])
    }

    /// Whether there is room.
    #[inline]
    pub(super) fn push(&mut self, window: &mut Window, slot: Slot) {
        let place = window.place(window.len);
        self.all[place] = slot;
        window.len += 1;
        self.used += 1;
    }

    /// Whether there is a request.
    #[inline]
    pub(super) fn pop(&mut self, window: &mut Window) {
        window.head = if window.head + 1 == window.depth { 0 } else { window.head + 1 };
        window.len -= 1;
        self.used -= 1;
    }

    pub(super) fn clear(&mut self, window: &mut Window) {
        self.used -= window.len as usize;
        (window.head, window.len) = (0, 0);
    }

    pub(super) fn iter(&self, window: Window) -> impl Iterator<Item = &Slot> {
        (0..window.len).map(move |nth| &self.all[window.place(nth)])
    }

    /// Removes the request that `matches`, wherever it is; the others keep their order.
    pub(super) fn take(
        &mut self,
        window: &mut Window,
        matches: impl Fn(&Slot) -> bool,
    ) -> Option<Slot> {
        let nth = (0..window.len).find(|nth| matches(&self.all[window.place(*nth)]))?;
        let slot = self.all[window.place(nth)];
        for at in (0..nth).rev() {
            self.all[window.place(at + 1)] = self.all[window.place(at)];
        }
        self.pop(window);
        Some(slot)
    }
}
