//! Records faults of a program without a wall: their address is written to the control page, so
//! that the broker can report it when the fault ends the program.
//!
//! When the program's first thread enters, a handler of the image is put before the program's own
//! handlers, which it calls. It runs with the program's thread-local storage, and uses none.
use crate::sys::{self, Action, SA_RESTORER};
use core::arch::naked_asm;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use ix_dataplane::metrics::ControlPage;
use ix_proto::crossing::FaultNote;
use std::sync::Arc;

/// Those that an instruction causes and that have an address.
const FAULTS: [i32; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

struct Actions(UnsafeCell<[Action; FAULTS.len()]>);

// SAFETY: written once, before the handler that reads them is set.
unsafe impl Sync for Actions {}

/// The actions that the program had set.
static BEFORE: Actions = Actions(UnsafeCell::new([Action::DEFAULT; FAULTS.len()]));
static PAGE: AtomicPtr<ControlPage> = AtomicPtr::new(core::ptr::null_mut());
/// Where a program whose dataplane is in another process finds the place for its note.
static NOTE: AtomicPtr<AtomicPtr<FaultNote>> = AtomicPtr::new(core::ptr::null_mut());

/// Records faults on this page.
pub fn note_on(page: &Arc<ControlPage>) {
    // Kept forever.
    PAGE.store(Arc::into_raw(page.clone()).cast_mut(), Ordering::Release);
}

/// Records faults at the place that is there then; null: nowhere.
pub fn note_at(place: &'static AtomicPtr<FaultNote>) {
    NOTE.store((&raw const *place).cast_mut(), Ordering::Release);
}

/// Installs the handlers at the first call, if there is a place for notes.
pub fn watch() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    let nowhere = PAGE.load(Ordering::Acquire).is_null() && NOTE.load(Ordering::Acquire).is_null();
    if nowhere || WATCHED.swap(true, Ordering::Relaxed) {
        return;
    }
    for (index, signal) in FAULTS.into_iter().enumerate() {
        let mut before = Action::DEFAULT;
        let ask = [signal as u64, 0, &raw mut before as u64, 8, 0, 0];
        // SAFETY: fills a local; nobody reads the place before the handler below is set.
        unsafe {
            if sys::syscall(libc::SYS_rt_sigaction, ask) != 0 {
                continue;
            }
            (*BEFORE.0.get())[index] = before;
        }
        let flags = match before.handler {
            // A program that overflows its stack needs another stack for the handler.
            handler if handler == Action::DEFAULT.handler => libc::SA_ONSTACK as u64,
            _ => before.flags & !(libc::SA_RESETHAND as u64),
        };
        let ours = Action {
            handler: on_fault as *const () as u64,
            flags: flags | libc::SA_SIGINFO as u64 | SA_RESTORER,
            restorer: back as *const () as u64,
            mask: before.mask,
        };
        set(signal, &ours);
    }
}

fn set(signal: i32, action: &Action) {
    let args = [signal as u64, &raw const *action as u64, 0, 8, 0, 0];
    // SAFETY: reads the struct.
    unsafe { sys::syscall(libc::SYS_rt_sigaction, args) };
}

extern "C" fn on_fault(
    signal: i32,
    info: *const libc::siginfo_t,
    context: *const libc::ucontext_t,
) {
    // SAFETY: the kernel passes both; the page is null or never freed.
    unsafe {
        let by_instruction = (*info).si_code > 0;
        if by_instruction {
            let instruction = (*context).uc_mcontext.gregs[libc::REG_RIP as usize] as u64;
            let (signal, address) = (signal as u64, (*info).si_addr() as u64);
            if let Some(page) = PAGE.load(Ordering::Acquire).as_ref() {
                page.wall().note_fault(signal, address, instruction);
            }
            // In a forked child there is no such place.
            if let Some(place) = NOTE.load(Ordering::Acquire).as_ref()
                && let Some(note) = place.load(Ordering::Acquire).as_ref()
            {
                note.address.store(address, Ordering::Relaxed);
                note.instruction.store(instruction, Ordering::Relaxed);
                note.signal.store(signal, Ordering::Relaxed);
            }
        }
    }
    let index = FAULTS.iter().position(|&fault| fault == signal).unwrap_or(0);
    // SAFETY: written before this handler was set.
    let before = unsafe { (*BEFORE.0.get())[index] };
    let is_default = [libc::SIG_DFL as u64, libc::SIG_IGN as u64].contains(&before.handler);
    if is_default || before.flags & libc::SA_RESETHAND as u64 != 0 {
        set(signal, &Action::DEFAULT);
    }
    if is_default {
        // The instruction faults again, and ends the process. A signal that somebody has sent does
        // not. SAFETY: as above; no pointers.
        unsafe {
            if (*info).si_code <= 0 {
                let process = sys::syscall(libc::SYS_getpid, [0; 6]) as u64;
                let thread = sys::syscall(libc::SYS_gettid, [0; 6]) as u64;
                let again = [process, thread, signal as u64, 0, 0, 0];
                sys::syscall(libc::SYS_tgkill, again);
            }
        }
        return;
    }
    // SAFETY: the program has set a function of this type; without SA_SIGINFO it looks at the first
    // argument only.
    let handler = unsafe {
        core::mem::transmute::<
            u64,
            extern "C" fn(i32, *const libc::siginfo_t, *const libc::ucontext_t),
        >(before.handler)
    };
    handler(signal, info, context);
}

/// The code that the handler returns to.
#[unsafe(naked)]
extern "C" fn back() {
    naked_asm!("mov eax, {sigreturn}", "syscall", "ud2", sigreturn = const libc::SYS_rt_sigreturn)
}
