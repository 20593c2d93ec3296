//! Instructions that make system calls: whose they are, and how often each has come here.
use super::frame::SYSCALL;
use super::{context, rewrite};
use crate::own_calls;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use ix_abi::{OwnSite, SiteState};
use ix_sys::program_file::PT_NOTE;

/// Code of ours, first address and end: this library's, and the image's with the gate.
static OWN: [[AtomicU64; 2]; 2] = [const { [const { AtomicU64::new(0) }; 2] }; 2];

/// Most sites that are told apart.
const SITES_MAX: usize = 256;

/// A site: where its instruction ends, how often it has trapped, the number that it did so with
/// last, what became of it ([`rewrite`]), and its place among those of all processes.
pub struct Site {
    behind: AtomicU64,
    count: AtomicU64,
    number: AtomicU64,
    state: AtomicU32,
    place: AtomicU32,
}

/// Places: not looked for yet, and none free; any other one is a number and one.
const UNKNOWN: u32 = 0;
const NONE: u32 = u32::MAX;

static SITES: [Site; SITES_MAX] = [const {
    Site {
        behind: AtomicU64::new(0),
        count: AtomicU64::new(0),
        number: AtomicU64::new(0),
        state: AtomicU32::new(SiteState::New as u32),
        place: AtomicU32::new(UNKNOWN),
    }
}; SITES_MAX];

/// Calls of sites for which there was no room above.
static OTHERS: AtomicU64 = AtomicU64::new(0);

impl Site {
    /// Where its instruction ends.
    pub fn behind(&self) -> u64 {
        self.behind.load(Ordering::Relaxed)
    }

    /// How often it has trapped.
    pub fn trapped(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// What became of it.
    pub fn state(&self) -> SiteState {
        SiteState::of(self.state.load(Ordering::Relaxed)).unwrap_or(SiteState::New)
    }

    /// This became of it.
    pub fn set_state(&self, state: SiteState) {
        self.state.store(state as u32, Ordering::Relaxed);
    }

    /// Its place among those of all processes, if there is one left.
    fn place(&self) -> Option<&'static OwnSite> {
        let all = own_calls::sites();
        match self.place.load(Ordering::Relaxed) {
            NONE => None,
            UNKNOWN => {
                let process = crate::pid::own() as u32;
                let free = all.iter().position(|site| {
                    let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
                    site.process.compare_exchange(0, process, success, failure).is_ok()
                });
                let place = free.map_or(NONE, |nth| nth as u32 + 1);
                self.place.store(place, Ordering::Relaxed);
                all.get(free?)
            }
            place => all.get(place as usize - 1),
        }
    }

    /// Shows its counts outside of this process.
    fn show(&self, rewritten: Option<u64>) {
        let Some(place) = self.place() else { return };
        let address = self.behind() - SYSCALL.len() as u64;
        place.address.store(address, Ordering::Relaxed);
        place.state.store(self.state() as u32, Ordering::Relaxed);
        place.number.store(self.number.load(Ordering::Relaxed), Ordering::Relaxed);
        place.trapped.store(self.trapped(), Ordering::Relaxed);
        if let Some(rewritten) = rewritten {
            place.rewritten.store(rewritten, Ordering::Relaxed);
        }
    }
}

/// Shows the counts of rewritten sites outside of this process.
pub fn show_rewritten() {
    for nth in 0..rewrite::count() {
        if let Some(site) = at(rewrite::behind(nth)) {
            site.show(Some(context::calls_of(nth)));
        }
    }
}

/// In a forked child, which has made no call yet.
pub fn forked() {
    OTHERS.store(0, Ordering::Relaxed);
    for site in &SITES {
        site.count.store(0, Ordering::Relaxed);
        site.place.store(UNKNOWN, Ordering::Relaxed);
    }
}

/// The site whose instruction ends there; `None`: there are too many. Runs in the handler.
pub fn at(behind: u64) -> Option<&'static Site> {
    let first = (behind.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize;
    (0..SITES_MAX).map(|step| &SITES[(first + step) % SITES_MAX]).find(|site| {
        match site.behind.load(Ordering::Relaxed) {
            0 => {
                let (relaxed, behind_is) = (Ordering::Relaxed, &site.behind);
                let taken = behind_is.compare_exchange(0, behind, relaxed, relaxed);
                taken.is_ok() || taken == Err(behind)
            }
            other => other == behind,
        }
    })
}

/// Counts a call that has trapped; returns its site. Runs in the handler.
pub fn count(behind: u64, number: i64) -> Option<&'static Site> {
    let site = at(behind);
    match site {
        Some(site) => {
            site.count.fetch_add(1, Ordering::Relaxed);
            site.number.store(number as u64, Ordering::Relaxed);
            site.show(None);
        }
        None => {
            OTHERS.fetch_add(1, Ordering::Relaxed);
        }
    }
    site
}

/// What is known of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// How often it has trapped.
    pub trapped: u64,
    /// How often it was called after it had been rewritten.
    pub rewritten: u64,
    /// Where its instruction begins.
    pub address: u64,
    /// The number of its last call that has trapped.
    pub number: u64,
    /// What became of it.
    pub state: SiteState,
}

/// All sites that have made a call, those first that have made most.
pub fn known() -> Vec<Known> {
    let mut sites: Vec<_> = SITES
        .iter()
        .filter(|site| site.behind() != 0)
        .map(|site| Known {
            trapped: site.trapped(),
            rewritten: rewrite::number_of(site.behind()).map_or(0, context::calls_of),
            address: site.behind() - SYSCALL.len() as u64,
            number: site.number.load(Ordering::Relaxed),
            state: site.state(),
        })
        .collect();
    sites.retain(|site| site.trapped + site.rewritten > 0);
    sites.sort_unstable_by_key(|site| core::cmp::Reverse(site.trapped + site.rewritten));
    sites
}

/// The calls that have come here as text, the most frequent sites first.
pub fn report() -> Option<String> {
    const NAMED: usize = 6;
    let sites = known();
    if sites.is_empty() {
        return None;
    }
    let trapped: u64 = sites.iter().map(|site| site.trapped).sum();
    let trapped = trapped + OTHERS.load(Ordering::Relaxed);
    let rewritten: u64 = sites.iter().map(|site| site.rewritten).sum();
    let named = sites.iter().take(NAMED).map(|site| {
        let why = match site.state {
            SiteState::Rewritten => format!(", {} rewritten", site.rewritten),
            state => state.why().map(|why| format!(", {why}")).unwrap_or_default(),
        };
        format!("{:#x} {} (last number {}{why})", site.address, site.trapped, site.number)
    });
    let named = named.collect::<Vec<_>>().join(", ");
    let count = sites.len();
    Some(format!(
        "{trapped} calls trapped and {rewritten} did not, from {count} instructions of the \
         program: {named}"
    ))
}

/// Calls that trap and could have been spared, from which on the user hears of them.
const MANY: u64 = 10_000;

/// A line about the sites that went on trapping, if they did so often.
pub fn warning() -> Option<String> {
    show_rewritten();
    let mut left = known();
    left.retain(|site| site.state.why().is_some() && site.state != SiteState::Whole);
    let trapped: u64 = left.iter().map(|site| site.trapped).sum();
    let most = left.first().filter(|_| trapped >= MANY)?;
    Some(format!(
        "{trapped} system calls of this program each cost a signal, most of them at {:#x} ({}): \
         link it to the C library dynamically where you can; `ix ctl stats` shows them",
        most.address,
        most.state.why().unwrap_or_default()
    ))
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

/// Whether the library of io_uring is loaded, which makes its calls by instructions of its own.
pub fn has_liburing() -> bool {
    let mut found = false;
    // SAFETY: the function gets a pointer to `found`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look_for_name), (&raw mut found).cast()) };
    found
}

/// # Safety
/// What `dl_iterate_phdr` passes, and a `bool`.
unsafe extern "C" fn look_for_name(
    object: *mut libc::dl_phdr_info,
    _: usize,
    found: *mut c_void,
) -> libc::c_int {
    const NAME: &[u8] = b"liburing";
    // SAFETY: the caller's promise: the name of an object that is loaded.
    unsafe {
        let name = (*object).dlpi_name;
        let name = if name.is_null() { c"" } else { core::ffi::CStr::from_ptr(name) };
        let file = name.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        *found.cast::<bool>() |= file.starts_with(NAME);
        (*found.cast::<bool>()).into()
    }
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
