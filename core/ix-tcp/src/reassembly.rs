//! Payload that arrived out of order (RFC 9293 section 3.10.7.4), and how it is reported to the
//! peer (RFC 2018, RFC 2883).
use crate::output::{Output, RxBuf};
use crate::runs::Runs;
use ix_wire::{SackBlocks, Seq};
use std::collections::VecDeque;

/// With so many buffers held, in order or not, what comes next is joined to the last one if there
/// is room. Two buffers in a row then hold more than one has room for, however short the segments
/// are, so what is truly held is bounded by the window, and nothing within the window is dropped.
pub(crate) const JOIN_FROM: usize = 4;

/// Most blocks in one option.
const SACK_BLOCKS_MAX: usize = 4;

#[derive(Debug)]
struct Piece<B> {
    seq: Seq,
    len: u32,
    buf: B,
}

impl<B> Piece<B> {
    fn end(&self) -> Seq {
        self.seq + self.len
    }
}

/// The result of inserting a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// It is queued, possibly trimmed.
    Queued,
    /// It holds nothing new; the range is what was already there.
    Duplicate,
    /// There was no room for it.
    NoRoom,
}

/// Out-of-order payload: pieces sorted by sequence number that do not overlap.
#[derive(Debug)]
pub(crate) struct Reassembly<B> {
    pieces: VecDeque<Piece<B>>,
    /// The isolated blocks that the pieces make up.
    blocks: Runs,
    /// A sequence number in each of the blocks that changed last, the latest first.
    recent: [Seq; SACK_BLOCKS_MAX],
    recent_len: u8,
    /// A range received twice, to be reported in the next acknowledgement (RFC 2883).
    duplicate: Option<(Seq, Seq)>,
    /// End of the peer's stream, if its FIN arrived early.
    fin: Option<Seq>,
}

impl<B: RxBuf> Reassembly<B> {
    pub fn new() -> Self {
        Reassembly {
            pieces: VecDeque::new(),
            blocks: Runs::default(),
            recent: [Seq(0); SACK_BLOCKS_MAX],
            recent_len: 0,
            duplicate: None,
            fin: None,
        }
    }

    /// Number of held buffers.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// True if nothing is queued and nothing is to be reported.
    pub fn is_unused(&self) -> bool {
        self.pieces.is_empty() && self.duplicate.is_none() && self.fin.is_none()
    }

    pub fn set_duplicate(&mut self, left: Seq, right: Seq) {
        self.duplicate = Some((left, right));
    }

    pub fn has_duplicate(&self) -> bool {
        self.duplicate.is_some()
    }

    /// True if a duplicate up to `edge` is to be reported.
    pub fn has_duplicate_until(&self, edge: Seq) -> bool {
        self.duplicate.is_some_and(|(_, right)| right == edge)
    }

    pub fn clear_duplicate(&mut self) {
        self.duplicate = None;
    }

    /// The peer's FIN is at `seq`, after a gap.
    pub fn set_fin(&mut self, seq: Seq) {
        self.fin.get_or_insert(seq);
    }

    pub fn fin(&self) -> Option<Seq> {
        self.fin
    }

    pub fn take_fin_at(&mut self, rcv_nxt: Seq) -> bool {
        let arrived = self.fin == Some(rcv_nxt);
        if arrived {
            self.fin = None;
        }
        arrived
    }

    /// Queues `buf`, whose first octet is `seq`, in at most `room` buffers. What is already there
    /// stays (the peer must send the same bytes again). `out` gets buffers that the new one covers
    /// completely, and the new buffer itself if it is not needed.
    pub fn insert(
        &mut self,
        mut seq: Seq,
        mut buf: B,
        room: usize,
        out: &mut impl Output<B>,
    ) -> Inserted {
        let whole = (seq, seq + buf.len() as u32);
        let (mut end, mut covers) = (whole.1, false);
        self.note_overlap(whole.0, whole.1);
        let mut at = self.pieces.partition_point(|piece| piece.end().le(seq));
        if let Some(piece) = self.pieces.get(at)
            && piece.seq.le(seq)
        {
            if piece.end().ge(end) {
                self.note_recent(seq);
                out.discard(buf);
                return Inserted::Duplicate;
            }
            buf.trim_front((piece.end() - seq) as usize);
            seq = piece.end();
            at += 1;
        }
        while let Some(piece) = self.pieces.get(at)
            && piece.seq.lt(end)
        {
            if piece.end().gt(end) {
                buf.truncate((piece.seq - seq) as usize);
                end = piece.seq;
                break;
            }
            if let Some(piece) = self.pieces.remove(at) {
                out.discard(piece.buf);
                covers = true;
            }
        }
        if end == seq {
            self.note_recent(whole.0);
            out.discard(buf);
            return Inserted::Duplicate;
        }
        if self.pieces.len() >= JOIN_FROM
            && let Some(before) = at.checked_sub(1).and_then(|at| self.pieces.get_mut(at))
            && before.end() == seq
        {
            match out.join(&mut before.buf, buf) {
                Ok(()) => {
                    before.len += (end - seq) as u32;
                    self.blocks.add(seq, end);
                    self.note_recent(seq);
                    return Inserted::Queued;
                }
                Err(back) => buf = back,
            }
        }
        if self.pieces.len() >= room {
            out.discard(buf);
            if covers {
                self.renew_blocks();
            }
            return Inserted::NoRoom;
        }
        self.pieces.insert(at, Piece { seq, len: (end - seq) as u32, buf });
        self.blocks.add(seq, end);
        self.note_recent(seq);
        Inserted::Queued
    }

    /// Some pieces have gone from within.
    #[cold]
    fn renew_blocks(&mut self) {
        self.blocks = Runs::default();
        self.pieces.iter().for_each(|piece| self.blocks.add(piece.seq, piece.end()));
    }

    /// Of the octets that have just arrived, records the first run that was already queued: of
    /// several duplicates in one segment the first is reported (RFC 2883 section 4).
    pub fn note_overlap(&mut self, left: Seq, right: Seq) {
        let block = self.blocks.ending_after(left).filter(|block| block.0.lt(right));
        if let Some((first, end)) = block {
            self.duplicate = Some((first.max(left), end.min(right)));
        }
    }

    /// Returns the next piece if it begins at or before `rcv_nxt`, trimmed to begin there. `free`
    /// gets pieces that are completely before `rcv_nxt`.
    pub fn pop(&mut self, rcv_nxt: Seq, mut free: impl FnMut(B)) -> Option<B> {
        loop {
            if self.pieces.front()?.seq.gt(rcv_nxt) {
                return None;
            }
            let mut piece = self.pieces.pop_front()?;
            self.blocks.cut_before(piece.end());
            if piece.end().le(rcv_nxt) {
                free(piece.buf);
                continue;
            }
            piece.buf.trim_front((rcv_nxt - piece.seq) as usize);
            return Some(piece.buf);
        }
    }

    /// Removes the last piece, to make room for earlier ones.
    pub fn pop_last(&mut self) -> Option<B> {
        let piece = self.pieces.pop_back()?;
        self.blocks.cut_from(piece.seq);
        Some(piece.buf)
    }

    /// Sequence number of the last piece.
    pub fn last_seq(&self) -> Option<Seq> {
        self.pieces.back().map(|piece| piece.seq)
    }

    /// Records that the block of `seq` changed last: it is reported first.
    fn note_recent(&mut self, seq: Seq) {
        let block = self.blocks.of(seq);
        let mut recent = [seq; SACK_BLOCKS_MAX];
        let mut len = 1;
        for &other in &self.recent[..usize::from(self.recent_len)] {
            let merged = block.is_some_and(|(left, right)| other.between(left, right));
            if len < SACK_BLOCKS_MAX && !merged {
                recent[len] = other;
                len += 1;
            }
        }
        self.recent = recent;
        self.recent_len = len as u8;
    }

    /// The blocks to report: a duplicate first (RFC 2883 section 4), then the block of the latest
    /// arrival, then the others, latest first (RFC 2018 section 4). A piece that begins at
    /// `rcv_nxt` (the application holds too many buffers) is not a block, because the octet before
    /// it is not missing.
    pub fn sack_blocks(&self, rcv_nxt: Seq, max: usize) -> SackBlocks {
        let mut blocks = SackBlocks::EMPTY;
        if let Some((left, right)) = self.duplicate
            && max > 0
        {
            blocks.push(left, right);
        }
        let first = blocks.len();
        for &seq in &self.recent[..usize::from(self.recent_len)] {
            let Some(block) = self.blocks.of(seq) else { continue };
            let isolated = block.0.gt(rcv_nxt);
            if isolated && blocks.len() < max && !blocks.as_slice()[first..].contains(&block) {
                blocks.push(block.0, block.1);
            }
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing::{Wire, reassembly_is_a_map_of_octets};
    use proptest::prelude::*;

    /// Room becomes less, and what arrives covers what is there and is not taken: nothing is
    /// reported that is not held.
    #[test]
    fn only_what_is_held_is_reported() {
        let (mut queue, mut out) = (Reassembly::new(), Wire::default());
        for seq in [10, 30, 50, 70] {
            assert_eq!(queue.insert(Seq(seq), vec![1; 5], 9, &mut out), Inserted::Queued);
        }
        assert_eq!(queue.insert(Seq(28), vec![1; 9], 2, &mut out), Inserted::NoRoom);
        queue.clear_duplicate();
        let blocks = queue.sack_blocks(Seq(0), 4);
        let mut blocks: Vec<(u32, u32)> =
            blocks.as_slice().iter().map(|(left, right)| (left.0, right.0)).collect();
        blocks.sort_unstable();
        assert_eq!(blocks, [(10, 15), (50, 55), (70, 75)]);
    }

    proptest! {
        #[test]
        fn agrees_with_a_map_of_octets(
            base: u32,
            inserts in prop::collection::vec((1usize..200, 1usize..60), 1..40),
        ) {
            reassembly_is_a_map_of_octets(base, &inserts);
        }
    }
}
