//! Echo over UDP: the load, without input and output.
//!
//! A datagram begins with eight bytes: its slot and a sequence number; the rest is the pattern from
//! an offset that follows from them. Every slot has one datagram in flight; one that does not
//! return in time is lost, and the slot sends another.
use crate::sample::Sample;
use crate::window::Window;
use ix_programs::Pattern;

/// Bytes that a datagram needs.
pub const SIZE_MIN: u64 = 8;
/// Largest datagram that fits into one packet everywhere.
pub const SIZE_MAX: u64 = 1472;
/// After this time a datagram is lost.
const LOST_NS: u64 = 20_000_000;

#[derive(Clone, Copy)]
struct Slot {
    sequence: u32,
    started_ns: u64,
}

/// The load of one socket.
pub struct UdpLoad {
    size: usize,
    slots: Vec<Slot>,
    pattern: Pattern,
    window: Window,
    sample: Sample,
    looked_ns: u64,
}

impl UdpLoad {
    /// This many datagrams of `size` bytes in flight.
    pub fn new(size: u64, depth: u32, window: Window) -> UdpLoad {
        UdpLoad {
            size: size.clamp(SIZE_MIN, SIZE_MAX) as usize,
            slots: vec![Slot { sequence: 0, started_ns: 0 }; depth as usize],
            pattern: Pattern::default(),
            window,
            sample: Sample::default(),
            looked_ns: 0,
        }
    }

    /// Writes the next datagram of a slot and returns its length.
    pub fn fill(&mut self, slot: usize, now_ns: u64, to: &mut [u8]) -> usize {
        let Slot { sequence, started_ns } = &mut self.slots[slot];
        *sequence = sequence.wrapping_add(1);
        *started_ns = now_ns;
        let word = (slot as u64) << 32 | u64::from(*sequence);
        to[..8].copy_from_slice(&word.to_le_bytes());
        to[8..self.size].copy_from_slice(self.pattern.at(word, self.size as u64 - 8));
        self.size
    }

    /// Handles a reply: returns the slot that is free now, unless the reply is late or wrong.
    pub fn answer(&mut self, data: &[u8], now_ns: u64) -> Option<usize> {
        let right = data.len() == self.size
            && data
                .first_chunk()
                .is_some_and(|head| self.pattern.matches(u64::from_le_bytes(*head), &data[8..]));
        let Some(head) = data.first_chunk().filter(|_| right) else {
            self.sample.error("the reply differs from the datagram");
            return None;
        };
        let word = u64::from_le_bytes(*head);
        let (index, sequence) = ((word >> 32) as usize, word as u32);
        let slot = self.slots.get(index).filter(|slot| slot.sequence == sequence)?;
        self.window.begin(now_ns);
        if self.window.contains(now_ns) {
            self.sample.record(now_ns - slot.started_ns);
        }
        Some(index)
    }

    /// Slots whose datagrams are lost; called now and then.
    pub fn overdue(&mut self, now_ns: u64) -> Vec<usize> {
        if now_ns < self.looked_ns + LOST_NS / 4 {
            return Vec::new();
        }
        self.looked_ns = now_ns;
        let late = |slot: &Slot| now_ns > slot.started_ns + LOST_NS;
        let overdue: Vec<_> =
            (0..self.slots.len()).filter(|&index| late(&self.slots[index])).collect();
        // A slot that was never used is no loss.
        let lost = overdue.iter().filter(|&&index| self.slots[index].sequence > 0).count();
        if self.window.contains(now_ns) {
            self.sample.lost += lost as u64;
        }
        overdue
    }

    /// Whether the measured time is over.
    pub fn is_over(&self, now_ns: u64) -> bool {
        self.window.is_over(now_ns)
    }

    /// What was measured.
    pub fn into_sample(self) -> Sample {
        self.sample
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_late_and_wrong_datagrams_are_told_apart() {
        let start_ns = 2 * LOST_NS;
        let mut load = UdpLoad::new(64, 2, Window::new(0, 0, 1000 * LOST_NS));
        assert_eq!(load.overdue(start_ns), [0, 1]);
        let (mut first, mut second) = ([0; 64], [0; 64]);
        assert_eq!(load.fill(0, start_ns, &mut first), 64);
        load.fill(1, start_ns, &mut second);
        assert_ne!(first, second);
        assert_eq!(load.answer(&second, start_ns + 1000), Some(1));
        load.fill(1, start_ns + 1000, &mut second);
        // The first one is lost; its reply comes after another was sent.
        assert_eq!(load.overdue(start_ns + LOST_NS + 1), [0]);
        let old = first;
        load.fill(0, start_ns + LOST_NS, &mut first);
        assert_eq!(load.answer(&old, start_ns + LOST_NS + 5), None);
        assert_eq!(load.answer(&first, start_ns + LOST_NS + 9), Some(0));
        second[20] ^= 1;
        assert_eq!(load.answer(&second, start_ns + LOST_NS + 9), None);
        assert_eq!(load.answer(&second[..5], start_ns + LOST_NS + 9), None);
        let sample = load.into_sample();
        assert_eq!((sample.messages(), sample.lost, sample.errors), (2, 1, 2));
    }
}
