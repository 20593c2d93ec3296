//! `ix load`: puts load on a server and measures it, on Linux sockets or on a dataplane.
//!
//! From pure to impure: laws of sizes, gaps and rates ([`law`], [`arrivals`], [`pattern`]) ·
//! protocols as functions of bytes ([`protocol`], [`records`]) · the engine, a whole generator
//! in virtual time ([`engine`]) · its two back ends ([`linux`], [`ix`]) · threads and their common
//! start ([`worker`], [`run`]) · the result ([`report`]).
pub mod args;
pub mod arrivals;
pub mod clock;
pub mod engine;
pub mod fault;
pub mod ix;
pub mod law;
pub mod linux;
pub mod pattern;
pub mod plan;
pub mod protocol;
pub mod random;
pub mod records;
pub mod report;
pub mod run;
pub mod worker;

use args::LoadArgs;
use clap::Parser;
use serde_json::Value;
use std::ffi::OsString;
use std::process::ExitCode;

/// Exit status when too many gets missed.
pub const STATUS_MISSES: u8 = 3;
/// Exit status when there were errors, or an agent was lost.
pub const STATUS_ERRORS: u8 = 4;

/// What a command line asks for.
pub enum Command {
    /// A run in this process.
    Load(Box<LoadArgs>),
    /// The same in a process of its own on a dataplane.
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
    /// Arguments of `ix load` there.
    pub arguments: Vec<OsString>,
}

/// Reads a command line, the program's name first; ends the process when it is wrong.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Command {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let args = LoadArgs::parse_from(&arguments);
    let inside = std::env::var_os(ix_abi::ENV_HEADER).is_some();
    match (&args.nic, &args.addr) {
        (Some(nic), Some(addr)) if !inside => Command::OnDataplane(Dataplane {
            nic: nic.clone(),
            addr: addr.clone(),
            gateway: args.gateway.clone(),
            cpus: args.cpus.clone(),
            batch: args.batch,
            arguments: arguments[1..].to_vec(),
        }),
        _ => Command::Load(Box::new(args)),
    }
}

/// Carries a load out in this process. `machine` describes the machine for the result.
pub fn load(args: LoadArgs, machine: &dyn Fn() -> Value) -> ExitCode {
    let done = plan::Plan::new(args)
        .map_err(|e| (2, e))
        .and_then(|plan| run::run(plan, machine).map_err(|e| (1, e)));
    match done {
        Ok(status) => ExitCode::from(status),
        Err((status, error)) => {
            eprintln!("ix load: {error:#}");
            ExitCode::from(status)
        }
    }
}
