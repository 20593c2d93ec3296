//! Connections come and go: listening, connecting, and the end of a flow.
use super::Tcp;
use super::listeners::{ListenError, Listening};
use super::output::announce;
use crate::calls::{Answer, congestion};
use crate::context::Context;
use crate::cycle::ElasticThread;
use crate::flows::flow::{Flow, Holder, Payload, Waits};
use crate::flows::handle::FlowId;
use crate::flows::{Flows, flow_and_alarm, flow_of, schedule, touch};
use crate::io::Io;
use crate::receive::batch::Work;
use ix_abi::{CallError, Congestion, Cookie, Endpoint};
use ix_tcp::icmp::IcmpError;
use ix_tcp::{Listener, State, Tcb};
use ix_wire::{FlowTuple, IpAddr, Seq, TcpHeader, TcpPacket};

/// How the application ends a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// In order.
    Close,
    /// By reset.
    Abort,
}

impl Tcp {
    /// Removes a flow with all it holds; its handle is stale from now on.
    pub fn remove(&mut self, io: &mut Io, flows: &mut Flows, id: FlowId) {
        let Some(mut flow) = flows.remove(&io.cx, id) else { return };
        self.listeners.stop_waiting(&mut flow.side);
        flow.tcb.release(&mut io.of(&mut flow.side));
        io.cx.bury(&mut flow.side);
    }

    /// The flow leaves its listener's backlog.
    pub fn stop_waiting(&mut self, flows: &mut Flows, id: FlowId) {
        if let Some(flow) = flows.get(id) {
            self.listeners.stop_waiting(&mut flow.side);
        }
    }

    /// Sends what the touched flows have to send, arms their timers, buries the dead. Those that
    /// `quiets` picks say nothing yet.
    #[inline]
    pub fn flush(
        &mut self,
        io: &mut Io,
        flows: &mut Flows,
        mut quiets: impl FnMut(FlowId) -> bool,
    ) {
        let mut touched = std::mem::take(&mut flows.touched);
        for id in touched.drain(..) {
            if !quiets(id) {
                self.flush_flow(io, flows, id);
            }
        }
        flows.touched = touched;
    }

    fn flush_flow(&mut self, io: &mut Io, flows: &mut Flows, id: FlowId) {
        let Flows { groups, wheel, .. } = flows;
        let Some((flow, alarm_us)) = flow_and_alarm(groups, id) else { return };
        flow.side.touched = false;
        let now_us = io.cx.now_us;
        flow.tcb.output(&self.config, now_us, &mut io.of(&mut flow.side));
        if flow.tcb.is_dead() {
            self.remove(io, flows, id);
        } else {
            let newly_waits = flow.tcb.state() == State::TimeWait && !flow.side.in_time_wait;
            flow.side.in_time_wait |= newly_waits;
            schedule(wheel, flow, alarm_us);
            if newly_waits {
                flows.count_time_wait(&io.cx, id);
            }
        }
    }

    /// The flow that a SYN opens; its numbers begin at `floor` or above, if there is one.
    pub fn new_passive(
        &self,
        cx: &Context,
        syn: &TcpHeader,
        tuple: &FlowTuple,
        floor: Option<Seq>,
    ) -> Tcb<Payload> {
        let (iss, ts_offset) = self.secrets.start_of(tuple, cx.now_us);
        let iss = floor.map_or(iss, |floor| iss.max(floor));
        Tcb::accept(&self.config, *tuple, syn, iss, ts_offset, cx.now_us)
    }

    /// The connection that an ACK opens, if it carries a cookie of ours.
    pub fn open_cookie(
        &self,
        cx: &Context,
        ack: &TcpHeader,
        tuple: &FlowTuple,
    ) -> Option<Tcb<Payload>> {
        self.secrets.open_cookie(&self.config, ack, tuple, cx.now_us)
    }

    /// Answers a SYN with a cookie.
    pub fn send_cookie(&self, io: &mut Io, port: u8, packet: &TcpPacket, tuple: &FlowTuple) {
        let answer = self.secrets.cookie_for(&self.config, &packet.header, tuple, io.cx.now_us);
        io.cx.metrics.counters.syn_cookies.add(1);
        io.send_reply(port, packet.ip.eth_src, tuple, &answer);
    }
}

impl Tcp {
    /// A flow's timer has fired.
    pub fn fire(&self, io: &mut Io, flows: &mut Flows, id: FlowId) {
        let Flows { groups, wheel, touched, .. } = flows;
        let now_us = io.cx.now_us;
        let Some((flow, alarm_us)) = flow_and_alarm(groups, id) else { return };
        // Another entry of this cycle may have seen to it.
        if *alarm_us > now_us {
            return;
        }
        *alarm_us = u64::MAX;
        let out = &mut io.of(&mut flow.side);
        if flow.tcb.deadline() > now_us || flow.tcb.acknowledge_late(&self.config, now_us, out) {
            schedule(wheel, flow, alarm_us);
            return;
        }
        flow.tcb.timer(&self.config, now_us, out);
        touch(touched, &mut flow.side);
    }

    /// An ICMP error about a segment of ours goes to its flow, which judges it (RFC 5927), and to the
    /// application (RFC 9293 section 3.8.3).
    pub fn path_error(&self, io: &mut Io, flows: &mut Flows, work: &Work, error: &IcmpError) {
        let Flows { groups, touched, .. } = flows;
        let hash = io.cx.shared.flow_hash.hash(&error.tuple);
        let Some(group) = groups[usize::from(work.group)].as_mut() else { return };
        let Some(slot) = group.find(hash, &error.tuple) else { return };
        let Some(flow) = group.at(slot) else { return };
        let now_us = io.cx.now_us;
        let (kind, seq) = (error.kind.path_error(), error.quoted_seq);
        if flow.tcb.believes_error(seq) {
            io.cx.announce_error(&flow.side, error);
        }
        let out = &mut io.of(&mut flow.side);
        flow.tcb.icmp_error(&self.config, now_us, kind, seq, out);
        touch(touched, &mut flow.side);
    }

    /// The application leaves a flow; the flow ends by itself.
    pub fn end(&self, io: &mut Io, flows: &mut Flows, id: FlowId, how: End) {
        let Flows { groups, touched, .. } = flows;
        let Some(flow) = flow_of(groups, id) else { return };
        let now_us = io.cx.now_us;
        let cfg = &self.config;
        flow.side.holder = Holder::Orphan;
        match how {
            End::Close => flow.tcb.close(cfg, now_us, &mut io.of(&mut flow.side)),
            End::Abort => flow.tcb.abort(cfg, now_us, &mut io.of(&mut flow.side)),
        }
        io.cx.bury_received(&mut flow.side);
        touch(touched, &mut flow.side);
    }
}

/// Tells the application of data that came before it accepted the flow, or while it was away.
pub(crate) fn announce_early_data(cx: &mut Context, flows: &mut Flows) {
    while cx.events.has_room() {
        let Some(id) = flows.to_announce.pop_front() else { return };
        let Some(flow) = flows.get(id) else { continue };
        if flow.side.holder != Holder::Application {
            continue;
        }
        let Context { shared, events, .. } = &mut *cx;
        let side = &mut flow.side;
        let held = std::mem::take(&mut side.held);
        let skip = side.announced as usize;
        held.for_each(&shared.memory, skip, |addr, len| {
            announce(events, side, addr, len as u32);
        });
        side.held = held;
        if side.eof_pending {
            cx.announce_eof(side);
        }
        if std::mem::take(&mut side.announce_later) && (side.acked_bytes > 0 || side.window_opened)
        {
            let space = flow.tcb.send_space(&cx.shared.config.tcp);
            cx.announce_sent(side, space);
        }
    }
}

impl ElasticThread {
    pub(crate) fn call_listen(&mut self, at: Endpoint, backlog: u32, cookie: Cookie) -> Answer {
        let (addr, port) = (IpAddr(at.addr), at.port);
        let config = &self.shared.config;
        if !addr.is_unspecified() && !config.is_local(addr) {
            return Err(CallError::NotLocal);
        }
        if port == 0 {
            return Err(CallError::Invalid);
        }
        let backlog = match backlog {
            0 => config.backlog,
            n => n.min(BACKLOG_MAX),
        };
        let addr = if addr.is_unspecified() { IpAddr::UNSPECIFIED } else { addr };
        let backlog = Listener::new(backlog, backlog.max(HALF_OPEN_MIN));
        let listening = Listening { addr, port, cookie, backlog, cookies_until_us: 0 };
        self.tcp.listeners.add(listening).map_err(|e| match e {
            ListenError::InUse => CallError::InUse,
            ListenError::TooMany => CallError::NoResource,
        })
    }

    /// Refuses all that wait at the listener, then removes it.
    pub(crate) fn call_unlisten(&mut self, id: u64) -> Answer {
        let slot = self.tcp.listeners.slot_of(id).ok_or(CallError::BadHandle)?;
        let waiting = |flow: &Flow| flow.side.waits != Waits::Nowhere && flow.side.listener == slot;
        let ids: Vec<FlowId> =
            self.flows.groups.iter().flatten().flat_map(|group| group.ids_where(waiting)).collect();
        for id in ids {
            self.tcp.stop_waiting(&mut self.flows, id);
            self.tcp.end(&mut self.io, &mut self.flows, id, End::Abort);
        }
        self.tcp.listeners.remove(slot);
        Ok(0)
    }

    pub(crate) fn call_connect(
        &mut self,
        cookie: Cookie,
        to: Endpoint,
        congestion: Option<Congestion>,
        local_port: u16,
    ) -> Answer {
        self.connect(cookie, to, congestion, (None, local_port))
    }

    /// RFC 9293 section 3.9.1.1: an application may name the local address (MUST-43).
    pub(crate) fn call_connect_from(
        &mut self,
        cookie: Cookie,
        to: Endpoint,
        congestion: Option<Congestion>,
        from: Endpoint,
    ) -> Answer {
        let local = Some(IpAddr(from.addr)).filter(|addr| !addr.is_unspecified());
        self.connect(cookie, to, congestion, (local, from.port))
    }

    fn connect(
        &mut self,
        cookie: Cookie,
        to: Endpoint,
        algorithm: Option<Congestion>,
        (named, local_port): (Option<IpAddr>, u16),
    ) -> Answer {
        let (remote, remote_port) = (IpAddr(to.addr), to.port);
        let group = self.shared.config.is_group(remote);
        if remote_port == 0 || remote.is_unspecified() || group {
            return Err(CallError::Invalid);
        }
        let config = &self.shared.config;
        let (by_route, _) = config.route(remote).ok_or(CallError::Unreachable)?;
        if self.io.ports.is_empty() {
            return Err(CallError::Unreachable);
        }
        let local = named.unwrap_or(by_route);
        if !config.is_local(local) {
            return Err(CallError::NotLocal);
        }
        let device = config.device_of(local, self.io.ports.len());
        if device != config.device_of(by_route, self.io.ports.len()) {
            return Err(CallError::Unreachable);
        }
        let tuple = FlowTuple { local, remote, local_port, remote_port };
        let (tuple, group, hash) = self.choose_port(tuple, device)?;
        let mut tcb = self.new_active(&tuple);
        if let Some(algorithm) = algorithm {
            tcb.set_congestion(congestion(algorithm));
        }
        let mut flow = Flow::new(tcb, hash, device, Holder::Connecting, self.io.cx.now_us);
        flow.side.cookie = cookie;
        let id = self.flows.insert(&self.io.cx, group, flow).ok_or(CallError::NoResource)?;
        self.flows.touch(id);
        self.io.cx.metrics.counters.connects.add(1);
        Ok(id.handle())
    }

    /// Completes the tuple with a local port that is free and whose flow group is this thread's,
    /// so that the answers, which come in on `device`, come here (RFC 6056 for the choice).
    fn choose_port(
        &mut self,
        mut tuple: FlowTuple,
        device: u8,
    ) -> Result<(FlowTuple, usize, u64), CallError> {
        let ElasticThread { shared, flows, tcp, migrations, io, .. } = self;
        let (groups, port) = (&flows.groups, &io.ports[usize::from(device)]);
        // Groups that are just leaving take no new flows: nobody would tell the new thread of them.
        let at_home = |group: usize| groups[group].as_ref().filter(|_| migrations.is_home(group));
        let place = |tuple: &FlowTuple| {
            let hash = shared.flow_hash.hash(tuple);
            (port.group_of(hash, tuple), hash)
        };
        let fits = |tuple: &FlowTuple| {
            let (group, hash) = place(tuple);
            at_home(group).is_some_and(|g| g.find(hash, tuple).is_none())
        };
        if tuple.local_port != 0 {
            let (group, hash) = place(&tuple);
            return match at_home(group) {
                None => Err(CallError::Invalid),
                Some(g) if g.find(hash, &tuple).is_some() => Err(CallError::InUse),
                Some(_) => Ok((tuple, group, hash)),
            };
        }
        let fits = |port| fits(&FlowTuple { local_port: port, ..tuple });
        let port = tcp.secrets.local_port(&tuple, fits);
        tuple.local_port = port.ok_or(CallError::NoResource)?;
        let (group, hash) = place(&tuple);
        Ok((tuple, group, hash))
    }

    fn new_active(&mut self, tuple: &FlowTuple) -> Tcb<Payload> {
        let (iss, ts_offset) = self.tcp.secrets.start_of(tuple, self.io.cx.now_us);
        Tcb::connect(&self.shared.config.tcp, *tuple, iss, ts_offset, self.io.cx.now_us)
    }
}

/// Largest backlog that an application may ask for.
const BACKLOG_MAX: u32 = 1 << 20;
/// Unfinished handshakes that even a small backlog has before cookies are used.
const HALF_OPEN_MIN: u32 = 128;
