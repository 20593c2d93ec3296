//! The way through all flows for those of processes that have ended: a few at a time.
use crate::flows::Flows;
use crate::flows::handle::FlowId;
use ix_proto::crossing::AttachmentId;
use std::collections::VecDeque;

/// Most flows, or frames, of processes that have ended which are looked at in one cycle.
pub const LOOKS_MAX: usize = 64;
/// Most slots of flows in which one cycle looks for theirs.
const SLOTS_MAX: u32 = 512;

/// Processes that have ended whose flows are being closed, in order, and how far the first is.
#[derive(Debug, Default)]
pub struct Ended {
    numbers: VecDeque<AttachmentId>,
    /// The flow group and the slot to look at next.
    next: (usize, u32),
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
        if self.next.0 < flows.groups.len() {
            return None;
        }
        self.next = (0, 0);
        self.numbers.pop_front()
    }

    /// Flows to look at now, in the order of their groups and slots.
    pub fn next_flows(&mut self, flows: &Flows) -> Vec<FlowId> {
        let (mut found, mut left) = (Vec::new(), SLOTS_MAX);
        while left > 0 && found.len() < LOOKS_MAX {
            let (group, slot) = self.next;
            let Some(here) = flows.groups.get(group) else { break };
            let Some(here) = here.as_ref().filter(|here| slot < here.slots()) else {
                self.next = (group + 1, 0);
                continue;
            };
            if here.peek(slot).is_some() {
                found.push(here.id_of(slot));
            }
            (self.next.1, left) = (slot + 1, left - 1);
        }
        found
    }
}
