//! The cache of next hops.
//!
//! The entry of a next hop that is in use never expires. When it is old, the next hop is asked
//! again, first with unicast requests (RFC 1122 section 2.3.2.1, method 2), then with broadcast
//! ones; meanwhile the entry still gives [`Resolution::Known`].
use super::ArpOutput;
use crate::questions::{Asker, Questions};
use crate::room::{Standing, first_to_leave};
use ix_wire::{ArpOperation, ArpPacket, IpAddr, MacAddr};
use std::collections::BTreeMap;

/// What is known about a next hop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// Send to this address.
    Known(MacAddr),
    /// A request has been sent: queue the packet.
    Pending,
    /// No reply came, and it is too early to ask again: drop the packet.
    Failed,
}

/// What a received packet has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArpChange {
    /// Nothing that others need to know.
    Nothing,
    /// A next hop has a new address: send the packets that wait for it.
    Learned {
        /// The next hop.
        ip: IpAddr,
        /// Its address.
        mac: MacAddr,
    },
    /// Another host uses one of our addresses. [`super::AddressGuard`] reacts to that.
    Conflict {
        /// Our address.
        ip: IpAddr,
        /// The other host.
        mac: MacAddr,
    },
}

/// Limits and times of an [`ArpCache`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArpLimits {
    /// Most next hops; static ones are not counted.
    pub entries_max: usize,
    /// How long a reply is valid. Then the next hop is asked again if it is in use.
    pub reachable_us: u64,
    /// A next hop is in use if it was looked up or touched within this time.
    pub in_use_us: u64,
    /// Time between two requests (RFC 1122 section 2.3.2.1: at most one per second).
    pub retry_us: u64,
    /// Unicast requests before the first broadcast one, and broadcast requests before giving up.
    pub tries_max: u8,
    /// After it did not reply, a next hop is not asked again for this long.
    pub failed_hold_us: u64,
    /// Most broadcast requests in a second, and at once. Who sends from addresses that do not exist
    /// makes us ask for each of them.
    pub questions_max: u32,
}

impl Default for ArpLimits {
    fn default() -> Self {
        Self {
            entries_max: 1024,
            reachable_us: 30_000_000,
            in_use_us: 60_000_000,
            retry_us: 1_000_000,
            tries_max: 3,
            failed_hold_us: 3_000_000,
            questions_max: 2000,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// No address yet; broadcast requests are being sent.
    Incomplete { tries: u8, next_us: u64 },
    /// The address was confirmed less than `reachable_us` ago.
    Reachable { mac: MacAddr, until_us: u64 },
    /// The address is older and was not used since.
    Stale { mac: MacAddr },
    /// The address is old and in use: requests are being sent, first unicast, then broadcast.
    Probing { mac: MacAddr, tries: u8, next_us: u64 },
    /// No reply came.
    Failed { until_us: u64 },
    /// Set by the configuration; never asked for, changed or evicted.
    Static { mac: MacAddr },
}

impl State {
    fn mac(self) -> Option<MacAddr> {
        match self {
            State::Reachable { mac, .. }
            | State::Stale { mac }
            | State::Probing { mac, .. }
            | State::Static { mac } => Some(mac),
            State::Incomplete { .. } | State::Failed { .. } => None,
        }
    }

    /// When [`ArpCache::tick`] must process it next.
    fn due_us(self) -> u64 {
        match self {
            State::Incomplete { next_us, .. } | State::Probing { next_us, .. } => next_us,
            State::Reachable { until_us, .. } | State::Failed { until_us } => until_us,
            State::Stale { .. } | State::Static { .. } => u64::MAX,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    state: State,
    /// When it was last looked up or touched; `None` if only packets of this host made the entry.
    used_us: Option<u64>,
    /// Who has wanted it: the host's own traffic, if that ever has.
    asker: Asker,
}

impl Entry {
    /// `None`: it was not learned, and stays.
    fn standing(&self) -> Option<Standing> {
        if matches!(self.state, State::Static { .. }) {
            return None;
        }
        let is_known = self.state.mac().is_some();
        Some(Standing { is_known, asker: self.asker, used_us: self.used_us })
    }
}

/// The ARP cache of a dataplane.
///
/// Ordered maps, so that the same packets at the same times give the same requests in the same
/// order.
#[derive(Debug)]
pub struct ArpCache {
    limits: ArpLimits,
    /// Addresses of our devices. Requests are sent from the first.
    own_macs: Vec<MacAddr>,
    /// Addresses for which requests get a reply.
    own_ips: Vec<[u8; 4]>,
    entries: BTreeMap<[u8; 4], Entry>,
    statics: usize,
    version: u64,
    due_us: u64,
    questions: Questions,
}

impl ArpCache {
    /// A cache for a host whose devices, at least one, have these Ethernet addresses.
    /// [`Self::add_address`] adds IP addresses.
    pub fn new(own_macs: &[MacAddr], limits: ArpLimits) -> Self {
        debug_assert!(!own_macs.is_empty() && limits.tries_max > 0 && limits.retry_us > 0);
        Self {
            limits,
            own_macs: own_macs.to_vec(),
            own_ips: Vec::new(),
            entries: BTreeMap::new(),
            statics: 0,
            version: 0,
            due_us: u64::MAX,
            questions: Questions::new(limits.questions_max),
        }
    }

    /// From now on replies to requests for this address. IPv6 has no ARP: such an address is
    /// ignored.
    pub fn add_address(&mut self, ip: IpAddr) {
        if let Some(v4) = ip.as_v4()
            && !self.own_ips.contains(&v4)
        {
            self.own_ips.push(v4);
        }
    }

    /// From now on does not reply to requests for this address.
    pub fn remove_address(&mut self, ip: IpAddr) {
        self.own_ips.retain(|own| Some(*own) != ip.as_v4());
    }

    /// Sets the address of a next hop for good (`arp` in the configuration).
    pub fn set_static(&mut self, ip: IpAddr, mac: MacAddr) {
        let Some(v4) = ip.as_v4() else { return };
        let entry = Entry { state: State::Static { mac }, used_us: None, asker: Asker::Own };
        let old = self.entries.insert(v4, entry);
        if !matches!(old, Some(Entry { state: State::Static { .. }, .. })) {
            self.statics += 1;
        }
        self.version += 1;
    }

    /// To be called when the links have changed: next hops and our devices may have other Ethernet
    /// addresses. Deletes what was learned; it is asked for again when it is needed.
    pub fn links_changed(&mut self, own_macs: &[MacAddr]) {
        debug_assert!(!own_macs.is_empty());
        self.own_macs = own_macs.to_vec();
        self.entries.retain(|_, entry| matches!(entry.state, State::Static { .. }));
        self.version += 1;
        self.due_us = u64::MAX;
    }

    /// Whether requests for this address get a reply.
    pub fn answers_for(&self, ip: [u8; 4]) -> bool {
        self.own_ips.contains(&ip)
    }

    /// A number that changes whenever a mapping that a copy of the table may hold has changed or is
    /// gone.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// When [`Self::tick`] has something to do next; `u64::MAX`: never.
    pub fn deadline(&self) -> u64 {
        self.due_us
    }

    /// Number of next hops.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there is no next hop.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All usable mappings, for copies of the table and for display.
    pub fn mappings(&self) -> impl Iterator<Item = (IpAddr, MacAddr)> + '_ {
        let known = self.entries.iter();
        known.filter_map(|(ip, entry)| entry.state.mac().map(|mac| (IpAddr::v4(*ip), mac)))
    }

    /// The address of a next hop. Sends a request if needed. A stranger that cannot be asked for
    /// now is no next hop.
    pub fn lookup(
        &mut self,
        ip: IpAddr,
        asker: Asker,
        now_us: u64,
        out: &mut impl ArpOutput,
    ) -> Resolution {
        let Some(v4) = ip.as_v4() else { return Resolution::Failed };
        let Some(mut entry) = self.entries.get(&v4).copied() else {
            return self.begin_asking(v4, asker, now_us, out);
        };
        entry.used_us = Some(now_us);
        let is_urgent = entry.asker < asker;
        entry.asker = entry.asker.max(asker);
        if let State::Incomplete { tries: 0, next_us } = &mut entry.state
            && is_urgent
        {
            // It had to wait behind others.
            *next_us = now_us;
        }
        self.set(v4, entry);
        match entry.state {
            State::Stale { mac } => self.begin_probing(v4, mac, now_us, out),
            State::Failed { until_us } if now_us >= until_us => {
                return self.begin_asking(v4, entry.asker, now_us, out);
            }
            State::Failed { .. } => return Resolution::Failed,
            _ => {}
        }
        entry.state.mac().map_or(Resolution::Pending, Resolution::Known)
    }

    /// Records that packets were sent to this next hop by threads that use a copy of the table.
    pub fn touch(&mut self, ip: IpAddr, now_us: u64) {
        if let Some(entry) = ip.as_v4().and_then(|v4| self.entries.get_mut(&v4)) {
            entry.used_us = Some(now_us);
            // It is probed at the next tick.
            if let State::Stale { mac } = entry.state {
                entry.state = State::Reachable { mac, until_us: now_us };
                self.due_us = self.due_us.min(now_us);
            }
        }
    }

    /// Processes a received packet: learns from it, and replies to a request for one of our
    /// addresses.
    pub fn on_packet(
        &mut self,
        packet: &ArpPacket,
        now_us: u64,
        out: &mut impl ArpOutput,
    ) -> ArpChange {
        if self.own_macs.contains(&packet.sender_mac) {
            return ArpChange::Nothing;
        }
        let (sender, mac) = (packet.sender_ip, packet.sender_mac);
        if self.own_ips.contains(&sender) {
            return ArpChange::Conflict { ip: IpAddr::v4(sender), mac };
        }
        let for_us = self.own_ips.contains(&packet.target_ip);
        // RFC 826: update an existing entry, but make a new one only if we are the target. A probe
        // (RFC 5227 section 1.1) has no sender address, so nothing is learned from it.
        let known = self.entries.contains_key(&sender);
        let learns = sender != [0; 4] && (known || (for_us && self.make_room(None, now_us)));
        let change = if learns { self.learn(sender, mac, now_us) } else { ArpChange::Nothing };
        if for_us && packet.operation == ArpOperation::Request {
            out.send(ArpPacket {
                operation: ArpOperation::Reply,
                sender_mac: self.own_macs[0],
                sender_ip: packet.target_ip,
                target_mac: packet.sender_mac,
                target_ip: packet.sender_ip,
            });
        }
        change
    }

    fn learn(&mut self, ip: [u8; 4], mac: MacAddr, now_us: u64) -> ArpChange {
        let old = self.entries.get(&ip).copied();
        if matches!(old, Some(Entry { state: State::Static { .. }, .. })) {
            return ArpChange::Nothing;
        }
        let until_us = now_us + self.limits.reachable_us;
        let used_us = old.and_then(|entry| entry.used_us);
        let asker = old.map_or(Asker::Stranger, |entry| entry.asker);
        self.set(ip, Entry { state: State::Reachable { mac, until_us }, used_us, asker });
        if old.and_then(|entry| entry.state.mac()) == Some(mac) {
            return ArpChange::Nothing;
        }
        self.version += 1;
        ArpChange::Learned { ip: IpAddr::v4(ip), mac }
    }

    /// Does what is due: asks again, gives up, marks idle entries as stale.
    pub fn tick(&mut self, now_us: u64, out: &mut impl ArpOutput) {
        if now_us < self.due_us {
            return;
        }
        let due: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, entry)| now_us >= entry.state.due_us())
            .map(|(ip, entry)| (*ip, *entry))
            .collect();
        for (ip, entry) in due {
            self.advance(ip, entry, now_us, out);
        }
        self.due_us = self.entries.values().map(|e| e.state.due_us()).min().unwrap_or(u64::MAX);
    }

    fn advance(&mut self, ip: [u8; 4], mut entry: Entry, now_us: u64, out: &mut impl ArpOutput) {
        let ArpLimits { tries_max, retry_us, failed_hold_us, .. } = self.limits;
        let failed = State::Failed { until_us: now_us + failed_hold_us };
        match entry.state {
            State::Reachable { mac, .. } if self.in_use(&entry, now_us) => {
                return self.begin_probing(ip, mac, now_us, out);
            }
            State::Reachable { mac, .. } => entry.state = State::Stale { mac },
            State::Incomplete { tries, .. } if tries < tries_max => {
                let next_us = now_us + retry_us;
                let asked = self.ask(ip, None, entry.asker, now_us, out);
                entry.state = State::Incomplete { tries: tries + u8::from(asked), next_us };
            }
            State::Probing { mac, tries, .. } if tries < 2 * tries_max => {
                let next_us = now_us + retry_us;
                entry.state = State::Probing { mac, tries: tries + 1, next_us };
                self.ask(ip, (tries < tries_max).then_some(mac), entry.asker, now_us, out);
            }
            State::Incomplete { .. } => entry.state = failed,
            State::Probing { .. } => {
                self.version += 1;
                entry.state = failed;
            }
            State::Failed { .. } => {
                self.entries.remove(&ip);
                return;
            }
            State::Stale { .. } | State::Static { .. } => return,
        }
        self.set(ip, entry);
    }

    fn begin_asking(
        &mut self,
        ip: [u8; 4],
        asker: Asker,
        now_us: u64,
        out: &mut impl ArpOutput,
    ) -> Resolution {
        let is_new = !self.entries.contains_key(&ip);
        let asked = self.ask(ip, None, asker, now_us, out);
        // A stranger without a question would only take room.
        let may_wait = asked || asker == Asker::Own;
        if !may_wait || is_new && !self.make_room(Some(asker), now_us) {
            return Resolution::Failed;
        }
        let next_us = now_us + self.limits.retry_us;
        let state = State::Incomplete { tries: u8::from(asked), next_us };
        self.set(ip, Entry { state, used_us: Some(now_us), asker });
        Resolution::Pending
    }

    fn begin_probing(&mut self, ip: [u8; 4], mac: MacAddr, now_us: u64, out: &mut impl ArpOutput) {
        let Some(entry) = self.entries.get(&ip).copied() else { return };
        let next_us = now_us + self.limits.retry_us;
        self.set(ip, Entry { state: State::Probing { mac, tries: 1, next_us }, ..entry });
        self.ask(ip, Some(mac), entry.asker, now_us, out);
    }

    /// Asks all hosts, or the one with this Ethernet address. False if too many requests were sent.
    fn ask(
        &mut self,
        ip: [u8; 4],
        mac: Option<MacAddr>,
        asker: Asker,
        now_us: u64,
        out: &mut impl ArpOutput,
    ) -> bool {
        if mac.is_none() && !self.questions.may_ask(asker, now_us) {
            return false;
        }
        out.send(ArpPacket {
            operation: ArpOperation::Request,
            sender_mac: self.own_macs[0],
            sender_ip: self.own_ips.first().copied().unwrap_or([0; 4]),
            target_mac: mac.unwrap_or([0; 6]),
            target_ip: ip,
        });
        true
    }

    fn set(&mut self, ip: [u8; 4], entry: Entry) {
        self.due_us = self.due_us.min(entry.state.due_us());
        self.entries.insert(ip, entry);
    }

    fn in_use(&self, entry: &Entry, now_us: u64) -> bool {
        let in_use_us = self.limits.in_use_us;
        entry.standing().is_some_and(|standing| standing.is_in_use(now_us, in_use_us))
    }

    /// Makes room for one entry of this asker, as [`first_to_leave`] says. Returns false if all
    /// stay.
    fn make_room(&mut self, asker: Option<Asker>, now_us: u64) -> bool {
        if self.entries.len() - self.statics < self.limits.entries_max {
            return true;
        }
        let learned = self.entries.iter();
        let learned = learned.filter_map(|(ip, entry)| Some((*ip, entry.standing()?)));
        let first = first_to_leave(learned, asker, now_us, self.limits.in_use_us);
        let Some((ip, standing)) = first else { return false };
        self.entries.remove(&ip);
        // Only a copy of what was known is void now.
        self.version += u64::from(standing.is_known);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: MacAddr = [2, 0, 0, 0, 0, 2];
    const PEER: MacAddr = [2, 0, 0, 0, 0, 1];
    const SECOND: u64 = 1_000_000;

    fn ip(last: u8) -> IpAddr {
        IpAddr::v4([10, 0, 0, last])
    }

    fn cache_with(limits: ArpLimits) -> ArpCache {
        let mut cache = ArpCache::new(&[OURS], limits);
        cache.add_address(ip(2));
        cache
    }

    fn cache() -> ArpCache {
        cache_with(ArpLimits::default())
    }

    fn packet(operation: ArpOperation, sender: u8, mac: MacAddr, target: u8) -> ArpPacket {
        ArpPacket {
            operation,
            sender_mac: mac,
            sender_ip: [10, 0, 0, sender],
            target_mac: OURS,
            target_ip: [10, 0, 0, target],
        }
    }

    fn reply(sender: u8, mac: MacAddr) -> ArpPacket {
        packet(ArpOperation::Reply, sender, mac, 2)
    }

    fn lookup(cache: &mut ArpCache, last: u8, now_us: u64) -> (Resolution, Vec<ArpPacket>) {
        let mut out = Vec::new();
        (cache.lookup(ip(last), Asker::Own, now_us, &mut out), out)
    }

    fn tick(cache: &mut ArpCache, now_us: u64) -> Vec<ArpPacket> {
        let mut out = Vec::new();
        cache.tick(now_us, &mut out);
        out
    }

    fn receive(
        cache: &mut ArpCache,
        packet: &ArpPacket,
        now_us: u64,
    ) -> (ArpChange, Vec<ArpPacket>) {
        let mut out = Vec::new();
        (cache.on_packet(packet, now_us, &mut out), out)
    }

    fn knows(cache: &ArpCache, last: u8) -> Option<MacAddr> {
        cache.mappings().find(|(known, _)| *known == ip(last)).map(|(_, mac)| mac)
    }

    #[test]
    fn asks_once_then_knows() {
        let mut cache = cache();
        let (resolution, out) = lookup(&mut cache, 1, 0);
        assert_eq!(resolution, Resolution::Pending);
        let request = ArpPacket {
            operation: ArpOperation::Request,
            sender_mac: OURS,
            sender_ip: [10, 0, 0, 2],
            target_mac: [0; 6],
            target_ip: [10, 0, 0, 1],
        };
        assert_eq!(out, [request]);
        // No flood (RFC 1122 section 2.3.2.1), however many packets wait.
        assert_eq!(lookup(&mut cache, 1, 10), (Resolution::Pending, vec![]));
        let version = cache.version();
        let learned = ArpChange::Learned { ip: ip(1), mac: PEER };
        assert_eq!(receive(&mut cache, &reply(1, PEER), 20), (learned, vec![]));
        assert!(cache.version() > version);
        assert_eq!(lookup(&mut cache, 1, 30), (Resolution::Known(PEER), vec![]));
    }

    #[test]
    fn three_tries_a_second_apart_then_failed_for_a_while() {
        let mut cache = cache();
        let mut asked = lookup(&mut cache, 1, 0).1.len();
        for ms in 1..=3_000 {
            let out = tick(&mut cache, ms * 1000);
            assert!(out.is_empty() || ms % 1000 == 0);
            asked += out.len();
        }
        assert_eq!(asked, 3);
        assert_eq!(lookup(&mut cache, 1, 3 * SECOND), (Resolution::Failed, vec![]));
        assert_eq!(lookup(&mut cache, 1, 6 * SECOND - 1), (Resolution::Failed, vec![]));
        let (resolution, out) = lookup(&mut cache, 1, 6 * SECOND);
        assert_eq!((resolution, out.len()), (Resolution::Pending, 1));
        // A late reply counts.
        receive(&mut cache, &reply(1, PEER), 7 * SECOND);
        assert_eq!(lookup(&mut cache, 1, 7 * SECOND).0, Resolution::Known(PEER));
    }

    #[test]
    fn a_failed_entry_goes_away_by_itself() {
        let mut cache = cache();
        lookup(&mut cache, 1, 0);
        (1..=6).for_each(|s| drop(tick(&mut cache, s * SECOND)));
        assert!(cache.is_empty());
        assert_eq!(cache.deadline(), u64::MAX);
    }

    /// An entry expires during a flow.
    #[test]
    fn an_entry_in_use_is_asked_again_and_never_vanishes() {
        let mut cache = cache();
        lookup(&mut cache, 1, 0);
        receive(&mut cache, &reply(1, PEER), 0);
        for s in 1..=300 {
            let now_us = s * SECOND;
            for request in tick(&mut cache, now_us) {
                assert_eq!(request.ethernet_destination(), PEER, "re-probes are unicast");
                receive(&mut cache, &reply(1, PEER), now_us + 100);
            }
            assert_eq!(lookup(&mut cache, 1, now_us + 200).0, Resolution::Known(PEER));
        }
        // At most one request every 30 s.
        let version = cache.version();
        assert_eq!(version, 1, "a confirmed mapping is no change");
    }

    #[test]
    fn touch_keeps_an_entry_in_use_like_a_lookup() {
        let mut cache = cache();
        lookup(&mut cache, 1, 0);
        receive(&mut cache, &reply(1, PEER), 0);
        cache.touch(ip(1), 29 * SECOND);
        assert_eq!(tick(&mut cache, 30 * SECOND).len(), 1);
        // A stale entry that is touched is probed at the next tick.
        receive(&mut cache, &reply(1, PEER), 31 * SECOND);
        assert_eq!(tick(&mut cache, 200 * SECOND), []);
        cache.touch(ip(1), 201 * SECOND);
        assert!(cache.deadline() <= 201 * SECOND);
        assert_eq!(tick(&mut cache, 201 * SECOND).len(), 1);
    }

    #[test]
    fn a_dead_next_hop_is_asked_by_unicast_then_broadcast_then_fails() {
        let mut cache = cache();
        lookup(&mut cache, 1, 0);
        receive(&mut cache, &reply(1, PEER), 0);
        lookup(&mut cache, 1, 29 * SECOND);
        let mut destinations = Vec::new();
        for s in 30..36 {
            destinations.extend(tick(&mut cache, s * SECOND).iter().map(|p| p.target_mac));
            assert_eq!(lookup(&mut cache, 1, s * SECOND).0, Resolution::Known(PEER));
        }
        assert_eq!(destinations, [PEER, PEER, PEER, [0; 6], [0; 6], [0; 6]]);
        let version = cache.version();
        tick(&mut cache, 36 * SECOND);
        assert_eq!(lookup(&mut cache, 1, 36 * SECOND).0, Resolution::Failed);
        assert!(cache.version() > version && knows(&cache, 1).is_none());
    }

    #[test]
    fn an_idle_entry_goes_stale_silently_and_is_probed_when_used_again() {
        let mut cache = cache();
        receive(&mut cache, &packet(ArpOperation::Request, 1, PEER, 2), 0);
        assert_eq!(tick(&mut cache, 30 * SECOND), []);
        assert_eq!(cache.deadline(), u64::MAX);
        let (resolution, out) = lookup(&mut cache, 1, 4000 * SECOND);
        assert_eq!(resolution, Resolution::Known(PEER));
        assert_eq!(out[0].ethernet_destination(), PEER);
    }

    #[test]
    fn rfc826_creates_only_when_we_are_the_target_and_merges_always() {
        let mut cache = cache();
        let other = packet(ArpOperation::Request, 1, PEER, 7);
        assert_eq!(receive(&mut cache, &other, 0), (ArpChange::Nothing, vec![]));
        assert!(cache.is_empty());
        // A request for us makes an entry and gets a reply.
        let (change, out) = receive(&mut cache, &packet(ArpOperation::Request, 1, PEER, 2), 0);
        assert_eq!(change, ArpChange::Learned { ip: ip(1), mac: PEER });
        let answer = packet(ArpOperation::Reply, 2, OURS, 1);
        assert_eq!(out, [ArpPacket { target_mac: PEER, ..answer }]);
        // Any packet updates it: after a failover a host announces its new address to all.
        let moved = [2, 0, 0, 0, 0, 9];
        let announcement = packet(ArpOperation::Request, 1, moved, 1);
        let learned = ArpChange::Learned { ip: ip(1), mac: moved };
        assert_eq!(receive(&mut cache, &announcement, 1), (learned, vec![]));
        assert_eq!(lookup(&mut cache, 1, 2).0, Resolution::Known(moved));
    }

    #[test]
    fn rfc5227_a_probe_is_answered_and_teaches_nothing() {
        let mut cache = cache();
        let probe = ArpPacket { sender_ip: [0; 4], ..packet(ArpOperation::Request, 0, PEER, 2) };
        let (change, out) = receive(&mut cache, &probe, 0);
        assert_eq!(change, ArpChange::Nothing);
        assert_eq!((out.len(), out[0].target_ip), (1, [0; 4]));
        assert!(cache.is_empty());
    }

    #[test]
    fn conflicts_are_told_and_our_own_packets_ignored() {
        let mut cache = cache();
        let claim = packet(ArpOperation::Reply, 2, PEER, 2);
        let conflict = ArpChange::Conflict { ip: ip(2), mac: PEER };
        assert_eq!(receive(&mut cache, &claim, 0), (conflict, vec![]));
        let own = packet(ArpOperation::Request, 2, OURS, 2);
        assert_eq!(receive(&mut cache, &own, 0), (ArpChange::Nothing, vec![]));
        cache.remove_address(ip(2));
        let request = packet(ArpOperation::Request, 1, PEER, 2);
        assert_eq!(receive(&mut cache, &request, 0), (ArpChange::Nothing, vec![]));
    }

    #[test]
    fn static_entries_stay() {
        let mut cache = cache_with(ArpLimits { entries_max: 1, ..ArpLimits::default() });
        cache.set_static(ip(1), PEER);
        receive(&mut cache, &reply(1, [2, 0, 0, 0, 0, 9]), 0);
        (3..20).for_each(|last| drop(lookup(&mut cache, last, SECOND)));
        tick(&mut cache, 1000 * SECOND);
        assert_eq!(lookup(&mut cache, 1, 2000 * SECOND), (Resolution::Known(PEER), vec![]));
        assert!(cache.len() <= 2);
    }

    /// Active peers are evicted.
    #[test]
    fn strangers_never_evict_next_hops_in_use() {
        let mut cache = cache_with(ArpLimits { entries_max: 8, ..ArpLimits::default() });
        for last in 10..14 {
            lookup(&mut cache, last, 0);
            receive(&mut cache, &reply(last, PEER), 0);
        }
        for n in 0..1000u32 {
            let [_, _, c, d] = n.to_be_bytes();
            let stranger = ArpPacket { sender_ip: [10, 9, c, d], ..reply(0, [2, 0, 0, 1, c, d]) };
            receive(&mut cache, &stranger, 10);
        }
        assert_eq!(cache.len(), 8);
        (10..14).for_each(|last| assert_eq!(knows(&cache, last), Some(PEER)));
        // Next hops that we want to reach evict other hosts first, then the least recently used.
        for last in 20..24 {
            lookup(&mut cache, last, SECOND);
            receive(&mut cache, &reply(last, PEER), SECOND);
        }
        (10..14).for_each(|last| assert_eq!(knows(&cache, last), Some(PEER)));
        (11..14).for_each(|last| drop(lookup(&mut cache, last, 2 * SECOND)));
        lookup(&mut cache, 30, 3 * SECOND);
        assert_eq!(knows(&cache, 10), None);
        (11..14).for_each(|last| assert_eq!(knows(&cache, last), Some(PEER)));
        // Those that never answered go before all that are known.
        let before: Vec<_> = (10..24).map(|last| knows(&cache, last)).collect();
        (100..200).for_each(|last| drop(lookup(&mut cache, last, 3 * SECOND)));
        let after: Vec<_> = (10..24).map(|last| knows(&cache, last)).collect();
        assert_eq!(before, after);
        receive(&mut cache, &reply(199, PEER), 3 * SECOND);
        // All are in use: another host gets no entry.
        let version = cache.version();
        let stranger = ArpPacket { sender_ip: [10, 8, 0, 1], ..reply(0, PEER) };
        assert_eq!(receive(&mut cache, &stranger, 3 * SECOND).0, ArpChange::Nothing);
        assert_eq!(cache.version(), version);
    }

    /// Answers to made-up senders leave room and questions to the host's own traffic.
    #[test]
    fn strangers_that_do_not_exist_leave_a_new_next_hop_its_question_and_its_place() {
        let limits = ArpLimits { entries_max: 8, questions_max: 10, ..ArpLimits::default() };
        let mut cache = cache_with(limits);
        let flood = |cache: &mut ArpCache, now_us| {
            let mut asked = Vec::new();
            for last in 10..=255 {
                cache.lookup(ip(last), Asker::Stranger, now_us, &mut asked);
            }
            asked.len()
        };
        assert_eq!(flood(&mut cache, 0), 5, "half of the questions");
        let (resolution, asked) = lookup(&mut cache, 1, 0);
        assert_eq!((resolution, asked.len()), (Resolution::Pending, 1));
        for half in 1..20 {
            flood(&mut cache, half * SECOND / 2);
        }
        receive(&mut cache, &reply(1, PEER), 10 * SECOND);
        assert_eq!(lookup(&mut cache, 1, 10 * SECOND).0, Resolution::Known(PEER));
        assert!(cache.len() <= 8);
    }

    #[test]
    fn there_is_no_arp_for_ipv6() {
        let mut cache = cache();
        let six: IpAddr = "fe80::1".parse().unwrap();
        assert_eq!(cache.lookup(six, Asker::Own, 0, &mut Vec::new()), Resolution::Failed);
        cache.set_static(six, PEER);
        cache.touch(six, 0);
        assert!(cache.is_empty());
    }

    mod random {
        use super::*;
        use proptest::prelude::*;

        #[derive(Clone, Debug)]
        enum Step {
            Lookup(u8),
            Touch(u8),
            Receive { request: bool, sender: u8, mac: u8, target: u8 },
            Wait { ms: u64 },
        }

        fn step() -> impl Strategy<Value = Step> {
            prop_oneof![
                (0u8..20).prop_map(Step::Lookup),
                (0u8..20).prop_map(Step::Touch),
                (any::<bool>(), 0u8..20, 0u8..4, 0u8..4).prop_map(
                    |(request, sender, mac, target)| Step::Receive { request, sender, mac, target }
                ),
                (0u64..40_000).prop_map(|ms| Step::Wait { ms }),
            ]
        }

        proptest! {
            /// The size is bounded; a copy of one version is right until the version changes; the
            /// deadline is right; and without evictions (after which a next hop is new) no next hop
            /// is asked twice within a second.
            #[test]
            fn invariants(evicts: bool, steps in prop::collection::vec(step(), 1..200)) {
                let entries_max = if evicts { 6 } else { 64 };
                let limits = ArpLimits { entries_max, ..ArpLimits::default() };
                let mut cache = cache_with(limits);
                let mut now_us = 0;
                let mut copy = (cache.version(), Vec::new());
                let mut asked = BTreeMap::new();
                for step in steps {
                    let mut out = Vec::new();
                    match step {
                        Step::Lookup(last) => {
                            let known = knows(&cache, last);
                            let resolution = cache.lookup(ip(last), Asker::Own, now_us, &mut out);
                            prop_assert_eq!(known.map(Resolution::Known),
                                matches!(resolution, Resolution::Known(_)).then_some(resolution));
                        }
                        Step::Touch(last) => cache.touch(ip(last), now_us),
                        Step::Receive { request, sender, mac, target } => {
                            let operation =
                                if request { ArpOperation::Request } else { ArpOperation::Reply };
                            let mac = [2, 0, 0, 0, 7, mac];
                            let packet = packet(operation, sender, mac, target);
                            cache.on_packet(&packet, now_us, &mut out);
                            out.retain(|packet| packet.operation == ArpOperation::Request);
                        }
                        Step::Wait { ms } => {
                            now_us += ms * 1000;
                            cache.tick(now_us, &mut out);
                            prop_assert!(cache.deadline() > now_us);
                        }
                    }
                    for request in out {
                        let before = asked.insert(request.target_ip, now_us);
                        let soon = before.is_some_and(|then| now_us < then + limits.retry_us);
                        prop_assert!(evicts || !soon);
                    }
                    prop_assert!(cache.len() <= limits.entries_max);
                    let mappings: Vec<_> = cache.mappings().collect();
                    if cache.version() == copy.0 {
                        prop_assert_eq!(&mappings, &copy.1);
                    }
                    copy = (cache.version(), mappings);
                }
            }
        }
    }
}
