//! A dataplane in a process of its own, as its broker sees it: starts it, gives it what it begins
//! with, and gives the program what the two share.
use crate::own_user::OwnUser;
use ix_entry::Channel;
use ix_launch::{Child, Conversation, DataplaneProcess, Exit, Image};
use ix_launch::{LaunchError, Occurrence, ServeError};
use ix_netdev::SharedMemory;
use ix_proto::crossing::{Attach, FaultNote, LEGACY_AT, WrittenPages, read_bytes, written_bytes};
use ix_proto::{Codec, FromImage, Start, ToImage};
use ix_sys::process::Process;
use ix_sys::{fd, socket};
use std::collections::VecDeque;
use std::fs::{File, Permissions};
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, fchown};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is needed to start a dataplane, and the one that runs.
pub struct Apart {
    image: Image,
    /// Whom dataplanes run as; `None`: the broker's own user.
    user: Option<OwnUser>,
    /// Program and dataplane share hardware threads.
    pins: bool,
    running: Option<DataplaneProcess>,
    /// The pages that the program writes.
    written: Option<OwnedFd>,
    /// Of the last dataplane, for the next one of the same process.
    left: Option<Left>,
    /// When dataplanes died that their programs survived.
    deaths: VecDeque<Instant>,
}

/// What a dataplane leaves to the next one of its program.
struct Left {
    program: Arc<Process>,
    /// The program's transmit memory.
    arena: OwnedFd,
    /// The pages that the program only reads.
    read: OwnedFd,
}

/// What the next dataplane of a program begins with.
pub struct Legacy {
    /// The program's transmit memory, which stays mapped there.
    pub arena: OwnedFd,
    /// So much of it may belong to the program, bytes from its beginning.
    pub given_bytes: u64,
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
    /// The program does not map what it has asked for.
    #[error(
        "the program has asked for a dataplane and has not mapped it within {} s: one of its \
         processes was stopped, or asked without the image",
        MAPPING.as_secs()
    )]
    Silent,
}

/// A dataplane is started in place of one that has died, so often within this time.
const DEATHS: usize = 5;
const DEATHS_WITHIN: Duration = Duration::from_secs(60);

/// How long a program may take to map what it shares with its dataplane. Nothing else of its run
/// is served meanwhile.
const MAPPING: Duration = Duration::from_secs(10);

/// What program and dataplane share, beside packet memory. The dataplane's end of a bell comes
/// first.
struct Shared {
    written: OwnedFd,
    read: OwnedFd,
    bells: Vec<(OwnedFd, OwnedFd)>,
}

impl Apart {
    /// Of this image.
    pub fn new(image: Image, pins: bool) -> io::Result<Apart> {
        let user = OwnUser::claim()?;
        let deaths = VecDeque::new();
        Ok(Apart { image, user, pins, running: None, written: None, left: None, deaths })
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

    /// The process of the dataplane that runs.
    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(DataplaneProcess::pid)
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
        self.running.take().map(|mut dataplane| dataplane.wait()).transpose()
    }

    /// A dataplane has died that its program survives: no other one may follow if that has happened
    /// too often.
    pub fn has_died(&mut self) {
        let now = Instant::now();
        self.deaths.push_back(now);
        self.deaths.retain(|at| now.duration_since(*at) < DEATHS_WITHIN);
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

    /// What the last dataplane has left to the next one of this process; `None` if it was that of
    /// another one.
    pub fn legacy(&mut self, program: &Process) -> io::Result<Option<Legacy>> {
        // A number is that of the same process as long as that has not ended.
        let is_same = |left: &mut Left| left.program.pid() == program.pid();
        let Some(left) = self.left.take_if(is_same).filter(|left| !left.program.has_ended()) else {
            return Ok(None);
        };
        let Left { arena, read, .. } = left;
        let mut bytes = [0; 8];
        fd::read_at(read.as_fd(), &mut bytes, LEGACY_AT as i64)?;
        Ok(Some(Legacy { arena, given_bytes: u64::from_ne_bytes(bytes) }))
    }

    /// Where the program has faulted that this signal has ended: address and instruction.
    pub fn fault(&self, signal: i32) -> Option<(u64, u64)> {
        let mut words = [0; size_of::<FaultNote>()];
        let at = offset_of!(WrittenPages, fault) as i64;
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

    /// Starts a dataplane for the process of the program that has asked for one. `first` are the
    /// descriptors before and `last` those behind what this function adds ([`Start`]).
    pub fn begin(
        &mut self,
        child: &mut Child,
        start: Start,
        memory: &SharedMemory,
        [first, last]: [&[BorrowedFd<'_>]; 2],
        attached: &mut dyn FnMut(usize, usize) -> Result<(), String>,
    ) -> Result<(), BeginError> {
        let begun =
            self.begin_dataplane(&child.heir().clone(), start, memory, [first, last], attached);
        let told = match &begun {
            Ok((attach, shared)) => tell(child, *attach, memory, shared, self.user()),
            Err(why) => {
                refuse(child, why.to_string());
                Ok(())
            }
        };
        let (_, shared) = begun?;
        told?;
        self.left = Some(Left {
            program: child.heir().clone(),
            arena: memory.fds.arena.try_clone()?,
            read: shared.read,
        });
        self.written = Some(shared.written);
        let end = Instant::now() + MAPPING;
        while let left_ms @ 1.. = end.saturating_duration_since(Instant::now()).as_millis() as i32 {
            let program = child.heir().clone();
            match child.next(&[program.as_fd()], left_ms)? {
                Occurrence::Said(FromImage::Ready, _) => return Ok(()),
                // It has ended, and another process of the program may ask. The dataplane ends.
                Occurrence::Readable(_) => return Ok(()),
                Occurrence::Said(FromImage::Failed(why), _) => {
                    self.running = None;
                    child.refused()?;
                    return Err(ServeError::Refused(why).into());
                }
                // The program has ended, which whoever waits for it hears next.
                Occurrence::Exited(_) => return Ok(()),
                Occurrence::Left => return Err(ServeError::Protocol.into()),
                // Another process of the program asks in vain.
                _ => {}
            }
        }
        Err(BeginError::Silent)
    }

    fn begin_dataplane(
        &mut self,
        program: &Process,
        start: Start,
        memory: &SharedMemory,
        [first, last]: [&[BorrowedFd<'_>]; 2],
        attached: &mut dyn FnMut(usize, usize) -> Result<(), String>,
    ) -> Result<(Attach, Shared), BeginError> {
        let threads = start.config.cpus.len();
        let bytes = memory.sizes.areas().map(|bytes| bytes as u64);
        let attach = Attach { threads, packet_bytes: bytes, pins: self.pins };
        let shared = Shared {
            written: fd::fixed_memfd(c"ix-calls", written_bytes(threads), true)?,
            read: fd::fixed_memfd(c"ix-events", read_bytes(threads), true)?,
            bells: (0..threads)
                .map(|_| {
                    let (ours, theirs) = socket::pair(libc::SOCK_STREAM)?;
                    socket::refuse_descriptors(ours.as_fd())?;
                    Ok((ours, theirs))
                })
                .collect::<io::Result<_>>()?,
        };
        let mut fds = first.to_vec();
        fds.extend(memory.fds.as_fds());
        fds.extend([&shared.written, &shared.read].map(AsFd::as_fd));
        fds.push(program.as_fd());
        fds.extend(shared.bells.iter().map(|(ours, _)| ours.as_fd()));
        fds.extend(last);
        let shares_frames = start.devices.iter().any(|device| device.shared_frames);
        let mut dataplane = DataplaneProcess::start(&self.image, self.user().map(|id| (id, id)))?;
        ix_launch::serve(&mut dataplane, start, &fds, attached)?;
        // The dataplane has mapped what it writes; nobody else will.
        fd::seal_writes(shared.read.as_fd())?;
        if !shares_frames {
            fd::seal_writes(memory.fds.rx.as_fd())?;
        }
        self.running = Some(dataplane);
        Ok((attach, shared))
    }
}

/// Tells the process of the program that has asked for a dataplane why it gets none. Does not wait:
/// a program that asks without end may never read.
pub fn refuse(child: &Child, why: String) {
    if let Some(channel) = child.channel() {
        let _ = channel.try_send(&ToImage::Refused(why).encode(), &[]);
    }
}

/// Tells the program's process what it shares with the dataplane.
fn tell(
    child: &Child,
    attach: Attach,
    memory: &SharedMemory,
    shared: &Shared,
    owner: Option<u32>,
) -> io::Result<()> {
    let Some(channel) = child.channel() else { return Ok(()) };
    let rx = read_only(memory.fds.rx.as_fd(), owner)?;
    let read = read_only(shared.read.as_fd(), owner)?;
    let mut fds = vec![rx.as_fd(), memory.fds.arena.as_fd(), shared.written.as_fd(), read.as_fd()];
    fds.extend(shared.bells.iter().map(|(_, theirs)| theirs.as_fd()));
    channel.try_send(&ToImage::Attach(attach).encode(), &fds)
}

/// Another descriptor of this memory, which cannot write. Its mode forbids everybody to open it
/// anew (`ix_sys::fd::hide_memory`), so it is another one for a moment. Root of a user namespace is
/// bound by modes only where the file belongs to a user that the namespace lacks: `owner`.
fn read_only(fd: BorrowedFd<'_>, owner: Option<u32>) -> io::Result<OwnedFd> {
    if let Some(owner) = owner {
        fchown(fd, Some(owner), Some(owner))?;
    }
    let memory = File::from(fd.try_clone_to_owned()?);
    memory.set_permissions(Permissions::from_mode(0o400))?;
    let copy = File::open(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    memory.set_permissions(Permissions::from_mode(0o000))?;
    copy.map(OwnedFd::from)
}
