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
use ix_abi::{Call, FlowInfo, SG_MAX, call_op, error, flow_opt};
use ix_tcp::CongestionControl as Kind;

/// The call array of one elastic thread, in memory that the application writes at any time.
pub struct CallArray(*mut Call);

// SAFETY: plain memory; the elastic thread that owns the array is the only one of ours to use it.
unsafe impl Send for CallArray {}

impl CallArray {
    /// # Safety
    /// `array` points to [`ix_abi::CALLS_MAX`] slots that outlive this.
    pub unsafe fn new(array: *mut Call) -> CallArray {
        CallArray(array)
    }

    /// The one read of slot `index` (below `CALLS_MAX`).
    fn read(&self, index: usize) -> Call {
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

    fn answer(&self, index: usize, ret: i64) {
        // SAFETY: within the array; the field is plain memory.
        unsafe { (&raw mut (*self.0.add(index)).ret).write_volatile(ret) }
    }
}

type Answer = Result<i64, i64>;

impl ElasticThread {
    /// Runs the first `count` slots of the call array (at most `CALLS_MAX`).
    pub fn run_calls(&mut self, count: usize) {
        let count = count.min(ix_abi::CALLS_MAX);
        for index in 0..count {
            if index + FLOWS_AHEAD < count {
                self.flows.fetch_ahead(self.calls.glance(index + FLOWS_AHEAD));
            }
            let call = self.calls.read(index);
            if call.op == call_op::NOP {
                continue;
            }
            self.io.cx.metrics.counters.calls.add(1);
            let answer = self.run_call(&call);
            if answer.is_err() {
                self.io.cx.metrics.counters.call_errors.add(1);
            }
            self.calls.answer(index, answer.unwrap_or_else(|code| -code));
        }
    }

    fn run_call(&mut self, call: &Call) -> Answer {
        let a = &call.args;
        match call.op {
            call_op::SENDV => self.call_sendv(a[0], a[1], a[2]),
            call_op::RECV_DONE => self.call_recv_done(a[0], a[1]),
            call_op::ACCEPT => self.call_accept(a[0], a[1]),
            call_op::REJECT => self.call_reject(a[0]),
            call_op::CLOSE => self.call_close(a[0]),
            call_op::ABORT => self.call_abort(a[0]),
            call_op::SHUTDOWN => self.call_shutdown(a[0]),
            call_op::CONNECT => self.call_connect(a),
            call_op::LISTEN => self.call_listen(a),
            call_op::UNLISTEN => self.call_unlisten(a[0]),
            call_op::SET_COOKIE => self.call_set_cookie(a[0], a[1]),
            call_op::DRAIN => self.call_drain(),
            call_op::SET_OPT => self.call_set_opt(a[0], a[1], a[2]),
            call_op::GET_INFO => self.call_get_info(a[0], a[1]),
            call_op::UDP_BIND => self.call_udp_bind(a),
            call_op::UDP_UNBIND => self.call_udp_unbind(a[0]),
            call_op::UDP_SENDV => self.call_udp_sendv(a),
            call_op::UDP_RECV_DONE => self.call_udp_recv_done(a[0]),
            call_op::UDP_SET_OPT => self.call_udp_set_opt(a),
            call_op::CONNECT_FROM => self.call_connect_from(a),
            call_op::TIMER_SET => self.call_timer_set(a[0], a[1]),
            call_op::TIMER_CANCEL => self.call_timer_cancel(a[0]),
            call_op::TX_ALLOC => self.call_tx_alloc(a[0]),
            call_op::TX_FREE => self.call_tx_free(a[0], a[1]),
            // Out of the way of the others.
            _ => self.run_packet_call(call),
        }
    }
}

/// Flows: what the application does with its connections.
impl ElasticThread {
    fn call_sendv(&mut self, handle: u64, sg: u64, count: u64) -> Answer {
        if count > SG_MAX as u64 {
            return Err(error::INVALID);
        }
        let ElasticThread { shared, flows, .. } = self;
        let Flows { groups, touched, .. } = flows;
        let flow = own_flow(groups, handle)?;
        if !flow.tcb.state().sends() || flow.side.holder != Holder::Application {
            return Err(error::STATE);
        }
        let mut space = flow.tcb.send_space(&shared.config.tcp) as u64;
        let mut taken = 0;
        for index in 0..count {
            let entry = shared.read_sg(sg, index).ok_or(error::FAULT)?;
            if !shared.memory.app_may_send(entry.base, entry.len) {
                // What stands before the bad entry was taken: say so, and fault next time.
                if taken > 0 {
                    break;
                }
                return Err(error::FAULT);
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
        Ok(taken as i64)
    }

    fn call_recv_done(&mut self, handle: u64, bytes: u64) -> Answer {
        let ElasticThread { shared, flows, io, .. } = self;
        let Flows { groups, touched, .. } = flows;
        let flow = own_flow(groups, handle)?;
        let rx_pool = &mut io.cx.rx_pool;
        let freed = flow
            .side
            .release(&shared.memory, bytes, |mbuf| rx_pool.put(mbuf))
            .ok_or(error::INVALID)?;
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
            Holder::Application | Holder::Connecting => return Err(error::STATE),
            Holder::Embryonic | Holder::Orphan => return Err(error::BAD_HANDLE),
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
            return Err(error::STATE);
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
            return Err(error::STATE);
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
            (flow_opt::CONGESTION, _) => flow.tcb.set_congestion(congestion(value)?),
            _ => return Err(error::INVALID),
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
        if self.shared.write_info(to, answer) { Ok(0) } else { Err(error::FAULT) }
    }
}

/// The congestion control of one of [`flow_opt`]'s numbers.
pub(crate) fn congestion(number: u64) -> Result<Kind, i64> {
    match number {
        flow_opt::CUBIC => Ok(Kind::Cubic),
        flow_opt::RENO => Ok(Kind::NewReno),
        flow_opt::DCTCP => Ok(Kind::Dctcp),
        _ => Err(error::INVALID),
    }
}

/// The flow of a name that may be stale or forged, or one of another thread's.
fn named_flow(groups: &mut [Option<Box<FlowGroup>>], id: FlowId) -> Result<&mut Flow, i64> {
    match groups.get_mut(usize::from(id.group)) {
        Some(Some(group)) => group.get(id).ok_or(error::BAD_HANDLE),
        Some(None) if id.generation != 0 => Err(error::MOVED),
        _ => Err(error::BAD_HANDLE),
    }
}

fn own_flow(groups: &mut [Option<Box<FlowGroup>>], handle: u64) -> Result<&mut Flow, i64> {
    let flow = named_flow(groups, FlowId::from_handle(handle))?;
    match flow.side.holder {
        Holder::Application | Holder::Connecting => Ok(flow),
        Holder::Knocking => Err(error::STATE),
        Holder::Embryonic | Holder::Orphan => Err(error::BAD_HANDLE),
    }
}
