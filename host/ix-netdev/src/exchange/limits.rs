//! Rates as rows of words, which the programs read with each packet.
//!
//! A limit is the generic cell rate algorithm: a clock says when all packets that have passed are
//! paid for, and a packet may pass if that is not later than now. Clocks count 1/256 ns since the
//! machine's start, so that the shortest packet of the fastest link costs a thousand units; the
//! cost of a byte has 16 more bits.
use ix_vnic::{LATE_NS, Rate};

/// Clock units per nanosecond, as a shift.
pub(super) const UNITS_SHIFT: i32 = 8;
/// Fractional bits of a byte's cost.
pub(super) const FRACTION_BITS: i32 = 16;
/// Slowest rate, bit/s: the cost of a long packet must fit.
pub(super) const BITS_MIN: u64 = 1_000;
const FULL_FRAME: u64 = 1514;
/// Burst of its share that a vNIC may send at once, ns: too short to disturb others, long enough
/// that a sender that is late for a moment loses nothing of its share.
const SHARE_BURST_NS: u64 = 4_000_000;
/// What a vNIC may send beyond its burst, ns of its rate: for delays of its dataplane, and for
/// packets that catch up with each other on their way. So no packet within the rate is dropped, and
/// no whole second has 2 % more than the rate.
const SLACK_NS: u64 = LATE_NS + 2_000_000;
const NS_PER_S: u64 = 1_000_000_000;

/// A limit, and the index of its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// Rate of sent bits of a vNIC.
    SendBits = 0,
    /// Rate of sent packets of a vNIC.
    SendPackets = 1,
    /// A vNIC's share of a full interface.
    Share = 2,
    /// Speed of the interface.
    Link = 3,
    /// Rate of received bits of a vNIC.
    ReceiveBits = 4,
    /// Rate of received packets of a vNIC.
    ReceivePackets = 5,
}

pub(super) const LIMITS: usize = 6;
/// Whether anything is limited; then for each limit the cost of a byte, the cost of a packet, and
/// the burst.
pub(super) const LIMIT_WORDS: usize = 1 + 3 * LIMITS;

/// A vNIC's row.
pub(super) type Row = [u64; LIMIT_WORDS];

/// Byte offset of a limit's cost of a byte; the cost of a packet and the burst follow.
pub(super) fn offset(limit: Limit) -> i16 {
    8 * (1 + 3 * limit as i16)
}

/// The operator's limits for a vNIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRates {
    /// Rate of sent packets.
    pub tx: Option<Rate>,
    /// Rate of received packets.
    pub rx: Option<Rate>,
    /// Its weight in a full interface.
    pub weight: u32,
}

impl Default for PortRates {
    fn default() -> PortRates {
        PortRates { tx: None, rx: None, weight: 1 }
    }
}

/// A vNIC's share of a full interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// What it may send, bits per second.
    pub bits_per_s: u64,
    /// Its dataplane knows the share and delays packets: then, as with a rate, no packet within the
    /// share is dropped.
    pub is_told: bool,
    /// Speed of the interface, bits per second.
    pub link: u64,
}

/// `share`: `None` if the speed of the interface is unknown.
pub(super) fn row(rates: &PortRates, share: Option<Share>) -> Row {
    let mut row = [0; LIMIT_WORDS];
    let directions = [
        (rates.tx, Limit::SendBits, Limit::SendPackets),
        (rates.rx, Limit::ReceiveBits, Limit::ReceivePackets),
    ];
    for (rate, bits, packets) in directions {
        let Some(rate) = rate else { continue };
        let burst = u64::from(rate.burst_bytes);
        if let Some(bits_per_s) = rate.bits_per_s {
            set_bits(&mut row, bits, bits_per_s, burst, SLACK_NS);
        }
        if let Some(packets_per_s) = rate.packets_per_s {
            let cost = (NS_PER_S << UNITS_SHIFT) / packets_per_s;
            let slack = SLACK_NS << UNITS_SHIFT;
            set(&mut row, packets, [0, cost, (burst / FULL_FRAME).max(1) * cost + slack]);
        }
    }
    if let Some(Share { bits_per_s, is_told, link }) = share {
        let burst = |bits: u64, ns: u64| (bits / 8).saturating_mul(ns / 1000) / 1_000_000;
        let at_least = 2 * FULL_FRAME;
        let own_ns = if is_told { SLACK_NS } else { SHARE_BURST_NS };
        let own = burst(bits_per_s, own_ns) + at_least;
        set_bits(&mut row, Limit::Share, bits_per_s, own, 0);
        set_bits(&mut row, Limit::Link, link, burst(link, SHARE_BURST_NS / 4).max(at_least), 0);
    }
    row
}

fn set_bits(row: &mut Row, limit: Limit, bits_per_s: u64, burst_bytes: u64, slack_ns: u64) {
    let per_byte = u128::from(8 * NS_PER_S) << (UNITS_SHIFT + FRACTION_BITS);
    let cost = per_byte / u128::from(bits_per_s.max(BITS_MIN));
    let slack = u128::from(slack_ns << UNITS_SHIFT);
    let burst = ((u128::from(burst_bytes) * cost) >> FRACTION_BITS) + slack;
    set(row, limit, [cost as u64, 0, burst.min(u128::from(NS_PER_S << UNITS_SHIFT)) as u64]);
}

fn set(row: &mut Row, limit: Limit, words: [u64; 3]) {
    row[0] = 1;
    let at = offset(limit) as usize / 8;
    row[at..at + 3].copy_from_slice(&words);
}

/// Bits per second for each of these weights. Active vNICs share the whole link; a silent one may
/// begin with its part of all.
pub(super) fn shares(link_bits_per_s: u64, ports: &[(u32, bool)]) -> Vec<u64> {
    let sum = |active: bool| -> u64 {
        let counted = ports.iter().filter(|(_, is_active)| *is_active || !active);
        counted.map(|(weight, _)| u64::from(*weight)).sum::<u64>().max(1)
    };
    let (all, active) = (sum(false), sum(true));
    let part = |(weight, is_active): &(u32, bool)| {
        let of = if *is_active { active } else { all };
        (u128::from(link_bits_per_s) * u128::from(*weight) / u128::from(of)) as u64
    };
    ports.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_active_shares_the_link_by_weight() {
        assert_eq!(shares(1000, &[(1, true), (3, true)]), [250, 750]);
        assert_eq!(shares(1000, &[(1, true), (1, true), (2, false)]), [500, 500, 500]);
        assert_eq!(shares(1000, &[(1, false), (4, false)]), [200, 800]);
        assert!(shares(1000, &[]).is_empty());
    }

    /// Cost of a packet of `bytes` bytes, ns.
    fn cost_ns(row: &Row, limit: Limit, bytes: u64) -> f64 {
        let at = offset(limit) as usize / 8;
        let units = ((row[at] * bytes) >> FRACTION_BITS) + row[at + 1];
        units as f64 / f64::from(1 << UNITS_SHIFT)
    }

    #[test]
    fn costs_are_exact_at_every_speed() {
        for bits in [1_000, 1_000_000, 10_000_000_000, 1_000_000_000_000] {
            let rates = PortRates { tx: Some(Rate::bits(bits)), ..PortRates::default() };
            let row = row(&rates, None);
            for bytes in [60, 1514, 65_535] {
                let wanted = bytes as f64 * 8e9 / bits as f64;
                let error = cost_ns(&row, Limit::SendBits, bytes) / wanted - 1.0;
                assert!(error.abs() < 0.01, "{bits} {bytes}: {error}");
            }
        }
        let rate = "10Mbit,20kpps,burst=15140".parse().ok();
        let rates = PortRates { tx: rate, rx: rate, weight: 1 };
        let row = row(&rates, None);
        assert_eq!(cost_ns(&row, Limit::SendPackets, 1000), 50_000.0);
        assert_eq!(cost_ns(&row, Limit::ReceiveBits, 1250), 1_000_000.0);
        let burst_ns = row[offset(Limit::SendPackets) as usize / 8 + 2] >> UNITS_SHIFT;
        assert_eq!(burst_ns, 500_000 + SLACK_NS);
        assert_eq!(row[offset(Limit::Share) as usize / 8], 0);
    }

    /// What the programs do with the row of a sending vNIC, in virtual time.
    struct Wall {
        row: Row,
        clock: u64,
    }

    impl Wall {
        fn new(rate: Rate) -> Wall {
            let rates = PortRates { tx: Some(rate), ..PortRates::default() };
            Wall { row: row(&rates, None), clock: 0 }
        }

        fn passes(&mut self, now_ns: u64, bytes: u64) -> bool {
            let at = offset(Limit::SendBits) as usize / 8;
            let now = now_ns << UNITS_SHIFT;
            self.clock = self.clock.max(now - self.row[at + 2]);
            let passes = self.clock <= now;
            if passes {
                self.clock += (self.row[at] * bytes) >> FRACTION_BITS;
            }
            passes
        }
    }

    const RATES: [u64; 4] = [1_000_000, 10_000_000, 100_000_000, 1_000_000_000];
    const START_NS: u64 = 50 * NS_PER_S;

    #[test]
    fn who_floods_gets_its_rate_in_each_second() {
        for bits in RATES {
            let mut wall = Wall::new(Rate::bits(bits));
            let step_ns = 1514 * 8 * NS_PER_S / bits / 3;
            for second in 0..3 {
                let start = START_NS + second * NS_PER_S;
                let times = (start..start + NS_PER_S).step_by(step_ns as usize);
                let sent = 1514 * times.filter(|at| wall.passes(*at, 1514)).count() as u64;
                let burst = if second == 0 { 3028.0 } else { 0.0 };
                let error = sent as f64 - bits as f64 / 8.0;
                let most = 0.02 * bits as f64 / 8.0 + burst + 1514.0;
                assert!(error >= -1514.0 && error <= most, "{bits}, second {second}: {error}");
            }
        }
    }

    /// A dataplane that stops now and then and catches up, on a path where packets catch up with
    /// each other: all packets pass.
    #[test]
    fn what_keeps_to_the_rate_passes_the_wall() {
        for bits in RATES {
            let rate = Rate::bits(bits);
            let (mut wall, mut shaper) = (Wall::new(rate), ix_vnic::Shaper::new(rate, START_NS));
            let (mut now, mut arrived, mut sent) = (START_NS, 0, 0u64);
            for look in 0..200_000u64 {
                now += if look % 2_003 == 0 { 15_900_000 } else { 20_000 };
                while shaper.passes(now) {
                    shaper.charge(now, 1514);
                    let delay = if look % 5 == 0 { 1_500_000 } else { 0 };
                    arrived = (now + delay).max(arrived);
                    assert!(wall.passes(arrived, 1514), "{bits}: lost after {sent} packets");
                    sent += 1;
                }
            }
            let wanted = (now - START_NS) as f64 * bits as f64 / 8e9 / 1514.0;
            assert!((sent as f64 / wanted - 1.0).abs() < 0.01, "{bits}: {sent} of {wanted}");
        }
    }
}
