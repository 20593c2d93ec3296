//! The `ix` command, as a library so that tests can use its pieces.
//!
//! Everything here runs in ordinary Linux processes: the broker of `ix run`, the demo, the
//! benchmarks, the doctor. Errors are a [`ix_report::problem::Problem`]: one line that says what,
//! why, and what to do.
#![forbid(unsafe_code)]

pub mod args;
mod attack;
mod attack_vnic;
mod demo;
pub mod doctor;
mod image;
mod isn_key;
mod load;
mod posix;
#[cfg(test)]
mod reference_tests;
mod run;
pub mod settings;
mod share;

use args::{Cli, Command};
use clap::Parser;
use ix_report::problem::Result;
use std::process::ExitCode;

/// Parses the command line and runs the subcommand.
pub fn main() -> ExitCode {
    match dispatch(Cli::parse()) {
        Ok(code) => code,
        Err(problem) => {
            eprintln!("ix: {problem}");
            ExitCode::from(problem.status())
        }
    }
}

fn dispatch(cli: Cli) -> Result<ExitCode> {
    let done = |()| ExitCode::SUCCESS;
    let serves = matches!(cli.command, Command::Echo(_) | Command::Kv(_) | Command::Httpd(_));
    if !serves && !matches!(cli.command, Command::Run(_)) {
        die_of_broken_pipes();
    }
    match cli.command {
        Command::Run(args) => run::main(&args).map(ExitCode::from),
        Command::Demo(args) => demo::main(&args).map(done),
        Command::Bench(command) => ix_bench::main(&command).map(done),
        Command::Ctl(command) => ix_ctl::ctl::main(&command).map(done),
        Command::Cp(args) => ix_ctl::cp::main(&args).map(done),
        Command::Share(args) => share::main(&args).map(done),
        Command::Pcap(args) => ix_ctl::pcap::main(&args).map(done),
        Command::Top(args) => ix_ctl::top::main(&args),
        Command::Doctor(args) => doctor::main(&args).map(done),
        Command::Attack(args) => attack::main(&args).map(done),
        Command::Load(args) => load::main(args.args),
        Command::Sim(args) => Ok(ix_sim::cli(args.args)),
        Command::Packets(args) => Ok(ix_scripts::cli(args.args)),
        Command::Echo(args) => {
            let name = std::iter::once("ix-echo".into());
            Ok(ix_echo::command(name.chain(args.args)))
        }
        Command::Kv(args) => {
            let name = std::iter::once("ix-kv".into());
            Ok(ix_kv::command(name.chain(args.args)))
        }
        Command::Httpd(args) => {
            let name = std::iter::once("ix-httpd".into());
            Ok(ix_httpd::command(name.chain(args.args)))
        }
        Command::Background(args) => {
            let name = std::iter::once("ix-background".into());
            Ok(ix_background::command(name.chain(args.args)))
        }
    }
}

/// A reader of our output may stop (`ix ctl stats | head`): the command then ends silently, as
/// other commands do. Not for the broker, which writes to sockets that may close.
fn die_of_broken_pipes() {
    ix_sys::signal::set_default(libc::SIGPIPE);
}
