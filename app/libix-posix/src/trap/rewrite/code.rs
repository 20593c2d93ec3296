//! The program's code: whether it may be changed, and how it is while other threads execute it.
use super::STUBS_MAX;
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use ix_abi::SiteState;

const PAGE: u64 = 4096;
/// Bytes of a stub.
pub const STUB_BYTES: u64 = 32;
/// Most pages of stubs: programs are rarely longer than what a jump reaches.
const PAGES_MAX: usize = 4;
/// How far a jump with a displacement of 32 bits goes, less what is rounded here.
const REACH: u64 = (1 << 31) - 2 * PAGE;
/// Where memory may begin (`vm.mmap_min_addr`), or higher.
const LOWEST: u64 = 1 << 20;
/// How many places for a page are tried, and how far they are from each other.
const TRIES: u64 = 256;
const STEP: u64 = 64 << 10;

const MEMBARRIER_SYNC_CORE: i32 = 1 << 5;
const MEMBARRIER_REGISTER_SYNC_CORE: i32 = 1 << 6;

/// Pages of stubs; the first word of each is where all stubs go on. 0: none.
static PAGES: [AtomicU64; PAGES_MAX] = [const { AtomicU64::new(0) }; PAGES_MAX];

/// The program has more than one thread, or had.
static HAS_THREADS: AtomicBool = AtomicBool::new(false);
/// All processors can be told to forget what they have fetched.
static CAN_SYNC: AtomicBool = AtomicBool::new(false);

/// The program starts a thread.
pub fn has_threads() {
    HAS_THREADS.store(true, Ordering::Relaxed);
}

fn membarrier(command: i32) -> bool {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Before the first change.
pub fn begin() {
    CAN_SYNC.store(membarrier(MEMBARRIER_REGISTER_SYNC_CORE), Ordering::Relaxed);
}

/// From here on no thread of the process executes what it has fetched before.
fn sync() {
    if HAS_THREADS.load(Ordering::Relaxed) {
        membarrier(MEMBARRIER_SYNC_CORE);
    }
}

/// A piece of the program's code as it is in its file.
#[derive(Clone, Copy)]
pub struct Text {
    first: u64,
    end: u64,
}

impl Text {
    /// The code around an address, from a file that the process alone has mapped so.
    pub fn around(address: u64) -> Option<Text> {
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        maps.lines().find_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let (first, end) = words.next()?.split_once('-')?;
            let (first, end) = (hex(first)?, hex(end)?);
            let rights = words.next()?;
            let inode = words.nth(2)?;
            let is_it = (first..end).contains(&address) && rights == "r-xp" && inode != "0";
            is_it.then_some(Text { first, end })
        })
    }

    /// At most `most` bytes from an address on.
    ///
    /// # Safety
    /// It is still mapped.
    pub unsafe fn from(&self, address: u64, most: usize) -> Option<&[u8]> {
        let bytes = self.end.checked_sub(address).filter(|_| address >= self.first)?;
        // SAFETY: readable, by the caller's promise; whoever changes code is this module, one
        // thread at a time.
        Some(unsafe { core::slice::from_raw_parts(address as *const u8, most.min(bytes as usize)) })
    }

    /// A page of stubs that a jump from this code reaches.
    fn page(&self) -> Option<u64> {
        let is_near = |page: u64| page.abs_diff(self.first).max(page.abs_diff(self.end)) < REACH;
        for place in &PAGES {
            match place.load(Ordering::Relaxed) {
                0 => {
                    let page = self.new_page(is_near)?;
                    place.store(page, Ordering::Relaxed);
                    return Some(page);
                }
                page if is_near(page) => return Some(page),
                _ => {}
            }
        }
        None
    }

    /// Below the program first, because its heap is above it.
    fn new_page(&self, is_near: impl Fn(u64) -> bool) -> Option<u64> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let begin = self.first & !(STEP - 1);
        let below = (1..TRIES).map_while(|nth| begin.checked_sub(nth * STEP));
        let above = (1..TRIES).map(|nth| self.end.next_multiple_of(STEP) + (TRIES + nth) * STEP);
        let mut places = below.filter(|at| *at >= LOWEST).chain(above).filter(|at| is_near(*at));
        let page = places.find(|at| {
            // SAFETY: new memory where there is none.
            let got = unsafe { libc::mmap(*at as *mut _, PAGE as usize, rights, flags, -1, 0) };
            if got != libc::MAP_FAILED && got as u64 != *at {
                // SAFETY: Linux before 4.17 takes the address as a wish only.
                unsafe { libc::munmap(got, PAGE as usize) };
            }
            got as u64 == *at
        })?;
        // SAFETY: just mapped; nobody knows of it.
        unsafe {
            (page as *mut u64).write(super::entry::address());
            if libc::mprotect(page as *mut _, PAGE as usize, libc::PROT_READ | libc::PROT_EXEC) != 0
            {
                libc::munmap(page as *mut _, PAGE as usize);
                return None;
            }
        }
        Some(page)
    }
}

/// Which stub an instruction is in; `None`: in none.
pub fn stub_at(address: u64) -> Option<usize> {
    PAGES.iter().find_map(|place| {
        let page = place.load(Ordering::Relaxed);
        let nth = address.checked_sub(page + STUB_BYTES)? / STUB_BYTES;
        (page != 0 && (nth as usize) < STUBS_MAX).then_some(nth as usize)
    })
}

/// Code that is written while it is executed.
struct Writable {
    first: u64,
    bytes: usize,
}

impl Writable {
    /// # Safety
    /// The program's code or a page of ours.
    unsafe fn new(first: u64, end: u64) -> Option<Writable> {
        let first = first & !(PAGE - 1);
        let bytes = (end.next_multiple_of(PAGE) - first) as usize;
        let rights = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        // SAFETY: the caller's promise: other threads execute it on meanwhile.
        let changed = unsafe { libc::mprotect(first as *mut _, bytes, rights) } == 0;
        changed.then_some(Writable { first, bytes })
    }
}

impl Drop for Writable {
    fn drop(&mut self) {
        let rights = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: as before `new`.
        unsafe { libc::mprotect(self.first as *mut _, self.bytes, rights) };
    }
}

/// Whether a site's bytes are not within eight aligned ones, which are written at once.
fn straddles(behind: u64) -> bool {
    (behind - 2) % 8 == 7
}

/// Whether a site can be changed only as long as the program has one thread, which it has.
pub fn is_last_chance(behind: u64) -> bool {
    straddles(behind) && !HAS_THREADS.load(Ordering::Relaxed)
}

/// A jump over a distance that fits.
fn jump(from: u64, to: u64) -> [u8; 5] {
    let [a, b, c, d] = (to.wrapping_sub(from + 5) as u32).to_le_bytes();
    [0xe9, a, b, c, d]
}

/// `mov r11d, nth; lea rcx, [rip + behind]; jmp [rip + first word of the page]`.
fn stub(page: u64, at: u64, nth: usize, behind: u64) -> [u8; 19] {
    let mut code = [0; 19];
    code[..2].copy_from_slice(&[0x41, 0xbb]);
    code[2..6].copy_from_slice(&(nth as u32).to_le_bytes());
    code[6..9].copy_from_slice(&[0x48, 0x8d, 0x0d]);
    code[9..13].copy_from_slice(&(behind.wrapping_sub(at + 13) as u32).to_le_bytes());
    code[13..15].copy_from_slice(&[0xff, 0x25]);
    code[15..].copy_from_slice(&(page.wrapping_sub(at + 19) as u32).to_le_bytes());
    code
}

/// Replaces the system call instruction that ends at `behind` by a jump into `room`, and what is
/// there by a jump to stub `nth`.
///
/// The instruction's two bytes are written at once, so a thread executes the old or the new ones:
/// processors see to that within eight aligned bytes (AMD manual volume 2, 7.6.1; HotSpot counts
/// on it on Intel's as well). Nobody executes what else is written before it is complete.
///
/// # Safety
/// An instruction of `text` that has trapped, and room that nothing executes. One thread at a time.
pub unsafe fn replace(
    text: Text,
    behind: u64,
    room: &crate::instructions::Room,
    nth: usize,
) -> Result<(), SiteState> {
    let site = behind - 2;
    let has_threads = HAS_THREADS.load(Ordering::Relaxed);
    if has_threads && straddles(behind) {
        return Err(SiteState::Straddles);
    }
    if has_threads && !CAN_SYNC.load(Ordering::Relaxed) {
        return Err(SiteState::NoBarrier);
    }
    let page = text.page().ok_or(SiteState::NoMemory)?;
    let at = page + STUB_BYTES * (1 + nth as u64);
    let (first, end) = (behind + room.first as u64, behind + room.end as u64);
    // SAFETY: a page of ours, of which nobody knows this stub yet; then the program's code, as the
    // caller promises.
    unsafe {
        let stubs = Writable::new(page, page + PAGE).ok_or(SiteState::Refused)?;
        let code = stub(page, at, nth, behind);
        core::ptr::copy_nonoverlapping(code.as_ptr(), at as *mut u8, code.len());
        drop(stubs);
        let _text = Writable::new(site, end).ok_or(SiteState::Refused)?;
        if !room.traps {
            (first as *mut u8).write_bytes(0x90, room.end - room.first);
        }
        let code = jump(first, at);
        core::ptr::copy_nonoverlapping(code.as_ptr(), first as *mut u8, code.len());
        sync();
        let short = u16::from_le_bytes([0xeb, room.first as u8]);
        if site.is_multiple_of(2) {
            AtomicU16::from_ptr(site as *mut u16).store(short, Ordering::SeqCst);
        } else if !straddles(behind) {
            // Within eight bytes, which are written at once.
            let word = AtomicU64::from_ptr((site & !7) as *mut u64);
            let shift = site % 8 * 8;
            let old = word.load(Ordering::Relaxed);
            let new = old & !(0xffff << shift) | u64::from(short) << shift;
            word.store(new, Ordering::SeqCst);
        } else {
            (site as *mut u16).write_unaligned(short);
        }
        sync();
    }
    Ok(())
}
