//! Descriptors that a base waits for: an epoll set, and which events wait for each descriptor.
use crate::event::{Ev, what};
use core::ffi::c_int;
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, epoll_event};
use std::io;

/// Most descriptors that one wait reports.
const READY_MAX: usize = 256;

#[derive(Default)]
struct Watched {
    events: Vec<Ev>,
    /// The mask that the kernel's set has.
    mask: u32,
}

/// An epoll set with the events that wait for its descriptors.
pub struct Poll {
    set: c_int,
    by_fd: Vec<Watched>,
}

/// The result of a wait: descriptors, and for what they are ready.
pub type Ready = Vec<(c_int, i16)>;

impl Poll {
    /// An empty set.
    pub fn new() -> io::Result<Poll> {
        // SAFETY: a plain call.
        let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if set < 0 { Err(io::Error::last_os_error()) } else { Ok(Poll { set, by_fd: Vec::new() }) }
    }

    /// The set, for [`wait`].
    pub fn set(&self) -> c_int {
        self.set
    }

    /// Makes waits end when a descriptor of the library is readable.
    pub fn watch(&self, fd: c_int) -> io::Result<()> {
        self.control(EPOLL_CTL_ADD, fd as usize, libc::EPOLLIN as u32)
    }

    /// All events.
    pub fn all(&self) -> Vec<Ev> {
        self.by_fd.iter().flat_map(|watched| watched.events.iter().copied()).collect()
    }

    /// An event waits for its descriptor.
    pub fn add(&mut self, ev: Ev) -> io::Result<()> {
        let fd = usize::try_from(ev.fd.get()).map_err(|_| io::ErrorKind::InvalidInput)?;
        if fd >= self.by_fd.len() {
            self.by_fd.resize_with(fd + 1, Watched::default);
        }
        self.by_fd[fd].events.push(ev);
        let told = self.tell(fd);
        if told.is_err() {
            self.by_fd[fd].events.retain(|other| *other != ev);
        }
        told
    }

    /// An event waits no more. An error of the kernel does not matter: the program may have closed
    /// the descriptor.
    pub fn remove(&mut self, ev: Ev) {
        let fd = ev.fd.get() as usize;
        let Some(watched) = self.by_fd.get_mut(fd) else { return };
        watched.events.retain(|other| *other != ev);
        let _ = self.tell(fd);
    }

    /// Events that wait for a descriptor.
    pub fn events(&self, fd: c_int) -> &[Ev] {
        self.by_fd.get(fd as usize).map_or(&[], |watched| &watched.events)
    }

    fn tell(&mut self, fd: usize) -> io::Result<()> {
        let watched = &mut self.by_fd[fd];
        let wanted = watched.events.iter().fold(0, |mask, ev| mask | mask_of(ev.events.get()));
        let before = core::mem::replace(&mut watched.mask, wanted);
        if wanted == before {
            return Ok(());
        }
        let op = match (before, wanted) {
            (0, _) => EPOLL_CTL_ADD,
            (_, 0) => EPOLL_CTL_DEL,
            _ => EPOLL_CTL_MOD,
        };
        let told = self.control(op, fd, wanted).or_else(|error| {
            match (op, error.raw_os_error()) {
                // It was closed and opened again, or a copy of it is still in the set.
                (EPOLL_CTL_MOD, Some(libc::ENOENT)) => self.control(EPOLL_CTL_ADD, fd, wanted),
                (EPOLL_CTL_ADD, Some(libc::EEXIST)) => self.control(EPOLL_CTL_MOD, fd, wanted),
                _ => Err(error),
            }
        });
        if told.is_err() {
            self.by_fd[fd].mask = if op == EPOLL_CTL_DEL { 0 } else { before };
        }
        told
    }

    fn control(&self, op: c_int, fd: usize, mask: u32) -> io::Result<()> {
        let mut event = epoll_event { events: mask, u64: fd as u64 };
        // SAFETY: a set of ours, and a local.
        let answer = unsafe { libc::epoll_ctl(self.set, op, fd as c_int, &mut event) };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Poll {
    fn drop(&mut self) {
        // SAFETY: ours alone.
        unsafe { libc::close(self.set) };
    }
}

fn mask_of(events: i16) -> u32 {
    let bit = |what, bit: c_int| if events & what != 0 { bit as u32 } else { 0 };
    bit(what::READ, libc::EPOLLIN)
        | bit(what::WRITE, libc::EPOLLOUT)
        | bit(what::CLOSED, libc::EPOLLRDHUP)
        | bit(what::ET, libc::EPOLLET)
}

/// Waits without a lock for descriptors of a set. A `timeout_us` of `u64::MAX` has no limit.
pub fn wait(set: c_int, timeout_us: u64, ready: &mut Ready) -> io::Result<()> {
    ready.clear();
    let mut told = [epoll_event { events: 0, u64: 0 }; READY_MAX];
    let time_ms = match timeout_us {
        u64::MAX => -1,
        us => us.div_ceil(1000).min(c_int::MAX as u64) as c_int,
    };
    // SAFETY: an array with its length.
    let n = unsafe { libc::epoll_wait(set, told.as_mut_ptr(), READY_MAX as c_int, time_ms) };
    if n < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
    }
    ready.extend(told[..n as usize].iter().map(|event| {
        let bits = event.events as c_int;
        let mut result = 0;
        if bits & libc::EPOLLERR != 0
            || bits & (libc::EPOLLHUP | libc::EPOLLRDHUP) == libc::EPOLLHUP
        {
            result = what::READ | what::WRITE;
        } else {
            for (bit, what) in [
                (libc::EPOLLIN, what::READ),
                (libc::EPOLLOUT, what::WRITE),
                (libc::EPOLLRDHUP, what::CLOSED),
            ] {
                if bits & bit != 0 {
                    result |= what;
                }
            }
        }
        (event.u64 as c_int, result)
    }));
    Ok(())
}
