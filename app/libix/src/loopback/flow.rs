//! Flows: bytes, acknowledgements and ends in flight.
use super::memory::copy_out;
use super::{RX_BUFFER_BYTES, World};
use core::ptr::with_exposed_provenance_mut;
use ix_abi::{Cookie, DeadReason, Event, Handle, RxData, SentNews};
use std::collections::VecDeque;

/// Content of a received buffer after it was given back.
const POISON: u8 = 0xdd;

/// Bytes that a `sendv` took: a copy, and the memory that must not change.
pub(super) struct Taken {
    pub(super) base: u64,
    pub(super) bytes: Vec<u8>,
}

/// The holder of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Holder {
    Knocking,
    Application,
    Orphan,
}

/// One end of a connection.
pub(super) struct Flow {
    pub(super) thread: usize,
    pub(super) cookie: u64,
    pub(super) holder: Holder,
    /// The other end, while it lives.
    pub(super) peer: Handle,
    /// Unacknowledged, oldest first.
    pub(super) taken: VecDeque<Taken>,
    pub(super) taken_bytes: u64,
    /// Those of them that were delivered to the peer.
    pub(super) delivered_bytes: u64,
    pub(super) wants_window: bool,
    pub(super) fin: bool,
    pub(super) fin_delivered: bool,
    /// Received buffers not given back: index and length.
    pub(super) held: VecDeque<(usize, u64)>,
    pub(super) front_done: u64,
}

impl World {
    pub(super) fn give_back(&mut self, handle: Handle, bytes: u64) {
        let Some(flow) = self.flows.get_mut(&handle) else { return };
        let mut left = bytes + flow.front_done;
        let mut freed = Vec::new();
        while let Some(&(buffer, len)) = flow.held.front()
            && left >= len
        {
            left -= len;
            flow.held.pop_front();
            freed.push(buffer);
        }
        flow.front_done = left;
        freed.into_iter().for_each(|buffer| self.free(buffer));
    }

    pub(super) fn free(&mut self, buffer: usize) {
        let base = self.rx.base() as usize + buffer * RX_BUFFER_BYTES;
        let base = with_exposed_provenance_mut::<u8>(base);
        // SAFETY: a buffer of the receive memory that nobody may read any more.
        unsafe { base.write_bytes(POISON, RX_BUFFER_BYTES) };
        self.rx_free.push(buffer);
    }

    /// Moves some of a flow's bytes, acknowledgements and its end.
    pub(super) fn step(&mut self, handle: Handle) {
        let Some(flow) = self.flows.get(&handle) else { return };
        let peer = flow.peer;
        if !self.is_settled(handle) || !self.is_settled(peer) {
            return;
        }
        let ready = self.flows.get(&peer).is_some_and(|peer| peer.holder != Holder::Knocking);
        if ready {
            self.deliver(handle, peer);
        }
        if let Some((bytes, window)) = self.acknowledge(handle) {
            self.tell(handle, |cookie| Event::Sent { cookie, handle, bytes, window });
        }
        let Some(flow) = self.flows.get_mut(&handle) else { return };
        if flow.fin && !flow.fin_delivered && ready && flow.delivered_bytes == flow.taken_bytes {
            flow.fin_delivered = true;
            self.tell(peer, |cookie| Event::Eof { cookie, handle: peer });
        }
        let Some(flow) = self.flows.get(&handle) else { return };
        let done = |flow: &Flow| flow.fin_delivered && flow.taken_bytes == 0;
        if done(flow) && self.flows.get(&peer).is_some_and(done) {
            self.kill(handle, DeadReason::Closed);
            self.kill(peer, DeadReason::Closed);
        }
    }

    fn deliver(&mut self, handle: Handle, peer: Handle) {
        let most = self.config.step_bytes;
        let mut budget = self.random(most + 1);
        while budget > 0 {
            let flow = &self.flows[&handle];
            let mut skip = flow.delivered_bytes as usize;
            let next = flow.taken.iter().find_map(|piece| {
                let here = skip;
                skip = skip.saturating_sub(piece.bytes.len());
                (here < piece.bytes.len()).then(|| &piece.bytes[here..])
            });
            let Some(next) = next else { return };
            let n = next.len().min(RX_BUFFER_BYTES).min(budget as usize);
            let bytes = next[..n].to_vec();
            let to_orphan = self.flows[&peer].holder == Holder::Orphan;
            if !to_orphan {
                let Some(buffer) = self.rx_free.pop() else { return };
                let base = self.rx.base() as usize + buffer * RX_BUFFER_BYTES;
                let to = with_exposed_provenance_mut::<u8>(base);
                // SAFETY: a free buffer of the receive memory, and `n` fits.
                unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), n) };
                let data = RxData { addr: base as u64, len: n as u32 };
                // Data often comes with an acknowledgement.
                let acked = if self.random(2) == 0 { None } else { self.acknowledge(peer) };
                let news = match acked {
                    Some((0, window)) => {
                        let opened =
                            |cookie| Event::Sent { cookie, handle: peer, bytes: 0, window };
                        self.tell(peer, opened);
                        SentNews::NONE
                    }
                    Some((bytes, window)) => SentNews::new(bytes, window as u32),
                    None => SentNews::NONE,
                };
                self.tell(peer, |cookie| Event::Recv { cookie, handle: peer, data, news });
                self.flows.entry(peer).and_modify(|peer| peer.held.push_back((buffer, n as u64)));
            }
            self.flows.entry(handle).and_modify(|flow| flow.delivered_bytes += n as u64);
            budget -= n as u64;
        }
    }

    /// Acknowledges some of what was delivered: how many bytes, and the room in the window, if the
    /// application is to hear of it.
    fn acknowledge(&mut self, handle: Handle) -> Option<(u32, u64)> {
        let delivered = self.flows.get(&handle)?.delivered_bytes;
        let acked = self.random(2 * delivered + 1).min(delivered);
        let window = self.config.window_bytes;
        let flow = self.flows.get_mut(&handle)?;
        let mut left = acked;
        while left > 0
            && let Some(front) = flow.taken.front_mut()
        {
            let n = left.min(front.bytes.len() as u64);
            let now = copy_out(front.base, n);
            assert_eq!(now, front.bytes[..n as usize], "sent memory changed before SENT");
            front.bytes.drain(..n as usize);
            front.base += n;
            left -= n;
            if front.bytes.is_empty() {
                flow.taken.pop_front();
            }
        }
        flow.taken_bytes -= acked;
        flow.delivered_bytes -= acked;
        let room = window.saturating_sub(flow.taken_bytes);
        let opened = flow.wants_window && room > 0;
        if acked == 0 && !opened {
            return None;
        }
        flow.wants_window = false;
        Some((acked as u32, room))
    }

    /// Sends an event to the application that holds a flow; `event` makes it from the flow's
    /// cookie.
    fn tell(&mut self, handle: Handle, event: impl FnOnce(Cookie) -> Event) {
        let Some(flow) = self.flows.get(&handle) else { return };
        if flow.holder == Holder::Application {
            self.threads[flow.thread].tell(event(flow.cookie));
        }
    }

    pub(super) fn kill(&mut self, handle: Handle, reason: DeadReason) {
        if !self.is_settled(handle) {
            return self.doom(handle, reason);
        }
        self.tell(handle, |cookie| Event::Dead { cookie, handle, reason });
        self.remove(handle);
    }

    pub(super) fn remove(&mut self, handle: Handle) {
        if let Some(flow) = self.flows.remove(&handle) {
            let buffers = flow.held.into_iter().map(|held| held.0);
            self.threads[flow.thread].dying.extend(buffers);
        }
    }
}
