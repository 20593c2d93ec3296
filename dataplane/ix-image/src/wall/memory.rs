//! What the application may do with mappings: anything except to touch the dataplane's, or to add
//! code that was not checked. One lock makes sure that nothing changes between a check and its use.
use super::asm::{KEY_OWN, RESTART, app_copy};
use super::deliver::say;
use super::filter::forward;
use super::handler::refuse;
use super::parts::{Part, stands};
use super::record::Record;
use crate::sys;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use ix_dataplane::metrics::Refusal;
use ix_entry::scan;

const PAGE: u64 = 4096;
const RANGES: usize = 512;
const EACCES: i64 = libc::EACCES as i64;
const ENOMEM: i64 = libc::ENOMEM as i64;
const SYS_MSEAL: i64 = 462;
/// `MADV_POPULATE_WRITE`, Linux 5.14.
const POPULATE_WRITE: u64 = 23;

static LOCKED: AtomicBool = AtomicBool::new(false);
/// The dataplane's mappings: address and end of each; an empty one is unused.
static PROTECTED: [(AtomicUsize, AtomicUsize); RANGES] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; RANGES];

/// Locks all mappings.
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

/// Records a mapping of the dataplane; false if there are too many.
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

/// Removes the record of an unmapped one.
fn forget(addr: usize) {
    for (start, end) in &PROTECTED {
        if end.load(Ordering::Acquire) != 0 && start.load(Ordering::Acquire) == addr {
            start.store(0, Ordering::Release);
            end.store(0, Ordering::Release);
        }
    }
}

/// `mmap` for the dataplane, behind the wall: for a device that changes, or a capture. No code can
/// touch the mapping before it has its key, because it is made without access, and no call of the
/// application reaches it before it is recorded. It is not sealed, because a sealed mapping could
/// not be removed with the device.
///
/// # Safety
/// What the system call requires.
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
/// What the system call requires.
pub unsafe fn unmap_own(addr: u64, bytes: u64) -> i64 {
    // Another mapping may be made there at once: its record must not be removed instead.
    lock();
    // SAFETY: the caller's promise.
    let answer = unsafe { sys::syscall(libc::SYS_munmap, [addr, bytes, 0, 0, 0, 0]) };
    if answer == 0 {
        forget(addr as usize);
    }
    unlock();
    answer
}

/// Removes records of mappings that a fork has not inherited: in the new process the kernel gives
/// these addresses to the application.
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

/// Whether any of these bytes belongs to the dataplane.
pub fn is_protected(addr: u64, bytes: u64) -> bool {
    let end_of = addr.saturating_add(bytes.max(1)).saturating_add(PAGE - 1) & !(PAGE - 1);
    PROTECTED.iter().any(|(start, end)| {
        let (start, end) = (start.load(Ordering::Acquire), end.load(Ordering::Acquire));
        addr & !(PAGE - 1) < end as u64 && (start as u64) < end_of
    })
}

/// Checks and carries out a call about mappings.
pub fn system_call(record: &mut Record, number: i64, args: [u64; 6]) -> i64 {
    const EXECUTE: u64 = libc::PROT_EXEC as u64;
    const FIXED: u64 = libc::MAP_FIXED as u64;
    const MOVE: u64 = libc::MREMAP_FIXED as u64;
    lock();
    let mut refused = None;
    let touches = match number {
        libc::SYS_mmap => args[3] & FIXED != 0 && is_protected(args[0], mapped_bytes(args)),
        // With huge pages Linux takes whole ones. Whether these are huge pages is rarely worth
        // checking.
        libc::SYS_mremap => {
            is_protected(args[0], args[1].max(args[2]))
                || args[3] & MOVE != 0 && is_protected(args[4], round_up(args[2], HUGEST))
        }
        libc::SYS_brk => break_touches(args[0]),
        libc::SYS_shmdt => is_protected(args[0], 1),
        _ => is_protected(args[0], args[1]),
    };
    let result = match number {
        _ if touches && stands(Part::Calls) => refuse(Refusal::Memory),
        libc::SYS_mmap | libc::SYS_mprotect if args[2] & EXECUTE != 0 && !stands(Part::Code) => {
            forward(record, number as u64, args)
        }
        libc::SYS_mmap if args[2] & EXECUTE != 0 => map_code(record, args, &mut refused),
        libc::SYS_mprotect if args[2] & EXECUTE != 0 => refuse(Refusal::Code),
        libc::SYS_mmap => map(record, args),
        _ => forward(record, number as u64, args),
    };
    unlock();
    // Not earlier: it may block, and the dataplane maps devices under the same lock.
    if let Some((name, offset)) = refused {
        say_refused(&name, offset);
    }
    result
}

/// The smaller huge page that x86-64 has.
const HUGE: u64 = 2 << 20;
/// The larger one.
const HUGEST: u64 = 1 << 30;

fn round_up(bytes: u64, to: u64) -> u64 {
    bytes.checked_next_multiple_of(to).unwrap_or(u64::MAX)
}

/// Number of bytes that an `mmap` at a fixed address maps: with huge pages Linux takes whole ones.
/// [`map_fixed_file`] checks those of files.
fn mapped_bytes(args: [u64; 6]) -> u64 {
    let huge = args[3] & libc::MAP_HUGETLB as u64 != 0;
    if huge { round_up(args[1], HUGEST) } else { args[1] }
}

/// Maps for the application. A file at a fixed address is mapped elsewhere first: it may have huge
/// pages, and then Linux would map more than requested, over whatever is there. Checking the file
/// before is not enough: its number may stand for another file by then.
fn map(record: &mut Record, args: [u64; 6]) -> i64 {
    const FIXED: u64 = (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) as u64;
    const REPLACES: u64 = libc::MAP_FIXED as u64;
    const ANONYMOUS: u64 = libc::MAP_ANONYMOUS as u64;
    let [wanted, bytes, prot, flags, ..] = args;
    let replaces = flags & FIXED == REPLACES && flags & ANONYMOUS == 0 && stands(Part::Calls);
    if !replaces || wanted & (PAGE - 1) != 0 {
        return forward(record, libc::SYS_mmap as u64, args);
    }
    let mut elsewhere = args;
    (elsewhere[0], elsewhere[3]) = (0, flags & !FIXED);
    let addr = forward(record, libc::SYS_mmap as u64, elsewhere);
    if addr < 0 {
        return addr;
    }
    let (addr, bytes) = (addr as u64, bytes.next_multiple_of(PAGE));
    if is_huge(addr, prot) {
        // SAFETY: what was mapped above; Linux refuses a length that is no number of whole pages.
        unsafe {
            for page in [HUGE, HUGEST] {
                sys::syscall(libc::SYS_munmap, [addr, round_up(bytes, page), 0, 0, 0, 0]);
            }
        }
        return refuse(Refusal::Memory);
    }
    let fixed = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    // SAFETY: what was mapped above takes a place that is none of the dataplane's.
    let moved = unsafe { sys::syscall(libc::SYS_mremap, [addr, bytes, bytes, fixed, wanted, 0]) };
    if moved < 0 {
        // SAFETY: as above; it is where it was.
        unsafe { sys::syscall(libc::SYS_munmap, [addr, bytes, 0, 0, 0, 0]) };
    }
    moved
}

/// Whether the mapping that begins here, with these rights, has huge pages: a part of such a page
/// cannot have rights of its own.
fn is_huge(addr: u64, prot: u64) -> bool {
    let other = if prot == 0 { libc::PROT_READ } else { libc::PROT_NONE } as u64;
    // SAFETY: rights of a new mapping of the application's, which nobody can know yet.
    unsafe {
        let divided = sys::syscall(libc::SYS_mprotect, [addr, PAGE, other, 0, 0, 0]);
        divided < 0 || sys::syscall(libc::SYS_mprotect, [addr, PAGE, prot, 0, 0, 0]) < 0
    }
}

/// Whether a `brk` unmaps something of the dataplane. Linux unmaps everything between the old end
/// and the new one, even what was mapped there since. (It maps nothing where something is mapped.)
fn break_touches(end: u64) -> bool {
    // SAFETY: no end lies so low: it only asks.
    let now = unsafe { sys::syscall(libc::SYS_brk, [0; 6]) } as u64;
    end != 0 && end < now && is_protected(end, now - end)
}

/// Maps code of a file: a copy that was checked and cannot be changed any more.
fn map_code(record: &mut Record, args: [u64; 6], refused: &mut Option<Refused>) -> i64 {
    const ANONYMOUS: u64 = libc::MAP_ANONYMOUS as u64;
    let [_, bytes, prot, flags, ..] = args;
    if prot & libc::PROT_WRITE as u64 != 0 || flags & ANONYMOUS != 0 {
        return refuse(Refusal::Code);
    }
    let (name, offset) = (name_of(args[4] as i32), args[5]);
    let mut args = args;
    args[2] = libc::PROT_READ as u64;
    let addr = map(record, args);
    if addr < 0 {
        return if addr == -RESTART { -i64::from(libc::EINTR) } else { addr };
    }
    let bytes = bytes.next_multiple_of(PAGE);
    match replace(record, addr as u64, bytes, offset) {
        Ok(()) => addr,
        Err(error) => {
            // SAFETY: what was mapped above, and nobody could use yet.
            unsafe { sys::syscall(libc::SYS_munmap, [addr as u64, bytes, 0, 0, 0, 0]) };
            refuse(Refusal::Code);
            *refused = error.found.map(|offset| (name, offset));
            error.errno
        }
    }
}

/// Most bytes of a name that are reported.
pub const NAME_MAX: usize = 128;

/// The file name of a descriptor of the application, as much as fits, padded with zeros.
fn name_of(fd: i32) -> [u8; NAME_MAX] {
    const FOLDER: &[u8] = b"/proc/self/fd/";
    const UNKNOWN: &[u8] = b"a file";
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
    let mut name = [0; NAME_MAX];
    let args = [path.as_ptr() as u64, name.as_mut_ptr() as u64, NAME_MAX as u64, 0, 0, 0];
    // SAFETY: a path that ends with a zero, and an array with its length.
    if unsafe { sys::syscall(libc::SYS_readlink, args) } <= 0 {
        name[..UNKNOWN.len()].copy_from_slice(UNKNOWN);
    }
    name
}

/// Why code may not run.
pub struct CodeError {
    /// Minus an errno.
    pub errno: i64,
    /// Offset in the file of an instruction that could change memory rights, if that is the reason.
    pub found: Option<u64>,
}

impl From<i64> for CodeError {
    fn from(errno: i64) -> CodeError {
        CodeError { errno, found: None }
    }
}

/// Code that could change memory rights: the file's name, and the offset in the file.
type Refused = ([u8; NAME_MAX], u64);

/// Reports refused code with its file's name: it is the program or one of its libraries. May block.
pub fn say_refused(name: &[u8], offset: u64) {
    const WHY: &[u8] = b": its code could change memory rights; run it with --domain none. Offset";
    let name = &name[..name.iter().position(|&byte| byte == 0).unwrap_or(name.len()).min(NAME_MAX)];
    let mut line = [0u8; NAME_MAX + WHY.len() + 32];
    let mut length = 0;
    for part in [b"ix: cannot load ".as_slice(), name, WHY] {
        line[length..length + part.len()].copy_from_slice(part);
        length += part.len();
    }
    say(&line[..length], &[offset]);
}

/// Replaces a readable mapping of the application, which shows a file from this offset on, by a
/// checked and sealed copy.
pub fn replace(record: &mut Record, addr: u64, bytes: u64, offset: u64) -> Result<(), CodeError> {
    let check = |answer: i64| if answer < 0 { Err(answer) } else { Ok(answer as u64) };
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let copy = sys::map(bytes as usize, prot).map_err(|_| -ENOMEM)? as u64;
    let code = libc::PROT_READ as u64 | libc::PROT_EXEC as u64;
    let fixed = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    // The copy is a new mapping to which the application has no rights before it is code. It
    // replaces the mapping that the caller names.
    let mut done = || -> Result<(), CodeError> {
        let rw = prot as u64;
        // SAFETY: as above.
        unsafe {
            check(sys::syscall(libc::SYS_pkey_mprotect, [copy, bytes, rw, KEY_OWN, 0, 0]))?;
            fetch(record, addr, copy, bytes)?;
            disarm_all(copy, bytes, offset)?;
            check(sys::syscall(libc::SYS_pkey_mprotect, [copy, bytes, code, 0, 0, 0]))?;
            check(sys::syscall(libc::SYS_mremap, [copy, bytes, bytes, fixed, addr, 0]))?;
            check(sys::syscall(SYS_MSEAL, [addr, bytes, 0, 0, 0, 0]))?;
        }
        Ok(())
    };
    done().inspect_err(|_| {
        // SAFETY: a mapping of ours, unless it has moved already: then there is nothing.
        unsafe { sys::syscall(libc::SYS_munmap, [copy, bytes, 0, 0, 0, 0]) };
    })
}

/// Copies with the application's rights; what is behind the end of the file stays zero.
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

fn disarm_all(addr: u64, bytes: u64, offset: u64) -> Result<(), CodeError> {
    // SAFETY: the new mapping, which only we can touch.
    let code = unsafe { core::slice::from_raw_parts_mut(addr as *mut u8, bytes as usize) };
    let found = |at: usize| CodeError { errno: -EACCES, found: Some(offset + at as u64) };
    let mut at = 0;
    loop {
        let Some((next, _)) = scan::scan(&code[at..]).next() else { break };
        at += next;
        if !scan::disarm(code, at) {
            return Err(found(at));
        }
    }
    if scan::may_go_on(code) {
        // What is mapped behind could complete it.
        return Err(found(code.len()));
    }
    Ok(())
}

/// Seals a mapping.
pub fn seal(addr: usize, bytes: usize) -> i64 {
    // SAFETY: no memory is passed; the mapping is ours.
    unsafe { sys::syscall(SYS_MSEAL, [addr as u64, bytes as u64, 0, 0, 0, 0]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: u64 = 64 << 20;

    fn linux(number: i64, args: [u64; 6]) -> i64 {
        // SAFETY: calls of a forked child about mappings that are its own.
        unsafe { sys::syscall(number, args) }
    }

    fn brk(end: u64) -> u64 {
        linux(libc::SYS_brk, [end, 0, 0, 0, 0, 0]) as u64
    }

    /// A page where Linux would also put memory of a device that comes: nothing is mapped there.
    fn map_page(at: u64) -> bool {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let rights = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        linux(libc::SYS_mmap, [at, PAGE, rights, flags as u64, u64::MAX, 0]) == at as i64
    }

    /// Whether a page is mapped (mincore(2)).
    fn is_mapped(at: u64) -> bool {
        let mut resident = 0u8;
        linux(libc::SYS_mincore, [at, PAGE, &raw mut resident as u64, 0, 0, 0]) == 0
    }

    /// A step that fails is the child's status; 0: all are as they should be.
    fn of_the_break() -> i32 {
        let begin = brk(0).next_multiple_of(PAGE);
        // Linux grows the area over nothing that is mapped: it leaves the end where it was.
        let over = begin + SPAN / 2;
        let before = brk(begin);
        if before != begin || !map_page(over) || brk(begin + SPAN) != begin || !is_mapped(over) {
            return 1;
        }
        // But it takes away what has come into a hole of the area since.
        let end = begin + SPAN;
        let without = |at: u64, bytes: u64| linux(libc::SYS_munmap, [at, bytes, 0, 0, 0, 0]) == 0;
        if !without(over, PAGE) || brk(end) != end || !without(begin, SPAN - PAGE) {
            return 2;
        }
        if !map_page(over) || !protect(over as usize, PAGE as usize) {
            return 3;
        }
        // So what would reach it is refused, and nothing else.
        let refused = [over, over + 1, over + PAGE - 1, begin, 1].map(break_touches);
        let allowed = [0, over + PAGE, end, end + SPAN].map(break_touches);
        if refused != [true; 5] || allowed != [false; 4] {
            return 4;
        }
        // The control: without the check.
        if brk(over) != over || is_mapped(over) { 5 } else { 0 }
    }

    #[test]
    fn the_break_takes_no_memory_of_the_dataplane() {
        // SAFETY: the child makes system calls, takes no lock, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe { libc::_exit(of_the_break()) };
        }
        let mut status = 0;
        // SAFETY: fills a local.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "{status:#x}");
        assert_eq!(libc::WEXITSTATUS(status), 0, "the step that failed");
    }
}
