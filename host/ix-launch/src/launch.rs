//! Starts a program with the dataplane in it, and waits for it.
use crate::error::{LaunchError, system};
use crate::exit::Exit;
use crate::image::Image;
use crate::load::Exec;
use crate::plant::{IMAGE_ENV, plant};
use crate::program::{check, diagnose};
use crate::root::NamespaceRoot;
use crate::tracee::Tracee;
use ix_entry::{ABI_PLACEHOLDER, Channel, IMAGE_ARGV0, LOAD, ReservedFds};
use ix_proto::{Codec, FromImage, Outcome};
use ix_sys::command::die_with;
use ix_sys::fd;
use ix_sys::limits::{self, Limit, Resource};
use ix_sys::poll::{PollFd, is_readable, poll};
use ix_sys::process::{self, Process};
use ix_sys::terminal;
use rustix::process::{Gid, Uid};
use rustix::thread::{self, CapabilitySet, CapabilitySets, CpuSet};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time from the first sign of a process's end to its end.
const ENDING: Duration = Duration::from_millis(100);
/// Longest time from the program's end until its connections are closed.
const WINDING_UP: Duration = Duration::from_millis(2500);

/// Most messages of the channel before something else that waits is looked at.
const IN_A_ROW_MAX: u32 = 64;
/// The same in time: what a message asks for may take long.
const ROW: Duration = Duration::from_millis(10);

/// Most orphans that are waited for before something else is looked at.
const ORPHANS_IN_A_ROW: u32 = 1000;

/// Messages of which each was there when the one before was done with, and nothing else was looked
/// at.
#[derive(Clone, Copy, Debug)]
struct Row {
    began: Instant,
    messages: u32,
}

impl Row {
    fn and_one_more(row: Option<Row>) -> Row {
        let row = row.unwrap_or_else(|| Row { began: Instant::now(), messages: 0 });
        Row { messages: row.messages.saturating_add(1), ..row }
    }

    fn is_full(self) -> bool {
        self.messages >= IN_A_ROW_MAX
    }

    fn is_long(self) -> bool {
        self.is_full() || self.began.elapsed() >= ROW
    }
}

/// What keeps the application out of the dataplane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Domain {
    /// Nothing: the application can access the dataplane's memory.
    #[default]
    None,
    /// A process boundary: the dataplane is a [`crate::DataplaneProcess`].
    Process,
    /// Protection keys and a filter for system calls.
    Pku,
}

impl Domain {
    /// As the image reads it. [`crate::plant`] adds the program's mappings to `pku`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Domain::None => "none",
            Domain::Process => "process",
            Domain::Pku => "pku",
        }
    }
}

/// The number of root.
const ROOT: u32 = 0;

/// Environment variable for `libix-posix`: how programs start that the program executes
/// (`successor.rs` there says what is in it).
const EXECUTED_ENV: &str = "IX_IMAGE";

/// How the image gets into the program's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Entry {
    /// Linux starts the program; the image is planted before its first instruction.
    #[default]
    Planted,
    /// Linux starts the image, which loads the program.
    Loading,
}

/// The program and its arguments.
#[derive(Clone, Debug, Default)]
pub struct LaunchConfig {
    /// Its file, or a name to find along `PATH`.
    pub program: PathBuf,
    /// Its arguments with the first (`argv[0]`); empty: only the program's name.
    pub args: Vec<OsString>,
    /// Hardware threads that the program may use; empty: the broker's.
    pub cpus: Vec<usize>,
    /// Variables that are added to the broker's environment.
    pub env: Vec<(OsString, OsString)>,
    /// Variables of the broker's environment that the program does not get.
    pub without_env: Vec<OsString>,
    /// Descriptors of the broker that the program inherits under the same numbers.
    pub inherited: Vec<RawFd>,
    /// The domain.
    pub domain: Domain,
    /// The entry.
    pub entry: Entry,
    /// User and group of the program, without other groups; `None`: the broker's.
    pub user: Option<(u32, u32)>,
    /// The namespace whose root the program is; `None`: it has the broker's rights.
    pub root: Option<Arc<NamespaceRoot>>,
    /// Control groups that the program joins, by their `cgroup.procs`.
    pub groups: Vec<Arc<File>>,
    /// Limits of the program that differ from the broker's.
    pub limits: Vec<(Resource, Limit)>,
    /// The dataplane begins when the program first needs it, in the process that does: programs may
    /// fork before, and again when that process has ended.
    pub later: bool,
}

impl LaunchConfig {
    /// The user that the program becomes after its exec, which root makes in its place. From its
    /// exec on until it can be told otherwise, a process can be traced, and its memory opened, by
    /// others of its user; who has that opened then has it as long as the process lives. Nobody
    /// but root's processes could open it so.
    pub(crate) fn user_after_exec(&self) -> Option<(u32, u32)> {
        let is_behind_keys = self.domain == Domain::Pku && self.entry == Entry::Planted;
        let may = is_behind_keys && self.root.is_none() && process::is_root();
        self.user.filter(|(user, _)| may && *user != ROOT)
    }
}

/// A program with the dataplane planted into it. Dropping it kills the program if it still runs.
#[derive(Debug)]
pub struct Child {
    process: Arc<Process>,
    channel: Option<Channel>,
    /// The inode of its other end.
    mark: u64,
    /// The kernel says by descriptors which process a message is of.
    knows_senders: bool,
    /// The process that was started.
    exit: Option<Exit>,
    /// Its descendants may have the dataplane after it.
    later: bool,
    /// The process that has the dataplane, if it is another one.
    heir: Option<Arc<Process>>,
    /// How that has ended, if it was waited for.
    heirs_end: Option<ExitStatus>,
    /// It had ended before the process that was started, or ended with it.
    is_outlived: bool,
    /// All processes have ended, which was reported.
    over: Option<Exit>,
    /// The messages that have come since something else was looked at.
    row: Option<Row>,
    /// Nothing comes by the channel any more, though somebody has its other end.
    is_mute: bool,
}

/// Result of [`Child::next`].
#[derive(Debug)]
pub enum Occurrence {
    /// The image has sent a message; with the process that did, for what a program says of
    /// itself.
    Said(FromImage, Option<Process>),
    /// The image is no longer in the process: the program executed another one.
    Left,
    /// Somebody has sent what is no message. The program has the image's end of the channel too.
    Nonsense,
    /// The descriptor of this index in `also` is readable or closed.
    Readable(usize),
    /// The program ended.
    Exited(Exit),
    /// Nothing within the given time, or a signal handler ran.
    Nothing,
}

/// Starts the program and plants the image. Returns as soon as the image runs; [`crate::serve`]
/// replies to it.
///
/// The calling thread must outlive the program: the kernel kills the program when the *thread* that
/// started it ends.
pub fn launch(image: &Image, config: &LaunchConfig) -> Result<Child, LaunchError> {
    check(&config.program)?;
    let reserved = ReservedFds::of_this_process().map_err(system("getrlimit"))?;
    if config.later {
        // Orphans of a program that forks a daemon and ends become our children.
        let itself = Some(rustix::process::getpid());
        rustix::process::set_child_subreaper(itself).map_err(|e| system("prctl")(e.into()))?;
    }
    let (ours, theirs) = Channel::pair().map_err(system("socketpair"))?;
    ours.refuse_descriptors().map_err(system("setsockopt(SO_PASSRIGHTS)"))?;
    let knows_senders = ours.tell_senders().map_err(system("setsockopt(SO_PASSCRED)"))?;
    let mark = fd::inode(theirs.as_fd()).map_err(system("fstat"))?;
    // Copies at the numbers they will have in the child; there they lose close-on-exec.
    let theirs = reserved.copy(theirs.as_fd()).map_err(system("dup"))?;
    let hidden = (config.domain == Domain::Pku && config.entry == Entry::Loading)
        .then(|| image.unreadable(c"ix-image"))
        .transpose()
        .map_err(system("memfd_create"))?;
    let executable = hidden.as_ref().map_or(image.fd(), AsFd::as_fd);
    let image_copy = reserved.copy(executable).map_err(system("dup"))?;
    let (channel_fd, image_fd) = (theirs.as_raw_fd(), image_copy.as_raw_fd());
    // Programs that the program executes start by loading.
    let spare = (config.later && config.domain == Domain::Process)
        .then(|| reserved.copy(image.fd()))
        .transpose()
        .map_err(system("dup"))?;
    let mut config = config.clone();
    if let Some(spare) = &spare {
        config.inherited.push(spare.as_raw_fd());
        let words = [IMAGE_ARGV0, LOAD, IMAGE_ENV, ABI_PLACEHOLDER].join(";");
        let told = format!("{};{channel_fd};{words}", spare.as_raw_fd());
        config.env.push((EXECUTED_ENV.into(), told.into()));
    }
    let config = &config;

    let mut command = Command::new(&config.program);
    if let Some((arg0, args)) = config.args.split_first() {
        command.arg0(arg0).args(args);
    }
    config.without_env.iter().for_each(|name| {
        command.env_remove(name);
    });
    command.envs(config.env.iter().map(|(key, value)| (key, value)));
    command.env(ix_abi::ENV_HEADER, ABI_PLACEHOLDER);
    if config.domain == Domain::Pku {
        // Lazy binding saves registers with an instruction that could change rights.
        command.env("LD_BIND_NOW", "1");
    }
    let mut keep = config.inherited.clone();
    keep.push(channel_fd);
    if config.entry == Entry::Planted {
        keep.push(image_fd);
    }
    let is_other =
        config.root.is_some() || config.user.is_some_and(|(user, _)| user != process::user_id());
    let late = config.user_after_exec();
    let user = config.user.filter(|_| late.is_none());
    let is_kept_off = is_other && terminal::can_be_typed_on();
    // SAFETY: the functions only make system calls.
    unsafe {
        command.pre_exec(move || {
            // It takes a right that the program's user lacks.
            if is_kept_off {
                terminal::forbid_typing()?;
            }
            user.map_or(Ok(()), |(user, group)| become_user(user, group))
        });
        command.pre_exec(process::reveal_user);
    }
    if let Some(cpus) = cpu_set(&config.cpus) {
        // SAFETY: the function only makes a system call.
        unsafe { command.pre_exec(move || run_on(&cpus)) };
    }
    let (limits, root) = (config.limits.clone(), config.root.clone());
    // SAFETY: the functions only make system calls. The limits come first: to raise one takes
    // rights that root of a namespace lacks.
    unsafe {
        command.pre_exec(joins(config.groups.clone()));
        command.pre_exec(move || {
            // What root itself may not raise stays.
            limits.iter().for_each(|(what, limit)| drop(limits::set(*what, *limit)));
            root.as_ref().map_or(Ok(()), |root| root.become_it())
        });
    }
    let parent = std::process::id() as libc::pid_t;
    let child = match config.entry {
        Entry::Planted => {
            let traced = move || {
                before_exec(&keep, parent)?;
                late.map_or(Ok(()), |(user, group)| use_files_as(user, group))?;
                be_traced()
            };
            // SAFETY: the function only makes system calls, as a child of a threaded process must.
            unsafe { command.pre_exec(traced) };
            command.spawn().map_err(|error| diagnose(&config.program, error))
        }
        Entry::Loading => {
            let exec = Exec::new(config, image_fd, channel_fd).map_err(system("execveat"))?;
            // SAFETY: as above; what they point to is moved along.
            unsafe { command.pre_exec(executes(exec, keep, parent)) };
            command.spawn().map_err(system("execveat of the image"))
        }
    }?;
    let pid = child.id();
    // Dropped here: our own `Child` waits for it from now on. Until then the number stays its own.
    drop(child);
    let mut child = Child {
        process: Arc::new(Process::open(pid).map_err(system("pidfd_open"))?),
        channel: Some(ours),
        mark,
        knows_senders,
        exit: None,
        later: config.later,
        heir: None,
        heirs_end: None,
        is_outlived: false,
        over: None,
        row: None,
        is_mute: false,
    };
    if config.entry == Entry::Loading {
        return Ok(child);
    }
    let planted = Tracee::at_exec(pid as libc::pid_t).and_then(|tracee| {
        if tracee.is_64_bit() {
            plant(tracee, image, image_fd, channel_fd, config)
        } else {
            Err(LaunchError::WrongMachine(config.program.clone()))
        }
    });
    match planted {
        Ok(()) => Ok(child),
        Err(LaunchError::Died(exit)) => {
            (child.exit, child.over) = (Some(exit), Some(exit));
            Err(LaunchError::Died(exit))
        }
        Err(error) => Err(error),
    }
}

/// Runs in the child, just before `execve`. Without `parent`, the broker, it would run outside of
/// IX; traced, it would wait for ever, for the tracer is whoever is the parent then: init.
fn before_exec(keep: &[RawFd], parent: libc::pid_t) -> io::Result<()> {
    let check = |rc: i64| if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    for fd in keep {
        // SAFETY: no pointers.
        check(unsafe { libc::fcntl(*fd, libc::F_SETFD, 0) }.into())?;
    }
    die_with(parent)
}

/// In the child: joins control groups. Those that refuse are left out; the broker looks afterwards
/// if one is needed.
pub(crate) fn joins(groups: Vec<Arc<File>>) -> impl FnMut() -> io::Result<()> + Send + Sync {
    move || {
        groups.iter().for_each(|group| drop(fd::write_bare(group.as_fd(), b"0")));
        Ok(())
    }
}

/// `None`: no restriction.
fn cpu_set(cpus: &[usize]) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
    (!cpus.is_empty()).then_some(set)
}

/// For the calling thread.
fn run_on(cpus: &CpuSet) -> io::Result<()> {
    Ok(thread::sched_setaffinity(None, cpus)?)
}

/// Becomes this user, without other groups, in the calling thread alone.
fn become_user(user: u32, group: u32) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
    thread::set_thread_groups(&[])?;
    thread::set_thread_res_gid(group, group, group)?;
    Ok(thread::set_thread_res_uid(user, user, user)?)
}

/// Has this user's rights over files, and its group alone, until the exec, in the calling thread
/// alone.
///
/// The group changes wholly: for a process whose group is neither the one of its files nor among
/// its others, Linux (6.17 and later) says at the exec that rights were raised (`AT_SECURE`). The
/// loader then ignores what its environment says of libraries.
fn use_files_as(user: u32, group: u32) -> io::Result<()> {
    thread::set_thread_groups(&[])?;
    let group = Gid::from_raw(group);
    thread::set_thread_res_gid(group, group, group)?;
    // SAFETY: numbers. The second call says what the first has come to (setfsuid(2)).
    let made = unsafe {
        libc::syscall(libc::SYS_setfsuid, user);
        libc::syscall(libc::SYS_setfsuid, u32::MAX) == i64::from(user)
    };
    if made { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPERM)) }
}

/// Becomes this user, without other groups. Keeps one right, `CAP_IPC_LOCK`, across the exec: where
/// the limit on locked memory cannot be lifted, a device could not be opened without it.
fn become_locker(user: u32, group: u32) -> io::Result<()> {
    thread::set_keep_capabilities(true)?;
    become_user(user, group)?;
    let one = CapabilitySet::IPC_LOCK;
    let sets = CapabilitySets { effective: one, permitted: one, inheritable: one };
    // Without the right there is none to keep.
    let _ = thread::set_capabilities(None, sets)
        .and_then(|()| thread::configure_capability_in_ambient_set(one, true));
    Ok(())
}

fn be_traced() -> io::Result<()> {
    // SAFETY: no pointers.
    let rc = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Arguments and environment of an image, as `execve` takes them.
struct Pointers([Vec<*const libc::c_char>; 2]);

// SAFETY: into strings on the heap, which the `Exec` beside it keeps and does not change.
unsafe impl Send for Pointers {}
// SAFETY: as above.
unsafe impl Sync for Pointers {}

impl Pointers {
    /// A method, so that closures capture the whole.
    fn both(&self) -> &[Vec<*const libc::c_char>; 2] {
        &self.0
    }
}

/// In the child: executes the image.
fn executes(
    exec: Exec,
    keep: Vec<RawFd>,
    parent: libc::pid_t,
) -> impl FnMut() -> io::Result<()> + Send + Sync {
    let pointers = Pointers(exec.pointers());
    move || {
        let [args, env] = pointers.both();
        before_exec(&keep, parent)?;
        Err(exec.run(args, env))
    }
}

/// In the child: executes the image of a dataplane, which gets no descriptor of whoever has started
/// the program, and does not type on their terminal. All its signals are blocked, for no signal is
/// meant for it. It is not killed with the broker: it closes the program's connections first.
pub(crate) fn before_exec_of_dataplane(
    exec: Exec,
    channel: RawFd,
    user: Option<(u32, u32)>,
) -> impl FnMut() -> io::Result<()> + Send + Sync {
    let pointers = Pointers(exec.pointers());
    let is_kept_off = user.is_some() && terminal::can_be_typed_on();
    move || {
        let [args, env] = pointers.both();
        fd::close_others_at_exec()?;
        if is_kept_off {
            terminal::forbid_typing()?;
        }
        if let Some((user, group)) = user {
            become_locker(user, group)?;
        }
        // SAFETY: no pointers, then locals only; all zero is a set of signals.
        unsafe {
            if libc::fcntl(channel, libc::F_SETFD, 0) < 0 {
                return Err(io::Error::last_os_error());
            }
            let mut all: libc::sigset_t = core::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::sigprocmask(libc::SIG_SETMASK, &all, core::ptr::null_mut());
        }
        Err(exec.run(args, env))
    }
}

impl Child {
    /// The program's process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Whether the kernel says by descriptors which process a message is of (Linux 6.5). Otherwise
    /// the process that has its number when the message is read is taken for it.
    pub fn knows_senders(&self) -> bool {
        self.knows_senders
    }

    /// Whether the dataplane begins when the program needs it.
    pub(crate) fn begins_later(&self) -> bool {
        self.later
    }

    /// The channel to the image; `None` once the image has ended.
    pub fn channel(&self) -> Option<&Channel> {
        self.channel.as_ref()
    }

    /// The inode of the channel's other end, which the program's processes inherit.
    pub fn mark(&self) -> u64 {
        self.mark
    }

    /// The process that gets signals: the one that was started, or the one that has the dataplane
    /// after it.
    pub fn leader(&self) -> &Arc<Process> {
        match self.exit {
            Some(_) => self.heir(),
            None => &self.process,
        }
    }

    /// The process that has the dataplane.
    pub fn heir(&self) -> &Arc<Process> {
        self.heir.as_ref().unwrap_or(&self.process)
    }

    /// The processes without each of which no dataplane is needed: the one that has it or asks for
    /// it, and the one with which the program ends.
    pub fn needed_by(&self) -> impl Iterator<Item = &Arc<Process>> {
        let last = (!self.later).then_some(&self.process);
        std::iter::once(self.heir()).chain(last)
    }

    /// The dataplane begins in this process.
    pub fn inherited_by(&mut self, process: impl Into<Arc<Process>>) {
        let process = process.into();
        // The number of the process that was started stays its own until it was waited for.
        let is_first = self.exit.is_none() && process.pid() == self.process.pid();
        self.heir = (!is_first).then_some(process);
        (self.heirs_end, self.is_outlived) = (None, false);
    }

    /// Waits for processes of the program that have ended after their parents: this process is
    /// their parent then, and they would be there as long as it is. `dataplane` is waited for where
    /// its end is heard.
    pub fn reap_orphans(&mut self, dataplane: Option<u32>) {
        for _ in 0..ORPHANS_IN_A_ROW {
            let Ok(Some(pid)) = process::ended_child() else { return };
            let is_first = self.exit.is_none() && pid == self.process.pid();
            if is_first || dataplane == Some(pid) {
                return;
            }
            match self.heir.as_ref().filter(|heir| heir.pid() == pid).map(|heir| heir.wait(false)) {
                Some(Ok(Some(status))) => self.heirs_end = Some(status),
                // An error means that it was waited for.
                _ => drop(process::wait(pid as i32, false)),
            }
        }
    }

    /// Waits for the first of: a message of the image, the program's end, one of `also`, or
    /// `timeout_ms` (negative: none).
    ///
    /// A program whose dataplane begins later ends with the last process that could have it.
    pub fn next(&mut self, also: &[BorrowedFd<'_>], timeout_ms: i32) -> io::Result<Occurrence> {
        if let Some(exit) = self.over {
            return Ok(Occurrence::Exited(exit));
        }
        // poll ignores a negative descriptor.
        let channel = self.channel.as_ref().map_or(-1, |channel| channel.as_fd().as_raw_fd());
        let process = match (self.exit, &self.channel, &self.heir) {
            (None, ..) => self.process.as_fd().as_raw_fd(),
            (Some(_), None, Some(heir)) => heir.as_fd().as_raw_fd(),
            _ => -1,
        };
        // Of one that has shut its end down only the end is awaited.
        let events = if self.is_mute { 0 } else { libc::POLLIN };
        let mut polls = vec![PollFd::raw(channel, events), PollFd::raw(process, libc::POLLIN)];
        polls.extend(also.iter().map(PollFd::readable));
        let mut n = poll(&mut polls, Some(Duration::ZERO));
        if timeout_ms != 0 && matches!(n, Ok(0)) {
            let timeout_ms = u64::try_from(timeout_ms).ok();
            n = poll(&mut polls, timeout_ms.map(Duration::from_millis));
            self.row = None;
        }
        match n {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(Occurrence::Nothing),
            n => n?,
        };
        let ready = polls[2..].iter().position(PollFd::is_ready);
        // The image's last messages come before the end, however long each takes. But a process
        // that sends without end does not keep the broker from everything else.
        let [is_said, ends] = [0, 1].map(|index: usize| polls[index].is_ready());
        let end_is_next = ends && (!is_said || self.row.is_some_and(Row::is_full));
        let ready_is_next = ready.is_some() && self.row.is_some_and(Row::is_long);
        let is_next = is_said && !end_is_next && !ready_is_next;
        self.row = is_next.then(|| Row::and_one_more(self.row));
        if is_next {
            match self.channel.as_ref().map(said).transpose() {
                Ok(Some(Some((message, sender)))) => return Ok(Occurrence::Said(message, sender)),
                Err(e) if e.raw_os_error() == Some(libc::EBADMSG) => {
                    return Ok(Occurrence::Nonsense);
                }
                // Empty, which is not the channel's end. A process that has shut its end down,
                // which others have too, would seem to send without end.
                Ok(_) if self.channel.as_ref().is_some_and(|channel| !channel.is_closed()) => {
                    self.is_mute = self.channel.as_ref().is_some_and(Channel::is_mute);
                    return Ok(Occurrence::Nonsense);
                }
                Ok(_) => {}
                Err(e) => return Err(e),
            }
            self.channel = None;
            if self.exit.is_none() && !self.ends_soon() {
                return Ok(Occurrence::Left);
            }
            return self.reap();
        }
        if end_is_next {
            return self.reap();
        }
        Ok(ready.map_or(Occurrence::Nothing, Occurrence::Readable))
    }

    /// A process that ends closes its descriptors a moment before.
    fn ends_soon(&self) -> bool {
        is_readable(&self.process.as_fd(), ENDING).unwrap_or(false)
    }

    /// Waits for the program's end.
    pub fn wait(&mut self) -> io::Result<Exit> {
        loop {
            match self.next(&[], -1)? {
                Occurrence::Exited(exit) => return Ok(exit),
                Occurrence::Said(..) | Occurrence::Left | Occurrence::Nothing => {}
                Occurrence::Readable(_) | Occurrence::Nonsense => {}
            }
        }
    }

    /// Ends the program.
    pub fn kill(&self) {
        // Errors: it has ended.
        if self.exit.is_none() {
            let _ = self.process.signal(libc::SIGKILL);
        }
        let on_ix = (self.channel.is_some() || self.exit.is_some()) && self.over.is_none();
        if let Some(heir) = self.heir.as_ref().filter(|_| on_ix) {
            let _ = heir.signal(libc::SIGKILL);
        }
    }

    /// The survivor, which closes the program's connections after its end, holds the channel until
    /// that is done.
    fn wait_for_survivor(&mut self) {
        let Some(channel) = self.channel.take() else { return };
        // The program may have stopped it.
        continue_children();
        let end = Instant::now() + WINDING_UP;
        // A process that is left may send without end.
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            match is_readable(&channel.as_fd(), left) {
                Ok(true) if matches!(channel.receive(), Ok(Some(_))) => {}
                Ok(_) => return,
                // A signal.
                Err(_) => {}
            }
        }
    }

    /// The process that was started has ended, and may have been the last.
    fn reap(&mut self) -> io::Result<Occurrence> {
        let exit = match self.exit {
            Some(exit) => exit,
            None => {
                // No program in the background: its parent knows how it ended, and may have ended
                // it itself a moment before.
                let has_ended = |heir: &Arc<Process>| is_readable(&heir.as_fd(), ENDING);
                let heir = self.heir.as_ref();
                self.is_outlived = heir.is_some_and(|heir| has_ended(heir).unwrap_or(false));
                *self.exit.insert(wait_for(&self.process)?)
            }
        };
        // A process that could have the dataplane later holds the channel.
        if self.later && self.channel.as_ref().is_some_and(|channel| !channel.is_closed()) {
            return Ok(Occurrence::Nothing);
        }
        self.wait_for_survivor();
        let ended = self.heirs_end.map(|status| Ok(Some(status)));
        let exit = match ended.or_else(|| self.heir.as_ref().map(|heir| heir.wait(false))) {
            // It has let go of the channel and lives on, with the dataplane.
            Some(Ok(None)) => return Ok(Occurrence::Nothing),
            // The first one has put it into the background.
            Some(Ok(Some(status))) if exit == Exit::Status(0) && !self.is_outlived => {
                Exit::from_wait_status(status.into_raw()).unwrap_or(exit)
            }
            // An heir that is not our child has another parent, which is told how it ended.
            Some(_) | None => exit,
        };
        self.over = Some(exit);
        Ok(Occurrence::Exited(exit))
    }
}

/// The next message of the image, with its sender if that matters; `None` when nobody has the other
/// end any more.
///
/// A process says its own number, but the kernel knows better: the broker signals that process with
/// its own rights, and the program may send whatever it likes.
pub(crate) fn said(channel: &Channel) -> io::Result<Option<(FromImage, Option<Process>)>> {
    let Some((bytes, sender)) = channel.receive_from()? else { return Ok(None) };
    let invalid = || io::Error::from_raw_os_error(libc::EBADMSG);
    let message = FromImage::decode(&bytes).map_err(|_| invalid())?;
    let known = || sender.as_ref().map(Process::pid).ok_or_else(invalid);
    let message = match message {
        FromImage::Hello { asker, .. } => FromImage::Hello { pid: known()?, asker },
        FromImage::Survivor { .. } => FromImage::Survivor { pid: known()? },
        FromImage::Failed { asker, why } => FromImage::Failed { asker, why: printable(&why) },
        FromImage::UpdateFailed { device, serial, why } => {
            FromImage::UpdateFailed { device, serial, why: printable(&why) }
        }
        FromImage::Outcome { serial, outcome } => {
            let outcome = match outcome {
                Outcome::Refused(why) => Outcome::Refused(printable(&why)),
                Outcome::TimedOut(why) => Outcome::TimedOut(printable(&why)),
                Outcome::Done => Outcome::Done,
            };
            FromImage::Outcome { serial, outcome }
        }
        other => other,
    };
    let matters = matches!(
        message,
        FromImage::Hello { .. }
            | FromImage::Survivor { .. }
            | FromImage::Ready
            | FromImage::Failed { .. }
    );
    Ok(Some((message, sender.filter(|_| matters))))
}

/// A text of the image without what a terminal would obey.
fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => printable.extend(c.escape_default()),
            false => printable.push(c),
        }
    }
    printable
}

/// Children of the calling thread.
fn continue_children() {
    let children = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    for pid in children.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()) {
        // Children that were not waited for keep their numbers. An error means that it has ended.
        let _ = process::kill(pid, libc::SIGCONT);
    }
}

/// Waits for the end of a child.
pub(crate) fn wait_for(child: &Process) -> io::Result<Exit> {
    let status = child.wait(true)?.map(ExitStatus::into_raw);
    status.and_then(Exit::from_wait_status).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        if self.exit.is_none() {
            // An error can be ignored: the child is no longer ours.
            let _ = wait_for(&self.process);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_which_process_a_message_is_of() {
        let (ours, theirs) = Channel::pair().unwrap();
        ours.tell_senders().unwrap();
        let own = std::process::id();
        // As signed numbers: this process's group, init, and every process.
        for pid in [0, 1, u32::MAX] {
            for (told, known) in [
                (FromImage::Hello { pid, asker: 7 }, FromImage::Hello { pid: own, asker: 7 }),
                (FromImage::Survivor { pid }, FromImage::Survivor { pid: own }),
            ] {
                theirs.send(&told.encode(), &[]).unwrap();
                let (message, sender) = said(&ours).unwrap().unwrap();
                assert_eq!(message, known);
                sender.expect("known").signal(0).unwrap();
            }
        }
        theirs.send(&FromImage::Ready.encode(), &[]).unwrap();
        let (message, sender) = said(&ours).unwrap().unwrap();
        assert_eq!((message, sender.map(|sender| sender.pid())), (FromImage::Ready, Some(own)));
        theirs.send(&FromImage::Surveyed { serial: 1 }.encode(), &[]).unwrap();
        assert!(said(&ours).unwrap().unwrap().1.is_none());
        drop(theirs);
        assert!(said(&ours).unwrap().is_none());
    }

    /// A child that runs this script.
    #[expect(clippy::zombie_processes, reason = "it is waited for by its handle")]
    fn script(text: &str) -> Arc<Process> {
        let child = Command::new("sh").args(["-c", text]).spawn().expect("a shell");
        Arc::new(Process::open(child.id()).expect("a process"))
    }

    fn program(first: Arc<Process>, heir: Arc<Process>) -> Child {
        Child {
            process: first,
            channel: None,
            mark: 0,
            knows_senders: false,
            exit: None,
            later: false,
            heir: Some(heir),
            heirs_end: None,
            is_outlived: false,
            over: None,
            row: None,
            is_mute: false,
        }
    }

    /// A program in the background is how `ix run` ends; a child that the program has ended is not.
    #[test]
    fn a_process_that_was_outlived_is_not_how_the_program_ends() {
        let killed = script("kill -9 $$");
        assert!(is_readable(&killed.as_fd(), Duration::from_secs(10)).unwrap());
        let mut child = program(script("exit 0"), killed);
        assert_eq!(child.wait().unwrap(), Exit::Status(0));
        let mut child = program(script("exit 0"), script("sleep 0.5; exit 7"));
        assert_eq!(child.wait().unwrap(), Exit::Status(7));
        let mut child = program(script("exit 3"), script("sleep 0.5; exit 7"));
        assert_eq!(child.wait().unwrap(), Exit::Status(3));
    }

    #[test]
    fn no_text_of_the_image_steers_a_terminal() {
        let (ours, theirs) = Channel::pair().unwrap();
        let (sent, shown) = ("\u{1b}[2Jno\nway\u{9b} µ", "\\u{1b}[2Jno\\nway\\u{9b} µ");
        let (sent, shown) = (sent.to_owned(), shown.to_owned());
        let outcome = |outcome| FromImage::Outcome { serial: 1, outcome };
        for of in [
            |why| FromImage::Failed { asker: 1, why },
            |why| FromImage::UpdateFailed { device: 0, serial: 0, why },
            |why| FromImage::Outcome { serial: 1, outcome: Outcome::Refused(why) },
            |why| FromImage::Outcome { serial: 1, outcome: Outcome::TimedOut(why) },
        ] {
            theirs.send(&of(sent.clone()).encode(), &[]).unwrap();
            assert_eq!(said(&ours).unwrap().unwrap().0, of(shown.clone()));
        }
        theirs.send(&outcome(Outcome::Done).encode(), &[]).unwrap();
        assert_eq!(said(&ours).unwrap().unwrap().0, outcome(Outcome::Done));
    }

    #[test]
    fn who_cannot_be_told_is_not_believed() {
        let (ours, theirs) = Channel::pair().unwrap();
        theirs.send(&FromImage::Hello { pid: 1, asker: 1 }.encode(), &[]).unwrap();
        assert_eq!(said(&ours).unwrap_err().raw_os_error(), Some(libc::EBADMSG));
    }
}
