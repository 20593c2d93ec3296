//! Attacks on the memory of a device that came after the program's start: a memif peer. The
//! dataplane maps its memory when it connects, and unmaps it when it goes, so this memory cannot be
//! sealed like other memory.
//!
//! The process itself makes these attacks, because a copy does not inherit such memory. An attack
//! that succeeds without the wall must not end the dataplane, so each one has its own page at the
//! end of the memory, which has no other use.
use crate::{Part, call};
use std::time::{Duration, Instant};

/// `ix attack` starts a peer when it reads this line.
const PEER: &str = "!peer\t1";
const PATIENCE: Duration = Duration::from_secs(20);
const PAGE: u64 = 4096;
const PROT: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;

/// An attack on a page.
type Attack = fn(u64) -> Result<u64, String>;

/// Name, what stops it, and attack.
pub const ATTACKS: &[(&str, Part, Attack)] = &[
    ("read memory of a later device", Part::Keys, |page| {
        let ends = pipe()?;
        let read = call(libc::SYS_write, [ends[1], page, 8, 0, 0, 0]);
        close(ends).and(read)
    }),
    ("write memory of a later device", Part::Keys, |page| {
        let (ends, byte) = (pipe()?, 0u8);
        call(libc::SYS_write, [ends[1], &raw const byte as u64, 1, 0, 0, 0])?;
        let written = call(libc::SYS_read, [ends[0], page, 1, 0, 0, 0]);
        close(ends).and(written)
    }),
    ("mprotect of it", Part::Calls, |page| call(libc::SYS_mprotect, [page, PAGE, PROT, 0, 0, 0])),
    ("pkey_mprotect of it", Part::Calls, |page| {
        call(libc::SYS_pkey_mprotect, [page, PAGE, PROT, 0, 0, 0])
    }),
    ("munmap of it", Part::Calls, |page| call(libc::SYS_munmap, [page, PAGE, 0, 0, 0, 0])),
    ("mmap with MAP_FIXED over memory of a later device", Part::Calls, |page| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        call(libc::SYS_mmap, [page, PAGE, PROT, flags as u64, u64::MAX, 0])
    }),
    ("move it elsewhere", Part::Calls, |page| {
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let own = call(libc::SYS_mmap, [0, PAGE, PROT, flags, u64::MAX, 0])?;
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
        call(libc::SYS_mremap, [page, PAGE, PAGE, flags, own, 0])
    }),
    ("punch a hole into it", Part::Calls, |page| {
        call(libc::SYS_madvise, [page, PAGE, libc::MADV_REMOVE as u64, 0, 0, 0])
    }),
    ("map it once more, of the mapping itself", Part::Calls, |page| {
        let flags = libc::MREMAP_MAYMOVE as u64;
        call(libc::SYS_mremap, [page, 0, PAGE, flags, 0, 0])
    }),
    ("map it once more, by its name in /proc", Part::Other, by_name),
    ("let copies of the process have it", Part::Calls, |page| {
        call(libc::SYS_madvise, [page, PAGE, libc::MADV_DOFORK as u64, 0, 0, 0])
    }),
];

/// Memory of a device that was not there at the start.
pub struct Later {
    end: u64,
}

impl Later {
    /// Waits for the peer.
    pub fn come() -> Result<Later, String> {
        let before = shared();
        println!("{PEER}");
        let begin = Instant::now();
        loop {
            let new = shared().into_iter().filter(|mapping| !before.contains(mapping));
            if let Some((_, end)) = new.max_by_key(|(start, end)| end - start) {
                return Ok(Later { end });
            }
            if begin.elapsed() > PATIENCE {
                return Err("no memory of a device has come".to_owned());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Makes one of [`ATTACKS`].
    pub fn attack(&self, nth: usize, attack: Attack) -> Result<String, String> {
        attack(self.end - (nth as u64 + 1) * PAGE).map(|answer| format!("answered {answer:#x}"))
    }
}

/// Shared memory large enough for packets, as Linux lists it.
fn shared() -> Vec<(u64, u64)> {
    const LEAST: u64 = 2 << 20;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter_map(range).filter(|(start, end)| end - start >= LEAST).collect()
}

fn range(line: &str) -> Option<(u64, u64)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    rest.starts_with("rw-s").then_some((hex(start)?, hex(end)?))
}

/// Maps the page again by its path in `/proc/self/map_files`: the new mapping would have no key.
fn by_name(page: u64) -> Result<u64, String> {
    const SHARED: u64 = 1;
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|e| e.to_string())?;
    let has_it = |range: &(u64, u64)| (range.0..range.1).contains(&page);
    let (start, end) = maps.lines().filter_map(range).find(has_it).ok_or("it is not there")?;
    let path = std::ffi::CString::new(format!("/proc/self/map_files/{start:x}-{end:x}"));
    let path = path.map_err(|e| e.to_string())?;
    let fd = call(libc::SYS_open, [path.as_ptr() as u64, libc::O_RDWR as u64, 0, 0, 0, 0])?;
    let again = call(libc::SYS_mmap, [0, PAGE, PROT, SHARED, fd, 0]);
    call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]).and(again)
}

fn pipe() -> Result<[u64; 2], String> {
    let mut ends = [0i32; 2];
    call(libc::SYS_pipe, [ends.as_mut_ptr() as u64, 0, 0, 0, 0, 0])?;
    Ok(ends.map(|end| end as u64))
}

fn close(ends: [u64; 2]) -> Result<u64, String> {
    ends.into_iter().try_fold(0, |_, end| call(libc::SYS_close, [end, 0, 0, 0, 0, 0]))
}
