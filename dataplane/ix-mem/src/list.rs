//! A first-in-first-out list of owned mbufs. It takes twelve bytes in a flow: the links are in a
//! table beside the frames, so that a flow can hold any number of buffers without allocating.
use crate::mbuf::CONTINUES;
use crate::{FRAME_BYTES, Mbuf, PacketMemory};

/// The entry of a frame in the link table.
#[derive(Clone, Copy, Default)]
pub(crate) struct Link {
    next: u32,
    off: u16,
    len: u16,
}

/// An owning queue of mbufs. Must be emptied before it is dropped, or its frames leak.
#[derive(Debug, Default)]
pub struct MbufList {
    head: u32,
    tail: u32,
    count: u32,
}

impl MbufList {
    /// An empty list.
    pub const fn new() -> MbufList {
        MbufList { head: 0, tail: 0, count: 0 }
    }

    /// Number of mbufs in the list.
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// True if the list is empty.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Appends an mbuf.
    pub fn push(&mut self, memory: &PacketMemory, mbuf: Mbuf) {
        debug_assert!(!mbuf.continues(), "a chain is in no list");
        let frame = mbuf.frame();
        memory.set_link(&mbuf, Link { next: 0, off: mbuf.offset() as u16, len: mbuf.len() as u16 });
        let _ = mbuf.into_frame();
        if self.count == 0 {
            self.head = frame;
        } else {
            memory.relink(self.tail, memory.link(self.tail).with_next(frame));
        }
        self.tail = frame;
        self.count += 1;
    }

    /// Appends these bytes to the newest mbuf, behind those in use. Returns their address; `None`
    /// if there is no mbuf, or too little room in its frame.
    pub fn append(&mut self, memory: &PacketMemory, bytes: &[u8]) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        let link = memory.link(self.tail);
        let end = usize::from(link.off) + usize::from(link.len);
        if end + bytes.len() > FRAME_BYTES {
            return None;
        }
        memory.relink(self.tail, Link { len: link.len + bytes.len() as u16, ..link });
        let to = memory.frame_ptr(self.tail).wrapping_add(end);
        // SAFETY: within the frame, which the list owns. The borrower of its first bytes knows
        // nothing of these; `bytes` are of another frame, because this one has no other mbuf.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Some(to as u64)
    }

    /// Whether [`MbufList::append`] takes this many bytes.
    pub fn has_room(&self, memory: &PacketMemory, bytes: usize) -> bool {
        let link = memory.link(self.tail);
        self.count > 0 && usize::from(link.off) + usize::from(link.len) + bytes <= FRAME_BYTES
    }

    /// Removes the oldest mbuf.
    pub fn pop(&mut self, memory: &PacketMemory) -> Option<Mbuf> {
        if self.count == 0 {
            return None;
        }
        let link = memory.link(self.head);
        // SAFETY: the frame was in the list, which owned it; it leaves the list now.
        let mut mbuf = unsafe { Mbuf::from_frame(self.head) };
        mbuf.set_range(link.off as usize, link.len as usize);
        self.head = link.next;
        self.count -= 1;
        Some(mbuf)
    }

    /// Bytes of the oldest mbuf.
    pub fn front_len(&self, memory: &PacketMemory) -> Option<usize> {
        (self.count > 0).then(|| memory.link(self.head).len as usize)
    }

    /// Drops the first `bytes` bytes of the oldest mbuf, which has more.
    pub fn trim_front(&mut self, memory: &PacketMemory, bytes: u32) {
        if bytes > 0 && !self.is_empty() {
            memory.relink(self.head, memory.link(self.head).trimmed(bytes));
        }
    }

    /// Calls `f` with the address and the number of bytes of each mbuf, oldest first, without the
    /// first `skip`.
    pub fn for_each(&self, memory: &PacketMemory, skip: usize, mut f: impl FnMut(u64, usize)) {
        let mut frame = self.head;
        for i in 0..self.count() {
            let link = memory.link(frame);
            if i >= skip {
                f(memory.frame_ptr(frame) as u64 + link.off as u64, link.len as usize);
            }
            frame = link.next;
        }
    }
}

impl Link {
    /// Without the first `bytes` bytes, or all.
    pub(crate) fn trimmed(self, bytes: u32) -> Link {
        let bytes = bytes.min(self.len.into()) as u16;
        Link { off: self.off + bytes, len: self.len - bytes, ..self }
    }

    pub(crate) fn with_next(self, next: u32) -> Link {
        Link { next, ..self }
    }

    /// The following frame.
    pub(crate) fn next(self) -> u32 {
        self.next
    }

    /// With the range of a buffer of a chain, and whether another one follows.
    pub(crate) fn with_range(self, off: usize, len: usize, continues: bool) -> Link {
        let off = off as u16 | if continues { CONTINUES } else { 0 };
        Link { off, len: len as u16, ..self }
    }

    /// What [`Link::with_range`] was given.
    pub(crate) fn range(self) -> (usize, usize, bool) {
        let off = usize::from(self.off & !CONTINUES);
        (off, self.len.into(), self.off & CONTINUES != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pool, Sizes};

    #[test]
    fn keeps_order_and_ranges_and_gives_every_frame_back() {
        let sizes = Sizes { rx_frames: 64, tx_frames: 1, arena_bytes: 1 };
        let memory = PacketMemory::new(sizes).unwrap();
        // SAFETY: the only pool of this memory.
        let mut pool = unsafe { Pool::new(0..64) };
        let mut list = MbufList::new();
        for round in 0..100usize {
            for i in 0..40 {
                let mut mbuf = pool.take().unwrap();
                mbuf.set_range(300 + i, 10 + round);
                list.push(&memory, mbuf);
            }
            let mut seen = 0;
            list.for_each(&memory, 10, |addr, len| {
                assert_eq!(addr % 2048, 310 + seen);
                assert_eq!(len, 10 + round);
                seen += 1;
            });
            assert_eq!(seen, 30);
            for i in 0..40 {
                assert_eq!(list.front_len(&memory), Some(10 + round));
                let mbuf = list.pop(&memory).unwrap();
                assert_eq!((mbuf.offset(), mbuf.len()), (300 + i, 10 + round));
                pool.put(mbuf);
            }
            assert!(list.pop(&memory).is_none());
            assert_eq!(pool.in_use(), 0);
        }
    }
}
