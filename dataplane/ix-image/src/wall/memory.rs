//! What the application may do with mappings: anything but touch the dataplane's, or bring code that
//! was not looked at. One lock, so that nothing changes between a look and what follows from it.
use super::asm::{KEY_OWN, RESTART, app_copy};
use super::deliver::say;
use super::filter::forward;
use super::handler::refuse;
use super::parts::{Part, stands};
use super::record::Record;
use crate::sys;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use ix_dataplane::metrics::Refusal;
use ix_launch::scan;

const PAGE: u64 = 4096;
const RANGES: usize = 512;
const EACCES: i64 = libc::EACCES as i64;
const ENOMEM: i64 = libc::ENOMEM as i64;
const SYS_MSEAL: i64 = 462;
/// `MADV_POPULATE_WRITE`, Linux 5.14.
const POPULATE_WRITE: u64 = 23;

static LOCKED: AtomicBool = AtomicBool::new(false);
/// Mappings of the dataplane: address and end of each; an empty one is a free place.
static PROTECTED: [(AtomicUsize, AtomicUsize); RANGES] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; RANGES];

/// Keeps mappings as they are.
pub fn lock() {
    while LOCKED.swap(true, Ordering::Acquire) {
        // SAFETY: no pointers.
        unsafe { sys::syscall(libc::SYS_sched_yield, [0; 6]) };
    }
}

/// Ends [`lock`].
pub fn unlock() {
    LOCKED.store(false, Ordering::Release);
}

/// Remembers a mapping of the dataplane; false: there are too many.
pub fn protect(addr: usize, bytes: usize) -> bool {
    for (start, end) in &PROTECTED {
        let empty = end.compare_exchange(0, addr + bytes, Ordering::AcqRel, Ordering::Relaxed);
        if empty.is_ok() {
            start.store(addr, Ordering::Release);
            return true;
        }
    }
    false
}

/// Forgets one that was unmapped.
fn forget(addr: usize) {
    for (start, end) in &PROTECTED {
        if end.load(Ordering::Acquire) != 0 && start.load(Ordering::Acquire) == addr {
            start.store(0, Ordering::Release);
            end.store(0, Ordering::Release);
        }
    }
}

/// `mmap` for the dataplane, behind the wall: for a device that changes, or a capture. Nobody can touch
/// the mapping before it has its key, for it is made without access, and no call of the application's
/// reaches it before it is remembered. It is not sealed: what is sealed could not go with the device.
///
/// # Safety
/// As the call demands.
pub unsafe fn map_own(args: [u64; 6]) -> i64 {
    let [_, bytes, prot, flags, ..] = args;
    let bytes = bytes.next_multiple_of(PAGE);
    let populate = libc::MAP_POPULATE as u64;
    let mut closed = args;
    closed[2] = libc::PROT_NONE as u64;
    closed[3] &= !populate;
    lock();
    // SAFETY: the caller's promise.
    let addr = unsafe { sys::syscall(libc::SYS_mmap, closed) };
    if addr < 0 {
        unlock();
        return addr;
    }
    let known = protect(addr as usize, bytes as usize);
    let key = if stands(Part::Keys) { KEY_OWN } else { 0 };
    // SAFETY: the mapping made just now.
    let opened =
        unsafe { sys::syscall(libc::SYS_pkey_mprotect, [addr as u64, bytes, prot, key, 0, 0]) };
    if !known || opened < 0 {
        // SAFETY: as above.
        unsafe { sys::syscall(libc::SYS_munmap, [addr as u64, bytes, 0, 0, 0, 0]) };
        forget(addr as usize);
        unlock();
        return -ENOMEM;
    }
    unlock();
    if flags & populate != 0 {
        // SAFETY: as above. A device's rings have all their pages, and refuse.
        unsafe { sys::syscall(libc::SYS_madvise, [addr as u64, bytes, POPULATE_WRITE, 0, 0, 0]) };
    }
    addr
}

/// `munmap` for the dataplane, behind the wall.
///
/// # Safety
/// As the call demands.
pub unsafe fn unmap_own(addr: u64, bytes: u64) -> i64 {
    // Somebody else's mapping may come to lie there at once: it must not be forgotten in its place.
    lock();
    // SAFETY: the caller's promise.
    let answer = unsafe { sys::syscall(libc::SYS_munmap, [addr, bytes, 0, 0, 0, 0]) };
    if answer == 0 {
        forget(addr as usize);
    }
    unlock();
    answer
}

/// Forgets what a fork has not inherited: the kernel gives the addresses to the application there.
pub fn forget_missing() {
    for (start, end) in &PROTECTED {
        let at = start.load(Ordering::Acquire);
        let mut resident = 0u8;
        let args = [at as u64, PAGE, &raw mut resident as u64, 0, 0, 0];
        // SAFETY: fills a byte of ours, for one page; the call only asks.
        let missing = || unsafe { sys::syscall(libc::SYS_mincore, args) } == -ENOMEM;
        if end.load(Ordering::Acquire) != 0 && missing() {
            start.store(0, Ordering::Release);
            end.store(0, Ordering::Release);
        }
    }
}

/// Whether any of these bytes is the dataplane's.
pub fn is_protected(addr: u64, bytes: u64) -> bool {
    let end_of = addr.saturating_add(bytes.max(1)).saturating_add(PAGE - 1) & !(PAGE - 1);
    PROTECTED.iter().any(|(start, end)| {
        let (start, end) = (start.load(Ordering::Acquire), end.load(Ordering::Acquire));
        addr & !(PAGE - 1) < end as u64 && (start as u64) < end_of
    })
}

/// A call about mappings.
pub fn system_call(record: &mut Record, number: i64, args: [u64; 6]) -> i64 {
    const EXECUTE: u64 = libc::PROT_EXEC as u64;
    const FIXED: u64 = libc::MAP_FIXED as u64;
    const MOVE: u64 = libc::MREMAP_FIXED as u64;
    lock();
    let touches = match number {
        libc::SYS_mmap => args[3] & FIXED != 0 && is_protected(args[0], args[1]),
        libc::SYS_mremap => {
            is_protected(args[0], args[1].max(args[2]))
                || args[3] & MOVE != 0 && is_protected(args[4], args[2])
        }
        libc::SYS_brk => false,
        libc::SYS_shmdt => is_protected(args[0], 1),
        _ => is_protected(args[0], args[1]),
    };
    let result = match number {
        _ if touches && stands(Part::Calls) => refuse(Refusal::Memory),
        libc::SYS_mmap | libc::SYS_mprotect if args[2] & EXECUTE != 0 && !stands(Part::Code) => {
            forward(record, number as u64, args)
        }
        libc::SYS_mmap if args[2] & EXECUTE != 0 => map_code(record, args),
        libc::SYS_mprotect if args[2] & EXECUTE != 0 => refuse(Refusal::Code),
        _ => forward(record, number as u64, args),
    };
    unlock();
    result
}

/// Maps code of a file: a copy of it that was looked at, and that nobody can change any more.
fn map_code(record: &mut Record, args: [u64; 6]) -> i64 {
    const ANONYMOUS: u64 = libc::MAP_ANONYMOUS as u64;
    let [_, bytes, prot, flags, ..] = args;
    if prot & libc::PROT_WRITE as u64 != 0 || flags & ANONYMOUS != 0 {
        return refuse(Refusal::Code);
    }
    let mut name = [0; NAME_MAX];
    let origin = Origin { name: name_of(args[4] as i32, &mut name), offset: args[5] };
    let mut args = args;
    args[2] = libc::PROT_READ as u64;
    let addr = forward(record, libc::SYS_mmap as u64, args);
    if addr < 0 {
        return if addr == -RESTART { -i64::from(libc::EINTR) } else { addr };
    }
    let bytes = bytes.next_multiple_of(PAGE);
    match replace(record, addr as u64, bytes, &origin) {
        Ok(()) => addr,
        Err(error) => {
            // SAFETY: what was mapped above, and nobody could use yet.
            unsafe { sys::syscall(libc::SYS_munmap, [addr as u64, bytes, 0, 0, 0, 0]) };
            refuse(Refusal::Code);
            error
        }
    }
}

/// Where code comes from, for who has to be told.
pub struct Origin<'a> {
    /// The file.
    pub name: &'a [u8],
    /// Where the code begins in it.
    pub offset: u64,
}

/// Bytes of a name that are told.
pub const NAME_MAX: usize = 128;

/// The file of a descriptor of the application, as far as it fits.
fn name_of(fd: i32, name: &mut [u8; NAME_MAX]) -> &[u8] {
    const FOLDER: &[u8] = b"/proc/self/fd/";
    let mut path = [0u8; 32];
    path[..FOLDER.len()].copy_from_slice(FOLDER);
    let mut digits = FOLDER.len();
    let mut power = 1;
    while fd.max(0) / power >= 10 {
        power *= 10;
    }
    while power > 0 {
        path[digits] = b'0' + (fd.max(0) / power % 10) as u8;
        (digits, power) = (digits + 1, power / 10);
    }
    let args = [path.as_ptr() as u64, name.as_mut_ptr() as u64, NAME_MAX as u64, 0, 0, 0];
    // SAFETY: a path that ends with a zero, and an array with its length.
    match unsafe { sys::syscall(libc::SYS_readlink, args) } {
        length @ 1.. => &name[..length as usize],
        _ => b"a file",
    }
}

/// Puts a checked and sealed copy in place of a readable mapping of the application.
pub fn replace(record: &mut Record, addr: u64, bytes: u64, from: &Origin<'_>) -> Result<(), i64> {
    let check = |answer: i64| if answer < 0 { Err(answer) } else { Ok(answer as u64) };
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let copy = sys::map(bytes as usize, prot).map_err(|_| -ENOMEM)? as u64;
    let code = libc::PROT_READ as u64 | libc::PROT_EXEC as u64;
    let fixed = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    // SAFETY: the copy is a new mapping that the application has no rights to until it is code; it
    // takes the place of one that the caller names.
    let done = unsafe {
        check(sys::syscall(libc::SYS_pkey_mprotect, [copy, bytes, prot as u64, KEY_OWN, 0, 0]))
            .and_then(|_| fetch(record, addr, copy, bytes))
            .and_then(|()| disarm_all(copy, bytes, from))
            .and_then(|()| {
                check(sys::syscall(libc::SYS_pkey_mprotect, [copy, bytes, code, 0, 0, 0]))
            })
            .and_then(|_| {
                check(sys::syscall(libc::SYS_mremap, [copy, bytes, bytes, fixed, addr, 0]))
            })
            .and_then(|_| check(sys::syscall(SYS_MSEAL, [addr, bytes, 0, 0, 0, 0])))
    };
    done.map(drop).inspect_err(|_| {
        // SAFETY: a mapping of ours, unless it has moved already: then there is nothing.
        unsafe { sys::syscall(libc::SYS_munmap, [copy, bytes, 0, 0, 0, 0]) };
    })
}

/// Copies with the application's rights; what lies behind the end of the file stays zero.
fn fetch(record: &mut Record, from: u64, to: u64, bytes: u64) -> Result<(), i64> {
    let incoming = record.incoming;
    for at in (0..bytes).step_by(PAGE as usize) {
        // SAFETY: the thread's own record and page.
        if unsafe { app_copy(record, incoming as u64, from + at, PAGE) } != 0 {
            return if at == 0 { Err(-EACCES) } else { Ok(()) };
        }
        // SAFETY: a page of the new mapping, which only we can touch.
        unsafe {
            core::ptr::copy_nonoverlapping(
                incoming.cast::<u8>(),
                (to + at) as *mut u8,
                PAGE as usize,
            );
        }
    }
    Ok(())
}

fn disarm_all(addr: u64, bytes: u64, from: &Origin<'_>) -> Result<(), i64> {
    // SAFETY: the new mapping, which only we can touch.
    let code = unsafe { core::slice::from_raw_parts_mut(addr as *mut u8, bytes as usize) };
    let mut at = 0;
    loop {
        let Some((found, _)) = scan::scan(&code[at..]).next() else { break };
        at += found;
        if !scan::disarm(code, at) {
            say_refused(from, at as u64);
            return Err(-EACCES);
        }
    }
    if scan::may_go_on(code) {
        // What is mapped behind could be the rest of it.
        say_refused(from, code.len() as u64);
        return Err(-EACCES);
    }
    Ok(())
}

/// By name: it is a library of the program's, or the program, and its user has to do without.
fn say_refused(from: &Origin<'_>, at: u64) {
    const WHY: &[u8] = b": its code could change memory rights; run it with --domain none. Offset";
    let mut line = [0u8; NAME_MAX + WHY.len() + 32];
    let mut length = 0;
    for part in [b"ix: cannot load ".as_slice(), from.name, WHY] {
        line[length..length + part.len()].copy_from_slice(part);
        length += part.len();
    }
    say(&line[..length], &[from.offset + at]);
}

/// Seals a mapping.
pub fn seal(addr: usize, bytes: usize) -> i64 {
    // SAFETY: no memory is passed; the mapping is ours.
    unsafe { sys::syscall(SYS_MSEAL, [addr as u64, bytes as u64, 0, 0, 0, 0]) }
}
