//! The record of each Linux thread of the application.
//!
//! A thread is identified by something that it can neither write nor borrow: the limit of a segment
//! descriptor in its own part of the processor's descriptor table. Only a system call can set it,
//! and `lsl` reads it in user mode. Its value is the number of the thread's [`Record`].
use crate::sys;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU8, Ordering};

/// Most threads.
pub const RECORDS: usize = 128;
/// Shift from a number to a record.
pub const SHIFT: u32 = 13;
/// Bytes for the vector state of a thread.
pub const FP_MAX: usize = 4096;
/// The descriptor's selector: the first one for threads, requested with privilege 3.
pub const SELECTOR: u32 = (12 << 3) | 3;
/// Entry number of that descriptor.
const ENTRY: u32 = 12;
/// No elastic thread.
pub const NOBODY: u64 = u64::MAX;

/// No thread has it.
pub const FREE: u8 = 0;
/// A thread that will have it is being made.
pub const STARTING: u8 = 1;
/// A thread has it.
pub const LIVE: u8 = 2;

/// Registers of the application, in the order in which the way out of the dataplane pops them.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Registers {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub rdx: u64,
    pub rcx: u64,
    pub rax: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

/// What the application can read of a thread's record and only the dataplane writes: one page.
#[repr(C, align(4096))]
pub struct Shown {
    /// Registers that the way out pops.
    pub registers: Registers,
    /// Syscall User Dispatch reads this: 0 lets system calls through, 1 stops them.
    pub selector: u8,
    _pad: [u8; 64],
    /// Bytes on their way to the application.
    pub out: [u8; 3072],
}

/// Bytes on their way from the application. The application can write there, so they are read only
/// once.
pub type Incoming = [u8; 4096];

/// The application's stack for signal handlers.
#[derive(Clone, Copy, Default)]
pub struct AltStack {
    pub base: u64,
    pub flags: u64,
    pub bytes: u64,
}

/// The record of a thread. The assembly knows the offsets.
#[repr(C, align(8192))]
pub struct Record {
    /// The thread runs the handler: any signal frame is genuine.
    pub in_handler: u8,
    /// It makes a system call or a copy with the application's rights.
    pub in_forward: u8,
    /// It runs an elastic thread.
    pub inside: u8,
    /// `FREE`, `STARTING` or `LIVE`.
    pub state: AtomicU8,
    /// A signal is stored in `info`.
    pub pending: u8,
    /// The new thread will be a process of its own.
    pub is_process: u8,
    /// The thread has a shared elastic thread for this call.
    pub has_shared: u8,
    /// A call for the application is on its way to the kernel, or there.
    pub calling: AtomicU8,
    /// Number of its elastic thread.
    pub elastic: u64,
    pub elastic_stack: u64,
    pub elastic_fs: u64,
    /// Address of the owner word of the shared elastic thread that it has, or had last.
    pub owner: u64,
    pub shown: *mut Shown,
    pub incoming: *mut Incoming,
    /// Where the kernel puts the frame of a signal from outside.
    pub frame_top: u64,
    /// A little below the top of the signal stack.
    pub stack_top: u64,
    /// Base and bytes of that stack.
    pub stack: (u64, u64),
    pub forward_rsp: u64,
    /// fs base of the application.
    pub app_fs: u64,
    /// The signals that the application has blocked.
    pub app_mask: u64,
    /// The kernel's signal mask.
    pub kernel_mask: u64,
    pub app_stack: AltStack,
    /// Linux's number of the thread.
    pub tid: u64,
    /// Where the application wants a zero and a wake-up when the thread ends; 0: nowhere. The
    /// kernel does not know it, because it would write with the rights that the thread has at that
    /// moment.
    pub clear_tid: u64,
    /// The process that made the one that this record is for.
    pub maker: u64,
    pub registers: Registers,
    pub info: [u8; 128],
    pub fp: Fp,
}

/// Vector state as the kernel and `xrstor` know it.
#[repr(C, align(64))]
pub struct Fp(pub [u8; FP_MAX]);

const _: () = assert!(size_of::<Record>() == 1 << SHIFT);
const _: () = assert!(size_of::<Shown>() == 4096);

/// All records, at an address that the assembly knows.
#[repr(C, align(8192))]
pub struct Records(pub UnsafeCell<[Record; RECORDS]>);

// SAFETY: a record belongs to the Linux thread whose number it is; `state` is atomic.
unsafe impl Sync for Records {}

// A pattern to fill the table with; no code borrows it.
#[allow(clippy::declare_interior_mutable_const)]
const EMPTY: Record = Record {
    in_handler: 0,
    in_forward: 0,
    inside: 0,
    state: AtomicU8::new(FREE),
    pending: 0,
    is_process: 0,
    has_shared: 0,
    calling: AtomicU8::new(0),
    elastic: NOBODY,
    elastic_stack: 0,
    elastic_fs: 0,
    owner: 0,
    shown: core::ptr::null_mut(),
    incoming: core::ptr::null_mut(),
    frame_top: 0,
    stack_top: 0,
    stack: (0, 0),
    forward_rsp: 0,
    app_fs: 0,
    app_mask: 0,
    kernel_mask: 0,
    app_stack: AltStack { base: 0, flags: 2, bytes: 0 },
    tid: 0,
    clear_tid: 0,
    maker: 0,
    registers: Registers {
        r15: 0,
        r14: 0,
        r13: 0,
        r12: 0,
        r11: 0,
        r10: 0,
        r9: 0,
        r8: 0,
        rdi: 0,
        rsi: 0,
        rbp: 0,
        rbx: 0,
        rdx: 0,
        rcx: 0,
        rax: 0,
        rip: 0,
        cs: CS,
        rflags: 0x202,
        rsp: 0,
        ss: SS,
    },
    info: [0; 128],
    fp: Fp([0; FP_MAX]),
};

/// Code segment of 64-bit user code.
pub const CS: u64 = 0x33;
/// Its data segment.
pub const SS: u64 = 0x2b;

pub static TABLE: Records = Records(UnsafeCell::new([EMPTY; RECORDS]));

/// A record's address.
pub fn at(index: usize) -> *mut Record {
    // SAFETY: only the address of an element is taken; the index is checked by the slice.
    unsafe { &raw mut (*TABLE.0.get())[index] }
}

/// Takes a free record for a thread that is about to start.
pub fn take() -> Option<usize> {
    (0..RECORDS).find(|&index| {
        // SAFETY: `state` is atomic, `tid` was written by a thread that has gone.
        let (state, tid) = unsafe { (&(*at(index)).state, (*at(index)).tid) };
        state.load(Ordering::Acquire) == FREE
            && !is_alive(tid)
            && state.compare_exchange(FREE, STARTING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    })
}

fn is_alive(tid: u64) -> bool {
    // SAFETY: no pointers; signal 0 only asks.
    tid != 0
        && unsafe {
            let process = sys::syscall(libc::SYS_getpid, [0; 6]) as u64;
            sys::syscall(libc::SYS_tgkill, [process, tid, 0, 0, 0, 0]) == 0
        }
}

/// `struct user_desc` of `set_thread_area`.
#[repr(C)]
struct UserDesc {
    entry: u32,
    base: u32,
    limit: u32,
    flags: u32,
}

/// seg_32bit, useable; contents, read_exec_only, limit_in_pages and seg_not_present stay zero.
const FLAGS: u32 = 1 | 1 << 6;

/// Where the descriptor's description is: below 4 GB, as the 32-bit system call requires.
static LOW: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);

/// Maps what [`claim`] needs. To be called once.
pub fn prepare() -> Result<(), i64> {
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT) as u64;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let low = unsafe { sys::syscall(libc::SYS_mmap, [0, 4096, prot, flags, u64::MAX, 0]) };
    if low < 0 {
        return Err(low);
    }
    LOW.store(low as usize, Ordering::Release);
    Ok(())
}

/// Gives this record to the calling Linux thread.
pub fn claim(index: usize) -> Result<(), i64> {
    let number = 243u64;
    // Each thread has a place of its own on the page.
    let low = (LOW.load(Ordering::Acquire) + index * size_of::<UserDesc>()) as *mut UserDesc;
    let mut answer = number;
    // SAFETY: within the page of `prepare`, this record's part. `int 0x80` changes rax and, on
    // some kernels, r8 to r11; 243 is set_thread_area.
    unsafe {
        low.write(UserDesc { entry: ENTRY, base: 0, limit: index as u32, flags: FLAGS });
        core::arch::asm!(
            "xchg rbx, {low}",
            "int 0x80",
            "xchg rbx, {low}",
            low = inout(reg) low => _,
            inout("rax") answer,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    let answer = i64::from(answer as i32);
    if answer < 0 { Err(answer) } else { Ok(()) }
}
