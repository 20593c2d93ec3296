//! The gate: the one function of the dataplane that the application calls.
//!
//! It is called on the application's stack, with the application's thread-local storage. `RUN_IO`
//! checks the caller, changes to the elastic thread's own stack and thread-local storage, runs the
//! dataplane there and changes back: two writes of fs base and a few loads. `ENTER` and `LEAVE` go
//! through [`change_hands`], which changes the owner.
//!
//! A caller is identified by its fs base, which no other live thread of the process has. `RUN_IO`
//! compares it with the owner that `ENTER` stored. So only one thread at a time is inside an
//! elastic thread: any other thread is refused, and so is a handler of a fault that happened
//! inside, because it runs with the dataplane's fs base. If a thread ended without `LEAVE`, another
//! one can take over. Against a hostile program only the wall protects, which `--domain none` does
//! not have.
//!
//! It assumes what the System V ABI guarantees to a callee: the direction flag is clear, and the
//! control words of the floating-point units are the caller's and are kept.
//!
//! In a forked child the kernel has wiped the table (rings and pools are not inherited), and the
//! gate refuses every thread.
use crate::boot;
use crate::elastic::Context;
use crate::later;
use crate::linux_thread::{Before, is_alive, own_id, place};
use crate::signals::BLOCKED;
use crate::sys;
use core::arch::naked_asm;
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use ix_abi::{error, gate_op};

/// Most elastic threads.
pub const THREADS_MAX: usize = 256;
const SLOT_BYTES: usize = 256;
/// The owner of a shared elastic thread while no thread is inside. It is not a valid fs base.
pub const SHARED: u64 = 1;
/// The operation by which [`start`] calls [`dispatch`]; not one of [`gate_op`].
const START: u64 = u64::MAX;
const SLOT_SHIFT: u32 = SLOT_BYTES.trailing_zeros();

/// An elastic thread, as the gate sees it.
#[repr(C, align(256))]
struct Slot {
    /// fs base of the Linux thread that has entered; 0: none.
    owner: AtomicU64,
    stack_top: u64,
    fs_base: u64,
    cpu: u32,
    /// Linux' number of the owner, to tell whether it still lives; 0: not written yet.
    owner_id: AtomicU32,
    /// Said by `SHARE`, for good.
    is_shared: AtomicBool,
    /// What the owner had before it entered; touched by the owner only.
    before: UnsafeCell<Before>,
}

#[repr(C, align(256))]
struct Table {
    threads: u64,
    slots: [Slot; THREADS_MAX],
}

const _: () = assert!(size_of::<Slot>() == SLOT_BYTES);
const _: () = assert!(offset_of!(Table, slots) == SLOT_BYTES);

// SAFETY: `before` belongs to the owner, the rest does not change once the table is published.
unsafe impl Sync for Table {}

/// The table; never null once [`open`] was called, and the gate's address is not known before.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(core::ptr::null_mut());

/// Opens the gate for these elastic threads, each with its hardware thread. Returns false if there
/// is no memory for the table.
pub fn open(threads: &[(Context, u32)]) -> bool {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let Ok(map) = sys::map(size_of::<Table>(), prot) else { return false };
    let table = map.cast::<Table>();
    // SAFETY: a fresh zeroed mapping of that size, page-aligned, for which all zero is a valid
    // value; nobody else has it yet.
    let content = unsafe { &mut *table };
    for (slot, (context, cpu)) in content.slots.iter_mut().zip(threads) {
        slot.stack_top = context.stack_top;
        slot.fs_base = context.fs_base;
        slot.cpu = *cpu;
    }
    content.threads = threads.len().min(THREADS_MAX) as u64;
    let args = [map as u64, size_of::<Table>() as u64, libc::MADV_WIPEONFORK as u64, 0, 0, 0];
    // SAFETY: a private anonymous mapping of ours.
    let wiped = unsafe { sys::syscall(libc::SYS_madvise, args) } == 0;
    TABLE.store(table, Ordering::Release);
    wiped
}

/// The gate's address, for `ProcessHeader::gate`.
pub fn address(walled: bool) -> u64 {
    if walled { crate::wall::asm::gate as *const () as u64 } else { gate as *const () as u64 }
}

/// `extern "C" fn(op, a, b, c) -> i64`, see [`gate_op`]; `a` is always the elastic thread's index.
#[unsafe(naked)]
extern "C" fn gate(op: u64, index: u64, b: u64, c: u64) -> i64 {
    naked_asm!(
        "mov r8, [rip + {table}]",
        "cmp rsi, [r8 + {threads}]",
        "jae 2f",
        "mov rax, rsi",
        "shl rax, {slot_shift}",
        "lea r8, [r8 + rax + {slots}]",
        "rdfsbase r9",
        "cmp rdi, {run_io}",
        "jne {change_hands}",
        "cmp r9, [r8 + {owner}]",
        "je {cross}",
        // It is shared, or the caller is not its owner.
        "jmp {change_hands}",
        "2: mov rax, -{invalid}",
        "ret",
        table = sym TABLE,
        threads = const offset_of!(Table, threads),
        slots = const offset_of!(Table, slots),
        slot_shift = const SLOT_SHIFT,
        owner = const offset_of!(Slot, owner),
        run_io = const gate_op::RUN_IO,
        change_hands = sym change_hands,
        cross = sym cross,
        invalid = const error::INVALID,
    )
}

/// Calls [`dispatch`] with the first four arguments, on the slot's stack and fs base. `app_fs` is
/// the caller's fs base, which is restored afterwards.
///
/// The frame keeps the caller's stack pointer in rbp, so that debuggers and profilers can follow
/// it.
#[unsafe(naked)]
extern "C" fn cross(op: u64, index: u64, b: u64, c: u64, slot: *const Slot, app_fs: u64) -> i64 {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rsp, [r8 + {stack_top}]",
        "mov rax, [r8 + {fs_base}]",
        // Two words, so that the stack is aligned at the call.
        "push r9",
        "push r9",
        "wrfsbase rax",
        "call {dispatch}",
        "pop r9",
        "wrfsbase r9",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
        stack_top = const offset_of!(Slot, stack_top),
        fs_base = const offset_of!(Slot, fs_base),
        dispatch = sym dispatch,
    )
}

/// `Starter::start`, and `RENEW` of a dataplane in another process: runs on the image's first
/// stack, with the first thread's storage. Signals are blocked meanwhile, because the threads that
/// the start makes and ends would receive them.
pub extern "C" fn start() -> u64 {
    let before = sys::set_signal_mask(BLOCKED);
    let (stack_top, fs_base) = later::context();
    let slot = Slot {
        owner: AtomicU64::new(0),
        stack_top,
        fs_base,
        cpu: 0,
        owner_id: AtomicU32::new(0),
        is_shared: AtomicBool::new(false),
        before: UnsafeCell::new(Before::NOTHING),
    };
    let app_fs: u64;
    // SAFETY: reads a register; `main` has seen to it that the processor lets it.
    unsafe { core::arch::asm!("rdfsbase {}", out(reg) app_fs) };
    let header = cross(START, 0, 0, 0, &slot, app_fs);
    sys::set_signal_mask(before);
    header as u64
}

/// The dataplane's side of the gate: its own stack and thread-local storage.
pub extern "C" fn dispatch(op: u64, index: u64, b: u64, c: u64) -> i64 {
    match op {
        START => boot::start_later(),
        // SAFETY: the gate lets only the owner of the elastic thread pass.
        gate_op::RUN_IO => unsafe { boot::run_io(index as usize, b, c) },
        // SAFETY: as above. b is the application's signal mask.
        gate_op::ENTER => unsafe { boot::entered(index as usize, b) },
        // SAFETY: as above.
        gate_op::WATCH => unsafe { boot::watch(index as usize, b) },
        // SAFETY: as above; it is the owner's last call.
        gate_op::LEAVE => unsafe { boot::left(index as usize) },
        _ => 0,
    }
}

/// `ENTER`, `LEAVE` and invalid operations. Runs on the application's side of the gate, because a
/// signal handler between the change of fs base and the blocking of signals would find the wrong
/// thread-local storage. So nothing here may use any, errno included.
extern "C" fn change_hands(
    op: u64,
    index: u64,
    b: u64,
    c: u64,
    slot: *const Slot,
    app_fs: u64,
) -> i64 {
    // SAFETY: the gate passes a slot of the table, which is never unmapped.
    let slot = unsafe { &*slot };
    match op {
        gate_op::ENTER => enter(index, slot, app_fs),
        gate_op::LEAVE if slot.owner.load(Ordering::Relaxed) == app_fs => {
            cross(gate_op::LEAVE, index, 0, 0, slot, app_fs);
            give_back(slot);
            0
        }
        gate_op::LEAVE => -error::STATE,
        gate_op::SHARE => {
            let owner =
                slot.owner.compare_exchange(0, SHARED, Ordering::Acquire, Ordering::Relaxed);
            if owner.is_ok() || slot.is_shared.load(Ordering::Relaxed) {
                boot::share(index as usize);
                slot.is_shared.store(true, Ordering::Release);
                0
            } else {
                -error::IN_USE
            }
        }
        gate_op::KICK => boot::kick(index as usize),
        gate_op::WATCH if slot.owner.load(Ordering::Relaxed) == app_fs => {
            cross(op, index, b, c, slot, app_fs)
        }
        gate_op::RUN_IO | gate_op::WATCH => cross_shared(op, index, b, c, slot, app_fs),
        _ => -error::NO_SYS,
    }
}

/// `RUN_IO` and `WATCH` of a shared elastic thread: the caller owns it for this call.
fn cross_shared(op: u64, index: u64, b: u64, c: u64, slot: &Slot, app_fs: u64) -> i64 {
    if !slot.is_shared.load(Ordering::Acquire) || app_fs == 0 {
        return -error::STATE;
    }
    if slot.owner.compare_exchange(SHARED, app_fs, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return -error::IN_USE;
    }
    let result = cross(op, index, b, c, slot, app_fs);
    slot.owner.store(SHARED, Ordering::Release);
    result
}

fn enter(index: u64, slot: &Slot, app_fs: u64) -> i64 {
    if app_fs == 0 {
        // Without thread-local storage the caller cannot be identified.
        return -error::INVALID;
    }
    let take =
        |from| slot.owner.compare_exchange(from, app_fs, Ordering::Acquire, Ordering::Relaxed);
    let nobody = 0;
    if let Err(owner) = take(nobody)
        && (is_alive(slot.owner_id.load(Ordering::Acquire)) || take(owner).is_err())
    {
        return -error::IN_USE;
    }
    slot.owner_id.store(own_id(), Ordering::Release);
    // SAFETY: we are the owner now.
    let before = unsafe { &mut *slot.before.get() };
    *before = Before::entering();
    let result = match place(slot.cpu) {
        true => cross(gate_op::ENTER, index, before.signal_mask(), 0, slot, app_fs),
        false => -error::NO_RESOURCE,
    };
    if result < 0 {
        give_back(slot);
    }
    result
}

/// The owner leaves: restores its affinity and its signal mask.
fn give_back(slot: &Slot) {
    let before = free(slot);
    sys::set_signal_mask(before.signal_mask());
}

/// Number of elastic threads.
pub fn threads() -> usize {
    let table = TABLE.load(Ordering::Acquire);
    // SAFETY: null, or a table that is never unmapped.
    if table.is_null() { 0 } else { unsafe { (*table).threads as usize } }
}

fn slot(index: u64) -> Option<&'static Slot> {
    // SAFETY: never unmapped; `threads` is 0 while it is null.
    let slots = (threads() > 0).then(|| unsafe { &(*TABLE.load(Ordering::Acquire)).slots })?;
    slots[..threads()].get(usize::try_from(index).ok()?)
}

/// `ENTER` behind the wall, where `owner` cannot be forged and the caller's signals are already
/// blocked. [`leave_walled`] returns `mask`. Runs with fs base `fs`.
pub fn enter_walled(index: u64, owner: u64, tid: u64, mask: u64, fs: u64) -> Result<Context, i64> {
    let slot = slot(index).ok_or(error::INVALID)?;
    let nobody = 0;
    let taken = slot.owner.compare_exchange(nobody, owner, Ordering::Acquire, Ordering::Relaxed);
    if let Err(before) = taken {
        let gone = !is_alive(slot.owner_id.load(Ordering::Acquire));
        let succeed =
            || slot.owner.compare_exchange(before, owner, Ordering::Acquire, Ordering::Relaxed);
        if before == owner || !gone || succeed().is_err() {
            return Err(error::IN_USE);
        }
    }
    slot.owner_id.store(tid as u32, Ordering::Release);
    // SAFETY: we are the owner now.
    unsafe { *slot.before.get() = Before::with_mask(mask) };
    let result = match place(slot.cpu) {
        true => cross(gate_op::ENTER, index, mask, 0, slot, fs),
        false => -error::NO_RESOURCE,
    };
    if result < 0 {
        free(slot);
        return Err(-result);
    }
    Ok(Context { stack_top: slot.stack_top, fs_base: slot.fs_base })
}

/// `LEAVE` behind the wall, by the owner; returns the signal mask from before.
pub fn leave_walled(index: u64, fs: u64) -> u64 {
    let Some(slot) = slot(index) else { return 0 };
    cross(gate_op::LEAVE, index, 0, 0, slot, fs);
    free(slot).signal_mask()
}

/// `WATCH` behind the wall, by the owner.
pub fn watch_walled(index: u64, b: u64, c: u64, fs: u64) -> i64 {
    slot(index).map_or(-error::INVALID, |slot| cross(gate_op::WATCH, index, b, c, slot, fs))
}

/// `SHARE` behind the wall: returns the owner word, and the context of the elastic thread.
pub fn share_walled(index: u64) -> Result<(&'static AtomicU64, Context), i64> {
    let slot = slot(index).ok_or(error::INVALID)?;
    let owner = slot.owner.compare_exchange(0, SHARED, Ordering::Acquire, Ordering::Relaxed);
    if owner.is_err() && !slot.is_shared.load(Ordering::Relaxed) {
        return Err(error::IN_USE);
    }
    boot::share(index as usize);
    slot.is_shared.store(true, Ordering::Release);
    Ok((&slot.owner, Context { stack_top: slot.stack_top, fs_base: slot.fs_base }))
}

/// `WATCH` of a shared elastic thread behind the wall, by any caller.
pub fn watch_shared_walled(index: u64, owner: u64, b: u64, fs: u64) -> i64 {
    let Some(slot) = slot(index) else { return -error::INVALID };
    if slot.owner.compare_exchange(SHARED, owner, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return -error::IN_USE;
    }
    let result = cross(gate_op::WATCH, index, b, 0, slot, fs);
    slot.owner.store(SHARED, Ordering::Release);
    result
}

/// The owner leaves its elastic thread, and gets its affinity back.
fn free(slot: &Slot) -> Before {
    // SAFETY: called by the owner. It is a copy, for the next owner may come at once.
    let before = unsafe { *slot.before.get() };
    slot.owner_id.store(0, Ordering::Relaxed);
    slot.owner.store(0, Ordering::Release);
    before.place_back();
    before
}
