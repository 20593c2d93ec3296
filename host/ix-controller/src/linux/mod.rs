//! This machine as a [`Platform`]: `/sys` and `/proc`, and the connection to the dataplanes.
pub mod background;
mod clocks;
mod energy;
mod files;
mod latency;
mod topology;

pub use background::{Background, BackgroundError, Job, SetAffinity, parse_job};
pub use clocks::Clocks;
pub use energy::Energy;
pub use files::{FileError, Tree, parse_list};
pub use latency::{Latency, SERVING_US};
pub use topology::online;

use crate::{DataplaneId, Machine, Observation, Platform, Step, StepError, ThreadState};
use std::collections::BTreeMap;
use std::fmt;

/// Time between two readings of the machine, µs: hardware threads come and go.
const LOOK_EVERY_US: u64 = 1_000_000;

/// The dataplanes of this machine.
pub trait Dataplanes {
    /// Those that reply, in their present state, without clocks.
    fn observe(&mut self, now_us: u64) -> Vec<Observation>;

    /// Resumes, parks or migrates.
    fn apply(&mut self, dataplane: DataplaneId, step: &Step) -> Result<(), StepError>;
}

/// A feature that a controller can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Stable name.
    pub name: &'static str,
    /// Why it is missing; `None`: it is there.
    pub missing: Option<String>,
    /// What there is, or what is done without it.
    pub note: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.missing {
            Some(why) => write!(f, "no {}: {why}; {}", self.name, self.note),
            None => write!(f, "{}: {}", self.name, self.note),
        }
    }
}

/// This machine.
#[derive(Debug)]
pub struct Linux<D> {
    tree: Tree,
    clocks: Clocks,
    energy: Energy,
    latency: Latency,
    background: Option<Background>,
    /// Where the job may run; empty: anywhere.
    background_cpus: Vec<u32>,
    machine: Machine,
    looked_us: Option<u64>,
    dataplanes: D,
    /// Hardware threads of the dataplanes' threads, as last seen.
    cpus: BTreeMap<(DataplaneId, u16), u32>,
}

impl<D: Dataplanes> Linux<D> {
    /// The machine below a tree, with its dataplanes.
    pub fn new(tree: &Tree, dataplanes: D) -> Linux<D> {
        let online = topology::online(tree);
        let latency = Latency::new(tree);
        latency.heal();
        let mut linux = Linux {
            tree: tree.clone(),
            clocks: Clocks::new(tree, &online),
            energy: Energy::new(tree),
            latency,
            background: None,
            background_cpus: Vec::new(),
            machine: Machine::default(),
            looked_us: None,
            dataplanes,
            cpus: BTreeMap::new(),
        };
        linux.look();
        linux
    }

    /// Takes control of a background job; it stays within `cpus` unless that is empty.
    pub fn with_background(mut self, background: Background, cpus: Vec<u32>) -> Linux<D> {
        self.background = Some(background);
        self.background_cpus = cpus;
        self
    }

    /// The connection to the dataplanes.
    pub fn dataplanes(&mut self) -> &mut D {
        &mut self.dataplanes
    }

    /// Mean power of the processor packages since the last call, W, if it can be measured.
    pub fn watts(&mut self, now_us: u64) -> Option<f64> {
        self.energy.watts(now_us)
    }

    /// The features that this machine has and lacks.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = findings(&self.clocks, &self.energy, &self.latency);
        if let Some(background) = &self.background {
            findings.extend(background.missing().into_iter().map(|line| {
                let (missing, note) = line.split_once(": ").unwrap_or((&line, ""));
                let (missing, note) = (Some(missing.to_owned()), note.to_owned());
                Finding { name: "background", missing, note }
            }));
        }
        findings
    }

    /// Restores clocks, C-states and the background job.
    pub fn restore(&mut self) {
        self.clocks.restore();
        self.latency.restore();
        self.background = None;
    }

    fn look(&mut self) {
        self.machine = Machine {
            cores: topology::cores(&self.tree),
            clocks_khz: self.clocks.khz().to_vec(),
            turbo: self.clocks.turbo(),
        };
    }

    /// Moves the job, if there is one, to those of these hardware threads that it may use.
    fn place(&mut self, cpus: &[u32]) -> Result<(), BackgroundError> {
        let Some(background) = &mut self.background else { return Ok(()) };
        let may =
            |cpu: &&u32| self.background_cpus.is_empty() || self.background_cpus.contains(cpu);
        let cpus: Vec<u32> = cpus.iter().filter(may).copied().collect();
        background.place(&cpus)
    }
}

/// The features that a machine has and lacks, for `ix doctor`.
pub fn inspect(tree: &Tree) -> Vec<Finding> {
    let clocks = Clocks::new(tree, &topology::online(tree));
    let mut findings = findings(&clocks, &Energy::new(tree), &Latency::new(tree));
    let shared = topology::cores(tree).iter().any(|core| core.cpus.len() > 1);
    let note = if shared { "some cores have two" } else { "ladders skip hyperthreads" };
    let missing = (!shared).then(|| "each core has one hardware thread".to_owned());
    findings.push(Finding { name: "hyperthreads", missing, note: note.to_owned() });
    findings.push(background::inspect(tree));
    findings
}

fn findings(clocks: &Clocks, energy: &Energy, latency: &Latency) -> Vec<Finding> {
    let missing = clocks.missing();
    let found = |name: &'static str, missing: Option<String>, there: String, without: &str| {
        let note = if missing.is_some() { without.to_owned() } else { there };
        Finding { name, missing, note }
    };
    let mut findings = Vec::new();
    for name in ["clocks", "turbo"] {
        let why = missing.iter().find(|(known, _)| *known == name).map(|(_, why)| why.clone());
        let why = why.or((name == "turbo" && !clocks.turbo()).then(|| "no clocks either".into()));
        let khz = clocks.khz();
        let (least, most) = (khz.first().unwrap_or(&0) / 1000, khz.last().unwrap_or(&0) / 1000);
        let there = match name {
            "clocks" => format!("{} from {least} to {most} MHz", khz.len()),
            _ => "can be switched".to_owned(),
        };
        findings.push(found(name, why, there, "ladders skip these rungs"));
    }
    let why = energy.missing().map(str::to_owned);
    findings.push(found("energy", why, "can be measured".to_owned(), "power is not reported"));
    let there = format!("serving hardware threads wake within {SERVING_US} µs");
    findings.push(match &latency.left()[..] {
        [] => found("c-states", latency.missing(), there, "nothing to bound"),
        left => {
            let missing = format!("a process that was killed has left {left:?} bounded");
            let note = "the next `ix run` or `ix cp` restores them".to_owned();
            Finding { name: "c-states", missing: Some(missing), note }
        }
    });
    findings
}

impl<D: Dataplanes> Platform for Linux<D> {
    fn machine(&mut self) -> Machine {
        self.machine.clone()
    }

    fn observe(&mut self, now_us: u64) -> Vec<Observation> {
        if self.looked_us.is_none_or(|at| now_us >= at + LOOK_EVERY_US) {
            self.looked_us = Some(now_us);
            self.look();
        }
        let mut seen = self.dataplanes.observe(now_us);
        self.cpus.clear();
        for observation in &mut seen {
            let id = observation.dataplane;
            for (number, thread) in observation.threads.iter_mut().enumerate() {
                thread.clock = self.clocks.held(thread.cpu);
                let first = self.cpus.insert((id, number as u16), thread.cpu).is_none();
                if first && thread.state == ThreadState::Elastic {
                    // This is a hint: `ix doctor` reports why it may not work.
                    let _ = self.latency.bound(thread.cpu, Some(SERVING_US));
                }
            }
        }
        seen
    }

    fn apply(
        &mut self,
        _now_us: u64,
        dataplane: DataplaneId,
        step: &Step,
    ) -> Result<(), StepError> {
        let line = |e: &dyn fmt::Display| StepError { line: e.to_string() };
        let cpu = |thread: &u16| self.cpus.get(&(dataplane, *thread)).copied();
        match step {
            Step::Clock { cpus, clock } => self.clocks.hold(cpus, *clock).map_err(|e| line(&e)),
            Step::Background { cpus } => self.place(cpus).map_err(|e| line(&e)),
            Step::Resume { thread } => {
                if let Some(cpu) = cpu(thread) {
                    let _ = self.latency.bound(cpu, Some(SERVING_US));
                }
                self.dataplanes.apply(dataplane, step)
            }
            Step::Park { thread } => {
                let cpu = cpu(thread);
                self.dataplanes.apply(dataplane, step)?;
                if let Some(cpu) = cpu {
                    let _ = self.latency.bound(cpu, None);
                }
                Ok(())
            }
            Step::Migrate { .. } => self.dataplanes.apply(dataplane, step),
        }
    }
}

#[cfg(test)]
#[path = "linux_tests.rs"]
mod tests;
