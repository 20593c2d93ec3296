//! Connections come and go: listening, connecting, and the end of a flow.
use crate::calls::congestion;
use crate::cycle::{ElasticThread, flow_of};
use crate::flows::flow::{Flow, Holder, Payload, Waits};
use crate::flows::handle::FlowId;
use crate::receive::Work;
use crate::tcp::listeners::{ListenError, Listening};
use ix_abi::error;
use ix_tcp::{CongestionControl, Listener, Tcb};
use ix_wire::{FlowTuple, IpAddr, Seq, TcpHeader, TcpPacket};

/// How the application ends a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// In order.
    Close,
    /// By reset.
    Abort,
}

impl ElasticThread {
    /// Takes a new flow in; `None` when there are too many.
    pub(crate) fn insert_flow(&mut self, group: usize, mut flow: Flow) -> Option<FlowId> {
        if self.flows >= self.shared.config.flows_max {
            return None;
        }
        flow.side.ttl = self.shared.config.ttl;
        let id = self.groups[group].as_mut()?.insert(flow)?;
        self.flows += 1;
        let counters = &self.io.metrics.counters;
        counters.flows.set(self.flows as u64);
        counters.flows_peak.raise(self.flows as u64);
        Some(id)
    }

    /// Removes a flow with all it holds; its handle is stale from now on.
    pub(crate) fn remove_flow(&mut self, id: FlowId) {
        let Some(group) = self.groups[id.group as usize].as_mut() else { return };
        if group.get(id).is_none() {
            return;
        }
        let Some(mut flow) = group.remove(id.slot) else { return };
        group.time_wait -= u32::from(flow.side.in_time_wait);
        self.listeners.stop_waiting(&mut flow.side);
        flow.tcb.release(&mut self.io.of(&mut flow.side));
        self.io.bury(&mut flow.side);
        self.flows -= 1;
        if flow.side.in_time_wait {
            let time_wait = &self.io.metrics.counters.time_wait;
            time_wait.set(time_wait.get().saturating_sub(1));
        }
        self.io.metrics.counters.flows.set(self.flows as u64);
        self.io.metrics.counters.closed.add(1);
    }

    /// The flow leaves its listener's backlog.
    pub(crate) fn stop_waiting(&mut self, id: FlowId) {
        if let Some(flow) = flow_of(&mut self.groups, id) {
            self.listeners.stop_waiting(&mut flow.side);
        }
    }

    /// The application leaves a flow; the flow ends by itself.
    pub(crate) fn end_flow(&mut self, id: FlowId, how: End) {
        let ElasticThread { shared, groups, io, .. } = self;
        let Some(flow) = flow_of(groups, id) else { return };
        let (cfg, now_us) = (&shared.config.tcp, io.now_us);
        flow.side.holder = Holder::Orphan;
        match how {
            End::Close => flow.tcb.close(cfg, now_us, &mut io.of(&mut flow.side)),
            End::Abort => flow.tcb.abort(cfg, now_us, &mut io.of(&mut flow.side)),
        }
        io.bury_received(&mut flow.side);
        self.touch(id);
    }

    /// Tells the application of data that came before it accepted the flow, or while it was away.
    pub(crate) fn announce_early_data(&mut self) {
        while self.io.events.has_room() {
            let Some(id) = self.to_announce.pop_front() else { return };
            let ElasticThread { groups, io, shared, .. } = self;
            let Some(flow) = flow_of(groups, id) else { continue };
            if flow.side.holder != Holder::Application {
                continue;
            }
            let side = &mut flow.side;
            let held = std::mem::take(&mut side.held);
            let skip = side.announced as usize;
            held.for_each(&shared.memory, skip, |addr, len| io.announce(side, addr, len as u32));
            side.held = held;
            if side.eof_pending {
                io.announce_eof(side);
            }
            if std::mem::take(&mut side.announce_later)
                && (side.acked_bytes > 0 || side.window_opened)
            {
                io.announce_sent(side, flow.tcb.send_space(&shared.config.tcp));
            }
        }
    }

    pub(crate) fn call_listen(&mut self, args: &[u64; 6]) -> Result<i64, i64> {
        let addr = addr_of(args[0], args[1]);
        let port = port_of(args[2])?;
        let config = &self.shared.config;
        if !addr.is_unspecified() && !config.is_local(addr) {
            return Err(error::NOT_LOCAL);
        }
        if port == 0 {
            return Err(error::INVALID);
        }
        let backlog = match u32::try_from(args[3]).map_err(|_| error::INVALID)? {
            0 => config.backlog,
            n => n.min(BACKLOG_MAX),
        };
        let addr = if addr.is_unspecified() { IpAddr::UNSPECIFIED } else { addr };
        let backlog = Listener::new(backlog, backlog.max(HALF_OPEN_MIN));
        let listening = Listening { addr, port, cookie: args[4], backlog, cookies_until_us: 0 };
        self.listeners.add(listening).map(|id| id as i64).map_err(|e| match e {
            ListenError::InUse => error::IN_USE,
            ListenError::TooMany => error::NO_RESOURCE,
        })
    }

    /// Refuses all that wait at the listener, then removes it.
    pub(crate) fn call_unlisten(&mut self, id: u64) -> Result<i64, i64> {
        let slot = self.listeners.slot_of(id).ok_or(error::BAD_HANDLE)?;
        let waiting = |flow: &Flow| flow.side.waits != Waits::Nowhere && flow.side.listener == slot;
        let ids: Vec<FlowId> =
            self.groups.iter().flatten().flat_map(|group| group.ids_where(waiting)).collect();
        for id in ids {
            self.stop_waiting(id);
            self.end_flow(id, End::Abort);
        }
        self.listeners.remove(slot);
        Ok(0)
    }

    pub(crate) fn call_connect(&mut self, args: &[u64; 6]) -> Result<i64, i64> {
        let remote = addr_of(args[1], args[2]);
        let kind = wanted_congestion(args[3])?;
        let ports = (port_of(args[3] & !CONGESTION_BITS)?, port_of(args[4])?);
        self.connect(args[0], remote, ports, None, kind)
    }

    /// RFC 9293 section 3.9.1.1: an application may name the local address (MUST-43).
    pub(crate) fn call_connect_from(&mut self, args: &[u64; 6]) -> Result<i64, i64> {
        let (remote, named) = (addr_of(args[1], args[2]), addr_of(args[4], args[5]));
        let kind = wanted_congestion(args[3])?;
        let ports = (port_of(args[3] & 0xffff)?, port_of(args[3] >> 32)?);
        let named = (!named.is_unspecified()).then_some(named);
        self.connect(args[0], remote, ports, named, kind)
    }

    fn connect(
        &mut self,
        cookie: u64,
        remote: IpAddr,
        (remote_port, local_port): (u16, u16),
        named: Option<IpAddr>,
        congestion: Option<CongestionControl>,
    ) -> Result<i64, i64> {
        let group = self.shared.config.is_group(remote);
        if remote_port == 0 || remote.is_unspecified() || group {
            return Err(error::INVALID);
        }
        let config = &self.shared.config;
        let (by_route, _) = config.route(remote).ok_or(error::UNREACHABLE)?;
        if self.io.ports.is_empty() {
            return Err(error::UNREACHABLE);
        }
        let local = named.unwrap_or(by_route);
        if !config.is_local(local) {
            return Err(error::NOT_LOCAL);
        }
        let device = config.device_of(local, self.io.ports.len());
        if device != config.device_of(by_route, self.io.ports.len()) {
            return Err(error::UNREACHABLE);
        }
        let tuple = FlowTuple { local, remote, local_port, remote_port };
        let (tuple, group, hash) = self.choose_port(tuple, device)?;
        let mut tcb = self.new_active(&tuple);
        if let Some(kind) = congestion {
            tcb.set_congestion(kind);
        }
        let mut flow = Flow::new(tcb, hash, device, Holder::Connecting, self.io.now_us);
        flow.side.cookie = cookie;
        let id = self.insert_flow(group, flow).ok_or(error::NO_RESOURCE)?;
        self.touch(id);
        self.io.metrics.counters.connects.add(1);
        Ok(id.handle() as i64)
    }

    /// Completes the tuple with a local port that is free and whose flow group is this thread's,
    /// so that the answers, which come in on `device`, come here (RFC 6056 for the choice).
    fn choose_port(
        &mut self,
        mut tuple: FlowTuple,
        device: u8,
    ) -> Result<(FlowTuple, usize, u64), i64> {
        let ElasticThread { shared, receive, groups, secrets, migrations, io, .. } = self;
        // Groups that are just leaving take no new flows: nobody would tell the new thread of them.
        let at_home =
            |group: usize| groups[group].as_ref().filter(|_| migrations.is_home(group, io.index));
        let place = |tuple: &FlowTuple| {
            let hash = shared.flow_hash.hash(tuple);
            (receive.classify(hash, device as usize, tuple), hash)
        };
        let fits = |tuple: &FlowTuple| {
            let (group, hash) = place(tuple);
            at_home(group).is_some_and(|g| g.find(hash, tuple).is_none())
        };
        if tuple.local_port != 0 {
            let (group, hash) = place(&tuple);
            return match at_home(group) {
                None => Err(error::INVALID),
                Some(g) if g.find(hash, &tuple).is_some() => Err(error::IN_USE),
                Some(_) => Ok((tuple, group, hash)),
            };
        }
        let fits = |port| fits(&FlowTuple { local_port: port, ..tuple });
        let port = secrets.local_port(&tuple, fits);
        tuple.local_port = port.ok_or(error::NO_RESOURCE)?;
        let (group, hash) = place(&tuple);
        Ok((tuple, group, hash))
    }

    fn new_active(&mut self, tuple: &FlowTuple) -> Tcb<Payload> {
        let (iss, ts_offset) = self.secrets.start_of(tuple, self.io.now_us);
        Tcb::connect(&self.shared.config.tcp, *tuple, iss, ts_offset, self.io.now_us)
    }

    /// The flow that a SYN opens; its numbers begin at `floor` or above, if there is one.
    pub(crate) fn new_passive(
        &mut self,
        syn: &TcpHeader,
        tuple: &FlowTuple,
        floor: Option<Seq>,
    ) -> Tcb<Payload> {
        let (iss, ts_offset) = self.secrets.start_of(tuple, self.io.now_us);
        let iss = floor.map_or(iss, |floor| iss.max(floor));
        Tcb::accept(&self.shared.config.tcp, *tuple, syn, iss, ts_offset, self.io.now_us)
    }

    pub(crate) fn open_cookie(&self, ack: &TcpHeader, tuple: &FlowTuple) -> Option<Tcb<Payload>> {
        self.secrets.open_cookie(&self.shared.config.tcp, ack, tuple, self.io.now_us)
    }

    pub(crate) fn send_cookie(&mut self, work: &Work, packet: &TcpPacket, tuple: &FlowTuple) {
        let cfg = &self.shared.config.tcp;
        let answer = self.secrets.cookie_for(cfg, &packet.header, tuple, self.io.now_us);
        self.io.metrics.counters.syn_cookies.add(1);
        self.io.send_reply(work.port, packet.ip.eth_src, tuple, &answer);
    }
}

/// Largest backlog that an application may ask for.
const BACKLOG_MAX: u32 = 1 << 20;
/// Unfinished handshakes that even a small backlog has before cookies are used.
const HALF_OPEN_MIN: u32 = 128;

/// The address of two argument words.
pub(crate) fn addr_of(high: u64, low: u64) -> IpAddr {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&high.to_be_bytes());
    bytes[8..].copy_from_slice(&low.to_be_bytes());
    IpAddr(bytes)
}

/// Where `CONNECT` says which congestion control it wants.
const CONGESTION_BITS: u64 = 0xffff << 16;

/// What stands there; `None`: as configured.
fn wanted_congestion(word: u64) -> Result<Option<CongestionControl>, i64> {
    let number = (word & CONGESTION_BITS) >> 16;
    number.checked_sub(1).map(congestion).transpose()
}

/// The port of an argument word.
pub(crate) fn port_of(value: u64) -> Result<u16, i64> {
    u16::try_from(value).map_err(|_| error::INVALID)
}
