//! A dataplane that begins when the program first needs it, in the process that does.
//!
//! Unmodified programs fork before they serve: daemons, and servers whose master binds and whose
//! children accept. A dataplane cannot follow, for devices know their memory by the process that
//! registered it. So the image waits in the process as the launcher has planted it; fork copies it
//! as it copies the program. Whoever calls [`STARTER`]'s function first gets the dataplane, which
//! begins there on the image's first stack, whose frames nobody returns to.
use crate::gate;
use crate::sys;
use core::arch::asm;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use ix_abi::{ABI_VERSION, STARTER_MAGIC, Starter};
use ix_launch::{RESERVED_FDS, ReservedFds};
use std::os::fd::RawFd;
use std::sync::OnceLock;

/// Below the frames of `main`, which go on to be what they are.
const STACK_GAP_BYTES: u64 = 1024;

/// What the program finds in place of a header.
pub static STARTER: Starter =
    Starter { magic: STARTER_MAGIC, version: ABI_VERSION, reserved: 0, start: gate::start, forked };

static STACK_TOP: AtomicU64 = AtomicU64::new(0);
static FS_BASE: AtomicU64 = AtomicU64::new(0);
static CHANNEL: AtomicI32 = AtomicI32::new(-1);
static RESERVED: OnceLock<ReservedFds> = OnceLock::new();

/// Notes what [`gate::start`] needs. Called by `main`, which never returns.
pub fn prepare(channel: RawFd, reserved: ReservedFds) {
    let (stack, fs_base): (u64, u64);
    // SAFETY: reads two registers; `main` has seen to it that the processor lets it.
    unsafe { asm!("mov {}, rsp", "rdfsbase {}", out(reg) stack, out(reg) fs_base) };
    STACK_TOP.store((stack - STACK_GAP_BYTES) & !63, Ordering::Relaxed);
    FS_BASE.store(fs_base, Ordering::Relaxed);
    CHANNEL.store(channel, Ordering::Relaxed);
    let _ = RESERVED.set(reserved);
}

/// Stack and fs base for the beginning.
pub fn context() -> (u64, u64) {
    (STACK_TOP.load(Ordering::Relaxed), FS_BASE.load(Ordering::Relaxed))
}

/// The channel to the broker.
pub fn channel() -> RawFd {
    CHANNEL.load(Ordering::Relaxed)
}

/// The descriptors that the dataplane may have.
pub fn reserved() -> ReservedFds {
    // `prepare` came first.
    RESERVED.get().copied().unwrap_or_else(|| ReservedFds::for_limit(0))
}

/// In a forked child, on the program's side of the gate: closes what the parent's dataplane had,
/// all but the channel.
extern "C" fn forked() {
    let (base, channel) = (reserved().base(), channel());
    let close = |first: RawFd, last: RawFd| {
        if first <= last {
            // SAFETY: no pointers. The range is the dataplane's alone.
            unsafe { sys::syscall(libc::SYS_close_range, [first as u64, last as u64, 0, 0, 0, 0]) };
        }
    };
    close(base, channel - 1);
    close(channel + 1, base + RESERVED_FDS - 1);
}
