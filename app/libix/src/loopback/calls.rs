//! Batched system calls, carried out.
use super::flow::{Flow, Holder, Taken};
use super::memory::{Memory, copy_out};
use super::{RX_BUFFER_BYTES, TX_STEP_BYTES, World};
use crate::addr;
use core::ptr::with_exposed_provenance_mut;
use ix_abi::{Event, Handle, SG_MAX, SgEntry, call_op, dead, error, event_kind, group_of};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;

impl World {
    pub(super) fn carry_out(&mut self, lane: usize, op: u32, args: &[u64; 6]) -> Result<i64, i64> {
        let handle = args[0];
        match op {
            call_op::NOP => Ok(0),
            call_op::LISTEN => self.listen(lane, args[2] as u16, args[4]),
            call_op::UNLISTEN => match self.listeners.remove(&args[0]) {
                Some(_) => Ok(0),
                None => Err(error::BAD_HANDLE),
            },
            call_op::CONNECT | call_op::CONNECT_FROM => self.connect(lane, args),
            call_op::ACCEPT => {
                let flow = self.flow(lane, handle)?;
                assert_eq!(flow.holder, Holder::Knocking, "accepted twice");
                flow.holder = Holder::Application;
                flow.cookie = args[1];
                Ok(0)
            }
            call_op::SET_COOKIE => {
                let flow = self.flow(lane, handle)?;
                assert_eq!(flow.holder, Holder::Application, "renamed before it was accepted");
                let old = core::mem::replace(&mut flow.cookie, args[1]);
                let queue = &mut self.lanes[lane].queue;
                let of_flow = |event: &&mut Event| (event.handle, event.cookie) == (handle, old);
                queue.iter_mut().filter(of_flow).for_each(|event| event.cookie = args[1]);
                Ok(0)
            }
            call_op::REJECT | call_op::ABORT => {
                let peer = self.flow(lane, handle)?.peer;
                self.remove(handle);
                self.kill(peer, dead::RESET);
                Ok(0)
            }
            call_op::SENDV => self.sendv(lane, args),
            call_op::RECV_DONE => self.recv_done(lane, handle, args[1]),
            call_op::SHUTDOWN => {
                let flow = self.flow(lane, handle)?;
                assert!(!flow.fin, "shut down twice");
                flow.fin = true;
                Ok(0)
            }
            call_op::CLOSE => {
                let flow = self.flow(lane, handle)?;
                flow.fin = true;
                flow.holder = Holder::Orphan;
                let all = flow.held.iter().map(|held| held.1).sum::<u64>() - flow.front_done;
                self.give_back(handle, all);
                Ok(0)
            }
            call_op::SET_OPT => self.flow(lane, handle).map(|_| 0),
            call_op::UDP_BIND => self.udp_bind(lane, args[2] as u16, args[3]),
            call_op::UDP_UNBIND => self.udp_unbind(lane, args[0]),
            call_op::UDP_SENDV => self.udp_sendv(lane, args),
            call_op::UDP_SET_OPT => self.udp_set_opt(lane, args),
            call_op::UDP_RECV_DONE => self.udp_recv_done(lane, args[0]),
            call_op::PACKET_BIND => self.packet_bind(lane, args),
            call_op::PACKET_UNBIND => self.packet_unbind(lane, args[0]),
            call_op::PACKET_SENDV => self.packet_sendv(lane, args),
            call_op::PACKET_RECV_DONE => self.packet_recv_done(lane, args[0]),
            call_op::PACKET_INFO => self.packet_info(lane, args),
            call_op::SIGNAL => self.signal(lane, args),
            call_op::TIMER_SET => self.timer_set(lane, args[0], args[1]),
            call_op::TIMER_CANCEL => Ok(self.timers.remove(&args[0]).is_some().into()),
            call_op::TX_ALLOC => self.tx_alloc(args[0]),
            call_op::DRAIN => self.drain(lane),
            _ => Err(error::NO_SYS),
        }
    }

    /// The flow, if it is one that this thread's application holds.
    fn flow(&mut self, lane: usize, handle: Handle) -> Result<&mut Flow, i64> {
        match self.flows.get_mut(&handle) {
            Some(flow) if flow.holder != Holder::Orphan => {
                assert_eq!(flow.lane, lane, "a call on a flow group of another thread");
                Ok(flow)
            }
            _ => Err(error::BAD_HANDLE),
        }
    }

    fn listen(&mut self, lane: usize, port: u16, cookie: u64) -> Result<i64, i64> {
        // Threads share a port; one thread cannot have it twice.
        if self.listeners.values().any(|taken| (taken.0, taken.1) == (lane, port)) {
            return Err(error::IN_USE);
        }
        let id = self.name();
        self.listeners.insert(id, (lane, port, cookie));
        Ok(id as i64)
    }

    fn timer_set(&mut self, lane: usize, cookie: u64, delay_us: u64) -> Result<i64, i64> {
        if self.refuses() {
            return Err(error::NO_RESOURCE);
        }
        let id = self.name();
        self.timers.insert(id, (lane, cookie, self.now_us + delay_us));
        Ok(id as i64)
    }

    pub(super) fn refuses(&mut self) -> bool {
        self.config.refuse_one_in > 0 && self.random(self.config.refuse_one_in) == 0
    }

    fn connect(&mut self, lane: usize, args: &[u64; 6]) -> Result<i64, i64> {
        let (cookie, port) = (args[0], args[3] as u16);
        let here = self.new_handle(|owner| owner == lane).ok_or(error::NO_RESOURCE)?;
        let listening: Vec<_> =
            self.listeners.values().filter(|listener| listener.1 == port).copied().collect();
        let there = self.new_handle(|owner| listening.iter().any(|&(lane, ..)| lane == owner));
        let event = Event { kind: event_kind::CONNECTED, cookie, handle: here, ..Event::default() };
        let Some(there) = there else {
            let event = Event { code: error::REFUSED as u16, ..event };
            self.lanes[lane].queue.push_back(event);
            return Ok(here as i64);
        };
        let there_lane = self.groups[group_of(there) as usize].lane;
        let listener = listening.iter().find(|&&(lane, ..)| lane == there_lane);
        let listener = listener.expect("chosen by it").2;
        let flow = |lane, cookie, holder, peer| Flow {
            lane,
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
        self.flows.insert(here, flow(lane, cookie, Holder::Application, there));
        self.flows.insert(there, flow(there_lane, 0, Holder::Knocking, here));
        self.lanes[lane].queue.push_back(event);
        self.lanes[there_lane].queue.push_back(Event {
            kind: event_kind::KNOCK,
            cookie: listener,
            handle: there,
            addr: addr::from_words([args[1], args[2]]),
            port: 10_000 + (here as u32 % 50_000) as u16,
            ..Event::default()
        });
        Ok(here as i64)
    }

    fn sendv(&mut self, lane: usize, args: &[u64; 6]) -> Result<i64, i64> {
        self.sendv_calls += 1;
        if self.refuses() {
            return Err(error::NO_RESOURCE);
        }
        assert!((1..=SG_MAX as u64).contains(&args[2]), "an array of {} pieces", args[2]);
        if !self.tx.contains(args[1], args[2] * size_of::<SgEntry>() as u64) {
            return Err(error::FAULT);
        }
        let window = self.config.window_bytes;
        let array = with_exposed_provenance_mut::<SgEntry>(args[1] as usize);
        let mut taken = 0;
        for index in 0..args[2] as usize {
            // SAFETY: within transmit memory, checked above; the application is in the gate.
            let entry = unsafe { array.add(index).read() };
            let held = self.flows.values().flat_map(|flow| flow.held.iter());
            let in_rx = held.into_iter().any(|&(buffer, len)| {
                let base = self.rx.base() + (buffer * RX_BUFFER_BYTES) as u64;
                entry.base >= base && entry.base + entry.len <= base + len
            });
            if !in_rx && !self.in_tx(entry.base, entry.len) {
                return Err(error::FAULT);
            }
            let flow = self.flow(lane, args[0])?;
            if flow.fin {
                return Err(error::STATE);
            }
            let room = window.saturating_sub(flow.taken_bytes);
            let n = entry.len.min(room);
            if n > 0 {
                flow.taken.push_back(Taken { base: entry.base, bytes: copy_out(entry.base, n) });
                flow.taken_bytes += n;
                taken += n as i64;
            }
            if n < entry.len {
                flow.wants_window = true;
                break;
            }
        }
        Ok(taken)
    }

    fn recv_done(&mut self, lane: usize, handle: Handle, bytes: u64) -> Result<i64, i64> {
        let flow = self.flow(lane, handle)?;
        let held = flow.held.iter().map(|held| held.1).sum::<u64>() - flow.front_done;
        assert!(bytes > 0 && bytes <= held, "gave back {bytes} of {held} bytes");
        self.give_back(handle, bytes);
        Ok(0)
    }

    fn tx_alloc(&mut self, bytes: u64) -> Result<i64, i64> {
        if bytes > TX_STEP_BYTES {
            self.shared.push(ManuallyDrop::new(Memory::new(bytes as usize)));
            return Ok(self.shared[self.shared.len() - 1].base() as i64);
        }
        assert_eq!(bytes, TX_STEP_BYTES);
        if self.tx_given == self.config.tx_steps {
            return Err(error::NO_RESOURCE);
        }
        self.tx_given += 1;
        Ok((self.tx.base() + (self.tx_given as u64 - 1) * TX_STEP_BYTES) as i64)
    }

    pub(super) fn name(&mut self) -> u64 {
        self.next_name += 1;
        self.next_name
    }
}
