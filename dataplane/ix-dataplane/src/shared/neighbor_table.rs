//! The ARP table, the one thing that elastic threads share. Each keeps a copy of the entries that
//! it uses ([`crate::neighbors`]).
use crate::config::{AddressCheck, Config};
use ix_tcp::arp::{
    AddressGuard, ArpCache, ArpChange, ArpLimits, GuardEvent, GuardMode, Resolution,
};
use ix_wire::{ArpPacket, IpAddr, MacAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// After its defence has failed, an address is claimed again after this time (RFC 5227 section 2.4
/// (c): a service keeps its address).
const RECLAIM_US: u64 = 10_000_000;

/// The ARP table of all threads.
pub struct NeighborTable {
    table: Mutex<Table>,
    version: AtomicU64,
    due_us: AtomicU64,
}

struct Table {
    cache: ArpCache,
    guards: Vec<AddressGuard>,
    mode: GuardMode,
    mac: MacAddr,
}

impl NeighborTable {
    /// The table of a host with these devices. Probing or announcing begins at `now_us`.
    pub fn new(config: &Config, macs: &[MacAddr], now_us: u64) -> NeighborTable {
        // Without a device nothing is ever sent; any address will do.
        let macs = if macs.is_empty() { &[[0; 6]] } else { macs };
        let mut cache = ArpCache::new(macs, ArpLimits::default());
        for (ip, mac) in &config.arp {
            cache.set_static(*ip, *mac);
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
        let version = AtomicU64::new(cache.version());
        let table = Mutex::new(Table { cache, guards, mode, mac });
        NeighborTable { table, version, due_us: AtomicU64::new(now_us) }
    }

    /// To be called when devices have other links, with these Ethernet addresses: next hops are
    /// asked for again, and own addresses that are in use are announced.
    pub(crate) fn links_changed(&self, macs: &[MacAddr], now_us: u64) {
        let Some(&mac) = macs.first() else { return };
        let mut table = self.lock();
        let Table { cache, guards, mode, mac: old } = &mut *table;
        *old = mac;
        cache.links_changed(macs);
        if *mode != GuardMode::Off {
            for guard in guards.iter_mut().filter(|guard| cache.answers_for(guard.ip())) {
                *guard = AddressGuard::new(guard.ip(), mac, GuardMode::Announce, now_us, now_us);
            }
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
    pub(crate) fn lookup(&self, hop: IpAddr, now_us: u64, out: &mut Vec<ArpPacket>) -> Resolution {
        let mut table = self.lock();
        let resolution = table.cache.lookup(hop, now_us, out);
        self.publish(&table);
        resolution
    }

    /// Processes a received ARP packet. Returns its result for the cache, and whether the table
    /// changed.
    pub(crate) fn on_packet(
        &self,
        packet: &ArpPacket,
        now_us: u64,
        out: &mut Vec<ArpPacket>,
    ) -> (ArpChange, bool) {
        let mut table = self.lock();
        let change = table.cache.on_packet(packet, now_us, out);
        let Table { cache, guards, mac, .. } = &mut *table;
        for guard in guards {
            let event = guard.on_packet(packet, now_us, out);
            act_on(event, guard, cache, *mac, now_us);
        }
        let changed = self.publish(&table);
        (change, changed)
    }

    /// Asks again, expires, announces.
    pub(crate) fn tick(&self, now_us: u64, out: &mut Vec<ArpPacket>) {
        let mut table = self.lock();
        let Table { cache, guards, mac, .. } = &mut *table;
        cache.tick(now_us, out);
        for guard in guards {
            let event = guard.tick(now_us, out);
            act_on(event, guard, cache, *mac, now_us);
        }
        self.publish(&table);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes changes visible to the other threads; returns whether there were any.
    fn publish(&self, table: &Table) -> bool {
        let guards = table.guards.iter().map(AddressGuard::deadline);
        let due_us = guards.fold(table.cache.deadline(), u64::min);
        self.due_us.store(due_us, Ordering::Relaxed);
        let version = table.cache.version();
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
