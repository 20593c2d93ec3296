//! Ends of messages in the send stream: `messages` has what they do.
use ix_wire::Seq;
use std::collections::VecDeque;

/// Ends of messages, in the order of the stream.
#[derive(Debug, Default)]
#[allow(clippy::box_collection)] // 8 bytes in the connection instead of 32
pub(crate) struct MessageEnds(Option<Box<VecDeque<Seq>>>);

impl MessageEnds {
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub fn push(&mut self, end: Seq) {
        let ends = self.0.get_or_insert_default();
        if ends.back() != Some(&end) {
            ends.push_back(end);
        }
    }

    /// Forgets those that are acknowledged.
    pub fn forget_until(&mut self, una: Seq) {
        let Some(ends) = &mut self.0 else { return };
        while ends.front().is_some_and(|end| end.le(una)) {
            ends.pop_front();
        }
        self.0.take_if(|ends| ends.is_empty());
    }

    /// The first one behind `seq`.
    pub fn after(&self, seq: Seq) -> Option<Seq> {
        let ends = self.0.as_ref()?;
        ends.get(ends.partition_point(|end| end.le(seq))).copied()
    }
}
