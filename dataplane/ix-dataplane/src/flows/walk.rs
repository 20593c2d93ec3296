//! A way through all flows of a thread: a few in each cycle, so that it holds up nobody.
use crate::flows::Flows;
use crate::flows::handle::FlowId;

/// Most flows, or frames, which are looked at in one cycle.
pub const LOOKS_MAX: usize = 64;
/// Most slots of flows in which one cycle looks for them.
const SLOTS_MAX: u32 = 512;

/// How far it is: the flow group and the slot to look at next.
#[derive(Debug, Default)]
pub struct Walk(usize, u32);

impl Walk {
    /// Flows to look at now, in the order of their groups and slots.
    pub fn next_flows(&mut self, flows: &Flows) -> Vec<FlowId> {
        let (mut found, mut left) = (Vec::new(), SLOTS_MAX);
        while left > 0 && found.len() < LOOKS_MAX {
            let Walk(group, slot) = *self;
            let Some(here) = flows.groups.get(group) else { break };
            let Some(here) = here.as_ref().filter(|here| slot < here.slots()) else {
                *self = Walk(group + 1, 0);
                continue;
            };
            if here.peek(slot).is_some() {
                found.push(here.id_of(slot));
            }
            (self.1, left) = (slot + 1, left - 1);
        }
        found
    }

    /// Whether all flows were looked at.
    pub fn is_through(&self, flows: &Flows) -> bool {
        self.0 >= flows.groups.len()
    }
}
