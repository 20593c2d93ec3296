//! The listeners of one elastic thread. A listener serves the flow groups of its thread; an
//! application that wants all connections listens on every elastic thread.
use crate::flows::flow::{TcpSocket, Waits};
use crate::flows::flow_of;
use crate::flows::group::FlowGroup;
use crate::flows::handle::FlowId;
use ix_proto::GroupSet;
use ix_tcp::Listener;
use ix_wire::IpAddr;
use std::collections::BTreeMap;

/// One listener.
pub struct Listening {
    /// Local address; unspecified: all own addresses.
    pub addr: IpAddr,
    /// Local port.
    pub port: u16,
    /// The application's name.
    pub cookie: u64,
    /// The bounded backlog.
    pub backlog: Listener,
    /// A connection that knocks keeps its place in the backlog until the application frees it.
    pub holds: bool,
    /// Until this time, µs, ACKs of SYN cookies may arrive; 0: none was sent.
    pub cookies_until_us: u64,
}

impl Listening {
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
    by_port: BTreeMap<u16, Vec<u16>>,
}

/// Most listeners of one thread.
const LISTENERS_MAX: usize = 4096;

/// Why a listener cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenError {
    /// Another listener has this address and port.
    InUse,
    /// Too many listeners.
    TooMany,
}

impl Listeners {
    /// Adds a listener; returns its id.
    pub fn add(&mut self, listening: Listening) -> Result<u64, ListenError> {
        let port = listening.port;
        let taken =
            |slot: &u16| self.get_slot(*slot).is_some_and(|other| other.addr == listening.addr);
        if self.by_port.get(&port).is_some_and(|slots| slots.iter().any(taken)) {
            return Err(ListenError::InUse);
        }
        let free = self.slots.iter().position(|slot| slot.listening.is_none());
        let index = match free {
            Some(index) => index,
            None if self.slots.len() < LISTENERS_MAX => {
                self.slots.push(Slot { generation: 1, listening: None });
                self.slots.len() - 1
            }
            None => return Err(ListenError::TooMany),
        };
        self.slots[index].listening = Some(listening);
        self.by_port.entry(port).or_default().push(index as u16);
        Ok((self.slots[index].generation as u64) << 16 | index as u64)
    }

    /// The slot of an id, unless the id is stale.
    pub fn slot_of(&self, id: u64) -> Option<u16> {
        let index = (id & 0xffff) as usize;
        let slot = self.slots.get(index)?;
        (slot.listening.is_some() && slot.generation as u64 == id >> 16).then_some(index as u16)
    }

    /// Removes the listener of a slot.
    pub fn remove(&mut self, slot: u16) {
        let entry = &mut self.slots[slot as usize];
        let Some(listening) = entry.listening.take() else { return };
        entry.generation = entry.generation.wrapping_add(1).max(1);
        if let Some(slots) = self.by_port.get_mut(&listening.port) {
            slots.retain(|other| *other != slot);
            if slots.is_empty() {
                self.by_port.remove(&listening.port);
            }
        }
    }

    /// The slot of the listener for an address and port: one with exactly this address, else one
    /// for all.
    pub fn find(&self, addr: IpAddr, port: u16) -> Option<u16> {
        let slots = self.by_port.get(&port)?;
        let serves = |wanted: IpAddr| {
            slots.iter().copied().find(|s| self.get_slot(*s).is_some_and(|l| l.addr == wanted))
        };
        serves(addr).or_else(|| serves(IpAddr::UNSPECIFIED))
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

    /// The slot of the listener with exactly this address and port.
    pub fn find_exact(&self, addr: IpAddr, port: u16) -> Option<u16> {
        let mut slots = self.by_port.get(&port)?.iter().copied();
        slots.find(|slot| self.get_slot(*slot).is_some_and(|l| l.addr == addr))
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

    fn get_slot(&self, slot: u16) -> Option<&Listening> {
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
            let slot = self.find_exact(*addr, *port);
            let Some(flow) = flow_of(groups, *id) else { continue };
            match slot.and_then(|slot| Some((slot, self.get(slot)?))) {
                Some((slot, listening)) => {
                    flow.socket.listener = slot;
                    listening.count_moved(flow.socket.waits, true);
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
            cookie: 0,
            backlog: Listener::new(8, 8),
            holds: false,
            cookies_until_us: 0,
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
        all.remove(slot);
        assert_eq!(all.slot_of(one), None);
        assert_eq!(find(&all, [10, 0, 0, 1]), all.slot_of(any));
        let again = all.add(on([10, 0, 0, 1], 80)).unwrap();
        assert_ne!(one, again);
        for hostile in [u64::MAX, 0, 77] {
            assert_eq!(all.slot_of(hostile), None);
        }
    }
}
