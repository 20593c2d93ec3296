//! The processes of a program that share its dataplane, as the broker sees them: who asks gets
//! memory of its own, first in the dataplane and then in its own process. Nothing here waits.
use crate::kin;
use ix_entry::Channel;
use ix_launch::Child;
use ix_proto::control::Sharer;
use ix_proto::crossing::{ATTACHMENTS_MAX, Attach, LEGACY_AT, read_bytes, written_bytes};
use ix_proto::{Codec, FromImage, ToImage};
use ix_sys::process::Process;
use ix_sys::{fd, socket};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, fchown};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most processes that may wait for a dataplane at a time.
pub const ASKERS_MAX: usize = 256;

/// What one process of a program and the dataplane share, beside packet memory. The dataplane's end
/// of a bell comes first.
pub struct Shared {
    /// What the process writes.
    pub written: OwnedFd,
    /// What it only reads.
    pub read: OwnedFd,
    /// One for each elastic thread.
    pub bells: Vec<(OwnedFd, OwnedFd)>,
}

impl Shared {
    /// For so many elastic threads.
    pub fn new(threads: usize) -> io::Result<Shared> {
        Ok(Shared {
            written: fd::fixed_memfd(c"ix-calls", written_bytes(threads), true)?,
            read: fd::fixed_memfd(c"ix-events", read_bytes(threads), true)?,
            bells: (0..threads)
                .map(|_| {
                    let (ours, theirs) = socket::pair(libc::SOCK_STREAM)?;
                    socket::refuse_descriptors(ours.as_fd())?;
                    Ok((ours, theirs))
                })
                .collect::<io::Result<_>>()?,
        })
    }

    /// Tells the process what it shares with the dataplane. Does not wait for room in the channel.
    pub fn tell(
        &self,
        child: &Child,
        attach: Attach,
        [rx, arena]: [BorrowedFd<'_>; 2],
        owner: Option<u32>,
    ) -> io::Result<()> {
        let [rx, read] = self.read_only(rx, owner)?;
        self.tell_with(child, attach, [rx.as_fd(), arena, read.as_fd()])
    }

    /// Receive memory, and the pages that the process only reads, for its eyes.
    fn read_only(&self, rx: BorrowedFd<'_>, owner: Option<u32>) -> io::Result<[OwnedFd; 2]> {
        Ok([read_only(rx, owner)?, read_only(self.read.as_fd(), owner)?])
    }

    fn tell_with(
        &self,
        child: &Child,
        attach: Attach,
        [rx, arena, read]: [BorrowedFd<'_>; 3],
    ) -> io::Result<()> {
        let Some(channel) = child.channel() else { return Ok(()) };
        let mut fds = vec![rx, arena, self.written.as_fd(), read];
        fds.extend(self.bells.iter().map(|(_, theirs)| theirs.as_fd()));
        channel.try_send(&ToImage::Attach(attach).encode(), &fds)
    }
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

/// All processes that share the dataplane.
#[derive(Default)]
pub struct Attached {
    /// Those of which something is left in the dataplane, by their numbers.
    processes: BTreeMap<usize, Arc<Process>>,
    /// What each executed when it attached.
    executed: BTreeMap<usize, Executed>,
    to_dataplane: Option<ToDataplane>,
    /// The one that the dataplane was told of and has not mapped yet.
    joining: Option<Joining>,
    /// Of the dataplane that runs or was the last one, for the next one of the same processes.
    left: Vec<Left>,
    /// Number of processes that were refused.
    refused: u64,
    /// What the next processes that ask get at once.
    prepared: Vec<Prepared>,
    /// Numbers of what was prepared and given back, or could not be told of to its process, until
    /// the dataplane has let go of them.
    given_back: BTreeSet<usize>,
    /// How many should be prepared: as many as have attached one soon after the other.
    wanted: usize,
    last_join: Option<Instant>,
}

/// Attachments that are prepared.
const PREPARED: usize = 4;
/// So many numbers stay free.
const NUMBERS_LEFT: usize = 8;
/// A process that attaches within this time after another one is followed by more.
const SOON: Duration = Duration::from_secs(1);
/// What is prepared is given back when no process has attached for so long.
const KEPT: Duration = Duration::from_secs(3);

/// An attachment that the dataplane has mapped for a process that has not asked yet: programs that
/// fork for each connection would wait for the dataplane each time.
struct Prepared {
    number: usize,
    shared: Shared,
    arena: OwnedFd,
    /// Receive memory and the pages that the process only reads, open for reading.
    read_only: [OwnedFd; 2],
}

/// By what a program that a process has executed differs from the one before: where Linux has put
/// its stack and its code (proc_pid_stat(5)). Both are the same again where Linux does not choose
/// them by chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Executed([u64; 2]);

impl Executed {
    /// `None`: it has ended, or Linux does not say it.
    fn of(process: &Process) -> Option<Executed> {
        let [code, stack] = kin::field(process.pid(), [26, 28])?;
        // Who may not trace it reads 1 or 0.
        (code > 1 && stack > 1 && !process.has_ended()).then_some(Executed([code, stack]))
    }
}

/// Most processes that a dataplane leaves something to: those that share it, and as many that
/// shared the one before and have not asked again yet.
const LEFT_MAX: usize = 2 * ATTACHMENTS_MAX;

/// What a dataplane leaves to the next one of a process.
struct Left {
    /// The process's number in the dataplane.
    number: usize,
    process: Arc<Process>,
    /// The process's transmit memory.
    arena: OwnedFd,
    /// The pages that it only reads.
    read: OwnedFd,
}

/// What the next dataplane of a process begins with.
pub struct Legacy {
    /// The process's transmit memory, which stays mapped there.
    pub arena: OwnedFd,
    /// So much of it may belong to the process, bytes from its beginning.
    pub given_bytes: u64,
}

/// What a dataplane needs to hear of another process.
struct ToDataplane {
    joins: Channel,
    /// What the first process was told.
    first: Attach,
    /// Receive memory.
    rx: OwnedFd,
    /// Whose memory becomes that the program only reads.
    owner: Option<u32>,
}

struct Joining {
    number: usize,
    /// Who has asked, and its process; `None`: it is prepared for one that will.
    asked: Option<(u64, Arc<Process>)>,
    shared: Shared,
    arena: OwnedFd,
}

impl Attached {
    /// A dataplane begins, which was made for this process.
    pub fn begin(
        &mut self,
        first: Attach,
        process: Arc<Process>,
        joins: Channel,
        (rx, owner): (OwnedFd, Option<u32>),
    ) {
        self.executed = Executed::of(&process).map(|what| (0, what)).into_iter().collect();
        self.processes = BTreeMap::from([(0, process)]);
        self.to_dataplane = Some(ToDataplane { joins, first, rx, owner });
    }

    /// If the dataplane ends before this process, which has this number, the next one continues
    /// with this memory.
    pub fn leaves(
        &mut self,
        (number, process): (usize, Arc<Process>),
        arena: OwnedFd,
        read: OwnedFd,
    ) {
        let is_other = |left: &Left| left.process.pid() != process.pid();
        self.left.retain(|left| !left.process.has_ended() && is_other(left));
        if self.left.len() >= LEFT_MAX {
            // The one that has waited for longest.
            self.left.remove(0);
        }
        self.left.push(Left { number, process, arena, read });
    }

    /// Nothing of this process is left in the dataplane, which it has let go of: it needs nothing
    /// of it any more, however long it lives.
    fn part(&mut self, number: usize) {
        let Some(process) = self.processes.remove(&number) else { return };
        let is_its = |left: &Left| left.number == number && left.process.pid() == process.pid();
        self.left.retain(|left| !is_its(left));
    }

    /// The dataplane has ended because each of its processes has let go of it.
    pub fn all_parted(&mut self) {
        // This one has not attached.
        let joining = self.joining.as_ref().map(|joining| joining.number);
        let numbers: Vec<usize> = self.processes.keys().copied().collect();
        let parted = numbers.into_iter().filter(|number| Some(*number) != joining);
        parted.for_each(|number| self.part(number));
    }

    /// Ends the dataplane, also if others share it.
    pub fn let_go(&mut self) {
        self.to_dataplane = None;
    }

    /// What the last dataplane has left to the next one of this process; `None` if it had none.
    pub fn legacy(&mut self, process: &Process) -> io::Result<Option<Legacy>> {
        // A number is that of the same process as long as that has not ended.
        self.left.retain(|left| !left.process.has_ended());
        let is_same = |left: &Left| left.process.pid() == process.pid();
        let Some(left) = self.left.iter().find(|left| is_same(left)) else { return Ok(None) };
        let mut bytes = [0; 8];
        fd::read_at(left.read.as_fd(), &mut bytes, LEGACY_AT as u64)?;
        // It stays here until the process has another dataplane.
        let arena = left.arena.try_clone()?;
        Ok(Some(Legacy { arena, given_bytes: u64::from_ne_bytes(bytes) }))
    }

    /// Tells the dataplane which processes have executed another program since they attached. It
    /// hears that by itself as soon as their bells are closed, but a child may still have copies of
    /// these. To be called from time to time.
    pub fn look_for_executed(&mut self) {
        let Some(to) = &self.to_dataplane else { return };
        for (number, process) in &self.processes {
            if self.has_executed(*number, process) && !process.has_ended() {
                // Without room it is told the next time. To be told twice harms nobody: the number
                // is nobody else's before the dataplane has said that it is free.
                let message = ToImage::Executed { number: *number };
                let _ = to.joins.try_send(&message.encode(), &[]);
            }
        }
    }

    /// Whether this process has executed another program since it got this number; `false` also
    /// where that cannot be known.
    fn has_executed(&self, number: usize, process: &Process) -> bool {
        let was = self.executed.get(&number);
        was.zip(Executed::of(process)).is_some_and(|(was, is)| *was != is)
    }

    /// The processes that have not ended.
    pub fn living(&self) -> impl Iterator<Item = &Arc<Process>> {
        self.processes.values().filter(|process| !process.has_ended())
    }

    /// Those that have not ended, with their numbers, and how many were refused.
    pub fn sharers(&self) -> (Vec<Sharer>, u64) {
        let living = self.processes.iter().filter(|(_, process)| !process.has_ended());
        let sharer = |(number, process): (&usize, &Arc<Process>)| Sharer {
            number: *number as u32,
            pid: process.pid(),
        };
        (living.map(sharer).collect(), self.refused)
    }

    /// As [`refuse`], and counts it.
    pub fn refuse(&mut self, child: &Child, asker: u64, why: String) {
        self.refused += 1;
        refuse(child, asker, why);
    }

    /// Readable when the dataplane has said something about a process.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.to_dataplane.as_ref().map(|to| to.joins.as_fd())
    }

    /// Whether another process can begin to attach now. A dataplane that has ended is heard of in a
    /// moment.
    pub fn may_join(&self) -> bool {
        let is_there = |to: &ToDataplane| !to.joins.is_closed();
        let has_dataplane = self.to_dataplane.as_ref().is_some_and(is_there);
        let can_begin = self.joining.is_none() && self.free_number().is_some();
        has_dataplane && (can_begin || !self.prepared.is_empty())
    }

    /// Whether one was told of to the dataplane, which has not mapped it yet.
    pub fn is_joining(&self) -> bool {
        self.joining.is_some()
    }

    /// Whether this process has a number already, and has not executed another program since.
    pub fn has(&self, process: &Process) -> bool {
        let mut its = self.processes.range(1..).filter(|(_, other)| other.pid() == process.pid());
        its.any(|(number, _)| !self.has_executed(*number, process))
    }

    /// What the program left that this process executed before is not for the one that it executes
    /// now: the dataplane may still send from it.
    fn forget_executed(&mut self, process: &Process) {
        let its = self.processes.iter().filter(|(_, other)| other.pid() == process.pid());
        let before = its.filter(|(number, _)| self.has_executed(**number, process));
        let before: Vec<usize> = before.map(|(number, _)| *number).collect();
        let is_its = |left: &Left| left.process.pid() == process.pid();
        self.left.retain(|left| !(is_its(left) && before.contains(&left.number)));
    }

    /// Numbers are given out from 1 on: that of the first process is nobody else's.
    fn free_number(&self) -> Option<usize> {
        (1..ATTACHMENTS_MAX).find(|number| self.is_free(*number))
    }

    fn is_free(&self, number: usize) -> bool {
        !self.processes.contains_key(&number)
            && !self.prepared.iter().any(|prepared| prepared.number == number)
            && !self.given_back.contains(&number)
    }

    /// Makes memory for a process that has asked, and tells the dataplane; or gives it what was
    /// prepared.
    pub fn join(&mut self, child: &Child, process: Arc<Process>, asker: u64) -> io::Result<()> {
        let follows = self.last_join.is_some_and(|last| last.elapsed() < SOON);
        self.wanted = if follows { PREPARED } else { 0 };
        self.last_join = Some(Instant::now());
        self.forget_executed(&process);
        let legacy = self.legacy(&process)?;
        if legacy.is_none()
            && let Some(prepared) = self.take_prepared(&process)?
        {
            self.give_prepared(child, prepared, process, asker);
            return Ok(());
        }
        let full = || io::Error::from_raw_os_error(libc::EAGAIN);
        let number = self.free_number().filter(|_| self.joining.is_none()).ok_or_else(full)?;
        self.begin_to_join(number, legacy, Some((asker, process.clone())))?;
        self.attaches(number, process);
        Ok(())
    }

    fn attaches(&mut self, number: usize, process: Arc<Process>) {
        match Executed::of(&process) {
            Some(what) => self.executed.insert(number, what),
            None => self.executed.remove(&number),
        };
        self.processes.insert(number, process);
    }

    /// Makes memory for an attachment, and tells the dataplane.
    fn begin_to_join(
        &mut self,
        number: usize,
        legacy: Option<Legacy>,
        asked: Option<(u64, Arc<Process>)>,
    ) -> io::Result<()> {
        let full = || io::Error::from_raw_os_error(libc::EAGAIN);
        let to = self.to_dataplane.as_ref().ok_or_else(full)?;
        let shared = Shared::new(to.first.threads)?;
        let bytes = to.first.packet_bytes[2] as usize;
        let Legacy { arena, given_bytes } = match legacy {
            Some(legacy) => legacy,
            None => {
                let arena = fd::sealed_memfd(c"ix-transmit", bytes, 0)?;
                Legacy { arena, given_bytes: 0 }
            }
        };
        let mut fds = vec![shared.written.as_fd(), shared.read.as_fd(), arena.as_fd()];
        fds.extend(shared.bells.iter().map(|(ours, _)| ours.as_fd()));
        fds.extend(asked.iter().map(|(_, process)| process.as_fd()));
        to.joins.try_send(&ToImage::Join { number, given_bytes }.encode(), &fds)?;
        self.joining = Some(Joining { number, asked, shared, arena });
        Ok(())
    }

    /// Has the dataplane prepare another attachment, if more processes are likely to come. To be
    /// called when none waits.
    pub fn prepare(&mut self) {
        let is_enough = self.prepared.len() >= self.wanted || self.joining.is_some();
        if is_enough || self.last_join.is_none_or(|last| last.elapsed() >= SOON) {
            return;
        }
        let free = (1..ATTACHMENTS_MAX).filter(|number| self.is_free(*number));
        let Some(number) = free.clone().next().filter(|_| free.count() > NUMBERS_LEFT) else {
            return;
        };
        // What fails here fails again, and is said, when a process asks.
        let _ = self.begin_to_join(number, None, None);
    }

    /// Gives back what was prepared if no process has attached for a while. To be called from time
    /// to time.
    pub fn give_back(&mut self) {
        if self.last_join.is_some_and(|last| last.elapsed() >= KEPT) {
            let prepared = self.prepared.drain(..).map(|prepared| prepared.number);
            // Their bells close now, so the dataplane lets go of them.
            self.given_back.extend(prepared);
        }
        let Some(to) = &self.to_dataplane else { return };
        for number in &self.given_back {
            // Elastic threads look at bells when they sleep, and some never do. Without room it is
            // told the next time, as in `look_for_executed`.
            let message = ToImage::Executed { number: *number };
            let _ = to.joins.try_send(&message.encode(), &[]);
        }
    }

    /// What was prepared, if anything was: the dataplane hears that it is this process's. Without
    /// room in the channel it stays prepared, for its number is the dataplane's to give back.
    fn take_prepared(&mut self, process: &Process) -> io::Result<Option<Prepared>> {
        let (Some(to), Some(last)) = (&self.to_dataplane, self.prepared.last()) else {
            return Ok(None);
        };
        let begin = ToImage::Begin { number: last.number };
        to.joins.try_send(&begin.encode(), &[process.as_fd()])?;
        Ok(self.prepared.pop())
    }

    /// A process that has asked gets what was prepared, and is told of it.
    fn give_prepared(
        &mut self,
        child: &Child,
        prepared: Prepared,
        process: Arc<Process>,
        asker: u64,
    ) {
        let Some(to) = &self.to_dataplane else { return };
        let Prepared { number, shared, arena, read_only: [rx, read] } = prepared;
        let attach = Attach { asker, number, ..to.first };
        let told = shared.tell_with(child, attach, [rx.as_fd(), arena.as_fd(), read.as_fd()]);
        self.attaches(number, process.clone());
        if let Err(why) = told {
            self.cannot_share(child, number, (asker, &why));
        } else {
            self.leaves((number, process), arena, shared.read);
        }
    }

    /// Its bells close now, so the dataplane lets go of it.
    fn cannot_share(&mut self, child: &Child, number: usize, (asker, why): (u64, &io::Error)) {
        self.take_back(number);
        self.refuse(child, asker, format!("cannot share memory with it: {why}"));
    }

    /// The process that got this number has not heard of it, and may ask again.
    fn take_back(&mut self, number: usize) {
        self.processes.remove(&number);
        self.executed.remove(&number);
        self.given_back.insert(number);
    }

    /// Reads what the dataplane says about processes, and tells the one that it has mapped.
    pub fn hear(&mut self, child: &Child) {
        let Some(to) = &self.to_dataplane else { return };
        // What is no message, or the end of the dataplane, is noticed elsewhere.
        let Ok(Some((bytes, _))) = to.joins.try_receive() else {
            return self.to_dataplane = None;
        };
        match FromImage::decode(&bytes) {
            Ok(FromImage::Joined { number }) => self.tell(child, number),
            Ok(FromImage::NotJoined { number, why }) => {
                self.processes.remove(&number);
                if let Some((asker, _)) = self.joining.take().and_then(|joining| joining.asked) {
                    self.refuse(child, asker, why);
                }
            }
            Ok(FromImage::Parted { number }) => {
                self.given_back.remove(&number);
                self.part(number);
            }
            _ => {}
        }
    }

    fn tell(&mut self, child: &Child, number: usize) {
        let Some(joining) = self.joining.take_if(|joining| joining.number == number) else {
            return;
        };
        let Some(to) = &self.to_dataplane else { return };
        let Joining { asked, shared, arena, .. } = joining;
        // The dataplane has mapped what it writes; nobody else will.
        let sealed = fd::seal_writes(shared.read.as_fd())
            .and_then(|()| shared.read_only(to.rx.as_fd(), to.owner));
        let Some((asker, process)) = asked else {
            match sealed {
                Ok(read_only) => {
                    self.prepared.push(Prepared { number, shared, arena, read_only });
                }
                Err(_) => _ = self.given_back.insert(number),
            }
            return;
        };
        let attach = Attach { asker, number, ..to.first };
        let told = sealed.and_then(|[rx, read]| {
            shared.tell_with(child, attach, [rx.as_fd(), arena.as_fd(), read.as_fd()])
        });
        match told {
            Ok(()) => self.leaves((number, process), arena, shared.read),
            Err(why) => self.cannot_share(child, number, (asker, &why)),
        }
    }

    /// The process that the dataplane was told of and that had not attached when it ended.
    pub fn take_joining(&mut self) -> Option<(Arc<Process>, u64)> {
        self.joining.take()?.asked.map(|(asker, process)| (process, asker))
    }

    /// Forgets all but [`Attached::take_joining`]: the dataplane has ended, or is to end.
    pub fn clear(&mut self) {
        self.processes.clear();
        self.prepared.clear();
        self.given_back.clear();
        self.joining.take_if(|joining| joining.asked.is_none());
        self.to_dataplane = None;
    }
}

/// Tells the process of the program that has asked for a dataplane why it gets none. Does not wait:
/// a program that asks without end may never read.
pub fn refuse(child: &Child, asker: u64, why: String) {
    if let Some(channel) = child.channel() {
        let _ = channel.try_send(&ToImage::NotAttached { asker, why }.encode(), &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Lines, Write};
    use std::process::{ChildStdout, Command, Stdio};

    /// A broker with a dataplane of one elastic thread; returns the dataplane's end of the channel.
    fn with_dataplane() -> (Attached, Channel) {
        let (joins, theirs) = Channel::pair().expect("a channel");
        let sizes = [1 << 20; 3];
        let first = Attach { asker: 1, number: 0, threads: 1, packet_bytes: sizes, pins: true };
        let rx = fd::sealed_memfd(c"ix-test", 4096, 0).expect("memory");
        let mut attached = Attached::default();
        let own = Process::open(std::process::id()).expect("this process");
        attached.begin(first, own.into(), joins, (rx, None));
        (attached, theirs)
    }

    /// The next message to the dataplane.
    fn heard(dataplane: &Channel) -> Option<ToImage> {
        let (bytes, _) = dataplane.try_receive().ok()??;
        Some(ToImage::decode(&bytes).expect("a message"))
    }

    fn memory() -> OwnedFd {
        fd::sealed_memfd(c"ix-test", 4096, 0).expect("memory")
    }

    fn prepare(attached: &mut Attached, number: usize) {
        let shared = Shared::new(1).expect("memory and bells");
        let (arena, read_only) = (memory(), [memory(), memory()]);
        attached.prepared.push(Prepared { number, shared, arena, read_only });
    }

    #[test]
    fn what_is_prepared_is_given_when_the_dataplane_has_heard_of_it_and_not_before() {
        let (mut attached, dataplane) = with_dataplane();
        prepare(&mut attached, 1);
        let message = ToImage::Executed { number: 9 }.encode();
        let to = attached.to_dataplane.as_ref().expect("a dataplane");
        let mut waiting = 0;
        while to.joins.try_send(&message, &[]).is_ok() {
            waiting += 1;
        }
        let own = Process::open(std::process::id()).expect("this process");
        let refused = attached.take_prepared(&own).err().expect("there is no room");
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(attached.free_number(), Some(2), "the first one is in use in the dataplane");
        for _ in 0..waiting {
            assert_eq!(heard(&dataplane), Some(ToImage::Executed { number: 9 }));
        }
        let given = attached.take_prepared(&own).expect("there is room").expect("it was prepared");
        assert_eq!(given.number, 1);
        assert_eq!(heard(&dataplane), Some(ToImage::Begin { number: 1 }));
        assert!(attached.take_prepared(&own).expect("nothing fails").is_none());
    }

    #[test]
    fn a_dataplane_is_told_what_is_given_back_until_it_has_let_go() {
        let (mut attached, dataplane) = with_dataplane();
        prepare(&mut attached, 1);
        attached.last_join = Instant::now().checked_sub(KEPT);
        for _ in 0..2 {
            attached.give_back();
            assert_eq!(heard(&dataplane), Some(ToImage::Executed { number: 1 }));
            assert_eq!(attached.free_number(), Some(2));
        }
        attached.given_back.remove(&1);
        attached.give_back();
        assert_eq!((heard(&dataplane), attached.free_number()), (None, Some(1)));
    }

    #[test]
    fn a_process_that_could_not_be_told_of_its_number_has_none() {
        let (mut attached, dataplane) = with_dataplane();
        let own = Arc::new(Process::open(std::process::id()).expect("this process"));
        attached.attaches(1, own.clone());
        assert!(attached.has(&own));
        attached.take_back(1);
        assert!(!attached.has(&own), "it may ask again");
        assert_eq!(attached.free_number(), Some(2), "the dataplane has it");
        attached.give_back();
        assert_eq!(heard(&dataplane), Some(ToImage::Executed { number: 1 }));
    }

    /// A process that executes another program when it is told to, and ends when told again.
    struct Shell {
        child: std::process::Child,
        said: Lines<BufReader<ChildStdout>>,
        process: Arc<Process>,
    }

    impl Shell {
        fn new() -> Shell {
            let mut command = Command::new("sh");
            command.args(["-c", "echo one; read go; exec sh -c 'echo two; read go'"]);
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let process = Process::open(child.id()).unwrap().into();
            let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
            assert_eq!(said.next().unwrap().unwrap(), "one");
            Shell { child, said, process }
        }

        fn go(&mut self) {
            writeln!(self.child.stdin.as_mut().unwrap()).unwrap();
        }

        fn executes(&mut self) {
            self.go();
            assert_eq!(self.said.next().unwrap().unwrap(), "two");
        }

        fn ends(mut self) {
            self.go();
            self.child.wait().unwrap();
        }
    }

    #[test]
    fn a_program_that_is_executed_is_another_one() {
        let mut shell = Shell::new();
        let process = shell.process.clone();
        let first = Executed::of(&process).expect("it runs");
        assert_eq!(Executed::of(&process), Some(first));
        shell.executes();
        assert_ne!(Executed::of(&process).expect("it runs"), first);
        shell.ends();
        assert_eq!(Executed::of(&process), None);
    }

    #[test]
    fn a_program_that_is_executed_has_no_number_although_the_one_before_keeps_its_own() {
        let (mut attached, dataplane) = with_dataplane();
        let mut shell = Shell::new();
        let process = shell.process.clone();
        attached.attaches(1, process.clone());
        attached.leaves((1, process.clone()), memory(), memory());
        assert!(attached.has(&process));
        assert!(attached.legacy(&process).expect("a descriptor").is_some());
        shell.executes();
        assert!(!attached.has(&process), "what the first program gave to send is not acknowledged");
        attached.forget_executed(&process);
        assert!(attached.legacy(&process).expect("nothing fails").is_none());
        // Both numbers are known, and the dataplane hears only of the one that is over.
        attached.attaches(2, process.clone());
        assert!(attached.has(&process));
        attached.look_for_executed();
        assert_eq!(heard(&dataplane), Some(ToImage::Executed { number: 1 }));
        assert_eq!(heard(&dataplane), None);
        attached.part(1);
        assert!(attached.has(&process));
        shell.ends();
    }
}
