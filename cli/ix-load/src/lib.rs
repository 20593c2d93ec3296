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
    let arguments = json_before_target(arguments.into_iter().collect());
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

/// `--json` may have a file's name behind it, or none: a target is none.
fn json_before_target(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let is_target = |word: &OsString| {
        let text = word.to_string_lossy();
        text.parse::<std::net::SocketAddr>().is_ok()
            || text.split_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok()
            })
    };
    let pair = arguments.windows(2).position(|pair| pair[0] == "--json" && is_target(&pair[1]));
    if let Some(at) = pair {
        arguments[at].push("=-");
    }
    arguments
}

/// Whether this process already has a dataplane.
fn on_dataplane() -> bool {
    libix::raw::Process::find().is_ok()
}

/// Runs a load in this process. `machine` describes the machine for the result.
pub fn load(args: LoadArgs, machine: &dyn Fn() -> Value) -> ExitCode {
    let is_json = args.json.as_ref().is_some_and(|path| path.as_os_str() == "-");
    let planned = plan::Plan::new(args).map_err(|e| (STATUS_USAGE, e));
    let done = planned.and_then(|plan| run::run(plan, machine).map_err(|e| (STATUS_FAILED, e)));
    match done {
        Ok(status) => ExitCode::from(status),
        Err((status, error)) => {
            match is_json {
                true => eprintln!("{}", error_json(&error)),
                false => eprintln!("ix load: {error:#}"),
            }
            ExitCode::from(status)
        }
    }
}

/// What `--json` prints of an error, on standard error, as the other commands of ix do.
fn error_json(error: &anyhow::Error) -> Value {
    let why: Vec<String> = error.chain().skip(1).map(ToString::to_string).collect();
    serde_json::json!({ "error": error.to_string(), "why": why.join(": "), "mend": "" })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_takes_a_file_but_no_target() {
        for (line, json) in [
            ("x 10.0.0.2:7", None),
            ("x 10.0.0.2:7 --json", Some("-")),
            ("x --json 10.0.0.2:7", Some("-")),
            ("x --json localhost:7", Some("-")),
            ("x --json [::1]:7", Some("-")),
            ("x 10.0.0.2:7 --json -q", Some("-")),
            ("x 10.0.0.2:7 --json -", Some("-")),
            ("x 10.0.0.2:7 --json results", Some("results")),
        ] {
            let words = json_before_target(line.split(' ').map(OsString::from).collect());
            let args = LoadArgs::try_parse_from(words).unwrap_or_else(|e| panic!("{line}: {e}"));
            assert_eq!(args.json.as_deref(), json.map(std::path::Path::new), "{line}");
        }
    }
}
