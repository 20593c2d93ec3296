//! Before a cycle: what the program has done becomes batched system calls. After it: their results.
use crate::elastic_thread::{ElasticThread, Pending, cookie};
use crate::options::{FlowOptions, Options, SendOptions};
use crate::port::{BacklogNews, PortHandle};
use crate::slab::Id;
use crate::socket::{Kind, Outgoing, Socket};
use crate::state::Core;
use crate::stream::{CORK_US, Hold, Phase, Stream};
use crate::{clock, errno, family, holders, log};
use ix_abi::{FlowInfo, FlowOption, Handle, OPENED_LAST, SgEntry};
use libix::Error;
use libix::engine::{Batch, Emitted, Ending};
use libix::raw::{Thread, call};
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// Most calls of one socket in one cycle.
const CALLS_A_SOCKET: usize = 16;
/// Most calls of one datagram.
const CALLS_A_DATAGRAM: usize = 5;

/// What is left of a socket after [`Core::emit`].
enum Left {
    /// No calls.
    Nothing,
    /// Calls for the next cycle.
    More,
    /// Calls that depend on the results of those in this cycle.
    Unfinished,
    /// Nothing: it has ended.
    Gone,
}

impl Core {
    /// Appends the calls of dirty sockets to the batch. Returns whether another cycle must follow
    /// at once: some calls are left, or something depends on their results.
    pub fn emit(&mut self, elastic: usize, thread: &mut Thread) -> bool {
        self.elastic_threads[elastic].batch.refill(thread);
        self.ask_for_memory(elastic, thread);
        self.mark_corked_dirty(elastic);
        self.accept_deferred(elastic);
        self.emit_waiting(elastic, thread)
    }

    /// The same for the first batch, after a call that is not ours: opens the ports that were noted
    /// before the dataplane ran.
    pub fn emit_first(&mut self, elastic: usize, thread: &mut Thread) {
        self.elastic_threads[elastic].batch.pushed(Pending::Nothing);
        self.emit_waiting(elastic, thread);
    }

    /// Marks corked connections whose time has come as dirty.
    fn mark_corked_dirty(&mut self, elastic: usize) {
        if self.elastic_threads[elastic].corked.is_empty() {
            return;
        }
        let now_us = clock::now_us();
        for id in core::mem::take(&mut self.elastic_threads[elastic].corked) {
            let stream = self.sockets.get_mut(id).and_then(Socket::stream);
            match stream.and_then(|stream| stream.held_us) {
                Some(since_us) if now_us < since_us + CORK_US => {
                    self.elastic_threads[elastic].corked.push(id);
                }
                Some(_) => self.mark_dirty(id),
                None => {}
            }
        }
    }

    /// Queues deferred connections that have received nothing in their time.
    fn accept_deferred(&mut self, elastic: usize) {
        if self.elastic_threads[elastic].deferred.is_empty() {
            return;
        }
        let now_us = clock::now_us();
        for id in core::mem::take(&mut self.elastic_threads[elastic].deferred) {
            let stream = self.sockets.get_mut(id).and_then(Socket::stream);
            match stream.and_then(|stream| stream.deferred_until_us) {
                Some(until_us) if now_us < until_us => {
                    self.elastic_threads[elastic].deferred.push(id)
                }
                Some(_) => self.enters_queue(id),
                None => {}
            }
        }
    }

    fn emit_waiting(&mut self, elastic: usize, thread: &mut Thread) -> bool {
        let (mut more, mut unfinished) = (Vec::new(), false);
        self.emit_nudges(elastic, thread);
        while self.elastic_threads[elastic].batch.has_room(thread, CALLS_A_SOCKET) {
            let Some(id) = self.elastic_threads[elastic].dirty.pop_front() else { break };
            // A connection that was refused here is in the list of another elastic thread now.
            let here = |socket: &&mut Socket| socket.elastic == elastic;
            let Some(socket) = self.sockets.get_mut(id).filter(here) else { continue };
            socket.dirty = false;
            match self.emit_socket(elastic, thread, id) {
                Left::Nothing => {}
                Left::More => more.push(id),
                Left::Unfinished => unfinished = true,
                Left::Gone => {
                    drop(self.sockets.remove(id));
                    // No socket has such a port any more: datagrams that others send to it after
                    // this close are refused.
                    let ElasticThread { old_udp_ports, batch, .. } =
                        &mut self.elastic_threads[elastic];
                    for port in old_udp_ports.drain(..) {
                        batch.push(thread, call::udp_unbind(port), Pending::Nothing);
                    }
                }
            }
        }
        if !self.elastic_threads[elastic].backlogs.is_empty() {
            self.emit_backlogs(elastic, thread);
        }
        // `UNLISTEN` refuses connections that were not accepted, so these are accepted first.
        let ElasticThread { dirty, old_ports, old_udp_ports, batch, .. } =
            &mut self.elastic_threads[elastic];
        if dirty.is_empty() {
            for listener in old_ports.drain(..) {
                batch.push(thread, call::unlisten(listener), Pending::Nothing);
            }
            for port in old_udp_ports.drain(..) {
                batch.push(thread, call::udp_unbind(port), Pending::Nothing);
            }
        }
        // A new listener may use the port of one that was just closed.
        if old_ports.is_empty() && old_udp_ports.is_empty() {
            self.emit_new_ports(elastic, thread);
        }
        if !self.elastic_threads[elastic].group_ports.is_empty() {
            // Who asked waits until the calls were carried out.
            unfinished |= self.emit_groups(elastic, thread);
        }
        let left = unfinished || !more.is_empty() || self.elastic_threads[elastic].has_calls();
        more.into_iter().for_each(|id| self.mark_dirty(id));
        left || self.elastic_threads[elastic].batch.pending().iter().any(Pending::is_urgent)
    }

    /// Makes other processes look at what this one has said of connections that both have.
    #[inline]
    fn emit_nudges(&mut self, elastic: usize, thread: &mut Thread) {
        if !holders::has_nudges() {
            return;
        }
        // A process that does not run all elastic threads yet could not be given anything on the
        // others, and would be looked at again only later.
        let last = self.elastic_count - 1;
        if elastic != last && self.elastic_threads[last].tx.is_none() {
            return;
        }
        let batch = &mut self.elastic_threads[elastic].batch;
        if batch.has_room(thread, u64::BITS as usize) {
            let nudges = holders::take_nudges();
            for to in (0..u64::BITS).filter(|to| nudges >> to & 1 != 0) {
                batch.push(thread, call::nudge(to), Pending::Nothing);
            }
        }
    }

    /// Tells the dataplane what the backlogs of ports are now, and how many places are free again.
    fn emit_backlogs(&mut self, elastic: usize, thread: &mut Thread) {
        let Core { ports, elastic_threads, sockets, .. } = self;
        let ElasticThread { backlogs, batch, .. } = &mut elastic_threads[elastic];
        backlogs.retain(|id| {
            let Some(port) = ports.get_mut(*id) else { return false };
            let handle = port.handles.get(elastic);
            // Before the answer to `LISTEN` there is no name for it.
            let Some(listener) = handle else { return port.handles.is_awaited() };
            let backlog = port.backlog;
            let mut news = core::mem::take(port.news(elastic));
            if let Some(turn) = news.turn.take() {
                batch.push(thread, call::backlog(listener, 0, turn), Pending::Nothing);
            }
            if core::mem::take(&mut news.ip_fields)
                && let Some(socket) = port.members.first().and_then(|id| sockets.get(*id))
            {
                for (option, is_v6) in port.fields_to_tell(elastic, &socket.options) {
                    let set = call::listen_opt(listener, option, is_v6);
                    batch.push(thread, set, Pending::Nothing);
                }
            }
            if news != BacklogNews::default() {
                let backlog = if news.resized { backlog } else { 0 };
                batch.push(thread, call::backlog(listener, backlog, news.freed), Pending::Nothing);
            }
            false
        });
    }

    fn emit_new_ports(&mut self, elastic: usize, thread: &mut Thread) {
        let Core { ports, elastic_threads, .. } = self;
        let ElasticThread { new_ports, new_udp_ports, batch, .. } = &mut elastic_threads[elastic];
        while let Some(id) = new_ports.pop() {
            let Some(port) = ports.get_mut(id) else { continue };
            port.handles.set(elastic, PortHandle::Asked);
            let listen = call::listen_holding(port.at, port.backlog, id | cookie::PORT);
            batch.push(thread, listen, Pending::Listen(id));
        }
        for id in core::mem::take(new_udp_ports) {
            self.emit_udp_port(elastic, thread, id);
        }
    }

    /// Binds a UDP port, or asks for what arrives at one that other processes have as well.
    fn emit_udp_port(&mut self, elastic: usize, thread: &mut Thread, id: Id) {
        let common = self.is_common(id);
        if common == Some(true) {
            self.says_it_takes(id);
        }
        let Core { udp_ports, elastic_threads, .. } = self;
        let Some(port) = udp_ports.get_mut(id) else { return };
        let bind = match common {
            Some(takes) => call::udp_share(port.at, id, takes),
            None => call::udp_bind(port.at, id),
        };
        // One that is bound has the same handle afterwards.
        if port.handles.get(elastic).is_none() {
            port.handles.set(elastic, PortHandle::Asked);
        }
        elastic_threads[elastic].batch.push(thread, bind, Pending::UdpBind(id));
    }

    /// Tells the dataplane what the sockets of ports listen to now; returns whether there was
    /// anything to tell.
    #[cold]
    fn emit_groups(&mut self, elastic: usize, thread: &mut Thread) -> bool {
        let (mut later, mut told) = (Vec::new(), Vec::new());
        for id in core::mem::take(&mut self.elastic_threads[elastic].group_ports) {
            let wanted = self.wanted_groups(id);
            let Core { udp_ports, elastic_threads, .. } = self;
            let ElasticThread { batch, tx, .. } = &mut elastic_threads[elastic];
            let Some(port) = udp_ports.get_mut(id) else { continue };
            let Some(socket) = port.handles.get(elastic) else { continue };
            told.extend_from_slice(&port.members);
            // The calls of the last time were carried out.
            port.source_memory.clear();
            let none = (false, Vec::new());
            let both = wanted.keys().chain(port.told_groups.keys()).copied();
            let changed: BTreeSet<_> =
                both.filter(|group| wanted.get(group) != port.told_groups.get(group)).collect();
            for group in changed {
                if !batch.has_room(thread, 1) {
                    later.push(id);
                    break;
                }
                let (excludes, sources) = wanted.get(&group).unwrap_or(&none);
                let mut memory = None;
                if !sources.is_empty() {
                    let Some(mut room) = tx.as_ref().and_then(|tx| tx.0.alloc(16 * sources.len()))
                    else {
                        later.push(id);
                        break;
                    };
                    for source in sources {
                        room.extend(&call::address(*source));
                    }
                    memory = Some(room);
                }
                let at = memory.as_ref().map_or((0, 0), |m| (m.base(), sources.len() as u64));
                let listen = call::udp_listen(socket, group, *excludes, at);
                batch.push(thread, listen, Pending::Nothing);
                port.source_memory.extend(memory);
                match wanted.get(&group) {
                    Some(filter) => drop(port.told_groups.insert(group, filter.clone())),
                    None => drop(port.told_groups.remove(&group)),
                }
            }
        }
        self.elastic_threads[elastic].group_ports = later;
        let any = !told.is_empty();
        told.into_iter().for_each(|member| self.notify(member, 0));
        any
    }

    fn ask_for_memory(&mut self, index: usize, thread: &mut Thread) {
        let ElasticThread { tx, memory, batch, .. } = &mut self.elastic_threads[index];
        if tx.as_ref().is_some_and(|tx| memory.is_short(&tx.0))
            && let Some(ask) = memory.request(thread.now_us())
        {
            batch.push(thread, ask, Pending::Memory);
        }
    }

    fn emit_socket(&mut self, elastic: usize, thread: &mut Thread, id: Id) -> Left {
        if self.close_datagrams(id) {
            return Left::Gone;
        }
        let Core { sockets, elastic_threads, lent, mss, udp_ports, .. } = self;
        let ElasticThread { batch, corked: held, .. } = &mut elastic_threads[elastic];
        let Some(socket) = sockets.get_mut(id) else { return Left::Nothing };
        let mut calls = Calls { thread, batch };
        let hold = Hold { corked: socket.options.cork, no_delay: socket.options.no_delay };
        let bound = socket.bound;
        match &mut socket.kind {
            Kind::Stream(stream) => {
                let unheld = stream.held_us.is_none();
                let limit = stream.sendable(hold, *mss, clock::now_us);
                if unheld && stream.held_us.is_some() {
                    held.push(id);
                }
                let left = calls.stream(id, stream, bound, limit, &socket.options);
                // Behind `ACCEPT`: before it the dataplane tells nothing of a connection.
                let mut asks_again = false;
                if stream.wants_info && stream.flow.handle != 0 {
                    stream.wants_info = !calls.get_info(stream.flow.handle, Pending::Info(id));
                    asks_again = stream.wants_info;
                }
                let is_delivered = stream.lingers && stream.is_delivered();
                match left {
                    Left::Gone => Left::Gone,
                    // No event follows a FIN, and `close` waits for it.
                    _ if is_delivered => {
                        self.notify(id, 0);
                        Left::Unfinished
                    }
                    Left::Nothing if asks_again => Left::More,
                    left => left,
                }
            }
            Kind::Datagrams(udp) => {
                let Some(port) = udp_ports.get_mut(udp.port) else { return Left::Nothing };
                // The answer to `UDP_BIND` brings the socket back here.
                let Some(socket) = port.handles.get(elastic) else { return Left::Nothing };
                while calls.has_room(CALLS_A_DATAGRAM)
                    && let Some(Outgoing { memory, to, send_options }) = udp.outbox.pop_front()
                {
                    calls.datagram_options(socket, port.told(elastic), send_options);
                    let piece = SgEntry { base: memory.base(), len: memory.len() as u64 };
                    let name = lent.insert((memory, id)) | cookie::MEMORY;
                    calls.datagram((socket, to), piece, name);
                }
                match (udp.outbox.is_empty(), udp.closing) {
                    (true, false) => Left::Nothing,
                    // Then it is closed.
                    (true, true) | (false, _) => Left::More,
                }
            }
            Kind::Linux | Kind::Idle { .. } | Kind::Listener(_) | Kind::Lost => Left::Nothing,
        }
    }

    /// If the program has closed this UDP socket, and all was sent that can be, returns its buffers
    /// and removes it from its port. Returns whether it was closed.
    fn close_datagrams(&mut self, id: Id) -> bool {
        let Core { sockets, elastic_threads, udp_ports, .. } = self;
        let Some(socket) = sockets.get_mut(id) else { return false };
        let elastic = socket.elastic;
        let Some(udp) = socket.datagrams().filter(|udp| udp.closing) else { return false };
        let sends = udp_ports.get(udp.port).is_some_and(|port| {
            let handles = &port.handles;
            handles.get(elastic).is_some()
                || handles.is_awaited()
                || elastic_threads[elastic].new_udp_ports.contains(&udp.port)
        });
        if sends && !udp.outbox.is_empty() {
            return false;
        }
        for incoming in udp.inbox.drain(..) {
            let elastic = &mut elastic_threads[incoming.elastic];
            incoming.buffers().for_each(|data| elastic.give_back(data));
        }
        self.leave_udp_port(id);
        true
    }

    /// Takes in the results of the batch.
    pub fn settle(&mut self, elastic: usize, thread: &mut Thread) {
        self.elastic_threads[elastic].batch.carried_out();
        while let Some((slot, pending, answer)) =
            self.elastic_threads[elastic].batch.next_answer(thread)
        {
            match pending {
                Pending::Nothing => {}
                Pending::Sendv(id, offered) => self.sendv_answered(elastic, id, offered, answer),
                Pending::Connect(id) => match answer {
                    Ok(handle) => {
                        let Some(socket) = self.sockets.get_mut(id) else { continue };
                        let to = socket.stream().map_or(family::EVERY, |stream| stream.peer.ip());
                        let wanted = socket.options.of_attempt(to);
                        if let Some(stream) = socket.stream() {
                            stream.flow.handle = handle;
                            // Options for the attempt are set at once, the rest with the outcome.
                            let tells = stream.options_changed && stream.told != wanted;
                            if stream.flow.ending != Ending::No || tells {
                                self.mark_dirty(id);
                            }
                        }
                    }
                    // Linux is asked for the port.
                    Err(Error::Again) => self.connect_again(id),
                    Err(Error::Invalid | Error::NoResource) if self.connect_elsewhere(id) => {}
                    Err(Error::Unreachable) if self.awaits_route(id) => self.connect_again(id),
                    // All local ports are in use.
                    Err(Error::NoResource) => self.died(id, libc::EADDRNOTAVAIL),
                    Err(error) => self.died(id, errno::of_error(error)),
                },
                Pending::Accept(id) => {
                    let stream = self.sockets.get_mut(id).and_then(Socket::stream);
                    let came = stream.is_some_and(|stream| stream.shared.is_some());
                    if answer.is_err() {
                        self.died(id, libc::ECONNRESET);
                    } else if came {
                        self.notify(id, libc::EPOLLOUT | libc::EPOLLWRNORM);
                    }
                }
                Pending::Give(id) => self.gave(id, answer),
                Pending::Listen(id) => self.listen_answered(elastic, id, answer),
                Pending::UdpBind(id) => self.udp_bind_answered(elastic, id, answer),
                Pending::UdpSendv(name) => {
                    if let Err(error) = answer {
                        self.datagram_left(name, errno::of_error(error));
                    }
                }
                Pending::Info(id) => self.info_came(id, thread.flow_info(slot)),
                Pending::Memory => {
                    let adopted = thread.adopt_tx(slot).is_ok();
                    self.elastic_threads[elastic].memory.answered(adopted, thread.now_us());
                }
            }
        }
    }

    /// `GET_INFO` of a socket's flow has returned.
    fn info_came(&mut self, id: Id, info: Result<FlowInfo, Error>) {
        if let Some(stream) = self.sockets.get_mut(id).and_then(Socket::stream)
            && let Ok(info) = info
        {
            let ip = std::net::Ipv6Addr::from(info.local_addr).to_canonical();
            stream.local = Some(SocketAddr::new(ip, info.local_port));
            stream.info = Some(Box::new(info));
            self.notify(id, 0);
        }
    }

    fn sendv_answered(&mut self, elastic: usize, id: Id, offered: u64, answer: Result<u64, Error>) {
        let (limit, mss) = (self.send_limit(id), self.mss);
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let starving = socket.starving;
        let Some(stream) = socket.stream() else { return };
        let was_writable = !starving && stream.is_writable(limit);
        // `NoResource`: nothing was taken, and no event reports free buffers.
        let refused = answer == Err(Error::NoResource);
        match stream.flow.sendv_answered(offered, answer) {
            Ok(()) => {
                stream.taken(offered, answer.unwrap_or(0), mss);
                let becomes_writable = !was_writable && stream.is_writable(limit);
                let held = stream.is_held() && !refused;
                if !held && stream.flow.has_calls() || stream.waits_to_go() {
                    self.mark_dirty(id);
                }
                if becomes_writable {
                    self.no_longer_starves(id);
                    self.notify(id, libc::EPOLLOUT | libc::EPOLLWRNORM);
                }
                self.elastic_threads[elastic].starved |= refused;
            }
            // The `DEAD` event has the reason.
            Err(Error::BadHandle) => {}
            Err(error) => {
                let abort = call::abort(stream.flow.handle);
                self.elastic_threads[elastic].batch.put_off(abort, Pending::Nothing);
                self.died(id, errno::of_error(error));
            }
        }
    }

    /// Asks the next elastic thread to connect, after one has refused. A connection from a port
    /// that the program has chosen belongs to the elastic thread of its flow group; and another
    /// elastic thread may have a free port. The first one is asked again at last, for ports that
    /// were freed in this cycle. Returns false if all were asked.
    fn connect_elsewhere(&mut self, id: Id) -> bool {
        let elastic_threads = self.elastic_count;
        let Some(socket) = self.sockets.get_mut(id) else { return false };
        let next = (socket.elastic + 1) % elastic_threads;
        let Some(stream) = socket.stream() else { return false };
        stream.refused_by += 1;
        if stream.refused_by > elastic_threads || stream.flow.ending != Ending::No {
            return false;
        }
        stream.phase = Phase::ToConnect;
        (socket.elastic, socket.dirty) = (next, false);
        self.mark_dirty(id);
        true
    }

    /// Linux has said that the way leads by IX's interface. If the dataplane knows none, it has not
    /// heard of it yet: that takes some milliseconds.
    fn awaits_route(&mut self, id: Id) -> bool {
        const HEARS_WITHIN_US: u64 = 200_000;
        if !self.routes.is_shared() {
            return false;
        }
        let Some(stream) = self.sockets.get_mut(id).and_then(Socket::stream) else { return false };
        let now_us = clock::now_us();
        let until_us = *stream.route_until_us.get_or_insert(now_us + HEARS_WITHIN_US);
        now_us < until_us && stream.flow.ending == Ending::No
    }

    fn connect_again(&mut self, id: Id) {
        if let Some(stream) = self.sockets.get_mut(id).and_then(Socket::stream) {
            stream.phase = Phase::ToConnect;
            self.mark_dirty(id);
        }
    }

    fn listen_answered(&mut self, elastic: usize, id: Id, answer: Result<u64, Error>) {
        let Some(port) = self.ports.get(id) else { return };
        // Linux is asked for the port.
        if answer == Err(Error::Again) && !port.members.is_empty() {
            return self.elastic_threads[elastic].new_ports.push(id);
        }
        if let Err(error) = answer {
            log::line(&format!("cannot listen at {}: {error}", family::shown(port.at)));
        }
        let members = port.members.clone();
        self.opened(elastic, id, answer, false);
        self.opened_in_reserve(elastic, id);
        self.tell_ip_fields_at_first(elastic, id);
        self.say_waits();
        members.into_iter().for_each(|member| self.notify(member, 0));
    }

    fn udp_bind_answered(&mut self, elastic: usize, id: Id, answer: Result<u64, Error>) {
        let Some(port) = self.udp_ports.get_mut(id) else { return };
        let is_wanted = !port.members.is_empty();
        if answer == Err(Error::Again) && is_wanted {
            return self.elastic_threads[elastic].new_udp_ports.push(id);
        }
        let members = port.members.clone();
        self.opened(elastic, id, answer, true);
        self.tell_groups(id);
        for member in members {
            if let (Err(error), Some(socket)) = (answer, self.sockets.get_mut(member)) {
                socket.error = errno::of_error(error);
            }
            self.mark_dirty(member);
            self.notify(member, 0);
        }
    }

    /// The memory of a datagram is free. With an errno the datagram was not sent.
    pub fn datagram_left(&mut self, name: u64, errno: i32) {
        let Some((memory, id)) = self.lent.remove(name & !cookie::MEMORY) else { return };
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let full = socket.readiness() & libc::EPOLLOUT as u32 == 0;
        if errno != 0 && errno != libc::ENOBUFS {
            socket.error = errno;
        }
        if let Some(udp) = socket.datagrams() {
            udp.in_flight_bytes -= memory.len().max(1).min(udp.in_flight_bytes);
        }
        if full || errno != 0 {
            self.notify(id, libc::EPOLLOUT | if errno != 0 { libc::EPOLLERR } else { 0 });
        }
    }
}

/// Appends the calls of one socket to the batch.
struct Calls<'a> {
    thread: &'a mut Thread,
    batch: &'a mut Batch<Pending>,
}

impl Calls<'_> {
    fn push(&mut self, call: call::Batched, pending: Pending) {
        self.batch.push(self.thread, call, pending);
    }

    /// False: not in this batch, there is no room.
    fn get_info(&mut self, handle: Handle, pending: Pending) -> bool {
        self.batch.push_get_info(self.thread, handle, pending)
    }

    fn has_room(&self, calls: usize) -> bool {
        self.batch.has_room(self.thread, calls)
    }

    /// Appends the calls of one datagram. `name` is the cookie of its memory.
    fn datagram(&mut self, (socket, to): (u64, SocketAddr), piece: SgEntry, name: u64) {
        let pending = Pending::UdpSendv(name);
        self.batch.push_datagram(self.thread, (socket, to), piece, name, pending);
    }

    /// Sets the options of a flow that have changed.
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

    /// Sets the options of a UDP port that the next datagram wants differently.
    fn datagram_options(&mut self, socket: u64, told: &mut SendOptions, wanted: SendOptions) {
        let SendOptions { ip_fields: before, fragment_bytes, to_group } =
            core::mem::replace(told, wanted);
        // Without a word to a group its hop limit is 1, to a host as configured.
        let begins = wanted.to_group.is_some() && to_group.is_none();
        // What was told of groups stays told.
        told.to_group = wanted.to_group.or(to_group);
        if let Some(how) = wanted.to_group
            && to_group.unwrap_or_default() != how
        {
            let set = call::udp_set_opt(socket, FlowOption::Multicast(how));
            self.push(set, Pending::Nothing);
        }
        if fragment_bytes != wanted.fragment_bytes {
            let option = FlowOption::FragmentBytes(wanted.fragment_bytes);
            let set = call::udp_set_opt(socket, option);
            self.push(set, Pending::Nothing);
        }
        let wanted = wanted.ip_fields;
        if before.ttl != wanted.ttl || begins {
            let set = call::udp_set_opt(socket, FlowOption::HopLimit(wanted.ttl));
            self.push(set, Pending::Nothing);
        }
        if before.dscp() != wanted.dscp() {
            let set = call::udp_set_opt(socket, FlowOption::Dscp(wanted.dscp()));
            self.push(set, Pending::Nothing);
        }
        if before.label != wanted.label {
            let set = call::udp_set_opt(socket, FlowOption::FlowLabel(wanted.label));
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
                    Some(at) if !family::is_wildcard(at.ip()) => {
                        call::connect_from(id, stream.peer, at)
                    }
                    _ => call::connect(id, stream.peer, bound.map_or(0, |at| at.port())),
                };
                let connect = match options.congestion {
                    Some(congestion) => connect.with_congestion(congestion),
                    None => connect,
                };
                self.push(connect, Pending::Connect(id));
                // In the same batch, so that the SYN has them.
                let wanted = options.of_attempt(stream.peer.ip());
                let begins =
                    FlowOptions { congestion: options.congestion, ..FlowOptions::default() };
                self.flow_options(OPENED_LAST, begins, wanted);
                // The rest with the outcome.
                stream.options_changed = wanted != options.of_flow(stream.peer.ip());
                stream.told = wanted;
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
            Phase::Connecting | Phase::Open | Phase::Away => {}
        }
        let Stream { flow, options_changed, told, phase, gift, peer, legacy, legacy_told, .. } =
            stream;
        let says = flow.handle != 0 && flow.ending != Ending::Abort;
        if says && core::mem::take(options_changed) {
            let connecting = *phase == Phase::Connecting;
            let to = peer.ip();
            let wanted = if connecting { options.of_attempt(to) } else { options.of_flow(to) };
            self.flow_options(flow.handle, core::mem::replace(told, wanted), wanted);
            *options_changed = connecting && wanted != options.of_flow(to);
        }
        if says && *legacy != *legacy_told && *phase == Phase::Open {
            *legacy_told = *legacy;
            self.push(call::give_at_end(flow.handle, *legacy), Pending::Nothing);
        }
        let sendv = |offered| Pending::Sendv(id, offered);
        match flow.emit(self.thread, self.batch, limit, sendv) {
            Emitted::Alive => match gift.as_mut().filter(|gift| !gift.asked) {
                Some(_) if flow.handle == 0 || flow.send.unsent() > 0 => Left::Nothing,
                Some(_) if !self.has_room(1) => Left::More,
                Some(gift) => {
                    gift.asked = true;
                    let give = call::give(flow.handle, gift.to, gift.token);
                    self.push(give, Pending::Give(id));
                    Left::Nothing
                }
                None => Left::Nothing,
            },
            Emitted::Unfinished => Left::Unfinished,
            Emitted::Gone => Left::Gone,
        }
    }
}
