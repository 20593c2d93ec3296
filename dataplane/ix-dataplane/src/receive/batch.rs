//! The packets of one batch, as the parts that handle them see them.
use super::edge::Edge;
use super::pressure::{HELD_UNDER_PRESSURE, Pressure};
use ix_mem::{Mbuf, Pool};
use ix_wire::Parsed;
use std::collections::VecDeque;

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

/// A parsed packet of the batch. Its first mbuf stands beside it in [`super::Receive`], so that the
/// batch can be walked without moving what was parsed.
pub(crate) struct Work {
    pub parsed: Parsed,
    /// How many continuation mbufs stand in [`Batch`].
    pub tails: usize,
    pub port: u8,
    pub group: u8,
    /// As [`Origin::from`].
    pub from: u8,
    pub hash: u64,
    /// The slot in which its flow was seen when the batch began.
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
    /// Continuation mbufs of all packets that are not handled yet, in order.
    tails: VecDeque<Mbuf>,
    /// What this batch gives up.
    pub pressure: Pressure,
    /// What it tells its senders.
    pub edge: Edge,
}

impl Batch {
    /// For batches of at most `size` packets.
    pub fn new(size: usize, edge: Edge) -> Batch {
        Batch { tails: VecDeque::with_capacity(size), pressure: Pressure::None, edge }
    }

    /// Whether payload of this batch is given up: of a flow of which the application holds so many
    /// buffers.
    #[inline]
    pub fn must_drop_payload(&self, in_order: bool, held_bufs: u16) -> bool {
        match self.pressure {
            Pressure::None => false,
            Pressure::Low => !in_order || held_bufs >= HELD_UNDER_PRESSURE,
            Pressure::Critical => true,
        }
    }

    /// A continuation mbuf of the packet that is parsed now.
    pub fn push_tail(&mut self, mbuf: Mbuf) {
        self.tails.push_back(mbuf);
    }

    /// The next continuation mbuf of the packet being handled.
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

    /// The first `count` continuation mbufs: those of the packet that is handled next.
    pub fn next_tails(&self, count: usize) -> impl Iterator<Item = &Mbuf> + Clone {
        self.tails.iter().take(count)
    }

    /// The last `count`: those of the packet that was parsed last.
    pub fn last_tails(&self, count: usize) -> impl Iterator<Item = &Mbuf> + Clone {
        self.tails.iter().skip(self.tails.len() - count)
    }

    /// Takes those out.
    pub fn take_last_tails(&mut self, count: usize) -> impl Iterator<Item = Mbuf> + '_ {
        let first = self.tails.len() - count;
        self.tails.drain(first..)
    }

    /// Frees the mbufs of a packet that is done with.
    pub fn give_back(&mut self, pool: &mut Pool, work: &Work, mbuf: Mbuf) {
        pool.put(mbuf);
        for _ in 0..work.tails {
            self.pop_tail().into_iter().for_each(|tail| pool.put(tail));
        }
    }
}
