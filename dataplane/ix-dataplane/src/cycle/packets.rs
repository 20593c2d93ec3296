//! Steps 1 and 2: receives packets, parses and sorts them, and calls the part that processes each.
use super::ElasticThread;
use crate::attachment::Kept;
use crate::flows::muster::Muster;
use crate::forwarding::Taken;
use crate::icmp::{answer_echo, answer_long_echo, hear_query, hear_query_v4, hear_router};
use crate::io::Io;
use crate::migration::Way;
use crate::migration::message::{Forwarded, Message};
use crate::observe::capture::{Mark, Sniffer, Staged};
use crate::observe::metrics::{LocalDrop, Stage};
use crate::raw::Claimed;
use crate::receive::batch::{Origin, Via, Work};
use crate::receive::fragments::{self, WholeFrame};
use crate::receive::pressure::{Pressure, Supply, rx_supply};
use crate::receive::{Receive, hears_routers};
use crate::tcp::TcpContext;
use crate::udp;
use crate::verdict::{Dropped, Verdict};
use ix_abi::CallError;
use ix_mem::Mbuf;
use ix_nic::RxPacket;
use ix_tcp::icmp::{ErrorMessage, IcmpError};
use ix_wire::mld::Query;
use ix_wire::ra::Advertisement;
use ix_wire::{DropReason, IcmpPacket, Parsed, ipv4, vlan};

/// Most signals from other threads in one cycle: the event array has room for them.
const SIGNALS_MAX: usize = 32;

/// Polling and sorting.
impl ElasticThread {
    /// Receives and processes one batch; returns the number of packets.
    pub(super) fn receive_batch<const HERE: bool>(&mut self) -> usize {
        if HERE && !self.io.cx.attached.has_room() {
            self.io.cx.metrics.counters.event_back_pressure.add(1);
            return 0;
        }
        if HERE {
            self.poll_waiting();
        } else if self.keeps_too_many() {
            return 0;
        }
        if !self.io.cx.looped.is_empty() {
            self.poll_looped();
        }
        let polled = self.poll_devices();
        if polled == 0 {
            return 0;
        }
        self.io.cx.metrics.enter(Stage::Process);
        let (flows, empty) = (self.flows.count, self.flows.muster.empty());
        let supply = rx_supply(&self.io.cx, &self.io.ports, flows, empty, polled);
        if supply != self.receive.batch.supply || supply.pressure > Pressure::None {
            self.share_out::<HERE>(supply);
        }
        self.sort_burst();
        self.flows.prefetch(self.receive.work.packets_mut());
        let mut work = std::mem::take(&mut self.receive.work);
        let mut mbufs = std::mem::take(&mut self.receive.mbufs);
        let all_here = HERE && !self.io.cx.attached.is_any_absent();
        for (work, mbuf) in work.packets().iter().zip(mbufs.drain(..)) {
            match all_here {
                true => self.process(work, mbuf),
                false => self.process_or_defer(work, mbuf),
            }
        }
        work.clear();
        (self.receive.work, self.receive.mbufs) = (work, mbufs);
        polled
    }

    /// Frames are short, or were, or there are more flows or fewer.
    #[cold]
    fn share_out<const HERE: bool>(&mut self, supply: Supply) {
        self.receive.batch.supply = supply;
        self.tcp.config.rcv_share = supply.share.into();
        match supply.pressure {
            Pressure::None => self.flows.muster = Muster::default(),
            pressure if pressure >= Pressure::Low => {
                self.tcp.muster_and_prune(&mut self.io, &mut self.flows);
            }
            _ => self.tcp.muster(&mut self.flows),
        }
        if supply.pressure >= Pressure::Critical && HERE {
            self.tcp.relieve(&mut self.io, &mut self.flows);
        }
    }

    /// Adds packets that had to wait, then those from other threads.
    #[inline]
    fn poll_waiting(&mut self) {
        if self.migrations.is_active() {
            self.poll_replay();
        }
        if self.returned.has_packets() {
            self.poll_kept();
        }
        self.poll_threads();
    }

    /// Step 1, unless so many packets are held that devices should keep theirs. Returns the number
    /// of packets in the batch.
    #[inline]
    fn poll_devices(&mut self) -> usize {
        let ElasticThread { io, receive, migrations, .. } = self;
        let Io { cx, ports, .. } = io;
        let open = if migrations.holds_too_many(cx.rx_pool.owned()) { 0 } else { ports.len() };
        let may_settle = migrations.is_active();
        receive.poll_devices(cx, &mut ports[..open], |port, asked, got| {
            if may_settle {
                migrations.polled(port, asked, got);
            }
        })
    }

    /// Adds packets that other threads have handed over, up to half of the batch, so that devices
    /// are served too; in each cycle another thread is the first. A message is the last that is
    /// taken from its sender: it is processed after the batch, and before what came after it.
    #[inline]
    fn poll_threads(&mut self) {
        let ElasticThread { io, receive, forwarding, migrations, .. } = self;
        let mut signals = 0;
        let threads = forwarding.incoming.len();
        if threads < 2 {
            return;
        }
        let (first, room) = receive.share_with_threads(threads);
        for number in 0..threads {
            let from = (first + number) % threads;
            let Some(source) = &mut forwarding.incoming[from] else { continue };
            while receive.burst.len() < room {
                match source.take(&mut io.cx.rx_pool, &mut receive.burst) {
                    Taken::Nothing => break,
                    Taken::Packet(port, looped) => {
                        let from = Via::of(from as u8, looped);
                        let origin = Origin { port, from };
                        receive.origins.resize(receive.burst.len(), origin);
                    }
                    Taken::Message(Message::Signal { of, life, value }) => {
                        io.cx.hear_signal(from, (of, life), value);
                        signals += 1;
                        if signals == SIGNALS_MAX {
                            return;
                        }
                    }
                    Taken::Message(message) => {
                        message.adopt(&mut io.cx.rx_pool);
                        migrations.receive(from, message);
                        break;
                    }
                }
            }
        }
    }

    /// Adds packets that migrations have held.
    #[cold]
    fn poll_replay(&mut self) {
        let mut more = false;
        while self.receive.has_room() || more {
            match self.migrations.pop_replay() {
                None => break,
                Some(Forwarded::Packet { port, looped, packet }) => {
                    more = packet.more;
                    self.receive.push(Origin { port, from: Via::of(Via::REPLAY, looped) }, packet);
                }
                Some(Forwarded::Message(message)) => {
                    self.migrations.receive(self.io.cx.index, message);
                }
            }
        }
    }

    /// Adds packets that this thread has sent to own addresses, up to half of the batch, so that
    /// devices are served too.
    #[cold]
    #[inline(never)]
    fn poll_looped(&mut self) {
        let mut more = false;
        let room = self.receive.share_with_looped();
        while self.receive.burst.len() < room || more {
            let Some((port, packet)) = self.io.cx.looped.pop_front() else { break };
            more = packet.more;
            self.receive.push(Origin { port, from: Via::here(true) }, packet);
        }
    }

    /// Adds packets that have waited for the application.
    #[cold]
    fn poll_kept(&mut self) {
        let mut more = false;
        while self.receive.has_room() || more {
            let Some(Kept { port, looped, packet, .. }) = self.returned.pop() else { break };
            more = packet.more;
            self.receive.push(Origin { port, from: Via::here(looped) }, packet);
        }
    }

    /// First pass: parses the burst, hands over packets of other threads, drops invalid ones. Not
    /// inlined, so that a turn that finds nothing does not pay for it.
    #[inline(never)]
    fn sort_burst(&mut self) {
        let mut burst = std::mem::take(&mut self.receive.burst);
        let mut origins = std::mem::take(&mut self.receive.origins);
        let mut packets = burst.drain(..).zip(origins.drain(..));
        while let Some((packet, origin)) = packets.next() {
            let mut tails = 0;
            let mut more = packet.more;
            let mut total_len = packet.mbuf.len();
            while more {
                // All parts of a frame are in one burst. If a burst did end within a frame, the
                // rest would look like a frame in the next burst, and would fail to parse.
                let Some((tail, _)) = packets.next() else { break };
                more = tail.more;
                total_len += tail.mbuf.len();
                tails += 1;
                self.receive.batch.push_tail(tail.mbuf);
            }
            let is_new = origin.from == Via::NEW;
            self.sort(origin, packet.mbuf, tails, total_len, is_new);
        }
        drop(packets);
        (self.receive.burst, self.receive.origins) = (burst, origins);
    }

    /// Parses one packet. `is_new`: no receive filter has checked it yet.
    #[inline]
    fn sort(&mut self, origin: Origin, mbuf: Mbuf, tails: usize, total_len: usize, is_new: bool) {
        self.receive.work.push(origin, tails);
        let Io { cx, ports, .. } = &self.io;
        let as_what = (is_new, origin.from.is_looped());
        let mut found = self.receive.classify_here(cx, ports, &mbuf, total_len, as_what);
        if tails > 0 && is_new && found.is_ok() {
            found = self.receive.verify_tails(cx, ports, &mbuf).and(found);
        }
        match found {
            Ok(group) if group.is_none_or(|g| self.migrations.is_home(g)) => {
                self.receive.mbufs.push(mbuf);
            }
            Ok(group) => self.divert(group.unwrap_or(0), origin, mbuf, tails),
            Err(reason) => self.sort_refused(origin, mbuf, tails, reason),
        }
    }

    /// Processes a packet that the parser or a filter has refused.
    #[cold]
    fn sort_refused(&mut self, origin: Origin, mbuf: Mbuf, tails: usize, reason: Dropped) {
        self.receive.work.pop();
        if matches!(reason, Dropped::Packet(DropReason::EthVlan))
            && vlan::has_priority_only(mbuf.bytes(&self.shared.memory))
        {
            return self.sort_without_priority(origin, mbuf, tails);
        }
        let is_fragment =
            matches!(reason, Dropped::Packet(DropReason::IpFragment | DropReason::Ip6Fragment));
        if is_fragment {
            return self.take_fragment(origin, mbuf, tails);
        }
        let mut reason = reason;
        let is_other = matches!(reason, Dropped::Packet(DropReason::IpUnknownProtocol));
        if is_other
            && tails == 0
            && let Some(heard) = hear_query_v4(&self.io, &mbuf)
        {
            match heard {
                Err(why) => reason = why.into(),
                // A packet queue may want it as well.
                Ok(()) if self.packets.is_any() => {}
                Ok(()) => return self.io.cx.rx_pool.put(mbuf),
            }
        }
        self.claim_or_drop(origin.port, mbuf, tails, reason);
    }

    /// Processes a frame with a priority tag, which names no VLAN, as one without a tag. What is
    /// behind it is no tag, so this happens once.
    #[cold]
    fn sort_without_priority(&mut self, origin: Origin, mut mbuf: Mbuf, tails: usize) {
        vlan::remove(mbuf.bytes_mut(&self.shared.memory));
        mbuf.trim_front(vlan::TAG_BYTES);
        let total_len = self.receive.batch.last_tails(tails).fold(mbuf.len(), |n, t| n + t.len());
        if let Err((reason, mbuf)) = self.sort_rare(origin, mbuf, tails, total_len) {
            self.sort_refused(origin, mbuf, tails, reason);
        }
    }

    /// Parses a packet of a kind that is rare. One that is refused is the last of the batch.
    #[cold]
    fn sort_rare(
        &mut self,
        origin: Origin,
        mbuf: Mbuf,
        tails: usize,
        total_len: usize,
    ) -> Result<(), (Dropped, Mbuf)> {
        self.receive.work.push(origin, tails);
        let Io { cx, ports, .. } = &self.io;
        let mut found = self.receive.classify(cx, ports, &mbuf, total_len, origin.from.is_looped());
        if tails > 0 && found.is_ok() {
            found = self.receive.verify_tails(cx, ports, &mbuf).and(found);
        }
        match found {
            Ok(group) if group.is_none_or(|g| self.migrations.is_home(g)) => {
                self.receive.mbufs.push(mbuf);
            }
            Ok(group) => self.divert(group.unwrap_or(0), origin, mbuf, tails),
            Err(reason) => return Err((reason, mbuf)),
        }
        Ok(())
    }

    /// Processes a fragment: stores it, or hands it to the thread that stores the datagram's
    /// fragments. A complete datagram takes its place in the batch.
    #[cold]
    fn take_fragment(&mut self, origin: Origin, mbuf: Mbuf, tails: usize) {
        let port = &self.io.ports[usize::from(origin.port)];
        let total_len = self.receive.batch.last_tails(tails).fold(mbuf.len(), |n, t| n + t.len());
        let read =
            match fragments::read(&self.io.cx, port, &mbuf, total_len, origin.from.is_looped()) {
                Ok(read) => read,
                Err(reason) => return self.claim_or_drop(origin.port, mbuf, tails, reason),
            };
        if !self.migrations.is_home(read.group) {
            let way = self.way(read.group, origin.from);
            if way != Way::Here {
                return self.send_all_on(way, read.group, origin, mbuf, tails);
            }
        }
        let Receive { under_way, batch, .. } = &mut self.receive;
        let pieces = (mbuf, batch.last_tails(tails));
        let taken = under_way.take(&mut self.io.cx, origin.port, &read, pieces);
        if taken.is_ok() {
            let pool = &mut self.io.cx.rx_pool;
            batch.take_last_tails(tails).for_each(|tail| pool.put(tail));
        }
        match taken {
            Ok(None) => {}
            // Whichever threads its fragments came from, no receive filter has checked the datagram
            // yet.
            Ok(Some(whole)) => self.sort_whole(origin, whole),
            Err((reason, mbuf)) => self.claim_or_drop(origin.port, mbuf, tails, reason),
        }
    }

    /// Parses a reassembled datagram. If it is refused as a fragment again, it is dropped.
    fn sort_whole(&mut self, origin: Origin, whole: WholeFrame) {
        let WholeFrame { first: mbuf, tails } = whole;
        let total_len = mbuf.len() + tails.iter().map(Mbuf::len).sum::<usize>();
        let count = tails.len();
        tails.into_iter().for_each(|tail| self.receive.batch.push_tail(tail));
        if let Err((reason, mbuf)) = self.sort_rare(origin, mbuf, count, total_len) {
            self.receive.work.pop();
            self.claim_or_drop(origin.port, mbuf, count, reason);
        }
    }

    /// Processes a packet whose group is another thread's or is moving: sends it on or holds it,
    /// unless it may be processed here.
    #[cold]
    fn divert(&mut self, group: usize, origin: Origin, mbuf: Mbuf, tails: usize) {
        let way = self.way(group, origin.from);
        if way == Way::Here {
            return self.receive.mbufs.push(mbuf);
        }
        self.receive.work.pop();
        self.send_all_on(way, group, origin, mbuf, tails);
    }

    /// Sends on or holds a packet, whose last `tails` mbufs are the last of the batch.
    fn send_all_on(&mut self, way: Way, group: usize, origin: Origin, mbuf: Mbuf, tails: usize) {
        let rest: Vec<Mbuf> = self.receive.batch.take_last_tails(tails).collect();
        self.send_on(way, group, origin, RxPacket { mbuf, more: tails > 0 });
        for (at, mbuf) in rest.into_iter().enumerate() {
            self.send_on(way, group, origin, RxPacket { mbuf, more: at + 1 < tails });
        }
    }
}

/// Packets that go no further, and those of other threads.
impl ElasticThread {
    /// Gives a refused packet to a packet queue that wants it, or to the thread that a receive
    /// filter names; else drops it.
    #[cold]
    fn claim_or_drop(&mut self, port: u8, mbuf: Mbuf, tails: usize, reason: Dropped) {
        if !self.packets.is_any() && !self.receive.admission.steers() {
            return self.drop_packet(port, mbuf, tails, reason);
        }
        let staged = self.sniff(port, &mbuf, tails);
        let ElasticThread { io, receive, packets, .. } = self;
        match packets.claim(io, &mut receive.admission, port, reason, tails, mbuf) {
            Claimed::Taken => {
                let (time_us, len) = (self.io.cx.now_us, staged.map_or(0, |s| s.len()));
                self.sniffed(staged, Mark { time_us, len, port, ..Mark::default() });
            }
            Claimed::Elsewhere(to, mbuf) => {
                self.hand_over(to, (port, false), RxPacket { mbuf, more: false });
            }
            Claimed::Dropped(reason, mbuf) => self.drop_packet(port, mbuf, tails, reason),
        }
    }

    /// Drops a packet, whose last `tails` mbufs are the last of the batch: counts, captures and
    /// frees it, and sends an ICMP error where the RFCs say so.
    #[cold]
    fn drop_packet(&mut self, port: u8, mbuf: Mbuf, tails: usize, reason: Dropped) {
        if let Some(staged) = self.sniff(port, &mbuf, tails) {
            let (time_us, len) = (self.io.cx.now_us, staged.len());
            let dropped = Some(reason.index());
            self.sniffed(Some(staged), Mark { time_us, len, port, dropped, ..Mark::default() });
        }
        reason.count(&self.io.cx.metrics);
        if let Dropped::Packet(reason) = reason
            && is_told(reason)
        {
            self.tell_sender(port, &mbuf);
        }
        let pool = &mut self.io.cx.rx_pool;
        pool.put(mbuf);
        self.receive.batch.take_last_tails(tails).for_each(|tail| pool.put(tail));
    }

    /// Tells the sender of a packet for us that it was not understood.
    #[cold]
    fn tell_sender(&mut self, port: u8, mbuf: &Mbuf) {
        let shared = self.shared.clone();
        let bytes = mbuf.bytes(&shared.memory);
        // A link may bring frames that are for others.
        if bytes.first_chunk() != Some(&self.io.ports[usize::from(port)].info.mac) {
            return;
        }
        let message = ErrorMessage::protocol_unreachable(bytes);
        if let Some(message) = message.filter(|message| self.io.cx.is_local(message.from())) {
            self.io.send_icmp_error(port, &message, bytes);
        }
    }

    /// Hands a packet and its frame to another thread. If the ring is full it is lost, as in a
    /// network card.
    pub(super) fn hand_over(&mut self, to: usize, (port, looped): (u8, bool), packet: RxPacket) {
        self.io.cx.rx_pool.disown(&packet.mbuf);
        match self.forwarding.push(to, Forwarded::Packet { port, looped, packet }) {
            Ok(()) => {
                self.io.cx.metrics.counters.forwarded.add(1);
                self.shared.ring_thread(to);
            }
            Err(Forwarded::Packet { packet, .. }) => {
                self.io.cx.rx_pool.adopt(&packet.mbuf);
                self.drop_packet(port, packet.mbuf, 0, LocalDrop::ForwardFull.into());
            }
            Err(Forwarded::Message(_)) => {}
        }
    }

    /// Sends a message to another thread.
    pub(super) fn tell_thread(&mut self, to: usize, message: Message) {
        // Refused only if there is no such thread.
        if self.forwarding.push(to, Forwarded::Message(message)).is_ok() {
            self.shared.ring_thread(to);
        }
    }

    /// Sends a number to another thread, or to this one.
    pub(crate) fn signal_thread(&mut self, to: usize, value: u64) -> Result<(), CallError> {
        if to != self.io.cx.index {
            let caller = self.io.cx.caller;
            let life = self.io.cx.attached[caller].life;
            self.forwarding.push_signal(to, (caller, life), value)?;
            self.shared.ring_thread(to);
        } else if self.io.cx.attached[self.io.cx.caller].events.has_room() {
            let (caller, life) = (self.io.cx.caller, self.io.cx.attached[self.io.cx.caller].life);
            self.io.cx.hear_signal(to, (caller, life), value);
        } else {
            return Err(CallError::NoResource);
        }
        Ok(())
    }

    /// Moves into the rings what has waited for room in them.
    #[inline]
    pub(super) fn flush_handover(&mut self) {
        if self.forwarding.waits() {
            let shared = &self.shared;
            self.forwarding.flush(|to| shared.ring_thread(to));
        }
    }
}

/// Whether the sender of a packet that was refused for this reason may be told so.
fn is_told(reason: DropReason) -> bool {
    use DropReason::{Ip6Extension, Ip6Fragment, Ip6Option, Ip6Routing, IpUnknownProtocol};
    matches!(reason, IpUnknownProtocol | Ip6Extension | Ip6Fragment | Ip6Option | Ip6Routing)
}

/// Third pass: calls the part that processes each packet.
impl ElasticThread {
    /// Processes a packet, counts why it was dropped, and shows it to the sniffer, if there is one.
    #[inline]
    pub(super) fn process(&mut self, work: &Work, mbuf: Mbuf) {
        self.io.cx.metrics.group_packets[usize::from(work.group)].add(1);
        if self.sniffer.is_some() {
            return self.process_sniffed(work, mbuf);
        }
        if let Err(reason) = self.handle(work, mbuf) {
            reason.count(&self.io.cx.metrics);
        }
    }

    #[cold]
    #[inline(never)]
    fn process_sniffed(&mut self, work: &Work, mbuf: Mbuf) {
        let memory = &self.shared.memory;
        let tails = self.receive.batch.next_tails(work.tails).map(|tail| tail.bytes(memory));
        let sniffer = self.sniffer.as_deref_mut();
        let staged = sniffer.map(|sniffer| sniffer.arriving(work.port, mbuf.bytes(memory), tails));
        let verdict = self.handle(work, mbuf);
        let dropped = verdict.err();
        if let Some(reason) = dropped {
            reason.count(&self.io.cx.metrics);
        }
        let mark = Mark {
            time_us: self.io.cx.now_us,
            len: staged.map_or(0, |staged| staged.len()),
            port: work.port,
            sent: false,
            // ICMP and ARP belong to no flow.
            group: staged.is_some_and(|staged| staged.has_flow()).then_some(work.group),
            held: work.from.number() == Via::REPLAY,
            by_thread: (work.from.number() < Via::LOOPED).then(|| work.from.number()),
            dropped: dropped.map(Dropped::index),
        };
        self.sniffed(staged, mark);
    }

    /// Shows the sniffer the last parsed packet, without a verdict yet.
    fn sniff(&mut self, port: u8, mbuf: &Mbuf, tails: usize) -> Option<Staged> {
        let memory = &self.shared.memory;
        let tails = self.receive.batch.last_tails(tails).map(|tail| tail.bytes(memory));
        Some(self.sniffer.as_deref_mut()?.arriving(port, mbuf.bytes(memory), tails))
    }

    /// Tells the sniffer the verdict on a packet.
    fn sniffed(&mut self, staged: Option<Staged>, mark: Mark) {
        if let (Some(sniffer), Some(staged)) = (&mut self.sniffer, staged) {
            sniffer.arrived(staged, mark);
        }
    }

    /// Starts or ends this thread's part of a capture.
    #[cold]
    pub(crate) fn look_at_capture(&mut self) {
        self.shared.updates.capture_done(self.io.cx.index);
        let tags = self.io.ports.iter().map(|port| port.info.vlan);
        self.sniffer = Sniffer::new(&self.shared.captures, self.io.cx.index, tags);
    }

    /// Step 2: processes a packet.
    #[inline]
    pub(crate) fn handle(&mut self, work: &Work, mbuf: Mbuf) -> Verdict {
        let ElasticThread { io, flows, tcp, udp, packets, receive, .. } = self;
        let batch = &mut receive.batch;
        match &work.parsed {
            Parsed::Tcp(packet) => {
                tcp.receive(&mut TcpContext { io, flows, batch }, work, mbuf, packet)
            }
            Parsed::Udp(packet) => {
                let port = packet.tuple().local_port;
                match packets.take_datagram(&mut io.cx, batch, work, port, mbuf)? {
                    None => Ok(()),
                    Some(mbuf) => udp::receive(udp, io, batch, work, mbuf, packet),
                }
            }
            Parsed::Icmp(packet) => self.handle_icmp(work, mbuf, packet),
            Parsed::Arp(packet) => {
                let Io { cx, ports, neighbors, .. } = io;
                neighbors.receive(cx, ports, work.port, packet);
                batch.give_back(&mut cx.rx_pool, work, mbuf);
                Ok(())
            }
            Parsed::Nd(packet) => {
                let Io { cx, ports, neighbors, .. } = io;
                neighbors.receive_nd(cx, ports, work.port, packet);
                batch.give_back(&mut cx.rx_pool, work, mbuf);
                Ok(())
            }
        }
    }

    /// Gives an ICMP error to the flow or the socket of the packet that it quotes.
    fn handle_icmp(&mut self, work: &Work, mbuf: Mbuf, packet: &IcmpPacket) -> Verdict {
        let ElasticThread { io, flows, tcp, udp, receive, .. } = self;
        let batch = &mut receive.batch;
        let mut verdict = Ok(());
        match IcmpError::parse(mbuf.bytes(&io.cx.shared.memory), packet) {
            Some(error) if error.protocol == ipv4::PROTOCOL_UDP => {
                udp::path_error(udp, io, batch, work, mbuf, &error);
                return Ok(());
            }
            Some(error) => tcp.path_error(io, flows, work, &error),
            None if Query::is(packet) => verdict = hear_query(io, &mbuf, packet),
            None if Advertisement::is(packet) && hears_routers(&io.cx) => {
                verdict = hear_router(io, work.port, &mbuf, packet);
            }
            None if work.tails == 0 => verdict = answer_echo(io, work, &mbuf, packet),
            None => {
                let tails = batch.next_tails(work.tails);
                verdict = answer_long_echo(io, work, &mbuf, packet, tails);
            }
        }
        batch.give_back(&mut io.cx.rx_pool, work, mbuf);
        verdict
    }
}
