//! `ix load`: puts load on a server and measures it, on Linux sockets or on a dataplane.
//!
//! From pure to impure: distributions of sizes, gaps and rates (`ix_workload`) · protocols as
//! functions of bytes ([`protocol`], [`records`]) · the engine, a whole generator in virtual time
//! ([`engine`]) · its two back ends ([`linux`], [`ix`]) · threads and their common start
//! ([`worker`], [`run`]) · the result ([`report`], [`row`]).
#![forbid(unsafe_code)]
pub mod agent;
pub mod args;
pub mod clock;
pub mod engine;
pub mod fault;
pub mod ix;
pub mod linux;
pub mod master;
pub mod plan;
pub mod protocol;
pub mod records;
pub mod report;
pub mod row;
pub mod run;
pub mod wire;
pub mod worker;

use args::{AgentArgs, LoadArgs};
use clap::Parser;
use serde_json::Value;
use std::ffi::OsString;
use std::process::ExitCode;

/// Exit status if the load could not run.
pub const STATUS_FAILED: u8 = 1;
/// Exit status for a wrong command line.
pub const STATUS_USAGE: u8 = 2;
/// Exit status if too many gets missed.
pub const STATUS_MISSES: u8 = 3;
/// Exit status if there were errors or an agent was lost.
pub const STATUS_ERRORS: u8 = 4;

/// What to do, by the command line.
pub enum Command {
    /// A run in this process.
    Load(Box<LoadArgs>),
    /// An agent in this process.
    Agent(Box<AgentArgs>),
    /// A load or an agent in another process, on a dataplane.
    OnDataplane(Dataplane),
}

/// Flags of `ix run` that a load on a dataplane needs, and what to run.
pub struct Dataplane {
    /// Device.
    pub nic: String,
    /// Address with its prefix length.
    pub addr: String,
    /// Gateway.
    pub gateway: Option<String>,
    /// Hardware threads.
    pub cpus: Option<String>,
    /// Batch bound.
    pub batch: Option<usize>,
    /// Arguments of `ix load` on it.
    pub arguments: Vec<OsString>,
}

/// Parses a command line, with the program's name first; ends the process if it is wrong.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Command {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let rest = arguments.get(1..).unwrap_or_default().to_vec();
    if rest.first().is_some_and(|word| word == "agent") {
        let args = AgentArgs::parse_from(&rest);
        return match args.place.dataplane(rest).filter(|_| !on_dataplane()) {
            Some(dataplane) => Command::OnDataplane(dataplane),
            None => Command::Agent(Box::new(args)),
        };
    }
    let mut args = LoadArgs::parse_from(&arguments);
    let text = |word: &OsString| word.to_string_lossy().into_owned();
    args.command_line = arguments.iter().map(text).collect();
    match args.place.dataplane(rest).filter(|_| !on_dataplane()) {
        Some(dataplane) => Command::OnDataplane(dataplane),
        None => Command::Load(Box::new(args)),
    }
}

/// Whether this process already has a dataplane.
fn on_dataplane() -> bool {
    libix::raw::Process::find().is_ok()
}

/// Runs a load in this process. `machine` describes the machine for the result.
pub fn load(args: LoadArgs, machine: &dyn Fn() -> Value) -> ExitCode {
    let planned = plan::Plan::new(args).map_err(|e| (STATUS_USAGE, e));
    let done = planned.and_then(|plan| run::run(plan, machine).map_err(|e| (STATUS_FAILED, e)));
    match done {
        Ok(status) => ExitCode::from(status),
        Err((status, error)) => {
            eprintln!("ix load: {error:#}");
            ExitCode::from(status)
        }
    }
}

/// Serves masters in this process.
pub fn agent(args: &AgentArgs) -> ExitCode {
    match agent::serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ix load agent: {error:#}");
            ExitCode::from(STATUS_FAILED)
        }
    }
}
