//! What the broker says while the dataplane runs: devices change (a memif peer comes or goes, an
//! interface was made again), and the control plane wants something (`life/`).
//!
//! An update comes from the broker through an [`UpdateSource`]. Whichever elastic thread looks first
//! reads it and lays each queue's part into the slot of the thread that owns the queue; that thread
//! takes it over between two cycles. Nothing happens while no thread is inside `run_io`: updates
//! then wait with the broker.
use crate::observe::survey::{Survey, Surveys};
use ix_nic::{NEVER_RINGS, QueueUpdate};
use ix_proto::{Order, Outcome};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A change of one device.
#[derive(Debug)]
pub struct Update {
    /// Number of the device in the configuration.
    pub device: usize,
    /// Grows with each update of the device.
    pub serial: u64,
    /// What changed, for [`ix_nic::read_update`].
    pub line: String,
    /// Descriptors that belong to it.
    pub fds: Vec<OwnedFd>,
}

/// What became of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateOutcome {
    /// This queue has taken it over.
    Updated {
        /// The queue.
        queue: usize,
        /// The update's number.
        serial: u64,
    },
    /// It cannot be used, and why; the device stays as it was.
    Failed(String),
}

/// An order of the control plane as it came.
#[derive(Debug)]
pub struct OrderMessage {
    /// Its number.
    pub serial: u64,
    /// It must not be begun after this time, µs of the monotonic clock.
    pub until_us: u64,
    /// What is wanted.
    pub order: Order,
    /// What came with it: the memory of a capture.
    pub memory: Option<OwnedFd>,
}

/// What the broker says.
#[derive(Debug)]
pub enum FromBroker {
    /// A device changed.
    Update(Update),
    /// The control plane wants something.
    Order(OrderMessage),
    /// The control plane wants to know all connections.
    Survey {
        /// The survey's number.
        serial: u64,
        /// After this time nobody waits for it, µs of the monotonic clock.
        until_us: u64,
        /// Its memory, for [`crate::SurveyArea::map`].
        memory: OwnedFd,
    },
}

/// Where updates and commands come from: the channel to the broker. Nothing here may block.
pub trait UpdateSource: Send {
    /// A descriptor that polls readable when something waits; [`NEVER_RINGS`] once nothing can come.
    fn fd(&self) -> RawFd;

    /// The next message, if one waits.
    fn next(&mut self) -> Option<FromBroker>;

    /// Tells what became of an update of this device.
    fn tell(&mut self, device: usize, outcome: UpdateOutcome);

    /// Tells what became of the order of this number.
    fn tell_outcome(&mut self, serial: u64, outcome: &Outcome);

    /// Tells that the survey of this number is complete.
    fn tell_surveyed(&mut self, serial: u64);
}

/// A queue's part of an update, on its way to the elastic thread that owns the queue.
pub(crate) struct Part {
    pub serial: u64,
    pub update: QueueUpdate,
}

/// What waits for one elastic thread: a part for each device, the newest; and whether it is to look
/// at the directory ([`crate::life`]).
#[derive(Default)]
struct Slot {
    /// [`PARTS`], [`ORDER`], [`SURVEY`] and [`CAPTURE`].
    waits: AtomicU8,
    parts: Mutex<Vec<Option<Part>>>,
    /// When it was last told to look, ticks.
    ordered: AtomicU64,
}

const PARTS: u8 = 1;
const ORDER: u8 = 2;
const SURVEY: u8 = 4;
const CAPTURE: u8 = 8;

/// Updates on their way.
pub struct Updates {
    slots: Box<[Slot]>,
    pub(crate) source: Mutex<Option<Box<dyn UpdateSource>>>,
    pub(crate) source_fd: AtomicI32,
    pub(crate) surveys: Surveys,
}

impl Updates {
    /// For so many elastic threads; without a source.
    pub(crate) fn new(threads: usize) -> Updates {
        let slots = (0..threads).map(|_| Slot::default()).collect();
        Updates {
            slots,
            source: Mutex::new(None),
            source_fd: AtomicI32::new(NEVER_RINGS),
            surveys: Surveys::default(),
        }
    }

    /// From now on updates come from there.
    pub fn set_source(&self, source: Box<dyn UpdateSource>) {
        let mut place = lock(&self.source);
        self.source_fd.store(source.fd(), Ordering::Relaxed);
        *place = Some(source);
    }

    /// Polls readable when `Io::read_updates` has something to do.
    pub(crate) fn source_fd(&self) -> RawFd {
        self.source_fd.load(Ordering::Relaxed)
    }

    /// Whether something waits for an elastic thread. Looked at in each cycle, so it orders nothing:
    /// the slot's lock does.
    #[inline]
    pub(crate) fn waits(&self, thread: usize) -> bool {
        self.slots[thread].waits.load(Ordering::Relaxed) != 0
    }

    /// Whether parts wait for an elastic thread.
    pub(crate) fn has_parts(&self, thread: usize) -> bool {
        self.slots[thread].waits.load(Ordering::Relaxed) & PARTS != 0
    }

    /// Whether an elastic thread is to look at the directory.
    pub(crate) fn is_ordered(&self, thread: usize) -> bool {
        self.slots[thread].waits.load(Ordering::Relaxed) & ORDER != 0
    }

    /// Whether a capture begins or ends.
    pub(crate) fn is_capture(&self, thread: usize) -> bool {
        self.slots[thread].waits.load(Ordering::Relaxed) & CAPTURE != 0
    }

    /// A capture begins or ends. Whoever says so rings the thread.
    pub(crate) fn order_capture(&self, thread: usize) {
        self.slots[thread].waits.fetch_or(CAPTURE, Ordering::Relaxed);
    }

    /// It looks now. What it looks at is behind a lock.
    pub(crate) fn capture_done(&self, thread: usize) {
        self.slots[thread].waits.fetch_and(!CAPTURE, Ordering::Relaxed);
    }

    /// When it was told so last, ticks.
    pub(crate) fn ordered_at(&self, thread: usize) -> u64 {
        self.slots[thread].ordered.load(Ordering::Relaxed)
    }

    /// An elastic thread is to look at the directory. Whoever says so rings it.
    pub(crate) fn order(&self, thread: usize) {
        let slot = &self.slots[thread];
        slot.ordered.store(crate::clock::ticks(), Ordering::Relaxed);
        slot.waits.fetch_or(ORDER, Ordering::Relaxed);
    }

    /// It has looked. Called with the directory's lock, as whoever orders has had it.
    pub(crate) fn order_done(&self, thread: usize) {
        self.slots[thread].waits.fetch_and(!ORDER, Ordering::Relaxed);
    }

    /// Whether an elastic thread has to do with a survey.
    pub(crate) fn is_surveyed(&self, thread: usize) -> bool {
        self.slots[thread].waits.load(Ordering::Relaxed) & SURVEY != 0
    }

    /// An elastic thread is to do its part in a survey.
    pub(crate) fn order_survey(&self, thread: usize) {
        self.slots[thread].waits.fetch_or(SURVEY, Ordering::Relaxed);
    }

    /// It is about to.
    pub(crate) fn survey_done(&self, thread: usize) {
        self.slots[thread].waits.fetch_and(!SURVEY, Ordering::Relaxed);
    }

    /// All elastic threads take part in a survey from now on. The caller rings them.
    pub(crate) fn begin_survey(&self, survey: Survey, threads: usize) {
        self.surveys.begin(survey);
        (0..threads).for_each(|thread| self.order_survey(thread));
    }

    /// Tells that a survey is complete.
    pub(crate) fn tell_surveyed(&self, serial: u64) {
        if let Some(source) = lock(&self.source).as_mut() {
            source.tell_surveyed(serial);
        }
    }

    /// Lays a part down; an older one of the device that was not taken is closed.
    pub(crate) fn put(&self, thread: usize, device: usize, part: Part) {
        let slot = &self.slots[thread];
        let mut parts = lock(&slot.parts);
        if parts.len() <= device {
            parts.resize_with(device + 1, || None);
        }
        parts[device] = Some(part);
        slot.waits.fetch_or(PARTS, Ordering::Relaxed);
    }

    pub(crate) fn take(&self, thread: usize) -> Vec<Option<Part>> {
        let slot = &self.slots[thread];
        let mut parts = lock(&slot.parts);
        slot.waits.fetch_and(!PARTS, Ordering::Relaxed);
        std::mem::take(&mut parts)
    }

    /// Tells what became of an order.
    pub(crate) fn tell_outcome(&self, serial: u64, outcome: &Outcome) {
        if let Some(source) = lock(&self.source).as_mut() {
            source.tell_outcome(serial, outcome);
        }
    }

    pub(crate) fn tell(&self, device: usize, outcome: UpdateOutcome) {
        if let Some(source) = lock(&self.source).as_mut() {
            source.tell(device, outcome);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
