//! The last migrations that ended on a thread, in shared memory.
use super::word_ring::WordRing;
use ix_proto::groups::{GroupSet, WORDS};
use ix_proto::{MigrationEnd, MigrationRecord};

/// Slots of a ring; a reader gets one fewer.
const SLOTS: usize = 32;
/// Words of a record.
const RECORD_WORDS: usize = WORDS + 8;

/// The last records of a thread.
#[derive(Debug)]
#[repr(transparent)]
pub struct RecordRing(WordRing<SLOTS, RECORD_WORDS>);

impl RecordRing {
    /// Adds a record.
    pub(super) fn push(&self, record: &MigrationRecord) {
        self.0.push(to_words(record));
    }

    /// Number of records that were ever written.
    pub fn written(&self) -> u64 {
        self.0.written()
    }

    /// The last records, oldest first.
    pub fn read(&self) -> Vec<MigrationRecord> {
        self.0.read().iter().map(from_words).collect()
    }
}

fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

fn to_words(record: &MigrationRecord) -> [u64; RECORD_WORDS] {
    let r = record;
    let mut words = [0; RECORD_WORDS];
    let (groups, rest) = words.split_at_mut(WORDS);
    groups.copy_from_slice(&r.flow_groups.words());
    rest.copy_from_slice(&[
        r.command,
        pair(u32::from(r.from) << 16 | u32::from(r.to), r.flows),
        r.start_us,
        pair(r.prepare_us, r.wait_us),
        pair(r.rpc_us, r.deferred_us),
        pair(r.total_us, r.pause_us),
        pair(r.packets, r.end as u32),
        r.descheduled_us.into(),
    ]);
    words
}

fn from_words(words: &[u64; RECORD_WORDS]) -> MigrationRecord {
    let (groups, rest) = words.split_at(WORDS);
    let (threads, flows) = halves(rest[1]);
    let (prepare_us, wait_us) = halves(rest[3]);
    let (rpc_us, deferred_us) = halves(rest[4]);
    let (total_us, pause_us) = halves(rest[5]);
    let (packets, end) = halves(rest[6]);
    MigrationRecord {
        command: rest[0],
        flow_groups: GroupSet::from_words(core::array::from_fn(|i| groups[i])),
        from: (threads >> 16) as u16,
        to: threads as u16,
        flows,
        start_us: rest[2],
        prepare_us,
        wait_us,
        rpc_us,
        deferred_us,
        total_us,
        pause_us,
        packets,
        descheduled_us: rest[7] as u32,
        end: MigrationEnd::ALL.into_iter().find(|known| *known as u32 == end).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(n: u32) -> MigrationRecord {
        MigrationRecord {
            command: u64::from(n) << 33,
            flow_groups: [n as usize % 128, 127].into_iter().collect(),
            from: n as u16,
            to: !(n as u16),
            flows: n + 1,
            start_us: u64::from(n) << 20,
            prepare_us: n + 2,
            wait_us: n + 3,
            rpc_us: n + 4,
            deferred_us: n + 5,
            total_us: n + 6,
            pause_us: n + 7,
            packets: n + 8,
            descheduled_us: n + 9,
            end: MigrationEnd::ALL[n as usize % MigrationEnd::ALL.len()],
        }
    }

    fn ring() -> Box<RecordRing> {
        Box::new(RecordRing(WordRing::new()))
    }

    #[test]
    fn the_last_ones_are_there_in_order() {
        let ring = ring();
        assert!(ring.read().is_empty());
        (0..5).for_each(|n| ring.push(&record(n)));
        assert_eq!(ring.read(), (0..5).map(record).collect::<Vec<_>>());
        (5..100).for_each(|n| ring.push(&record(n)));
        assert_eq!(ring.read(), (69..100).map(record).collect::<Vec<_>>());
        assert_eq!(ring.written(), 100);
    }

    #[test]
    fn none_is_torn_while_somebody_writes() {
        let ring = ring();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (0..300_000).for_each(|n| ring.push(&record(n))));
            while !writer.is_finished() {
                for read in ring.read() {
                    assert_eq!(read, record(read.flows - 1));
                }
            }
        });
    }
}
