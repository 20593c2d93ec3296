//! The packets of one batch, as the parts that process them see them.
use super::edge::Edge;
use super::pressure::{HELD_UNDER_PRESSURE, Pressure};
use ix_mem::{Mbuf, Pool};
use ix_wire::Parsed;
use std::collections::VecDeque;

/// The origin of a packet of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The device it came in on.
    pub port: u8,
    /// The thread that handed it over, [`Origin::DEVICE`], or [`Origin::REPLAY`].
    pub from: u8,
}

impl Origin {
    /// Received from a device by this thread.
    pub const DEVICE: u8 = u8::MAX;
    /// Held before, and released now.
    pub const REPLAY: u8 = u8::MAX - 1;
}

/// A parsed packet of the batch. Its first mbuf is beside it in [`super::Receive`], so that walking
/// the batch moves nothing that was parsed.
pub(crate) struct Work {
    pub parsed: Parsed,
    /// Number of continuation mbufs, which are in [`Batch`].
    pub tails: usize,
    pub port: u8,
    pub group: u8,
    /// As [`Origin::from`].
    pub from: u8,
    pub hash: u64,
    /// The slot that probably has its flow, found when the batch began.
    pub guess: u32,
}

impl Work {
    /// A packet that is not parsed yet.
    pub fn of(origin: Origin, tails: usize) -> Work {
        let Origin { port, from } = origin;
        Work { parsed: Parsed::NONE, tails, port, group: 0, from, hash: 0, guess: u32::MAX }
    }
}

/// What the packets of a batch have in common.
pub(crate) struct Batch {
    /// Continuation mbufs of all packets that are not processed yet, in order.
    tails: VecDeque<Mbuf>,
    /// Which payload must be dropped because frames are short.
    pub pressure: Pressure,
    /// The congestion signals for its senders.
    pub edge: Edge,
}

impl Batch {
    /// A batch of at most `size` packets.
    pub fn new(size: usize, edge: Edge) -> Batch {
        Batch { tails: VecDeque::with_capacity(size), pressure: Pressure::None, edge }
    }

    /// Whether payload must be dropped, for a flow of which the application holds `held_bufs`
    /// buffers.
    #[inline]
    pub fn must_drop_payload(&self, in_order: bool, held_bufs: u16) -> bool {
        match self.pressure {
            Pressure::None => false,
            Pressure::Low => !in_order || held_bufs >= HELD_UNDER_PRESSURE,
            Pressure::Critical => true,
        }
    }

    /// Adds a continuation mbuf of the packet that is being parsed.
    pub fn push_tail(&mut self, mbuf: Mbuf) {
        self.tails.push_back(mbuf);
    }

    /// Removes the next continuation mbuf of the packet that is being processed.
    pub fn pop_tail(&mut self) -> Option<Mbuf> {
        self.tails.pop_front()
    }

    /// The same, cut to what is left of the payload.
    pub fn take_tail(&mut self, left: &mut usize) -> Option<Mbuf> {
        let mut mbuf = self.tails.pop_front()?;
        mbuf.truncate(*left);
        *left -= mbuf.len();
        Some(mbuf)
    }

    /// The first `count` continuation mbufs: those of the packet that is processed next.
    pub fn next_tails(&self, count: usize) -> impl Iterator<Item = &Mbuf> + Clone {
        self.tails.iter().take(count)
    }

    /// The last `count` continuation mbufs: those of the packet that was parsed last.
    pub fn last_tails(&self, count: usize) -> impl Iterator<Item = &Mbuf> + Clone {
        self.tails.iter().skip(self.tails.len() - count)
    }

    /// Removes these.
    pub fn take_last_tails(&mut self, count: usize) -> impl Iterator<Item = Mbuf> + '_ {
        let first = self.tails.len() - count;
        self.tails.drain(first..)
    }

    /// Frees the mbufs of a processed packet.
    pub fn give_back(&mut self, pool: &mut Pool, work: &Work, mbuf: Mbuf) {
        pool.put(mbuf);
        for _ in 0..work.tails {
            self.pop_tail().into_iter().for_each(|tail| pool.put(tail));
        }
    }
}
