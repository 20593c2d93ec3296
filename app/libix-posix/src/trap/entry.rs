//! The handlers, and the ways back to the program.
//!
//! Offsets of gs are those of the first fields of [`Context`](super::context::Context).
use super::context::{self, Context};
use super::frame::{Frame, ROOM};
use super::rewrite::entry::{Trap, as_native, unfold};
use super::{ALLOWED, GATE, actions, calls, rewrite, sites, ways};
use core::arch::naked_asm;
use core::mem::offset_of;
use core::sync::atomic::Ordering;
use ix_abi::SiteState;
use libc::{c_int, c_void, siginfo_t};

const _: () = assert!(
    offset_of!(Context, layer_fs) == 16
        && offset_of!(Context, program_fs) == 24
        && offset_of!(Context, number_at) == 40
        && offset_of!(Context, first_frame) == 48
);

/// `si_code` of a call that Linux hands back.
const SYS_USER_DISPATCH: c_int = 2;
/// `AUDIT_ARCH_X86_64`.
const X86_64: u32 = 0xc000_003e;
/// All signals.
const ALL: u64 = !0;

/// What Linux says of a call that it hands back.
#[repr(C)]
struct Trapped {
    signal: c_int,
    errno: c_int,
    code: c_int,
    _pad: c_int,
    behind: u64,
    number: c_int,
    architecture: u32,
}

/// The handler of SIGSYS. It runs with all signals blocked, on whatever stack the program has.
#[unsafe(naked)]
pub unsafe extern "C" fn on_trap(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    naked_asm!(
        "push rbx",
        "push r12",
        "sub rsp, 8",
        "mov rbx, rdx",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "cld",
        "call {look}",
        "test eax, eax",
        "jnz 2f",
        "add rsp, 8",
        "pop r12",
        "pop rbx",
        "ret",
        "2:",
        "mov byte ptr gs:[8], 0",
        "mov rax, gs:[16]",
        "test rax, rax",
        "jz 3f",
        "rdfsbase rcx",
        "mov gs:[24], rcx",
        "wrfsbase rax",
        "3:",
        "mov rsp, gs:[32]",
        "sub rsp, {room}",
        "mov rdi, rbx",
        "mov rsi, rsp",
        "call {carry}",
        // Back to the frame that it returns.
        "mov rsp, rax",
        "mov rax, gs:[16]",
        "test rax, rax",
        "jz 4f",
        "mov rax, gs:[24]",
        "wrfsbase rax",
        "4:",
        "mov byte ptr gs:[8], 1",
        "mov eax, 15",
        "jmp qword ptr [rip + {gate}]",
        look = sym look,
        carry = sym carry,
        room = const ROOM,
        gate = sym GATE,
    )
}

/// Where handlers return to: `rt_sigreturn`.
#[unsafe(naked)]
pub unsafe extern "C" fn restore() {
    naked_asm!("mov eax, 15", "jmp qword ptr [rip + {gate}]", gate = sym GATE)
}

/// Behind a call that was passed on.
#[unsafe(naked)]
pub unsafe extern "C" fn passed_on() {
    naked_asm!("ret 128")
}

/// Behind a call in place of the program's: its first two arguments are the program's again.
#[unsafe(naked)]
unsafe extern "C" fn passed_other() {
    naked_asm!("pop rdi", "pop rsi", "ret 128")
}

/// Behind a `clone` in place of the program's, whose child has no context.
#[unsafe(naked)]
pub unsafe extern "C" fn cloned() {
    naked_asm!(
        "pop rdi",
        "pop rsi",
        "pop rdx",
        "pop r10",
        "pop r8",
        "mov rcx, rax",
        "jrcxz 2f",
        "ret 128",
        "2:",
        "wrgsbase rcx",
        "ret 128",
    )
}

/// The same for a child on a stack of its own.
#[unsafe(naked)]
pub unsafe extern "C" fn cloned_apart() {
    naked_asm!("mov ecx, 0", "wrgsbase rcx", "ret 128")
}

/// The address at which a call in place of the program's goes on.
pub fn restoring_address() -> u64 {
    passed_other as *const () as u64
}

/// The address at which a call that was passed on goes on.
pub fn return_address() -> u64 {
    passed_on as *const () as u64
}

/// Whether an instruction is the one there.
pub fn is_passed_on(address: u64) -> bool {
    address == return_address()
}

/// In front of the program's handlers: they run at once while the thread is the program's.
#[unsafe(naked)]
pub unsafe extern "C" fn on_signal(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    naked_asm!(
        "rdgsbase rax",
        "test rax, rax",
        "jz 3f",
        "cmp byte ptr [rax + 8], 0",
        "je {inside}",
        "cmp dword ptr [rax + {depth}], 0",
        "jne 2f",
        "mov [rax + {handler_stack}], rsp",
        "2:",
        "inc dword ptr [rax + {depth}]",
        "push rdi",
        "push rsi",
        "push rdx",
        "mov rdi, rdx",
        "call {as_native}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "sub rsp, 8",
        "call qword ptr [rip + {outside}]",
        "add rsp, 8",
        "dec dword ptr gs:[{depth}]",
        "ret",
        "3:",
        "jmp qword ptr [rip + {outside}]",
        inside = sym inside,
        outside = sym actions::OUTSIDE,
        depth = const offset_of!(Context, depth),
        handler_stack = const offset_of!(Context, handler_stack),
        as_native = sym in_native,
    )
}

/// # Safety
/// The frame of a handler that has interrupted the program.
unsafe extern "C" fn in_native(frame: *mut Frame) {
    // SAFETY: the caller's promise.
    unsafe { as_native(&mut *frame) }
}

/// Starts a thread that the program makes itself: `clone`, whose child begins at the frame of its
/// context. Returns what Linux returns to the parent.
#[unsafe(naked)]
pub unsafe extern "C" fn clone_thread(_arguments: *const [u64; 5], _child: *mut Context) -> i64 {
    naked_asm!(
        "push rbx",
        "mov rbx, rsi",
        "mov rax, rdi",
        "mov rdi, [rax]",
        "mov rsi, [rax + 8]",
        "mov rdx, [rax + 16]",
        "mov r10, [rax + 24]",
        "mov r8, [rax + 32]",
        "mov eax, 56",
        "syscall",
        "test rax, rax",
        "jz 2f",
        "pop rbx",
        "ret",
        // The new thread, on the stack of its context, with all signals blocked.
        "2:",
        "wrgsbase rbx",
        "mov eax, 186", // gettid
        "syscall",
        "mov gs:[{tid}], eax",
        "mov rcx, gs:[40]",
        "test rcx, rcx",
        "jz 3f",
        "mov [rcx], eax",
        "3:",
        "mov eax, 157", // prctl
        "mov edi, 59",
        "mov esi, 1",
        "mov rdx, [rip + {allowed}]",
        "mov r10, [rip + {allowed} + 8]",
        "lea r8, [rbx + 8]",
        "syscall",
        "mov rsp, gs:[48]",
        "mov rax, gs:[24]",
        "wrfsbase rax",
        "mov eax, 15",
        "jmp qword ptr [rip + {gate}]",
        tid = const offset_of!(Context, tid),
        allowed = sym ALLOWED,
        gate = sym GATE,
    )
}

/// Begins a static program: its registers are those of a new one.
#[unsafe(naked)]
pub unsafe extern "C" fn begin_program(_entry: u64, _stack: u64) -> ! {
    naked_asm!(
        "mov rsp, rsi",
        "push rdi",
        "xor eax, eax",
        "wrfsbase rax",
        "xor ebx, ebx",
        "xor ecx, ecx",
        "xor edx, edx",
        "xor esi, esi",
        "xor edi, edi",
        "xor ebp, ebp",
        "xor r8d, r8d",
        "xor r9d, r9d",
        "xor r10d, r10d",
        "xor r11d, r11d",
        "xor r12d, r12d",
        "xor r13d, r13d",
        "xor r14d, r14d",
        "xor r15d, r15d",
        "mov byte ptr gs:[8], 1",
        "ret",
    )
}

/// Looks at a call, without thread-local storage; returns whether it is for this library.
extern "C" fn look(trapped: &Trapped, frame: &mut Frame) -> u32 {
    if trapped.code != SYS_USER_DISPATCH {
        return 0;
    }
    let registers = &mut frame.registers;
    if trapped.architecture != X86_64 {
        // Of a 32-bit program, whose numbers are others.
        registers.rax = -i64::from(libc::ENOSYS) as u64;
        return 0;
    }
    // SAFETY: the thread is stopped at this call, and its context is nobody else's.
    unsafe {
        let context = &mut *context::current();
        let from_rewritten = unfold(registers);
        if from_rewritten == Some(Trap::Made) {
            context.is_made = true;
            return 1;
        }
        if !sites::is_own(registers.rip) {
            let site = match from_rewritten {
                Some(_) => None,
                None => sites::count(registers.rip, registers.number()),
            };
            let needs_trap = ways::way(registers.number()) == ways::Way::Trap;
            if let Some(site) = site.filter(|site| needs_trap && site.state() == SiteState::New) {
                site.set_state(SiteState::Whole);
            }
            let wants = !needs_trap && site.is_some_and(rewrite::wants);
            let has_postponed = context.has_postponed.load(Ordering::Relaxed) != 0;
            if wants || has_postponed || calls::is_for_library(registers) {
                return 1;
            }
            calls::before_linux(registers);
        }
        registers.pass();
    }
    0
}

/// Makes a call on the library's stack; returns the frame at which the program goes on.
extern "C" fn carry(from: *const Frame, room: *mut u8) -> *const Frame {
    let context = context::current();
    // SAFETY: a frame of Linux's, room on our stack, and the calling thread's context.
    unsafe {
        let frame = Frame::copy(from, room);
        let own = &mut *frame;
        let (number, place) = (own.registers.number(), (*context).place);
        if core::mem::take(&mut (*context).is_made) {
            (*context).send_postponed();
            return frame;
        }
        (*context).look_at_depth(own);
        // A thread that ends may have made too few calls for that.
        if number == libc::SYS_exit {
            sites::show_rewritten();
        }
        if ways::way(number) != ways::Way::Trap
            && let Some(site) = sites::at(own.registers.rip)
        {
            rewrite::consider(site);
        }
        if !calls::is_for_library(&own.registers) {
            calls::before_linux(&mut own.registers);
            own.registers.pass();
            (*context).send_postponed();
            return frame;
        }
        // On the alternate stack the next handler would begin at its end again, over the
        // handler's frames that are there: Linux does not know that the thread is on that stack.
        // A signal of the process that this thread took while it was about to block it would be
        // the thread's, and lost if that ends; any other thread can take it.
        let changes_mask =
            matches!(number, libc::SYS_rt_sigprocmask | libc::SYS_rt_sigreturn | libc::SYS_exit);
        let hears = !own.is_on_alternate() && !changes_mask;
        if hears {
            actions::set_mask(own.mask);
        }
        let outcome = calls::make(own, context);
        actions::set_mask(ALL);
        match outcome {
            calls::Outcome::Done(result) => {
                let mask = calls::mask_of(&own.registers);
                let is_heard = |mask: u64| place.postponed().any(|n| mask & (1 << (n - 1)) == 0);
                let interrupted = result == -i64::from(libc::EINTR);
                if interrupted && calls::restarts(number) && place.restarts() {
                    own.registers.again(number);
                } else if let Some(mask) = mask.filter(|mask| interrupted && is_heard(*mask)) {
                    // The mask of the call lets it through, and perhaps only that.
                    (*context).mask[0] = mask;
                    own.registers.hear((*context).mask.as_ptr());
                } else {
                    own.registers.rax = result as u64;
                }
            }
            calls::Outcome::Linux => own.registers.pass(),
            calls::Outcome::Set => {}
            calls::Outcome::Frame(at) => {
                (*context).send_postponed();
                let theirs = at as *mut Frame;
                (*theirs).mask = actions::without_sigsys((*theirs).mask);
                return theirs;
            }
        }
        (*context).send_postponed();
        frame
    }
}

/// A signal of the program's while the thread is in this library.
extern "C" fn inside(signal: c_int, info: *mut siginfo_t, frame: *mut Frame) {
    // SAFETY: what Linux passes to a handler, and the calling thread's context.
    unsafe {
        if crate::signals::is_fault(signal) && (*info).si_code > 0 {
            // No handler of the program's can mend it.
            actions::end_by(signal);
            return;
        }
        let context = &*context::current();
        context.has_postponed.store(1, Ordering::Relaxed);
        context.place.postpone(&*info);
        let registers = &mut (*frame).registers;
        if calls::waits_in_library(registers) {
            registers.rip += 2;
            registers.rax = -i64::from(libc::EINTR) as u64;
        }
    }
}
