//! The processes of a program that share this dataplane: who comes and who goes.
//!
//! The dataplane's main thread hears of both and changes the roster; each elastic thread's Linux
//! thread looks at it when its version has changed, and does its part. What a process shares is
//! unmapped when the last thread has let go of it.
use crate::calls::CallArray;
use crate::clock::monotonic_ns;
use crate::cycle::ElasticThread;
use crate::events::EventWriter;
use crate::run::boot::{BootError, Dataplane};
use crate::run::crossing::CrossingPages;
use ix_proto::crossing::HEADER_BYTES;
use ix_proto::crossing::{ATTACHMENTS_MAX, AttachmentId};
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What one process of the program shares.
pub struct Shares {
    /// Call arrays, event arrays, requests, replies.
    pub(crate) pages: CrossingPages,
    /// A socket for each elastic thread. The process has the other end.
    bells: Vec<OwnedFd>,
}

impl Shares {
    /// With a bell for each elastic thread.
    pub fn new(pages: CrossingPages, bells: Vec<OwnedFd>) -> Shares {
        Shares { pages, bells }
    }

    pub(crate) fn bell(&self, thread: usize) -> RawFd {
        self.bells[thread].as_raw_fd()
    }
}

/// A process of the program.
pub(crate) struct Entry {
    pub number: AttachmentId,
    pub shares: Arc<Shares>,
    /// What is added to its addresses in transmit memory.
    pub shift: u64,
    /// It has ended.
    pub has_ended: bool,
    /// When that became known.
    ended_us: u64,
    /// Elastic threads that know it.
    pub begun_by: Vec<bool>,
    /// Which one it is of those that have had this number.
    pub life: u32,
}

/// A process of the program, of all that have had its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Its number.
    pub number: usize,
    /// Another one for each process that gets this number.
    pub which: u32,
}

impl Life {
    /// The program's first process.
    pub const FIRST: Life = Life { number: 0, which: 0 };
}

impl Entry {
    fn new(
        number: AttachmentId,
        shares: Shares,
        (shift, life): (u64, u32),
        threads: usize,
    ) -> Entry {
        let (begun_by, shares) = (vec![false; threads], Arc::new(shares));
        Entry { number, shares, shift, has_ended: false, ended_us: 0, begun_by, life }
    }
}

/// All of them.
#[derive(Default)]
pub(crate) struct Roster {
    entries: Mutex<Vec<Entry>>,
    /// An elastic thread has done its part.
    looked: Condvar,
    version: AtomicU64,
    /// Since when numbers are wanted of which none has come back; 0: none is wanted.
    wanted_us: AtomicU64,
}

/// At least this many numbers are to be free. The broker leaves as many when it prepares
/// attachments.
const NUMBERS_LEFT: usize = 8;
/// A process that has ended keeps its number at least this long, however few are free: until then
/// no peer can have taken nothing for a second.
const AT_ONCE_US: u64 = 1_000_000;
/// If no number comes back for so long, that of the next process is wanted, too.
const NEXT_US: u64 = 250_000;

fn now_us() -> u64 {
    monotonic_ns() / 1000
}

/// Why a process cannot attach.
#[derive(Debug)]
pub enum AttachRefused {
    /// There is no such number, or another process has it.
    Number,
    /// Its memory cannot be mapped.
    Memory(BootError),
}

impl fmt::Display for AttachRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachRefused::Number => f.write_str("the number of the process is taken"),
            AttachRefused::Memory(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for AttachRefused {}

impl Roster {
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// An elastic thread has done its part.
    pub fn has_looked(&self) {
        self.looked.notify_all();
    }

    /// Numbers, by bits, of ended processes that are wanted back because few are free while `taken`
    /// are not: of those that ended longest ago, as many as are missing, and one more each time
    /// that they have not come back for [`NEXT_US`]. `ended` says when each of them has ended.
    fn wanted(&self, taken: usize, mut ended: Vec<(u64, AttachmentId)>, now_us: u64) -> u64 {
        let missing = (taken + NUMBERS_LEFT).saturating_sub(ATTACHMENTS_MAX);
        ended.retain(|(ended_us, _)| now_us >= ended_us + AT_ONCE_US);
        if missing == 0 || ended.is_empty() {
            self.came_back();
            return 0;
        }
        let since =
            self.wanted_us.compare_exchange(0, now_us, Ordering::Relaxed, Ordering::Relaxed);
        let waited_us = now_us.saturating_sub(since.err().unwrap_or(now_us));
        let more = (waited_us / NEXT_US) as usize;
        ended.sort_unstable();
        let oldest = ended.into_iter().take(missing.saturating_add(more));
        oldest.fold(0, |bits, (_, number)| bits | 1 << number)
    }

    /// Numbers that were wanted are free, or none is wanted.
    fn came_back(&self) {
        self.wanted_us.store(0, Ordering::Relaxed);
    }

    /// Waits until all elastic threads know a process.
    fn wait_until_begun(&self, number: AttachmentId) {
        let is_begun = |entries: &mut Vec<Entry>| {
            let mut of_it = entries.iter().filter(|entry| entry.number == number);
            of_it.all(|entry| entry.begun_by.iter().all(|begun| *begun))
        };
        let waits = self.looked.wait_while(self.lock(), |entries| !is_begun(entries));
        drop(waits.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Dataplane {
    /// The program's first process, whose pages this dataplane was made with.
    pub fn attach_first(&self, shares: Shares, given_bytes: u64) {
        let entry = Entry::new(0, shares, (0, Life::FIRST.which), self.threads());
        self.continue_lot(&entry, given_bytes);
        self.roster.lock().push(entry);
        self.roster.changed();
    }

    /// Another process of the program attaches under this number, from 1 on, with transmit memory
    /// of its own, of which so many bytes are its own already if an earlier dataplane gave them
    /// out. Its pages get the header; from then on it may ask.
    pub fn attach(
        &self,
        number: usize,
        shares: Shares,
        (arena, given_bytes): (BorrowedFd<'_>, u64),
    ) -> Result<Life, AttachRefused> {
        let is_taken = |entry: &Entry| usize::from(entry.number) == number;
        let known = number == 0 || number >= ATTACHMENTS_MAX;
        if known || self.roster.lock().iter().any(is_taken) {
            return Err(AttachRefused::Number);
        }
        let memory = &self.shared.memory;
        let shift = memory.add_arena(number - 1, arena);
        let shift = shift.map_err(|e| AttachRefused::Memory(BootError::Memory(e)))?;
        // SAFETY: both have that many bytes; the source does not change any more, the target is
        // nobody else's yet.
        unsafe {
            let from = self.header().cast::<u8>();
            shares.pages.header().copy_from_nonoverlapping(from, HEADER_BYTES);
        }
        shares.pages.set_attachment(number);
        let number = number as AttachmentId;
        // Another version for each that attaches.
        let life = self.roster.version() as u32;
        let entry = Entry::new(number, shares, (shift, life), self.threads());
        self.continue_lot(&entry, given_bytes);
        self.roster.lock().push(entry);
        self.roster.changed();
        self.call_all();
        // A flow of the process may move to any elastic thread.
        self.roster.wait_until_begun(number);
        Ok(Life { number: number.into(), which: life })
    }

    /// What lies before this offset of a process's transmit memory belongs to it already.
    fn continue_lot(&self, entry: &Entry, given_bytes: u64) {
        let shares = entry.shares.clone();
        let publish = move |end| {
            shares.pages.legacy().given_bytes.fetch_max(end, Ordering::Relaxed);
        };
        self.shared.continue_from(entry.number, given_bytes, Box::new(publish));
    }

    /// A process has ended: each elastic thread closes its connections. Returns the number of
    /// processes that have not ended.
    pub fn detach(&self, number: usize) -> usize {
        let mut entries = self.roster.lock();
        let of_it = entries.iter_mut().filter(|entry| usize::from(entry.number) == number);
        for entry in of_it {
            (entry.has_ended, entry.ended_us) = (true, now_us());
        }
        let living = entries.iter().filter(|entry| !entry.has_ended).count();
        drop(entries);
        self.roster.changed();
        self.call_all();
        living
    }

    /// Numbers of processes that have ended and of which nothing is left; they may be given to
    /// others. Each is returned once.
    pub fn take_gone(&self) -> Vec<usize> {
        let mut entries = self.roster.lock();
        let is_gone =
            |entry: &mut Entry| entry.has_ended && self.shared.mourning.is_over(entry.number);
        let gone: Vec<usize> =
            entries.extract_if(.., is_gone).map(|entry| usize::from(entry.number)).collect();
        for number in &gone {
            self.shared.mourning.forget(*number as AttachmentId);
            self.shared.end_lot(*number as AttachmentId);
            match number {
                0 => self.shared.memory.empty_arena(),
                _ => self.shared.memory.remove_arena(number - 1),
            }
        }
        if !gone.is_empty() {
            self.roster.came_back();
        }
        let ended = entries.iter().filter(|entry| entry.has_ended);
        let ended = ended.map(|entry| (entry.ended_us, entry.number)).collect();
        let wanted = self.roster.wanted(entries.len(), ended, now_us());
        drop(entries);
        if wanted != 0 || self.shared.mourning.is_any_wanted() {
            self.shared.mourning.want(wanted);
            self.call_all();
        }
        gone
    }

    /// Whether a process has ended of which something is left.
    pub fn waits_for_ends(&self) -> bool {
        self.roster.lock().iter().any(|entry| entry.has_ended)
    }

    /// Makes every thread look at the roster, and at whether it is to end.
    pub(super) fn call_all(&self) {
        for waker in &self.shared.wakers {
            waker.kick();
            // It may sleep for a request, where it looks at nothing but the eventfd.
            crate::doorbell::ring(waker.fd());
        }
    }
}

impl ElasticThread {
    /// Another process of the program shares this thread. It computes at first. `shift` is added
    /// to its addresses in transmit memory; `life` is another one for each that gets this number.
    ///
    /// # Panics
    /// If the number is not below [`ATTACHMENTS_MAX`].
    pub fn begin_attachment(
        &mut self,
        number: AttachmentId,
        calls: CallArray,
        events: EventWriter,
        (shift, life): (u64, u32),
    ) {
        self.io.cx.attached.begin(number, calls, events, (shift, life));
    }

    /// Whether this process waits for events here, or computes.
    pub fn set_present(&mut self, number: AttachmentId, present: bool) {
        self.io.cx.attached.set_present(number, present);
    }

    /// Number of events in the array of this process.
    pub fn events_for(&self, number: AttachmentId) -> usize {
        self.io.cx.attached[number].events.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_numbers_are_short_those_of_the_oldest_dead_are_wanted() {
        let roster = Roster::default();
        let ended = || vec![(3_000_000, 7), (1_000_000, 9), (2_000_000, 5)];
        let full = ATTACHMENTS_MAX - NUMBERS_LEFT;
        assert_eq!(roster.wanted(full, ended(), 9_000_000), 0, "enough are free");
        assert_eq!(roster.wanted(full + 2, ended(), 2_500_000), 1 << 9, "it has just ended");
        assert_eq!(roster.wanted(full + 1, ended(), 2_500_000 + NEXT_US - 1), 1 << 9);
        assert_eq!(roster.wanted(full + 1, ended(), 9_000_000), 1 << 9 | 1 << 5 | 1 << 7);
        roster.came_back();
        assert_eq!(roster.wanted(full + 1, ended(), 9_000_000), 1 << 9);
        assert_eq!(roster.wanted(full + 1, ended(), 9_000_000 + NEXT_US), 1 << 9 | 1 << 5);
        // All of them live.
        assert_eq!(roster.wanted(ATTACHMENTS_MAX, Vec::new(), 9_000_000 + NEXT_US), 0);
    }
}
