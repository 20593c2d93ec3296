//! A flow speaks: segments become packets, progress becomes event conditions.
use crate::context::Context;
use crate::events::EventWriter;
use crate::flows::flow::{Holder, Payload, Side};
use crate::icmp::code_of;
use crate::io::Io;
use crate::observe::metrics::LocalDrop;
use ix_abi::{Event, dead, error, event_kind};
use ix_mem::{HEADROOM_BYTES, PacketMemory};
use ix_tcp::icmp::IcmpError;
use ix_tcp::{DeadReason, Output, SegmentOut, TcpCounter, TcpEvent};
use ix_wire::frame::USUAL_HEADERS_BYTES;
use ix_wire::{Checksum, FlowTuple, FrameHeader, UsualTcp, ethernet, ipv4};

/// The outside as one flow sees it.
pub struct FlowOutput<'a> {
    pub(crate) io: &'a mut Io,
    pub(crate) side: &'a mut Side,
}

impl Io {
    /// The outside as one flow sees it.
    #[inline]
    pub fn of<'a>(&'a mut self, side: &'a mut Side) -> FlowOutput<'a> {
        FlowOutput { io: self, side }
    }
}

impl Output<Payload> for FlowOutput<'_> {
    fn transmit(&mut self, tuple: &FlowTuple, seg: &SegmentOut) -> bool {
        let FlowOutput { io, side } = self;
        let resolved = io.refresh_mac((&mut side.mac, &mut side.mac_version), tuple.remote);
        let Some(mut mbuf) = io.cx.tx_pool.take() else {
            io.cx.metrics.drop_local(LocalDrop::NoTxFrame);
            return false;
        };
        io.cx.tx_pool.fetch_ahead(&io.cx.shared.memory, FETCH_BYTES);
        let usual = seg.options.only_timestamp();
        let headers_len = match usual {
            Some(_) => USUAL_HEADERS_BYTES,
            None => ethernet::HEADER_BYTES + ipv4::HEADER_BYTES + seg.header(tuple).len(),
        };
        let payload_len = seg.payload_len as usize;
        mbuf.set_range(HEADROOM_BYTES, headers_len + payload_len);
        let (ttl, tos) = (side.ttl, side.tos | seg.ecn);
        let frame = FrameHeader { ttl, tos, ..io.frame_header(side.port, side.mac, tuple) };
        let memory = &io.cx.shared.memory;
        let (headers, payload) = mbuf.bytes_mut(memory).split_at_mut(headers_len);
        let mut sum = Checksum::new();
        if payload_len > 0 && !copy_payload(side, memory, seg.payload_offset, payload, &mut sum) {
            debug_assert!(false, "a segment outside the send queue");
            io.cx.tx_pool.put(mbuf);
            return false;
        }
        match (usual, headers.first_chunk_mut::<USUAL_HEADERS_BYTES>()) {
            (Some(timestamp), Some(headers)) => {
                let header = UsualTcp {
                    src_port: tuple.local_port,
                    dst_port: tuple.remote_port,
                    seq: seg.seq,
                    ack: seg.ack,
                    flags: seg.flags,
                    window: seg.window,
                    timestamp,
                };
                frame.emit_usual_tcp(headers, &header, payload_len, sum);
            }
            _ => drop(frame.emit_tcp(headers, &seg.header(tuple), payload_len, sum)),
        }
        if resolved {
            io.ports[side.port as usize].queue.push_back(mbuf);
        } else {
            io.wait_for_neighbor(tuple.remote, side.port, mbuf);
        }
        true
    }

    fn deliver(&mut self, buf: Payload) {
        let FlowOutput { io, side } = self;
        let (addr, len) = (io.cx.shared.memory.addr_of(&buf.0), buf.0.len() as u32);
        side.bytes_in += u64::from(len);
        side.held.push(&io.cx.shared.memory, buf.0);
        if side.holder == Holder::Application {
            announce(&mut io.cx.events, side, addr, len);
        }
    }

    fn discard(&mut self, buf: Payload) {
        self.io.cx.flow_frames[usize::from(self.side.id.group)] -= 1;
        self.io.cx.rx_pool.put(buf.0);
    }

    fn acked(&mut self, bytes: u32) {
        self.side.sendq.pop(bytes);
        self.side.acked_bytes += bytes;
        self.side.bytes_out += u64::from(bytes);
    }

    fn event(&mut self, event: TcpEvent) {
        let FlowOutput { io, side } = self;
        match event {
            TcpEvent::Established => io.cx.flow_established(side),
            TcpEvent::Eof => {
                side.eof_pending = true;
                if side.holder == Holder::Application {
                    io.cx.announce_eof(side);
                }
            }
            TcpEvent::WindowOpen => side.window_opened = true,
            TcpEvent::Dead(reason) => io.cx.flow_dead(side, reason),
        }
    }

    fn may_challenge(&mut self, now_us: u64) -> bool {
        self.io.challenges.allow(now_us)
    }

    fn count(&mut self, counter: TcpCounter) {
        self.io.cx.metrics.count_tcp(counter);
    }
}

/// A payload up to this size goes through a copy of ours.
const SMALL_BYTES: usize = 64;

/// What of a frame is fetched before it is built: headers and a short message.
const FETCH_BYTES: usize = 192;

/// Copies the payload of a segment into its frame, and adds it to `sum`. A short one by way of the
/// stack: to read it in the frame would wait until the frame's lines have come.
#[inline]
fn copy_payload(
    side: &Side,
    memory: &PacketMemory,
    offset: u32,
    payload: &mut [u8],
    sum: &mut Checksum,
) -> bool {
    if payload.len() > SMALL_BYTES {
        let copied = side.sendq.copy_to(memory, offset, payload);
        sum.add_bytes(payload);
        return copied;
    }
    let mut small = [0; SMALL_BYTES];
    let small = &mut small[..payload.len()];
    let copied = side.sendq.copy_to(memory, offset, small);
    sum.add_bytes(small);
    payload.copy_from_slice(small);
    copied
}

/// Tells the application of received data; it is in `held` already.
pub(crate) fn announce(events: &mut EventWriter, side: &mut Side, addr: u64, len: u32) {
    if events.is_muted() {
        return;
    }
    side.announced += 1;
    side.announced_bytes += len;
    let (kind, cookie, handle) = (event_kind::RECV, side.cookie, side.id.handle());
    events.push(Event { kind, len, cookie, handle, data: addr, ..Event::default() });
}

impl Context {
    pub(crate) fn announce_eof(&mut self, side: &mut Side) {
        if self.events.is_muted() {
            return;
        }
        side.eof_pending = false;
        let (kind, cookie, handle) = (event_kind::EOF, side.cookie, side.id.handle());
        self.events.push(Event { kind, cookie, handle, ..Event::default() });
    }

    /// Tells the application what was acknowledged, and how much it may send now.
    pub(crate) fn announce_sent(&mut self, side: &mut Side, send_space: u32) {
        if self.events.is_muted() {
            return;
        }
        let kind = event_kind::SENT;
        let (cookie, handle, len) = (side.cookie, side.id.handle(), side.acked_bytes);
        side.acked_bytes = 0;
        side.window_opened = false;
        let data = send_space as u64;
        self.events.push(Event { kind, len, cookie, handle, data, ..Event::default() });
    }

    fn flow_established(&mut self, side: &mut Side) {
        match side.holder {
            Holder::Connecting => {
                side.holder = Holder::Application;
                self.announce_connected(side, 0);
            }
            // The knock needs the peer's address, which the receive path has: it looks for this.
            Holder::Embryonic => side.holder = Holder::Knocking,
            _ => {}
        }
    }

    /// Tells the application what somebody says of a flow that it knows. A hint: while nothing may be
    /// said it is not kept.
    pub(crate) fn announce_error(&mut self, side: &Side, said: &IcmpError) {
        let known = matches!(side.holder, Holder::Connecting | Holder::Application);
        if !known || self.events.is_muted() {
            return;
        }
        self.events.push(Event {
            kind: event_kind::FLOW_ERROR,
            code: code_of(said),
            cookie: side.cookie,
            handle: side.id.handle(),
            addr: said.by.0,
            notes: said.said,
            ..Event::default()
        });
    }

    fn announce_connected(&mut self, side: &Side, code: i64) {
        let kind = event_kind::CONNECTED;
        let (cookie, handle) = (side.cookie, side.id.handle());
        self.events.push(Event { kind, code: code as u16, cookie, handle, ..Event::default() });
    }

    fn flow_dead(&mut self, side: &mut Side, reason: DeadReason) {
        match side.holder {
            Holder::Connecting => {
                let code = match reason {
                    DeadReason::Refused | DeadReason::Reset | DeadReason::Closed => error::REFUSED,
                    DeadReason::TimedOut => error::TIMED_OUT,
                    DeadReason::Unreachable => error::UNREACHABLE,
                };
                self.announce_connected(side, code);
            }
            Holder::Application => {
                let code = match reason {
                    DeadReason::Closed => dead::CLOSED,
                    DeadReason::Reset | DeadReason::Refused => dead::RESET,
                    DeadReason::TimedOut => dead::TIMED_OUT,
                    DeadReason::Unreachable => dead::UNREACHABLE,
                };
                let (kind, cookie, handle) = (event_kind::DEAD, side.cookie, side.id.handle());
                self.events.push(Event { kind, code, cookie, handle, ..Event::default() });
            }
            Holder::Knocking | Holder::Embryonic | Holder::Orphan => {}
        }
        side.holder = Holder::Orphan;
        self.bury(side);
    }

    /// Takes back what the application was lent, as soon as it has come back from the events that
    /// it may be reading now.
    pub(crate) fn bury(&mut self, side: &mut Side) {
        side.sendq.clear();
        self.bury_received(side);
    }

    /// The same for received buffers alone: what was given to send is still being sent.
    pub(crate) fn bury_received(&mut self, side: &mut Side) {
        side.announced = 0;
        side.announced_bytes = 0;
        side.front_done = 0;
        if !side.held.is_empty() {
            self.flow_frames[usize::from(side.id.group)] -= side.held.count() as u32;
            self.graveyard.push(std::mem::take(&mut side.held));
        }
    }
}
