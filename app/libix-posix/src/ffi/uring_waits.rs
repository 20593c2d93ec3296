//! Operations of io_uring that wait for a socket of IX.
//!
//! One that can be done is done before Linux is told of its entry, which then completes with the
//! result. One that has to wait is kept here, and its entry completes without a trace. A thread
//! that waits for completions waits for the sockets of all such operations as well; where none
//! does, because the program looks at the ring's memory or polls its descriptor, a thread of ours
//! waits for them. What they bring is Linux's to write into the program's ring, so it is sent there
//! as messages from a ring of ours (`IORING_OP_MSG_RING`), all of them by one call.
use super::direct::bare;
use super::own_ring::OwnRing as Own;
use super::{sockets, transfer, waits};
use crate::ops::Instead;
use crate::uring::{Entry, Message, Ring, Waits};
use crate::{fds, pid, poll, signals};
use core::ptr::{null_mut, with_exposed_provenance, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, c_int, c_long, pollfd};
use std::os::fd::RawFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// `io_uring_enter` waits for completions.
const GETEVENTS: u64 = 1 << 0;
/// Its fifth argument is a structure.
const EXT_ARG: u64 = 1 << 3;
/// The time in that structure is one of the clock.
const ABS_TIMER: u64 = 1 << 5;

/// How long the program must not have been in `io_uring_enter` before the helper waits in its
/// place: at first, and while it is there often.
const OUTSIDE: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(10)];
/// How long the helper waits at a time.
const SLICE: Duration = Duration::from_millis(20);

/// An operation that waits.
struct Waiting {
    ring: RawFd,
    /// What its descriptor was; another socket may have the number since.
    socket: fds::Entry,
    entry: Entry,
    waits: Waits,
}

/// All of them, in their order.
struct State {
    all: Vec<Waiting>,
    own: Option<Own>,
}

struct Shared {
    /// The process that has them.
    pid: i32,
    state: Mutex<State>,
    /// There is one more.
    more: Condvar,
    count: AtomicUsize,
    /// Threads of the program that look after them, and how often one has begun to.
    inside: AtomicUsize,
    entered: AtomicU32,
    is_helped: AtomicBool,
}

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(null_mut());

/// Those of this process, if it has had any: in a forked child they are its parent's.
fn there() -> Option<&'static Shared> {
    // SAFETY: null, or a value that is never freed.
    let shared = unsafe { SHARED.load(Ordering::Acquire).as_ref() };
    shared.filter(|shared| shared.pid == pid::own())
}

fn shared() -> &'static Shared {
    if let Some(shared) = there() {
        return shared;
    }
    let before = SHARED.load(Ordering::Acquire);
    let new = Box::leak(Box::new(Shared {
        pid: pid::own(),
        state: Mutex::new(State { all: Vec::new(), own: None }),
        more: Condvar::new(),
        count: AtomicUsize::new(0),
        inside: AtomicUsize::new(0),
        entered: AtomicU32::new(0),
        is_helped: AtomicBool::new(false),
    }));
    let (acquire, release) = (Ordering::Acquire, Ordering::AcqRel);
    match SHARED.compare_exchange(before, new, release, acquire) {
        Ok(_) => new,
        // SAFETY: another thread's, which is never freed.
        Err(other) => unsafe { &*other },
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether any operation waits.
fn are_any() -> bool {
    there().is_some_and(|shared| shared.count.load(Ordering::Acquire) > 0)
}

impl State {
    fn set_count(&self, shared: &Shared) {
        shared.count.store(self.all.len(), Ordering::Release);
    }

    /// Whether an earlier operation of this kind waits for the same socket: this one is not done
    /// before it.
    fn is_behind(&self, entry: &Entry, waits: Waits) -> bool {
        let before = |one: &Waiting| one.entry.fd == entry.fd && one.waits.side == waits.side;
        waits.side.is_some() && self.all.iter().any(before)
    }

    /// Does what has become possible of a ring's operations; `None`: of all rings'.
    fn go_on(&mut self, shared: &Shared, ring: Option<&Ring>) {
        let mut messages = Vec::new();
        let mut stuck: Vec<(RawFd, Option<bool>)> = Vec::new();
        let mut all = core::mem::take(&mut self.all);
        all.retain(|one| {
            if ring.is_some_and(|ring| ring.fd != one.ring) {
                return true;
            }
            let at = (one.entry.fd, one.waits.side);
            if one.waits.side.is_some() && stuck.contains(&at) {
                return true;
            }
            if fds::get(one.entry.fd) != one.socket {
                // It was closed meanwhile.
                messages.push(one.message(-libc::ECANCELED, false));
                return false;
            }
            let room = ring.map_or(1, |ring| ring.room(messages.len()));
            for _ in 0..room.max(1) {
                // SAFETY: the program's own arguments, which wait for the operation's end.
                let result = unsafe { attempt(&one.entry) };
                match result {
                    _ if result == -libc::EAGAIN => {
                        stuck.push(at);
                        return true;
                    }
                    _ if one.waits.again && result >= 0 => {
                        messages.push(one.message(result, true));
                    }
                    _ => {
                        messages.push(one.message(result, false));
                        return false;
                    }
                }
            }
            true
        });
        all.append(&mut self.all);
        self.all = all;
        self.set_count(shared);
        self.send(&messages);
    }

    fn send(&mut self, messages: &[Message]) {
        if messages.is_empty() {
            return;
        }
        if self.own.is_none() {
            self.own = Own::make();
        }
        if let Some(own) = &mut self.own {
            own.send(messages);
        }
    }
}

impl Waiting {
    fn message(&self, result: c_int, more: bool) -> Message {
        Message { ring: self.ring, user_data: self.entry.user_data, result, more }
    }

    fn poll(&self) -> pollfd {
        pollfd { fd: self.entry.fd, events: self.waits.events, revents: 0 }
    }
}

/// Makes the call that an operation stands for, without waiting. Returns what the operation does.
///
/// # Safety
/// The program's own arguments.
unsafe fn attempt(entry: &Entry) -> c_int {
    let (fd, len, flags) = (entry.fd, entry.len as usize, entry.op_flags as c_int);
    let at = with_exposed_provenance_mut::<libc::c_void>(entry.address as usize);
    // SAFETY: the caller's promise; all-zero bytes are a valid header.
    unsafe {
        let mut pieces: libc::msghdr = core::mem::zeroed();
        (pieces.msg_iov, pieces.msg_iovlen) = (at.cast(), len);
        let (wait, quiet) = (MSG_DONTWAIT, MSG_DONTWAIT | MSG_NOSIGNAL);
        let result = match entry.opcode {
            Entry::RECV => transfer::recv(fd, at, len, flags | wait),
            Entry::READ => transfer::recv(fd, at, len, wait),
            Entry::READV => transfer::recvmsg(fd, &mut pieces, wait),
            Entry::RECVMSG => transfer::recvmsg(fd, at.cast(), flags | wait),
            Entry::SEND => transfer::send(fd, at, len, flags | quiet),
            Entry::WRITE => transfer::send(fd, at, len, quiet),
            Entry::WRITEV => transfer::sendmsg(fd, &pieces, quiet),
            Entry::SENDMSG => transfer::sendmsg(fd, at.cast(), flags | quiet),
            Entry::ACCEPT => {
                let room = with_exposed_provenance_mut(entry.offset as usize);
                sockets::accept_now(fd, at.cast(), room, flags) as isize
            }
            Entry::POLL_ADD => {
                let mut one = pollfd { fd, events: flags as i16, revents: 0 };
                match waits::poll(&mut one, 1, 0) {
                    1 => one.revents as isize,
                    0 => return -libc::EAGAIN,
                    failed => failed as isize,
                }
            }
            _ => return -libc::EOPNOTSUPP,
        };
        super::uring::linux(result as c_int) as c_int
    }
}

/// An operation on a socket of IX: does it, or keeps it. Returns the entry that Linux gets.
///
/// # Safety
/// The program's own entry.
pub unsafe fn begin(ring: &Ring, entry: &Entry, waits: Waits) -> Entry {
    let shared = shared();
    let _hold = signals::hold();
    let mut state = shared.lock();
    if !waits.again && !state.is_behind(entry, waits) {
        // SAFETY: the caller's promise.
        let result = unsafe { attempt(entry) };
        if result != -libc::EAGAIN {
            return entry.completed(result);
        }
    }
    state.all.push(Waiting { ring: ring.fd, socket: fds::get(entry.fd), entry: *entry, waits });
    if waits.again {
        state.go_on(shared, Some(ring));
    }
    state.set_count(shared);
    if !shared.is_helped.swap(true, Ordering::AcqRel) {
        signals::spawn("ix-uring", || help(shared));
    }
    shared.more.notify_one();
    entry.unseen()
}

/// An operation that ends others: those that wait here, of this ring. Returns how many.
pub fn cancel(ring: RawFd, which: impl Fn(&Entry) -> bool, all: bool) -> usize {
    if !are_any() {
        return 0;
    }
    let shared = shared();
    let _hold = signals::hold();
    let mut state = shared.lock();
    let (mut left, mut messages) = (if all { usize::MAX } else { 1 }, Vec::new());
    state.all.retain(|one| {
        let goes = left > 0 && one.ring == ring && which(&one.entry);
        if goes {
            left -= 1;
            messages.push(one.message(-libc::ECANCELED, false));
        }
        !goes
    });
    state.set_count(shared);
    state.send(&messages);
    messages.len()
}

/// A ring is closed.
pub fn forget(ring: RawFd) {
    if are_any() {
        let shared = shared();
        let _hold = signals::hold();
        let mut state = shared.lock();
        state.all.retain(|one| one.ring != ring);
        state.set_count(shared);
    }
}

/// A thread of the program looks after the operations.
struct Inside(&'static Shared);

impl Inside {
    fn new() -> Inside {
        let shared = shared();
        shared.inside.fetch_add(1, Ordering::AcqRel);
        shared.entered.fetch_add(1, Ordering::AcqRel);
        Inside(shared)
    }

    fn go_on(&self, ring: &Ring) {
        let _hold = signals::hold();
        self.0.lock().go_on(self.0, Some(ring));
    }

    /// What the ring's operations wait for, behind the ring itself.
    fn polls(&self, ring: &Ring) -> Vec<pollfd> {
        let _hold = signals::hold();
        let state = self.0.lock();
        let own = state.all.iter().filter(|one| one.ring == ring.fd).map(Waiting::poll);
        let first = pollfd { fd: ring.fd, events: libc::POLLIN, revents: 0 };
        core::iter::once(first).chain(own).collect()
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::AcqRel);
    }
}

/// `io_uring_enter`, whose entries were looked at, on a ring with operations that wait here.
/// `None`: it has none, and the call is Linux's alone.
///
/// # Safety
/// As the system call.
pub unsafe fn enter(ring: &Ring, arguments: [c_long; 6]) -> Option<c_long> {
    if !are_any() {
        return None;
    }
    let inside = Inside::new();
    let [fd, count, least, flags, ..] = arguments;
    let bits = flags as u64;
    let linux = |count: c_long, flags: u64| {
        // SAFETY: without the arguments that name memory.
        unsafe { bare(libc::SYS_io_uring_enter, [fd, count, 0, flags as c_long, 0, 0]) }
    };
    let mut submitted = 0;
    if count > 0 {
        submitted = linux(count, bits & !(GETEVENTS | EXT_ARG));
        if submitted < 0 {
            return Some(submitted);
        }
    }
    inside.go_on(ring);
    if bits & GETEVENTS == 0 {
        return Some(submitted);
    }
    // SAFETY: the caller's promise.
    let (mask, until) = match unsafe { limits(arguments) } {
        Ok(limits) => limits,
        Err(errno) => return Some(-c_long::from(errno)),
    };
    let or = |errno: c_int| if submitted > 0 { submitted } else { -c_long::from(errno) };
    loop {
        // Linux finishes its own operations in this call.
        linux(0, GETEVENTS);
        if u64::from(ring.ready()) >= least as u64 {
            return Some(submitted);
        }
        let mut polls = inside.polls(ring);
        // SAFETY: null, or a mask of the program's.
        match unsafe { waits::with_mask(mask, || poll::poll(&mut polls, until)) } {
            Ok(0) => return Some(or(libc::ETIME)),
            Ok(_) => inside.go_on(ring),
            Err(Instead::Errno(errno)) => return Some(or(errno)),
            // Nothing of IX is left to wait for.
            Err(Instead::Linux | Instead::Made(_)) => {
                let [.., flags, a, b] = arguments;
                // SAFETY: as the system call.
                let waited = unsafe { bare(libc::SYS_io_uring_enter, [fd, 0, least, flags, a, b]) };
                return Some(if waited < 0 && submitted == 0 { waited } else { submitted });
            }
        }
    }
}

/// The mask of signals while the call waits, and when its wait ends.
///
/// # Safety
/// As the system call.
unsafe fn limits(
    arguments: [c_long; 6],
) -> Result<(*const libc::sigset_t, Option<Instant>), c_int> {
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Extended {
        mask: u64,
        _mask_bytes: u32,
        _least_us: u32,
        time: u64,
    }
    let [.., flags, at, _] = arguments;
    if flags as u64 & EXT_ARG == 0 {
        return Ok((with_exposed_provenance(at as usize), None));
    }
    let at = with_exposed_provenance::<Extended>(at as usize);
    if !crate::mem::is_possible(at, size_of::<Extended>()) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the program's own structure, and its time.
    let (told, time) = unsafe {
        let told = at.read_unaligned();
        (told, waits::duration(with_exposed_provenance(told.time as usize))?)
    };
    let time = time.map(|time| match flags as u64 & ABS_TIMER {
        0 => time,
        _ => time.saturating_sub(Duration::from_micros(crate::clock::now_us())),
    });
    let until = time.and_then(|time| Instant::now().checked_add(time));
    Ok((with_exposed_provenance(told.mask as usize), until))
}

/// What the thread of ours does until the process ends.
fn help(shared: &'static Shared) {
    let (mut seen, mut rest) = (0, OUTSIDE[0]);
    loop {
        let mut state = shared.lock();
        while state.all.is_empty() {
            state = shared.more.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let mut polls: Vec<pollfd> = state.all.iter().map(Waiting::poll).collect();
        drop(state);
        let entered = shared.entered.load(Ordering::Acquire);
        if entered != seen || shared.inside.load(Ordering::Acquire) > 0 {
            seen = entered;
            std::thread::sleep(rest);
            rest = (rest * 2).min(OUTSIDE[1]);
            continue;
        }
        rest = OUTSIDE[0];
        if poll::poll(&mut polls, Some(Instant::now() + SLICE)) != Ok(0) {
            let _hold = signals::hold();
            shared.lock().go_on(shared, None);
        }
    }
}
