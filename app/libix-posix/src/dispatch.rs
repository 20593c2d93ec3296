//! After a cycle: its event conditions change the sockets that they are about.
use crate::elastic_thread::{Pending, cookie};
use crate::error_queue::{ERRORS_MAX, ErrorEntry};
use crate::options::MtuDiscovery;
use crate::slab::Id;
use crate::socket::{Incoming, Kind, Socket, charged};
use crate::state::Core;
use crate::stream::{Phase, Stream};
use crate::{clock, errno, family, groups, icmp, mem, real};
use libc::{EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM};
use libix::engine::Ending;
use libix::raw::{Event, Received, Said, Thread, call};
use std::net::SocketAddr;
use std::time::Instant;

const IN: i32 = EPOLLIN | EPOLLRDNORM;
const OUT: i32 = EPOLLOUT | EPOLLWRNORM;

impl Core {
    /// Takes in the first `events` event conditions of the cycle.
    pub fn dispatch(&mut self, elastic: usize, thread: &Thread, events: usize) {
        // The datagram whose pieces come.
        let mut partial: Option<Incoming> = None;
        for index in 0..events {
            match thread.event(index) {
                Event::Recv { cookie, data, news, .. } => {
                    self.received(cookie, data);
                    if news.bytes() > 0 {
                        self.sent(cookie, news.bytes(), news.window().into());
                    }
                }
                Event::Sent { cookie, bytes, window } => self.sent(cookie, bytes, window),
                Event::Eof { cookie } => self.ended(cookie),
                Event::Dead { cookie, reason } => {
                    self.died(cookie, errno::of_dead(reason));
                }
                Event::Knock { listener, handle, peer } => {
                    real::has_connection();
                    self.knocked(elastic, listener, handle, peer);
                }
                Event::Given { token, handle, peer, returned, .. } => {
                    real::has_connection();
                    self.given(elastic, token, (handle, returned), peer);
                }
                Event::Connected { cookie, handle, outcome } => {
                    real::has_connection();
                    self.connected(cookie, handle, outcome.err().map(errno::of_error));
                }
                Event::UdpRecv { cookie, data, peer, local, notes } => {
                    let incoming = match partial.take() {
                        Some(mut first) => {
                            first.rest.push(data);
                            first
                        }
                        None => {
                            let (from, rest, came) = (peer, Vec::new(), None);
                            let (hops, tos, label) = (notes.hops(), notes.tos(), notes.label());
                            let copy = None;
                            Incoming {
                                data,
                                rest,
                                copy,
                                from,
                                local,
                                hops,
                                tos,
                                label,
                                came,
                                elastic,
                            }
                        }
                    };
                    match notes.follows() {
                        0 => self.udp_received(cookie, incoming),
                        _ => partial = Some(incoming),
                    }
                }
                Event::UdpError { cookie, peer, said, data, .. } => {
                    self.udp_failed(cookie, peer, said, data);
                    if let Some(data) = data {
                        self.elastic_threads[elastic].give_back(data);
                    }
                }
                Event::FlowError { cookie, said, .. } => self.flow_failed(elastic, cookie, said),
                Event::UdpSent { cookie } => self.datagram_left(cookie, 0),
                // Another process of the program has said something of what both have.
                Event::Signal { .. } => self.looks_soon(),
                _ => {}
            }
        }
    }

    fn received(&mut self, id: Id, data: Received) {
        let Some(stream) = self.live_stream(id) else { return };
        if stream.flow.ending != Ending::No && !stream.is_consumed(data.len()) {
            // The program will not read it, and the peer must learn that.
            stream.flow.ending = Ending::Abort;
            return self.mark_dirty(id);
        }
        // SAFETY: events come in order, and only `Flow::emit` returns bytes of a flow. When the
        // flow ends, for whatever reason, `died` copies the unread bytes, and a dead stream takes
        // no more in.
        unsafe { stream.flow.receive.take_in(data) };
        let gives_back = stream.skip_consumed();
        let deferred = stream.deferred_until_us.is_some();
        if stream.shared.is_some() {
            // Another process may wait for it.
            self.looks_soon();
        }
        if gives_back {
            self.mark_dirty(id);
        }
        self.notify(id, IN);
        if deferred {
            self.enters_queue(id);
        }
    }

    fn sent(&mut self, id: Id, bytes: u32, window: u64) {
        let limit = self.send_limit(id);
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let starving = socket.starving;
        let Some(stream) = socket.stream().filter(|stream| stream.phase != Phase::Dead) else {
            return;
        };
        let was_writable = !starving && stream.is_writable(limit);
        let path_bytes = stream.path_bytes;
        stream.acked(bytes, window);
        if bytes > 0 {
            stream.soft_error = 0;
        }
        let ends = stream.flow.ending != Ending::No;
        let mut becomes_writable = !was_writable && stream.is_writable(limit);
        let is_delivered = stream.lingers && stream.is_delivered();
        let grew = stream.path_bytes > path_bytes;
        if stream.flow.send.unsent() > 0 || (ends && stream.flow.send.len() == 0) {
            self.mark_dirty(id);
        }
        if grew && !was_writable && !becomes_writable {
            let limit = self.send_limit(id);
            becomes_writable = self.live_stream(id).is_some_and(|s| s.is_writable(limit));
        }
        if becomes_writable {
            self.no_longer_starves(id);
            self.notify(id, OUT);
        } else if is_delivered {
            self.notify(id, 0);
        }
    }

    /// A stream whose flow has not ended. Events that follow the end in the same cycle are
    /// ignored.
    fn live_stream(&mut self, id: Id) -> Option<&mut Stream> {
        let stream = self.sockets.get_mut(id).and_then(Socket::stream)?;
        (stream.phase != Phase::Dead).then_some(stream)
    }

    fn ended(&mut self, id: Id) {
        let Some(stream) = self.live_stream(id) else { return };
        stream.eof = true;
        if stream.shared.is_some() {
            self.looks_soon();
        }
        self.notify(id, IN | EPOLLRDHUP | EPOLLHUP);
        self.ends_deferral(id);
    }

    fn connected(&mut self, id: Id, handle: u64, errno: Option<i32>) {
        if let Some(errno) = errno {
            return self.died(id, errno);
        }
        let Some(stream) = self.live_stream(id) else { return };
        (stream.flow.handle, stream.flow.established) = (handle, true);
        stream.phase = Phase::Open;
        stream.was_open = true;
        self.says_what_it_is(id);
        self.mark_dirty(id);
        self.notify(id, OUT);
    }

    fn knocked(&mut self, elastic: usize, port: u64, handle: u64, peer: SocketAddr) {
        let port = port & !cookie::PORT;
        self.arrives(elastic, port, Some(port), handle, peer);
    }

    /// A connection has come for the listeners of a port. `place_at`: where the dataplane keeps a
    /// place for it.
    pub fn arrives(
        &mut self,
        elastic: usize,
        port: Id,
        place_at: Option<Id>,
        handle: u64,
        peer: SocketAddr,
    ) {
        let Some(listener) = self.choose_listener(elastic, port) else {
            // The last listener was closed in this cycle: `UNLISTEN` refuses the connection.
            return;
        };
        let Some(socket) = self.sockets.get_mut(listener) else { return };
        let (ipv6, options) = (socket.ipv6, socket.options.clone());
        let single = self.routes.single(peer.is_ipv6());
        let local = socket.bound.map(|at| match single {
            Some(ip) if family::is_wildcard(at.ip()) => SocketAddr::new(ip, at.port()),
            _ => at,
        });
        let local = local.filter(|at| !family::is_wildcard(at.ip()));
        let mut stream = Stream::new(Phase::ToAccept, handle, peer, local);
        (stream.queued_at, stream.place_at) = (Some(listener), place_at);
        if place_at.is_none() {
            stream.legacy_told = Stream::LEGACY_OF_GIVER;
        }
        stream.unsent_low = options.unsent_limit();
        let defer_us = u64::from(options.defer_accept_s) * 1_000_000;
        if defer_us > 0 {
            stream.deferred_until_us = Some(clock::now_us() + defer_us);
        }
        stream.options_changed = options.of_flow(peer.ip()) != stream.told;
        let mut accepted = Socket::new(Kind::Stream(Box::new(stream)), ipv6, false);
        (accepted.options, accepted.elastic) = (options, elastic);
        let id = self.sockets.insert(accepted);
        self.mark_dirty(id);
        if defer_us == 0 {
            return self.enters_queue(id);
        }
        self.elastic_threads[elastic].deferred.push(id);
        if let Some(listener) = self.sockets.get_mut(listener).and_then(Socket::listener) {
            listener.deferred += 1;
        }
    }

    /// Returns the socket that a datagram belongs to: the one that is connected to its sender, else
    /// the latest one that is not connected, else the latest one, which drops the datagram.
    fn choose_datagrams(&mut self, port: Id, from: SocketAddr) -> Option<Id> {
        let Core { udp_ports, sockets, .. } = self;
        let members = &udp_ports.get(port)?.members;
        if let [only] = members[..] {
            return Some(only);
        }
        let mut peer = |id: Id| Some(sockets.get_mut(id)?.datagrams()?.peer);
        let connected = members.iter().copied().find(|id| peer(*id) == Some(Some(from)));
        let open = || members.iter().rev().copied().find(|id| peer(*id) == Some(None));
        connected.or_else(open).or_else(|| members.last().copied())
    }

    /// An ICMP message about a datagram. As on Linux, a connected socket gets a permanent error, as
    /// the result of its next call. A socket with `IP_RECVERR` gets every error, also in its error
    /// queue.
    fn udp_failed(&mut self, port: Id, to: SocketAddr, said: Said, quoted: Option<Received>) {
        let Some((errno, for_good)) = icmp::errno(&said) else { return };
        let Core { udp_ports, sockets, paths, .. } = self;
        let Some(port) = udp_ports.get(port) else { return };
        let mut peer = |id: Id| Some(sockets.get_mut(id)?.datagrams()?.peer);
        let members = || port.members.iter().copied();
        let connected = members().find(|id| peer(*id) == Some(Some(to)));
        let Some(id) = connected.or_else(|| members().rev().find(|id| peer(*id) == Some(None)))
        else {
            return;
        };
        let Some(socket) = sockets.get_mut(id) else { return };
        let options = socket.options.towards(to.ip());
        if options.mtu_discovery.heeds_icmp() {
            paths.said(to.ip(), said, Instant::now());
        }
        let wants_all = options.receive_errors;
        let is_told = connected.is_some() && for_good;
        let matters = errno != libc::EMSGSIZE || options.mtu_discovery != MtuDiscovery::Dont;
        if !(wants_all || is_told) || !matters {
            return;
        }
        socket.error = errno;
        if let Some(udp) = socket.datagrams()
            && wants_all
            && udp.errors.len() < ERRORS_MAX
        {
            // SAFETY: the caller returns the buffer afterwards.
            let bytes = quoted.map_or(&[][..], |data| unsafe { mem::received(data, 0) });
            let error_entry = ErrorEntry { to, errno, said: Some(said), info: said.detail };
            udp.errors.push_back((error_entry, bytes.to_vec()));
        }
        self.notify(id, IN | EPOLLERR);
    }

    /// An ICMP message about a connection. It ends an attempt to connect, as on Linux. An open
    /// connection goes on; if it ends because the peer does not answer, this is its error. With
    /// `IP_RECVERR` the program gets the error at once.
    fn flow_failed(&mut self, elastic: usize, id: Id, said: Said) {
        let Some((errno, _)) = icmp::errno(&said) else { return };
        let Some(socket) = self.sockets.get_mut(id) else { return };
        // A dead one has no peer.
        let Some(to) = socket.peer().map(|peer| peer.ip()) else { return };
        let wants_all = socket.options.towards(to).receive_errors;
        let Some(stream) = socket.stream() else { return };
        if errno == libc::EMSGSIZE {
            return self.paths.said(to, said, Instant::now());
        }
        if stream.is_connecting() {
            // Kept for `MSG_ERRQUEUE` even without `IP_RECVERR`.
            let to = stream.peer;
            stream.connect_error =
                Some(Box::new(ErrorEntry { to, errno, said: Some(said), info: said.detail }));
            if stream.flow.handle != 0 {
                let abort = call::abort(stream.flow.handle);
                self.elastic_threads[elastic].batch.put_off(abort, Pending::Nothing);
            }
            return self.died(id, errno);
        }
        if wants_all {
            socket.error = errno;
            self.notify(id, IN | EPOLLERR);
        } else {
            stream.soft_error = errno;
        }
    }

    fn udp_received(&mut self, port: Id, incoming: Incoming) {
        let Incoming { from, local, elastic, .. } = incoming;
        if self.routes.is_group(local) {
            return self.udp_received_by_all(port, incoming);
        }
        match self.choose_datagrams(port, from) {
            Some(id) => self.udp_received_by(id, incoming),
            None => {
                let elastic = &mut self.elastic_threads[elastic];
                incoming.buffers().for_each(|data| elastic.give_back(data));
            }
        }
    }

    /// A datagram to several hosts is for each socket of the port that hears it, as on Linux.
    #[cold]
    fn udp_received_by_all(&mut self, port: Id, incoming: Incoming) {
        let Incoming { from, local, elastic, .. } = incoming;
        let Core { udp_ports, sockets, .. } = self;
        let members = udp_ports.get(port).map_or(&[][..], |port| &port.members[..]);
        let hears = |socket: &Socket| {
            let (options, own) = (&socket.options, socket.options.towards(local));
            let peer = socket.peer();
            peer.is_none_or(|peer| peer == from)
                && (!local.is_multicast()
                    || groups::hears(&options.groups, own.multicast_all, local, from.ip()))
        };
        let ids = members.iter().filter(|id| sockets.get(**id).is_some_and(&hears));
        let ids: Vec<Id> = ids.copied().collect();
        let Some((last, others)) = ids.split_last() else {
            let elastic = &mut self.elastic_threads[elastic];
            return incoming.buffers().for_each(|data| elastic.give_back(data));
        };
        for id in others {
            self.udp_received_by(*id, incoming.copied());
        }
        self.udp_received_by(*last, incoming);
    }

    fn udp_received_by(&mut self, id: Id, mut incoming: Incoming) {
        let Incoming { from, elastic, .. } = incoming;
        let Some(socket) = self.sockets.get_mut(id) else { return };
        let limit = socket.options.receive_buffer;
        incoming.came = socket.options.stamps.any().then(clock::time_of_day);
        let Some(udp) = socket.datagrams() else { return };
        let foreign = udp.peer.is_some_and(|peer| peer != from);
        // A datagram without room is dropped, as on Linux.
        if foreign || udp.closing || udp.read_shut || udp.inbox_bytes >= limit {
            let elastic = &mut self.elastic_threads[elastic];
            return incoming.buffers().for_each(|data| elastic.give_back(data));
        }
        udp.inbox_bytes += charged(&incoming);
        udp.inbox.push_back(incoming);
        self.notify(id, IN);
    }
}
