//! Which way packets of a group take from here, and how a third thread changes it.
use super::message::{Forwarded, Message};
use super::planted::{self, Bug};
use super::{Action, Migrations, OVERDUE_US, Sight};
use crate::flows::handle::FlowId;
use crate::receive::batch::{Origin, Via};
use ix_nic::RxPacket;
use std::collections::VecDeque;

/// The route of packets that wait for something.
pub const HELD: u16 = u16::MAX;

/// What is done with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// This thread processes it now.
    Here,
    /// It is handed to this thread.
    To(usize),
    /// It waits.
    Hold,
}

/// A group whose packets take a new way from here, as soon as the old way is empty.
pub struct Switching {
    pub group: usize,
    pub held: VecDeque<Forwarded>,
    /// After this time the old way is given up.
    pub until_us: u64,
}

impl Migrations {
    /// Whether packets of a group are processed here as they arrive.
    #[inline]
    pub fn is_home(&self, group: usize) -> bool {
        usize::from(self.routes[group]) == self.index
    }

    /// Removes the next packet that has waited long enough.
    pub fn pop_replay(&mut self) -> Option<Forwarded> {
        self.replay.pop_front()
    }

    /// Stores a message, which is processed after the batch.
    pub fn receive(&mut self, from: usize, message: Message) {
        self.inbox.push((from, message));
        self.active = true;
    }

    /// Number of packets that wait here for a migration.
    fn held(&self) -> usize {
        let incoming = self.incoming.iter().map(|i| i.remote.len() + i.local.len());
        let outgoing = self.outgoing.iter().map(|o| o.held.len());
        let switching = self.switching.iter().map(|s| s.held.len());
        incoming.chain(outgoing).chain(switching).sum::<usize>() + self.replay.len()
    }

    /// The queue in which packets of a group wait now.
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

impl Migrations {
    /// Whether no event about a group's flows may be written here: the program was told that they
    /// leave, or has not said yet under which names it knows those that have arrived. An event
    /// would have a name that the program does not know any more.
    pub fn is_silent(&self, group: usize) -> bool {
        self.outgoing.iter().any(|outgoing| outgoing.holds(group))
            || self.incoming.iter().any(|incoming| incoming.is_silent(group))
    }

    /// Keeps a flow that has news until its group is not silent any more. Returns false if it is
    /// not silent now.
    #[cold]
    pub fn keep_news(&mut self, id: FlowId) -> bool {
        let (group, Migrations { outgoing, incoming, .. }) = (usize::from(id.group), self);
        let leaving = outgoing.iter_mut().find(|outgoing| outgoing.holds(group));
        let list = match leaving {
            Some(outgoing) => &mut outgoing.to_announce,
            None => match incoming.iter_mut().find(|incoming| incoming.is_silent(group)) {
                Some(incoming) => &mut incoming.to_announce,
                None => return false,
            },
        };
        list.push(id);
        true
    }

    /// Whether more than a quarter of `owned` frames is held, so that devices should keep their
    /// packets.
    pub fn holds_too_many(&self, owned: usize) -> bool {
        self.active && self.held() > owned / 4
    }

    /// What to do with a packet whose group may not be this thread's.
    #[cold]
    pub fn way(&mut self, group: usize, from: u8, sight: &impl Sight) -> Way {
        let owner = sight.owner(group);
        let Migrations { routes, sent, incoming, index, .. } = self;
        let route = routes[group];
        if route == HELD {
            let open = incoming.iter().any(|i| i.keeps(group) && i.is_open_to(from));
            return if open { Way::Here } else { Way::Hold };
        }
        if owner == usize::from(route) || owner == *index {
            sent.insert(group);
            Way::To(usize::from(route))
        } else if !sent.contains(group) || planted::is(Bug::NoQuestion) {
            // The old way is empty.
            routes[group] = owner as u16;
            sent.insert(group);
            Way::To(owner)
        } else {
            self.switch(group, sight.now_us());
            Way::Hold
        }
    }

    /// Stores a packet whose way is [`Way::Hold`] with the others of its group.
    pub fn hold(&mut self, group: usize, origin: Origin, packet: RxPacket) {
        let (port, looped) = (origin.port, origin.from.is_looped());
        let serial = self.incoming.iter_mut().find(|i| i.keeps(group));
        if origin.from == Via::NEW
            && let Some((from, serial)) = serial.and_then(|incoming| incoming.first())
        {
            self.tell(from, Message::First(serial));
        }
        match self.queue(group, origin.from.number()) {
            Some(queue) => queue.push_back(Forwarded::Packet { port, looped, packet }),
            // Cannot happen: each held packet is held for a migration.
            None => self.act(Action::Misrouted(packet)),
        }
    }

    /// Asks on the old way, and holds packets that arrive meanwhile.
    pub(super) fn switch(&mut self, group: usize, now_us: u64) {
        let old = usize::from(self.routes[group]);
        self.routes[group] = HELD;
        let until_us = now_us.saturating_add(OVERDUE_US);
        let held = VecDeque::new();
        self.switching.push(Switching { group, held, until_us });
        self.active = true;
        let asks = self.index as u16;
        self.tell(old, Message::Where { group: group as u8, asks });
    }

    /// A third thread asks which thread owns a group: the question takes the way of packets.
    pub(super) fn hear_question(&mut self, group: u8, asks: u16, from: usize) {
        let (number, asks_thread) = (usize::from(group), usize::from(asks));
        let Some(&route) = self.routes.get(number) else { return };
        if usize::from(route) == self.index {
            return self.tell(asks_thread, Message::Here { group });
        }
        if route != HELD {
            self.sent.insert(number);
            return self.tell(usize::from(route), Message::Where { group, asks });
        }
        let question = Forwarded::Message(Message::Where { group, asks });
        // The group is here or on its way here: the question goes behind what was held before it.
        let from = if from == self.index { Via::REPLAY } else { from as u8 };
        let open = self.incoming.iter().any(|i| i.keeps(number) && i.is_open_to(from));
        let leaving = self.outgoing.iter().any(|o| o.holds(number));
        if open || leaving {
            self.tell(asks_thread, Message::Here { group });
        } else if let Some(queue) = self.queue(number, from) {
            queue.push_back(question);
        }
    }

    /// The owner replies that the old way is empty.
    pub(super) fn hear_answer(&mut self, group: u8, owner: usize) {
        self.take_new_way(usize::from(group), owner);
    }

    fn take_new_way(&mut self, group: usize, owner: usize) {
        let switching = &mut self.switching;
        let Some(at) = switching.iter().position(|s| s.group == group) else { return };
        let Switching { held, .. } = switching.swap_remove(at);
        self.routes[group] = owner as u16;
        self.sent.remove(group);
        self.hand_over_all(group, owner, held);
    }

    /// Hands held packets of a group to its owner.
    pub(super) fn hand_over_all(&mut self, group: usize, owner: usize, held: VecDeque<Forwarded>) {
        for item in held {
            self.sent.insert(group);
            match item {
                Forwarded::Packet { port, looped, packet } => {
                    self.act(Action::HandOver { to: owner, port, looped, packet })
                }
                Forwarded::Message(message) => self.tell(owner, message),
            }
        }
    }

    /// There is no reply: a thread on the old way is in its application.
    pub(super) fn give_up_switching(&mut self, sight: &impl Sight) {
        let now_us = sight.now_us();
        let overdue = |s: &Switching| s.until_us <= now_us;
        while let Some(switching) = self.switching.iter().find(|s| overdue(s)) {
            let group = switching.group;
            let owner = sight.owner(group);
            self.take_new_way(group, owner);
        }
    }
}
