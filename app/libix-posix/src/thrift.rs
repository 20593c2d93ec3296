//! When to give memory back that a load has needed and that nothing uses any more: transmit memory,
//! and the heap's. Drivers look once a second while there is some, when they have heard nothing.
use crate::clock;

/// Longest sleep of a driver while there may be something to give back, µs.
pub const LOOKS_US: u64 = 1_000_000;
/// Number of runs of transmit memory that may stay.
const SPARE_RUNS: usize = 8;

/// What was seen at the last look.
pub struct Thrift {
    /// When it has been quiet for long enough, µs.
    at_us: Option<u64>,
    /// How often transmit memory had been used again.
    reused: u64,
    /// Many sockets have gone since heap memory was given back.
    heap: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Now {
    /// There is nothing to give back.
    Nothing,
    /// To be asked again within [`LOOKS_US`].
    Later,
    /// Transmit memory is to be given back, and with `heap` the heap's.
    GiveBack {
        /// The heap's as well.
        heap: bool,
    },
}

impl Thrift {
    /// Nothing was seen.
    pub const NONE: Thrift = Thrift { at_us: None, reused: 0, heap: false };

    /// Many sockets have gone.
    pub fn sockets_have_gone(&mut self) {
        self.heap = true;
    }

    /// What is to be done after a cycle, in which the driver may have `heard_nothing`. `spare`: how
    /// many runs of transmit memory were used and are empty, and how often one was used again.
    #[inline]
    pub fn look(&mut self, spare: (usize, u64), heard_nothing: bool) -> Now {
        if !self.heap && spare.0 < SPARE_RUNS {
            self.at_us = None;
            return Now::Nothing;
        }
        if heard_nothing { self.look_at(clock::now_us(), spare.1) } else { Now::Later }
    }

    fn look_at(&mut self, now_us: u64, reused: u64) -> Now {
        let is_quiet = self.reused == reused;
        match self.at_us {
            Some(at_us) if is_quiet && now_us < at_us => Now::Later,
            Some(_) if is_quiet => {
                self.at_us = None;
                Now::GiveBack { heap: core::mem::take(&mut self.heap) }
            }
            _ => {
                (self.at_us, self.reused) = (Some(now_us + LOOKS_US), reused);
                Now::Later
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_when_none_was_used_for_a_second() {
        let mut thrift = Thrift::NONE;
        assert_eq!(thrift.look((SPARE_RUNS - 1, 9), true), Now::Nothing);
        assert_eq!(thrift.look((SPARE_RUNS, 9), false), Now::Later);
        assert_eq!(thrift.look_at(5, 9), Now::Later);
        assert_eq!(thrift.look_at(LOOKS_US, 9), Now::Later);
        // Some was used again: it begins anew.
        assert_eq!(thrift.look_at(LOOKS_US + 5, 10), Now::Later);
        assert_eq!(thrift.look_at(2 * LOOKS_US + 4, 10), Now::Later);
        assert_eq!(thrift.look_at(2 * LOOKS_US + 5, 10), Now::GiveBack { heap: false });
        thrift.sockets_have_gone();
        assert_eq!(thrift.look((0, 10), false), Now::Later);
        assert_eq!(thrift.look_at(9 * LOOKS_US, 10), Now::Later);
        assert_eq!(thrift.look_at(10 * LOOKS_US, 10), Now::GiveBack { heap: true });
        assert_eq!(thrift.look((0, 10), true), Now::Nothing);
    }
}
