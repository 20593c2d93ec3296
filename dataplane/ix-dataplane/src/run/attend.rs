//! An elastic thread looks at the directory and does its part of what the control plane wants.
use crate::broker::OrderMessage;
use crate::calls::Answer;
use crate::cycle::ElasticThread;
use crate::io::Io;
use crate::life::ENTER_US;
use crate::life::directory::{Directory, Orders, Sight, command_of};
use crate::observe::metrics::{ControlPage, ThreadState};
use ix_abi::{CallError, Event, Revoke};
use ix_proto::MigrationRecord;
use ix_proto::{BEGIN_US, Command, Order, Outcome};
use std::sync::TryLockError;
use std::sync::atomic::{Ordering, fence};

impl Io {
    /// Publishes what the directory says now.
    fn publish(&self, directory: &Directory) {
        let shared = &self.cx.shared;
        let page: &ControlPage = self.cx.metrics.page();
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

    /// Makes threads look at the directory.
    fn call(&self, threads: &[usize]) {
        for thread in threads {
            self.cx.shared.updates.order(*thread);
            if *thread != self.cx.index {
                self.cx.ring_thread(*thread);
            }
        }
    }

    /// To be called when the application runs this thread for the first time, or again.
    #[cold]
    pub(crate) fn enter(&mut self, now_us: u64) {
        let (shared, nobody) = (self.cx.shared.clone(), 0);
        let first = &shared.lives.first_entered_us;
        let _ = first.compare_exchange(nobody, now_us, Ordering::Relaxed, Ordering::Relaxed);
        self.change(|directory, me| directory.enter(me));
    }

    /// To be called when the application has left this thread.
    #[cold]
    pub(crate) fn leave(&mut self) {
        self.change(|directory, me| directory.leave(me));
    }

    /// To be called when the application wants to leave this thread. False if it is the last one.
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

    /// Gives the flow groups of threads that the program has not entered to those that it has.
    #[cold]
    pub(crate) fn take_over(&mut self, now_us: u64) {
        let shared = self.cx.shared.clone();
        let first_us = shared.lives.first_entered_us.load(Ordering::Relaxed);
        if first_us == 0 || now_us < first_us.saturating_add(ENTER_US) {
            return;
        }
        shared.lives.first_entered_us.store(0, Ordering::Relaxed);
        self.change(|directory, _| {
            (0..shared.threads()).flat_map(|thread| directory.abandon(thread)).collect()
        });
    }

    /// To be called while the program has this thread, so that a program that never returns does
    /// not keep the control plane waiting: undoes a command that takes too long.
    #[cold]
    pub(crate) fn end_late_command(&mut self, now_us: u64) {
        let lives = &self.cx.shared.lives;
        let is_late = lives.is_unsettled() && lives.lock().is_late(now_us);
        if is_late {
            self.change(|directory, _| directory.end_late(now_us));
        }
    }

    /// Changes the directory; `what` gets this thread's number and returns the threads that must
    /// look.
    fn change(&mut self, what: impl FnOnce(&mut Directory, usize) -> Vec<usize>) {
        let shared = self.cx.shared.clone();
        let mut directory = shared.lives.lock_with_shares();
        let involved = what(&mut directory, self.cx.index);
        self.publish(&directory);
        let ended = directory.take_ended();
        drop(directory);
        self.call(&involved);
        self.tell(ended);
    }

    fn tell(&self, ended: Vec<(u64, Outcome)>) {
        for (serial, outcome) in ended {
            self.count_ended(serial, &outcome);
            self.cx.shared.updates.tell_outcome(serial, &outcome);
        }
    }

    /// Begins an order. Returns its outcome if that is known at once.
    #[cold]
    pub(crate) fn begin_order(&mut self, message: OrderMessage, now_us: u64) -> Option<Outcome> {
        let OrderMessage { serial, until_us, order, memory } = message;
        match order {
            Order::Command(command) => self.begin_command(serial, until_us, command, now_us),
            Order::VnicRules(rules) => {
                // Every thread applies it in its next cycle, and a sleeping one when it wakes.
                self.cx.shared.vnic_rules.set(rules);
                Some(self.ended(Outcome::Done, serial))
            }
            // Captures are not counted: the control page shows their state.
            Order::Capture(order) => Some(self.change_capture(order, memory)),
        }
    }

    /// Begins a command. Returns the outcome of one that is refused.
    fn begin_command(
        &mut self,
        serial: u64,
        until_us: u64,
        command: Command,
        now_us: u64,
    ) -> Option<Outcome> {
        let shared = self.cx.shared.clone();
        let mut directory = shared.lives.lock_with_shares();
        if directory.state(self.cx.index) == ThreadState::Parked {
            // The message itself has woken this thread; no other thread has rung it.
            let sent_us = until_us.saturating_sub(BEGIN_US);
            self.cx.metrics.woke_after_us(now_us.saturating_sub(sent_us));
        }
        match directory.begin(serial, command, until_us, now_us) {
            Ok(involved) => {
                self.publish(&directory);
                drop(directory);
                self.call(&involved);
                None
            }
            Err(why) => Some(self.ended(Outcome::Refused(why), serial)),
        }
    }

    fn ended(&self, outcome: Outcome, serial: u64) -> Outcome {
        self.count_ended(serial, &outcome);
        outcome
    }

    /// Counts a command that has ended.
    fn count_ended(&self, serial: u64, outcome: &Outcome) {
        let commands = self.cx.metrics.page().commands();
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
        if !self.io.cx.attached.has_room() {
            return;
        }
        let shared = self.shared.clone();
        let mut directory = match shared.lives.directory.try_lock() {
            Ok(directory) => directory,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread is looking: try again in the next turn.
            Err(TryLockError::WouldBlock) => return,
        };
        while let Some(record) = self.take_migration() {
            directory.ended(&record);
            if !Directory::is_refusal(&record) {
                let command = command_of(record.command);
                self.io.cx.metrics.migrated(&MigrationRecord { command, ..record });
            }
        }
        let here = self.groups_here();
        let sight = Sight { index: self.io.cx.index, run, here, at_rest: self.at_rest() };
        let orders = directory.attend(&sight, now_us);
        if !orders.go_on {
            shared.updates.order_done(self.io.cx.index);
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
            let what = if goes { Revoke::Goes } else { Revoke::Back };
            self.io.cx.attached.push_all(Event::Revoke(what));
        }
        if orders.drained {
            self.io.cx.attached.push_all(Event::Revoke(Revoke::Drained));
        }
        for (groups, to, number) in &orders.send {
            if self.migrate(*groups, *to, *number).is_err() {
                // Too many migrations wait: try again later.
                directory.forget(*number);
            }
        }
        self.io.call(&orders.call);
    }

    /// Carries out `DRAIN`: the application wants to leave this thread.
    pub(crate) fn call_drain(&mut self) -> Answer {
        // The flow groups are those of all processes that run this thread.
        let alone = self.io.cx.attached.is_alone(self.io.cx.caller);
        if alone && self.io.drain() { Ok(0) } else { Err(CallError::State) }
    }

    /// Publishes in the control page which flow groups are here.
    pub(crate) fn publish_groups(&self) {
        self.io.cx.metrics.set_owned(&self.groups_here());
    }

    /// Does some of this thread's part of a running survey: at most `slots` slots.
    #[cold]
    pub(crate) fn attend_survey(&mut self, slots: usize, now_us: u64) {
        let shared = self.shared.clone();
        let updates = &shared.updates;
        // Before the check: a survey that begins meanwhile wakes the thread again.
        updates.survey_done(self.io.cx.index);
        let Some(survey) = updates.surveys.get() else { return };
        if now_us > survey.until_us {
            updates.surveys.end(survey.serial);
            return;
        }
        if !self.flows.survey(&self.io.cx, &survey.area, slots) {
            return updates.order_survey(self.io.cx.index);
        }
        // If two threads finish at the same time, one of them sees both.
        fence(Ordering::SeqCst);
        if survey.area.missing().is_empty() && updates.surveys.end(survey.serial) {
            updates.tell_surveyed(survey.serial);
        }
    }
}
