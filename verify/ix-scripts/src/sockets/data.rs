//! Octets and datagrams: written, on their way, read.
use super::{Answer, Role, Sockets, errno_of};
use libc::c_int;
use libix::raw::call;
use std::net::SocketAddr;

/// Bytes given to the stack at once.
const PIECE_BYTES: u64 = 16 << 10;
/// How long a short segment waits for more at most, as the POSIX library has it.
const CORK_US: u64 = 200_000;

/// The longest block that Linux gives to a device at once.
const BLOCK_BYTES_MAX: u32 = 65_215;

/// What a call that writes says of the octet behind its last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Nothing.
    Open,
    /// It comes soon (`MSG_MORE`).
    More,
    /// It is of another message (`MSG_EOR`).
    Message,
}

impl End {
    /// What these flags of `send` say.
    pub fn of(flags: c_int) -> End {
        match flags {
            _ if flags & libc::MSG_EOR != 0 => End::Message,
            _ if flags & libc::MSG_MORE != 0 => End::More,
            _ => End::Open,
        }
    }
}

impl Sockets {
    /// `send` of these octets; returns how many were taken.
    pub fn write_bytes(&mut self, fd: c_int, bytes: &[u8], end: End) -> Answer {
        let len = bytes.len();
        let socket = self.get_mut(fd)?;
        if socket.error != 0 {
            return Err(std::mem::take(&mut socket.error));
        }
        match socket.role {
            _ if socket.flow.is_shut() || socket.dead.is_some() => return Err(libc::EPIPE),
            Role::Connection => {}
            Role::Connecting => return Err(libc::EAGAIN),
            _ => return Err(libc::ENOTCONN),
        }
        socket.more = end == End::More;
        let mut taken = 0;
        loop {
            let room = self.send_room(fd, len - taken)?;
            let n = self.take_bytes(fd, &bytes[taken..taken + room])?;
            taken += n;
            if end == End::Message && taken == len {
                self.get_mut(fd)?.flow.send.end_message();
            }
            if n == 0 && taken < len {
                break;
            }
            self.push(fd);
            if taken == len {
                break;
            }
        }
        if taken == 0 && len > 0 {
            return Err(libc::EAGAIN);
        }
        self.settle();
        Ok(taken as i64)
    }

    fn take_bytes(&mut self, fd: c_int, bytes: &[u8]) -> Result<usize, c_int> {
        let Sockets { sockets, stack: Some(stack), .. } = self else { return Err(libc::EBADF) };
        let Some(socket) = sockets.get_mut(&fd) else { return Err(libc::EBADF) };
        let n = stack.write(&mut socket.flow, bytes);
        socket.written += n as u64;
        Ok(n)
    }

    /// How many of `len` octets a write takes at once. One that neither the buffer nor
    /// `TCP_NOTSENT_LOWAT` limits takes them all. Else it goes in blocks, as Linux's: a block may
    /// begin while the buffer has room and less is unsent than the option says, and is filled then.
    fn send_room(&mut self, fd: c_int, len: usize) -> Result<usize, c_int> {
        let (sysctl, handle) = (self.settings.unsent_low, self.get(fd)?.flow.handle);
        let info = self.stack().inspect(handle).map(|(info, _)| info);
        let (buffer, unsent) = (self.send_buffer(fd)? as u64, self.unsent(fd)? as u64);
        let socket = self.get(fd)?;
        let free = buffer.saturating_sub(socket.flow.send.len());
        let low = socket.unsent_limit(sysctl);
        if low == u64::MAX && free >= len as u64 {
            return Ok(len);
        }
        let (mss, window) = info.map_or((1, 0), |info| (info.mss_bytes, info.snd_wnd_bytes));
        // As much as goes to a device at once, and half of the peer's window.
        let block = (window / 2).min(BLOCK_BYTES_MAX).max(mss) / mss * mss;
        let filled = unsent % u64::from(block);
        let room = match (filled, free > 0 && unsent < low) {
            (0, true) => block.into(),
            (0, false) => 0,
            _ => u64::from(block) - filled,
        };
        Ok(len.min(room as usize))
    }

    /// `recv`: takes (or looks at) up to `len` octets.
    pub fn receive(&mut self, fd: c_int, len: usize, peek: bool) -> Result<Vec<u8>, c_int> {
        let socket = self.get_mut(fd)?;
        match socket.role {
            Role::Connection => {}
            Role::Connecting => return Err(libc::EAGAIN),
            _ if socket.error != 0 => return Err(std::mem::take(&mut socket.error)),
            _ => return Err(libc::ENOTCONN),
        }
        if !socket.received.is_empty() {
            let n = len.min(socket.received.len());
            if peek {
                return Ok(socket.received.iter().take(n).copied().collect());
            }
            let bytes: Vec<u8> = socket.received.drain(..n).collect();
            let handle = socket.flow.handle;
            socket.read += n as u64;
            if socket.dead.is_none() {
                self.stack().call(call::recv_done(handle, n as u64)).ok();
                self.settle();
            }
            return Ok(bytes);
        }
        if socket.error != 0 {
            return Err(std::mem::take(&mut socket.error));
        }
        if socket.eof || socket.shut_read || socket.dead.is_some() {
            return Ok(Vec::new());
        }
        Err(libc::EAGAIN)
    }

    /// `connect` of a UDP socket: it sends to this port of the other end where a call does not say,
    /// and hears nobody else. `None` undoes it (`AF_UNSPEC`).
    pub fn connect_datagrams(&mut self, fd: c_int, port: Option<u16>) -> Answer {
        self.open_datagrams(fd)?;
        let remote = self.at.remote;
        self.get_mut(fd)?.peer = port.map(|port| SocketAddr::new(remote, port));
        Ok(0)
    }

    /// Opens a UDP socket that was not bound, at a port of the stack's choice, and answers its id.
    fn open_datagrams(&mut self, fd: c_int) -> Result<u64, c_int> {
        if self.get_mut(fd)?.role == Role::Fresh {
            self.bind(fd, 0)?;
            self.mark_packets(fd)?;
        }
        match self.get_mut(fd)?.role {
            Role::Datagrams(id) => Ok(id),
            _ => Err(libc::EOPNOTSUPP),
        }
    }

    /// `recvfrom` on a UDP socket: takes the next datagram, or looks at it.
    pub fn receive_datagram(
        &mut self,
        fd: c_int,
        peek: bool,
    ) -> Result<(Vec<u8>, SocketAddr), c_int> {
        let socket = self.get_mut(fd)?;
        if socket.error != 0 {
            return Err(std::mem::take(&mut socket.error));
        }
        let next = match peek {
            true => socket.datagrams_in.front().cloned(),
            false => socket.datagrams_in.pop_front(),
        };
        next.ok_or(libc::EAGAIN)
    }

    /// `sendto` on a UDP socket; without a port to where it is connected.
    pub fn send_datagram(&mut self, fd: c_int, bytes: &[u8], port: Option<u16>) -> Answer {
        let socket = self.get_mut(fd)?;
        if socket.error != 0 {
            return Err(std::mem::take(&mut socket.error));
        }
        let port = port.or(socket.peer.map(|peer| peer.port())).ok_or(libc::EDESTADDRREQ)?;
        let id = self.open_datagrams(fd)?;
        let to = SocketAddr::new(self.at.remote, port);
        let buffer = self.stack().buffer(bytes).ok_or(libc::ENOBUFS)?;
        let sent = self.stack().send_datagram((id, port), to, &buffer, 0).map_err(errno_of);
        self.settle();
        sent.map(|n| n as i64)
    }

    /// Gives the stack what a socket still has to send, and the end of its stream after it.
    pub(super) fn push(&mut self, fd: c_int) {
        let Sockets { sockets, stack: Some(stack), .. } = self else { return };
        let Some(socket) = sockets.get_mut(&fd) else { return };
        if socket.role != Role::Connection || socket.dead.is_some() {
            return;
        }
        let now_us = stack.now_us();
        let is_late = socket.held_until_us.is_some_and(|until_us| until_us <= now_us);
        let holds = (socket.corked || socket.more) && !is_late;
        let flow = &mut socket.flow;
        while flow.send.unsent() > 0 && !flow.is_blocked() {
            let before = flow.send.unsent();
            let mut limit = PIECE_BYTES;
            if holds && !flow.is_shut() {
                let mss = stack.inspect(flow.handle).map_or(1, |(info, _)| info.mss_bytes.into());
                let followed = flow.send.followed();
                limit = limit.min(followed + (before - followed) / mss * mss);
            }
            if limit == 0 {
                break;
            }
            stack.carry_out(flow, limit);
            if flow.send.unsent() == before {
                break;
            }
        }
        let waits = holds && flow.send.unsent() > 0 && !flow.is_shut();
        let until_us = socket.held_until_us.filter(|_| !is_late).unwrap_or(now_us + CORK_US);
        socket.held_until_us = waits.then_some(until_us);
        // A flow that was closed ends by `close`.
        if flow.send.unsent() == 0 && flow.is_shut() && !flow.has_sent_fin() && !socket.closing {
            stack.carry_out(flow, 0);
        }
        self.finish_close(fd);
    }

    /// `TCP_NODELAY` was set: what waits for more goes now, corked or not (tcp(7)).
    pub(super) fn release_now(&mut self, fd: c_int, on: bool) {
        let now_us = self.now_us();
        if let Some(socket) = self.sockets.get_mut(&fd)
            && on
            && let Some(until_us) = &mut socket.held_until_us
        {
            (*until_us, socket.more) = (now_us, false);
        }
    }

    /// Gives the stack the short segments whose time to wait for more is over.
    pub(super) fn release_held(&mut self) {
        let now_us = self.now_us();
        let late = |socket: &super::Socket| socket.held_until_us.is_some_and(|us| us <= now_us);
        let due: Vec<c_int> =
            self.sockets.iter().filter(|(_, socket)| late(socket)).map(|(fd, _)| *fd).collect();
        for fd in due {
            self.push(fd);
            if let Some(socket) = self.sockets.get_mut(&fd) {
                socket.held_until_us = None;
            }
        }
    }

    /// The last word on a socket that was closed: all is given to the stack.
    pub(super) fn finish_close(&mut self, fd: c_int) {
        let Some(socket) = self.sockets.get_mut(&fd) else { return };
        let flow = &socket.flow;
        let ends = flow.send.unsent() == 0 && !flow.has_sent_fin();
        if socket.closing && ends && socket.dead.is_none() {
            let handle = flow.handle;
            self.stack().call(call::close(handle)).ok();
            // Its memory stays with the process until the flow is gone; nobody hears when.
            if let Some(socket) = self.sockets.remove(&fd) {
                self.buried.push(socket.flow.send);
            }
        }
    }
}
