//! Which ports of this process the dataplane has open. A port serves several sockets, and has a
//! handle on every elastic thread.
use crate::confined::ELASTIC_THREADS_MAX;
use crate::family;
use crate::groups::{self, Wanted};
use crate::options::{IpFields, Options};
use crate::port::{BacklogNews, Port, PortHandle, UdpPort};
use crate::slab::Id;
use crate::socket::{Kind, Socket};
use crate::state::Core;
use libix::Error;
use std::net::{IpAddr, SocketAddr};

impl Core {
    /// The dataplane starts with this many elastic threads: each opens all ports known so far.
    pub fn open_ports_on(&mut self, count: usize) {
        self.elastic_count = count.clamp(1, ELASTIC_THREADS_MAX);
        for thread in &mut self.elastic_threads[..self.elastic_count] {
            (thread.new_ports, thread.new_udp_ports) = (self.ports.ids(), self.udp_ports.ids());
        }
        for id in self.ports.ids() {
            if let Some(port) = self.ports.get_mut(id) {
                port.restart(self.elastic_count);
            }
        }
        for id in self.udp_ports.ids() {
            if let Some(port) = self.udp_ports.get_mut(id) {
                port.restart(self.elastic_count);
            }
        }
    }

    /// Closes a port without members. While a request for it is outstanding, its answer closes it.
    pub fn close_port(&mut self, id: Id) {
        let Some(port) = self.ports.get(id).filter(|port| port.members.is_empty()) else { return };
        for thread in &mut self.elastic_threads {
            thread.new_ports.retain(|port| *port != id);
        }
        if !port.handles.is_awaited() {
            for (elastic, handle) in port.handles.all() {
                self.elastic_threads[elastic].old_ports.push(handle);
            }
            self.ports.remove(id);
        }
    }

    /// Adds a listening socket to its port, which is opened if it is the first there.
    pub fn join_port(&mut self, id: Id, at: SocketAddr, reuse_port: bool) -> Result<Id, i32> {
        let is_there = |port: &Port| port.at == at && !port.members.is_empty();
        let same = self.ports.iter().find(|(_, port)| is_there(port)).map(|(id, _)| id);
        let Some(port) = same else {
            let port = self.ports.insert(Port::new(at, id, self.elastic_count));
            let active = &mut self.elastic_threads[..self.elastic_count];
            active.iter_mut().for_each(|thread| thread.new_ports.push(port));
            return Ok(port);
        };
        let Some(entry) = self.ports.get_mut(port).filter(|_| reuse_port) else {
            return Err(libc::EADDRINUSE);
        };
        entry.members.push(id);
        Ok(port)
    }

    /// The listeners of a port, or their backlogs, have changed. As on Linux, one more connection
    /// than a listener's backlog waits there.
    pub fn size_backlog(&mut self, id: Id) {
        let Core { ports, sockets, elastic_threads, elastic_count, .. } = self;
        let Some(port) = ports.get_mut(id) else { return };
        let mut places = |member: &Id| {
            let listener = sockets.get_mut(*member).and_then(Socket::listener);
            listener.map_or(0, |listener| listener.backlog as u32 + 1)
        };
        let backlog = port.members.iter().map(&mut places).sum::<u32>().max(1);
        if backlog == port.backlog {
            return;
        }
        port.backlog = backlog;
        for (elastic, thread) in elastic_threads[..*elastic_count].iter_mut().enumerate() {
            if port.handles.is_asked(elastic) {
                port.news(elastic).resized = true;
                thread.backlogs.push(id);
            }
        }
    }

    /// IP header fields of a listener have changed: those of its first socket count.
    pub fn ip_fields_changed(&mut self, id: Id) {
        for elastic in 0..self.elastic_count {
            if self.ports.get(id).is_some_and(|port| port.handles.is_asked(elastic)) {
                self.tell_ip_fields(elastic, id);
            }
        }
    }

    /// A port is listened at: its first socket may have IP header fields and a longest segment of
    /// its own.
    pub fn tell_ip_fields_at_first(&mut self, elastic: usize, id: Id) {
        let first = self.ports.get(id).and_then(|port| port.members.first());
        let Some(options) = first.and_then(|id| self.sockets.get(*id)).map(|one| &one.options)
        else {
            return;
        };
        let usual = IpFields::default();
        let is_usual = (options.v4.fields, options.v6.fields) == (usual, usual);
        if !is_usual || options.segment_bytes != 0 {
            self.tell_ip_fields(elastic, id);
        }
    }

    fn tell_ip_fields(&mut self, elastic: usize, id: Id) {
        let Some(port) = self.ports.get_mut(id) else { return };
        port.news(elastic).ip_fields = true;
        self.elastic_threads[elastic].backlogs.push(id);
    }

    /// A connection leaves the accept queue of its listener, if it is in one: its place is free.
    pub fn leaves_queue(&mut self, id: Id) {
        let Core { ports, sockets, elastic_threads, .. } = self;
        let Some(socket) = sockets.get_mut(id) else { return };
        let elastic = socket.elastic;
        let Some(id) = socket.stream().and_then(|stream| stream.place_at.take()) else { return };
        let Some(port) = ports.get_mut(id) else { return };
        let news = port.news(elastic);
        if *news == BacklogNews::default() {
            elastic_threads[elastic].backlogs.push(id);
        }
        news.freed += 1;
    }

    /// Adds a UDP socket to its port, which is bound if it is the first there.
    pub fn join_udp_port(&mut self, id: Id, at: SocketAddr) {
        let is_there = |port: &UdpPort| port.at == at && !port.members.is_empty();
        let same = self.udp_ports.iter().find(|(_, port)| is_there(port)).map(|(id, _)| id);
        let port = same.unwrap_or_else(|| {
            let port = self.udp_ports.insert(UdpPort::new(at, self.elastic_count));
            let active = &mut self.elastic_threads[..self.elastic_count];
            active.iter_mut().for_each(|thread| thread.new_udp_ports.push(port));
            port
        });
        if let Some(port) = self.udp_ports.get_mut(port) {
            port.members.push(id);
        }
        if let Some(udp) = self.sockets.get_mut(id).and_then(Socket::datagrams) {
            udp.port = port;
        }
    }

    /// Removes a UDP socket from its port, which is unbound if it was the last there.
    pub fn leave_udp_port(&mut self, id: Id) {
        let udp = self.sockets.get_mut(id).and_then(Socket::datagrams);
        let Some(port_id) = udp.map(|udp| udp.port) else { return };
        if let Some(port) = self.udp_ports.get_mut(port_id) {
            port.members.retain(|member| *member != id);
            let is_left = !port.members.is_empty();
            self.close_udp_port(port_id);
            if is_left {
                self.tell_groups(port_id);
            }
        }
    }

    /// What the sockets of a UDP port listen to.
    pub fn wanted_groups(&self, id: Id) -> Wanted {
        let mut wanted = Wanted::new();
        let members = self.udp_ports.get(id).map_or(&[][..], |port| &port.members[..]);
        for socket in members.iter().filter_map(|member| self.sockets.get(*member)) {
            groups::want(&mut wanted, &socket.options.groups);
        }
        wanted
    }

    /// Notes that the dataplane is to be told the groups of a UDP port, if they have changed.
    pub fn tell_groups(&mut self, id: Id) -> bool {
        let Some(port) = self.udp_ports.get(id) else { return false };
        let changed = self.wanted_groups(id) != port.told_groups;
        let waiting = &mut self.elastic_threads[0].group_ports;
        if changed && !waiting.contains(&id) {
            waiting.push(id);
        }
        changed
    }

    /// Unbinds a UDP port without members. While a request for it is outstanding, its answer
    /// unbinds it.
    pub fn close_udp_port(&mut self, id: Id) {
        let Some(port) = self.udp_ports.get(id).filter(|port| port.members.is_empty()) else {
            return;
        };
        for thread in &mut self.elastic_threads {
            thread.new_udp_ports.retain(|port| *port != id);
        }
        if !port.handles.is_awaited() {
            for (elastic, handle) in port.handles.all() {
                self.elastic_threads[elastic].old_udp_ports.push(handle);
            }
            self.udp_ports.remove(id);
        }
    }

    /// Takes in what an elastic thread has answered to the request to open a port, or with `udp` to
    /// bind a UDP port.
    pub fn opened(&mut self, elastic: usize, id: Id, answer: Result<u64, Error>, udp: bool) {
        let handles = match udp {
            true => self.udp_ports.get_mut(id).map(|port| &mut port.handles),
            false => self.ports.get_mut(id).map(|port| &mut port.handles),
        };
        if let Some(handles) = handles {
            handles.set(elastic, PortHandle::Is(answer));
        }
        // All members may have left meanwhile.
        if udp { self.close_udp_port(id) } else { self.close_port(id) }
    }

    /// Whether another socket of this process is bound to an address in a way that excludes this
    /// one.
    pub fn is_in_use(&self, id: Id, at: SocketAddr, stream: bool, options: &Options) -> bool {
        self.sockets.iter().filter(|(other, _)| *other != id).any(|(_, other)| {
            let Some(theirs) = other.bound else { return false };
            let overlaps = theirs.port() == at.port() && family::overlap(theirs.ip(), at.ip());
            let other_stream = match other.kind {
                Kind::Idle { stream, .. } => stream,
                Kind::Datagrams(_) => false,
                Kind::Linux | Kind::Lost => return false,
                _ => true,
            };
            let listens = matches!(other.kind, Kind::Listener(_));
            let share_address =
                options.reuse_address && other.options.reuse_address && !(stream && listens);
            let share_port = options.reuse_port && other.options.reuse_port;
            overlaps && other_stream == stream && other.fds > 0 && !share_address && !share_port
        })
    }

    /// A free port for a socket whose program names none.
    pub fn free_port(&self, id: Id, ip: IpAddr, stream: bool) -> Result<u16, i32> {
        let mut random = 0u16;
        // SAFETY: two bytes of ours.
        unsafe { libc::getrandom((&raw mut random).cast(), 2, libc::GRND_NONBLOCK) };
        let strict = Options::default();
        let free = |port: &u16| !self.is_in_use(id, SocketAddr::new(ip, *port), stream, &strict);
        let from_somewhere_on = |(first, last): (u16, u16)| {
            let span = u32::from(last - first) + 1;
            (0..span).map(move |n| first + ((u32::from(random) + n) % span) as u16)
        };
        let outgoing = self.outgoing.into_iter().flat_map(from_somewhere_on);
        // Others than those that IX has already are claimed when they are used.
        let others = from_somewhere_on(self.ephemeral.range());
        let others = others.filter(|port| self.ephemeral.has(*port));
        let found = outgoing.chain(others).find(free);
        found.ok_or(libc::EADDRINUSE)
    }
}
