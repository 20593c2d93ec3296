//! A survey: what is known of each connection, told on demand.
//!
//! The broker sends memory with a request. Each elastic thread goes through the flow groups that it
//! owns, some slots between two cycles, and lays a record for each flow down there. How far a group
//! was surveyed stands in the memory as well, so that it goes on where it was when the group moves
//! to another thread, and the broker sees what is missing when time is over.
mod area;

pub use area::{FlowRecord, SurveyArea};

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Slots that are looked at between two cycles: about as long as a few packets take.
pub(crate) const SLICE: usize = 32;

/// The survey that runs, if one does.
#[derive(Default)]
pub(crate) struct Surveys {
    running: Mutex<Option<Survey>>,
    is_running: AtomicBool,
}

/// One survey.
#[derive(Clone)]
pub(crate) struct Survey {
    pub serial: u64,
    /// Nobody waits for it any more after this, µs.
    pub until_us: u64,
    pub area: Arc<SurveyArea>,
}

impl Surveys {
    fn lock(&self) -> MutexGuard<'_, Option<Survey>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the place of one that was not finished.
    pub fn begin(&self, survey: Survey) {
        *self.lock() = Some(survey);
        self.is_running.store(true, Ordering::SeqCst);
    }

    /// Whether one runs.
    pub fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Relaxed)
    }

    /// The one that runs.
    pub fn get(&self) -> Option<Survey> {
        self.lock().clone()
    }

    /// It is over; answers false when it was before.
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
