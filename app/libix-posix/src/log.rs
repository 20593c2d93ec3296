//! What the user must hear, once.
use core::sync::atomic::{AtomicU64, Ordering};

/// What can be said; each at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Once {
    /// A forked child uses a socket of its parent.
    ChildUses,
    /// Another process of the program has the dataplane.
    Waits,
    /// splice, tee.
    Splice,
    /// Signals for input and output.
    AsyncIo,
    /// A datagram to the other world.
    Datagram,
    /// Too many descriptors.
    Descriptors,
    /// A forked child behind the wall makes a socket.
    ChildBehindWall,
    /// Control messages that do not come.
    Control,
}

static SAID: AtomicU64 = AtomicU64::new(0);

/// The first bit of options that IX lacks.
const OPTIONS_AT: usize = 32;

/// Says, once, that a program wants an option that IX does not have.
#[cold]
pub fn lacks(index: usize, name: &str) {
    let text = format!(
        "{name} is no option of a socket of IX: ENOPROTOOPT, as of a kernel without it; \
         let the program do without"
    );
    first(1 << (OPTIONS_AT + index), &text);
}

/// Says it, if it was not said yet: what, why, what to do.
#[cold]
pub fn once(what: Once, text: &str) {
    first(1 << what as u32, text);
}

fn first(bit: u64, text: &str) {
    if SAID.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        line(text);
    }
}

/// Says a line, at once and whole.
pub fn line(text: &str) {
    let line = format!("ix: {text}\n");
    // SAFETY: a string and its length; the bare system call, for `write` is ours.
    unsafe { libc::syscall(libc::SYS_write, 2, line.as_ptr(), line.len()) };
}

/// Nothing works without it.
#[cold]
pub fn fatal(text: &str) -> ! {
    line(text);
    std::process::abort()
}
