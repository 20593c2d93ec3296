//! A dataplane that starts when a process of the program first needs it, in that process.
//!
//! Unmodified programs fork before they serve: daemons, and servers whose master binds and whose
//! children accept. A dataplane cannot follow a fork, because devices know its memory by the
//! process that registered it. So the image waits in the process in which the launcher has planted
//! it, and is copied by fork like the program. The first process that calls [`STARTER`]'s function
//! gets the dataplane. It starts there on the image's first stack, to whose frames no code returns.
//!
//! A dataplane in another process that takes the place of one that has ended is asked for in the
//! same way.
use crate::arguments::Domain;
use crate::gate;
use crate::own_descriptors;
use crate::sys;
use core::arch::asm;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use ix_abi::{ABI_VERSION, STARTER_MAGIC, Starter};
use ix_entry::ReservedFds;
use std::os::fd::RawFd;
use std::sync::OnceLock;

/// Distance below the frames of `main`, which stay as they are.
const STACK_GAP_BYTES: u64 = 1024;

/// What the program finds instead of a header.
pub static STARTER: Starter = Starter {
    magic: STARTER_MAGIC,
    version: ABI_VERSION,
    reserved: 0,
    start: gate::start,
    forked,
    descriptor,
};

static STACK_TOP: AtomicU64 = AtomicU64::new(0);
static FS_BASE: AtomicU64 = AtomicU64::new(0);
static CHANNEL: AtomicI32 = AtomicI32::new(-1);
static RESERVED: OnceLock<ReservedFds> = OnceLock::new();
static DOMAIN: OnceLock<Domain> = OnceLock::new();

/// Stores what [`gate::start`] needs. Called by `main`, which never returns.
pub fn prepare(channel: RawFd, reserved: ReservedFds, domain: Domain) {
    let (stack, fs_base): (u64, u64);
    // SAFETY: reads two registers; `main` has seen to it that the processor lets it.
    unsafe { asm!("mov {}, rsp", "rdfsbase {}", out(reg) stack, out(reg) fs_base) };
    STACK_TOP.store((stack - STACK_GAP_BYTES) & !63, Ordering::Relaxed);
    FS_BASE.store(fs_base, Ordering::Relaxed);
    CHANNEL.store(channel, Ordering::Relaxed);
    let _ = RESERVED.set(reserved);
    let _ = DOMAIN.set(domain);
}

/// Stack and fs base for the start.
pub fn context() -> (u64, u64) {
    (STACK_TOP.load(Ordering::Relaxed), FS_BASE.load(Ordering::Relaxed))
}

/// The channel to the broker.
pub fn channel() -> RawFd {
    CHANNEL.load(Ordering::Relaxed)
}

/// The descriptors that the dataplane may have.
pub fn reserved() -> ReservedFds {
    // `prepare` was called before.
    RESERVED.get().copied().unwrap_or_else(|| ReservedFds::for_limit(0))
}

/// What stands between program and dataplane.
pub fn domain() -> &'static Domain {
    // `prepare` was called before.
    DOMAIN.get().unwrap_or(&Domain::None)
}

/// In a forked child: leaves the parent's dataplane and attaches as a process of its own. Returns
/// the header's address; 0: it could not.
pub fn start_in_child() -> u64 {
    forked();
    gate::start()
}

/// [`Starter::descriptor`].
extern "C" fn descriptor(index: u32) -> i32 {
    match (domain(), index.checked_sub(1)) {
        (Domain::Process, None) => channel(),
        (Domain::Process, Some(own)) => own_descriptors::get(own as usize).unwrap_or(-1),
        _ => -1,
    }
}

/// To be called in a forked child, on the program's side of the gate: closes the descriptors of the
/// parent's dataplane, except for the channel.
extern "C" fn forked() {
    let (reserved, channel) = (reserved(), channel());
    let close = |first: RawFd, last: RawFd| {
        if first <= last {
            // SAFETY: no pointers. The numbers are the dataplane's alone.
            unsafe { sys::syscall(libc::SYS_close_range, [first as u64, last as u64, 0, 0, 0, 0]) };
        }
    };
    if matches!(domain(), Domain::Process) {
        return own_descriptors::take_all(|fd| close(fd, fd));
    }
    close(reserved.base(), channel - 1);
    close(channel + 1, reserved.end() - 1);
}
