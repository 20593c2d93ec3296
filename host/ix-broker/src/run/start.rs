//! The start of a program.
use super::equip::start_of;
use super::{Broker, Running};
use crate::apart::Apart;
use crate::commands::Commands;
use crate::control::{ActiveController, Answers, Captures, Server};
use crate::counters::Counters;
use crate::devices::Devices;
use crate::low_ports::LowPorts;
use crate::marks::Marks;
use crate::pace::Pace;
use crate::presence::Presence;
use crate::program_root::ProgramRoot;
use crate::service_manager::VARIABLES;
use crate::surveys::Surveys;
use crate::survivor::Survivor;
use ix_launch::{Image, LaunchConfig, LaunchError, SignalForwarding};
use ix_netdev::{LinkWatch, Namespace};
use ix_problem::{Problem, Result, STATUS_NOT_EXECUTABLE, STATUS_NOT_FOUND};
use ix_proto::config::Place;
use ix_sys::limits::{self, Limit, Resource};
use ix_sys::say;
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Instant;

/// Descriptors that the broker may have.
const DESCRIPTORS_MAX: u64 = 1 << 18;

impl Broker {
    /// Starts the program. Returns when its dataplane is ready, or when it waits until the program
    /// needs it.
    pub fn start(mut self, control: Option<&Path>) -> Result<Running> {
        let is_apart = self.domain == ix_launch::Domain::Process;
        let limits = self.limits_of_program(is_apart);
        // AF_XDP charges packet memory to this limit, in the dataplane's process. If it stays too
        // low, attaching the device fails with a message that says so.
        let _ = ix_sys::limits::raise_memlock();
        crate::about::note(std::env::args_os().collect(), self.args.len());
        let name = shown(&self.program);
        let place = if is_apart { Place::Apart } else { Place::Within };
        start_of(&self.setup, &self.vnic, place)
            .check()
            .map_err(|e| Problem::new("cannot begin a dataplane", e))?;
        let problem = |e: &dyn std::fmt::Display| Problem::new(format!("cannot run {name}"), e);
        let metrics = self.access.bind_metrics()?;
        let watch = watch_links()?;
        let walled = self.domain == ix_launch::Domain::Pku;
        let image = Image::from_bytes(self.image, walled).map_err(|e| problem(&e))?;
        let counters = Counters::new(&self.cpus).map_err(|e| problem(&e))?;
        // The wall stands before the program's first instruction.
        let later = self.preload.is_wanted() && !walled;
        let pins = self.program_cpus == self.cpus;
        let (name_of_word, word) = self.marks.variable();
        let mut env = std::mem::take(&mut self.preload.env);
        env.push((name_of_word.into(), word.into()));
        let config = LaunchConfig {
            program: self.program.clone(),
            args: self.args,
            env,
            without_env: VARIABLES.map(Into::into).to_vec(),
            inherited: self.preload.inherited.iter().map(AsRawFd::as_raw_fd).collect(),
            later,
            cpus: self.program_cpus,
            domain: self.domain,
            entry: self.entry,
            user: self.user,
            root: self.root.as_ref().map(ProgramRoot::root),
            groups: self.group.joins(),
            limits,
        };
        let child = ix_launch::launch(&image, &config).map_err(launch_problem)?;
        // The program has the limit that it was given; this process holds a socket for each address
        // and port that the program shares with Linux. If the limit stays, claims beyond it fail.
        let _ = limits::raise(Resource::Descriptors, DESCRIPTORS_MAX);
        let marks = Marks { channel: Some(child.mark()), ..self.marks };
        self.group.must_hold(child.leader())?;
        // The program has its end of this now, and the broker has it no more.
        self.preload.inherited.clear();
        self.preload.ports.take().map_or(Ok(()), LowPorts::serve).map_err(|e| problem(&e))?;
        let apart =
            is_apart.then(|| Apart::new(image, pins, self.group.dataplanes_joins())).transpose();
        let apart = apart.map_err(|e| problem(&e))?;
        if apart.as_ref().is_some_and(|apart| apart.user().is_none()) {
            say!(
                "the dataplane has no user of its own, which takes root: another process of \
                 this user can end it"
            );
        }
        let pid = child.pid();
        let signals = SignalForwarding::to(child.leader()).map_err(|e| problem(&e))?;
        if !child.knows_senders() {
            say!(
                "this kernel does not say by descriptor which process sent a message (Linux \
                 6.5 does): if a process of the program ends, its number may get another one \
                 signals that were meant for it"
            );
        }
        let mut control = Server::listen(control, pid as i32, &self.access)?;
        if let Some(address) = metrics.as_ref().and_then(|m| m.local_addr().ok()) {
            say!("metrics at http://{address}/metrics");
        }
        metrics.map_or(Ok(()), |metrics| control.expose(metrics)).map_err(|e| problem(&e))?;
        let mut running = Running {
            child,
            apart,
            control,
            answers: Answers::default(),
            controller: ActiveController::default(),
            captures: Captures::default(),
            watch,
            counters,
            devices: Devices::new(Vec::new()),
            commands: Commands::default(),
            surveys: Surveys::default(),
            survivor: Survivor::default(),
            vnic: self.vnic,
            own_calls: std::mem::take(&mut self.preload.own_calls),
            name,
            signals,
            group: self.group,
            marks,
            root: self.root.as_ref().map(ProgramRoot::root),
            delays: None,
            setup: Some(self.setup),
            presence: Presence::new(Instant::now()),
            again: self.again,
            pace: Pace::default(),
            waiting: VecDeque::new(),
            foreign_told: 0,
            manager: self.manager,
            orphans_due: Instant::now(),
        };
        running.manager.status("Waiting for the program's first call to its dataplane");
        if !later {
            running.begin()?;
        }
        Ok(running)
    }

    /// A program whose dataplane is elsewhere locks no memory for it, and has what its caller had.
    fn limits_of_program(&self, is_apart: bool) -> Vec<(Resource, Limit)> {
        let own = || Some((Resource::LockedMemory, limits::get(Resource::LockedMemory).ok()?));
        let own = is_apart.then(own).flatten();
        own.into_iter().chain(self.root.iter().flat_map(ProgramRoot::limits)).collect()
    }
}

/// A program's path for people: a name may hold what moves a terminal's cursor.
fn shown(program: &Path) -> String {
    let text = program.to_string_lossy();
    let plain = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(plain).collect()
}

/// The problem for an error of the launcher. Its text is a complete line; this adds the exit
/// status.
fn launch_problem(error: LaunchError) -> Problem {
    let status = match error {
        LaunchError::NotFound(_) => STATUS_NOT_FOUND,
        LaunchError::Directory(_)
        | LaunchError::NoPermission(_)
        | LaunchError::NotExecutable(_)
        | LaunchError::WrongMachine(_)
        | LaunchError::NoInterpreter(_) => STATUS_NOT_EXECUTABLE,
        _ => 1,
    };
    Problem::line(error).with_status(status)
}

fn watch_links() -> Result<LinkWatch> {
    Namespace::current()
        .and_then(|here| here.links())
        .and_then(|links| LinkWatch::new(&links))
        .map_err(|e| Problem::new("cannot watch the links", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_moves_no_cursor() {
        for (name, expected) in [
            ("/usr/bin/größe 2", "/usr/bin/größe 2"),
            ("a\x1b[31mb\nc", "a\\u{1b}[31mb\\nc"),
            ("\u{9b}31m", "\\u{9b}31m"),
        ] {
            assert_eq!(shown(Path::new(name)), expected);
        }
    }
}
