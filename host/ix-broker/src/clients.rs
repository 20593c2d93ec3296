//! The clients of the control socket, and what the broker needs to serve them: also while it waits
//! for a dataplane that begins.
use crate::commands::Commands;
use crate::control::{ActiveController, Answers, Captures, Dataplane, Name, Server};
use crate::counters::Counters;
use crate::devices::Devices;
use crate::own_calls::{OwnCallsPage, RefusedPort};
use crate::surveys::Surveys;
use crate::vnic::Vnic;
use ix_entry::Channel;
use ix_proto::control::{Look, Sharing, Starting, Status};
use ix_sys::poll::{PollFd, poll};
use ix_sys::process::Process;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time between two looks at what is due.
const LOOK: Duration = Duration::from_millis(100);

/// Parts of a running program's broker, borrowed.
pub struct Clients<'a> {
    pub control: &'a mut Server,
    pub answers: &'a Answers,
    pub controller: &'a mut ActiveController,
    pub captures: &'a mut Captures,
    pub counters: &'a Counters,
    pub devices: &'a mut Devices,
    pub commands: &'a mut Commands,
    pub surveys: &'a mut Surveys,
    pub vnic: &'a mut Vnic,
    /// The program, and its first process.
    pub name: &'a str,
    pub pid: u32,
    /// Who shares the dataplane.
    pub sharing: Option<Sharing>,
    /// System calls that the program makes itself, and what the library in it says.
    pub own_calls: &'a OwnCallsPage,
    /// The processes without which no dataplane is needed.
    pub needed_by: Vec<Arc<Process>>,
}

/// What has ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The descriptor is readable.
    Ready,
    /// The time is over.
    Late,
    /// A process has ended without which no dataplane is needed.
    Unneeded,
}

impl Clients<'_> {
    /// Serves all that wait. `channel` is that to the dataplane, if one runs.
    pub fn serve(&mut self, channel: Option<&Channel>) {
        self.captures.look(self.commands, Instant::now());
        let identity = identity(self.name, self.pid, self.devices);
        let counters = self.counters;
        let mut dataplane = Dataplane {
            name: Name { program: self.name.to_owned(), pid: self.pid },
            threads: counters.threads(),
            snapshot: &|controller| {
                let identity = Starting { controller, ..identity.clone() };
                look(counters, identity, self.sharing.clone(), self.own_calls)
            },
            commands: self.commands,
            surveys: self.surveys,
            answers: self.answers,
            controller: self.controller,
            captures: self.captures,
            vnic: self.vnic,
            sharing: self.sharing.as_ref(),
            devices: self.devices,
            own_calls: self.own_calls,
        };
        self.control.serve(&mut dataplane, Instant::now());
        self.commands.service(channel);
        if self.surveys.due().is_some_and(|due| due <= Instant::now()) {
            self.surveys.service(channel, self.counters.flows(), self.answers);
        }
        self.answer();
    }

    fn answer(&mut self) {
        for (ticket, answer) in self.answers.take() {
            self.control.answer(ticket, answer);
        }
    }

    /// Serves clients until this descriptor is readable, at the longest until this time or the end
    /// of a process that needs a dataplane. There is none meanwhile.
    pub fn until(&mut self, fd: Option<BorrowedFd<'_>>, end: Instant) -> io::Result<Waited> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let fd = fd.map_or(-1, |fd| fd.as_raw_fd());
            let mut polls =
                vec![PollFd::raw(fd, libc::POLLIN), PollFd::readable(&self.control.fd())];
            polls.extend(self.needed_by.iter().map(|process| PollFd::readable(&process.as_fd())));
            match poll(&mut polls, Some(left.min(LOOK))) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e),
                _ => {}
            }
            if polls[0].is_ready() {
                return Ok(Waited::Ready);
            }
            if polls[2..].iter().any(PollFd::is_ready) {
                return Ok(Waited::Unneeded);
            }
            self.serve(None);
            if left.is_zero() {
                return Ok(Waited::Late);
            }
        }
    }
}

/// What a snapshot shows beside counters.
pub fn identity(name: &str, pid: u32, devices: &Devices) -> Starting {
    Starting {
        program: name.to_owned(),
        pid,
        devices: devices.names(),
        device_states: devices.states(),
        ..Starting::default()
    }
}

/// A snapshot of a dataplane, which may have no control page yet.
pub fn look(
    counters: &Counters,
    identity: Starting,
    sharing: Option<Sharing>,
    own_calls: &OwnCallsPage,
) -> Look {
    let status = match counters.status() {
        Ok(status) => status,
        Err(mut error) => {
            if let Some(RefusedPort { errno, port, .. }) = own_calls.refused_bind() {
                let why = io::Error::from_raw_os_error(errno);
                error += &format!("; the program was refused port {port}: {why}");
            }
            return Look::Starting(Box::new(Starting { error, ..identity }));
        }
    };
    let Starting { error: _, program, pid, controller, devices, device_states } = identity;
    let own_calls = own_calls.read();
    let status =
        Status { program, pid, controller, devices, device_states, sharing, own_calls, ..status };
    Look::Running(Box::new(status))
}
