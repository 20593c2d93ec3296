//! Event conditions as typed values, and their encoding in an [`EventSlot`].
use crate::call::{addr, words};
use crate::{Addr, CallError, Cookie, DeadReason, Endpoint, EventSlot, Handle};
use crate::{event_kind, flow_opt, migrated, revoke};
use core::fmt;

/// What else is told of a received datagram. One number, because events are taken apart for each
/// message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DatagramNotes(u64);

impl DatagramNotes {
    /// Of a datagram with this hop limit and type of service, of which so many pieces follow.
    pub const fn new(hops: u8, tos: u8, follows: u16) -> Self {
        Self(hops as u64 | (tos as u64) << 8 | (follows as u64) << 16)
    }

    /// The same with this flow label (RFC 6437), of which 20 bits count.
    pub const fn with_label(self, label: u32) -> Self {
        Self(self.0 & 0xffff_ffff | ((label & flow_opt::FLOW_LABEL_MAX as u32) as u64) << 32)
    }

    /// The same with so many pieces that follow.
    pub const fn with_follows(self, follows: u16) -> Self {
        Self(self.0 & !0xffff_0000 | (follows as u64) << 16)
    }

    /// Its time to live, or hop limit.
    pub const fn hops(self) -> u8 {
        self.0 as u8
    }

    /// Its type of service, or traffic class.
    pub const fn tos(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Its flow label; 0: none, as over IPv4.
    pub const fn label(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Pieces of the datagram that follow in the same array, each with an event of its own. A
    /// datagram that is longer than a buffer comes in several.
    pub const fn follows(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

/// What a segment that brought data said of the application's own data: [`Event::Sent`] without an
/// event of its own. One number, because events are taken apart for each message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SentNews(u64);

impl SentNews {
    /// It said nothing new.
    pub const NONE: SentNews = SentNews(0);

    /// It acknowledged so many bytes, and the window has room for so many now.
    pub const fn new(bytes: u32, window: u32) -> Self {
        Self(bytes as u64 | (window as u64) << 32)
    }

    /// Bytes that were acknowledged; 0: nothing is told, of the window neither.
    pub const fn bytes(self) -> u32 {
        self.0 as u32
    }

    /// Bytes that the window has room for.
    pub const fn window(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// As one number: [`EventSlot::more`].
    pub const fn word(self) -> u64 {
        self.0
    }
}

/// An event condition. The constants of [`event_kind`] say when each one comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer finished its handshake with a listener.
    Knock {
        /// Cookie of the listener.
        listener: Cookie,
        /// The new flow, to be accepted or rejected.
        handle: Handle,
        /// The peer.
        peer: Endpoint,
    },
    /// Outcome of a connection attempt.
    Connected {
        /// The application's name of the flow.
        cookie: Cookie,
        /// The flow.
        handle: Handle,
        /// Connected, or why not.
        outcome: Result<(), CallError>,
    },
    /// In-order data.
    Recv {
        /// The application's name of the flow.
        cookie: Cookie,
        /// The flow.
        handle: Handle,
        /// The data; the application's until [`crate::Call::RecvDone`].
        data: RxData,
        /// What came with it about the application's own data.
        news: SentNews,
    },
    /// The peer will send no more.
    Eof {
        /// The application's name of the flow.
        cookie: Cookie,
        /// The flow.
        handle: Handle,
    },
    /// The peer has acknowledged data, or (with 0 bytes) the window has opened.
    Sent {
        /// The application's name of the flow.
        cookie: Cookie,
        /// The flow.
        handle: Handle,
        /// Bytes that were acknowledged.
        bytes: u32,
        /// Bytes that the window has room for.
        window: u64,
    },
    /// The flow is gone.
    Dead {
        /// The application's name of the flow.
        cookie: Cookie,
        /// The flow; the handle is stale.
        handle: Handle,
        /// Why.
        reason: DeadReason,
    },
    /// A datagram.
    UdpRecv {
        /// Cookie of the socket.
        cookie: Cookie,
        /// The sender.
        peer: Endpoint,
        /// The address that it was sent to.
        local: Addr,
        /// The data; the application's until [`crate::Call::UdpRecvDone`].
        data: RxData,
        /// What else is told of it.
        notes: DatagramNotes,
    },
    /// The memory of a datagram is free again.
    UdpSent {
        /// Cookie of the call.
        cookie: Cookie,
    },
    /// An ICMP message about a datagram that was sent.
    UdpError {
        /// Cookie of the socket.
        cookie: Cookie,
        /// Where the datagram went to.
        peer: Endpoint,
        /// What the message means.
        why: CallError,
        /// The message.
        icmp: IcmpMessage,
        /// What the message quotes of the datagram, the application's until
        /// [`crate::Call::UdpRecvDone`]; nothing when it has no bytes.
        quoted: RxData,
    },
    /// An ICMP message about a packet of a flow, which goes on.
    FlowError {
        /// The application's name of the flow.
        cookie: Cookie,
        /// The flow.
        handle: Handle,
        /// What the message means.
        why: CallError,
        /// The message.
        icmp: IcmpMessage,
    },
    /// A timer fired.
    Timer {
        /// The application's name of the timer.
        cookie: Cookie,
    },
    /// A flow group leaves this elastic thread ([`migrated::LEAVES`]).
    GroupLeaves {
        /// The flow group.
        group: u32,
        /// Its elastic thread from now on.
        to: u32,
    },
    /// A flow group came from another elastic thread ([`migrated::ARRIVED`]).
    GroupArrived {
        /// The flow group.
        group: u32,
        /// Its elastic thread so far.
        from: u32,
    },
    /// This elastic thread is taken away or given back.
    Revoke(Revoke),
    /// A frame for a packet queue.
    PacketRecv {
        /// Cookie of the packet queue.
        cookie: Cookie,
        /// The frame; the application's until [`crate::Call::PacketRecvDone`].
        data: RxData,
    },
    /// The memory of a frame is free again.
    PacketSent {
        /// Cookie of the call.
        cookie: Cookie,
    },
    /// Another process of the program gives a connection to this one.
    Given {
        /// The number that came with [`crate::Call::Give`].
        token: Cookie,
        /// The flow, to be accepted or rejected.
        handle: Handle,
        /// The peer.
        peer: Endpoint,
        /// Number of the process that has given it.
        from: u32,
        /// Bytes of the peer's stream before those that are announced next: what `RECV_DONE` has
        /// returned since the connection began.
        returned: u64,
    },
    /// Another elastic thread has sent a number.
    Signal {
        /// Index of that thread.
        from: u32,
        /// The number.
        value: u64,
    },
}

/// Received bytes in a packet buffer of the dataplane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RxData {
    /// Address of the first byte.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
}

/// An ICMP message about a packet that was sent (RFC 792).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IcmpMessage {
    /// Its type.
    pub kind: u8,
    /// Its code.
    pub code: u8,
    /// With [`CallError::TooLong`] the MTU of the link, in bytes with the IP header (0: not said);
    /// with a "parameter problem" the octet at fault; else 0.
    pub detail: u16,
    /// Its sender.
    pub by: Addr,
}

/// What happens to an elastic thread: the codes of [`revoke`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Revoke {
    /// The thread was given back.
    Back = revoke::BACK as u8,
    /// The thread is about to be taken away.
    Goes = revoke::GOES as u8,
    /// All flow groups have left, as [`crate::Call::Drain`] asked.
    Drained = revoke::DRAINED as u8,
}

/// An event of a kind that this version does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownEvent {
    /// The slot's kind.
    pub kind: u16,
}

impl fmt::Display for UnknownEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown event of kind {}", self.kind)
    }
}

impl core::error::Error for UnknownEvent {}

/// A slot of zeros.
const EMPTY: EventSlot = EventSlot {
    kind: 0,
    code: 0,
    len: 0,
    cookie: 0,
    handle: 0,
    data: 0,
    addr: [0; 16],
    port: 0,
    notes: [0; 3],
    more: 0,
};

impl Event {
    /// Encodes the event into a slot. Inlined: where the kind is known, only the stores of the
    /// fields remain.
    #[inline(always)]
    pub const fn encode(self) -> EventSlot {
        match self {
            Event::Recv { cookie, handle, data, news } => EventSlot {
                kind: event_kind::RECV,
                len: data.len,
                cookie,
                handle,
                data: data.addr,
                more: news.0,
                ..EMPTY
            },
            Event::Sent { cookie, handle, bytes, window } => EventSlot {
                kind: event_kind::SENT,
                len: bytes,
                cookie,
                handle,
                data: window,
                ..EMPTY
            },
            Event::Knock { listener, handle, peer } => EventSlot {
                kind: event_kind::KNOCK,
                cookie: listener,
                handle,
                addr: peer.addr,
                port: peer.port,
                ..EMPTY
            },
            Event::Connected { cookie, handle, outcome } => {
                let code = match outcome {
                    Ok(()) => 0,
                    Err(error) => error.code() as u16,
                };
                EventSlot { kind: event_kind::CONNECTED, code, cookie, handle, ..EMPTY }
            }
            Event::Eof { cookie, handle } => {
                EventSlot { kind: event_kind::EOF, cookie, handle, ..EMPTY }
            }
            Event::Dead { cookie, handle, reason } => {
                let code = reason.code();
                EventSlot { kind: event_kind::DEAD, code, cookie, handle, ..EMPTY }
            }
            Event::UdpRecv { cookie, peer, local, data, notes } => {
                let [high, low] = words(local);
                EventSlot {
                    kind: event_kind::UDP_RECV,
                    code: notes.0 as u16,
                    notes: [notes.follows(), notes.label() as u16, (notes.label() >> 16) as u16],
                    len: data.len,
                    cookie,
                    handle: high,
                    data: data.addr,
                    addr: peer.addr,
                    port: peer.port,
                    more: low,
                }
            }
            Event::UdpSent { cookie } => EventSlot { kind: event_kind::UDP_SENT, cookie, ..EMPTY },
            Event::UdpError { cookie, peer, why, icmp, quoted } => {
                let [high, low] = words(icmp.by);
                EventSlot {
                    kind: event_kind::UDP_ERROR,
                    code: why.code() as u16,
                    len: quoted.len,
                    cookie,
                    handle: high,
                    data: quoted.addr,
                    addr: peer.addr,
                    port: peer.port,
                    notes: icmp.notes(),
                    more: low,
                }
            }
            Event::FlowError { cookie, handle, why, icmp } => EventSlot {
                kind: event_kind::FLOW_ERROR,
                code: why.code() as u16,
                cookie,
                handle,
                addr: icmp.by,
                notes: icmp.notes(),
                ..EMPTY
            },
            Event::Timer { cookie } => EventSlot { kind: event_kind::TIMER, cookie, ..EMPTY },
            Event::GroupLeaves { group, to } => EventSlot {
                kind: event_kind::MIGRATED,
                code: migrated::LEAVES,
                len: group,
                data: to as u64,
                ..EMPTY
            },
            Event::GroupArrived { group, from } => EventSlot {
                kind: event_kind::MIGRATED,
                code: migrated::ARRIVED,
                len: group,
                data: from as u64,
                ..EMPTY
            },
            Event::Revoke(what) => {
                EventSlot { kind: event_kind::REVOKE, data: what as u64, ..EMPTY }
            }
            Event::PacketRecv { cookie, data } => EventSlot {
                kind: event_kind::PACKET_RECV,
                len: data.len,
                cookie,
                data: data.addr,
                ..EMPTY
            },
            Event::PacketSent { cookie } => {
                EventSlot { kind: event_kind::PACKET_SENT, cookie, ..EMPTY }
            }
            Event::Given { token, handle, peer, from, returned } => EventSlot {
                kind: event_kind::GIVEN,
                len: from,
                cookie: token,
                handle,
                addr: peer.addr,
                port: peer.port,
                data: returned,
                ..EMPTY
            },
            Event::Signal { from, value } => {
                EventSlot { kind: event_kind::SIGNAL, len: from, data: value, ..EMPTY }
            }
        }
    }

    /// Decodes a slot, whatever bits it holds. Fields that the kind does not have are ignored.
    ///
    /// # Errors
    /// The slot's kind, or the step of a migration or revocation, is none that this version knows.
    #[inline(always)]
    pub const fn decode(slot: &EventSlot) -> Result<Event, UnknownEvent> {
        let (cookie, handle) = (slot.cookie, slot.handle);
        let data = RxData { addr: slot.data, len: slot.len };
        let peer = Endpoint { addr: slot.addr, port: slot.port };
        Ok(match slot.kind {
            event_kind::RECV => Event::Recv { cookie, handle, data, news: SentNews(slot.more) },
            event_kind::SENT => Event::Sent { cookie, handle, bytes: slot.len, window: slot.data },
            event_kind::KNOCK => Event::Knock { listener: cookie, handle, peer },
            event_kind::CONNECTED => {
                let outcome = match slot.code {
                    0 => Ok(()),
                    code => Err(CallError::from_code(code as i64)),
                };
                Event::Connected { cookie, handle, outcome }
            }
            event_kind::EOF => Event::Eof { cookie, handle },
            event_kind::DEAD => {
                Event::Dead { cookie, handle, reason: DeadReason::from_code(slot.code) }
            }
            event_kind::UDP_RECV => {
                let [follows, label_low, label_high] = slot.notes;
                let notes = DatagramNotes::new(slot.code as u8, (slot.code >> 8) as u8, follows)
                    .with_label(label_low as u32 | (label_high as u32) << 16);
                Event::UdpRecv { cookie, peer, local: addr(slot.handle, slot.more), data, notes }
            }
            event_kind::UDP_SENT => Event::UdpSent { cookie },
            event_kind::UDP_ERROR => Event::UdpError {
                cookie,
                peer,
                why: CallError::from_code(slot.code as i64),
                icmp: IcmpMessage::new(slot.notes, addr(slot.handle, slot.more)),
                quoted: data,
            },
            event_kind::FLOW_ERROR => Event::FlowError {
                cookie,
                handle,
                why: CallError::from_code(slot.code as i64),
                icmp: IcmpMessage::new(slot.notes, slot.addr),
            },
            event_kind::TIMER => Event::Timer { cookie },
            event_kind::MIGRATED => {
                let (group, other) = (slot.len, slot.data as u32);
                match slot.code {
                    migrated::LEAVES => Event::GroupLeaves { group, to: other },
                    migrated::ARRIVED => Event::GroupArrived { group, from: other },
                    _ => return Err(UnknownEvent { kind: slot.kind }),
                }
            }
            event_kind::REVOKE => match slot.data {
                revoke::BACK => Event::Revoke(Revoke::Back),
                revoke::GOES => Event::Revoke(Revoke::Goes),
                revoke::DRAINED => Event::Revoke(Revoke::Drained),
                _ => return Err(UnknownEvent { kind: slot.kind }),
            },
            event_kind::PACKET_RECV => Event::PacketRecv { cookie, data },
            event_kind::PACKET_SENT => Event::PacketSent { cookie },
            event_kind::GIVEN => {
                let (from, returned) = (slot.len, slot.data);
                Event::Given { token: cookie, handle, peer, from, returned }
            }
            event_kind::SIGNAL => Event::Signal { from: slot.len, value: slot.data },
            kind => return Err(UnknownEvent { kind }),
        })
    }
}

impl IcmpMessage {
    /// The message in a slot's `notes`, from `by`. Type and code have one octet each (RFC 792).
    pub const fn new([kind, code, detail]: [u16; 3], by: Addr) -> IcmpMessage {
        IcmpMessage { kind: kind as u8, code: code as u8, detail, by }
    }

    const fn notes(&self) -> [u16; 3] {
        [self.kind as u16, self.code as u16, self.detail]
    }
}
