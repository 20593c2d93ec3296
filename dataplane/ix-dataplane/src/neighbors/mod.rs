//! Next hops. The ARP table is the one thing that elastic threads share; each keeps a copy of what
//! it uses, so that the common path takes no lock: it compares a version number.
use crate::config::{AddressCheck, Config};
use crate::flows::flow::Side;
use crate::io::Io;
use crate::observe::metrics::LocalDrop;
use ix_mem::{HEADROOM_BYTES, Mbuf};
use ix_tcp::arp::{
    AddressGuard, ArpCache, ArpChange, ArpLimits, GuardEvent, GuardMode, Resolution,
};
use ix_wire::{ArpPacket, FlowTuple, IpAddr, MacAddr, ethernet};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A copy is looked up anew after this time, so that the table knows which next hops are in use.
const COPY_US: u64 = 1_000_000;
/// After losing the defence of an address we claim it again no sooner than this (RFC 5227 section
/// 2.4 (c): a service keeps its address).
const RECLAIM_US: u64 = 10_000_000;
/// The upper bits of a copy's version are its thread's.
const THREAD_SHIFT: u32 = 24;

/// The table of all threads.
pub struct Neighbors {
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

impl Neighbors {
    /// For a host with these devices. Probing or announcing begins at `now_us`.
    pub fn new(config: &Config, macs: &[MacAddr], now_us: u64) -> Neighbors {
        // Without a device nothing is ever sent or answered; any address will do.
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
        Neighbors { table, version, due_us: AtomicU64::new(now_us) }
    }

    /// Devices have other links now, with these addresses of ours: next hops are asked for anew, and
    /// our addresses are announced where they are in use.
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

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes changes visible to the other threads; answers whether there were any.
    fn publish(&self, table: &Table) -> bool {
        let guards = table.guards.iter().map(AddressGuard::deadline);
        let due_us = guards.fold(table.cache.deadline(), u64::min);
        self.due_us.store(due_us, Ordering::Relaxed);
        let version = table.cache.version();
        self.version.swap(version, Ordering::Release) != version
    }
}

/// What one thread remembers of the table.
pub struct NeighborCopy {
    known: HashMap<IpAddr, MacAddr>,
    /// Goes up whenever flows must look their next hop up anew; never 0.
    version: u32,
    seen: u64,
    until_us: u64,
}

impl NeighborCopy {
    /// An empty copy, of this elastic thread. Flows may come from other threads: no two threads' copies
    /// have the same version.
    pub fn new(thread: usize) -> NeighborCopy {
        let version = (thread as u32) << THREAD_SHIFT | 1;
        NeighborCopy { known: HashMap::new(), version, seen: 0, until_us: 0 }
    }

    fn next_version(&self) -> u32 {
        let mask = (1 << THREAD_SHIFT) - 1;
        self.version & !mask | ((self.version + 1) & mask).max(1)
    }
}

impl Io {
    /// At the start of each turn: drops the copy when the table has changed or it is old.
    #[inline]
    pub(crate) fn check_neighbors(&mut self) {
        let seen = self.shared.neighbors.version.load(Ordering::Acquire);
        let copy = &mut self.neighbors;
        if seen == copy.seen && self.now_us < copy.until_us {
            return;
        }
        copy.known.clear();
        copy.version = copy.next_version();
        copy.until_us = self.now_us + COPY_US;
        if std::mem::replace(&mut copy.seen, seen) != seen {
            self.send_pending();
        }
    }

    /// Whether `check_neighbors` has a change of the table to take in.
    #[inline]
    pub(crate) fn neighbors_changed(&self) -> bool {
        self.shared.neighbors.version.load(Ordering::Acquire) != self.neighbors.seen
    }

    /// Sees to it that `side.mac` is the address of the flow's next hop; false while it is unknown.
    #[inline]
    pub(crate) fn refresh_mac(&mut self, side: &mut Side, tuple: &FlowTuple) -> bool {
        if side.mac_version == self.neighbors.version {
            return true;
        }
        match self.resolve(tuple.remote) {
            Resolution::Known(mac) => {
                side.mac = mac;
                side.mac_version = self.neighbors.version;
                true
            }
            Resolution::Pending | Resolution::Failed => false,
        }
    }

    /// The Ethernet address for packets to `remote`.
    pub(crate) fn resolve(&mut self, remote: IpAddr) -> Resolution {
        match self.shared.config.route(remote) {
            Some((_, hop)) => self.resolve_hop(hop),
            None => Resolution::Failed,
        }
    }

    fn resolve_hop(&mut self, hop: IpAddr) -> Resolution {
        if let Some(mac) = self.neighbors.known.get(&hop) {
            return Resolution::Known(*mac);
        }
        let shared = self.shared.clone();
        let mut out = Vec::new();
        let mut table = shared.neighbors.lock();
        let resolution = table.cache.lookup(hop, self.now_us, &mut out);
        shared.neighbors.publish(&table);
        drop(table);
        self.ask_everywhere(&out);
        if let Resolution::Known(mac) = resolution {
            self.neighbors.known.insert(hop, mac);
            // Another thread may have learnt it in the midst of our cycle. What has waited goes first.
            self.release(hop, mac);
        }
        resolution
    }

    /// Sends what waited for a next hop.
    fn release(&mut self, hop: IpAddr, mac: MacAddr) {
        for (port, mbuf) in self.pending.take(hop) {
            self.send_to(mac, port, mbuf);
        }
    }

    fn send_to(&mut self, mac: MacAddr, port: u8, mut mbuf: Mbuf) {
        mbuf.bytes_mut(&self.shared.memory)[..6].copy_from_slice(&mac);
        self.ports[usize::from(port)].queue.push_back(mbuf);
    }

    /// Keeps a built packet until its next hop answers; drops it if that has just failed.
    pub(crate) fn wait_for_neighbor(&mut self, remote: IpAddr, port: u8, mbuf: Mbuf) {
        match self.shared.config.route(remote) {
            Some((_, hop)) => self.wait_for_hop(hop, port, mbuf),
            None => self.give_up(mbuf),
        }
    }

    /// The same for a next hop, which may have answered meanwhile.
    pub(crate) fn wait_for_hop(&mut self, hop: IpAddr, port: u8, mbuf: Mbuf) {
        match self.resolve_hop(hop) {
            Resolution::Known(mac) => self.send_to(mac, port, mbuf),
            Resolution::Pending => {
                if let Err((_, oldest)) = self.pending.push(hop, (port, mbuf), self.now_us) {
                    self.give_up(oldest);
                }
            }
            Resolution::Failed => self.give_up(mbuf),
        }
    }

    /// No next hop for this one.
    fn give_up(&mut self, mbuf: Mbuf) {
        self.metrics.drop_local(LocalDrop::ArpPending);
        self.tx_pool.put(mbuf);
    }

    /// Sends what waited for next hops that are known now.
    fn send_pending(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let hops: Vec<IpAddr> = self.pending.hops().collect();
        for hop in hops {
            match self.resolve_hop(hop) {
                Resolution::Known(mac) => self.release(hop, mac),
                Resolution::Pending => {}
                Resolution::Failed => {
                    self.pending.take(hop).for_each(|(_, mbuf)| self.give_up(mbuf));
                }
            }
        }
    }

    /// An ARP packet came in on a port.
    pub(crate) fn handle_arp_packet(&mut self, port: u8, packet: &ArpPacket) {
        let shared = self.shared.clone();
        let mut out = Vec::new();
        let mut table = shared.neighbors.lock();
        let change = table.cache.on_packet(packet, self.now_us, &mut out);
        if matches!(change, ArpChange::Conflict { .. }) {
            self.metrics.counters.address_conflicts.add(1);
        }
        let Table { cache, guards, mac, .. } = &mut *table;
        for guard in guards {
            let event = guard.on_packet(packet, self.now_us, &mut out);
            act_on(event, guard, cache, *mac, self.now_us);
        }
        let changed = shared.neighbors.publish(&table);
        drop(table);
        self.send_arp(port, out);
        if changed {
            self.check_neighbors();
            (0..shared.threads()).filter(|i| *i != self.index).for_each(|i| self.ring_thread(i));
        }
    }

    /// Asks again, expires, announces; whichever thread comes first does it for all.
    pub(crate) fn run_neighbor_timers(&mut self) {
        while let Some((_, mbuf)) = self.pending.expire(self.now_us) {
            self.give_up(mbuf);
        }
        if self.now_us < self.shared.neighbors.due_us.load(Ordering::Relaxed) {
            return;
        }
        let shared = self.shared.clone();
        let mut out = Vec::new();
        let mut table = shared.neighbors.lock();
        let Table { cache, guards, mac, .. } = &mut *table;
        cache.tick(self.now_us, &mut out);
        for guard in guards {
            let event = guard.tick(self.now_us, &mut out);
            act_on(event, guard, cache, *mac, self.now_us);
        }
        shared.neighbors.publish(&table);
        drop(table);
        self.ask_everywhere(&out);
    }

    /// Sends requests and announcements: any of the devices may lead to who shall hear them.
    fn ask_everywhere(&mut self, packets: &[ArpPacket]) {
        for port in 0..self.ports.len() as u8 {
            self.send_arp(port, packets.to_vec());
        }
    }

    /// When `run_neighbor_timers` has something to do, µs.
    pub(crate) fn neighbor_deadline_us(&self) -> Option<u64> {
        let due_us = self.shared.neighbors.due_us.load(Ordering::Relaxed);
        let due_us =
            if self.pending.is_empty() { due_us } else { due_us.min(self.now_us + COPY_US) };
        (due_us != u64::MAX).then_some(due_us)
    }

    fn send_arp(&mut self, port: u8, packets: Vec<ArpPacket>) {
        let Some(device) = self.ports.get_mut(port as usize) else { return };
        for mut packet in packets {
            packet.sender_mac = device.info.mac;
            let Some(mut mbuf) = self.tx_pool.take() else {
                self.metrics.drop_local(LocalDrop::NoTxFrame);
                return;
            };
            mbuf.set_range(HEADROOM_BYTES, ethernet::FRAME_BYTES_MIN);
            let frame = mbuf.bytes_mut(&self.shared.memory);
            frame.fill(0);
            packet.emit_frame(frame);
            device.queue.push_back(mbuf);
        }
    }
}

/// What the guard of an address says becomes of the cache's answers for it.
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
