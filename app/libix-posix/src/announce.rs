//! Says whose a program's sockets are: one line for each address that it listens on or is refused,
//! and one for its first outgoing connection on IX and on Linux. What a program forks says nothing
//! twice. The lines are kept for `ix ctl dump` too.
use crate::commons;
use crate::lock::lock;
use crate::ops::{Instead, Outcome, linux_name, socket_of};
use crate::route::Whose;
use crate::socket::{Kind, Socket};
use crate::state::Core;
use crate::{family, fds, log, own_calls};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::time::{SystemTime, UNIX_EPOCH};

/// Most addresses that are named.
const NAMED_MAX: usize = 32;

/// What was said, shared by all processes of the run.
struct Said {
    /// Hashes of what is listened on, and by whom, and of what was refused.
    listeners: [AtomicU64; NAMED_MAX],
    /// That there are more.
    more: AtomicBool,
    /// An outgoing connection: of IX, of Linux.
    connects: [AtomicBool; 2],
    /// Device and number of the file that standard error was at the start.
    standard_error: [AtomicU64; 2],
    /// Bytes of lines that are kept.
    kept: AtomicUsize,
}

static SAID: AtomicPtr<Said> = AtomicPtr::new(null_mut());

/// At the start: what the processes of the run share.
pub fn begin_run() {
    let Some(page) = commons::part::<Said>() else { return };
    // SAFETY: ours, of this size, and all zero at first, which is a value of each of its parts.
    let said = unsafe { &*page };
    if !commons::is_executed() {
        let Some([device, number]) = standard_error() else { return };
        said.standard_error[0].store(device, Ordering::Relaxed);
        said.standard_error[1].store(number, Ordering::Relaxed);
    }
    SAID.store(page, Ordering::Release);
}

fn said() -> Option<&'static Said> {
    // SAFETY: null, or a page of ours, which is never unmapped.
    unsafe { SAID.load(Ordering::Acquire).as_ref() }
}

/// What tells the file of standard error from others.
fn standard_error() -> Option<[u64; 2]> {
    fds::status(libc::STDERR_FILENO).map(|file| [file.st_dev, file.st_ino])
}

impl Said {
    /// Keeps a line, and writes it where the user reads it.
    fn line(&self, text: &str) {
        self.keep(text);
        if self.has_reader() {
            log::line(text);
        }
    }

    /// Whether lines are written: not if the program has made another file of its standard error,
    /// which may be one of its own that no line of ours may get into.
    fn has_reader(&self) -> bool {
        let first = [0, 1].map(|part: usize| self.standard_error[part].load(Ordering::Relaxed));
        standard_error() == Some(first)
    }

    /// Keeps a line for reports of faults.
    fn keep(&self, text: &str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = ix_sys::log::time(now.map_or(0, |now| now.as_millis() as u64));
        let line = format!("{now} {}\n", ix_sys::log::one_line(text));
        let at = self.kept.fetch_add(line.len(), Ordering::Relaxed);
        own_calls::keep_line(at, line.as_bytes());
    }

    /// Names what is listened on, once.
    fn listener(&self, stream: bool, at: SocketAddr, whose: Whose) {
        if self.notes(&(stream, at, whose)) {
            let what = if stream { "listening on" } else { "receiving datagrams on" };
            let at = family::shown(at);
            self.line(&format!("{what} {at}: {}", owner(whose, at.ip(), "no address of IX")));
        }
    }

    /// Notes what is listened on. Returns whether it is new; says so when there are too many.
    fn notes(&self, what: &(bool, SocketAddr, Whose)) -> bool {
        let (stream, at, whose) = what;
        let is_new = self.is_new((stream, at, *whose as u8));
        if is_new.is_none() && !self.more.swap(true, Ordering::Relaxed) {
            self.line("it listens on more addresses and ports, which are not named here");
        }
        is_new == Some(true)
    }

    /// Notes what is said once. `None`: there are too many to tell.
    fn is_new(&self, what: impl Hash) -> Option<bool> {
        let hash = BuildHasherDefault::<DefaultHasher>::new();
        let key = hash.hash_one(what).max(1);
        for slot in &self.listeners {
            match slot.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(true),
                Err(other) if other == key => return Some(false),
                Err(_) => {}
            }
        }
        None
    }
}

/// A program listens: says where, and whose it is.
#[cold]
pub fn listens(fd: RawFd) {
    let Some(said) = said() else { return };
    let Some(socket) = look(fd, |_, socket| match &socket.kind {
        Kind::Listener(listener) if listener.both => (Whose::Both, socket.bound),
        Kind::Listener(_) => (Whose::Ix, socket.bound),
        _ => (Whose::Linux, None),
    }) else {
        return;
    };
    let (whose, bound) = socket;
    let Some(at) = bound.or_else(|| linux_name(fd).ok()) else { return };
    said.listener(true, at, whose);
}

/// A program has bound a socket to a port that it chose: if that is a UDP socket of IX, says where
/// and whose it is.
#[cold]
pub fn binds(fd: RawFd) {
    let Some(said) = said() else { return };
    let bound = look(fd, |_, socket| match &socket.kind {
        Kind::Datagrams(udp) if udp.both => Some((Whose::Both, socket.bound?)),
        Kind::Datagrams(_) => Some((Whose::Ix, socket.bound?)),
        _ => None,
    });
    if let Some(Some((whose, at))) = bound {
        said.listener(false, at, whose);
    }
}

/// The program was refused an address with this errno: says so, once for each, when it happens. A
/// server may go on without it. Returns whether the user has read so, now or before.
#[cold]
pub fn refused(at: SocketAddr, errno: i32) -> bool {
    let Some(said) = said() else { return false };
    let at = family::shown(family::canonical(at));
    let is_new = said.is_new((at, errno));
    if is_new == Some(true) {
        let why = match errno {
            libc::EACCES => {
                "ports this low need a right that it does not have (EACCES); give it a port above \
                 1023, or run it as root (--user root), and have it become no other user before it \
                 binds"
            }
            _ => {
                "another socket has that port (EADDRINUSE); `ss -lntup` says whose it is: stop \
                 that program, or give this one another port"
            }
        };
        said.line(&format!("the program was refused {at}: {why}"));
    }
    is_new.is_some() && said.has_reader()
}

/// A program connects with this outcome, which on Linux is still to come: says whose the first
/// connection is on each side.
pub fn connects(fd: RawFd, to: SocketAddr, outcome: Outcome<()>) {
    let Some(said) = said() else { return };
    let whose = match outcome {
        Ok(()) | Err(Instead::Errno(libc::EINPROGRESS)) => Whose::Ix,
        Err(Instead::Linux) => Whose::Linux,
        Err(_) => return,
    };
    let told = &said.connects[usize::from(whose == Whose::Linux)];
    if !told.load(Ordering::Relaxed) && is_tcp(fd, whose) && !told.swap(true, Ordering::Relaxed) {
        said.line(&format!(
            "first connection to {to}: {}",
            owner(whose, to.ip(), "this host itself, or no route of IX")
        ));
    }
}

/// Whether a socket that connects is one of TCP.
fn is_tcp(fd: RawFd, whose: Whose) -> bool {
    if whose == Whose::Ix {
        return look(fd, |_, socket| matches!(socket.kind, Kind::Stream(_))) == Some(true);
    }
    let (mut kind, mut len) = (0, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the system call itself, with a number of ours and its length.
    let outcome = unsafe {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_TYPE);
        libc::syscall(libc::SYS_getsockopt, fd, level, name, &raw mut kind, &raw mut len)
    };
    outcome == 0 && kind == libc::SOCK_STREAM
}

/// Looks at the socket behind a descriptor.
fn look<T>(fd: RawFd, at: impl FnOnce(&Core, &Socket) -> T) -> Option<T> {
    let mut core = lock();
    let id = socket_of(&mut core, fd).ok()?;
    core.sockets.get(id).map(|socket| at(&core, socket))
}

/// Whose a socket is at this address, and if it is Linux's, why.
fn owner(whose: Whose, at: IpAddr, why: &str) -> String {
    match whose {
        Whose::Ix => "IX".to_owned(),
        Whose::Both => "IX, and Linux on the loopback and its own addresses".to_owned(),
        Whose::Linux if at.is_loopback() => "Linux (loopback)".to_owned(),
        Whose::Linux if family::is_of_link(at) => "Linux (link-local)".to_owned(),
        Whose::Linux => format!("Linux ({why})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_named_once_and_too_many_are_not() {
        let said = Said {
            listeners: [const { AtomicU64::new(0) }; NAMED_MAX],
            more: AtomicBool::new(false),
            connects: [const { AtomicBool::new(false) }; 2],
            standard_error: [const { AtomicU64::new(0) }; 2],
            kept: AtomicUsize::new(0),
        };
        let at = |port: usize| SocketAddr::new([10, 0, 0, 2].into(), port as u16);
        for port in 1..=NAMED_MAX / 2 {
            assert!(said.notes(&(true, at(port), Whose::Ix)));
            assert!(!said.notes(&(true, at(port), Whose::Ix)), "twice");
            assert!(said.notes(&(false, at(port), Whose::Ix)), "UDP has ports of its own");
        }
        assert!(!said.more.load(Ordering::Relaxed));
        assert!(!said.notes(&(true, at(7000), Whose::Ix)));
        assert!(said.more.load(Ordering::Relaxed));
        assert!(!said.notes(&(true, at(1), Whose::Ix)), "known ones stay known");
        assert_eq!(said.is_new((at(1), libc::EADDRINUSE)), None, "no room");
    }

    #[test]
    fn owners_are_named_with_the_reason() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        for (whose, at, expected) in [
            (Whose::Ix, "10.0.0.2", "IX"),
            (Whose::Both, "0.0.0.0", "IX, and Linux on the loopback and its own addresses"),
            (Whose::Linux, "127.0.0.1", "Linux (loopback)"),
            (Whose::Linux, "::1", "Linux (loopback)"),
            (Whose::Linux, "fe80::1", "Linux (link-local)"),
            (Whose::Linux, "192.168.1.1", "Linux (why)"),
        ] {
            assert_eq!(owner(whose, ip(at), "why"), expected);
        }
    }
}
