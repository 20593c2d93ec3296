//! `ix doctor`: tries what IX needs on this machine.
mod host;
mod network;
mod verdict;
pub(crate) mod wall;

use crate::args::DoctorArgs;
use ix_report::machine::Machine;
use ix_report::problem::{Problem, Result};
use serde_json::{Value, json};
use verdict::Verdict;

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It works.
    Ok,
    /// It works, with a limit that the reason names.
    Limited,
    /// It does not work.
    Missing,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Limited => "limited",
            State::Missing => "missing",
        }
    }
}

/// One check and its result.
#[derive(Clone, Debug)]
pub struct Check {
    /// Stable name.
    pub name: &'static str,
    /// Result.
    pub state: State,
    /// What was found, or why it does not work.
    pub why: String,
    /// The command that mends it; empty if there is none.
    pub mend: String,
}

impl Check {
    fn new(name: &'static str, state: State, why: impl Into<String>) -> Check {
        Check { name, state, why: why.into(), mend: String::new() }
    }

    fn ok(name: &'static str, why: impl Into<String>) -> Check {
        Check::new(name, State::Ok, why)
    }

    fn limited(name: &'static str, why: impl Into<String>) -> Check {
        Check::new(name, State::Limited, why)
    }

    fn missing(name: &'static str, why: impl Into<String>) -> Check {
        Check::new(name, State::Missing, why)
    }

    fn mend(mut self, mend: impl Into<String>) -> Check {
        self.mend = mend.into();
        self
    }

    fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "state": self.state.name(),
            "why": self.why,
            "mend": self.mend,
        })
    }
}

/// Runs all checks and prints the results.
pub fn main(args: &DoctorArgs) -> Result<()> {
    // First: checks without root's rights move the process to another namespace.
    let verdicts = verdict::all();
    let mut checks = host::checks();
    checks.push(network::user_namespaces());
    checks.extend(network::checks());
    let state = |name: &str| checks.iter().find(|c| c.name == name).map(|c| c.state);
    let works = ["tap", "afxdp"].iter().any(|name| state(name) != Some(State::Missing))
        && ["fsgsbase", "planting", "run"].iter().all(|name| state(name) != Some(State::Missing));
    let report = || {
        let list: Vec<_> = checks.iter().map(Check::to_json).collect();
        let machine = Machine::read().to_json();
        let interfaces: Vec<_> = verdicts.iter().map(Verdict::to_json).collect();
        Ok(json!({
            "machine": machine,
            "works": works,
            "checks": list,
            "interfaces": interfaces,
        }))
    };
    if !args.print.give(report)? {
        print(&checks);
        print_verdicts(&verdicts);
    }
    if works {
        return Ok(());
    }
    let missing = checks.iter().filter(|c| c.state == State::Missing).map(|c| c.name);
    let why = format!("missing: {}", missing.collect::<Vec<_>>().join(", "));
    Err(Problem::new("`ix run` cannot work here", why).mend("follow the advice in the list above"))
}

fn print_verdicts(verdicts: &[Verdict]) {
    ix_sys::outln!("\nInterfaces, and the command to run next:");
    let lines: Vec<String> = verdicts.iter().flat_map(Verdict::lines).collect();
    match lines.is_empty() {
        true => ix_sys::outln!("none but the loopback interface → ix demo"),
        false => lines.iter().for_each(|line| ix_sys::outln!("{line}")),
    }
}

fn print(checks: &[Check]) {
    ix_sys::outln!("{}\n", Machine::read().summary());
    let width = checks.iter().map(|c| c.name.len()).max().unwrap_or(0);
    for check in checks {
        ix_sys::outln!("{:<7}  {:<width$}  {}", check.state.name(), check.name, check.why);
        if !check.mend.is_empty() {
            ix_sys::outln!("{:<7}  {:<width$}  → {}", "", "", check.mend);
        }
    }
}
