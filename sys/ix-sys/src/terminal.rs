//! The terminal that a program shares with whoever has started it. Linux lets each process of a
//! session put characters into the session's terminal as if they had been typed (`TIOCSTI`,
//! ioctl_tty(2)): a program of another user types into the shell that reads there next.
use std::fs::{self, File};
use std::io;

/// Says whether Linux lets processes do that (Linux 6.2): `0` if not.
const SWITCH: &str = "/proc/sys/dev/tty/legacy_tiocsti";
/// The terminal of this session, if it has one (tty(4)).
const TERMINAL: &str = "/dev/tty";

/// Interfaces of system calls (linux/audit.h).
const ARCH_X86_64: u32 = 0xc000_003e;
const ARCH_I386: u32 = 0x4000_0003;
/// `ioctl` of 32-bit code, and of the x32 interface, which numbers from here on.
const IOCTL_I386: u32 = 54;
const X32: u32 = 0x4000_0000;
const IOCTL_X32: u32 = X32 + 514;
const IOCTL: u32 = libc::SYS_ioctl as u32;
/// Pastes what is selected on a console, among others.
const TIOCLINUX: u32 = 0x541c;
const TIOCSTI: u32 = libc::TIOCSTI as u32;

/// Where a filter finds the interface, the number, and the lower half of the second argument
/// (seccomp(2)).
const ARCH_AT: u32 = 4;
const NUMBER_AT: u32 = 0;
const REQUEST_AT: u32 = 24;

/// Allows all system calls but those two requests. Calls other than `ioctl` cost nothing more:
/// Linux sees that they are always allowed.
static FILTER: [libc::sock_filter; 14] = [
    load(ARCH_AT),
    equals(ARCH_I386, 5, 0),
    equals(ARCH_X86_64, 0, 10),
    load(NUMBER_AT),
    equals(IOCTL, 4, 0),
    equals(IOCTL_X32, 3, 0),
    equals(X32 + IOCTL, 2, 6),
    load(NUMBER_AT),
    equals(IOCTL_I386, 0, 4),
    load(REQUEST_AT),
    equals(TIOCSTI, 1, 0),
    equals(TIOCLINUX, 0, 1),
    answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    answer(libc::SECCOMP_RET_ALLOW),
];

const fn load(at: u32) -> libc::sock_filter {
    let code = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    libc::sock_filter { code, jt: 0, jf: 0, k: at }
}

/// Skips `jt` instructions if what was loaded is `k`, else `jf`.
const fn equals(k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, jt, jf, k }
}

const fn answer(k: u32) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k }
}

/// Whether processes of this session can type on its terminal.
pub fn can_be_typed_on() -> bool {
    let is_off = fs::read_to_string(SWITCH).is_ok_and(|text| text.trim() == "0");
    !is_off && File::open(TERMINAL).is_ok()
}

/// The calling thread, and all that it starts and executes, types on no terminal any more. Makes
/// only system calls. Without `CAP_SYS_ADMIN` programs that are executed later get no rights by
/// their files either (`no_new_privs`).
pub fn forbid_typing() -> io::Result<()> {
    let filter = libc::sock_fprog { len: FILTER.len() as u16, filter: FILTER.as_ptr().cast_mut() };
    let install = || {
        let (set, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW);
        // SAFETY: the filter is constant, and only read.
        let made = unsafe { libc::syscall(libc::SYS_seccomp, set, flags, &raw const filter) };
        if made < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    install().or_else(|e| {
        if e.raw_os_error() != Some(libc::EACCES) {
            return Err(e);
        }
        rustix::thread::set_no_new_privs(true)?;
        install()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Linux answers to each call in a process with the filter, as an errno.
    fn answers(calls: &[[i64; 4]]) -> Vec<i32> {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        // SAFETY: the child makes system calls only, and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            if forbid_typing().is_ok() {
                for [number, first, second, third] in calls {
                    // SAFETY: numbers that name no memory.
                    let made = unsafe { libc::syscall(*number, *first, *second, *third) };
                    let errno =
                        if made < 0 { io::Error::last_os_error().raw_os_error() } else { None };
                    let word = errno.unwrap_or(0).to_ne_bytes();
                    let _ = crate::fd::write_bare(std::os::fd::AsFd::as_fd(&writer), &word);
                }
            }
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        drop(writer);
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut reader, &mut bytes).expect("read");
        crate::process::wait(pid, true).expect("waited");
        bytes.chunks(4).map(|word| i32::from_ne_bytes(word.try_into().expect("4"))).collect()
    }

    #[test]
    fn only_typing_is_refused() {
        let request = |request: u32| [libc::SYS_ioctl, -1, request.into(), 0];
        let (refused, none) = (libc::EPERM, libc::EBADF);
        let calls = [
            request(TIOCSTI),
            request(TIOCLINUX),
            // Only the lower half of the number counts for Linux.
            [libc::SYS_ioctl, -1, i64::from(TIOCSTI) | 1 << 32, 0],
            request(libc::TIOCGWINSZ as u32),
            [libc::SYS_close, -1, TIOCSTI.into(), 0],
            [libc::SYS_getpid, 0, TIOCSTI.into(), 0],
        ];
        assert_eq!(answers(&calls), [refused, refused, refused, none, none, 0]);
    }
}
