//! Attacks on a dataplane in a process of its own (`ix attack --domain process`) beside those of
//! [`crate::process`], which root of a namespace may make: its user is that of files in `/proc`.
//! The control is the same attack where there is no wall: the dataplane is then in this process, so
//! the attack is on the attacker's own parent.
use crate::aim::{Aim, Attack, Whom};
use crate::call;
use std::fs::{self, File};
use std::os::fd::AsRawFd;

/// Asks for the right to signal, and does nothing. (Linux lets everybody in a session send the
/// signal that only continues a process.)
const NO_SIGNAL: u64 = 0;

/// All attacks: name, and what is tried.
pub const ATTACKS: &[(&str, Attack)] = &[
    ("/proc/PID/ns/net", |aim| File::open(aim.file("ns/net")).map(drop).map_err(|e| e.to_string())),
    ("/proc/PID/fd, the list", |aim| {
        fs::read_dir(aim.file("fd")).map(drop).map_err(|e| e.to_string())
    }),
    ("/proc/PID/oom_score_adj, to be killed first", |aim| {
        fs::write(aim.file("oom_score_adj"), "1000").map_err(|e| e.to_string())
    }),
    ("move_pages", |aim| call(libc::SYS_move_pages, [aim.dataplane, 0, 0, 0, 0, 0]).map(drop)),
    ("any signal to its thread", |aim| {
        let process = aim.dataplane;
        call(libc::SYS_tgkill, [process, process, NO_SIGNAL, 0, 0, 0]).map(drop)
    }),
    ("become its user", become_it),
    ("attach as another process", |aim| {
        let own = u64::from(std::process::id());
        speak_as(if aim.whom == Whom::Root { own } else { aim.broker })
    }),
];

/// Says something on a socket as this process: the broker believes of a hello only what the kernel
/// says of its sender.
fn speak_as(process: u64) -> Result<(), String> {
    const CONTROL: usize = 32;
    let (_own, theirs) = std::os::unix::net::UnixDatagram::pair().map_err(|e| e.to_string())?;
    let mut byte = [0u8];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = [0u64; CONTROL / 8];
    // SAFETY: no arguments; all-zero bytes are a valid header; the control buffer has room for the
    // three numbers.
    unsafe {
        let (uid, gid) = (libc::getuid(), libc::getgid());
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
        (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), CONTROL);
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        (*first).cmsg_level = libc::SOL_SOCKET;
        (*first).cmsg_type = libc::SCM_CREDENTIALS;
        (*first).cmsg_len = libc::CMSG_LEN(size_of::<libc::ucred>() as u32) as usize;
        let who = libc::ucred { pid: process as i32, uid, gid };
        libc::CMSG_DATA(first).cast::<libc::ucred>().write_unaligned(who);
        match libc::sendmsg(theirs.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) {
            1 => Ok(()),
            _ => Err(std::io::Error::last_os_error().to_string()),
        }
    }
}

/// Becomes the user that the process belongs to. That of one that cannot be dumped is in its status
/// only.
fn become_it(aim: &Aim) -> Result<(), String> {
    let status = fs::read_to_string(aim.file("status")).map_err(|e| e.to_string())?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let user = users.and_then(|users| users.split_whitespace().next()?.parse::<u64>().ok());
    let user = user.ok_or("its status has no user")?;
    call(libc::SYS_setresuid, [user, user, user, 0, 0, 0]).map(drop)
}
