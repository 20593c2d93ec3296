//! A survey: a record of each connection, on demand.
//!
//! The broker sends memory with a request. Each elastic thread goes through its flow groups, some
//! slots between two cycles, and writes a record for each flow there. The memory also has the
//! progress of each group. So the survey continues when the group moves to another thread, and the
//! broker sees what is missing when the time is over.
mod area;

pub use area::SurveyArea;
pub use ix_proto::survey::FlowRecord;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of slots that are checked between two cycles: this takes about as long as a few packets.
pub(crate) const SLICE: usize = 32;

/// The running survey, if there is one.
#[derive(Default)]
pub(crate) struct Surveys {
    running: Mutex<Option<Survey>>,
    is_running: AtomicBool,
}

/// One survey.
#[derive(Clone)]
pub(crate) struct Survey {
    pub serial: u64,
    /// The result is not needed after this time, µs.
    pub until_us: u64,
    pub area: Arc<SurveyArea>,
}

impl Surveys {
    fn lock(&self) -> MutexGuard<'_, Option<Survey>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a survey. It replaces one that was not finished.
    pub fn begin(&self, survey: Survey) {
        *self.lock() = Some(survey);
        self.is_running.store(true, Ordering::SeqCst);
    }

    /// Whether a survey is running.
    pub fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Relaxed)
    }

    /// The running survey.
    pub fn get(&self) -> Option<Survey> {
        self.lock().clone()
    }

    /// Ends a survey; false if it had ended before.
    pub fn end(&self, serial: u64) -> bool {
        let mut running = self.lock();
        let ends = running.as_ref().is_some_and(|survey| survey.serial == serial);
        if ends {
            *running = None;
            self.is_running.store(false, Ordering::SeqCst);
        }
        ends
    }
}
