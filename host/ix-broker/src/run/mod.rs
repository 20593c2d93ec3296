//! The broker starts the program with the dataplane in it and stays until the program ends. It
//! answers `ix ctl` and serves the devices: links go down and come back, peers come and go.
//!
//! Here is what it keeps, and the loop in which it waits. The rest by occasion: `start` of the
//! program; `equip`: a dataplane that begins; `joining`: a process that asks to share one;
//! `hearing`: what program and dataplane say, and how they end; `links` that change;
//! `share_of_time`: a dataplane that is kept from its hardware thread.
mod before;
mod equip;
mod hearing;
mod joining;
mod links;
mod share_of_time;
mod start;

use crate::apart::Apart;
use crate::clients::{Clients, identity, look};
use crate::commands::Commands;
use crate::control::{Access, ActiveController, Answers, Captures, Server};
use crate::counters::Counters;
use crate::devices::Devices;
use crate::group::Group;
use crate::low_ports::LowPorts;
use crate::marks::{AtOnce, Marks};
use crate::own_calls::{OwnCallsPage, RefusedPort};
use crate::pace::Pace;
use crate::presence::Presence;
use crate::program_root::ProgramRoot;
use crate::run_delays::RunDelays;
use crate::service_manager::ServiceManager;
use crate::shared_address::SharedAddress;
use crate::surveys::Surveys;
use crate::survivor::Survivor;
use crate::vnic::Vnic;
use ix_entry::Channel;
use ix_launch::{Child, Exit, NamespaceRoot, Occurrence, SignalForwarding};
use ix_netdev::{LinkWatch, OpenedDevice, SharedMemory};
use ix_problem::{Problem, Result};
use ix_proto::config::WallPart;
use ix_proto::control::Look;
use ix_proto::{Config, FromImage};
use ix_sys::say;
use joining::Asking;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between looks at whether it has ended, ms.
const WAITING_MS: u64 = 10;
/// Time between looks at whether orphans of the program have ended, and at what its processes
/// execute.
const ORPHANS: Duration = Duration::from_secs(1);

/// What makes an unmodified program load `libix-posix`.
#[derive(Default)]
pub struct Preload {
    /// Additional variables of its environment.
    pub env: Vec<(OsString, OsString)>,
    /// Descriptors that it inherits, with the same numbers.
    pub inherited: Vec<OwnedFd>,
    /// Where its processes count system calls that they make themselves.
    pub own_calls: OwnCallsPage,
    /// What they ask about sockets of Linux.
    pub ports: Option<LowPorts>,
}

impl Preload {
    /// Whether the program is unmodified. Its dataplane starts when the program first needs it.
    pub fn is_wanted(&self) -> bool {
        !self.env.is_empty()
    }
}

/// A program to start, and what its dataplane gets.
pub struct Broker {
    /// The dataplane as an executable, which is put into the program's process.
    pub image: &'static [u8],
    /// Its file.
    pub program: PathBuf,
    /// Its arguments, `argv[0]` included.
    pub args: Vec<OsString>,
    /// Hardware threads, one for each elastic thread.
    pub cpus: Vec<usize>,
    /// What its dataplane begins with.
    pub setup: DataplaneSetup,
    /// Makes another setup, for a dataplane that starts after the first one has ended.
    pub again: Again,
    /// Who may open the control sockets, and whether metrics are served.
    pub access: Access,
    /// What makes an unmodified program load the library for sockets.
    pub preload: Preload,
    /// The wall between program and dataplane.
    pub domain: ix_launch::Domain,
    /// How the dataplane gets into the program's process.
    pub entry: ix_launch::Entry,
    /// What it may send and receive.
    pub vnic: Vnic,
    /// User and group of the program, if they differ from the broker's.
    pub user: Option<(u32, u32)>,
    /// The namespace whose root it is; `None`: it is whom `user` says in the broker's own.
    pub root: Option<ProgramRoot>,
    /// Bounds the program; removed at the end.
    pub group: Group,
    /// By what its processes are known if no group holds them.
    pub marks: Marks,
    /// The program's hardware threads; empty: all that we may use.
    pub program_cpus: Vec<usize>,
    /// Hears when the program serves.
    pub manager: ServiceManager,
}

/// Makes a setup; with this transmit memory, which the program has already, if there is one.
pub type Again = Box<dyn Fn(Option<BorrowedFd<'_>>) -> Result<DataplaneSetup>>;

/// What a dataplane begins with.
pub struct DataplaneSetup {
    /// Its configuration, without the vNIC's rules.
    pub config: Config,
    /// Parts of the wall to leave out.
    pub without: Vec<WallPart>,
    /// Its devices.
    pub devices: Vec<OpenedDevice>,
    /// Packet memory, if one of them shares it with a peer.
    pub memory: Option<SharedMemory>,
    /// Its address, if that is Linux's.
    pub shared: Option<SharedAddress>,
}

/// A running program.
pub struct Running {
    child: Child,
    /// The dataplane, if it has a process of its own.
    apart: Option<Apart>,
    control: Server,
    /// Answers to commands from the control socket.
    answers: Answers,
    /// The controller, if there is one.
    controller: ActiveController,
    /// The capture, if there is one.
    captures: Captures,
    watch: LinkWatch,
    counters: Counters,
    devices: Devices,
    commands: Commands,
    surveys: Surveys,
    survivor: Survivor,
    vnic: Vnic,
    own_calls: OwnCallsPage,
    name: String,
    signals: SignalForwarding,
    /// Removed with this.
    group: Group,
    marks: Marks,
    /// How long a dataplane that has its share of processor time with the program waits for its
    /// hardware thread.
    delays: Option<RunDelays>,
    /// The namespace whose root the program is.
    root: Option<Arc<NamespaceRoot>>,
    /// For the first dataplane.
    setup: Option<DataplaneSetup>,
    /// Announces its addresses until it begins.
    presence: Presence,
    again: Again,
    pace: Pace,
    /// Processes of the program that have asked for the dataplane.
    waiting: VecDeque<Asking>,
    /// Lines about processes that are none of the program's.
    foreign_told: u32,
    manager: ServiceManager,
    /// When to wait for orphans of the program again.
    orphans_due: Instant,
}

impl Running {
    /// Waits for the program's end. An error means that it has none: all its processes are ended,
    /// because none of them can go on with IX.
    pub fn wait(&mut self) -> Result<Exit> {
        self.wait_on().inspect_err(|_| {
            if !self.group.kill() {
                let namespace = self.root.as_ref().map(|root| root.namespace().as_fd());
                let at_once = AtOnce::prepare(self.marks.whose, namespace);
                self.marks.end_all(at_once.as_ref());
            }
        })
    }

    /// The inode by which the program's channel is known.
    pub fn channel_inode(&self) -> u64 {
        self.child.mark()
    }

    fn wait_on(&mut self) -> Result<Exit> {
        self.serve_devices();
        loop {
            self.begin_waiting()?;
            self.needs_keeper()?;
            self.tell_again()?;
            self.renew_heir();
            self.tell_manager();
            self.reap_orphans();
            if let Some(setup) = &self.setup {
                self.presence.announce(&setup.config, &setup.devices, Instant::now());
            }
            let timeout_ms = self.service_in_ms();
            let mut also = vec![self.watch.fd()];
            also.extend(self.devices.fds());
            also.extend(self.setup.iter().flat_map(DataplaneSetup::fds));
            // Last, because the first ready descriptor is served, and there may be many busy
            // clients.
            also.push(self.control.fd());
            let control = also.len() - 1;
            let apart = also.len();
            also.extend(self.apart.as_ref().and_then(Apart::fd));
            let joins = also.len();
            also.extend(self.apart.as_ref().and_then(|apart| apart.shared_by().fd()));
            let survivor = also.len();
            also.extend(self.survivor.fd());
            let occurrence = self
                .child
                .next(&also, timeout_ms)
                .map_err(|e| Problem::new(format!("cannot wait for {}", self.name), e))?;
            match occurrence {
                Occurrence::Exited(exit) => {
                    self.manager.stopping();
                    self.end_apart();
                    return Ok(exit);
                }
                Occurrence::Readable(0) => {
                    let lines = self.link_changes();
                    if let Some(exit) = self.say_unless_it_ends(&lines)? {
                        self.end_apart();
                        return Ok(exit);
                    }
                }
                Occurrence::Readable(n) if n == control => self.serve_control(),
                Occurrence::Readable(n) if n == survivor => {
                    self.survivor.ended(channel(&self.child, self.apart.as_ref()));
                }
                Occurrence::Readable(n) if n == apart && apart < joins => self.hear_apart()?,
                Occurrence::Readable(n) if n == joins && joins < survivor => self.hear_joins(),
                Occurrence::Readable(_) => self.serve_devices(),
                Occurrence::Nothing => {
                    self.serve_devices();
                    self.serve_control();
                    self.serve_surveys();
                }
                Occurrence::Left => {
                    if let Some(exit) = self.say_unless_it_ends(&[self.has_left()])? {
                        self.end_apart();
                        return Ok(exit);
                    }
                }
                Occurrence::Said(FromImage::Hello { asker, .. }, Some(process)) => {
                    self.ask(process, asker)?;
                }
                Occurrence::Said(message, sender) => self.hear_program(&message, sender)?,
                Occurrence::Nonsense => self.hear_nonsense()?,
            }
            self.signals.turn_to(self.child.leader());
            for (ticket, answer) in self.answers.take() {
                self.control.answer(ticket, answer);
            }
        }
    }

    /// An error if the keeper of the shared interface has ended.
    fn needs_keeper(&self) -> Result<()> {
        let before = self.setup.as_ref().and_then(DataplaneSetup::without_keeper);
        let Some(name) = self.devices.without_keeper().or(before) else { return Ok(()) };
        let why = "its keeper, the process that holds the XDP program for all runs, has ended";
        let what = format!("cannot share the address of Linux on {name} any more");
        Err(Problem::new(what, why).mend("start `ix run` again"))
    }

    /// Tells the service manager, if there is one, what it must know now.
    fn tell_manager(&mut self) {
        if self.manager.is_waiting() && self.has_begun() && self.counters.has_served() {
            self.manager.ready();
        }
        self.manager.service(Instant::now());
    }

    /// Serves the clients of the control socket.
    fn serve_control(&mut self) {
        let (mut clients, child, apart) = self.parts();
        clients.serve(channel(child, apart.as_ref()));
    }

    /// What serves the clients, and what they are served beside.
    fn parts(&mut self) -> (Clients<'_>, &mut Child, &mut Option<Apart>) {
        let Running { child, apart, .. } = self;
        let clients = Clients {
            control: &mut self.control,
            answers: &self.answers,
            controller: &mut self.controller,
            captures: &mut self.captures,
            counters: &self.counters,
            devices: &mut self.devices,
            commands: &mut self.commands,
            surveys: &mut self.surveys,
            vnic: &mut self.vnic,
            name: &self.name,
            pid: child.pid(),
            sharing: apart.as_ref().map(Apart::sharing),
            own_calls: &self.own_calls,
            needed_by: child.needed_by().cloned().collect(),
        };
        (clients, child, apart)
    }

    fn serve_surveys(&mut self) {
        let is_due = |due: Instant| due <= Instant::now();
        if self.surveys.due().is_some_and(is_due) {
            let flows = self.counters.flows();
            self.surveys.service(channel(&self.child, self.apart.as_ref()), flows, &self.answers);
        }
    }

    fn serve_devices(&mut self) {
        self.look_after_share();
        let mut lines = self.devices.service(channel(&self.child, self.apart.as_ref()));
        lines.extend(self.setup.as_mut().and_then(DataplaneSetup::service));
        lines.iter().for_each(|line| say!("{line}"));
        self.commands.service(channel(&self.child, self.apart.as_ref()));
    }

    /// Processes that end after their parents, as daemons do, would be left until the end.
    fn reap_orphans(&mut self) {
        let now = Instant::now();
        if now >= self.orphans_due {
            self.orphans_due = now + ORPHANS;
            if let Some(apart) = &mut self.apart {
                apart.attached().look_for_executed();
                apart.attached().give_back();
            }
            self.child.reap_orphans(self.apart.as_ref().and_then(Apart::pid));
        }
    }

    /// Longest time to wait for the next event, ms; negative: no limit.
    fn service_in_ms(&self) -> i32 {
        let devices = u64::try_from(self.devices.service_in_ms()).ok();
        let due = self.control.due().into_iter().chain(self.surveys.due());
        let due = due.chain(self.setup.iter().filter_map(|s| self.presence.due(&s.config)));
        let due = due.chain(self.manager.due(Instant::now()));
        let due = due.chain([self.orphans_due]);
        let control = due.chain(self.captures.due()).chain(self.share_due()).min();
        let control = control.map(|due| {
            // Rounded up, so that the broker does not wake too early several times.
            due.saturating_duration_since(Instant::now()).as_millis() as u64 + 1
        });
        let is_untold = self.apart.as_ref().is_some_and(Apart::is_untold);
        let waiting = (!self.waiting.is_empty() || is_untold).then_some(WAITING_MS);
        let before = self.setup.as_ref().and_then(DataplaneSetup::service_in_ms);
        let devices = devices.into_iter().chain(before);
        let due = devices.chain(self.commands.service_in_ms()).chain(control);
        let due = due.chain(waiting).min();
        due.map_or(-1, |ms| ms.min(i32::MAX as u64) as i32)
    }

    /// Path of the operators' socket.
    pub fn control_path(&self) -> &Path {
        self.control.path()
    }

    /// The dataplane's counters, with its program and devices.
    pub fn snapshot(&self) -> Look {
        let sharing = self.apart.as_ref().map(Apart::sharing);
        let identity = identity(&self.name, self.child.pid(), &self.devices);
        look(&self.counters, identity, sharing, &self.own_calls)
    }

    /// Whether a process of the program has used its dataplane, which begins when it is needed.
    pub fn has_begun(&self) -> bool {
        self.setup.is_none()
    }

    /// The port, if the program was refused one and has bound no other since.
    pub fn refused_bind(&self) -> Option<RefusedPort> {
        self.own_calls.refused_bind()
    }

    /// Gives the interfaces back to Linux, when the program has ended.
    pub fn close_devices(&mut self) {
        self.devices.close();
    }
}

/// The channel to the dataplane, wherever it is.
fn channel<'a>(child: &'a Child, apart: Option<&'a Apart>) -> Option<&'a Channel> {
    match apart {
        Some(apart) => apart.channel(),
        None => child.channel(),
    }
}
