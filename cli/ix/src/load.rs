//! `ix load`: the load generator, on Linux sockets or on its own dataplane.
use crate::args::RunArgs;
use ix_report::domain::Domain;
use ix_report::machine::Machine;
use ix_report::problem::{Problem, Result};
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the command; returns its exit status.
pub fn main(args: Vec<OsString>) -> Result<ExitCode> {
    let name = std::iter::once("ix load".into());
    match ix_load::parse(name.chain(args)) {
        ix_load::Command::Load(args) => Ok(ix_load::load(*args, &|| Machine::read().to_json())),
        ix_load::Command::Agent(args) => Ok(ix_load::agent(&args)),
        ix_load::Command::OnDataplane(dataplane) => on_dataplane(dataplane),
    }
}

/// Runs the same command again, as the program of `ix run`.
fn on_dataplane(dataplane: ix_load::Dataplane) -> Result<ExitCode> {
    let ix =
        std::env::current_exe().map_err(|e| Problem::new("cannot find the executable of ix", e))?;
    let mut program = vec![ix.into_os_string(), "load".into()];
    program.extend(dataplane.arguments);
    let run = RunArgs {
        nic: vec![dataplane.nic],
        addr: Some(dataplane.addr),
        gateway: dataplane.gateway,
        cpus: dataplane.cpus,
        domain: Some(Domain::None),
        batch: dataplane.batch,
        program,
        ..RunArgs::default()
    };
    crate::run::main(&run).map(ExitCode::from)
}
