//! The next hops that IX uses on an interface whose address is Linux's as well, and what it was
//! told of each.
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Next hops that are followed, at most: twice as many as a dataplane keeps.
const HOPS_MAX: usize = 8192;
/// IX uses a next hop that it has named within this time.
const IN_USE: Duration = Duration::from_secs(60);
/// Next hops that are asked for at once, at most: each question goes to all hosts of the link.
const AT_ONCE_MAX: usize = 256;

/// What a next hop's Ethernet address is; none: Linux has found none.
pub type Neighbour = (IpAddr, Option<[u8; 6]>);

/// The next hops.
#[derive(Debug, Default)]
pub(crate) struct WantedHops(BTreeMap<IpAddr, Wanted>);

#[derive(Debug)]
struct Wanted {
    told: Option<[u8; 6]>,
    /// When IX named it last. It names what it uses every few seconds.
    named: Instant,
}

impl WantedHops {
    /// IX names this one, and is told this. Where there is no room, the one leaves that was not
    /// named for longest: whoever sends from many addresses keeps no other host away.
    pub fn name(&mut self, hop: IpAddr, told: Option<[u8; 6]>, now: Instant) {
        if self.0.len() >= HOPS_MAX && !self.0.contains_key(&hop) {
            let oldest = self.0.iter().min_by_key(|(_, wanted)| wanted.named);
            if let Some(oldest) = oldest.map(|(hop, _)| *hop) {
                self.0.remove(&oldest);
            }
        }
        self.0.insert(hop, Wanted { told, named: now });
    }

    /// What is to be told of a neighbour of Linux's: nothing if IX does not use it, and nothing if
    /// it knows.
    pub fn note(&mut self, (hop, mac): Neighbour) -> Option<Neighbour> {
        let wanted = self.0.get_mut(&hop)?;
        let before = std::mem::replace(&mut wanted.told, mac);
        // That a hop is still unknown is news too: Linux has given up.
        (before != mac || mac.is_none()).then_some((hop, mac))
    }

    /// All of them.
    pub fn hops(&self) -> Vec<IpAddr> {
        self.0.keys().copied().collect()
    }

    /// Those in use, the ones that were named last first, and no more than may be asked for at
    /// once.
    pub fn in_use(&self, now: Instant) -> Vec<IpAddr> {
        let age = |wanted: &Wanted| now.saturating_duration_since(wanted.named);
        let mut all: Vec<_> = self.0.iter().map(|(hop, wanted)| (age(wanted), *hop)).collect();
        all.retain(|(age, _)| *age <= IN_USE);
        all.sort_unstable();
        all.into_iter().take(AT_ONCE_MAX).map(|(_, hop)| hop).collect()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::time::Duration;

    const MAC: Option<[u8; 6]> = Some([2; 6]);

    #[test]
    fn what_nobody_uses_is_not_kept() {
        let mut hops = WantedHops::default();
        let stranger = IpAddr::from([10, 0, 0, 9]);
        assert_eq!(hops.note((stranger, MAC)), None);
        assert_eq!(hops.note((stranger, None)), None, "not noted the first time");
        assert!(hops.hops().is_empty());
        hops.name(stranger, None, Instant::now());
        assert_eq!(hops.note((stranger, MAC)), Some((stranger, MAC)));
        assert_eq!(hops.note((stranger, MAC)), None, "known");
        assert_eq!(hops.note((stranger, None)), Some((stranger, None)));
    }

    #[test]
    fn those_in_use_are_the_last_ones_that_were_named() {
        let (mut hops, began) = (WantedHops::default(), Instant::now());
        for number in 0..1000 {
            let now = began + Duration::from_millis(number.into());
            hops.name(Ipv4Addr::from(0x0b00_0000 + number).into(), None, now);
        }
        let last = |count: u32| (1000 - count..1000).rev();
        let expected = |count| last(count).map(|n| Ipv4Addr::from(0x0b00_0000 + n).into());
        let now = began + Duration::from_secs(1);
        assert_eq!(hops.in_use(now), expected(AT_ONCE_MAX as u32).collect::<Vec<IpAddr>>());
        let now = began + IN_USE + Duration::from_millis(990);
        assert_eq!(hops.in_use(now), expected(10).collect::<Vec<IpAddr>>());
        assert!(hops.in_use(now + IN_USE).is_empty());
    }

    #[test]
    fn many_strangers_keep_nobody_away() {
        let (mut hops, began) = (WantedHops::default(), Instant::now());
        let [used, late] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        for number in 0..4 * HOPS_MAX as u32 {
            let now = began + Duration::from_millis(number.into());
            hops.name(Ipv4Addr::from(0x0b00_0000 + number).into(), None, now);
            if number % 1000 == 0 {
                hops.name(used, MAC, now);
            }
        }
        assert_eq!(hops.hops().len(), HOPS_MAX);
        assert_eq!(hops.note((used, None)), Some((used, None)), "it was named all the time");
        hops.name(late, None, began + Duration::from_secs(3600));
        assert_eq!(hops.note((late, MAC)), Some((late, MAC)));
        assert_eq!(hops.hops().len(), HOPS_MAX);
    }
}
