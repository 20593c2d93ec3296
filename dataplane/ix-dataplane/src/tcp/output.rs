//! The output of a flow: segments become packets, progress becomes event conditions.
use crate::attachment::Attachments;
use crate::context::Context;
use crate::flows::flow::{Holder, LABEL_AUTO, Payload, TcpSocket};
use crate::icmp::call_error;
use crate::io::Io;
use crate::observe::metrics::LocalDrop;
use crate::receive::pressure::further_bytes;
use ix_abi::{CallError, Event, IcmpMessage, RxData, SentNews};
use ix_mem::{HEADROOM_BYTES, Mbuf, PacketMemory, ROOM_BYTES};
use ix_tcp::icmp::IcmpError;
use ix_tcp::{DeadReason, Output, SegmentOut, TcpCounter, TcpEvent};
use ix_wire::frame::{self, USUAL_HEADERS_BYTES, USUAL_HEADERS_BYTES_V6};
use ix_wire::{Checksum, FlowTuple, FrameHeader, UsualTcp};

/// The outside, as one flow sees it.
pub struct FlowOutput<'a> {
    pub(crate) io: &'a mut Io,
    pub(crate) socket: &'a mut TcpSocket,
}

impl Io {
    /// The outside, as one flow sees it.
    #[inline]
    pub fn of<'a>(&'a mut self, socket: &'a mut TcpSocket) -> FlowOutput<'a> {
        FlowOutput { io: self, socket }
    }
}

/// The header of a segment whose only option is this timestamp.
#[inline(always)]
fn usual_header(tuple: &FlowTuple, seg: &SegmentOut, timestamp: (u32, u32)) -> UsualTcp {
    UsualTcp {
        src_port: tuple.local_port,
        dst_port: tuple.remote_port,
        seq: seg.seq,
        ack: seg.ack,
        flags: seg.flags,
        window: seg.window,
        timestamp,
    }
}

/// Bytes of a segment's headers where they are not the usual ones of IPv4.
#[inline]
fn other_headers_bytes(tuple: &FlowTuple, seg: &SegmentOut, is_v6: bool) -> usize {
    match seg.options.only_timestamp() {
        Some(_) if is_v6 => USUAL_HEADERS_BYTES_V6,
        _ => frame::headers_bytes_to(tuple.remote) + seg.header(tuple).len(),
    }
}

/// Writes these headers. Not inlined, so that the usual ones of IPv4 do not pay for it.
#[inline(never)]
fn emit_other(
    link: &FrameHeader,
    headers: &mut [u8],
    (tuple, seg): (&FlowTuple, &SegmentOut),
    (payload_len, sum): (usize, Checksum),
) {
    let usual = if link.dst.is_v6() { seg.options.only_timestamp() } else { None };
    match (usual, headers.first_chunk_mut::<USUAL_HEADERS_BYTES_V6>()) {
        (Some(timestamp), Some(headers)) => {
            let header = usual_header(tuple, seg, timestamp);
            link.emit_usual_tcp_v6(headers, &header, payload_len, sum);
        }
        _ => drop(link.emit_tcp(headers, &seg.header(tuple), payload_len, sum)),
    }
}

impl Output<Payload> for FlowOutput<'_> {
    fn transmit(&mut self, tuple: &FlowTuple, seg: &SegmentOut) -> bool {
        let FlowOutput { io, socket } = self;
        let known = (&mut socket.mac, &mut socket.mac_version);
        let ends = (tuple, socket.waits.asker());
        let resolved = io.refresh_mac(known, ends, socket.port);
        let Some(mut mbuf) = io.take_tx_frame(socket.port) else {
            io.cx.metrics.drop_local(LocalDrop::NoTxFrame);
            return false;
        };
        io.cx.tx_pool.fetch_ahead(&io.cx.shared.memory, FETCH_BYTES);
        let is_v6 = tuple.remote.is_v6();
        let usual = if is_v6 { None } else { seg.options.only_timestamp() };
        let headers_len = match usual {
            Some(_) => USUAL_HEADERS_BYTES,
            None => other_headers_bytes(tuple, seg, is_v6),
        };
        let payload_len = seg.payload_len as usize;
        let in_first = payload_len.min(ROOM_BYTES - headers_len);
        mbuf.set_range(HEADROOM_BYTES, headers_len + in_first);
        let mut rest = None;
        if in_first < payload_len {
            let at = (seg.payload_offset + in_first as u32, payload_len - in_first);
            rest = fill_tails(&mut io.cx, socket, &mut mbuf, at);
            if rest.is_none() {
                io.cx.metrics.drop_local(LocalDrop::NoTxFrame);
                io.cx.tx_pool.put(mbuf);
                return false;
            }
        }
        let (ttl, tos) = (socket.ttl, socket.tos | seg.ecn);
        let ident = if is_v6 {
            match socket.ident {
                LABEL_AUTO => io.cx.shared.flow_label(socket.hash()),
                label => label,
            }
        } else {
            let next = (socket.ident as u16).wrapping_add(1);
            socket.ident = next.into();
            socket.ident
        };
        // Made where it is used, so that its parts go straight into the packet.
        let link =
            || FrameHeader { ttl, tos, ident, ..io.frame_header(socket.port, socket.mac, tuple) };
        let memory = &io.cx.shared.memory;
        let (headers, payload) = mbuf.bytes_mut(memory).split_at_mut(headers_len);
        let mut sum = Checksum::new();
        if in_first > 0 && !copy_payload(socket, memory, seg.payload_offset, payload, &mut sum) {
            debug_assert!(false, "a segment outside the send queue");
            io.cx.tx_pool.put_frame(memory, mbuf);
            return false;
        }
        if let Some(rest) = rest {
            sum.append(rest);
        }
        match (usual, headers.first_chunk_mut::<USUAL_HEADERS_BYTES>()) {
            (Some(timestamp), Some(headers)) => {
                let header = usual_header(tuple, seg, timestamp);
                link().emit_usual_tcp(headers, &header, payload_len, sum);
            }
            _ => emit_other(&link(), headers, (tuple, seg), (payload_len, sum)),
        }
        if resolved {
            io.ports[socket.port as usize].queue.push_back(mbuf);
        } else {
            io.wait_for_neighbor(ends, socket.port, mbuf);
        }
        true
    }

    #[inline]
    fn has_room(&self) -> bool {
        self.io.has_room(self.socket.port)
    }

    fn deliver(&mut self, buf: Payload) {
        let FlowOutput { io, socket } = self;
        let (addr, len) = (io.cx.shared.memory.addr_of(&buf.0), buf.0.len() as u32);
        socket.bytes_in += u64::from(len);
        socket.held.push(&io.cx.shared.memory, buf.0);
        if socket.holder == Holder::Application {
            announce(&mut io.cx.attached, socket, addr, len);
        }
    }

    fn append(&mut self, buf: Payload) -> Result<(), Payload> {
        let FlowOutput { io, socket } = self;
        let is_told = socket.announced as usize == socket.held.count();
        let may_tell =
            socket.holder == Holder::Application && io.cx.attached.is_present(socket.owner);
        if is_told && !may_tell {
            // Of one buffer all is announced, or nothing.
            return Err(buf);
        }
        let memory = &io.cx.shared.memory;
        let bytes = buf.0.bytes(memory);
        let Some(addr) = socket.held.append(memory, bytes) else { return Err(buf) };
        let len = bytes.len() as u32;
        socket.bytes_in += u64::from(len);
        if is_told {
            socket.announced_bytes += len;
            io.cx.announce_part(socket, addr, len);
        }
        self.discard(buf);
        Ok(())
    }

    fn join(&mut self, front: &mut Payload, back: Payload) -> Result<(), Payload> {
        let memory = &self.io.cx.shared.memory;
        if !front.0.append(memory, back.0.bytes(memory)) {
            return Err(back);
        }
        self.discard(back);
        Ok(())
    }

    fn discard(&mut self, buf: Payload) {
        self.io.cx.flow_frames[self.socket.group()] -= 1;
        self.io.cx.rx_pool.put(buf.0);
    }

    fn acked(&mut self, bytes: u32) {
        self.socket.sendq.pop(bytes);
        self.socket.acked_bytes += bytes;
        if self.socket.sendq.owes() {
            self.io.cx.pay(self.socket);
        }
        self.socket.bytes_out += u64::from(bytes);
    }

    fn event(&mut self, event: TcpEvent) {
        let FlowOutput { io, socket } = self;
        match event {
            TcpEvent::Established => io.cx.flow_established(socket),
            TcpEvent::Eof => {
                socket.eof_pending = true;
                if socket.holder == Holder::Application {
                    io.cx.announce_eof(socket);
                }
            }
            TcpEvent::WindowOpen => socket.window_opened = true,
            TcpEvent::Dead(reason) => io.cx.flow_dead(socket, reason),
        }
    }

    fn receive_room(&self, promised: u32) -> u32 {
        let cx = &self.io.cx;
        let room = further_bytes(cx, &self.io.ports, promised);
        if room < cx.shared.config.tcp.rcv_buf_max_bytes.into() {
            cx.promises.run_short();
        }
        room.try_into().unwrap_or(u32::MAX)
    }

    fn promise(&mut self, before: u32, now: u32) {
        self.io.cx.promises.change(self.socket.group(), before, now);
    }

    fn may_challenge(&mut self, now_us: u64) -> bool {
        self.io.challenges.allow(now_us)
    }

    fn count(&mut self, counter: TcpCounter) {
        self.io.cx.metrics.count_tcp(counter);
    }
}

/// A payload up to this size is copied through the stack.
const SMALL_BYTES: usize = 64;

/// Bytes of a frame that are prefetched before it is built: headers and a short message.
const FETCH_BYTES: usize = 192;

/// Copies the payload of a segment into its frame, and adds it to `sum`. A short one is summed on
/// the stack, because reading it from the frame would wait for the frame's cache lines.
#[inline]
fn copy_payload(
    socket: &TcpSocket,
    memory: &PacketMemory,
    offset: u32,
    payload: &mut [u8],
    sum: &mut Checksum,
) -> bool {
    if payload.len() > SMALL_BYTES {
        let copied = socket.sendq.copy_to(memory, offset, payload);
        sum.add_bytes(payload);
        return copied;
    }
    let mut small = [0; SMALL_BYTES];
    let small = &mut small[..payload.len()];
    let copied = socket.sendq.copy_to(memory, offset, small);
    sum.add_bytes(small);
    payload.copy_from_slice(small);
    copied
}

/// Puts buffers with the rest of a long payload, which has this place in the send queue and this
/// length, behind the first one of its frame. Returns its sum; `None` if there are too few buffers.
#[inline(never)]
fn fill_tails(
    cx: &mut Context,
    socket: &TcpSocket,
    mbuf: &mut Mbuf,
    (mut offset, len): (u32, usize),
) -> Option<Checksum> {
    let memory = &cx.shared.memory;
    if !cx.tx_pool.extend(memory, mbuf, len) {
        return None;
    }
    let mut sum = Checksum::new();
    for tail in mbuf.tails_mut(memory) {
        let copied = socket.sendq.copy_to(memory, offset, tail);
        debug_assert!(copied, "a segment outside the send queue");
        sum.add_bytes(tail);
        offset += tail.len() as u32;
    }
    Some(sum)
}

/// Announces received data, which is already in `held`.
#[inline(always)]
pub(crate) fn announce(attached: &mut Attachments, socket: &mut TcpSocket, addr: u64, len: u32) {
    let events = &mut attached[socket.owner].events;
    if events.is_muted() {
        return;
    }
    socket.announced += 1;
    socket.announced_bytes += len;
    let (cookie, handle) = (socket.cookie, socket.handle);
    events.push_recv(cookie, handle, RxData { addr, len });
}

impl Context {
    /// Announces data that was appended to a buffer that is announced already.
    fn announce_part(&mut self, socket: &TcpSocket, addr: u64, len: u32) {
        let (cookie, handle) = (socket.cookie, socket.handle);
        let data = RxData { addr, len };
        self.attached[socket.owner].events.push_recv(cookie, handle, data);
    }

    pub(crate) fn announce_eof(&mut self, socket: &mut TcpSocket) {
        if !self.attached.is_present(socket.owner) {
            return;
        }
        socket.eof_pending = false;
        let (cookie, handle) = (socket.cookie, socket.handle);
        self.attached.push(socket.owner, Event::Eof { cookie, handle });
    }

    /// Announces acknowledged data, and how much the application may send now.
    pub(crate) fn announce_sent(&mut self, socket: &mut TcpSocket, send_space: u32) {
        let events = &mut self.attached[socket.owner].events;
        if events.is_muted() {
            return;
        }
        let (cookie, handle, bytes) = (socket.cookie, socket.handle, socket.acked_bytes);
        socket.acked_bytes = 0;
        socket.window_opened = false;
        // Mostly with the data that came in the same segment.
        if bytes == 0 || !events.tell_sent(handle, SentNews::new(bytes, send_space)) {
            let window = send_space.into();
            events.push(Event::Sent { cookie, handle, bytes, window });
        }
    }

    /// Tells those that had the flow before what of theirs is acknowledged. The rest is the
    /// owner's.
    #[cold]
    pub(crate) fn pay(&mut self, socket: &mut TcpSocket) {
        let handle = socket.handle;
        while let Some(debt) = socket.sendq.pay(socket.acked_bytes) {
            socket.acked_bytes -= debt.bytes;
            let event = Event::Sent { cookie: debt.cookie, handle, bytes: debt.bytes, window: 0 };
            // If it has ended, the event is dropped.
            self.attached.push(debt.to, event);
        }
    }

    fn flow_established(&mut self, socket: &mut TcpSocket) {
        match socket.holder {
            Holder::Connecting => {
                socket.holder = Holder::Application;
                self.announce_connected(socket, Ok(()));
            }
            // The `KNOCK` event needs the peer's address. The receive path has it, and checks for
            // this state.
            Holder::Embryonic => socket.holder = Holder::Knocking,
            _ => {}
        }
    }

    /// Announces an ICMP error about a flow that the application knows. It is a hint: it is dropped
    /// while no event may be written.
    pub(crate) fn announce_error(&mut self, socket: &TcpSocket, said: &IcmpError) {
        let known = matches!(socket.holder, Holder::Connecting | Holder::Application);
        if !known || !self.attached.is_present(socket.owner) {
            return;
        }
        let event = Event::FlowError {
            cookie: socket.cookie,
            handle: socket.handle,
            why: call_error(said),
            icmp: IcmpMessage::new(said.said, said.by.0),
        };
        self.attached.push(socket.owner, event);
    }

    fn announce_connected(&mut self, socket: &TcpSocket, outcome: Result<(), CallError>) {
        let (cookie, handle) = (socket.cookie, socket.handle);
        self.attached.push(socket.owner, Event::Connected { cookie, handle, outcome });
    }

    pub(crate) fn flow_dead(&mut self, socket: &mut TcpSocket, reason: DeadReason) {
        match socket.holder {
            Holder::Connecting => {
                let error = match reason {
                    DeadReason::Refused | DeadReason::Reset | DeadReason::Closed => {
                        CallError::Refused
                    }
                    DeadReason::TimedOut => CallError::TimedOut,
                    DeadReason::Unreachable => CallError::Unreachable,
                };
                self.announce_connected(socket, Err(error));
            }
            Holder::Application => {
                let reason = match reason {
                    DeadReason::Closed => ix_abi::DeadReason::Closed,
                    DeadReason::Reset | DeadReason::Refused => ix_abi::DeadReason::Reset,
                    DeadReason::TimedOut => ix_abi::DeadReason::TimedOut,
                    DeadReason::Unreachable => ix_abi::DeadReason::Unreachable,
                };
                let (cookie, handle) = (socket.cookie, socket.handle);
                self.attached.push(socket.owner, Event::Dead { cookie, handle, reason });
            }
            Holder::Knocking | Holder::Embryonic | Holder::Orphan => {}
        }
        socket.holder = Holder::Orphan;
        self.bury(socket);
    }

    /// Takes back what the application was lent, once it has returned from the events that it may
    /// be reading now.
    pub(crate) fn bury(&mut self, socket: &mut TcpSocket) {
        if socket.sendq.owes() {
            // Nothing of it is sent any more.
            socket.acked_bytes = u32::MAX;
            self.pay(socket);
            socket.acked_bytes = 0;
        }
        socket.sendq.clear();
        self.bury_received(socket);
    }

    /// The same for received buffers alone: what was given to send is still being sent.
    pub(crate) fn bury_received(&mut self, socket: &mut TcpSocket) {
        socket.announced = 0;
        socket.announced_bytes = 0;
        socket.front_done = 0;
        if !socket.held.is_empty() {
            self.flow_frames[socket.group()] -= socket.held.count() as u32;
            let attachment = &mut self.attached[socket.owner];
            attachment.bury(std::mem::take(&mut socket.held));
            if attachment.has_ended() {
                self.attached.bequeath(socket.owner, &self.shared.memory);
            }
        }
    }
}
