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
//! * `ways`: what decides that.
//! * `actions`: the program's signal actions and masks.
//! * `threads`: threads and processes that the program starts.
//! * `beside`: the start beside a static program.
//! * `sites`: which instructions call, and how often.
//! * `rewrite`: instructions that call often, in whose place a jump comes here without a signal.
//!
//! [`Frame::pass`]: frame::Registers::pass
mod actions;
mod beside;
mod calls;
mod context;
mod entry;
mod frame;
mod rewrite;
mod sites;
mod threads;
mod ways;

use crate::process::Intercepts;
use crate::{log, process, real, signals};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

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

/// Instructions that call often are rewritten.
static REWRITES: AtomicBool = AtomicBool::new(true);

/// Whether calls of the program by instructions of its own come here.
fn is_on() -> bool {
    HOW.load(Ordering::Relaxed) != How::Library as u8
}

/// Whether this library's C library is not the program's.
fn is_beside() -> bool {
    HOW.load(Ordering::Relaxed) == How::Own as u8
}

/// Whether threads that the program starts through the C library are to be followed.
fn follows_threads() -> bool {
    HOW.load(Ordering::Relaxed) == How::Both as u8
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

/// Before the program's first instruction: begins the library, and has calls that the program makes
/// by instructions of its own come here if it is one that needs this.
extern "C" fn begin() {
    let Some(wanted) = process::begin() else { return };
    process::has_own_calls(process::OwnCalls {
        forked,
        report: sites::report,
        warning: sites::warning,
    });
    if wanted == Intercepts::Trapped {
        REWRITES.store(false, Ordering::Relaxed);
    }
    let has_own = || wanted != Intercepts::Recognised || sites::is_go() || sites::has_liburing();
    if beside::is_program() || !has_own() {
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
    if REWRITES.load(Ordering::Relaxed) {
        rewrite::begin();
    }
    // SAFETY: as above.
    unsafe { (*context).belongs_to_program() };
    Ok(())
}

/// In a forked child: Linux has forgotten that this thread's calls come here.
fn forked() {
    if is_on() {
        rewrite::hold(false);
        context::forget_counts();
        sites::forked();
        threads::forked();
    }
}

/// Threads of a program that calls Linux itself, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    body: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
    argument: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the program's own arguments.
    unsafe {
        if follows_threads() && !signals::spawns() {
            rewrite::has_threads();
            threads::create(thread, attributes, body, argument)
        } else {
            real::pthread_create(thread, attributes, body, argument)
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_sigmask(
    how: libc::c_int,
    new: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> libc::c_int {
    // SAFETY: the program's own arguments, or a copy of its set.
    unsafe {
        match new.as_ref().copied() {
            Some(mut set) if is_on() && how != libc::SIG_UNBLOCK => {
                libc::sigdelset(&mut set, libc::SIGSYS);
                real::pthread_sigmask(how, &set, old)
            }
            _ => real::pthread_sigmask(how, new, old),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigprocmask(
    how: libc::c_int,
    new: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> libc::c_int {
    // SAFETY: it takes the same arguments.
    match unsafe { pthread_sigmask(how, new, old) } {
        0 => 0,
        errno => {
            real::set_errno(errno);
            -1
        }
    }
}
