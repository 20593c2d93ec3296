//! Comparisons with naive models, for fuzzers in other crates. Only with the feature `fuzzing`, and
//! in tests.
use crate::reassembly::{Inserted, Reassembly};
use crate::records::TxRecord;
use crate::{Config, Output, RxBuf, SegmentOut, State, Tcb, TcpCounter, TcpEvent};
use ix_wire::{FlowTuple, IpAddr, SackBlocks, Seq, TcpFlags, TcpHeader, TcpOptions};

impl RxBuf for Vec<u8> {
    fn len(&self) -> usize {
        Vec::len(self)
    }
    fn trim_front(&mut self, n: usize) {
        self.drain(..n);
    }
    fn truncate(&mut self, n: usize) {
        Vec::truncate(self, n);
    }
}

/// A connection in TIME-WAIT that ends then, for tests.
pub fn in_time_wait<B: RxBuf>(tuple: FlowTuple, ends_us: u64) -> Tcb<B> {
    let mut tcb = Tcb::new(&Config::default(), tuple, State::TimeWait, Seq(1), 0, 0);
    tcb.flags.set(crate::tcb::Flags::ORPHAN);
    tcb.state_at_us = ends_us;
    tcb
}

/// The ranges of set octets.
fn runs(have: &[bool]) -> Vec<(usize, usize)> {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < have.len() {
        let end = have[at..].iter().position(|&it| it != have[at]).map_or(have.len(), |n| at + n);
        if have[at] {
            runs.push((at, end));
        }
        at = end;
    }
    runs
}

/// Inserts fragments (offset, at least 1; length; together below 300) and compares with a map of
/// octets: the same blocks are held, the latest is reported first, and the stream is delivered with
/// each octet once.
pub fn reassembly_is_a_map_of_octets(base: u32, inserts: &[(usize, usize)]) {
    let base = Seq(base);
    let at = |offset: usize| base + offset as u32;
    let mut have = vec![false; 300];
    let mut queue = Reassembly::new();
    let (mut given, mut wire) = (0, Wire::default());
    for &(from, len) in inserts {
        let again = runs(&have[from..from + len]).first().map(|run| (from + run.0, from + run.1));
        let fresh = have[from..from + len].iter().filter(|it| !**it).count();
        have[from..from + len].fill(true);
        let buf: Vec<u8> = (from..from + len).map(|offset| offset as u8).collect();
        given += 1;
        let done = queue.insert(at(from), buf, 1000, &mut wire);
        let whole = runs(&have);
        let latest = whole.iter().find(|run| run.0 <= from && from < run.1).copied();
        assert!(fresh == 0 || done == Inserted::Queued);
        assert_eq!(queue.has_duplicate(), fresh < len);
        let offsets = |&(l, r): &(Seq, Seq)| ((l - base) as usize, (r - base) as usize);
        if let Some(again) = again {
            // A duplicate is reported first (RFC 2883 section 4).
            let first = queue.sack_blocks(base, 1).as_slice().first().map(offsets);
            assert_eq!(first, Some(again));
        }
        queue.clear_duplicate();
        let blocks: Vec<_> = queue.sack_blocks(base, 4).as_slice().iter().map(offsets).collect();
        assert_eq!(blocks.first().copied(), latest);
        assert!(blocks.iter().all(|block| whole.contains(block)));
        assert!(blocks.len() == whole.len().min(4) || blocks.len() < whole.len());
    }
    // A gap of one octet before each block is filled from outside.
    for (from, to) in runs(&have) {
        let mut next = from;
        while let Some(buf) = queue.pop(at(next), |_| wire.freed += 1) {
            for octet in buf {
                assert_eq!(octet, next as u8);
                next += 1;
            }
            wire.freed += 1;
        }
        assert_eq!(next, to);
    }
    assert_eq!((queue.len(), wire.freed), (0, given));
}

/// What happens to a connection.
#[derive(Clone, Debug)]
pub enum ScoreboardStep {
    /// The application appends this many octets, and what the windows allow is sent.
    Send(u32),
    /// The peer acknowledges this part (of 255) of what is in flight, and these blocks: offsets
    /// from the oldest octet in flight.
    Ack(u8, Vec<(u32, u32)>),
    /// Time passes, µs.
    Wait(u64),
}

/// The outside of a connection whose scoreboard is tested.
#[derive(Default)]
pub(crate) struct Wire {
    reneged: bool,
    /// Buffers that came back.
    freed: usize,
}

impl Output<Vec<u8>> for Wire {
    fn transmit(&mut self, _: &FlowTuple, _: &SegmentOut) -> bool {
        true
    }
    fn deliver(&mut self, _: Vec<u8>) {}
    fn append(&mut self, buf: Vec<u8>) -> Result<(), Vec<u8>> {
        Err(buf)
    }
    fn join(&mut self, front: &mut Vec<u8>, back: Vec<u8>) -> Result<(), Vec<u8>> {
        front.extend(back);
        self.freed += 1;
        Ok(())
    }
    fn discard(&mut self, _: Vec<u8>) {
        self.freed += 1;
    }
    fn acked(&mut self, _: u32) {}
    fn event(&mut self, _: TcpEvent) {}
    fn count(&mut self, counter: TcpCounter) {
        self.reneged |= counter == TcpCounter::SackReneged;
    }
}

/// A connection and, octet by octet from the first of the stream, what SACK blocks have covered.
struct Scoreboard {
    tcb: Tcb<Vec<u8>>,
    cfg: Config,
    wire: Wire,
    first: Seq,
    covered: Vec<bool>,
    now_us: u64,
}

impl Scoreboard {
    fn new(iss: u32) -> Scoreboard {
        let (local, remote) = (IpAddr::v4([10, 0, 0, 1]), IpAddr::v4([10, 0, 0, 2]));
        let tuple = FlowTuple { local, remote, local_port: 1, remote_port: 2 };
        let cfg = Config { timestamps: false, r2_us: u32::MAX, ..Config::default() };
        let now_us = 1_000_000;
        let tcb = Tcb::connect(&cfg, tuple, Seq(iss), 0, now_us);
        let first = Seq(iss) + 1;
        let mut board =
            Scoreboard { tcb, cfg, wire: Wire::default(), first, covered: Vec::new(), now_us };
        board.output();
        let options = TcpOptions {
            mss: Some(100),
            window_scale: Some(4),
            sack_permitted: true,
            ..TcpOptions::NONE
        };
        board.hear(TcpFlags::SYN | TcpFlags::ACK, Seq(99), first, options);
        board.output();
        board
    }

    fn output(&mut self) {
        self.tcb.output(&self.cfg, self.now_us, &mut self.wire);
    }

    fn hear(&mut self, flags: TcpFlags, seq: Seq, ack: Seq, options: TcpOptions) {
        let hdr = TcpHeader {
            src_port: 2,
            dst_port: 1,
            seq,
            ack,
            flags,
            window: u16::MAX,
            urgent: 0,
            options,
        };
        self.tcb.segment(&self.cfg, self.now_us, &hdr, None, &mut self.wire);
    }

    fn at(&self, seq: Seq) -> usize {
        (seq - self.first) as usize
    }

    fn step(&mut self, step: &ScoreboardStep) {
        self.now_us += 1_000;
        match step {
            ScoreboardStep::Send(octets) => {
                let taken = self.tcb.send_space(&self.cfg).min(*octets);
                self.tcb.append(taken);
            }
            ScoreboardStep::Ack(part, blocks) => self.acknowledge(*part, blocks),
            ScoreboardStep::Wait(us) => {
                self.now_us += us;
                if self.tcb.deadline() <= self.now_us {
                    self.tcb.timer(&self.cfg, self.now_us, &mut self.wire);
                }
                if std::mem::take(&mut self.wire.reneged) {
                    self.covered.fill(false);
                }
            }
        }
        self.compare();
        self.output();
        self.compare();
    }

    fn acknowledge(&mut self, part: u8, blocks: &[(u32, u32)]) {
        let (una, nxt) = (self.tcb.snd_una, self.tcb.snd_nxt);
        let ack = una + ((nxt - una) as u64 * u64::from(part) / 255) as u32;
        let mut sack = SackBlocks::EMPTY;
        // None that reports a duplicate, which is another case.
        let mut last = ack;
        for &(gap, len) in blocks.iter().take(4) {
            let left = last + 1 + gap % 1_000;
            let right = left + 1 + len % 1_000;
            if right.gt(nxt) {
                break;
            }
            sack.push(left, right);
            self.cover(ack, left, right);
            last = right;
        }
        self.hear(TcpFlags::ACK, Seq(100), ack, TcpOptions { sack, ..TcpOptions::NONE });
    }

    /// A segment is marked when one block covers all of it that is in flight.
    fn cover(&mut self, ack: Seq, left: Seq, right: Seq) {
        self.covered.resize(self.at(self.tcb.snd_nxt), false);
        for index in 0..self.tcb.records.len() {
            let Some(record) = self.tcb.records.get(index) else { break };
            let (from, to) = (record.seq.max(ack), record.end());
            if from.lt(to) && from.ge(left) && to.le(right) {
                let range = self.at(from)..self.at(to);
                self.covered[range].fill(true);
            }
        }
    }

    fn compare(&mut self) {
        let end = self.at(self.tcb.snd_nxt);
        self.covered.resize(end.max(self.covered.len()), false);
        let (mut next, mut sacked, mut segments, mut lost) = (self.tcb.snd_una, 0, 0, 0);
        for index in 0..self.tcb.records.len() {
            let Some(record) = self.tcb.records.get(index) else { break };
            assert_eq!(record.seq, next, "a gap between records");
            next = record.end();
            let is = record.has(TxRecord::SACKED);
            let octets = &self.covered[self.at(record.seq)..self.at(record.end())];
            assert!(octets.iter().all(|&it| it == is), "marked {is}: {record:?} of {octets:?}");
            assert!(!is || !record.has(TxRecord::LOST), "both lost and there: {record:?}");
            sacked += if is { u32::from(record.len) } else { 0 };
            segments += u16::from(is);
            lost += if record.has(TxRecord::LOST) { u32::from(record.len) } else { 0 };
        }
        assert_eq!(next, self.tcb.snd_nxt, "records end early");
        let tcb = &self.tcb;
        assert_eq!((tcb.sacked_bytes, tcb.sacked_segs(), tcb.lost_bytes), (sacked, segments, lost));
    }
}

/// The scoreboard marks exactly what blocks cover, and its sums are those of its records, whatever
/// is lost, sent again, split and joined meanwhile.
pub fn scoreboard_marks_what_blocks_cover(iss: u32, steps: &[ScoreboardStep]) {
    let mut board = Scoreboard::new(iss);
    for step in steps {
        board.step(step);
        if board.tcb.is_dead() {
            return;
        }
    }
}
