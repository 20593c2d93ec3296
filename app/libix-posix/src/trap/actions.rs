//! Signal actions and masks of the program. SIGSYS is this library's: it is never blocked, and the
//! program's action for it is only noted.
use super::context::Context;
use super::frame::{Alternate, Frame};
use super::{context, entry};
use crate::signals;
use core::arch::asm;
use core::sync::atomic::{AtomicUsize, Ordering};
use libc::{SA_RESETHAND, SA_SIGINFO, SIG_DFL, SIG_IGN, SIGSYS, c_int, c_void, siginfo_t};

const SA_RESTORER: u64 = 0x0400_0000;
const SIGNALS: usize = 65;
/// Linux's number, which the `libc` crate lacks as an `int`.
const SS_AUTODISARM: c_int = i32::MIN;

/// `struct sigaction` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// What runs a handler of the program's while its thread is the program's.
pub static OUTSIDE: AtomicUsize = AtomicUsize::new(0);
/// Where the program's handlers return to, for who asks.
static RESTORERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];

/// A mask that leaves SIGSYS alone.
pub fn without_sigsys(mask: u64) -> u64 {
    mask & !(1 << (SIGSYS - 1))
}

/// The system call instruction, by which errno stays as it is.
pub fn bare(number: i64, [a, b, c, d]: [u64; 4]) -> i64 {
    let result;
    // SAFETY: Linux's convention; what the call does to memory is the caller's promise, who is in
    // this module and passes locals or numbers.
    unsafe {
        asm!(
            "syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c,
            in("r10") d, lateout("rcx") _, lateout("r11") _, options(nostack),
        );
    }
    result
}

/// Sets the signal mask of the calling thread.
pub fn set_mask(mask: u64) {
    let mask = &raw const mask as u64;
    bare(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as u64, mask, 0, 8]);
}

fn action(signal: c_int, new: Option<&Action>, old: &mut Action) -> i64 {
    let new = new.map_or(0, |new| core::ptr::from_ref(new) as u64);
    bare(libc::SYS_rt_sigaction, [signal as u64, new, &raw mut *old as u64, 8])
}

/// The handler of SIGSYS, and the one in front of the program's.
pub fn begin() {
    let outside = if super::is_beside() { theirs as *const () } else { signals::handler() };
    OUTSIDE.store(outside as usize, Ordering::Relaxed);
    signals::put_in_front(entry::on_signal as *const () as usize);
    let flags = (SA_SIGINFO | libc::SA_ONSTACK) as u64 | SA_RESTORER;
    let (handler, restorer) = (entry::on_trap as *const () as usize, restorer());
    let own = Action { handler, flags, restorer, mask: !0 };
    action(SIGSYS, Some(&own), &mut Action::default());
    let mut mask = 0u64;
    let at = &raw mut mask as u64;
    bare(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as u64, 0, at, 8]);
    set_mask(without_sigsys(mask));
}

/// Linux cannot do it.
pub fn end() {
    signals::put_in_front(signals::handler() as usize);
    action(SIGSYS, Some(&Action::default()), &mut Action::default());
}

fn restorer() -> usize {
    entry::restore as *const () as usize
}

/// `rt_sigaction` of the program.
///
/// # Safety
/// Pointers as Linux wants them.
pub unsafe fn set(signal: c_int, new: u64, old: u64, bytes: u64) -> i64 {
    if bytes != 8 || !(1..SIGNALS as c_int).contains(&signal) {
        return -i64::from(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    let wanted = (new != 0).then(|| unsafe { (new as *const Action).read_unaligned() });
    let (place, front) = (&RESTORERS[signal as usize], entry::on_signal as *const () as usize);
    let (before, restorer_before) = (signals::noted(signal), place.load(Ordering::Relaxed));
    let mut kernels = wanted;
    let is_handler =
        wanted.is_some_and(|wanted| wanted.handler != SIG_DFL && wanted.handler != SIG_IGN);
    if let Some(action) = kernels.as_mut() {
        action.mask = without_sigsys(action.mask);
        if is_handler {
            action.flags =
                action.flags & !(SA_RESETHAND as u32 as u64) | SA_SIGINFO as u64 | SA_RESTORER;
            (action.handler, action.restorer) = (front, restorer());
        }
    }
    // Before Linux runs it.
    if let Some(wanted) = wanted.filter(|_| is_handler || signal == SIGSYS) {
        signals::note(signal, (wanted.handler, wanted.flags as c_int));
        place.store(wanted.restorer, Ordering::Relaxed);
    }
    let mut kernels_old = Action::default();
    let kernels = kernels.filter(|_| signal != SIGSYS);
    let result = action(signal, kernels.as_ref(), &mut kernels_old);
    if result != 0 {
        signals::note(signal, before);
        place.store(restorer_before, Ordering::Relaxed);
        return result;
    }
    if kernels_old.handler == front || signal == SIGSYS {
        (kernels_old.handler, kernels_old.flags) = (before.0, before.1 as u32 as u64);
        kernels_old.restorer = restorer_before;
    }
    if old != 0 {
        // SAFETY: the caller's promise.
        unsafe { (old as *mut Action).write_unaligned(kernels_old) };
    }
    0
}

/// `rt_sigprocmask` of the program, whose mask is `mask`.
///
/// # Safety
/// Pointers as Linux wants them.
pub unsafe fn mask(mask: &mut u64, how: c_int, new: u64, old: u64, bytes: u64) -> i64 {
    if bytes != 8 {
        return -i64::from(libc::EINVAL);
    }
    let before = *mask;
    if new != 0 {
        // SAFETY: the caller's promise.
        let new = unsafe { (new as *const u64).read_unaligned() };
        *mask = without_sigsys(match how {
            libc::SIG_BLOCK => before | new,
            libc::SIG_UNBLOCK => before & !new,
            libc::SIG_SETMASK => new,
            _ => return -i64::from(libc::EINVAL),
        });
    }
    if old != 0 {
        // SAFETY: the caller's promise.
        unsafe { (old as *mut u64).write_unaligned(before) };
    }
    0
}

/// `sigaltstack` of the program, which is in force when it goes on.
///
/// # Safety
/// Pointers as Linux wants them.
pub unsafe fn alternate(frame: &mut Frame, context: &Context, new: u64, old: u64) -> i64 {
    let before = match frame.alternate {
        own if own.first == context.alternate.first => Alternate::NONE,
        theirs => theirs,
    };
    if new != 0 {
        // SAFETY: the caller's promise.
        let wanted = unsafe { (new as *const Alternate).read_unaligned() };
        // As an `int`, and without the room behind it.
        let flags = wanted.flags as u32 as c_int;
        if before.flags == 0 && frame.is_on_alternate() {
            return -i64::from(libc::EPERM);
        }
        match flags & !SS_AUTODISARM {
            libc::SS_DISABLE => frame.alternate = context.alternate,
            0 | libc::SS_ONSTACK if wanted.bytes < libc::MINSIGSTKSZ as u64 => {
                return -i64::from(libc::ENOMEM);
            }
            0 | libc::SS_ONSTACK => frame.alternate = Alternate { flags: flags as u64, ..wanted },
            _ => return -i64::from(libc::EINVAL),
        }
    }
    if old != 0 {
        let on = if frame.registers.rsp.wrapping_sub(before.first) < before.bytes {
            libc::SS_ONSTACK as u64
        } else {
            0
        };
        // SAFETY: the caller's promise.
        unsafe {
            let told = Alternate { flags: before.flags | on, ..before };
            (old as *mut Alternate).write_unaligned(told);
        }
    }
    0
}

/// Beside a static program: runs the program's handler, with its thread-local storage.
unsafe extern "C" fn theirs(signal: c_int, info: *mut siginfo_t, frame: *mut c_void) {
    let (handler, flags) = signals::noted(signal);
    if flags & SA_RESETHAND != 0 {
        signals::note(signal, (SIG_DFL, 0));
        action(signal, Some(&Action::default()), &mut Action::default());
        if handler == SIG_DFL {
            return;
        }
    }
    // SAFETY: the program has set a function of this type. Without SA_SIGINFO it reads only the
    // first argument.
    let handler = unsafe {
        core::mem::transmute::<usize, extern "C" fn(c_int, *mut siginfo_t, *mut c_void)>(handler)
    };
    handler(signal, info, frame);
}

/// A fault in this library: Linux ends the process when the instruction is tried again.
pub fn end_by(signal: c_int) {
    action(signal, Some(&Action::default()), &mut Action::default());
}

/// A copy of a mask that the program passes to a call for Linux, without SIGSYS; `None`: it may be
/// passed as it is.
///
/// # Safety
/// Null, or a mask.
pub unsafe fn replaced_mask(at: u64) -> Option<u64> {
    if !crate::mem::is_readable(at as *const u8, 8) {
        return None;
    }
    // SAFETY: the caller's promise; the calling thread's own context.
    unsafe {
        let mask = (at as *const u64).read_unaligned();
        if without_sigsys(mask) == mask {
            return None;
        }
        let context = &mut *context::current();
        context.mask[0] = without_sigsys(mask);
        Some(context.mask.as_ptr() as u64)
    }
}
