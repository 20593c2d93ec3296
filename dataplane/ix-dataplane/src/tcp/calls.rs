//! Calls for connections and listeners.
use super::connections::End;
use super::listeners::{ListenError, Listening};
use super::{Tcp, TcpContext};
use crate::calls::Answer;
use crate::context::Context;
use crate::flows::flow::{Flow, Holder, LABEL_AUTO, Payload, Waits};
use crate::flows::group::FlowGroup;
use crate::flows::handle::FlowId;
use crate::flows::{Flows, touch};
use crate::io::Io;
use crate::shared::claims::PortAt;
use ix_abi::{
    CallError, Congestion, Cookie, Endpoint, FlowInfo, FlowOption, IN_RESERVE, IN_TURN,
    OPENED_LAST, SG_MAX, SgArray, SgEntry, flow_info_flag,
};
use ix_proto::crossing::AttachmentId;
use ix_tcp::CongestionControl as Kind;
use ix_tcp::{Listener, Tcb, TcbInfo};
use ix_wire::{FlowTuple, IpAddr, Seq};

impl Tcp {
    /// `fin`: FIN follows the last byte if all are taken; `eor`: a message ends there; `done`:
    /// received bytes that are given back before.
    pub fn sendv(
        &mut self,
        cx: &mut TcpContext<'_>,
        handle: u64,
        sg: SgArray,
        (fin, eor): (bool, bool),
        done: u64,
    ) -> Answer {
        if sg.entries > SG_MAX as u64 {
            return Err(CallError::Invalid);
        }
        let TcpContext { io, flows, .. } = cx;
        let Flows { groups, touched, .. } = &mut **flows;
        let flow = own_flow(groups, handle, io.cx.caller)?;
        if done > 0 {
            self.take_back(&mut io.cx, flow, done)?;
            touch(touched, &mut flow.socket);
        }
        let Context { shared, shift, .. } = &io.cx;
        let shift = *shift;
        if !flow.tcb.state().sends() || flow.socket.holder != Holder::Application {
            return Err(CallError::State);
        }
        let mut space = flow.tcb.send_space(&self.config) as u64;
        let (mut taken, mut all) = (0, true);
        for index in 0..sg.entries {
            let found = shared.read_sg(shift, sg, index);
            let found = found.and_then(|entry| Some((shared.sendable(shift, &entry)?, entry)));
            let Some((base, entry)) = found else {
                // What was before the bad entry is taken: return its length, and fault at the next
                // call.
                if taken > 0 {
                    all = false;
                    break;
                }
                return Err(CallError::Fault);
            };
            let n = entry.len.min(space);
            flow.socket.sendq.push(base, n as u32);
            taken += n;
            space -= n;
            if n < entry.len {
                all = false;
                break;
            }
        }
        flow.tcb.append(taken as u32);
        if eor && all {
            flow.tcb.end_message();
        }
        if fin && all {
            let now_us = io.cx.now_us;
            flow.tcb.shutdown(&self.config, now_us, &mut io.of(&mut flow.socket));
        }
        touch(touched, &mut flow.socket);
        Ok(taken)
    }

    /// What a process that has ended had still to send: all of it, whatever the window is.
    pub fn send_rest(&mut self, cx: &mut TcpContext<'_>, handle: u64, piece: SgEntry) -> Answer {
        let TcpContext { io, flows, .. } = cx;
        let Flows { groups, touched, .. } = &mut **flows;
        let flow = own_flow(groups, handle, io.cx.caller)?;
        if !flow.tcb.state().sends() || flow.socket.holder != Holder::Application {
            return Err(CallError::State);
        }
        let Context { shared, shift, .. } = &io.cx;
        let base = shared.sendable(*shift, &piece).ok_or(CallError::Fault)?;
        if u64::from(flow.socket.sendq.bytes()) + piece.len > REST_MAX_BYTES {
            return Err(CallError::NoResource);
        }
        flow.socket.sendq.push(base, piece.len as u32);
        flow.tcb.append(piece.len as u32);
        touch(touched, &mut flow.socket);
        Ok(piece.len)
    }

    pub fn recv_done(&mut self, cx: &mut TcpContext<'_>, handle: u64, bytes: u64) -> Answer {
        let Flows { groups, touched, .. } = &mut *cx.flows;
        let cx = &mut cx.io.cx;
        let flow = own_flow(groups, handle, cx.caller)?;
        self.take_back(cx, flow, bytes)?;
        if flow.tcb.needs_output() {
            touch(touched, &mut flow.socket);
        }
        Ok(0)
    }

    /// The application gives received bytes back.
    #[inline(always)]
    fn take_back(&self, cx: &mut Context, flow: &mut Flow, bytes: u64) -> Result<(), CallError> {
        let Context { shared, rx_pool, flow_frames, .. } = cx;
        let freed = flow
            .socket
            .release(&shared.memory, bytes, |mbuf| rx_pool.put(mbuf))
            .ok_or(CallError::Invalid)?;
        flow_frames[flow.socket.group()] -= freed;
        flow.tcb.recv_done(&self.config, bytes as u32, freed);
        Ok(())
    }

    pub fn accept(&mut self, cx: &mut TcpContext<'_>, handle: u64, cookie: u64) -> Answer {
        let id = FlowId::from_handle(handle);
        let flow = named_flow(&mut cx.flows.groups, id, cx.io.cx.caller)?;
        match flow.socket.holder {
            Holder::Knocking => {}
            Holder::Application | Holder::Connecting => return Err(CallError::State),
            Holder::Embryonic | Holder::Orphan => return Err(CallError::BadHandle),
        }
        flow.socket.cookie = cookie;
        flow.socket.holder = Holder::Application;
        if let Some(mtu) = cx.io.cx.route_mtu(flow.tcb.tuple().remote) {
            flow.tcb.limit_segments(mtu.saturating_sub(ix_tcp::HEADER_BYTES));
        }
        if flow.socket.unannounced() {
            cx.io.cx.attached[flow.socket.owner].to_announce.push_back(handle);
        }
        self.stop_waiting(cx.flows, id);
        cx.io.cx.metrics.counters.accepted.add(1);
        Ok(0)
    }

    pub fn reject(&mut self, cx: &mut TcpContext<'_>, handle: u64) -> Answer {
        let id = FlowId::from_handle(handle);
        let flow = named_flow(&mut cx.flows.groups, id, cx.io.cx.caller)?;
        if flow.socket.holder != Holder::Knocking {
            return Err(CallError::State);
        }
        self.stop_waiting(cx.flows, id);
        self.end(cx.io, cx.flows, id, End::Abort);
        Ok(0)
    }

    pub fn close(&mut self, cx: &mut TcpContext<'_>, handle: u64) -> Answer {
        own_flow(&mut cx.flows.groups, handle, cx.io.cx.caller)?;
        self.end(cx.io, cx.flows, FlowId::from_handle(handle), End::Close);
        Ok(0)
    }

    pub fn abort(&mut self, cx: &mut TcpContext<'_>, handle: u64) -> Answer {
        own_flow(&mut cx.flows.groups, handle, cx.io.cx.caller)?;
        self.end(cx.io, cx.flows, FlowId::from_handle(handle), End::Abort);
        Ok(0)
    }

    pub fn shutdown(&mut self, cx: &mut TcpContext<'_>, handle: u64) -> Answer {
        let TcpContext { io, flows, .. } = cx;
        let groups = &mut flows.groups;
        let flow = own_flow(groups, handle, io.cx.caller)?;
        if !flow.tcb.state().sends() {
            return Err(CallError::State);
        }
        let (cfg, now_us) = (&self.config, io.cx.now_us);
        flow.tcb.shutdown(cfg, now_us, &mut io.of(&mut flow.socket));
        cx.flows.touch(FlowId::from_handle(handle));
        Ok(0)
    }

    pub fn set_opt(&mut self, cx: &mut TcpContext<'_>, handle: u64, option: FlowOption) -> Answer {
        let handle = match handle {
            OPENED_LAST => self.opened_last.ok_or(CallError::BadHandle)?,
            handle => handle,
        };
        let flow = own_flow(&mut cx.flows.groups, handle, cx.io.cx.caller)?;
        match option {
            FlowOption::Nagle(on) => flow.tcb.set_nagle(on),
            FlowOption::KeepaliveS(seconds) => {
                flow.tcb.set_keepalive(seconds, cx.io.cx.now_us);
                cx.flows.touch(FlowId::from_handle(handle));
            }
            FlowOption::UserTimeoutMs(ms) => flow.tcb.set_user_timeout(ms),
            // RFC 9293 sections 3.9.1.9 and 3.9.2: the application may choose these.
            FlowOption::Dscp(point) => flow.socket.tos = point << 2,
            FlowOption::FlowLabel(label) if flow.tcb.tuple().remote.is_v6() => {
                flow.socket.ident = label.unwrap_or(LABEL_AUTO);
            }
            FlowOption::FlowLabel(_) => {}
            FlowOption::HopLimit(hops) => flow.socket.ttl = hops,
            FlowOption::ReceiveBytes(bytes) => {
                flow.tcb.set_receive_limit(&self.config, bytes);
                cx.flows.touch(FlowId::from_handle(handle));
            }
            FlowOption::KeepaliveIntervalS(seconds) => flow.tcb.set_keepalive_interval(seconds),
            FlowOption::KeepaliveProbes(probes) => flow.tcb.set_keepalive_probes(probes),
            FlowOption::SegmentBytes(0) => {}
            FlowOption::SegmentBytes(bytes) => flow.tcb.limit_offer(&self.config, bytes),
            FlowOption::Pace(rate) => {
                flow.tcb.set_max_pacing_rate((rate > 0).then_some(rate.into()));
            }
            FlowOption::Congestion(algorithm) => flow.tcb.set_congestion(congestion(algorithm)),
            FlowOption::Closed => self.let_go(cx.io, cx.flows, FlowId::from_handle(handle)),
            FlowOption::FragmentBytes(_) | FlowOption::Multicast(_) => {
                return Err(CallError::Invalid);
            }
        }
        Ok(0)
    }

    pub fn set_cookie(&mut self, cx: &mut TcpContext<'_>, handle: u64, cookie: u64) -> Answer {
        own_flow(&mut cx.flows.groups, handle, cx.io.cx.caller)?.socket.cookie = cookie;
        Ok(0)
    }

    pub fn get_info(&mut self, cx: &mut TcpContext<'_>, handle: u64, to: u64) -> Answer {
        let id = FlowId::from_handle(handle);
        let flow = own_flow(&mut cx.flows.groups, handle, cx.io.cx.caller)?;
        let now_us = cx.io.cx.now_us;
        let (tuple, info) = (*flow.tcb.tuple(), flow.tcb.info_at(&self.config, now_us));
        let answer = FlowInfo {
            local_addr: tuple.local.0,
            remote_addr: tuple.remote.0,
            local_port: tuple.local_port,
            remote_port: tuple.remote_port,
            state: flow.tcb.state() as u16,
            flow_group: id.group,
            srtt_us: info.srtt_us,
            rttvar_us: info.rttvar_us,
            rto_us: info.rto_us,
            cwnd_bytes: info.cwnd_bytes,
            ssthresh_bytes: info.ssthresh_bytes,
            snd_wnd_bytes: info.snd_wnd_bytes,
            in_flight_bytes: info.in_flight_bytes,
            mss_bytes: info.mss_bytes,
            retransmits: info.retransmits,
            flags: agreed(&info),
            advmss_bytes: info.advmss_bytes,
            rcv_mss_bytes: info.rcv_mss_bytes,
            rcv_wnd_bytes: info.rcv_wnd_bytes,
            snd_unsent_bytes: info.snd_unsent_bytes,
            min_rtt_us: info.min_rtt_us,
            last_sent_ms: info.last_sent_ms,
            last_heard_ms: info.last_heard_ms,
            unacked_segments: info.unacked_segments,
            sacked_segments: info.sacked_segments,
            lost_segments: info.lost_segments,
            reordering_segments: info.reordering_segments,
            backoff: info.backoff,
            probes: info.probes,
            recovery: info.recovery as u32,
            bytes_acked: flow.socket.bytes_out,
            bytes_received: flow.socket.bytes_in,
            rwnd_limited_us: info.rwnd_limited_us,
        };
        let cx = &cx.io.cx;
        if cx.shared.write_info(cx.shift, to, answer) { Ok(0) } else { Err(CallError::Fault) }
    }
}

/// Listening and connecting.
impl Tcp {
    pub fn listen(
        &mut self,
        cx: &mut TcpContext<'_>,
        at: Endpoint,
        backlog: u32,
        cookie: Cookie,
        holds: bool,
    ) -> Answer {
        let (addr, port) = (IpAddr(at.addr), at.port);
        let config = &cx.io.cx.shared.config;
        if !addr.is_wildcard() {
            cx.io.cx.may_use(addr)?;
        }
        if port == 0 {
            return Err(CallError::Invalid);
        }
        let backlog = match backlog {
            0 => config.backlog,
            n => n.min(BACKLOG_MAX),
        };
        let backlog = Listener::new(backlog, backlog);
        let Context { shared, caller: owner, now_us, .. } = &cx.io.cx;
        let owner = *owner;
        let listening = Listening {
            addr,
            port,
            owner,
            cookie,
            backlog,
            holds,
            in_reserve: false,
            cookies_until_us: 0,
            ends: false,
            fields: Default::default(),
        };
        let claimed = PortAt { udp: false, addr, number: port };
        shared.claims.enter(&shared.updates.source, claimed, *now_us)?;
        self.listeners.add(listening).map_err(|e| {
            shared.claims.leave(&shared.updates.source, claimed);
            match e {
                ListenError::InUse => CallError::InUse,
                ListenError::TooMany => CallError::NoResource,
            }
        })
    }

    /// Changes the backlog of a listener, and frees places in it.
    pub fn backlog(&mut self, caller: AttachmentId, id: u64, backlog: u32, freed: u32) -> Answer {
        let slot = self.listeners.slot_of(id).ok_or(CallError::BadHandle)?;
        if self.listeners.owner_of(slot) != Some(caller) {
            return Err(CallError::BadHandle);
        }
        let listening = self.listeners.get(slot).ok_or(CallError::BadHandle)?;
        if matches!(freed, IN_RESERVE | IN_TURN) {
            listening.in_reserve = freed == IN_RESERVE;
            return Ok(0);
        }
        if backlog != 0 {
            let backlog = backlog.min(BACKLOG_MAX);
            listening.backlog.set_limits(backlog, backlog);
        }
        if listening.holds {
            listening.backlog.free(freed);
        }
        Ok(0)
    }

    /// Sets what is in the IP headers of replies to SYNs, and of connections that come of them.
    pub fn listen_opt(
        &mut self,
        caller: AttachmentId,
        id: u64,
        option: FlowOption,
        is_v6: bool,
    ) -> Answer {
        let slot = self.listeners.slot_of(id).ok_or(CallError::BadHandle)?;
        if self.listeners.owner_of(slot) != Some(caller) {
            return Err(CallError::BadHandle);
        }
        let listening = self.listeners.get(slot).ok_or(CallError::BadHandle)?;
        let fields = &mut listening.fields[usize::from(is_v6)];
        match option {
            FlowOption::Dscp(point) => fields.tos = point << 2,
            FlowOption::HopLimit(hops) => fields.hops = hops,
            FlowOption::SegmentBytes(bytes) => fields.segment_bytes = bytes,
            _ => return Err(CallError::Invalid),
        }
        Ok(0)
    }

    /// Nobody can find the listener any more. It is removed with [`Tcp::end_listeners`].
    pub fn unlisten(&mut self, cx: &mut TcpContext<'_>, id: u64) -> Answer {
        let slot = self.listeners.slot_of(id).ok_or(CallError::BadHandle)?;
        if self.listeners.owner_of(slot) != Some(cx.io.cx.caller) {
            return Err(CallError::BadHandle);
        }
        self.listeners.begin_to_end(slot);
        Ok(0)
    }

    /// Looks at some flows for those that wait at listeners that end: they go to a listener of
    /// another process at the same address, or else are refused. Removes the listeners at which
    /// none waits any more. To be called again while [`Listeners::is_any_ending`].
    #[cold]
    pub(crate) fn end_listeners(&mut self, io: &mut Io, flows: &mut Flows) {
        for id in self.listeners.next_waiting(flows) {
            self.end_wait(io, flows, id);
        }
        for slot in self.listeners.take_ended(flows) {
            if let Some(ended) = self.listeners.get_slot(slot) {
                let claimed = PortAt { udp: false, addr: ended.addr, number: ended.port };
                self.listeners.remove(slot);
                io.cx.shared.claims.leave(&io.cx.shared.updates.source, claimed);
            }
        }
    }

    /// This flow waits no longer, if it does at a listener that ends.
    #[cold]
    pub(crate) fn end_wait(&mut self, io: &mut Io, flows: &mut Flows, id: FlowId) {
        let Some(flow) = flows.get(id) else { return };
        let from = flow.socket.listener;
        if flow.socket.waits == Waits::Nowhere || !self.listeners.ends(from) {
            return;
        }
        let owner = self.listeners.owner_of(from);
        match owner.and_then(|owner| self.listeners.other_than(from, owner)) {
            Some(to) => {
                self.listeners.give(&mut flow.socket, to);
                if flow.socket.holder == Holder::Knocking {
                    self.knock(io, flow);
                }
            }
            None => {
                self.stop_waiting(flows, id);
                self.end(io, flows, id, End::Abort);
            }
        }
    }

    pub fn connect(
        &mut self,
        cx: &mut TcpContext<'_>,
        home: impl Fn(usize) -> bool,
        cookie: Cookie,
        to: Endpoint,
        congestion: Option<Congestion>,
        local_port: u16,
    ) -> Answer {
        self.open_at(cx, home, cookie, to, congestion, (None, local_port))
    }

    /// RFC 9293 section 3.9.1.1: an application may choose the local address (MUST-43).
    pub fn connect_from(
        &mut self,
        cx: &mut TcpContext<'_>,
        home: impl Fn(usize) -> bool,
        cookie: Cookie,
        to: Endpoint,
        congestion: Option<Congestion>,
        from: Endpoint,
    ) -> Answer {
        let local = Some(IpAddr(from.addr)).filter(|addr| !addr.is_unspecified());
        self.open_at(cx, home, cookie, to, congestion, (local, from.port))
    }

    /// Opens a connection; a port that the application names is claimed while it has flows.
    fn open_at(
        &mut self,
        cx: &mut TcpContext<'_>,
        home: impl Fn(usize) -> bool,
        cookie: Cookie,
        to: Endpoint,
        algorithm: Option<Congestion>,
        (named, local_port): (Option<IpAddr>, u16),
    ) -> Answer {
        self.opened_last = None;
        // Both ends are of one family.
        let claimed = PortAt { udp: false, addr: IpAddr(to.addr), number: local_port };
        let Context { shared, now_us, .. } = &cx.io.cx;
        if local_port == 0 {
            return self.open(cx, home, cookie, to, algorithm, (named, local_port));
        }
        shared.claims.enter(&shared.updates.source, claimed, *now_us)?;
        let opened = self.open(cx, home, cookie, to, algorithm, (named, local_port));
        let shared = &cx.io.cx.shared;
        shared.claims.leave(&shared.updates.source, claimed);
        opened
    }

    fn open(
        &mut self,
        cx: &mut TcpContext<'_>,
        home: impl Fn(usize) -> bool,
        cookie: Cookie,
        to: Endpoint,
        algorithm: Option<Congestion>,
        (named, local_port): (Option<IpAddr>, u16),
    ) -> Answer {
        let (remote, remote_port) = (IpAddr(to.addr), to.port);
        let group = cx.io.cx.shared.config.is_group(remote);
        if remote_port == 0 || remote.is_unspecified() || group {
            return Err(CallError::Invalid);
        }
        let config = &cx.io.cx.shared.config;
        let (by_route, _) = cx.io.cx.route(remote).ok_or(CallError::Unreachable)?;
        if cx.io.ports.is_empty() {
            return Err(CallError::Unreachable);
        }
        let local = named.unwrap_or(by_route);
        if local.is_v6() != remote.is_v6() {
            return Err(CallError::Invalid);
        }
        cx.io.cx.may_use(local)?;
        let devices = cx.io.ports.len();
        let device = config.device_of(local, devices);
        let by_others = device != config.device_of(by_route, devices);
        let leaves = !cx.io.cx.is_local(remote);
        if by_others && leaves && config.route_by(device, devices, remote).is_none() {
            return Err(CallError::Unreachable);
        }
        let tuple = FlowTuple { local, remote, local_port, remote_port };
        let (tuple, group, hash, old) = self.choose_port(cx, home, tuple, device)?;
        let floor = old.as_ref().map(|old| old.floor);
        match old.map(|old| old.at) {
            Some(OldAt::Flow(id)) => self.remove(cx.io, cx.flows, id),
            Some(OldAt::Shelf(number)) => {
                cx.flows.remove_kept(&cx.io.cx, group, (hash, number));
            }
            None => {}
        }
        let mut tcb = self.new_active(&cx.io.cx, &tuple, floor);
        if let Some(algorithm) = algorithm {
            tcb.set_congestion(congestion(algorithm));
        }
        let mut flow = Flow::new(tcb, hash, device, Holder::Connecting, cx.io.cx.now_us);
        flow.socket.cookie = cookie;
        flow.socket.owner = cx.io.cx.caller;
        self.make_room(cx.io, cx.flows);
        let id = cx.flows.insert(&cx.io.cx, group, flow).ok_or(CallError::NoResource)?;
        if local_port == 0 && !cx.io.cx.shared.claims.is_still_outgoing(tuple.local_port) {
            // It was given back at this moment.
            self.remove(cx.io, cx.flows, id);
            return Err(CallError::Again);
        }
        cx.flows.touch(id);
        cx.io.cx.metrics.counters.connects.add(1);
        self.opened_last = Some(id.handle());
        Ok(id.handle())
    }

    /// Completes the tuple with a local port whose flow group is this thread's, so that the
    /// replies, which arrive on `device`, arrive here (RFC 6056 section 3.3.4 for the choice). A
    /// port is free for each destination by itself, and so is one whose connection there is in
    /// TIME-WAIT and may be opened again: that flow comes last.
    fn choose_port(
        &mut self,
        cx: &TcpContext<'_>,
        home: impl Fn(usize) -> bool,
        mut tuple: FlowTuple,
        device: u8,
    ) -> Result<(FlowTuple, usize, u64, Option<Old>), CallError> {
        let (groups, port) = (&cx.flows.groups, &cx.io.ports[usize::from(device)]);
        let Context { shared, now_us, .. } = &cx.io.cx;
        let cfg = &self.config;
        // Groups that are leaving get no new flows, because the new thread would not learn of them.
        let at_home = |group: usize| groups[group].as_ref().filter(|_| home(group));
        let place = |tuple: &FlowTuple| {
            let hash = shared.flow_hash.hash(tuple);
            (port.group_of(hash, tuple), hash)
        };
        let old_at = |tuple: &FlowTuple| {
            let (group, hash) = place(tuple);
            let group = at_home(group).ok_or(CallError::Invalid)?;
            let old = match group.find(hash, tuple) {
                Some(slot) => {
                    let ended = |flow: &&Flow| {
                        flow.socket.holder == Holder::Orphan
                            && flow.tcb.may_be_reopened(cfg, *now_us)
                    };
                    group.peek(slot).filter(ended).map(|flow| Old {
                        at: OldAt::Flow(group.id_of(slot)),
                        floor: flow.tcb.successor_floor(),
                    })
                }
                None => {
                    let Some(number) = group.shelf().find(hash, tuple) else { return Ok(None) };
                    let kept = group.shelf().get(number);
                    let kept = kept.filter(|kept| kept.wait.may_be_reopened(cfg, *now_us));
                    kept.map(|kept| Old {
                        at: OldAt::Shelf(number),
                        floor: kept.wait.successor_floor(),
                    })
                }
            };
            old.map(Some).ok_or(CallError::InUse)
        };
        if tuple.local_port == 0 {
            if (0..groups.len()).all(|group| at_home(group).is_none()) {
                return Err(CallError::NoResource);
            }
            // Not the one that it connects to, or it would be its own peer.
            let own = if tuple.local == tuple.remote { tuple.remote_port } else { 0 };
            let fits =
                |port| port != own && old_at(&FlowTuple { local_port: port, ..tuple }).is_ok();
            if let Some(outgoing) = shared.claims.outgoing() {
                self.secrets.follow(outgoing);
            }
            let port = self.secrets.local_port(&tuple, &mut self.looks, fits);
            let may_come = self.secrets.lacks_ports()
                && shared.claims.want_more(&shared.updates.source, *now_us);
            let none = if may_come { CallError::Again } else { CallError::NoResource };
            tuple.local_port = port.ok_or(none)?;
        }
        let old = old_at(&tuple)?;
        let (group, hash) = place(&tuple);
        Ok((tuple, group, hash, old))
    }

    /// `floor`: lowest sequence number of a flow that replaces one in TIME-WAIT.
    fn new_active(&self, cx: &Context, tuple: &FlowTuple, floor: Option<Seq>) -> Tcb<Payload> {
        let (iss, ts_offset) = self.secrets.start_of(tuple, cx.now_us);
        let iss = floor.map_or(iss, |floor| iss.max(floor));
        Tcb::connect(&self.config, *tuple, iss, ts_offset, cx.now_us)
    }
}

/// A connection in TIME-WAIT whose port is used again.
struct Old {
    at: OldAt,
    /// The lowest sequence number of its successor.
    floor: Seq,
}

/// Where it is.
enum OldAt {
    Flow(FlowId),
    /// On its group's shelf, with this number.
    Shelf(u32),
}

/// What both ends of a connection have agreed on, as bits of [`flow_info_flag`].
fn agreed(info: &TcbInfo) -> u32 {
    use flow_info_flag::{
        ECN, ECN_SEEN, RCV_SHIFT_AT, SACK, SND_SHIFT_AT, TIMESTAMPS, WINDOW_SCALING,
    };
    let has = |is: bool, flag: u32| if is { flag } else { 0 };
    let scaling = info.window_shifts.map_or(0, |(of_peer, ours)| {
        WINDOW_SCALING | u32::from(of_peer) << SND_SHIFT_AT | u32::from(ours) << RCV_SHIFT_AT
    });
    has(info.timestamps, TIMESTAMPS)
        | has(info.sack, SACK)
        | has(info.ecn, ECN)
        | has(info.ecn_seen, ECN_SEEN)
        | scaling
}

/// Most bytes that a connection of a process that has ended may have to send: far more than a
/// library keeps, and far less than sequence numbers allow.
const REST_MAX_BYTES: u64 = 1 << 26;

/// Largest backlog that an application may ask for.
const BACKLOG_MAX: u32 = 1 << 20;

/// `ix-tcp`'s name of a congestion control algorithm.
fn congestion(algorithm: Congestion) -> Kind {
    match algorithm {
        Congestion::Cubic => Kind::Cubic,
        Congestion::Reno => Kind::NewReno,
        Congestion::Dctcp => Kind::Dctcp,
        Congestion::Bbr => Kind::Bbr,
    }
}

/// The caller's flow with a name, which may be stale or forged, or belong to another thread or
/// another process of the program.
fn named_flow(
    groups: &mut [Option<Box<FlowGroup>>],
    id: FlowId,
    caller: AttachmentId,
) -> Result<&mut Flow, CallError> {
    let flow = match groups.get_mut(usize::from(id.group)) {
        Some(Some(group)) => group.get(id).ok_or(CallError::BadHandle)?,
        Some(None) if id.generation != 0 => return Err(CallError::Moved),
        _ => return Err(CallError::BadHandle),
    };
    if flow.socket.owner == caller { Ok(flow) } else { Err(CallError::BadHandle) }
}

pub(super) fn own_flow(
    groups: &mut [Option<Box<FlowGroup>>],
    handle: u64,
    caller: AttachmentId,
) -> Result<&mut Flow, CallError> {
    let flow = named_flow(groups, FlowId::from_handle(handle), caller)?;
    match flow.socket.holder {
        Holder::Application | Holder::Connecting => Ok(flow),
        Holder::Knocking => Err(CallError::State),
        Holder::Embryonic | Holder::Orphan => Err(CallError::BadHandle),
    }
}
