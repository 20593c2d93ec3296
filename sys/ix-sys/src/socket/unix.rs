//! Unix sockets: listeners and connections (unix(7)).
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
    sockopt,
};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// A Unix socket of `kind` that listens at `path`; `@NAME` is one without a file. An existing file
/// is an error ([`io::ErrorKind::AddrInUse`]).
pub fn listen_unix(kind: i32, path: &str) -> io::Result<OwnedFd> {
    let fd = open(kind)?;
    bind(&fd, &address(path)?)?;
    listen(&fd, 16)?;
    Ok(fd)
}

/// A listening stream socket with a file at a path, which no other user may open until its mode is
/// changed. An existing file is an error ([`io::ErrorKind::AddrInUse`]).
pub fn listen_unix_closed(path: &Path, backlog: i32) -> io::Result<OwnedFd> {
    let fd = open(libc::SOCK_STREAM)?;
    let address = file_address(path.as_os_str().as_bytes())?;
    // A socket's mode before it is bound is that of the file that bind makes.
    rustix::fs::fchmod(&fd, rustix::fs::Mode::empty())?;
    bind(&fd, &address)?;
    listen(&fd, backlog)?;
    Ok(fd)
}

/// A Unix socket of `kind` that is connected to the one that listens at `path`.
pub fn connect_unix(kind: i32, path: &str) -> io::Result<OwnedFd> {
    let fd = open(kind)?;
    connect(&fd, &address(path)?)?;
    Ok(fd)
}

/// A stream that is connected to the socket that listens at `path`. Where its queue is full,
/// because its process is stopped, the error is [`io::ErrorKind::WouldBlock`] after `within`.
pub fn connect_unix_within(path: &Path, within: Duration) -> io::Result<OwnedFd> {
    let fd = open(libc::SOCK_STREAM)?;
    let address = file_address(path.as_os_str().as_bytes())?;
    let patience = |time| sockopt::set_socket_timeout(&fd, sockopt::Timeout::Send, time);
    patience((!within.is_zero()).then_some(within))?;
    connect(&fd, &address)?;
    patience(None)?;
    Ok(fd)
}

fn open(kind: i32) -> io::Result<OwnedFd> {
    let kind = SocketType::from_raw(kind.cast_unsigned());
    Ok(socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?)
}

/// The address of a path; `@NAME` is an abstract one.
fn address(path: &str) -> io::Result<SocketAddrUnix> {
    let file = file_address(path.as_bytes())?;
    match path.strip_prefix('@') {
        Some(name) => Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?),
        None => Ok(file),
    }
}

/// The address of a file.
fn file_address(path: &[u8]) -> io::Result<SocketAddrUnix> {
    /// Of `sockaddr_un`, without the zero at the end.
    const MOST: usize = 107;
    let is_path = !path.is_empty() && path.len() <= MOST;
    SocketAddrUnix::new(path).ok().filter(|_| is_path).ok_or_else(|| {
        let why = format!("not a path of at most {MOST} bytes");
        io::Error::new(io::ErrorKind::InvalidInput, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn an_address_is_no_longer_than_it_may_be() {
        for wrong in ["", &"x".repeat(200), &format!("@{}", "x".repeat(107))] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_closed_file_is_nobodys_whatever_its_name() {
        let folder = std::env::temp_dir();
        // The first has the name of a socket without a file, the second is no text.
        for end in [&b"@ix-sys"[..], b"ix-sys-\xff"] {
            let mut name = end.to_vec();
            name.extend(format!("-{}", std::process::id()).bytes());
            let path = folder.join(OsStr::from_bytes(&name));
            let _listener = listen_unix_closed(&path, 1).unwrap();
            let mode = std::fs::symlink_metadata(&path).unwrap().permissions().mode();
            let again = listen_unix_closed(&path, 1).unwrap_err();
            std::fs::remove_file(&path).unwrap();
            assert_eq!((mode & 0o777, again.kind()), (0, io::ErrorKind::AddrInUse));
        }
        {
            // Nobody accepts: the queue has room for two, and then there is an end to waiting.
            let path = std::env::temp_dir().join(format!("ix-full-{}", std::process::id()));
            let _ = std::fs::remove_file(&path);
            let listener = listen_unix_closed(&path, 1).unwrap();
            let connect = || connect_unix_within(&path, Duration::from_millis(20));
            let all: Vec<_> = (0..4).map(|_| connect()).collect();
            drop(listener);
            let nobody = connect();
            std::fs::remove_file(&path).unwrap();
            assert!(all[0].is_ok());
            let last = all[3].as_ref().unwrap_err();
            assert_eq!(last.kind(), io::ErrorKind::WouldBlock);
            assert_eq!(nobody.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        }
        for wrong in ["", "with\0zero", &"x".repeat(108)] {
            let e = listen_unix_closed(Path::new(wrong), 1).unwrap_err();
            assert_eq!(e.to_string(), "not a path of at most 107 bytes");
        }
    }
}
