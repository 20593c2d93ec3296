//! The broker's messages to a running dataplane: devices change (a memif peer comes or goes, an
//! interface was made again), and the control plane sends orders (`life/`).
//!
//! An update comes from the broker through an [`UpdateSource`]. The first elastic thread that looks
//! reads it and puts each queue's part into the slot of the thread that owns the queue. That thread
//! applies it between two cycles. While no thread is inside `run_io`, updates wait with the broker.
use crate::observe::survey::{Survey, Surveys};
use ix_nic::{DeviceChange, NEVER_RINGS, QueueUpdate};
use ix_proto::routes::Route;
use ix_proto::{ClaimRefused, FromImage, Order, Outcome, SharedPort};
use ix_wire::{IpAddr, MacAddr};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A change of one device.
#[derive(Debug)]
pub struct Update {
    /// Number of the device in the configuration.
    pub device: usize,
    /// Grows with each update of the device.
    pub serial: u64,
    /// What changed.
    pub change: DeviceChange,
    /// Descriptors that belong to it.
    pub fds: Vec<OwnedFd>,
}

/// The result of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateOutcome {
    /// This queue has applied it.
    Updated {
        /// The queue.
        queue: usize,
        /// The update's number.
        serial: u64,
    },
    /// It could not be applied, and why; the device has not changed.
    Failed {
        /// The update's number.
        serial: u64,
        /// Why.
        why: String,
    },
}

/// A received order of the control plane.
#[derive(Debug)]
pub struct OrderMessage {
    /// Its number.
    pub serial: u64,
    /// It must not be begun after this time, µs of the monotonic clock.
    pub until_us: u64,
    /// What to do.
    pub order: Order,
    /// What came with it: the memory of a capture.
    pub memory: Option<OwnedFd>,
}

/// A message of the broker.
#[derive(Debug)]
pub enum FromBroker {
    /// A device changed.
    Update(Update),
    /// The control plane sends an order.
    Order(OrderMessage),
    /// What came of the claim of a port.
    Claimed {
        /// The port.
        port: SharedPort,
        /// Why it cannot be had.
        refused: Option<ClaimRefused>,
    },
    /// More ports for outgoing connections: first and last; the first 0: there are none.
    Outgoing(u16, u16),
    /// What Linux knows of a next hop.
    Neighbour {
        /// The next hop.
        hop: IpAddr,
        /// Its Ethernet address, if it has answered.
        mac: Option<MacAddr>,
    },
    /// A part of what Linux knows of the network of the shared address.
    Network {
        /// Its addresses and their prefix lengths.
        addresses: Vec<(IpAddr, u8)>,
        /// Some of the routes.
        routes: Vec<Route>,
        /// More parts follow.
        more: bool,
    },
    /// The control plane wants to know all connections.
    Survey {
        /// The survey's number.
        serial: u64,
        /// The result is not needed after this time, µs of the monotonic clock.
        until_us: u64,
        /// Its memory, for [`crate::SurveyArea::map`].
        memory: OwnedFd,
    },
}

/// Where updates and commands come from: the channel to the broker. Nothing here may block.
pub trait UpdateSource: Send {
    /// A descriptor that polls readable when something waits; [`NEVER_RINGS`] once nothing can
    /// come.
    fn fd(&self) -> RawFd;

    /// The next message, if one waits.
    fn next(&mut self) -> Option<FromBroker>;

    /// Reports the result of an update of this device.
    fn tell(&mut self, device: usize, outcome: UpdateOutcome);

    /// Reports the result of the order with this number.
    fn tell_outcome(&mut self, serial: u64, outcome: &Outcome);

    /// Reports that the survey with this number is complete.
    fn tell_surveyed(&mut self, serial: u64);

    /// Asks for something of an address that is shared with Linux, or says which groups there are.
    /// False: there is no room, and it is lost; what is given back never is.
    fn say(&mut self, _message: &FromImage) -> bool {
        true
    }

    /// This is set as long as something waits for room: [`UpdateSource::next`] is to be called from
    /// time to time.
    fn use_flag(&mut self, _unsent: Arc<AtomicBool>) {}
}

/// A queue's part of an update, for the elastic thread that owns the queue.
pub(crate) struct Part {
    pub serial: u64,
    pub update: QueueUpdate,
}

/// What waits for one elastic thread: the newest part for each device, and whether it must look at
/// the directory ([`crate::life`]).
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

/// Updates that were not applied yet.
pub struct Updates {
    slots: Box<[Slot]>,
    pub(crate) source: Mutex<Option<Box<dyn UpdateSource>>>,
    pub(crate) source_fd: AtomicI32,
    /// Something for the broker waits for room.
    unsent: Arc<AtomicBool>,
    pub(crate) surveys: Surveys,
}

impl Updates {
    /// For this many elastic threads, without a source.
    pub(crate) fn new(threads: usize) -> Updates {
        let slots = (0..threads).map(|_| Slot::default()).collect();
        Updates {
            slots,
            source: Mutex::new(None),
            source_fd: AtomicI32::new(NEVER_RINGS),
            unsent: Arc::default(),
            surveys: Surveys::default(),
        }
    }

    /// Sets the source of updates.
    pub fn set_source(&self, mut source: Box<dyn UpdateSource>) {
        source.use_flag(self.unsent.clone());
        let mut place = lock(&self.source);
        self.source_fd.store(source.fd(), Ordering::Relaxed);
        *place = Some(source);
    }

    /// Becomes readable when `Io::read_updates` has something to do.
    pub(crate) fn source_fd(&self) -> RawFd {
        self.source_fd.load(Ordering::Relaxed)
    }

    /// Whether something for the broker waits for room: `Io::read_updates` sends it.
    pub(crate) fn has_unsent(&self) -> bool {
        self.unsent.load(Ordering::Relaxed)
    }

    /// Whether something waits for an elastic thread. This is checked in each cycle, so it has no
    /// memory ordering: the slot's lock has.
    #[inline]
    pub(crate) fn waits(&self, thread: usize) -> bool {
        self.slots[thread].waits.load(Ordering::Relaxed) != 0
    }

    /// Whether parts wait for an elastic thread.
    pub(crate) fn has_parts(&self, thread: usize) -> bool {
        self.slots[thread].waits.load(Ordering::Relaxed) & PARTS != 0
    }

    /// Whether an elastic thread must look at the directory.
    pub(crate) fn is_ordered(&self, thread: usize) -> bool {
        self.slots[thread].waits.load(Ordering::Relaxed) & ORDER != 0
    }

    /// Whether a capture starts or ends.
    pub(crate) fn is_capture(&self, thread: usize) -> bool {
        self.slots[thread].waits.load(Ordering::Relaxed) & CAPTURE != 0
    }

    /// Makes an elastic thread look at the captures. The caller rings the thread.
    pub(crate) fn order_capture(&self, thread: usize) {
        self.slots[thread].waits.fetch_or(CAPTURE, Ordering::Relaxed);
    }

    /// The thread looks now. What it reads is behind a lock.
    pub(crate) fn capture_done(&self, thread: usize) {
        self.slots[thread].waits.fetch_and(!CAPTURE, Ordering::Relaxed);
    }

    /// When it was last told to look, ticks.
    pub(crate) fn ordered_at(&self, thread: usize) -> u64 {
        self.slots[thread].ordered.load(Ordering::Relaxed)
    }

    /// Makes an elastic thread look at the directory. The caller rings it.
    pub(crate) fn order(&self, thread: usize) {
        let slot = &self.slots[thread];
        slot.ordered.store(crate::clock::ticks(), Ordering::Relaxed);
        slot.waits.fetch_or(ORDER, Ordering::Relaxed);
    }

    /// The thread has looked. Called with the directory's lock, which the caller of [`Self::order`]
    /// holds as well.
    pub(crate) fn order_done(&self, thread: usize) {
        self.slots[thread].waits.fetch_and(!ORDER, Ordering::Relaxed);
    }

    /// Whether an elastic thread must do its part in a survey.
    pub(crate) fn is_surveyed(&self, thread: usize) -> bool {
        self.slots[thread].waits.load(Ordering::Relaxed) & SURVEY != 0
    }

    /// Makes an elastic thread do its part in a survey.
    pub(crate) fn order_survey(&self, thread: usize) {
        self.slots[thread].waits.fetch_or(SURVEY, Ordering::Relaxed);
    }

    /// The thread is about to do it.
    pub(crate) fn survey_done(&self, thread: usize) {
        self.slots[thread].waits.fetch_and(!SURVEY, Ordering::Relaxed);
    }

    /// Starts a survey in which all elastic threads take part. The caller rings them.
    pub(crate) fn begin_survey(&self, survey: Survey, threads: usize) {
        self.surveys.begin(survey);
        (0..threads).for_each(|thread| self.order_survey(thread));
    }

    /// Reports that a survey is complete.
    pub(crate) fn tell_surveyed(&self, serial: u64) {
        if let Some(source) = lock(&self.source).as_mut() {
            source.tell_surveyed(serial);
        }
    }

    /// Puts a part into a thread's slot. An older one for the device that was not applied is
    /// closed.
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

    /// As [`UpdateSource::say`]; true also where nobody listens.
    pub(crate) fn say(&self, message: &FromImage) -> bool {
        lock(&self.source).as_mut().is_none_or(|source| source.say(message))
    }

    /// Reports the result of an order.
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
