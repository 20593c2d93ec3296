//! Instructions that make system calls: whose they are, and how often each has come here.
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};
use ix_sys::program_file::PT_NOTE;

/// Code of ours, first address and end: this library's, and the image's with the gate.
static OWN: [[AtomicU64; 2]; 2] = [const { [const { AtomicU64::new(0) }; 2] }; 2];

/// Most sites that are told apart.
const SITES_MAX: usize = 256;

/// A site: where its instruction ends, how often it has come here, and the number that it came with
/// last.
struct Site {
    behind: AtomicU64,
    count: AtomicU64,
    number: AtomicU64,
}

static SITES: [Site; SITES_MAX] = [const {
    Site { behind: AtomicU64::new(0), count: AtomicU64::new(0), number: AtomicU64::new(0) }
}; SITES_MAX];

/// Counts a call from a site. Runs in the handler.
pub fn count(behind: u64, number: i64) {
    let first = (behind.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize;
    for step in 0..SITES_MAX {
        let site = &SITES[(first + step) % SITES_MAX];
        let found = match site.behind.load(Ordering::Relaxed) {
            0 => {
                let (relaxed, behind_is) = (Ordering::Relaxed, &site.behind);
                let taken = behind_is.compare_exchange(0, behind, relaxed, relaxed);
                taken.is_ok() || taken == Err(behind)
            }
            other => other == behind,
        };
        if found {
            site.count.fetch_add(1, Ordering::Relaxed);
            site.number.store(number as u64, Ordering::Relaxed);
            return;
        }
    }
}

/// The calls that have come here as text, the most frequent sites first.
pub fn report() -> Option<String> {
    const NAMED: usize = 6;
    let mut sites: Vec<(u64, u64, u64)> = SITES
        .iter()
        .map(|site| {
            let [count, behind, number] =
                [&site.count, &site.behind, &site.number].map(|word| word.load(Ordering::Relaxed));
            (count, behind, number)
        })
        .filter(|site| site.0 > 0)
        .collect();
    if sites.is_empty() {
        return None;
    }
    sites.sort_unstable_by(|a, b| b.cmp(a));
    let all: u64 = sites.iter().map(|site| site.0).sum();
    let named = sites
        .iter()
        .take(NAMED)
        .map(|(count, behind, number)| format!("{:#x} {count} (last number {number})", behind - 2));
    let named = named.collect::<Vec<_>>().join(", ");
    Some(format!("{all} calls from {} instructions of the program: {named}", sites.len()))
}

/// Whether an instruction is this library's or the image's. Uses no thread-local storage.
pub fn is_own(behind: u64) -> bool {
    OWN.iter().any(|[first, end]| {
        (first.load(Ordering::Relaxed)..end.load(Ordering::Relaxed)).contains(&behind)
    })
}

/// Notes which code is ours.
pub fn note_own() {
    let image = std::env::var(ix_abi::ENV_HEADER).ok();
    let starter = image.and_then(|digits| u64::from_str_radix(&digits, 16).ok());
    // SAFETY: what the image has left for this process, which is never unmapped.
    let start = starter
        .filter(|at| *at != 0)
        .map(|at| unsafe { (*(at as *const ix_abi::Starter)).start as *const () as u64 });
    let own = [Some(note_own as *const () as u64), start];
    for (place, at) in OWN.iter().zip(own) {
        if let Some((first, bytes)) = at.and_then(mapping_of) {
            place[0].store(first, Ordering::Relaxed);
            place[1].store(first + bytes, Ordering::Relaxed);
        }
    }
}

/// The executable mapping that an address is in: where it begins, and how many bytes it has.
pub fn mapping_of(address: u64) -> Option<(u64, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (first, end) = range.split_once('-')?;
        let (first, end) = (hex(first)?, hex(end)?);
        let is_it = (first..end).contains(&address) && rest.as_bytes().get(2) == Some(&b'x');
        is_it.then_some((first, end - first))
    })
}

/// A system call instruction of the C library with a return right behind it.
pub fn gate() -> Option<u64> {
    const GATE: [u8; 3] = [0x0f, 0x05, 0xc3];
    const SEARCHED: usize = 16;
    [c"getpid", c"getuid", c"getppid", c"geteuid"].into_iter().find_map(|name| {
        // SAFETY: a string; then the beginning of a function, which is followed by others.
        let code = unsafe {
            let at = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
            if at.is_null() {
                return None;
            }
            core::slice::from_raw_parts(at.cast::<u8>(), SEARCHED)
        };
        let offset = code.windows(GATE.len()).position(|bytes| bytes == GATE)?;
        Some(code.as_ptr() as u64 + offset as u64)
    })
}

/// Whether the program was made by Go's linker, which says so in a note.
pub fn is_go() -> bool {
    let mut found = false;
    // SAFETY: the function gets a pointer to `found`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look_for_note), (&raw mut found).cast()) };
    found
}

/// # Safety
/// What `dl_iterate_phdr` passes, and a `bool`.
unsafe extern "C" fn look_for_note(
    object: *mut libc::dl_phdr_info,
    _: usize,
    found: *mut c_void,
) -> libc::c_int {
    // SAFETY: the caller's promise: headers of an object that is loaded, with its notes.
    unsafe {
        let object = &*object;
        let headers = core::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into());
        for header in headers.iter().filter(|header| header.p_type == PT_NOTE) {
            let at = (object.dlpi_addr + header.p_vaddr) as *const u8;
            let notes = core::slice::from_raw_parts(at, header.p_memsz as usize);
            if ix_sys::program_file::has_note(notes, b"Go\0\0") {
                *found.cast::<bool>() = true;
            }
        }
    }
    // The first object is the program.
    1
}
