//! A process that is none of a program's, for tests: it has got hold of the program's channel to
//! the broker, and asks for a part of the dataplane, as another user.
//!
//! `ix-foreign PID`, as root. Takes each socket of packets of that process, becomes user 65534, and
//! asks by all of them. Says `asked SOCKETS`.
use ix_proto::{Codec, FromImage};
use std::error::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

fn result(ret: i64) -> std::io::Result<i64> {
    if ret < 0 { Err(std::io::Error::last_os_error()) } else { Ok(ret) }
}

/// Whether it is a Unix socket that keeps messages apart.
fn is_channel(fd: &OwnedFd) -> bool {
    let option = |name| {
        let (mut value, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
        let to = (&raw mut value).cast();
        // SAFETY: fills a local of that length.
        let ret =
            unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, to, &raw mut len) };
        (ret == 0).then_some(value)
    };
    option(libc::SO_TYPE) == Some(libc::SOCK_SEQPACKET)
        && option(libc::SO_DOMAIN) == Some(libc::AF_UNIX)
}

fn main() -> Result<(), Box<dyn Error>> {
    let pid: i32 = std::env::args().nth(1).ok_or("usage: ix-foreign PID")?.parse()?;
    // SAFETY: no pointers.
    let process = result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })? as RawFd;
    // SAFETY: just opened, and nobody else's.
    let process = unsafe { OwnedFd::from_raw_fd(process) };
    let mut channels = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let number: RawFd = entry?.file_name().to_string_lossy().parse()?;
        let handle = process.as_raw_fd();
        // SAFETY: no pointers.
        let ret = unsafe { libc::syscall(libc::SYS_pidfd_getfd, handle, number, 0) };
        if let Ok(fd) = result(ret) {
            // SAFETY: just opened, and nobody else's.
            let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
            channels.extend(is_channel(&fd).then_some(fd));
        }
    }
    // SAFETY: no pointers.
    result(unsafe { libc::setgid(65534) }.into())?;
    // SAFETY: no pointers.
    result(unsafe { libc::setuid(65534) }.into())?;
    let hello = FromImage::Hello { pid: 0, asker: 1 }.encode();
    for channel in &channels {
        // SAFETY: a buffer with its length.
        let sent = unsafe {
            libc::send(channel.as_raw_fd(), hello.as_ptr().cast(), hello.len(), libc::MSG_NOSIGNAL)
        };
        result(sent as i64)?;
    }
    println!("asked {}", channels.len());
    Ok(())
}
