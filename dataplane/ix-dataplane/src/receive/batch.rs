//! The packets of one batch, as the parts that process them see them.
use super::edge::Edge;
use super::pressure::{Pressure, Supply};
use ix_mem::{Mbuf, Pool};
use ix_proto::config::bounds::THREADS;
use ix_wire::Parsed;
use std::collections::VecDeque;

// No thread has the number of another origin.
const _: () = assert!(THREADS.most <= Via::LOOPED as u64);

/// The origin of a packet of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The device it came in on.
    pub port: u8,
    /// How it came.
    pub from: Via,
}

/// How a packet came: by the thread that handed it over, [`Via::DEVICE`], [`Via::REPLAY`] or
/// [`Via::LOOPED`]; and whether a thread of this dataplane has sent it to an own address. One
/// number, because this is stored for each packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Via(u16);

impl Via {
    /// Received from a device by this thread.
    pub const DEVICE: u8 = u8::MAX;
    /// Held before, and released now.
    pub const REPLAY: u8 = u8::MAX - 1;
    /// Sent by this thread to an own address.
    pub const LOOPED: u8 = u8::MAX - 2;
    /// By a device of this thread.
    pub const NEW: Via = Via::of(Via::DEVICE, false);

    /// By a thread, or one of the constants; `looped`: a thread of this dataplane has sent it to
    /// an own address.
    #[inline]
    pub const fn of(from: u8, looped: bool) -> Via {
        Via(from as u16 | (looped as u16) << 8)
    }

    /// Received from a device by this thread, or `looped` by it.
    pub const fn here(looped: bool) -> Via {
        Via::of(if looped { Via::LOOPED } else { Via::DEVICE }, looped)
    }

    /// The thread, or one of the constants.
    #[inline]
    pub const fn number(self) -> u8 {
        self.0 as u8
    }

    /// Whether a thread of this dataplane has sent it to an own address, so that its source may be
    /// one of ours.
    #[inline]
    pub const fn is_looped(self) -> bool {
        self.0 > u8::MAX as u16
    }
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
    pub from: Via,
    pub hash: u64,
    /// The slot that probably has its flow, found when the batch began.
    pub guess: u32,
}

impl Work {
    /// Has no packet yet.
    const NONE: Work = Work {
        parsed: Parsed::NONE,
        tails: 0,
        port: 0,
        group: 0,
        from: Via::NEW,
        hash: 0,
        guess: u32::MAX,
    };
}

/// The parsed packets of a batch. They overwrite those of the batch before in place, because to
/// make and move a new one for each packet costs much of what parsing costs.
#[derive(Default)]
pub(crate) struct WorkList {
    all: Vec<Work>,
    len: usize,
}

impl WorkList {
    /// Returns an empty list that has places for `size` packets.
    pub fn new(size: usize) -> WorkList {
        WorkList { all: (0..size).map(|_| Work::NONE).collect(), len: 0 }
    }

    /// Adds a packet that is not parsed yet: `parsed` is that of an earlier one.
    #[inline]
    pub fn push(&mut self, origin: Origin, tails: usize) {
        if self.len == self.all.len() {
            self.all.push(Work::NONE);
        }
        let work = &mut self.all[self.len];
        (work.port, work.from, work.tails) = (origin.port, origin.from, tails);
        (work.group, work.hash, work.guess) = (0, 0, u32::MAX);
        self.len += 1;
    }

    /// Removes the last packet.
    #[inline]
    pub fn pop(&mut self) {
        self.len = self.len.saturating_sub(1);
    }

    /// Removes all packets.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// The packets.
    #[inline]
    pub fn packets(&self) -> &[Work] {
        self.all.get(..self.len).unwrap_or(&[])
    }

    /// The packets, to be changed.
    #[inline]
    pub fn packets_mut(&mut self) -> &mut [Work] {
        self.all.get_mut(..self.len).unwrap_or(&mut [])
    }

    /// The packet that was added last.
    #[inline]
    pub fn last_mut(&mut self) -> Option<&mut Work> {
        self.all.get_mut(self.len.checked_sub(1)?)
    }
}

/// What the packets of a batch have in common.
pub(crate) struct Batch {
    /// Continuation mbufs of all packets that are not processed yet, in order.
    tails: VecDeque<Mbuf>,
    /// The frames that there are for payload.
    pub supply: Supply,
    /// The congestion signals for its senders.
    pub edge: Edge,
}

impl Batch {
    /// A batch of at most `size` packets.
    pub fn new(size: usize, edge: Edge) -> Batch {
        Batch { tails: VecDeque::with_capacity(size), supply: Supply::ENOUGH, edge }
    }

    /// Whether payload must be dropped, for a flow of which the application holds `held_bufs`
    /// buffers.
    #[inline]
    pub fn must_drop_payload(&self, in_order: bool, held_bufs: u16) -> bool {
        match self.supply.pressure {
            Pressure::None | Pressure::Mild => false,
            Pressure::Low | Pressure::Critical => !in_order || held_bufs >= self.supply.most,
            Pressure::Exhausted => true,
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
