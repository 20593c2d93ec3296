//! The socket of Linux under a UDP socket of IX: through it the program hears what does not come by
//! IX's interface, which is the host itself, containers and other interfaces, and answers it.
use super::{Instead, watches_become_ours};
use crate::epoll_set::quietly;
use crate::route::Whose;
use crate::slab::Id;
use crate::socket::{Kind, Socket};
use crate::state::Core;
use crate::{clock, family, mem, real};
use core::mem::{MaybeUninit, size_of_val};
use core::ptr::null_mut;
use libc::{MSG_DONTWAIT, MSG_PEEK, c_int, sockaddr_storage, socklen_t};
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// How long a socket that does not wait goes without a look at Linux, µs. A look is a system call.
const LOOKS_US: u64 = 100;
/// How many datagrams of IX are received until Linux is looked at, where IX always has one.
const LOOKS_EVERY: u32 = 256;

impl Core {
    /// Whether Linux has a socket under this one, by which the program hears datagrams as well.
    pub fn hears_linux(&self, id: Id) -> bool {
        matches!(self.sockets.get(id).map(|s| &s.kind), Some(Kind::Datagrams(udp)) if udp.both)
    }

    /// Whether it is Linux's turn although IX may have datagrams, which may never end.
    pub fn is_turn_of_linux(&mut self, id: Id) -> bool {
        let Some(udp) = self.sockets.get_mut(id).and_then(Socket::datagrams) else { return false };
        udp.since_linux += 1;
        let turns = udp.since_linux >= LOOKS_EVERY;
        if turns {
            udp.since_linux = 0;
        }
        turns
    }

    /// Whether something may have come by Linux since the last look.
    pub fn linux_may_have(&mut self, id: Id) -> bool {
        let news = self.linux_side.news;
        let Some(udp) = self.sockets.get_mut(id).and_then(Socket::datagrams) else { return false };
        udp.linux_seen != news || clock::now_us() >= udp.linux_looked_us + LOOKS_US
    }

    /// Whether a datagram to this address, or without one to the peer, leaves by Linux.
    pub fn leaves_by_linux(&mut self, id: Id, to: Option<SocketAddr>) -> Result<bool, i32> {
        let Some(socket) = self.sockets.get_mut(id) else { return Ok(false) };
        let has_device = socket.options.device.is_some();
        let bound = socket.bound.map(|at| at.ip());
        let Some(udp) = socket.datagrams().filter(|udp| udp.both) else { return Ok(false) };
        let Some(to) = to.map(|to| to.ip()) else { return Ok(udp.peer_of_linux) };
        if let Some(by_linux) = self.linux_side.way(to).filter(|_| !has_device) {
            return Ok(by_linux);
        }
        if has_device || !self.routes.are_linuxs(to) {
            return Ok(self.whose(id, to)? == Whose::Linux);
        }
        let whose = self.ask_linux(to, bound).unwrap_or_else(|| self.routes.connect(to));
        self.linux_side.has_way(to, whose == Whose::Linux);
        Ok(whose == Whose::Linux)
    }

    /// Takes a datagram from Linux; `None`: it has none. `receive` makes the program's own call
    /// with these flags beside its own, and must be no cancellation point.
    pub fn take_from_linux(
        &mut self,
        id: Id,
        fd: RawFd,
        receive: impl FnOnce(c_int) -> isize,
    ) -> Option<Instead> {
        match sender_of_next(fd) {
            Ok(from) => {
                if let Some(from) = from {
                    self.linux_side.has_way(from.ip(), true);
                }
                match receive(MSG_DONTWAIT) {
                    done if done >= 0 => return Some(Instead::Made(done)),
                    _ if real::found_nothing(real::errno()) => {}
                    _ => return Some(real::errno().into()),
                }
            }
            Err(errno) if real::found_nothing(errno) => {}
            Err(errno) => return Some(errno.into()),
        }
        let news = self.linux_side.news;
        if let Some(udp) = self.sockets.get_mut(id).and_then(Socket::datagrams) {
            (udp.linux_seen, udp.linux_looked_us) = (news, clock::now_us());
        }
        None
    }

    /// A UDP socket of both sides gets a peer. If that is IX's, nothing is heard of Linux any more,
    /// which gets the peer too: others than it are for other sockets at the same port.
    pub fn datagrams_have_peer(&mut self, fd: RawFd, id: Id, to: SocketAddr) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let ipv6 = socket.ipv6;
        let Some(udp) = socket.datagrams().filter(|udp| udp.both) else { return };
        udp.both = false;
        watches_become_ours(self, id);
        let (mut at, mut len) =
            (MaybeUninit::<sockaddr_storage>::zeroed(), size_of::<sockaddr_storage>() as socklen_t);
        // SAFETY: room of ours with its length; then the system call reads it.
        unsafe {
            mem::write_address(to, ipv6, at.as_mut_ptr().cast(), &raw mut len);
            libc::syscall(libc::SYS_connect, fd, at.as_ptr(), len);
        }
    }

    /// The entries of a UDP socket of both sides in epoll sets are reported by both from now on.
    pub fn watches_become_both(&mut self, id: Id) {
        for watch in self.sockets.get(id).map_or(Vec::new(), |socket| socket.watches.clone()) {
            if let Some(set) = self.sets.get_mut(watch.set) {
                set.becomes_both(watch.key);
                if let Some(mut event) = set.on_linux(watch.key) {
                    quietly(set.real, libc::EPOLL_CTL_MOD, watch.key.fd, Some(&mut event));
                }
            }
        }
    }
}

/// The sender of the next datagram that Linux has; or an errno.
fn sender_of_next(fd: RawFd) -> Result<Option<SocketAddr>, i32> {
    let mut from = MaybeUninit::<sockaddr_storage>::zeroed();
    let mut len = size_of_val(&from) as socklen_t;
    let (nothing, flags) = (null_mut::<u8>(), MSG_PEEK | MSG_DONTWAIT);
    real::own_call();
    // SAFETY: no bytes, and room of ours with its length.
    unsafe {
        let (at, len_at) = (from.as_mut_ptr(), &raw mut len);
        if libc::syscall(libc::SYS_recvfrom, fd, nothing, 0, flags, at, len_at) < 0 {
            return Err(real::errno());
        }
        Ok(mem::read_address(from.as_ptr().cast(), len).ok().map(family::canonical))
    }
}
