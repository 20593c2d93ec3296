//! The life of elastic threads: entered, parked, resumed; and the commands of the control plane.
//!
//! ```text
//!  background ── first RUN_IO ──▶ active ── park: REVOKE 1 ──▶ parking ── groups have left ──▶ parked
//!                                    ▲                                                          │
//!                                    └────────── resume: groups come, then REVOKE 0 ────────────┘
//! ```
//!
//! An application that turns an elastic thread into a background thread says `DRAIN`, hears `REVOKE`
//! 2 when its flow groups are gone, and leaves. What it has not entered for a while, or has left, has
//! no flow groups once another thread is active: whoever is there sends them (`care.rs`).
//!
//! One [`Directory`] for all threads says what each is and where each flow group belongs; a command
//! changes it and so is over at once. Then each thread that has to do with it looks between two of its
//! cycles, and does its part: tells its application, sends what belongs elsewhere. Whatever happens to
//! whoever wanted it, the threads bring about what the directory says. A command that is not carried
//! out in time gives the directory back its old plan.
mod directory;
mod plan;

use crate::commands::{BEGIN_US, Command, Outcome};
use crate::cycle::ElasticThread;
use crate::io::Io;
use crate::migration::MigrationRecord;
use crate::observe::metrics::{ControlPage, ThreadState};
use crate::updates::CommandMessage;
use directory::{Directory, Orders, Sight, command_of};
use ix_abi::{Event, error, event_kind, revoke};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// The directory, and what threads see of it without the lock.
pub struct Lives {
    directory: Mutex<Directory>,
    unsettled: AtomicBool,
    /// A thread that nobody is may receive packets.
    strays: AtomicBool,
    /// Which threads the program's own threads take turns in being.
    shared: Box<[AtomicBool]>,
    /// When the first thread was entered, µs; 0: none was.
    first_entered_us: AtomicU64,
}

/// So long after the first thread was entered have the others time to be, before their flow groups
/// are given to those that were, µs. A program that enters all of them at its start sees no migration.
const ENTER_US: u64 = 1_000_000;

impl Lives {
    /// Of so many threads that nobody has entered; flow groups belong where they are.
    pub(crate) fn new(threads: usize, owner: impl Fn(usize) -> usize) -> Lives {
        Lives {
            directory: Mutex::new(Directory::new(threads, owner)),
            unsettled: AtomicBool::new(false),
            strays: AtomicBool::new(false),
            shared: (0..threads).map(|_| AtomicBool::new(false)).collect(),
            first_entered_us: AtomicU64::new(0),
        }
    }

    /// Whether something is not as it should be: threads look from time to time.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsettled.load(Ordering::Relaxed)
    }

    /// Whether somebody must be awake every few milliseconds.
    pub(crate) fn needs_care(&self) -> bool {
        self.is_unsettled() || self.strays.load(Ordering::Relaxed)
    }

    /// What a thread is.
    pub(crate) fn state(&self, thread: usize) -> ThreadState {
        self.lock().state(thread)
    }

    /// The program's own threads take turns in being this elastic thread: it cannot be parked. Uses
    /// no thread-local storage.
    pub(crate) fn share(&self, thread: usize) {
        self.shared[thread].store(true, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Directory> {
        self.directory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Io {
    /// Tells everybody what the directory says now.
    fn publish(&self, directory: &Directory) {
        let shared = &self.shared;
        let page: &ControlPage = self.metrics.page();
        for thread in 0..shared.threads() {
            page.thread(thread).life.set(directory.state(thread) as u64);
        }
        page.commands().running.set(directory.running().unwrap_or(0));
        let unsettled = directory.is_unsettled(|group| shared.owner(group));
        shared.lives.unsettled.store(unsettled, Ordering::Relaxed);
        let nobody = |thread| directory.state(thread) == ThreadState::Background;
        let strays =
            self.ports.iter().any(|port| port.reta.is_none()) && (0..shared.threads()).any(nobody);
        shared.lives.strays.store(strays, Ordering::Relaxed);
    }

    /// Has threads look at the directory.
    fn call(&self, threads: &[usize]) {
        for thread in threads {
            self.shared.updates.order(*thread);
            if *thread != self.index {
                self.ring_thread(*thread);
            }
        }
    }

    /// The application runs this thread for the first time, or again.
    #[cold]
    pub(crate) fn enter(&mut self, now_us: u64) {
        let (shared, nobody) = (self.shared.clone(), 0);
        let first = &shared.lives.first_entered_us;
        let _ = first.compare_exchange(nobody, now_us, Ordering::Relaxed, Ordering::Relaxed);
        self.change(|directory, me| directory.enter(me));
    }

    /// The application has left this thread.
    #[cold]
    pub(crate) fn leave(&mut self) {
        self.change(|directory, me| directory.leave(me));
    }

    /// The application wants to leave this thread; answers false when it is the last one.
    #[cold]
    pub(crate) fn drain(&mut self) -> bool {
        let mut may = true;
        self.change(|directory, me| {
            let involved = directory.drain(me);
            may = involved.is_some();
            involved.unwrap_or_default()
        });
        may
    }

    /// Flow groups of threads that the program has not entered go to those that it has.
    #[cold]
    pub(crate) fn take_over(&mut self, now_us: u64) {
        let shared = self.shared.clone();
        let first_us = shared.lives.first_entered_us.load(Ordering::Relaxed);
        if first_us == 0 || now_us < first_us.saturating_add(ENTER_US) {
            return;
        }
        shared.lives.first_entered_us.store(0, Ordering::Relaxed);
        self.change(|directory, _| {
            (0..shared.threads()).flat_map(|thread| directory.abandon(thread)).collect()
        });
    }

    /// Changes the directory; `what` gets this thread's number and answers who must look.
    fn change(&mut self, what: impl FnOnce(&mut Directory, usize) -> Vec<usize>) {
        let shared = self.shared.clone();
        let mut directory = shared.lives.lock();
        let involved = what(&mut directory, self.index);
        self.publish(&directory);
        let ended = directory.take_ended();
        drop(directory);
        self.call(&involved);
        self.tell(ended);
    }

    fn tell(&self, ended: Vec<(u64, Outcome)>) {
        for (serial, outcome) in ended {
            self.count_ended(serial, &outcome);
            self.shared.updates.tell_outcome(serial, &outcome);
        }
    }

    /// Begins a command; answers why not.
    #[cold]
    pub(crate) fn begin_command(
        &mut self,
        message: &CommandMessage,
        now_us: u64,
    ) -> Option<Outcome> {
        if let Some(text) = message.line.strip_prefix("gate ") {
            return Some(self.ended(self.change_gate(text), message));
        }
        let Some(command) = Command::parse(&message.line) else {
            let start: String = message.line.chars().take(64).collect();
            return Some(self.ended(Outcome::Refused(format!("`{start}` is no command")), message));
        };
        let shared = self.shared.clone();
        let mut directory = shared.lives.lock();
        let lives = shared.lives.shared.iter().enumerate();
        for (thread, _) in lives.filter(|(_, shared)| shared.load(Ordering::Relaxed)) {
            directory.share(thread);
        }
        if directory.state(self.index) == ThreadState::Parked {
            // The message itself has woken it; nobody else has called.
            let sent_us = message.until_us.saturating_sub(BEGIN_US);
            self.metrics.woke_after_us(now_us.saturating_sub(sent_us));
        }
        match directory.begin(message.serial, command, message.until_us, now_us) {
            Ok(involved) => {
                self.publish(&directory);
                drop(directory);
                self.call(&involved);
                None
            }
            Err(why) => Some(self.ended(Outcome::Refused(why), message)),
        }
    }

    /// Every thread has the new gate from its next cycle on, and one that sleeps when it wakes.
    fn change_gate(&self, text: &str) -> Outcome {
        match text.parse() {
            Ok(gate) => {
                self.shared.gate.set(gate);
                Outcome::Done
            }
            Err(why) => Outcome::Refused(why),
        }
    }

    fn ended(&self, outcome: Outcome, message: &CommandMessage) -> Outcome {
        self.count_ended(message.serial, &outcome);
        outcome
    }

    /// Counts a command that is over.
    fn count_ended(&self, serial: u64, outcome: &Outcome) {
        let commands = self.metrics.page().commands();
        match outcome {
            Outcome::Done => commands.done.add(1),
            Outcome::Refused(_) => commands.refused.add(1),
            Outcome::TimedOut(_) => commands.timed_out.add(1),
        }
        commands.ended.set(serial);
    }
}

impl ElasticThread {
    /// Looks at the directory and does this thread's part. `run` counts the application's returns.
    #[cold]
    pub(crate) fn attend(&mut self, run: u64, now_us: u64) {
        if !self.io.events.has_room() {
            return;
        }
        let shared = self.shared.clone();
        let mut directory = match shared.lives.directory.try_lock() {
            Ok(directory) => directory,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Somebody else is at it: in the next turn.
            Err(TryLockError::WouldBlock) => return,
        };
        while let Some(record) = self.take_migration() {
            directory.ended(&record);
            if !Directory::is_refusal(&record) {
                let command = command_of(record.command);
                self.io.metrics.migrated(&MigrationRecord { command, ..record });
            }
        }
        let here = self.groups_here();
        let sight = Sight { index: self.io.index, run, here, at_rest: self.at_rest() };
        let orders = directory.attend(&sight, now_us);
        if !orders.go_on {
            shared.updates.order_done(self.io.index);
        }
        self.follow(&orders, &mut directory);
        self.io.publish(&directory);
        let ended = directory.take_ended();
        drop(directory);
        self.io.tell(ended);
    }

    fn follow(&mut self, orders: &Orders, directory: &mut Directory) {
        if let Some(takes_groups) = orders.takes_groups {
            self.set_takes_groups(takes_groups);
        }
        if let Some(goes) = orders.revoke {
            let (kind, data) = (event_kind::REVOKE, if goes { revoke::GOES } else { revoke::BACK });
            self.io.events.push(Event { kind, data, ..Event::default() });
        }
        if orders.drained {
            let (kind, data) = (event_kind::REVOKE, revoke::DRAINED);
            self.io.events.push(Event { kind, data, ..Event::default() });
        }
        for (groups, to, number) in &orders.send {
            if self.migrate(*groups, *to, *number).is_err() {
                // Too many wait: it is tried again.
                directory.forget(*number);
            }
        }
        self.io.call(&orders.call);
    }

    /// The application wants to leave this thread.
    pub(crate) fn call_drain(&mut self) -> Result<i64, i64> {
        if self.io.drain() { Ok(0) } else { Err(error::STATE) }
    }

    /// Says in the control page which flow groups are here.
    pub(crate) fn publish_groups(&self) {
        self.io.metrics.set_owned(&self.groups_here());
    }
}
