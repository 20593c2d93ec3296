//! Before a cycle: what the program has done becomes batched system calls. After it: their answers.
use crate::lane::{Lane, Name};
use crate::slab::Id;
use crate::socket::{FlowOptions, Kind, Manner, Options, Outgoing, Socket};
use crate::state::{Core, Pending, cookie};
use crate::stream::{CORK_US, Phase, Stream};
use ix_abi::{FlowOption, Handle, SgEntry};
use libix::Error;
use libix::engine::{Batch, Emitted, Ending};
use libix::raw::{Thread, call};
use std::net::SocketAddr;

/// Calls that one socket makes in one cycle at most.
const CALLS_A_SOCKET: usize = 16;
/// Calls that one datagram makes at most.
const CALLS_A_DATAGRAM: usize = 4;

/// What became of a socket in `emit`.
enum Left {
    /// Nothing is left to do.
    Nothing,
    /// It has more calls to make in the next cycle.
    More,
    /// What follows depends on the answers of its calls.
    Unfinished,
    /// It is gone.
    Gone,
}

impl Core {
    /// Appends the calls that wait to the batch. Returns whether another cycle must follow soon: some
    /// calls were left, or something depends on their answers.
    pub fn emit(&mut self, lane: usize, thread: &mut Thread) -> bool {
        self.lanes[lane].batch.refill(thread);
        self.ask_for_memory(lane, thread);
        self.touch_corked(lane);
        self.accept_deferred(lane);
        self.emit_waiting(lane, thread)
    }

    /// The same for the first batch, behind a call that is not ours: listeners and UDP sockets that
    /// were noted so far.
    pub fn emit_first(&mut self, lane: usize, thread: &mut Thread) {
        self.lanes[lane].batch.pushed(Pending::Nothing);
        self.emit_waiting(lane, thread);
    }

    /// Connections that hold bytes back look whether it is time.
    fn touch_corked(&mut self, lane: usize) {
        if self.lanes[lane].corked.is_empty() {
            return;
        }
        let now_us = crate::drive::now_us();
        for id in core::mem::take(&mut self.lanes[lane].corked) {
            let stream = self.sockets.get_mut(id).and_then(Socket::stream);
            match stream.and_then(|stream| stream.held_us) {
                Some(since_us) if now_us < since_us + CORK_US => {
                    self.lanes[lane].corked.push(id);
                }
                Some(_) => self.touch(id),
                None => {}
            }
        }
    }

    /// Connections whose peers have said nothing for so long are accepted all the same.
    fn accept_deferred(&mut self, lane: usize) {
        if self.lanes[lane].deferred.is_empty() {
            return;
        }
        let now_us = crate::drive::now_us();
        for id in core::mem::take(&mut self.lanes[lane].deferred) {
            let stream = self.sockets.get_mut(id).and_then(Socket::stream);
            match stream.and_then(|stream| stream.deferred_until_us) {
                Some(until_us) if now_us < until_us => self.lanes[lane].deferred.push(id),
                Some(_) => self.enters_queue(id),
                None => {}
            }
        }
    }

    fn emit_waiting(&mut self, lane: usize, thread: &mut Thread) -> bool {
        let (mut more, mut unfinished) = (Vec::new(), false);
        while self.lanes[lane].batch.has_room(thread, CALLS_A_SOCKET) {
            let Some(id) = self.lanes[lane].dirty.pop_front() else { break };
            // One that was refused here stands in the list of another one now.
            let here = |socket: &&mut Socket| socket.lane == lane;
            let Some(socket) = self.sockets.get_mut(id).filter(here) else { continue };
            socket.dirty = false;
            match self.emit_socket(lane, thread, id) {
                Left::Nothing => {}
                Left::More => more.push(id),
                Left::Unfinished => unfinished = true,
                Left::Gone => drop(self.sockets.remove(id)),
            }
        }
        // `UNLISTEN` refuses who was not accepted: first those are.
        let Lane { dirty, old_ports, old_udp_ports, batch, .. } = &mut self.lanes[lane];
        if dirty.is_empty() {
            for listener in old_ports.drain(..) {
                batch.push(thread, call::unlisten(listener), Pending::Nothing);
            }
            for port in old_udp_ports.drain(..) {
                batch.push(thread, call::udp_unbind(port), Pending::Nothing);
            }
        }
        // A new listener may have the port of one that has just been closed.
        if old_ports.is_empty() && old_udp_ports.is_empty() {
            self.emit_new_ports(lane, thread);
        }
        let left = unfinished || !more.is_empty() || self.lanes[lane].has_calls();
        more.into_iter().for_each(|id| self.touch(id));
        left || self.lanes[lane].batch.pending().iter().any(Pending::is_urgent)
    }

    fn emit_new_ports(&mut self, lane: usize, thread: &mut Thread) {
        let Core { ports, udp_ports, lanes, .. } = self;
        let Lane { new_ports, new_udp_ports, batch, .. } = &mut lanes[lane];
        while let Some(id) = new_ports.pop() {
            let Some(port) = ports.get_mut(id) else { continue };
            port.names.set(lane, Name::Asked);
            let listen = call::listen(port.at, port.backlog, id | cookie::PORT);
            batch.push(thread, listen, Pending::Listen(id));
        }
        while let Some(id) = new_udp_ports.pop() {
            let Some(port) = udp_ports.get_mut(id) else { continue };
            port.names.set(lane, Name::Asked);
            batch.push(thread, call::udp_bind(port.at, id), Pending::UdpBind(id));
        }
    }

    fn ask_for_memory(&mut self, index: usize, thread: &mut Thread) {
        let Lane { tx, memory, batch, .. } = &mut self.lanes[index];
        if tx.as_ref().is_some_and(|tx| memory.is_short(&tx.0))
            && let Some(ask) = memory.request(thread.now_us())
        {
            batch.push(thread, ask, Pending::Memory);
        }
    }

    fn emit_socket(&mut self, lane: usize, thread: &mut Thread, id: Id) -> Left {
        if self.close_datagrams(id) {
            return Left::Gone;
        }
        let Core { sockets, lanes, lent, mss, udp_ports, .. } = self;
        let Lane { batch, tx, corked: held, .. } = &mut lanes[lane];
        let Some(socket) = sockets.get_mut(id) else { return Left::Nothing };
        let mut calls = Calls { thread, batch };
        let corked = socket.options.cork;
        let bound = socket.bound;
        match &mut socket.kind {
            Kind::Stream(stream) => {
                let mut asks_again = false;
                if stream.wants_info && stream.flow.handle != 0 {
                    match tx.as_ref().and_then(|tx| tx.0.alloc(512)) {
                        Some(mut memory) => {
                            stream.wants_info = false;
                            let ask = call::get_info(stream.flow.handle, &mut memory);
                            let name = lent.insert((memory, id)) | cookie::MEMORY;
                            calls.push(ask, Pending::Info(name));
                        }
                        // No event says when there is memory again.
                        None => asks_again = true,
                    }
                }
                let unheld = stream.held_us.is_none();
                let limit = stream.sendable(corked, *mss, crate::drive::now_us);
                if unheld && stream.held_us.is_some() {
                    held.push(id);
                }
                match calls.stream(id, stream, bound, limit, &socket.options) {
                    Left::Nothing if asks_again => Left::More,
                    left => left,
                }
            }
            Kind::Datagrams(udp) => {
                let Some(port) = udp_ports.get_mut(udp.port) else { return Left::Nothing };
                // Its answer brings the socket back here.
                let Some(socket) = port.names.get(lane) else { return Left::Nothing };
                while calls.has_room(CALLS_A_DATAGRAM)
                    && let Some(Outgoing { memory, to, manner }) = udp.outbox.pop_front()
                {
                    calls.datagram_options(socket, port.told(lane), manner);
                    let piece = SgEntry { base: memory.base(), len: memory.len() as u64 };
                    let name = lent.insert((memory, id)) | cookie::MEMORY;
                    calls.datagram((socket, to), piece, name);
                }
                if udp.outbox.is_empty() { Left::Nothing } else { Left::More }
            }
            Kind::Linux | Kind::Idle { .. } | Kind::Listener(_) | Kind::Lost => Left::Nothing,
        }
    }

    /// The program is done with a UDP socket: what it has goes back, and so does the port if nobody else
    /// is there. False: it is not so.
    fn close_datagrams(&mut self, id: Id) -> bool {
        let Core { sockets, lanes, .. } = self;
        let udp = sockets.get_mut(id).and_then(Socket::datagrams).filter(|udp| udp.closing);
        let Some(udp) = udp else { return false };
        for waiting in udp.inbox.drain(..) {
            lanes[waiting.lane].give_back(waiting.data);
        }
        self.leave_udp_port(id);
        true
    }

    /// Takes the answers of the batch in.
    pub fn settle(&mut self, lane: usize, thread: &mut Thread) {
        self.lanes[lane].batch.carried_out();
        while let Some((slot, pending, answer)) = self.lanes[lane].batch.next_answer(thread) {
            match pending {
                Pending::Nothing => {}
                Pending::Sendv(id, offered) => self.sendv_answered(lane, id, offered, answer),
                Pending::Connect(id) => match answer {
                    Ok(handle) => {
                        let Some(socket) = self.sockets.get_mut(id) else { continue };
                        let wanted = socket.options.of_attempt();
                        if let Some(stream) = socket.stream() {
                            stream.flow.handle = handle;
                            // What holds for the attempt is said at once, the rest with it.
                            let tells = stream.options_changed && stream.told != wanted;
                            if stream.flow.ending != Ending::No || tells {
                                self.touch(id);
                            }
                        }
                    }
                    Err(Error::Invalid | Error::NoResource) if self.connect_elsewhere(id) => {}
                    // All local ports are taken.
                    Err(Error::NoResource) => self.died(id, libc::EADDRNOTAVAIL),
                    Err(error) => self.died(id, errno_of(error)),
                },
                Pending::Accept(id) => {
                    if answer.is_err() {
                        self.died(id, libc::ECONNRESET);
                    }
                }
                Pending::Listen(id) => self.listen_answered(lane, id, answer),
                Pending::UdpBind(id) => self.udp_bind_answered(lane, id, answer),
                Pending::UdpSendv(name) => {
                    if let Err(error) = answer {
                        self.datagram_left(name, errno_of(error));
                    }
                }
                Pending::Info(name) => self.info_came(name, answer.is_ok()),
                Pending::Memory => {
                    let adopted = thread.adopt_tx(slot).is_ok();
                    self.lanes[lane].memory.answered(adopted, thread.now_us());
                }
            }
        }
    }

    /// Information of a flow is in the memory of this name, if it was given.
    fn info_came(&mut self, name: u64, given: bool) {
        let Some((memory, id)) = self.lent.remove(name & !cookie::MEMORY) else { return };
        if let Some(stream) = self.sockets.get_mut(id).and_then(Socket::stream)
            && let Some(info) = call::flow_info(&memory).filter(|_| given)
        {
            let ip = std::net::Ipv6Addr::from(info.local_addr).to_canonical();
            stream.local = Some(SocketAddr::new(ip, info.local_port));
            stream.info = Some(Box::new(info));
            self.tell(id, 0);
        }
    }

    fn sendv_answered(&mut self, lane: usize, id: Id, offered: u64, answer: Result<u64, Error>) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let limit = socket.options.send_buffer;
        let Some(stream) = socket.stream() else { return };
        let was_writable = stream.is_writable(limit);
        // `NoResource`: nothing was taken, and no event says when there are buffers again.
        let refused = answer == Err(Error::NoResource);
        match stream.flow.sendv_answered(offered, answer) {
            Ok(()) => {
                let becomes_writable = !was_writable && stream.is_writable(limit);
                let held = stream.held_us.is_some() && !refused;
                if !held && stream.flow.has_calls() {
                    self.touch(id);
                }
                if becomes_writable {
                    self.tell(id, libc::EPOLLOUT | libc::EPOLLWRNORM);
                }
                self.lanes[lane].starved |= refused;
            }
            // `DEAD` says why.
            Err(Error::BadHandle) => {}
            Err(error) => {
                let abort = call::abort(stream.flow.handle);
                self.lanes[lane].batch.put_off(abort, Pending::Nothing);
                self.died(id, errno_of(error));
            }
        }
    }

    /// A connection from a port that the program has chosen belongs to the elastic thread whose flow
    /// group it falls into, and another one may have a port left: the next one is asked, and at last
    /// this one again, for ports that were given back in this cycle. False: all have been.
    fn connect_elsewhere(&mut self, id: Id) -> bool {
        let lanes = self.lane_count;
        let Some(socket) = self.sockets.get_mut(id) else { return false };
        let next = (socket.lane + 1) % lanes;
        let Some(stream) = socket.stream() else { return false };
        stream.refused_by += 1;
        if stream.refused_by > lanes || stream.flow.ending != Ending::No {
            return false;
        }
        stream.phase = Phase::ToConnect;
        (socket.lane, socket.dirty) = (next, false);
        self.touch(id);
        true
    }

    fn listen_answered(&mut self, lane: usize, id: Id, answer: Result<u64, Error>) {
        let Some(port) = self.ports.get(id) else { return };
        if let Err(error) = answer {
            crate::log::line(&format!("cannot listen at {}: {error}", port.at));
        }
        let members = port.members.clone();
        self.opened(lane, id, answer, false);
        members.into_iter().for_each(|member| self.tell(member, 0));
    }

    fn udp_bind_answered(&mut self, lane: usize, id: Id, answer: Result<u64, Error>) {
        let Some(port) = self.udp_ports.get(id) else { return };
        let members = port.members.clone();
        self.opened(lane, id, answer, true);
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
        let Some((memory, id)) = self.lent.remove(name & !cookie::MEMORY) else { return };
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

/// The calls of one socket, on their way into the batch.
struct Calls<'a> {
    thread: &'a mut Thread,
    batch: &'a mut Batch<Pending>,
}

impl Calls<'_> {
    fn push(&mut self, call: call::Batched, pending: Pending) {
        self.batch.push(self.thread, call, pending);
    }

    fn has_room(&self, calls: usize) -> bool {
        self.batch.has_room(self.thread, calls)
    }

    /// `name` is the cookie of its memory.
    fn datagram(&mut self, (socket, to): (u64, SocketAddr), piece: SgEntry, name: u64) {
        let pending = Pending::UdpSendv(name);
        self.batch.push_datagram(self.thread, (socket, to), piece, name, pending);
    }

    /// Tells the dataplane what has changed of a flow's options.
    fn flow_options(&mut self, handle: Handle, before: FlowOptions, now: FlowOptions) {
        for (before, now) in before.each().into_iter().zip(now.each()) {
            if before != now {
                self.push(call::set_opt(handle, now), Pending::Nothing);
            }
        }
        if let Some(congestion) = now.congestion.filter(|_| now.congestion != before.congestion) {
            let set = call::set_opt(handle, FlowOption::Congestion(congestion));
            self.push(set, Pending::Nothing);
        }
    }

    /// The same of the port that a datagram leaves by: each may have its own.
    fn datagram_options(&mut self, socket: u64, told: &mut Manner, wanted: Manner) {
        let Manner { marks: before, fragment_bytes } = core::mem::replace(told, wanted);
        if fragment_bytes != wanted.fragment_bytes {
            let option = FlowOption::FragmentBytes(wanted.fragment_bytes);
            let set = call::udp_set_opt(socket, option);
            self.push(set, Pending::Nothing);
        }
        let wanted = wanted.marks;
        if before.ttl != wanted.ttl {
            let set = call::udp_set_opt(socket, FlowOption::HopLimit(wanted.ttl));
            self.push(set, Pending::Nothing);
        }
        if before.dscp() != wanted.dscp() {
            let set = call::udp_set_opt(socket, FlowOption::Dscp(wanted.dscp()));
            self.push(set, Pending::Nothing);
        }
    }

    fn stream(
        &mut self,
        id: Id,
        stream: &mut Stream,
        bound: Option<SocketAddr>,
        limit: u64,
        options: &Options,
    ) -> Left {
        match stream.phase {
            Phase::ToConnect => {
                let connect = match bound {
                    Some(at) if !at.ip().is_unspecified() => {
                        call::connect_from(id, stream.peer, at)
                    }
                    _ => call::connect(id, stream.peer, bound.map_or(0, |at| at.port())),
                };
                let connect = match options.congestion {
                    Some(congestion) => connect.with_congestion(congestion),
                    None => connect,
                };
                stream.told.congestion = options.congestion;
                self.push(connect, Pending::Connect(id));
                stream.phase = Phase::Connecting;
                return Left::Nothing;
            }
            Phase::ToAccept => {
                self.push(call::accept(stream.flow.handle, id), Pending::Accept(id));
                (stream.phase, stream.flow.established) = (Phase::Open, true);
            }
            Phase::Dead => {
                let gone = stream.flow.ending != Ending::No;
                return if gone { Left::Gone } else { Left::Nothing };
            }
            Phase::Connecting | Phase::Open => {}
        }
        let Stream { flow, options_changed, told, phase, .. } = stream;
        let says = flow.handle != 0 && flow.ending != Ending::Abort;
        if says && core::mem::take(options_changed) {
            let connecting = *phase == Phase::Connecting;
            let wanted = if connecting { options.of_attempt() } else { options.of_flow() };
            self.flow_options(flow.handle, core::mem::replace(told, wanted), wanted);
        }
        let sendv = |offered| Pending::Sendv(id, offered);
        match flow.emit(self.thread, self.batch, limit, sendv) {
            Emitted::Alive => Left::Nothing,
            Emitted::Unfinished => Left::Unfinished,
            Emitted::Gone => Left::Gone,
        }
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
