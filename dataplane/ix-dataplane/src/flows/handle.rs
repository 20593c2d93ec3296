//! Names of flows across the wall: flow group, generation and slot in one number.
//!
//! A handle stays valid when its flow group migrates, because it names the group and not the
//! thread. The generation makes a stale handle an error: a slot that is used again has another
//! generation.

/// The parts of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowId {
    /// Flow group.
    pub group: u16,
    /// Slot within the flow group.
    pub slot: u32,
    /// Generation of the slot, 24 bits, never 0.
    pub generation: u32,
}

const SLOT_BITS: u32 = 24;
const GENERATION_BITS: u32 = 24;
/// Largest number of flows in one flow group.
pub const SLOTS_MAX: u32 = 1 << SLOT_BITS;
/// The slot that stands for the oldest connection on its group's shelf; no flow is there.
const SHELF: u32 = SLOTS_MAX - 1;
const MASK: u64 = (1 << SLOT_BITS) - 1;

impl FlowId {
    /// Names the oldest connection on a group's shelf, whichever that is. The application has no
    /// such name: a generation is never 0.
    pub fn shelf_of(group: u16) -> FlowId {
        FlowId { group, slot: SHELF, generation: 0 }
    }

    /// Whether it is a name of [`Self::shelf_of`].
    #[inline]
    pub fn is_shelf(self) -> bool {
        self.slot == SHELF && self.generation == 0
    }

    /// The number that the application sees.
    pub fn handle(self) -> u64 {
        (self.group as u64) << 48 | (self.generation as u64) << SLOT_BITS | self.slot as u64
    }

    /// Splits any number into its parts. The flow group tells whether there is such a flow.
    pub fn from_handle(handle: u64) -> FlowId {
        FlowId {
            group: (handle >> 48) as u16,
            generation: ((handle >> SLOT_BITS) & MASK) as u32,
            slot: (handle & MASK) as u32,
        }
    }

    /// The generation after `generation`; skips 0.
    pub fn next_generation(generation: u32) -> u32 {
        let next = (generation + 1) & ((1 << GENERATION_BITS) - 1);
        if next == 0 { 1 } else { next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_never_zero() {
        let id = FlowId { group: 127, slot: SLOTS_MAX - 1, generation: 0xff_ffff };
        assert_eq!(FlowId::from_handle(id.handle()), id);
        assert_eq!(ix_abi::group_of(id.handle()), 127);
        assert_eq!(FlowId::next_generation(0xff_ffff), 1);
        assert_ne!(FlowId { group: 0, slot: 0, generation: 1 }.handle(), 0);
    }
}
