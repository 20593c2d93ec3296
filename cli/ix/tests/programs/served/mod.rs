//! Programs as Debian ships them, of several processes, behind the wall that ships: each with its
//! own client under load, reloaded and partly killed meanwhile. `docs/programs.md` is made from
//! [`PROGRAMS`].
mod clients;
mod gunicorn;
mod haproxy;
mod load;
mod nginx;
mod others;
mod page;
mod php;
mod postgres;
mod redis;
mod runtimes;
mod sshd;
mod varnish;
mod web;

use crate::support::{Nic, Service, TestNet};
use ix_skip::{Need, skip};
use std::path::{Path, PathBuf};
use std::process::Command;

/// One line of the page of programs.
pub struct Program {
    /// Its name.
    pub name: &'static str,
    /// What was tested, as it calls itself.
    pub version: &'static str,
    /// How it is started, behind `ix run --nic ... --addr 10.0.0.2/24`.
    pub started: &'static str,
    /// The test.
    pub test: &'static str,
    /// What is done to it there.
    pub shown: &'static str,
    /// What a user should know.
    pub watch: &'static str,
}

/// The programs.
pub const PROGRAMS: &[Program] = &[
    sshd::PROGRAM,
    postgres::PROGRAM,
    gunicorn::PROGRAM,
    haproxy::PROGRAM,
    nginx::PROGRAM,
    redis::PROGRAM,
    varnish::PROGRAM,
    php::PROGRAM,
    runtimes::JAVA,
    runtimes::NODE,
    runtimes::ASYNCIO,
    runtimes::PUMA,
    runtimes::ERLANG,
    others::GO,
    others::CGO,
    others::NODE_EXPORTER,
    others::STATIC_C,
    others::STATIC_RUST,
    others::URING,
    clients::GIT,
    clients::APT,
    clients::IPERF3,
    clients::INETD,
    clients::ACTIVATED,
];

/// Whether these files are there; if not, says loudly which package has them.
fn has(test: &str, files: &[&str], package: &str) -> bool {
    let missing = files.iter().find(|file| !Path::new(file).exists());
    if let Some(missing) = missing {
        skip(test, Need::Program(&format!("apt-get install {package}")), format!("no {missing}"));
    }
    missing.is_none()
}

/// A folder of this test that every user may enter, empty.
fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Starts a program on AF_XDP behind the wall that ships.
fn start(test: &str, flags: &[&str], words: &[&str]) -> Option<(TestNet, Service)> {
    let net = TestNet::new(test, Nic::Afxdp, 1)?;
    let flags = [&["--domain", "process"], flags].concat();
    let service = net.start_env(&[], &flags, words);
    Some((net, service))
}

/// Runs a command to its end; it must succeed. Returns what it said.
#[track_caller]
fn run(mut command: Command) -> String {
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}{complained}", output.status);
    said
}

/// The children of a process.
fn children(pid: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let text = text.unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// The process that a file names, once it does.
#[track_caller]
fn pid_in(file: &Path) -> i32 {
    let mut pid = None;
    crate::support::eventually(&format!("{} names a process", file.display()), || {
        pid = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
        pid.is_some()
    });
    pid.expect("a number")
}
