//! Which processes of the program have which connections: memory that forked children inherit.
//!
//! A connection is in it from the first fork on after which two processes have it. One of them
//! *owns* it: its flow in the dataplane is that process's. Another one that uses it says so here,
//! and the owner gives it away ([`crate::handed`]).
use crate::set_log::SetLog;
use crate::{clock, commons, filtered, pid};
use core::cell::Cell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Most processes that may have the same connections.
const PROCESSES_MAX: usize = 64;
/// Most connections that several processes have.
const CONNECTIONS_MAX: usize = 4096;
/// The place of a process that has not begun.
const RESERVED: i32 = -1;
/// A forked child begins within this time, or was killed before, µs.
const BEGINS_US: u64 = 1_000_000;

/// Words of a record.
pub const RECORD_WORDS: usize = 12;
/// What a socket is, for a process that gets it without its maker's memory.
pub type Record = [u64; RECORD_WORDS];

struct One {
    /// The processes that have it, as bits; 0: the place is free.
    holders: AtomicU64,
    /// Grows whenever the place is taken, so that names of an earlier socket are none.
    serial: AtomicU32,
    /// What it is. The first word has a version in its high half ([`VERSION`]).
    record: [AtomicU64; RECORD_WORDS],
    /// The place of the process that uses it, plus one; 0: the owner may keep it.
    wanted: AtomicU32,
    /// The processes of which threads wait for it in epoll sets, as bits. A hint.
    watchers: AtomicU64,
    /// The owner's number in the dataplane, plus one; 0: not known. A hint: whom to nudge.
    owner: AtomicU32,
    /// It has ended, with this errno plus one; the first process that takes the errno leaves none.
    ended: AtomicU32,
    /// What all its processes see of it ([`crate::file_flags`]); 0: nothing is noted.
    flags: AtomicU32,
    /// Whether a descriptor of it was sent over a Unix socket; 0: none was.
    passed: AtomicU32,
    /// Bytes of the peer's stream that its processes have read.
    consumed: AtomicU64,
}

/// Most names of Linux files.
const NAMES_MAX: usize = 8192;
/// How many places a name may have.
const NAME_PLACES: usize = 64;

/// A Linux file that stands under descriptors of a socket, wherever these go: to executed programs,
/// and over Unix sockets.
struct Name {
    /// Its inode; 0: the place is free.
    inode: AtomicU64,
    /// The socket's place, and above it the serial number of that.
    socket: AtomicU64,
}

struct Shared {
    pids: [AtomicI32; PROCESSES_MAX],
    /// When each was taken, µs.
    taken_us: [AtomicU64; PROCESSES_MAX],
    /// The number of each in the dataplane, plus one; 0: it shares none.
    attachments: [AtomicU32; PROCESSES_MAX],
    connections: [One; CONNECTIONS_MAX],
    /// Connections from this place on were never taken.
    top: AtomicU32,
    names: [Name; NAMES_MAX],
    /// Grows with each change that an owner should see.
    changes: AtomicU32,
    /// Changes of epoll sets.
    sets: SetLog,
}

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(null_mut());
/// The place of this process, plus one; 0: none yet.
static OWN: AtomicU32 = AtomicU32::new(0);
/// The place of the child that is about to be forked, plus one.
static CHILD: AtomicU32 = AtomicU32::new(0);
thread_local! {
    /// The place of the child that this thread has forked last, plus one.
    static LAST: Cell<u32> = const { Cell::new(0) };
}
/// Where this process looks for a free place first.
static NEXT: AtomicU32 = AtomicU32::new(0);
/// The number of this process in the dataplane, plus one.
static ATTACHMENT: AtomicU32 = AtomicU32::new(0);
/// Processes that should look at once at what this one has said, as bits by their numbers in the
/// dataplane.
static NUDGES: AtomicU64 = AtomicU64::new(0);

/// At the start: what the processes of the run share.
pub fn begin_run() {
    if let Some(pages) = commons::part() {
        SHARED.store(pages, Ordering::Release);
    }
}

fn shared() -> Option<&'static Shared> {
    // SAFETY: null, or memory of ours, all zero at first and atomic, which is never unmapped.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }
}

/// A number that grows with what processes say here.
pub fn changes() -> u32 {
    shared().map_or(0, |shared| shared.changes.load(Ordering::Acquire))
}

/// What the processes say of epoll sets that several have.
pub fn set_log() -> Option<&'static SetLog> {
    shared().map(|shared| &shared.sets)
}

fn changed() {
    if let Some(shared) = shared() {
        shared.changes.fetch_add(1, Ordering::AcqRel);
    }
}

impl Shared {
    /// The places that were ever taken.
    fn taken(&self) -> &[One] {
        &self.connections[..(self.top.load(Ordering::Acquire) as usize).min(CONNECTIONS_MAX)]
    }

    /// The process with this place has none of them any more but those that `keeps` names.
    fn drop_all_of(&self, place: usize, keeps: impl Fn(u32) -> bool) {
        let bit = 1 << place;
        for (at, one) in self.taken().iter().enumerate() {
            if one.holders.load(Ordering::Acquire) & bit != 0 && !keeps(at as u32) {
                one.holders.fetch_and(!bit, Ordering::AcqRel);
            }
        }
    }
}

impl One {
    fn nudge_owner(&self) {
        nudge(self.owner.load(Ordering::Acquire));
    }
}

fn nudge(number_plus_1: u32) {
    if number_plus_1 != 0 && number_plus_1 != ATTACHMENT.load(Ordering::Relaxed) {
        NUDGES.fetch_or(1 << ((number_plus_1 - 1) % u64::BITS), Ordering::AcqRel);
    }
}

/// Whether there are processes to nudge.
#[inline]
pub fn has_nudges() -> bool {
    NUDGES.load(Ordering::Relaxed) != 0
}

/// The processes that the dataplane is to nudge, as bits by their numbers there.
#[inline]
pub fn take_nudges() -> u64 {
    if has_nudges() { NUDGES.swap(0, Ordering::AcqRel) } else { 0 }
}

fn own() -> Option<usize> {
    OWN.load(Ordering::Relaxed).checked_sub(1).map(|own| own as usize)
}

fn connection(at: u32) -> Option<&'static One> {
    shared()?.connections.get(at as usize)
}

/// Whether the process that has a place lives.
fn lives(shared: &Shared, place: usize) -> bool {
    match shared.pids[place].load(Ordering::Acquire) {
        0 => false,
        RESERVED => {
            let taken_us = shared.taken_us[place].load(Ordering::Acquire);
            clock::now_us() < taken_us + BEGINS_US
        }
        pid => is_alive(pid),
    }
}

fn is_alive(pid: i32) -> bool {
    if filtered::is_filtered() {
        // A helper looks.
        return true;
    }
    // SAFETY: no pointers; sends nothing.
    let result = unsafe { libc::syscall(libc::SYS_kill, pid, 0) };
    (result == 0 || crate::real::errno() != libc::ESRCH) && !is_ended_child(pid)
}

/// A child that has ended has its number until it is waited for.
fn is_ended_child(pid: i32) -> bool {
    // SAFETY: all-zero bytes are valid information.
    let mut info: libc::siginfo_t = unsafe { core::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: fills a local.
    let result = unsafe { libc::waitid(libc::P_PID, pid as libc::id_t, &raw mut info, flags) };
    // SAFETY: the kernel has filled what belongs to a child, or left all of it zero.
    result == 0 && unsafe { info.si_pid() } == pid
}

/// Takes a place that no living process has.
fn take_place(pid: i32) -> Option<usize> {
    let shared = shared()?;
    let take = |place: &usize, before| {
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        shared.pids[*place].compare_exchange(before, pid, acquire, relaxed).is_ok()
    };
    // Most have said that they end, so Linux need not be asked.
    let place = (0..PROCESSES_MAX).find(|place| take(place, 0)).or_else(|| {
        (0..PROCESSES_MAX).find(|place| {
            let before = shared.pids[*place].load(Ordering::Acquire);
            !lives(shared, *place) && take(place, before)
        })
    })?;
    shared.taken_us[place].store(clock::now_us(), Ordering::Release);
    shared.attachments[place].store(0, Ordering::Release);
    shared.drop_all_of(place, |_| false);
    Some(place)
}

/// Makes sure that this process has a place.
pub fn begin() -> bool {
    if own().is_none() {
        let Some(place) = take_place(pid::own()) else { return false };
        OWN.store(place as u32 + 1, Ordering::Relaxed);
        attached(ATTACHMENT.load(Ordering::Relaxed));
    }
    true
}

/// In an executed program: it goes on in the place that the process had before.
pub fn executed() {
    let Some(shared) = shared() else { return };
    let pid = pid::own();
    if let Some(own) = shared.pids.iter().position(|other| other.load(Ordering::Acquire) == pid) {
        OWN.store(own as u32 + 1, Ordering::Relaxed);
        attached(0);
    }
}

/// Before a fork by a process with connections: false if the child can have none of them.
pub fn before_fork() -> bool {
    if !begin() {
        return false;
    }
    let child = take_place(RESERVED);
    NEXT.store(0, Ordering::Relaxed);
    CHILD.store(child.map_or(0, |place| place as u32 + 1), Ordering::Relaxed);
    child.is_some()
}

/// In a forked child.
pub fn forked() {
    OWN.store(CHILD.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    ATTACHMENT.store(0, Ordering::Relaxed);
    NUDGES.store(0, Ordering::Relaxed);
    let (Some(own), Some(shared)) = (own(), shared()) else { return };
    let (acquire, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
    if shared.pids[own].compare_exchange(RESERVED, pid::own(), acquire, relaxed).is_err() {
        // It took so long that another process has the place.
        OWN.store(0, relaxed);
    }
}

/// In the parent, after a fork.
pub fn after_fork() {
    LAST.set(CHILD.swap(0, Ordering::Relaxed));
}

/// In the parent, after that: there is no child, and nobody but the parent has its connections.
pub fn not_forked() {
    let (Some(place), Some(shared)) = (LAST.take().checked_sub(1), shared()) else { return };
    shared.drop_all_of(place as usize, |_| false);
    shared.pids[place as usize].store(0, Ordering::Release);
    changed();
}

/// This process shares the dataplane with this number, plus one.
pub fn attached(number_plus_1: u32) {
    ATTACHMENT.store(number_plus_1, Ordering::Relaxed);
    let Some(shared) = shared() else { return };
    let (own, acquire, relaxed) = (own(), Ordering::AcqRel, Ordering::Relaxed);
    for (place, other) in shared.attachments.iter().enumerate() {
        if number_plus_1 != 0 && Some(place) != own {
            // That process was killed, and its number is this one's now.
            let _ = other.compare_exchange(number_plus_1, 0, acquire, relaxed);
        }
    }
    if let Some(own) = own {
        shared.attachments[own].store(number_plus_1, Ordering::Release);
        changed();
    }
}

/// Whether the process with this number in the dataplane is known to have ended: one that was
/// killed has not said so.
pub fn has_ended(number: u32) -> bool {
    let Some(shared) = shared() else { return false };
    let place =
        shared.attachments.iter().position(|other| other.load(Ordering::Acquire) == number + 1);
    place.is_some_and(|place| !lives(shared, place))
}

/// This process shares the dataplane now: owners of what it has should look whether it gets it.
pub fn arrived() {
    if let (Some(own), Some(shared)) = (own(), shared()) {
        let has = |one: &&One| one.holders.load(Ordering::Acquire) >> own & 1 != 0;
        shared.taken().iter().filter(has).for_each(One::nudge_owner);
    }
}

/// This process owns a connection that others have, or gets what arrives at a UDP socket.
pub fn owns(at: u32) {
    if let Some(one) = connection(at) {
        one.owner.store(ATTACHMENT.load(Ordering::Relaxed), Ordering::Release);
    }
}

/// Whether this process is the last one that has said so.
pub fn is_owner(at: u32) -> bool {
    let own = ATTACHMENT.load(Ordering::Relaxed);
    own != 0 && connection(at).is_some_and(|one| one.owner.load(Ordering::Acquire) == own)
}

/// This process executes another program: nobody gives it anything before that has begun.
pub fn parts() {
    if let (Some(own), Some(shared)) = (own(), shared()) {
        shared.attachments[own].store(0, Ordering::Release);
    }
}

/// It has not executed it.
pub fn comes_back() {
    attached(ATTACHMENT.load(Ordering::Relaxed));
}

/// The child that is about to be forked has a connection as well, which gets a place if it has
/// none. `None`: no place is free.
pub fn share(at: Option<u32>) -> Option<u32> {
    let (own, child) = (own()?, CHILD.load(Ordering::Relaxed).checked_sub(1)?);
    let at = match at {
        Some(at) => at,
        None => take_connection(own)?,
    };
    connection(at)?.holders.fetch_or(1 << child, Ordering::AcqRel);
    Some(at)
}

fn take_connection(own: usize) -> Option<u32> {
    let shared = shared()?;
    let first = NEXT.load(Ordering::Relaxed) as usize;
    let mut all = (0..CONNECTIONS_MAX).map(|n| (first + n) % CONNECTIONS_MAX);
    let at = all.find(|at| {
        let one = &shared.connections[*at];
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        let is_free = one.holders.load(relaxed) == 0;
        is_free && one.holders.compare_exchange(0, 1 << own, acquire, relaxed).is_ok()
    })?;
    shared.connections[at].wanted.store(0, Ordering::Relaxed);
    shared.connections[at].ended.store(0, Ordering::Relaxed);
    shared.connections[at].consumed.store(0, Ordering::Relaxed);
    shared.connections[at].owner.store(0, Ordering::Relaxed);
    shared.connections[at].flags.store(0, Ordering::Relaxed);
    shared.connections[at].watchers.store(0, Ordering::Relaxed);
    shared.connections[at].passed.store(0, Ordering::Relaxed);
    shared.top.fetch_max(at as u32 + 1, Ordering::AcqRel);
    shared.connections[at].serial.fetch_add(1, Ordering::AcqRel);
    NEXT.store(at as u32 + 1, Ordering::Relaxed);
    Some(at as u32)
}

/// This process has a socket, which gets a place if it has none. `None`: no place is free.
pub fn hold(at: Option<u32>) -> Option<u32> {
    let own = own()?;
    let Some(at) = at else { return take_connection(own) };
    connection(at)?.holders.fetch_or(1 << own, Ordering::AcqRel);
    changed();
    Some(at)
}

/// A descriptor of a socket is about to be sent over a Unix socket.
pub fn passes(at: u32) {
    if let Some(one) = connection(at) {
        one.passed.store(1, Ordering::Release);
    }
}

/// Whether one was ever sent, so that a process may still get it.
pub fn was_passed(at: u32) -> bool {
    connection(at).is_some_and(|one| one.passed.load(Ordering::Acquire) != 0)
}

/// The low half of a record's first word is what the socket is. The high half grows when it begins
/// to change and when that is done, so it is odd meanwhile.
const VERSION: u64 = 1 << 32;
/// How often a record that is being written is looked at again. Its process may have been killed.
const TRIES: usize = 10_000;

impl One {
    /// The first word, once no process is writing the record.
    fn settled(&self) -> u64 {
        let mut word = self.record[0].load(Ordering::Acquire);
        for _ in 0..TRIES {
            if word & VERSION == 0 {
                break;
            }
            core::hint::spin_loop();
            word = self.record[0].load(Ordering::Acquire);
        }
        word
    }

    fn read(&self) -> Record {
        let mut record = [0; RECORD_WORDS];
        for _ in 0..TRIES {
            let before = self.settled();
            record = core::array::from_fn(|n| self.record[n].load(Ordering::Acquire));
            record[0] = before % VERSION;
            if self.record[0].load(Ordering::Acquire) == before {
                break;
            }
        }
        record
    }

    fn write(&self, record: &Record) {
        let mut before = self.settled();
        // Marked before any other word changes, and by one process.
        while let Err(other) = self.record[0].compare_exchange(
            before,
            (before | VERSION) & !(VERSION - 1),
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            before = if other & VERSION == 0 { other } else { self.settled() };
        }
        let words = self.record.iter().zip(record).skip(1);
        words.for_each(|(to, word)| to.store(*word, Ordering::Release));
        let after = (before | VERSION).wrapping_add(VERSION) & !(VERSION - 1);
        self.record[0].store(after | record[0], Ordering::Release);
    }
}

/// What a socket is.
pub fn record(at: u32) -> Record {
    connection(at).map_or([0; RECORD_WORDS], One::read)
}

/// Says what a socket is. The first word of a record has 32 bits.
pub fn set_record(at: u32, record: &Record) {
    if let Some(one) = connection(at).filter(|one| one.read() != *record) {
        one.write(record);
    }
}

/// Which of the sockets that have had a place has it now.
pub fn serial(at: u32) -> u32 {
    connection(at).map_or(0, |one| one.serial.load(Ordering::Acquire))
}

/// The places where a name may be.
fn places(inode: u64) -> impl Iterator<Item = &'static Name> {
    let first = (inode.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
    let names = shared().map(|shared| &shared.names);
    names
        .into_iter()
        .flat_map(move |names| (0..NAME_PLACES).map(move |n| &names[(first + n) % NAMES_MAX]))
}

/// The socket of a name, if that is still the same.
fn socket_of(name: &Name) -> Option<u32> {
    let word = name.socket.load(Ordering::Acquire);
    let one = connection(word as u32)?;
    let is_same = one.serial.load(Ordering::Acquire) == (word >> 32) as u32;
    (is_same && one.holders.load(Ordering::Acquire) != 0).then_some(word as u32)
}

/// The Linux file with this inode stands under descriptors of a socket. False: there is no room to
/// note it.
pub fn name(at: u32, inode: u64) -> bool {
    let Some(one) = connection(at) else { return false };
    let word = u64::from(one.serial.load(Ordering::Acquire)) << 32 | u64::from(at);
    if let Some(name) = places(inode).find(|name| name.inode.load(Ordering::Acquire) == inode) {
        name.socket.store(word, Ordering::Release);
        return true;
    }
    places(inode).any(|name| {
        let before = name.inode.load(Ordering::Acquire);
        let is_free = before == 0 || socket_of(name).is_none();
        let (acquire, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
        let taken = is_free && name.inode.compare_exchange(before, inode, acquire, relaxed).is_ok();
        if taken {
            name.socket.store(word, Ordering::Release);
        }
        taken
    })
}

/// The socket under whose descriptors the Linux file with this inode stands.
pub fn named(inode: u64) -> Option<u32> {
    let name = places(inode).find(|name| name.inode.load(Ordering::Acquire) == inode)?;
    socket_of(name)
}

/// This process uses a connection that another one owns.
pub fn want(at: u32) {
    if let Some(one) = connection(at) {
        let own = OWN.load(Ordering::Relaxed);
        if one.wanted.swap(own, Ordering::AcqRel) != own {
            changed();
            one.nudge_owner();
        }
    }
}

/// The number in the dataplane of the process that a connection is to go to: one that uses it, or
/// with `any` one that has it.
pub fn taker(at: u32, any: bool) -> Option<u32> {
    let (own, shared, one) = (own()?, shared()?, connection(at)?);
    let number = |place: usize| {
        let is_other = place != own && one.holders.load(Ordering::Acquire) >> place & 1 != 0;
        let number = shared.attachments[place].load(Ordering::Acquire);
        // One that was killed has left its number.
        number.checked_sub(1).filter(|_| is_other && lives(shared, place))
    };
    let wanted = one.wanted.load(Ordering::Acquire).checked_sub(1).map(|place| place as usize);
    let wanted = wanted.filter(|place| *place < PROCESSES_MAX).and_then(number);
    wanted.or_else(|| any.then(|| (0..PROCESSES_MAX).find_map(number)).flatten())
}

/// Threads of this process wait for a connection, or do so no more.
pub fn watches(at: u32, yes: bool) {
    let (Some(own), Some(one)) = (own(), connection(at)) else { return };
    let bit = 1 << own;
    if !yes {
        one.watchers.fetch_and(!bit, Ordering::AcqRel);
    } else if one.watchers.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
        changed();
        one.nudge_owner();
    }
}

/// The number in the dataplane of a process that waits for what this one does not wait for.
pub fn watcher(at: u32) -> Option<u32> {
    let (own, shared, one) = (own()?, shared()?, connection(at)?);
    let all = one.watchers.load(Ordering::Acquire) & one.holders.load(Ordering::Acquire);
    let number = |place: usize| {
        let number = shared.attachments[place].load(Ordering::Acquire).checked_sub(1);
        number.filter(|_| all >> place & 1 != 0 && lives(shared, place))
    };
    if all >> own & 1 != 0 { None } else { (0..PROCESSES_MAX).find_map(number) }
}

/// This process owns it now. Another one may want it already: the giver, which hears later that it
/// has given it, cannot tell.
pub fn took(at: u32) {
    if let Some(one) = connection(at) {
        let (own, relaxed) = (OWN.load(Ordering::Relaxed), Ordering::Relaxed);
        owns(at);
        // An error means that another one wants it.
        let _ = one.wanted.compare_exchange(own, 0, Ordering::AcqRel, relaxed);
    }
}

/// Whether another living process has a connection.
pub fn have_others(at: u32) -> bool {
    let (Some(own), Some(shared), Some(one)) = (own(), shared(), connection(at)) else {
        return false;
    };
    let holders = one.holders.load(Ordering::Acquire) & !(1 << own);
    (0..PROCESSES_MAX).any(|place| holders >> place & 1 != 0 && lives(shared, place))
}

/// The numbers in the dataplane of the other processes that have a socket, as bits.
pub fn others(at: u32) -> u64 {
    let (Some(own), Some(shared), Some(one)) = (own(), shared(), connection(at)) else { return 0 };
    let holders = one.holders.load(Ordering::Acquire) & !(1 << own);
    let numbers =
        (0..PROCESSES_MAX).filter(|place| holders >> place & 1 != 0).filter_map(|place| {
            let number = shared.attachments[place].load(Ordering::Acquire).checked_sub(1);
            number.filter(|_| lives(shared, place))
        });
    numbers.fold(0, |all, number| all | 1 << (number % u64::BITS))
}

/// This process has closed a connection.
pub fn leave(at: u32) {
    if let (Some(own), Some(one)) = (own(), connection(at)) {
        one.holders.fetch_and(!(1 << own), Ordering::AcqRel);
        changed();
        one.nudge_owner();
    }
}

/// This process ends, or executes another program: it has none of them any more but these.
pub fn leave_all_but(kept: &[u32]) {
    let (Some(own), Some(shared)) = (own(), shared()) else { return };
    shared.drop_all_of(own, |at| kept.contains(&at));
    changed();
}

/// This process ends, and gives its place back.
pub fn gone() {
    leave_all_but(&[]);
    if let (Some(own), Some(shared)) = (own(), shared()) {
        OWN.store(0, Ordering::Relaxed);
        shared.attachments[own].store(0, Ordering::Release);
        shared.pids[own].store(0, Ordering::Release);
    }
}

/// Notes how many bytes of the peer's stream this owner and those before it have read in all.
pub fn set_consumed(at: u32, bytes: u64) {
    if let Some(one) = connection(at) {
        one.consumed.store(bytes, Ordering::Release);
    }
}

/// How many bytes the owners have read.
pub fn consumed(at: u32) -> u64 {
    connection(at).map_or(0, |one| one.consumed.load(Ordering::Acquire))
}

/// A connection has ended, which the other processes hear this way.
pub fn ends(at: u32, errno: i32) {
    if let Some(one) = connection(at) {
        let (said, acquire, relaxed) = (errno as u32 + 1, Ordering::AcqRel, Ordering::Relaxed);
        if one.ended.compare_exchange(0, said, acquire, relaxed).is_ok() {
            tell_others(at);
        }
    }
}

/// There are news of a socket: all others that have it should look.
pub fn tell_others(at: u32) {
    let (Some(one), Some(shared)) = (connection(at), shared()) else { return };
    changed();
    let holders = one.holders.load(Ordering::Acquire);
    let others = shared.attachments.iter().enumerate();
    others
        .filter(|(place, _)| holders >> place & 1 != 0)
        .for_each(|(_, number)| nudge(number.load(Ordering::Acquire)));
}

/// A process takes the errno of a connection that has ended, so that no other process gets it.
/// Returns the errno, or 0 if another process has taken it before.
pub fn take_end(at: u32, errno: i32) -> i32 {
    let Some(one) = connection(at) else { return errno };
    let (said, taken) = (errno as u32 + 1, 1);
    let (acquire, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
    match one.ended.compare_exchange(said, taken, acquire, relaxed) {
        // No process was told before: the others will be told of the end without its errno.
        Ok(_) | Err(0) => errno,
        Err(_) => 0,
    }
}

/// What all processes see of a socket; 0: nothing is noted.
pub fn flags(at: u32) -> u32 {
    connection(at).map_or(0, |one| one.flags.load(Ordering::Acquire))
}

/// Notes what all processes are to see of a socket, if nothing is noted.
pub fn begin_flags(at: u32, flags: u32) {
    if let Some(one) = connection(at) {
        let _ = one.flags.compare_exchange(0, flags, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// This process has changed some of the flags.
pub fn change_flags(at: u32, before: u32, after: u32) {
    let Some(one) = connection(at) else { return };
    one.flags.fetch_or(after & !before, Ordering::AcqRel);
    one.flags.fetch_and(!(before & !after), Ordering::AcqRel);
    changed();
    one.nudge_owner();
}

/// How a connection of another process has ended.
pub fn end_of(at: u32) -> Option<i32> {
    let ended = connection(at)?.ended.load(Ordering::Acquire);
    ended.checked_sub(1).map(|errno| errno as i32)
}

/// Tests that stand for processes of a run: one at a time has this process's place.
#[cfg(test)]
pub static ONE_TEST: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_goes_to_whoever_uses_it_and_ends_with_the_last() {
        let _one = ONE_TEST.lock();
        begin_run();
        // Another test may have taken one in other memory.
        OWN.store(0, Ordering::Relaxed);
        pid::note();
        assert!(before_fork(), "there is a place");
        let at = share(None).expect("a place");
        assert_eq!(share(Some(at)), Some(at));
        assert!(have_others(at), "a child that is about to begin");
        assert_eq!(taker(at, true), None, "which has no number yet");
        // The fork fails.
        after_fork();
        not_forked();
        assert!(!have_others(at), "there is no child");
        assert!(before_fork(), "there is a place");
        assert_eq!(share(Some(at)), Some(at));
        // As in the child.
        let (own, child) = (OWN.load(Ordering::Relaxed), CHILD.load(Ordering::Relaxed));
        forked();
        let before = changes();
        attached(6);
        want(at);
        assert_ne!(changes(), before);
        // As in the parent.
        OWN.store(own, Ordering::Relaxed);
        assert_eq!((taker(at, false), taker(at, true)), (Some(5), Some(5)));
        took(at);
        assert_eq!(taker(at, false), Some(5), "the child still wants it");
        OWN.store(child, Ordering::Relaxed);
        took(at);
        OWN.store(own, Ordering::Relaxed);
        assert_eq!((taker(at, false), taker(at, true)), (None, Some(5)));
        leave(at);
        assert!(have_others(at));
        // The child has ended, whatever it has said.
        shared().expect("memory").pids[child as usize - 1].store(i32::MAX, Ordering::Relaxed);
        assert!(!have_others(at));
        assert!(has_ended(5) && !has_ended(6), "by the number that it had");
        attached(6);
        assert!(!has_ended(5), "this process has that number now");
    }

    #[test]
    fn a_record_is_read_whole_while_several_write_it() {
        let one = One {
            holders: AtomicU64::new(1),
            serial: AtomicU32::new(0),
            record: [const { AtomicU64::new(0) }; RECORD_WORDS],
            wanted: AtomicU32::new(0),
            watchers: AtomicU64::new(0),
            owner: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            passed: AtomicU32::new(0),
            consumed: AtomicU64::new(0),
        };
        one.write(&[9; RECORD_WORDS]);
        let writes = |word: u64| (0..20_000).for_each(|_| one.write(&[word; RECORD_WORDS]));
        std::thread::scope(|scope| {
            scope.spawn(|| writes(7));
            scope.spawn(|| writes(8));
            for _ in 0..20_000 {
                let record = one.read();
                assert_eq!(record, [record[0]; RECORD_WORDS], "of one process");
            }
        });
        let last = one.read()[0];
        assert!(last == 7 || last == 8, "{last}");
    }
}
