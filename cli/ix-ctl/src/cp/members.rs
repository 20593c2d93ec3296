//! The dataplanes that the controller controls. It attaches to new ones, and forgets those that
//! have ended.
use super::events::State;
use super::member::Member;
use ix_broker::control::all;
use ix_controller::linux::{Dataplanes, Linux};
use ix_controller::{
    DataplaneId, Event, Machine, Observation, Platform, Policy, Step, StepError, ThreadState,
};
use ix_proto::control::PolicyRequest;
use ix_report::problem::{Problem, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time between two searches for new dataplanes, and between two reports to the known ones, µs.
const EVERY_US: u64 = 1_000_000;
/// Longest time that a round waits for the dataplanes' states.
const LOOK_WITHIN: Duration = Duration::from_millis(40);
/// Longest time until a dataplane that the user has named must answer at the start.
const ATTACH_WITHIN: Duration = Duration::from_secs(5);

/// Which dataplanes to control.
enum Which {
    /// All of them.
    All,
    /// Those of these processes.
    Pids(Vec<i32>),
    /// Those of these control sockets.
    Paths(Vec<PathBuf>),
}

/// All dataplanes that the controller is attached to.
pub(super) struct Members {
    which: Which,
    list: Vec<Member>,
    searched_us: Option<u64>,
    reported_us: Option<u64>,
    lines: Vec<String>,
    /// Hardware threads that two dataplanes run on; each is reported once.
    shared: BTreeSet<u32>,
}

impl Members {
    /// Attaches to all dataplanes, or to those that are named, which must exist.
    pub(super) fn new(pids: &[i32], paths: &[PathBuf]) -> Result<Members> {
        if !paths.is_empty() {
            return Members::named(Which::Paths(paths.to_vec()));
        }
        if pids.is_empty() {
            return Ok(Members::none(Which::All));
        }
        let there = all();
        if let Some(pid) = pids.iter().find(|pid| !there.iter().any(|found| found.pid == **pid)) {
            let why = format!("process {pid} has none that this user may reach");
            return Err(
                Problem::new("no such dataplane", why).mend("name its socket with --control")
            );
        }
        Members::named(Which::Pids(pids.to_vec()))
    }

    /// Attaches to the dataplane of a control socket.
    pub(super) fn of(path: PathBuf) -> Result<Members> {
        Members::named(Which::Paths(vec![path]))
    }

    /// Waits until all of them are attached.
    fn named(which: Which) -> Result<Members> {
        let mut members = Members::none(which);
        members.search();
        let until = Instant::now() + ATTACH_WITHIN;
        members.list.iter_mut().try_for_each(|member| member.wait(until))?;
        Ok(members)
    }

    fn none(which: Which) -> Members {
        Members {
            which,
            list: Vec::new(),
            searched_us: None,
            reported_us: None,
            lines: Vec::new(),
            shared: BTreeSet::new(),
        }
    }

    fn search(&mut self) {
        let paths: Vec<PathBuf> = match &self.which {
            Which::All => all().into_iter().map(|found| found.path).collect(),
            Which::Pids(pids) => {
                let ours = all().into_iter().filter(|found| pids.contains(&found.pid));
                ours.map(|found| found.path).collect()
            }
            Which::Paths(paths) => paths.clone(),
        };
        for path in paths {
            if self.list.iter().any(|member| member.path() == path) {
                continue;
            }
            match Member::new(&path) {
                Ok(member) => self.list.push(member),
                Err(problem) => self.lines.push(problem.to_string()),
            }
        }
    }

    /// New lines for the log.
    pub(super) fn take_lines(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }

    /// Keeps a decision for the reports.
    pub(super) fn notice(&mut self, events: &[Event]) {
        for event in events {
            let Some(decision) = event.decision() else { continue };
            let member = self.list.iter_mut().find(|m| m.id() == Some(decision.dataplane));
            let Some(member) = member else { continue };
            if let Event::Done(_) = event {
                member.report.rung = decision.rungs.1 + 1;
                member.report.rungs = decision.top + 1;
                member.report.configuration = decision.configuration.to_string();
            }
            member.report.last = event.to_string();
        }
    }

    /// Whether it is time to report.
    pub(super) fn report_due(&mut self, now_us: u64) -> bool {
        let due = self.reported_us.is_none_or(|at| now_us >= at + EVERY_US);
        if due {
            self.reported_us = Some(now_us);
        }
        due
    }

    /// Reports to all dataplanes; returns what operators have newly asked for.
    pub(super) fn report(
        &mut self,
        policy: impl Fn(DataplaneId) -> Policy,
        power_w: Option<f64>,
    ) -> Vec<(DataplaneId, PolicyRequest)> {
        let mut requests = Vec::new();
        for member in &mut self.list {
            let Some(id) = member.id() else { continue };
            let policy = policy(id);
            member.report.policy = policy.name.clone();
            member.report.slo_us = policy.slo_us_of(member.program());
            member.report.power_w = power_w;
            member.tell();
            requests.extend(member.take_request().map(|request| (id, request)));
        }
        requests
    }

    /// The state of each dataplane.
    pub(super) fn states(&self, power_w: Option<f64>) -> Vec<State> {
        let state = |member: &Member| {
            Some(State { seen: member.last()?, report: member.report.clone(), power_w })
        };
        self.list.iter().filter_map(state).collect()
    }

    /// Reports dataplanes that share a hardware thread, because they take time from each other.
    fn tell_shared(&mut self, seen: &[Observation]) {
        let mut owners: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for observation in seen {
            let threads = observation.threads.iter();
            for thread in threads.filter(|thread| thread.state == ThreadState::Elastic) {
                let name = format!("{} ({})", observation.program, observation.dataplane.0);
                owners.entry(thread.cpu).or_default().push(name);
            }
        }
        owners.retain(|_, names| names.len() > 1);
        for (cpu, names) in &owners {
            if self.shared.insert(*cpu) {
                let names = names.join(" and ");
                self.lines.push(format!(
                    "hardware thread {cpu} belongs to {names}: the later one gives it up if it has \
                     another; give them different --cpus"
                ));
            }
        }
        self.shared.retain(|cpu| owners.contains_key(cpu));
    }
}

impl Dataplanes for Members {
    fn observe(&mut self, now_us: u64) -> Vec<Observation> {
        if self.searched_us.is_none_or(|at| now_us >= at + EVERY_US) {
            self.searched_us = Some(now_us);
            self.search();
        }
        self.list.iter_mut().for_each(Member::look);
        let until = Instant::now() + LOOK_WITHIN;
        let lines = &mut self.lines;
        let seen: Vec<Observation> =
            self.list.iter_mut().filter_map(|member| member.take_look(until, lines)).collect();
        for member in &self.list {
            if let Some(why) = member.gone().filter(|_| member.id().is_some()) {
                lines.push(format!("{} has ended: {why}", member.title()));
            }
        }
        self.list.retain(|member| member.gone().is_none());
        self.tell_shared(&seen);
        seen
    }

    fn apply(&mut self, dataplane: DataplaneId, step: &Step) -> std::result::Result<(), StepError> {
        let member = self.list.iter_mut().find(|member| member.id() == Some(dataplane));
        let done = member.map_or(Err("it has ended".to_owned()), |member| member.apply(step));
        done.map_err(|line| StepError { line })
    }
}

/// The platform, or for a dry run one that changes nothing.
pub(super) struct DryRun<P> {
    pub(super) platform: P,
    /// Nothing is changed.
    pub(super) on: bool,
}

impl Platform for DryRun<Linux<Members>> {
    fn machine(&mut self) -> Machine {
        self.platform.machine()
    }

    fn observe(&mut self, now_us: u64) -> Vec<Observation> {
        self.platform.observe(now_us)
    }

    fn apply(
        &mut self,
        now_us: u64,
        dataplane: DataplaneId,
        step: &Step,
    ) -> std::result::Result<(), StepError> {
        if self.on {
            return Err(StepError { line: "not done: a dry run".to_owned() });
        }
        self.platform.apply(now_us, dataplane, step)
    }
}
