//! What an elastic thread needs to run code of the image: a stack and thread-local storage.
//!
//! The Linux thread that enters an elastic thread was made by the *program's* C library, and its fs
//! base points to that library's thread block. Code of the image needs a block that the *image's* C
//! library has made. So for each elastic thread the image starts an ordinary thread, the donor,
//! records its fs base and stack pointer, and ends its Linux thread by the bare `exit` system call.
//! For the image's C library the donor lives forever, inside its start function. The thread that
//! enters the elastic thread continues on the donor's stack with its block. This is sound because
//!
//! * one Linux thread at a time uses a block: the gate's owner word makes sure of that;
//! * stack protector and pointer guard are words of the block, copied from the first thread's;
//! * the block's thread id stays the donor's (the kernel is told not to clear it), so locks that
//!   know their owner by id work. It differs from `gettid` of the Linux thread; nothing in the
//!   image compares the two;
//! * the kernel knows nothing of the block: its robust list is empty and ended with the donor,
//!   restartable sequences are not registered (`GLIBC_TUNABLES`), and the thread that enters keeps
//!   those of the program;
//! * no code returns to the donor's frames above its recorded stack pointer.
use crate::sys;
use core::alloc::Layout;
use core::arch::asm;
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering::Acquire};
use std::io;

const STACK_BYTES: usize = 512 << 10;
const GUARD_BYTES: usize = 4096;

/// What a thread of the image runs.
pub type Start = extern "C" fn(*mut c_void) -> *mut c_void;

/// Stack and thread-local storage of an elastic thread.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// Stack pointer to start from, 64-byte aligned.
    pub stack_top: u64,
    /// fs base.
    pub fs_base: u64,
}

/// What a donor leaves. The assembly in [`donate`] knows the layout.
#[repr(C)]
#[derive(Default)]
struct Legacy {
    fs_base: AtomicU64,
    stack_top: AtomicU64,
    /// The donor's thread id, written last.
    thread_id: AtomicU64,
}

/// Makes a context. The donor's Linux thread has ended when this returns.
pub fn make() -> io::Result<Context> {
    let stack = map_stack()?;
    let legacy = Legacy::default();
    start(&legacy, stack)?;
    let thread_id = loop {
        match legacy.thread_id.load(Acquire) {
            0 => pause(),
            id => break id,
        }
    };
    // SAFETY: no pointers; signal 0 only asks whether the thread exists.
    let gone = || unsafe {
        let pid = sys::syscall(libc::SYS_getpid, [0; 6]) as u64;
        sys::syscall(libc::SYS_tgkill, [pid, thread_id, 0, 0, 0, 0]) < 0
    };
    while !gone() {
        pause();
    }
    Ok(Context { stack_top: legacy.stack_top.load(Acquire), fs_base: legacy.fs_base.load(Acquire) })
}

/// Maps a stack above a guard page.
fn map_stack() -> io::Result<*mut c_void> {
    let refused = |errno: i64| io::Error::from_raw_os_error(-errno as i32);
    let map = sys::map(GUARD_BYTES + STACK_BYTES, libc::PROT_NONE).map_err(refused)?;
    let stack = map as u64 + GUARD_BYTES as u64;
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    // SAFETY: part of the mapping just made.
    match unsafe { sys::syscall(libc::SYS_mprotect, [stack, STACK_BYTES as u64, prot, 0, 0, 0]) } {
        0 => Ok(stack as *mut c_void),
        errno => Err(refused(errno)),
    }
}

fn start(legacy: &Legacy, stack: *mut c_void) -> io::Result<()> {
    let argument = (&raw const *legacy).cast_mut().cast();
    // SAFETY: the stack is a mapping of this size that is never unmapped; `legacy` outlives the
    // donor, for `make` waits for its end.
    unsafe { create(donate, stack, STACK_BYTES, argument) }
}

/// Starts a thread of the image that lives as long as the process. Its stack is on the image's
/// heap, so behind the wall it belongs to the dataplane from the beginning.
pub fn spawn(run: Start, stack_bytes: usize, argument: *mut c_void) -> io::Result<()> {
    let layout = Layout::from_size_align(stack_bytes, 4096).map_err(io::Error::other)?;
    // SAFETY: the size is not zero.
    let stack = unsafe { std::alloc::alloc(layout) };
    if stack.is_null() {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    // SAFETY: memory of this size that is never freed; the argument is the caller's.
    unsafe { create(run, stack.cast(), stack_bytes, argument) }
}

/// # Safety
/// The stack is of this size, and nobody else's as long as the thread runs.
unsafe fn create(
    run: Start,
    stack: *mut c_void,
    bytes: usize,
    argument: *mut c_void,
) -> io::Result<()> {
    let check = |rc: i32| if rc == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(rc)) };
    // SAFETY: all-zero bytes are room for an attribute object.
    let mut attributes: libc::pthread_attr_t = unsafe { core::mem::zeroed() };
    let mut thread = 0;
    // SAFETY: the attributes are initialised before they are used; the rest is the caller's
    // promise.
    unsafe {
        check(libc::pthread_attr_init(&mut attributes))?;
        check(libc::pthread_attr_setstack(&mut attributes, stack, bytes))?;
        check(libc::pthread_create(&mut thread, &attributes, run, argument))
    }
}

/// The donor: records what it has and ends, leaving all of it.
extern "C" fn donate(legacy: *mut c_void) -> *mut c_void {
    // SAFETY: `legacy` is a `Legacy` until the last store into it, the thread id; afterwards only
    // registers are used. The kernel is told to clear no thread id, and `exit` ends this Linux
    // thread and nothing else. 512 bytes below the stack pointer lie beyond the red zone.
    unsafe {
        asm!(
            "rdfsbase rax",
            "mov [r8], rax",
            "lea rax, [rsp - 512]",
            "and rax, -64",
            "mov [r8 + 8], rax",
            "xor edi, edi",
            "mov eax, {set_tid_address}",
            "syscall",
            // It returns the caller's thread id.
            "mov [r8 + 16], rax",
            "xor edi, edi",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            set_tid_address = const libc::SYS_set_tid_address,
            exit = const libc::SYS_exit,
            in("r8") legacy,
            options(noreturn),
        )
    }
}

/// Lets the donor run.
fn pause() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 20_000 };
    // SAFETY: reads a local; nothing is to be told about the rest of the time.
    unsafe { libc::nanosleep(&time, null_mut()) };
}
