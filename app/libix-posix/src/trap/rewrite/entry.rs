//! What a rewritten call does: it decides by the call's number and descriptor, in a few
//! instructions, and goes to Linux or to this library. The program's registers are as Linux leaves
//! them: all but rcx and r11 are kept, flags and vector registers too.
//!
//! The stack of the program is written below its red zone only, as Linux does for a handler. While
//! the thread is the program's, a signal's handler sees it at its own instruction, with its own
//! stack ([`as_native`]).
use super::super::calls::{self, Outcome};
use super::super::context::{self, Context};
use super::super::entry::{is_passed_on, passed_on};
use super::super::frame::{Frame, RED_ZONE, Registers};
use super::super::ways::{WAYS, Way};
use super::super::{GATE, sites};
use crate::{fds, real};
use core::arch::naked_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, Ordering};

/// What is below the program's stack pointer on the way: the red zone, where the call goes on, and
/// the address behind it.
const BELOW: u64 = RED_ZONE + 16;
/// Room for vector registers, bytes: those of AVX-512, eight masks, and three words.
const VECTORS_BYTES: usize = 2176;
/// Places of the words: which registers were saved, `MXCSR` before, and after.
const WIDTH_AT: usize = 2112;
const MXCSR_AT: usize = 2116;
const MXCSR_NOW_AT: usize = 2120;
/// The states of AVX and AVX-512, not x87 and AMX, which this library and its C library do not use.
const WIDE: u32 = AVX_STATE | AVX512_STATES;
const AVX_STATE: u32 = 1 << 2;
const AVX512_STATES: u32 = 0b111 << 5;
/// Which registers there are, or are saved: 128 bits each, 256, or 512 and twice as many.
const SSE: u32 = 0;
const AVX: u32 = 1;
const AVX512: u32 = 2;
/// The widest ones of this processor.
static WIDEST: AtomicU32 = AtomicU32::new(SSE);
/// `MXCSR` as a program begins with it.
const MXCSR: u32 = 0x1f80;

/// A call on the library's stack: the program's registers, the result in place of the number.
#[repr(C)]
struct Call {
    rax: u64,
    rdi: u64,
    rsi: u64,
    rdx: u64,
    r10: u64,
    r8: u64,
    r9: u64,
    rbx: u64,
    /// Where flags, a free word and the address behind the call are.
    stack: *mut [u64; 3],
}

/// After so many calls of a thread the counts are shown outside of this process.
const SHOWN_EVERY: u32 = 64;

/// What becomes of a call.
const MADE: u32 = 0;
const LINUX: u32 = 1;
const BY_TRAP: u32 = 2;

/// Whether this processor has what is needed, which is `xgetbv` for the states in use; notes how
/// wide its registers are.
///
/// `xsavec` and `xrstor` would do the same in 330 cycles; moves take 20, or 60 with AVX-512.
pub fn is_possible() -> bool {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    const OSXSAVE: u32 = 1 << 27;
    const HAS_AVX: u32 = 1 << 28;
    const FEATURES: u32 = 7;
    const HAS_AVX512: u32 = 1 << 16 | 1 << 30; // F and BW
    const STATES: u32 = 0xd;
    const XGETBV1: u32 = 1 << 2;
    let (most, features) = (__cpuid(0).eax, __cpuid(1).ecx);
    if most < STATES || features & OSXSAVE == 0 || __cpuid_count(STATES, 1).eax & XGETBV1 == 0 {
        return false;
    }
    // SAFETY: the processor has the instruction, and Linux uses it (`OSXSAVE`).
    let enabled = unsafe { enabled_states() };
    let has_avx512 = __cpuid_count(FEATURES, 0).ebx & HAS_AVX512 == HAS_AVX512;
    let widest = match enabled & WIDE {
        0 => SSE,
        WIDE if has_avx512 => AVX512,
        AVX_STATE if features & HAS_AVX != 0 => AVX,
        // Registers that the moves do not know.
        _ => return false,
    };
    WIDEST.store(widest, Ordering::Relaxed);
    true
}

/// # Safety
/// The processor has `xgetbv`.
#[target_feature(enable = "xsave")]
unsafe fn enabled_states() -> u32 {
    // SAFETY: the caller's promise; register 0 is always there.
    unsafe { core::arch::x86_64::_xgetbv(0) as u32 }
}

/// Where all stubs go on.
pub fn address() -> u64 {
    rewritten as *const () as u64
}

/// Moves of the first 16 vector registers to the stack, one behind the other.
macro_rules! save_16 {
    ($move:literal, $kind:literal, $bytes:literal) => {
        save_16!($move, $kind, $bytes; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($move:literal, $kind:literal, $bytes:literal; $($n:literal)*) => {
        concat!($($move, " [rsp + ", $n, " * ", $bytes, "], ", $kind, $n, "\n"),*)
    };
}

/// Moves of them back.
macro_rules! restore_16 {
    ($move:literal, $kind:literal, $bytes:literal) => {
        restore_16!($move, $kind, $bytes; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($move:literal, $kind:literal, $bytes:literal; $($n:literal)*) => {
        concat!($($move, " ", $kind, $n, ", [rsp + ", $n, " * ", $bytes, "]\n"),*)
    };
}

/// From a stub: behind the call in rcx, the number of the site in r11.
#[unsafe(naked)]
unsafe extern "C" fn rewritten() {
    naked_asm!(
        "mov [rsp - 136], rcx",
        "lea rsp, [rsp - 144]",
        ".globl ix_posix_call_below",
        ".hidden ix_posix_call_below",
        "ix_posix_call_below:",
        "pushfq",
        ".globl ix_posix_call_flags",
        ".hidden ix_posix_call_flags",
        "ix_posix_call_flags:",
        // A thread without a context: all its calls are Linux's.
        "rdgsbase rcx",
        "test rcx, rcx",
        "jz 20f",
        "inc qword ptr [rcx + r11 * 8 + {counts}]",
        // A thread that the C library has made for itself has its creator's context.
        "mov r11, [rcx + {own_fs}]",
        "test r11, r11",
        "jz 1f",
        "rdfsbase rcx",
        "cmp rcx, r11",
        "jne 20f",
        "1:",
        "cmp rax, {numbers}",
        "jae 20f",
        "lea rcx, [rip + {ways}]",
        "movzx ecx, byte ptr [rcx + rax]",
        "cmp ecx, {by_descriptor}",
        "jb 20f",
        "je 3f",
        "cmp ecx, {asks}",
        "je 4f",
        "ja 30f",
        // By its descriptor, and without a mask of signals.
        "test r8, r8",
        "jnz 30f",
        "3:",
        "mov ecx, edi",
        "cmp ecx, {fds}",
        "jae 20f",
        "lea r11, [rip + {table}]",
        "cmp dword ptr [r11 + rcx * 4], 0",
        "je 20f",
        "4:",
        // In a handler the alternate stack may be in use, which Linux would not see from ours.
        "cmp dword ptr gs:[{depth}], 0",
        "jne 30f",
        "mov byte ptr gs:[8], 0",
        // From here on signals are postponed.
        "mov rcx, rsp",
        "mov rsp, gs:[32]",
        "push rcx",
        "push rbx",
        "push r9",
        "push r8",
        "push r10",
        "push rdx",
        "push rsi",
        "push rdi",
        "push rax",
        "mov rbx, rsp",
        "sub rsp, {room}",
        "and rsp, -64",
        "stmxcsr [rsp + {saved_mxcsr}]",
        "cmp dword ptr [rsp + {saved_mxcsr}], {mxcsr}",
        "je 40f",
        "mov dword ptr [rsp + {width}], {mxcsr}",
        "ldmxcsr [rsp + {width}]",
        "40:",
        // Which parts of the registers hold something: mostly the lowest 128 bits only.
        "mov ecx, 1",
        "xgetbv",
        "and eax, {wide}",
        "jz 41f",
        "mov eax, [rip + {widest}]",
        "41:",
        "mov [rsp + {width}], eax",
        "cmp eax, {avx}",
        "ja 43f",
        "je 42f",
        save_16!("movups", "xmm", 16),
        "jmp 44f",
        "42:",
        save_16!("vmovups", "ymm", 32),
        "jmp 44f",
        "43:",
        save_16!("vmovups", "zmm", 64),
        "vmovups [rsp + 1024], zmm16",
        "vmovups [rsp + 1088], zmm17",
        "vmovups [rsp + 1152], zmm18",
        "vmovups [rsp + 1216], zmm19",
        "vmovups [rsp + 1280], zmm20",
        "vmovups [rsp + 1344], zmm21",
        "vmovups [rsp + 1408], zmm22",
        "vmovups [rsp + 1472], zmm23",
        "vmovups [rsp + 1536], zmm24",
        "vmovups [rsp + 1600], zmm25",
        "vmovups [rsp + 1664], zmm26",
        "vmovups [rsp + 1728], zmm27",
        "vmovups [rsp + 1792], zmm28",
        "vmovups [rsp + 1856], zmm29",
        "vmovups [rsp + 1920], zmm30",
        "vmovups [rsp + 1984], zmm31",
        "kmovq [rsp + 2048], k0",
        "kmovq [rsp + 2056], k1",
        "kmovq [rsp + 2064], k2",
        "kmovq [rsp + 2072], k3",
        "kmovq [rsp + 2080], k4",
        "kmovq [rsp + 2088], k5",
        "kmovq [rsp + 2096], k6",
        "kmovq [rsp + 2104], k7",
        "44:",
        "mov rax, gs:[16]",
        "test rax, rax",
        "jz 5f",
        "rdfsbase rcx",
        "mov gs:[24], rcx",
        "wrfsbase rax",
        "5:",
        "cld",
        "mov rdi, rbx",
        "call {serve}",
        "mov r8d, eax",
        "mov rax, gs:[16]",
        "test rax, rax",
        "jz 6f",
        "mov rax, gs:[24]",
        "wrfsbase rax",
        "6:",
        "stmxcsr [rsp + {mxcsr_now}]",
        "mov eax, [rsp + {saved_mxcsr}]",
        "cmp eax, [rsp + {mxcsr_now}]",
        "je 50f",
        "ldmxcsr [rsp + {saved_mxcsr}]",
        "50:",
        "mov eax, [rsp + {width}]",
        "cmp eax, {avx}",
        "ja 53f",
        "je 52f",
        // What held nothing holds nothing again.
        "mov eax, [rip + {widest}]",
        "cmp eax, {avx}",
        "jb 51f",
        "vzeroupper",
        "je 51f",
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
        "51:",
        restore_16!("movups", "xmm", 16),
        "jmp 54f",
        "52:",
        restore_16!("vmovups", "ymm", 32),
        "jmp 54f",
        "53:",
        restore_16!("vmovups", "zmm", 64),
        "vmovups zmm16, [rsp + 1024]",
        "vmovups zmm17, [rsp + 1088]",
        "vmovups zmm18, [rsp + 1152]",
        "vmovups zmm19, [rsp + 1216]",
        "vmovups zmm20, [rsp + 1280]",
        "vmovups zmm21, [rsp + 1344]",
        "vmovups zmm22, [rsp + 1408]",
        "vmovups zmm23, [rsp + 1472]",
        "vmovups zmm24, [rsp + 1536]",
        "vmovups zmm25, [rsp + 1600]",
        "vmovups zmm26, [rsp + 1664]",
        "vmovups zmm27, [rsp + 1728]",
        "vmovups zmm28, [rsp + 1792]",
        "vmovups zmm29, [rsp + 1856]",
        "vmovups zmm30, [rsp + 1920]",
        "vmovups zmm31, [rsp + 1984]",
        "kmovq k0, [rsp + 2048]",
        "kmovq k1, [rsp + 2056]",
        "kmovq k2, [rsp + 2064]",
        "kmovq k3, [rsp + 2072]",
        "kmovq k4, [rsp + 2080]",
        "kmovq k5, [rsp + 2088]",
        "kmovq k6, [rsp + 2096]",
        "kmovq k7, [rsp + 2104]",
        "54:",
        "mov ecx, r8d",
        "mov rsp, rbx",
        "pop rax",
        "pop rdi",
        "pop rsi",
        "pop rdx",
        "pop r10",
        "pop r8",
        "pop r9",
        "pop rbx",
        "pop rsp",
        "test ecx, ecx",
        "jnz 10f",
        // Made.
        "popfq",
        "mov r11, [rsp + 8]",
        "lea rsp, [rsp + 144]",
        "mov byte ptr gs:[8], 1",
        ".globl ix_posix_call_done",
        ".hidden ix_posix_call_done",
        "ix_posix_call_done:",
        "movzx ecx, byte ptr gs:[{has_postponed}]",
        "jrcxz 7f",
        // Signals have come meanwhile: they arrive when Linux puts the program's mask back.
        "lea rsp, [rsp - 144]",
        "mov [rsp + 8], r11",
        "syscall",
        ".globl ix_posix_call_made",
        ".hidden ix_posix_call_made",
        "ix_posix_call_made:",
        "mov r11, [rsp + 8]",
        "lea rsp, [rsp + 144]",
        "7:",
        "mov rcx, r11",
        "jmp r11",
        // Not made here. A signal may have come while that was looked at.
        ".globl ix_posix_call_undone",
        ".hidden ix_posix_call_undone",
        "ix_posix_call_undone:",
        "10:",
        "mov byte ptr gs:[8], 1",
        "cmp ecx, {linux}",
        "jne 30f",
        "cmp byte ptr gs:[{has_postponed}], 0",
        "jne 30f",
        "20:",
        "lock inc qword ptr [rip + {all}]",
        "lea rcx, [rip + {passed}]",
        "mov [rsp + 8], rcx",
        "popfq",
        ".globl ix_posix_call_unflagged",
        ".hidden ix_posix_call_unflagged",
        "ix_posix_call_unflagged:",
        "jmp qword ptr [rip + {gate}]",
        // By a trap, whose handler can do everything.
        "30:",
        "popfq",
        ".globl ix_posix_call_traps",
        ".hidden ix_posix_call_traps",
        "ix_posix_call_traps:",
        "syscall",
        ".globl ix_posix_call_trapped",
        ".hidden ix_posix_call_trapped",
        "ix_posix_call_trapped:",
        // Dispatch is off: the call is made.
        "mov r11, [rsp + 8]",
        "lea rsp, [rsp + 144]",
        "jmp r11",
        own_fs = const offset_of!(Context, own_fs),
        counts = const offset_of!(Context, counts),
        numbers = const WAYS.len(),
        ways = sym WAYS,
        by_descriptor = const Way::Descriptor as u32,
        asks = const Way::Asks as u32,
        fds = const fds::FDS_MAX,
        table = sym fds::TABLE,
        depth = const offset_of!(Context, depth),
        has_postponed = const offset_of!(Context, has_postponed),
        room = const VECTORS_BYTES,
        wide = const WIDE,
        widest = sym WIDEST,
        avx = const AVX,
        width = const WIDTH_AT,
        saved_mxcsr = const MXCSR_AT,
        mxcsr_now = const MXCSR_NOW_AT,
        mxcsr = const MXCSR,
        serve = sym serve,
        linux = const LINUX,
        all = sym real::ALL,
        passed = sym passed_on,
        gate = sym GATE,
    )
}

unsafe extern "C" {
    fn ix_posix_call_below();
    fn ix_posix_call_flags();
    fn ix_posix_call_done();
    fn ix_posix_call_made();
    fn ix_posix_call_undone();
    fn ix_posix_call_unflagged();
    fn ix_posix_call_traps();
    fn ix_posix_call_trapped();
}

/// The address of one of the marks above.
fn mark(at: unsafe extern "C" fn()) -> u64 {
    at as *const () as u64
}

/// Makes a call, unless it is Linux's or needs a handler.
extern "C" fn serve(call: &mut Call) -> u32 {
    let number = call.rax as i64;
    let arguments = [call.rdi, call.rsi, call.rdx, call.r10, call.r8, call.r9];
    if !calls::is_for_library(&Registers::of_call(number, arguments)) {
        return LINUX;
    }
    let result = match calls::plain(number, arguments) {
        Some(Outcome::Done(result)) => result,
        Some(Outcome::Linux) => return LINUX,
        Some(Outcome::Set | Outcome::Frame(_)) | None => return BY_TRAP,
    };
    // SAFETY: the calling thread's.
    let context = unsafe { &mut *context::current() };
    context.served = context.served.wrapping_add(1);
    if context.served % SHOWN_EVERY == 0 {
        sites::show_rewritten();
    }
    if result == -i64::from(libc::EINTR) && calls::restarts(number) && context.place.restarts() {
        // SAFETY: where the assembly has put it.
        unsafe { (*call.stack)[2] -= super::SYSCALL.len() as u64 };
    } else {
        call.rax = result as u64;
    }
    MADE
}

/// What a trap is that does not come from the program's instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// The program's call, as if its own instruction had trapped.
    Call,
    /// A call that has been made; signals were postponed meanwhile.
    Made,
}

/// Whether a trap comes from a rewritten site; gives it the program's own registers if it does.
///
/// # Safety
/// The registers of a thread that has trapped.
pub unsafe fn unfold(registers: &mut Registers) -> Option<Trap> {
    let trap = match registers.rip {
        at if at == mark(ix_posix_call_trapped) => Trap::Call,
        at if at == mark(ix_posix_call_made) => Trap::Made,
        _ => return None,
    };
    // SAFETY: the assembly has left the address there.
    registers.rip = unsafe { ((registers.rsp + 8) as *const u64).read_unaligned() };
    registers.rsp += BELOW;
    Some(trap)
}

/// Gives a handler the thread as it would be without this library: at the program's instruction.
/// Uses no thread-local storage.
///
/// # Safety
/// The frame of a handler that has interrupted the program, not this library.
pub unsafe fn as_native(frame: &mut Frame) {
    let registers = &mut frame.registers;
    let (at, stack) = (registers.rip, registers.rsp as *const u64);
    let first = super::SYSCALL.len() as u64;
    if let Some(behind) = super::on_the_way(at) {
        registers.rip = behind - first;
        return;
    }
    let gate = GATE.load(Ordering::Relaxed);
    // SAFETY: in each of these places that many words are on the stack.
    unsafe {
        if at == gate || at == gate + first {
            if stack.read_unaligned() == passed_on as *const () as u64 {
                let behind = stack.add(1).read_unaligned();
                registers.rip = if at == gate { behind - first } else { behind };
                registers.rsp += BELOW;
            }
        } else if is_passed_on(at) {
            registers.rip = stack.read_unaligned();
            registers.rsp += BELOW - 8;
        } else if (address()..mark(ix_posix_call_below)).contains(&at) {
            registers.rip = registers.rcx - first;
        } else if [ix_posix_call_below, ix_posix_call_unflagged, ix_posix_call_traps]
            .iter()
            .any(|place| mark(*place) == at)
        {
            registers.rip = stack.add(1).read_unaligned() - first;
            registers.rsp += BELOW;
        } else if (mark(ix_posix_call_flags)..mark(ix_posix_call_trapped)).contains(&at)
            && !(mark(ix_posix_call_done)..mark(ix_posix_call_undone)).contains(&at)
        {
            registers.flags = stack.read_unaligned();
            registers.rip = stack.add(2).read_unaligned() - first;
            registers.rsp += BELOW + 8;
        }
    }
}
