//! Which way packets of a group go from here, and how a third thread changes the way.
use super::message::Message;
use super::{Migrations, OVERDUE_US};
use crate::cycle::ElasticThread;
use crate::receive::forwarding::Forwarded;
use ix_nic::RxPacket;
use std::collections::VecDeque;

/// The route of packets that wait for something.
pub const HELD: u16 = u16::MAX;

/// Where a packet of a batch comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The device it came in on.
    pub port: u8,
    /// The thread that handed it over, [`Origin::DEVICE`], or [`Origin::REPLAY`].
    pub from: u8,
}

impl Origin {
    /// From a device of this thread.
    pub const DEVICE: u8 = u8::MAX;
    /// It was held, and has waited long enough.
    pub const REPLAY: u8 = u8::MAX - 1;
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// This thread handles it now.
    Here,
    /// This thread handles it.
    To(usize),
    /// It waits.
    Hold,
}

/// A group whose packets from here take a new way as soon as the old one is empty.
pub struct Switching {
    pub group: usize,
    pub held: VecDeque<Forwarded>,
    /// Then the old way is given up.
    pub until_us: u64,
}

impl Migrations {
    /// Whether packets of a group are handled here, as they come.
    #[inline]
    pub fn is_home(&self, group: usize, index: usize) -> bool {
        usize::from(self.routes[group]) == index
    }

    /// The next packet that has waited long enough.
    pub fn pop_replay(&mut self) -> Option<Forwarded> {
        self.replay.pop_front()
    }

    /// A message came in; it is heard when the batch has been handled.
    pub fn receive(&mut self, from: usize, message: Message) {
        self.inbox.push((from, message));
        self.active = true;
    }

    /// Packets that wait here for a migration.
    fn held(&self) -> usize {
        let incoming = self.incoming.iter().map(|i| i.remote.len() + i.local.len());
        let outgoing = self.outgoing.iter().map(|o| o.held.len());
        let switching = self.switching.iter().map(|s| s.held.len());
        incoming.chain(outgoing).chain(switching).sum::<usize>() + self.replay.len()
    }

    /// Where packets of a group wait now.
    fn queue(&mut self, group: usize, from: u8) -> Option<&mut VecDeque<Forwarded>> {
        let Migrations { incoming, outgoing, switching, .. } = self;
        if let Some(incoming) = incoming.iter_mut().find(|i| i.keeps(group)) {
            return Some(incoming.queue(from));
        }
        if let Some(outgoing) = outgoing.iter_mut().find(|o| o.holds(group)) {
            return Some(&mut outgoing.held);
        }
        switching.iter_mut().find(|s| s.group == group).map(|s| &mut s.held)
    }
}

impl ElasticThread {
    /// Whether so many packets are held that devices should keep theirs.
    pub(crate) fn holds_too_many(&self) -> bool {
        self.migrations.is_active() && self.migrations.held() > self.io.rx_pool.owned() / 4
    }

    /// What becomes of a packet whose group is not simply this thread's.
    #[cold]
    pub(crate) fn way(&mut self, group: usize, from: u8) -> Way {
        let Migrations { routes, sent, incoming, .. } = &mut self.migrations;
        let route = routes[group];
        if route == HELD {
            let open = incoming.iter().any(|i| i.keeps(group) && i.is_open_to(from));
            return if open { Way::Here } else { Way::Hold };
        }
        let owner = self.shared.owner(group);
        if owner == usize::from(route) || owner == self.io.index {
            sent.insert(group);
            Way::To(usize::from(route))
        } else if !sent.contains(group) {
            // Nothing is on the old way.
            routes[group] = owner as u16;
            sent.insert(group);
            Way::To(owner)
        } else {
            self.switch(group);
            Way::Hold
        }
    }

    /// Sends a packet its way, which is not [`Way::Here`].
    pub(crate) fn send_on(&mut self, way: Way, group: usize, origin: Origin, packet: RxPacket) {
        let port = origin.port;
        if let Way::To(thread) = way {
            return self.hand_over(thread, port, packet);
        }
        let serial = self.migrations.incoming.iter_mut().find(|i| i.keeps(group));
        if origin.from == Origin::DEVICE
            && let Some((from, serial)) = serial.and_then(|incoming| incoming.first())
        {
            self.tell_thread(from, Message::First(serial));
        }
        match self.migrations.queue(group, origin.from) {
            Some(queue) => queue.push_back(Forwarded::Packet { port, packet }),
            // Cannot be: what is held is held by somebody.
            None => {
                self.io.metrics.counters.misrouted.add(1);
                self.io.rx_pool.put(packet.mbuf);
            }
        }
    }

    /// Asks along the old way, and holds what comes meanwhile.
    pub(super) fn switch(&mut self, group: usize) {
        let old = usize::from(self.migrations.routes[group]);
        self.migrations.routes[group] = HELD;
        let until_us = self.io.now_us.saturating_add(OVERDUE_US);
        let held = VecDeque::new();
        self.migrations.switching.push(Switching { group, held, until_us });
        self.migrations.active = true;
        let asks = self.io.index as u16;
        self.tell_thread(old, Message::Where { group: group as u8, asks });
    }

    /// A third thread asks whose a group is: the question goes the way of packets.
    pub(super) fn hear_question(&mut self, group: u8, asks: u16, from: usize, _now_us: u64) {
        let (number, asks_thread) = (usize::from(group), usize::from(asks));
        let Some(&route) = self.migrations.routes.get(number) else { return };
        if usize::from(route) == self.io.index {
            return self.tell_thread(asks_thread, Message::Here { group });
        }
        if route != HELD {
            self.migrations.sent.insert(number);
            return self.tell_thread(usize::from(route), Message::Where { group, asks });
        }
        let question = Forwarded::Message(Message::Where { group, asks });
        // Here, or on its way here: behind what was held before it.
        let from = if from == self.io.index { Origin::REPLAY } else { from as u8 };
        let open = self.migrations.incoming.iter().any(|i| i.keeps(number) && i.is_open_to(from));
        let leaving = self.migrations.outgoing.iter().any(|o| o.holds(number));
        if open || leaving {
            self.tell_thread(asks_thread, Message::Here { group });
        } else if let Some(queue) = self.migrations.queue(number, from) {
            queue.push_back(question);
        }
    }

    /// The owner says that the old way is empty.
    pub(super) fn hear_answer(&mut self, group: u8, owner: usize) {
        self.take_new_way(usize::from(group), owner);
    }

    fn take_new_way(&mut self, group: usize, owner: usize) {
        let switching = &mut self.migrations.switching;
        let Some(at) = switching.iter().position(|s| s.group == group) else { return };
        let Switching { held, .. } = switching.swap_remove(at);
        self.migrations.routes[group] = owner as u16;
        self.migrations.sent.remove(group);
        self.hand_over_all(group, owner, held);
    }

    /// Hands held packets of a group to its owner.
    pub(super) fn hand_over_all(&mut self, group: usize, owner: usize, held: VecDeque<Forwarded>) {
        for item in held {
            self.migrations.sent.insert(group);
            match item {
                Forwarded::Packet { port, packet } => self.hand_over(owner, port, packet),
                Forwarded::Message(message) => self.tell_thread(owner, message),
            }
        }
    }

    /// Nobody answers: a thread on the old way is in its application.
    pub(super) fn give_up_switching(&mut self, now_us: u64) {
        let overdue = |s: &Switching| s.until_us <= now_us;
        while let Some(switching) = self.migrations.switching.iter().find(|s| overdue(s)) {
            let group = switching.group;
            let owner = self.shared.owner(group);
            self.take_new_way(group, owner);
        }
    }
}
