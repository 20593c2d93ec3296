//! The beginning of a received frame in several buffers. A peer may show one buffer now and the
//! next one later, or never; a device hands over whole frames only.
use super::Context;
use crate::RxPacket;
use ix_mem::{Mbuf, Pool};

/// Longest frame that is taken: as long as an IP packet can be. A longer one is dropped, so that a
/// peer cannot hold any number of buffers.
pub(super) const FRAME_BYTES_MAX: usize = 65_535 + 14;

/// Most buffers of it.
const BUFFERS_MAX: usize = 64;

/// The buffers of a frame that is not whole yet.
#[derive(Default)]
pub(super) struct Partial {
    bufs: Vec<Mbuf>,
    bytes: usize,
    /// More of it will come.
    is_begun: bool,
    /// It is dropped, with what is still to come of it.
    is_lost: bool,
}

impl Partial {
    /// Whether the next buffer belongs to a frame of which some were taken.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.is_begun
    }

    /// Whether what is still to come is dropped.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Bytes so far.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of buffers so far.
    pub fn held(&self) -> usize {
        self.bufs.len()
    }

    /// Adds a buffer that is a part of a frame: `more` will come. `is_valid`: its range is set.
    #[inline(never)]
    pub fn add(
        &mut self,
        mbuf: Mbuf,
        (is_valid, more): (bool, bool),
        cx: &mut Context<'_>,
        out: &mut Vec<RxPacket>,
    ) {
        let fits = self.bytes + mbuf.len() <= FRAME_BYTES_MAX && self.bufs.len() < BUFFERS_MAX;
        if self.is_lost || !is_valid || !fits {
            cx.pool.put(mbuf);
            return self.lose(more, cx);
        }
        self.extend(Some(mbuf));
        match more {
            true => self.is_begun = true,
            false => self.finish(out),
        }
    }

    /// Drops the frame, and what is still to come of it if there is `more`. It is counted once.
    pub fn lose(&mut self, more: bool, cx: &mut Context<'_>) {
        cx.drops.rx_invalid += u64::from(!self.is_lost);
        self.close(cx.pool);
        (self.is_begun, self.is_lost) = (more, more);
    }

    /// Takes out the last buffer, to add to it.
    pub fn pop(&mut self) -> Option<Mbuf> {
        let last = self.bufs.pop()?;
        self.bytes -= last.len();
        Some(last)
    }

    /// Adds a buffer.
    pub fn extend(&mut self, mbuf: Option<Mbuf>) {
        self.bytes += mbuf.as_ref().map_or(0, Mbuf::len);
        self.bufs.extend(mbuf);
    }

    /// More of the frame will come.
    pub fn goes_on(&mut self) {
        self.is_begun = true;
    }

    /// Hands over the frame, which is whole.
    pub fn finish(&mut self, out: &mut Vec<RxPacket>) {
        let last = self.bufs.len().saturating_sub(1);
        let packets = self.bufs.drain(..).enumerate();
        out.extend(packets.map(|(at, mbuf)| RxPacket { mbuf, more: at < last }));
        (self.bytes, self.is_begun) = (0, false);
    }

    /// Returns the buffers to the pool, and forgets the frame.
    pub fn close(&mut self, pool: &mut Pool) {
        self.bufs.drain(..).for_each(|mbuf| pool.put(mbuf));
        (self.bytes, self.is_begun, self.is_lost) = (0, false, false);
    }
}
