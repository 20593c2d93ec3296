//! Before a cycle: what the program has done becomes batched system calls. After it: their answers.
use crate::lane::{Lane, Name};
use crate::slab::Id;
use crate::socket::{FlowOptions, Kind, Manner, Marks, Options, Outgoing, Socket};
use crate::state::{Core, Pending, cookie};
use crate::stream::{CORK_US, Ending, Phase, Stream};
use ix_abi::{Handle, SgEntry, flow_opt};
use libix::Error;
use libix::raw::{Thread, call};
use std::net::SocketAddr;

/// Calls that one socket makes in one cycle at most.
const CALLS_A_SOCKET: usize = 16;
/// Calls that one datagram makes at most.
const CALLS_A_DATAGRAM: usize = 4;
/// Transmit memory is asked for in steps of this.
const TX_STEP_BYTES: u64 = 2 << 20;

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
    pub fn emit(&mut self, lane: usize, thread: &mut Thread) -> bool {
        self.lanes[lane].pending.clear();
        self.ask_for_memory(lane, thread);
        self.touch_corked(lane);
        self.accept_deferred(lane);
        self.emit_waiting(lane, thread)
    }

    /// The same for the first batch, behind a call that is not ours: listeners and UDP sockets that
    /// were noted so far.
    pub fn emit_first(&mut self, lane: usize, thread: &mut Thread) {
        self.lanes[lane].pending.clear();
        self.lanes[lane].pending.push(Pending::Nothing);
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
        while thread.call_room() > CALLS_A_SOCKET
            && let Some(data) = self.lanes[lane].read.pop()
        {
            self.push(lane, thread, call::udp_recv_done(data), Pending::Nothing);
        }
        while thread.call_room() > CALLS_A_SOCKET
            && let Some(handle) = self.lanes[lane].given_up.pop()
        {
            self.push(lane, thread, call::abort(handle), Pending::Nothing);
        }
        let mut more = Vec::new();
        while thread.call_room() >= CALLS_A_SOCKET && thread.sg_room() {
            let Some(id) = self.lanes[lane].dirty.pop_front() else { break };
            // One that was refused here stands in the list of another one now.
            let here = |socket: &&mut Socket| socket.lane == lane;
            let Some(socket) = self.sockets.get_mut(id).filter(here) else { continue };
            socket.dirty = false;
            match self.emit_socket(lane, thread, id) {
                Left::Nothing => {}
                Left::More => more.push(id),
                Left::Gone => drop(self.sockets.remove(id)),
            }
        }
        // `UNLISTEN` refuses who was not accepted: first those are.
        let Lane { dirty, old_ports, old_udp_ports, pending, .. } = &mut self.lanes[lane];
        if dirty.is_empty() {
            let mut batch = Batch { thread, pending };
            while batch.thread.call_room() > 0
                && let Some(listener) = old_ports.pop()
            {
                batch.push(call::unlisten(listener), Pending::Nothing);
            }
            while batch.thread.call_room() > 0
                && let Some(port) = old_udp_ports.pop()
            {
                batch.push(call::udp_unbind(port), Pending::Nothing);
            }
        }
        // A new listener may have the port of one that has just been closed.
        if old_ports.is_empty() && old_udp_ports.is_empty() {
            self.emit_new_ports(lane, thread);
        }
        let left = !more.is_empty() || self.lanes[lane].has_calls();
        more.into_iter().for_each(|id| self.touch(id));
        left || self.lanes[lane].pending.iter().any(|pending| self.is_urgent(pending))
    }

    fn emit_new_ports(&mut self, lane: usize, thread: &mut Thread) {
        let Core { ports, udp_ports, lanes, .. } = self;
        let Lane { new_ports, new_udp_ports, pending, .. } = &mut lanes[lane];
        let mut batch = Batch { thread, pending };
        while batch.thread.call_room() > 0
            && let Some(id) = new_ports.pop()
        {
            let Some(port) = ports.get_mut(id) else { continue };
            port.names.set(lane, Name::Asked);
            let listen = call::listen(port.at, port.backlog, id | cookie::PORT);
            batch.push(listen, Pending::Listen(id));
        }
        while batch.thread.call_room() > 0
            && let Some(id) = new_udp_ports.pop()
        {
            let Some(port) = udp_ports.get_mut(id) else { continue };
            port.names.set(lane, Name::Asked);
            batch.push(call::udp_bind(port.at, id), Pending::UdpBind(id));
        }
    }

    /// Whether somebody waits for the answer, and no event comes of it.
    fn is_urgent(&self, pending: &Pending) -> bool {
        match pending {
            Pending::Connect(_) | Pending::Info(..) | Pending::Memory => true,
            Pending::Listen(_) | Pending::UdpBind(_) => true,
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

    fn push(&mut self, lane: usize, thread: &mut Thread, call: call::Batched, pending: Pending) {
        if thread.push(call).is_some() {
            self.lanes[lane].pending.push(pending);
        }
    }

    fn ask_for_memory(&mut self, index: usize, thread: &mut Thread) {
        let lane = &mut self.lanes[index];
        let wants = lane.tx.as_ref().is_some_and(|tx| tx.0.wants_memory());
        if wants && !lane.memory_asked && !lane.memory_refused {
            lane.memory_asked = true;
            self.push(index, thread, call::tx_alloc(TX_STEP_BYTES), Pending::Memory);
        }
    }

    fn emit_socket(&mut self, lane: usize, thread: &mut Thread, id: Id) -> Left {
        if self.close_datagrams(id) {
            return Left::Gone;
        }
        let Core { sockets, lanes, datagrams, mss, udp_ports, .. } = self;
        let Lane { pending, tx, corked: held, .. } = &mut lanes[lane];
        let Some(socket) = sockets.get_mut(id) else { return Left::Nothing };
        let mut batch = Batch { thread, pending };
        let corked = socket.options.cork;
        let bound = socket.bound;
        match &mut socket.kind {
            Kind::Stream(stream) => {
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
                batch.stream(id, stream, bound, limit, &socket.options)
            }
            Kind::Datagrams(udp) => {
                let Some(port) = udp_ports.get_mut(udp.port) else { return Left::Nothing };
                // Its answer brings the socket back here.
                let Some(socket) = port.names.get(lane) else { return Left::Nothing };
                while batch.thread.call_room() > CALLS_A_DATAGRAM
                    && batch.thread.sg_room()
                    && let Some(Outgoing { memory, to, manner }) = udp.outbox.pop_front()
                {
                    batch.datagram_options(socket, port.told(lane), manner);
                    let piece = SgEntry { base: memory.base(), len: memory.len() as u64 };
                    let name = datagrams.insert((memory, id)) | cookie::DATAGRAM;
                    let pieces = core::iter::once(piece);
                    if batch.thread.push_udp_sendv(socket, to, pieces, name).is_some() {
                        batch.pending.push(Pending::UdpSendv(name));
                    }
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
            lanes[waiting.lane].read.push(waiting.data);
        }
        self.leave_udp_port(id);
        true
    }

    /// Takes the answers of the batch in.
    pub fn settle(&mut self, lane: usize, thread: &mut Thread) {
        let mut answered = core::mem::take(&mut self.lanes[lane].pending);
        for (slot, pending) in answered.drain(..).enumerate() {
            let answer = thread.answer(slot);
            match pending {
                Pending::Nothing => {}
                Pending::Sendv(id, offered) => self.sendv_answered(id, offered, answer),
                Pending::Connect(id) => match answer {
                    Ok(handle) => {
                        let Some(socket) = self.sockets.get_mut(id) else { continue };
                        let wanted = socket.options.of_attempt();
                        if let Some(stream) = socket.stream() {
                            stream.handle = handle;
                            // What holds for the attempt is said at once, the rest with it.
                            let tells = stream.options_changed && stream.told != wanted;
                            if stream.ending != Ending::No || tells {
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
                    self.lanes[lane].memory_asked = false;
                    self.lanes[lane].memory_refused = thread.adopt_tx(slot).is_err();
                }
            }
        }
        // Nobody has made calls meanwhile: its memory serves the next batch.
        self.lanes[lane].pending = answered;
    }

    fn sendv_answered(&mut self, id: Id, offered: u64, answer: Result<u64, Error>) {
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let limit = socket.options.send_buffer;
        let Some(stream) = socket.stream() else { return };
        match answer {
            Ok(taken) => {
                let was_writable = stream.is_writable(limit);
                stream.outbox.taken(taken);
                let becomes_writable = !was_writable && stream.is_writable(limit);
                stream.blocked = taken < offered;
                let held = stream.held_us.is_some();
                let more = stream.outbox.unsent() > 0 && !stream.blocked && !held;
                let ends = stream.ending != Ending::No || stream.write_shut;
                if more || (ends && stream.outbox.unsent() == 0) {
                    self.touch(id);
                }
                if becomes_writable {
                    self.tell(id, libc::EPOLLOUT | libc::EPOLLWRNORM);
                }
            }
            // `DEAD` says why.
            Err(Error::BadHandle) => {}
            Err(error) => self.died(id, errno_of(error)),
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
        if stream.refused_by > lanes || stream.ending != Ending::No {
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

    /// Tells the dataplane what has changed of a flow's options.
    fn flow_options(&mut self, handle: Handle, before: FlowOptions, now: FlowOptions) {
        for (option, before, now) in [
            (flow_opt::KEEPALIVE_S, before.keepalive_s.into(), now.keepalive_s.into()),
            (
                flow_opt::KEEPALIVE_INTERVAL_S,
                before.keep_interval_s.into(),
                now.keep_interval_s.into(),
            ),
            (flow_opt::KEEPALIVE_PROBES, before.keep_count.into(), now.keep_count.into()),
            (flow_opt::USER_TIMEOUT_MS, before.user_timeout_ms.into(), now.user_timeout_ms.into()),
            (flow_opt::HOP_LIMIT, before.marks.ttl.into(), now.marks.ttl.into()),
            (flow_opt::DSCP, dscp(before.marks), dscp(now.marks)),
            (flow_opt::RECEIVE_BYTES, before.receive_bytes, now.receive_bytes),
            (flow_opt::SEGMENT_BYTES, before.segment_bytes.into(), now.segment_bytes.into()),
        ] {
            if before != now {
                self.push(call::set_opt(handle, option, now), Pending::Nothing);
            }
        }
        if let Some(congestion) = now.congestion.filter(|_| now.congestion != before.congestion) {
            let set = call::set_opt(handle, flow_opt::CONGESTION, congestion.number());
            self.push(set, Pending::Nothing);
        }
    }

    /// The same of the port that a datagram leaves by: each may have its own.
    fn datagram_options(&mut self, socket: u64, told: &mut Manner, wanted: Manner) {
        let Manner { marks: before, fragment_bytes } = core::mem::replace(told, wanted);
        if fragment_bytes != wanted.fragment_bytes {
            let value = wanted.fragment_bytes.into();
            let set = call::udp_set_opt(socket, flow_opt::FRAGMENT_BYTES, value);
            self.push(set, Pending::Nothing);
        }
        let wanted = wanted.marks;
        if before.ttl != wanted.ttl {
            let set = call::udp_set_opt(socket, flow_opt::HOP_LIMIT, wanted.ttl.into());
            self.push(set, Pending::Nothing);
        }
        if dscp(before) != dscp(wanted) {
            let set = call::udp_set_opt(socket, flow_opt::DSCP, dscp(wanted));
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
        if core::mem::take(&mut stream.options_changed) {
            let connecting = stream.phase == Phase::Connecting;
            let wanted = if connecting { options.of_attempt() } else { options.of_flow() };
            self.flow_options(handle, core::mem::replace(&mut stream.told, wanted), wanted);
        }
        if stream.phase == Phase::Connecting {
            return Left::Nothing;
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

/// Differentiated services code point (RFC 2474).
fn dscp(marks: Marks) -> u64 {
    u64::from(marks.tos >> 2)
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
