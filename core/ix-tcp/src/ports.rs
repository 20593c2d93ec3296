//! Ephemeral ports by RFC 6056 algorithm 4, "double hash": ports for one destination count upwards
//! from a secret start, and destinations share counters at random.
use crate::isn::{Key, Purpose};
use ix_wire::{FlowTuple, IpAddr};

/// RFC 6056 section 3.3.4 requires at least 10. With few counters an observer can recognise a
/// machine by the destinations that share one; hence many, and steps of random width.
const COUNTERS: usize = 1024;

/// How many ports searches may look at. A search looks at every port where all are taken. One that
/// does is harmless; thousands in a row would keep everything else waiting.
#[derive(Clone, Copy, Debug)]
pub struct Looks {
    left: u32,
    least: u32,
}

impl Looks {
    /// So many ports for all searches together. Each may look at `least` ports in any case.
    pub const fn new(all: u32, least: u32) -> Looks {
        Looks { left: all, least }
    }

    /// How many ports the next search may look at.
    pub(crate) fn most(&self) -> u32 {
        self.left.max(self.least)
    }

    /// A search has looked at so many.
    pub(crate) fn took(&mut self, looks: u32) {
        self.left = self.left.saturating_sub(looks);
    }
}

/// Chooses local ports of outgoing connections, for one elastic thread.
pub struct PortSelector {
    key: Key,
    /// The first port of each range, and how many ports the ranges before it have.
    ranges: Vec<(u32, u16)>,
    count: u32,
    /// The last search has looked at more than half of all.
    is_crowded: bool,
    counters: [u16; COUNTERS],
}

impl PortSelector {
    /// A selector for the ports `low..=high`. RFC 6056 section 3.2 recommends 1024 to 65535; IANA's
    /// dynamic ports begin at 49152.
    ///
    /// # Panics
    /// When `low > high` or `low` is 0.
    pub fn new(key: Key, low: u16, high: u16) -> Self {
        assert!(low > 0 && low <= high, "a range of ports, without 0");
        let (ranges, count) = (vec![(0, low)], u32::from(high - low) + 1);
        PortSelector { key, ranges, count, is_crowded: false, counters: [0; COUNTERS] }
    }

    /// Chooses among the ports of these ranges from now on, which have none in common, and of which
    /// there is one at least; first and last port of each.
    pub fn set_ranges(&mut self, ranges: &[(u16, u16)]) {
        (self.count, self.is_crowded) = (0, false);
        self.ranges.clear();
        for (first, last) in ranges {
            self.ranges.push((self.count, *first));
            self.count += u32::from(last.saturating_sub(*first)) + 1;
        }
    }

    /// The port of this number among those of all ranges.
    fn port(&self, number: u32) -> u16 {
        let behind = self.ranges.partition_point(|(before, _)| *before <= number);
        let (before, first) = self.ranges[behind.saturating_sub(1)];
        first + (number - before) as u16
    }

    /// Whether the last search has found nothing, or nothing for long: more ports would do good.
    pub fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    /// A local port for a connection from `local` to `remote`, or `None` when `accept` refuses
    /// every port of the range, or as many as `looks` allow. The next search goes on behind those.
    ///
    /// `accept` tells whether a port is free and its replies will arrive at this thread. It is
    /// called at most once for each port.
    pub fn select(
        &mut self,
        local: IpAddr,
        remote: IpAddr,
        remote_port: u16,
        random: u32,
        looks: &mut Looks,
        mut accept: impl FnMut(u16) -> bool,
    ) -> Option<u16> {
        let destination = FlowTuple { local, remote, local_port: 0, remote_port };
        let offset = self.key.hash(Purpose::PortOffset, &destination, &[]) as u32;
        let index = self.key.hash(Purpose::PortIndex, &destination, &[]) as usize % COUNTERS;
        let counter = self.counters[index];
        let range = self.count;
        let start = (offset % range) + u32::from(counter) + (random & 1);
        let most = looks.most().min(range);
        let port_at = |step| self.port((start + step) % range);
        let found = (0..most).find(|step| accept(port_at(*step)));
        let looked = found.map_or(most, |step| step + 1);
        looks.took(looked);
        let found = found.map(port_at);
        self.is_crowded = found.is_none() || looked > range / 2;
        if found.is_some() || looked < range {
            self.counters[index] = ((u32::from(counter) + (random & 1) + looked) % range) as u16;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isn::tests::KEY;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const LOCAL: IpAddr = IpAddr::v4([10, 0, 0, 1]);
    const REMOTE: IpAddr = IpAddr::v4([10, 0, 0, 2]);

    fn all() -> Looks {
        Looks::new(0, u32::MAX)
    }

    #[test]
    fn many_searches_in_vain_look_at_few_ports_and_begin_where_the_last_one_has_ended() {
        let mut ports = PortSelector::new(KEY, 1024, 65_535);
        let mut looks = Looks::new(100_000, 16);
        let mut asked = 0u32;
        for _ in 0..2000 {
            let found = ports.select(LOCAL, REMOTE, 80, 0, &mut looks, |_| {
                asked += 1;
                false
            });
            assert_eq!(found, None);
        }
        // The first one looks at all, the second at what is left.
        assert_eq!(asked, 100_000 + 1998 * 16);
        // So even the last one that is free is found in the end.
        let free = |port| port == 5000;
        let mut searches = 0..64_512;
        let found = searches.find_map(|_| ports.select(LOCAL, REMOTE, 80, 0, &mut looks, free));
        assert_eq!((found, searches.start <= 64_512 / 16 + 1), (Some(5000), true));
    }

    #[test]
    fn ports_of_one_destination_do_not_repeat_before_the_range_is_used() {
        let mut ports = PortSelector::new(KEY, 50_000, 50_999);
        let chosen: HashSet<u16> = (0..1000)
            .filter_map(|_| ports.select(LOCAL, REMOTE, 80, 0, &mut all(), |_| true))
            .collect();
        assert_eq!(chosen.len(), 1000);
    }

    #[test]
    fn destinations_begin_at_unrelated_ports() {
        let first = |remote_port| {
            PortSelector::new(KEY, 1024, 65_535).select(
                LOCAL,
                REMOTE,
                remote_port,
                0,
                &mut all(),
                |_| true,
            )
        };
        let firsts: HashSet<_> = (1..=1000).map(first).collect();
        // 1000 draws of 64512: about 8 collide.
        assert!(firsts.len() > 950, "{}", firsts.len());
        let other_key = PortSelector::new(Key([1, 2]), 1024, 65_535).select(
            LOCAL,
            REMOTE,
            80,
            0,
            &mut all(),
            |_| true,
        );
        assert_ne!(first(80), other_key);
    }

    #[test]
    fn finds_the_only_free_port_and_fails_only_without_one() {
        for free in [1024, 1025, 40_000, 65_534, 65_535] {
            let mut ports = PortSelector::new(KEY, 1024, 65_535);
            let mut asked = 0;
            let got = ports.select(LOCAL, REMOTE, 80, u32::MAX, &mut all(), |port| {
                asked += 1;
                port == free
            });
            assert_eq!(got, Some(free));
            assert!(asked <= 64_512);
        }
        let mut ports = PortSelector::new(KEY, 1, 65_535);
        let mut asked = HashSet::new();
        assert_eq!(
            ports.select(LOCAL, REMOTE, 80, 1, &mut all(), |port| !asked.insert(port)),
            None
        );
        assert_eq!(asked.len(), 65_535);
    }

    #[test]
    fn several_ranges_are_used_as_one() {
        let mut ports = PortSelector::new(KEY, 100, 163);
        ports.set_ranges(&[(100, 163), (40_000, 40_063), (7, 7)]);
        let mut taken = HashSet::new();
        for nth in 1..=129 {
            let port =
                ports.select(LOCAL, REMOTE, 80, nth, &mut all(), |port| !taken.contains(&port));
            assert!(taken.insert(port.expect("one is free")), "{nth}");
            if nth <= 8 {
                assert!(!ports.is_crowded());
            }
        }
        let expected: HashSet<u16> = (100..=163).chain(40_000..=40_063).chain([7]).collect();
        assert_eq!(taken, expected);
        let none = ports.select(LOCAL, REMOTE, 80, 0, &mut all(), |port| !taken.contains(&port));
        assert!(none.is_none() && ports.is_crowded());
    }

    #[test]
    fn a_range_of_one_port_works() {
        let mut ports = PortSelector::new(KEY, 65_535, 65_535);
        for random in 0..4 {
            assert_eq!(ports.select(LOCAL, REMOTE, 80, random, &mut all(), |_| true), Some(65_535));
        }
    }

    proptest! {
        /// Against the definition: in the range, accepted, and each port tried once.
        #[test]
        fn chosen_port_is_accepted(
            low in 1u16..,
            width in any::<u16>(),
            remote_port in any::<u16>(),
            randoms in proptest::collection::vec(any::<u32>(), 1..20),
            modulus in 1u16..8,
        ) {
            let high = low.saturating_add(width);
            let mut ports = PortSelector::new(KEY, low, high);
            let mut taken = HashSet::new();
            for random in randoms {
                let mut asked = HashSet::new();
                let mut twice = false;
                let got = ports.select(LOCAL, REMOTE, remote_port, random, &mut all(), |port| {
                    twice |= !asked.insert(port);
                    port % modulus == 0 && !taken.contains(&port)
                });
                prop_assert!(!twice);
                match got {
                    Some(port) => {
                        prop_assert!((low..=high).contains(&port) && port % modulus == 0);
                        prop_assert!(taken.insert(port));
                    }
                    None => prop_assert!(
                        (low..=high).all(|port| port % modulus != 0 || taken.contains(&port))
                    ),
                }
            }
        }
    }
}
