//! The way through all flows for those of processes that have ended: a few at a time.
use crate::flows::Flows;
use crate::flows::handle::FlowId;
use crate::flows::walk::Walk;
use ix_proto::crossing::AttachmentId;
use std::collections::VecDeque;

/// Processes that have ended whose flows are being closed, in order, and how far the first is.
#[derive(Debug, Default)]
pub struct Ended {
    numbers: VecDeque<AttachmentId>,
    walk: Walk,
}

impl Ended {
    /// Whether there are any.
    #[inline]
    pub fn is_any(&self) -> bool {
        !self.numbers.is_empty()
    }

    /// Removes all; their flows are closed by other means.
    pub fn drain_numbers(&mut self) -> VecDeque<AttachmentId> {
        std::mem::take(self).numbers
    }

    /// Adds another one.
    pub fn add(&mut self, number: AttachmentId) {
        self.numbers.push_back(number);
    }

    /// The one whose flows are closed now.
    pub fn first(&self) -> Option<AttachmentId> {
        self.numbers.front().copied()
    }

    /// Removes the first one, if all flows were looked at.
    pub fn pop_if_through(&mut self, flows: &Flows) -> Option<AttachmentId> {
        if !self.walk.is_through(flows) {
            return None;
        }
        self.walk = Walk::default();
        self.numbers.pop_front()
    }

    /// Flows to look at now, in the order of their groups and slots.
    pub fn next_flows(&mut self, flows: &Flows) -> Vec<FlowId> {
        self.walk.next_flows(flows)
    }
}
