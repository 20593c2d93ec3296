//! Signal handlers of the program. They must run neither inside the dataplane, where another
//! thread-local storage is in force, nor while this library holds its lock.
//!
//! `sigaction` puts our own handler in front of the program's. It runs the program's at once if it
//! may. Otherwise it keeps the signal and makes the dataplane return. As soon as the thread is
//! outside, it sends the signal to itself again, and the kernel delivers it as the program wants.
//! No signal is blocked, so default actions, `signalfd` and masks work as usual.
use crate::confined::ELASTIC_THREADS_MAX;
use crate::{kick, log, real, wake};
use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering, compiler_fence};
use libc::{
    SA_NODEFER, SA_RESETHAND, SA_RESTART, SA_SIGINFO, SIG_DFL, SIG_IGN, SIGSYS, c_int, c_void,
    siginfo_t,
};
use std::os::fd::RawFd;
use std::time::Duration;

const SIGNALS: usize = 65;
/// Most signals that are kept for one thread. Further real-time signals are lost.
const KEPT_MAX: usize = 32;

/// The action that the program has set for a signal.
struct Action {
    handler: AtomicUsize,
    flags: AtomicI32,
}

static ACTIONS: [Action; SIGNALS] =
    [const { Action { handler: AtomicUsize::new(SIG_DFL), flags: AtomicI32::new(0) } }; SIGNALS];

/// The thread id of the driver inside each elastic thread; 0: none.
static INSIDE: [AtomicI32; ELASTIC_THREADS_MAX] =
    [const { AtomicI32::new(0) }; ELASTIC_THREADS_MAX];
/// Signals kept for the drivers inside. Handlers on the driver's thread write them; it reads them.
static KEPT_INSIDE: [Kept; ELASTIC_THREADS_MAX] = [const { Kept::new() }; ELASTIC_THREADS_MAX];

struct Kept {
    count: AtomicUsize,
    infos: UnsafeCell<[core::mem::MaybeUninit<siginfo_t>; KEPT_MAX]>,
}

// SAFETY: used only by the thread that is inside and by handlers that interrupt it. Handlers add at
// `count`; the thread reads when it is outside.
unsafe impl Sync for Kept {}

impl Kept {
    const fn new() -> Kept {
        let infos = [const { core::mem::MaybeUninit::uninit() }; KEPT_MAX];
        Kept { count: AtomicUsize::new(0), infos: UnsafeCell::new(infos) }
    }

    fn add(&self, info: &siginfo_t) {
        let index = self.count.fetch_add(1, Ordering::SeqCst);
        if index < KEPT_MAX {
            // SAFETY: only this handler uses the place.
            unsafe { (*self.infos.get())[index].write(*info) };
        }
    }

    /// Sends all kept signals to the calling thread.
    fn send_again(&self) {
        let count = self.count.swap(0, Ordering::SeqCst).min(KEPT_MAX);
        // Copied first, because handlers run in between and may keep more.
        // SAFETY: written by handlers that have returned.
        let infos = unsafe { *self.infos.get() };
        for info in &infos[..count] {
            // SAFETY: `add` has written it. Linux lets a process send any information to itself.
            unsafe {
                let info = info.assume_init_ref();
                let (pid, tid) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
                libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, info.si_signo, info);
            }
        }
    }
}

/// A signal waits for the end of the call ([`Place::postpone`]).
const POSTPONED: u32 = 4;

/// The call that it ends must not be made again (signal(7): one with a time limit).
const NOT_AGAIN: u32 = 8;

/// The handler in front of the program's handlers, if it is another one than [`on_signal`].
static FRONT: AtomicUsize = AtomicUsize::new(0);

/// The state of one thread.
struct Own {
    /// How many [`Hold`]s there are.
    held: Cell<u32>,
    /// How many handlers of the program run, or have left by `longjmp`.
    handlers: Cell<u32>,
    /// A handler has run: 1, or 2 if calls must not be restarted. [`POSTPONED`]: one is to run.
    interrupted: Cell<u32>,
    /// The thread was cancelled while it waited, and is on its way out.
    cancelled: Cell<bool>,
    /// Cancellation does not end the present wait.
    deaf: Cell<bool>,
    /// It has made a call that is a cancellation point since the first thread was cancelled.
    known: Cell<bool>,
    waits: AtomicBool,
    kept: Kept,
    tid: Cell<i32>,
    /// The wake descriptor that the thread sleeps on; -1: it does not sleep.
    wake_fd: Cell<i32>,
    /// It starts a thread of this library's.
    spawns: Cell<bool>,
    /// [`POSTPONED`] and perhaps [`NOT_AGAIN`], or 0.
    postponed: Cell<u32>,
}

thread_local! {
    static OWN: Own = const {
        Own {
            held: Cell::new(0),
            handlers: Cell::new(0),
            interrupted: Cell::new(0),
            cancelled: Cell::new(false),
            deaf: Cell::new(false),
            known: Cell::new(false),
            waits: AtomicBool::new(false),
            kept: Kept::new(),
            tid: Cell::new(0),
            wake_fd: Cell::new(-1),
            spawns: Cell::new(false),
            postponed: Cell::new(0),
        }
    };
}

/// While there is one, handlers of the program wait on this thread.
pub struct Hold(*const Own);

/// From now on, handlers of the program wait on this thread.
#[inline]
pub fn hold() -> Hold {
    // A thread that ends has no state any more, and handles no signals.
    let own = OWN.try_with(|own| {
        own.held.set(own.held.get() + 1);
        core::ptr::from_ref(own)
    });
    Hold(own.unwrap_or(core::ptr::null()))
}

impl Drop for Hold {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: null, or this thread's state: a `Hold` stays on its thread. The state has no
        // destructor, so it lives as long as the thread.
        let Some(own) = (unsafe { self.0.as_ref() }) else { return };
        own.held.set(own.held.get() - 1);
        compiler_fence(Ordering::SeqCst);
        if own.held.get() == 0 && own.waits.load(Ordering::Relaxed) {
            own.waits.store(false, Ordering::Relaxed);
            own.kept.send_again();
        }
    }
}

/// Whether this library is at work on this thread, perhaps with the lock.
pub fn is_held() -> bool {
    OWN.try_with(|own| own.held.get() > 0) == Ok(true)
}

/// Whether the calling thread may be in a handler of the program, or this library is at work on it.
pub fn may_be_in_handler() -> bool {
    // Handlers of a program whose calls are intercepted are not counted.
    let front = FRONT.load(Ordering::Relaxed);
    let are_counted = front == 0 || front == on_signal as *const () as usize;
    let is_free = OWN.try_with(|own| own.held.get() == 0 && own.handlers.get() == 0);
    !are_counted || is_free != Ok(true)
}

/// Whether handlers of the program wait on this thread.
pub fn are_kept() -> bool {
    OWN.with(|own| own.waits.load(Ordering::Relaxed))
}

/// The thread id of the calling thread.
fn tid_of(own: &Own) -> i32 {
    if own.tid.get() == 0 {
        // SAFETY: no arguments.
        own.tid.set(unsafe { libc::syscall(libc::SYS_gettid) } as i32);
    }
    own.tid.get()
}

/// In a forked child, whose thread has another id.
pub fn forked() {
    OWN.with(|own| own.tid.set(0));
    INSIDE.iter().for_each(|inside| inside.store(0, Ordering::SeqCst));
}

/// Runs `visit` inside an elastic thread. Its argument is false if a handler has run on this thread
/// since [`reset`], or waits for the end of a [`Hold`]; then it must not sleep.
pub fn inside<R>(elastic: usize, visit: impl FnOnce(bool) -> R) -> R {
    OWN.with(|own| {
        // Only handlers on this thread look for its id, so only the compiler's order matters.
        INSIDE[elastic].store(tid_of(own), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let may_wait = own.interrupted.get() == 0 && !own.waits.load(Ordering::Relaxed);
        let result = visit(may_wait);
        compiler_fence(Ordering::SeqCst);
        INSIDE[elastic].store(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if KEPT_INSIDE[elastic].count.load(Ordering::SeqCst) != 0 {
            KEPT_INSIDE[elastic].send_again();
        }
        result
    })
}

/// Sleeps until the wake descriptor is written or `linux` is readable; returns whether `linux` may
/// be. Does not sleep if a handler has run since [`reset`], and stops if one runs.
pub fn sleep(wake_fd: RawFd, linux: Option<RawFd>, left: Option<Duration>) -> bool {
    let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut polls = [poll(wake_fd), poll(linux.unwrap_or(-1))];
    let time = left.map(|left| libc::timespec {
        tv_sec: left.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: left.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    real::own_call();
    asleep(wake_fd, || {
        // SAFETY: an array with its length, a time or null, no mask.
        unsafe { libc::syscall(libc::SYS_ppoll, polls.as_mut_ptr(), 2, time, 0, 8) };
    });
    if polls[0].revents != 0 {
        wake::clear(wake_fd);
    }
    polls[1].revents != 0
}

/// Makes a call in which this thread sleeps until the wake descriptor is written, among others,
/// unless a handler has run since [`reset`]. One that runs from here on writes the descriptor.
pub fn asleep(wake_fd: RawFd, call: impl FnOnce()) {
    OWN.with(|own| own.wake_fd.set(wake_fd));
    if interrupted() == 0 {
        call();
    }
    OWN.with(|own| own.wake_fd.set(-1));
}

/// Starts a thread of ours, with all signals blocked: the program's handlers run on its own
/// threads.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    // SAFETY: sets of ours; the calls cannot fail with these arguments.
    unsafe {
        let (mut all, mut before) = core::mem::zeroed::<(libc::sigset_t, libc::sigset_t)>();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        OWN.with(|own| own.spawns.set(true));
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(body);
        OWN.with(|own| own.spawns.set(false));
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, core::ptr::null_mut());
        if let Err(error) = started {
            log::line(&format!(
                "cannot start thread {name} ({error}): connections stall while the program computes"
            ));
        }
    }
}

/// Whether the calling thread starts one of this library's.
pub fn spawns() -> bool {
    OWN.try_with(|own| own.spawns.get()) == Ok(true)
}

/// Forgets that handlers have run on this thread.
pub fn reset() {
    OWN.with(|own| own.interrupted.set(own.postponed.get()));
}

/// Forgets that handlers have run on this thread, or are to run, until the next [`reset`].
pub fn go_on() {
    OWN.with(|own| own.interrupted.set(0));
}

/// The call that has a time limit, if it has one, ends for a handler: it is not made again.
pub fn ends_call(limit: Option<Duration>) {
    OWN.with(|own| {
        if limit.is_some() && own.postponed.get() != 0 {
            own.postponed.set(POSTPONED | NOT_AGAIN);
        }
    });
}

/// After [`go_on`]: handlers that are still to run end waits again.
pub fn after_going_on() {
    OWN.with(|own| own.interrupted.set(own.interrupted.get() | own.postponed.get()));
}

/// Whether a handler has run since [`reset`], or is postponed: 0, 1, or more if calls must not be
/// restarted.
pub fn interrupted() -> u32 {
    OWN.with(|own| own.interrupted.get())
}

/// The calling thread was cancelled ([`crate::cancel`]): its call ends as if a handler had run, and
/// is not restarted.
pub fn note_cancelled() {
    OWN.with(|own| {
        own.interrupted.set(2);
        own.cancelled.set(true);
    });
}

/// Whether the calling thread was cancelled in this call. Forgets it.
pub fn take_cancelled() -> bool {
    OWN.try_with(|own| own.cancelled.replace(false)) == Ok(true)
}

/// Sets whether cancellation leaves the calling thread's waits alone. Returns what was set before.
pub fn set_deaf(deaf: bool) -> bool {
    OWN.try_with(|own| own.deaf.replace(deaf)) == Ok(true)
}

/// Whether cancellation leaves the calling thread's waits alone.
pub fn is_deaf() -> bool {
    OWN.with(|own| own.deaf.get())
}

/// Whether the calling thread asks this for the first time.
pub fn is_new() -> bool {
    OWN.try_with(|own| own.known.replace(true)) == Ok(false)
}

/// Linux's id of the calling thread.
pub fn tid() -> i32 {
    OWN.with(tid_of)
}

/// The state of a thread, for a handler that runs while another thread-local storage is in force.
///
/// A thread whose calls come by [`crate::trap`] has it. Its handlers never run in this library:
/// they are postponed until the call has ended.
#[derive(Clone, Copy)]
pub struct Place(*const Own);

/// The calling thread's.
pub fn place() -> Place {
    OWN.with(|own| {
        own.tid.set(0);
        Place(own)
    })
}

impl Place {
    fn own(&self) -> &Own {
        // SAFETY: the state has no destructor, and its thread lives, or has left it to this one.
        unsafe { &*self.0 }
    }

    /// The state is another thread's from now on.
    pub fn moves(self) {
        let own = self.own();
        own.tid.set(0);
        own.interrupted.set(0);
        own.postponed.set(0);
        own.kept.count.store(0, Ordering::Relaxed);
    }

    /// Keeps a signal until [`Self::send_postponed`], and ends the call that waits.
    pub fn postpone(self, info: &siginfo_t) {
        let own = self.own();
        own.kept.add(info);
        own.postponed.set(own.postponed.get() | POSTPONED);
        own.interrupted.set(POSTPONED);
        if let Some(elastic) = elastic_inside() {
            kick::kick(elastic);
        }
        if own.wake_fd.get() >= 0 {
            let errno = real::errno();
            wake::wake(own.wake_fd.get());
            real::set_errno(errno);
        }
    }

    /// Whether all that is postponed lets the call be restarted.
    pub fn restarts(self) -> bool {
        let mut signals = self.postponed().peekable();
        self.own().postponed.get() == POSTPONED
            && signals.peek().is_some()
            && signals.all(|signal| noted(signal).1 & SA_RESTART != 0)
    }

    /// The signals that are postponed, while all are blocked.
    pub fn postponed(&self) -> impl Iterator<Item = c_int> {
        let kept = &self.own().kept;
        let count = kept.count.load(Ordering::SeqCst).min(KEPT_MAX);
        // SAFETY: written by handlers that have returned; none runs now.
        let infos = unsafe { &(&*kept.infos.get())[..count] };
        // SAFETY: `add` has written it.
        infos.iter().map(|info| unsafe { info.assume_init_ref() }.si_signo)
    }

    /// Sends all that was kept to the calling thread, which has blocked it.
    pub fn send_postponed(self) {
        let own = self.own();
        if own.postponed.replace(0) != 0 {
            own.interrupted.set(0);
            own.kept.send_again();
        }
    }
}

/// The handler in front of the program's while it calls through the C library.
pub fn handler() -> *const () {
    on_signal as *const ()
}

/// Sets the handler in front of the program's.
pub fn put_in_front(handler: usize) {
    FRONT.store(handler, Ordering::Relaxed);
}

/// The program's handler of a signal, and its flags.
pub fn noted(signal: c_int) -> (usize, c_int) {
    let action = &ACTIONS[signal as usize % SIGNALS];
    (action.handler.load(Ordering::Relaxed), action.flags.load(Ordering::Relaxed))
}

/// Notes the program's handler of a signal, and its flags.
pub fn note(signal: c_int, (handler, flags): (usize, c_int)) {
    let action = &ACTIONS[signal as usize % SIGNALS];
    action.handler.store(handler, Ordering::Relaxed);
    action.flags.store(flags, Ordering::Relaxed);
}

/// The handler in front of the program's handlers.
extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // Thread-local storage may be the dataplane's: nothing uses it before that is known.
    if let Some(elastic) = elastic_inside() {
        if is_fault(signal) {
            end_by_fault();
        }
        // SAFETY: the kernel passes valid information.
        KEPT_INSIDE[elastic].add(unsafe { &*info });
        kick::kick(elastic);
        return;
    }
    let held = OWN.try_with(|own| {
        if own.held.get() > 0 && !is_fault(signal) {
            // SAFETY: as above.
            own.kept.add(unsafe { &*info });
            own.waits.store(true, Ordering::Relaxed);
            return true;
        }
        false
    });
    if held == Ok(true) {
        return;
    }
    run(signal, info, context);
}

/// The elastic thread that the calling thread is inside.
fn elastic_inside() -> Option<usize> {
    if INSIDE.iter().all(|inside| inside.load(Ordering::SeqCst) == 0) {
        return None;
    }
    let own = bare_gettid();
    INSIDE.iter().position(|inside| inside.load(Ordering::SeqCst) == own)
}

fn run(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let action = &ACTIONS[signal as usize];
    let flags = action.flags.load(Ordering::Relaxed);
    let handler = match flags & SA_RESETHAND {
        0 => action.handler.load(Ordering::Relaxed),
        _ => action.handler.swap(SIG_DFL, Ordering::Relaxed),
    };
    let _ = OWN.try_with(|own| {
        let weight = if flags & SA_RESTART != 0 { 1 } else { 2 };
        own.interrupted.set(own.interrupted.get().max(weight));
        if own.wake_fd.get() >= 0 {
            // The thread may be about to sleep.
            let errno = real::errno();
            wake::wake(own.wake_fd.get());
            real::set_errno(errno);
        }
    });
    if flags & SA_RESETHAND != 0 {
        set_default(signal);
    }
    if handler == SIG_DFL || handler == SIG_IGN {
        return;
    }
    // SAFETY: the program has set a function of this type. Without SA_SIGINFO it reads only the
    // first argument.
    let handler = unsafe {
        core::mem::transmute::<usize, extern "C" fn(c_int, *mut siginfo_t, *mut c_void)>(handler)
    };
    let count = |change: i32| {
        let count = |own: &Own| own.handlers.set(own.handlers.get().wrapping_add_signed(change));
        let _ = OWN.try_with(count);
    };
    count(1);
    handler(signal, info, context);
    count(-1);
}

/// Whether a signal is about an instruction of the thread.
pub fn is_fault(signal: c_int) -> bool {
    use libc::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    [SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT].contains(&signal)
}

/// `gettid`, without writing errno.
fn bare_gettid() -> i32 {
    let mut result = libc::SYS_gettid;
    // SAFETY: no arguments; the kernel changes rax, rcx and r11.
    unsafe {
        core::arch::asm!(
            "syscall", inout("rax") result, lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result as i32
}

/// Ends the process after a fault inside the dataplane, which the program's handler cannot repair.
fn end_by_fault() -> ! {
    let text = b"ix: a fault inside the dataplane\n";
    // SAFETY: writes a constant and ends the process, without thread-local storage.
    unsafe {
        core::arch::asm!(
            "syscall", "mov eax, {exit}", "mov edi, 139", "syscall", "ud2",
            exit = const libc::SYS_exit_group,
            in("rax") libc::SYS_write, in("rdi") 2, in("rsi") text.as_ptr(), in("rdx") text.len(),
            options(noreturn),
        )
    }
}

fn set_default(signal: c_int) {
    // SAFETY: all zero is a valid value, and the default action.
    unsafe {
        let default: libc::sigaction = core::mem::zeroed();
        real::sigaction(signal, &default, core::ptr::null_mut());
    }
}

/// `sigaction` for the program.
///
/// # Safety
/// As `sigaction`.
pub unsafe fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if !(1..SIGNALS as c_int).contains(&signal) {
        // SAFETY: the caller's promise.
        return unsafe { real::sigaction(signal, new, old) };
    }
    let before = noted(signal);
    let front = match FRONT.load(Ordering::Relaxed) {
        0 => on_signal as *const () as usize,
        other => other,
    };
    // The program's calls come by SIGSYS: its own action for it is noted only.
    let is_ours = signal == SIGSYS && front != on_signal as *const () as usize;
    let mut ours: libc::sigaction;
    let mut passed = new;
    if !new.is_null() {
        // SAFETY: the caller's promise.
        ours = unsafe { *new };
        if front != on_signal as *const () as usize {
            // SAFETY: a set of ours.
            unsafe { libc::sigdelset(&mut ours.sa_mask, SIGSYS) };
        }
        if is_ours || ours.sa_sigaction != SIG_DFL && ours.sa_sigaction != SIG_IGN {
            note(signal, (ours.sa_sigaction, ours.sa_flags));
            ours.sa_sigaction = front;
            ours.sa_flags = (ours.sa_flags | SA_SIGINFO) & !SA_RESETHAND;
            passed = &ours;
        }
    }
    if is_ours {
        passed = core::ptr::null();
    }
    // SAFETY: the caller's promise, and a local.
    let result = unsafe { real::sigaction(signal, passed, old) };
    if result != 0 {
        note(signal, before);
        return result;
    }
    // SAFETY: the caller's promise.
    if let Some(old) = unsafe { old.as_mut() }
        && (old.sa_sigaction == front || is_ours)
    {
        (old.sa_sigaction, old.sa_flags) = before;
    }
    0
}

/// Flags that `signal` sets: BSD's semantics, as the C library has them.
pub const BSD_FLAGS: c_int = SA_RESTART;
/// Flags that `sysv_signal` sets.
pub const SYSV_FLAGS: c_int = SA_RESETHAND | SA_NODEFER;
