//! The life of elastic threads: entered, parked, resumed; and the commands of the control plane.
//!
//! ```text
//!  background ── first RUN_IO ──▶ active ── park: REVOKE 1 ──▶ parking ── groups have left ──▶ parked
//!                                    ▲                                                          │
//!                                    └────────── resume: groups come, then REVOKE 0 ────────────┘
//! ```
//!
//! One [`Directory`] for all threads says what each is and where each flow group belongs; a command
//! changes it and so is over at once. Then each thread that has to do with it looks between two of its
//! cycles, and does its part: tells its application, sends what belongs elsewhere. Whatever happens to
//! whoever wanted it, the threads bring about what the directory says. A command that is not carried
//! out in time gives the directory back its old plan.
mod directory;
mod plan;

use crate::commands::{Command, Outcome};
use crate::io::Io;
use crate::metrics::{ControlPage, ThreadState};
use crate::migration::MigrationRecord;
use crate::thread::ElasticThread;
use crate::updates::CommandMessage;
use directory::{Directory, Orders, Sight, command_of};
use ix_abi::{Event, event_kind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// The directory, and what threads see of it without the lock.
pub struct Lives {
    directory: Mutex<Directory>,
    unsettled: AtomicBool,
}

impl Lives {
    /// Of so many threads that nobody has entered; flow groups belong where they are.
    pub(crate) fn new(threads: usize, owner: impl Fn(usize) -> usize) -> Lives {
        let directory = Mutex::new(Directory::new(threads, owner));
        Lives { directory, unsettled: AtomicBool::new(false) }
    }

    /// Whether something is not as it should be: threads look from time to time.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsettled.load(Ordering::Relaxed)
    }

    /// What a thread is.
    pub(crate) fn state(&self, thread: usize) -> ThreadState {
        self.lock().state(thread)
    }

    /// The program's own threads take turns in being this elastic thread: it cannot be parked.
    pub(crate) fn share(&self, thread: usize) {
        self.lock().share(thread);
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
    pub(crate) fn enter(&mut self) {
        let shared = self.shared.clone();
        let mut directory = shared.lives.lock();
        directory.enter(self.index);
        self.publish(&directory);
    }

    /// Begins a command; answers why not.
    #[cold]
    pub(crate) fn begin_command(
        &mut self,
        message: &CommandMessage,
        now_us: u64,
    ) -> Option<Outcome> {
        let Some(command) = Command::parse(&message.line) else {
            let start: String = message.line.chars().take(64).collect();
            return Some(self.ended(Outcome::Refused(format!("`{start}` is no command")), message));
        };
        let shared = self.shared.clone();
        let mut directory = shared.lives.lock();
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
        for (serial, outcome) in ended {
            self.io.count_ended(serial, &outcome);
            shared.updates.tell_outcome(serial, &outcome);
        }
    }

    fn follow(&mut self, orders: &Orders, directory: &mut Directory) {
        if let Some(takes_groups) = orders.takes_groups {
            self.set_takes_groups(takes_groups);
        }
        if let Some(goes) = orders.revoke {
            let (kind, data) = (event_kind::REVOKE, u64::from(goes));
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

    /// Says in the control page which flow groups are here.
    pub(crate) fn publish_groups(&self) {
        self.io.metrics.set_owned(&self.groups_here());
    }
}
