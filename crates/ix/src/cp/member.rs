//! One dataplane that the controller is attached to: a connection to its control socket, served by a
//! thread of its own, so that one that does not answer holds nobody up.
use crate::control::{Change, Client, Report, Request, ThreadView, View};
use crate::problem::Problem;
use ix_control::{
    DataplaneId, GroupObservation, Observation, Step, ThreadObservation, ThreadState,
};
use ix_dataplane::GroupSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant};

/// A step takes no longer than this: the broker's own limit and some.
const STEP_WITHIN: Duration = Duration::from_millis(2500);
/// One that has not answered for so long is said to be silent.
const SILENT_AFTER: Duration = Duration::from_secs(1);
/// Group loads are of what came in this time at least, µs: short ones are mostly chance.
const LOAD_OF_US: u64 = 200_000;

/// What a thread is asked to do.
enum Work {
    Look,
    Do(Request, Sender<Result<serde_json::Value, Problem>>),
}

/// A dataplane.
pub(super) struct Member {
    path: PathBuf,
    pid: u32,
    program: String,
    work: SyncSender<Work>,
    seen: Receiver<Result<View, Problem>>,
    /// The last look, and one some time before it, for loads.
    last: Option<View>,
    before: Option<View>,
    loads: Vec<f64>,
    answered: Instant,
    silent: bool,
    /// It has hung up.
    pub(super) gone: Option<String>,
    /// What it is told of the controller.
    pub(super) report: Report,
    /// The last wish that was heard.
    pub(super) wish: u64,
}

impl Member {
    /// Connects. An error names the reason: another version, no permission, no such socket.
    pub(super) fn attach(path: &Path, report: Report) -> Result<Member, Problem> {
        let mut client = Client::connect(path)?;
        let hello = client.hello().clone();
        if hello["role"] != "operator" {
            return Err(Problem::new(
                format!("cannot control the dataplane at {}", path.display()),
                "its socket is for looking only",
            )
            .mend("run the controller as its user or as root"));
        }
        // Is another controller in charge, it is none of our affair.
        let heard = client.ask(&Request::Control { report: report.clone() })?;
        let (work, jobs) = sync_channel(1);
        let (looks, seen) = channel();
        let serve = move || serve(client, &jobs, &looks);
        std::thread::Builder::new()
            .name("ix-cp-member".to_owned())
            .spawn(serve)
            .map_err(|e| Problem::new("cannot start a thread", e))?;
        let program = hello["program"].as_str().unwrap_or("unknown");
        let program = program.rsplit('/').next().unwrap_or(program).to_owned();
        Ok(Member {
            path: path.to_owned(),
            pid: hello["pid"].as_u64().unwrap_or(0) as u32,
            program,
            work,
            seen,
            last: None,
            before: None,
            loads: Vec::new(),
            answered: Instant::now(),
            silent: false,
            gone: None,
            report,
            // What was asked of another controller is not asked of this one.
            wish: heard["serial"].as_u64().unwrap_or(0),
        })
    }

    pub(super) fn id(&self) -> DataplaneId {
        DataplaneId(self.pid)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn program(&self) -> &str {
        &self.program
    }

    pub(super) fn name(&self) -> String {
        format!("{} ({})", self.program, self.pid)
    }

    /// Asks for a look; the answer is for [`Member::take_look`].
    pub(super) fn look(&mut self) {
        match self.work.try_send(Work::Look) {
            // It is still busy with the last one.
            Ok(()) | Err(TrySendError::Full(_)) => {}
            Err(TrySendError::Disconnected(_)) => self.hung_up(),
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
            let wait = until.saturating_duration_since(Instant::now());
            let wait = if fresh { Duration::ZERO } else { wait };
            match self.seen.recv_timeout(wait) {
                Ok(Ok(view)) => {
                    fresh = true;
                    self.saw(view);
                }
                Ok(Err(problem)) => {
                    self.gone = Some(problem.to_string());
                    return None;
                }
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => break,
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                    self.hung_up();
                    return None;
                }
            }
        }
        if fresh {
            if std::mem::take(&mut self.silent) {
                lines.push(format!("{} answers again", self.name()));
            }
            self.answered = Instant::now();
            return self.last.as_ref().map(|view| self.observation(view));
        }
        if !self.silent && self.answered.elapsed() > SILENT_AFTER {
            self.silent = true;
            let name = self.name();
            lines.push(format!("{name} does not answer; nothing is changed until it does"));
        }
        None
    }

    /// What it was when it answered last.
    pub(super) fn last(&self) -> Option<Observation> {
        self.last.as_ref().map(|view| self.observation(view))
    }

    fn saw(&mut self, view: View) {
        match &self.before {
            None => self.before = Some(view.clone()),
            Some(before) if view.now_us >= before.now_us + LOAD_OF_US => {
                let change = Change::between(before, &view);
                self.loads = change.map(|change| change.group_rates()).unwrap_or_default();
                self.before = Some(view.clone());
            }
            Some(_) => {}
        }
        self.last = Some(view);
    }

    fn hung_up(&mut self) {
        self.gone.get_or_insert_with(|| "it has hung up".to_owned());
    }

    fn observation(&self, view: &View) -> Observation {
        let owners: Vec<Option<u16>> =
            view.groups.iter().map(|g| g.thread.map(|t| t as u16)).collect();
        let group = |(number, owner): (usize, &Option<u16>)| GroupObservation {
            // One that moves right now is nobody's for a moment; the first thread will do.
            thread: owner.unwrap_or(0),
            load: self.loads.get(number).copied().unwrap_or(0.0),
        };
        Observation {
            dataplane: self.id(),
            program: self.program.clone(),
            batch_bound: view.batch_bound,
            threads: view.threads.iter().map(thread).collect(),
            groups: owners.iter().enumerate().map(group).collect(),
        }
    }

    /// Has a step done; waits for it.
    pub(super) fn apply(&mut self, step: &Step) -> Result<(), String> {
        let request = match step {
            Step::Resume { thread } => Request::Resume { thread: usize::from(*thread) },
            Step::Park { thread } => Request::Park { thread: usize::from(*thread) },
            Step::Migrate { to, groups, .. } => {
                let groups: GroupSet = groups.iter().map(|group| usize::from(*group)).collect();
                Request::Migrate { groups, to: usize::from(*to) }
            }
            Step::Clock { .. } | Step::Background { .. } => return Ok(()),
        };
        self.ask(request, STEP_WITHIN).map(|_| ())
    }

    /// Says what the controller is; hears what is wished.
    pub(super) fn tell(&mut self) -> Result<serde_json::Value, String> {
        let request = Request::Control { report: self.report.clone() };
        self.ask(request, Duration::from_millis(50))
    }

    fn ask(&mut self, request: Request, within: Duration) -> Result<serde_json::Value, String> {
        let until = Instant::now() + within;
        let (to, answer) = channel();
        let mut work = Work::Do(request, to);
        loop {
            match self.work.try_send(work) {
                Ok(()) => break,
                Err(TrySendError::Full(again)) if Instant::now() < until => work = again,
                Err(TrySendError::Full(_)) => return Err("it does not answer".to_owned()),
                Err(TrySendError::Disconnected(_)) => {
                    self.hung_up();
                    return Err("it has hung up".to_owned());
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        match answer.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(answer) => answer.map_err(|problem| problem.to_string()),
            Err(_) => Err("it did not answer in time".to_owned()),
        }
    }
}

/// The thread: ends with the connection or with the member.
fn serve(mut client: Client, jobs: &Receiver<Work>, looks: &Sender<Result<View, Problem>>) {
    while let Ok(work) = jobs.recv() {
        let heard = match work {
            Work::Look => {
                let look = client.ask(&Request::Status).and_then(|value| View::read(&value));
                let lost = look.is_err();
                looks.send(look).is_ok() && !lost
            }
            // Who asked may have given up; the next one may still be asked.
            Work::Do(request, answer) => {
                let _ = answer.send(client.ask(&request));
                true
            }
        };
        if !heard {
            return;
        }
    }
}

fn thread(view: &ThreadView) -> ThreadObservation {
    let window = &view.window;
    ThreadObservation {
        cpu: view.cpu,
        state: match view.state.as_str() {
            "active" | "non-responsive" => ThreadState::Elastic,
            "background" => ThreadState::Background,
            _ => ThreadState::Parked,
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
