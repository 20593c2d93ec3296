//! The ways between application and dataplane. Read this file first when you review the wall.
//!
//! `wrpkru` is an ordinary instruction: the application can jump to any of ours, with any
//! registers. So each of them is followed at once by a comparison of what it wrote, and each that
//! gives the dataplane's rights is a complete gate: it finds out which Linux thread it serves
//! ([`record`]), and takes stack and everything else from that thread's record, before it does
//! anything. A thread that comes with wrong rights gets the application's, and an illegal
//! instruction.
//!
//! There are four: [`gate`], [`signal_entry`], the way [`back`] from a call for the application,
//! and the begin of a new thread in [`app_clone`]. A fifth, [`raise_rights`], is shut when it was
//! used. `xrstor` can write the rights too; [`resume`] has the only one, with a constant mask that
//! is compared afterwards.
use super::deliver::deliver_pending;
use super::handler::handle_signal;
use super::record::{self, LIVE, RECORDS, Record, SELECTOR, SHIFT, STARTING, Shown, TABLE};
use super::threads::child_start;
use crate::gate::THREADS_MAX;
use core::arch::naked_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};
use ix_abi::gate_op;

/// Protection key of what the application must not touch.
pub const KEY_OWN: u64 = 1;
/// Protection key of what it may only read.
pub const KEY_SHOWN: u64 = 2;
/// Rights of the dataplane: both keys, and the default key of the application's memory.
pub const PKRU_DATAPLANE: u32 = 0x5555_5540;
/// Rights of the application: no access to key 1, no writes to key 2. Others stay closed.
pub const PKRU_APPLICATION: u32 = 0x5555_556c;

/// Number of no system call: what a thread says in the gate that is not a simple `RUN_IO`.
pub const GATE_CALL: u64 = 0x4958_0001;
/// Number of no system call: a signal came while the thread was inside.
pub const PENDING_CALL: u64 = 0x4958_0002;

/// Minus this is answered by a system call that a signal kept from beginning, or that is to begin
/// anew (the kernel's `ERESTARTSYS`).
pub const RESTART: i64 = 512;

/// Offset of `si_signo` in the kernel's frame.
const FRAME_INFO: usize = 312;

/// Parts of the vector state that [`resume`] restores: all but the rights.
pub static XSTATE_MASK: AtomicU64 = AtomicU64::new(0);
/// fs base for the handler: thread-local storage of the image's first thread, which is only read.
pub static IMAGE_FS: AtomicU64 = AtomicU64::new(0);
/// What the gate knows of each elastic thread that the caller is for one call.
pub static SHARED: [Shared; THREADS_MAX] = [const { Shared::none() }; THREADS_MAX];

/// An elastic thread that the caller is for one call.
#[repr(C, align(32))]
pub struct Shared {
    /// Address of the word that names its owner; 0: it is not shared. Written last.
    pub owner: AtomicU64,
    /// Its stack.
    pub stack: AtomicU64,
    /// Its fs base.
    pub fs: AtomicU64,
}

impl Shared {
    const fn none() -> Shared {
        Shared { owner: AtomicU64::new(0), stack: AtomicU64::new(0), fs: AtomicU64::new(0) }
    }
}

/// Shift from a number to a [`Shared`].
const SHARED_SHIFT: u32 = 5;
const _: () = assert!(size_of::<Shared>() == 1 << SHARED_SHIFT);
/// 1: AVX's upper halves must be cleared on the way out; 2: AVX-512's registers too.
pub static VECTORS: AtomicU64 = AtomicU64::new(0);

/// Writes rights and compares them at once; changes rax, rcx, rdx. All of ours, but [`bad`]'s,
/// which must not jump to itself by way of itself, and the one of `xrstor`, are made here.
macro_rules! rights {
    ($to:literal) => {
        concat!(
            "xor ecx, ecx\n xor edx, edx\n mov eax, {",
            $to,
            "}\n wrpkru\n cmp eax, {",
            $to,
            "}\n jne {bad}\n",
        )
    };
}

/// To the dataplane's rights, and to the record of this thread in r8; changes rax, rcx, rdx.
macro_rules! raise {
    () => {
        concat!(
            rights!("dataplane"),
            "mov eax, {selector}\n lsl ecx, eax\n jnz {bad}\n",
            "cmp ecx, {records}\n jae {bad}\n",
            "shl rcx, {shift}\n lea r8, [rip + {table}]\n add r8, rcx\n",
        )
    };
}

/// To the application's rights; changes rax, rcx, rdx.
macro_rules! lower {
    () => {
        rights!("application")
    };
}

/// Keeps the handler's registers on its stack, and the stack in the record (rdi): [`back`] finds
/// both.
macro_rules! keep {
    () => {
        concat!(
            "push rbx\n push rbp\n push r12\n push r13\n push r14\n push r15\n",
            "mov [rdi + {forward_rsp}], rsp\n mov byte ptr [rdi + {in_forward}], 1\n",
        )
    };
}

/// Loads a system call from rsi, and makes it the application's: all is in place for `syscall`.
macro_rules! load_call {
    () => {
        concat!(
            "mov r13, [rsi]\n mov rdi, [rsi + 8]\n mov r12, [rsi + 24]\n",
            "mov r10, [rsi + 32]\n mov r8, [rsi + 40]\n mov r9, [rsi + 48]\n",
            "mov rsi, [rsi + 16]\n",
            lower!(),
            "mov rdx, r12\n mov rax, r13\n",
        )
    };
}

/// A thread that comes here has jumped into the midst of something.
#[unsafe(naked)]
pub extern "C" fn bad() -> ! {
    naked_asm!(
        "2:",
        "xor ecx, ecx",
        "xor edx, edx",
        "mov eax, {application}",
        "wrpkru",
        "cmp eax, {application}",
        "jne 2b",
        "ud2",
        application = const PKRU_APPLICATION,
    )
}

/// `extern "C" fn(op, a, b, c) -> i64` for the application, see [`gate_op`].
///
/// The part up to the change of stack touches no register that [`retry`] needs, because a signal
/// there is treated as if it came before the call.
#[unsafe(naked)]
pub extern "C" fn gate(op: u64, index: u64, b: u64, c: u64) -> i64 {
    naked_asm!(
        "cmp rdi, {run_io}",
        "jne {other}",
        "mov r10, rdx",
        "mov r11, rcx",
        raise!(),
        "cmp rsi, {nobody}",
        "je 2f",
        "cmp rsi, [r8 + {elastic}]",
        "je 3f",
        // Not this thread's. One that is shared is the caller's for this call, if nobody has it;
        // who is another one has that one's stack in its record.
        "cmp rsi, {threads_max}",
        "jae 2f",
        "cmp qword ptr [r8 + {elastic}], {nobody}",
        "jne 2f",
        "mov rdx, rsi",
        "shl rdx, {shared_shift}",
        "lea rax, [rip + {shared}]",
        "add rdx, rax",
        "mov r9, [rdx + {shared_owner}]",
        "test r9, r9",
        "jz 2f",
        // First, for the handler, which gives back what is ours after a signal here.
        "mov [r8 + {owner}], r9",
        "mov eax, {shared_free}",
        "lock cmpxchg [r9], r8",
        "jne 2f",
        "mov byte ptr [r8 + {has_shared}], 1",
        "mov rax, [rdx + {shared_stack}]",
        "mov [r8 + {stack}], rax",
        "mov rax, [rdx + {shared_fs}]",
        "mov [r8 + {fs}], rax",
        "jmp 3f",
        // Else the handler says why.
        "2:",
        lower!(),
        "mov rdx, r10",
        "mov rcx, r11",
        "xor r8d, r8d",
        "xor r9d, r9d",
        "jmp {other}",
        "3: mov rax, [r8 + {shown}]",
        "mov byte ptr [rax + {syscalls}], 0",
        "mov byte ptr [r8 + {inside}], 1",
        "mov r9, rsp",
        "mov rsp, [r8 + {stack}]",
        ".globl ix_gate_inside",
        "ix_gate_inside:",
        // Alignment checks, single steps and a wrong direction are the application's.
        "push 0x202",
        "popfq",
        "rdfsbase rax",
        "push r8",
        "push r9",
        "push rax",
        "push 0x1f80",
        "stmxcsr [rsp + 4]",
        "ldmxcsr [rsp]",
        // A pending exception of the x87 unit would be raised by our first instruction for it.
        "fnstsw ax",
        "test al, 0x80",
        "jz 4f",
        "fnclex",
        "4: mov rax, [r8 + {fs}]",
        "wrfsbase rax",
        "mov rdx, r10",
        "mov rcx, r11",
        "call {dispatch}",
        "mov r10, rax",
        "ldmxcsr [rsp + 4]",
        "pop rax",
        "pop rax",
        "pop r9",
        "pop r8",
        "wrfsbase rax",
        // What the dataplane had in vector registers is not the application's to see.
        "mov rax, [rip + {vectors}]",
        "test eax, eax",
        "jz 6f",
        "vzeroall",
        "test eax, 2",
        "jz 5f",
        "call {clear_512}",
        "5: jmp 7f",
        "6: call {clear_sse}",
        "7: mov rsp, r9",
        ".globl ix_gate_leaves",
        "ix_gate_leaves:",
        "mov byte ptr [r8 + {inside}], 0",
        "cmp byte ptr [r8 + {has_shared}], 0",
        "je 8f",
        // In this order: the handler gives back what is still ours after a signal here.
        "mov r9, [r8 + {owner}]",
        "mov qword ptr [r9], {shared_free}",
        "mov byte ptr [r8 + {has_shared}], 0",
        "8:",
        "xor r11d, r11d",
        "cmp byte ptr [r8 + {pending}], 0",
        "setne r11b",
        "mov rax, [r8 + {shown}]",
        "mov byte ptr [rax + {syscalls}], 1",
        lower!(),
        ".globl ix_gate_left",
        "ix_gate_left:",
        // Results and zeroes only.
        "xor r8d, r8d",
        "xor r9d, r9d",
        "xor esi, esi",
        "xor edi, edi",
        "mov rax, r10",
        "test r11d, r11d",
        "jne {pending_call}",
        "ret",
        run_io = const gate_op::RUN_IO,
        other = sym gate_other,
        pending_call = sym gate_pending,
        dataplane = const PKRU_DATAPLANE,
        application = const PKRU_APPLICATION,
        selector = const SELECTOR,
        records = const RECORDS,
        shift = const SHIFT,
        table = sym TABLE,
        bad = sym bad,
        nobody = const record::NOBODY as i64,
        threads_max = const THREADS_MAX,
        shared = sym SHARED,
        shared_shift = const SHARED_SHIFT,
        shared_owner = const offset_of!(Shared, owner),
        shared_free = const crate::gate::SHARED,
        shared_stack = const offset_of!(Shared, stack),
        shared_fs = const offset_of!(Shared, fs),
        owner = const offset_of!(Record, owner),
        has_shared = const offset_of!(Record, has_shared),
        elastic = const offset_of!(Record, elastic),
        shown = const offset_of!(Record, shown),
        syscalls = const offset_of!(Shown, selector),
        inside = const offset_of!(Record, inside),
        pending = const offset_of!(Record, pending),
        stack = const offset_of!(Record, elastic_stack),
        fs = const offset_of!(Record, elastic_fs),
        dispatch = sym crate::gate::dispatch,
        vectors = sym VECTORS,
        clear_512 = sym clear_512,
        clear_sse = sym clear_sse,
    )
}

unsafe extern "C" {
    fn ix_gate_inside();
    fn ix_gate_leaves();
    fn ix_gate_left();
    fn ix_resume_begins();
    fn ix_resume_ends();
    fn ix_forward_syscall();
    fn ix_forward_after();
    fn ix_copy_at();
    fn ix_copy_after();
}

/// Where in the assembly a thread was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In [`gate`], still on the application's stack: as if the call had not been made.
    Entering,
    /// In [`gate`], again on the application's stack: as if the call were over.
    Leaving,
    /// On the way back from the handler: as if it were over.
    Resuming,
    /// About to make a system call for the application.
    ForwardBefore,
    /// Behind that system call.
    ForwardAfter,
    /// In the copy.
    Copying,
    /// Anywhere else.
    Elsewhere,
}

impl Place {
    /// Of an instruction's address.
    pub fn of(rip: u64) -> Place {
        let at = |f: unsafe extern "C" fn()| f as usize as u64;
        let gate = gate as *const () as u64;
        let forward = app_syscall as *const () as u64;
        match rip {
            _ if (gate..at(ix_gate_inside)).contains(&rip) => Place::Entering,
            _ if (at(ix_gate_leaves)..at(ix_gate_left)).contains(&rip) => Place::Leaving,
            _ if (at(ix_resume_begins)..at(ix_resume_ends)).contains(&rip) => Place::Resuming,
            _ if (forward..=at(ix_forward_syscall)).contains(&rip) => Place::ForwardBefore,
            _ if rip == at(ix_forward_after) => Place::ForwardAfter,
            _ if rip == at(ix_copy_at) => Place::Copying,
            _ => Place::Elsewhere,
        }
    }
}

/// Address of the instruction behind a system call for the application.
pub fn forward_after() -> u64 {
    ix_forward_after as *const () as u64
}

/// Address of the instruction behind the copy.
pub fn copy_after() -> u64 {
    ix_copy_after as *const () as u64
}

/// Address at which [`gate`] is over.
pub fn gate_left() -> u64 {
    ix_gate_left as *const () as u64
}

/// Begins the gate's call again, from what [`gate`] has kept.
#[unsafe(naked)]
pub extern "C" fn retry() {
    naked_asm!("mov rdx, r10", "mov rcx, r11", "jmp {gate}", gate = sym gate)
}

/// What is no `RUN_IO` need not be fast: the handler does it.
#[unsafe(naked)]
extern "C" fn gate_other() {
    naked_asm!("mov r10, rcx", "mov eax, {call}", "syscall", "ret", call = const GATE_CALL)
}

/// Lets a signal in that came while the thread was inside. Result and stack stay.
#[unsafe(naked)]
extern "C" fn gate_pending() {
    naked_asm!(
        "mov rdi, rax",
        "mov eax, {call}",
        "syscall",
        "ret",
        call = const PENDING_CALL,
    )
}

#[unsafe(naked)]
extern "C" fn clear_sse() {
    naked_asm!(
        "xorps xmm0, xmm0",
        "xorps xmm1, xmm1",
        "xorps xmm2, xmm2",
        "xorps xmm3, xmm3",
        "xorps xmm4, xmm4",
        "xorps xmm5, xmm5",
        "xorps xmm6, xmm6",
        "xorps xmm7, xmm7",
        "xorps xmm8, xmm8",
        "xorps xmm9, xmm9",
        "xorps xmm10, xmm10",
        "xorps xmm11, xmm11",
        "xorps xmm12, xmm12",
        "xorps xmm13, xmm13",
        "xorps xmm14, xmm14",
        "xorps xmm15, xmm15",
        "ret",
    )
}

#[unsafe(naked)]
extern "C" fn clear_512() {
    naked_asm!(
        "vpxord zmm16, zmm16, zmm16",
        "vpxord zmm17, zmm17, zmm17",
        "vpxord zmm18, zmm18, zmm18",
        "vpxord zmm19, zmm19, zmm19",
        "vpxord zmm20, zmm20, zmm20",
        "vpxord zmm21, zmm21, zmm21",
        "vpxord zmm22, zmm22, zmm22",
        "vpxord zmm23, zmm23, zmm23",
        "vpxord zmm24, zmm24, zmm24",
        "vpxord zmm25, zmm25, zmm25",
        "vpxord zmm26, zmm26, zmm26",
        "vpxord zmm27, zmm27, zmm27",
        "vpxord zmm28, zmm28, zmm28",
        "vpxord zmm29, zmm29, zmm29",
        "vpxord zmm30, zmm30, zmm30",
        "vpxord zmm31, zmm31, zmm31",
        "kxorw k0, k0, k0",
        "kxorw k1, k1, k1",
        "kxorw k2, k2, k2",
        "kxorw k3, k3, k3",
        "kxorw k4, k4, k4",
        "kxorw k5, k5, k5",
        "kxorw k6, k6, k6",
        "kxorw k7, k7, k7",
        "ret",
    )
}

/// Where the kernel begins every handler of the process. A frame from outside lies at one exact
/// place, and has not been used before: the application can neither choose nor write it. While the
/// thread is in the handler, nobody but the kernel can come here.
#[unsafe(naked)]
pub extern "C" fn signal_entry() {
    naked_asm!(
        raise!(),
        "cmp byte ptr [r8 + {in_handler}], 0",
        "jne 2f",
        "cmp rsp, [r8 + {frame_top}]",
        "jne {bad}",
        "cmp dword ptr [rsp + {signo}], 0",
        "je {bad}",
        "2: mov rsi, rsp",
        "mov rbx, rsp",
        "and rsp, -64",
        "push 0x202",
        "popfq",
        "mov rax, [r8 + {shown}]",
        "mov byte ptr [rax + {syscalls}], 0",
        "rdfsbase rdx",
        "mov rax, [rip + {image_fs}]",
        "wrfsbase rax",
        "mov r13, rdx",
        "mov rdi, r8",
        "mov r12, r8",
        "call {handle}",
        "mov rdi, r12",
        "test eax, eax",
        "jne {resume}",
        // Back to where the dataplane was.
        "wrfsbase r13",
        "lea rsp, [rbx + 8]",
        "mov eax, {sigreturn}",
        "syscall",
        "ud2",
        dataplane = const PKRU_DATAPLANE,
        selector = const SELECTOR,
        records = const RECORDS,
        shift = const SHIFT,
        table = sym TABLE,
        bad = sym bad,
        in_handler = const offset_of!(Record, in_handler),
        frame_top = const offset_of!(Record, frame_top),
        signo = const FRAME_INFO,
        shown = const offset_of!(Record, shown),
        syscalls = const offset_of!(Shown, selector),
        image_fs = sym IMAGE_FS,
        handle = sym handle_signal,
        resume = sym resume,
        sigreturn = const libc::SYS_rt_sigreturn,
    )
}

/// Lets the thread of this record (in rdi) go on in the application, with the registers in it.
/// `Shown::registers` holds them already: the application reads them from there itself.
#[unsafe(naked)]
pub extern "C" fn resume(record: *mut Record) -> ! {
    naked_asm!(
        "mov rax, [rdi + {app_fs}]",
        "wrfsbase rax",
        "lea rsi, [rdi + {fp}]",
        "mov eax, [rip + {mask}]",
        "mov edx, [rip + {mask} + 4]",
        "mov rsp, [rdi + {shown}]",
        ".globl ix_resume_begins",
        "ix_resume_begins:",
        "cmp byte ptr [rdi + {pending}], 0",
        "jne 3f",
        "xrstor64 [rsi]",
        "cmp eax, [rip + {mask}]",
        "jne {bad}",
        "cmp edx, [rip + {mask} + 4]",
        "jne {bad}",
        "mov rax, [rdi + {shown}]",
        "mov byte ptr [rax + {syscalls}], 1",
        "mov byte ptr [rdi + {in_handler}], 0",
        lower!(),
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop r11",
        "pop r10",
        "pop r9",
        "pop r8",
        "pop rdi",
        "pop rsi",
        "pop rbp",
        "pop rbx",
        "pop rdx",
        "pop rcx",
        "pop rax",
        "iretq",
        ".globl ix_resume_ends",
        "ix_resume_ends:",
        "3: mov rsp, [rdi + {stack_top}]",
        "mov rax, [rip + {image_fs}]",
        "wrfsbase rax",
        "mov r12, rdi",
        "call {deliver}",
        "mov rdi, r12",
        "jmp {resume}",
        app_fs = const offset_of!(Record, app_fs),
        fp = const offset_of!(Record, fp),
        mask = sym XSTATE_MASK,
        image_fs = sym IMAGE_FS,
        shown = const offset_of!(Record, shown),
        pending = const offset_of!(Record, pending),
        syscalls = const offset_of!(Shown, selector),
        in_handler = const offset_of!(Record, in_handler),
        stack_top = const offset_of!(Record, stack_top),
        deliver = sym deliver_pending,
        resume = sym resume,
        application = const PKRU_APPLICATION,
        bad = sym bad,
    )
}

/// Makes a system call with the application's rights: number and six arguments. What the
/// application could not read or write, the kernel then does not for it either.
#[unsafe(naked)]
pub unsafe extern "C" fn app_syscall(record: *mut Record, call: &[u64; 7]) -> i64 {
    naked_asm!(
        keep!(),
        // A signal that has come already must not wait for a call that waits.
        "mov rax, -{restart}",
        "cmp byte ptr [rdi + {pending}], 0",
        "jne ix_forward_after",
        load_call!(),
        ".globl ix_forward_syscall",
        "ix_forward_syscall:",
        "syscall",
        ".globl ix_forward_after",
        "ix_forward_after:",
        "mov r12, rax",
        "jmp {back}",
        forward_rsp = const offset_of!(Record, forward_rsp),
        in_forward = const offset_of!(Record, in_forward),
        pending = const offset_of!(Record, pending),
        restart = const RESTART,
        application = const PKRU_APPLICATION,
        bad = sym bad,
        back = sym back,
    )
}

/// Copies with the application's rights; returns how many bytes were left when it faulted.
#[unsafe(naked)]
pub unsafe extern "C" fn app_copy(record: *mut Record, to: u64, from: u64, bytes: u64) -> u64 {
    naked_asm!(
        keep!(),
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov r12, rcx",
        lower!(),
        "mov rcx, r12",
        ".globl ix_copy_at",
        "ix_copy_at:",
        "rep movsb",
        ".globl ix_copy_after",
        "ix_copy_after:",
        "mov r12, rcx",
        "jmp {back}",
        forward_rsp = const offset_of!(Record, forward_rsp),
        in_forward = const offset_of!(Record, in_forward),
        application = const PKRU_APPLICATION,
        bad = sym bad,
        back = sym back,
    )
}

/// From the application's rights back into the handler that lowered them; the result is in r12.
#[unsafe(naked)]
extern "C" fn back() {
    naked_asm!(
        raise!(),
        "cmp byte ptr [r8 + {in_forward}], 1",
        "jne {bad}",
        "mov byte ptr [r8 + {in_forward}], 0",
        "mov rsp, [r8 + {forward_rsp}]",
        "cld",
        "mov rax, r12",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
        forward_rsp = const offset_of!(Record, forward_rsp),
        in_forward = const offset_of!(Record, in_forward),
        dataplane = const PKRU_DATAPLANE,
        selector = const SELECTOR,
        records = const RECORDS,
        shift = const SHIFT,
        table = sym TABLE,
        bad = sym bad,
    )
}

/// As [`app_syscall`], for a call that makes a thread or a process. The new one takes the record of
/// this number; a record can be taken once, so a thread that forges its way here takes what would
/// have been another thread's, and is that thread then.
#[unsafe(naked)]
pub unsafe extern "C" fn app_clone(record: *mut Record, call: &[u64; 7], child: u64) -> i64 {
    naked_asm!(
        keep!(),
        "mov r14, rdx",
        load_call!(),
        "syscall",
        "mov r12, rax",
        "test rax, rax",
        "jne {back}",
        // The new one.
        rights!("dataplane"),
        "cmp r14, {records}",
        "jae {bad}",
        "shl r14, {shift}",
        "lea r8, [rip + {table}]",
        "add r8, r14",
        "mov eax, {starting}",
        "mov ecx, {live}",
        "lock cmpxchg byte ptr [r8 + {state}], cl",
        "jne {bad}",
        "mov rsp, [r8 + {stack_top}]",
        "push 0x202",
        "popfq",
        "mov rsp, [r8 + {stack_top}]",
        "mov rax, [rip + {image_fs}]",
        "wrfsbase rax",
        "mov rdi, r8",
        "mov r12, r8",
        "call {start}",
        "mov rdi, r12",
        "jmp {resume}",
        forward_rsp = const offset_of!(Record, forward_rsp),
        in_forward = const offset_of!(Record, in_forward),
        application = const PKRU_APPLICATION,
        dataplane = const PKRU_DATAPLANE,
        bad = sym bad,
        back = sym back,
        records = const RECORDS,
        shift = const SHIFT,
        table = sym TABLE,
        starting = const STARTING,
        live = const LIVE,
        state = const offset_of!(Record, state),
        stack_top = const offset_of!(Record, stack_top),
        image_fs = sym IMAGE_FS,
        start = sym child_start,
        resume = sym resume,
    )
}

/// Ends the calling Linux thread, with all signals blocked; its record is free with the first
/// store.
#[unsafe(naked)]
pub extern "C" fn exit_thread(record: *mut Record, status: u64) -> ! {
    naked_asm!(
        "mov r9, rsi",
        "mov byte ptr [rdi + {state}], {free}",
        lower!(),
        "mov rdi, r9",
        "mov eax, {exit}",
        "syscall",
        "ud2",
        state = const offset_of!(Record, state),
        free = const record::FREE,
        application = const PKRU_APPLICATION,
        bad = sym bad,
        exit = const libc::SYS_exit,
    )
}

/// Not zero from the moment on at which there is an application.
pub static STANDS: AtomicU64 = AtomicU64::new(0);

/// Gives the calling thread the dataplane's rights: once, before there is an application. Who jumps
/// here later finds that the wall stands.
#[unsafe(naked)]
pub extern "C" fn raise_rights() {
    naked_asm!(
        rights!("dataplane"),
        "cmp qword ptr [rip + {stands}], 0",
        "jne {bad}",
        "ret",
        dataplane = const PKRU_DATAPLANE,
        stands = sym STANDS,
        bad = sym bad,
    )
}

/// What the processor's vector state has.
pub fn measure_vectors() {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    let (low, high): (u32, u32);
    // SAFETY: OSXSAVE is on where the kernel offers protection keys.
    unsafe {
        core::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high);
    }
    let enabled = u64::from(low) | u64::from(high) << 32;
    const RIGHTS: u64 = 1 << 9;
    XSTATE_MASK.store(enabled & !RIGHTS, Ordering::Relaxed);
    let avx = enabled & 6 == 6 && __cpuid(1).ecx & (1 << 28) != 0;
    let avx512 = enabled & 0xe6 == 0xe6 && __cpuid_count(7, 0).ebx & (1 << 16) != 0;
    VECTORS.store(u64::from(avx) | u64::from(avx512) << 1, Ordering::Relaxed);
}
