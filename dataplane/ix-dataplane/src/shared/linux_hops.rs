//! Next hops where Linux resolves them: the address is its own, so it has all neighbours, and IX
//! sends no ARP. Linux is asked by the broker, which says what has come of it, and what changes.
use ix_proto::routes::{HostNetwork, Route, RouteTable};
use ix_tcp::arp::Resolution;
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

/// Routes that are kept, at most: the broker sends no more.
const ROUTES_MAX: usize = 65_536;

/// What Linux has said.
pub(crate) struct LinuxHops {
    hops: HashMap<IpAddr, Hop>,
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
    state: State,
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
        LinuxHops { hops, fixed: fixed.to_vec(), version: 0, network: None, routes }
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
    pub fn lookup(&mut self, hop: IpAddr, now_us: u64, ask: &mut Vec<IpAddr>) -> Resolution {
        if let Some((_, mac)) = self.fixed.iter().find(|(ip, _)| *ip == hop) {
            return Resolution::Known(*mac);
        }
        let fresh = Hop { asked_us: now_us, state: State::Asked };
        let is_new = !self.hops.contains_key(&hop);
        let entry = self.hops.entry(hop).or_insert(fresh);
        let (resolution, again_us) = match entry.state {
            State::Known(mac) => (Resolution::Known(mac), entry.asked_us + USED_US),
            State::Asked => (Resolution::Pending, entry.asked_us + ASK_AGAIN_US),
            State::Failed(since_us) if now_us < since_us + FAILED_US => {
                return Resolution::Failed;
            }
            State::Failed(_) => {
                *entry = fresh;
                ask.push(hop);
                return Resolution::Pending;
            }
        };
        if is_new || now_us >= again_us {
            entry.asked_us = now_us;
            ask.push(hop);
        }
        resolution
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
            (hops.lookup(hop, now_us, &mut ask), ask.len())
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
        assert_eq!(hops.lookup(hop, 0, &mut ask), Resolution::Known([2; 6]));
        assert_eq!(ask, []);
    }
}
