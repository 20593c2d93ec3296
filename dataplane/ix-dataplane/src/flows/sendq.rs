//! What the application has given a flow to send and the peer has not acknowledged yet: references
//! to the application's memory, oldest first. The bytes are copied into packets whenever they are
//! sent; the application leaves them unchanged until event `SENT`.
use ix_mem::PacketMemory;
use ix_proto::crossing::AttachmentId;
use std::cell::Cell;
use std::collections::VecDeque;

/// Without padding, because each flow has two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed(4))]
struct Piece {
    addr: u64,
    len: u32,
}

impl Piece {
    /// Whether another one begins where it ends.
    fn continues(&self, next: Piece) -> bool {
        self.len > 0 && self.addr + u64::from(self.len) == next.addr
    }
}

/// The send stream from the oldest unacknowledged byte on. Two pieces are stored in place, others
/// in a queue.
#[derive(Debug, Default)]
pub struct SendQueue {
    near: [Piece; 2],
    /// Boxed, because few of many flows need it.
    rest: Option<Box<Rest>>,
}

/// What few flows need.
#[derive(Debug, Default)]
struct Rest {
    /// Pieces behind those that are stored in place.
    pieces: VecDeque<Piece>,
    /// Bytes of these.
    bytes: u32,
    /// Where the last copy began: the next one mostly goes on from there, and must not walk over
    /// all pieces of a large window.
    mark: Cell<Mark>,
    /// Whose the oldest bytes are, where they are not the owner's.
    debts: VecDeque<Debt>,
    /// What [`SendQueue::bequeath`] was told.
    legacy: u64,
}

/// A piece of [`Rest::pieces`].
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    index: usize,
    /// Bytes of the pieces before it.
    before: u32,
}

impl Rest {
    /// Appends a piece, if there are any already.
    fn push_behind(&mut self, piece: Piece) -> bool {
        let Some(last) = self.pieces.back_mut() else { return false };
        match last.continues(piece) {
            true => last.len += piece.len,
            false => self.pieces.push_back(piece),
        }
        self.bytes += piece.len;
        true
    }

    fn pop_front(&mut self) -> Option<Piece> {
        let piece = self.pieces.pop_front()?;
        self.bytes -= piece.len;
        let Mark { index, before } = self.mark.get();
        let left =
            Mark { index: index.saturating_sub(1), before: before.saturating_sub(piece.len) };
        self.mark.set(left);
        Some(piece)
    }

    /// Copies on from these pieces.
    fn copy(&self, copy: &mut Copy<'_>) {
        let mut at =
            Some(self.mark.get()).filter(|mark| mark.before <= copy.skip).unwrap_or_default();
        copy.skip -= at.before;
        let mut pieces = self.pieces.range(at.index..);
        for piece in pieces.by_ref() {
            if copy.skip < piece.len {
                self.mark.set(at);
                if !copy.take(*piece) {
                    return;
                }
                break;
            }
            copy.skip -= piece.len;
            at = Mark { index: at.index + 1, before: at.before + piece.len };
        }
        for piece in pieces {
            if copy.to.is_empty() || !copy.take(*piece) {
                return;
            }
        }
    }
}

/// Bytes that a process has given to send before it gave the flow away. It hears when they are
/// acknowledged, and its memory is free.
#[derive(Clone, Copy, Debug)]
pub struct Debt {
    /// The process.
    pub to: AttachmentId,
    /// Its name of the flow.
    pub cookie: u64,
    /// Bytes that were not announced to it as acknowledged.
    pub bytes: u32,
}

/// Most processes that are owed bytes of one flow.
const DEBTS_MAX: usize = 8;

impl SendQueue {
    /// Bytes in the queue.
    #[inline]
    pub fn bytes(&self) -> u32 {
        let [first, second] = self.near;
        first.len + second.len + self.rest.as_ref().map_or(0, |rest| rest.bytes)
    }

    /// Appends `len` bytes at `addr`, which the caller has checked to be memory that may be sent.
    pub fn push(&mut self, addr: u64, len: u32) {
        if len == 0 {
            return;
        }
        let piece = Piece { addr, len };
        if self.rest.as_mut().is_some_and(|rest| rest.push_behind(piece)) {
            return;
        }
        let [first, second] = &mut self.near;
        let last = if second.len > 0 { &mut *second } else { &mut *first };
        if last.continues(piece) {
            last.len += len;
        } else if first.len == 0 {
            *first = piece;
        } else if second.len == 0 {
            *second = piece;
        } else {
            let rest = self.rest.get_or_insert_with(Default::default);
            rest.pieces.push_back(piece);
            rest.bytes += len;
        }
    }

    /// Drops the oldest `n` bytes: they were acknowledged.
    pub fn pop(&mut self, mut n: u32) {
        debug_assert!(n <= self.bytes());
        while n > 0 && self.near[0].len > 0 {
            let front = &mut self.near[0];
            let step = n.min(front.len);
            front.addr += step as u64;
            front.len -= step;
            n -= step;
            if front.len == 0 {
                self.near[0] = self.near[1];
                self.near[1] = match &mut self.rest {
                    Some(rest) => rest.pop_front().unwrap_or_default(),
                    None => Piece::default(),
                };
            }
        }
    }

    /// Whether bytes of it are within this range: address and bytes.
    pub fn refers_to(&self, (start, bytes): (usize, usize)) -> bool {
        let range = start as u64..(start + bytes) as u64;
        self.addresses().any(|address| range.contains(&address))
    }

    /// Where its pieces begin.
    pub fn addresses(&self) -> impl Iterator<Item = u64> {
        self.pieces().map(|piece| piece.addr)
    }

    fn pieces(&self) -> impl Iterator<Item = &Piece> {
        let rest = self.rest.iter().flat_map(|rest| rest.pieces.iter());
        self.near.iter().chain(rest).filter(|piece| piece.len > 0)
    }

    /// Receive frames that have bytes of it: received data that is sent on without a copy.
    pub fn received_frames(&self, memory: &PacketMemory) -> Vec<u32> {
        let frames = |piece: &Piece| {
            let last = piece.addr + u64::from(piece.len) - 1;
            let first = memory.rx_frame_of(piece.addr)?;
            Some(first..=memory.rx_frame_of(last)?)
        };
        self.pieces().filter_map(frames).flatten().collect()
    }

    /// The processes that are owed bytes of it.
    pub fn creditors(&self) -> impl Iterator<Item = AttachmentId> {
        self.rest.iter().flat_map(|rest| rest.debts.iter().map(|debt| debt.to))
    }

    /// Whether some bytes are not the owner's.
    #[inline]
    pub fn owes(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| !rest.debts.is_empty())
    }

    /// All bytes that are the owner's now are this process's from now on. False: too many processes
    /// are owed bytes.
    pub fn owe(&mut self, to: AttachmentId, cookie: u64) -> bool {
        let all = self.bytes();
        let rest = self.rest.get_or_insert_with(Default::default);
        let owed: u32 = rest.debts.iter().map(|debt| debt.bytes).sum();
        let bytes = all - owed;
        let has_room = bytes == 0 || rest.debts.len() < DEBTS_MAX;
        if bytes > 0 && has_room {
            rest.debts.push_back(Debt { to, cookie, bytes });
        }
        has_room
    }

    /// Takes what is owed first, at most so many bytes of it.
    pub fn pay(&mut self, bytes: u32) -> Option<Debt> {
        let debts = &mut self.rest.as_mut()?.debts;
        let first = debts.front_mut().filter(|_| bytes > 0)?;
        let paid = Debt { bytes: first.bytes.min(bytes), ..*first };
        first.bytes -= paid.bytes;
        if first.bytes == 0 {
            debts.pop_front();
        }
        Some(paid)
    }

    /// The flow is another process's when its owner has ended, which hears this number; 0: it is
    /// closed then.
    pub fn bequeath(&mut self, token: u64) {
        if token != 0 || self.rest.is_some() {
            self.rest.get_or_insert_with(Default::default).legacy = token;
        }
    }

    /// The number that another process hears, if the flow was left to one.
    pub fn legacy(&self) -> Option<u64> {
        self.rest.as_ref().map(|rest| rest.legacy).filter(|token| *token != 0)
    }

    /// Empties the queue.
    pub fn clear(&mut self) {
        *self = SendQueue::default();
    }

    /// Copies the bytes from `offset` on into `to`. Returns false if the queue is shorter, or a
    /// piece is not in memory that may be sent.
    #[inline]
    pub fn copy_to(&self, memory: &PacketMemory, offset: u32, to: &mut [u8]) -> bool {
        // Nearly always all of it is in the first piece.
        let Piece { addr, len } = self.near[0];
        let is_within = u64::from(offset) + to.len() as u64 <= u64::from(len);
        if is_within && !to.is_empty() {
            return memory.copy_from_app(addr + u64::from(offset), to);
        }
        self.copy_pieces_to(memory, offset, to)
    }

    #[inline(never)]
    fn copy_pieces_to(&self, memory: &PacketMemory, offset: u32, to: &mut [u8]) -> bool {
        let mut copy = Copy { memory, skip: offset, to };
        // The pieces stored in place first, one by one: most flows have no others.
        let near = copy.take(self.near[0]) && copy.take(self.near[1]);
        if near
            && !copy.to.is_empty()
            && let Some(rest) = &self.rest
        {
            rest.copy(&mut copy);
        }
        copy.to.is_empty()
    }
}

/// A copy out of the send stream in progress.
struct Copy<'a> {
    memory: &'a PacketMemory,
    /// Bytes of the stream before the copied ones.
    skip: u32,
    /// The buffer that is not filled yet.
    to: &'a mut [u8],
}

impl Copy<'_> {
    /// Copies what is needed of a piece. Returns false if it is not in memory that may be sent.
    #[inline(always)]
    fn take(&mut self, piece: Piece) -> bool {
        if self.skip >= piece.len {
            self.skip -= piece.len;
            return true;
        }
        let n = self.to.len().min((piece.len - self.skip) as usize);
        let (head, tail) = std::mem::take(&mut self.to).split_at_mut(n);
        let copied = n == 0 || self.memory.copy_from_app(piece.addr + u64::from(self.skip), head);
        self.skip = 0;
        if !copied {
            self.to = head;
            return false;
        }
        self.to = tail;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_mem::Sizes;

    #[test]
    fn behaves_like_a_byte_queue() {
        let sizes = Sizes { rx_frames: 1, tx_frames: 1, arena_bytes: 1 << 20 };
        let memory = PacketMemory::new(sizes).unwrap();
        let (base, len) = memory.arena();
        for i in 0..len {
            // SAFETY: within the arena, which nobody else uses.
            unsafe { *((base + i) as *mut u8) = (i * 7 % 251) as u8 };
        }
        let mut model: VecDeque<u8> = VecDeque::new();
        let mut queue = SendQueue::default();
        let mut seed = 12345u64;
        let mut random = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for _ in 0..20_000 {
            if random(2) == 0 {
                let (at, n) = (random(len as u64 - 600), random(600));
                queue.push(base as u64 + at, n as u32);
                model.extend((at..at + n).map(|i| (i * 7 % 251) as u8));
            } else if !model.is_empty() {
                let n = random(model.len() as u64 + 1).min(1000);
                queue.pop(n as u32);
                model.drain(..n as usize);
            }
            assert_eq!(queue.bytes() as usize, model.len());
            let at = random(model.len() as u64 + 1) as usize;
            let mut out = vec![0; (model.len() - at).min(100)];
            assert!(queue.copy_to(&memory, at as u32, &mut out));
            assert!(out.iter().eq(model.iter().skip(at).take(out.len())));
            assert!(!queue.copy_to(&memory, at as u32, &mut vec![0; model.len() - at + 1]));
        }
    }

    #[test]
    fn memory_outside_is_never_read() {
        let memory =
            PacketMemory::new(Sizes { rx_frames: 1, tx_frames: 1, arena_bytes: 4096 }).unwrap();
        let mut queue = SendQueue::default();
        queue.push(0x1000, 64);
        assert!(!queue.copy_to(&memory, 0, &mut [0; 64]));
    }
}
