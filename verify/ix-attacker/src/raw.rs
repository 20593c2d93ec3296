//! Gate calls that no compiler makes: with flags, control words and stacks that no normal caller
//! has. Without the wall the gate relies on what a caller must preserve, so there the control is a
//! plain call. Each function returns what the gate returned, or an error that says what is wrong
//! afterwards.
use crate::Gate;
use ix_abi::gate_op;
use std::arch::asm;

const MXCSR: u32 = 0x1f80;

fn plain(gate: Gate) -> Result<i64, String> {
    Ok(gate(gate_op::RUN_IO, 0, 0, 0))
}

/// With alignment checks on and the direction flag set.
pub fn call_with_flags(gate: Gate, control: bool) -> Result<i64, String> {
    const WILD: u64 = 0x4_0000 | 0x400;
    if control {
        return plain(gate);
    }
    let mut answer = gate_op::RUN_IO;
    // SAFETY: an attack. Registers that a call may change are given up, and the flags are restored.
    unsafe {
        asm!(
            "pushfq",
            "or qword ptr [rsp], {wild}",
            "popfq",
            "call {gate}",
            "push 0x202",
            "popfq",
            wild = const WILD,
            gate = in(reg) gate,
            inout("rdi") answer => _,
            in("rsi") 0u64,
            in("rdx") 0u64,
            in("rcx") 0u64,
            lateout("rax") answer,
            clobber_abi("C"),
        );
    }
    Ok(answer as i64)
}

/// With every exception of the vector unit unmasked, and an exception pending in the x87 unit.
pub fn call_with_vectors(gate: Gate, control: bool) -> Result<i64, String> {
    const UNMASKED: u32 = 0;
    if control {
        return plain(gate);
    }
    let (mut answer, mut after) = (gate_op::RUN_IO, 0u32);
    let (wild, usual, zero_divide) = (UNMASKED, MXCSR, 0x37bu16);
    let after_at = &raw mut after;
    // SAFETY: as above. The division by zero stays pending until the next waiting x87 instruction;
    // it is cleared without waiting.
    unsafe {
        asm!(
            "fldcw word ptr [{zero_divide}]",
            "fld1",
            "fldz",
            "fdivp",
            "ldmxcsr dword ptr [{wild}]",
            "call {gate}",
            "stmxcsr dword ptr [r12]",
            "fnclex",
            "fninit",
            "ldmxcsr dword ptr [r13]",
            zero_divide = in(reg) &raw const zero_divide,
            wild = in(reg) &raw const wild,
            gate = in(reg) gate,
            in("r12") after_at,
            in("r13") &raw const usual,
            inout("rdi") answer => _,
            in("rsi") 0u64,
            in("rdx") 0u64,
            in("rcx") 0u64,
            lateout("rax") answer,
            clobber_abi("C"),
        );
    }
    match after & !0x3f {
        UNMASKED => Ok(answer as i64),
        other => Err(format!("the control word is {other:#x} afterwards")),
    }
}

/// With bases of fs and gs that point to no memory.
pub fn call_with_bases(gate: Gate, control: bool) -> Result<i64, String> {
    const NOWHERE: u64 = 0x1000;
    if control {
        return plain(gate);
    }
    let (mut answer, mut after) = (gate_op::RUN_IO, 0u64);
    // SAFETY: an attack; both bases are restored before any code needs them.
    unsafe {
        asm!(
            "rdfsbase r12",
            "rdgsbase r13",
            "wrfsbase r14",
            "wrgsbase r14",
            "call {gate}",
            "rdfsbase r14",
            "wrfsbase r12",
            "wrgsbase r13",
            gate = in(reg) gate,
            out("r12") _,
            out("r13") _,
            inout("r14") NOWHERE => after,
            inout("rdi") answer => _,
            in("rsi") 0u64,
            in("rdx") 0u64,
            in("rcx") 0u64,
            lateout("rax") answer,
            clobber_abi("C"),
        );
    }
    match after {
        NOWHERE => Ok(answer as i64),
        other => Err(format!("the base of fs is {other:#x} afterwards")),
    }
}

/// A call after which no data of the dataplane may be left in the registers that calls may change,
/// vector registers included.
pub fn call_and_look(gate: Gate, control: bool) -> Result<i64, String> {
    const VECTORS: usize = 16;
    if control {
        return plain(gate);
    }
    let mut answer = gate_op::RUN_IO;
    let mut general = [1u64; 8];
    let mut vectors = [[1u64; 2]; VECTORS];
    // SAFETY: a plain call. Then the registers are stored into arrays of our own, which
    // callee-saved registers point to.
    unsafe {
        asm!(
            "call {gate}",
            "mov [r12], rcx",
            "mov [r12 + 8], rdx",
            "mov [r12 + 16], rsi",
            "mov [r12 + 24], rdi",
            "mov [r12 + 32], r8",
            "mov [r12 + 40], r9",
            "mov [r12 + 48], r11",
            "sub r10, rax",
            "mov [r12 + 56], r10",
            "movups [r13], xmm0",
            "movups [r13 + 16], xmm1",
            "movups [r13 + 32], xmm2",
            "movups [r13 + 48], xmm3",
            "movups [r13 + 64], xmm4",
            "movups [r13 + 80], xmm5",
            "movups [r13 + 96], xmm6",
            "movups [r13 + 112], xmm7",
            "movups [r13 + 128], xmm8",
            "movups [r13 + 144], xmm9",
            "movups [r13 + 160], xmm10",
            "movups [r13 + 176], xmm11",
            "movups [r13 + 192], xmm12",
            "movups [r13 + 208], xmm13",
            "movups [r13 + 224], xmm14",
            "movups [r13 + 240], xmm15",
            gate = in(reg) gate,
            in("r12") &raw mut general,
            in("r13") &raw mut vectors,
            inout("rdi") answer => _,
            in("rsi") 0u64,
            in("rdx") 0u64,
            in("rcx") 0u64,
            lateout("rax") answer,
            clobber_abi("C"),
        );
    }
    if general != [0; 8] || vectors != [[0; 2]; VECTORS] {
        return Err(format!("there is something in registers: {general:x?} {vectors:x?}"));
    }
    Ok(answer as i64)
}

/// With a stack pointer below which there is no memory.
pub fn call_on_bare_stack(gate: Gate, control: bool) -> Result<i64, String> {
    const PAGE: usize = 4096;
    if control {
        return plain(gate);
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping; nothing else uses its first page.
    let stack = unsafe {
        let at = libc::mmap(std::ptr::null_mut(), 2 * PAGE, libc::PROT_NONE, flags, -1, 0);
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let top = at.cast::<u8>().wrapping_add(PAGE);
        if at == libc::MAP_FAILED || libc::mprotect(top.cast(), PAGE, prot) < 0 {
            return Err("no memory for a stack".to_owned());
        }
        top
    };
    let mut answer = gate_op::RUN_IO;
    // SAFETY: an attack; the stack pointer is restored from a callee-saved register.
    unsafe {
        asm!(
            "mov r12, rsp",
            "lea r13, [rip + 2f]",
            "mov rsp, {stack}",
            "mov [rsp], r13",
            "jmp {gate}",
            "2:",
            "mov rsp, r12",
            stack = in(reg) stack,
            gate = in(reg) gate,
            out("r12") _,
            out("r13") _,
            inout("rdi") answer => _,
            in("rsi") 0u64,
            in("rdx") 0u64,
            in("rcx") 0u64,
            lateout("rax") answer,
            clobber_abi("C"),
        );
        libc::munmap(stack.wrapping_sub(PAGE).cast(), 2 * PAGE);
    }
    Ok(answer as i64)
}
