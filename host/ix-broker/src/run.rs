//! The broker starts the program with the dataplane in it and stays until the program ends. It
//! answers `ix ctl` and serves the devices: links go down and come back, peers come and go.
use crate::apart::{Apart, BeginError, STARTING};
use crate::attached::{ASKERS_MAX, refuse};
use crate::clients::{Clients, Waited, identity, look};
use crate::commands::Commands;
use crate::control::{Access, ActiveController, Answers, Captures, Server};
use crate::counters::Counters;
use crate::devices::Devices;
use crate::group::Group;
use crate::link_rates::LinkRates;
use crate::marks::Marks;
use crate::pace::Pace;
use crate::presence::Presence;
use crate::program_root::ProgramRoot;
use crate::run_delays::RunDelays;
use crate::shared_address::SharedAddress;
use crate::surveys::Surveys;
use crate::survivor::Survivor;
use crate::vnic::{FilteredDevices, Granted, Vnic};
use ix_entry::Channel;
use ix_launch::{
    Child, Conversation, Exit, Image, LaunchConfig, LaunchError, Occurrence, ServeError,
    SignalForwarding,
};
use ix_netdev::{LinkChange, LinkWatch, Namespace, OpenedDevice, SharedMemory};
use ix_problem::{Problem, Result, STATUS_NOT_EXECUTABLE, STATUS_NOT_FOUND};
use ix_proto::config::{Place, WallPart};
use ix_proto::control::Look;
use ix_proto::crossing::ATTACHMENTS_MAX;
use ix_proto::{Config, FromImage, Start};
use ix_sys::limits::{self, Limit, Resource};
use ix_sys::process::Process;
use ix_sys::say;
use ix_sys::socket::get_option;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest that Linux may take to free the devices of a dataplane that has ended.
const REOPEN: Duration = Duration::from_secs(3);
/// Most lines about processes that are none of the program's: they may ask without end.
const FOREIGN_TOLD_MAX: u32 = 16;
/// How long a dataplane may take to end before it is ended.
const ENDING: Duration = Duration::from_secs(2);
/// Longest time from the first sign of a process's end to its end, ms.
const ENDING_MS: i32 = 100;
/// How long a process of the program waits while too many others share the dataplane.
const HANDOVER: Duration = Duration::from_secs(2);
/// Time between looks at whether it has ended, ms.
const WAITING_MS: u64 = 10;

/// What makes an unmodified program load `libix-posix`.
#[derive(Default)]
pub struct Preload {
    /// Additional variables of its environment.
    pub env: Vec<(OsString, OsString)>,
    /// Descriptors that it inherits, with the same numbers.
    pub inherited: Vec<OwnedFd>,
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
    name: String,
    signals: SignalForwarding,
    /// Removed with this.
    group: Group,
    marks: Marks,
    /// The dataplane that has got a share of processor time of its own.
    parted: Option<u32>,
    /// How long the dataplane waits for its hardware thread.
    delays: Option<RunDelays>,
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
}

/// A process that has asked for the dataplane.
struct Asking {
    process: Arc<Process>,
    /// What its hello said.
    asker: u64,
    /// When it is refused.
    until: Instant,
}

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
        let name = self.program.display().to_string();
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
        let marks = Marks { channel: Some(child.mark()), ..self.marks };
        self.group.must_hold(child.leader())?;
        // The program has its end of this now, and the broker has it no more.
        self.preload.inherited.clear();
        self.root.as_mut().map_or(Ok(()), ProgramRoot::serve).map_err(|e| problem(&e))?;
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
            name,
            signals,
            group: self.group,
            marks,
            parted: None,
            delays: None,
            setup: Some(self.setup),
            presence: Presence::new(Instant::now()),
            again: self.again,
            pace: Pace::default(),
            waiting: VecDeque::new(),
            foreign_told: 0,
        };
        if !later {
            running.begin()?;
        }
        Ok(running)
    }
}

impl Broker {
    /// A program whose dataplane is elsewhere locks no memory for it, and has what its caller had.
    fn limits_of_program(&self, is_apart: bool) -> Vec<(Resource, Limit)> {
        let own = || Some((Resource::LockedMemory, limits::get(Resource::LockedMemory).ok()?));
        let own = is_apart.then(own).flatten();
        own.into_iter().chain(self.root.iter().flat_map(ProgramRoot::limits)).collect()
    }
}

/// What a dataplane is told. A later one starts with the vNIC's current rules, not with the
/// configured ones.
fn start_of(setup: &DataplaneSetup, vnic: &Vnic, place: Place) -> Start {
    Start {
        config: Config { vnic_rules: vnic.rules(), ..setup.config.clone() },
        devices: setup.devices.iter().map(|device| device.info.clone()).collect(),
        without: setup.without.clone(),
        place,
        given_bytes: 0,
    }
}

impl Running {
    /// Waits for the image's hello, and gives it what it asks for.
    fn begin(&mut self) -> Result<()> {
        let problem = |e| Problem::new(format!("cannot run {}", self.name), e);
        match self.child.next_message().map_err(problem)? {
            FromImage::Hello { asker, .. } => self.equip(asker),
            FromImage::Failed { why, .. } => {
                self.child.refused().map_err(problem)?;
                Err(problem(ServeError::Refused(why)))
            }
            _ => Err(problem(ServeError::Protocol)),
        }
    }

    /// Gives a dataplane that begins what it asks for. If it dies then, another one begins.
    fn equip(&mut self, asker: u64) -> Result<()> {
        // No device has refused these filters.
        let mut accepted = self.vnic.granted();
        loop {
            let how = match self.equip_once(asker, &mut accepted) {
                Ok(()) => return Ok(()),
                Err(Unbegun::Never(problem)) => return Err(problem),
                Err(Unbegun::Unneeded) => return Ok(()),
                Err(Unbegun::Died(how)) => how,
            };
            let Some(apart) = &mut self.apart else { return Ok(()) };
            apart.has_died();
            if let Some(why) = apart.gives_up() {
                say!("{how}");
                self.refuse(asker, why.clone());
                return Err(Problem::new(format!("cannot go on with {}", self.name), why));
            }
            if !self.is_needed() {
                say!("{how}");
                return Ok(());
            }
            say!("{how}: another one is started");
        }
    }

    /// Whether the processes live without which no dataplane is needed.
    fn is_needed(&self) -> bool {
        !self.child.needed_by().any(|process| process.has_ended())
    }

    fn equip_once(
        &mut self,
        asker: u64,
        accepted: &mut Granted,
    ) -> std::result::Result<(), Unbegun> {
        if !self.is_needed() {
            return Err(Unbegun::Unneeded);
        }
        let (mut setup, given_bytes) = match self.setup.take() {
            Some(setup) => (setup, 0),
            None => self.setup_again()?,
        };
        self.renew_filters(&mut setup.devices, accepted)?;
        let place = if self.apart.is_some() { Place::Apart } else { Place::Within };
        let start = Start { given_bytes, ..start_of(&setup, &self.vnic, place) };
        // Filters may have been added since the configuration was checked.
        start.check().map_err(|e| Problem::new("cannot begin a dataplane", e))?;
        let mut devices = setup.devices;
        let queues: Vec<_> = devices.iter_mut().map(|d| d.take_fds()).collect();
        let queue_fds: Vec<_> = queues.iter().flatten().map(|fd| fd.as_fd()).collect();
        let mut attached = |device: usize, queue: usize| {
            let sockets = queues.get(device).ok_or("no such device")?;
            let device = devices.get_mut(device).ok_or("no such device")?;
            if let Some(mode) = sockets.get(queue).filter(|_| queue == 0).and_then(bound_mode) {
                device.info.mode.push_str(mode);
            }
            device.finish(queue).map_err(|e| e.to_string())
        };
        let name = self.name.clone();
        let problem =
            |e: &dyn std::fmt::Display| Problem::new(format!("cannot run {name}"), e.to_string());
        let rules = start.config.vnic_rules.clone();
        let (mut clients, child, apart) = self.parts();
        let page = clients.counters.fd();
        let begun = match (apart, &setup.memory) {
            (Some(apart), Some(memory)) => {
                let begun = apart.begin(
                    (child, asker),
                    start,
                    memory,
                    [&[page], &queue_fds],
                    (&mut attached, &mut clients),
                );
                let begun = begun.map_err(|e| match (how_it_died(&e), &e) {
                    (Some(how), _) => Unbegun::Died(how),
                    (None, BeginError::Unneeded) => Unbegun::Unneeded,
                    (None, _) => Unbegun::Never(problem(&e)),
                })?;
                Some((begun, memory))
            }
            (_, memory) => {
                // The control page comes first, then packet memory, then every device's queues.
                let mut fds = vec![page];
                fds.extend(memory.iter().flat_map(|memory| memory.fds.as_fds()));
                fds.extend(queue_fds);
                ix_launch::equip(child, start, &fds, &mut attached).map_err(|e| problem(&e))?;
                None
            }
        };
        for device in &devices {
            let info = &device.info;
            say!("device {}:{}: {}", info.kind, info.name, info.mode);
        }
        let apart = self.apart.as_ref().and_then(Apart::pid);
        let process = apart.unwrap_or(self.child.heir().pid());
        say!("packet memory: {}", pages_of(process));
        // A queue exists as long as any copy of its descriptor: the dataplane must have the only
        // one.
        drop(queues);
        self.commands = Commands::default();
        if self.vnic.rules() != rules {
            // They were changed while it began.
            self.renew_filters(&mut devices, accepted)?;
            self.commands.submit_rules(self.vnic.rules(), Box::new(|_| {}));
        }
        self.devices = Devices::new(devices).sharing(setup.shared);
        self.vnic.set_in_hardware(self.devices.filters_in_hardware());
        self.commands.service(channel(&self.child, self.apart.as_ref()));
        // The program is told last: what operators have changed is on its way to the dataplane.
        if let (Some(apart), Some((begun, memory))) = (&mut self.apart, begun) {
            let told = apart.tell(&self.child, memory, begun);
            self.is_told(told)?;
        }
        Ok(())
    }

    /// What follows from an attempt to tell the process that has asked what it shares with the
    /// dataplane. If nobody listens it has no dataplane.
    fn is_told(&mut self, told: std::io::Result<()>) -> Result<()> {
        let (Some(apart), Err(e)) = (&mut self.apart, told) else { return Ok(()) };
        match e.kind() {
            ErrorKind::WouldBlock => {
                say!(
                    "the process that has asked for a dataplane does not read what it is told: \
                     its dataplane is ended"
                );
            }
            // The program has ended, or has left IX: the channel's end says which, in a moment.
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {}
            _ => return Err(Problem::new("cannot share memory with the program", e)),
        }
        apart.give_up();
        Ok(())
    }

    /// Gives new devices the vNIC's receive filters. If one refuses them, those that were added
    /// since the `accepted` ones are taken back.
    fn renew_filters(
        &mut self,
        devices: &mut dyn FilteredDevices,
        accepted: &mut Granted,
    ) -> Result<()> {
        let renewed = self.vnic.renew(devices, accepted);
        let refused = renewed.map_err(|e| Problem::new("cannot start a dataplane", e))?;
        if let Some(why) = refused {
            say!(
                "a device refuses the filters that were added while the dataplane started \
                 ({why}); they are taken back"
            );
        }
        *accepted = self.vnic.granted();
        Ok(())
    }

    /// The setup of another dataplane, after the process of the last one has ended, and how much of
    /// its transmit memory belongs to the program already. Linux may take a moment to free its
    /// devices.
    fn setup_again(&mut self) -> std::result::Result<(DataplaneSetup, u64), Unbegun> {
        let name = self.name.clone();
        let problem = |e| Problem::new(format!("cannot wait for {name}"), e);
        let (mut clients, _, apart) = self.parts();
        if let Some(ending) = apart.as_ref().and_then(Apart::ending) {
            clients.until(Some(ending), Instant::now() + ENDING).map_err(problem)?;
        }
        if let Some(exit) = self.apart.as_mut().and_then(|apart| apart.end().transpose()) {
            let exit = exit.map_err(problem)?;
            self.apart_has_ended(Some(exit))?;
        }
        self.ask_again();
        let wait = self.pace.start(Instant::now());
        if !wait.is_zero() {
            let waited = self.parts().0.until(None, Instant::now() + wait).map_err(problem)?;
            Unbegun::unless_needed(waited)?;
        }
        let mut legacy = None;
        if let Some(apart) = &mut self.apart {
            legacy = apart.attached().legacy(self.child.heir()).map_err(problem)?;
        }
        let arena = legacy.as_ref().map(|legacy| legacy.arena.as_fd());
        let given_bytes = legacy.as_ref().map_or(0, |legacy| legacy.given_bytes);
        self.devices = Devices::new(Vec::new());
        // The next one knows nothing of a capture: its reader is told, and may begin another.
        self.captures = Captures::default();
        self.counters.clear().map_err(problem)?;
        let end = Instant::now() + REOPEN;
        loop {
            match (self.again)(arena) {
                Err(_) if Instant::now() < end => {
                    let (mut clients, ..) = self.parts();
                    let pause = Instant::now() + REOPEN / 100;
                    Unbegun::unless_needed(clients.until(None, pause).map_err(problem)?)?;
                }
                setup => return Ok((setup?, given_bytes)),
            }
        }
    }

    /// Waits for the program's end. An error means that it has none: all its processes are ended,
    /// because none of them can go on with IX.
    pub fn wait(&mut self) -> Result<Exit> {
        self.wait_on().inspect_err(|_| {
            if !self.group.kill() {
                self.marks.end_all();
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
            self.tell_again()?;
            self.renew_heir();
            if let Some(setup) = &self.setup {
                self.presence.announce(&setup.config, &setup.devices, Instant::now());
            }
            let timeout_ms = self.service_in_ms();
            let mut also = vec![self.watch.fd()];
            also.extend(self.devices.fds());
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

    /// Tells the process that has asked for the dataplane what they share, if there was no room in
    /// the channel. One that does not read for too long has no dataplane.
    fn tell_again(&mut self) -> Result<()> {
        let Some(apart) = &mut self.apart else { return Ok(()) };
        let told = apart.tell_again(&self.child);
        self.is_told(told)
    }

    /// A process of the program asks for a dataplane.
    fn ask(&mut self, process: Process, asker: u64) -> Result<()> {
        self.queue(process.into(), asker);
        self.begin_waiting()
    }

    fn queue(&mut self, process: Arc<Process>, asker: u64) {
        if self.apart.is_some() && !crate::kin::descends_from_us(&process) {
            let pid = process.pid();
            let why = format!("process {pid} is not one of the program's");
            if self.foreign_told < FOREIGN_TOLD_MAX {
                self.foreign_told += 1;
                let last = self.foreign_told == FOREIGN_TOLD_MAX;
                let rest =
                    if last { "; further ones are only counted (`ix ctl status`)" } else { "" };
                say!("{why}, and gets no part of its dataplane{rest}");
            }
            self.refuse(asker, why);
        } else if self.waiting.len() >= ASKERS_MAX {
            let why = format!("{ASKERS_MAX} processes of the program wait for its dataplane");
            self.refuse(asker, why);
        } else {
            let until = Instant::now() + HANDOVER;
            self.waiting.push_back(Asking { process, asker, until });
        }
    }

    /// Tells a process why it gets no part of a dataplane.
    fn refuse(&mut self, asker: u64, why: String) {
        match &mut self.apart {
            Some(apart) => apart.attached().refuse(&self.child, asker, why),
            None => refuse(&self.child, asker, why),
        }
    }

    /// Serves processes that have asked, in order: one shares the dataplane that runs, or gets
    /// another one if nobody has one.
    fn begin_waiting(&mut self) -> Result<()> {
        while let Some(asking) = self.waiting.pop_front() {
            if asking.process.has_ended() {
                continue;
            }
            let shared = self.apart.as_mut().filter(|apart| apart.is_shared());
            let Some(apart) = shared else {
                self.child.inherited_by(asking.process);
                self.equip(asking.asker)?;
                continue;
            };
            let attached = apart.attached();
            let has_one = attached.has(&asking.process);
            if attached.may_join() && !has_one {
                match attached.join(asking.process.clone(), asking.asker) {
                    Ok(()) => {}
                    // It has just ended.
                    Err(_) if !attached.may_join() && Instant::now() < asking.until => {
                        self.waiting.push_front(asking);
                        return Ok(());
                    }
                    Err(why) => {
                        let why = format!("cannot share the dataplane with it: {why}");
                        self.refuse(asking.asker, why);
                    }
                }
            } else if Instant::now() < asking.until || attached.is_joining() {
                self.waiting.push_front(asking);
                return Ok(());
            } else {
                let why = match has_one {
                    true => "this process shares the dataplane already".to_owned(),
                    false => format!(
                        "{ATTACHMENTS_MAX} processes of the program share its dataplane already, \
                         and no more can"
                    ),
                };
                self.refuse(asking.asker, why);
            }
        }
        Ok(())
    }

    /// To be called when a dataplane has ended: who was to share it and does not yet gets another.
    fn ask_again(&mut self) {
        let joining = self.apart.as_mut().and_then(|apart| apart.attached().take_joining());
        let until = Instant::now() + HANDOVER;
        let again = joining.map(|(process, asker)| Asking { process, asker, until });
        again.into_iter().for_each(|asking| self.waiting.push_front(asking));
    }

    /// The dataplane has said something about the processes that share it.
    fn hear_joins(&mut self) {
        if let Some(apart) = &mut self.apart {
            apart.attached().hear(&self.child);
        }
    }

    /// If the process that has the dataplane has ended, another one that shares it stands for the
    /// program.
    fn renew_heir(&mut self) {
        let Some(apart) = &self.apart else { return };
        if apart.pid().is_some() && self.child.heir().has_ended() {
            let next = apart.shared_by().living().next().cloned();
            next.into_iter().for_each(|process| self.child.inherited_by(process));
        }
    }

    /// A message from the program's process, which is the dataplane's only where it is in there.
    /// With a dataplane of its own process, a program that says what a dataplane says is not
    /// believed.
    fn hear_program(&mut self, message: &FromImage, sender: Option<Process>) -> Result<()> {
        let Some(apart) = &mut self.apart else {
            self.handle(message, sender);
            return Ok(());
        };
        // Nobody is believed who cannot be told: such a process has ended.
        let Some(sender) = sender.map(|process| process.pid()) else { return Ok(()) };
        match message {
            FromImage::Ready => apart.has_mapped(sender),
            FromImage::Failed { asker, why } if apart.is_mapping(sender, *asker) => {
                apart.has_mapped(sender);
                if apart.is_shared_beside(sender) {
                    say!("process {sender} gets no part of the dataplane: {why}");
                    return Ok(());
                }
                apart.give_up();
                // Its process may not end: a program can say this as well.
                let why = ServeError::Refused(why.clone());
                return Err(Problem::new(format!("cannot run {}", self.name), why));
            }
            _ => {}
        }
        Ok(())
    }

    /// What is no message comes from the program, if the dataplane is elsewhere.
    fn hear_nonsense(&self) -> Result<()> {
        if self.apart.is_some() {
            return Ok(());
        }
        let problem = Problem::new(format!("cannot wait for {}", self.name), ServeError::Protocol);
        Err(problem)
    }

    /// Where the program has faulted, if that ended it; empty if not known.
    pub fn where_it_faulted(&self, exit: Exit) -> String {
        let Exit::Signal(signal) = exit else { return String::new() };
        let fault = match &self.apart {
            Some(apart) => apart.fault(signal),
            None => self.counters.fault(signal),
        };
        fault.map_or(String::new(), |(address, instruction)| {
            format!(" at address {address:#x}, instruction {instruction:#x}")
        })
    }

    /// The dataplane's process has said something, or has ended.
    fn hear_apart(&mut self) -> Result<()> {
        let Some(apart) = &mut self.apart else { return Ok(()) };
        let problem = |e| Problem::new("the channel to the dataplane broke", e);
        match apart.hear().map_err(problem)? {
            Ok(message) => self.handle(&message, None),
            Err(exit) => {
                self.ask_again();
                self.apart_has_ended(exit)?;
            }
        }
        Ok(())
    }

    /// The dataplane's process has ended. If it has died and the program has not, the program's
    /// next call asks for another one.
    fn apart_has_ended(&mut self, exit: Option<Exit>) -> Result<()> {
        say_how_it_ended(exit);
        let died = exit.is_some_and(|exit| exit != Exit::Status(0));
        let Some(apart) = self.apart.as_mut().filter(|_| died) else { return Ok(()) };
        apart.has_died();
        match apart.gives_up() {
            Some(why) => Err(Problem::new(format!("cannot go on with {}", self.name), why)),
            None => Ok(()),
        }
    }

    /// The program has ended: waits until its connections are closed.
    fn end_apart(&mut self) {
        say_how_it_ended(self.apart.as_mut().and_then(|apart| apart.end().ok().flatten()));
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

    /// A dataplane that has its share of processor time with the program gets one of its own if
    /// threads of the program keep it from its hardware thread.
    fn look_after_share(&mut self) {
        let Some(pid) = self.shares_with_program() else { return };
        if self.delays.as_ref().is_none_or(|delays| delays.pid() != pid) {
            self.delays = Some(RunDelays::of(pid));
        }
        let is_slow = self.commands.slow_at().is_some_and(|at| at <= Instant::now());
        if !is_slow && !self.delays.as_mut().is_some_and(RunDelays::look) {
            return;
        }
        self.parted = Some(pid);
        if self.group.part_dataplane(pid) {
            say!(
                "many threads of {} keep the dataplane from their hardware thread: it has a share \
                 of its own there from now on; --program-cpus gives them others",
                self.name
            );
        }
    }

    /// The dataplane's process, if it may get a share of its own.
    fn shares_with_program(&self) -> Option<u32> {
        let pid = self.apart.as_ref().and_then(Apart::pid).filter(|_| self.group.is_shared());
        pid.filter(|pid| self.parted != Some(*pid))
    }

    /// When to look after its share next.
    fn share_due(&self) -> Option<Instant> {
        let pid = self.shares_with_program()?;
        let delays = self.delays.as_ref().filter(|delays| delays.pid() == pid);
        let due = delays.map_or_else(Instant::now, RunDelays::due);
        Some(self.commands.slow_at().map_or(due, |slow| slow.min(due)))
    }

    fn serve_devices(&mut self) {
        self.look_after_share();
        let lines = self.devices.service(channel(&self.child, self.apart.as_ref()));
        lines.iter().for_each(|line| say!("{line}"));
        self.commands.service(channel(&self.child, self.apart.as_ref()));
    }

    /// Longest time to wait for the next event, ms; negative: no limit.
    fn service_in_ms(&self) -> i32 {
        let devices = u64::try_from(self.devices.service_in_ms()).ok();
        let due = self.control.due().into_iter().chain(self.surveys.due());
        let due = due.chain(self.setup.iter().filter_map(|s| self.presence.due(&s.config)));
        let control = due.chain(self.captures.due()).chain(self.share_due()).min();
        let control = control.map(|due| {
            // Rounded up, so that the broker does not wake too early several times.
            due.saturating_duration_since(Instant::now()).as_millis() as u64 + 1
        });
        let is_untold = self.apart.as_ref().is_some_and(Apart::is_untold);
        let waiting = (!self.waiting.is_empty() || is_untold).then_some(WAITING_MS);
        let due = devices.into_iter().chain(self.commands.service_in_ms()).chain(control);
        let due = due.chain(waiting).min();
        due.map_or(-1, |ms| ms.min(i32::MAX as u64) as i32)
    }

    fn handle(&mut self, message: &FromImage, sender: Option<Process>) {
        if let (FromImage::Survivor { .. }, Some(process)) = (message, sender) {
            return self.survivor.is(process);
        }
        if self.surveys.handle(message) {
            return self.serve_surveys();
        }
        if self.commands.handle(message, channel(&self.child, self.apart.as_ref())) {
            return;
        }
        if let Some(line) = self.devices.handle(message, channel(&self.child, self.apart.as_ref()))
        {
            say!("{line}");
        }
    }

    /// That nobody has the program's end of the channel any more.
    fn has_left(&self) -> String {
        let name = &self.name;
        format!("{name} executed another program, outside of IX, or closed all its descriptors")
    }

    /// Prints lines, unless the process ends now: shortly before its end its channel and its taps
    /// disappear, which the user need not know.
    fn say_unless_it_ends(&mut self, lines: &[String]) -> Result<Option<Exit>> {
        if lines.is_empty() {
            return Ok(None);
        }
        let ends = self.child.next(&[], ENDING_MS);
        match ends.map_err(|e| Problem::new(format!("cannot wait for {}", self.name), e))? {
            Occurrence::Exited(exit) => return Ok(Some(exit)),
            Occurrence::Left => {
                return self.say_unless_it_ends(&[lines, &[self.has_left()]].concat());
            }
            Occurrence::Said(FromImage::Hello { asker, .. }, Some(process)) => {
                self.queue(process.into(), asker);
            }
            Occurrence::Said(message, sender) => self.hear_program(&message, sender)?,
            Occurrence::Nonsense => self.hear_nonsense()?,
            Occurrence::Readable(_) | Occurrence::Nothing => {}
        }
        lines.iter().for_each(|line| say!("{line}"));
        Ok(None)
    }

    /// Path of the operators' socket.
    pub fn control_path(&self) -> &Path {
        self.control.path()
    }

    /// The dataplane's counters, with its program and devices.
    pub fn snapshot(&self) -> Look {
        let sharing = self.apart.as_ref().map(Apart::sharing);
        look(&self.counters, identity(&self.name, self.child.pid(), &self.devices), sharing)
    }

    fn link_changes(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        for change in self.watch.changes() {
            lines.extend(self.link_rate_changed(&change));
            lines.extend(
                self.devices.link_changed(&change, channel(&self.child, self.apart.as_ref())),
            );
        }
        lines
    }

    /// Applies the rates that `ix share` has written as the link's alias. Returns a line for the
    /// user if the limit changes; the part of a full interface changes too often for that.
    fn link_rate_changed(&mut self, change: &LinkChange) -> Option<String> {
        let (name, text) = match change {
            LinkChange::Alias { name, text } => (name, text.as_str()),
            LinkChange::Removed(name) | LinkChange::Moved(name) => (name, ""),
            _ => return None,
        };
        if !self.devices.is_only_link(name) {
            return None;
        }
        let (before, rates) = (self.vnic.link_rates(), LinkRates::read(text));
        if let Some(rules) = self.vnic.set_link_rates(rates) {
            // A dataplane that has ended needs no rate.
            self.commands.submit_rules(rules, Box::new(|_| {}));
            self.commands.service(channel(&self.child, self.apart.as_ref()));
        }
        let changed = rates.limit != before.limit;
        changed.then(|| match rates.limit {
            Some(rate) => format!("link {name} is limited to {rate} by `ix share`"),
            None => format!("link {name} has no rate limit any more"),
        })
    }

    /// Whether a process of the program has used its dataplane, which begins when it is needed.
    pub fn has_begun(&self) -> bool {
        self.setup.is_none()
    }

    /// Gives the interfaces back to Linux, when the program has ended.
    pub fn close_devices(&mut self) {
        self.devices.close();
    }
}

/// Why a dataplane does not begin.
enum Unbegun {
    /// It has died while it started, in these words. Another one may begin.
    Died(String),
    /// No other one would.
    Never(Problem),
    /// Who needed it has ended.
    Unneeded,
}

impl Unbegun {
    /// An error if a wait has ended because nobody needs a dataplane any more.
    fn unless_needed(waited: Waited) -> std::result::Result<(), Unbegun> {
        if waited == Waited::Unneeded { Err(Unbegun::Unneeded) } else { Ok(()) }
    }
}

impl From<Problem> for Unbegun {
    fn from(problem: Problem) -> Unbegun {
        Unbegun::Never(problem)
    }
}

/// How a dataplane has died while it started, if it has.
fn how_it_died(error: &BeginError) -> Option<String> {
    match error {
        BeginError::Serve(ServeError::Died(exit)) => {
            Some(format!("the dataplane ended while it started ({exit})"))
        }
        BeginError::Late => {
            Some(format!("the dataplane did not start within {} s", STARTING.as_secs()))
        }
        _ => None,
    }
}

/// The channel to the dataplane, wherever it is.
fn channel<'a>(child: &'a Child, apart: Option<&'a Apart>) -> Option<&'a Channel> {
    match apart {
        Some(apart) => apart.channel(),
        None => child.channel(),
    }
}

/// Says what the user must know of the end of the dataplane's process.
fn say_how_it_ended(exit: Option<Exit>) {
    if let Some(exit) = exit.filter(|exit| *exit != Exit::Status(0)) {
        say!("the dataplane ended ({exit}): its connections are lost");
    }
}

/// The page size of a process's packet memory, in words. Packet memory is the first that gets large
/// pages.
fn pages_of(pid: u32) -> &'static str {
    pages_in(&std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default())
}

fn pages_in(smaps: &str) -> &'static str {
    let has = |key: &str, is: fn(u64) -> bool| {
        let mut values =
            smaps.lines().filter_map(|line| line.strip_prefix(key)?.strip_suffix(" kB"));
        values.any(|kb| kb.trim().parse().is_ok_and(is))
    };
    if has("KernelPageSize:", |kb| kb == 2048) {
        "2 MB pages"
    } else if has("ShmemPmdMapped:", |kb| kb > 0) || has("AnonHugePages:", |kb| kb > 0) {
        "2 MB pages, transparent (none are reserved; `ix doctor` says how to reserve them)"
    } else {
        "4 KB pages (no 2 MB pages are reserved; `ix doctor` says how to reserve them)"
    }
}

/// Whether a bound AF_XDP socket copies packets, in words; `None` for other descriptors.
fn bound_mode(socket: &OwnedFd) -> Option<&'static str> {
    let options = get_option::<libc::xdp_options>(socket.as_fd(), libc::SOL_XDP, libc::XDP_OPTIONS);
    match options.ok()?.flags & libc::XDP_OPTIONS_ZEROCOPY {
        0 => Some(", copy"),
        _ => Some(", zero-copy"),
    }
}

fn watch_links() -> Result<LinkWatch> {
    Namespace::current()
        .and_then(|here| here.links())
        .and_then(|links| LinkWatch::new(&links))
        .map_err(|e| Problem::new("cannot watch the links", e))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_from_what_linux_says() {
        let lines = |size, shared, private| {
            format!(
                "7f00-7f10 rw-s 0 00:01 9 /memfd:ix-scripts (deleted)\nSize: 4096 kB\nKernelPageSize: {size:>8} kB\n\
                 AnonHugePages: {private:>8} kB\nShmemPmdMapped: {shared:>8} kB\nVmFlags: rd wr\n"
            )
        };
        assert_eq!(pages_in(&lines(2048, 0, 0)), "2 MB pages");
        let merged = pages_in(&lines(4, 2048, 0));
        assert!(
            merged.starts_with("2 MB pages, transparent") && merged == pages_in(&lines(4, 0, 4096))
        );
        assert!(pages_in(&lines(4, 0, 0)).starts_with("4 KB") && pages_in("").starts_with("4 KB"));
    }
}
