//! Which of this process's Linux files are open anywhere: in a process that has got one, or on its
//! way over a Unix socket. Linux keeps an entry of an epoll set as long as the file is open, and
//! shows the entries.
use crate::fds;
use core::sync::atomic::{AtomicI32, Ordering};
use std::os::fd::RawFd;

/// A set of our own; negative: none yet.
static SET: AtomicI32 = AtomicI32::new(-1);

fn set() -> Option<RawFd> {
    let set = SET.load(Ordering::Relaxed);
    if set >= 0 {
        return Some(set);
    }
    // SAFETY: no pointers; only this function knows of the number.
    unsafe {
        let made = libc::syscall(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC) as RawFd;
        let set = fds::copy_out_of_the_way(made);
        libc::syscall(libc::SYS_close, made);
        SET.store(set.unwrap_or(-1), Ordering::Relaxed);
        set
    }
}

/// Watches the file of a descriptor, under this number.
pub fn watch(fd: RawFd, number: u32) {
    let Some(set) = set() else { return };
    let mut event = libc::epoll_event { events: 0, u64: number.into() };
    // SAFETY: a local. An error means that it is watched already.
    unsafe { libc::syscall(libc::SYS_epoll_ctl, set, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
}

/// Whether a file that is watched under this number is open anywhere.
pub fn is_open(number: u32) -> bool {
    let Some(set) = set() else { return false };
    let shown = read(&format!("/proc/self/fdinfo/{set}\0"));
    String::from_utf8_lossy(&shown).lines().any(|line| {
        let mut words = line.split_ascii_whitespace().skip_while(|word| *word != "data:");
        words.nth(1).and_then(|word| u64::from_str_radix(word, 16).ok()) == Some(number.into())
    })
}

/// A file's bytes, by system calls: the lock is held, which this library's own `open` takes. The
/// path ends with a zero.
fn read(path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a string that ends with zero; room of ours with its length; only this function knows
    // of the number.
    unsafe {
        let fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) as RawFd;
        let mut room = [0u8; 4096];
        while let got @ 1.. = libc::syscall(libc::SYS_read, fd, room.as_mut_ptr(), room.len()) {
            bytes.extend(&room[..got as usize]);
        }
        libc::syscall(libc::SYS_close, fd);
    }
    bytes
}

/// In a forked child, which has watched nothing.
pub fn forked() {
    let set = SET.swap(-1, Ordering::Relaxed);
    if set >= 0 {
        fds::close_private(set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, OwnedFd};

    #[test]
    fn a_file_is_open_until_its_last_descriptor_is_closed() {
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        let reader = OwnedFd::from(reader);
        let other = reader.try_clone().expect("another one");
        watch(reader.as_raw_fd(), 77);
        assert!(is_open(77) && !is_open(78));
        drop(reader);
        assert!(is_open(77), "the other one");
        drop(other);
        assert!(!is_open(77));
    }
}
