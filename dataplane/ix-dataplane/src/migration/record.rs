//! Records of the migrations that ended here, until they are taken.
use crate::observe::migration::MigrationRecord;
use std::collections::VecDeque;

/// Records that were not taken yet; the oldest go first when there are too many.
#[derive(Debug, Default)]
pub struct Records {
    waiting: VecDeque<MigrationRecord>,
}

/// Most records that are kept.
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
