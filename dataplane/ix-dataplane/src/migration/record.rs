//! Records of the migrations that ended on this thread, until they are taken.
use ix_proto::MigrationRecord;
use std::collections::VecDeque;

/// Records that were not taken yet. If there are too many, the oldest are dropped.
#[derive(Debug, Default)]
pub struct Records {
    waiting: VecDeque<MigrationRecord>,
}

/// Most records that are stored.
const RECORDS_MAX: usize = 256;

impl Records {
    pub(super) fn push(&mut self, record: MigrationRecord) {
        if self.waiting.len() == RECORDS_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(record);
    }

    pub(super) fn pop(&mut self) -> Option<MigrationRecord> {
        self.waiting.pop_front()
    }
}
