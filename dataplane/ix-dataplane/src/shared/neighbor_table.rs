//! The table of next hops, the one thing that elastic threads share: of IPv4 by ARP, of IPv6 by
//! Neighbour Discovery; with it our addresses, and the groups in which neighbours ask for them.
//! Each thread keeps a copy of the entries that it uses ([`crate::neighbors`]).
use crate::config::{Addr6, AddressCheck, Config, TempAddr};
use crate::shared::learnt::Learnt;
use crate::shared::linux_hops::LinuxHops;
use ix_proto::routes::Route;
use ix_tcp::Asker;
use ix_tcp::arp::{
    AddressGuard, ArpCache, ArpChange, ArpLimits, ArpOutput, GuardEvent, GuardMode, Resolution,
};
use ix_tcp::groups::{Filter, Listener, Report, ReportOutput};
use ix_tcp::nd::{
    AddressChange, Autoconf, DuplicateCheck, DuplicateEvent, Identifiers, NdCache, NdLimits, NdOut,
    NdOutput,
};
use ix_wire::ipv6::solicited_node;
use ix_wire::membership::Query;
use ix_wire::ra::Advertisement;
use ix_wire::{ArpPacket, IpAddr, MacAddr, NdKind, NdPacket, igmp, ipv6};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// After its defence has failed, an address is claimed again after this time (RFC 5227 section 2.4
/// (c): a service keeps its address).
const RECLAIM_US: u64 = 10_000_000;

/// Most groups of all sockets together, a group of two sockets counted twice.
const LISTENING_MAX: usize = 1024;
/// Least time from one message to the broker about groups to the next one, µs: a program may change
/// them without a pause.
const TELL_US: u64 = 20_000;

/// A UDP socket: its elastic thread, and its number there.
pub(crate) type SocketName = (usize, u32);

/// The host is in as many groups as it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyGroups;

/// What is to be sent about next hops and our addresses.
#[derive(Default)]
pub(crate) struct Outgoing {
    pub arp: Vec<ArpPacket>,
    pub nd: Vec<NdOut>,
    pub reports: Vec<Report>,
    /// Routers are asked what they have to tell.
    pub asks_routers: bool,
    /// Next hops that Linux is asked for, where it has all neighbours.
    pub resolve: Vec<IpAddr>,
    /// All groups of sockets, for the broker, whose devices have to take the frames.
    pub groups: Option<Vec<IpAddr>>,
}

impl ArpOutput for Outgoing {
    fn send(&mut self, packet: ArpPacket) {
        self.arp.push(packet);
    }
}

impl NdOutput for Outgoing {
    fn send_nd(&mut self, message: NdOut) {
        self.nd.push(message);
    }
}

impl ReportOutput for Outgoing {
    fn send_report(&mut self, report: Report) {
        self.reports.push(report);
    }
}

/// What a message of a neighbour has caused.
pub(crate) struct Heard {
    /// The other host with an address of ours.
    pub conflict: Option<Conflict>,
    /// The table has changed.
    pub changed: bool,
}

/// Another host has an address of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub address: IpAddr,
    pub mac: MacAddr,
    /// Because of that the address is not used.
    pub gave_up: bool,
}

/// The table of all threads.
pub struct NeighborTable {
    table: Mutex<Table>,
    version: AtomicU64,
    due_us: AtomicU64,
}

struct Table {
    cache: ArpCache,
    guards: Vec<AddressGuard>,
    nd: NdCache,
    checks: Vec<DuplicateCheck>,
    /// How many of them, the first ones, are of addresses of the configuration.
    configured: usize,
    /// The groups of these addresses, and those of sockets.
    groups: Listener,
    /// The groups of IPv4.
    groups_v4: Listener,
    /// Of each group and socket (elastic thread and number), which sources it listens to.
    listening: BTreeMap<(IpAddr, SocketName), Filter>,
    /// How often the groups of sockets have changed.
    listening_version: u64,
    /// Groups of which other sources are listened to, which was not reported yet.
    unreported: BTreeSet<IpAddr>,
    /// The broker was told of this version; `None`: it had no room for it.
    told_version: Option<u64>,
    /// It is not told of another one before.
    tell_us: u64,
    /// What routers tell, if they are listened to, and how often that has changed.
    auto: Option<Box<Autoconf>>,
    auto_version: u64,
    mode: GuardMode,
    /// Of which the identifiers of addresses are made.
    addr6_secret: Option<[u8; 16]>,
    /// Temporary addresses, and of what their identifiers are made.
    use_tempaddr: TempAddr,
    tempaddr_key: [u8; 16],
    mac: MacAddr,
    /// Linux resolves, where the address is its own; nothing is sent here.
    of_linux: Option<LinuxHops>,
}

impl Table {
    /// Changes whenever a mapping of either family has changed or is gone.
    fn version(&self) -> u64 {
        let of_linux = self.of_linux.as_ref().map_or(0, LinuxHops::version);
        let told = self.auto_version + self.listening_version;
        self.cache.version() + self.nd.version() + of_linux + told
    }
}

impl Table {
    /// The groups that sockets listen to, in order.
    fn groups(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let mut last = None;
        let groups = self.listening.keys().map(|(group, _)| *group);
        groups.filter(move |group| last.replace(*group) != Some(*group))
    }

    /// What each socket listens to of a group.
    fn filters(&self, group: IpAddr) -> impl Iterator<Item = &Filter> + Clone {
        let names = (group, (0, 0))..=(group, (usize::MAX, u32::MAX));
        self.listening.range(names).map(|(_, filter)| filter)
    }

    /// Sets what a socket listens to; returns whether a group has begun or ended.
    fn set_filter(&mut self, name: SocketName, group: IpAddr, filter: Filter) -> bool {
        let was_in = self.filters(group).next().is_some();
        match filter.is_none() {
            true => drop(self.listening.remove(&(group, name))),
            false => drop(self.listening.insert((group, name), filter)),
        }
        let changed = was_in != self.filters(group).next().is_some();
        self.listening_version += u64::from(changed);
        self.unreported.insert(group);
        changed
    }

    /// Reports what is listened to now: once for all changes of a batch of calls, because all
    /// sources of a group are put together for it. Where the addresses are Linux's, Linux is in the
    /// groups as well, and reports them.
    fn report_groups(&mut self, now_us: u64) {
        for group in std::mem::take(&mut self.unreported) {
            // RFC 3376 section 6, RFC 3810 section 6: of all hosts' group nothing is said.
            let is_told = ![igmp::ALL_HOSTS, ipv6::ALL_NODES].contains(&group);
            if self.of_linux.is_none() && is_told {
                let all = Filter::of_all(self.filters(group));
                let listener = if group.is_v6() { &mut self.groups } else { &mut self.groups_v4 };
                listener.set(group, all, now_us);
            }
        }
    }

    /// All groups, if the broker is to be told of them now.
    fn tell_groups(&mut self, now_us: u64) -> Option<Vec<IpAddr>> {
        let version = Some(self.listening_version);
        if self.told_version == version || now_us < self.tell_us {
            return None;
        }
        (self.told_version, self.tell_us) = (version, now_us + TELL_US);
        Some(self.groups().collect())
    }

    /// When something is to be said of groups that have changed.
    fn groups_due_us(&self) -> u64 {
        match self.told_version == Some(self.listening_version) {
            _ if !self.unreported.is_empty() => 0,
            false => self.tell_us,
            true => u64::MAX,
        }
    }

    /// Begins to ask routers, with a link-local address.
    fn listen_to_routers(&mut self, now_us: u64, seed: u64) {
        let identifiers = match self.addr6_secret {
            Some(secret) => Identifiers::Stable(secret),
            None => Identifiers::OfMac(self.mac),
        };
        let mut auto = Autoconf::new(identifiers, u16::MAX.into(), now_us, seed);
        if self.use_tempaddr != TempAddr::Off {
            auto = auto.with_temporary(self.tempaddr_key);
        }
        self.begin_address(auto.link_local(), self.mode, now_us);
        self.auto = Some(Box::new(auto));
        self.auto_version += 1;
    }

    /// Ends everything that routers have told.
    fn forget_routers(&mut self, now_us: u64) {
        let Some(auto) = self.auto.take() else { return };
        let made: Vec<IpAddr> = auto.made().chain([auto.link_local()]).collect();
        made.into_iter().for_each(|address| self.end_address(address, now_us));
    }

    fn apply(&mut self, changes: Vec<AddressChange>, now_us: u64) {
        for change in changes {
            match change {
                AddressChange::Begins(address) => self.begin_address(address, self.mode, now_us),
                // The threads choose among all of them anew.
                AddressChange::Deprecated(_) => {}
                AddressChange::Ends(address) => self.end_address(address, now_us),
            }
        }
    }

    /// Checks an address, to use it then. One of the configuration stays what it is.
    fn begin_address(&mut self, address: IpAddr, mode: GuardMode, now_us: u64) {
        if self.checks.iter().any(|check| check.address() == address) {
            return;
        }
        let check = DuplicateCheck::new(address, mode, now_us, now_us);
        self.groups.join(solicited_node(address), now_us);
        if check.is_usable() {
            self.nd.add_address(address);
        }
        self.checks.push(check);
    }

    /// Checks another address in place of one that another host has, whose group was left.
    fn replace_address(&mut self, taken: IpAddr, another: IpAddr, now_us: u64) {
        let place = self.checks.iter().position(|check| check.address() == taken);
        if let Some(place) = place.filter(|place| *place >= self.configured) {
            self.checks.remove(place);
        }
        // RFC 7217 section 6: after a pause of up to a second (IDGEN_DELAY).
        self.begin_address(another, GuardMode::Probe, now_us);
    }

    fn end_address(&mut self, address: IpAddr, now_us: u64) {
        if self.checks[..self.configured].iter().any(|check| check.address() == address) {
            return;
        }
        self.checks.retain(|check| check.address() != address);
        self.nd.remove_address(address);
        self.groups.leave(solicited_node(address), now_us);
    }

    /// Reports groups, and asks whether somebody has an address that is new.
    fn check_addresses(&mut self, now_us: u64, out: &mut Outgoing) {
        self.groups.tick(now_us, out);
        self.groups_v4.tick(now_us, out);
        for check in &mut self.checks {
            if check.tick(now_us, out) == Some(DuplicateEvent::Usable) {
                self.nd.add_address(check.address());
                self.auto_version += 1;
            }
        }
    }
}

impl NeighborTable {
    /// The table of a host with these devices. Probing or announcing begins at `now_us`.
    pub fn new(config: &Config, macs: &[MacAddr], now_us: u64) -> NeighborTable {
        // Without a device nothing is ever sent; any address will do.
        let macs = if macs.is_empty() { &[[0; 6]] } else { macs };
        let mut cache = ArpCache::new(macs, ArpLimits::default());
        let mut nd = NdCache::new(macs, NdLimits::default());
        for (ip, mac) in &config.arp {
            match ip.is_v6() {
                true => nd.set_static(*ip, *mac),
                false => cache.set_static(*ip, *mac),
            }
        }
        let mac = macs[0];
        let mode = match config.address_check {
            AddressCheck::Off => GuardMode::Off,
            AddressCheck::Announce => GuardMode::Announce,
            AddressCheck::Probe => GuardMode::Probe,
        };
        let random = config.flow_hash_key[0];
        let guard =
            |ip: IpAddr| ip.as_v4().map(|v4| AddressGuard::new(v4, mac, mode, now_us, random));
        let guards = config.host_addrs.iter().filter_map(|(ip, _)| guard(*ip)).collect();
        if mode != GuardMode::Probe {
            config.host_addrs.iter().for_each(|(ip, _)| cache.add_address(*ip));
        }
        let own_v6 = config.host_addrs.iter().map(|(ip, _)| *ip).filter(|ip| ip.is_v6());
        let check = |ip: IpAddr| DuplicateCheck::new(ip, mode, now_us, random);
        let checks: Vec<DuplicateCheck> = own_v6.map(check).collect();
        let usable = checks.iter().filter(|check| check.is_usable());
        usable.for_each(|check| nd.add_address(check.address()));
        let of_linux = config.shares_address.then(|| LinuxHops::new(&config.arp));
        let mut groups = Listener::new(config.flow_hash_key[1]);
        // RFC 4862 section 5.4.2: before the question whether somebody has the address.
        for check in checks.iter().filter(|_| of_linux.is_none()) {
            let at_us = if check.is_usable() { now_us } else { check.deadline() };
            groups.join(solicited_node(check.address()), at_us);
        }
        let (auto, auto_version) = (None, 0);
        let configured = checks.len();
        let groups_v4 = Listener::new(config.flow_hash_key[0]);
        let mut table = Table {
            groups_v4,
            listening: BTreeMap::new(),
            listening_version: 0,
            unreported: BTreeSet::new(),
            told_version: Some(0),
            tell_us: 0,
            cache,
            guards,
            nd,
            checks,
            configured,
            groups,
            auto,
            auto_version,
            mode,
            addr6_secret: config.addr6_secret,
            use_tempaddr: config.use_tempaddr,
            tempaddr_key: config.secret,
            mac,
            of_linux,
        };
        if config.addr6 == Addr6::Auto {
            table.listen_to_routers(now_us, config.flow_hash_key[1]);
        }
        let version = AtomicU64::new(table.version());
        NeighborTable { table: Mutex::new(table), version, due_us: AtomicU64::new(now_us) }
    }

    /// To be called when devices have other links, with these Ethernet addresses: next hops are
    /// asked for again, and own addresses that are in use are announced.
    pub(crate) fn links_changed(&self, macs: &[MacAddr], now_us: u64) {
        let Some(&mac) = macs.first() else { return };
        let mut table = self.lock();
        let is_auto = table.auto.is_some();
        if is_auto {
            table.forget_routers(now_us);
        }
        table.groups_v4.link_changed(now_us);
        let Table { cache, guards, nd, checks, groups, mode, mac: old, of_linux, .. } = &mut *table;
        *old = mac;
        of_linux.iter_mut().for_each(LinuxHops::clear);
        cache.links_changed(macs);
        nd.links_changed(macs);
        groups.link_changed(now_us);
        // RFC 4862 section 5.4: also when a link is there again.
        for check in checks {
            nd.remove_address(check.address());
            *check = DuplicateCheck::new(check.address(), *mode, now_us, now_us);
            if check.is_usable() {
                nd.add_address(check.address());
            }
        }
        if *mode != GuardMode::Off {
            for guard in guards.iter_mut().filter(|guard| cache.answers_for(guard.ip())) {
                *guard = AddressGuard::new(guard.ip(), mac, GuardMode::Announce, now_us, now_us);
            }
        }
        if is_auto {
            table.listen_to_routers(now_us, now_us);
        }
        self.publish(&table);
    }

    /// Increases whenever the table changes.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// When [`Self::tick`] has something to do, µs; `u64::MAX`: never.
    #[inline]
    pub(crate) fn due_us(&self) -> u64 {
        self.due_us.load(Ordering::Relaxed)
    }

    /// Looks up a next hop; packets to send for this are appended to `out`.
    pub(crate) fn lookup(
        &self,
        hop: IpAddr,
        asker: Asker,
        now_us: u64,
        out: &mut Outgoing,
    ) -> Resolution {
        let mut table = self.lock();
        let Table { cache, nd, of_linux, auto, auto_version, .. } = &mut *table;
        let resolution = match of_linux {
            Some(hops) => hops.lookup(hop, asker, now_us, &mut out.resolve),
            None if hop.is_v6() => nd.lookup(hop, asker, now_us, out),
            None => cache.lookup(hop, asker, now_us, out),
        };
        if let (Resolution::Failed, Some(auto)) = (resolution, auto)
            && auto.is_silent(hop)
        {
            *auto_version += 1;
        }
        self.publish(&table);
        resolution
    }

    /// Linux has found a next hop, or has not.
    pub(crate) fn heard_from_linux(&self, hop: IpAddr, mac: Option<MacAddr>, now_us: u64) {
        let mut table = self.lock();
        if let Some(hops) = &mut table.of_linux {
            hops.heard(hop, mac, now_us);
        }
        self.publish(&table);
    }

    /// A part of what Linux knows of the network of an address that is its own as well. Returns
    /// whether something has changed.
    pub(crate) fn network_of_linux(
        &self,
        addresses: Vec<(IpAddr, u8)>,
        routes: Vec<Route>,
        more: bool,
    ) -> bool {
        let mut table = self.lock();
        if let Some(hops) = &mut table.of_linux {
            hops.heard_network(addresses, routes, more);
        }
        self.publish(&table)
    }

    /// Processes a received ARP packet.
    pub(crate) fn on_packet(&self, packet: &ArpPacket, now_us: u64, out: &mut Outgoing) -> Heard {
        let mut table = self.lock();
        let change = table.cache.on_packet(packet, now_us, out);
        let Table { cache, guards, mac, .. } = &mut *table;
        for guard in guards {
            let event = guard.on_packet(packet, now_us, out);
            act_on(event, guard, cache, *mac, now_us);
        }
        let conflict = match change {
            ArpChange::Conflict { ip: address, mac } => {
                Some(Conflict { address, mac, gave_up: false })
            }
            ArpChange::Nothing | ArpChange::Learned { .. } => None,
        };
        Heard { conflict, changed: self.publish(&table) }
    }

    /// Processes a received message of Neighbour Discovery.
    pub(crate) fn on_nd(&self, packet: &NdPacket, now_us: u64, out: &mut Outgoing) -> Heard {
        let mut table = self.lock();
        let Table { nd, checks, groups, auto, auto_version, .. } = &mut *table;
        if let (Some(auto), NdKind::Advertisement { router: false, .. }) = (&mut *auto, packet.kind)
            && auto.is_no_router(packet.target)
        {
            *auto_version += 1;
        }
        let (mut conflict, mut replaced) = (None, None);
        if !nd.is_own(&packet.eth_src) {
            for check in checks {
                let address = check.address();
                conflict = match check.on_packet(packet) {
                    Some(DuplicateEvent::Taken { mac }) => {
                        groups.leave(solicited_node(address), now_us);
                        let another = auto.as_mut().and_then(|auto| auto.taken(address, now_us));
                        replaced = another.map(|another| (address, another));
                        Some(Conflict { address, mac, gave_up: true })
                    }
                    Some(DuplicateEvent::Conflict { mac }) => {
                        Some(Conflict { address, mac, gave_up: false })
                    }
                    Some(DuplicateEvent::Usable) | None => conflict,
                };
            }
        }
        nd.on_packet(packet, now_us, out);
        if let Some((taken, another)) = replaced {
            table.replace_address(taken, another, now_us);
            table.auto_version += 1;
        }
        Heard { conflict, changed: self.publish(&table) }
    }

    /// Processes a router's advertisement.
    pub(crate) fn on_advertisement(
        &self,
        said: &Advertisement,
        now_us: u64,
        out: &mut Outgoing,
    ) -> Heard {
        let mut table = self.lock();
        let mut changes = Vec::new();
        if let Some(auto) = &mut table.auto {
            auto.on_advertisement(said, now_us, |change| changes.push(change));
            table.auto_version += 1;
        }
        table.apply(changes, now_us);
        table.report_groups(now_us);
        out.groups = table.tell_groups(now_us);
        table.check_addresses(now_us, out);
        Heard { conflict: None, changed: self.publish(&table) }
    }

    /// Copies what routers have told, or Linux of the network of an address that is its own as
    /// well.
    pub(crate) fn learnt(&self, now_us: u64, into: &mut Learnt) {
        let table = self.lock();
        if let Some(network) = table.of_linux.as_ref().and_then(LinuxHops::network) {
            into.follow_linux(network);
            return;
        }
        let Some(auto) = &table.auto else { return };
        let is_usable = |address: IpAddr| {
            table.checks.iter().any(|check| check.address() == address && check.is_usable())
        };
        // Of those that are equally good otherwise the first one is chosen (RFC 6724 section 5,
        // rule 7).
        let (stable, temporary) = (auto.addresses(now_us), auto.temporary(now_us));
        let mut addresses: Vec<(IpAddr, bool)> = match table.use_tempaddr {
            TempAddr::Preferred => temporary.chain(stable).collect(),
            TempAddr::Off | TempAddr::Made => stable.chain(temporary).collect(),
        };
        addresses.retain(|(address, _)| is_usable(*address));
        addresses.sort_by_key(|(_, may_begin)| !may_begin);
        *into = Learnt {
            is_any: true,
            preferred: addresses.iter().filter(|(_, may_begin)| *may_begin).count(),
            addresses: addresses.into_iter().map(|(address, _)| address).collect(),
            link_local: Some(auto.link_local()).filter(|address| is_usable(*address)),
            on_link: auto.on_link().collect(),
            router: auto.router(),
            mtu: auto.mtu().map(|mtu| mtu as usize),
            hop_limit: auto.hop_limit(),
            ..Learnt::default()
        };
    }

    /// Processes a question which groups we listen to.
    pub(crate) fn on_query(&self, query: &Query, now_us: u64) {
        let mut table = self.lock();
        table.groups.on_query(query, now_us);
        self.publish(&table);
    }

    /// The same of IPv4.
    pub(crate) fn on_query_v4(&self, query: &Query, now_us: u64) {
        let mut table = self.lock();
        table.groups_v4.on_query(query, now_us);
        self.publish(&table);
    }

    /// Copies the groups that sockets listen to, in order.
    pub(crate) fn groups(&self, into: &mut Vec<IpAddr>) {
        into.clear();
        into.extend(self.lock().groups());
    }

    /// A socket listens to these sources of a group. Returns whether the groups have changed.
    pub(crate) fn listen(
        &self,
        name: SocketName,
        group: IpAddr,
        filter: Filter,
    ) -> Result<bool, TooManyGroups> {
        let mut table = self.lock();
        let known = table.listening.contains_key(&(group, name));
        if !filter.is_none() && !known && table.listening.len() == LISTENING_MAX {
            return Err(TooManyGroups);
        }
        let changed = table.set_filter(name, group, filter);
        self.publish(&table);
        Ok(changed)
    }

    /// A socket has ended. Returns whether the groups have changed.
    pub(crate) fn forget_socket(&self, name: SocketName) -> bool {
        let mut table = self.lock();
        let of = table.listening.keys().filter(|(_, of)| *of == name).map(|(group, _)| *group);
        let mut changed = false;
        for group in of.collect::<Vec<_>>() {
            changed |= table.set_filter(name, group, Filter::NONE);
        }
        self.publish(&table);
        changed
    }

    /// The broker had no room for what it was to be told of groups.
    pub(crate) fn groups_are_untold(&self) {
        let mut table = self.lock();
        table.told_version = None;
        self.publish(&table);
    }

    /// Asks again, expires, announces.
    pub(crate) fn tick(&self, now_us: u64, out: &mut Outgoing) {
        let mut table = self.lock();
        let mut changes = Vec::new();
        if let Some(auto) = &mut table.auto {
            out.asks_routers |= auto.tick(now_us, |change| changes.push(change));
        }
        if !changes.is_empty() {
            table.auto_version += 1;
        }
        table.apply(changes, now_us);
        table.report_groups(now_us);
        out.groups = table.tell_groups(now_us);
        table.check_addresses(now_us, out);
        let Table { cache, guards, nd, mac, .. } = &mut *table;
        cache.tick(now_us, out);
        for guard in guards {
            let event = guard.tick(now_us, out);
            act_on(event, guard, cache, *mac, now_us);
        }
        nd.tick(now_us, out);
        self.publish(&table);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes changes visible to the other threads; returns whether there were any.
    fn publish(&self, table: &Table) -> bool {
        let guards = table.guards.iter().map(AddressGuard::deadline);
        let checks = table.checks.iter().map(DuplicateCheck::deadline);
        let caches = table.cache.deadline().min(table.nd.deadline());
        let caches = caches.min(table.groups.deadline()).min(table.groups_v4.deadline());
        let caches = caches.min(table.auto.as_ref().map_or(u64::MAX, |auto| auto.deadline()));
        let caches = caches.min(table.groups_due_us());
        let due_us = guards.chain(checks).fold(caches, u64::min);
        self.due_us.store(due_us, Ordering::Relaxed);
        let version = table.version();
        self.version.swap(version, Ordering::Release) != version
    }
}

/// Applies an event of an address's guard to the addresses that the cache replies for.
fn act_on(
    event: Option<GuardEvent>,
    guard: &mut AddressGuard,
    cache: &mut ArpCache,
    mac: MacAddr,
    now_us: u64,
) {
    match event {
        Some(GuardEvent::Usable) => cache.add_address(IpAddr::v4(guard.ip())),
        Some(GuardEvent::Lost { .. }) => {
            let again_us = now_us + RECLAIM_US;
            *guard = AddressGuard::new(guard.ip(), mac, GuardMode::Announce, again_us, now_us);
        }
        Some(GuardEvent::Taken { .. } | GuardEvent::Defended { .. }) | None => {}
    }
}
