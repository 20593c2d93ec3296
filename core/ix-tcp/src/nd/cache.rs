//! The cache of next hops (RFC 4861 sections 7.2 and 7.3).
//!
//! The states are the RFC's. Who sends packets looks a next hop up every now and then, not for each
//! packet, so that a lookup is the sign that it is in use. Nobody tells the cache of progress above
//! it (section 7.3.1): a next hop that is in use is asked again every 35 seconds.
use super::{NdOutput, advertisement, solicitation};
use crate::arp::Resolution;
use crate::questions::{Asker, Questions};
use crate::room::{Standing, first_to_leave};
use ix_wire::{IpAddr, MacAddr, NdKind, NdPacket};
use std::collections::BTreeMap;

/// Limits and times of an [`NdCache`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NdLimits {
    /// Most next hops; static ones are not counted.
    pub entries_max: usize,
    /// REACHABLE_TIME: how long an answer is good.
    pub reachable_us: u64,
    /// DELAY_FIRST_PROBE_TIME.
    pub delay_us: u64,
    /// RETRANS_TIMER: time between two questions.
    pub retrans_us: u64,
    /// MAX_MULTICAST_SOLICIT and MAX_UNICAST_SOLICIT.
    pub tries_max: u8,
    /// After it did not answer, a next hop is not asked again for this long.
    pub failed_hold_us: u64,
    /// An entry that was looked up within this time is not evicted for one that another host wants.
    pub in_use_us: u64,
    /// Most questions to groups in a second, and at once. Who sends from addresses that do not
    /// exist makes us ask for each of them.
    pub questions_max: u32,
}

impl Default for NdLimits {
    fn default() -> Self {
        Self {
            entries_max: 1024,
            reachable_us: 30_000_000,
            delay_us: 5_000_000,
            retrans_us: 1_000_000,
            tries_max: 3,
            failed_hold_us: 3_000_000,
            in_use_us: 60_000_000,
            questions_max: 500,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The group was asked; no answer yet.
    Incomplete { tries: u8, next_us: u64 },
    /// Confirmed less than `reachable_us` ago.
    Reachable { mac: MacAddr, until_us: u64 },
    /// Longer ago, or never; nothing was sent since.
    Stale { mac: MacAddr },
    /// In use again: it is asked if nobody confirms it until then.
    Delay { mac: MacAddr, until_us: u64 },
    /// It is asked.
    Probe { mac: MacAddr, tries: u8, next_us: u64 },
    /// No answer came.
    Failed { until_us: u64 },
    /// Set by the configuration; never asked for, changed or evicted.
    Static { mac: MacAddr },
}

impl State {
    fn mac(self) -> Option<MacAddr> {
        match self {
            State::Reachable { mac, .. }
            | State::Stale { mac }
            | State::Delay { mac, .. }
            | State::Probe { mac, .. }
            | State::Static { mac } => Some(mac),
            State::Incomplete { .. } | State::Failed { .. } => None,
        }
    }

    /// When [`NdCache::tick`] must process it next.
    fn due_us(self) -> u64 {
        match self {
            State::Incomplete { next_us, .. } | State::Probe { next_us, .. } => next_us,
            State::Reachable { until_us, .. }
            | State::Delay { until_us, .. }
            | State::Failed { until_us } => until_us,
            State::Stale { .. } | State::Static { .. } => u64::MAX,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    state: State,
    /// When it was last looked up; `None` if only packets of this host made the entry.
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

/// The neighbour cache of a dataplane, of IPv6 addresses.
///
/// Ordered maps, so that the same packets at the same times give the same questions in the same
/// order.
#[derive(Debug)]
pub struct NdCache {
    limits: NdLimits,
    own_macs: Vec<MacAddr>,
    /// Addresses that may be used, for which questions are answered.
    own: Vec<IpAddr>,
    entries: BTreeMap<IpAddr, Entry>,
    statics: usize,
    version: u64,
    due_us: u64,
    questions: Questions,
}

impl NdCache {
    /// A cache for a host whose devices have these Ethernet addresses. [`Self::add_address`] adds
    /// IP addresses.
    pub fn new(own_macs: &[MacAddr], limits: NdLimits) -> Self {
        debug_assert!(limits.tries_max > 0 && limits.retrans_us > 0);
        Self {
            limits,
            own_macs: own_macs.to_vec(),
            own: Vec::new(),
            entries: BTreeMap::new(),
            statics: 0,
            version: 0,
            due_us: u64::MAX,
            questions: Questions::new(limits.questions_max),
        }
    }

    /// From now on answers questions for this address, and asks by it. Next hops that could not be
    /// asked for without an address of ours are asked for at the next tick.
    pub fn add_address(&mut self, address: IpAddr) {
        if self.own.contains(&address) {
            return;
        }
        self.own.push(address);
        for entry in self.entries.values_mut() {
            if let State::Incomplete { tries: 0, next_us } = &mut entry.state {
                (*next_us, self.due_us) = (0, 0);
            }
        }
    }

    /// From now on does not.
    pub fn remove_address(&mut self, address: IpAddr) {
        self.own.retain(|own| *own != address);
    }

    /// Sets the Ethernet address of a next hop for good.
    pub fn set_static(&mut self, hop: IpAddr, mac: MacAddr) {
        let old = self
            .entries
            .insert(hop, Entry { state: State::Static { mac }, used_us: None, asker: Asker::Own });
        if !matches!(old, Some(Entry { state: State::Static { .. }, .. })) {
            self.statics += 1;
        }
        self.version += 1;
    }

    /// To be called when the links have changed: next hops and our devices may have other Ethernet
    /// addresses. Deletes what was learned.
    pub fn links_changed(&mut self, own_macs: &[MacAddr]) {
        self.own_macs = own_macs.to_vec();
        self.entries.retain(|_, entry| matches!(entry.state, State::Static { .. }));
        self.version += 1;
        self.due_us = u64::MAX;
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

    /// The Ethernet address of a next hop, to which packets are sent now. Asks if needed; not
    /// before an address of ours may be used. A stranger that cannot be asked for now is no next
    /// hop.
    pub fn lookup(
        &mut self,
        hop: IpAddr,
        asker: Asker,
        now_us: u64,
        out: &mut impl NdOutput,
    ) -> Resolution {
        let Some(mut entry) = self.entries.get(&hop).copied() else {
            return self.begin_asking(hop, asker, now_us, out);
        };
        entry.used_us = Some(now_us);
        let is_urgent = entry.asker < asker;
        entry.asker = entry.asker.max(asker);
        match &mut entry.state {
            State::Stale { mac } => {
                let until_us = now_us + self.limits.delay_us;
                entry.state = State::Delay { mac: *mac, until_us };
            }
            State::Failed { until_us } if now_us >= *until_us => {
                return self.begin_asking(hop, entry.asker, now_us, out);
            }
            State::Failed { .. } => return Resolution::Failed,
            // It had to wait behind others.
            State::Incomplete { tries: 0, next_us } if is_urgent => *next_us = now_us,
            _ => {}
        }
        self.set(hop, entry);
        entry.state.mac().map_or(Resolution::Pending, Resolution::Known)
    }

    /// Whether this is the Ethernet address of a device of ours.
    pub fn is_own(&self, mac: &MacAddr) -> bool {
        self.own_macs.contains(mac)
    }

    /// Processes a received message: learns from it, and answers a question for one of our
    /// addresses. Messages of our own devices are nothing.
    pub fn on_packet(&mut self, packet: &NdPacket, now_us: u64, out: &mut impl NdOutput) {
        if self.is_own(&packet.eth_src) {
            return;
        }
        match packet.kind {
            NdKind::Solicitation => self.on_solicitation(packet, now_us, out),
            NdKind::Advertisement { solicited, overrides, .. } => {
                self.on_advertisement(packet, now_us, solicited, overrides);
            }
        }
    }

    /// Section 7.2.3.
    fn on_solicitation(&mut self, packet: &NdPacket, now_us: u64, out: &mut impl NdOutput) {
        let NdPacket { src, target, link, eth_src, .. } = *packet;
        if !self.own.contains(&target) {
            return;
        }
        if src.is_unspecified() {
            // Section 7.2.4: somebody wants our address. All hosts hear that it is ours.
            return out.send_nd(advertisement(target, None));
        }
        if let Some(mac) = link
            && !self.own.contains(&src)
        {
            self.heard_from(src, mac, now_us);
        }
        out.send_nd(advertisement(target, Some((src, link.unwrap_or(eth_src)))));
    }

    /// A host tells its own address by asking for ours: another one than known is stale.
    fn heard_from(&mut self, hop: IpAddr, mac: MacAddr, now_us: u64) {
        let old = self.entries.get(&hop).copied();
        match old.map(|entry| entry.state) {
            Some(State::Static { .. }) => return,
            Some(state) if state.mac() == Some(mac) => return,
            None if !self.make_room(None, now_us) => return,
            _ => {}
        }
        let used_us = old.and_then(|entry| entry.used_us);
        let asker = old.map_or(Asker::Stranger, |entry| entry.asker);
        self.set(hop, Entry { state: State::Stale { mac }, used_us, asker });
        // No thread has a copy of a new one, and no packet waits for it.
        self.version += u64::from(old.is_some());
    }

    /// Section 7.2.5.
    fn on_advertisement(
        &mut self,
        packet: &NdPacket,
        now_us: u64,
        solicited: bool,
        overrides: bool,
    ) {
        let hop = packet.target;
        let Some(mut entry) = self.entries.get(&hop).copied() else { return };
        let old = match entry.state {
            State::Static { .. } => return,
            state => state.mac(),
        };
        let Some(mac) = packet.link.or(old) else { return };
        let changes = old != Some(mac);
        if old.is_some() && changes && !overrides {
            if let State::Reachable { mac, .. } = entry.state {
                entry.state = State::Stale { mac };
                self.set(hop, entry);
            }
            return;
        }
        if solicited {
            entry.state = State::Reachable { mac, until_us: now_us + self.limits.reachable_us };
        } else if changes {
            entry.state = State::Stale { mac };
        }
        self.version += u64::from(changes);
        self.set(hop, entry);
    }

    /// Does what is due: asks again, gives up, marks old entries.
    pub fn tick(&mut self, now_us: u64, out: &mut impl NdOutput) {
        if now_us < self.due_us {
            return;
        }
        let is_due = |(_, entry): &(&IpAddr, &Entry)| now_us >= entry.state.due_us();
        let due: Vec<_> = self.entries.iter().filter(is_due).map(|(ip, e)| (*ip, *e)).collect();
        for (hop, entry) in due {
            self.advance(hop, entry, now_us, out);
        }
        self.due_us = self.entries.values().map(|e| e.state.due_us()).min().unwrap_or(u64::MAX);
    }

    fn advance(&mut self, hop: IpAddr, mut entry: Entry, now_us: u64, out: &mut impl NdOutput) {
        let NdLimits { tries_max, retrans_us, failed_hold_us, .. } = self.limits;
        let next_us = now_us + retrans_us;
        let failed = State::Failed { until_us: now_us + failed_hold_us };
        entry.state = match entry.state {
            State::Reachable { mac, .. } => State::Stale { mac },
            State::Delay { mac, .. } => {
                self.ask(hop, Some(mac), entry.asker, now_us, out);
                State::Probe { mac, tries: 1, next_us }
            }
            State::Probe { mac, tries, .. } if tries < tries_max => {
                self.ask(hop, Some(mac), entry.asker, now_us, out);
                State::Probe { mac, tries: tries + 1, next_us }
            }
            // Section 7.3.3: the entry is deleted, and the next packet asks the group.
            State::Probe { .. } => {
                self.version += 1;
                self.entries.remove(&hop);
                return;
            }
            State::Incomplete { tries, .. } if tries < tries_max => {
                let asked = self.ask(hop, None, entry.asker, now_us, out);
                State::Incomplete { tries: tries + u8::from(asked), next_us }
            }
            // Who waits for it learns that it failed.
            State::Incomplete { .. } => {
                self.version += 1;
                failed
            }
            State::Failed { .. } => {
                self.entries.remove(&hop);
                return;
            }
            State::Stale { .. } | State::Static { .. } => return,
        };
        self.set(hop, entry);
    }

    fn begin_asking(
        &mut self,
        hop: IpAddr,
        asker: Asker,
        now_us: u64,
        out: &mut impl NdOutput,
    ) -> Resolution {
        let is_new = !self.entries.contains_key(&hop);
        let asked = self.ask(hop, None, asker, now_us, out);
        // A stranger without a question would only take room.
        let may_wait = asked || asker == Asker::Own;
        if !may_wait || is_new && !self.make_room(Some(asker), now_us) {
            return Resolution::Failed;
        }
        let next_us = now_us + self.limits.retrans_us;
        let state = State::Incomplete { tries: u8::from(asked), next_us };
        self.set(hop, Entry { state, used_us: Some(now_us), asker });
        Resolution::Pending
    }

    /// Asks the group, or the host with this Ethernet address. False if no address of ours may be
    /// used yet, or if too many questions were sent.
    fn ask(
        &mut self,
        hop: IpAddr,
        mac: Option<MacAddr>,
        asker: Asker,
        now_us: u64,
        out: &mut impl NdOutput,
    ) -> bool {
        let Some(src) = self.own.first().copied() else { return false };
        if mac.is_none() && !self.questions.may_ask(asker, now_us) {
            return false;
        }
        out.send_nd(solicitation(src, hop, mac));
        true
    }

    fn set(&mut self, hop: IpAddr, entry: Entry) {
        self.due_us = self.due_us.min(entry.state.due_us());
        self.entries.insert(hop, entry);
    }

    /// Makes room for one entry of this asker, as [`first_to_leave`] says. Returns false if all
    /// stay.
    fn make_room(&mut self, asker: Option<Asker>, now_us: u64) -> bool {
        if self.entries.len() - self.statics < self.limits.entries_max {
            return true;
        }
        let learned = self.entries.iter();
        let learned = learned.filter_map(|(hop, entry)| Some((*hop, entry.standing()?)));
        let first = first_to_leave(learned, asker, now_us, self.limits.in_use_us);
        let Some((hop, standing)) = first else { return false };
        self.entries.remove(&hop);
        // Only a copy of what was known is void now.
        self.version += u64::from(standing.is_known);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nd::NdOut;

    const OURS: MacAddr = [2, 0, 0, 0, 0, 2];
    const PEER: MacAddr = [2, 0, 0, 0, 0, 1];
    const OTHER: MacAddr = [2, 0, 0, 0, 0, 9];
    const SECOND: u64 = 1_000_000;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn ours() -> IpAddr {
        ip("2001:db8::2")
    }

    fn hop() -> IpAddr {
        ip("2001:db8::1")
    }

    fn cache() -> NdCache {
        let mut cache = NdCache::new(&[OURS], NdLimits { entries_max: 4, ..NdLimits::default() });
        cache.add_address(ours());
        cache
    }

    /// The answer of the host at `hop`: solicited, overrides.
    fn answer(mac: MacAddr, solicited: bool, overrides: bool) -> NdPacket {
        NdPacket {
            kind: NdKind::Advertisement { router: false, solicited, overrides },
            src: hop(),
            dst: ours(),
            eth_src: mac,
            target: hop(),
            link: Some(mac),
        }
    }

    fn question(src: IpAddr, mac: MacAddr) -> NdPacket {
        let link = (!src.is_unspecified()).then_some(mac);
        let dst = ip("ff02::1:ff00:2");
        NdPacket { kind: NdKind::Solicitation, src, dst, eth_src: mac, target: ours(), link }
    }

    /// Runs the cache for so many seconds without a lookup; returns when it asked, and whom.
    fn wait(cache: &mut NdCache, from_s: u64, seconds: u64) -> Vec<(u64, IpAddr, MacAddr)> {
        let mut asked = Vec::new();
        for s in from_s..=from_s + seconds {
            let mut out: Vec<NdOut> = Vec::new();
            cache.tick(s * SECOND, &mut out);
            asked.extend(out.iter().map(|m| (s, m.message().2, m.eth_dst)));
        }
        asked
    }

    fn known(mac: MacAddr) -> Resolution {
        Resolution::Known(mac)
    }

    /// Section 7.2.2: three questions to the group, a second apart.
    #[test]
    fn who_does_not_answer_is_asked_three_times() {
        let (mut cache, mut out) = (cache(), Vec::new());
        assert_eq!(cache.lookup(hop(), Asker::Own, 0, &mut out), Resolution::Pending);
        let group = ip("ff02::1:ff00:1");
        assert_eq!(out[0].message(), (NdKind::Solicitation, ours(), group, hop()));
        assert_eq!(out[0].from(OURS).link, Some(OURS));
        assert_eq!(wait(&mut cache, 0, 2), [(1, group, [0; 6]), (2, group, [0; 6])]);
        assert_eq!(cache.lookup(hop(), Asker::Own, 2 * SECOND, &mut out), Resolution::Pending);
        assert_eq!(wait(&mut cache, 3, 2), []);
        assert_eq!(cache.lookup(hop(), Asker::Own, 5 * SECOND, &mut out), Resolution::Failed);
        assert_eq!(wait(&mut cache, 6, 1), []);
        assert_eq!(cache.lookup(hop(), Asker::Own, 7 * SECOND, &mut out), Resolution::Pending);
        assert_eq!(out.len(), 2, "asked anew");
    }

    /// Section 7.3.3: an answer is good for 30 s; then who is in use has five seconds before it is
    /// asked, three times, itself.
    #[test]
    fn a_next_hop_in_use_is_asked_again() {
        let (mut cache, mut out) = (cache(), Vec::new());
        cache.lookup(hop(), Asker::Own, 0, &mut out);
        let before = cache.version();
        cache.on_packet(&answer(PEER, true, true), 0, &mut out);
        assert_ne!(cache.version(), before, "those who wait may send");
        assert_eq!(wait(&mut cache, 0, 100), [], "nobody uses it");
        assert_eq!(cache.lookup(hop(), Asker::Own, 100 * SECOND, &mut out), known(PEER));
        let asked = wait(&mut cache, 100, 7);
        assert_eq!(asked, [(105, hop(), PEER), (106, hop(), PEER), (107, hop(), PEER)]);
        cache.on_packet(&answer(PEER, true, false), 107 * SECOND, &mut out);
        assert_eq!(wait(&mut cache, 107, 60), [], "it has answered");
        cache.lookup(hop(), Asker::Own, 170 * SECOND, &mut out);
        let version = cache.version();
        assert_eq!(wait(&mut cache, 170, 9).len(), 3);
        assert_ne!(cache.version(), version, "it is gone");
        assert_eq!(cache.lookup(hop(), Asker::Own, 180 * SECOND, &mut out), Resolution::Pending);
    }

    /// Section 7.2.5.
    #[test]
    fn what_an_advertisement_changes() {
        let known_after = |first: NdPacket, second: NdPacket| {
            let (mut cache, mut out) = (cache(), Vec::new());
            cache.lookup(hop(), Asker::Own, 0, &mut out);
            cache.on_packet(&first, 0, &mut out);
            cache.on_packet(&second, 0, &mut out);
            let found = cache.lookup(hop(), Asker::Own, SECOND, &mut out);
            // A confirmed one is asked only after 30 s and more.
            (found, wait(&mut cache, 1, 20).is_empty())
        };
        let first = answer(PEER, true, true);
        assert_eq!(known_after(first, first), (known(PEER), true));
        assert_eq!(known_after(answer(PEER, false, true), first), (known(PEER), true));
        assert_eq!(known_after(first, answer(OTHER, true, true)), (known(OTHER), true));
        assert_eq!(known_after(first, answer(OTHER, false, true)), (known(OTHER), false));
        assert_eq!(known_after(first, answer(OTHER, true, false)), (known(PEER), false));
        let silent = NdPacket { link: None, ..first };
        assert_eq!(known_after(silent, silent), (Resolution::Pending, false));
        assert_eq!(known_after(first, silent), (known(PEER), true));
        // Nobody has asked.
        let mut cache = cache();
        cache.on_packet(&first, 0, &mut Vec::new());
        assert!(cache.is_empty());
    }

    /// Sections 7.2.3 and 7.2.4.
    #[test]
    fn questions_for_our_addresses_are_answered() {
        let (mut cache, mut out) = (cache(), Vec::new());
        cache.on_packet(&question(hop(), PEER), 0, &mut out);
        let told = |solicited| NdKind::Advertisement { router: false, solicited, overrides: true };
        assert_eq!(out[0].message(), (told(true), ours(), hop(), ours()));
        assert_eq!((out[0].eth_dst, out[0].from(OURS).link), (PEER, Some(OURS)));
        assert_eq!(
            cache.lookup(hop(), Asker::Own, 0, &mut out),
            known(PEER),
            "it has told its address"
        );
        assert_eq!(wait(&mut cache, 0, 5), [(5, hop(), PEER)], "but that is not confirmed");
        out.clear();
        cache.on_packet(&question(IpAddr::UNSPECIFIED_V6, OTHER), 0, &mut out);
        assert_eq!(out[0].message(), (told(false), ours(), ip("ff02::1"), ours()));
        out.clear();
        let other = NdPacket { target: ip("2001:db8::3"), ..question(hop(), PEER) };
        for packet in [other, NdPacket { eth_src: OURS, ..question(hop(), PEER) }] {
            cache.on_packet(&packet, 0, &mut out);
            assert_eq!(out, []);
        }
        cache.remove_address(ours());
        cache.on_packet(&question(hop(), PEER), 0, &mut out);
        assert_eq!(out, []);
    }

    #[test]
    fn nobody_is_asked_before_an_address_is_ours() {
        let mut cache = NdCache::new(&[OURS], NdLimits::default());
        let mut out: Vec<NdOut> = Vec::new();
        assert_eq!(cache.lookup(hop(), Asker::Own, 0, &mut out), Resolution::Pending);
        assert_eq!((out.len(), wait(&mut cache, 0, 20)), (0, vec![]));
        cache.add_address(ours());
        let times: Vec<u64> = wait(&mut cache, 21, 5).into_iter().map(|(s, ..)| s).collect();
        assert_eq!(times, [21, 22, 23]);
    }

    #[test]
    fn strangers_evict_nobody_who_is_in_use() {
        let (mut cache, mut out) = (cache(), Vec::new());
        let host = |last: u8| {
            let mut octets = hop().0;
            octets[15] = last;
            IpAddr(octets)
        };
        for last in 10..14 {
            cache.lookup(host(last), Asker::Own, 0, &mut out);
        }
        cache.on_packet(&question(host(20), PEER), SECOND, &mut out);
        assert_eq!(cache.len(), 4);
        assert_eq!(cache.lookup(host(10), Asker::Own, SECOND, &mut out), Resolution::Pending);
        // One that we want evicts the one that was not wanted for longest.
        assert_eq!(cache.lookup(host(30), Asker::Own, SECOND, &mut out), Resolution::Pending);
        assert!(cache.entries.contains_key(&host(10)) && !cache.entries.contains_key(&host(11)));
        assert_eq!(cache.len(), 4);
    }

    /// A flood from addresses that do not exist: who was resolved stays, and copies stay valid.
    #[test]
    fn senders_that_do_not_exist_evict_nobody_that_is_known() {
        let (mut cache, mut out) = (cache(), Vec::new());
        cache.lookup(hop(), Asker::Own, 0, &mut out);
        cache.on_packet(&answer(PEER, true, true), 0, &mut out);
        let version = cache.version();
        for last in 10..=250 {
            let mut octets = hop().0;
            octets[15] = last;
            assert_eq!(
                cache.lookup(IpAddr(octets), Asker::Own, SECOND, &mut out),
                Resolution::Pending
            );
            assert!(cache.len() <= 4);
        }
        assert_eq!(cache.lookup(hop(), Asker::Own, 2 * SECOND, &mut out), known(PEER));
        assert_eq!(cache.version(), version);
    }

    #[test]
    fn groups_are_asked_so_often_in_a_second() {
        let limits = NdLimits { questions_max: 10, ..NdLimits::default() };
        let mut cache = NdCache::new(&[OURS], limits);
        cache.add_address(ours());
        let mut out = Vec::new();
        let host = |number: u8| {
            let mut octets = hop().0;
            octets[14] = number;
            IpAddr(octets)
        };
        for number in 0..30 {
            cache.lookup(host(number), Asker::Own, SECOND, &mut out);
        }
        assert_eq!(out.len(), 10);
        // All are asked in the end, those that had to wait as often as the others.
        let asked = wait(&mut cache, 1, 20);
        assert_eq!(out.len() + asked.len(), 90);
        for second in 2..=20 {
            assert!(asked.iter().filter(|(s, ..)| *s == second).count() <= 10);
        }
    }

    /// RFC 6583: answers to made-up senders leave room and questions to the host's own traffic.
    #[test]
    fn strangers_that_do_not_exist_leave_a_new_next_hop_its_question_and_its_place() {
        let limits = NdLimits { entries_max: 8, questions_max: 10, ..NdLimits::default() };
        let mut cache = NdCache::new(&[OURS], limits);
        cache.add_address(ours());
        let flood = |cache: &mut NdCache, now_us| {
            let mut asked = Vec::new();
            for number in 0..=255 {
                let mut octets = hop().0;
                octets[14] = number;
                octets[13] = 1;
                cache.lookup(IpAddr(octets), Asker::Stranger, now_us, &mut asked);
            }
            asked.len()
        };
        assert_eq!(flood(&mut cache, SECOND), 5, "half of the questions");
        let mut out = Vec::new();
        assert_eq!(cache.lookup(hop(), Asker::Own, SECOND, &mut out), Resolution::Pending);
        assert_eq!(out.len(), 1);
        for half in 3..20 {
            flood(&mut cache, half * SECOND / 2);
        }
        cache.on_packet(&answer(PEER, true, true), 10 * SECOND, &mut out);
        assert_eq!(cache.lookup(hop(), Asker::Own, 10 * SECOND, &mut out), known(PEER));
        assert!(cache.len() <= 8);
    }

    #[test]
    fn static_entries_stay() {
        let (mut cache, mut out) = (cache(), Vec::new());
        cache.set_static(hop(), OTHER);
        cache.on_packet(&answer(PEER, true, true), 0, &mut out);
        cache.on_packet(&question(hop(), PEER), 0, &mut out);
        cache.links_changed(&[OURS]);
        assert_eq!(cache.lookup(hop(), Asker::Own, 0, &mut out), known(OTHER));
        assert_eq!(wait(&mut cache, 0, 100), []);
    }
}
