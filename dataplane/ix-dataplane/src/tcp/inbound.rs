//! Step 2: what each packet of the batch does.
use crate::cycle::{ElasticThread, flow_of, touch};
use crate::flows::flow::{Flow, Holder, Payload, Waits};
use crate::flows::handle::FlowId;
use crate::observe::metrics::LocalDrop;
use crate::receive::Work;
use crate::tcp::connections::End;
use ix_abi::{Event, event_kind};
use ix_mem::Mbuf;
use ix_tcp::SynVerdict;
use ix_wire::{FlowTuple, Parsed, Seq, TcpFlags, TcpHeader, TcpPacket};

/// The control bits that tell what a segment does to an opening connection.
const OPENING: TcpFlags = TcpFlags(TcpFlags::SYN.0 | TcpFlags::ACK.0 | TcpFlags::RST.0);

impl ElasticThread {
    pub(crate) fn handle(&mut self, work: &Work, mbuf: Mbuf) {
        match &work.parsed {
            Parsed::Tcp(packet) => self.handle_tcp(work, mbuf, packet),
            Parsed::Udp(packet) => self.handle_udp(work, mbuf, packet),
            Parsed::Icmp(packet) => self.handle_icmp(work, mbuf, packet),
            Parsed::Arp(packet) => self.handle_arp(work, mbuf, packet),
        }
    }

    fn handle_tcp(&mut self, work: &Work, mbuf: Mbuf, packet: &TcpPacket) {
        let tuple = packet.tuple();
        let group = work.group as usize;
        if self.shared.owner(group) != self.io.index {
            // Cannot be (the receive path hands such packets over); never answer for another thread.
            self.io.metrics.counters.misrouted.add(1);
            return self.give_back(work, mbuf);
        }
        let found = self.groups[group].as_ref().and_then(|g| {
            if g.is(work.guess, &tuple) { Some(work.guess) } else { g.find(work.hash, &tuple) }
        });
        let Some(slot) = found else {
            self.open_passively(work, mbuf, packet, &tuple, None);
            return;
        };
        let Some(flow) = self.groups[group].as_mut().and_then(|g| g.at(slot)) else { return };
        let id = flow.side.id;
        let opens = TcpFlags::SYN.0 == packet.header.flags.0 & (TcpFlags::SYN | TcpFlags::ACK).0;
        if opens && flow.tcb.gives_way_to(&packet.header) {
            let floor = flow.tcb.successor_floor();
            self.remove_flow(id);
            self.open_passively(work, mbuf, packet, &tuple, Some(floor));
            return;
        }
        if flow.side.waits == Waits::HalfOpen && !flow.tcb.is_answered_by(&packet.header) {
            let slot = flow.side.listener;
            if packet.header.flags.0 & OPENING.0 == TcpFlags::ACK.0 && self.expects_cookies(slot) {
                return self.handle_other_answer(id, slot, work, mbuf, packet, &tuple);
            }
        }
        self.segment(id, work, mbuf, packet);
    }

    /// A half-open flow gets an ACK of another SYN-ACK than its own. The peer's SYN came twice, and
    /// the first was answered with a cookie: which of the answers the peer takes is its choice.
    fn handle_other_answer(
        &mut self,
        id: FlowId,
        slot: u16,
        work: &Work,
        mbuf: Mbuf,
        packet: &TcpPacket,
        tuple: &FlowTuple,
    ) {
        if self.open_cookie(&packet.header, tuple).is_some() {
            self.remove_flow(id);
        }
        self.handle_cookie(slot, work, mbuf, packet, tuple);
    }

    /// Whether answers to SYN cookies of this listener may still come.
    fn expects_cookies(&mut self, slot: u16) -> bool {
        let now_us = self.io.now_us;
        self.listeners.get(slot).is_some_and(|listening| listening.cookies_until_us > now_us)
    }

    /// Hands a segment to its flow, then tells the application what came of it.
    fn segment(&mut self, id: FlowId, work: &Work, mut mbuf: Mbuf, packet: &TcpPacket) {
        let ElasticThread { shared, groups, io, receive, touched, listeners, .. } = self;
        let Some(flow) = flow_of(groups, id) else { return };
        let cfg = &shared.config.tcp;
        let now_us = io.now_us;
        let (mut ecn, mut early) = (packet.ip.ecn, false);
        if receive.edge.is_congested() {
            (ecn, early) = receive.edge.signal(ecn);
        }
        if flow.tcb.minds_mark(ecn) {
            let len = u32::from(packet.payload.len) + u32::from(packet.payload.more);
            flow.tcb.mark(cfg, now_us, &packet.header, len, ecn, &mut io.of(&mut flow.side));
        }
        let payload = packet.payload;
        let in_order = packet.header.seq.le(flow.tcb.rcv_nxt());
        let held = flow.tcb.rcv_held_bufs();
        if payload.len > 0 && (early || receive.must_drop_payload(in_order, held)) {
            io.metrics.drop_local(if early { LocalDrop::Early } else { LocalDrop::RxPressure });
            io.rx_pool.put(mbuf);
            for _ in 0..work.tails {
                receive.pop_tail().into_iter().for_each(|tail| io.rx_pool.put(tail));
            }
            let flags = without_end(packet.header.flags);
            let header = TcpHeader { flags, ..packet.header };
            flow.tcb.segment(cfg, now_us, &header, None, &mut io.of(&mut flow.side));
        } else if payload.len == 0 && work.tails == 0 {
            io.rx_pool.put(mbuf);
            flow.tcb.segment(cfg, now_us, &packet.header, None, &mut io.of(&mut flow.side));
        } else if work.tails == 0 {
            mbuf.set_range(mbuf.offset() + payload.start as usize, payload.len as usize);
            io.flow_frames[usize::from(id.group)] += 1;
            let buf = Some(Payload(mbuf));
            flow.tcb.segment(cfg, now_us, &packet.header, buf, &mut io.of(&mut flow.side));
        } else {
            mbuf.set_range(mbuf.offset() + payload.start as usize, payload.len as usize);
            let first = Payload(mbuf);
            let mut header = packet.header;
            // A frame of several mbufs is as many segments; its end carries the final flags.
            let last_flags = header.flags;
            let mut more = payload.more as usize;
            let mut part = Some(first);
            for left in (0..=work.tails).rev() {
                let Some(buf) = part.take() else { break };
                let len = buf.0.len() as u32;
                header.flags = if left > 0 { without_end(last_flags) } else { last_flags };
                io.flow_frames[usize::from(id.group)] += 1;
                flow.tcb.segment(cfg, now_us, &header, Some(buf), &mut io.of(&mut flow.side));
                header.seq += len;
                if left > 0 {
                    part = receive.take_tail(&mut more).map(Payload);
                }
                if part.as_ref().is_some_and(|buf| buf.0.len() == 0)
                    && let Some(empty) = part.take()
                {
                    io.rx_pool.put(empty.0);
                }
            }
        }
        touch(touched, &mut flow.side);
        let side = &mut flow.side;
        match side.holder {
            Holder::Application if side.acked_bytes > 0 || side.window_opened => {
                io.announce_sent(side, flow.tcb.send_space(cfg));
            }
            Holder::Knocking if side.waits != Waits::Knocking => {
                let Some(listening) = listeners.get(side.listener) else {
                    // It came from a thread that listens; nobody does here.
                    return self.end_flow(id, End::Abort);
                };
                if side.waits == Waits::HalfOpen {
                    listening.backlog.established();
                }
                side.waits = Waits::Knocking;
                let tuple = flow.tcb.tuple();
                io.metrics.counters.knocks.add(1);
                io.events.push(Event {
                    kind: event_kind::KNOCK,
                    cookie: listening.cookie,
                    handle: id.handle(),
                    addr: tuple.remote.0,
                    port: tuple.remote_port,
                    ..Event::default()
                });
            }
            _ => {}
        }
    }

    /// A segment of no flow: a listener's business, or refused (RFC 9293 section 3.10.7.1, .2).
    /// `floor`: where the numbers of a flow begin that takes the place of one in TIME-WAIT.
    fn open_passively(
        &mut self,
        work: &Work,
        mbuf: Mbuf,
        packet: &TcpPacket,
        tuple: &FlowTuple,
        floor: Option<Seq>,
    ) {
        let header = &packet.header;
        let flags = header.flags;
        let slot = self.listeners.find(tuple.local, tuple.local_port);
        match (slot, flags.0 & OPENING.0) {
            (Some(slot), f) if f == TcpFlags::SYN.0 && !flags.contains(TcpFlags::FIN) => {
                self.handle_syn(slot, work, mbuf, packet, tuple, floor)
            }
            (Some(slot), f) if f == TcpFlags::ACK.0 => {
                self.handle_cookie(slot, work, mbuf, packet, tuple)
            }
            // Nothing that a listener could answer (RFC 9293 section 3.10.7.2, fourth).
            (Some(_), 0) => self.give_back(work, mbuf),
            _ => self.refuse(work, mbuf, packet, tuple),
        }
    }

    fn handle_syn(
        &mut self,
        slot: u16,
        work: &Work,
        mbuf: Mbuf,
        packet: &TcpPacket,
        tuple: &FlowTuple,
        floor: Option<Seq>,
    ) {
        let Some(listening) = self.listeners.get(slot) else { return self.give_back(work, mbuf) };
        let backlog = &mut listening.backlog;
        match if floor.is_some() { backlog.on_syn_again() } else { backlog.on_syn() } {
            SynVerdict::Accept => {
                let mut tcb = self.new_passive(&packet.header, tuple, floor);
                tcb.syn_mark(packet.ip.ecn);
                let (hash, now_us) = (work.hash, self.io.now_us);
                let mut flow = Flow::new(tcb, hash, work.port, Holder::Embryonic, now_us);
                flow.side.listener = slot;
                flow.side.waits = Waits::HalfOpen;
                match self.insert_flow(work.group as usize, flow) {
                    Some(id) => self.touch(id),
                    None => {
                        if let Some(listening) = self.listeners.get(slot) {
                            listening.backlog.half_open_died();
                        }
                        self.io.metrics.drop_local(LocalDrop::FlowsMax);
                    }
                }
            }
            SynVerdict::Cookie => {
                listening.cookies_until_us = self.io.now_us + ix_tcp::syn_cookie::LIFETIME_US;
                self.send_cookie(work, packet, tuple);
            }
            SynVerdict::Drop => self.io.metrics.drop_local(LocalDrop::Backlog),
        }
        self.give_back(work, mbuf);
    }

    /// An ACK without a flow at a listener's port: the third segment of a SYN cookie, or nothing.
    fn handle_cookie(
        &mut self,
        slot: u16,
        work: &Work,
        mbuf: Mbuf,
        packet: &TcpPacket,
        tuple: &FlowTuple,
    ) {
        if !self.expects_cookies(slot) {
            return self.refuse(work, mbuf, packet, tuple);
        }
        // The peer's first segment may have been lost or dropped, and this be a later one, from
        // which the cookie cannot be read. A reset would end a connection that is good; when the
        // peer sends the first again, it will be.
        let Some(tcb) = self.open_cookie(&packet.header, tuple) else {
            self.io.metrics.drop_local(LocalDrop::NoCookie);
            return self.give_back(work, mbuf);
        };
        let Some(listening) = self.listeners.get(slot) else { return self.give_back(work, mbuf) };
        if !listening.backlog.on_cookie() {
            self.io.metrics.drop_local(LocalDrop::Backlog);
            return self.give_back(work, mbuf);
        }
        let now_us = self.io.now_us;
        let mut flow = Flow::new(tcb, work.hash, work.port, Holder::Knocking, now_us);
        flow.side.listener = slot;
        match self.insert_flow(work.group as usize, flow) {
            Some(id) => self.segment(id, work, mbuf, packet),
            None => {
                if let Some(listening) = self.listeners.get(slot) {
                    listening.backlog.accepted();
                }
                self.io.metrics.drop_local(LocalDrop::FlowsMax);
                self.give_back(work, mbuf);
            }
        }
    }

    /// Answers a reset, as RFC 9293 section 3.10.7.1 has it.
    fn refuse(&mut self, work: &Work, mbuf: Mbuf, packet: &TcpPacket, tuple: &FlowTuple) {
        self.io.metrics.drop_local(LocalDrop::NoFlow);
        let payload_len = (packet.payload.len + packet.payload.more) as u32;
        if let Some(reset) = ix_tcp::reset_for(&packet.header, payload_len) {
            self.io.send_reply(work.port, packet.ip.eth_src, tuple, &reset);
        }
        self.give_back(work, mbuf);
    }

    /// Frees the mbufs of a packet that is done with.
    pub(crate) fn give_back(&mut self, work: &Work, mbuf: Mbuf) {
        self.io.rx_pool.put(mbuf);
        for _ in 0..work.tails {
            if let Some(mbuf) = self.receive.pop_tail() {
                self.io.rx_pool.put(mbuf);
            }
        }
    }
}

fn without_end(flags: TcpFlags) -> TcpFlags {
    TcpFlags(flags.0 & !(TcpFlags::FIN | TcpFlags::PSH).0)
}
