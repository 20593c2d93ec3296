//! Memory that all processes of a run share: a file that forked children have mapped and executed
//! programs map again. Each module that keeps something there takes its part once, at the start.
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::os::fd::RawFd;

/// All parts together. Pages take no memory until they are written.
const BYTES: usize = 4 << 20;
/// Parts begin at a multiple of this.
const PAGE: usize = 4096;

static BASE: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// Where the next part begins.
static NEXT: AtomicUsize = AtomicUsize::new(0);
static FILE: AtomicI32 = AtomicI32::new(-1);
/// This process was executed by another one of the run.
static IS_EXECUTED: AtomicBool = AtomicBool::new(false);

/// At the start of a process: maps the file that an earlier process of the run has made, or a new
/// one. Parts have the same order in all processes, because they have the same library.
pub fn begin(file: Option<RawFd>) {
    IS_EXECUTED.store(file.is_some(), Ordering::Relaxed);
    let file = file.or_else(|| {
        // A process that has given rights up must not end the others: without the seals it could
        // cut the file short under them.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a C string; the other calls have no pointers. The last one is the system call
        // itself, because `fcntl` is ours.
        unsafe {
            let file = libc::memfd_create(c"ix-commons".as_ptr(), flags);
            let is_made = file >= 0 && libc::ftruncate(file, BYTES as i64) == 0;
            let seal = || libc::syscall(libc::SYS_fcntl, file, libc::F_ADD_SEALS, seals);
            (is_made && seal() == 0).then_some(file)
        }
    });
    let Some(file) = file else { return };
    if let Some(pages) = map(file) {
        BASE.store(pages, Ordering::Release);
        FILE.store(file, Ordering::Relaxed);
    }
}

/// The file's descriptor, or a negative number where there is no file.
pub fn file() -> RawFd {
    FILE.load(Ordering::Relaxed)
}

/// The file has this descriptor now.
pub fn moved_to(file: RawFd) {
    FILE.store(file, Ordering::Relaxed);
}

/// Whether an earlier process of the run has filled the parts.
pub fn is_executed() -> bool {
    IS_EXECUTED.load(Ordering::Relaxed)
}

fn map(file: RawFd) -> Option<*mut u8> {
    let (protection, mut flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    if file < 0 {
        flags |= libc::MAP_ANONYMOUS;
    }
    // SAFETY: new memory, anywhere.
    let pages = unsafe { libc::mmap(null_mut(), BYTES, protection, flags, file, 0) };
    (pages != libc::MAP_FAILED).then_some(pages.cast())
}

/// The next part, which is all zero at first, is never unmapped, and is aligned to a page. Without
/// a file only forked children share it.
pub fn part<T>() -> Option<*mut T> {
    let base = BASE.load(Ordering::Acquire);
    let bytes = size_of::<T>().next_multiple_of(PAGE);
    if base.is_null() {
        return map(-1).filter(|_| bytes <= BYTES).map(<*mut u8>::cast);
    }
    let at = NEXT.fetch_add(bytes, Ordering::Relaxed);
    // SAFETY: within the mapping.
    (at + bytes <= BYTES).then(|| unsafe { base.add(at) }.cast())
}
