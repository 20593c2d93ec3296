//! What flows with large windows have promised to their peers, so that no frame is promised twice.
use core::cell::Cell;
use ix_wire::FLOW_GROUPS;

/// What the peers of flows with large windows may send, and the application hold, in bytes. A flow
/// whose window is not larger than every flow's has promised nothing.
pub(crate) struct Promises {
    groups: Box<[u64; FLOW_GROUPS]>,
    bytes: u64,
    /// A flow got less than the largest window since this was last asked.
    is_short: Cell<bool>,
    /// Flows that a frame is kept for.
    flows: Cell<usize>,
}

impl Promises {
    /// None.
    pub fn new() -> Promises {
        Promises {
            groups: Box::new([0; FLOW_GROUPS]),
            bytes: 0,
            is_short: Cell::new(false),
            flows: Cell::new(0),
        }
    }

    /// There are so many flows, with and without promises.
    #[inline]
    pub fn expect_flows(&self, count: usize) {
        self.flows.set(count);
    }

    /// What [`Self::expect_flows`] was told last.
    pub fn flows(&self) -> usize {
        self.flows.get()
    }

    /// Of all flows of this thread.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Of a group's flows.
    pub fn of(&self, group: usize) -> u64 {
        self.groups[group]
    }

    /// A flow of a group that had promised `before` bytes has promised `now`.
    pub fn change(&mut self, group: usize, before: u32, now: u32) {
        self.set(group, self.groups[group] + u64::from(now) - u64::from(before));
    }

    /// The same of all flows of a group, which leave or have arrived: the promises move with them.
    pub fn set(&mut self, group: usize, now: u64) {
        self.bytes = self.bytes + now - self.groups[group];
        self.groups[group] = now;
    }

    /// To be called when there is little to promise.
    pub fn run_short(&self) {
        self.is_short.set(true);
    }

    /// Whether there was little to promise since this was last asked.
    pub fn take_short(&self) -> bool {
        self.is_short.take()
    }
}
