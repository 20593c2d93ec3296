//! Before a cycle: what the program has done becomes batched system calls. After it: their answers.
use crate::slab::Id;
use crate::socket::{Kind, Socket};
use crate::state::{Core, Pending, cookie};
use crate::stream::{CORK_US, Ending, Phase, Stream};
use ix_abi::{SgEntry, flow_opt};
use libix::Error;
use libix::raw::{Thread, call};
use std::net::SocketAddr;

/// Calls that one socket makes in one cycle at most.
const CALLS_A_SOCKET: usize = 10;
/// Transmit memory is asked for in steps of this.
const TX_STEP_BYTES: u64 = 2 << 20;
/// Longest idle time before keepalive that the dataplane knows.
const KEEP_IDLE_MAX_S: u32 = 0x7fff;

/// What became of a socket in `emit`.
enum Left {
    /// Nothing is left to do.
    Nothing,
    /// It has more calls to make in the next cycle.
    More,
    /// It is gone.
    Gone,
}

impl Core {
    /// Appends the calls that wait to the batch. Answers whether another cycle must follow soon: some
    /// calls were left, or something depends on their answers.
    pub fn emit(&mut self, thread: &mut Thread) -> bool {
        self.pending.clear();
        self.ask_for_memory(thread);
        self.touch_corked();
        self.emit_waiting(thread)
    }

    /// The same for the first batch, behind a call that is not ours: listeners and UDP sockets that
    /// were noted so far.
    pub fn emit_first(&mut self, thread: &mut Thread) {
        self.pending.clear();
        self.pending.push(Pending::Nothing);
        self.emit_waiting(thread);
    }

    /// Connections that hold bytes back look whether it is time.
    fn touch_corked(&mut self) {
        if self.corked.is_empty() {
            return;
        }
        let now_us = crate::drive::now_us();
        for id in core::mem::take(&mut self.corked) {
            let stream = self.sockets.get_mut(id).and_then(Socket::stream);
            match stream.and_then(|stream| stream.held_us) {
                Some(since_us) if now_us < since_us + CORK_US => self.corked.push(id),
                Some(_) => self.touch(id),
                None => {}
            }
        }
    }

    fn emit_waiting(&mut self, thread: &mut Thread) -> bool {
        for id in core::mem::take(&mut self.new_ports) {
            if let Some(port) = self.ports.get(id) {
                let listen = call::listen(port.at, port.backlog, id | cookie::PORT);
                self.push(thread, listen, Pending::Listen(id));
            }
        }
        let mut more = Vec::new();
        while thread.call_room() >= CALLS_A_SOCKET && thread.sg_room() {
            let Some(id) = self.dirty.pop_front() else { break };
            let Some(socket) = self.sockets.get_mut(id) else { continue };
            socket.dirty = false;
            match self.emit_socket(thread, id) {
                Left::Nothing => {}
                Left::More => more.push(id),
                Left::Gone => drop(self.sockets.remove(id)),
            }
        }
        let left = !self.dirty.is_empty() || !more.is_empty();
        // `UNLISTEN` refuses who was not accepted: first those are.
        if self.dirty.is_empty() {
            for listener in core::mem::take(&mut self.old_ports) {
                self.push(thread, call::unlisten(listener), Pending::Nothing);
            }
            for port in core::mem::take(&mut self.old_udp_ports) {
                self.push(thread, call::udp_unbind(port), Pending::Nothing);
            }
        }
        more.into_iter().for_each(|id| self.touch(id));
        left || self.pending.iter().any(|pending| self.is_urgent(pending))
    }

    /// Whether somebody waits for the answer, and no event comes of it.
    fn is_urgent(&self, pending: &Pending) -> bool {
        match pending {
            Pending::Info(..) | Pending::Listen(_) | Pending::UdpBind(_) | Pending::Memory => true,
            Pending::Sendv(id, offered) => {
                let Some(Kind::Stream(stream)) = self.sockets.get(*id).map(|s| &s.kind) else {
                    return false;
                };
                let ends = stream.write_shut || stream.ending != Ending::No;
                ends || (stream.outbox.unsent() > *offered && stream.held_us.is_none())
            }
            _ => false,
        }
    }

    fn push(&mut self, thread: &mut Thread, call: call::Batched, pending: Pending) {
        if thread.push(call).is_some() {
            self.pending.push(pending);
        }
    }

    fn ask_for_memory(&mut self, thread: &mut Thread) {
        let wants = self.tx.as_ref().is_some_and(|tx| tx.0.wants_memory());
        if wants && !self.memory_asked && !self.memory_refused {
            self.memory_asked = true;
            self.push(thread, call::tx_alloc(TX_STEP_BYTES), Pending::Memory);
        }
    }

    fn emit_socket(&mut self, thread: &mut Thread, id: Id) -> Left {
        if let Some(left) = self.emit_closing_datagrams(thread, id) {
            return left;
        }
        let Core { sockets, pending, datagrams, tx, corked: held, mss, udp_ports, .. } = self;
        let Some(socket) = sockets.get_mut(id) else { return Left::Nothing };
        let mut batch = Batch { thread, pending };
        let (keepalive, idle_s) = (socket.options.keepalive, socket.options.keep_idle_s);
        let corked = socket.options.cork;
        let bound = socket.bound;
        match &mut socket.kind {
            Kind::Stream(stream) => {
                let keepalive_s = if keepalive { idle_s.min(KEEP_IDLE_MAX_S) } else { 0 };
                if stream.wants_info
                    && stream.handle != 0
                    && let Some(mut memory) = tx.as_ref().and_then(|tx| tx.0.alloc(512))
                {
                    stream.wants_info = false;
                    let ask = call::get_info(stream.handle, &mut memory);
                    batch.push(ask, Pending::Info(id, memory));
                }
                let unheld = stream.held_us.is_none();
                let limit = stream.sendable(corked, *mss, crate::drive::now_us);
                if unheld && stream.held_us.is_some() {
                    held.push(id);
                }
                batch.stream(id, stream, bound, limit, keepalive_s)
            }
            Kind::Datagrams(udp) => {
                let name = udp.port;
                let Some(port) = udp_ports.get_mut(name) else { return Left::Nothing };
                let Some(socket) = port.id else {
                    if !core::mem::replace(&mut port.asked, true) {
                        batch.push(call::udp_bind(port.at, name), Pending::UdpBind(name));
                    }
                    return Left::Nothing;
                };
                while batch.thread.call_room() > 1
                    && let Some(data) = udp.done.pop()
                {
                    batch.push(call::udp_recv_done(data), Pending::Nothing);
                }
                while batch.thread.call_room() > 1
                    && batch.thread.sg_room()
                    && let Some((memory, to)) = udp.outbox.pop_front()
                {
                    let piece = SgEntry { base: memory.base(), len: memory.len() as u64 };
                    let name = datagrams.insert((memory, id)) | cookie::DATAGRAM;
                    let pieces = core::iter::once(piece);
                    if batch.thread.push_udp_sendv(socket, to, pieces, name).is_some() {
                        batch.pending.push(Pending::UdpSendv(name));
                    }
                }
                let left = !udp.outbox.is_empty() || !udp.done.is_empty();
                if left { Left::More } else { Left::Nothing }
            }
            Kind::Linux | Kind::Idle { .. } | Kind::Listener(_) | Kind::Lost => Left::Nothing,
        }
    }

    /// The program is done with a UDP socket: gives back what it has, then the port if nobody else is
    /// there. `None`: it is not so.
    fn emit_closing_datagrams(&mut self, thread: &mut Thread, id: Id) -> Option<Left> {
        let udp = self.sockets.get_mut(id)?.datagrams().filter(|udp| udp.closing)?;
        while thread.call_room() > 1 {
            let waiting = || udp.inbox.pop_front().map(|waiting| waiting.data);
            let Some(data) = udp.done.pop().or_else(waiting) else { break };
            if thread.push(call::udp_recv_done(data)).is_some() {
                self.pending.push(Pending::Nothing);
            }
        }
        if !udp.done.is_empty() || !udp.inbox.is_empty() {
            return Some(Left::More);
        }
        if let Some(port) = self.leave_udp_port(id) {
            self.push(thread, call::udp_unbind(port), Pending::Nothing);
        }
        Some(Left::Gone)
    }

    /// Takes the answers of the batch in.
    pub fn settle(&mut self, thread: &mut Thread) {
        let pending = core::mem::take(&mut self.pending);
        for (slot, pending) in pending.into_iter().enumerate() {
            let answer = thread.answer(slot);
            match pending {
                Pending::Nothing => {}
                Pending::Sendv(id, offered) => self.sendv_answered(id, offered, answer),
                Pending::Connect(id) => match answer {
                    Ok(handle) => {
                        if let Some(stream) = self.sockets.get_mut(id).and_then(Socket::stream) {
                            stream.handle = handle;
                            if stream.ending != Ending::No {
                                self.touch(id);
                            }
                        }
                    }
                    Err(error) => self.died(id, errno_of(error)),
                },
                Pending::Accept(id) => {
                    if answer.is_err() {
                        self.died(id, libc::ECONNRESET);
                    }
                }
                Pending::Listen(id) => self.listen_answered(id, answer),
                Pending::UdpBind(id) => self.udp_bind_answered(id, answer),
                Pending::UdpSendv(name) => {
                    if let Err(error) = answer {
                        self.datagram_left(name, errno_of(error));
                    }
                }
                Pending::Info(id, memory) => {
                    if let Some(stream) = self.sockets.get_mut(id).and_then(Socket::stream)
                        && let Some(info) = call::flow_info(&memory).filter(|_| answer.is_ok())
                    {
                        stream.local = Some(std::net::SocketAddr::new(
                            std::net::Ipv6Addr::from(info.local_addr).to_canonical(),
                            info.local_port,
                        ));
                        stream.info = Some(Box::new(info));
                        self.tell(id, 0);
                    }
                }
                Pending::Memory => {
                    self.memory_asked = false;
                    self.memory_refused = thread.adopt_tx(slot).is_err();
                }
            }
        }
    }

    fn sendv_answered(&mut self, id: Id, offered: u64, answer: Result<u64, Error>) {
        let Some(stream) = self.sockets.get_mut(id).and_then(Socket::stream) else { return };
        match answer {
            Ok(taken) => {
                stream.outbox.taken(taken);
                stream.blocked = taken < offered;
                let held = stream.held_us.is_some();
                let more = stream.outbox.unsent() > 0 && !stream.blocked && !held;
                let ends = stream.ending != Ending::No || stream.write_shut;
                if more || (ends && stream.outbox.unsent() == 0) {
                    self.touch(id);
                }
            }
            // `DEAD` says why.
            Err(Error::BadHandle) => {}
            Err(error) => self.died(id, errno_of(error)),
        }
    }

    fn listen_answered(&mut self, id: Id, answer: Result<u64, Error>) {
        let Some(port) = self.ports.get_mut(id) else { return };
        port.listener = Some(answer);
        if let Err(error) = answer {
            crate::log::line(&format!("cannot listen at {}: {error}", port.at));
        }
        let members = port.members.clone();
        if members.is_empty() {
            if let Ok(listener) = answer {
                self.old_ports.push(listener);
            }
            self.ports.remove(id);
        }
        members.into_iter().for_each(|member| self.tell(member, 0));
    }

    fn udp_bind_answered(&mut self, id: Id, answer: Result<u64, Error>) {
        let Some(port) = self.udp_ports.get_mut(id) else { return };
        port.id = answer.ok();
        let members = port.members.clone();
        if members.is_empty() {
            // All were closed meanwhile.
            self.old_udp_ports.extend(port.id);
            self.udp_ports.remove(id);
        }
        for member in members {
            if let (Err(error), Some(socket)) = (answer, self.sockets.get_mut(member)) {
                socket.error = errno_of(error);
            }
            self.touch(member);
            self.tell(member, 0);
        }
    }

    /// The memory of a datagram is free; with an errno, it was not sent.
    pub fn datagram_left(&mut self, name: u64, errno: i32) {
        let Some((memory, id)) = self.datagrams.remove(name & !cookie::DATAGRAM) else { return };
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let full = socket.readiness() & libc::EPOLLOUT as u32 == 0;
        if errno != 0 && errno != libc::ENOBUFS {
            socket.error = errno;
        }
        if let Some(udp) = socket.datagrams() {
            udp.flying -= memory.len().max(1).min(udp.flying);
        }
        if full || errno != 0 {
            self.tell(id, libc::EPOLLOUT | if errno != 0 { libc::EPOLLERR } else { 0 });
        }
    }
}

/// The call array and what its answers are for.
struct Batch<'a> {
    thread: &'a mut Thread,
    pending: &'a mut Vec<Pending>,
}

impl Batch<'_> {
    fn push(&mut self, call: call::Batched, pending: Pending) {
        if self.thread.push(call).is_some() {
            self.pending.push(pending);
        }
    }

    fn stream(
        &mut self,
        id: Id,
        stream: &mut Stream,
        bound: Option<SocketAddr>,
        limit: u64,
        keepalive_s: u32,
    ) -> Left {
        match stream.phase {
            Phase::ToConnect => {
                let connect = match bound {
                    Some(at) if !at.ip().is_unspecified() => {
                        call::connect_from(id, stream.peer, at)
                    }
                    _ => call::connect(id, stream.peer, bound.map_or(0, |at| at.port())),
                };
                self.push(connect, Pending::Connect(id));
                stream.phase = Phase::Connecting;
                return Left::Nothing;
            }
            Phase::ToAccept => {
                self.push(call::accept(stream.handle, id), Pending::Accept(id));
                stream.phase = Phase::Open;
            }
            Phase::Dead => {
                let gone = stream.ending != Ending::No;
                return if gone { Left::Gone } else { Left::Nothing };
            }
            Phase::Connecting | Phase::Open => {}
        }
        let handle = stream.handle;
        if handle == 0 {
            return Left::Nothing;
        }
        if stream.ending == Ending::Abort {
            self.push(call::abort(handle), Pending::Nothing);
            return Left::Gone;
        }
        if stream.phase == Phase::Connecting {
            return Left::Nothing;
        }
        if core::mem::take(&mut stream.options_changed) {
            let set = call::set_opt(handle, flow_opt::KEEPALIVE_S, keepalive_s.into());
            self.push(set, Pending::Nothing);
        }
        if stream.inbox.has_done() {
            self.push(call::recv_done(handle, stream.inbox.take_done()), Pending::Nothing);
        }
        let ends = stream.write_shut || stream.ending == Ending::Close;
        if limit > 0 && !stream.blocked {
            let pieces = stream.outbox.pieces(limit);
            if let Some((_, offered)) = self.thread.push_sendv(handle, pieces) {
                self.pending.push(Pending::Sendv(id, offered));
            }
            // What follows depends on how much the window takes.
            return Left::Nothing;
        }
        if ends && stream.outbox.unsent() == 0 && !stream.fin {
            stream.fin = true;
            self.push(call::shutdown(handle), Pending::Nothing);
        }
        if stream.ending == Ending::Close && stream.outbox.len() == 0 {
            self.push(call::close(handle), Pending::Nothing);
            return Left::Gone;
        }
        Left::Nothing
    }
}

/// Linux's name of a refusal.
pub fn errno_of(error: Error) -> i32 {
    match error {
        Error::NoSys => libc::ENOSYS,
        Error::Invalid => libc::EINVAL,
        Error::BadHandle => libc::EBADF,
        Error::Fault => libc::EFAULT,
        Error::NoResource => libc::ENOBUFS,
        Error::InUse => libc::EADDRINUSE,
        Error::NotLocal => libc::EADDRNOTAVAIL,
        Error::Unreachable => libc::EHOSTUNREACH,
        Error::Refused => libc::ECONNREFUSED,
        Error::TimedOut => libc::ETIMEDOUT,
        Error::Reset => libc::ECONNRESET,
        Error::State => libc::EPIPE,
        Error::TooLong => libc::EMSGSIZE,
        _ => libc::EIO,
    }
}
