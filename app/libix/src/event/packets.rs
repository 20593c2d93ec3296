//! Packet queues of an event loop, for programs with their own protocol.
use super::bell::{Bells, Occasion};
use super::io::{Attached, Io, Pending};
use super::{EventLoop, Handler};
use crate::engine::{Engine, Table};
use crate::error::Error;
use crate::raw::{Packet, Received, Returns, TxBuf, TxShared, Wait, call};
use core::ops::Range;
use ix_abi::{PacketInfo, SgEntry, packet_kind};
use std::collections::VecDeque;
use std::rc::Rc;

/// Most pieces of a sent frame.
pub const PIECES_MAX: usize = 4;
/// Frames that may wait for room in the call array; beyond that `packet_send` refuses.
const WAITING_MAX: usize = 4096;

/// The packets that a packet queue receives ([`ix_abi::packet_kind`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Claim {
    /// Frames of this EtherType.
    EtherType(u16),
    /// IPv4 packets of this protocol.
    IpProtocol(u8),
    /// UDP datagrams to this port.
    UdpPort(u16),
}

impl Claim {
    /// From a kind and a number of the contract, if they are valid.
    pub fn from_abi(kind: u64, number: u64) -> Option<Claim> {
        match kind {
            packet_kind::ETHER_TYPE => u16::try_from(number).ok().map(Claim::EtherType),
            packet_kind::IP_PROTOCOL => u8::try_from(number).ok().map(Claim::IpProtocol),
            packet_kind::UDP_PORT => u16::try_from(number).ok().map(Claim::UdpPort),
            _ => None,
        }
    }

    /// Kind and number in the contract's form.
    pub fn to_abi(self) -> (u64, u64) {
        match self {
            Claim::EtherType(number) => (packet_kind::ETHER_TYPE, number.into()),
            Claim::IpProtocol(number) => (packet_kind::IP_PROTOCOL, number.into()),
            Claim::UdpPort(number) => (packet_kind::UDP_PORT, number.into()),
        }
    }
}

/// Order of the callbacks of queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Before all others of the same cycle.
    High,
    /// In order of arrival.
    #[default]
    Usual,
}

/// A piece of a frame to be sent, in its memory.
#[derive(Debug)]
pub enum Piece {
    /// A whole buffer of transmit memory.
    Buffer(TxBuf),
    /// A part of a buffer that several frames or connections send.
    Shared(TxShared, Range<usize>),
    /// A received frame, or what is left of it.
    Received(Packet),
}

impl Piece {
    fn entry(&self) -> SgEntry {
        let (base, len) = match self {
            Piece::Buffer(buf) => (buf.base(), buf.len()),
            Piece::Shared(shared, range) => {
                let part = shared.get(range.clone()).unwrap_or_default();
                (part.as_ptr().expose_provenance() as u64, part.len())
            }
            Piece::Received(packet) => (packet.base(), packet.len()),
        };
        SgEntry { base, len: len as u64 }
    }
}

impl From<TxBuf> for Piece {
    fn from(buf: TxBuf) -> Piece {
        Piece::Buffer(buf)
    }
}

impl From<Packet> for Piece {
    fn from(packet: Packet) -> Piece {
        Piece::Received(packet)
    }
}

/// A frame to be sent: its pieces one after another.
#[derive(Debug, Default)]
pub struct Frame([Option<Piece>; PIECES_MAX]);

impl Frame {
    /// Makes it of the first [`PIECES_MAX`] of these pieces.
    pub fn new(pieces: impl IntoIterator<Item = Piece>) -> Frame {
        let mut pieces = pieces.into_iter();
        Frame(std::array::from_fn(|_| pieces.next()))
    }

    fn entries(&self) -> impl Iterator<Item = SgEntry> {
        self.0.iter().flatten().map(Piece::entry)
    }
}

/// A packet queue.
struct Queue {
    /// What it was asked for with.
    device: u32,
    claim: Claim,
    /// The dataplane's name of it, once known.
    name: Option<Result<u64, Error>>,
    priority: Priority,
    /// Frames that were not taken yet.
    arrived: VecDeque<Packet>,
    bells: Bells,
    /// What to ring for at the end of this cycle.
    has_come: bool,
    has_left: bool,
}

/// A frame that is being sent.
struct Sending {
    queue: u64,
    cookie: u64,
    frame: Frame,
}

pub(super) struct Packets {
    queues: Table<Queue>,
    /// Memory that must stay until `PacketSent`, or until the call was refused.
    sending: Table<Sending>,
    waiting: VecDeque<u64>,
    /// Frames to be given back.
    home: Rc<Returns>,
    /// Queues with events in this cycle, each once.
    told: Vec<u64>,
    /// Results of frames: queue, cookie, result.
    outcomes: Vec<(u64, u64, Result<(), Error>)>,
    /// Frames that the program refers to by number.
    kept: Table<Packet>,
    /// The description of a device that was asked for.
    pub(super) info: Option<Result<PacketInfo, Error>>,
}

impl Packets {
    /// For an elastic thread.
    pub(super) fn new(thread: u32) -> Packets {
        Packets {
            queues: Table::new(thread),
            sending: Table::new(thread),
            waiting: VecDeque::new(),
            home: Rc::default(),
            told: Vec::new(),
            outcomes: Vec::new(),
            kept: Table::new(thread),
            info: None,
        }
    }

    pub(super) fn bells(&mut self, queue: u64) -> Option<&mut Bells> {
        self.queues.get_mut(queue).map(|queue| &mut queue.bells)
    }

    /// Gives frames back and sends waiting ones, as far as there is room.
    #[inline]
    pub(super) fn flush<S>(&mut self, engine: &mut Engine<Attached<S>>) {
        if self.has_backlog() {
            self.flush_backlog(engine);
        }
    }

    #[inline(never)]
    fn flush_backlog<S>(&mut self, engine: &mut Engine<Attached<S>>) {
        while engine.has_room()
            && let Some(call) = self.home.pop()
        {
            engine.push_quietly(call);
        }
        while engine.has_room()
            && let Some(id) = self.waiting.pop_front()
        {
            self.push(engine, id);
        }
    }

    fn push<S>(&mut self, engine: &mut Engine<Attached<S>>, id: u64) {
        let Some(sending) = self.sending.get(id) else { return };
        match self.queues.get(sending.queue).map(|queue| queue.name) {
            Some(Some(Ok(name))) => {
                engine.push_packet(name, sending.frame.entries(), id, Pending::Packet(id));
            }
            // The queue was unbound.
            _ => drop(self.sending.remove(id)),
        }
    }

    pub(super) fn has_backlog(&self) -> bool {
        !self.waiting.is_empty() || !self.home.is_empty()
    }

    /// Notes that a queue has an event.
    fn note(&mut self, id: u64, occasion: Occasion) {
        let Some(queue) = self.queues.get_mut(id) else { return };
        if !queue.has_come && !queue.has_left {
            self.told.push(id);
        }
        match occasion {
            Occasion::Arrived => queue.has_come = true,
            Occasion::Sent => queue.has_left = true,
        }
    }
}

impl<S> Io<S> {
    /// Opens a packet queue on a device (0: the first) and returns its id; [`Io::packet_outcome`]
    /// reports the result ([`EventLoop::packet_bind`] waits for it). Other elastic threads may bind
    /// the same: each gets the packets of its own queue pair.
    pub fn packet_bind(&mut self, device: u32, claim: Claim, priority: Priority) -> u64 {
        let id = self.packets.queues.insert(Queue {
            device,
            claim,
            name: None,
            priority,
            arrived: VecDeque::new(),
            bells: Bells::default(),
            has_come: false,
            has_left: false,
        });
        self.ask_for_queue(id, device, claim);
        id
    }

    fn ask_for_queue(&mut self, id: u64, device: u32, claim: Claim) {
        let (kind, number) = claim.to_abi();
        let bind = call::packet_bind(device, kind, number, id);
        self.engine.push(bind, Pending::PacketBind(id));
    }

    /// The dataplane has ended: frames that were not sent are told, those that were not taken are
    /// lost, and the queues are asked for again.
    pub(super) fn lose_packets(&mut self) {
        self.packets.waiting.clear();
        for id in self.packets.sending.ids().collect::<Vec<_>>() {
            self.packet_left(id, Err(Error::Lost));
        }
        for id in self.packets.queues.ids().collect::<Vec<_>>() {
            let Some(queue) = self.packets.queues.get_mut(id) else { continue };
            queue.arrived.clear();
            if !matches!(queue.name, Some(Err(_))) {
                queue.name = None;
                let (device, claim) = (queue.device, queue.claim);
                self.ask_for_queue(id, device, claim);
            }
        }
        // Frames that the program still has are not the next dataplane's.
        self.packets.home = Rc::default();
    }

    /// Whether the queue was opened, once that is known; a refused queue is forgotten.
    pub fn packet_outcome(&mut self, queue: u64) -> Option<Result<(), Error>> {
        let outcome = self.packets.queues.get(queue)?.name;
        if let Some(Err(_)) = outcome {
            self.packets.queues.remove(queue);
        }
        outcome.map(|name| name.map(|_| ()))
    }

    /// Closes a packet queue; its frames that were not taken are lost.
    pub fn packet_unbind(&mut self, queue: u64) {
        self.packets.flush(&mut self.engine);
        if let Some(Queue { name: Some(Ok(name)), .. }) = self.packets.queues.remove(queue) {
            self.engine.push_quietly(call::packet_unbind(name));
        }
    }

    /// Takes the oldest frame of a queue.
    #[inline]
    pub fn packet_receive(&mut self, queue: u64) -> Option<Packet> {
        self.packets.queues.get_mut(queue)?.arrived.pop_front()
    }

    /// Number of frames of a queue that were not taken yet.
    pub fn packets_waiting(&self, queue: u64) -> usize {
        self.packets.queues.get(queue).map_or(0, |queue| queue.arrived.len())
    }

    /// Sends a frame by the device of a queue with this cycle's batch, without a copy;
    /// [`Handler::on_packet_sent`] with the same cookie ends it. The program makes headers and
    /// checksums, and the vNIC's transmit filters decide whether the frame leaves. `false`: it was
    /// not taken, because there is no such queue or too many frames wait.
    pub fn packet_send(&mut self, queue: u64, frame: Frame, cookie: u64) -> bool {
        let open = self.packets.queues.get(queue).is_some_and(|q| matches!(q.name, Some(Ok(_))));
        if !open || self.packets.waiting.len() >= WAITING_MAX {
            return false;
        }
        let id = self.packets.sending.insert(Sending { queue, cookie, frame });
        if self.packets.waiting.is_empty() && self.engine.has_room() {
            self.packets.push(&mut self.engine, id);
        } else {
            self.packets.waiting.push_back(id);
        }
        true
    }

    /// Sends a number to the loop of another elastic thread (or this one). Linux takes part only if
    /// that thread sleeps. If that thread has no room, the number is sent again until it has.
    pub fn signal(&mut self, thread: u32, value: u64) {
        self.engine.push(call::signal(thread, value), Pending::Signal(thread, value));
    }

    pub(super) fn signal_answered(&mut self, to: u32, value: u64, answer: Result<u64, Error>) {
        if answer == Err(Error::NoResource) {
            self.engine.push(call::signal(to, value), Pending::Signal(to, value));
        }
    }

    /// Keeps a frame under a number, for programs that cannot own one.
    pub fn packet_keep(&mut self, packet: Packet) -> u64 {
        self.packets.kept.insert(packet)
    }

    /// Takes the frame that was kept under this number.
    pub fn packet_kept(&mut self, number: u64) -> Option<Packet> {
        self.packets.kept.remove(number)
    }

    pub(super) fn packet_bind_answered(&mut self, id: u64, answer: Result<u64, Error>) {
        match (self.packets.queues.get_mut(id), answer) {
            (Some(queue), answer) => queue.name = Some(answer),
            // Closed before it had a name.
            (None, Ok(name)) => self.engine.push_quietly(call::packet_unbind(name)),
            (None, Err(_)) => {}
        }
    }

    #[inline]
    pub(super) fn packet_came(&mut self, id: u64, data: Received) {
        let packet = Packet::new(data, &self.packets.home);
        if let Some(queue) = self.packets.queues.get_mut(id) {
            queue.arrived.push_back(packet);
            self.packets.note(id, Occasion::Arrived);
        }
    }

    #[inline]
    pub(super) fn packet_left(&mut self, id: u64, outcome: Result<(), Error>) {
        // No callback for a queue that was unbound.
        if let Some(Sending { queue, cookie, .. }) = self.packets.sending.remove(id)
            && self.packets.queues.get(queue).is_some()
        {
            self.packets.outcomes.push((queue, cookie, outcome));
            self.packets.note(queue, Occasion::Sent);
        }
    }
}

impl<H: Handler> EventLoop<H> {
    /// Opens a packet queue and returns its id; runs cycles until then.
    pub fn packet_bind(
        &mut self,
        device: u32,
        claim: Claim,
        priority: Priority,
    ) -> Result<u64, Error> {
        let id = self.io.packet_bind(device, claim, priority);
        loop {
            self.turn(Wait::Poll)?;
            if let Some(outcome) = self.io.packet_outcome(id) {
                return outcome.map(|()| id);
            }
        }
    }

    /// Describes the device of a packet queue; runs cycles until then.
    pub fn packet_info(&mut self, queue: u64) -> Result<PacketInfo, Error> {
        let name = match self.io.packets.queues.get(queue).map(|queue| queue.name) {
            Some(Some(Ok(name))) => name,
            _ => return Err(Error::BadHandle),
        };
        let lost = self.io.lost;
        while !self.io.engine.push_packet_info(name, Pending::PacketInfo) {
            self.turn(Wait::Poll)?;
        }
        while self.io.lost == lost {
            self.turn(Wait::Poll)?;
            if let Some(info) = self.io.packets.info.take() {
                return info;
            }
        }
        Err(Error::Lost)
    }

    /// Runs cycles until one of these packet queues has a frame, and returns which: one of high
    /// priority before others. `None`: the time is over, or [`Io::stop`] was called.
    pub fn wait_queues(&mut self, queues: &[u64], wait: Wait) -> Result<Option<u64>, Error> {
        let now_us = self.io.now_us();
        let until_us = match wait {
            Wait::Poll => now_us,
            Wait::Us(us) => now_us.saturating_add(us),
            Wait::Forever => u64::MAX,
        };
        let mut next = Wait::Poll;
        loop {
            let full = queues.iter().filter(|id| self.io.packets_waiting(**id) > 0);
            let first = full.min_by_key(|id| self.io.packets.queues.get(**id).map(|q| q.priority));
            if let Some(&id) = first {
                return Ok(Some(id));
            }
            // The first look is a whole cycle, because the clock stands still between two cycles.
            if next != Wait::Poll && (self.io.now_us() >= until_us || self.io.take_stop()) {
                return Ok(None);
            }
            self.turn(next)?;
            next = match wait {
                Wait::Forever => Wait::Forever,
                _ => Wait::Us(until_us.saturating_sub(self.io.now_us())),
            };
        }
    }

    /// Calls the handler about packet queues with events in this cycle, and rings their doorbells.
    pub(super) fn report_packets(&mut self) {
        if self.io.packets.told.is_empty() {
            return;
        }
        let mut outcomes = core::mem::take(&mut self.io.packets.outcomes);
        for (queue, cookie, outcome) in outcomes.drain(..) {
            self.handler.on_packet_sent(&mut self.io, queue, cookie, outcome);
        }
        // Keeps the list's memory for the next cycle.
        outcomes.append(&mut self.io.packets.outcomes);
        self.io.packets.outcomes = outcomes;
        let mut told = core::mem::take(&mut self.io.packets.told);
        told.sort_by_key(|id| self.io.packets.queues.get(*id).map(|queue| queue.priority));
        for id in told.drain(..) {
            let Some(queue) = self.io.packets.queues.get_mut(id) else { continue };
            let come = core::mem::take(&mut queue.has_come);
            if core::mem::take(&mut queue.has_left) {
                queue.bells.ring(Occasion::Sent);
            }
            if come {
                queue.bells.ring(Occasion::Arrived);
                self.handler.on_packets(&mut self.io, id);
            }
        }
        told.append(&mut self.io.packets.told);
        self.io.packets.told = told;
    }
}
