//! One direction of a cable: delay, rate with a queue, and every fault that a frame can meet.
use ix_random::Rng;

/// What a wire does to frames. Probabilities are per frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    /// Time from end to end, µs.
    pub latency_us: u64,
    /// Largest extra delay, µs; it keeps the order of frames.
    pub jitter_us: u64,
    /// Bits per microsecond (Mbit/s); 0: no limit.
    pub rate_mbit_s: u64,
    /// Frames that find more bytes than this waiting for the wire are lost (drop tail).
    pub queue_bytes: u64,
    /// Probability of loss.
    pub loss: f64,
    /// Probability that a burst of losses begins.
    pub burst: f64,
    /// Mean length of a burst, frames.
    pub burst_frames: f64,
    /// Probability that a frame is held back and later ones overtake it.
    pub reorder: f64,
    /// Longest time that a frame is held back, µs.
    pub reorder_us: u64,
    /// Probability that a second copy arrives.
    pub duplicate: f64,
    /// Probability that bits of one octet flip.
    pub corrupt: f64,
    /// Nothing comes through.
    pub cut: bool,
    /// Packets longer than this are lost, and their sender is not told; 0: no such limit. Stays
    /// when all other faults end.
    pub black_hole_mtu: usize,
}

impl Faults {
    /// A perfect wire of this latency.
    pub fn none(latency_us: u64) -> Faults {
        Faults {
            latency_us,
            jitter_us: 0,
            rate_mbit_s: 0,
            queue_bytes: 1 << 20,
            loss: 0.0,
            burst: 0.0,
            burst_frames: 0.0,
            reorder: 0.0,
            reorder_us: 0,
            duplicate: 0.0,
            corrupt: 0.0,
            cut: false,
            black_hole_mtu: 0,
        }
    }

    /// The same wire without faults: only latency, rate and queue stay.
    pub fn healed(&self) -> Faults {
        let Faults { rate_mbit_s, queue_bytes, black_hole_mtu, .. } = *self;
        Faults { rate_mbit_s, queue_bytes, black_hole_mtu, ..Faults::none(self.latency_us) }
    }
}

/// What became of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireStats {
    /// Given to the wire.
    pub frames: u64,
    /// Lost by chance, in a burst, or because the wire was cut.
    pub lost: u64,
    /// Lost because the queue was full.
    pub overflowed: u64,
    /// Held back.
    pub reordered: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Delivered with flipped bits.
    pub corrupted: u64,
}

impl WireStats {
    /// Frames that met a fault; a frame may count several times.
    pub fn faults(&self) -> u64 {
        self.lost + self.overflowed + self.reordered + self.duplicated + self.corrupted
    }

    /// Adds those of another wire.
    pub fn add(&mut self, other: WireStats) {
        self.frames += other.frames;
        self.lost += other.lost;
        self.overflowed += other.overflowed;
        self.reordered += other.reordered;
        self.duplicated += other.duplicated;
        self.corrupted += other.corrupted;
    }
}

/// One direction of a cable.
pub struct Wire {
    faults: Faults,
    rng: Rng,
    in_burst: bool,
    /// When the last bit of the last accepted frame has left, ns.
    free_ns: u64,
    last_arrival_us: u64,
    stats: WireStats,
}

const ETHERNET_HEADER: usize = 14;
/// Octet of an IPv6 header at which its addresses begin.
const IPV6_ADDRESSES_AT: usize = 8;

impl Wire {
    /// A wire with these faults.
    pub fn new(faults: Faults, rng: Rng) -> Wire {
        let stats = WireStats::default();
        Wire { faults, rng, in_burst: false, free_ns: 0, last_arrival_us: 0, stats }
    }

    /// Sets the faults from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
        self.in_burst = false;
    }

    /// The faults.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// What became of frames so far.
    pub fn stats(&self) -> WireStats {
        self.stats
    }

    /// Puts a frame on the wire. Calls `arrive` with each frame that comes out, and its time.
    pub fn send(&mut self, now_us: u64, mut frame: Vec<u8>, mut arrive: impl FnMut(u64, Vec<u8>)) {
        self.stats.frames += 1;
        let Some(sent_us) = self.serialise(now_us, frame.len()) else {
            self.stats.overflowed += 1;
            return;
        };
        let mtu = self.faults.black_hole_mtu;
        let too_long = mtu > 0 && frame.len() > ETHERNET_HEADER + mtu;
        if too_long
            || self.is_lost()
            || (self.rng.chance(self.faults.corrupt) && !self.flip(&mut frame))
        {
            self.stats.lost += 1;
            return;
        }
        let delay_us = self.faults.latency_us + self.rng.below(self.faults.jitter_us + 1);
        let mut arrival_us = (sent_us + delay_us).max(self.last_arrival_us);
        if self.rng.chance(self.faults.reorder) {
            // Leaves `last_arrival_us` as it is: later frames may arrive first.
            self.stats.reordered += 1;
            arrival_us += self.rng.between(1, self.faults.reorder_us.max(1));
        } else {
            self.last_arrival_us = arrival_us;
        }
        if self.rng.chance(self.faults.duplicate) {
            self.stats.duplicated += 1;
            let later_us = arrival_us + self.rng.below(self.faults.reorder_us + 1);
            arrive(later_us, frame.clone());
        }
        arrive(arrival_us, frame);
    }

    /// When the last bit has left; `None` when the queue has no room.
    fn serialise(&mut self, now_us: u64, bytes: usize) -> Option<u64> {
        let rate = self.faults.rate_mbit_s;
        if rate == 0 {
            return Some(now_us);
        }
        let now_ns = now_us * 1000;
        let waiting_ns = self.free_ns.saturating_sub(now_ns);
        if waiting_ns * rate / 8000 > self.faults.queue_bytes {
            return None;
        }
        self.free_ns = self.free_ns.max(now_ns) + bytes as u64 * 8000 / rate;
        Some(self.free_ns.div_ceil(1000))
    }

    fn is_lost(&mut self) -> bool {
        if self.faults.cut {
            return true;
        }
        self.in_burst = if self.in_burst {
            !self.rng.chance(1.0 / self.faults.burst_frames.max(1.0))
        } else {
            self.rng.chance(self.faults.burst)
        };
        self.in_burst || self.rng.chance(self.faults.loss)
    }

    /// Flips bits of one octet. Returns false when the frame must be lost instead: the frame check
    /// of a real device would drop it, and no checksum above protects those bytes. The checksums of
    /// IPv4, ICMP, UDP and TCP detect every change within one octet; those above IPv6 cover its
    /// addresses and what is behind them.
    fn flip(&mut self, frame: &mut [u8]) -> bool {
        let first = match frame.get(12..ETHERNET_HEADER) {
            Some([8, 0]) => ETHERNET_HEADER,
            Some([0x86, 0xdd]) => ETHERNET_HEADER + IPV6_ADDRESSES_AT,
            _ => return false,
        };
        if frame.len() <= first {
            return false;
        }
        let at = self.rng.between(first as u64, frame.len() as u64 - 1) as usize;
        frame[at] ^= self.rng.between(1, 255) as u8;
        self.stats.corrupted += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4_frame(len: usize) -> Vec<u8> {
        let mut frame = vec![0; len];
        frame[12] = 8;
        frame
    }

    /// Arrival times and frames of `n` frames sent every `gap_us`.
    fn run(faults: Faults, n: u64, gap_us: u64) -> (Vec<(u64, u64)>, Wire) {
        let mut wire = Wire::new(faults, Rng::new(9));
        let mut out = Vec::new();
        for i in 0..n {
            let mut frame = ipv4_frame(1000);
            frame[500..508].copy_from_slice(&i.to_le_bytes());
            wire.send(i * gap_us, frame, |at, f| {
                out.push((at, u64::from_le_bytes(f[500..508].try_into().unwrap())));
            });
        }
        (out, wire)
    }

    #[test]
    fn a_perfect_wire_delays_and_does_nothing_else() {
        let (out, _) = run(Faults::none(7), 100, 3);
        assert!(out.iter().enumerate().all(|(i, &x)| x == (i as u64 * 3 + 7, i as u64)));
    }

    #[test]
    fn jitter_keeps_the_order_and_reordering_does_not() {
        let (out, _) = run(Faults { jitter_us: 50, ..Faults::none(1) }, 1000, 3);
        assert!(out.is_sorted() && out.iter().any(|&(at, i)| at > i * 3 + 20));
        let (mut out, wire) =
            run(Faults { reorder: 0.1, reorder_us: 30, ..Faults::none(1) }, 1000, 3);
        out.sort();
        assert!(!out.iter().map(|x| x.1).is_sorted());
        assert!((50..150).contains(&wire.stats().reordered));
    }

    #[test]
    fn losses_come_singly_and_in_bursts() {
        let (out, wire) = run(Faults { loss: 0.2, ..Faults::none(0) }, 10_000, 1);
        assert!((7_800..8_200).contains(&out.len()));
        assert_eq!(wire.stats().lost as usize, 10_000 - out.len());
        let bursts = Faults { burst: 0.01, burst_frames: 10.0, ..Faults::none(0) };
        let (out, _) = run(bursts, 100_000, 1);
        let gaps: Vec<u64> =
            out.windows(2).map(|w| w[1].1 - w[0].1 - 1).filter(|&g| g > 0).collect();
        let mean = gaps.iter().sum::<u64>() as f64 / gaps.len() as f64;
        assert!((8.0..12.0).contains(&mean), "{mean}");
        assert!(run(Faults { cut: true, ..Faults::none(0) }, 10, 1).0.is_empty());
    }

    #[test]
    fn duplicates_come_twice() {
        let faults = Faults { duplicate: 0.5, reorder_us: 9, ..Faults::none(0) };
        let (out, wire) = run(faults, 1000, 1);
        assert_eq!(out.len() as u64, 1000 + wire.stats().duplicated);
        assert!((400..600).contains(&wire.stats().duplicated));
    }

    #[test]
    fn the_rate_holds_and_the_queue_ends() {
        // 1000 bytes every 4 µs are 2 Gbit/s, twice what the wire takes.
        let faults = Faults { rate_mbit_s: 1000, queue_bytes: 20_000, ..Faults::none(5) };
        let (out, wire) = run(faults, 1000, 4);
        assert!(out.windows(2).all(|w| w[1].0 - w[0].0 >= 8));
        assert!((450..550).contains(&wire.stats().overflowed));
        let longest = out.iter().map(|&(at, i)| at - i * 4).max().unwrap();
        assert!((5 + 150..5 + 190).contains(&longest), "{longest}");
    }

    #[test]
    fn corruption_changes_one_octet_behind_the_ethernet_header_and_never_arp() {
        let mut wire = Wire::new(Faults { corrupt: 1.0, ..Faults::none(0) }, Rng::new(1));
        for _ in 0..500 {
            let mut v6 = vec![0; 60];
            v6[12..14].copy_from_slice(&[0x86, 0xdd]);
            // Of IPv6 only what checksums above it cover.
            for (sent, first) in [(ipv4_frame(60), 14), (v6, 22)] {
                let mut got = None;
                wire.send(0, sent.clone(), |_, frame| got = Some(frame));
                let got = got.unwrap();
                let changed: Vec<usize> = (0..60).filter(|&i| sent[i] != got[i]).collect();
                assert!(changed.len() == 1 && changed[0] >= first);
            }
        }
        wire.send(0, vec![0; 42], |_, _| panic!("a corrupt ARP frame came through"));
        assert_eq!((wire.stats().corrupted, wire.stats().lost), (1000, 1));
    }
}
