//! What Linux saves when it runs a signal handler, and puts back afterwards (`rt_sigreturn`).
use super::GATE;
use core::sync::atomic::Ordering;

/// `struct ucontext` of x86-64.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Frame {
    flags: u64,
    link: u64,
    /// The alternate signal stack, which is in force again afterwards.
    pub alternate: Alternate,
    /// The registers.
    pub registers: Registers,
    vector_state: u64,
    reserved: [u64; 8],
    /// The signal mask.
    pub mask: u64,
}

/// `stack_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Alternate {
    /// Its lowest address.
    pub first: u64,
    /// `SS_DISABLE`, or none.
    pub flags: u64,
    /// Its length.
    pub bytes: u64,
}

impl Alternate {
    /// None.
    pub const NONE: Alternate = Alternate { first: 0, flags: libc::SS_DISABLE as u64, bytes: 0 };

    /// Whether an address is in it.
    pub fn has(&self, address: u64) -> bool {
        let Alternate { first, flags, bytes } = *self;
        flags as i32 & libc::SS_DISABLE == 0 && address.wrapping_sub(first) < bytes
    }
}

/// `gregs`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct Registers {
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub rdx: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rsp: u64,
    pub rip: u64,
    pub flags: u64,
    rest: [u64; 5],
}

const _: () = assert!(size_of::<Frame>() == 304 && core::mem::offset_of!(Frame, mask) == 296);

/// Room for a copy of a frame with the largest vector state (AMX), bytes.
pub const ROOM: usize = 16 << 10;
/// Where the vector state begins in the room.
const VECTOR_AT: usize = 512;
/// Bytes of a vector state without extensions, and where it says what follows.
const FXSAVE_BYTES: usize = 512;
const EXTENSION_AT: usize = 464;
/// `FP_XSTATE_MAGIC1`.
const EXTENDED: u32 = 0x4650_5853;
/// Linux writes nothing below this distance from the stack pointer, nor do we.
pub const RED_ZONE: u64 = 128;
/// A system call instruction.
pub const SYSCALL: [u8; 2] = [0x0f, 0x05];

impl Registers {
    /// Those of a call of which nothing else is known.
    pub fn of_call(number: i64, [rdi, rsi, rdx, r10, r8, r9]: [u64; 6]) -> Registers {
        // SAFETY: all zero is a valid value of numbers.
        let none: Registers = unsafe { core::mem::zeroed() };
        Registers { rax: number as u64, rdi, rsi, rdx, r10, r8, r9, ..none }
    }

    /// The number of the call.
    pub fn number(&self) -> i64 {
        self.rax as i64
    }

    /// The arguments of the call.
    pub fn arguments(&self) -> [u64; 6] {
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9]
    }

    /// Has the program make the call as it is, from the instruction from which Linux takes it.
    /// Interruption and restart are Linux's own there.
    ///
    /// # Safety
    /// The program is stopped at a call, with these registers.
    pub unsafe fn pass(&mut self) {
        let stack = self.rsp - RED_ZONE - 16;
        // SAFETY: below the red zone, where Linux itself writes when a handler runs.
        unsafe {
            let words = stack as *mut u64;
            words.write_unaligned(super::entry::return_address());
            words.add(1).write_unaligned(self.rip);
        }
        self.rsp = stack;
        self.rip = GATE.load(Ordering::Relaxed);
    }

    /// Has the program wait for a signal with this mask (`rt_sigsuspend`), which is pending, as if
    /// it was its call that had ended so.
    ///
    /// # Safety
    /// As [`Self::pass`]; a mask.
    pub unsafe fn hear(&mut self, mask: *const u64) {
        let stack = self.rsp - RED_ZONE - 32;
        let words = [super::entry::restoring_address(), self.rdi, self.rsi, self.rip];
        // SAFETY: below the red zone, as above.
        unsafe { (stack as *mut [u64; 4]).write_unaligned(words) };
        (self.rdi, self.rsi, self.rax) = (mask as u64, 8, libc::SYS_rt_sigsuspend as u64);
        (self.rsp, self.rip) = (stack, GATE.load(Ordering::Relaxed));
    }

    /// Has the program make the call again, with `number`.
    pub fn again(&mut self, number: i64) {
        self.rip -= SYSCALL.len() as u64;
        self.rax = number as u64;
    }
}

impl Frame {
    /// Whether the program was on its alternate signal stack.
    pub fn is_on_alternate(&self) -> bool {
        self.alternate.has(self.registers.rsp)
    }

    /// Copies a frame, with the vector state that it points to, to the place of a frame in `room`.
    ///
    /// # Safety
    /// A frame that Linux has made; [`ROOM`] bytes at an address that is a multiple of 64.
    pub unsafe fn copy(from: *const Frame, room: *mut u8) -> *mut Frame {
        // SAFETY: the caller's promise. The state says its own length.
        unsafe {
            let frame = room.add(8).cast::<Frame>();
            *frame = *from;
            let state = (*from).vector_state as *const u8;
            if !state.is_null() {
                let words = state.add(EXTENSION_AT).cast::<u32>();
                let bytes = if words.read_unaligned() == EXTENDED {
                    words.add(1).read_unaligned() as usize
                } else {
                    FXSAVE_BYTES
                };
                let to = room.add(VECTOR_AT);
                core::ptr::copy_nonoverlapping(state, to, bytes.min(ROOM - VECTOR_AT));
                (*frame).vector_state = to as u64;
            }
            frame
        }
    }
}
