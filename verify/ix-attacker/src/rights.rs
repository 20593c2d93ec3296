//! Attacks on a dataplane in a process of its own by the rights that Linux gives its program,
//! beside those of [`crate::process`]: as root of a user namespace, as the machine's root (whom
//! nothing stops, which shows that the attack is one), and as an unprivileged child of that one.
use crate::aim::{Aim, Attack, Whom};
use crate::call;
use crate::process::trace;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Where `ix attack` mounts a file system.
pub const MOUNT: &str = "/proc";
/// Users that dataplanes have.
const USERS: RangeInclusive<u64> = 61184..=65520;
const CLONE_NEWUSER: u64 = libc::CLONE_NEWUSER as u64;
const CLONE_NEWNS: u64 = libc::CLONE_NEWNS as u64;

/// All attacks: name, and what is tried.
pub const ATTACKS: &[(&str, Attack)] = &[
    ("setresuid to its user", |_| {
        some_user(|user| call(libc::SYS_setresuid, [user, user, user, 0, 0, 0]))
    }),
    ("setresgid to its group", |_| {
        some_user(|group| call(libc::SYS_setresgid, [group, group, group, 0, 0, 0]))
    }),
    ("chown to its user", |_| {
        let file = call(libc::SYS_memfd_create, [c"ix".as_ptr() as u64, 0, 0, 0, 0, 0])?;
        some_user(|user| call(libc::SYS_fchown, [file, user, user, 0, 0, 0]))
    }),
    ("setns to its network", |aim| {
        call(libc::SYS_setns, [aim.pidfd()?, libc::CLONE_NEWNET as u64, 0, 0, 0, 0]).map(drop)
    }),
    ("a user namespace that has its user", namespace_with_its_user),
    ("a procfs of its own", procfs),
    ("a queue of its tap", |aim| {
        let queue = OpenOptions::new().read(true).write(true).open("/dev/net/tun");
        let queue = queue.map_err(|e| e.to_string())?;
        let mut request = [0u8; 40];
        let name = aim.link.as_bytes();
        request.get_mut(..name.len()).ok_or("a long name")?.copy_from_slice(name);
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_MULTI_QUEUE | libc::IFF_VNET_HDR;
        request[16..18].copy_from_slice(&(flags as u16).to_ne_bytes());
        let to = request.as_mut_ptr() as u64;
        call(libc::SYS_ioctl, [queue.as_raw_fd() as u64, libc::TUNSETIFF, to, 0, 0, 0]).map(drop)
    }),
    ("its packets, by a packet socket", |_| {
        let (family, kind) = (libc::AF_PACKET as u64, libc::SOCK_RAW as u64);
        call(libc::SYS_socket, [family, kind, u64::from(0x0003u16.to_be()), 0, 0, 0]).map(drop)
    }),
    ("the broker's memory", |aim| {
        let path = format!("/proc/{}/mem", aim.broker);
        File::open(path).map(drop).map_err(|e| e.to_string())
    }),
    ("ptrace of the broker", |aim| trace(libc::PTRACE_SEIZE, aim.broker)),
    ("a signal to the broker", |aim| call(libc::SYS_kill, [aim.broker, 0, 0, 0, 0, 0]).map(drop)),
    ("prlimit of the broker", |aim| {
        let mut limit = [0u64; 2];
        let (what, to) = (u64::from(libc::RLIMIT_NOFILE), limit.as_mut_ptr() as u64);
        call(libc::SYS_prlimit64, [aim.broker, what, 0, to, 0, 0]).map(drop)
    }),
];

/// Tries all users that dataplanes can have, but for this process's own: a program need not see
/// which one it is.
fn some_user(attack: impl Fn(u64) -> Result<u64, String>) -> Result<(), String> {
    // SAFETY: no arguments.
    let own = u64::from(unsafe { libc::getuid() });
    let mut outcome = Err(String::new());
    for user in USERS.filter(|user| *user != own) {
        outcome = attack(user);
        if outcome.is_ok() {
            break;
        }
    }
    outcome.map(drop)
}

/// A namespace below this one that has the dataplane's user.
fn namespace_with_its_user(_: &Aim) -> Result<(), String> {
    let mut ends = [0i32; 2];
    let to = ends.as_mut_ptr() as u64;
    call(libc::SYS_pipe2, [to, 0, 0, 0, 0, 0])?;
    // SAFETY: the child makes system calls and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let made = call(libc::SYS_unshare, [CLONE_NEWUSER, 0, 0, 0, 0, 0]);
        // SAFETY: a byte of a literal; then waits for its end, which its alarm brings at last.
        unsafe {
            libc::write(ends[1], if made.is_ok() { c"+" } else { c"-" }.as_ptr().cast(), 1);
            libc::alarm(10);
            libc::pause();
            libc::_exit(0);
        }
    }
    let mut word = [0u8];
    let from = word.as_mut_ptr() as u64;
    let came = call(libc::SYS_read, [ends[0] as u64, from, 1, 0, 0, 0]);
    let all = format!("0 {} {}", USERS.start(), USERS.end() - USERS.start() + 1);
    let map = fs::write(format!("/proc/{child}/uid_map"), all);
    // SAFETY: a child that was not waited for.
    unsafe { libc::kill(child, libc::SIGKILL) };
    came?;
    if word != *b"+" {
        return Err("no namespace can be made".to_owned());
    }
    map.map_err(|e| e.to_string())
}

/// Mounts another /proc, and looks for the dataplane there.
fn procfs(aim: &Aim) -> Result<(), String> {
    let flags = if aim.whom == Whom::Root { CLONE_NEWNS } else { CLONE_NEWUSER | CLONE_NEWNS };
    call(libc::SYS_unshare, [flags, 0, 0, 0, 0, 0])?;
    let root = c"/".as_ptr() as u64;
    let private = libc::MS_REC | libc::MS_PRIVATE;
    call(libc::SYS_mount, [0, root, 0, private, 0, 0])?;
    let target = CString::new(MOUNT).map_err(|_| "a zero")?;
    let (kind, target) = (c"proc".as_ptr() as u64, target.as_ptr() as u64);
    call(libc::SYS_mount, [kind, target, kind, 0, 0, 0])?;
    let path = Path::new(MOUNT).join(aim.dataplane.to_string()).join("mem");
    File::open(path).map(drop).map_err(|e| e.to_string())
}
