//! Gives memory back that a load has needed and that nobody uses any more: frames beyond those of
//! the devices, and slots of flows. Looks once a second, because what was needed a moment ago is
//! soon needed again.
use super::ElasticThread;
use crate::flows::Flows;
use ix_mem::{PacketMemory, Pool};

/// Time between two looks, µs.
const LOOKS_US: u64 = 1_000_000;

/// What was seen at the last look.
#[derive(Default)]
pub struct Thrift {
    again_us: u64,
    /// How many flows there were at the last look.
    flows: usize,
    /// Something may be given back at the next look.
    looks: bool,
    /// Receive frames, and frames for built packets.
    pools: [Beyond; 2],
    slots: Spare,
}

/// Slots of flows that are free.
#[derive(Default)]
struct Spare {
    /// How many there were at the last look.
    seen: usize,
    /// How many were left when they were last given back.
    left: usize,
}

/// Fewer are not worth it.
const SPARE_MIN: usize = 256;

impl Spare {
    /// Gives them back if no fewer are free than at the last look. Returns whether there may be
    /// something at the next look.
    fn look(&mut self, flows: &mut Flows) -> bool {
        let spare = flows.spare();
        let before = core::mem::replace(&mut self.seen, spare);
        if spare < SPARE_MIN || spare == self.left {
            // They may end without a look that follows.
            return flows.count >= SPARE_MIN;
        }
        if spare < before || before < SPARE_MIN {
            return true;
        }
        flows.give_back();
        self.left = flows.spare();
        false
    }
}

/// Frames beyond of one pool.
#[derive(Default)]
struct Beyond {
    /// How many were taken by the last look.
    seen: u64,
    /// How many were taken when they were last given back.
    given_back: u64,
    /// How many looks since the last one was taken.
    looks: u32,
}

/// After so many looks some are held for good, or by other threads: it is not looked again before
/// more are taken.
const LOOKS_MAX: u32 = 60;

impl Beyond {
    /// Gives them back if none was taken since the last look and all are free. Returns whether
    /// there may be something at the next look.
    fn look(&mut self, pool: &mut Pool, memory: &PacketMemory) -> bool {
        let taken = pool.taken_beyond();
        if taken == self.given_back {
            return false;
        }
        let is_quiet = core::mem::replace(&mut self.seen, taken) == taken;
        self.looks = if is_quiet { self.looks + 1 } else { 0 };
        let Some(frames) = is_quiet.then(|| pool.unused_beyond()).flatten() else {
            if self.looks >= LOOKS_MAX {
                self.given_back = taken;
            }
            return self.looks < LOOKS_MAX;
        };
        // Where the memory is sealed the pages stay, and are used again.
        memory.give_back(frames);
        self.given_back = taken;
        false
    }
}

impl ElasticThread {
    /// Part of housekeeping.
    pub(super) fn give_memory_back(&mut self, now_us: u64) {
        if now_us < self.thrift.again_us {
            // The last flows may end soon after a look, and nothing wakes the thread afterwards.
            self.thrift.looks |= self.flows.count != self.thrift.flows;
            return;
        }
        let cx = &mut self.io.cx;
        let Thrift { again_us, flows, looks, pools: [rx, tx], slots } = &mut self.thrift;
        *flows = self.flows.count;
        *again_us = now_us + LOOKS_US;
        *looks = rx.look(&mut cx.rx_pool, &cx.shared.memory);
        *looks |= tx.look(&mut cx.tx_pool, &cx.shared.memory);
        *looks |= slots.look(&mut self.flows);
    }

    /// When memory is to be given back, µs.
    pub(crate) fn thrift_deadline_us(&self) -> Option<u64> {
        let Thrift { again_us, looks, flows, .. } = self.thrift;
        // The last flows may have ended since the last housekeeping: there may be no cycle after
        // this one that tells.
        let looks = looks || self.flows.count != flows;
        looks.then_some(again_us.max(self.housekeeping_us))
    }
}
