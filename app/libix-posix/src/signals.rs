//! Signal handlers of the program, which must run neither inside the dataplane (another
//! thread-local storage is in force there) nor while this library holds its lock.
//!
//! `sigaction` puts our own handler in front of the program's. It runs the program's at once if it
//! may. Otherwise it keeps the signal and asks the dataplane to come back; as soon as the thread is
//! out, it sends the signal to itself once more, and the kernel delivers it as the program wants
//! it. Nothing is blocked, so default actions, `signalfd` and masks work as ever.
use crate::lane::LANES_MAX;
use crate::real;
use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering, compiler_fence};
use libc::{
    SA_NODEFER, SA_RESETHAND, SA_RESTART, SA_SIGINFO, SIG_DFL, SIG_IGN, c_int, c_void, siginfo_t,
};

const SIGNALS: usize = 65;
/// Signals that one thread can have kept; a real-time signal beyond them is lost.
const KEPT_MAX: usize = 32;

/// What the program has set.
struct Action {
    handler: AtomicUsize,
    flags: AtomicI32,
}

static ACTIONS: [Action; SIGNALS] =
    [const { Action { handler: AtomicUsize::new(SIG_DFL), flags: AtomicI32::new(0) } }; SIGNALS];

/// Linux's number of the thread that is inside each elastic thread, 0: none.
static INSIDE: [AtomicI32; LANES_MAX] = [const { AtomicI32::new(0) }; LANES_MAX];
/// What was kept for the threads that are inside. Written by handlers on that thread, read by it.
static KEPT_INSIDE: [Kept; LANES_MAX] = [const { Kept::new() }; LANES_MAX];

struct Kept {
    count: AtomicUsize,
    infos: UnsafeCell<[core::mem::MaybeUninit<siginfo_t>; KEPT_MAX]>,
}

// SAFETY: touched only by the thread that is inside and by handlers that interrupt it, which add
// behind `count`; the thread reads when it is outside.
unsafe impl Sync for Kept {}

impl Kept {
    const fn new() -> Kept {
        let infos = [const { core::mem::MaybeUninit::uninit() }; KEPT_MAX];
        Kept { count: AtomicUsize::new(0), infos: UnsafeCell::new(infos) }
    }

    fn add(&self, info: &siginfo_t) {
        let index = self.count.fetch_add(1, Ordering::SeqCst);
        if index < KEPT_MAX {
            // SAFETY: the place is this handler's alone.
            unsafe { (*self.infos.get())[index].write(*info) };
        }
    }

    /// Sends all to the calling thread.
    fn send_again(&self) {
        let count = self.count.swap(0, Ordering::SeqCst).min(KEPT_MAX);
        // Copied first: handlers run in between, and may keep more.
        // SAFETY: written by handlers that have returned.
        let infos = unsafe { *self.infos.get() };
        for info in &infos[..count] {
            // SAFETY: written by `add`. Linux lets a process send itself any information.
            unsafe {
                let info = info.assume_init_ref();
                let (pid, tid) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
                libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, info.si_signo, info);
            }
        }
    }
}

/// What a thread has to do with signals.
struct Own {
    /// How often the lock is held.
    held: Cell<u32>,
    /// A handler has run: 1, or 2 when calls are not to be restarted.
    interrupted: Cell<u32>,
    waits: AtomicBool,
    kept: Kept,
    tid: Cell<i32>,
    /// The bell that the thread sleeps on, -1: it does not.
    bell: Cell<i32>,
}

thread_local! {
    static OWN: Own = const {
        Own {
            held: Cell::new(0),
            interrupted: Cell::new(0),
            waits: AtomicBool::new(false),
            kept: Kept::new(),
            tid: Cell::new(0),
            bell: Cell::new(-1),
        }
    };
}

/// Handlers of the program wait on this thread as long as there is one.
pub struct Hold(*const Own);

/// From now on handlers of the program wait on this thread.
#[inline]
pub fn hold() -> Hold {
    // A thread that ends has none any more; it handles no signals either.
    let own = OWN.try_with(|own| {
        own.held.set(own.held.get() + 1);
        core::ptr::from_ref(own)
    });
    Hold(own.unwrap_or(core::ptr::null()))
}

impl Drop for Hold {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: null, or this thread's own, for a `Hold` goes to no other; it needs no
        // destructor, so it is there as long as the thread.
        let Some(own) = (unsafe { self.0.as_ref() }) else { return };
        own.held.set(own.held.get() - 1);
        compiler_fence(Ordering::SeqCst);
        if own.held.get() == 0 && own.waits.load(Ordering::Relaxed) {
            own.waits.store(false, Ordering::Relaxed);
            own.kept.send_again();
        }
    }
}

/// Linux's number of the calling thread.
fn tid_of(own: &Own) -> i32 {
    if own.tid.get() == 0 {
        // SAFETY: no arguments.
        own.tid.set(unsafe { libc::syscall(libc::SYS_gettid) } as i32);
    }
    own.tid.get()
}

/// A forked child has another number.
pub fn forked() {
    OWN.with(|own| own.tid.set(0));
    INSIDE.iter().for_each(|inside| inside.store(0, Ordering::SeqCst));
}

/// Goes inside an elastic thread: `visit` runs there. `may_wait` is false when a handler has run on
/// this thread since [`reset`], for then nobody may sleep.
pub fn inside<R>(lane: usize, visit: impl FnOnce(bool) -> R) -> R {
    OWN.with(|own| {
        // Only this thread's own handlers look for its number, so only the compiler's order
        // matters.
        INSIDE[lane].store(tid_of(own), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let result = visit(own.interrupted.get() == 0);
        compiler_fence(Ordering::SeqCst);
        INSIDE[lane].store(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if KEPT_INSIDE[lane].count.load(Ordering::SeqCst) != 0 {
            KEPT_INSIDE[lane].send_again();
        }
        result
    })
}

/// Sleeps on a bell: `sleep` runs unless a handler has run since [`reset`], and ends if one does,
/// for then the bell is rung.
pub fn asleep(bell: i32, sleep: impl FnOnce()) {
    OWN.with(|own| own.bell.set(bell));
    if interrupted() == 0 {
        sleep();
    }
    OWN.with(|own| own.bell.set(-1));
}

/// Forgets which handlers have run on this thread.
pub fn reset() {
    OWN.with(|own| own.interrupted.set(0));
}

/// Whether a handler has run since: 0, 1, or 2 when it does not want calls to be restarted.
pub fn interrupted() -> u32 {
    OWN.with(|own| own.interrupted.get())
}

/// Stands in front of the program's handlers.
extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // Nothing here may use thread-local storage before we know that it is ours.
    if let Some(lane) = lane_inside() {
        if is_fault(signal) {
            end_by_fault();
        }
        // SAFETY: the kernel passes information.
        KEPT_INSIDE[lane].add(unsafe { &*info });
        crate::drive::kick(lane);
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

/// The elastic thread that the calling thread is inside of.
fn lane_inside() -> Option<usize> {
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
        if own.bell.get() >= 0 {
            // It may be just about to sleep.
            let errno = real::errno();
            crate::sync::ring(own.bell.get());
            real::set_errno(errno);
        }
    });
    if flags & SA_RESETHAND != 0 {
        set_default(signal);
    }
    if handler == SIG_DFL || handler == SIG_IGN {
        return;
    }
    // SAFETY: the program has set a function of this type; without SA_SIGINFO it looks at the first
    // argument only.
    let handler = unsafe {
        core::mem::transmute::<usize, extern "C" fn(c_int, *mut siginfo_t, *mut c_void)>(handler)
    };
    handler(signal, info, context);
}

fn is_fault(signal: c_int) -> bool {
    use libc::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    [SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT].contains(&signal)
}

/// `gettid` without errno.
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

/// A fault inside the dataplane: the program's handler can do nothing about it.
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
    // SAFETY: all-zero is a valid value; the default action needs no more.
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
    let action = &ACTIONS[signal as usize];
    let before = (action.handler.load(Ordering::Relaxed), action.flags.load(Ordering::Relaxed));
    let mut ours: libc::sigaction;
    let mut passed = new;
    if !new.is_null() {
        // SAFETY: the caller's promise.
        ours = unsafe { *new };
        if ours.sa_sigaction != SIG_DFL && ours.sa_sigaction != SIG_IGN {
            action.handler.store(ours.sa_sigaction, Ordering::Relaxed);
            action.flags.store(ours.sa_flags, Ordering::Relaxed);
            ours.sa_sigaction = on_signal as *const () as usize;
            ours.sa_flags = (ours.sa_flags | SA_SIGINFO) & !SA_RESETHAND;
            passed = &ours;
        }
    }
    // SAFETY: the caller's promise, and a local.
    let result = unsafe { real::sigaction(signal, passed, old) };
    if result != 0 {
        action.handler.store(before.0, Ordering::Relaxed);
        action.flags.store(before.1, Ordering::Relaxed);
        return result;
    }
    // SAFETY: the caller's promise.
    if let Some(old) = unsafe { old.as_mut() }
        && old.sa_sigaction == on_signal as *const () as usize
    {
        (old.sa_sigaction, old.sa_flags) = before;
    }
    0
}

/// Flags that `signal` sets: BSD's semantics, as the C library has them.
pub const BSD_FLAGS: c_int = SA_RESTART;
/// Flags that `sysv_signal` sets.
pub const SYSV_FLAGS: c_int = SA_RESETHAND | SA_NODEFER;
