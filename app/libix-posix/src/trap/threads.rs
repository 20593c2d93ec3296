//! Threads and processes that the program starts.
use super::calls::Outcome;
use super::context::{self, Context};
use super::entry::{self, clone_thread};
use super::frame::{Frame, RED_ZONE};
use super::{GATE, actions, is_beside, rewrite};
use crate::ffi::process;
use crate::mem::is_possible;
use crate::{log, real};
use core::sync::atomic::Ordering;
use libc::{
    CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID, CLONE_FILES, CLONE_NEWCGROUP, CLONE_NEWIPC,
    CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWUTS, CLONE_PARENT,
    CLONE_PARENT_SETTID, CLONE_PIDFD, CLONE_PTRACE, CLONE_SETTLS, CLONE_THREAD, CLONE_VM, c_int,
    c_void, pthread_attr_t, pthread_t,
};

/// The signal that the parent gets, in the flags of `clone`.
const EXIT_SIGNAL: u64 = 0xff;
/// What `fork` cannot do: the child is Linux's then.
const NOT_BY_FORK: c_int = CLONE_NEWCGROUP
    | CLONE_NEWIPC
    | CLONE_NEWNET
    | CLONE_NEWNS
    | CLONE_NEWPID
    | CLONE_NEWUSER
    | CLONE_NEWUTS
    | CLONE_PARENT
    | CLONE_PTRACE;

/// `clone` of the program: flags, stack, where the parent and the child want the number, and the
/// child's thread-local storage.
pub fn clone(frame: &mut Frame, context: *mut Context, arguments: [u64; 5]) -> Outcome {
    let flags = arguments[0] as c_int;
    let is_thread = CLONE_VM | CLONE_FILES | CLONE_THREAD;
    if flags & is_thread == is_thread {
        return thread(frame, context, arguments);
    }
    if flags & (NOT_BY_FORK | CLONE_FILES) != 0 {
        let text = "the program starts a process in a namespace of its own, or one that shares its \
                    descriptors: that one's sockets are Linux's until it executes a program";
        log::once(log::Once::OwnNamespace, text);
        // SAFETY: the program is stopped at this call.
        return unsafe { by_linux(frame, arguments) };
    }
    fork(frame, context, arguments)
}

/// A process that has nothing of IX. One that would share the stack of its parent gets a copy of
/// it: what is there for the parent's return would be written over.
///
/// # Safety
/// The frame of a program that is stopped at a call, and the arguments of a `clone`.
unsafe fn by_linux(frame: &mut Frame, arguments: [u64; 5]) -> Outcome {
    let [mut flags, mut stack, parent, number, tls] = arguments;
    let registers = &mut frame.registers;
    let [rdi, rsi, rdx, r10, r8, _] = registers.arguments();
    let behind = registers.rip;
    let words = [entry::cloned as *const () as u64, rdi, rsi, rdx, r10, r8, behind];
    let below = registers.rsp - RED_ZONE - size_of_val(&words) as u64;
    // SAFETY: below the red zone, where Linux itself writes when a handler runs; then the end of a
    // stack that the program has made for its child.
    unsafe {
        (below as *mut [u64; 7]).write_unaligned(words);
        if stack == 0 {
            flags &= !(CLONE_VM as u64);
        } else {
            // It may have the same memory, and executes what is in it.
            rewrite::has_threads();
            let first = [entry::cloned_apart as *const () as u64, behind];
            stack -= RED_ZONE + size_of_val(&first) as u64;
            (stack as *mut [u64; 2]).write_unaligned(first);
        }
    }
    registers.rax = libc::SYS_clone as u64;
    (registers.rdi, registers.rsi, registers.rdx) = (flags, stack, parent);
    (registers.r10, registers.r8) = (number, tls);
    (registers.rsp, registers.rip) = (below, GATE.load(Ordering::Relaxed));
    Outcome::Set
}

/// `clone3` of the program.
pub fn clone3(frame: &mut Frame, context: *mut Context, at: u64, bytes: u64) -> Outcome {
    /// `struct clone_args` up to its first version.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Arguments {
        flags: u64,
        pidfd: u64,
        child_tid: u64,
        parent_tid: u64,
        exit_signal: u64,
        stack: u64,
        stack_bytes: u64,
        tls: u64,
        set_tid: u64,
        set_tid_count: u64,
        group: u64,
    }
    const FIRST_VERSION: u64 = 64;
    let from = at as *const u8;
    if bytes < FIRST_VERSION || !is_possible(from, bytes as usize) {
        return Outcome::Linux;
    }
    let mut told = core::mem::MaybeUninit::<Arguments>::zeroed();
    let len = (bytes as usize).min(size_of::<Arguments>());
    // SAFETY: a structure of the program's with its length; all zero is a valid value.
    let told = unsafe {
        core::ptr::copy_nonoverlapping(from, told.as_mut_ptr().cast::<u8>(), len);
        told.assume_init()
    };
    // Numbers of its own choice, a control group, handlers set back, or both places for a number.
    let both = (CLONE_PIDFD | CLONE_PARENT_SETTID) as u64;
    if told.set_tid_count != 0 || told.flags >> 32 != 0 || told.flags & both == both {
        // As a kernel without it: programs then make `clone`.
        return Outcome::Done(-i64::from(libc::ENOSYS));
    }
    let stack = if told.stack == 0 { 0 } else { told.stack + told.stack_bytes };
    let parent = if told.flags & CLONE_PIDFD as u64 != 0 { told.pidfd } else { told.parent_tid };
    let flags = told.flags | told.exit_signal & EXIT_SIGNAL;
    clone(frame, context, [flags, stack, parent, told.child_tid, told.tls])
}

/// A thread that the program starts itself.
fn thread(frame: &Frame, context: *mut Context, arguments: [u64; 5]) -> Outcome {
    // A signal between here and the new thread's first instruction would run on this library's
    // stack there.
    actions::set_mask(!0);
    rewrite::has_threads();
    let Some(child) = context::of_own_thread() else {
        return Outcome::Done(-i64::from(libc::EAGAIN));
    };
    let [flags, stack, parent, number, tls] = arguments;
    // SAFETY: a context that is nobody else's, with a stack of its own, and the calling thread's.
    let result = unsafe {
        let first = Frame::copy(frame, (*child).first_room() as *mut u8);
        ((*first).registers.rax, (*first).alternate) = (0, (*child).alternate);
        if stack != 0 {
            (*first).registers.rsp = stack;
        }
        (*child).first_frame = first as u64;
        let inherited = if is_beside() { (*context).program_fs } else { fs_of(context) };
        (*child).program_fs = if flags & CLONE_SETTLS as u64 != 0 { tls } else { inherited };
        (*child).place.moves();
        (*child).belongs_to_program();
        let own_stack = (*child).first_room() - 256;
        let flags = flags & !(CLONE_SETTLS as u64);
        clone_thread(&[flags, own_stack, parent, number, 0], child)
    };
    if result < 0 {
        // SAFETY: nobody else's.
        unsafe { (*child).give_back() };
    }
    Outcome::Done(result)
}

/// The program's thread-local storage while this library uses the same.
fn fs_of(context: *mut Context) -> u64 {
    // SAFETY: the calling thread's.
    let context = unsafe { &*context };
    if context.layer_fs != 0 { context.program_fs } else { context::fs_base() }
}

/// A process that the program starts. One that would share its memory gets a copy: it would close
/// its parent's sockets.
pub fn fork(frame: &mut Frame, context: *mut Context, arguments: [u64; 5]) -> Outcome {
    let [flags, stack, parent, number, tls] = arguments;
    let has = |flag: c_int| flags as c_int & flag != 0;
    let write = |at: u64, value: i32| {
        if is_possible(at as *const i32, 4) {
            // SAFETY: where the program wants it.
            unsafe { (at as *mut i32).write_unaligned(value) };
        }
    };
    rewrite::hold(true);
    // SAFETY: no arguments.
    let pid = unsafe { process::fork() };
    rewrite::hold(false);
    if pid < 0 {
        return Outcome::Done(-i64::from(real::errno()));
    }
    if pid > 0 {
        if has(CLONE_PARENT_SETTID) {
            write(parent, pid);
        }
        if has(CLONE_PIDFD) {
            // SAFETY: no pointers.
            write(parent, unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32);
        }
        return Outcome::Done(pid.into());
    }
    let own = context::own_tid();
    if has(CLONE_CHILD_SETTID) {
        write(number, own);
    }
    if has(CLONE_CHILD_CLEARTID) {
        // SAFETY: where the program wants it.
        unsafe { libc::syscall(libc::SYS_set_tid_address, number) };
    }
    if stack != 0 {
        frame.registers.rsp = stack;
    }
    if has(CLONE_SETTLS) && is_beside() {
        // SAFETY: the calling thread's.
        unsafe { (*context).program_fs = tls };
    }
    Outcome::Done(0)
}

/// In a forked child: Linux has forgotten that its only thread's calls come here.
pub fn forked() {
    let context = context::current();
    context::forked();
    // SAFETY: the calling thread's, which was copied.
    unsafe {
        (*context).tid.store(context::own_tid(), Ordering::Relaxed);
        if !(*context).arm() {
            log::line("system calls of a forked child cannot be intercepted: it uses Linux");
        }
    }
}

/// What a thread of the C library begins with.
struct Start {
    body: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
    mask: libc::sigset_t,
}

/// `pthread_create` of a program whose threads call Linux themselves, too.
///
/// # Safety
/// As `pthread_create`.
pub unsafe fn create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    body: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: sets of ours; then the caller's promise. The thread takes the box, or nobody does.
    unsafe {
        let (all, mut mask) = (all_but_sigsys(), core::mem::zeroed());
        // Until the thread has its state, its handlers would find its creator's.
        real::pthread_sigmask(libc::SIG_SETMASK, &all, &mut mask);
        let start = Box::into_raw(Box::new(Start { body, argument, mask }));
        let result = real::pthread_create(thread, attributes, begin, start.cast());
        if result != 0 {
            drop(Box::from_raw(start));
        }
        real::pthread_sigmask(libc::SIG_SETMASK, &mask, core::ptr::null_mut());
        result
    }
}

extern "C" fn begin(start: *mut c_void) -> *mut c_void {
    // SAFETY: made by `create` for this thread.
    let Start { body, argument, mask } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    let context = context::of_library_thread();
    // SAFETY: the calling thread's, which has it as long as it lives; then a set of ours.
    unsafe {
        match context {
            Some(context) if (*context).arm() => (*context).belongs_to_program(),
            _ => {
                context::leave();
                log::line("no memory for a thread's state: its own system calls are Linux's");
            }
        }
        let mut mask = mask;
        libc::sigdelset(&mut mask, libc::SIGSYS);
        real::pthread_sigmask(libc::SIG_SETMASK, &mask, core::ptr::null_mut());
    }
    let result = body(argument);
    if let Some(context) = context {
        // SAFETY: as above. What follows is the C library's, and this library's end of the thread.
        unsafe {
            let all = all_but_sigsys();
            real::pthread_sigmask(libc::SIG_SETMASK, &all, core::ptr::null_mut());
            (*context).disarm();
            (*context).ends();
            context::leave();
        }
    }
    result
}

/// All signals but that by which calls come: blocked, it would end the process.
fn all_but_sigsys() -> libc::sigset_t {
    // SAFETY: all zero is a valid value, and filled.
    unsafe {
        let mut all = core::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigdelset(&mut all, libc::SIGSYS);
        all
    }
}
