//! The directory: the state of each elastic thread, the owner of each flow group, and the command
//! that is changing them. It is a value behind a lock, without input or output: a thread passes
//! what it sees and gets what it must do.
use super::plan::Plan;
use crate::observe::metrics::ThreadState;
use ix_proto::GroupSet;
use ix_proto::{Command, Outcome};
use ix_proto::{MigrationEnd, MigrationRecord};
use ix_wire::FLOW_GROUPS;

/// A command that has begun must end within this time after the last moment to begin, or is undone,
/// µs.
const FINISH_US: u64 = 800_000;
/// Longest time that a command may ask for, µs.
const PATIENCE_MAX_US: u64 = 10_000_000;
/// Bits of a migration's number below the number of its command.
const PART_BITS: u32 = 20;

/// The command that a migration's number ([`MigrationRecord::command`]) belongs to; 0: none.
pub(crate) fn command_of(number: u64) -> u64 {
    number >> PART_BITS
}

/// The state of one elastic thread.
#[derive(Clone, Copy, Debug, Default)]
struct Life {
    state: ThreadState,
    /// The application was told, in this run of `run_io`, that the thread goes.
    revoked: Option<u64>,
    /// The program's own Linux threads take turns running it.
    shared: bool,
    /// The application wants to leave it: it gets no more flow groups.
    leaves: bool,
    /// The application was told that it may leave.
    drained: bool,
}

/// The command that is being carried out.
#[derive(Clone, Debug)]
struct Job {
    serial: u64,
    until_us: u64,
    command: Command,
    /// The owners of flow groups before it, and after it.
    before: Plan,
    after: Plan,
    involved: Vec<usize>,
}

/// A migration that has begun and not ended.
#[derive(Clone, Copy, Debug)]
struct Part {
    number: u64,
    from: usize,
    groups: GroupSet,
}

/// An elastic thread's view of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    /// Its number.
    pub index: usize,
    /// Number of times that the application has returned.
    pub run: u64,
    /// The flow groups of this thread.
    pub here: GroupSet,
    /// No flow group arrives or leaves.
    pub at_rest: bool,
}

/// What the thread must do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Orders {
    /// Tell the application that the thread goes (true) or is back (false).
    pub revoke: Option<bool>,
    /// Tell the application that all flow groups have left, as it has asked.
    pub drained: bool,
    /// Start or stop accepting flow groups.
    pub takes_groups: Option<bool>,
    /// Send flow groups: which ones, to which thread, and the migration's number.
    pub send: Vec<(GroupSet, usize, u64)>,
    /// Make these threads look at the directory.
    pub call: Vec<usize>,
    /// Look again soon: the command is not finished.
    pub go_on: bool,
}

/// The directory.
pub(crate) struct Directory {
    lives: Vec<Life>,
    plan: Plan,
    parts: Vec<Part>,
    parts_ever: u64,
    job: Option<Job>,
    ended: Vec<(u64, Outcome)>,
}

impl Directory {
    /// A directory of threads that were not entered yet. Flow groups belong to their current
    /// owners.
    pub fn new(threads: usize, owner: impl Fn(usize) -> usize) -> Directory {
        Directory {
            lives: vec![Life::default(); threads],
            plan: Plan::from_fn(owner),
            parts: Vec::new(),
            parts_ever: 0,
            job: None,
            ended: Vec::new(),
        }
    }

    /// The state of a thread.
    pub fn state(&self, thread: usize) -> ThreadState {
        self.lives[thread].state
    }

    /// Number of the command that is being carried out.
    pub fn running(&self) -> Option<u64> {
        self.job.as_ref().map(|job| job.serial)
    }

    /// Commands that have ended since the last call.
    pub fn take_ended(&mut self) -> Vec<(u64, Outcome)> {
        std::mem::take(&mut self.ended)
    }

    /// Whether a thread or flow group is not yet as the directory says, so that threads must look
    /// from time to time.
    pub fn is_unsettled(&self, owner: impl Fn(usize) -> usize) -> bool {
        let waits = |life: &Life| {
            let untold = life.leaves && !life.drained;
            life.state == ThreadState::Active && (life.revoked.is_some() || untold)
        };
        self.job.is_some()
            || !self.parts.is_empty()
            || self.lives.iter().any(waits)
            || (0..FLOW_GROUPS).any(|group| self.plan.thread_of(group) != owner(group))
    }

    /// The program has entered a thread and runs it. The thread gets its share of the flow groups,
    /// unless it still has those that it got at the start. Returns the threads that must look.
    pub fn enter(&mut self, thread: usize) -> Vec<usize> {
        let shared = self.lives[thread].shared;
        self.lives[thread] = Life { state: ThreadState::Active, shared, ..Life::default() };
        let (before, threads) = (self.plan, self.lives.len());
        if self.plan.groups_of(thread).is_empty() && !self.stay() {
            self.plan.share(thread, &self.active(), threads);
        }
        self.involved(&before)
    }

    /// The program wants to leave a thread soon: its flow groups go to the others. `None` if no
    /// other thread is active.
    pub fn drain(&mut self, thread: usize) -> Option<Vec<usize>> {
        let active = self.active_but(thread)?;
        self.forbid(thread, "is leaving");
        let (before, threads) = (self.plan, self.lives.len());
        self.lives[thread].leaves = true;
        self.lives[thread].drained = false;
        self.plan.spread(thread, &active, threads);
        let mut involved = self.involved(&before);
        involved.push(thread);
        Some(involved)
    }

    /// The program has left a thread. Flow groups that it still has go to the other threads, if
    /// there are any; whichever thread looks after it sends them.
    pub fn leave(&mut self, thread: usize) -> Vec<usize> {
        self.forbid(thread, "has left");
        let shared = self.lives[thread].shared;
        self.lives[thread] = Life { shared, ..Life::default() };
        self.abandon(thread)
    }

    /// Ends a command for a thread that the program is about to leave.
    fn forbid(&mut self, thread: usize, what: &str) {
        if self.job.as_ref().is_some_and(|job| job.command.thread() == thread) {
            self.undo();
            self.end(Outcome::Refused(format!("the program {what} elastic thread {thread}")));
        }
    }

    /// Threads that the program has not entered lose their flow groups once others are active.
    pub fn abandon(&mut self, thread: usize) -> Vec<usize> {
        let (before, threads) = (self.plan, self.lives.len());
        if let Some(active) = self.active_but(thread)
            && self.lives[thread].state == ThreadState::Background
            && !self.stay()
        {
            self.plan.spread(thread, &active, threads);
        }
        self.involved(&before)
    }

    /// The threads that lose or get groups since `before`.
    fn involved(&self, before: &Plan) -> Vec<usize> {
        let changed = self.plan.changed_from(before);
        let ends = |group| [before.thread_of(group), self.plan.thread_of(group)];
        let mut involved: Vec<usize> = changed.iter().flat_map(ends).collect();
        involved.sort_unstable();
        involved.dedup();
        involved
    }

    /// The other active threads; `None` if there are none.
    fn active_but(&self, thread: usize) -> Option<Vec<usize>> {
        let mut active = self.active();
        active.retain(|other| *other != thread);
        Some(active).filter(|active| !active.is_empty())
    }

    /// The program's own threads take turns running this elastic thread.
    pub fn share(&mut self, thread: usize) {
        self.lives[thread].shared = true;
    }

    /// Whether flow groups stay where they are: the program does not know of elastic threads, and
    /// would not follow its connections. Each of its processes enters all threads, one after the
    /// other, and leaves all when it ends; a moment in which a thread has no process moves nothing.
    fn stay(&self) -> bool {
        self.lives.iter().any(|life| life.shared)
    }

    fn active(&self) -> Vec<usize> {
        let active = |thread: &usize| {
            let life = &self.lives[*thread];
            life.state == ThreadState::Active && !life.leaves
        };
        (0..self.lives.len()).filter(active).collect()
    }

    /// Begins a command. Returns the threads that must look, or why it is refused.
    pub fn begin(
        &mut self,
        serial: u64,
        command: Command,
        until_us: u64,
        now_us: u64,
    ) -> Result<Vec<usize>, String> {
        if now_us > until_us {
            return Err("too late: no elastic thread began it in time".to_owned());
        }
        if let Some(job) = &self.job {
            return Err(format!("command {} (`{}`) is not over yet", job.serial, job.command));
        }
        let before = self.plan;
        let threads = self.lives.len();
        match command {
            Command::Migrate { groups, to } => {
                self.check(to, &[ThreadState::Active])?;
                self.check_movable(&groups)?;
                self.plan.set(&groups, to);
            }
            Command::Park { thread } | Command::Drain { thread } => {
                self.check(thread, &[ThreadState::Active])?;
                let last = || {
                    let why = format!("elastic thread {thread} is the last active one");
                    match threads {
                        1 => format!("{why}; give `ix run` another one with --cpus"),
                        _ => format!("{why}; `ix ctl resume` another one first"),
                    }
                };
                let active = self.active_but(thread).ok_or_else(last)?;
                let parks = matches!(command, Command::Park { .. });
                if self.stay() {
                    let what = if parks { "parked" } else { "drained" };
                    return Err(format!(
                        "elastic thread {thread} cannot be {what}: the program does not know of \
                         elastic threads, and would not hear that its flow groups move"
                    ));
                }
                if parks {
                    self.lives[thread].state = ThreadState::Parking;
                }
                self.plan.spread(thread, &active, threads);
            }
            Command::Resume { thread } => {
                self.check(thread, &[ThreadState::Parked])?;
                self.lives[thread].state = ThreadState::Active;
                self.plan.share(thread, &self.active(), threads);
            }
        }
        let mut involved = vec![command.thread()];
        involved.extend(self.involved(&before));
        involved.sort_unstable();
        involved.dedup();
        let until_us = until_us.min(now_us + PATIENCE_MAX_US) + FINISH_US;
        let (after, threads) = (self.plan, involved.clone());
        self.job = Some(Job { serial, until_us, command, before, after, involved: threads });
        Ok(involved)
    }

    fn check(&self, thread: usize, wanted: &[ThreadState]) -> Result<(), String> {
        let threads = self.lives.len();
        let Some(life) = self.lives.get(thread) else {
            return Err(format!("there is no elastic thread {thread}, only {threads}"));
        };
        if wanted.contains(&life.state) && !life.leaves {
            return Ok(());
        }
        Err(match life.state {
            ThreadState::Background => {
                format!("elastic thread {thread} was not entered by the program")
            }
            _ if life.leaves => format!("the program is leaving elastic thread {thread}"),
            state => format!("elastic thread {thread} is {}", state.name()),
        })
    }

    fn check_movable(&self, groups: &GroupSet) -> Result<(), String> {
        if groups.is_empty() {
            return Err("no flow groups were given".to_owned());
        }
        for group in groups.iter() {
            let owner = self.plan.thread_of(group);
            if self.stay() {
                return Err(format!(
                    "flow group {group} cannot move: the program does not know of elastic threads, \
                     and would not hear of it"
                ));
            }
            self.check(owner, &[ThreadState::Active])
                .map_err(|why| format!("flow group {group} cannot move: {why}"))?;
        }
        Ok(())
    }

    /// Whether a command takes too long.
    pub fn is_late(&self, now_us: u64) -> bool {
        self.job.as_ref().is_some_and(|job| now_us >= job.until_us)
    }

    /// Undoes a command that takes too long, as [`Directory::attend`] does: to be called while the
    /// program has the thread. Returns the threads that must look.
    pub fn end_late(&mut self, now_us: u64) -> Vec<usize> {
        let mut orders = Orders::default();
        self.give_up(now_us, &mut orders);
        orders.call
    }

    /// A migration has ended.
    pub fn ended(&mut self, record: &MigrationRecord) {
        self.forget(record.command);
    }

    /// A migration with this number has ended, or was not begun.
    pub fn forget(&mut self, number: u64) {
        self.parts.retain(|part| part.number != number);
    }

    /// A thread looks: returns what it must do.
    pub fn attend(&mut self, sight: &Sight, now_us: u64) -> Orders {
        let mut orders = Orders::default();
        self.give_up(now_us, &mut orders);
        match self.lives[sight.index].state {
            ThreadState::Parking => self.attend_parking(sight, &mut orders),
            ThreadState::Active => self.attend_active(sight, &mut orders),
            ThreadState::Parked => {}
            _ => {
                orders.takes_groups = Some(false);
                self.send(sight, &mut orders);
            }
        }
        self.finish(sight, &mut orders);
        let job = self.job.as_ref();
        orders.go_on = job.is_some_and(|job| job.involved.contains(&sight.index));
        orders
    }

    fn attend_parking(&mut self, sight: &Sight, orders: &mut Orders) {
        let life = &mut self.lives[sight.index];
        match life.revoked {
            None => {
                life.revoked = Some(sight.run);
                (orders.revoke, orders.takes_groups) = (Some(true), Some(false));
            }
            // The application was told, and has returned since.
            Some(told) if sight.run > told => self.send(sight, orders),
            Some(_) => {}
        }
    }

    fn attend_active(&mut self, sight: &Sight, orders: &mut Orders) {
        orders.takes_groups = Some(true);
        self.send(sight, orders);
        let left = self.parts.iter().all(|part| part.from != sight.index);
        let life = &mut self.lives[sight.index];
        if life.leaves && !life.drained && sight.here.is_empty() && sight.at_rest && left {
            life.drained = true;
            orders.drained = true;
        }
        if life.revoked.is_none() {
            return;
        }
        let belongs = self.plan.groups_of(sight.index);
        let has_all = belongs.iter().all(|group| sight.here.contains(group));
        // At the end of the command at the latest, because it may be that no group comes.
        if has_all || self.job.is_none() {
            life.revoked = None;
            orders.revoke = Some(false);
        }
    }

    /// Sends the groups that belong to other threads and are not on their way yet.
    fn send(&mut self, sight: &Sight, orders: &mut Orders) {
        let mut stray: GroupSet =
            sight.here.iter().filter(|g| self.plan.thread_of(*g) != sight.index).collect();
        for part in self.parts.iter().filter(|part| part.from == sight.index) {
            part.groups.iter().for_each(|group| stray.remove(group));
        }
        for to in self.active() {
            let groups: GroupSet =
                stray.iter().filter(|group| self.plan.thread_of(*group) == to).collect();
            if groups.is_empty() || to == sight.index {
                continue;
            }
            self.parts_ever += 1;
            let serial = self.running().unwrap_or(0);
            let number = serial << PART_BITS | self.parts_ever & ((1 << PART_BITS) - 1);
            self.parts.push(Part { number, from: sight.index, groups });
            orders.send.push((groups, to, number));
        }
    }

    /// Ends the command if this thread sees that it is carried out.
    fn finish(&mut self, sight: &Sight, orders: &mut Orders) {
        let Some(job) = &self.job else { return };
        let moving = |part: &Part| command_of(part.number) == job.serial;
        let moves = self.parts.iter().any(moving);
        let me = sight.index;
        let done = match job.command {
            Command::Park { thread } if thread == me => {
                let left = self.parts.iter().all(|part| part.from != me);
                let empty = sight.here.is_empty() && sight.at_rest && left;
                let told = self.lives[me].revoked.is_some_and(|told| sight.run > told);
                if empty && told {
                    self.lives[me].state = ThreadState::Parked;
                    // No thread sends it any until it is resumed, and then they do at once.
                    orders.takes_groups = Some(true);
                }
                empty && told
            }
            // If groups have moved for other reasons meanwhile, that counts too.
            Command::Drain { thread } if thread == me => {
                !moves && sight.here.iter().all(|group| self.plan.thread_of(group) == me)
            }
            Command::Migrate { groups, to } if to == me => {
                let mut belong = groups.iter().filter(|group| self.plan.thread_of(*group) == me);
                !moves && belong.all(|group| sight.here.contains(group))
            }
            Command::Resume { thread } if thread == me => {
                let revoked = self.lives[me].revoked.is_some();
                let belongs = self.plan.groups_of(me);
                !revoked && !moves && belongs.iter().all(|group| sight.here.contains(group))
            }
            _ => false,
        };
        if done {
            self.end(Outcome::Done);
        }
    }

    /// Undoes a command that takes too long.
    fn give_up(&mut self, now_us: u64, orders: &mut Orders) {
        let Some(job) = self.job.as_ref().filter(|job| now_us >= job.until_us) else { return };
        let why = match job.command {
            Command::Resume { .. } => "resumed, but its flow groups arrive later",
            Command::Park { .. } => {
                "not parked: the program of this or another thread did not return in time"
            }
            Command::Migrate { .. } | Command::Drain { .. } => {
                "not migrated: the program of a thread did not return in time"
            }
        };
        orders.call = job.involved.clone();
        self.undo();
        self.end(Outcome::TimedOut(why.to_owned()));
    }

    /// Restores the plan from before the command.
    fn undo(&mut self) {
        let Some(job) = &self.job else { return };
        match job.command {
            // Groups that have arrived stay, and the others follow when they can.
            Command::Resume { .. } => return,
            Command::Park { thread } if self.lives[thread].state == ThreadState::Parking => {
                self.lives[thread].state = ThreadState::Active;
            }
            _ => {}
        }
        // Changes made since then remain.
        for group in job.after.changed_from(&job.before).iter() {
            if self.plan.thread_of(group) == job.after.thread_of(group) {
                self.plan.set(&[group].into_iter().collect(), job.before.thread_of(group));
            }
        }
        // Not to threads that have gone meanwhile.
        let (active, threads) = (self.active(), self.lives.len());
        for gone in (0..threads).filter(|thread| !active.contains(thread)) {
            self.plan.spread(gone, &active, threads);
        }
    }

    fn end(&mut self, outcome: Outcome) {
        if let Some(job) = self.job.take() {
            self.ended.push((job.serial, outcome));
        }
    }

    /// Whether a migration ended without moving anything.
    pub fn is_refusal(record: &MigrationRecord) -> bool {
        record.end == MigrationEnd::Refused
    }
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
