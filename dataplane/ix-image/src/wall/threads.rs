//! Threads and processes that the application makes. They do not inherit Syscall User Dispatch, the
//! signal stack and the thread's identity. So a new one starts in the dataplane, which sets all
//! three before it runs an instruction of the application.
use super::asm::{app_clone, app_syscall, exit_thread};
use super::deliver::{FAULTS, finish, lock_actions, own, to_app, unlock_actions};
use super::handler::{FP_BYTES, refuse, set_mask};
use super::parts::{Part, stands};
use super::record::{self, FP_MAX, FREE, NOBODY, Record};
use super::{arrivals, memory};
use crate::sys;
use core::sync::atomic::Ordering;
use ix_dataplane::metrics::Refusal;

const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;
const PR_SYS_DISPATCH_ON: u64 = 1;
const SIGNAL_MASK: u64 = 0xff;
const USER_TOP: u64 = 1 << 47;
/// The kernel's number of a thread.
const TID_BYTES: u64 = 4;
const EPERM: i64 = libc::EPERM as i64;
const EAGAIN: i64 = libc::EAGAIN as i64;

/// Refused flags. A new user namespace would bring capabilities, others mounts. A tracer's child
/// and a sibling of the dataplane's process would not be children of the program.
const REFUSED: u64 =
    0x7e02_0000 | 0x80 | (libc::CLONE_PTRACE | libc::CLONE_PARENT | libc::CLONE_UNTRACED) as u64;

/// `clone`, `fork` and `vfork`, as `clone`'s arguments.
pub fn clone(record: &mut Record, mut args: [u64; 6]) -> i64 {
    const VM: u64 = libc::CLONE_VM as u64;
    const THREAD: u64 = libc::CLONE_THREAD as u64;
    const FILES: u64 = libc::CLONE_FILES as u64;
    const CLEAR_TID: u64 = libc::CLONE_CHILD_CLEARTID as u64;
    // Threads share one table of descriptors, a process has its own: `arrivals` checks only threads
    // of this process, and only its table has the dataplane's descriptors.
    let shares_files = args[0] & FILES != 0;
    if args[0] & REFUSED != 0 || shares_files != (args[0] & THREAD != 0) && stands(Part::Calls) {
        return refuse(Refusal::SystemCall);
    }
    if args[0] & libc::CLONE_SETTLS as u64 != 0 && args[4] >= USER_TOP {
        return -EPERM;
    }
    if args[0] & VM != 0 && args[0] & THREAD == 0 {
        // `vfork`: the parent and the child would use the same memory at once. A copy is used
        // instead.
        args[0] &= !VM;
    }
    if stands(Part::Calls) {
        // The parent would wait for a child that need not end, in a call that no signal interrupts,
        // with the locks below held: no command of the control plane would arrive.
        args[0] &= !(libc::CLONE_VFORK as u64);
    }
    let clears = args[0] & CLEAR_TID != 0 && stands(Part::Calls);
    if clears && memory::is_protected(args[3], TID_BYTES) {
        return refuse(Refusal::Memory);
    }
    let Some(child) = record::take() else { return -EAGAIN };
    // SAFETY: just taken, so nobody else uses it.
    let new = unsafe { &mut *record::at(child) };
    new.registers = record.registers;
    new.registers.rax = 0;
    if args[1] != 0 {
        new.registers.rsp = args[1];
    }
    new.app_fs = if args[0] & libc::CLONE_SETTLS as u64 != 0 { args[4] } else { record.app_fs };
    new.app_mask = record.app_mask;
    new.elastic = NOBODY;
    (new.in_handler, new.in_forward, new.inside, new.pending) = (1, 0, 0, 0);
    (new.has_shared, new.owner) = (0, 0);
    arrivals::call_ends(new);
    new.app_stack = if args[0] & VM != 0 {
        record::AltStack { flags: 2, ..Default::default() }
    } else {
        record.app_stack
    };
    let bytes = FP_BYTES.load(Ordering::Relaxed).min(FP_MAX);
    new.fp.0[..bytes].copy_from_slice(&record.fp.0[..bytes]);
    new.tid = 0;
    new.clear_tid = 0;
    if clears {
        new.clear_tid = args[3];
        args[0] &= !CLEAR_TID;
    }
    new.maker = process();
    // A signal between the two would find the new thread half made.
    set_mask(record, !0);
    let call = [libc::SYS_clone as u64, args[0], args[1], args[2], args[3], args[4], args[5]];
    let is_process = args[0] & VM == 0;
    new.is_process = u8::from(is_process);
    if is_process {
        // The copy of a lock that another thread holds would never be released.
        memory::lock();
        lock_actions();
    }
    // A process has copies of all descriptors.
    arrivals::call_begins(record);
    // SAFETY: the record of this thread; the child's was prepared.
    let result = unsafe { app_clone(record, &call, child as u64) };
    arrivals::call_ends(record);
    if is_process {
        unlock_actions();
        memory::unlock();
    }
    if result < 0 || is_process {
        // The new thread was not made. (If a thread has forged its way to this record, it is that
        // thread's.)
        let new = record::at(child);
        // SAFETY: `state` is atomic.
        let state = unsafe { &(*new).state };
        let _ = state.compare_exchange(record::STARTING, FREE, Ordering::AcqRel, Ordering::Relaxed);
    }
    result
}

/// The first code of a new thread or process, with all signals blocked.
///
/// # Safety
/// The record was taken for the calling thread.
pub unsafe extern "C" fn child_start(record: *mut Record) {
    // SAFETY: the caller's promise.
    let record = unsafe { &mut *record };
    record.kernel_mask = !0;
    if record.is_process != 0 {
        if process() == record.maker {
            // No process has begun: a thread has jumped to this place while another one holds these
            // locks.
            end_at_once();
        }
        unlock_actions();
        memory::unlock();
        super::forked();
    }
    if arm(record).is_err() {
        // Without these it must not run.
        exit_thread(record, 1);
    }
    finish(record);
}

/// Number of the calling process.
fn process() -> u64 {
    // SAFETY: no arguments.
    unsafe { sys::syscall(libc::SYS_getpid, [0; 6]) as u64 }
}

/// Ends the process, whatever its threads are doing.
pub fn end_at_once() -> ! {
    loop {
        // SAFETY: no pointers.
        unsafe { sys::syscall(libc::SYS_kill, [process(), libc::SIGKILL as u64, 0, 0, 0, 0]) };
    }
}

/// `set_tid_address`: the dataplane stores the address, and writes there when the thread ends
/// ([`exit`]).
pub fn set_tid_address(record: &mut Record, address: u64) -> i64 {
    if memory::is_protected(address, TID_BYTES) {
        return refuse(Refusal::Memory);
    }
    record.clear_tid = address;
    record.tid as i64
}

/// Writes the zero for the end of the thread, with the application's rights, and wakes threads that
/// wait for it (set_tid_address(2)). The thread does not use its own stack from here on.
fn clear_tid(record: &mut Record) {
    let address = core::mem::take(&mut record.clear_tid);
    if address != 0 && to_app(record, address, &0u32.to_ne_bytes()) {
        let wake = libc::FUTEX_WAKE as u64;
        let call = [libc::SYS_futex as u64, address, wake, 1, 0, 0, 0];
        // SAFETY: the record of this thread; a wake-up reads no memory but the word, as the
        // application.
        unsafe { app_syscall(record, &call) };
    }
}

/// Sets identity, signal stack and Syscall User Dispatch for the calling thread.
pub fn arm(record: &mut Record) -> Result<(), i64> {
    let index = (&raw const *record as usize - record::at(0) as usize) >> record::SHIFT;
    record::claim(index)?;
    let check = |answer: i64| if answer < 0 { Err(answer) } else { Ok(answer) };
    let stack = [record.stack.0, 0, record.stack.1];
    // SAFETY: reads a local; the stack is the record's own.
    unsafe {
        record.tid = check(sys::syscall(libc::SYS_gettid, [0; 6]))? as u64;
        let at = &raw const stack as u64;
        check(sys::syscall(libc::SYS_sigaltstack, [at, 0, 0, 0, 0, 0]))?;
        let selector = &raw mut (*record.shown).selector;
        selector.write_volatile(0);
        let args = [PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0, 0, selector as u64, 0];
        check(sys::syscall(libc::SYS_prctl, args))?;
    }
    Ok(())
}

/// `exit` of the calling thread alone.
pub fn exit(record: &mut Record, status: u64) -> ! {
    set_mask(record, !0);
    super::leave(record);
    clear_tid(record);
    exit_thread(record, status & SIGNAL_MASK)
}

/// Installs handlers for faults and for stopped system calls, for the whole process.
pub fn own_faults() -> Result<(), i64> {
    for signal in FAULTS {
        match own(signal, 0) {
            0 => {}
            error => return Err(error),
        }
    }
    Ok(())
}
