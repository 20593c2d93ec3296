//! What a thread of the program has while its calls come here. The register gs points to it; no C
//! library of x86-64 uses that register.
use super::ALLOWED;
use super::frame::{Alternate, Frame};
use super::rewrite::STUBS_MAX;
use crate::signals::{self, Place};
use core::arch::asm;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::sync::Mutex;

/// Bytes of the stack on which calls run.
const STACK_BYTES: usize = 256 << 10;
/// Bytes of the alternate signal stack of a thread without one of the program's.
const ALTERNATE_BYTES: usize = 64 << 10;

const PR_SET_SYSCALL_USER_DISPATCH: i32 = 59;
const ARCH_SET_GS: i32 = 0x1001;

/// Linux takes all calls of the thread.
const OPEN: u8 = 0;
/// Calls of the thread come here.
const CLOSED: u8 = 1;

/// See the module. [`super::entry`] knows the offsets of the first fields.
#[repr(C, align(64))]
pub struct Context {
    own: *mut Context,
    /// Read by Linux at each call: [`OPEN`] while the thread is in this library.
    selector: AtomicU8,
    /// The base of the thread-local storage that this library uses; 0: the program's.
    pub layer_fs: u64,
    /// The program's, while the thread is in this library.
    pub program_fs: u64,
    /// The end of the stack on which calls run.
    stack_top: u64,
    /// Where this library's C library has the thread's number; 0: the C library sees to it.
    pub number_at: u64,
    /// Of a thread that starts: where the program goes on.
    pub first_frame: u64,
    /// A copy of a signal mask that the program passes to a call, and of what points to it.
    pub mask: [u64; 3],
    /// What signals know of the thread.
    pub place: Place,
    /// The alternate signal stack where the program has set none: a thread that ends may call when
    /// it has no stack any more.
    pub alternate: Alternate,
    /// The base of thread-local storage by which a rewritten call knows that this is its thread's;
    /// 0: it is.
    pub own_fs: u64,
    /// How many handlers of the program the thread is in, at least those that it has not left by a
    /// jump.
    pub depth: u32,
    /// Signals wait for the end of a call.
    pub has_postponed: AtomicU8,
    /// Calls of rewritten sites that were made here.
    pub served: u32,
    /// The trap is the end of a call that was made without one.
    pub is_made: bool,
    /// The stack pointer in the first of the handlers.
    pub handler_stack: u64,
    /// Calls of rewritten sites.
    pub counts: [AtomicU64; STUBS_MAX],
    /// The next one of all that there are.
    next: *mut Context,
    /// Linux's number of the thread.
    pub tid: AtomicI32,
    /// The thread ends.
    ends: AtomicBool,
}

/// Those of threads that have ended, or are about to.
static ENDING: Mutex<Vec<Shared>> = Mutex::new(Vec::new());

#[derive(Clone, Copy)]
struct Shared(*mut Context);

// SAFETY: contexts are never freed; who takes one from the list has it alone.
unsafe impl Send for Shared {}

/// The calling thread's; it must have one.
pub fn current() -> *mut Context {
    let context;
    // SAFETY: reads the first field of what gs points to.
    unsafe { asm!("mov {}, gs:[0]", out(reg) context, options(nostack, readonly)) };
    context
}

/// The base of the thread-local storage that is in force.
pub fn fs_base() -> u64 {
    let fs;
    // SAFETY: reads a register; the image has seen to it that the processor lets it.
    unsafe { asm!("rdfsbase {}", out(reg) fs, options(nomem, nostack, preserves_flags)) };
    fs
}

/// Linux's number of the calling thread.
pub fn own_tid() -> i32 {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// A new stack of this many bytes; returns its end.
fn stack(bytes: usize) -> Option<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping; its first page becomes the guard.
    unsafe {
        let at = libc::mmap(null_mut(), bytes, prot, flags, -1, 0);
        if at == libc::MAP_FAILED {
            return None;
        }
        libc::mprotect(at, 4096, libc::PROT_NONE);
        Some(at as u64 + bytes as u64)
    }
}

fn new(stack_top: u64) -> *mut Context {
    let context = Box::into_raw(Box::new(Context {
        own: null_mut(),
        selector: AtomicU8::new(OPEN),
        layer_fs: 0,
        program_fs: 0,
        stack_top: stack_top & !63,
        number_at: 0,
        first_frame: 0,
        mask: [0; 3],
        place: signals::place(),
        alternate: Alternate::NONE,
        own_fs: 0,
        depth: 0,
        has_postponed: AtomicU8::new(0),
        served: 0,
        is_made: false,
        handler_stack: 0,
        counts: [const { AtomicU64::new(0) }; STUBS_MAX],
        next: null_mut(),
        tid: AtomicI32::new(own_tid()),
        ends: AtomicBool::new(false),
    }));
    // SAFETY: just made. Nobody knows it before it is in the list, from which nothing is taken.
    unsafe {
        (*context).own = context;
        let mut first = ALL.load(Ordering::Relaxed);
        loop {
            (*context).next = first;
            let (success, failure) = (Ordering::Release, Ordering::Relaxed);
            match ALL.compare_exchange_weak(first, context, success, failure) {
                Ok(_) => return context,
                Err(other) => first = other,
            }
        }
    }
}

/// The first of all that there are.
static ALL: AtomicPtr<Context> = AtomicPtr::new(null_mut());

/// In a forked child, which has made none.
pub fn forget_counts() {
    let mut at = ALL.load(Ordering::Acquire);
    while !at.is_null() {
        // SAFETY: never freed; the only thread is here.
        unsafe {
            (*at).counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
            at = (*at).next;
        }
    }
}

/// How many calls a rewritten site has made.
pub fn calls_of(site: usize) -> u64 {
    let (mut at, mut all) = (ALL.load(Ordering::Acquire), 0);
    while !at.is_null() {
        // SAFETY: never freed.
        unsafe {
            all += (*at).counts[site].load(Ordering::Relaxed);
            at = (*at).next;
        }
    }
    all
}

/// One for the calling thread, which the C library of this library has started; `None`: no memory.
pub fn of_library_thread() -> Option<*mut Context> {
    if let Some(ended) = take_ended(false) {
        // SAFETY: ours alone; its thread has ended.
        unsafe {
            (*ended).place = signals::place();
            (*ended).own_fs = own_fs();
            (*ended).tid.store(own_tid(), Ordering::Relaxed);
        }
        return Some(ended);
    }
    let context = new(stack(STACK_BYTES)?);
    // SAFETY: just made, for the caller.
    unsafe { (*context).own_fs = own_fs() };
    Some(context)
}

/// See [`Context::own_fs`]: beside a static program only contexts of its threads are made.
fn own_fs() -> u64 {
    if super::beside::is_program() { 0 } else { fs_base() }
}

/// The calling thread has no context from now on.
pub fn leave() {
    // SAFETY: the register is nobody else's; without a context all calls are Linux's.
    unsafe { asm!("wrgsbase {}", in(reg) 0u64, options(nostack)) };
}

/// One of a thread that has ended, with or without thread-local storage of its own.
fn take_ended(with_fs: bool) -> Option<*mut Context> {
    let mut ending = ending()?;
    let at = ending.iter().position(|shared| {
        // SAFETY: never freed; the second call has no pointers and only asks whether there is one.
        unsafe {
            let context = &*shared.0;
            let tid = context.tid.load(Ordering::Relaxed);
            (context.layer_fs != 0) == with_fs
                && libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, 0) != 0
        }
    })?;
    let context = ending.swap_remove(at).0;
    // SAFETY: ours alone now.
    unsafe {
        (*context).ends.store(false, Ordering::Relaxed);
        (*context).selector.store(OPEN, Ordering::Relaxed);
        (*context).has_postponed.store(0, Ordering::Relaxed);
        ((*context).depth, (*context).is_made) = (0, false);
    }
    Some(context)
}

/// One for a thread that the program starts itself, with thread-local storage of this library's C
/// library; `None`: no memory, or no thread.
pub fn of_own_thread() -> Option<*mut Context> {
    take_ended(true).or_else(|| {
        let context = companion()?;
        // SAFETY: just made, for the caller.
        unsafe { (*context).has_alternate() }.then_some(context)
    })
}

/// What a companion tells.
struct Told {
    context: *mut Context,
    /// Written by the thread, zeroed and woken by Linux when it has ended.
    lives: AtomicI32,
}

/// Makes a thread of this library's C library that ends at once. Nobody joins it, so its stack and
/// its thread-local storage stay, for a thread of the program's.
fn companion() -> Option<*mut Context> {
    let mut told = Told { context: null_mut(), lives: AtomicI32::new(1) };
    let mut thread = 0;
    // SAFETY: an attribute that is initialised; `told` outlives the thread, which is waited for.
    // All signals are blocked, as the caller has seen to.
    unsafe {
        let mut attributes: libc::pthread_attr_t = core::mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setstacksize(&mut attributes, STACK_BYTES + (64 << 10));
        let at = (&raw mut told).cast();
        let failed = crate::real::pthread_create(&mut thread, &attributes, leave_storage, at);
        libc::pthread_attr_destroy(&mut attributes);
        if failed != 0 {
            return None;
        }
        while told.lives.load(Ordering::Acquire) != 0 {
            let (word, wait) = (&raw const told.lives, libc::FUTEX_WAIT);
            libc::syscall(libc::SYS_futex, word, wait, 1, core::ptr::null::<u8>());
        }
    }
    Some(told.context)
}

extern "C" fn leave_storage(told: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: `companion` waits. The last call ends this thread in the kernel alone; nothing on its
    // stack is used afterwards.
    unsafe {
        let told = told.cast::<Told>();
        let local = 0u8;
        let context = new((&raw const local as u64 - 4096) & !63);
        (*context).layer_fs = fs_base();
        (*context).number_at = number_of_thread((*context).layer_fs);
        (*told).context = context;
        libc::syscall(libc::SYS_set_tid_address, &raw const (*told).lives);
        libc::syscall(libc::SYS_exit, 0);
    }
    null_mut()
}

/// Where the C library has the calling thread's number in its description of the thread, which is
/// where its thread-local storage ends; 0: not found.
fn number_of_thread(fs: u64) -> u64 {
    const SEARCHED: u64 = 2048;
    let tid = own_tid();
    // SAFETY: the description is longer than that in every version.
    let is_it = |at: &u64| unsafe { *(*at as *const i32) == tid };
    (fs..fs + SEARCHED).step_by(4).find(is_it).unwrap_or(0)
}

impl Context {
    /// From now on calls of the calling thread come here whenever it is the program's. Returns
    /// false if Linux cannot do that.
    ///
    /// # Safety
    /// It is the calling thread's, and lives as long as the thread.
    pub unsafe fn arm(&mut self) -> bool {
        let [first, bytes] = [0, 1].map(|at: usize| ALLOWED[at].load(Ordering::Relaxed));
        // SAFETY: the caller's promise; the register is nobody else's.
        unsafe {
            if libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, self.own) != 0 {
                return false;
            }
            let selector = &raw const self.selector;
            libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, 1u64, first, bytes, selector) == 0
        }
    }

    /// Calls of the calling thread are Linux's from now on.
    pub fn disarm(&self) {
        // SAFETY: no pointers. The C library's own instruction.
        unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, 0u64, 0u64, 0u64, 0u64) };
    }

    /// The thread's calls are the program's from now on.
    pub fn belongs_to_program(&self) {
        self.selector.store(CLOSED, Ordering::SeqCst);
    }

    /// Gives the thread an alternate signal stack where the program sets none; false: no memory.
    pub fn has_alternate(&mut self) -> bool {
        let Some(end) = stack(ALTERNATE_BYTES) else { return false };
        let bytes = ALTERNATE_BYTES as u64 - 4096;
        self.alternate = Alternate { first: end - bytes, flags: 0, bytes };
        true
    }

    /// Sends the signals that were postponed, which are blocked now.
    pub fn send_postponed(&self) {
        self.has_postponed.store(0, Ordering::Relaxed);
        self.place.send_postponed();
    }

    /// A handler that was left by a jump is none any more.
    pub fn look_at_depth(&mut self, frame: &Frame) {
        let in_alternate = frame.alternate.has(self.handler_stack);
        let is_left = in_alternate || frame.registers.rsp > self.handler_stack;
        if self.depth > 0 && is_left && !frame.is_on_alternate() {
            self.depth = 0;
        }
    }

    /// The room below the end of the stack, for the frame of a thread that starts.
    pub fn first_room(&self) -> u64 {
        self.stack_top - super::frame::ROOM as u64
    }

    /// Its thread was not started.
    pub fn give_back(&mut self) {
        // No thread has this number.
        self.tid.store(i32::MAX, Ordering::Relaxed);
        self.ends();
    }

    /// The thread ends: another one may have this when it has.
    pub fn ends(&mut self) {
        if let Some(mut ending) = ending()
            && !self.ends.swap(true, Ordering::Relaxed)
        {
            ending.push(Shared(self.own));
        }
    }
}

/// The list. In a forked child it may be another thread's for ever, which is not there.
fn ending() -> Option<std::sync::MutexGuard<'static, Vec<Shared>>> {
    const TRIES: u32 = 1000;
    (0..TRIES).find_map(|_| {
        let ending = ENDING.try_lock().ok();
        if ending.is_none() {
            std::thread::yield_now();
        }
        ending
    })
}

/// In a forked child: those of other threads are lost with them.
pub fn forked() {
    if let Ok(mut ending) = ENDING.try_lock() {
        ending.clear();
    }
}
