//! The server's rings: the buffers are the client's, in memory that the client can change at any
//! time. Each descriptor is read once and checked; packets are copied in both directions.
use super::super::ring::{DESC_NEXT, Desc, Ring};
use super::partial::{FRAME_BYTES_MAX, Partial};
use super::{Context, RxRing, TxRing};
use crate::RxPacket;
use ix_mem::{HEADROOM_BYTES, Mbuf, Pool, ROOM_BYTES, prefetch_read, prefetch_write};
use ix_sys::Mapping;

/// Number of descriptors that are prefetched before copying.
const LOOK_AHEAD: usize = 64;
/// How many buffers behind the next one are prefetched before they are filled.
pub(super) const FETCHED_AHEAD: u16 = 2;
/// Most buffers for one sent frame. A client with smaller buffers gets no such frame.
const CHAIN_MAX: u16 = 16;

/// A checked buffer of the client.
#[derive(Clone, Copy)]
struct Buffer {
    at: *mut u8,
    bytes: usize,
}

/// The buffer that a descriptor names, if it is within a region.
#[inline]
fn buffer(desc: Desc, regions: &[Mapping]) -> Option<Buffer> {
    let region = regions.get(usize::from(desc.region))?;
    let at = region.bytes_at(u64::from(desc.offset), u64::from(desc.length))?;
    Some(Buffer { at, bytes: desc.length as usize })
}

/// A ring towards the server: the client appends at the head, the server takes at the tail.
pub struct ServerRx {
    ring: Ring,
    next: u16,
    /// The beginning of a frame whose other buffers were not read yet.
    partial: Partial,
    /// The client claims to have appended more than there is room for.
    lies: bool,
    /// Of several descriptors, their buffers and flags. It is kept for its memory.
    ahead: Vec<(Option<Buffer>, u16)>,
}

// SAFETY: as `Ring`.
unsafe impl Send for ServerRx {}

impl ServerRx {
    /// Takes packets from the ring's current tail on.
    pub fn new(ring: Ring) -> ServerRx {
        let ahead = Vec::with_capacity(LOOK_AHEAD);
        ServerRx { next: ring.tail(), ring, partial: Partial::default(), lies: false, ahead }
    }

    fn appended(&self) -> Option<u16> {
        let n = self.ring.head().wrapping_sub(self.next);
        (n <= self.ring.size()).then_some(n)
    }

    /// Takes `n` buffers, which were appended.
    #[inline(never)]
    fn receive_several(&mut self, n: usize, cx: &mut Context<'_>, out: &mut Vec<RxPacket>) {
        let mut ahead = std::mem::take(&mut self.ahead);
        for i in 0..n {
            let desc = self.ring.desc(self.next.wrapping_add(i as u16));
            let buffer = buffer(desc, cx.regions);
            if let Some(buffer) = buffer {
                prefetch_read(buffer.at);
                prefetch_read(buffer.at.wrapping_add(64));
            }
            ahead.push((buffer, desc.flags));
        }
        for (buffer, flags) in ahead.drain(..) {
            if !self.take(buffer, flags, cx, out) {
                break;
            }
            self.next = self.next.wrapping_add(1);
        }
        self.ahead = ahead;
    }

    /// Takes one buffer. False if no frame is free for it.
    #[inline]
    fn take(
        &mut self,
        buffer: Option<Buffer>,
        flags: u16,
        cx: &mut Context<'_>,
        out: &mut Vec<RxPacket>,
    ) -> bool {
        let more = flags & DESC_NEXT != 0;
        if more || self.partial.is_any() {
            return self.take_part(buffer, more, cx, out);
        }
        let is_valid = |buffer: &Buffer| (1..=ROOM_BYTES).contains(&buffer.bytes);
        let Some(buffer) = buffer.filter(is_valid) else {
            return self.take_part(buffer, more, cx, out);
        };
        let Some(mut mbuf) = cx.pool.take() else { return false };
        mbuf.set_range(HEADROOM_BYTES, buffer.bytes);
        copy_out(buffer, mbuf.bytes_mut(cx.memory));
        out.push(RxPacket { mbuf, more: false });
        true
    }

    /// Takes one buffer of several of a frame, or one that is longer than ours.
    #[inline(never)]
    fn take_part(
        &mut self,
        buffer: Option<Buffer>,
        more: bool,
        cx: &mut Context<'_>,
        out: &mut Vec<RxPacket>,
    ) -> bool {
        let (before, whole) = (self.partial.bytes(), buffer.map_or(0, |buffer| buffer.bytes));
        let is_valid = buffer.is_some() && before + whole <= FRAME_BYTES_MAX;
        let is_end = !more && before + whole == 0;
        let Some(mut left) = buffer.filter(|_| is_valid && !is_end && !self.partial.is_lost())
        else {
            self.partial.lose(more, cx);
            return true;
        };
        // All of it or nothing: what was copied is not read again.
        if left.bytes.div_ceil(ROOM_BYTES) > cx.pool.free() {
            return false;
        }
        while left.bytes > 0 {
            let mut mbuf = match self.partial.pop() {
                Some(last) if last.len() < ROOM_BYTES => last,
                last => {
                    self.partial.extend(last);
                    let Some(mut new) = cx.pool.take() else { return false };
                    new.set_range(HEADROOM_BYTES, 0);
                    new
                }
            };
            let have = mbuf.len();
            let (now, later) = left.split_at(ROOM_BYTES - have);
            mbuf.set_range(HEADROOM_BYTES, have + now.bytes);
            copy_out(now, &mut mbuf.bytes_mut(cx.memory)[have..]);
            self.partial.extend(Some(mbuf));
            left = later;
        }
        match more {
            true => self.partial.goes_on(),
            false => self.partial.finish(out),
        }
        true
    }
}

impl Buffer {
    /// Its first `bytes` bytes, or all, and the rest.
    fn split_at(self, bytes: usize) -> (Buffer, Buffer) {
        let bytes = bytes.min(self.bytes);
        let rest = Buffer { at: self.at.wrapping_add(bytes), bytes: self.bytes - bytes };
        (Buffer { bytes, ..self }, rest)
    }
}

impl RxRing for ServerRx {
    fn receive(&mut self, cx: &mut Context<'_>, max: usize, out: &mut Vec<RxPacket>) {
        let Some(appended) = self.appended() else {
            cx.drops.rx_invalid += u64::from(!self.lies);
            self.lies = true;
            return;
        };
        match usize::from(appended).min(max).min(LOOK_AHEAD) {
            0 => return,
            1 => {
                // While it is fetched nothing else can be done.
                let desc = self.ring.desc(self.next);
                let is_taken = self.take(buffer(desc, cx.regions), desc.flags, cx, out);
                self.next = self.next.wrapping_add(is_taken.into());
            }
            n => self.receive_several(n, cx, out),
        }
        self.ring.set_tail(self.next);
    }

    #[inline]
    fn waiting(&self) -> usize {
        self.ring.fetch_desc(self.next);
        if self.lies { 0 } else { self.appended().map_or(1, usize::from) }
    }

    fn next(&self) -> u16 {
        self.next
    }

    fn ring(&self) -> &Ring {
        &self.ring
    }

    fn held(&self) -> usize {
        self.partial.held()
    }

    fn close(&mut self, pool: &mut Pool) {
        self.partial.close(pool);
    }
}

/// A ring towards the client: the client offers buffers at the head, the server fills them at the
/// tail.
pub struct ServerTx {
    ring: Ring,
    next: u16,
    published: u16,
    /// The head when it was last read.
    head: u16,
}

impl ServerTx {
    /// Fills buffers from the ring's current tail on.
    pub fn new(ring: Ring) -> ServerTx {
        let next = ring.tail();
        ServerTx { ring, next, published: next, head: next }
    }

    /// Number of offered buffers from `index` on.
    #[inline]
    fn offered(&mut self, index: u16) -> u16 {
        let known = self.head.wrapping_sub(index);
        if known != 0 {
            return known;
        }
        let head = self.ring.head();
        // A claim of more than the ring has is false, and counts as none.
        if head.wrapping_sub(self.published) > self.ring.size() {
            return 0;
        }
        self.head = head;
        head.wrapping_sub(index)
    }

    /// Prefetches a buffer that will be filled soon.
    #[inline]
    fn prefetch(&self, index: u16, regions: &[Mapping]) {
        if self.head.wrapping_sub(index) as i16 > 0
            && let Some(buffer) = buffer(self.ring.desc(index), regions)
        {
            prefetch_write(buffer.at);
            prefetch_write(buffer.at.wrapping_add(64));
        }
    }

    /// Copies a frame into as many buffers as it needs, from `next` on. Returns where the next
    /// frame begins, or `None` if there are not enough buffers now.
    fn fill<'a>(
        &mut self,
        mut pieces: impl Iterator<Item = &'a [u8]>,
        regions: &[Mapping],
    ) -> Option<Filled> {
        let mut rest = pieces.next().unwrap_or(&[]);
        let mut index = self.next;
        loop {
            if self.offered(index) == 0 {
                return None;
            }
            let desc = self.ring.desc(index);
            let Some(buffer) = buffer(desc, regions) else { return Some(Filled::Never) };
            let (mut filled, mut left) = (0, buffer);
            loop {
                let n = rest.len().min(left.bytes);
                let (now, later) = rest.split_at(n);
                copy_in(now, left);
                (filled, rest, left) = (filled + n, later, left.split_at(n).1);
                if !rest.is_empty() {
                    break;
                }
                let Some(next) = pieces.next() else { break };
                rest = next;
            }
            let flags = if rest.is_empty() { 0 } else { DESC_NEXT };
            self.ring.set_desc_length(index, Desc { flags, length: filled as u32, ..desc });
            index = index.wrapping_add(1);
            if rest.is_empty() {
                return Some(Filled::Until(index));
            }
            if index.wrapping_sub(self.next) >= CHAIN_MAX {
                return Some(Filled::Never);
            }
        }
    }
}

enum Filled {
    /// The next frame begins at this index.
    Until(u16),
    /// The buffers are invalid.
    Never,
}

impl TxRing for ServerTx {
    #[inline]
    fn push(&mut self, cx: &mut Context<'_>, mbuf: Mbuf) -> Result<(), Mbuf> {
        let filled = match mbuf.continues() {
            false => self.fill(std::iter::once(mbuf.bytes(cx.memory)), cx.regions),
            true => self.fill(mbuf.pieces(cx.memory), cx.regions),
        };
        match filled {
            Some(Filled::Until(index)) => self.next = index,
            None => return Err(mbuf),
            Some(Filled::Never) => {
                // An invalid buffer is returned to the client as an empty one.
                let desc = self.ring.desc(self.next);
                self.ring.set_desc_length(self.next, Desc { flags: 0, length: 0, ..desc });
                self.next = self.next.wrapping_add(1);
                cx.drops.tx_failed += 1;
            }
        }
        cx.pool.put_frame(cx.memory, mbuf);
        Ok(())
    }

    fn publish(&mut self) -> bool {
        if self.published == self.next {
            return false;
        }
        self.published = self.next;
        self.ring.set_tail(self.next);
        true
    }

    fn published(&self) -> u16 {
        self.published
    }

    fn reclaim(&mut self, _: &mut Pool) {}

    fn fetch_ahead(&self, from: u16, regions: &[Mapping]) {
        for ahead in from..=FETCHED_AHEAD {
            self.prefetch(self.next.wrapping_add(ahead), regions);
        }
    }

    fn ring(&self) -> &Ring {
        &self.ring
    }

    fn held(&self) -> usize {
        0
    }

    fn close(&mut self, _: &mut Pool) {}
}

/// Copies a buffer of the client. The client may change it meanwhile: the copy is what counts.
#[inline]
fn copy_out(from: Buffer, to: &mut [u8]) {
    assert_eq!(from.bytes, to.len());
    // SAFETY: `buffer` checked that the bytes lie in a region, which stays mapped while the link
    // is up; regions are never our packet memory's mapping, so nothing overlaps.
    unsafe { std::ptr::copy_nonoverlapping(from.at, to.as_mut_ptr(), from.bytes) }
}

/// Copies into a buffer of the client.
#[inline]
fn copy_in(from: &[u8], to: Buffer) {
    assert!(from.len() <= to.bytes);
    // SAFETY: as in `copy_out`.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.at, from.len()) }
}
