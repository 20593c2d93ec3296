//! Step 4 of the cycle: the application's batched system calls.
//!
//! Each slot is read once and only the copy is used; pointers and lengths in it are checked against
//! the memory that the call may name. The answer overwrites the slot's `ret`.
use crate::cycle::ElasticThread;
use crate::flows::flow::{Flow, Holder};
use crate::flows::group::FlowGroup;
use crate::flows::handle::FlowId;
use crate::flows::{FLOWS_AHEAD, Flows, touch};
use crate::tcp::connections::End;
use ix_abi::{Call, CallError, CallSlot, Congestion, FlowInfo, SG_MAX, SgArray, flow_opt};
use ix_tcp::CongestionControl as Kind;

/// The call array of one elastic thread, in memory that the application writes at any time.
pub struct CallArray(*mut CallSlot);

// SAFETY: plain memory; the elastic thread that owns the array is the only one of ours to use it.
unsafe impl Send for CallArray {}

impl CallArray {
    /// # Safety
    /// `array` points to [`ix_abi::CALLS_MAX`] slots that outlive this.
    pub unsafe fn new(array: *mut CallSlot) -> CallArray {
        CallArray(array)
    }

    /// The one read of slot `index` (below `CALLS_MAX`).
    fn read(&self, index: usize) -> CallSlot {
        // SAFETY: within the array; volatile, because the application may write meanwhile: we get
        // some mixture of its values, which is checked as any value is.
        unsafe { self.0.add(index).read_volatile() }
    }

    /// What slot `index` (below `CALLS_MAX`) seems to name, to fetch it ahead: whatever the slot says
    /// when its turn comes is what counts.
    fn glance(&self, index: usize) -> u64 {
        // SAFETY: as in `read`; every call that names a flow has it first.
        unsafe { (&raw const (*self.0.add(index)).args[0]).read_volatile() }
    }

    fn answer(&self, index: usize, answer: Answer) {
        let ret = CallError::encode(answer);
        // SAFETY: within the array; the field is plain memory.
        unsafe { (&raw mut (*self.0.add(index)).ret).write_volatile(ret) }
    }
}

/// What a call returns.
pub(crate) type Answer = Result<u64, CallError>;

impl ElasticThread {
    /// Runs the first `count` slots of the call array (at most `CALLS_MAX`).
    pub fn run_calls(&mut self, count: usize) {
        let count = count.min(ix_abi::CALLS_MAX);
        for index in 0..count {
            if index + FLOWS_AHEAD < count {
                self.flows.fetch_ahead(self.calls.glance(index + FLOWS_AHEAD));
            }
            let answer = match Call::decode(&self.calls.read(index)) {
                Ok(Call::Nop) => continue,
                Ok(call) => self.run_call(call),
                Err(error) => Err(error),
            };
            self.io.cx.metrics.counters.calls.add(1);
            if answer.is_err() {
                self.io.cx.metrics.counters.call_errors.add(1);
            }
            self.calls.answer(index, answer);
        }
    }

    /// Carries out one call. Inlined, so that decoding and this are one match.
    #[inline(always)]
    pub(crate) fn run_call(&mut self, call: Call) -> Answer {
        match call {
            Call::Nop => Ok(0),
            Call::SendV { handle, sg } => self.call_sendv(handle, sg),
            Call::RecvDone { handle, bytes } => self.call_recv_done(handle, bytes),
            Call::Accept { handle, cookie } => self.call_accept(handle, cookie),
            Call::Reject { handle } => self.call_reject(handle),
            Call::Close { handle } => self.call_close(handle),
            Call::Abort { handle } => self.call_abort(handle),
            Call::Shutdown { handle } => self.call_shutdown(handle),
            Call::Connect { cookie, to, congestion, local_port } => {
                self.call_connect(cookie, to, congestion, local_port)
            }
            Call::ConnectFrom { cookie, to, congestion, from } => {
                self.call_connect_from(cookie, to, congestion, from)
            }
            Call::Listen { at, backlog, cookie } => self.call_listen(at, backlog, cookie),
            Call::Unlisten { listener } => self.call_unlisten(listener),
            Call::SetCookie { handle, cookie } => self.call_set_cookie(handle, cookie),
            Call::Drain => self.call_drain(),
            Call::SetOpt { handle, option, value } => self.call_set_opt(handle, option, value),
            Call::GetInfo { handle, to } => self.call_get_info(handle, to),
            Call::UdpBind { at, cookie } => self.call_udp_bind(at, cookie),
            Call::UdpUnbind { socket } => self.call_udp_unbind(socket),
            Call::UdpSendV { socket, to, sg, cookie } => {
                self.call_udp_sendv(socket, to, sg, cookie)
            }
            Call::UdpRecvDone { data } => self.call_udp_recv_done(data),
            Call::UdpSetOpt { socket, option, value } => {
                self.call_udp_set_opt(socket, option, value)
            }
            Call::TimerSet { cookie, delay_us } => self.call_timer_set(cookie, delay_us),
            Call::TimerCancel { timer } => self.call_timer_cancel(timer),
            Call::TxAlloc { bytes } => self.call_tx_alloc(bytes),
            Call::TxFree { addr, bytes } => self.call_tx_free(addr, bytes),
            Call::PacketSendV { queue, sg, cookie } => self.call_packet_sendv(queue, sg, cookie),
            Call::PacketRecvDone { data } => self.call_packet_recv_done(data),
            Call::PacketBind { device, kind, number, cookie } => {
                self.call_packet_bind(device, kind, number, cookie)
            }
            Call::PacketUnbind { queue } => self.call_packet_unbind(queue),
            Call::PacketInfo { queue, to } => self.call_packet_info(queue, to),
            Call::Signal { thread, value } => self.call_signal(thread, value),
        }
    }
}

/// Flows: what the application does with its connections.
impl ElasticThread {
    fn call_sendv(&mut self, handle: u64, sg: SgArray) -> Answer {
        if sg.entries > SG_MAX as u64 {
            return Err(CallError::Invalid);
        }
        let ElasticThread { shared, flows, .. } = self;
        let Flows { groups, touched, .. } = flows;
        let flow = own_flow(groups, handle)?;
        if !flow.tcb.state().sends() || flow.side.holder != Holder::Application {
            return Err(CallError::State);
        }
        let mut space = flow.tcb.send_space(&shared.config.tcp) as u64;
        let mut taken = 0;
        for index in 0..sg.entries {
            let entry = shared.read_sg(sg, index).ok_or(CallError::Fault)?;
            if !shared.memory.app_may_send(entry.base, entry.len) {
                // What stands before the bad entry was taken: say so, and fault next time.
                if taken > 0 {
                    break;
                }
                return Err(CallError::Fault);
            }
            let n = entry.len.min(space);
            flow.side.sendq.push(entry.base, n as u32);
            taken += n;
            space -= n;
            if n < entry.len {
                break;
            }
        }
        flow.tcb.append(taken as u32);
        touch(touched, &mut flow.side);
        Ok(taken)
    }

    fn call_recv_done(&mut self, handle: u64, bytes: u64) -> Answer {
        let ElasticThread { shared, flows, io, .. } = self;
        let Flows { groups, touched, .. } = flows;
        let flow = own_flow(groups, handle)?;
        let rx_pool = &mut io.cx.rx_pool;
        let freed = flow
            .side
            .release(&shared.memory, bytes, |mbuf| rx_pool.put(mbuf))
            .ok_or(CallError::Invalid)?;
        io.cx.flow_frames[usize::from(flow.side.id.group)] -= freed;
        flow.tcb.recv_done(&shared.config.tcp, bytes as u32, freed);
        if flow.tcb.needs_output() {
            touch(touched, &mut flow.side);
        }
        Ok(0)
    }

    fn call_accept(&mut self, handle: u64, cookie: u64) -> Answer {
        let id = FlowId::from_handle(handle);
        let flow = named_flow(&mut self.flows.groups, id)?;
        match flow.side.holder {
            Holder::Knocking => {}
            Holder::Application | Holder::Connecting => return Err(CallError::State),
            Holder::Embryonic | Holder::Orphan => return Err(CallError::BadHandle),
        }
        flow.side.cookie = cookie;
        flow.side.holder = Holder::Application;
        if flow.side.unannounced() {
            self.flows.to_announce.push_back(id);
        }
        self.tcp.stop_waiting(&mut self.flows, id);
        self.io.cx.metrics.counters.accepted.add(1);
        Ok(0)
    }

    fn call_reject(&mut self, handle: u64) -> Answer {
        let id = FlowId::from_handle(handle);
        let flow = named_flow(&mut self.flows.groups, id)?;
        if flow.side.holder != Holder::Knocking {
            return Err(CallError::State);
        }
        self.tcp.stop_waiting(&mut self.flows, id);
        self.tcp.end(&mut self.io, &mut self.flows, id, End::Abort);
        Ok(0)
    }

    fn call_close(&mut self, handle: u64) -> Answer {
        own_flow(&mut self.flows.groups, handle)?;
        self.tcp.end(&mut self.io, &mut self.flows, FlowId::from_handle(handle), End::Close);
        Ok(0)
    }

    fn call_abort(&mut self, handle: u64) -> Answer {
        own_flow(&mut self.flows.groups, handle)?;
        self.tcp.end(&mut self.io, &mut self.flows, FlowId::from_handle(handle), End::Abort);
        Ok(0)
    }

    fn call_shutdown(&mut self, handle: u64) -> Answer {
        let ElasticThread { shared, flows, io, .. } = self;
        let groups = &mut flows.groups;
        let flow = own_flow(groups, handle)?;
        if !flow.tcb.state().sends() {
            return Err(CallError::State);
        }
        let (cfg, now_us) = (&shared.config.tcp, io.cx.now_us);
        flow.tcb.shutdown(cfg, now_us, &mut io.of(&mut flow.side));
        self.flows.touch(FlowId::from_handle(handle));
        Ok(0)
    }

    fn call_set_opt(&mut self, handle: u64, option: u64, value: u64) -> Answer {
        let flow = own_flow(&mut self.flows.groups, handle)?;
        match (option, value) {
            (flow_opt::NAGLE, 0 | 1) => flow.tcb.set_nagle(value == 1),
            (flow_opt::KEEPALIVE_S, 0..=0x7fff) => {
                flow.tcb.set_keepalive(value as u16, self.io.cx.now_us);
                self.flows.touch(FlowId::from_handle(handle));
            }
            (flow_opt::USER_TIMEOUT_MS, 0..=0xffff_ffff) => {
                flow.tcb.set_user_timeout(value as u32);
            }
            // RFC 9293 sections 3.9.1.9 and 3.9.2: the application's to choose.
            (flow_opt::DSCP, 0..=63) => flow.side.tos = (value as u8) << 2,
            (flow_opt::HOP_LIMIT, 1..=255) => flow.side.ttl = value as u8,
            (flow_opt::RECEIVE_BYTES, 0..=0xffff_ffff) => {
                flow.tcb.set_receive_limit(&self.shared.config.tcp, value as u32);
                self.flows.touch(FlowId::from_handle(handle));
            }
            (flow_opt::KEEPALIVE_INTERVAL_S, 0..=0x7fff) => {
                flow.tcb.set_keepalive_interval(value as u16);
            }
            (flow_opt::KEEPALIVE_PROBES, 0..=127) => flow.tcb.set_keepalive_probes(value as u8),
            (flow_opt::SEGMENT_BYTES, 0) => {}
            (flow_opt::SEGMENT_BYTES, 88..=0xffff) => flow.tcb.limit_segments(value as u16),
            (flow_opt::CONGESTION, _) => {
                let algorithm = Congestion::from_number(value).ok_or(CallError::Invalid)?;
                flow.tcb.set_congestion(congestion(algorithm));
            }
            _ => return Err(CallError::Invalid),
        }
        Ok(0)
    }

    fn call_set_cookie(&mut self, handle: u64, cookie: u64) -> Answer {
        own_flow(&mut self.flows.groups, handle)?.side.cookie = cookie;
        Ok(0)
    }

    /// What a flow knows about itself, whoever holds it: for simulators that look inside.
    pub fn inspect(&mut self, handle: u64) -> Option<(ix_tcp::TcbInfo, ix_tcp::LossInfo)> {
        let flow = named_flow(&mut self.flows.groups, FlowId::from_handle(handle)).ok()?;
        Some((flow.tcb.info(&self.shared.config.tcp), flow.tcb.loss_info()))
    }

    fn call_get_info(&mut self, handle: u64, to: u64) -> Answer {
        let id = FlowId::from_handle(handle);
        let flow = own_flow(&mut self.flows.groups, handle)?;
        let (tuple, info) = (*flow.tcb.tuple(), flow.tcb.info(&self.shared.config.tcp));
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
            reserved: 0,
        };
        if self.shared.write_info(to, answer) { Ok(0) } else { Err(CallError::Fault) }
    }
}

/// `ix-tcp`'s name of a congestion control.
pub(crate) fn congestion(algorithm: Congestion) -> Kind {
    match algorithm {
        Congestion::Cubic => Kind::Cubic,
        Congestion::Reno => Kind::NewReno,
        Congestion::Dctcp => Kind::Dctcp,
    }
}

/// The flow of a name that may be stale or forged, or one of another thread's.
fn named_flow(groups: &mut [Option<Box<FlowGroup>>], id: FlowId) -> Result<&mut Flow, CallError> {
    match groups.get_mut(usize::from(id.group)) {
        Some(Some(group)) => group.get(id).ok_or(CallError::BadHandle),
        Some(None) if id.generation != 0 => Err(CallError::Moved),
        _ => Err(CallError::BadHandle),
    }
}

fn own_flow(groups: &mut [Option<Box<FlowGroup>>], handle: u64) -> Result<&mut Flow, CallError> {
    let flow = named_flow(groups, FlowId::from_handle(handle))?;
    match flow.side.holder {
        Holder::Application | Holder::Connecting => Ok(flow),
        Holder::Knocking => Err(CallError::State),
        Holder::Embryonic | Holder::Orphan => Err(CallError::BadHandle),
    }
}
