//! What came of calls, and what happened to connections.
use super::{OnIx, Pending};
use crate::engine::{End, Verdict};
use crate::protocol::Protocol;
use ix_abi::group_of;
use libix::raw::{Event, Received, call};
use libix::{Dead, Error};

impl<P: Protocol> OnIx<P> {
    /// Takes in the answers of the last batch. Calls that follow from them must wait until all
    /// were read: appending overwrites answers.
    pub(super) fn settle(&mut self, now_ns: u64) {
        let mut aborts = Vec::new();
        let answered = core::mem::take(&mut self.answered);
        for (slot, pending) in answered.iter().enumerate() {
            match *pending {
                Pending::Nothing => {}
                Pending::Sendv(cookie, offered) => self.sendv_answered(slot, cookie, offered),
                Pending::Connect(cookie) => match (self.live(cookie), self.thread.answer(slot)) {
                    (Some(index), Ok(handle)) => self.flows[index as usize].handle = handle,
                    (Some(index), Err(error)) => self.refused(index, error, now_ns),
                    (None, Ok(handle)) => aborts.push(handle),
                    (None, Err(_)) => {}
                },
                Pending::Bind(cookie) => match (self.live(cookie), self.thread.answer(slot)) {
                    (Some(index), Ok(socket)) => {
                        self.flows[index as usize].handle = socket;
                        self.up(index, now_ns);
                    }
                    (Some(index), Err(error)) => self.refused(index, error, now_ns),
                    (None, _) => {}
                },
                Pending::Datagram(place) => {
                    if self.thread.answer(slot).is_err() {
                        self.free_datagram(place);
                    }
                }
                Pending::TxMemory => {
                    // Refused: what is missing spills, and is asked for again.
                    let _ = self.thread.adopt_tx(slot);
                    self.tx_asked = false;
                }
                Pending::Listen(_) | Pending::Accept(_) | Pending::Serve(..) => {
                    self.serve_answered(slot, *pending);
                }
            }
        }
        self.answered = answered;
        aborts.into_iter().for_each(|handle| self.push(call::abort(handle), Pending::Nothing));
    }

    /// The answer of a call for the back ends.
    fn serve_answered(&mut self, slot: usize, pending: Pending) {
        let answer = self.thread.answer(slot);
        let Some(back_ends) = &mut self.back_ends else { return };
        match (pending, answer) {
            (Pending::Listen(_), Ok(listener)) => back_ends.listens(listener),
            (Pending::Listen(at), Err(error)) => {
                self.refused = Some(format!("cannot serve pages at {at}: {error}"));
            }
            (Pending::Accept(cookie), Err(_)) => back_ends.forget(cookie),
            (Pending::Serve(cookie, offered), Ok(taken)) => {
                back_ends.taken(cookie, taken, offered);
            }
            // Out of buffers: no event will say when to try again.
            (Pending::Serve(cookie, _), Err(Error::NoResource)) => back_ends.taken(cookie, 0, 0),
            // The flow is dying: its `Dead` is on the way.
            _ => {}
        }
    }

    #[inline]
    fn sendv_answered(&mut self, slot: usize, cookie: u64, offered: u64) {
        let answer = self.thread.answer(slot);
        let Some(index) = self.live(cookie) else { return };
        let flow = &mut self.flows[index as usize];
        match answer {
            Ok(taken) => {
                flow.taken_bytes += taken;
                flow.unsent_bytes -= taken;
                flow.blocked = taken < offered;
                if flow.blocked || flow.unsent_bytes == 0 && flow.spilled.is_empty() {
                    return;
                }
            }
            // Out of buffers: no event will say when to try again.
            Err(Error::NoResource) => {}
            // The flow is dying: its `Dead` is on the way.
            Err(_) => return,
        }
        self.mark(index);
    }

    fn refused(&mut self, index: u32, error: Error, now_ns: u64) {
        self.forget(index);
        self.engine.closed(index, End::NotConnected(error.to_string()), now_ns);
    }

    fn up(&mut self, index: u32, now_ns: u64) {
        self.flows[index as usize].up = true;
        self.engine.connected(index, now_ns);
        self.mark(index);
    }

    fn free_datagram(&mut self, place: u32) {
        if self.datagrams.get_mut(place as usize).and_then(Option::take).is_some() {
            self.free_datagrams.push(place);
        }
    }

    #[inline]
    pub(super) fn dispatch(&mut self, event: Event, now_ns: u64) {
        if let Some(back_ends) = &mut self.back_ends
            && back_ends.hears(&event)
        {
            return;
        }
        match event {
            Event::Recv { cookie, data, .. } => self.received(cookie, data, now_ns),
            Event::Sent { cookie, bytes, .. } => self.sent(cookie, bytes.into()),
            Event::UdpRecv { cookie, data, .. } => {
                if let Some(index) = self.live(cookie) {
                    // SAFETY: the buffer is given back by the call below, which the next `run_io`
                    // carries out; the slice does not leave this block.
                    let bytes = unsafe { data.bytes() };
                    self.engine.input_datagram(index, bytes, now_ns);
                    self.mark(index);
                }
                self.push(call::udp_recv_done(data), Pending::Nothing);
            }
            Event::UdpError { data: Some(data), .. } => {
                self.push(call::udp_recv_done(data), Pending::Nothing);
            }
            Event::UdpSent { cookie } => self.free_datagram(cookie as u32),
            Event::Connected { cookie, handle, outcome } => {
                let Some(index) = self.live(cookie) else { return };
                match outcome {
                    Ok(()) => {
                        self.flows[index as usize].handle = handle;
                        self.up(index, now_ns);
                    }
                    Err(error) => self.refused(index, error, now_ns),
                }
            }
            Event::Eof { cookie } => {
                if let Some(index) = self.live(cookie) {
                    self.abort(index);
                    self.engine.closed(index, End::Closed, now_ns);
                }
            }
            Event::Dead { cookie, reason } => {
                if let Some(index) = self.live(cookie) {
                    let up = self.flows[index as usize].up;
                    self.forget(index);
                    let end = match reason {
                        Dead::Closed => End::Closed,
                        why if up => End::Reset(why.to_string()),
                        why => End::NotConnected(why.to_string()),
                    };
                    self.engine.closed(index, end, now_ns);
                }
            }
            Event::Knock { handle, .. } => {
                let (call, pending) = match &mut self.back_ends {
                    Some(back_ends) => {
                        let cookie = back_ends.accept(handle);
                        (call::accept(handle, cookie), Pending::Accept(cookie))
                    }
                    None => (call::reject(handle), Pending::Nothing),
                };
                self.push(call, pending);
            }
            Event::GroupLeaves { group, .. } => self.lose_group(group, now_ns),
            Event::Timer { .. }
            | Event::GroupArrived { .. }
            | Event::Revoked
            | Event::Restored
            | Event::Drained
            | Event::PacketRecv { .. }
            | Event::PacketSent { .. }
            | Event::Signal { .. }
            | Event::UdpError { .. }
            | Event::FlowError { .. }
            | Event::Unknown => {}
        }
    }

    /// Measured connections stay with their thread: those of a flow group that is taken away end,
    /// and that is an error of the run.
    #[cold]
    fn lose_group(&mut self, group: u32, now_ns: u64) {
        for index in 0..self.flows.len() as u32 {
            let flow = &self.flows[index as usize];
            if flow.up && !self.engine.is_udp() && group_of(flow.handle) == group {
                self.abort(index);
                let why = "its flow group was migrated, which a load generator's must not be";
                self.engine.closed(index, End::Reset(why.to_string()), now_ns);
            }
        }
    }

    #[inline]
    fn received(&mut self, cookie: u64, data: Received, now_ns: u64) {
        let Some(index) = self.live(cookie) else { return };
        // SAFETY: buffers are given back and flows aborted by calls that the next `run_io` carries
        // out; the slice does not leave this function.
        let bytes = unsafe { data.bytes() };
        self.flows[index as usize].done_bytes += u64::from(data.len());
        match self.engine.input(index, bytes, now_ns) {
            Verdict::Open => self.mark(index),
            Verdict::Reset => self.abort(index),
        }
    }

    #[inline]
    fn sent(&mut self, cookie: u64, bytes: u64) {
        let Some(index) = self.live(cookie) else { return };
        if self.flows[index as usize].acknowledge(bytes) {
            self.mark(index);
        }
    }
}
