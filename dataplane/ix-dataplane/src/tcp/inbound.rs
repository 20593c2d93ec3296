//! Received segments: each goes to its flow or to a listener, or causes a reset.
use super::connections::End;
use super::{Tcp, TcpContext};
use crate::context::Context;
use crate::flows::flow::{Flow, Holder, Payload, Waits};
use crate::flows::handle::FlowId;
use crate::flows::{Flows, touch};
use crate::io::Io;
use crate::observe::metrics::LocalDrop;
use crate::receive::batch::{Batch, Work};
use crate::verdict::Verdict;
use ix_abi::{Endpoint, Event};
use ix_mem::Mbuf;
use ix_tcp::SynVerdict;
use ix_wire::{FlowTuple, Seq, TcpFlags, TcpHeader, TcpPacket};

/// Whether a segment's payload is accepted though its flow holds its share: it goes into a buffer
/// that the flow holds already; or the peer has just taken all that it was sent, for which the
/// application holds one that it returns now.
#[cold]
fn may_have_another(io: &Io, batch: &Batch, flow: &Flow, packet: &TcpPacket) -> bool {
    let (Flow { tcb, socket, .. }, payload) = (flow, packet.payload);
    let is_next = packet.header.seq == tcb.rcv_nxt();
    let fits = tcb.joins_buffers()
        && payload.more == 0
        && socket.held.has_room(&io.cx.shared.memory, payload.len.into());
    let held = tcb.rcv_held_bufs();
    let takes = held > 0 && tcb.takes_all(packet.header.ack);
    is_next && (fits || takes && !batch.must_drop_payload(true, held - 1))
}

/// The control bits that show what a segment does to an opening connection.
const OPENING: TcpFlags = TcpFlags(TcpFlags::SYN.0 | TcpFlags::ACK.0 | TcpFlags::RST.0);

/// A segment of the batch.
struct Segment<'a> {
    work: &'a Work,
    packet: &'a TcpPacket,
    tuple: FlowTuple,
}

impl Tcp {
    /// Processes a segment.
    #[inline]
    pub fn receive(
        &mut self,
        cx: &mut TcpContext<'_>,
        work: &Work,
        mbuf: Mbuf,
        packet: &TcpPacket,
    ) -> Verdict {
        let seg = &Segment { work, packet, tuple: packet.tuple() };
        let (tuple, group) = (&seg.tuple, usize::from(work.group));
        let Context { shared, index, metrics, .. } = &cx.io.cx;
        if shared.owner(group) != *index {
            // Cannot happen, because the receive path hands such packets over; never reply for
            // another thread.
            metrics.counters.misrouted.add(1);
            return cx.done(seg, mbuf);
        }
        let is_guessed = cx.flows.groups[group].as_ref().is_some_and(|g| g.is(work.guess, tuple));
        let found =
            if is_guessed { Some(work.guess) } else { cx.flows.look_for(group, work.hash, tuple) };
        let Some(slot) = found else {
            return match cx.flows.kept(group, work.hash, tuple) {
                None => self.open_passively(cx, seg, mbuf, None),
                Some((number, kept)) => {
                    let opens = kept.wait.gives_way_to(&packet.header);
                    let floor = opens.then(|| kept.wait.successor_floor());
                    self.receive_kept(cx, seg, mbuf, number, floor)
                }
            };
        };
        let Some(flow) = cx.flows.groups[group].as_mut().and_then(|g| g.at(slot)) else {
            return Ok(());
        };
        let opens = TcpFlags::SYN.0 == packet.header.flags.0 & (TcpFlags::SYN | TcpFlags::ACK).0;
        if opens && flow.tcb.gives_way_to(&packet.header) {
            let (id, floor) = (flow.socket.id(), flow.tcb.successor_floor());
            self.remove(cx.io, cx.flows, id);
            return self.open_passively(cx, seg, mbuf, Some(floor));
        }
        if flow.socket.waits == Waits::HalfOpen
            && packet.header.flags.0 & OPENING.0 == TcpFlags::ACK.0
        {
            let (id, slot) = (flow.socket.id(), flow.socket.listener);
            if !flow.tcb.is_answered_by(&packet.header) {
                if self.expects_cookies(slot, cx.io.cx.now_us) {
                    return self.handle_other_answer(cx, id, slot, seg, mbuf);
                }
            } else if self.listeners.get(slot).is_some_and(|l| l.backlog.is_full()) {
                // As on Linux: the peer believes that it is connected. It hears again from the
                // SYN-ACK, and its answer to that is taken once there is room.
                return cx.done(seg, mbuf).and(Err(LocalDrop::Backlog.into()));
            }
        }
        self.segment_here(cx, (group, slot), seg, mbuf)
    }

    /// A segment for a connection on the shelf, with this number. `floor`: it gives way to the
    /// segment, as in [`Self::open_passively`].
    #[cold]
    fn receive_kept(
        &mut self,
        cx: &mut TcpContext<'_>,
        seg: &Segment<'_>,
        mbuf: Mbuf,
        number: u32,
        floor: Option<Seq>,
    ) -> Verdict {
        let (group, at) = (usize::from(seg.work.group), (seg.work.hash, number));
        if floor.is_some() {
            cx.flows.remove_kept(&cx.io.cx, group, at);
            return self.open_passively(cx, seg, mbuf, floor);
        }
        match cx.flows.revive(&cx.io.cx, group, at) {
            Some(id) => self.segment(cx, id, seg, mbuf),
            None => cx.done(seg, mbuf),
        }
    }

    /// A half-open flow gets an ACK of another SYN-ACK than its own. The peer's SYN arrived twice,
    /// and the first one got a cookie: the peer chooses which of the two it uses.
    fn handle_other_answer(
        &mut self,
        cx: &mut TcpContext<'_>,
        id: FlowId,
        slot: u16,
        seg: &Segment<'_>,
        mbuf: Mbuf,
    ) -> Verdict {
        if self.open_cookie(&cx.io.cx, &seg.packet.header, &seg.tuple).is_some() {
            self.remove(cx.io, cx.flows, id);
        }
        // The listener whose place it takes is the one at which it knocks.
        let slot = self.listeners.share_out(slot, &cx.io.cx.attached);
        self.handle_cookie(cx, slot, seg, mbuf)
    }

    /// Whether ACKs of SYN cookies of this listener may still arrive.
    fn expects_cookies(&mut self, slot: u16, now_us: u64) -> bool {
        let listening = self.listeners.get(slot);
        listening.is_some_and(|listening| listening.cookies_until_us > now_us && !listening.ends)
    }

    /// [`Self::segment_here`] for flows that have just been made.
    #[inline(never)]
    fn segment(
        &mut self,
        cx: &mut TcpContext<'_>,
        id: FlowId,
        seg: &Segment<'_>,
        mbuf: Mbuf,
    ) -> Verdict {
        self.segment_here(cx, (id.group.into(), id.slot), seg, mbuf)
    }

    /// Gives a segment to the flow in a slot of a group, then announces the result to the
    /// application. Inlined, and without the flow's name, so that the flow is looked up once.
    #[inline(always)]
    fn segment_here(
        &mut self,
        cx: &mut TcpContext<'_>,
        (group, slot): (usize, u32),
        seg: &Segment<'_>,
        mut mbuf: Mbuf,
    ) -> Verdict {
        let TcpContext { io, flows, batch } = cx;
        let Segment { work, packet, .. } = seg;
        let Flows { groups, touched, .. } = &mut **flows;
        let Some(flow) = groups[group].as_mut().and_then(|group| group.at(slot)) else {
            return Ok(());
        };
        let Tcp { listeners, config: cfg, .. } = self;
        let now_us = io.cx.now_us;
        let (mut ecn, mut early) = (packet.ip.ecn(), false);
        if batch.edge.is_congested() {
            (ecn, early) = batch.edge.signal(ecn);
        }
        if flow.tcb.minds_mark(ecn) {
            let len = u32::from(packet.payload.len) + u32::from(packet.payload.more);
            flow.tcb.mark(cfg, now_us, &packet.header, len, ecn, &mut io.of(&mut flow.socket));
        }
        let mut verdict = Ok(());
        let payload = packet.payload;
        let in_order = packet.header.seq.le(flow.tcb.rcv_nxt());
        let held = flow.tcb.rcv_held_bufs();
        let must_drop =
            batch.must_drop_payload(in_order, held) && !may_have_another(io, batch, flow, packet);
        if payload.len > 0 && (early || must_drop) {
            let reason = if early { LocalDrop::Early } else { LocalDrop::RxPressure };
            verdict = Err(reason.into());
            io.cx.rx_pool.put(mbuf);
            for _ in 0..work.tails {
                batch.pop_tail().into_iter().for_each(|tail| io.cx.rx_pool.put(tail));
            }
            let flags = without_end(packet.header.flags);
            let header = TcpHeader { flags, ..packet.header };
            let len = u32::from(payload.len) + u32::from(payload.more);
            let out = &mut io.of(&mut flow.socket);
            flow.tcb.segment_without_text(cfg, now_us, &header, len, out);
            if !early {
                flow.tcb.payload_dropped();
            }
        } else if payload.len == 0 && work.tails == 0 {
            io.cx.rx_pool.put(mbuf);
            flow.tcb.segment(cfg, now_us, &packet.header, None, &mut io.of(&mut flow.socket));
        } else if work.tails == 0 {
            mbuf.set_range(mbuf.offset() + payload.start as usize, payload.len as usize);
            io.cx.flow_frames[group] += 1;
            let buf = Some(Payload(mbuf));
            flow.tcb.segment(cfg, now_us, &packet.header, buf, &mut io.of(&mut flow.socket));
        } else {
            mbuf.set_range(mbuf.offset() + payload.start as usize, payload.len as usize);
            let first = Payload(mbuf);
            let mut header = packet.header;
            // A frame of several mbufs counts as several segments; the last has the final flags.
            let last_flags = header.flags;
            let mut more = payload.more as usize;
            let mut part = Some(first);
            for left in (0..=work.tails).rev() {
                let Some(buf) = part.take() else { break };
                let len = buf.0.len() as u32;
                header.flags = if left > 0 { without_end(last_flags) } else { last_flags };
                io.cx.flow_frames[group] += 1;
                flow.tcb.segment(cfg, now_us, &header, Some(buf), &mut io.of(&mut flow.socket));
                header.seq += len;
                if left > 0 {
                    part = batch.take_tail(&mut more).map(Payload);
                }
                if part.as_ref().is_some_and(|buf| buf.0.len() == 0)
                    && let Some(empty) = part.take()
                {
                    io.cx.rx_pool.put(empty.0);
                }
            }
        }
        touch(touched, &mut flow.socket);
        let socket = &mut flow.socket;
        match socket.holder {
            Holder::Application if socket.acked_bytes > 0 || socket.window_opened => {
                io.cx.announce_sent(socket, flow.tcb.send_space(cfg));
            }
            Holder::Knocking if socket.waits != Waits::Knocking => {
                let id = socket.id();
                if !io.cx.attached.is_present(socket.owner) {
                    listeners.give_to_present(socket, &io.cx.attached);
                }
                if listeners.ends(socket.listener) {
                    self.end_wait(io, flows, id);
                    return verdict;
                }
                let Some(listening) = listeners.get(socket.listener) else {
                    // It came from a thread with a listener; this thread has none.
                    self.end(io, flows, id, End::Abort);
                    return verdict;
                };
                if socket.waits == Waits::HalfOpen {
                    listening.backlog.established();
                }
                socket.waits = Waits::Knocking;
                self.knock(io, flow);
            }
            _ => {}
        }
        verdict
    }

    /// Announces a flow to the process that listens.
    pub(super) fn knock(&mut self, io: &mut Io, flow: &Flow) {
        let (socket, tuple) = (&flow.socket, flow.tcb.tuple());
        let Some(listening) = self.listeners.get(socket.listener) else { return };
        io.cx.metrics.counters.knocks.add(1);
        let event = Event::Knock {
            listener: listening.cookie,
            handle: socket.handle,
            peer: Endpoint { addr: tuple.remote.0, port: tuple.remote_port },
        };
        io.cx.attached.push(socket.owner, event);
    }

    /// Processes a segment without a flow: it goes to a listener, or is refused (RFC 9293 section
    /// 3.10.7.1, .2). `floor`: lowest sequence number of a flow that replaces one in TIME-WAIT.
    fn open_passively(
        &mut self,
        cx: &mut TcpContext<'_>,
        seg: &Segment<'_>,
        mbuf: Mbuf,
        floor: Option<Seq>,
    ) -> Verdict {
        let flags = seg.packet.header.flags;
        let slot = self.listeners.find(seg.tuple.local, seg.tuple.local_port);
        let slot = slot.map(|slot| self.listeners.share_out(slot, &cx.io.cx.attached));
        match (slot, flags.0 & OPENING.0) {
            // Of a SYN with FIN the SYN counts, as with text (RFC 9293 section 3.10.7.2, third):
            // the peer sends again what is not acknowledged.
            (Some(slot), f) if f == TcpFlags::SYN.0 => self.handle_syn(cx, slot, seg, mbuf, floor),
            (Some(slot), f) if f == TcpFlags::ACK.0 => self.handle_cookie(cx, slot, seg, mbuf),
            // Nothing that a listener may reply to (RFC 9293 section 3.10.7.2, fourth).
            (Some(_), 0) => cx.done(seg, mbuf),
            _ => refuse(cx, seg, mbuf),
        }
    }

    fn handle_syn(
        &mut self,
        cx: &mut TcpContext<'_>,
        slot: u16,
        seg: &Segment<'_>,
        mbuf: Mbuf,
        floor: Option<Seq>,
    ) -> Verdict {
        let Segment { work, packet, tuple } = seg;
        let now_us = cx.io.cx.now_us;
        let Some(listening) = self.listeners.get(slot) else { return cx.done(seg, mbuf) };
        let fields = listening.fields_to(tuple.remote);
        let (owner, backlog) = (listening.owner, &mut listening.backlog);
        let verdict = match if floor.is_some() { backlog.on_syn_again() } else { backlog.on_syn() }
        {
            SynVerdict::Accept => {
                let mut tcb = self.new_passive(&cx.io.cx, &packet.header, tuple, floor);
                tcb.syn_mark(packet.ip.ecn());
                if fields.segment_bytes > 0 {
                    tcb.limit_offer(&self.config, fields.segment_bytes);
                }
                let mut flow = Flow::new(tcb, work.hash, work.port, Holder::Embryonic, now_us);
                (flow.socket.listener, flow.socket.owner) = (slot, owner);
                (flow.socket.ttl, flow.socket.tos) = (fields.hops, fields.tos);
                flow.socket.waits = Waits::HalfOpen;
                self.make_room(cx.io, cx.flows);
                match cx.flows.insert(&cx.io.cx, usize::from(work.group), flow) {
                    Some(id) => {
                        cx.flows.touch(id);
                        Ok(())
                    }
                    None => {
                        if let Some(listening) = self.listeners.get(slot) {
                            listening.backlog.half_open_died();
                        }
                        Err(LocalDrop::FlowsMax.into())
                    }
                }
            }
            SynVerdict::Cookie => {
                self.listeners.expect_cookies(slot, now_us + ix_tcp::syn_cookie::LIFETIME_US);
                self.send_cookie(cx.io, work.port, packet, tuple, fields);
                Ok(())
            }
            SynVerdict::Drop => Err(LocalDrop::Backlog.into()),
        };
        cx.done(seg, mbuf).and(verdict)
    }

    /// An ACK without a flow at a listener's port: the third segment of a handshake with a SYN
    /// cookie, or invalid.
    fn handle_cookie(
        &mut self,
        cx: &mut TcpContext<'_>,
        slot: u16,
        seg: &Segment<'_>,
        mbuf: Mbuf,
    ) -> Verdict {
        let (work, now_us) = (seg.work, cx.io.cx.now_us);
        if !self.expects_cookies(slot, now_us) {
            return refuse(cx, seg, mbuf);
        }
        // The peer's first segment may be lost, and this may be a later one, which does not hold
        // the cookie. A reset would end a valid connection. When the peer sends the first segment
        // again, the connection is made.
        let Some(mut tcb) = self.open_cookie(&cx.io.cx, &seg.packet.header, &seg.tuple) else {
            return cx.done(seg, mbuf).and(Err(LocalDrop::NoCookie.into()));
        };
        let Some(listening) = self.listeners.get(slot) else { return cx.done(seg, mbuf) };
        let (owner, fields) = (listening.owner, listening.fields_to(seg.tuple.remote));
        if !listening.backlog.on_cookie() {
            return cx.done(seg, mbuf).and(Err(LocalDrop::Backlog.into()));
        }
        tcb.limit_segments(fields.segment_bytes);
        let mut flow = Flow::new(tcb, work.hash, work.port, Holder::Knocking, now_us);
        (flow.socket.listener, flow.socket.owner) = (slot, owner);
        (flow.socket.ttl, flow.socket.tos) = (fields.hops, fields.tos);
        self.make_room(cx.io, cx.flows);
        match cx.flows.insert(&cx.io.cx, usize::from(work.group), flow) {
            Some(id) => self.segment(cx, id, seg, mbuf),
            None => {
                if let Some(listening) = self.listeners.get(slot) {
                    listening.backlog.accepted();
                }
                cx.done(seg, mbuf).and(Err(LocalDrop::FlowsMax.into()))
            }
        }
    }
}

/// Sends a reset, as RFC 9293 section 3.10.7.1 requires.
fn refuse(cx: &mut TcpContext<'_>, seg: &Segment<'_>, mbuf: Mbuf) -> Verdict {
    let Segment { work, packet, tuple } = seg;
    let payload_len = (packet.payload.len + packet.payload.more) as u32;
    if let Some(reset) = ix_tcp::reset_for(&packet.header, payload_len) {
        cx.io.send_reply(work.port, packet.ip.eth_src, tuple, &reset);
    }
    cx.done(seg, mbuf).and(Err(LocalDrop::NoFlow.into()))
}

impl TcpContext<'_> {
    /// Frees the mbufs of a processed segment.
    fn done(&mut self, seg: &Segment<'_>, mbuf: Mbuf) -> Verdict {
        self.batch.give_back(&mut self.io.cx.rx_pool, seg.work, mbuf);
        Ok(())
    }
}

fn without_end(flags: TcpFlags) -> TcpFlags {
    TcpFlags(flags.0 & !(TcpFlags::FIN | TcpFlags::PSH).0)
}
