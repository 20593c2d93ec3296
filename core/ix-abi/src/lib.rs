//! The contract between an application and its dataplane (DESIGN.md, wall 2).
//!
//! An application and its dataplane share memory: structures that name the rest, and for each
//! elastic thread an array of calls and one of events. A change of any layout or number here needs
//! a new [`ABI_VERSION`].
//!
//! * The environment variable [`ENV_HEADER`] holds the address of the [`ProcessHeader`]. The header
//!   names the gate and, for each elastic thread, the [`ThreadArea`] with its call array and event
//!   array.
//! * The application writes calls into slots ([`CallSlot`]), enters the gate with
//!   [`gate_op::RUN_IO`], and reads events from slots ([`EventSlot`]). The dataplane overwrites
//!   [`CallSlot::ret`] of every slot it has consumed.
//! * Addresses are 128 bits wide: IPv6, or IPv4 mapped (`::ffff:a.b.c.d`), in network byte order.
//!
//! # In Rust
//!
//! [`Call`] with [`FlowOption`], [`CallError`] and [`Event`] are the typed values that both sides
//! encode into slots and decode from them. There is nothing else here: no allocation, no I/O.
#![no_std]
#![forbid(unsafe_code)]

mod call;
mod error_code;
mod event;
mod flow_option;
mod own_calls;
mod starter;
mod will;

pub use call::{Call, Congestion, Endpoint, SgArray, SourceList};
pub use error_code::{CallError, DeadReason};
pub use event::{DatagramNotes, Event, IcmpMessage, Revoke, RxData, SentNews, UnknownEvent};
pub use flow_option::{FlowOption, MulticastOption};
pub use own_calls::{
    OWN_CALLS_BYTES, OWN_FILE_BYTES, OWN_SITES_MAX, OwnSite, REFUSED_BIND_AT, RefusedBind,
    SAID_BYTES, SiteState,
};
pub use starter::{STARTER_MAGIC, Starter};
pub use will::{WILL_MAX, Will, WillEntry, WillState};

/// Version of all layouts and numbers here.
pub const ABI_VERSION: u32 = 8;

/// The letters IXABI and three zeroes, read as a little-endian number: the first field of
/// [`ProcessHeader`].
pub const ABI_MAGIC: u64 = u64::from_le_bytes(*b"IXABI\0\0\0");

/// Environment variable that holds the address of the [`ProcessHeader`] as 16 hexadecimal digits.
pub const ENV_HEADER: &str = "IX_ABI";

/// Slots in the call array of an elastic thread.
pub const CALLS_MAX: usize = 2048;
/// Slots in the event array of an elastic thread.
pub const EVENTS_MAX: usize = 2048;
/// Most entries of one scatter-gather array.
pub const SG_MAX: usize = 64;

/// An IPv6 address, or an IPv4 address mapped into IPv6, in network byte order.
pub type Addr = [u8; 16];

/// Where a socket is bound: every IPv6 address of the dataplane and no IPv4 one (`IPV6_V6ONLY`,
/// RFC 3493 section 5.3). The address is reserved and never names a group (RFC 4291 section
/// 2.7.1).
pub const EVERY_V6: Addr = [0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The dataplane's name of a flow: flow group, slot and generation. 0 is never a handle.
///
/// To an application only the flow group has a meaning: see [`group_of`].
pub type Handle = u64;

/// Returns the flow group of a flow, the number that [`event_kind::MIGRATED`] carries. With it an
/// application finds the flows that move.
pub const fn group_of(handle: Handle) -> u32 {
    (handle >> 48) as u32
}

/// The application's name of a flow. The dataplane only stores and returns it.
pub type Cookie = u64;

/// Numbers of the batched system calls ([`CallSlot::op`]).
pub mod call_op {
    /// Does nothing. The dataplane skips the slot.
    pub const NOP: u32 = 0;
    /// args: address high, address low, port, backlog (0: default), cookie, and 1 for places that
    /// are held. Returns a listener id. The unspecified address 0.0.0.0 stands for every IPv4
    /// address of the dataplane, `::` for every address of both families, and
    /// [`crate::EVERY_V6`] for every IPv6 address. A connection that knocks
    /// has a place in the backlog until it is accepted or rejected, or ends; a place that is held
    /// is free when `BACKLOG` says so.
    pub const LISTEN: u32 = 1;
    /// args: listener id.
    pub const UNLISTEN: u32 = 2;
    /// args: cookie, address high, address low, port | congestion control << 16 (0: as configured,
    /// else 1 + a number of [`crate::flow_opt`]), local port (0: any). Returns a handle. The
    /// outcome comes as event `CONNECTED`. DCTCP must be chosen here, because the handshake
    /// negotiates ECN for it.
    pub const CONNECT: u32 = 3;
    /// args: handle, cookie. Takes a flow that `KNOCK` announced. Returns `BAD_HANDLE` if the peer
    /// has ended the flow in the meantime; no event reports that.
    pub const ACCEPT: u32 = 4;
    /// args: handle. Refuses a flow that knocked, with a reset.
    pub const REJECT: u32 = 5;
    /// args: handle, pointer to [`crate::SgEntry`]s in transmit memory, number of them, bits for
    /// what is behind the last byte (1: FIN, 2: the end of a message), and bytes of received
    /// buffers. These are returned first, as by `RECV_DONE` (0: none); if they are refused, so is
    /// the rest. Returns how many bytes the window took, from the front of the array; 0 if it is
    /// full. FIN is sent, as by `SHUTDOWN`, only if it took them all; and only then a message ends
    /// there: what comes later is not in a segment with what was before.
    pub const SENDV: u32 = 6;
    /// args: handle, bytes. Returns received buffers, oldest first, and opens the window.
    pub const RECV_DONE: u32 = 7;
    /// args: handle. Sends FIN after what was sent; receiving continues.
    pub const SHUTDOWN: u32 = 8;
    /// args: handle. Closes both directions. The handle is stale at once; the flow ends in order.
    pub const CLOSE: u32 = 9;
    /// args: handle. Resets the connection. The handle is stale at once.
    pub const ABORT: u32 = 10;
    /// args: handle or [`crate::OPENED_LAST`], option ([`crate::flow_opt`]), value.
    pub const SET_OPT: u32 = 11;
    /// args: handle, pointer to a [`crate::FlowInfo`] in transmit memory, which is written.
    pub const GET_INFO: u32 = 12;
    /// args: address high, address low, port, cookie, and for a port that other processes of the
    /// program may have as well 1, or 2 to get what arrives. Returns a UDP socket id.
    pub const UDP_BIND: u32 = 13;
    /// args: UDP socket id.
    pub const UDP_UNBIND: u32 = 14;
    /// args: socket id | port << 32, pointer to [`crate::SgEntry`]s in transmit memory, number of
    /// them, address high, address low, cookie. Returns the bytes sent. The memory must stay
    /// unchanged until event `UDP_SENT`.
    pub const UDP_SENDV: u32 = 15;
    /// args: data pointer of the `UDP_RECV` or `UDP_ERROR` event. Returns the buffer.
    pub const UDP_RECV_DONE: u32 = 16;
    /// args: cookie, delay in µs. Returns a timer id. The timer fires once, as event `TIMER`.
    pub const TIMER_SET: u32 = 17;
    /// args: timer id.
    pub const TIMER_CANCEL: u32 = 18;
    /// args: bytes. Returns the address of that much transmit memory, in steps of 2 MB.
    pub const TX_ALLOC: u32 = 19;
    /// args: address and bytes, as they were allocated.
    pub const TX_FREE: u32 = 20;
    /// args: handle, cookie. Later events of the flow carry this cookie. For flows that came with
    /// [`crate::event_kind::MIGRATED`].
    pub const SET_COOKIE: u32 = 21;
    /// No args. The application wants to leave this elastic thread. Its flow groups move to the
    /// other threads, each with an event [`crate::event_kind::MIGRATED`]. The last event is
    /// [`crate::event_kind::REVOKE`] with [`crate::revoke::DRAINED`]. Returns `STATE` if no other
    /// thread is active.
    pub const DRAIN: u32 = 22;
    /// args: device (0: the first), what it takes ([`crate::packet_kind`]), its number, cookie.
    /// Returns the id of a packet queue of this elastic thread. Frames of that kind that this
    /// thread's queue pair of the device receives come whole, as `PACKET_RECV`; the dataplane does
    /// not process or answer them. Returns `IN_USE` if another queue or a socket receives them,
    /// `NOT_LOCAL` if the device leaves them to Linux.
    pub const PACKET_BIND: u32 = 23;
    /// args: packet queue id.
    pub const PACKET_UNBIND: u32 = 24;
    /// args: packet queue id, pointer to [`crate::SgEntry`]s in transmit memory, number of them,
    /// cookie. Sends one whole frame unchanged by the queue's device: headers and checksums are the
    /// application's. Returns the frame's bytes. The memory must stay unchanged until event
    /// `PACKET_SENT`. Returns `FILTERED` if the vNIC may not send the frame.
    pub const PACKET_SENDV: u32 = 25;
    /// args: data pointer of the `PACKET_RECV` event. Returns the buffer.
    pub const PACKET_RECV_DONE: u32 = 26;
    /// args: packet queue id, pointer to a [`crate::PacketInfo`] in transmit memory, which is
    /// written.
    pub const PACKET_INFO: u32 = 27;
    /// args: elastic thread, a number. That thread receives the event `SIGNAL`. This takes a system
    /// call of Linux only if the thread sleeps.
    pub const SIGNAL: u32 = 28;
    /// args: UDP socket id, option ([`crate::flow_opt::DSCP`], [`crate::flow_opt::HOP_LIMIT`],
    /// [`crate::flow_opt::FRAGMENT_BYTES`], [`crate::flow_opt::MULTICAST`] or
    /// [`crate::flow_opt::FLOW_LABEL`]), value. Applies to datagrams that are sent later.
    pub const UDP_SET_OPT: u32 = 29;
    /// As `CONNECT`, from a local address that the application chooses. args: cookie, address high,
    /// address low, port | congestion control << 16 | local port << 32, local address high, low.
    /// Returns `NOT_LOCAL` if the address is not the dataplane's, `UNREACHABLE` if it belongs to
    /// another device than the route to the peer.
    pub const CONNECT_FROM: u32 = 30;
    /// args: listener id, backlog (0: as it is), number of held places that are free now. For a
    /// program that has an accept queue of its own. In place of that number, [`crate::IN_RESERVE`]:
    /// new connections go to this listener only where no other process listens; and
    /// [`crate::IN_TURN`]: they do so in turn again, as from the beginning.
    pub const BACKLOG: u32 = 31;
    /// args: handle, number of a process of the program ([`crate::ThreadArea`]), a number. Gives a
    /// connection to another process that shares this elastic thread: it hears `GIVEN` with the
    /// number, and accepts or rejects as after a knock. What was received and not returned is
    /// announced to it; the giver must not read it any more. What was given to send is sent, and
    /// still announced to the giver as `SENT`. Returns `INVALID` if there is no such process,
    /// `STATE` if it does not share this elastic thread, or if the connection is opening, or closed
    /// on either side by a call. To [`crate::GIVE_AT_END`]: the caller keeps it; when the caller
    /// ends and other processes go on, one of them hears `GIVEN` with the number. 0: none does, and
    /// the connection is closed then, as without this call.
    pub const GIVE: u32 = 32;
    /// args: UDP socket id, group high, group low, [`crate::LISTENS_TO_ALL_BUT`] or
    /// [`crate::LISTENS_TO_ONLY`], pointer to addresses of sources in transmit memory, number of
    /// them, at most [`crate::GROUP_SOURCES_MAX`]. From now on the socket listens to what these
    /// sources send to the group, or what all others send; to no source is to leave the group
    /// (RFC 3376 section 2). The host listens on all its devices, and tells routers and switches of
    /// it. As on Linux a datagram to a group of the host reaches each socket of its port that is
    /// bound to the group or to every address, unless that socket has listened to other sources of
    /// the group. Returns `INVALID` if the address is no group or not of the socket's family,
    /// `NO_RESOURCE` if the host is in too many groups.
    pub const UDP_LISTEN: u32 = 33;
    /// args: number of a process of the program ([`crate::ThreadArea`]). If that process waits here
    /// it returns with the event `SIGNAL`, whose number is 0; if it computes, it hears that when it
    /// next waits here. Returns `INVALID` if there is no such process, `STATE` if it does not share
    /// this elastic thread.
    pub const NUDGE: u32 = 34;
    /// args: listener id, option ([`crate::flow_opt::DSCP`], [`crate::flow_opt::HOP_LIMIT`] or
    /// [`crate::flow_opt::SEGMENT_BYTES`]), value, 4 or 6 for the version of IP. Applies to the
    /// replies to SYNs from now on, and to the connections that come of them.
    pub const LISTEN_OPT: u32 = 35;
}

/// In [`call_op::UDP_LISTEN`]: these sources alone.
pub const LISTENS_TO_ONLY: u64 = 0;
/// In [`call_op::UDP_LISTEN`]: all sources but these.
pub const LISTENS_TO_ALL_BUT: u64 = 1;
/// Most sources of one group that a UDP socket names.
pub const GROUP_SOURCES_MAX: usize = 64;

/// In place of a process in [`call_op::GIVE`]: whichever goes on when the caller has ended.
pub const GIVE_AT_END: u32 = 4294967295;

/// In [`call_op::SET_OPT`], in place of a handle: the flow that the last `CONNECT` or
/// `CONNECT_FROM` of the same batch has opened. Its SYN goes when the batch has been carried out,
/// with the option.
pub const OPENED_LAST: u64 = u64::MAX;

/// In [`call_op::BACKLOG`]: the listener is there for when no other process listens.
pub const IN_RESERVE: u32 = 4294967295;
/// In [`call_op::BACKLOG`]: the listener is one like others.
pub const IN_TURN: u32 = 4294967294;

/// What a packet queue takes ([`call_op::PACKET_BIND`]).
pub mod packet_kind {
    /// Frames of an EtherType that the dataplane does not process itself: the number is at least
    /// 0x0600, and not that of IPv4, ARP, IPv6 or a VLAN tag. Not on an interface that is shared
    /// with Linux.
    pub const ETHER_TYPE: u64 = 1;
    /// IPv4 packets to an address of the dataplane, of a protocol other than ICMP, TCP and UDP. The
    /// dataplane has checked their header and reassembled fragments.
    pub const IP_PROTOCOL: u64 = 2;
    /// UDP datagrams to this port. The dataplane has checked headers and checksum. As with sockets,
    /// they come to the elastic thread that owns their flow group.
    pub const UDP_PORT: u64 = 3;
}

/// Bits of [`FlowInfo::flags`].
pub mod flow_info_flag {
    /// Timestamps (RFC 7323 section 3).
    pub const TIMESTAMPS: u32 = 1;
    /// Selective acknowledgements (RFC 2018).
    pub const SACK: u32 = 2;
    /// Window scaling (RFC 7323 section 2): the shift of the peer's windows is
    /// `flags >> SND_SHIFT_AT & 15`, that of ours `flags >> RCV_SHIFT_AT & 15`.
    pub const WINDOW_SCALING: u32 = 4;
    /// Explicit congestion notification (RFC 3168, RFC 9768).
    pub const ECN: u32 = 8;
    /// An ECN-capable packet of the peer has arrived.
    pub const ECN_SEEN: u32 = 16;
    /// Where the shift of the peer's windows is.
    pub const SND_SHIFT_AT: u32 = 16;
    /// Where the shift of our windows is.
    pub const RCV_SHIFT_AT: u32 = 20;
}

/// Bits of [`PacketInfo::flags`].
pub mod packet_flag {
    /// The checksum of a received UDP datagram may be only the sum of its pseudo-header, because
    /// the sender is on this machine.
    pub const PARTIAL_CHECKSUMS: u32 = 1;
    /// The peer can still change a received frame: check a copy of it.
    pub const SHARED_FRAMES: u32 = 2;
    /// Transmit filters decide what may be sent. Without this bit, a frame must come from the
    /// device's own Ethernet address, and IPv4 and ARP must name an address of the dataplane as the
    /// sender.
    pub const TX_FILTERED: u32 = 4;
    /// Receive filters decide what is received.
    pub const RX_FILTERED: u32 = 8;
    /// The dataplane receives other EtherTypes than those of IPv4 and ARP as well.
    pub const ANY_ETHER_TYPE: u32 = 16;
}

/// Options of a flow ([`call_op::SET_OPT`]).
pub mod flow_opt {
    /// 1: Nagle's algorithm on (RFC 9293 3.7.4). Default: off.
    pub const NAGLE: u64 = 1;
    /// Keepalive idle time in seconds; 0: off (RFC 9293 3.8.4).
    pub const KEEPALIVE_S: u64 = 2;
    /// How long data may stay unacknowledged before the connection is given up, in ms, in steps of
    /// 100 ms; 0: two minutes (RFC 5482). It also limits a connection attempt and a peer that keeps
    /// its window closed, and it replaces the number of keepalive probes.
    pub const USER_TIMEOUT_MS: u64 = 4;
    /// Seconds between keepalive probes, at most 0x7fff; 0: as configured, 75.
    pub const KEEPALIVE_INTERVAL_S: u64 = 8;
    /// Unanswered keepalive probes that end the connection, at most 127; 0: as configured, 9.
    pub const KEEPALIVE_PROBES: u64 = 9;
    /// Differentiated services code point of the packets, 0 (default) to 63 (RFC 9293 3.9.1.9).
    pub const DSCP: u64 = 5;
    /// Hop limit of the packets, 1 to 255. Default: as configured, 64 (RFC 9293 3.9.2).
    pub const HOP_LIMIT: u64 = 6;
    /// About how many received bytes the application may leave unread, at most as many as of a
    /// connection that begins; 0: the limit follows what the application reads in a round trip.
    /// What the window has already offered may still arrive (RFC 9293 3.8.6).
    pub const RECEIVE_BYTES: u64 = 7;
    /// For a UDP socket. 0 (default): datagrams are sent with DF set, and one that is too long for
    /// the device is refused with `TOO_LONG`. Else, at most 0xffff: datagrams are sent without DF,
    /// and one that is longer, with its IP header, than this (at least 68, RFC 791) or than the
    /// device's MTU is sent in fragments. Only the first fragment has the ports, so a vNIC's filter
    /// that names ports drops the others.
    pub const FRAGMENT_BYTES: u64 = 10;
    /// Longest segment that is sent, in bytes without options, at least 88. Segments are shorter
    /// where the peer or the path needs it. Applies to segments that are sent later; 0 changes
    /// nothing. Before the SYN, and of a listener, it is also what the peer is told to send (RFC
    /// 9293 3.7.1).
    pub const SEGMENT_BYTES: u64 = 11;
    /// 1: the application has closed the connection, and calls `CLOSE` once all that it has sent is
    /// acknowledged; until then it keeps that memory. The flow counts as one without an owner: if
    /// there are too many, it is reset (`DEAD`), and without `USER_TIMEOUT_MS` it is given up after
    /// two minutes without an acknowledgement. It cannot be taken back.
    pub const CLOSED: u64 = 12;
    /// Highest rate at which the flow sends payload, bytes per second; 0: as its window allows.
    pub const PACE: u64 = 13;
    /// For a UDP socket: how it sends to groups. Bit 0: its datagrams come back to sockets of this
    /// host (default: yes). Bit 1: they do not leave the host. Bits 8 to 15: one more than the
    /// number of the device that they leave by; 0: that of the socket's address, else the first.
    /// Without [`crate::flow_opt::HOP_LIMIT`] they have a hop limit of 1 (RFC 1112 section 6.1).
    pub const MULTICAST: u64 = 14;
    /// In [`crate::flow_opt::MULTICAST`]: datagrams come back.
    pub const MULTICAST_LOOPS: u64 = 1;
    /// In [`crate::flow_opt::MULTICAST`]: datagrams do not leave the host.
    pub const MULTICAST_STAYS: u64 = 2;
    /// In [`crate::flow_opt::MULTICAST`]: where the device is.
    pub const MULTICAST_DEVICE_AT: u64 = 8;
    /// Flow label of the IPv6 packets (RFC 6437): 0 for none, a label up to
    /// [`crate::flow_opt::FLOW_LABEL_MAX`], or [`crate::flow_opt::FLOW_LABEL_AUTO`] (default) for
    /// one that nobody can guess, of each flow its own. Segments of a connection that leave before
    /// the option is set, such as its SYN, have the label of `FLOW_LABEL_AUTO`. IPv4 has none.
    pub const FLOW_LABEL: u64 = 15;
    /// The largest flow label.
    pub const FLOW_LABEL_MAX: u64 = 1048575;
    /// In [`crate::flow_opt::FLOW_LABEL`]: a label of its own for each flow.
    pub const FLOW_LABEL_AUTO: u64 = 1048576;
    /// Congestion control: one of the four below. DCTCP needs a flow that uses ECN.
    pub const CONGESTION: u64 = 3;
    /// CUBIC (RFC 9438).
    pub const CUBIC: u64 = 0;
    /// NewReno (RFC 5681 and RFC 6582).
    pub const RENO: u64 = 1;
    /// DCTCP (RFC 8257).
    pub const DCTCP: u64 = 2;
    /// BBR version 3 (draft-ietf-ccwg-bbr).
    pub const BBR: u64 = 3;
}

/// Kinds of event conditions ([`EventSlot::kind`]).
pub mod event_kind {
    /// A peer finished its handshake with a listener: `cookie` of the listener, `handle` of the new
    /// flow, `addr` and `port` of the peer.
    pub const KNOCK: u16 = 1;
    /// Outcome of `CONNECT`: `cookie`, `handle`; `code` is 0 or a [`crate::error`].
    pub const CONNECTED: u16 = 2;
    /// In-order data: `cookie`, `handle`, `data` (address), `len`. The application's until
    /// `RECV_DONE`. The low half of `more` is how many bytes the peer acknowledged with it, and, if
    /// that is not 0, the high half how much the window has room for now: no `SENT` says it again.
    pub const RECV: u16 = 3;
    /// The peer will send no more: `cookie`, `handle`.
    pub const EOF: u16 = 4;
    /// The peer acknowledged data: `cookie`, `handle`, `len` bytes; `data` is how much the window
    /// has room for now. `len` 0: the window has opened after `SENDV` took less than it was given.
    pub const SENT: u16 = 5;
    /// The flow is gone and its handle stale: `cookie`, `handle`; `code` is a [`crate::dead`].
    pub const DEAD: u16 = 6;
    /// A datagram: `cookie` of the socket, `data`, `len`, `addr` and `port` of the sender; `handle`
    /// and `more` are high and low half of the address that it was sent to (`local_addr`).
    /// The low octet of `code` is its hop limit, the high one its type of service. The first of
    /// `notes` is the number of events that follow with other pieces of the same datagram; the
    /// second and the third are low and high half of its IPv6 flow label.
    pub const UDP_RECV: u16 = 7;
    /// The memory of a sent datagram is free again: `cookie` of the call.
    pub const UDP_SENT: u16 = 8;
    /// An application timer fired: `cookie`.
    pub const TIMER: u16 = 9;
    /// A flow group moves: `len` is the group, `code` a [`crate::migrated`], `data` the other
    /// thread. After [`crate::migrated::LEAVES`] no events of its flows come in this event array.
    pub const MIGRATED: u16 = 10;
    /// This elastic thread is taken away or given back: `data` is a [`crate::revoke`].
    pub const REVOKE: u16 = 11;
    /// A frame: `cookie` of the packet queue, `data` (address of its Ethernet header), `len`. The
    /// application's until `PACKET_RECV_DONE`.
    pub const PACKET_RECV: u16 = 12;
    /// The memory of a sent frame is free again: `cookie` of the call.
    pub const PACKET_SENT: u16 = 13;
    /// Another elastic thread called `SIGNAL`: `len` is its index, `data` the number that it sent.
    pub const SIGNAL: u16 = 14;
    /// An ICMP message reports an error for a datagram that was sent (RFC 1122 4.1.3.3). `cookie`
    /// is the socket's; `addr` and `port` are the datagram's destination. `code` is an
    /// [`crate::error`]: `REFUSED` (no socket has the port), `TOO_LONG` or `UNREACHABLE`. `notes`
    /// are ICMP's type and code (RFC 792), then, with `TOO_LONG`, the MTU of the link (bytes with
    /// the IP header; 0: not given), or the octet at fault of a "parameter problem". `handle` and
    /// `more` are the address of the message's sender (`local_addr`). `data` and `len` are the part
    /// of the datagram's payload that the message quotes, the application's until `UDP_RECV_DONE`;
    /// `len` 0: none. This is a hint: anybody can forge such a message.
    pub const UDP_ERROR: u16 = 15;
    /// An ICMP message reports an error for a packet of a flow, which continues (RFC 9293 3.8.3):
    /// `cookie` and `handle` of the flow, `code` and `notes` as with `UDP_ERROR`, `addr` of the
    /// message's sender. This too is a hint; the end of a flow comes as `CONNECTED` or `DEAD`. A
    /// flow that was not accepted yet causes no such event.
    pub const FLOW_ERROR: u16 = 16;
    /// Another process of the program gives a connection to this one: `cookie` is the number that
    /// it sent, `handle` the flow, which is to be accepted or rejected, `addr` and `port` the peer,
    /// `len` the number of that process, `data` how many bytes of the peer's stream come before
    /// those that are announced next.
    pub const GIVEN: u16 = 17;
}

/// Values of [`EventSlot::data`] of [`event_kind::REVOKE`].
pub mod revoke {
    /// The thread was given back, and has flow groups again.
    pub const BACK: u64 = 0;
    /// The thread is about to be taken away: after the next `RUN_IO` its flow groups leave. Then
    /// `RUN_IO` sleeps until the thread is given back, but at most as long as it was told to wait,
    /// or a tenth of a second if that is more. Timers of the thread still run and end the sleep.
    pub const GOES: u64 = 1;
    /// All flow groups have left after [`crate::call_op::DRAIN`]: the application may leave.
    pub const DRAINED: u64 = 2;
}

/// Error codes: a negative [`CallSlot::ret`] is minus one of these.
pub mod error {
    /// No such call.
    pub const NO_SYS: i64 = 1;
    /// An argument is out of range or contradicts another one.
    pub const INVALID: i64 = 2;
    /// A stale, forged or foreign handle, listener, socket or timer.
    pub const BAD_HANDLE: i64 = 3;
    /// A pointer or length outside the memory that the call may name.
    pub const FAULT: i64 = 4;
    /// The dataplane has no flow, buffer, timer or transmit memory left: try again later.
    pub const NO_RESOURCE: i64 = 5;
    /// The port is in use; from `ENTER` and `RUN_IO`: another Linux thread runs the elastic thread.
    pub const IN_USE: i64 = 6;
    /// The local address is not the dataplane's.
    pub const NOT_LOCAL: i64 = 7;
    /// No route, or the next hop does not reply to ARP.
    pub const UNREACHABLE: i64 = 8;
    /// The peer refused the connection.
    pub const REFUSED: i64 = 9;
    /// The peer did not reply in time.
    pub const TIMED_OUT: i64 = 10;
    /// The connection was reset.
    pub const RESET: i64 = 11;
    /// The flow cannot do this in its state (sending after shutdown, accepting twice).
    pub const STATE: i64 = 12;
    /// The datagram is longer than the path allows.
    pub const TOO_LONG: i64 = 13;
    /// The flow group belongs to another elastic thread: make the call there.
    pub const MOVED: i64 = 14;
    /// The vNIC may not send this.
    pub const FILTERED: i64 = 15;
    /// The dataplane has ended, and with it every flow, listener, socket and timer. Transmit memory
    /// stays. [`crate::gate_op::RENEW`] gets another dataplane.
    pub const LOST: i64 = 16;
    /// It is not known yet whether Linux has the port, with which the address is shared: make the
    /// call again in a later cycle.
    pub const AGAIN: i64 = 17;
}

/// Values of [`EventSlot::code`] of [`event_kind::MIGRATED`]: which end of the migration this is.
pub mod migrated {
    /// On the old thread: no event of the group's flows comes after this one. Calls on their
    /// handles are carried out up to the end of the next `RUN_IO`; later ones return
    /// [`crate::error::MOVED`]. An application whose threads keep their flows to themselves must
    /// hand its state of these flows to the new thread before that `RUN_IO`. A `CONNECT` in that
    /// `RUN_IO` starts its flow in another group.
    pub const LEAVES: u16 = 0;
    /// On the new thread: the group's flows are here, with the same handles and cookies. Their
    /// events begin after the next `RUN_IO`, and carry the cookies that its calls have set. A flow
    /// that was not accepted yet knocks at the new thread's listener, unless the old thread was
    /// told of it; in that case it can be accepted here. The old thread hears this too, with the
    /// number of the new one, if the flows stay: another process of the program did not return in
    /// time.
    pub const ARRIVED: u16 = 1;
}

/// Values of [`EventSlot::code`] of [`event_kind::DEAD`]: why the flow is gone.
pub mod dead {
    /// Both sides closed in order.
    pub const CLOSED: u16 = 0;
    /// The peer reset the connection.
    pub const RESET: u16 = 1;
    /// Retransmissions, probes or keepalives were not acknowledged.
    pub const TIMED_OUT: u16 = 2;
    /// An ICMP message says that the peer cannot be reached.
    pub const UNREACHABLE: u16 = 3;
}

/// One batched system call; a cache line. The application fills `op` and `args`. The dataplane
/// reads the slot once and overwrites `ret`: a value >= 0, or minus an [`error`].
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallSlot {
    /// A number of [`call_op`].
    pub op: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Return value, written by the dataplane.
    pub ret: i64,
    /// Arguments; [`call_op`] says what they mean.
    pub args: [u64; 6],
}

/// One event condition; a cache line. [`event_kind`] says which fields each kind uses.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventSlot {
    /// A number of [`event_kind`].
    pub kind: u16,
    /// Outcome or reason, where the kind has one.
    pub code: u16,
    /// Bytes, where the kind has any.
    pub len: u32,
    /// Application's name of the flow, listener, socket or timer.
    pub cookie: Cookie,
    /// Dataplane's name of the flow.
    pub handle: Handle,
    /// Address of the data, or a number.
    pub data: u64,
    /// Peer's address.
    pub addr: Addr,
    /// Peer's port, host byte order.
    pub port: u16,
    /// 0, unless the kind says otherwise.
    pub notes: [u16; 3],
    /// 0, unless the kind says otherwise.
    pub more: u64,
}

/// One piece of memory of a scatter-gather array: in transmit memory, or in a received buffer that
/// the application has not returned yet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SgEntry {
    /// Address of the first byte.
    pub base: u64,
    /// Length in bytes.
    pub len: u64,
}

/// What `GET_INFO` writes about a flow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowInfo {
    /// Local address.
    pub local_addr: Addr,
    /// Peer's address.
    pub remote_addr: Addr,
    /// Local port.
    pub local_port: u16,
    /// Peer's port.
    pub remote_port: u16,
    /// RFC 9293 state: 1 = LISTEN … 10 = TIME-WAIT, 11 = CLOSED, in the order of section 3.3.2.
    pub state: u16,
    /// Flow group.
    pub flow_group: u16,
    /// Smoothed round-trip time, µs.
    pub srtt_us: u32,
    /// Round-trip time variation, µs.
    pub rttvar_us: u32,
    /// Retransmission timeout, µs.
    pub rto_us: u32,
    /// Congestion window, bytes.
    pub cwnd_bytes: u32,
    /// Slow-start threshold, bytes.
    pub ssthresh_bytes: u32,
    /// The peer's window, bytes.
    pub snd_wnd_bytes: u32,
    /// Bytes sent and not acknowledged.
    pub in_flight_bytes: u32,
    /// Largest segment that the dataplane sends, bytes.
    pub mss_bytes: u32,
    /// Segments retransmitted since the flow began.
    pub retransmits: u32,
    /// What both ends have agreed on: bits of [`flow_info_flag`].
    pub flags: u32,
    /// Largest segment that the peer was told to send, bytes.
    pub advmss_bytes: u32,
    /// Largest segment that has arrived, bytes.
    pub rcv_mss_bytes: u32,
    /// The window that is offered to the peer, bytes.
    pub rcv_wnd_bytes: u32,
    /// Bytes taken by `SENDV` and never sent.
    pub snd_unsent_bytes: u32,
    /// Smallest recent round-trip time, µs.
    pub min_rtt_us: u32,
    /// Time since data was last sent, in units of 1,024 µs.
    pub last_sent_ms: u32,
    /// Time since anything was last heard of the peer, in the same units.
    pub last_heard_ms: u32,
    /// Segments sent and not acknowledged.
    pub unacked_segments: u32,
    /// Of these, selectively acknowledged.
    pub sacked_segments: u32,
    /// Of these, taken to be lost, at most.
    pub lost_segments: u32,
    /// By how many segments the path has been seen to reorder.
    pub reordering_segments: u16,
    /// How often the retransmission timeout was doubled.
    pub backoff: u8,
    /// Probes of a closed window, or of an idle peer, without a reply.
    pub probes: u8,
    /// 0: nothing is amiss; 1: something has arrived out of order; 2: the congestion window is
    /// smaller for a mark; 3: fast recovery; 4: recovery after a timeout.
    pub recovery: u32,
    /// Bytes that the peer has acknowledged.
    pub bytes_acked: u64,
    /// Bytes that have arrived in order.
    pub bytes_received: u64,
    /// How long the peer's window held something back, µs.
    pub rwnd_limited_us: u64,
}

/// What `PACKET_INFO` writes about the device of a packet queue.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketInfo {
    /// Its Ethernet address.
    pub mac: [u8; 6],
    /// Its number.
    pub device: u16,
    /// Longest frame that can be sent, in bytes with the Ethernet header.
    pub frame_bytes_max: u32,
    /// Bits of [`packet_flag`].
    pub flags: u32,
    /// Most packet queues of an elastic thread.
    pub queues_max: u32,
    /// Most frames that the application may hold before `PACKET_RECV_DONE`. Further frames are
    /// dropped.
    pub held_max: u32,
}

/// What the application finds at the address in [`ENV_HEADER`]; it can only read it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProcessHeader {
    /// [`ABI_MAGIC`].
    pub magic: u64,
    /// [`ABI_VERSION`].
    pub version: u32,
    /// Elastic threads of this dataplane.
    pub threads: u32,
    /// Address of the gate: `extern "C" fn(op: u64, a: u64, b: u64, c: u64) -> i64` with
    /// numbers of [`gate_op`].
    pub gate: u64,
    /// Address of an array of `threads` [`ThreadArea`]s.
    pub thread_areas: u64,
    /// Receive memory, mapped read-only for the application.
    pub rx_base: u64,
    /// Length of the receive memory, bytes.
    pub rx_len: u64,
    /// Transmit memory, parts of which `TX_ALLOC` returns.
    pub tx_base: u64,
    /// Length of the transmit memory, bytes.
    pub tx_len: u64,
    /// The dataplane's address; the first one if it has several.
    pub local_addr: Addr,
    /// Largest TCP payload of one packet, bytes.
    pub mss_bytes: u32,
    /// Batch bound B.
    pub batch_bound: u32,
}

/// Where the arrays of one elastic thread are.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ThreadArea {
    /// Address of [`CALLS_MAX`] [`CallSlot`]s, which the application writes.
    pub calls: u64,
    /// Address of [`EVENTS_MAX`] [`EventSlot`]s, which the application can only read.
    pub events: u64,
    /// Address of the [`ThreadStatus`], which the application can only read.
    pub status: u64,
    /// The hardware thread that the elastic thread is pinned to when it is entered.
    pub cpu: u32,
    /// The number of this process among those of the program that share the dataplane, from 0 on.
    pub attachment: u32,
    /// For libraries under unmodified programs; 0: there is nothing.
    pub will: u64,
}

/// What the dataplane tells an elastic thread beside its events.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadStatus {
    /// Time of the last cycle, µs of the dataplane's monotonic clock.
    pub now_us: u64,
    /// 1: a Linux signal is pending for the application. Unblock signals, then enter again.
    pub signal_pending: u32,
    /// Always 0.
    pub reserved: u32,
}

/// Operations of the gate: its first argument.
pub mod gate_op {
    /// a = thread index. The calling Linux thread becomes this elastic thread: it is pinned, with
    /// its signals blocked. Returns 0 or minus an [`crate::error`] (`IN_USE`: another Linux thread
    /// is it).
    pub const ENTER: u64 = 1;
    /// a = thread index, b = number of calls in the array, c = longest wait for an event in µs (0:
    /// one cycle without a wait; [`WAIT_FOREVER`]: no limit). Returns the number of events.
    pub const RUN_IO: u64 = 2;
    /// a = thread index. Gives the elastic thread back. The caller becomes an ordinary Linux thread
    /// again, with the signal mask and the affinity that it had before. Call
    /// [`crate::call_op::DRAIN`] first: flow groups that are still here move to the other threads,
    /// but events of theirs that were not read are lost. The thread's timers end.
    pub const LEAVE: u64 = 3;
    /// a = thread index. The elastic thread has no Linux thread of its own any more, for good: any
    /// thread of the process may call `RUN_IO` and `WATCH` on it, one at a time (the others get
    /// `IN_USE`). Callers are not pinned and their signals are not blocked; they must make sure
    /// that no signal handler runs their code while they are inside. For programs whose threads
    /// know nothing of elastic threads.
    pub const SHARE: u64 = 4;
    /// a = thread index. Ends the wait of a `RUN_IO`; if no thread is waiting, the next `RUN_IO`
    /// that would wait returns at once. Any thread may call it at any time, signal handlers too.
    pub const KICK: u64 = 5;
    /// a = thread index, b = a descriptor + 1 (0: none). From now on, `RUN_IO` also returns when
    /// the descriptor becomes readable.
    pub const WATCH: u64 = 6;
    /// a = any thread index. After `RUN_IO` has returned [`crate::error`] (`LOST`): gets another
    /// dataplane in place of the one that has ended, and returns once it is there; at once if
    /// another thread has got it. Everything is at the same addresses; elastic threads are to be
    /// entered or shared anew. Received memory has other content afterwards: `IN_USE` while a
    /// thread has entered an elastic thread and not left it, or is inside one that is shared.
    pub const RENEW: u64 = 7;
    /// In a forked child of a program whose dataplane is a process of its own: the child shares it
    /// from now on, under a number of its own ([`crate::ThreadArea`]), with arrays and transmit
    /// memory of its own. Returns the address of its [`crate::ProcessHeader`], or minus an
    /// [`crate::error`]: `STATE` if the caller's process shares it already, `INVALID` in another
    /// domain, `NO_RESOURCE` if it cannot (the broker has said why). One thread at a time, and no
    /// signal handler of the process may run meanwhile.
    pub const ATTACH: u64 = 8;
    /// A wait of `RUN_IO` without a limit.
    pub const WAIT_FOREVER: u64 = u64::MAX;
}

const _: () = assert!(size_of::<CallSlot>() == 64);
const _: () = assert!(size_of::<EventSlot>() == 64);
const _: () = assert!(size_of::<SgEntry>() == 16);
const _: () = assert!(size_of::<FlowInfo>() == 152);
const _: () = assert!(size_of::<PacketInfo>() == 24);
const _: () = assert!(size_of::<ProcessHeader>() == 88);
const _: () = assert!(size_of::<ThreadArea>() == 40);
const _: () = assert!(size_of::<ThreadStatus>() == 64);

/// Maps an IPv4 address (network byte order) into an [`Addr`].
pub const fn v4(a: [u8; 4]) -> Addr {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a[0], a[1], a[2], a[3]]
}
