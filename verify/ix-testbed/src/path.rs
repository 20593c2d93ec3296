//! One direction of a path in virtual time: a bottleneck with its queue, loss, delay, reordering.
//!
//! Everything is a function of the frames, their times and a seed, so a run is repeatable;
//! [`crate::Bridge`] puts a path between two interfaces.
use ix_random::Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Loss of packets, apart from a full queue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Loss {
    /// None.
    #[default]
    None,
    /// Each packet independently, with this probability.
    Random(f64),
    /// The same share, but in bursts of this many packets on average (Gilbert's model).
    Bursty(f64, f64),
}

/// A direction of a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathSpec {
    /// Rate of the bottleneck, bits per second; 0: no bottleneck.
    pub rate_bit_per_s: u64,
    /// Bytes that the bottleneck's queue holds; further packets are lost.
    pub queue_bytes: u64,
    /// Bytes in the queue from which ECN-capable packets are marked; 0: never.
    pub mark_bytes: u64,
    /// Delay after the bottleneck.
    pub delay_ns: u64,
    /// Longest further delay, of which each packet gets a part by chance; the order stays.
    pub jitter_ns: u64,
    /// Loss after the bottleneck.
    pub loss: Loss,
    /// Probability of an additional delay of a packet.
    pub reorder: f64,
    /// Longest additional delay.
    pub reorder_ns: u64,
}

impl PathSpec {
    /// Only a delay.
    pub const fn delay(delay_ns: u64) -> PathSpec {
        PathSpec {
            rate_bit_per_s: 0,
            queue_bytes: 0,
            mark_bytes: 0,
            delay_ns,
            jitter_ns: 0,
            loss: Loss::None,
            reorder: 0.0,
            reorder_ns: 0,
        }
    }
}

/// Statistics of the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounts {
    /// Delivered, or in flight.
    pub passed: u64,
    /// Lost because the queue was full.
    pub overflowed: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Marked "congestion experienced".
    pub marked: u64,
    /// Delayed additionally.
    pub reordered: u64,
}

/// Bytes of a packet on Ethernet besides its frame: preamble, check sequence, gap.
const FRAMING_BYTES: u64 = 24;

/// A direction of a path, with the packets in flight.
#[derive(Debug)]
pub struct Path {
    spec: PathSpec,
    random: Rng,
    /// Gilbert's bad state.
    in_burst: bool,
    /// When the bottleneck will have sent all packets in its queue.
    idle_at_ns: u64,
    /// When the last packet in order arrives.
    last_ns: u64,
    under_way: BinaryHeap<Reverse<(u64, u64, Vec<u8>)>>,
    order: u64,
    counts: PathCounts,
}

impl Path {
    /// An empty path.
    pub fn new(spec: PathSpec, seed: u64) -> Path {
        Path {
            spec,
            random: Rng::new(seed),
            in_burst: false,
            idle_at_ns: 0,
            last_ns: 0,
            under_way: BinaryHeap::new(),
            order: 0,
            counts: PathCounts::default(),
        }
    }

    /// Statistics of the packets so far.
    pub fn counts(&self) -> PathCounts {
        self.counts
    }

    /// A frame enters at `now_ns`.
    pub fn enter(&mut self, now_ns: u64, mut frame: Vec<u8>) {
        let mut out_ns = now_ns;
        if self.spec.rate_bit_per_s > 0 {
            let wait_ns = self.idle_at_ns.saturating_sub(now_ns);
            let queued_bytes = wait_ns * self.spec.rate_bit_per_s / 8_000_000_000;
            if queued_bytes + frame.len() as u64 > self.spec.queue_bytes {
                self.counts.overflowed += 1;
                return;
            }
            let full = self.spec.mark_bytes > 0 && queued_bytes >= self.spec.mark_bytes;
            self.counts.marked += u64::from(full && mark(&mut frame));
            let bits = (frame.len() as u64 + FRAMING_BYTES) * 8;
            out_ns = now_ns + wait_ns + bits * 1_000_000_000 / self.spec.rate_bit_per_s;
            self.idle_at_ns = out_ns;
        }
        if self.loses() {
            self.counts.lost += 1;
            return;
        }
        let mut there_ns = out_ns + self.spec.delay_ns;
        if self.spec.jitter_ns > 0 {
            there_ns = self.last_ns.max(there_ns + self.random.below(self.spec.jitter_ns));
            self.last_ns = there_ns;
        }
        if self.random.chance(self.spec.reorder) {
            there_ns += self.random.below(self.spec.reorder_ns.max(1));
            self.counts.reordered += 1;
        }
        self.counts.passed += 1;
        self.order += 1;
        self.under_way.push(Reverse((there_ns, self.order, frame)));
    }

    /// When the next frame arrives.
    pub fn next_ns(&self) -> Option<u64> {
        self.under_way.peek().map(|Reverse((at_ns, _, _))| *at_ns)
    }

    /// The next frame that has arrived by `now_ns`.
    pub fn leave(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        self.next_ns().filter(|at_ns| *at_ns <= now_ns)?;
        self.under_way.pop().map(|Reverse((_, _, frame))| frame)
    }

    fn loses(&mut self) -> bool {
        match self.spec.loss {
            Loss::None => false,
            Loss::Random(share) => self.random.chance(share),
            Loss::Bursty(share, packets) => {
                // A burst continues with 1 - 1/packets, and begins so often that the share is
                // right.
                let leave = 1.0 / packets.max(1.0);
                let enter = leave * share / (1.0 - share).max(f64::EPSILON);
                let chance = if self.in_burst { 1.0 - leave } else { enter };
                self.in_burst = self.random.chance(chance);
                self.in_burst
            }
        }
    }
}

/// Sets "congestion experienced" in an ECN-capable IPv4 packet; returns whether it was one.
fn mark(frame: &mut [u8]) -> bool {
    const ETHERNET_BYTES: usize = 14;
    let ipv4 = frame.len() >= ETHERNET_BYTES + 20 && frame[12..14] == [8, 0];
    if !ipv4 || frame[ETHERNET_BYTES + 1] & 3 == 0 {
        return false;
    }
    let ip = &mut frame[ETHERNET_BYTES..];
    let before = u16::from_be_bytes([ip[0], ip[1]]);
    ip[1] |= 3;
    let after = u16::from_be_bytes([ip[0], ip[1]]);
    // RFC 1624 equation 3: HC' = ~(~HC + ~m + m').
    let check = u16::from_be_bytes([ip[10], ip[11]]);
    let mut sum = u32::from(!check) + u32::from(!before) + u32::from(after);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    ip[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn frame(len: usize) -> Vec<u8> {
        vec![0; len]
    }

    /// Sends this many frames of 1000 bytes, one per `gap_ns`; returns the times of arrival.
    fn send(path: &mut Path, frames: u64, gap_ns: u64) -> Vec<u64> {
        let mut arrivals = Vec::new();
        for n in 0..frames {
            path.enter(n * gap_ns, frame(1000));
        }
        while let Some(at_ns) = path.next_ns() {
            assert!(at_ns == 0 || path.leave(at_ns - 1).is_none());
            assert!(path.leave(at_ns).is_some());
            arrivals.push(at_ns);
        }
        arrivals
    }

    #[test]
    fn a_bottleneck_has_its_rate_and_its_queue() {
        let spec = PathSpec {
            rate_bit_per_s: 8_192_000,
            queue_bytes: 10_500,
            ..PathSpec::delay(5_000_000)
        };
        let mut path = Path::new(spec, 1);
        // 1024 bytes with framing take a millisecond; ten fit.
        let arrivals = send(&mut path, 100, 0);
        let wanted: Vec<u64> = (1..=10).map(|n| n * 1_000_000 + 5_000_000).collect();
        assert_eq!(arrivals, wanted);
        assert_eq!(path.counts().overflowed, 90);
        // At half the rate nothing waits.
        let mut path = Path::new(spec, 1);
        let arrivals = send(&mut path, 100, 2_000_000);
        assert!(arrivals.iter().zip(0u64..).all(|(at, n)| *at == n * 2_000_000 + 6_000_000));
    }

    #[test]
    fn jitter_delays_by_chance_and_keeps_the_order() {
        let spec = PathSpec { jitter_ns: 1_000_000, ..PathSpec::delay(5_000_000) };
        let mut path = Path::new(spec, 3);
        for n in 0..1_000u64 {
            let mut frame = frame(100);
            frame[..8].copy_from_slice(&n.to_be_bytes());
            path.enter(n * 300_000, frame);
        }
        let mut delays = Vec::new();
        for n in 0..1_000u64 {
            let at_ns = path.next_ns().unwrap();
            let frame = path.leave(at_ns).unwrap();
            assert_eq!(frame[..8], n.to_be_bytes(), "in order");
            delays.push(at_ns - n * 300_000);
        }
        assert!(delays.iter().all(|ns| (5_000_000..6_000_000).contains(ns)));
        let (least, most) = (delays.iter().min().unwrap(), delays.iter().max().unwrap());
        assert!(most - least > 800_000, "{least} to {most}");
    }

    #[test]
    fn losses_are_as_many_as_said_and_as_long() {
        for (loss, longest) in [(Loss::Random(0.02), 1.1), (Loss::Bursty(0.02, 5.0), 5.5)] {
            let mut path = Path::new(PathSpec { loss, ..PathSpec::delay(0) }, 7);
            let arrivals = send(&mut path, 200_000, 1_000);
            let lost = 200_000 - arrivals.len();
            assert!((3_400..4_600).contains(&lost), "{loss:?}: {lost}");
            let gaps = arrivals.windows(2).filter(|pair| pair[1] - pair[0] > 1_000).count();
            let mean = lost as f64 / gaps as f64;
            assert!(mean < longest && mean > longest * 0.8, "{loss:?}: {mean}");
        }
    }

    #[test]
    fn a_seed_repeats_a_run() {
        let spec = PathSpec {
            loss: Loss::Random(0.1),
            reorder: 0.1,
            reorder_ns: 9_999,
            ..PathSpec::delay(SECOND_NS)
        };
        let run = |seed| send(&mut Path::new(spec, seed), 1_000, 500);
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
    }

    #[test]
    fn marks_keep_the_checksum_right() {
        let spec = PathSpec {
            rate_bit_per_s: 8_000_000,
            queue_bytes: 1 << 20,
            mark_bytes: 2_000,
            ..PathSpec::delay(0)
        };
        let mut path = Path::new(spec, 1);
        let mut packet = frame(1000);
        packet[12..14].copy_from_slice(&[8, 0]);
        packet[14] = 0x45;
        packet[15] = 2;
        packet[24..26].copy_from_slice(&(!0x4502u16).to_be_bytes());
        for _ in 0..10 {
            path.enter(0, packet.clone());
        }
        let marked = (0..10).filter_map(|_| path.leave(u64::MAX)).filter(|p| p[15] == 3).count();
        assert_eq!((marked as u64, path.counts().marked), (8, 8));
        let mut one = packet.clone();
        assert!(mark(&mut one));
        let sum = u16::from_be_bytes([one[14], one[15]]) + u16::from_be_bytes([one[24], one[25]]);
        assert_eq!(sum, 0xffff);
        packet[15] = 0;
        assert!(!mark(&mut packet), "not ECN-capable");
    }
}
