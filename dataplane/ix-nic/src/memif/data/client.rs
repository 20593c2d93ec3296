//! The client's rings: the buffers are the client's own frames, so nothing is copied in either
//! direction.
use super::super::ring::{DESC_NEXT, Desc, Ring};
use super::super::{HEADERS_REGION, RECEIVE_REGION};
use super::partial::Partial;
use super::{Context, REFILL_BURST, RxRing, TxRing};
use crate::RxPacket;
use ix_mem::{FRAME_BYTES, Mbuf, PacketMemory, Pool, prefetch_read};

/// A receive buffer begins at one of this many cache lines of its frame, depending on the frame's
/// number. If it were always the same line, all buffers would share a few sets of the cache.
const COLORS: u32 = 8;
const LINE_BYTES: u32 = 64;
/// Bytes of a receive buffer.
pub const BUFFER_BYTES: usize = FRAME_BYTES - (COLORS as usize - 1) * LINE_BYTES as usize;
const NO_FRAME: u32 = u32::MAX;

#[inline]
fn color(frame: u32) -> u32 {
    frame % COLORS * LINE_BYTES
}

/// A ring towards the client: the client offers frames at the head, the server fills them at the
/// tail.
pub struct ClientRx {
    ring: Ring,
    /// The frame offered in each slot. What the descriptor says about it is never read back.
    frames: Box<[u32]>,
    head: u16,
    next: u16,
    /// Most frames that are offered at a time.
    target: u16,
    /// The beginning of a frame whose other buffers the server has not shown yet.
    partial: Partial,
    /// The server claims to have filled buffers that were not offered.
    lies: bool,
}

impl ClientRx {
    /// An empty ring for at most `frames` frames.
    pub fn new(ring: Ring, frames: usize) -> ClientRx {
        let size = ring.size();
        ClientRx {
            ring,
            frames: vec![NO_FRAME; usize::from(size)].into(),
            head: 0,
            next: 0,
            target: usize::from(size).min(frames).max(1) as u16,
            partial: Partial::default(),
            lies: false,
        }
    }

    /// Offers more frames, many at a time.
    pub fn refill(&mut self, pool: &mut Pool) {
        let room = self.target - self.head.wrapping_sub(self.next);
        if room < REFILL_BURST.min(self.target) {
            return;
        }
        let mut offered = false;
        for _ in 0..room {
            let Some(mbuf) = pool.take() else { break };
            let frame = mbuf.into_frame();
            self.frames[self.ring.slot(self.head)] = frame;
            let offset = frame * FRAME_BYTES as u32 + color(frame);
            let length = BUFFER_BYTES as u32;
            self.ring
                .set_desc(self.head, Desc { flags: 0, region: RECEIVE_REGION, length, offset });
            self.head = self.head.wrapping_add(1);
            offered = true;
        }
        if offered {
            self.ring.set_head(self.head);
        }
    }

    /// Number of filled buffers.
    fn filled(&self) -> Option<u16> {
        let filled = self.ring.tail().wrapping_sub(self.next);
        (filled <= self.head.wrapping_sub(self.next)).then_some(filled)
    }

    /// Takes the frame of a slot.
    fn take(&mut self, index: u16) -> Mbuf {
        let frame = std::mem::replace(&mut self.frames[self.ring.slot(index)], NO_FRAME);
        debug_assert_ne!(frame, NO_FRAME);
        // SAFETY: the slot is between `next` and `head`, where `refill` put a frame that it owned;
        // the caller moves `next` on, so it is taken once.
        unsafe { Mbuf::from_frame(frame) }
    }

    fn prefetch(&self, index: u16, memory: &PacketMemory) {
        let frame = self.frames[self.ring.slot(index)];
        if frame != NO_FRAME {
            let offset = frame as usize * FRAME_BYTES + color(frame) as usize;
            let data = memory.base().wrapping_add(offset);
            prefetch_read(data);
            prefetch_read(data.wrapping_add(64));
        }
    }
}

impl RxRing for ClientRx {
    fn receive(&mut self, cx: &mut Context<'_>, max: usize, out: &mut Vec<RxPacket>) {
        let filled = match self.filled() {
            Some(filled) => filled,
            None => {
                cx.drops.rx_invalid += u64::from(!self.lies);
                self.lies = true;
                return;
            }
        };
        let n = filled.min(max as u16);
        for i in 0..n {
            self.prefetch(self.next.wrapping_add(i), cx.memory);
        }
        for _ in 0..n {
            let (flags, length) = self.ring.desc_length(self.next);
            let mut mbuf = self.take(self.next);
            self.next = self.next.wrapping_add(1);
            let more = flags & DESC_NEXT != 0;
            let is_valid = length > 0 && length as usize <= BUFFER_BYTES;
            if is_valid {
                mbuf.set_range(color(mbuf.frame()) as usize, length as usize);
            }
            if more || self.partial.is_any() {
                self.partial.add(mbuf, (is_valid, more), cx, out);
            } else if is_valid {
                out.push(RxPacket { mbuf, more: false });
            } else {
                cx.drops.rx_invalid += 1;
                cx.pool.put(mbuf);
            }
        }
        self.refill(cx.pool);
    }

    #[inline]
    fn waiting(&self) -> usize {
        self.ring.fetch_desc(self.next);
        if self.lies { 0 } else { self.filled().map_or(1, usize::from) }
    }

    #[inline]
    fn next(&self) -> u16 {
        self.next
    }

    fn ring(&self) -> &Ring {
        &self.ring
    }

    fn held(&self) -> usize {
        usize::from(self.head.wrapping_sub(self.next)) + self.partial.held()
    }

    fn close(&mut self, pool: &mut Pool) {
        self.partial.close(pool);
        while self.next != self.head {
            let mbuf = self.take(self.next);
            pool.put(mbuf);
            self.next = self.next.wrapping_add(1);
        }
    }
}

/// A ring towards the server: the client appends at the head, the server takes at the tail.
pub struct ClientTx {
    ring: Ring,
    frames: Box<[u32]>,
    head: u16,
    published: u16,
    /// Frames before this index were taken back.
    reclaimed: u16,
}

impl ClientTx {
    /// An empty ring.
    pub fn new(ring: Ring) -> ClientTx {
        let frames = vec![NO_FRAME; usize::from(ring.size())].into();
        ClientTx { ring, frames, head: 0, published: 0, reclaimed: 0 }
    }

    fn in_flight(&self) -> u16 {
        self.head.wrapping_sub(self.reclaimed)
    }

    fn take_back(&mut self, pool: &mut Pool, until: u16) {
        while self.reclaimed != until {
            let slot = self.ring.slot(self.reclaimed);
            let frame = std::mem::replace(&mut self.frames[slot], NO_FRAME);
            debug_assert_ne!(frame, NO_FRAME);
            // SAFETY: the slot is between `reclaimed` and `head`, where `push` put a frame that it
            // owned; `reclaimed` moves on, so it is taken once.
            pool.put(unsafe { Mbuf::from_frame(frame) });
            self.reclaimed = self.reclaimed.wrapping_add(1);
        }
    }

    /// Appends one buffer.
    #[inline]
    fn append(&mut self, memory: &PacketMemory, mbuf: Mbuf, flags: u16) {
        let (offset, length) = (mbuf.offset() as u32, mbuf.len() as u32);
        let frame = mbuf.into_frame();
        self.frames[self.ring.slot(self.head)] = frame;
        // A frame that was received may go out again.
        let (region, first) = match frame.checked_sub(memory.tx_frames().start) {
            Some(number) => (HEADERS_REGION, number),
            None => (RECEIVE_REGION, frame),
        };
        let offset = first * FRAME_BYTES as u32 + offset;
        self.ring.set_desc(self.head, Desc { flags, region, length, offset });
        self.head = self.head.wrapping_add(1);
    }

    /// Appends a frame of several buffers.
    #[inline(never)]
    fn push_chain(&mut self, cx: &mut Context<'_>, mut mbuf: Mbuf) -> Result<(), Mbuf> {
        let (buffers, size) = (mbuf.buffers(cx.memory), usize::from(self.ring.size()));
        if usize::from(self.in_flight()) + buffers > size {
            self.look(cx.pool);
            if buffers > size {
                // It would wait for ever.
                cx.drops.tx_failed += 1;
                cx.pool.put_frame(cx.memory, mbuf);
                return Ok(());
            }
            if usize::from(self.in_flight()) + buffers > size {
                return Err(mbuf);
            }
        }
        while let Some(rest) = mbuf.detach(cx.memory) {
            self.append(cx.memory, core::mem::replace(&mut mbuf, rest), DESC_NEXT);
        }
        self.append(cx.memory, mbuf, 0);
        Ok(())
    }

    /// Reads how far the server is.
    fn look(&mut self, pool: &mut Pool) {
        let tail = self.ring.tail();
        // The server cannot have taken more than was published; such an index is ignored.
        if tail.wrapping_sub(self.reclaimed) <= self.published.wrapping_sub(self.reclaimed) {
            self.take_back(pool, tail);
        }
    }
}

impl TxRing for ClientTx {
    #[inline]
    fn push(&mut self, cx: &mut Context<'_>, mbuf: Mbuf) -> Result<(), Mbuf> {
        if self.in_flight() == self.ring.size() {
            self.look(cx.pool);
            if self.in_flight() == self.ring.size() {
                return Err(mbuf);
            }
        }
        if mbuf.continues() {
            return self.push_chain(cx, mbuf);
        }
        self.append(cx.memory, mbuf, 0);
        Ok(())
    }

    fn publish(&mut self) -> bool {
        if self.published == self.head {
            return false;
        }
        self.published = self.head;
        self.ring.set_head(self.head);
        true
    }

    fn published(&self) -> u16 {
        self.published
    }

    /// Not too often, because the server writes the tail's cache line: an eighth of the ring can
    /// wait.
    fn reclaim(&mut self, pool: &mut Pool) {
        if self.in_flight() >= self.ring.size() / 8 {
            self.look(pool);
        }
    }

    fn ring(&self) -> &Ring {
        &self.ring
    }

    fn held(&self) -> usize {
        usize::from(self.in_flight())
    }

    fn close(&mut self, pool: &mut Pool) {
        self.take_back(pool, self.head);
    }
}
