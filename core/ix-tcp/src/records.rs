//! Transmit records, one for each segment in flight. They are the retransmission queue, the
//! scoreboard of RFC 6675 and the timestamps of RFC 8985 in one.
use crate::cc::hystart::HyStart;
use crate::pace::Pace;
use ix_wire::Seq;
use std::collections::VecDeque;

/// One transmitted segment that is not cumulatively acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TxRecord {
    /// Time of the last transmission.
    pub sent_us: u64,
    /// First octet.
    pub seq: Seq,
    /// Octets; SYN and FIN count.
    pub len: u16,
    /// A set of the constants below.
    pub marks: u16,
}

impl TxRecord {
    /// Begins with SYN.
    pub const SYN: u16 = 1;
    /// Ends with FIN.
    pub const FIN: u16 = 2;
    /// Selectively acknowledged.
    pub const SACKED: u16 = 4;
    /// Taken to be lost, and not transmitted since.
    pub const LOST: u16 = 8;
    /// Transmitted more than once: no round-trip sample from it (Karn).
    pub const RETRANSMITTED: u16 = 16;
    /// One octet sent into a closed window.
    pub const PROBE: u16 = 32;
    /// A message ends with the last octet: nothing joins it.
    pub const MESSAGE_END: u16 = 64;

    const NONE: TxRecord = TxRecord { sent_us: 0, seq: Seq(0), len: 0, marks: 0 };

    #[inline]
    pub fn end(&self) -> Seq {
        self.seq + u32::from(self.len)
    }

    #[inline]
    pub fn has(&self, mark: u16) -> bool {
        self.marks & mark != 0
    }
}

/// Records that are stored in the connection: enough for a request or a short reply.
const INLINE: usize = 2;

/// The records of a connection, without gaps from `snd_una` to `snd_nxt`.
///
/// The first two are in the connection itself. More need the deque, which remains until
/// [`TxRecords::shrink`]: a bulk flow allocates it once, an idle flow has none.
#[derive(Debug)]
pub(crate) struct TxRecords {
    /// Used from the front. A record without octets is unused.
    inline: [TxRecord; INLINE],
    many: Option<Box<Many>>,
}

/// The use of the window by a flow that has many segments in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowUse {
    /// The window of data ends when this is acknowledged.
    pub until: Seq,
    /// Most bytes in flight in it.
    pub most_bytes: u32,
}

impl WindowUse {
    pub const NONE: WindowUse = WindowUse { until: Seq(0), most_bytes: 0 };
}

/// State of a flow that has had many segments in flight.
#[derive(Debug)]
struct Many {
    records: VecDeque<TxRecord>,
    slow_start: HyStart,
    pace: Pace,
    window_use: WindowUse,
}

impl TxRecords {
    pub fn new() -> Self {
        TxRecords { inline: [TxRecord::NONE; INLINE], many: None }
    }

    #[inline]
    fn inline_len(&self) -> usize {
        self.inline.iter().map(|record| usize::from(record.len > 0)).sum()
    }

    #[inline]
    pub fn len(&self) -> usize {
        match &self.many {
            None => self.inline_len(),
            Some(many) => many.records.len(),
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        match &self.many {
            None => self.inline[0].len == 0,
            Some(many) => many.records.is_empty(),
        }
    }

    /// The only record, if it ends at `end`, was sent once and has no marks.
    #[inline]
    pub fn only_until(&self, end: Seq) -> Option<TxRecord> {
        let [first, second] = &self.inline;
        let plain = first.marks == 0 && second.len == 0 && first.end() == end;
        (plain && first.len > 0).then_some(*first)
    }

    /// Removes the record that [`Self::only_until`] has returned.
    #[inline]
    pub fn clear_only(&mut self) {
        self.inline[0] = TxRecord::NONE;
    }

    #[inline]
    pub fn get(&self, index: usize) -> Option<&TxRecord> {
        match &self.many {
            None => self.inline.get(index).filter(|record| record.len > 0),
            Some(many) => many.records.get(index),
        }
    }

    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut TxRecord> {
        match &mut self.many {
            None => self.inline.get_mut(index).filter(|record| record.len > 0),
            Some(many) => many.records.get_mut(index),
        }
    }

    #[inline]
    pub fn first(&self) -> Option<&TxRecord> {
        self.get(0)
    }

    #[inline]
    pub fn push(&mut self, record: TxRecord) {
        debug_assert!(
            self.len()
                .checked_sub(1)
                .and_then(|last| self.get(last))
                .is_none_or(|last| last.end() == record.seq)
        );
        if self.many.is_none() {
            let len = self.inline_len();
            if let Some(slot) = self.inline.get_mut(len) {
                *slot = record;
                return;
            }
            self.spill();
        }
        if let Some(many) = &mut self.many {
            many.pace.sent(record.len.into(), record.sent_us);
            many.records.push_back(record);
        }
    }

    #[cold]
    fn spill(&mut self) {
        let mut records = VecDeque::with_capacity(16);
        records.extend(&self.inline[..self.inline_len()]);
        self.inline = [TxRecord::NONE; INLINE];
        self.many = Some(Box::new(Many {
            records,
            slow_start: HyStart::new(),
            pace: Pace::new(),
            window_use: WindowUse::NONE,
        }));
    }

    #[inline]
    pub fn pop_first(&mut self) -> Option<TxRecord> {
        match &mut self.many {
            Some(many) => many.records.pop_front(),
            None => {
                let [first, second] = self.inline;
                self.inline = [second, TxRecord::NONE];
                Some(first).filter(|first| first.len > 0)
            }
        }
    }

    /// Removes the newest record.
    pub fn pop_last(&mut self) -> Option<TxRecord> {
        match &mut self.many {
            Some(many) => many.records.pop_back(),
            None => {
                let last = self.inline_len().checked_sub(1)?;
                Some(core::mem::replace(&mut self.inline[last], TxRecord::NONE))
            }
        }
    }

    /// Splits the record at `index`: it keeps its first `len` octets, and a new one after it gets
    /// the rest. SYN stays with the first, FIN and the end of a message with the second.
    pub fn split(&mut self, index: usize, len: u16) {
        if self.many.is_none() {
            self.spill();
        }
        let Some(many) = &mut self.many else { return };
        let Some(front) = many.records.get_mut(index) else { return };
        debug_assert!(0 < len && len < front.len);
        let mut rest = *front;
        rest.seq += u32::from(len);
        rest.len -= len;
        rest.marks &= !TxRecord::SYN;
        front.len = len;
        front.marks &= !(TxRecord::FIN | TxRecord::MESSAGE_END);
        many.records.insert(index + 1, rest);
    }

    /// Joins the record at `index` with the next one. The marks for SYN, FIN and retransmission of
    /// both are kept.
    pub fn join(&mut self, index: usize) {
        let Some(next) = self.get(index + 1).copied() else { return };
        if let Some(front) = self.get_mut(index) {
            debug_assert!(front.end() == next.seq);
            debug_assert!(!front.has(TxRecord::FIN | TxRecord::MESSAGE_END));
            front.len += next.len;
            front.marks |= next.marks;
        }
        match &mut self.many {
            Some(many) => drop(many.records.remove(index + 1)),
            None => self.inline[index + 1] = TxRecord::NONE,
        }
    }

    /// Index of the record that contains `seq`, or of the first one after it.
    pub fn find(&self, seq: Seq) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.get(middle) {
                Some(record) if record.end().le(seq) => low = middle + 1,
                _ => high = middle,
            }
        }
        low
    }

    /// Whether [`Self::shrink`] would free memory.
    pub fn is_large(&self) -> bool {
        self.many.is_some()
    }

    /// The state of HyStart++, of a flow that has had more in flight than fits in place.
    pub fn slow_start_mut(&mut self) -> Option<&mut HyStart> {
        self.many.as_mut().map(|many| &mut many.slow_start)
    }

    /// The pace of a flow that has had more in flight than fits in place, or that has a limit.
    pub fn pace_mut(&mut self) -> Option<&mut Pace> {
        self.many.as_mut().map(|many| &mut many.pace)
    }

    /// How a flow uses its window that has had more in flight than fits in place.
    pub fn window_use(&self) -> Option<WindowUse> {
        self.many.as_ref().map(|many| many.window_use)
    }

    /// The same, to be changed.
    pub fn window_use_mut(&mut self) -> Option<&mut WindowUse> {
        self.many.as_mut().map(|many| &mut many.window_use)
    }

    /// The application's limit of the pace.
    pub fn pace_limit(&self) -> Option<u64> {
        self.many.as_ref().and_then(|many| many.pace.limit())
    }

    /// Sets the application's limit of the pace, bytes per second; `None`: none.
    pub fn limit_pace(&mut self, limit: Option<u64>) {
        if self.many.is_none() && limit.is_some() {
            self.spill();
        }
        if let Some(many) = &mut self.many {
            many.pace.set_limit(limit);
        }
    }

    /// Frees the deque when it is empty.
    pub fn shrink(&mut self) {
        let is_unused = |many: &Many| many.records.is_empty() && many.pace.limit().is_none();
        if self.many.as_deref().is_some_and(is_unused) {
            self.many = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(seq: u32, len: u16) -> TxRecord {
        TxRecord { sent_us: 0, seq: Seq(seq), len, marks: 0 }
    }

    #[test]
    fn splits_keep_syn_in_front_and_fin_behind() {
        let mut records = TxRecords::new();
        records.push(TxRecord { marks: TxRecord::SYN | TxRecord::FIN, ..record(5, 10) });
        records.split(0, 4);
        assert_eq!(records.get(0), Some(&TxRecord { marks: TxRecord::SYN, ..record(5, 4) }));
        assert_eq!(records.get(1), Some(&TxRecord { marks: TxRecord::FIN, ..record(9, 6) }));
    }

    #[test]
    fn joins_undo_splits() {
        let whole = TxRecord { marks: TxRecord::FIN | TxRecord::LOST, ..record(5, 10) };
        let mut records = TxRecords::new();
        records.push(whole);
        records.push(record(15, 1));
        records.split(0, 4);
        records.join(0);
        assert_eq!((records.len(), records.get(0)), (2, Some(&whole)));
        // Also for records in place; the last one has nothing to be joined with.
        let mut inline = TxRecords::new();
        inline.push(record(5, 4));
        inline.push(TxRecord { marks: TxRecord::FIN | TxRecord::LOST, ..record(9, 6) });
        inline.join(0);
        inline.join(0);
        assert_eq!((inline.len(), inline.get(0)), (1, Some(&whole)));
    }

    proptest! {
        /// The inline slots and the deque behave as one queue.
        #[test]
        fn agrees_with_a_plain_queue(base: u32, steps in prop::collection::vec((0u8..5, 1u16..50), 0..200)) {
            let mut records = TxRecords::new();
            let mut model: VecDeque<TxRecord> = VecDeque::new();
            let mut next = Seq(base);
            for (what, len) in steps {
                match what {
                    0 | 1 => {
                        let record = record(next.0, len);
                        next += u32::from(len);
                        records.push(record);
                        model.push_back(record);
                    }
                    2 => prop_assert_eq!(records.pop_first(), model.pop_front()),
                    3 => {
                        let last = model.pop_back();
                        prop_assert_eq!(records.pop_last(), last);
                        if let Some(last) = last { next = last.seq; }
                    }
                    _ => records.shrink(),
                }
                prop_assert_eq!(records.len(), model.len());
                prop_assert_eq!(records.first(), model.front());
                let probe = Seq(base) + u32::from(len);
                let naive = model.iter().position(|r| r.end().gt(probe)).unwrap_or(model.len());
                prop_assert_eq!(records.find(probe), naive);
            }
        }
    }
}
