//! A web server under load that is killed with all its processes, and started again.
use super::{children, load};
use crate::support::process::{Process, signal};
use crate::support::{PATIENCE, SERVICE, Service, TestNet, eventually};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

/// A web server.
pub struct Site<'a> {
    /// How it is started.
    pub words: &'a [&'a str],
    /// More variables in its environment.
    pub env: &'a [(&'a str, &'a str)],
    /// The page.
    pub path: &'a str,
    /// Where clients ask: the service itself, or what stands in front of it.
    pub at: SocketAddr,
    /// Whether a body is the page.
    pub is_answer: fn(&str) -> bool,
}

impl Default for Site<'_> {
    fn default() -> Self {
        let is_answer = |body: &str| body == "hello";
        Site { words: &[], env: &[], path: "/", at: SERVICE.into(), is_answer }
    }
}

/// How long clients ask.
const LOAD: Duration = Duration::from_millis(1500);
/// The fewest answers in this time, on a busy machine.
const ANSWERS_MIN: usize = 30;

impl Site<'_> {
    /// Starts it, and waits until it answers.
    pub fn start(&self, net: &TestNet) -> Service {
        let mut service = net.start_env(self.env, &["--domain", "process"], self.words);
        eventually("it serves", || {
            service.process.check();
            net.client.run(|| load::ask_at(self.at, self.path).is_ok())
        });
        service
    }

    /// Clients ask while `meanwhile` goes on; at most `failures_max` of them may get no answer.
    /// Returns what was answered.
    pub fn under_load(
        &self,
        net: &TestNet,
        failures_max: usize,
        meanwhile: impl FnOnce(),
    ) -> BTreeSet<String> {
        let seen = Mutex::new(BTreeSet::new());
        let is_answer = |body: &str| {
            seen.lock().expect("no panic").insert(body.to_owned());
            (self.is_answer)(body)
        };
        let outcome = load::during_at(net, self.at, self.path, is_answer, meanwhile);
        assert!(outcome.failures.len() <= failures_max, "{outcome:?}");
        assert!(outcome.answers >= ANSWERS_MIN, "{outcome:?}");
        seen.into_inner().expect("no panic")
    }

    /// Serves under load, is killed, and serves again; `meanwhile` gets the program's process, and
    /// may cost so many answers.
    pub fn is_killed_and_started_again(
        &self,
        net: &TestNet,
        failures_max: usize,
        meanwhile: impl FnOnce(i32),
    ) {
        let service = self.start(net);
        let program = program(&service.process);
        self.under_load(net, 0, || std::thread::sleep(LOAD));
        // Before its only process with a part of the dataplane may be killed.
        let stats = service.stats();
        let served = stats.total("accepted");
        assert!(served >= ANSWERS_MIN as u64, "it was IX that served: {stats}");
        self.under_load(net, failures_max, || {
            std::thread::sleep(LOAD / 3);
            meanwhile(program);
            std::thread::sleep(LOAD / 3);
        });
        kill_all(program);
        let (status, said) = service.process.wait(PATIENCE);
        assert_eq!(status.code(), Some(128 + libc::SIGKILL), "{said:#?}");
        let service = self.start(net);
        self.under_load(net, 0, || std::thread::sleep(LOAD / 2));
        service.process.signal(libc::SIGTERM);
        let (_, said) = service.process.wait(PATIENCE);
        assert!(!said.iter().any(|line| line.contains("Linux's")), "{said:#?}");
    }
}

/// Kills a process, and what it has started: those may go on without it.
fn kill_all(pid: i32) {
    // It cannot start others meanwhile.
    signal(pid, libc::SIGSTOP);
    children(pid).into_iter().for_each(kill_all);
    signal(pid, libc::SIGKILL);
}

/// The process of the program that `ix run` has started.
pub fn program(run: &Process) -> i32 {
    let started = |pid: &i32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        // The dataplane has no library that is loaded in front of the C library.
        line.contains("libix-posix") || line.contains("libix_posix")
    };
    let mut found = None;
    eventually("the program runs", || {
        found = children(run.pid()).into_iter().find(started);
        found.is_some()
    });
    found.expect("a process")
}
