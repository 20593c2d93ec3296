//! One dataplane, for the controller's own thread. Another thread talks to the dataplane's control
//! socket, so that a dataplane that does not answer delays nothing else.
use super::talk::{self, Message, Work};
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

/// Longest that a step may take: a little longer than the broker's own limit.
const STEP_WITHIN: Duration = Duration::from_millis(2500);
/// Time without an answer after which the log says that the dataplane does not answer.
const SILENT_AFTER: Duration = Duration::from_secs(1);
/// Shortest time over which loads of flow groups are measured, µs: shorter ones are mostly noise.
const LOAD_OF_US: u64 = 200_000;
/// Their smoothing factor: flow groups should not migrate because of noise.
const LOAD_ALPHA: f64 = 0.3;
/// Most jobs that wait for the other thread. None waits while the dataplane answers.
const JOBS: usize = 2;

/// A dataplane that the controller is attached to, or attaches to.
pub(super) struct Member {
    path: PathBuf,
    /// Its process and program, while the controller is attached.
    name: Option<(u32, String)>,
    jobs: SyncSender<Work>,
    messages: Receiver<Message>,
    /// The last state, and an earlier one, to measure loads.
    last: Option<Status>,
    before: Option<Status>,
    loads: Vec<f64>,
    answered: Instant,
    silent: bool,
    /// Why it refuses the controller, and whether a later attempt may succeed.
    refused: Option<(Problem, bool)>,
    /// How the controller noticed that it has ended.
    gone: Option<String>,
    /// The controller's report to it.
    pub(super) report: Report,
    request: Option<PolicyRequest>,
    request_serial: u64,
}

impl Member {
    /// Begins to attach to the dataplane of a control socket.
    pub(super) fn new(path: &Path) -> Result<Member, Problem> {
        let (jobs, work) = sync_channel(JOBS);
        let (say, messages) = channel();
        let report = Report { pid: std::process::id(), ..Report::default() };
        talk::start(path, report.clone(), work, say)?;
        Ok(Member {
            path: path.to_owned(),
            name: None,
            jobs,
            messages,
            last: None,
            before: None,
            loads: Vec::new(),
            answered: Instant::now(),
            silent: false,
            refused: None,
            gone: None,
            report,
            request: None,
            request_serial: 0,
        })
    }

    /// `None` while the controller is not attached.
    pub(super) fn id(&self) -> Option<DataplaneId> {
        self.name.as_ref().map(|(pid, _)| DataplaneId(*pid))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn program(&self) -> &str {
        self.name.as_ref().map_or("", |(_, program)| program)
    }

    /// Its name in the log.
    pub(super) fn title(&self) -> String {
        match &self.name {
            Some((pid, program)) => format!("{program} ({pid})"),
            None => self.path.display().to_string(),
        }
    }

    /// How the controller noticed that it has ended, if it has.
    pub(super) fn gone(&self) -> Option<&str> {
        self.gone.as_deref()
    }

    /// Waits until the controller is attached, or it is certain that it cannot be.
    pub(super) fn wait(&mut self, until: Instant) -> Result<(), Problem> {
        let clear = |member: &Member| match member.refused {
            Some((_, may_pass)) => !may_pass,
            None => member.name.is_some() || member.gone.is_some(),
        };
        while !clear(self) {
            match self.messages.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(message) => self.handle(message, &mut Vec::new()),
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

    /// Asks for the state; [`Member::take_look`] returns it.
    pub(super) fn look(&mut self) {
        self.ask(Work::Look);
    }

    /// Sends the controller's report. The answer comes later ([`Member::take_request`]).
    pub(super) fn tell(&mut self) {
        self.ask(Work::Report(self.report.clone()));
    }

    /// What its operators have newly asked for.
    pub(super) fn take_request(&mut self) -> Option<PolicyRequest> {
        self.request.take()
    }

    /// Does nothing if the other thread is still busy with earlier work.
    fn ask(&mut self, work: Work) {
        if let Err(TrySendError::Disconnected(_)) = self.jobs.try_send(work) {
            self.hung_up();
        }
    }

    /// Its state, if it answers until then. Adds lines for the log.
    pub(super) fn take_look(
        &mut self,
        until: Instant,
        lines: &mut Vec<String>,
    ) -> Option<Observation> {
        let mut fresh = false;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let wait = if fresh || self.name.is_none() { Duration::ZERO } else { left };
            match self.messages.recv_timeout(wait) {
                Ok(message) => {
                    fresh |= matches!(message, Message::Look(_));
                    self.handle(message, lines);
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

    fn handle(&mut self, message: Message, lines: &mut Vec<String>) {
        match message {
            Message::Attached { pid, program, request_serial } => {
                self.name = Some((pid, program));
                self.answered = Instant::now();
                self.refused = None;
                // Requests to an earlier controller are not for this one.
                self.request_serial = request_serial;
            }
            Message::Refused(problem, may_pass) => {
                self.name = None;
                if self.refused.as_ref().is_none_or(|(old, _)| *old != problem) {
                    lines.push(format!("{}: {problem}", self.path.display()));
                }
                self.refused = Some((problem, may_pass));
            }
            Message::Look(status) => self.saw(*status),
            Message::Request(request) => {
                if request.serial != self.request_serial {
                    self.request_serial = request.serial;
                    self.request = Some(request);
                }
            }
            Message::Gone(why) => self.gone = Some(why),
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

    /// Its last known state.
    pub(super) fn last(&self) -> Option<Observation> {
        let (status, (pid, program)) = (self.last.as_ref()?, self.name.as_ref()?);
        let group = |(number, group): (usize, &Group)| GroupObservation {
            // A group that migrates has no owner for a moment; any thread will do.
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

    /// Carries out a step, and waits for it.
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
                    return Err("it has ended".to_owned());
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
