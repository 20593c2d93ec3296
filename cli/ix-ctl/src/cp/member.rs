//! One dataplane, as the controller's own thread has it: what a thread beside it has heard from the
//! dataplane's control socket, so that one that does not answer holds nobody up.
use super::talk::{self, Heard, Work};
use ix_broker::control::Change;
use ix_controller::{
    DataplaneId, GroupObservation, Observation, Step, ThreadObservation, ThreadState,
};
use ix_proto::control::{Group, PolicyRequest, Report, Status, Thread};
use ix_report::problem::Problem;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, SyncSender, TrySendError, channel, sync_channel,
};
use std::time::{Duration, Instant};

/// A step takes no longer than this: the broker's own limit and some.
const STEP_WITHIN: Duration = Duration::from_millis(2500);
/// One that has not answered for so long is said to be silent.
const SILENT_AFTER: Duration = Duration::from_secs(1);
/// Group loads are of what came in this time at least, µs: short ones are mostly chance.
const LOAD_OF_US: u64 = 200_000;
/// Their smoothing factor: flow groups should not move for what is chance.
const LOAD_ALPHA: f64 = 0.3;
/// Jobs that wait for the thread beside; one that answers has none waiting.
const JOBS: usize = 2;

/// A dataplane that is attached to, or is to be.
pub(super) struct Member {
    path: PathBuf,
    /// Its process and program, while we are in charge of it.
    name: Option<(u32, String)>,
    jobs: SyncSender<Work>,
    heard: Receiver<Heard>,
    /// The last look, and one some time before it, for loads.
    last: Option<Status>,
    before: Option<Status>,
    loads: Vec<f64>,
    answered: Instant,
    silent: bool,
    /// Why it cannot be attached to.
    refused: Option<(Problem, bool)>,
    /// It has ended, and how that was noticed.
    gone: Option<String>,
    /// What it is told of the controller.
    pub(super) report: Report,
    wish: Option<PolicyRequest>,
    wish_serial: u64,
}

impl Member {
    /// Begins to attach to the dataplane of a control socket.
    pub(super) fn new(path: &Path) -> Result<Member, Problem> {
        let (jobs, work) = sync_channel(JOBS);
        let (say, heard) = channel();
        let report = Report { pid: std::process::id(), ..Report::default() };
        talk::start(path, report.clone(), work, say)?;
        Ok(Member {
            path: path.to_owned(),
            name: None,
            jobs,
            heard,
            last: None,
            before: None,
            loads: Vec::new(),
            answered: Instant::now(),
            silent: false,
            refused: None,
            gone: None,
            report,
            wish: None,
            wish_serial: 0,
        })
    }

    /// `None` while we are not in charge of it.
    pub(super) fn id(&self) -> Option<DataplaneId> {
        self.name.as_ref().map(|(pid, _)| DataplaneId(*pid))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn program(&self) -> &str {
        self.name.as_ref().map_or("", |(_, program)| program)
    }

    /// How it is called in the log.
    pub(super) fn title(&self) -> String {
        match &self.name {
            Some((pid, program)) => format!("{program} ({pid})"),
            None => self.path.display().to_string(),
        }
    }

    /// Why it has ended, if it has.
    pub(super) fn gone(&self) -> Option<&str> {
        self.gone.as_deref()
    }

    /// Waits until it is attached to, or it is clear that it will not be.
    pub(super) fn wait(&mut self, until: Instant) -> Result<(), Problem> {
        let clear = |member: &Member| match member.refused {
            Some((_, may_pass)) => !may_pass,
            None => member.name.is_some() || member.gone.is_some(),
        };
        while !clear(self) {
            match self.heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(heard) => self.hear(heard, &mut Vec::new()),
                Err(_) => break,
            }
        }
        match (self.refused.take(), self.gone.take()) {
            (Some((problem, _)), _) => Err(problem),
            (None, Some(why)) => {
                let what = format!("cannot reach the dataplane at {}", self.path.display());
                Err(Problem::new(what, why).mend("check that its `ix run` is running"))
            }
            (None, None) if self.name.is_none() => {
                Err(Problem::new(format!("cannot control {}", self.title()), "it does not answer")
                    .mend("check that its `ix run` is not stopped"))
            }
            (None, None) => Ok(()),
        }
    }

    /// Asks for a look; the answer is for [`Member::take_look`].
    pub(super) fn look(&mut self) {
        self.ask(Work::Look);
    }

    /// Says what the controller does; hears what is wished, some time.
    pub(super) fn tell(&mut self) {
        self.ask(Work::Report(self.report.clone()));
    }

    /// What is newly wished.
    pub(super) fn take_wish(&mut self) -> Option<PolicyRequest> {
        self.wish.take()
    }

    /// One that is still busy with the last job is not asked.
    fn ask(&mut self, work: Work) {
        if let Err(TrySendError::Disconnected(_)) = self.jobs.try_send(work) {
            self.hung_up();
        }
    }

    /// What it is now, if it answers until then. Lines for the log.
    pub(super) fn take_look(
        &mut self,
        until: Instant,
        lines: &mut Vec<String>,
    ) -> Option<Observation> {
        let mut fresh = false;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let wait = if fresh || self.name.is_none() { Duration::ZERO } else { left };
            match self.heard.recv_timeout(wait) {
                Ok(heard) => {
                    fresh |= matches!(heard, Heard::Look(_));
                    self.hear(heard, lines);
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => {
                    self.hung_up();
                    break;
                }
            }
        }
        self.name.as_ref()?;
        if fresh && self.gone.is_none() {
            if std::mem::take(&mut self.silent) {
                lines.push(format!("{} answers again", self.title()));
            }
            self.answered = Instant::now();
            return self.last();
        }
        if !self.silent && self.answered.elapsed() > SILENT_AFTER {
            self.silent = true;
            let title = self.title();
            lines.push(format!("{title} does not answer; nothing is changed until it does"));
        }
        None
    }

    fn hear(&mut self, heard: Heard, lines: &mut Vec<String>) {
        match heard {
            Heard::Attached { pid, program, wish_serial } => {
                self.name = Some((pid, program));
                self.answered = Instant::now();
                self.refused = None;
                // What was asked of another controller is not asked of this one.
                self.wish_serial = wish_serial;
            }
            Heard::Refused(problem, may_pass) => {
                self.name = None;
                if self.refused.as_ref().is_none_or(|(old, _)| *old != problem) {
                    lines.push(format!("{}: {problem}", self.path.display()));
                }
                self.refused = Some((problem, may_pass));
            }
            Heard::Look(status) => self.saw(*status),
            Heard::PolicyRequest(wish) => {
                if wish.serial != self.wish_serial {
                    self.wish_serial = wish.serial;
                    self.wish = Some(wish);
                }
            }
            Heard::Gone(why) => self.gone = Some(why),
        }
    }

    fn saw(&mut self, status: Status) {
        match &self.before {
            Some(before) if status.now_us < before.now_us + LOAD_OF_US => {}
            Some(before) => {
                let change = Change::between(before, &status);
                let rates = change.map(|change| change.group_rates()).unwrap_or_default();
                self.loads.resize(rates.len(), 0.0);
                for (load, rate) in self.loads.iter_mut().zip(rates) {
                    *load += LOAD_ALPHA * (rate - *load);
                }
                self.before = Some(status.clone());
            }
            None => self.before = Some(status.clone()),
        }
        self.last = Some(status);
    }

    fn hung_up(&mut self) {
        self.gone.get_or_insert_with(|| "its thread has ended".to_owned());
    }

    /// What it was when it answered last.
    pub(super) fn last(&self) -> Option<Observation> {
        let (status, (pid, program)) = (self.last.as_ref()?, self.name.as_ref()?);
        let group = |(number, group): (usize, &Group)| GroupObservation {
            // One that moves just now is nobody's for a moment; the first thread will do.
            thread: group.thread.unwrap_or(0) as u16,
            load: self.loads.get(number).copied().unwrap_or(0.0),
        };
        Some(Observation {
            dataplane: DataplaneId(*pid),
            program: program.clone(),
            batch_bound: status.batch_bound,
            threads: status.threads.iter().map(thread).collect(),
            groups: status.groups.iter().enumerate().map(group).collect(),
        })
    }

    /// Has a step done; waits for it.
    pub(super) fn apply(&mut self, step: &Step) -> Result<(), String> {
        let Some(request) = talk::request(step) else { return Ok(()) };
        let until = Instant::now() + STEP_WITHIN;
        let (to, answer) = channel();
        let mut work = Work::Do(request, to);
        loop {
            match self.jobs.try_send(work) {
                Ok(()) => break,
                Err(TrySendError::Full(again)) if Instant::now() < until => work = again,
                Err(TrySendError::Full(_)) => return Err("it does not answer".to_owned()),
                Err(TrySendError::Disconnected(_)) => {
                    self.hung_up();
                    return Err("it is gone".to_owned());
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        match answer.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(answer) => answer.map(|_| ()).map_err(|problem| problem.to_string()),
            Err(_) => Err("it did not answer in time".to_owned()),
        }
    }
}

fn thread(thread: &Thread) -> ThreadObservation {
    use ix_proto::ThreadState as State;
    let window = &thread.window;
    ThreadObservation {
        cpu: thread.cpu,
        state: match thread.state {
            State::Active | State::NonResponsive => ThreadState::Elastic,
            State::Background => ThreadState::Background,
            State::Parking | State::Parked => ThreadState::Parked,
        },
        queueing_delay_us: window.queueing_delay_us[0],
        queue_depth: window.queue_depth,
        batch: window.batch[0],
        iteration_us: window.iteration_us[0],
        idle: window.idle,
        rate_per_s: window.rate_per_s[0],
        clock: None,
    }
}
