//! UDP: which socket a datagram belongs to.
use crate::groups::Filter;
use crate::ports::Looks;
use core::fmt;
use core::ops::RangeInclusive;
use ix_wire::IpAddr;
use std::collections::BTreeMap;

/// The range of ephemeral ports (RFC 6056 section 3.2 recommends all above 1023; the lower half is
/// left to services).
pub const EPHEMERAL_PORTS: RangeInclusive<u16> = 32_768..=65_535;

const SLOTS_MAX: usize = 1 << 16;

/// The name of a socket for the application: slot and generation, so that a stale name is an error
/// and never another socket.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct UdpSocketId(pub u32);

impl UdpSocketId {
    fn new(slot: usize, generation: u16) -> Self {
        debug_assert!(slot < SLOTS_MAX);
        Self(u32::from(generation) << 16 | slot as u32)
    }

    fn slot(self) -> usize {
        self.0 as usize & (SLOTS_MAX - 1)
    }

    fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

/// A bound socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpSocket {
    /// Its name.
    pub id: UdpSocketId,
    /// The address that it is bound to. 0.0.0.0: all IPv4 addresses of the dataplane; `::`: all of
    /// both families; [`IpAddr::EVERY_V6`]: all of IPv6.
    pub addr: IpAddr,
    /// The port that it is bound to.
    pub port: u16,
    /// The application's name for it.
    pub cookie: u64,
    /// The process of the program that it belongs to; 0 at first.
    pub owner: u8,
    /// Type of service of what it sends, without the ECN bits (RFC 1122 section 4.1.4).
    pub tos: u8,
    /// Hop limit of what it sends; 0: as configured.
    pub ttl: u8,
    /// 0: it sends with DF set. Else without, and what is longer than this (bytes with IP header)
    /// in fragments.
    pub fragment_bytes: u16,
    /// IPv6 flow label of what it sends; `None`: one of its own for each peer.
    pub label: Option<u32>,
    /// How it sends to groups.
    pub to_groups: ToGroups,
    /// It has named sources of groups.
    pub listens: bool,
}

/// How a socket sends to groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ToGroups {
    /// To this host's sockets as well.
    pub loops: bool,
    /// To nobody else.
    pub stays: bool,
    /// By this device; `None`: that of its address, else the first.
    pub device: Option<u8>,
}

impl Default for ToGroups {
    fn default() -> Self {
        ToGroups { loops: true, stays: false, device: None }
    }
}

/// Why a socket cannot be bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BindError {
    /// Another socket has this address and port.
    InUse,
    /// No port is free, or none is acceptable.
    NoPort,
    /// There is no room for another socket.
    TooMany,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InUse => "address and port are in use",
            Self::NoPort => "no port is free",
            Self::TooMany => "too many sockets",
        })
    }
}

impl std::error::Error for BindError {}

#[derive(Clone, Copy, Debug)]
struct Slot {
    generation: u16,
    socket: Option<UdpSocket>,
}

impl Slot {
    fn empty(&mut self) {
        self.socket = None;
        self.generation = self.generation.wrapping_add(1);
    }
}

/// The port and the address of a socket.
type Place = (u16, IpAddr);

/// The UDP sockets of one elastic thread.
///
/// A datagram goes to the socket of its address, else to the socket of all addresses with the same
/// port. A few sockets are in one or two cache lines, and to bind or close one takes as long among
/// tens of thousands.
#[derive(Debug, Default)]
pub struct UdpTable {
    /// The slot of the socket that gets what arrives at a place.
    places: BTreeMap<Place, u16>,
    /// The slots of other processes' sockets there, which only send. The last one gets the place
    /// when that socket is closed.
    beside: BTreeMap<Place, Vec<u16>>,
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Of each socket and group, which sources it listens to.
    filters: BTreeMap<(UdpSocketId, IpAddr), Filter>,
}

impl UdpTable {
    /// A table without sockets.
    pub const fn new() -> Self {
        Self {
            places: BTreeMap::new(),
            beside: BTreeMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            filters: BTreeMap::new(),
        }
    }

    /// Number of bound sockets.
    pub fn len(&self) -> usize {
        self.places.len() + self.beside.values().map(Vec::len).sum::<usize>()
    }

    /// True if no socket is bound.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Binds a socket to an own address, or the unspecified one, and a port. Port 0 is not a port:
    /// see [`Self::bind_ephemeral`].
    pub fn bind(&mut self, addr: IpAddr, port: u16, cookie: u64) -> Result<UdpSocketId, BindError> {
        if port == 0 {
            return Err(BindError::NoPort);
        }
        if self.is_taken(addr, port) {
            return Err(BindError::InUse);
        }
        let id = self.insert(addr, port, cookie)?;
        self.places.insert((port, addr), id.slot() as u16);
        Ok(id)
    }

    /// As [`Self::bind`] by a process, `owner`, where others of its program may have the same
    /// address and port. Each of them may send. The one that `takes` gets what arrives, until
    /// another one does or until it ends; the first one without that. Called again by the same
    /// process, it returns the same socket.
    pub fn share(
        &mut self,
        (addr, port): (IpAddr, u16),
        cookie: u64,
        owner: u8,
        takes: bool,
    ) -> Result<UdpSocketId, BindError> {
        let place = (port, addr);
        let Some(front) = self.places.get(&place).copied() else {
            let id = self.bind(addr, port, cookie)?;
            self.get_mut(id).into_iter().for_each(|socket| socket.owner = owner);
            return Ok(id);
        };
        let of = |slot: u16| self.slots[usize::from(slot)].socket.filter(|s| s.owner == owner);
        if let Some(own) = of(front) {
            return Ok(own.id);
        }
        let mut beside = self.beside.get(&place).into_iter().flatten();
        let id = match beside.find_map(|slot| of(*slot)) {
            Some(own) => own.id,
            None => {
                let id = self.insert(addr, port, cookie)?;
                self.get_mut(id).into_iter().for_each(|socket| socket.owner = owner);
                self.beside.entry(place).or_default().push(id.slot() as u16);
                id
            }
        };
        if takes {
            self.places.insert(place, id.slot() as u16);
            let beside = self.beside.entry(place).or_default();
            beside.retain(|slot| usize::from(*slot) != id.slot());
            beside.push(front);
        }
        Ok(id)
    }

    /// Puts a socket into a slot.
    fn insert(&mut self, addr: IpAddr, port: u16, cookie: u64) -> Result<UdpSocketId, BindError> {
        let slot = self.free_slot().ok_or(BindError::TooMany)?;
        let id = UdpSocketId::new(usize::from(slot), self.slots[usize::from(slot)].generation);
        let (to_groups, listens) = (ToGroups::default(), false);
        let (owner, tos, ttl, fragment_bytes) = (0, 0, 0, 0);
        let socket = UdpSocket {
            id,
            addr,
            port,
            cookie,
            owner,
            tos,
            ttl,
            fragment_bytes,
            label: None,
            to_groups,
            listens,
        };
        self.slots[usize::from(slot)].socket = Some(socket);
        Ok(id)
    }

    /// Binds a socket to a free port of `ports` that `accept` accepts (one whose datagrams arrive
    /// at this thread), starting at a random one (RFC 6056 section 3.3.1). Looks at as many as
    /// `looks` allow.
    pub fn bind_ephemeral(
        &mut self,
        addr: IpAddr,
        cookie: u64,
        (ports, random): (RangeInclusive<u16>, u32),
        looks: &mut Looks,
        accept: impl Fn(u16) -> bool,
    ) -> Result<(UdpSocketId, u16), BindError> {
        let (first, last) = ports.into_inner();
        let count = u32::from(last - first) + 1;
        let most = looks.most().min(count);
        let port_at = |step: u32| first + (random.wrapping_add(step) % count) as u16;
        let is_free = |port: u16| !self.is_taken(addr, port) && accept(port);
        let found = (0..most).find(|step| is_free(port_at(*step)));
        looks.took(found.map_or(most, |step| step + 1));
        let port = found.map(port_at).ok_or(BindError::NoPort)?;
        self.bind(addr, port, cookie).map(|id| (id, port))
    }

    /// Closes a socket and returns it; `None` for a stale or forged name.
    pub fn unbind(&mut self, id: UdpSocketId) -> Option<UdpSocket> {
        let socket = *self.get(id)?;
        let (place, number) = ((socket.port, socket.addr), id.slot() as u16);
        let mut next = None;
        if let Some(beside) = self.beside.get_mut(&place) {
            beside.retain(|slot| *slot != number);
            if self.places.get(&place) == Some(&number) {
                next = beside.pop();
            }
            if beside.is_empty() {
                self.beside.remove(&place);
            }
        }
        match next {
            Some(next) => _ = self.places.insert(place, next),
            None if self.places.get(&place) == Some(&number) => _ = self.places.remove(&place),
            None => {}
        }
        if socket.listens {
            self.filters.retain(|(of, _), _| *of != id);
        }
        let slot = &mut self.slots[id.slot()];
        slot.empty();
        self.free.push(id.slot() as u16);
        Some(socket)
    }

    /// Closes all sockets that `ends` selects.
    pub fn unbind_where(&mut self, ends: impl Fn(&UdpSocket) -> bool) {
        let ended = self.iter().filter(|socket| ends(socket)).map(|socket| socket.id);
        for id in ended.collect::<Vec<_>>() {
            self.unbind(id);
        }
    }

    /// The socket of this name; `None` for a stale or forged one.
    #[inline]
    pub fn get(&self, id: UdpSocketId) -> Option<&UdpSocket> {
        let slot = self.slots.get(id.slot())?;
        if slot.generation == id.generation() { slot.socket.as_ref() } else { None }
    }

    /// As [`Self::get`], to change how it sends. Its address and port stay.
    pub fn get_mut(&mut self, id: UdpSocketId) -> Option<&mut UdpSocket> {
        let slot = self.slots.get_mut(id.slot())?;
        if slot.generation == id.generation() { slot.socket.as_mut() } else { None }
    }

    /// The socket that a datagram to `addr` and `port` belongs to.
    #[inline]
    pub fn lookup(&self, addr: IpAddr, port: u16) -> Option<&UdpSocket> {
        let any = || addr.wildcards().iter().find_map(|any| self.places.get(&(port, *any)));
        let slot = self.places.get(&(port, addr)).or_else(any)?;
        self.slots[usize::from(*slot)].socket.as_ref()
    }

    /// A socket listens to these sources of a group from now on. False: there is no such socket.
    pub fn listen(&mut self, id: UdpSocketId, group: IpAddr, filter: Filter) -> bool {
        let Some(socket) = self.get_mut(id) else { return false };
        socket.listens = true;
        match filter.is_none() {
            true => drop(self.filters.remove(&(id, group))),
            false => drop(self.filters.insert((id, group), filter)),
        }
        true
    }

    /// The sockets that get a datagram from `source` to a port of several hosts: those that are
    /// bound to this group, or broadcast, or to every address, unless they listen to other sources
    /// of the group.
    pub fn of_group(
        &self,
        group: IpAddr,
        port: u16,
        source: IpAddr,
    ) -> impl Iterator<Item = &UdpSocket> {
        let addresses = group.wildcards().iter().chain([&group]).copied().collect::<Vec<_>>();
        let slots = addresses.into_iter().filter_map(move |at| self.places.get(&(port, at)));
        let sockets = slots.filter_map(|slot| self.slots[usize::from(*slot)].socket.as_ref());
        sockets.filter(move |socket| {
            let filter = || self.filters.get(&(socket.id, group));
            !socket.listens || filter().is_none_or(|filter| filter.allows(source))
        })
    }

    /// All sockets.
    pub fn iter(&self) -> impl Iterator<Item = &UdpSocket> {
        let all = self.places.values().chain(self.beside.values().flatten());
        all.filter_map(|slot| self.slots[usize::from(*slot)].socket.as_ref())
    }

    /// Whether a socket has exactly this address and port.
    pub fn has(&self, addr: IpAddr, port: u16) -> bool {
        self.places.contains_key(&(port, addr))
    }

    /// Whether a socket has this port, of whatever address.
    pub fn has_port(&self, port: u16) -> bool {
        self.with_port(port).next().is_some()
    }

    /// Whether a socket has this address and port. Nobody has "every address" of one family while
    /// another has that of both.
    fn is_taken(&self, addr: IpAddr, port: u16) -> bool {
        match addr.is_wildcard() {
            true => self.with_port(port).any(|other| other.excludes(addr)),
            false => self.places.contains_key(&(port, addr)),
        }
    }

    /// The addresses of the sockets that have this port.
    fn with_port(&self, port: u16) -> impl Iterator<Item = IpAddr> {
        let (first, last) = (IpAddr([0; 16]), IpAddr([u8::MAX; 16]));
        self.places.range((port, first)..=(port, last)).map(|((_, addr), _)| *addr)
    }

    fn free_slot(&mut self) -> Option<u16> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let slot = u16::try_from(self.slots.len()).ok()?;
        self.slots.push(Slot { generation: 0, socket: None });
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ANY: IpAddr = IpAddr::UNSPECIFIED;
    const ANY_V6: IpAddr = IpAddr::UNSPECIFIED_V6;
    const A: IpAddr = IpAddr::v4([10, 0, 0, 1]);
    const B: IpAddr = IpAddr::v4([10, 0, 0, 2]);

    fn all() -> Looks {
        Looks::new(0, u32::MAX)
    }

    fn cookie(table: &UdpTable, addr: IpAddr, port: u16) -> Option<u64> {
        table.lookup(addr, port).map(|socket| socket.cookie)
    }

    /// RFC 3493 section 5.3: `::` stands for both families, as on Linux.
    #[test]
    fn every_address_of_one_family_or_of_both() {
        let v6 = IpAddr([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        let mut table = UdpTable::new();
        table.bind(ANY, 53, 4).expect("free");
        table.bind(ANY_V6, 54, 6).expect("free");
        table.bind(v6, 53, 7).expect("free");
        let cookie = |addr, port| table.lookup(addr, port).map(|socket| socket.cookie);
        assert_eq!([cookie(A, 53), cookie(v6, 53)], [Some(4), Some(7)]);
        assert_eq!([cookie(A, 54), cookie(v6, 54)], [Some(6), Some(6)]);
        assert_eq!(cookie(ANY_V6, 53), None);
        for (addr, port) in [(ANY_V6, 53), (ANY, 54), (IpAddr::EVERY_V6, 54)] {
            assert_eq!(table.bind(addr, port, 0), Err(BindError::InUse));
        }
        let other = IpAddr([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        table.bind(IpAddr::EVERY_V6, 53, 8).expect("not IPv4's");
        let cookie = |addr| table.lookup(addr, 53).map(|socket| socket.cookie);
        assert_eq!([cookie(A), cookie(v6), cookie(other)], [Some(4), Some(7), Some(8)]);
        assert_eq!(table.bind(ANY_V6, 53, 0), Err(BindError::InUse));
    }

    #[test]
    fn specific_beats_wildcard() {
        let mut table = UdpTable::new();
        table.bind(ANY, 53, 1).unwrap();
        let id = table.bind(A, 53, 2).unwrap();
        assert_eq!((cookie(&table, A, 53), cookie(&table, B, 53)), (Some(2), Some(1)));
        assert_eq!(cookie(&table, A, 54), None);
        assert_eq!(table.unbind(id).map(|socket| socket.cookie), Some(2));
        assert_eq!(cookie(&table, A, 53), Some(1));
    }

    #[test]
    fn both_wildcards_are_one() {
        let mut table = UdpTable::new();
        table.bind("::".parse().unwrap(), 53, 1).unwrap();
        assert_eq!(cookie(&table, A, 53), Some(1));
        assert_eq!(table.bind(ANY, 53, 2), Err(BindError::InUse));
    }

    #[test]
    fn errors() {
        let mut table = UdpTable::new();
        table.bind(A, 53, 1).unwrap();
        assert_eq!(table.bind(A, 53, 2), Err(BindError::InUse));
        assert_eq!(table.bind(A, 0, 2), Err(BindError::NoPort));
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn stale_and_forged_names_are_errors() {
        let mut table = UdpTable::new();
        let old = table.bind(A, 53, 1).unwrap();
        table.unbind(old).unwrap();
        let new = table.bind(A, 54, 2).unwrap();
        assert_eq!(new.slot(), old.slot());
        assert_eq!(table.get(old), None);
        assert_eq!(table.unbind(old), None);
        assert_eq!(table.get(new).map(|socket| socket.port), Some(54));
        assert_eq!(table.get(UdpSocketId(u32::MAX)), None);
    }

    #[test]
    fn processes_that_share_a_place_get_what_arrives_in_turn() {
        let mut table = UdpTable::new();
        let first = table.bind(A, 53, 1).unwrap();
        assert_eq!(table.bind(A, 53, 2), Err(BindError::InUse));
        let second = table.share((A, 53), 2, 7, false).unwrap();
        assert_eq!(cookie(&table, A, 53), Some(1), "a process that only sends takes nothing");
        assert_eq!(table.share((A, 53), 2, 7, true), Ok(second));
        assert_eq!(cookie(&table, A, 53), Some(2));
        let third = table.share((A, 53), 3, 8, true).unwrap();
        assert_eq!((cookie(&table, A, 53), table.len()), (Some(3), 3));
        assert_eq!(table.share((A, 53), 1, 0, true), Ok(first));
        assert_eq!(cookie(&table, A, 53), Some(1));
        // The one that had it before gets it back.
        table.unbind(first).unwrap();
        assert_eq!(cookie(&table, A, 53), Some(3));
        table.unbind_where(|socket| socket.owner == 7);
        assert!(table.get(second).is_none() && table.has(A, 53));
        table.unbind(third).unwrap();
        assert!(table.is_empty() && !table.has(A, 53) && table.beside.is_empty());
    }

    #[test]
    fn as_many_sockets_as_there_are_places() {
        let mut table = UdpTable::new();
        for n in (1..=u16::MAX).rev() {
            table.bind(A, n, 0).unwrap();
        }
        table.bind(B, 1, 0).unwrap();
        assert_eq!(table.bind(B, 2, 0), Err(BindError::TooMany));
        assert_eq!(table.len(), SLOTS_MAX);
    }

    #[test]
    fn ephemeral_ports_are_random_free_and_accepted() {
        let mut table = UdpTable::new();
        let even = |port: u16| port.is_multiple_of(2);
        let (_, first) =
            table.bind_ephemeral(A, 1, (EPHEMERAL_PORTS, 12_345), &mut all(), even).unwrap();
        assert_eq!(first, 32_768 + 12_346);
        let (_, second) =
            table.bind_ephemeral(A, 1, (EPHEMERAL_PORTS, 12_345), &mut all(), even).unwrap();
        assert_eq!(second, first + 2);
        // The same port of another address is free.
        assert_eq!(
            table.bind_ephemeral(B, 1, (EPHEMERAL_PORTS, 12_345), &mut all(), even).unwrap().1,
            first
        );
        assert_eq!(
            table.bind_ephemeral(A, 1, (EPHEMERAL_PORTS, 7), &mut all(), |_| false),
            Err(BindError::NoPort)
        );
        // The last one is found, wherever the search begins.
        let (_, last) = table
            .bind_ephemeral(A, 1, (EPHEMERAL_PORTS, 0), &mut all(), |port| port == 65_535)
            .unwrap();
        assert_eq!(last, 65_535);
        let again =
            table.bind_ephemeral(A, 1, (EPHEMERAL_PORTS, 99), &mut all(), |port| port == 65_535);
        assert_eq!(again, Err(BindError::NoPort));
    }

    #[test]
    fn searches_in_vain_look_at_few_ports() {
        let (mut table, mut looks) = (UdpTable::new(), Looks::new(50_000, 16));
        let asked = std::cell::Cell::new(0);
        for random in 0..2000 {
            let none = table.bind_ephemeral(A, 1, (EPHEMERAL_PORTS, random), &mut looks, |_| {
                asked.set(asked.get() + 1);
                false
            });
            assert_eq!(none, Err(BindError::NoPort));
        }
        // The first one looks at all, the second at what is left.
        assert_eq!(asked.get(), 50_000 + 1998 * 16);
    }

    proptest! {
        /// Against a list: (address, port, cookie, name).
        #[test]
        fn agrees_with_a_list(steps in prop::collection::vec((0u8..5, 0u8..3, 1u16..6), 0..200)) {
            let mut table = UdpTable::new();
            let mut model: Vec<(IpAddr, u16, u64, UdpSocketId)> = Vec::new();
            for (n, (action, addr, port)) in steps.into_iter().enumerate() {
                let addr = [ANY, A, B][usize::from(addr)];
                let known = model.iter().position(|s| (s.0, s.1) == (addr, port));
                if action == 4 {
                    table.unbind_where(|socket| socket.port == port);
                    let (gone, left) = model.into_iter().partition(|s| s.1 == port);
                    model = left;
                    let gone: Vec<(IpAddr, u16, u64, UdpSocketId)> = gone;
                    prop_assert!(gone.iter().all(|s| table.get(s.3).is_none()));
                } else if action > 0 {
                    let bound = table.bind(addr, port, n as u64);
                    prop_assert_eq!(bound.is_err(), known.is_some());
                    model.extend(bound.ok().map(|id| (addr, port, n as u64, id)));
                } else if let Some(at) = known {
                    let (_, _, cookie, id) = model.remove(at);
                    prop_assert_eq!(table.unbind(id).map(|socket| socket.cookie), Some(cookie));
                }
                prop_assert_eq!(table.len(), model.len());
                prop_assert_eq!(table.has_port(port), model.iter().any(|s| s.1 == port));
                prop_assert!(model.iter().all(|s| table.get(s.3).is_some()));
                for (addr, port) in [A, B].iter().flat_map(|a| (1..6).map(|p| (*a, p))) {
                    let of = |wanted| model.iter().find(|s| (s.0, s.1) == (wanted, port));
                    let expected = of(addr).or_else(|| of(ANY)).map(|s| s.2);
                    prop_assert_eq!(cookie(&table, addr, port), expected);
                }
            }
        }
    }
}
