//! Messages to the user of the program, on standard error.
use crate::commons;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// Messages that are written at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Once {
    /// A forked child uses a socket of its parent.
    ChildUses,
    /// Another process of the program serves.
    Waits,
    /// `splice`, `tee`.
    Splice,
    /// Signals for input and output.
    AsyncIo,
    /// A UDP socket of IX sends to an address of Linux's.
    Datagram,
    /// Too many descriptors.
    Descriptors,
    /// A forked child behind the wall makes a socket.
    ChildBehindWall,
    /// Control messages that IX does not have.
    Control,
    /// The program wants the register gs.
    RegisterGs,
    /// A process that shares descriptors with its parent, or is in other namespaces.
    OwnNamespace,
    /// A filter of system calls that refuses what IX needs.
    Filter,
    /// Operations of io_uring on sockets of IX.
    Uring,
    /// An io_uring that Linux is to poll.
    UringPoll,
    /// Changes of a shared epoll set that a process has missed.
    SetChanges,
}

static SAID: AtomicU64 = AtomicU64::new(0);

/// The bit of the first option that IX lacks.
const OPTIONS_AT: usize = 32;

/// Reports once that a program wants an option that IX does not have.
#[cold]
pub fn unsupported(index: usize, name: &str) {
    let text = format!(
        "sockets of IX have no option {name}: it returns ENOPROTOOPT, as on a kernel without it; \
         configure the program without it"
    );
    first(1 << (OPTIONS_AT + index), &text);
}

/// Writes a message once: what, why, what to do.
#[cold]
pub fn once(what: Once, text: &str) {
    first(1 << what as u32, text);
}

fn first(bit: u64, text: &str) {
    if SAID.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        line(text);
    }
}

/// Whether a process of this run has said that an executed program leaves IX. It is shared with the
/// processes that are forked; null in a process that has no IX.
static TOLD_OF_LEAVING: AtomicPtr<AtomicBool> = AtomicPtr::new(null_mut());

/// At the start of a process that has IX: what the processes of the run share.
pub fn begin_run() {
    if let Some(page) = commons::part() {
        TOLD_OF_LEAVING.store(page, Ordering::Release);
    }
}

fn told_of_leaving() -> Option<&'static AtomicBool> {
    // SAFETY: null, or a page of ours, all zero at first, which is never unmapped.
    unsafe { TOLD_OF_LEAVING.load(Ordering::Acquire).as_ref() }
}

/// Whether no process of this run has called [`leaves`].
pub fn may_tell_of_leaving() -> bool {
    told_of_leaving().is_some_and(|told| !told.load(Ordering::Relaxed))
}

/// Reports the first program that this one executes.
#[cold]
pub fn leaves(program: &str) {
    if told_of_leaving().is_some_and(|told| !told.swap(true, Ordering::Relaxed)) {
        line(&format!(
            "{program} is executed outside of IX: its sockets, and those of all other programs \
             that this one executes, are Linux's; to give them IX's, name the program to `ix run` \
             itself"
        ));
    }
}

/// Writes one line by one system call.
pub fn line(text: &str) {
    let line = ix_sys::log::formatted(ix_sys::log::Level::Info, text) + "\n";
    // SAFETY: a string and its length; the system call itself, because `write` is ours.
    unsafe { libc::syscall(libc::SYS_write, 2, line.as_ptr(), line.len()) };
}

/// Writes the message and aborts the process.
#[cold]
pub fn fatal(text: &str) -> ! {
    line(text);
    std::process::abort()
}
