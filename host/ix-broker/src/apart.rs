//! A dataplane in a process of its own, as its broker sees it: starts it, gives it what it begins
//! with, and gives the program what the two share.
use crate::attached::{Attached, Shared};
use crate::clients::{Clients, Waited};
use crate::own_user::OwnUser;
use ix_entry::Channel;
use ix_launch::{Child, Conversation, DataplaneProcess, Exit, Image, LaunchError, ServeError};
use ix_netdev::SharedMemory;
use ix_proto::control::{MemoryUse, Sharing};
use ix_proto::crossing::{Attach, FaultNote, WrittenPages};
use ix_proto::{FromImage, Start};
use ix_sys::fd;
use ix_sys::poll::is_readable;
use ix_sys::process::Process;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is needed to start a dataplane, and the one that runs.
pub struct Apart {
    image: Image,
    /// Whom dataplanes run as; `None`: the broker's own user.
    user: Option<OwnUser>,
    /// Program and dataplane share hardware threads.
    pins: bool,
    /// Control groups that dataplanes join, by their `cgroup.procs`.
    groups: Vec<Arc<File>>,
    running: Option<DataplaneProcess>,
    /// The pages that the program writes.
    written: Option<OwnedFd>,
    /// When dataplanes died that their programs survived.
    deaths: VecDeque<Instant>,
    /// Number of all of them.
    died: u64,
    /// The processes of the program that share the dataplane.
    attached: Attached,
    /// The process that was told what it shares with the dataplane and has not mapped it yet, and
    /// what its hello said.
    mapping: Option<(u32, u64)>,
    /// The process that is to be told it.
    untold: Option<Untold>,
    /// Packet memory of the dataplane that runs.
    memory: Option<SharedMemory>,
}

/// What a process is told as soon as there is room in the channel.
struct Untold {
    process: Arc<Process>,
    begun: Begun,
    /// Receive and transmit memory.
    packet_memory: [OwnedFd; 2],
    until: Instant,
}

/// A dataplane that has begun, of which its program was not told yet.
#[must_use]
pub struct Begun {
    attach: Attach,
    shared: Shared,
}

/// Why a dataplane in a process of its own could not begin.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// Its process could not be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// It could not begin, or the program could not map what it shares.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A system call failed.
    #[error("cannot share memory with the program: {0}")]
    System(#[from] io::Error),
    /// It takes too long.
    #[error("the dataplane did not start within {} s", STARTING.as_secs())]
    Late,
    /// The process that it was for, or the program, has ended meanwhile.
    #[error("the process that asked for the dataplane has ended")]
    Unneeded,
}

impl BeginError {
    /// Whether another dataplane may begin in its place.
    fn is_of_this_one(&self) -> bool {
        matches!(self, BeginError::Serve(ServeError::Died(_)) | BeginError::Late)
    }
}

/// A dataplane is started in place of one that has died, so often within this time.
const DEATHS: usize = 5;
const DEATHS_WITHIN: Duration = Duration::from_secs(60);

/// How long a dataplane may take to start. A program that has asked for one waits for 30 s.
pub const STARTING: Duration = Duration::from_secs(10);

/// How long a process that has asked may leave what others were told in the channel.
const TELLING: Duration = Duration::from_secs(5);

/// A process that has closed its channel because it ends has ended after this time.
const ENDED: Duration = Duration::from_millis(500);

impl Apart {
    /// Of this image.
    pub fn new(image: Image, pins: bool, groups: Vec<Arc<File>>) -> io::Result<Apart> {
        let (user, deaths) = (OwnUser::claim()?, VecDeque::new());
        Ok(Apart {
            image,
            user,
            pins,
            groups,
            running: None,
            written: None,
            deaths,
            died: 0,
            attached: Attached::default(),
            mapping: None,
            untold: None,
            memory: None,
        })
    }

    /// Whom dataplanes run as; `None`: the broker's own user.
    pub fn user(&self) -> Option<u32> {
        self.user.as_ref().map(OwnUser::id)
    }

    /// The channel to the dataplane that runs.
    pub fn channel(&self) -> Option<&Channel> {
        self.running.as_ref().map(DataplaneProcess::channel)
    }

    /// Readable when the dataplane has said something or has ended.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.channel().map(AsFd::as_fd)
    }

    /// Whether a dataplane runs that a process of the program has.
    pub fn is_shared(&self) -> bool {
        self.running.is_some() && self.attached.living().next().is_some()
    }

    /// The process of the dataplane that runs.
    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(DataplaneProcess::pid)
    }

    /// Makes the dataplane go on if somebody has stopped it, because it is to end; readable when it
    /// has.
    pub fn ending(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(DataplaneProcess::ending)
    }

    /// What the dataplane has said; `Err` with how it ended, if it has.
    pub fn hear(&mut self) -> io::Result<Result<FromImage, Option<Exit>>> {
        let Some(dataplane) = &mut self.running else { return Ok(Err(None)) };
        if let Some(message) = dataplane.next()? {
            return Ok(Ok(message));
        }
        self.end().map(Err)
    }

    /// Waits until the dataplane of a program that has ended has closed the program's connections.
    pub fn end(&mut self) -> io::Result<Option<Exit>> {
        self.attached.let_go();
        let exit = self.running.take().map(|mut dataplane| dataplane.wait()).transpose();
        if matches!(exit, Ok(Some(Exit::Status(0)))) {
            self.attached.all_parted();
        }
        self.attached.clear();
        (self.mapping, self.untold, self.memory) = (None, None, None);
        exit
    }

    /// A dataplane has died that its program survives: no other one may follow if that has happened
    /// too often.
    pub fn has_died(&mut self) {
        let now = Instant::now();
        self.died += 1;
        self.deaths.push_back(now);
        self.deaths.retain(|at| now.duration_since(*at) < DEATHS_WITHIN);
    }

    /// Who shares the dataplane, and how often one has died.
    pub fn sharing(&self) -> Sharing {
        let (processes, refused) = self.attached.sharers();
        Sharing { processes, refused, died: self.died, memory: self.memory_use() }
    }

    fn memory_use(&self) -> MemoryUse {
        let (Some(dataplane), Some(memory)) = (&self.running, &self.memory) else {
            return MemoryUse::default();
        };
        let bytes = |fd: &OwnedFd| {
            let file = fd.try_clone().map(File::from);
            file.and_then(|file| file.metadata()).map_or(0, |data| data.blocks() * 512)
        };
        MemoryUse {
            receive_bytes: bytes(&memory.fds.rx),
            build_bytes: bytes(&memory.fds.tx),
            transmit_bytes: bytes(&memory.fds.arena),
            own_bytes: own_bytes(dataplane.pid()),
        }
    }

    /// Why no other dataplane is started, if it is so.
    pub fn gives_up(&self) -> Option<String> {
        let died = self.deaths.len();
        let seconds = DEATHS_WITHIN.as_secs();
        (died > DEATHS).then(|| {
            format!(
                "its dataplane has died {died} times within {seconds} s and is not started again; \
                 the lines above say how it died"
            )
        })
    }

    /// Where the program has faulted that this signal has ended: address and instruction.
    pub fn fault(&self, signal: i32) -> Option<(u64, u64)> {
        let mut words = [0; size_of::<FaultNote>()];
        let at = offset_of!(WrittenPages, fault) as u64;
        let read = fd::read_at(self.written.as_ref()?.as_fd(), &mut words, at).ok()?;
        let word = |offset: usize| {
            let bytes = words[..read].get(offset..offset + 8)?.try_into().ok()?;
            Some(u64::from_ne_bytes(bytes))
        };
        let is_it = word(offset_of!(FaultNote, signal))? == signal as u64;
        let both =
            (word(offset_of!(FaultNote, address))?, word(offset_of!(FaultNote, instruction))?);
        is_it.then_some(both)
    }

    /// The processes of the program that share the dataplane.
    pub fn attached(&mut self) -> &mut Attached {
        &mut self.attached
    }

    /// The same, to look at.
    pub fn shared_by(&self) -> &Attached {
        &self.attached
    }

    /// Starts a dataplane for the process of the program that has asked for one. `first` are the
    /// descriptors before and `last` those behind what this function adds ([`Start`]). Clients are
    /// served meanwhile. If it dies ([`BeginError::Late`], [`ServeError::Died`]), the program is
    /// not told, and another one may be started.
    pub fn begin(
        &mut self,
        (child, asker): (&Child, u64),
        start: Start,
        memory: &SharedMemory,
        [first, last]: [&[BorrowedFd<'_>]; 2],
        (attached, clients): (&mut AttachedQueue<'_>, &mut Clients<'_>),
    ) -> Result<Begun, BeginError> {
        let asks = (child.heir(), asker);
        let begun = self.begin_dataplane(asks, start, memory, [first, last], (attached, clients));
        match &begun {
            // It may get another one.
            Err(why) if why.is_of_this_one() => {}
            Err(BeginError::Unneeded) => {}
            Err(why) => self.attached.refuse(child, asker, why.to_string()),
            Ok(_) => {}
        }
        begun
    }

    /// Tells the program's process what it shares with the dataplane that has begun, now or in
    /// [`Apart::tell_again`]. The broker does not wait until the process has mapped it.
    pub fn tell(&mut self, child: &Child, memory: &SharedMemory, begun: Begun) -> io::Result<()> {
        let packet_memory = [memory.fds.rx.try_clone()?, memory.fds.arena.try_clone()?];
        let (process, until) = (child.heir().clone(), Instant::now() + TELLING);
        self.untold = Some(Untold { process, begun, packet_memory, until });
        self.tell_again(child)
    }

    /// Whether the process is still to be told.
    pub fn is_untold(&self) -> bool {
        self.untold.is_some()
    }

    /// Tells it again what there was no room for. `WouldBlock`: for too long.
    pub fn tell_again(&mut self, child: &Child) -> io::Result<()> {
        let Some(untold) = self.untold.take() else { return Ok(()) };
        let (Begun { attach, shared }, memory) = (&untold.begun, untold.packet_memory.each_ref());
        match shared.tell(child, *attach, memory.map(AsFd::as_fd), self.user()) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < untold.until => {
                self.untold = Some(untold);
                return Ok(());
            }
            told => told?,
        }
        let Untold { process, begun: Begun { attach, shared }, packet_memory: [_, arena], .. } =
            untold;
        self.mapping = Some((process.pid(), attach.asker));
        self.attached.leaves((0, process), arena, shared.read);
        self.written = Some(shared.written);
        Ok(())
    }

    /// Whether this process, which asked with this hello, was told what it shares with the
    /// dataplane and has not mapped it yet.
    pub fn is_mapping(&self, process: u32, asker: u64) -> bool {
        self.mapping == Some((process, asker))
    }

    /// This process has mapped what it was told of, or cannot.
    pub fn has_mapped(&mut self, process: u32) {
        self.mapping.take_if(|(mapping, _)| *mapping == process);
    }

    /// Whether another process than this one shares the dataplane.
    pub fn is_shared_beside(&self, process: u32) -> bool {
        self.attached.living().any(|other| other.pid() != process)
    }

    /// Ends the dataplane at once.
    pub fn give_up(&mut self) {
        self.attached.clear();
        self.running = None;
        (self.mapping, self.untold, self.memory) = (None, None, None);
    }

    fn begin_dataplane(
        &mut self,
        (program, asker): (&Arc<Process>, u64),
        start: Start,
        memory: &SharedMemory,
        [first, last]: [&[BorrowedFd<'_>]; 2],
        (attached, clients): (&mut AttachedQueue<'_>, &mut Clients<'_>),
    ) -> Result<Begun, BeginError> {
        let threads = start.config.cpus.len();
        let bytes = memory.sizes.areas().map(|bytes| bytes as u64);
        let pins = self.pins;
        let attach = Attach { asker, number: 0, threads, packet_bytes: bytes, pins };
        let (joins, theirs) = Channel::pair()?;
        let shared = Shared::new(threads)?;
        let mut fds = first.to_vec();
        fds.extend(memory.fds.as_fds());
        fds.extend([&shared.written, &shared.read].map(AsFd::as_fd));
        fds.extend([program.as_fd(), theirs.as_fd()]);
        fds.extend(shared.bells.iter().map(|(ours, _)| ours.as_fd()));
        fds.extend(last);
        let shares_frames = start.devices.iter().any(|device| device.shared_frames);
        let user = self.user().map(|id| (id, id));
        let process = DataplaneProcess::start(&self.image, user, &self.groups)?;
        let until = Instant::now() + STARTING;
        let mut starting = Starting { process, clients, until, waited: Waited::Ready };
        let served = ix_launch::serve(&mut starting, start, &fds, attached);
        let Starting { process: mut dataplane, waited, .. } = starting;
        match (served, waited) {
            (Ok(()), _) => {}
            (_, Waited::Late) => return Err(BeginError::Late),
            (_, Waited::Unneeded) => return Err(BeginError::Unneeded),
            // It has ended before it could read.
            (Err(ServeError::System(_)), _) if is_readable(&dataplane.ending(), ENDED)? => {
                return Err(ServeError::Died(dataplane.wait()?).into());
            }
            (Err(why), _) => return Err(why.into()),
        }
        // The dataplane has mapped what it writes; nobody else will.
        fd::seal_writes(shared.read.as_fd())?;
        if !shares_frames {
            fd::seal_writes(memory.fds.rx.as_fd())?;
        }
        self.running = Some(dataplane);
        self.memory = Some(memory.clone());
        let rx = memory.fds.rx.try_clone()?;
        self.attached.begin(attach, program.clone(), joins, (rx, self.user()));
        Ok(Begun { attach, shared })
    }
}

/// What a process has in memory that it shares with no other one, bytes.
fn own_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kb = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0u64)
    };
    (kb("RssAnon:") + kb("RssFile:")) << 10
}

/// Called after each queue of a device that a dataplane attaches ([`ix_launch::equip`]).
pub type AttachedQueue<'a> = dyn FnMut(usize, usize) -> Result<(), String> + 'a;

/// A dataplane that starts, while clients are served.
struct Starting<'a, 'b> {
    process: DataplaneProcess,
    clients: &'a mut Clients<'b>,
    until: Instant,
    /// How the last wait has ended.
    waited: Waited,
}

impl Conversation for Starting<'_, '_> {
    fn channel(&self) -> Option<&Channel> {
        Some(self.process.channel())
    }

    fn next_message(&mut self) -> Result<FromImage, ServeError> {
        self.waited = self.clients.until(Some(self.process.channel().as_fd()), self.until)?;
        match self.waited {
            Waited::Ready => self.process.next_message(),
            // What it means is said by `waited`.
            Waited::Late | Waited::Unneeded => Err(ServeError::Protocol),
        }
    }

    fn refused(&mut self) -> Result<(), ServeError> {
        self.process.refused()
    }
}
