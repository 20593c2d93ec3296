//! The look at all flows of a thread, some at a time, while frames are short.

/// Where it has come to, and what it has seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Muster {
    /// The group and the slot that are next.
    pub group: usize,
    pub slot: u32,
    /// Flows without a buffer that were seen in this round.
    seen: usize,
    /// The same of the last whole round.
    empty: Option<usize>,
}

impl Muster {
    /// A flow was looked at.
    pub fn saw(&mut self, holds_some: bool) {
        self.seen += usize::from(!holds_some);
    }

    /// All of a group, of this many, was looked at.
    pub fn next_group(&mut self, groups: usize) {
        (self.group, self.slot) = ((self.group + 1) % groups, 0);
        if self.group == 0 {
            (self.empty, self.seen) = (Some(self.seen), 0);
        }
    }

    /// How many flows hold no buffer; `None`: they were not counted yet.
    pub fn empty(&self) -> Option<usize> {
        self.empty
    }
}
