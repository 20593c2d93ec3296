//! Carries out batched system calls.
use super::flow::{Flow, Holder, Taken};
use super::memory::{Memory, copy_out};
use super::{RX_BUFFER_BYTES, TX_STEP_BYTES, World};
use core::ptr::with_exposed_provenance_mut;
use ix_abi::{
    Call, CallError, CallSlot, Cookie, DeadReason, Endpoint, Event, EventSlot, FlowOption, Handle,
    SG_MAX, SgArray, SgEntry, group_of,
};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;

/// What a call returns.
pub(super) type Answer = Result<u64, CallError>;

impl World {
    pub(super) fn carry_out(&mut self, thread: usize, slot: &CallSlot) -> Answer {
        match Call::decode(slot)? {
            Call::Nop => Ok(0),
            Call::Listen { at, cookie, .. } => self.listen(thread, at.port, cookie),
            Call::Backlog { listener, .. } => match self.listeners.get(&listener) {
                Some(_) => Ok(0),
                None => Err(CallError::BadHandle),
            },
            Call::Unlisten { listener } => match self.listeners.remove(&listener) {
                Some(_) => Ok(0),
                None => Err(CallError::BadHandle),
            },
            Call::Connect { cookie, to, .. } | Call::ConnectFrom { cookie, to, .. } => {
                self.connect(thread, cookie, to)
            }
            Call::Accept { handle, cookie } => {
                let flow = self.flow(thread, handle)?;
                assert_eq!(flow.holder, Holder::Knocking, "accepted twice");
                flow.holder = Holder::Application;
                flow.cookie = cookie;
                Ok(0)
            }
            Call::SetCookie { handle, cookie } => {
                let flow = self.flow(thread, handle)?;
                assert_eq!(flow.holder, Holder::Application, "renamed before it was accepted");
                let old = core::mem::replace(&mut flow.cookie, cookie);
                let queue = &mut self.threads[thread].queue;
                let of_flow =
                    |event: &&mut EventSlot| (event.handle, event.cookie) == (handle, old);
                queue.iter_mut().filter(of_flow).for_each(|event| event.cookie = cookie);
                Ok(0)
            }
            Call::Reject { handle } | Call::Abort { handle } => {
                let peer = self.flow(thread, handle)?.peer;
                self.remove(handle);
                self.kill(peer, DeadReason::Reset);
                Ok(0)
            }
            Call::SendV { handle, sg, fin, done, .. } => {
                if done > 0 {
                    self.recv_done(thread, handle, done)?;
                }
                self.sendv(thread, handle, sg, fin)
            }
            Call::RecvDone { handle, bytes } => self.recv_done(thread, handle, bytes),
            Call::Shutdown { handle } => {
                let flow = self.flow(thread, handle)?;
                assert!(!flow.fin, "shut down twice");
                flow.fin = true;
                Ok(0)
            }
            Call::Close { handle } => {
                let flow = self.flow(thread, handle)?;
                flow.fin = true;
                flow.holder = Holder::Orphan;
                let all = flow.held.iter().map(|held| held.1).sum::<u64>() - flow.front_done;
                self.give_back(handle, all);
                Ok(0)
            }
            Call::SetOpt { handle: ix_abi::OPENED_LAST, .. } => Ok(0),
            Call::SetOpt { handle, option } => {
                self.closed += u64::from(option == FlowOption::Closed);
                self.flow(thread, handle).map(|_| 0)
            }
            Call::UdpBind { at, cookie } => self.udp_bind(thread, at.port, cookie),
            Call::UdpUnbind { socket } => self.udp_unbind(thread, socket),
            Call::UdpSendV { socket, to, sg, cookie } => {
                self.udp_sendv(thread, socket, to.port, sg, cookie)
            }
            Call::UdpSetOpt { socket, .. } => self.udp_set_opt(thread, socket),
            Call::UdpRecvDone { data } => self.udp_recv_done(thread, data),
            Call::PacketBind { device, kind, number, cookie } => {
                self.packet_bind(thread, (device, kind, number), cookie)
            }
            Call::PacketUnbind { queue } => self.packet_unbind(thread, queue),
            Call::PacketSendV { queue, sg, cookie } => self.packet_sendv(thread, queue, sg, cookie),
            Call::PacketRecvDone { data } => self.packet_recv_done(thread, data),
            Call::PacketInfo { queue, to } => self.packet_info(thread, queue, to),
            Call::Signal { thread: target, value } => self.signal(thread, target, value),
            Call::TimerSet { cookie, delay_us } => self.timer_set(thread, cookie, delay_us),
            Call::TimerCancel { timer } => Ok(self.timers.remove(&timer).is_some().into()),
            Call::TxAlloc { bytes } => self.tx_alloc(bytes),
            Call::Drain => self.drain(thread),
            Call::GetInfo { .. }
            | Call::TxFree { .. }
            | Call::Give { .. }
            | Call::UdpListen { .. }
            | Call::UdpShare { .. }
            | Call::ListenOpt { .. }
            | Call::Nudge { .. } => Err(CallError::NoSys),
        }
    }

    /// The flow, if this thread's application holds it.
    fn flow(&mut self, thread: usize, handle: Handle) -> Result<&mut Flow, CallError> {
        match self.flows.get_mut(&handle) {
            Some(flow) if flow.holder != Holder::Orphan => {
                assert_eq!(flow.thread, thread, "a call on a flow group of another thread");
                Ok(flow)
            }
            _ => Err(CallError::BadHandle),
        }
    }

    fn listen(&mut self, thread: usize, port: u16, cookie: u64) -> Answer {
        // Several threads may listen on a port, but one thread only once.
        if self.listeners.values().any(|taken| (taken.0, taken.1) == (thread, port)) {
            return Err(CallError::InUse);
        }
        let id = self.name();
        self.listeners.insert(id, (thread, port, cookie));
        Ok(id)
    }

    fn timer_set(&mut self, thread: usize, cookie: u64, delay_us: u64) -> Answer {
        if self.refuses() {
            return Err(CallError::NoResource);
        }
        let id = self.name();
        self.timers.insert(id, (thread, cookie, self.now_us + delay_us));
        Ok(id)
    }

    pub(super) fn refuses(&mut self) -> bool {
        self.config.refuse_one_in > 0 && self.random(self.config.refuse_one_in) == 0
    }

    fn connect(&mut self, thread: usize, cookie: Cookie, to: Endpoint) -> Answer {
        let port = to.port;
        let here = self.new_handle(|owner| owner == thread).ok_or(CallError::NoResource)?;
        let listening: Vec<_> =
            self.listeners.values().filter(|listener| listener.1 == port).copied().collect();
        let there = self.new_handle(|owner| listening.iter().any(|&(thread, ..)| thread == owner));
        let Some(there) = there else {
            let outcome = Err(CallError::Refused);
            self.threads[thread].tell(Event::Connected { cookie, handle: here, outcome });
            return Ok(here);
        };
        let there_lane = self.groups[group_of(there) as usize].thread;
        let listener = listening.iter().find(|&&(thread, ..)| thread == there_lane);
        let listener = listener.expect("chosen by it").2;
        let flow = |thread, cookie, holder, peer| Flow {
            thread,
            cookie,
            holder,
            peer,
            taken: VecDeque::new(),
            taken_bytes: 0,
            delivered_bytes: 0,
            wants_window: false,
            fin: false,
            fin_delivered: false,
            held: VecDeque::new(),
            front_done: 0,
        };
        self.flows.insert(here, flow(thread, cookie, Holder::Application, there));
        self.flows.insert(there, flow(there_lane, 0, Holder::Knocking, here));
        self.threads[thread].tell(Event::Connected { cookie, handle: here, outcome: Ok(()) });
        let peer = Endpoint { port: 10_000 + (here as u32 % 50_000) as u16, ..to };
        self.threads[there_lane].tell(Event::Knock { listener, handle: there, peer });
        Ok(here)
    }

    fn sendv(&mut self, thread: usize, handle: Handle, sg: SgArray, fin: bool) -> Answer {
        self.sendv_calls += 1;
        if self.refuses() {
            return Err(CallError::NoResource);
        }
        let window = self.config.window_bytes;
        let mut taken = 0;
        for entry in self.read_sg(sg)? {
            let held = self.flows.values().flat_map(|flow| flow.held.iter());
            let in_rx = held.into_iter().any(|&(buffer, len)| {
                let base = self.rx.base() + (buffer * RX_BUFFER_BYTES) as u64;
                entry.base >= base && entry.base + entry.len <= base + len
            });
            if !in_rx && !self.in_tx(entry.base, entry.len) {
                return Err(CallError::Fault);
            }
            let flow = self.flow(thread, handle)?;
            if flow.fin {
                return Err(CallError::State);
            }
            let room = window.saturating_sub(flow.taken_bytes);
            let n = entry.len.min(room);
            if n > 0 {
                flow.taken.push_back(Taken { base: entry.base, bytes: copy_out(entry.base, n) });
                flow.taken_bytes += n;
                taken += n;
            }
            if n < entry.len {
                flow.wants_window = true;
                return Ok(taken);
            }
        }
        self.flow(thread, handle)?.fin |= fin;
        Ok(taken)
    }

    /// Reads the pieces of a scatter-gather array.
    pub(super) fn read_sg(&self, sg: SgArray) -> Result<Vec<SgEntry>, CallError> {
        assert!((1..=SG_MAX as u64).contains(&sg.entries), "an array of {} pieces", sg.entries);
        if !self.tx.contains(sg.addr, sg.entries * size_of::<SgEntry>() as u64) {
            return Err(CallError::Fault);
        }
        let array = with_exposed_provenance_mut::<SgEntry>(sg.addr as usize);
        // SAFETY: within transmit memory, checked above; the application is in the gate.
        Ok((0..sg.entries as usize).map(|index| unsafe { array.add(index).read() }).collect())
    }

    fn recv_done(&mut self, thread: usize, handle: Handle, bytes: u64) -> Answer {
        let flow = self.flow(thread, handle)?;
        let held = flow.held.iter().map(|held| held.1).sum::<u64>() - flow.front_done;
        assert!(bytes > 0 && bytes <= held, "gave back {bytes} of {held} bytes");
        self.give_back(handle, bytes);
        Ok(0)
    }

    fn tx_alloc(&mut self, bytes: u64) -> Answer {
        if bytes > TX_STEP_BYTES {
            self.shared.push(ManuallyDrop::new(Memory::new(bytes as usize)));
            return Ok(self.shared[self.shared.len() - 1].base());
        }
        assert_eq!(bytes, TX_STEP_BYTES);
        if self.tx_given == self.config.tx_steps {
            return Err(CallError::NoResource);
        }
        self.tx_given += 1;
        Ok(self.tx.base() + (self.tx_given as u64 - 1) * TX_STEP_BYTES)
    }

    pub(super) fn name(&mut self) -> u64 {
        self.next_name += 1;
        self.next_name
    }
}
