//! Rings between elastic threads: packets that another thread must process, and, in order among
//! them, the messages by which flow groups move.
use crate::migration::message::{Forwarded, Message};
use ix_abi::CallError;
use ix_mem::{Pool, spsc};
use ix_nic::RxPacket;
use ix_proto::crossing::AttachmentId;
use std::collections::VecDeque;

/// Rings between elastic threads: `outgoing[i]` leads to thread i, `incoming[i]` comes from it.
#[derive(Default)]
pub struct Forwarding {
    /// To each other thread.
    outgoing: Vec<Option<spsc::Producer<Forwarded>>>,
    /// From each other thread.
    pub(crate) incoming: Vec<Option<Source>>,
    /// What found its ring full, in order, for each other thread.
    waiting: Vec<VecDeque<Forwarded>>,
    /// Number of all these.
    waits: usize,
    /// The last pushed part of a packet found no room; the rest of the packet is lost with it.
    losing: bool,
    /// The last pushed part of a packet found room; the rest of the packet is pushed too.
    going_on: bool,
}

/// The ring from one other thread.
pub(crate) struct Source {
    ring: spsc::Consumer<Forwarded>,
    /// Parts of a packet whose rest has not arrived yet.
    parts: Vec<RxPacket>,
}

/// The result of [`Source::take`].
pub(crate) enum Taken {
    /// Nothing complete.
    Nothing,
    /// A packet, received by this device, and whether it was sent to an own address.
    Packet(u8, bool),
    /// A message.
    Message(Message),
}

impl Source {
    /// Takes the next packet, with all its parts, or message.
    #[inline]
    pub fn take(&mut self, rx_pool: &mut Pool, out: &mut Vec<RxPacket>) -> Taken {
        while let Some(item) = self.ring.pop() {
            let (port, looped, packet) = match item {
                Forwarded::Message(message) => return Taken::Message(message),
                Forwarded::Packet { port, looped, packet } => (port, looped, packet),
            };
            rx_pool.adopt(&packet.mbuf);
            if packet.more {
                self.parts.push(packet);
                continue;
            }
            out.append(&mut self.parts);
            out.push(packet);
            return Taken::Packet(port, looped);
        }
        Taken::Nothing
    }
}

/// Slots of a forwarding ring.
const FORWARD_SLOTS: usize = 4096;
/// Most packets that wait for room in a ring. Later ones are lost, as in a network card.
const WAITING_MAX: usize = 1024;

/// The rings between `threads` elastic threads, one set for each.
pub fn forwarding(threads: usize) -> Vec<Forwarding> {
    let mut all: Vec<Forwarding> = Vec::new();
    all.resize_with(threads, || Forwarding {
        outgoing: (0..threads).map(|_| None).collect(),
        incoming: (0..threads).map(|_| None).collect(),
        waiting: (0..threads).map(|_| VecDeque::new()).collect(),
        waits: 0,
        losing: false,
        going_on: false,
    });
    for from in 0..threads {
        for to in (0..threads).filter(|to| *to != from) {
            let (producer, consumer) = spsc::ring(FORWARD_SLOTS);
            all[from].outgoing[to] = Some(producer);
            all[to].incoming[from] = Some(Source { ring: consumer, parts: Vec::new() });
        }
    }
    all
}

impl Forwarding {
    /// Whether something has arrived that was not taken yet.
    pub(crate) fn has_incoming(&self) -> bool {
        self.incoming.iter().flatten().any(|source| !source.ring.is_empty())
    }

    /// Whether packets wait here for which no device will ring.
    pub(crate) fn has_backlog(&self) -> bool {
        self.has_incoming() || self.waits()
    }

    /// Whether something waits for room in a ring.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.waits > 0
    }

    /// Appends an item; returns a packet for which there is no room. Messages are never refused.
    pub(crate) fn push(&mut self, to: usize, item: Forwarded) -> Result<(), Forwarded> {
        let Forwarded::Packet { packet, .. } = &item else { return self.append(to, item, true) };
        let more = packet.more;
        if std::mem::replace(&mut self.losing, false) {
            self.losing = more;
            return Err(item);
        }
        let must_go_on = std::mem::replace(&mut self.going_on, false);
        let done = self.append(to, item, must_go_on);
        (self.losing, self.going_on) = (more && done.is_err(), more && done.is_ok());
        done
    }

    /// Appends a signal, unless something waits for room: an application that signals faster than
    /// another one reads must not delay the messages between threads.
    pub(crate) fn push_signal(
        &mut self,
        to: usize,
        (of, life): (AttachmentId, u32),
        value: u64,
    ) -> Result<(), CallError> {
        let (Some(Some(ring)), Some(waiting)) = (self.outgoing.get_mut(to), self.waiting.get(to))
        else {
            return Err(CallError::Invalid);
        };
        if !waiting.is_empty() {
            return Err(CallError::NoResource);
        }
        let signal = Forwarded::Message(Message::Signal { of, life, value });
        ring.push(signal).map_err(|_| CallError::NoResource)
    }

    fn append(&mut self, to: usize, item: Forwarded, always: bool) -> Result<(), Forwarded> {
        let (Some(Some(ring)), Some(waiting)) =
            (self.outgoing.get_mut(to), self.waiting.get_mut(to))
        else {
            return Err(item);
        };
        let item = if waiting.is_empty() {
            match ring.push(item) {
                Ok(()) => return Ok(()),
                Err(item) => item,
            }
        } else {
            item
        };
        if !always && waiting.len() >= WAITING_MAX {
            return Err(item);
        }
        waiting.push_back(item);
        self.waits += 1;
        Ok(())
    }

    /// Moves waiting items into the rings as far as there is room now; `moved` gets the threads.
    #[cold]
    pub(crate) fn flush(&mut self, mut moved: impl FnMut(usize)) {
        for (to, (ring, waiting)) in self.outgoing.iter_mut().zip(&mut self.waiting).enumerate() {
            let Some(ring) = ring else { continue };
            let before = waiting.len();
            while let Some(item) = waiting.pop_front() {
                if let Err(item) = ring.push(item) {
                    waiting.push_front(item);
                    break;
                }
            }
            self.waits -= before - waiting.len();
            if waiting.len() < before {
                moved(to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Order is kept and no message is lost, however full the rings are.
    #[test]
    fn a_full_ring_delays_messages_and_loses_packets_at_a_bound() {
        let mut rings = forwarding(2);
        let (mut a, mut b) = (rings.remove(0), rings.remove(0));
        let count = FORWARD_SLOTS + 3 * WAITING_MAX;
        for i in 0..count {
            assert!(a.push(1, Forwarded::Message(Message::Ready(i as u64))).is_ok());
        }
        assert!(a.waits());
        // SAFETY: no memory behind the number; it is only carried.
        let mbuf = unsafe { ix_mem::Mbuf::from_frame(0) };
        let packet = RxPacket { mbuf, more: false };
        assert!(a.push(1, Forwarded::Packet { port: 0, looped: false, packet }).is_err());
        let mut got = Vec::new();
        while got.len() < count {
            while let Some(item) = b.incoming[0].as_mut().and_then(|source| source.ring.pop()) {
                let Forwarded::Message(Message::Ready(i)) = item else { panic!("a message") };
                got.push(i);
            }
            a.flush(|to| assert_eq!(to, 1));
        }
        assert!(got.iter().copied().eq(0..count as u64) && !a.waits());
        assert!(a.push(0, Forwarded::Message(Message::Ready(0))).is_err(), "nobody but oneself");
    }
}
