//! Next hops where Linux resolves them: the address is its own, so it has all neighbours, and IX
//! sends no ARP. Linux is asked by the broker, which says what has come of it, and what changes.
use ix_proto::routes::{HostNetwork, Route, RouteTable};
use ix_tcp::arp::{ArpLimits, Resolution};
use ix_tcp::{Asker, Questions, Standing, first_to_leave};
use ix_wire::{IpAddr, MacAddr};
use std::collections::HashMap;
use std::sync::Arc;

/// A next hop that is in use is named to Linux again after this time, so that it is confirmed: a
/// neighbour that has another Ethernet address is noticed.
const USED_US: u64 = 5_000_000;
/// A question that was not answered for so long is asked again.
const ASK_AGAIN_US: u64 = 1_000_000;
/// So long a next hop that Linux has not found counts as unreachable.
const FAILED_US: u64 = 1_000_000;

/// Next hops that are kept, at most. Linux itself keeps fewer, if it was told nothing else.
const HOPS_MAX: usize = 4096;
/// One that was looked up within this time leaves for the host's own traffic only.
const IN_USE_US: u64 = 60_000_000;

/// Routes that are kept, at most: the broker sends no more.
const ROUTES_MAX: usize = 65_536;

/// What Linux has said.
pub(crate) struct LinuxHops {
    hops: HashMap<IpAddr, Hop>,
    /// What Linux is asked causes it to ask all hosts of the link.
    questions: Questions,
    fixed: Vec<(IpAddr, MacAddr)>,
    version: u64,
    /// Addresses and routes; none: nothing was said of them yet.
    network: Option<Arc<HostNetwork>>,
    /// Routes of a network of which more is to come.
    routes: Vec<Route>,
}

#[derive(Clone, Copy)]
struct Hop {
    asked_us: u64,
    used_us: u64,
    /// Who has wanted it: the host's own traffic, if that ever has.
    asker: Asker,
    state: State,
}

impl Hop {
    fn standing(&self) -> Standing {
        let is_known = matches!(self.state, State::Known(_));
        Standing { is_known, asker: self.asker, used_us: Some(self.used_us) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Asked,
    Known(MacAddr),
    /// Since then.
    Failed(u64),
}

impl LinuxHops {
    /// Nothing is known but these.
    pub fn new(fixed: &[(IpAddr, MacAddr)]) -> LinuxHops {
        let (hops, routes) = (HashMap::new(), Vec::new());
        let questions = Questions::new(ArpLimits::default().questions_max);
        LinuxHops { hops, questions, fixed: fixed.to_vec(), version: 0, network: None, routes }
    }

    /// Changes whenever something that was said has changed.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Forgets all: the interface is another one.
    pub fn clear(&mut self) {
        self.hops.clear();
        self.version += 1;
    }

    /// Addresses and routes, if something was said of them.
    pub fn network(&self) -> Option<&Arc<HostNetwork>> {
        self.network.as_ref()
    }

    /// A part of what Linux knows of the network; with the last one all of it counts.
    pub fn heard_network(&mut self, addresses: Vec<(IpAddr, u8)>, routes: Vec<Route>, more: bool) {
        let room = ROUTES_MAX.saturating_sub(self.routes.len());
        self.routes.extend(routes.into_iter().take(room));
        if more {
            return;
        }
        let routes = RouteTable::new(std::mem::take(&mut self.routes));
        self.network = Some(Arc::new(HostNetwork { addresses, routes }));
        self.version += 1;
    }

    /// Looks up a next hop; those that Linux is to be asked for are appended to `ask`.
    pub fn lookup(
        &mut self,
        hop: IpAddr,
        asker: Asker,
        now_us: u64,
        ask: &mut Vec<IpAddr>,
    ) -> Resolution {
        if let Some((_, mac)) = self.fixed.iter().find(|(ip, _)| *ip == hop) {
            return Resolution::Known(*mac);
        }
        let LinuxHops { hops, questions, .. } = self;
        let Some(entry) = hops.get_mut(&hop) else {
            return self.begin_asking(hop, asker, now_us, ask);
        };
        (entry.used_us, entry.asker) = (now_us, entry.asker.max(asker));
        let (resolution, again_us) = match entry.state {
            State::Known(mac) => (Resolution::Known(mac), entry.asked_us + USED_US),
            State::Asked => (Resolution::Pending, entry.asked_us + ASK_AGAIN_US),
            State::Failed(since_us) => (Resolution::Failed, since_us + FAILED_US),
        };
        let is_known = matches!(entry.state, State::Known(_));
        if now_us < again_us || !is_known && !questions.may_ask(entry.asker, now_us) {
            return resolution;
        }
        entry.asked_us = now_us;
        ask.push(hop);
        if is_known {
            return resolution;
        }
        entry.state = State::Asked;
        Resolution::Pending
    }

    /// Asks for a next hop that nobody has asked for. A bounded number of them is kept: whoever
    /// sends from many addresses keeps no other host away.
    fn begin_asking(
        &mut self,
        hop: IpAddr,
        asker: Asker,
        now_us: u64,
        ask: &mut Vec<IpAddr>,
    ) -> Resolution {
        let may_ask = self.questions.may_ask(asker, now_us);
        // A stranger without a question would only take room.
        if !(may_ask || asker == Asker::Own) || !self.make_room(asker, now_us) {
            return Resolution::Failed;
        }
        if may_ask {
            ask.push(hop);
        }
        let fresh = Hop { asked_us: now_us, used_us: now_us, asker, state: State::Asked };
        self.hops.insert(hop, fresh);
        Resolution::Pending
    }

    /// Makes room for one more, as [`first_to_leave`] says; false if all stay.
    fn make_room(&mut self, asker: Asker, now_us: u64) -> bool {
        if self.hops.len() < HOPS_MAX {
            return true;
        }
        let all = self.hops.iter().map(|(hop, entry)| (*hop, entry.standing()));
        let first = first_to_leave(all, Some(asker), now_us, IN_USE_US);
        let Some((hop, standing)) = first else { return false };
        self.hops.remove(&hop);
        // Only a copy of what was known is void now.
        self.version += u64::from(standing.is_known);
        true
    }

    /// What Linux says of a next hop. What nobody has asked for is not kept.
    pub fn heard(&mut self, hop: IpAddr, mac: Option<MacAddr>, now_us: u64) {
        let Some(entry) = self.hops.get_mut(&hop) else { return };
        let state = mac.map_or(State::Failed(now_us), State::Known);
        if entry.state != state {
            entry.state = state;
            self.version += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_proto::routes::Via;

    #[test]
    fn a_network_counts_when_all_of_it_has_come() {
        let (own, hop) = (IpAddr::v4([10, 0, 0, 2]), IpAddr::v4([10, 0, 0, 1]));
        let route = |to: [u8; 4], via| {
            let to = IpAddr::v4(to);
            Route { to, prefix: 8, via, source: None, mtu: 0, metric: 0 }
        };
        let mut hops = LinuxHops::new(&[]);
        let addresses = vec![(own, 24)];
        let first = vec![route([10, 0, 0, 0], Via::Link)];
        hops.heard_network(addresses.clone(), first.clone(), true);
        assert!(hops.network().is_none());
        let second = vec![route([11, 0, 0, 0], Via::Gateway(hop))];
        hops.heard_network(addresses.clone(), second, false);
        let version = hops.version();
        let network = hops.network().expect("all of it");
        assert_eq!(network.route(IpAddr::v4([11, 1, 1, 1])), Some((own, hop)));
        assert_eq!(network.route(hop), Some((own, hop)));
        // The next one replaces it.
        hops.heard_network(addresses, first, false);
        assert_ne!(hops.version(), version);
        let network = hops.network().expect("all of it");
        assert_eq!(network.route(IpAddr::v4([11, 1, 1, 1])), None);
    }

    #[test]
    fn linux_is_asked_once_and_again_while_a_hop_is_in_use() {
        let hop = IpAddr::v4([10, 0, 0, 1]);
        let (one, other) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let mut hops = LinuxHops::new(&[]);
        let asked = |hops: &mut LinuxHops, now_us| {
            let mut ask = Vec::new();
            (hops.lookup(hop, Asker::Own, now_us, &mut ask), ask.len())
        };
        assert_eq!(asked(&mut hops, 0), (Resolution::Pending, 1));
        assert_eq!(asked(&mut hops, 1), (Resolution::Pending, 0));
        assert_eq!(asked(&mut hops, ASK_AGAIN_US), (Resolution::Pending, 1));
        hops.heard(hop, Some(one), ASK_AGAIN_US);
        let version = hops.version();
        assert_eq!(asked(&mut hops, ASK_AGAIN_US + 1), (Resolution::Known(one), 0));
        let later = ASK_AGAIN_US + USED_US;
        assert_eq!(asked(&mut hops, later), (Resolution::Known(one), 1));
        hops.heard(hop, Some(one), later);
        assert_eq!(hops.version(), version, "nothing new");
        hops.heard(hop, Some(other), later);
        assert_ne!(hops.version(), version);
        assert_eq!(asked(&mut hops, later + 1), (Resolution::Known(other), 0));
        hops.heard(hop, None, later + 2);
        assert_eq!(asked(&mut hops, later + 3), (Resolution::Failed, 0));
        assert_eq!(asked(&mut hops, later + 2 + FAILED_US), (Resolution::Pending, 1));
    }

    #[test]
    fn a_fixed_hop_is_asked_of_nobody() {
        let hop = IpAddr::v4([10, 0, 0, 1]);
        let mut hops = LinuxHops::new(&[(hop, [2; 6])]);
        let mut ask = Vec::new();
        assert_eq!(hops.lookup(hop, Asker::Own, 0, &mut ask), Resolution::Known([2; 6]));
        assert_eq!(ask, []);
    }

    #[test]
    fn strangers_take_neither_memory_nor_the_place_of_others() {
        let own = |number: u32| IpAddr::v4((0x0a00_0000 + number).to_be_bytes());
        let stranger = |number: u32| IpAddr::v4((0x0b00_0000 + number).to_be_bytes());
        let mut hops = LinuxHops::new(&[]);
        let mut asked = Vec::new();
        hops.lookup(own(1), Asker::Own, 0, &mut asked);
        hops.heard(own(1), Some([2; 6]), 0);
        // SYNs of 20,000 hosts that do not exist, each second.
        for second in 0..4 {
            let now_us = second * 1_000_000;
            asked.clear();
            for number in 0..20_000 {
                hops.lookup(stranger(number), Asker::Stranger, now_us, &mut asked);
            }
            let most = ArpLimits::default().questions_max as usize;
            assert!(asked.len() <= most, "{} questions", asked.len());
            assert!(hops.hops.len() <= HOPS_MAX, "{} hops", hops.hops.len());
            asked.clear();
            let new = own(100 + second as u32);
            assert_eq!(hops.lookup(new, Asker::Own, now_us, &mut asked), Resolution::Pending);
            assert_eq!(asked, [new], "the host's own traffic is asked for");
            let known = hops.lookup(own(1), Asker::Own, now_us, &mut asked);
            assert_eq!(known, Resolution::Known([2; 6]));
        }
        // Own traffic to as many hosts: the least used leave.
        for number in 0..HOPS_MAX as u32 + 500 {
            hops.lookup(stranger(number), Asker::Own, 9_000_000, &mut asked);
        }
        assert_eq!(hops.hops.len(), HOPS_MAX);
    }
}
