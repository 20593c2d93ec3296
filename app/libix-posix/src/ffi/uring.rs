//! The calls of io_uring, which have no functions in the C library: [`crate::uring`] says what
//! becomes of their operations.
use super::direct::bare;
use super::{descriptors, sockets, uring_waits, waits};
use crate::lock::lock;
use crate::mem::is_possible;
use crate::uring::{self, Call, Cancels, Entry, Fate, Params, Ring};
use crate::{fds, kept_numbers, log, numbers, real};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use libc::{c_int, c_long};
use std::os::fd::RawFd;

/// Where Linux shows the rings and the entries, as offsets of `mmap`.
const OFFSET_RING: i64 = 0;
const OFFSET_ENTRIES: i64 = 0x1000_0000;
/// `io_uring_enter` names the ring by the number under which it was registered.
const ENTER_REGISTERED_RING: u64 = 1 << 4;

/// Whether the program has made a ring.
static ARE_ANY: AtomicBool = AtomicBool::new(false);

/// Whether the program may have a ring: calls that close descriptors are looked at then.
pub fn are_any() -> bool {
    ARE_ANY.load(Ordering::Relaxed)
}

/// Returns what a system call returns: an error as a negative number.
pub(super) fn linux(result: c_int) -> c_long {
    if result < 0 { -c_long::from(real::errno()) } else { result.into() }
}

/// # Safety
/// As the system call.
pub unsafe fn setup(entries: u64, params: *mut libc::c_void) -> c_long {
    let params = params.cast::<Params>();
    // SAFETY: the program's own arguments, as far as they are possible.
    unsafe {
        let flags = if is_possible(params, size_of::<Params>()) {
            (&raw const (*params).flags).read_unaligned()
        } else {
            0
        };
        if flags & uring::SETUP_SQPOLL != 0 {
            // Linux would take operations without a call that could be looked at.
            log::once(
                log::Once::UringPoll,
                "the program wants Linux to poll its io_uring (IORING_SETUP_SQPOLL), where IX cannot \
                 keep sockets of its own from it: it gets EPERM, as users without that right do; \
                 --posix off runs it without this",
            );
            return -c_long::from(libc::EPERM);
        }
        if flags & uring::SETUP_REGISTERED_FD_ONLY != 0 {
            return -c_long::from(libc::EINVAL);
        }
        kept_numbers::make_room(1, 0);
        let made =
            bare(libc::SYS_io_uring_setup, [entries as c_long, params as c_long, 0, 0, 0, 0]);
        if made >= 0 {
            note(made as RawFd, params.read_unaligned());
        }
        made
    }
}

/// Notes a ring that Linux has just made.
///
/// # Safety
/// What Linux has returned of it.
unsafe fn note(fd: RawFd, params: Params) {
    let entry_bytes = entry_bytes(params.flags);
    let mut ring = Ring { fd, memory: [0; 2], mapped: [0; 2], params };
    if params.flags & uring::SETUP_NO_MMAP != 0 {
        ring.memory = [params.completion.user_address, params.submission.user_address];
    } else {
        let offsets = &params.submission;
        let fixed = [offsets.head, offsets.tail, offsets.mask, offsets.entries, offsets.flags];
        let fixed = fixed.into_iter().max().unwrap_or(0) as usize + 4;
        let has_array = params.flags & uring::SETUP_NO_SQARRAY == 0;
        let array = offsets.array as usize + 4 * params.entries as usize;
        let lengths = [
            if has_array { array.max(fixed) } else { fixed },
            params.entries as usize * entry_bytes,
        ];
        for (nth, offset) in [OFFSET_RING, OFFSET_ENTRIES].into_iter().enumerate() {
            // SAFETY: new mappings, of which this library alone knows.
            unsafe {
                let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
                let at = libc::mmap(core::ptr::null_mut(), lengths[nth], rights, flags, fd, offset);
                if at == libc::MAP_FAILED {
                    continue;
                }
                libc::madvise(at, lengths[nth], libc::MADV_DONTFORK);
                ring.memory[nth] = at.expose_provenance() as u64;
                ring.mapped[nth] = lengths[nth];
            }
        }
    }
    let mut core = lock();
    forget(&mut core.rings, |other| other.fd == fd);
    core.rings.push(ring);
    ARE_ANY.store(true, Ordering::Relaxed);
}

fn entry_bytes(flags: u32) -> usize {
    size_of::<Entry>() << u32::from(flags & uring::SETUP_SQE128 != 0)
}

/// Forgets rings, whose memory must not keep them alive.
fn forget(rings: &mut Vec<Ring>, which: impl Fn(&Ring) -> bool) {
    rings.retain(|ring| {
        let goes = which(ring);
        for (at, len) in ring.memory.iter().zip(ring.mapped).filter(|(_, len)| goes && *len > 0) {
            // SAFETY: mapped by this library, and used under the lock only.
            unsafe { libc::munmap(core::ptr::with_exposed_provenance_mut(*at as usize), len) };
        }
        !goes
    });
}

/// The program closes Linux's descriptors with these numbers.
#[cold]
pub fn closes(first: u32, last: u32) {
    let mut core = lock();
    let goes = |ring: &Ring| (first..=last).contains(&(ring.fd as u32));
    let gone: Vec<RawFd> =
        core.rings.iter().filter(|ring| goes(ring)).map(|ring| ring.fd).collect();
    forget(&mut core.rings, goes);
    drop(core);
    gone.into_iter().for_each(uring_waits::forget);
}

/// Before `io_uring_enter`: looks at the entries that Linux will take. Returns the ring, if it is
/// known, or an error that the call returns instead.
///
/// # Safety
/// As the system call.
unsafe fn before_enter(fd: c_int, count: u32, flags: u64) -> Result<Option<Ring>, c_int> {
    if flags & ENTER_REGISTERED_RING != 0 {
        return Err(libc::EINVAL);
    }
    let found = lock().rings.iter().find(|ring| ring.fd == fd).copied();
    let Some(ring) = found.filter(|ring| !ring.memory.contains(&0)) else { return Ok(None) };
    let offsets = &ring.params.submission;
    let word = |offset: u32| {
        let at = (ring.memory[0] + u64::from(offset)) as usize;
        core::ptr::with_exposed_provenance::<AtomicU32>(at)
    };
    // SAFETY: the ring's memory is mapped as long as its number is open; the program calls with it.
    unsafe {
        let head = (*word(offsets.head)).load(Ordering::Relaxed);
        let tail = (*word(offsets.tail)).load(Ordering::Acquire);
        let entries = ring.params.entries;
        let mut linked = false;
        for nth in 0..tail.wrapping_sub(head).min(count).min(entries) {
            let slot = head.wrapping_add(nth) & (entries - 1);
            let index = match ring.params.flags & uring::SETUP_NO_SQARRAY {
                0 => (*word(offsets.array + 4 * slot)).load(Ordering::Relaxed),
                _ => slot,
            };
            if index < entries {
                let at = index as usize * entry_bytes(ring.params.flags);
                let at = ring.memory[1] as usize + at;
                linked = look(&ring, core::ptr::with_exposed_provenance_mut(at), linked);
            }
        }
    }
    Ok(Some(ring))
}

/// `io_uring_enter`. `None`: it is Linux's, with the entries as they are now.
///
/// # Safety
/// As the system call.
pub unsafe fn enter(arguments: [c_long; 6]) -> Option<c_long> {
    let [fd, count, _, flags, ..] = arguments;
    // SAFETY: the caller's promise.
    unsafe {
        match before_enter(fd as c_int, count as u32, flags as u64) {
            Ok(ring) => uring_waits::enter(&ring?, arguments),
            Err(errno) => Some(-c_long::from(errno)),
        }
    }
}

/// Ends operations that wait here. Returns what the entry that wants it completes with; `None`:
/// Linux looks among its own.
fn cancel(ring: &Ring, cancels: Cancels) -> Option<i32> {
    let ended = match cancels {
        Cancels::Number(number, all) => {
            uring_waits::cancel(ring.fd, |entry| entry.user_data == number, all)
        }
        Cancels::Descriptor(fd, all) => uring_waits::cancel(ring.fd, |entry| entry.fd == fd, all),
        Cancels::Any => {
            uring_waits::cancel(ring.fd, |_| true, true);
            return None;
        }
    };
    let many = matches!(cancels, Cancels::Number(_, true) | Cancels::Descriptor(_, true));
    (ended > 0).then_some(if many { ended as i32 } else { 0 })
}

/// Returns whether the next entry depends on this one.
///
/// # Safety
/// An entry of the program's that Linux has not taken yet.
unsafe fn look(ring: &Ring, at: *mut Entry, linked: bool) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let entry = at.read_volatile();
        let links = entry.is_linked();
        if let Some(result) = entry.cancels().and_then(|cancels| cancel(ring, cancels)) {
            at.write_volatile(entry.completed(result));
            return links;
        }
        let result = match entry.fate(fds::get, linked) {
            Fate::Waits(waits) => {
                at.write_volatile(uring_waits::begin(ring, &entry, waits));
                return links;
            }
            Fate::Linux if !entry.registers().is_some_and(|(at, n)| has_ours(at, n)) => {
                return links;
            }
            Fate::Linux => -libc::EOPNOTSUPP,
            Fate::LinuxCloses(fd) => {
                numbers::freed(fd);
                closes(fd as u32, fd as u32);
                return links;
            }
            Fate::Refused(errno) => -errno,
            Fate::Now(call) => make(call) as i32,
        };
        if result == -libc::EOPNOTSUPP {
            refused();
        }
        at.write_volatile(entry.completed(result));
        links
    }
}

/// # Safety
/// The program's own arguments.
unsafe fn make(call: Call) -> c_long {
    // SAFETY: the caller's promise; they go to the functions that have the same ones.
    unsafe {
        match call {
            Call::Close(fd) => linux(descriptors::close(fd)),
            Call::EpollCtl(set, op, fd, event) => {
                let event = core::ptr::with_exposed_provenance_mut(event as usize);
                linux(waits::epoll_ctl(set, op, fd, event))
            }
            Call::Shutdown(fd, how) => linux(sockets::shutdown(fd, how)),
            Call::Socket(domain, kind, protocol) => linux(sockets::socket(domain, kind, protocol)),
            Call::Bind(fd, address, len) => {
                let address = core::ptr::with_exposed_provenance(address as usize);
                linux(sockets::bind(fd, address, len))
            }
            Call::Listen(fd, backlog) => linux(sockets::listen(fd, backlog)),
        }
    }
}

#[cold]
fn refused() {
    log::once(
        log::Once::Uring,
        "the program uses io_uring for a socket of IX in a way that only Linux's sockets have: such \
         operations complete with EOPNOTSUPP, at which programs use epoll; configure it so, or run \
         it with --posix off",
    );
}

/// Whether one of `count` descriptors is not simply Linux's.
///
/// # Safety
/// An array of the program's, as far as it is possible.
unsafe fn has_ours(at: u64, count: u32) -> bool {
    let at = core::ptr::with_exposed_provenance::<c_int>(at as usize);
    is_possible(at, count as usize * size_of::<c_int>())
        // SAFETY: the caller's promise.
        && (0..count as usize).any(|nth| unsafe { fds::is_ours(at.add(nth).read_unaligned()) })
}

/// Before `io_uring_register`. Returns an error that the call returns instead.
///
/// # Safety
/// As the system call.
pub unsafe fn before_register(operation: u32, at: u64, count: u32) -> Result<(), c_int> {
    /// The descriptors' place is at this offset, their number at that one.
    const DATA: usize = 8;
    const FILES2_DATA: usize = 16;
    const UPDATE2_COUNT: usize = 24;
    let word = |offset: usize| {
        let at = core::ptr::with_exposed_provenance::<u64>(at as usize + offset);
        // SAFETY: the program's own structure, as far as it is possible.
        if is_possible(at, 8) { unsafe { at.read_unaligned() } } else { 0 }
    };
    let (data, count) = match operation {
        uring::REGISTER_FILES => (at, count),
        uring::REGISTER_FILES_UPDATE => (word(DATA), count),
        uring::REGISTER_FILES2 => (word(FILES2_DATA), word(0) as u32),
        uring::REGISTER_FILES_UPDATE2 => (word(DATA), word(UPDATE2_COUNT) as u32),
        // Calls by such a number could not be looked at.
        uring::REGISTER_RING_FDS => return Err(libc::EINVAL),
        _ => return Ok(()),
    };
    // SAFETY: the caller's promise.
    if unsafe { has_ours(data, count) } {
        refused();
        return Err(libc::EOPNOTSUPP);
    }
    Ok(())
}

/// After `io_uring_register` has told which operations there are.
///
/// # Safety
/// `at` is where Linux has written its answer; it has room for `count` operations.
pub unsafe fn after_probe(at: u64, count: u32) {
    const HEAD_BYTES: usize = 16;
    const IS_THERE: u16 = 1;
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Operation {
        number: u8,
        _reserved: u8,
        flags: u16,
        _more: u32,
    }
    let first = core::ptr::with_exposed_provenance_mut::<Operation>(at as usize + HEAD_BYTES);
    if !is_possible(first, count as usize * size_of::<Operation>()) {
        return;
    }
    for nth in 0..count as usize {
        // SAFETY: the caller's promise.
        unsafe {
            let operation = first.add(nth);
            let mut told = operation.read_unaligned();
            if uring::is_lacking(told.number) {
                told.flags &= !IS_THERE;
                operation.write_unaligned(told);
            }
        }
    }
}

/// One of the three calls, with its arguments.
///
/// # Safety
/// As the system call.
pub unsafe fn call(number: c_long, arguments: [c_long; 6]) -> c_long {
    let [a, b, c, d, ..] = arguments;
    // SAFETY: the program's own arguments.
    unsafe {
        if number == libc::SYS_io_uring_setup {
            return setup(a as u64, core::ptr::with_exposed_provenance_mut(b as usize));
        }
        if number == libc::SYS_io_uring_enter {
            return enter(arguments).unwrap_or_else(|| bare(number, arguments));
        }
        if let Err(errno) = before_register(b as u32, c as u64, d as u32) {
            return -c_long::from(errno);
        }
        let result = bare(number, arguments);
        if number == libc::SYS_io_uring_register && b as u32 == uring::REGISTER_PROBE && result >= 0
        {
            after_probe(c as u64, d as u32);
        }
        result
    }
}
