//! A survey: what is known of each connection, told on demand.
//!
//! The broker sends memory with a request. Each elastic thread goes through the flow groups that it
//! owns, some slots between two cycles, and lays a record for each flow down there. How far a group was
//! surveyed stands in the memory as well, so that it goes on where it was when the group moves to
//! another thread, and the broker sees what is missing when time is over.
mod area;
mod walk;

pub use area::{FlowRecord, SurveyArea};
pub(crate) use walk::SLICE;

use crate::updates::Updates;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

impl Updates {
    /// All elastic threads take part in a survey from now on. Whoever says so rings them.
    pub(crate) fn begin_survey(&self, survey: Survey, threads: usize) {
        self.surveys.begin(survey);
        (0..threads).for_each(|thread| self.order_survey(thread));
    }
}
