//! Signals of the application: which handlers it has, and how one of them is entered and left.
use super::asm::{XSTATE_MASK, app_copy};
use super::handler::{FP_BYTES, Frame, RIP, RSP, set_mask};
use super::record::{AltStack, Record};
use crate::sys::{self, Action, SA_RESTORER};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

const SIGNALS: usize = 65;
const SIG_DFL: u64 = 0;
const SIG_IGN: u64 = 1;
/// Signals about the current instruction: never blocked, and always handled by the dataplane first.
pub const FAULTS: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
const EFAULT: i64 = libc::EFAULT as i64;
const EINVAL: i64 = libc::EINVAL as i64;
const USER_TOP: u64 = 1 << 47;

/// The kernel's `siginfo`, 128 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Siginfo {
    pub number: i32,
    pub errno: i32,
    pub code: i32,
    pad: i32,
    /// `si_addr` of faults and of `SIGSYS`.
    pub address: u64,
    rest: [u32; 26],
}

impl Siginfo {
    /// `si_arch` of `SIGSYS`.
    pub fn arch(&self) -> u32 {
        self.rest[1]
    }

    /// Whether the kernel raised it for the current instruction.
    pub fn is_fault(&self) -> bool {
        self.code > 0 && self.number != libc::SIGSYS && FAULTS.contains(&self.number)
    }

    pub fn bytes(&self) -> [u8; 128] {
        // SAFETY: 128 plain bytes.
        unsafe { core::mem::transmute_copy(self) }
    }
}

struct Actions {
    locked: AtomicBool,
    table: UnsafeCell<[Action; SIGNALS]>,
}

// SAFETY: the table is touched only under the lock.
unsafe impl Sync for Actions {}

static ACTIONS: Actions =
    Actions { locked: AtomicBool::new(false), table: UnsafeCell::new([Action::DEFAULT; SIGNALS]) };

impl Actions {
    fn with<T>(&self, f: impl FnOnce(&mut [Action; SIGNALS]) -> T) -> T {
        while self.locked.swap(true, Ordering::Acquire) {
            // SAFETY: no pointers.
            unsafe { sys::syscall(libc::SYS_sched_yield, [0; 6]) };
        }
        // SAFETY: we hold the lock.
        let result = f(unsafe { &mut *self.table.get() });
        self.locked.store(false, Ordering::Release);
        result
    }
}

/// Records that the program was started with this signal ignored.
pub fn set_ignored(signal: i32) {
    ACTIONS.with(|table| table[signal as usize].handler = SIG_IGN);
}

/// Locks the handlers while the process is copied.
pub fn lock_actions() {
    while ACTIONS.locked.swap(true, Ordering::Acquire) {
        // SAFETY: no pointers.
        unsafe { sys::syscall(libc::SYS_sched_yield, [0; 6]) };
    }
}

/// Ends [`lock_actions`].
pub fn unlock_actions() {
    ACTIONS.locked.store(false, Ordering::Release);
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The bits of these signals in a mask.
pub fn faults() -> u64 {
    FAULTS.iter().map(|&signal| bit(signal)).fold(0, |all, one| all | one)
}

/// Makes the kernel enter the dataplane's handler for a signal.
pub fn own(signal: i32, flags: u64) -> i64 {
    let flags = libc::SA_SIGINFO as u64
        | libc::SA_ONSTACK as u64
        | libc::SA_RESTART as u64
        | SA_RESTORER
        | (flags & (libc::SA_NOCLDSTOP | libc::SA_NOCLDWAIT) as u64);
    let handler = super::asm::signal_entry as *const () as u64;
    // The restorer is never used: the handler has its own way back.
    let action = Action { handler, flags, restorer: super::asm::bad as *const () as u64, mask: !0 };
    kernel_action(signal, &action)
}

fn kernel_action(signal: i32, action: &Action) -> i64 {
    let args = [signal as u64, &raw const *action as u64, 0, 8, 0, 0];
    // SAFETY: reads the struct.
    unsafe { sys::syscall(libc::SYS_rt_sigaction, args) }
}

/// Copies from the application's memory.
pub fn from_app<T: Copy>(record: &mut Record, addr: u64) -> Option<T> {
    const { assert!(size_of::<T>() <= 4096) };
    let incoming = record.incoming;
    // SAFETY: the thread's own record.
    if unsafe { app_copy(record, incoming as u64, addr, size_of::<T>() as u64) } != 0 {
        return None;
    }
    // SAFETY: `T` is plain numbers in all uses, any bytes are a value; the page is mapped for ever,
    // and read once: another thread may write there.
    Some(unsafe { incoming.cast::<T>().read_volatile() })
}

/// Copies to the application's memory.
pub fn to_app(record: &mut Record, addr: u64, bytes: &[u8]) -> bool {
    let mut at = addr;
    for part in bytes.chunks(3072) {
        // SAFETY: the thread's own page; the application can only read it.
        let from = unsafe {
            let out = &raw mut (*record.shown).out;
            core::ptr::copy_nonoverlapping(part.as_ptr(), out.cast(), part.len());
            out as u64
        };
        // SAFETY: the thread's own record.
        if unsafe { app_copy(record, at, from, part.len() as u64) } != 0 {
            return false;
        }
        at = at.wrapping_add(part.len() as u64);
    }
    true
}

fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: the structs given here are plain numbers without padding.
    unsafe { core::slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) }
}

/// `rt_sigaction`.
pub fn sigaction(record: &mut Record, args: [u64; 6]) -> i64 {
    let [signal, new, old, size, ..] = args;
    if !(1..SIGNALS as u64).contains(&signal) || size != 8 {
        return -EINVAL;
    }
    let number = signal as i32;
    if new != 0 && (number == libc::SIGKILL || number == libc::SIGSTOP) {
        return -EINVAL;
    }
    let wanted = match new {
        0 => None,
        addr => match from_app::<Action>(record, addr) {
            Some(action) => Some(action),
            None => return -EFAULT,
        },
    };
    let before = ACTIONS.with(|table| {
        let before = table[signal as usize];
        if let Some(action) = wanted {
            table[signal as usize] = action;
            if !FAULTS.contains(&number) {
                match action.handler {
                    SIG_DFL | SIG_IGN => kernel_action(number, &Action { mask: 0, ..action }),
                    _ => own(number, action.flags),
                };
            }
        }
        before
    });
    if old != 0 && !to_app(record, old, bytes_of(&before)) {
        return -EFAULT;
    }
    0
}

/// `rt_sigprocmask`: the mask is stored here and set in the kernel on the way back.
pub fn sigprocmask(record: &mut Record, args: [u64; 6]) -> i64 {
    let [how, new, old, size, ..] = args;
    if size != 8 {
        return -EINVAL;
    }
    let before = record.app_mask;
    if new != 0 {
        let Some(set) = from_app::<u64>(record, new) else { return -EFAULT };
        record.app_mask = match how as i32 {
            libc::SIG_BLOCK => before | set,
            libc::SIG_UNBLOCK => before & !set,
            libc::SIG_SETMASK => set,
            _ => return -EINVAL,
        };
    }
    if old != 0 && !to_app(record, old, &before.to_ne_bytes()) {
        return -EFAULT;
    }
    0
}

/// `sigaltstack`.
pub fn sigaltstack(record: &mut Record, args: [u64; 6]) -> i64 {
    let [new, old, ..] = args;
    let before = record.app_stack;
    if new != 0 {
        let Some(stack) = from_app::<AltStack>(record, new) else { return -EFAULT };
        record.app_stack = stack;
    }
    let shown = [before.base, before.flags & 0xffff_ffff, before.bytes];
    if old != 0 && !to_app(record, old, bytes_of(&shown)) {
        return -EFAULT;
    }
    0
}

/// Delivers the signal that was stored while the thread was in the dataplane.
///
/// # Safety
/// The record is the calling thread's.
pub unsafe extern "C" fn deliver_pending(record: *mut Record) {
    // SAFETY: the caller's promise.
    let record = unsafe { &mut *record };
    take_pending(record);
    finish(record);
}

fn take_pending(record: &mut Record) {
    if record.pending != 0 {
        record.pending = 0;
        // SAFETY: 128 plain bytes.
        let info: Siginfo = unsafe { core::mem::transmute_copy(&record.info) };
        deliver(record, &info);
    }
}

/// To be called last, before [`super::asm::resume`].
pub fn finish(record: &mut Record) {
    take_pending(record);
    let r = &record.registers;
    if r.rip >= USER_TOP || r.rsp >= USER_TOP {
        end_by(record, libc::SIGSEGV);
    }
    // SAFETY: the thread's own page.
    unsafe { (&raw mut (*record.shown).registers).write_volatile(record.registers) };
    let mask = record.app_mask & !faults();
    set_mask(record, mask);
}

/// Makes the thread continue in the application's handler for a signal.
pub fn deliver(record: &mut Record, info: &Siginfo) {
    let number = info.number;
    if !(1..SIGNALS as i32).contains(&number) {
        return;
    }
    let action = ACTIONS.with(|table| {
        let action = table[number as usize];
        if action.handler > SIG_IGN && action.flags & libc::SA_RESETHAND as u64 != 0 {
            table[number as usize] = Action::DEFAULT;
        }
        action
    });
    let blocked = record.app_mask & bit(number) != 0;
    match action.handler {
        _ if info.is_fault() && (action.handler <= SIG_IGN || blocked) => crash(record, info),
        SIG_DFL if FAULTS.contains(&number) => crash(record, info),
        SIG_DFL => end_by(record, number),
        SIG_IGN => {}
        _ => enter(record, info, &action),
    }
}

/// Whether a system call that the pending signal kept from beginning is restarted after its handler
/// (signal(7), "Interruption of system calls").
pub fn restarts(record: &Record, number: u64) -> bool {
    const NEVER: [i64; 15] = [
        libc::SYS_pause,
        libc::SYS_rt_sigsuspend,
        libc::SYS_rt_sigtimedwait,
        libc::SYS_poll,
        libc::SYS_ppoll,
        libc::SYS_select,
        libc::SYS_pselect6,
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_nanosleep,
        libc::SYS_clock_nanosleep,
        libc::SYS_semtimedop,
        libc::SYS_msgrcv,
        libc::SYS_msgsnd,
    ];
    if record.pending == 0 {
        return true;
    }
    let signal = i32::from_ne_bytes(core::array::from_fn(|i| record.info[i]));
    let action = ACTIONS.with(|table| table[signal.clamp(1, SIGNALS as i32 - 1) as usize]);
    let asked = action.handler <= SIG_IGN || action.flags & libc::SA_RESTART as u64 != 0;
    asked && !NEVER.contains(&(number as i64))
}

fn enter(record: &mut Record, info: &Siginfo, action: &Action) {
    const RED_ZONE: u64 = 128;
    const DISABLED: u64 = libc::SS_DISABLE as u64;
    let fp_bytes = FP_BYTES.load(Ordering::Relaxed);
    let r = record.registers;
    let stack = record.app_stack;
    let on_it = r.rsp.wrapping_sub(stack.base) < stack.bytes;
    let elsewhere = action.flags & libc::SA_ONSTACK as u64 != 0 && stack.flags & DISABLED == 0;
    let top = if elsewhere && !on_it {
        stack.base.wrapping_add(stack.bytes)
    } else {
        r.rsp.wrapping_sub(RED_ZONE)
    };
    let fp = top.wrapping_sub(fp_bytes as u64) & !63;
    let at = (fp.wrapping_sub(size_of::<Frame>() as u64) & !15).wrapping_sub(8);
    let frame = Frame {
        return_to: action.restorer,
        // UC_FP_XSTATE, UC_SIGCONTEXT_SS, UC_STRICT_RESTORE_SS.
        flags: 7,
        link: 0,
        stack: [stack.base, stack.flags, stack.bytes],
        general: [
            r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx,
            r.rdx, r.rax, r.rcx, r.rsp, r.rip,
        ],
        rflags: r.rflags,
        segments: [r.cs as u16, 0, 0, r.ss as u16],
        error: 0,
        trap: 0,
        old_mask: record.app_mask,
        cr2: info.address,
        fp: fp as *mut u8,
        reserved: [0; 8],
        mask: record.app_mask,
        info: *info,
    };
    // SAFETY: plain numbers; the copy outlives the calls.
    let frame_bytes: [u8; size_of::<Frame>()] = unsafe { core::mem::transmute(frame) };
    let state = record.fp.0;
    if !to_app(record, at, &frame_bytes) || !to_app(record, fp, &state[..fp_bytes]) {
        end_by(record, libc::SIGSEGV);
    }
    let r = &mut record.registers;
    (r.rip, r.rsp, r.rax) = (action.handler, at, 0);
    (r.rdi, r.rsi, r.rdx) = (info.number as u64, at + INFO_AT, at + 8);
    // No direction flag, single steps or alignment checks.
    r.rflags &= !0x4_0500;
    record.app_mask |= action.mask;
    if action.flags & libc::SA_NODEFER as u64 == 0 {
        record.app_mask |= bit(info.number);
    }
}

const INFO_AT: u64 = core::mem::offset_of!(Frame, info) as u64;
const _: () = assert!(INFO_AT == 312);

/// `rt_sigreturn`: the frame is the application's, and may set anything but rights.
pub fn sigreturn(record: &mut Record) {
    let at = record.registers.rsp.wrapping_sub(8);
    let frame = from_app::<[u64; size_of::<Frame>() / 8]>(record, at);
    let Some(frame) = frame else { end_by(record, libc::SIGSEGV) };
    // SAFETY: plain numbers of the same size.
    let frame: Frame = unsafe { core::mem::transmute(frame) };
    if frame.fp.is_null() || !restore_fp(record, frame.fp as u64) {
        end_by(record, libc::SIGSEGV);
    }
    let g = frame.general;
    let r = &mut record.registers;
    [r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15] = core::array::from_fn(|i| g[i]);
    [r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax, r.rcx] = core::array::from_fn(|i| g[8 + i]);
    (r.rsp, r.rip) = (g[RSP], g[RIP]);
    // Carry, parity, adjust, zero, sign, trap, direction, overflow, alignment check; interrupts on.
    r.rflags = frame.rflags & 0x4_0dd5 | 0x202;
    record.app_mask = frame.mask;
}

/// Takes vector state from the application, changed so that `xrstor` accepts it.
fn restore_fp(record: &mut Record, addr: u64) -> bool {
    const MXCSR: usize = 24;
    const BITS: usize = 512;
    const HEADER_END: usize = 576;
    let bytes = FP_BYTES.load(Ordering::Relaxed);
    let incoming = record.incoming;
    // SAFETY: the thread's own record.
    if unsafe { app_copy(record, incoming as u64, addr, bytes as u64) } != 0 {
        return false;
    }
    let state = &mut record.fp.0;
    for (at, byte) in state.iter_mut().enumerate().take(bytes) {
        // SAFETY: within the page; another thread may write there, so each byte is read once.
        *byte = unsafe { incoming.cast::<u8>().add(at).read_volatile() };
    }
    let word = |at: usize| core::array::from_fn(|i| state[at + i]);
    let mxcsr = u32::from_le_bytes(word(MXCSR)) & 0xffbf;
    let present = u64::from_le_bytes(core::array::from_fn(|i| state[BITS + i]))
        & XSTATE_MASK.load(Ordering::Relaxed);
    state[MXCSR..MXCSR + 4].copy_from_slice(&mxcsr.to_le_bytes());
    state[BITS..BITS + 8].copy_from_slice(&present.to_le_bytes());
    state[BITS + 8..HEADER_END].fill(0);
    true
}

/// A fault of the application for which it has no handler.
pub fn crash(record: &mut Record, info: &Siginfo) -> ! {
    let rip = record.registers.rip;
    super::handler::note_fault(info, rip);
    if super::memory::is_protected(info.address, 1) && info.number == libc::SIGSEGV {
        say_if_possible(
            b"ix: the program touched memory of the dataplane: address, instruction",
            &[info.address, rip],
        );
    } else {
        say_if_possible(
            b"ix: the program faulted: signal, address, instruction",
            &[info.number as u64, info.address, rip],
        );
    }
    end_by(record, info.number)
}

/// Ends the process by a signal, as if it had no handler.
pub fn end_by(record: &mut Record, signal: i32) -> ! {
    super::farewell(record);
    kernel_action(signal, &Action::DEFAULT);
    // SAFETY: no pointers; the process ends by it, or else by the exit below.
    unsafe {
        let process = sys::syscall(libc::SYS_getpid, [0; 6]) as u64;
        let thread = sys::syscall(libc::SYS_gettid, [0; 6]) as u64;
        sys::set_signal_mask(!0);
        sys::syscall(libc::SYS_tgkill, [process, thread, signal as u64, 0, 0, 0]);
        sys::set_signal_mask(!bit(signal));
        loop {
            sys::syscall(libc::SYS_exit_group, [128 + signal as u64, 0, 0, 0, 0, 0]);
        }
    }
}

/// Writes a line to standard error, with numbers in hexadecimal. It may block, because the
/// descriptor is the program's: the caller must hold no lock.
pub fn say(text: &[u8], numbers: &[u64]) {
    let (line, length) = line(text, numbers);
    // SAFETY: writes a local.
    unsafe { sys::syscall(libc::SYS_write, [2, line.as_ptr() as u64, length as u64, 0, 0, 0]) };
}

/// As [`say`], but never blocks: the end of an attacking process must not wait for its standard
/// error. If it would block, the line is left out; the broker reports how the program ended in any
/// case.
pub fn say_if_possible(text: &[u8], numbers: &[u64]) {
    const FROM_NOWHERE: u64 = u64::MAX;
    const NO_WAIT: u64 = 8;
    let (line, length) = line(text, numbers);
    let part = [line.as_ptr() as u64, length as u64];
    let args = [2, part.as_ptr() as u64, 1, FROM_NOWHERE, FROM_NOWHERE, NO_WAIT];
    // SAFETY: writes a local (pwritev2 with RWF_NOWAIT at the descriptor's own position).
    unsafe { sys::syscall(libc::SYS_pwritev2, args) };
}

/// The text and numbers of a line, and its length in bytes.
fn line(text: &[u8], numbers: &[u64]) -> ([u8; 256], usize) {
    let mut line = [0u8; 256];
    let mut length = 0;
    let mut put = |byte: u8| {
        if length < line.len() {
            line[length] = byte;
            length += 1;
        }
    };
    text.iter().for_each(|&byte| put(byte));
    for number in numbers {
        b" 0x".iter().for_each(|&byte| put(byte));
        let digits = (16 - number.leading_zeros() / 4).max(1);
        for digit in (0..digits).rev() {
            put(b"0123456789abcdef"[(number >> (4 * digit) & 15) as usize]);
        }
    }
    put(b'\n');
    (line, length)
}
