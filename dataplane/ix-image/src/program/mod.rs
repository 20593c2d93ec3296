//! The image in a process of the program whose dataplane is in another one: maps what the two
//! share, and is the gate. It has no rights that the program lacks, and the dataplane does not
//! trust it.
//!
//! The gate runs on the caller's stack, with the caller's thread-local storage, and uses none. It
//! keeps what it knows of each elastic thread in a table that the kernel wipes in a forked child.
//!
//! When the dataplane has ended, calls return `LOST`, and `RENEW` asks the broker for another one.
//! That is mapped over the old one at the same addresses, so the header, the gate and the arrays
//! stay where they are. The old one's receive memory is there until then. Transmit memory is the
//! same before and after.
mod wait;

use crate::faults;
use crate::linux_thread::{Before, is_alive, own_id, place};
use crate::own_descriptors;
use crate::signals::SignalWatch;
use crate::sys;
use core::arch::asm;
use core::cell::UnsafeCell;
use core::ptr::{null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use ix_abi::{ProcessHeader, ThreadArea, ThreadStatus, error, gate_op};
use ix_entry::{Channel, ReservedFds};
use ix_proto::crossing::{
    Attach, FaultNote, HEADER_BYTES, READ_AT, ReadPages, THREADS_MAX, WINDOW, WRITTEN_AT,
    WrittenPages, read_bytes, written_bytes,
};
use ix_proto::{Codec, FromImage, ToImage};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::sync::OnceLock;
use wait::{Crossing, Outcome, Yields};

/// The owner of a shared elastic thread while no thread is inside. It is not a valid fs base.
const SHARED: u64 = 1;
/// The owner of every elastic thread while a dataplane takes the place of another one.
const RENEWING: u64 = 2;

/// What the gate knows of one elastic thread.
struct Slot {
    /// fs base of the Linux thread that has entered; 0: none.
    owner: AtomicU64,
    /// Linux' number of the owner, to tell whether it still lives; 0: not written yet.
    owner_id: AtomicU32,
    /// Said by `SHARE`, for good.
    is_shared: AtomicBool,
    /// A thread that enters is pinned to the elastic thread's hardware thread.
    pins: bool,
    crossing: Crossing,
    /// Shows the owner's signals.
    signals: i32,
    /// What the application reads after each call.
    status: *mut ThreadStatus,
    /// What the owner had before it entered; touched by the owner only.
    before: UnsafeCell<Before>,
}

/// `Starter::start`.
type Start = extern "C" fn() -> u64;

struct Table {
    threads: usize,
    /// What the dataplane shares, which the next one must share as well.
    attach: Attach,
    /// It has ended.
    is_lost: AtomicBool,
    header: *const ProcessHeader,
    /// Calls [`attach`] on a stack and with thread-local storage of the image.
    start: Start,
    /// Where a fault is noted.
    note: AtomicPtr<FaultNote>,
    slots: [Slot; THREADS_MAX],
}

static TABLE: AtomicPtr<Table> = AtomicPtr::new(null_mut());

/// Why a process has no dataplane.
pub struct Failure {
    /// What its hello said; 0: it has said none.
    asker: u64,
    why: String,
}

impl From<String> for Failure {
    fn from(why: String) -> Failure {
        Failure { asker: 0, why }
    }
}

impl Failure {
    /// What the broker is told.
    pub fn told(self) -> FromImage {
        let Failure { asker, why } = self;
        FromImage::Failed { asker, why }
    }
}

/// Asks the broker for a dataplane, maps what it shares and opens the gate. Returns the address of
/// the header. `start` calls this function, to renew a dataplane.
pub fn attach(
    channel: &Channel,
    reserved: ReservedFds,
    start: Start,
) -> Result<*const ProcessHeader, Failure> {
    // SAFETY: every x86-64 processor has this instruction.
    let ticks = unsafe { core::arch::x86_64::_rdtsc() };
    let asker = u64::from(own_id()) << 32 | ticks & 0xffff_ffff;
    attach_as(asker, channel, reserved, start).map_err(|why| Failure { asker, why })
}

fn attach_as(
    asker: u64,
    channel: &Channel,
    reserved: ReservedFds,
    start: Start,
) -> Result<*const ProcessHeader, String> {
    let before = table().filter(|table| table.is_lost.load(Ordering::Relaxed));
    // A program may have as many descriptors as it can.
    let header = reserved.unfenced(|| {
        let (attach, fds) = ask(channel, asker)?;
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or("the broker sent too few descriptors; build ix again");
        let [rx, arena, written, read] = [next()?, next()?, next()?, next()?];
        let bells = (0..attach.threads).map(|_| next()).collect::<Result<Vec<_>, _>>()?;
        if before.is_some_and(|before| !before.attach.fits(&attach)) {
            return Err("the next dataplane differs from the one that has ended".to_owned());
        }
        map_all(&attach, [&rx, &arena, &written, &read])?;
        match before {
            Some(table) => reopen(table, bells),
            None => open(&attach, bells, reserved, start),
        }
    })?;
    reserved.fence().map_err(|e| format!("setrlimit: {e}"))?;
    channel.send(&FromImage::Ready.encode(), &[]).map_err(broken)?;
    Ok(header)
}

/// Waits for the dataplane. Processes of one program read from one socket, so one asks at a time.
fn ask(channel: &Channel, asker: u64) -> Result<(Attach, Vec<OwnedFd>), String> {
    let _turn = Turn::wait(channel)?;
    // The number of the process that the broker believes is the kernel's.
    channel.send(&FromImage::Hello { pid: 0, asker }.encode(), &[]).map_err(broken)?;
    loop {
        if !answers(channel) {
            return Err("the broker does not answer, or another process of the program has read \
                        its answer"
                .to_owned());
        }
        let (message, fds) = channel.receive().map_err(broken)?.ok_or("the broker is gone")?;
        match ToImage::decode(&message) {
            Ok(ToImage::Attach(attach)) if attach.asker == asker => return Ok((attach, fds)),
            Ok(ToImage::NotAttached { asker: who, why }) if who == asker => return Err(why),
            Ok(ToImage::Refused(why)) => return Err(why),
            // It was meant for a process that has ended meanwhile.
            Ok(_) => {}
            Err(e) => {
                return Err(format!("the broker sent an invalid message: {e}; build ix again"));
            }
        }
    }
}

/// Longest that the broker may take, ms: it waits for devices, and for others that ask.
const ANSWER_MS: i32 = 30_000;

/// Whether the channel is readable within [`ANSWER_MS`].
fn answers(channel: &Channel) -> bool {
    let mut poll =
        libc::pollfd { fd: channel.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let args = [&raw mut poll as u64, 1, ANSWER_MS as u64, 0, 0, 0];
    // SAFETY: one struct.
    unsafe { sys::syscall(libc::SYS_poll, args) != 0 }
}

/// The right to ask, which one process of the program has at a time: a record lock on the channel.
/// Linux gives it back however the process ends.
struct Turn<'a>(&'a Channel);

/// How often the right is asked for, and the time between, µs: 20 s together. Who has it needs a
/// fifth of a millisecond; in a server with a process for each connection, others wait for it.
const TURNS: u32 = 20_000;
const TURN_US: u32 = 1_000;
/// Time between the first ones.
const SOON: u32 = 50;
const SOON_US: u32 = 100;

impl Turn<'_> {
    fn wait(channel: &Channel) -> Result<Turn<'_>, String> {
        for turn in 0..TURNS {
            if lock(channel, libc::F_WRLCK) {
                return Ok(Turn(channel));
            }
            let us = if turn < SOON { SOON_US } else { TURN_US };
            let time = libc::timespec { tv_sec: 0, tv_nsec: i64::from(us) * 1000 };
            // SAFETY: no descriptors and no mask; reads a local.
            unsafe { sys::syscall(libc::SYS_ppoll, [0, 0, &raw const time as u64, 0, 0, 0]) };
        }
        Err("another process of the program asks for the dataplane and does not go on; end it, or \
             continue it"
            .to_owned())
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(self.0, libc::F_UNLCK);
    }
}

fn lock(channel: &Channel, kind: i32) -> bool {
    // SAFETY: all zero is a valid value, and names the whole file.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    let fd = channel.as_fd().as_raw_fd() as u64;
    let args = [fd, libc::F_SETLK as u64, &raw const lock as u64, 0, 0, 0];
    // SAFETY: reads a local. The bare call: the program may have replaced the library's.
    unsafe { sys::syscall(libc::SYS_fcntl, args) == 0 }
}

fn broken(error: std::io::Error) -> String {
    format!("the channel to the broker broke: {error}")
}

fn map_all(attach: &Attach, [rx, arena, written, read]: [&OwnedFd; 4]) -> Result<(), String> {
    const READ: i32 = libc::PROT_READ;
    const WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
    let [rx_bytes, kept_bytes, arena_bytes] = attach.packet_bytes.map(|bytes| bytes as usize);
    let arena_at = WINDOW + rx_bytes + kept_bytes;
    // A program may have many processes. Packet memory has pages where it is used.
    let fill = if attach.number == 0 { libc::MAP_POPULATE } else { 0 };
    for (what, fd, at, bytes, (prot, fill)) in [
        ("receive memory", rx, WINDOW, rx_bytes, (READ, 0)),
        ("transmit memory", arena, arena_at, arena_bytes, (WRITE, 0)),
        ("call arrays", written, WRITTEN_AT, written_bytes(attach.threads), (WRITE, fill)),
        ("event arrays", read, READ_AT, read_bytes(attach.threads), (READ, fill)),
    ] {
        map(fd, at, bytes, prot, fill)
            .map_err(|e| format!("cannot map the {what} of the dataplane at {at:#x}: {e}"))?;
    }
    Ok(())
}

/// Maps a file at this address. What an earlier dataplane of this process had there is gone.
fn map(fd: &OwnedFd, at: usize, bytes: usize, prot: i32, fill: i32) -> std::io::Result<()> {
    let had_one = !TABLE.load(Ordering::Acquire).is_null();
    let how = if had_one { libc::MAP_FIXED } else { libc::MAP_FIXED_NOREPLACE };
    let flags = libc::MAP_SHARED | how | fill;
    let place = without_provenance_mut(at);
    // SAFETY: a mapping where nothing is, or where the same thing was that nobody uses any more.
    let mapped = unsafe { libc::mmap(place, bytes, prot, flags, fd.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the mapping just made. A forked child has none of it.
    unsafe { libc::madvise(mapped, bytes, libc::MADV_DONTFORK) };
    Ok(())
}

/// Makes the table and the program's own header. Called when all is mapped.
fn open(
    attach: &Attach,
    bells: Vec<OwnedFd>,
    reserved: ReservedFds,
    start: Start,
) -> Result<*const ProcessHeader, String> {
    let no_memory = |errno: i64| format!("no memory for the gate (errno {})", -errno);
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let table_bytes = size_of::<Table>();
    let own_bytes = HEADER_BYTES + attach.threads * size_of::<ThreadStatus>();
    let table: *mut Table = sys::map(table_bytes, prot).map_err(no_memory)?.cast();
    let own = sys::map(own_bytes, prot).map_err(no_memory)?;
    // SAFETY: both lie within the mapping of `HEADER_BYTES` and more; the dataplane has written
    // what is copied, which this process does not trust more than the program's own memory.
    let (header, areas, status) = unsafe {
        core::ptr::copy_nonoverlapping(READ_AT as *const u8, own, HEADER_BYTES);
        let areas = own.add(areas_offset()).cast::<ThreadArea>();
        (own.cast::<ProcessHeader>(), areas, own.add(HEADER_BYTES).cast::<ThreadStatus>())
    };
    for (index, bell) in bells.into_iter().enumerate() {
        let bell = reserved.take(bell).map_err(|e| format!("no descriptor for a bell: {e}"))?;
        let watch = SignalWatch::new().and_then(|watch| watch.placed(|fd| reserved.take(fd)));
        let watch = watch.map_err(|e| format!("signalfd: {e}"))?.into_fd();
        [bell.as_raw_fd(), watch.as_raw_fd()].into_iter().for_each(own_descriptors::add);
        // SAFETY: `attach.threads`, at most THREADS_MAX, have room in the table, behind the header
        // and on the mapped pages.
        unsafe {
            let area = areas.add(index);
            (*area).status = status.add(index) as u64;
            let written = (WRITTEN_AT as *const WrittenPages).add(index);
            (*area).will = &raw const (*written).will as u64;
            let read = ((READ_AT + HEADER_BYTES) as *const ReadPages).add(index);
            (&raw mut (*table).slots[index]).write(Slot {
                owner: AtomicU64::new(0),
                owner_id: AtomicU32::new(0),
                is_shared: AtomicBool::new(false),
                pins: attach.pins,
                crossing: Crossing {
                    request: &raw const (*written).request,
                    reply: &raw const (*read).reply,
                    bell: bell.into_raw_fd(),
                    cpu: (*area).cpu,
                    signals: AtomicI32::new(-1),
                    watched: AtomicI32::new(-1),
                    serial: AtomicU64::new(0),
                    looked_ticks: AtomicU64::new(0),
                    yields: Yields::new(),
                },
                signals: watch.into_raw_fd(),
                status: status.add(index),
                before: UnsafeCell::new(Before::NOTHING),
            });
        }
    }
    // SAFETY: the table is a fresh mapping of ours.
    unsafe {
        (*table).threads = attach.threads;
        (*table).header = header;
        (&raw mut (*table).start).write(start);
        (&raw mut (*table).attach).write(*attach);
        let note = &raw mut (*(WRITTEN_AT as *mut WrittenPages)).fault;
        (*table).note.store(note, Ordering::Relaxed);
        (*header).gate = gate as *const () as u64;
        (*header).thread_areas = areas as u64;
        let wipe = [table as u64, table_bytes as u64, libc::MADV_WIPEONFORK as u64, 0, 0, 0];
        if sys::syscall(libc::SYS_madvise, wipe) != 0 {
            return Err("no gate: the kernel cannot wipe memory in a forked child".to_owned());
        }
    }
    TABLE.store(table, Ordering::Release);
    // SAFETY: the table is never unmapped.
    faults::note_at(unsafe { &(*table).note });
    Ok(header)
}

/// Where the areas of the elastic threads are in the header that the dataplane has written: bytes
/// from its beginning. Called when all is mapped.
fn areas_offset() -> usize {
    // SAFETY: mapped, and of a size that the header has room in.
    let areas = unsafe { (*(READ_AT as *const ProcessHeader)).thread_areas };
    (areas as usize).saturating_sub(READ_AT).min(HEADER_BYTES)
}

/// Gives the bells of the next dataplane the numbers of the old ones. Called when all is mapped and
/// nobody is inside.
fn reopen(table: &Table, bells: Vec<OwnedFd>) -> Result<*const ProcessHeader, String> {
    for (slot, bell) in table.slots.iter().zip(&bells) {
        // SAFETY: no pointers. The number is the image's own.
        let moved = unsafe { libc::dup3(bell.as_raw_fd(), slot.crossing.bell, libc::O_CLOEXEC) };
        if moved < 0 {
            let why = std::io::Error::last_os_error();
            return Err(format!("no descriptor for a bell: {why}"));
        }
    }
    let header = table.header.cast_mut();
    for index in 0..table.threads {
        // SAFETY: both headers have an area for each elastic thread, `attach` was compared with
        // what this process has; the own one is private memory that is written here only. The
        // other one is the dataplane's to write, which this process trusts no less than itself.
        unsafe {
            let from = ((READ_AT + areas_offset()) as *const ThreadArea).add(index);
            let to = ((*header).thread_areas as *mut ThreadArea).add(index);
            // It may have another number now.
            (*to).attachment = (*from).attachment;
        }
    }
    Ok(table.header)
}

/// What is known of the elastic threads; `None`: this process has no dataplane.
fn table() -> Option<&'static Table> {
    let table = TABLE.load(Ordering::Acquire);
    // SAFETY: null, or a table that is never unmapped. In a forked child it is all zero, and has
    // no threads: nothing else of it is used then.
    unsafe { (!table.is_null() && (*table).threads > 0).then(|| &*table) }
}

fn slot(index: u64) -> Option<&'static Slot> {
    let table = table()?;
    (index < table.threads as u64).then(|| &table.slots[index as usize])
}

/// `RENEW`.
fn renew() -> i64 {
    let Some(table) = table() else { return -error::INVALID };
    if !table.is_lost.load(Ordering::Acquire) {
        return 0;
    }
    let slots = &table.slots[..table.threads];
    let taken = slots.iter().take_while(|slot| slot.is_taken_to_renew()).count();
    let result = if taken < slots.len() {
        -error::IN_USE
    } else if !table.is_lost.load(Ordering::Acquire) {
        0
    } else if (table.start)() == 0 {
        -error::NO_RESOURCE
    } else {
        slots.iter().for_each(|slot| slot.is_shared.store(false, Ordering::Relaxed));
        table.is_lost.store(false, Ordering::Release);
        0
    };
    for slot in &slots[..taken] {
        let was_shared = slot.is_shared.load(Ordering::Relaxed);
        slot.owner.store(if was_shared { SHARED } else { 0 }, Ordering::Release);
    }
    result
}

/// Attaches in a forked child, and returns the address of the header; 0: it could not.
static IN_CHILD: OnceLock<fn() -> u64> = OnceLock::new();

/// Forked children attach this way.
pub fn attach_children_by(start: fn() -> u64) {
    let _ = IN_CHILD.set(start);
}

/// `ATTACH`: in a forked child, whose table the kernel has wiped.
fn attach_forked() -> i64 {
    // SAFETY: a table that is never unmapped; all zero in a forked child.
    let is_wiped = unsafe { (*TABLE.load(Ordering::Acquire)).threads == 0 };
    if !is_wiped {
        return -error::STATE;
    }
    let Some(start) = IN_CHILD.get() else { return -error::NO_SYS };
    match start() {
        0 => -error::NO_RESOURCE,
        header => header as i64,
    }
}

/// `extern "C" fn(op, a, b, c) -> i64`, see [`gate_op`]; `a` is always the elastic thread's index.
extern "C" fn gate(op: u64, index: u64, b: u64, c: u64) -> i64 {
    if op == gate_op::ATTACH {
        return attach_forked();
    }
    let Some(slot) = slot(index) else { return -error::INVALID };
    if op == gate_op::RENEW {
        return renew();
    }
    let caller = fs_base();
    match op {
        gate_op::RUN_IO => slot.owned(caller, || slot.ask(op, b, c)),
        gate_op::WATCH => slot.owned(caller, || slot.watch(b)),
        gate_op::KICK => {
            slot.crossing.kick();
            0
        }
        gate_op::ENTER => {
            faults::watch();
            slot.enter(caller)
        }
        gate_op::LEAVE if slot.owner.load(Ordering::Relaxed) == caller => {
            slot.ask(op, 0, 0);
            slot.give_back();
            0
        }
        gate_op::LEAVE => -error::STATE,
        gate_op::SHARE => {
            faults::watch();
            slot.share()
        }
        _ => -error::NO_SYS,
    }
}

impl Slot {
    /// Runs a call of the owner. The caller of a shared elastic thread owns it for this call.
    fn owned(&self, caller: u64, call: impl FnOnce() -> i64) -> i64 {
        if self.owner.load(Ordering::Relaxed) == caller {
            return call();
        }
        if !self.is_shared.load(Ordering::Acquire) || caller == 0 {
            // A dataplane that ended before it was told to share the thread is lost all the same.
            let is_lost = table().is_some_and(|table| table.is_lost.load(Ordering::Acquire));
            return if is_lost { -error::LOST } else { -error::STATE };
        }
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        if self.owner.compare_exchange(SHARED, caller, acquire, relaxed).is_err() {
            return -error::IN_USE;
        }
        let result = call();
        self.owner.store(SHARED, Ordering::Release);
        result
    }

    /// Whether nobody has entered this elastic thread and nobody can before it is given back.
    fn is_taken_to_renew(&self) -> bool {
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        let take = |from| self.owner.compare_exchange(from, RENEWING, acquire, relaxed).is_ok();
        let owner = self.owner.load(relaxed);
        // A thread that has ended without `LEAVE` does not count.
        let is_nobody = owner <= SHARED
            || owner != RENEWING && !is_alive(self.owner_id.load(Ordering::Acquire));
        let taken = is_nobody && take(owner);
        if taken {
            // Nobody can tell that this owner has ended.
            self.owner_id.store(0, Ordering::Release);
        }
        taken
    }

    fn ask(&self, op: u64, b: u64, c: u64) -> i64 {
        let Outcome { result, now_us, signal } = self.crossing.ask(op, b, c);
        if result == -error::LOST
            && let Some(table) = table()
        {
            table.is_lost.store(true, Ordering::Release);
        }
        let status = ThreadStatus { now_us, signal_pending: signal.into(), reserved: 0 };
        // SAFETY: on a page of ours; only the owner gets here.
        unsafe { self.status.write_volatile(status) };
        result
    }

    fn watch(&self, fd_plus_1: u64) -> i64 {
        let Ok(fd) = i32::try_from(fd_plus_1) else { return -error::INVALID };
        self.crossing.watched.store(fd - 1, Ordering::Relaxed);
        0
    }

    fn enter(&self, caller: u64) -> i64 {
        if caller == 0 {
            // Without thread-local storage the caller cannot be identified.
            return -error::INVALID;
        }
        let take =
            |from| self.owner.compare_exchange(from, caller, Ordering::Acquire, Ordering::Relaxed);
        let nobody = 0;
        match take(nobody) {
            Ok(_) => {}
            // Another thread gets a dataplane in place of one that has ended.
            Err(RENEWING) => return -error::LOST,
            Err(owner) => {
                if is_alive(self.owner_id.load(Ordering::Acquire)) || take(owner).is_err() {
                    return -error::IN_USE;
                }
            }
        }
        self.owner_id.store(own_id(), Ordering::Release);
        let before = Before::entering();
        // SAFETY: we are the owner now.
        unsafe { *self.before.get() = before };
        let watches = SignalWatch::show(self.signals, before.signal_mask()).is_ok();
        if !watches || self.pins && !place(self.crossing.cpu) {
            self.give_back();
            return -error::NO_RESOURCE;
        }
        self.crossing.signals.store(self.signals, Ordering::Relaxed);
        0
    }

    /// The owner leaves: restores its affinity and its signal mask.
    fn give_back(&self) {
        // SAFETY: called by the owner. It is a copy, for the next owner may come at once.
        let before = unsafe { *self.before.get() };
        self.crossing.signals.store(-1, Ordering::Relaxed);
        self.owner_id.store(0, Ordering::Relaxed);
        self.owner.store(0, Ordering::Release);
        if self.pins {
            before.place_back();
        }
        sys::set_signal_mask(before.signal_mask());
    }

    fn share(&self) -> i64 {
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        if self.is_shared.load(Ordering::Relaxed) {
            return 0;
        }
        // The first caller owns it while the dataplane is told.
        if self.owner.compare_exchange(0, fs_base(), acquire, relaxed).is_err() {
            return -error::IN_USE;
        }
        let result = self.ask(gate_op::SHARE, 0, 0);
        self.is_shared.store(result == 0, Ordering::Release);
        self.owner.store(if result == 0 { SHARED } else { 0 }, Ordering::Release);
        result
    }
}

fn fs_base() -> u64 {
    let fs: u64;
    // SAFETY: reads a register; `main` has seen to it that the processor lets it.
    unsafe { asm!("rdfsbase {}", out(reg) fs, options(nomem, nostack, preserves_flags)) };
    fs
}
