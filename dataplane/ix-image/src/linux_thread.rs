//! The Linux thread that runs an elastic thread: its number, where it may run, its time slice and
//! its signals. Nothing here uses thread-local storage.
use crate::signals::BLOCKED;
use crate::sys;

/// Number of hardware threads in an affinity mask.
const CPUS_MAX: usize = 1024;

/// What a Linux thread had before it entered an elastic thread.
#[derive(Clone, Copy)]
pub struct Before {
    signal_mask: u64,
    affinity: [u64; CPUS_MAX / 64],
}

impl Before {
    /// All zero: no hardware thread, no blocked signal.
    pub const NOTHING: Before = Before { signal_mask: 0, affinity: [0; CPUS_MAX / 64] };

    /// What the calling thread has; its signals are blocked from now on.
    pub fn entering() -> Before {
        let signal_mask = sys::set_signal_mask(BLOCKED);
        Before::with_mask(signal_mask)
    }

    /// What the calling thread has, whose signals were blocked before; it had `signal_mask`.
    pub fn with_mask(signal_mask: u64) -> Before {
        let mut before = Before { signal_mask, ..Before::NOTHING };
        let bytes = size_of_val(&before.affinity) as u64;
        let (own_thread, mask) = (0, &raw mut before.affinity as u64);
        // SAFETY: fills an array of ours.
        unsafe { sys::syscall(libc::SYS_sched_getaffinity, [own_thread, bytes, mask, 0, 0, 0]) };
        before
    }

    /// The signals that were blocked.
    pub fn signal_mask(&self) -> u64 {
        self.signal_mask
    }

    /// Gives the calling thread its hardware threads and its time slice back.
    pub fn place_back(&self) {
        set_affinity(&self.affinity);
        set_slice(USUAL_SLICE);
    }
}

/// Pins the calling thread, and gives it the slice of an elastic thread. False if it cannot run
/// there.
pub fn place(cpu: u32) -> bool {
    let pinned = pin(cpu);
    if pinned {
        set_slice(SLICE_NS);
    }
    pinned
}

/// Number of the calling thread.
pub fn own_id() -> u32 {
    // SAFETY: no arguments.
    unsafe { sys::syscall(libc::SYS_gettid, [0; 6]) as u32 }
}

/// Whether a thread of this process is alive. If its number is not known yet, it is.
pub fn is_alive(id: u32) -> bool {
    // SAFETY: no pointers; signal 0 only asks.
    id == 0
        || unsafe {
            let process = sys::syscall(libc::SYS_getpid, [0; 6]) as u64;
            sys::syscall(libc::SYS_tgkill, [process, id.into(), 0, 0, 0, 0]) == 0
        }
}

fn pin(cpu: u32) -> bool {
    let mut mask = [0u64; CPUS_MAX / 64];
    match mask.get_mut(cpu as usize / 64) {
        Some(word) => *word = 1 << (cpu % 64),
        None => return false,
    }
    set_affinity(&mask)
}

/// The argument of `sched_setattr` (version 0).
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Time slice of an elastic thread. Linux's scheduler (EEVDF) runs a waking thread with a shorter
/// slice earlier, for less time each: right for a thread that sleeps until a packet arrives. This
/// is the shortest possible slice.
const SLICE_NS: u64 = 100_000;
/// Slice of all other threads: the default.
const USUAL_SLICE: u64 = 0;

/// Sets the slice of the calling thread to `runtime_ns` (0: the default), with the same nice value.
/// A thread with another kind of policy is not changed; a kernel without slices ignores it.
fn set_slice(runtime_ns: u64) {
    let mut attr = SchedAttr::default();
    let bytes = size_of::<SchedAttr>() as u64;
    let to = &raw mut attr as u64;
    // SAFETY: fills a structure of ours; 0 is the calling thread.
    let got = unsafe { sys::syscall(libc::SYS_sched_getattr, [0, to, bytes, 0, 0, 0]) };
    if got != 0 || attr.policy != libc::SCHED_OTHER as u32 {
        return;
    }
    let attr = SchedAttr { size: bytes as u32, runtime_ns, ..attr };
    let from = &raw const attr as u64;
    // SAFETY: reads a structure of ours; 0 is the calling thread. A refusal changes nothing.
    unsafe { sys::syscall(libc::SYS_sched_setattr, [0, from, 0, 0, 0, 0]) };
}

fn set_affinity(mask: &[u64; CPUS_MAX / 64]) -> bool {
    let args = [0, size_of_val(mask) as u64, &raw const *mask as u64, 0, 0, 0];
    // SAFETY: reads an array of ours; 0 is the calling thread.
    unsafe { sys::syscall(libc::SYS_sched_setaffinity, args) == 0 }
}

/// Gives up all capabilities of the calling thread. The guard needs none, and the program, which
/// does not know of that thread, may give up its own later.
pub fn drop_capabilities() {
    keep_capabilities(0);
}

/// Gives up all capabilities of the calling thread but `CAP_IPC_LOCK`, if it has that. A device
/// that is opened again locks packet memory again, beyond what a limit allows.
pub fn keep_memory_locks() {
    const CAP_IPC_LOCK: u32 = 14;
    keep_capabilities(1 << CAP_IPC_LOCK);
}

/// Gives up all capabilities but those of these bits, below 32.
fn keep_capabilities(bits: u32) {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    // Effective, permitted and inheritable; then the same of higher numbers.
    let mut sets = [0u32; 6];
    let args = |sets: *const u32| [header.as_ptr() as u64, sets as u64, 0, 0, 0, 0];
    // SAFETY: fills an array of the size that this version has.
    let got = unsafe { sys::syscall(libc::SYS_capget, args(sets.as_mut_ptr())) };
    if got == 0 {
        let kept = sets[1] & bits;
        // SAFETY: reads an array of that size; it concerns this thread only.
        unsafe { sys::syscall(libc::SYS_capset, args([kept, kept, 0, 0, 0, 0].as_ptr())) };
    }
}

/// Gives the calling thread the slice of an elastic thread.
pub fn take_short_slices() {
    set_slice(SLICE_NS);
}
