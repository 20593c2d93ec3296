//! A dataplane in a process of its own, as its broker sees it: starts it, gives it what it begins
//! with, and gives the program what the two share.
use crate::attached::{ASKERS_MAX, Attached, Shared, refuse};
use crate::own_user::OwnUser;
use ix_entry::Channel;
use ix_launch::{Child, Conversation, DataplaneProcess, Exit, Image};
use ix_launch::{LaunchError, Occurrence, ServeError};
use ix_netdev::SharedMemory;
use ix_proto::crossing::{Attach, FaultNote, WrittenPages};
use ix_proto::{FromImage, Start};
use ix_sys::fd;
use ix_sys::process::Process;
use std::collections::VecDeque;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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
    /// When dataplanes died that their programs survived.
    deaths: VecDeque<Instant>,
    /// The processes of the program that share the dataplane.
    attached: Attached,
    /// Processes that have asked while the first one mapped what it shares.
    early: Vec<(Process, u64)>,
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

impl Apart {
    /// Of this image.
    pub fn new(image: Image, pins: bool) -> io::Result<Apart> {
        let (attached, early) = (Attached::default(), Vec::new());
        let (user, deaths) = (OwnUser::claim()?, VecDeque::new());
        Ok(Apart { image, user, pins, running: None, written: None, deaths, attached, early })
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
        // It ends now, whoever shares it.
        self.attached.clear();
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

    /// The processes of the program that share the dataplane.
    pub fn attached(&mut self) -> &mut Attached {
        &mut self.attached
    }

    /// The same, to look at.
    pub fn shared_by(&self) -> &Attached {
        &self.attached
    }

    /// Processes that have asked while the first one mapped what it shares.
    pub fn take_early(&mut self) -> Vec<(Process, u64)> {
        std::mem::take(&mut self.early)
    }

    /// Starts a dataplane for the process of the program that has asked for one. `first` are the
    /// descriptors before and `last` those behind what this function adds ([`Start`]).
    pub fn begin(
        &mut self,
        (child, asker): (&mut Child, u64),
        start: Start,
        memory: &SharedMemory,
        [first, last]: [&[BorrowedFd<'_>]; 2],
        attached: &mut dyn FnMut(usize, usize) -> Result<(), String>,
    ) -> Result<(), BeginError> {
        let program = child.heir().clone();
        let begun = self.begin_dataplane((&program, asker), start, memory, [first, last], attached);
        let told = match &begun {
            Ok((attach, shared)) => tell(child, *attach, memory, shared, self.user()),
            Err(why) => {
                refuse(child, asker, why.to_string());
                Ok(())
            }
        };
        let (_, shared) = begun?;
        told?;
        let arena = memory.fds.arena.try_clone()?;
        self.attached.leaves(child.heir().clone(), arena, shared.read);
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
                Occurrence::Said(FromImage::Hello { asker, .. }, Some(process))
                    if self.early.len() < ASKERS_MAX =>
                {
                    self.early.push((process, asker));
                }
                _ => {}
            }
        }
        Err(BeginError::Silent)
    }

    fn begin_dataplane(
        &mut self,
        (program, asker): (&Arc<Process>, u64),
        start: Start,
        memory: &SharedMemory,
        [first, last]: [&[BorrowedFd<'_>]; 2],
        attached: &mut dyn FnMut(usize, usize) -> Result<(), String>,
    ) -> Result<(Attach, Shared), BeginError> {
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
        let mut dataplane = DataplaneProcess::start(&self.image, self.user().map(|id| (id, id)))?;
        ix_launch::serve(&mut dataplane, start, &fds, attached)?;
        // The dataplane has mapped what it writes; nobody else will.
        fd::seal_writes(shared.read.as_fd())?;
        if !shares_frames {
            fd::seal_writes(memory.fds.rx.as_fd())?;
        }
        self.running = Some(dataplane);
        let rx = memory.fds.rx.try_clone()?;
        self.attached.begin(attach, program.clone(), joins, (rx, self.user()));
        Ok((attach, shared))
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
    shared.tell(child, attach, [memory.fds.rx.as_fd(), memory.fds.arena.as_fd()], owner)
}
