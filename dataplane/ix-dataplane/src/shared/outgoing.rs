//! Ports of outgoing connections where the address is Linux's as well: a block that the dataplane
//! has from the start, and ranges that the broker adds when those are used up for a destination.
//! They go back when no flow has one of their ports any more, TIME-WAIT included.
//!
//! Looked at when a connection begins, and when the last flow of a port ends.
use super::claims::say;
use crate::broker::UpdateSource;
use ix_proto::FromImage;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A question that was not answered for so long is asked again, µs.
const AGAIN_US: u64 = 500_000;
/// So long no more ports are asked for when there were none, µs.
const REFUSED_US: u64 = 1_000_000;
/// A range is kept for so long at least, µs: it takes many system calls to get.
const KEPT_US: u64 = 10_000_000;
/// Time between two looks for what is unused while nothing else happens, µs.
pub(super) const LOOK_US: u64 = 1_000_000;
/// Ports in a word of [`Outgoing::added`].
const WORD: usize = u64::BITS as usize;

/// All ports of outgoing connections.
pub(crate) struct Outgoing {
    block: (u16, u16),
    /// A bit for each port that was added to the block.
    added: Box<[AtomicU64]>,
    /// Changes with the ranges; 0: there is only the block.
    version: AtomicU64,
    ranges: Mutex<Ranges>,
}

#[derive(Default)]
struct Ranges {
    /// Beside the block: first and last port, and since when.
    added: Vec<(u16, u16, u64)>,
    /// When more were asked for, without an answer.
    asked_us: Option<u64>,
    /// None are asked for until then.
    refused_until_us: u64,
}

impl Outgoing {
    /// Only this block.
    pub fn new(block: (u16, u16)) -> Outgoing {
        let added = (0..(1 << 16) / WORD).map(|_| AtomicU64::new(0)).collect();
        Outgoing { block, added, version: AtomicU64::new(0), ranges: Mutex::default() }
    }

    /// The block, which stays.
    pub fn block(&self) -> RangeInclusive<u16> {
        self.block.0..=self.block.1
    }

    /// Whether a port is in the block.
    pub fn is_in_block(&self, port: u16) -> bool {
        self.block().contains(&port)
    }

    /// Whether a port was added to the block.
    pub fn is_added(&self, port: u16) -> bool {
        let word = &self.added[usize::from(port) / WORD];
        word.load(Ordering::SeqCst) >> (usize::from(port) % WORD) & 1 != 0
    }

    /// Changes with the ranges.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// First and last port of each range.
    pub fn all(&self) -> Vec<(u16, u16)> {
        let ranges = self.lock();
        let added = ranges.added.iter().map(|(first, last, _)| (*first, *last));
        [self.block].into_iter().chain(added).collect()
    }

    /// Asks for as many ports again as there are. Returns whether some may come.
    pub fn grow(&self, source: &mut Option<Box<dyn UpdateSource>>, now_us: u64) -> bool {
        let mut ranges = self.lock();
        if now_us < ranges.refused_until_us {
            return false;
        }
        if ranges.asked_us.is_none_or(|at_us| now_us >= at_us + AGAIN_US) {
            ranges.asked_us = Some(now_us);
            let count = |(first, last): (u16, u16)| u32::from(last - first) + 1;
            let added = ranges.added.iter().map(|(first, last, _)| count((*first, *last)));
            let all = count(self.block) + added.sum::<u32>();
            say(source, &FromImage::WantPorts { count: all.try_into().unwrap_or(u16::MAX) });
        }
        true
    }

    /// The broker's answer; `first` 0: there are no more.
    pub fn heard(&self, (first, last): (u16, u16), now_us: u64) {
        let mut ranges = self.lock();
        ranges.asked_us = None;
        if first == 0 || last < first {
            ranges.refused_until_us = now_us + REFUSED_US;
            return;
        }
        if !ranges.added.iter().any(|(has, ..)| *has == first) {
            ranges.added.push((first, last, now_us));
            self.mark((first, last), true);
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Gives back ranges of which no port has a flow. A thread that has just chosen one of their
    /// ports looks whether it is still there after it has counted its flow: so either it is seen
    /// here, or it sees that the port is gone.
    pub fn give_back(
        &self,
        source: &mut Option<Box<dyn UpdateSource>>,
        flows: &[AtomicU32],
        now_us: u64,
    ) {
        let mut ranges = self.lock();
        let is_used = |(first, last): (u16, u16)| {
            let ports = &flows[usize::from(first)..=usize::from(last)];
            ports.iter().any(|count| count.load(Ordering::SeqCst) != 0)
        };
        let before = ranges.added.len();
        ranges.added.retain(|(first, last, since_us)| {
            let range = (*first, *last);
            if now_us < since_us + KEPT_US || is_used(range) {
                return true;
            }
            self.mark(range, false);
            if is_used(range) {
                self.mark(range, true);
                return true;
            }
            say(source, &FromImage::ReturnPorts { first: range.0, last: range.1 });
            false
        });
        if ranges.added.len() != before {
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// When to look for such ranges again though nothing else is due.
    pub fn look_again_us(&self, now_us: u64) -> Option<u64> {
        (!self.lock().added.is_empty()).then_some(now_us + LOOK_US)
    }

    fn mark(&self, (first, last): (u16, u16), is_there: bool) {
        for port in usize::from(first)..=usize::from(last) {
            let (word, bit) = (&self.added[port / WORD], 1 << (port % WORD));
            match is_there {
                true => word.fetch_or(bit, Ordering::SeqCst),
                false => word.fetch_and(!bit, Ordering::SeqCst),
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ranges> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
