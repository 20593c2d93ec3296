//! The listeners of one elastic thread. A listener serves the flow groups of its thread; an
//! application that wants all connections listens on every elastic thread. Several processes of the
//! program may listen at one address: new connections go to them in turn.
use crate::attachment::Attachments;
use crate::flows::Flows;
use crate::flows::flow::{TcpSocket, Waits};
use crate::flows::flow_of;
use crate::flows::group::FlowGroup;
use crate::flows::handle::FlowId;
use crate::flows::walk::Walk;
use ix_proto::GroupSet;
use ix_proto::crossing::AttachmentId;
use ix_tcp::Listener;
use ix_wire::IpAddr;
use std::collections::BTreeMap;

/// What a listener puts into the IP headers of its replies to SYNs, and of the connections that
/// come of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderFields {
    /// Hop limit; 0: as configured.
    pub hops: u8,
    /// Type of service, without the ECN bits.
    pub tos: u8,
    /// Longest segment both ways, bytes without options; 0: as the device and the path allow.
    pub segment_bytes: u16,
}

/// One listener.
pub struct Listening {
    /// Local address. 0.0.0.0: all own addresses of IPv4; `::`: all of both families;
    /// [`IpAddr::EVERY_V6`]: all of IPv6.
    pub addr: IpAddr,
    /// Local port.
    pub port: u16,
    /// The process of the program that listens.
    pub owner: AttachmentId,
    /// The application's name.
    pub cookie: u64,
    /// The bounded backlog.
    pub backlog: Listener,
    /// A connection that knocks keeps its place in the backlog until the application frees it.
    pub holds: bool,
    /// It gets connections only where no other process listens.
    pub in_reserve: bool,
    /// Until this time, µs, ACKs of SYN cookies may arrive; 0: none was sent.
    pub cookies_until_us: u64,
    /// Nobody finds it any more. Flows may still wait there.
    pub ends: bool,
    /// What connections begin with over IPv4, and over IPv6.
    pub fields: [HeaderFields; 2],
}

impl Listening {
    /// What is in the headers of packets to this address.
    #[inline]
    pub fn fields_to(&self, addr: IpAddr) -> HeaderFields {
        self.fields[usize::from(addr.is_v6())]
    }

    /// False: no flow waits here. Flows that wait at a listener that holds their places are not
    /// counted where they have come from other threads.
    pub fn may_be_waited_at(&self) -> bool {
        self.holds || self.backlog.half_open() + self.backlog.knocking() > 0
    }

    /// Counts a waiting flow that comes from another thread's listener, or goes there.
    pub fn count_moved(&mut self, waits: Waits, comes: bool) {
        match (waits, comes) {
            (Waits::HalfOpen, true) => self.backlog.half_open_came(),
            (Waits::HalfOpen, false) => self.backlog.half_open_died(),
            // The place stays with the thread at which it knocked, and is freed there.
            (Waits::Knocking, _) if self.holds => {}
            (Waits::Knocking, true) => self.backlog.knocking_came(),
            (Waits::Knocking, false) => self.backlog.accepted(),
            (Waits::Nowhere, _) => {}
        }
    }
}

struct Slot {
    generation: u32,
    listening: Option<Listening>,
}

/// All listeners of a thread.
#[derive(Default)]
pub struct Listeners {
    slots: Vec<Slot>,
    /// Without those that end.
    by_port: BTreeMap<u16, Vec<u16>>,
    /// Slots of those that end, and for which no flow was looked at yet.
    ending: Vec<u16>,
    /// Slots of those that end, in order, for which flows are being looked at; and how far that is.
    leaving: Vec<u16>,
    walk: Walk,
    /// Grows with each connection to an address at which several listen.
    turn: usize,
}

/// Most listeners of one thread.
const LISTENERS_MAX: usize = 4096;
/// The same with those that end.
const SLOTS_MAX: usize = 2 * LISTENERS_MAX;

/// Why a listener cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenError {
    /// Another listener of the same process has this address and port.
    InUse,
    /// Too many listeners.
    TooMany,
}

impl Listeners {
    /// Adds a listener; returns its id.
    pub fn add(&mut self, listening: Listening) -> Result<u64, ListenError> {
        let port = listening.port;
        let (addr, owner) = (listening.addr, listening.owner);
        let is_same = |other: &Listening| other.owner == owner && other.addr.excludes(addr);
        let taken = |slot: &u16| self.get_slot(*slot).is_some_and(is_same);
        if self.by_port.get(&port).is_some_and(|slots| slots.iter().any(taken)) {
            return Err(ListenError::InUse);
        }
        let ending = self.ending.len() + self.leaving.len();
        let free = self.slots.iter().position(|slot| slot.listening.is_none());
        let index = match free {
            Some(index) => index,
            None if self.slots.len() < SLOTS_MAX && self.slots.len() - ending < LISTENERS_MAX => {
                self.slots.push(Slot { generation: 1, listening: None });
                self.slots.len() - 1
            }
            None => return Err(ListenError::TooMany),
        };
        self.slots[index].listening = Some(listening);
        self.by_port.entry(port).or_default().push(index as u16);
        // Cookies of another process's listener are good for this one, too.
        let others = self.all_at(addr, port).filter_map(|slot| self.get_slot(slot));
        let until_us = others.map(|other| other.cookies_until_us).max().unwrap_or(0);
        self.expect_cookies(index as u16, until_us);
        Ok((self.slots[index].generation as u64) << 16 | index as u64)
    }

    /// The slot of an id, unless the id is stale.
    pub fn slot_of(&self, id: u64) -> Option<u16> {
        let index = (id & 0xffff) as usize;
        let slot = self.slots.get(index)?;
        (slot.listening.is_some() && slot.generation as u64 == id >> 16).then_some(index as u16)
    }

    /// The listener of this slot ends: nobody finds it any more, and its id is stale. The slot
    /// stays its own until [`Listeners::remove`].
    pub fn begin_to_end(&mut self, slot: u16) {
        let entry = &mut self.slots[slot as usize];
        let Some(listening) = entry.listening.as_mut().filter(|listening| !listening.ends) else {
            return;
        };
        listening.ends = true;
        entry.generation = entry.generation.wrapping_add(1).max(1);
        if let Some(slots) = self.by_port.get_mut(&listening.port) {
            slots.retain(|other| *other != slot);
            if slots.is_empty() {
                self.by_port.remove(&listening.port);
            }
        }
        self.ending.push(slot);
    }

    /// Whether any listener ends.
    #[inline]
    pub fn is_any_ending(&self) -> bool {
        !self.ending.is_empty() || !self.leaving.is_empty()
    }

    /// Whether any listener of this process ends.
    pub fn is_any_of_ending(&self, owner: AttachmentId) -> bool {
        let mut ending = self.ending.iter().chain(&self.leaving);
        ending.any(|slot| self.owner_of(*slot) == Some(owner))
    }

    /// Whether this one ends.
    pub fn ends(&self, slot: u16) -> bool {
        self.get_slot(slot).is_some_and(|listening| listening.ends)
    }

    /// Some of the flows that may wait at a listener that ends, until [`Listeners::take_ended`] has
    /// answered with that listener. Each flow of the thread has to be looked at, once for all that
    /// end at a time.
    pub fn next_waiting(&mut self, flows: &Flows) -> Vec<FlowId> {
        if self.leaving.is_empty() {
            self.leaving = std::mem::take(&mut self.ending);
            self.leaving.sort_unstable();
            self.walk = Walk::default();
        }
        if self.is_any_waited_at() { self.walk.next_flows(flows) } else { Vec::new() }
    }

    fn is_any_waited_at(&self) -> bool {
        let mut leaving = self.leaving.iter().filter_map(|slot| self.get_slot(*slot));
        leaving.any(Listening::may_be_waited_at)
    }

    /// Listeners at which no flow waits any more. To be followed by [`Listeners::remove`] of each.
    pub fn take_ended(&mut self, flows: &Flows) -> Vec<u16> {
        if self.walk.is_through(flows) || !self.is_any_waited_at() {
            std::mem::take(&mut self.leaving)
        } else {
            Vec::new()
        }
    }

    /// Removes a listener that ends.
    pub fn remove(&mut self, slot: u16) {
        self.slots[slot as usize].listening = None;
    }

    /// The slot of the listener for an address and port: one with exactly this address, else one
    /// for all.
    pub fn find(&self, addr: IpAddr, port: u16) -> Option<u16> {
        let slots = self.by_port.get(&port)?;
        let serves = |wanted: IpAddr| {
            slots.iter().copied().find(|s| self.get_slot(*s).is_some_and(|l| l.addr == wanted))
        };
        serves(addr).or_else(|| addr.wildcards().iter().copied().find_map(serves))
    }

    /// Removes a flow from its listener's backlog, if it waits there.
    pub fn stop_waiting(&mut self, socket: &mut TcpSocket) {
        let waits = std::mem::replace(&mut socket.waits, Waits::Nowhere);
        let Some(listening) = self.get(socket.listener) else { return };
        match waits {
            Waits::HalfOpen => listening.backlog.half_open_died(),
            Waits::Knocking if listening.holds => {}
            Waits::Knocking => listening.backlog.accepted(),
            Waits::Nowhere => {}
        }
    }

    /// The slots of the listeners with exactly this address and port.
    fn all_at(&self, addr: IpAddr, port: u16) -> impl Iterator<Item = u16> {
        let slots = self.by_port.get(&port).into_iter().flatten().copied();
        slots.filter(move |slot| self.get_slot(*slot).is_some_and(|l| l.addr == addr))
    }

    /// The slot of the listener with exactly this address and port: that of `owner`, or else of
    /// another process.
    pub fn find_exact(&self, addr: IpAddr, port: u16, owner: AttachmentId) -> Option<u16> {
        let is_its = |slot: &u16| self.get_slot(*slot).is_some_and(|l| l.owner == owner);
        let own = self.all_at(addr, port).find(is_its);
        own.or_else(|| self.all_at(addr, port).next())
    }

    /// The slots of all listeners at the address of this one, itself included.
    fn sharers(&self, slot: u16) -> Vec<u16> {
        self.get_slot(slot).map_or(Vec::new(), |l| self.all_at(l.addr, l.port).collect())
    }

    /// Those of them that get connections: the ones in reserve only if there are no others.
    fn in_turn(&self, slot: u16) -> Vec<u16> {
        let mut all = self.sharers(slot);
        let is_first = |slot: &u16| self.get_slot(*slot).is_some_and(|l| !l.in_reserve);
        if all.iter().any(is_first) {
            all.retain(is_first);
        }
        all
    }

    /// Of the listeners at the address of this one the one that gets the next connection: they take
    /// turns, those whose process is present first.
    #[inline]
    pub fn share_out(&mut self, slot: u16, attached: &Attachments) -> u16 {
        let port = self.get_slot(slot).map_or(0, |l| l.port);
        match self.by_port.get(&port) {
            Some(slots) if slots.len() > 1 => self.next_of_several(slot, attached),
            _ => slot,
        }
    }

    #[cold]
    fn next_of_several(&mut self, slot: u16, attached: &Attachments) -> u16 {
        let all = self.in_turn(slot);
        let is_here =
            |slot: &&u16| self.get_slot(**slot).is_some_and(|l| attached.is_present(l.owner));
        let here: Vec<u16> = all.iter().filter(is_here).copied().collect();
        let of = if here.is_empty() { all } else { here };
        self.turn = self.turn.wrapping_add(1);
        of.get(self.turn % of.len().max(1)).copied().unwrap_or(slot)
    }

    /// Whether the process of a listener at the address of this one is present that may get its
    /// connections.
    pub fn is_any_present(&self, slot: u16, attached: &Attachments) -> bool {
        let is_here = |slot: u16| self.get_slot(slot).is_some_and(|l| attached.is_present(l.owner));
        self.in_turn(slot).into_iter().any(is_here)
    }

    /// Another listener at the address of this one, not of this process.
    pub fn other_than(&self, slot: u16, owner: AttachmentId) -> Option<u16> {
        let is_other = |slot: &u16| self.get_slot(*slot).is_some_and(|l| l.owner != owner);
        self.in_turn(slot).into_iter().find(is_other)
    }

    /// Gives a flow that waits at a listener to another one at the same address.
    pub fn give(&mut self, socket: &mut TcpSocket, to: u16) {
        let waits = socket.waits;
        if let Some(from) = self.get(socket.listener) {
            from.count_moved(waits, false);
        }
        if let Some(listening) = self.get(to) {
            listening.count_moved(waits, true);
            (socket.listener, socket.owner) = (to, listening.owner);
        }
    }

    /// Gives a flow that waits at a listener whose process is absent to one whose process is not.
    #[cold]
    pub fn give_to_present(&mut self, socket: &mut TcpSocket, attached: &Attachments) {
        let to = self.share_out(socket.listener, attached);
        if self.owner_of(to).is_some_and(|owner| attached.is_present(owner)) {
            self.give(socket, to);
        }
    }

    /// ACKs of SYN cookies may arrive until this time at the address of this listener.
    pub fn expect_cookies(&mut self, slot: u16, until_us: u64) {
        for slot in self.sharers(slot) {
            if let Some(listening) = self.get(slot) {
                listening.cookies_until_us = listening.cookies_until_us.max(until_us);
            }
        }
    }

    /// The same for the listeners with exactly this address and port.
    pub fn expect_cookies_at(&mut self, addr: IpAddr, port: u16, until_us: u64) {
        let slot = self.all_at(addr, port).next();
        slot.into_iter().for_each(|slot| self.expect_cookies(slot, until_us));
    }

    /// Slots of the listeners of a process.
    pub fn of(&self, owner: AttachmentId) -> Vec<u16> {
        let all = (0..).zip(&self.slots);
        let is_its = |slot: &Slot| slot.listening.as_ref().is_some_and(|l| l.owner == owner);
        all.filter(|(_, slot)| is_its(slot)).map(|(index, _)| index).collect()
    }

    /// The process of a listener.
    pub fn owner_of(&self, slot: u16) -> Option<AttachmentId> {
        self.get_slot(slot).map(|listening| listening.owner)
    }

    /// Whether a flow waits at a listener.
    pub fn anybody_waits(&self) -> bool {
        let waits = |l: &Listening| l.backlog.half_open() + l.backlog.knocking() > 0;
        self.slots.iter().filter_map(|slot| slot.listening.as_ref()).any(waits)
    }

    /// Listeners whose SYN cookies may still be acknowledged, and until when.
    pub fn cookies(&self, now_us: u64) -> Vec<(IpAddr, u16, u64)> {
        let all = self.slots.iter().filter_map(|slot| slot.listening.as_ref());
        let valid = all.filter(|l| l.cookies_until_us > now_us);
        valid.map(|l| (l.addr, l.port, l.cookies_until_us)).collect()
    }

    /// The listener of a slot.
    pub fn get(&mut self, slot: u16) -> Option<&mut Listening> {
        self.slots.get_mut(slot as usize)?.listening.as_mut()
    }

    pub(super) fn get_slot(&self, slot: u16) -> Option<&Listening> {
        self.slots.get(slot as usize)?.listening.as_ref()
    }

    /// Removes flows of these groups that are not accepted yet from their listeners' backlogs.
    /// Returns where each has waited.
    pub(crate) fn leave(
        &mut self,
        groups: &mut [Option<Box<FlowGroup>>],
        leaving: &GroupSet,
    ) -> Vec<(FlowId, IpAddr, u16)> {
        let mut waiting = Vec::new();
        if !self.anybody_waits() {
            return waiting;
        }
        for number in leaving.iter() {
            let Some(group) = groups[number].as_mut() else { continue };
            for id in group.ids_where(|flow| flow.socket.waits != Waits::Nowhere) {
                let Some(flow) = group.get(id) else { continue };
                let Some(listening) = self.get(flow.socket.listener) else { continue };
                waiting.push((id, listening.addr, listening.port));
                listening.count_moved(flow.socket.waits, false);
            }
        }
        waiting
    }

    /// Adds arrived flows to the backlog of this thread's listener with the same address and port.
    /// If there is none, they can still be accepted; those that have not knocked yet will be
    /// refused.
    pub(crate) fn join(
        &mut self,
        groups: &mut [Option<Box<FlowGroup>>],
        waiting: &[(FlowId, IpAddr, u16)],
    ) {
        for (id, addr, port) in waiting {
            let Some(flow) = flow_of(groups, *id) else { continue };
            let slot = self.find_exact(*addr, *port, flow.socket.owner);
            match slot.and_then(|slot| Some((slot, self.get(slot)?))) {
                // Another process was told of it already, and has no listener here.
                Some((_, other))
                    if flow.socket.waits == Waits::Knocking && other.owner != flow.socket.owner =>
                {
                    flow.socket.listener = u16::MAX;
                    flow.socket.waits = Waits::Nowhere;
                }
                Some((slot, listening)) => {
                    listening.count_moved(flow.socket.waits, true);
                    (flow.socket.listener, flow.socket.owner) = (slot, listening.owner);
                }
                None => {
                    flow.socket.listener = u16::MAX;
                    flow.socket.waits = Waits::Nowhere;
                }
            }
        }
    }

    /// Number of unfinished handshakes of all listeners.
    pub fn half_open(&self) -> u64 {
        let half_open = |slot: &Slot| slot.listening.as_ref().map(|l| l.backlog.half_open() as u64);
        self.slots.iter().filter_map(half_open).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(addr: [u8; 4], port: u16) -> Listening {
        Listening {
            addr: IpAddr::v4(addr),
            port,
            owner: 0,
            cookie: 0,
            backlog: Listener::new(8, 8),
            holds: false,
            in_reserve: false,
            cookies_until_us: 0,
            ends: false,
            fields: Default::default(),
        }
    }

    #[test]
    fn specific_beats_wildcard_and_ids_go_stale() {
        let mut all = Listeners::default();
        let any = all.add(on([0, 0, 0, 0], 80)).unwrap();
        let one = all.add(on([10, 0, 0, 1], 80)).unwrap();
        assert_eq!(all.add(on([10, 0, 0, 1], 80)), Err(ListenError::InUse));
        let find = |all: &Listeners, a: [u8; 4]| all.find(IpAddr::v4(a), 80);
        assert_eq!(find(&all, [10, 0, 0, 1]), all.slot_of(one));
        assert_eq!(find(&all, [10, 0, 0, 2]), all.slot_of(any));
        let slot = all.slot_of(one).unwrap();
        all.begin_to_end(slot);
        let flows = Flows::new(|_| false, 0);
        assert!(all.ends(slot) && all.next_waiting(&flows).is_empty());
        assert_eq!(all.take_ended(&flows), [slot]);
        all.remove(slot);
        assert_eq!(all.slot_of(one), None);
        assert_eq!(find(&all, [10, 0, 0, 1]), all.slot_of(any));
        let again = all.add(on([10, 0, 0, 1], 80)).unwrap();
        assert_ne!(one, again);
        for hostile in [u64::MAX, 0, 77] {
            assert_eq!(all.slot_of(hostile), None);
        }
    }
    /// RFC 3493 section 5.3: `::` stands for both families, as on Linux.
    #[test]
    fn every_address_of_one_family_or_of_both() {
        let v6 = |last: u8| IpAddr([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        let on_v6 = |addr: IpAddr, port| Listening { addr, ..on([0; 4], port) };
        let mut all = Listeners::default();
        all.add(on([0; 4], 80)).expect("free");
        let one = all.add(on_v6(v6(1), 80)).expect("free");
        let both = all.add(on_v6(IpAddr::UNSPECIFIED_V6, 81)).expect("free");
        assert_eq!(all.find(v6(1), 80), all.slot_of(one));
        assert_eq!(all.find(v6(2), 80), None);
        assert_eq!(all.find(v6(2), 81), all.slot_of(both));
        assert_eq!(all.find(IpAddr::v4([10, 0, 0, 1]), 81), all.slot_of(both));
        let only_v6 = |port| on_v6(IpAddr::EVERY_V6, port);
        for taken in [on_v6(IpAddr::UNSPECIFIED_V6, 80), on([0; 4], 81), only_v6(81)] {
            assert_eq!(all.add(taken), Err(ListenError::InUse));
        }
        // Both families at one port, each with a listener of its own.
        let other = all.add(only_v6(80)).expect("not IPv4's");
        assert_eq!(all.find(v6(2), 80), all.slot_of(other));
        assert_ne!(all.find(IpAddr::v4([10, 0, 0, 1]), 80), all.slot_of(other));
        assert_eq!(all.add(on_v6(IpAddr::UNSPECIFIED_V6, 80)), Err(ListenError::InUse));
    }
}
