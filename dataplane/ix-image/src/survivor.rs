//! The survivor: closes the program's connections after the program has ended, in whatever way.
//!
//! A fault, `abort`, `exit` or SIGKILL: the program's process does not get another instruction, and
//! TCP's state is in its memory. So with the first thread that is entered a second process starts
//! that shares this memory and has copies of the dataplane's descriptors. It sleeps until the
//! program's process is gone or has executed another program, which it learns from a descriptor of
//! that process and from a pair of sockets of which one end goes at exec. (A pipe would have a name
//! in `/proc`, by which the program could open it and write to it.) Then no thread of the program
//! runs any more, and it is alone with the dataplane: it winds it up ([`Dataplane::wind_up`]) and
//! ends.
//!
//! It is a child of the broker, not of the program, whose waits must not find it (where the
//! dataplane begins later it is one that only a special wait finds, for the parent may be the
//! program itself); the broker sees by the channel, of which it keeps a copy, when it is done. Of
//! the program's own descriptors it keeps none, and it has a session of its own: what is sent to
//! the program's group is not meant for it.
use crate::elastic::{self, Context};
use crate::sys;
use core::arch::naked_asm;
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use ix_dataplane::Dataplane;
use ix_entry::ReservedFds;
use ix_proto::{Codec, FromImage};
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// How long connections may take to end in order, µs.
const PATIENCE_US: u64 = 300_000;
/// The survivor ends after this time in any case, s.
const LONGEST_S: u64 = 2;

/// What is needed to start a survivor.
struct Survivor {
    dataplane: &'static Dataplane,
    context: Context,
    /// The program's process.
    process: RawFd,
    /// The first is readable when the program has ended or executes another one.
    pair: (RawFd, RawFd),
    fd_base: RawFd,
    /// The channel to the broker.
    channel: RawFd,
    /// The parent of the program's process is the broker.
    is_brokers: bool,
}

/// Descriptors and stack for the survivor, made before the program runs.
pub struct Provisions {
    context: Context,
    process: OwnedFd,
    pair: (OwnedFd, OwnedFd),
    fd_base: RawFd,
    is_brokers: bool,
}

static SURVIVOR: AtomicPtr<Survivor> = AtomicPtr::new(core::ptr::null_mut());
/// The survivor's process; 0: none yet.
static PROCESS: AtomicI32 = AtomicI32::new(0);
const STARTING: i32 = -1;

/// Prepares a survivor while descriptors can be moved into the reserved range. `later`: the
/// dataplane starts in a program that is running, perhaps in a fork of it.
pub fn provide(reserved: ReservedFds, later: bool) -> io::Result<Provisions> {
    let mut ends = [-1; 2];
    // SAFETY: no pointers; then fills an array of ours. The answers are checked.
    let process = unsafe {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        if libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) < 0 {
            return Err(io::Error::last_os_error());
        }
        // The bare call: the C library may answer for the parent.
        let own = sys::syscall(libc::SYS_getpid, [0; 6]);
        libc::syscall(libc::SYS_pidfd_open, own, 0) as RawFd
    };
    // SAFETY: new descriptors that belong to nobody else.
    let own = |fd: RawFd| unsafe { OwnedFd::from_raw_fd(fd) };
    let pair = (reserved.take(own(ends[0]))?, reserved.take(own(ends[1]))?);
    if process < 0 {
        return Err(io::Error::last_os_error());
    }
    let process = reserved.take(own(process))?;
    let (context, fd_base) = (elastic::make()?, reserved.base());
    Ok(Provisions { context, process, pair, fd_base, is_brokers: !later })
}

/// Prepares to [`start`] a survivor of this dataplane.
pub fn prepare(dataplane: &'static Dataplane, provisions: Provisions, channel: RawFd) {
    let Provisions { context, process, pair, fd_base, is_brokers } = provisions;
    // They stay open as long as the process lives.
    let (process, pair) = (process.into_raw_fd(), (pair.0.into_raw_fd(), pair.1.into_raw_fd()));
    let survivor = Survivor { dataplane, context, process, pair, fd_base, channel, is_brokers };
    // The parent's survivor, if it had one, does not belong to this process.
    PROCESS.store(0, Ordering::Release);
    SURVIVOR.store(Box::into_raw(Box::new(survivor)), Ordering::Release);
}

/// Starts the survivor, if there is none. Uses no thread-local storage, because it may run on the
/// application's side.
pub fn start() {
    let survivor = SURVIVOR.load(Ordering::Acquire);
    let nobody = 0;
    let claim = |from| {
        PROCESS.compare_exchange(from, STARTING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    if survivor.is_null() || !claim(nobody) {
        return;
    }
    // SAFETY: never freed.
    let (context, is_brokers) = unsafe { ((*survivor).context, (*survivor).is_brokers) };
    // No signal may reach a handler of the program in the new process.
    let mask = sys::set_signal_mask(!0);
    let flags =
        libc::CLONE_VM | libc::CLONE_SETTLS | if is_brokers { libc::CLONE_PARENT } else { 0 };
    // SAFETY: the stack and the thread-local storage are nobody else's.
    let process = unsafe { split(flags as u64, context.stack_top, context.fs_base) };
    sys::set_signal_mask(mask);
    // If it cannot be started (a limit of processes), the program is served all the same.
    PROCESS.store(if process > 0 { process as i32 } else { nobody }, Ordering::Release);
}

/// The survivor's process; 0: there is none.
pub fn process() -> i32 {
    PROCESS.load(Ordering::Acquire).max(0)
}

/// The broker reports that this survivor has ended before the program: starts another one.
pub fn replace(process: u32) {
    let (process, nobody) = (process as i32, 0);
    let is_it = PROCESS.compare_exchange(process, nobody, Ordering::AcqRel, Ordering::Relaxed);
    // Otherwise it was replaced before, or the program's process numbers differ from the broker's.
    if process > 0 && is_it.is_ok() {
        start();
    }
}

/// The dataplane's descriptors have changed: starts another survivor.
pub fn renew() {
    let process = PROCESS.load(Ordering::Acquire);
    let nobody = 0;
    if process > 0
        && PROCESS.compare_exchange(process, nobody, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    {
        // It sleeps in the kernel and never returns from there.
        // SAFETY: no pointers. It is not reaped before the broker ends, so the number is its.
        unsafe { sys::syscall(libc::SYS_kill, [process as u64, libc::SIGKILL as u64, 0, 0, 0, 0]) };
        start();
    }
}

/// `clone`: the new process runs [`survive`] on this stack, with this thread-local storage.
#[unsafe(naked)]
unsafe extern "C" fn split(flags: u64, stack: u64, fs_base: u64) -> i64 {
    naked_asm!(
        "mov r8, rdx",
        "xor edx, edx",
        "xor r10d, r10d",
        "mov eax, {clone}",
        "syscall",
        "test rax, rax",
        "jnz 2f",
        "xor ebp, ebp",
        "call {survive}",
        "ud2",
        "2: ret",
        clone = const libc::SYS_clone,
        survive = sym survive,
    )
}

/// The survivor's main function.
extern "C" fn survive() -> ! {
    // SAFETY: set before it was started.
    let survivor = unsafe { &*SURVIVOR.load(Ordering::Acquire) };
    // SAFETY: no pointers but to a path; they change this process alone.
    unsafe {
        sys::syscall(libc::SYS_setsid, [0; 6]);
        let last = survivor.fd_base as u64 - 1;
        sys::syscall(libc::SYS_close_range, [0, last, 0, 0, 0, 0]);
        sys::syscall(libc::SYS_close, [survivor.pair.1 as u64, 0, 0, 0, 0, 0]);
        sys::syscall(libc::SYS_chdir, [c"/".as_ptr() as u64, 0, 0, 0, 0, 0]);
    }
    say_who(survivor.channel);
    wait_for_end(survivor);
    end_in_time();
    // The holder of the lock is gone.
    crate::wall::memory::unlock();
    // SAFETY: all threads of the program are gone, or go and execute nothing any more.
    unsafe { survivor.dataplane.wind_up(PATIENCE_US) };
    loop {
        // SAFETY: no pointers; ends this process.
        unsafe { sys::syscall(libc::SYS_exit_group, [0; 6]) };
    }
}

/// Tells the broker of this process, so that the broker replaces it when it is killed.
fn say_who(channel: RawFd) {
    // SAFETY: no arguments.
    let pid = unsafe { sys::syscall(libc::SYS_getpid, [0; 6]) } as u32;
    // Without the heap: if this process is killed while it uses the heap, the lock stays held.
    let mut buffer = [0u8; 16];
    let Some(message) = (FromImage::Survivor { pid }).encode_into(&mut buffer) else { return };
    let flags = (libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) as u64;
    let args = [channel as u64, message.as_ptr() as u64, message.len() as u64, flags, 0, 0];
    // SAFETY: sends bytes of a local. A broker that does not hear it watches nobody.
    unsafe { sys::syscall(libc::SYS_sendto, args) };
}

fn wait_for_end(survivor: &Survivor) {
    let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut polls = [poll(survivor.process), poll(survivor.pair.0)];
    loop {
        let args = [polls.as_mut_ptr() as u64, polls.len() as u64, u64::MAX, 0, 0, 0];
        // SAFETY: an array of ours with its length.
        if unsafe { sys::syscall(libc::SYS_poll, args) } > 0 {
            return;
        }
    }
}

/// Makes the kernel end this process if the rest takes too long.
fn end_in_time() {
    let alarm = 1u64 << (libc::SIGALRM - 1);
    // The kernel's `struct sigaction`: default, no flags, no restorer, no mask.
    let default = [0u64; 4];
    let action = [libc::SIGALRM as u64, default.as_ptr() as u64, 0, 8, 0, 0];
    // SAFETY: reads an array of ours.
    unsafe {
        sys::syscall(libc::SYS_rt_sigaction, action);
        sys::set_signal_mask(!alarm);
        sys::syscall(libc::SYS_alarm, [LONGEST_S, 0, 0, 0, 0, 0]);
    }
}
