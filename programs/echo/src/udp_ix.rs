//! Echo over UDP on a dataplane, on the raw interface: replies are sent from the receive buffers.
use crate::udp::{SIZE_MAX, UdpLoad};
use anyhow::{Context, Result};
use ix_abi::{FlowOption, SgEntry};
use ix_programs::clock;
use libix::raw::{Event, Received, Thread, TxBuf, Wait, call};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Longest wait of a client, µs, so that it notices losses and the end.
const WAIT_US: u64 = 5_000;

fn bind(thread: &mut Thread, at: SocketAddr) -> Result<u64> {
    let slot = thread.push(call::udp_bind(at, 0)).context("the first call has room")?;
    thread.run_io(Wait::Poll)?;
    thread.answer(slot).with_context(|| format!("cannot bind {at}"))
}

/// A server's state between cycles.
pub struct UdpEcho {
    thread: Thread,
    socket: u64,
    /// Datagrams that are being sent back, by cookie.
    sending: Vec<Vec<Received>>,
    free: Vec<usize>,
    /// Datagrams that the call array had no room for, with the number of pieces that follow each
    /// piece.
    waiting: VecDeque<(Received, SocketAddr, u16)>,
    done: Vec<Received>,
    /// Calls of the batch that send, with their cookies.
    sends: Vec<(usize, usize)>,
}

impl UdpEcho {
    /// Binds. `fragments`: replies that are longer than a packet go in fragments.
    pub fn new(mut thread: Thread, at: SocketAddr, fragments: bool) -> Result<UdpEcho> {
        let socket = bind(&mut thread, at)?;
        if fragments {
            let option = FlowOption::FragmentBytes(u16::MAX);
            thread.push(call::udp_set_opt(socket, option)).context("the first call has room")?;
        }
        Ok(UdpEcho {
            thread,
            socket,
            sending: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            done: Vec::new(),
            sends: Vec::new(),
        })
    }

    /// One cycle: sends back what arrived.
    pub fn turn(&mut self, wait: Wait) -> Result<()> {
        let pending = !self.waiting.is_empty() || !self.done.is_empty();
        let wait = if pending { Wait::Poll } else { wait };
        let events = self.thread.run_io(wait)?;
        for (slot, cookie) in self.sends.drain(..) {
            // A refused datagram is lost, and no event reports that its memory is free.
            if self.thread.answer(slot).is_err() {
                self.free.push(cookie);
                self.done.append(&mut self.sending[cookie]);
            }
        }
        for index in 0..events {
            match self.thread.event(index) {
                Event::UdpRecv { data, peer, notes, .. } => {
                    self.waiting.push_back((data, peer, notes.follows()));
                }
                Event::UdpError { data, .. } => self.done.extend(data),
                Event::UdpSent { cookie } => {
                    self.free.push(cookie as usize);
                    self.done.append(&mut self.sending[cookie as usize]);
                }
                _ => {}
            }
        }
        while let Some(data) = self.done.pop() {
            if self.thread.push(call::udp_recv_done(data)).is_none() {
                self.done.push(data);
                break;
            }
        }
        while let Some((_, peer, follows)) = self.waiting.front().copied() {
            if !self.answer(peer, 1 + usize::from(follows)) {
                break;
            }
        }
        Ok(())
    }

    /// Sends back the first datagram that waits, which is in so many pieces.
    fn answer(&mut self, peer: SocketAddr, count: usize) -> bool {
        let cookie = self.free.pop().unwrap_or_else(|| {
            self.sending.push(Vec::new());
            self.sending.len() - 1
        });
        let piece = |data: &Received| SgEntry { base: data.base(), len: data.len().into() };
        let pieces = self.waiting.iter().take(count).map(|(data, ..)| piece(data));
        match self.thread.push_udp_sendv(self.socket, peer, pieces, cookie as u64) {
            Some((slot, _)) => {
                self.sends.push((slot, cookie));
                let gone = self.waiting.drain(..count).map(|(data, ..)| data);
                self.sending[cookie].extend(gone);
                true
            }
            None => {
                self.free.push(cookie);
                false
            }
        }
    }
}

/// Puts load on a server until its time is over.
pub fn load(mut thread: Thread, to: SocketAddr, load: &mut UdpLoad, depth: u32) -> Result<()> {
    let socket = bind(&mut thread, SocketAddr::from(([0; 4], 0)))?;
    // One buffer for each slot: it is filled again only after its datagram has come back, so after
    // it was sent.
    let mut buffers: Vec<TxBuf> = Vec::new();
    for _ in 0..depth {
        buffers.push(buffer(&mut thread)?);
    }
    let mut datagram = [0; SIZE_MAX as usize];
    let mut free: VecDeque<usize> = VecDeque::new();
    let mut done: Vec<Received> = Vec::new();
    loop {
        let now_ns = clock::now_ns();
        if load.is_over(now_ns) {
            return Ok(());
        }
        free.extend(load.overdue(now_ns));
        while let Some(slot) = free.pop_front() {
            let buf = &mut buffers[slot];
            let length = load.fill(slot, now_ns, &mut datagram);
            buf.clear();
            buf.extend(&datagram[..length]);
            let piece = SgEntry { base: buf.base(), len: length as u64 };
            if thread.push_udp_sendv(socket, to, core::iter::once(piece), 0).is_none() {
                free.push_front(slot);
                break;
            }
        }
        let wait = if free.is_empty() && done.is_empty() { Wait::Us(WAIT_US) } else { Wait::Poll };
        let events = thread.run_io(wait)?;
        let now_ns = clock::now_ns();
        for index in 0..events {
            match thread.event(index) {
                Event::UdpRecv { data, .. } => {
                    free.extend(load.answer(thread.received(index), now_ns));
                    done.push(data);
                }
                // There is room: a batch has as many calls as there can be events.
                Event::UdpError { data: Some(data), .. } => {
                    let _ = thread.push(call::udp_recv_done(data));
                }
                _ => {}
            }
        }
        while let Some(data) = done.pop() {
            if thread.push(call::udp_recv_done(data)).is_none() {
                done.push(data);
                break;
            }
        }
    }
}

/// A buffer for a datagram; adds transmit memory if it is short.
fn buffer(thread: &mut Thread) -> Result<TxBuf> {
    if let Some(buf) = thread.tx().alloc(SIZE_MAX as usize) {
        return Ok(buf);
    }
    let slot = thread.push(call::tx_alloc(2 << 20)).context("the first call has room")?;
    thread.run_io(Wait::Poll)?;
    thread.adopt_tx(slot).context("no transmit memory")?;
    thread.tx().alloc(SIZE_MAX as usize).context("no transmit memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use libix::loopback::{Config, Loopback};

    #[test]
    fn datagrams_come_back_on_the_model() {
        let model = Loopback::new(2, Config::default());
        let at = SocketAddr::from(([10, 0, 0, 1], 7));
        let mut echo = UdpEcho::new(model.enter(0).unwrap(), at, true).unwrap();
        let mut thread = model.enter(1).unwrap();
        let socket = bind(&mut thread, SocketAddr::from(([0; 4], 0))).unwrap();
        let mut buf = buffer(&mut thread).unwrap();
        buf.extend(b"hello");
        let piece = SgEntry { base: buf.base(), len: 5 };
        thread.push_udp_sendv(socket, at, core::iter::once(piece), 0).unwrap();
        let mut answers = 0;
        for _ in 0..5 {
            let events = thread.run_io(Wait::Poll).unwrap();
            for index in 0..events {
                if let Event::UdpRecv { data, .. } = thread.event(index) {
                    assert_eq!(thread.received(index), b"hello");
                    thread.push(call::udp_recv_done(data)).unwrap();
                    answers += 1;
                }
            }
            echo.turn(Wait::Poll).unwrap();
        }
        assert_eq!(answers, 1);
    }
}
