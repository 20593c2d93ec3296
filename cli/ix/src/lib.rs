//! The `ix` command, as a library so that tests can use its pieces.
//!
//! Everything here runs in ordinary Linux processes: the broker of `ix run`, the demo, the
//! benchmarks, the doctor. Errors are a [`ix_report::problem::Problem`]: one line that says what,
//! why, and what to do.
#![forbid(unsafe_code)]

mod address_secret;
pub mod args;
mod attack;
mod attack_vnic;
mod command_line;
mod demo;
pub mod doctor;
mod hints;
mod image;
mod isn_key;
mod keeper_process;
mod linux_address;
mod linux_firewall;
mod load;
mod pages;
mod posix;
mod program_file;
#[cfg(test)]
mod reference_tests;
mod run;
pub mod settings;
mod share;
mod sharing;
mod tap_network;

use args::{Cli, Command};
use command_line::Other;
use ix_broker::marks::Marks;
use ix_report::problem::{Problem, Result, STATUS_OWN_FAILURE};
use ix_sys::log::{self, Level};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::process::ExitCode;

/// Reads the command line and runs the command.
pub fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let problem = match command_line::read(&args) {
        Ok(cli) => match dispatch(cli) {
            Ok(code) => return code,
            Err(problem) => problem,
        },
        Err(Other::Help(text)) => {
            die_of_broken_pipes();
            return print(&text, 0);
        }
        Err(Other::Wrong(text, status)) => {
            follow_log_format(&args);
            if !command_line::wants_json(&args) && !log::is_json() {
                return print(&text, status);
            }
            command_line::as_problem(&text).with_status(status)
        }
        Err(Other::Taught(problem)) => {
            follow_log_format(&args);
            problem
        }
    };
    match command_line::wants_json(&args) {
        true => eprintln!("{}", problem_json(&problem)),
        false => log::line(Level::Error, format_args!("{problem}")),
    }
    ExitCode::from(problem.status())
}

/// Messages about a wrong command line are as it asks, too.
fn follow_log_format(args: &[OsString]) {
    if command_line::wants_json_log(args) {
        log::use_json();
    }
}

/// What clap says, on the output that it chooses.
fn print(text: &clap::Error, status: u8) -> ExitCode {
    // There is nobody to tell if this cannot be written.
    let _ = text.print();
    ExitCode::from(status)
}

/// What `--json` prints of a problem, on standard error.
fn problem_json(problem: &Problem) -> serde_json::Value {
    let (error, why) = match problem.what() {
        "" => (problem.why(), ""),
        what => (what, problem.why()),
    };
    serde_json::json!({ "error": error, "why": why, "mend": problem.what_mends() })
}

fn dispatch(cli: Cli) -> Result<ExitCode> {
    let done = |()| ExitCode::SUCCESS;
    let serves = matches!(cli.command, Command::Echo(_) | Command::Kv(_) | Command::Httpd(_));
    if !serves && !matches!(cli.command, Command::Run(_)) {
        die_of_broken_pipes();
    }
    match cli.command {
        Command::Run(args) => run::main(&args)
            .map(ExitCode::from)
            .map_err(|problem| problem.or_status(STATUS_OWN_FAILURE)),
        Command::Demo(args) => demo::main(&args).map(done),
        Command::Bench(command) => ix_bench::main(&command).map(done),
        Command::Ctl(command) => ix_ctl::ctl::main(&command, ix_ctl::pcap::for_seconds).map(done),
        Command::Cp(args) => ix_ctl::cp::main(&args).map(done),
        Command::Share(args) => share::main(&args).map(done),
        Command::Pcap(args) => ix_ctl::pcap::main(&args).map(done),
        Command::Top(args) => ix_ctl::top::main(&args),
        Command::Exporter(args) => ix_ctl::exporter::main(&args).map(done),
        Command::Doctor(args) => doctor::main(&args).map(done),
        Command::Completions(args) => pages::completions(&args).map(done),
        Command::Man(args) => pages::man(&args).map(done),
        Command::Attack(args) => attack::main(&args).map(done),
        Command::Load(args) => load::main(args.args),
        Command::Warden(args) => {
            let marks = Marks { whose: args.whose, word: args.word, channel: None };
            let keeps = std::io::stdout();
            let (pipe, file) = (std::io::stdin().lock(), args.file.as_deref());
            ix_broker::warden::guard(pipe, marks, file, Some(keeps.as_fd()));
            Ok(ExitCode::SUCCESS)
        }
        Command::Keeper(args) => {
            let kept = match args.apart {
                true => keeper_process::keep(&args.interface),
                false => keeper_process::start_apart(&args.interface),
            };
            kept.map(done).map_err(|e| Problem::new(format!("cannot keep {}", args.interface), e))
        }
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
