//! Step 4: carries out the application's batched system calls, each by the part that it concerns.
use super::ElasticThread;
use crate::calls::Answer;
use crate::flows::FLOWS_AHEAD;
use crate::flows::handle::FlowId;
use crate::tcp::TcpContext;
use crate::udp;
use ix_abi::{Call, CallError, CallSlot, call_op};
use ix_proto::crossing::AttachmentId;

impl ElasticThread {
    /// Carries out the first `count` slots of the call array, at most `CALLS_MAX`.
    #[inline]
    pub fn run_calls(&mut self, count: usize) {
        if count > 0 {
            self.run_some_calls(count);
        }
    }

    fn run_some_calls(&mut self, count: usize) {
        let caller = self.io.cx.caller;
        let Some(calls) = self.io.cx.attached[caller].calls else { return };
        let count = count.min(ix_abi::CALLS_MAX);
        self.tcp.begin_batch();
        let fetches = self.flows.are_many();
        for index in 0..count {
            if fetches && index + FLOWS_AHEAD < count {
                self.flows.fetch_ahead(calls.glance(index + FLOWS_AHEAD));
            }
            let slot = calls.read(index);
            let answer = match slot.op {
                // Nearly every one.
                call_op::SENDV => match Call::decode(&slot) {
                    Ok(Call::SendV { handle, sg, fin, eor, done }) => {
                        let ElasticThread { io, flows, tcp, receive, .. } = self;
                        let cx = &mut TcpContext { io, flows, batch: &mut receive.batch };
                        tcp.sendv(cx, handle, sg, (fin, eor), done)
                    }
                    Ok(_) => Err(CallError::NoSys),
                    Err(error) => Err(error),
                },
                call_op::NOP => continue,
                _ => self.run_other(&slot),
            };
            self.io.cx.metrics.counters.calls.add(1);
            if answer.is_err() {
                self.io.cx.metrics.counters.call_errors.add(1);
            }
            calls.answer(index, answer);
        }
        if self.tcp.listeners.is_any_ending() {
            self.tcp.end_listeners(&mut self.io, &mut self.flows);
        }
    }

    /// Carries out a call that messages do not need. Not inlined, so that the others stay together.
    #[inline(never)]
    fn run_other(&mut self, slot: &CallSlot) -> Answer {
        self.run_call(Call::decode(slot)?)
    }

    /// Carries out one call. Inlined, so that decoding and dispatch are one match.
    #[inline(always)]
    pub(crate) fn run_call(&mut self, call: Call) -> Answer {
        let ElasticThread { io, flows, tcp, udp, receive, migrations, .. } = self;
        let batch = &mut receive.batch;
        let home = |group| migrations.is_home(group);
        let cx = &mut TcpContext { io, flows, batch };
        match call {
            Call::Nop => Ok(0),
            Call::SendV { handle, sg, fin, eor, done } => {
                tcp.sendv(cx, handle, sg, (fin, eor), done)
            }
            Call::RecvDone { handle, bytes } => tcp.recv_done(cx, handle, bytes),
            Call::Accept { handle, cookie } => tcp.accept(cx, handle, cookie),
            Call::Reject { handle } => tcp.reject(cx, handle),
            Call::Close { handle } => tcp.close(cx, handle),
            Call::Abort { handle } => tcp.abort(cx, handle),
            Call::Shutdown { handle } => tcp.shutdown(cx, handle),
            Call::Connect { cookie, to, congestion, local_port } => {
                tcp.connect(cx, home, cookie, to, congestion, local_port)
            }
            Call::ConnectFrom { cookie, to, congestion, from } => {
                tcp.connect_from(cx, home, cookie, to, congestion, from)
            }
            Call::Listen { at, backlog, cookie, holds } => {
                tcp.listen(cx, at, backlog, cookie, holds)
            }
            Call::Backlog { listener, backlog, freed } => {
                tcp.backlog(cx.io.cx.caller, listener, backlog, freed)
            }
            Call::Unlisten { listener } => tcp.unlisten(cx, listener),
            Call::SetCookie { handle, cookie } => tcp.set_cookie(cx, handle, cookie),
            Call::Drain => self.call_drain(),
            Call::SetOpt { handle, option } => tcp.set_opt(cx, handle, option),
            Call::GetInfo { handle, to } => tcp.get_info(cx, handle, to),
            Call::UdpBind { at, cookie } => {
                let packets = &self.packets;
                let random = if at.port == 0 { tcp.secrets.random() } else { 0 };
                let search = (random, &mut tcp.looks);
                udp::bind(udp, &cx.io.cx, search, |port| packets.has_udp(port), (at, cookie))
            }
            Call::UdpShare { at, cookie, takes } => {
                let is_taken = self.packets.has_udp(at.port);
                udp::share(udp, &cx.io.cx, is_taken, (at, cookie), takes)
            }
            Call::UdpUnbind { socket } => udp::unbind(udp, &cx.io.cx, socket),
            Call::UdpSendV { socket, to, sg, cookie } => {
                udp::sendv(udp, cx.io, socket, to, sg, cookie)
            }
            Call::UdpRecvDone { data } => udp::recv_done(&mut cx.io.cx, data),
            Call::UdpSetOpt { socket, option } => udp::set_opt(udp, &cx.io.cx, socket, option),
            Call::TimerSet { cookie, delay_us } => self.set_timer(cookie, delay_us),
            Call::TimerCancel { timer } => match self.app_timers.cancel(cx.io.cx.caller, timer) {
                true => Ok(0),
                false => Err(CallError::BadHandle),
            },
            Call::TxAlloc { bytes } => self.shared.tx_alloc(cx.io.cx.caller, bytes),
            Call::TxFree { addr, bytes } => self.shared.tx_free(cx.io.cx.caller, addr, bytes),
            call => self.run_packet_call(call),
        }
    }

    /// Calls of packet queues, and others that are rare. Not inlined, so that those of TCP stay
    /// together.
    #[cold]
    #[inline(never)]
    fn run_packet_call(&mut self, call: Call) -> Answer {
        let ElasticThread { io, udp, packets, receive, egress, .. } = self;
        let (admission, qdisc) = (&receive.admission, &egress.qdisc);
        match call {
            Call::UdpListen { socket, group, excludes, sources } => {
                udp::groups::listen(udp, io, socket, (group, excludes), sources)
            }
            Call::PacketSendV { queue, sg, cookie } => packets.sendv(io, qdisc, queue, sg, cookie),
            Call::PacketRecvDone { data } => udp::recv_done(&mut io.cx, data),
            Call::PacketBind { device, kind, number, cookie } => {
                packets.bind(io, (admission, udp), device, (kind, number), cookie)
            }
            Call::PacketUnbind { queue } => packets.unbind(&io.cx, queue),
            Call::PacketInfo { queue, to } => packets.info(io, admission, qdisc, queue, to),
            Call::Give { handle, to, token } => {
                let group = usize::from(FlowId::from_handle(handle).group);
                // Who gets it may have heard that the group leaves, and would not take this flow
                // along.
                if self.migrations.is_active() && self.migrations.is_silent(group) {
                    return Err(CallError::State);
                }
                self.tcp.give(io, &mut self.flows, handle, to, token)
            }
            Call::Signal { thread, value } => match thread as usize {
                to if to < self.shared.threads() => self.signal_thread(to, value).map(|()| 0),
                _ => Err(CallError::Invalid),
            },
            Call::ListenOpt { listener, option, is_v6 } => {
                self.tcp.listen_opt(io.cx.caller, listener, option, is_v6)
            }
            Call::Nudge { to } => io.cx.nudge(to).map(|()| 0),
            _ => Err(CallError::NoSys),
        }
    }

    fn set_timer(&mut self, cookie: u64, delay_us: u64) -> Answer {
        let deadline_us = self.io.cx.now_us.saturating_add(delay_us);
        let owner = self.io.cx.caller;
        self.app_timers.set(owner, cookie, deadline_us).ok_or(CallError::NoResource)
    }

    /// Ends the timers of a process that has ended or has left this thread.
    pub(crate) fn clear_app_timers(&mut self, owner: AttachmentId) {
        self.app_timers.clear(owner);
    }

    /// Figures of a flow of any application. For simulators.
    pub fn inspect(&mut self, handle: u64) -> Option<(ix_tcp::TcbInfo, ix_tcp::LossInfo)> {
        let now_us = self.io.cx.now_us;
        let flow = self.flows.get(crate::flows::handle::FlowId::from_handle(handle))?;
        Some((flow.tcb.info_at(&self.shared.config.tcp, now_us), flow.tcb.loss_info()))
    }
}
