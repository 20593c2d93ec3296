//! Programs that call Linux by instructions of their own, and not through the C library: Go, static
//! programs, `syscall(2)` by hand.
//!
//! Linux hands such a call back as a signal (Syscall User Dispatch). The handler ([`entry`]) looks
//! at it ([`calls`]): most are for Linux, and are made as they are ([`Frame::pass`]). Those about
//! sockets of IX go to the functions by which dynamic programs call this library. They run on a
//! stack of this library's, with the thread-local storage of the C library that it uses, and with
//! the program's signals postponed until the call has ended ([`crate::signals::Place`]).
//!
//! * `context`: what a thread has for this; the register gs points to it.
//! * `frame`: what Linux saves when it runs a handler.
//! * `entry`: the handlers.
//! * `calls`: which call goes where.
//! * `actions`: the program's signal actions and masks.
//! * `threads`: threads and processes that the program starts.
//! * `beside`: the start beside a static program.
//! * `sites`: which instructions call, and how often.
//!
//! [`Frame::pass`]: frame::Registers::pass
mod actions;
mod beside;
mod calls;
mod context;
mod entry;
mod frame;
mod sites;
mod threads;

use crate::log;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

pub use sites::report;
pub use threads::create as create_thread;

/// How the program calls Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum How {
    /// Through the C library.
    Library = 0,
    /// Through the C library, and by instructions of its own.
    Both = 1,
    /// By instructions of its own. This library's C library is not the program's.
    Own = 2,
}

static HOW: AtomicU8 = AtomicU8::new(How::Library as u8);

/// A system call instruction with a return behind it, from which Linux takes calls: in the C
/// library.
static GATE: AtomicU64 = AtomicU64::new(0);
/// Where Linux takes calls from: the first address, and how many bytes.
static ALLOWED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Whether calls of the program by instructions of its own come here.
pub fn is_on() -> bool {
    HOW.load(Ordering::Relaxed) != How::Library as u8
}

/// Whether this library's C library is not the program's.
fn is_beside() -> bool {
    HOW.load(Ordering::Relaxed) == How::Own as u8
}

/// Whether threads that the program starts through the C library are to be followed.
pub fn follows_threads() -> bool {
    HOW.load(Ordering::Relaxed) == How::Both as u8
}

/// Before the program's first instruction: if it is one that needs this, or `wanted`, its calls by
/// instructions of its own come here from now on.
pub fn begin(wanted: bool) {
    if beside::is_program() || !(wanted || sites::is_go()) {
        return;
    }
    if let Err(why) = start(How::Both) {
        log::line(&format!(
            "system calls that this program makes itself cannot be intercepted ({why}): the \
             sockets that it makes so are Linux's; --posix off runs it without this line"
        ));
    }
}

/// Sets up what all threads share, and the calling thread.
fn start(how: How) -> Result<(), &'static str> {
    let gate = sites::gate().ok_or("the C library has no call that can be used for others")?;
    let (first, bytes) = match how {
        How::Both => sites::mapping_of(gate).ok_or("the C library's code was not found")?,
        _ => (gate, 4),
    };
    sites::note_own();
    GATE.store(gate, Ordering::Relaxed);
    ALLOWED[0].store(first, Ordering::Relaxed);
    ALLOWED[1].store(bytes, Ordering::Relaxed);
    let context = context::of_library_thread().ok_or("no memory for a stack")?;
    HOW.store(how as u8, Ordering::Relaxed);
    actions::begin();
    // SAFETY: the calling thread's own, which lives as long as the process.
    let armed = unsafe { (*context).arm() };
    if !armed {
        HOW.store(How::Library as u8, Ordering::Relaxed);
        actions::end();
        return Err("Linux before 5.11, or built without Syscall User Dispatch");
    }
    // SAFETY: as above.
    unsafe { (*context).belongs_to_program() };
    Ok(())
}

/// In a forked child: Linux has forgotten that this thread's calls come here.
pub fn forked() {
    if is_on() {
        threads::forked();
    }
}
