//! The handler of every signal of the process: system calls that Syscall User Dispatch stopped,
//! faults, and signals for the application. It runs on the thread's own signal stack, with all
//! signals blocked except while it makes a system call for the application.
//!
//! Nothing here uses thread-local storage or the heap, because it may have interrupted either.
use super::asm::{self, GATE_CALL, PENDING_CALL, PKRU_APPLICATION, Place};
use super::deliver::{self, Siginfo};
use super::filter;
use super::record::{CS, FP_MAX, Record, SS};
use crate::sys;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use ix_dataplane::metrics::{ControlPage, Refusal};
use std::sync::Arc;

/// `SIGSYS` of Syscall User Dispatch.
const SYS_USER_DISPATCH: i32 = 2;
/// `AUDIT_ARCH_X86_64`.
const ARCH_X86_64: u32 = 0xc000_003e;
const EPERM: i64 = libc::EPERM as i64;

/// Bytes of vector state in a frame, and where the rights are in it.
pub static FP_BYTES: AtomicUsize = AtomicUsize::new(0);
pub static FP_RIGHTS: AtomicUsize = AtomicUsize::new(0);
/// The page on which refusals are counted; null: none.
static COUNTERS: AtomicPtr<ControlPage> = AtomicPtr::new(core::ptr::null_mut());

/// What the kernel puts onto the stack for a handler (`struct rt_sigframe`).
#[repr(C)]
pub struct Frame {
    pub return_to: u64,
    pub flags: u64,
    pub link: u64,
    pub stack: [u64; 3],
    /// r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip.
    pub general: [u64; 17],
    pub rflags: u64,
    pub segments: [u16; 4],
    pub error: u64,
    pub trap: u64,
    pub old_mask: u64,
    pub cr2: u64,
    pub fp: *mut u8,
    pub reserved: [u64; 8],
    pub mask: u64,
    pub info: Siginfo,
}

pub const RIP: usize = 16;
pub const RSP: usize = 15;
const R8: usize = 0;
const RAX: usize = 13;

impl Frame {
    /// The rights that the interrupted code had.
    fn rights(&self) -> u32 {
        const STATE_BITS: usize = 512;
        const RIGHTS: u64 = 1 << 9;
        if self.fp.is_null() {
            return 0;
        }
        // SAFETY: the kernel's own vector state, of the size that it told at the start; the bits
        // say whether the rights are there (else they are all zero).
        unsafe {
            if self.fp.add(STATE_BITS).cast::<u64>().read_unaligned() & RIGHTS == 0 {
                return 0;
            }
            self.fp.add(FP_RIGHTS.load(Ordering::Relaxed)).cast::<u32>().read_unaligned()
        }
    }
}

/// From [`asm::signal_entry`]: 0 goes back to where the dataplane was, 1 to the application.
///
/// # Safety
/// The record is the calling thread's, the frame is the kernel's.
pub unsafe extern "C" fn handle_signal(record: *mut Record, frame: *mut Frame, fs: u64) -> u32 {
    // SAFETY: the caller's promise; both are used by this thread only.
    let (record, frame) = unsafe { (&mut *record, &mut *frame) };
    let info = frame.info;
    frame.info.number = 0;
    let place = Place::of(frame.general[RIP]);
    let rights = frame.rights();
    if record.in_handler != 0 && place != Place::Resuming {
        return within_handler(record, frame, &info, place);
    }
    if record.inside != 0 && rights != PKRU_APPLICATION && place == Place::Elsewhere {
        if info.is_fault() {
            dataplane_fault(record, frame, &info);
        }
        note(record, frame, &info);
        return 0;
    }
    record.in_handler = 1;
    record.inside = 0;
    record.kernel_mask = u64::MAX;
    if matches!(place, Place::Entering | Place::Leaving) {
        super::give_back_shared(record);
    }
    if place != Place::Resuming {
        take_context(record, frame, fs);
        if rights != PKRU_APPLICATION {
            match place {
                Place::Entering => record.registers.rip = asm::retry as *const () as u64,
                Place::Leaving => {
                    record.registers.rip = asm::gate_left();
                    record.registers.r11 = 0;
                }
                // It does not even have its own rights: it has jumped to a `wrpkru` of the
                // dataplane.
                _ => deliver::crash(record, &info),
            }
        }
        if u64::from(frame.segments[0]) != CS {
            deliver::crash(record, &info);
        }
    } else if info.is_fault() {
        deliver::crash(record, &info);
    }
    if info.number == libc::SIGSYS && info.code == SYS_USER_DISPATCH && place != Place::Resuming {
        system_call(record, &info);
    } else {
        deliver::deliver(record, &info);
    }
    deliver::finish(record);
    1
}

/// The thread was in the handler: in a call or copy for the application, or between these.
fn within_handler(record: &mut Record, frame: &mut Frame, info: &Siginfo, place: Place) -> u32 {
    if info.is_fault() {
        if place == Place::Copying && record.in_forward != 0 {
            frame.general[RIP] = asm::copy_after();
            return 0;
        }
        dataplane_fault(record, frame, info);
    }
    note(record, frame, info);
    if place == Place::ForwardBefore && record.in_forward != 0 {
        frame.general[RIP] = asm::forward_after();
        frame.general[RAX] = -asm::RESTART as u64;
    }
    0
}

/// Stores a signal until the thread returns to the application. Until then no other signal arrives,
/// except faults: if a fault is blocked, the kernel ends the process, and the way back to the
/// application can fault.
fn note(record: &mut Record, frame: &mut Frame, info: &Siginfo) {
    if record.pending == 0 {
        record.info = info.bytes();
        record.pending = 1;
    }
    record.kernel_mask = !deliver::faults();
    frame.mask = !deliver::faults();
    super::end_wait(record);
}

/// A fault of the dataplane ends the process, because its memory cannot be trusted any more.
fn dataplane_fault(record: &mut Record, frame: &Frame, info: &Siginfo) -> ! {
    deliver::say_if_possible(
        b"ix: fault in the dataplane; this is a fault of ix: signal, address, instruction",
        &[info.number as u64, info.address, frame.general[RIP]],
    );
    deliver::end_by(record, libc::SIGABRT)
}

/// Stores the application's registers from the kernel's frame.
fn take_context(record: &mut Record, frame: &Frame, fs: u64) {
    let g = &frame.general;
    let r = &mut record.registers;
    [r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15] = core::array::from_fn(|i| g[R8 + i]);
    [r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax, r.rcx, r.rsp, r.rip] =
        core::array::from_fn(|i| g[8 + i]);
    r.rflags = frame.rflags;
    (r.cs, r.ss) = (CS, SS);
    record.app_fs = fs;
    let bytes = FP_BYTES.load(Ordering::Relaxed).min(FP_MAX);
    // SAFETY: the kernel's vector state has this many bytes, and the record room for them.
    unsafe { core::ptr::copy_nonoverlapping(frame.fp, record.fp.0.as_mut_ptr(), bytes) };
}

fn system_call(record: &mut Record, info: &Siginfo) {
    let r = &record.registers;
    let number = r.rax;
    let args = [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9];
    if info.arch() != ARCH_X86_64 {
        record.registers.rax = refuse(Refusal::SystemCall) as u64;
        return;
    }
    match number {
        PENDING_CALL => {
            record.registers.rax = args[0];
            return;
        }
        GATE_CALL => {
            record.registers.rax = super::gate_call(record, args) as u64;
            return;
        }
        _ => {}
    }
    if let Some(result) = filter::system_call(record, number, args) {
        let again = result == -asm::RESTART && deliver::restarts(record, number);
        if result == -asm::RESTART && !again {
            record.registers.rax = -i64::from(libc::EINTR) as u64;
        } else if again {
            // As if the call had not been made yet; a handler may run before it.
            record.registers.rax = number;
            record.registers.rip -= 2;
        } else {
            record.registers.rax = result as u64;
        }
    }
}

/// Counts refusals on this page from now on.
pub fn count_on(page: &Arc<ControlPage>) {
    page.wall().stands.set(1);
    // Kept forever.
    COUNTERS.store(Arc::into_raw(page.clone()).cast_mut(), Ordering::Release);
}

/// Records a fault of the application, so that the broker can report it.
pub fn note_fault(info: &Siginfo, instruction: u64) {
    let page = COUNTERS.load(Ordering::Acquire);
    // SAFETY: null, or a page that is never freed.
    if let Some(page) = unsafe { page.as_ref() } {
        page.wall().note_fault(info.number as u64, info.address, instruction);
    }
}

/// Counts a refusal; returns the error for it.
pub fn refuse(what: Refusal) -> i64 {
    let page = COUNTERS.load(Ordering::Acquire);
    // SAFETY: null, or a page that is never freed.
    if let Some(page) = unsafe { page.as_ref() } {
        page.wall().refuse(what);
    }
    -EPERM
}

/// Sets the kernel's signal mask of this thread.
pub fn set_mask(record: &mut Record, mask: u64) {
    if record.kernel_mask != mask {
        // A signal that arrives with the new mask sets `kernel_mask` again, so it is stored before
        // the call.
        record.kernel_mask = mask;
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
        sys::set_signal_mask(mask);
    }
}
