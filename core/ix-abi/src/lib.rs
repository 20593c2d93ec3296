//! The contract between an application and its dataplane (DESIGN.md, wall 2).
//!
//! `#[repr(C)]` layouts and their numbers, and the typed values that both sides encode into them and
//! decode from them: [`Call`], [`CallError`] and [`Event`]. Nothing else: no allocation, no I/O. A change
//! of any layout here is a new [`ABI_VERSION`].
//!
//! * [`ProcessHeader`] is found through the environment variable [`ENV_HEADER`]; it names the gate
//!   and, for every elastic thread, its [`ThreadArea`] with a call array and an event array.
//! * The application writes [`CallSlot`]s, enters the gate with [`gate_op::RUN_IO`] and reads
//!   [`EventSlot`]s. The dataplane overwrites [`CallSlot::ret`] of every slot it has consumed.
//! * Addresses are 128 bits wide, IPv4 mapped (`::ffff:a.b.c.d`), in network byte order.
#![no_std]
#![forbid(unsafe_code)]

mod call;
mod error_code;
mod event;
mod starter;

pub use call::{Call, Congestion, Endpoint, SgArray};
pub use error_code::{CallError, DeadReason};
pub use event::{Event, IcmpMessage, Revoke, RxData, UnknownEvent};
pub use starter::{STARTER_MAGIC, Starter};

/// Version of every layout in this crate.
pub const ABI_VERSION: u32 = 3;

/// `b"IXABI\0\0\0"` as a little-endian number: the first field of [`ProcessHeader`].
pub const ABI_MAGIC: u64 = u64::from_le_bytes(*b"IXABI\0\0\0");

/// Environment variable that holds the address of the [`ProcessHeader`] as 16 hexadecimal digits.
pub const ENV_HEADER: &str = "IX_ABI";

/// Slots in the call array of an elastic thread.
pub const CALLS_MAX: usize = 2048;
/// Slots in the event array of an elastic thread.
pub const EVENTS_MAX: usize = 2048;
/// Entries in one scatter-gather array at most.
pub const SG_MAX: usize = 64;

/// An IPv6 address, or an IPv4 address mapped into IPv6, in network byte order.
pub type Addr = [u8; 16];

/// Dataplane's name of a flow: flow group, slot and generation. 0 is never a handle.
///
/// Only the flow group means anything to an application: see [`group_of`].
pub type Handle = u64;

/// The flow group of a flow, as [`event_kind::MIGRATED`] names it: so an application finds the
/// flows that move with it.
pub const fn group_of(handle: Handle) -> u32 {
    (handle >> 48) as u32
}

/// Application's name of a flow; the dataplane only stores and returns it.
pub type Cookie = u64;

/// Numbers of the batched system calls ([`CallSlot::op`]).
pub mod call_op {
    /// Does nothing; the slot is skipped.
    pub const NOP: u32 = 0;
    /// args: address high, address low, port, backlog (0: default), cookie. Answers a listener id.
    /// The unspecified address stands for every address of the dataplane.
    pub const LISTEN: u32 = 1;
    /// args: listener id.
    pub const UNLISTEN: u32 = 2;
    /// args: cookie, address high, address low, port | congestion control << 16 (0: as configured,
    /// else 1 + one of [`crate::flow_opt`]'s; DCTCP has to be known here, for it asks for ECN), local port
    /// (0: any). Answers a handle; the outcome comes as event `CONNECTED`.
    pub const CONNECT: u32 = 3;
    /// args: handle, cookie. Takes a flow that was announced by `KNOCK`. Its peer may have taken it
    /// back meanwhile, of which no event speaks: `BAD_HANDLE`.
    pub const ACCEPT: u32 = 4;
    /// args: handle. Refuses a knocking flow with a reset.
    pub const REJECT: u32 = 5;
    /// args: handle, pointer to [`crate::SgEntry`]s in transmit memory, number of them. Answers the
    /// bytes that the window took (from the front of the array; 0 when none).
    pub const SENDV: u32 = 6;
    /// args: handle, bytes. Gives received buffers back, oldest first, and opens the window.
    pub const RECV_DONE: u32 = 7;
    /// args: handle. Sends FIN after what was sent; receiving goes on.
    pub const SHUTDOWN: u32 = 8;
    /// args: handle. Closes both directions; the handle is dead at once, the flow ends in order.
    pub const CLOSE: u32 = 9;
    /// args: handle. Resets the connection; the handle is dead at once.
    pub const ABORT: u32 = 10;
    /// args: handle, option ([`crate::flow_opt`]), value.
    pub const SET_OPT: u32 = 11;
    /// args: handle, pointer to a [`crate::FlowInfo`] in transmit memory.
    pub const GET_INFO: u32 = 12;
    /// args: address high, address low, port, cookie. Answers a UDP socket id.
    pub const UDP_BIND: u32 = 13;
    /// args: UDP socket id.
    pub const UDP_UNBIND: u32 = 14;
    /// args: socket id | port << 32, pointer to [`crate::SgEntry`]s in transmit memory, number of
    /// them, address high, address low, cookie. Answers the bytes sent; `UDP_SENT` says when the
    /// memory is free.
    pub const UDP_SENDV: u32 = 15;
    /// args: data pointer of the `UDP_RECV` or `UDP_ERROR` event. Gives the buffer back.
    pub const UDP_RECV_DONE: u32 = 16;
    /// args: cookie, delay in µs. Answers a timer id; fires once as event `TIMER`.
    pub const TIMER_SET: u32 = 17;
    /// args: timer id.
    pub const TIMER_CANCEL: u32 = 18;
    /// args: bytes. Answers the address of that much transmit memory (2 MB steps).
    pub const TX_ALLOC: u32 = 19;
    /// args: address, bytes, as they were allocated.
    pub const TX_FREE: u32 = 20;
    /// args: handle, cookie. From now on events of the flow carry this cookie: the application's
    /// name of a flow that came with [`crate::event_kind::MIGRATED`].
    pub const SET_COOKIE: u32 = 21;
    /// No args. The application wants to leave this elastic thread: its flow groups go to the other
    /// threads, with [`crate::event_kind::MIGRATED`] of each; at the end comes
    /// [`crate::event_kind::REVOKE`] with [`crate::revoke::DRAINED`]. `STATE`: no other is active.
    pub const DRAIN: u32 = 22;
    /// args: device (0: the first), what it takes ([`crate::packet_kind`]), its number, cookie.
    /// Answers the id of a packet queue of this elastic thread: whole frames that this thread's queue
    /// pair of the device receives of that kind come as `PACKET_RECV`, and no part of the dataplane
    /// answers them. `IN_USE`: another queue or a socket has them. `NOT_LOCAL`: the device leaves them
    /// to Linux.
    pub const PACKET_BIND: u32 = 23;
    /// args: packet queue id.
    pub const PACKET_UNBIND: u32 = 24;
    /// args: packet queue id, pointer to [`crate::SgEntry`]s in transmit memory, number of them, cookie.
    /// Sends one whole frame by the queue's device, as it is: its headers and checksums are the
    /// application's. Answers its bytes; `PACKET_SENT` says when the memory is free. `FILTERED`: the
    /// vNIC may not send it.
    pub const PACKET_SENDV: u32 = 25;
    /// args: data pointer of the `PACKET_RECV` event. Gives the buffer back.
    pub const PACKET_RECV_DONE: u32 = 26;
    /// args: packet queue id, pointer to a [`crate::PacketInfo`] in transmit memory.
    pub const PACKET_INFO: u32 = 27;
    /// args: elastic thread, a number. That thread hears `SIGNAL`. Linux has a part in it only if the
    /// thread sleeps.
    pub const SIGNAL: u32 = 28;
    /// args: UDP socket id, option ([`crate::flow_opt::DSCP`], [`crate::flow_opt::HOP_LIMIT`] or
    /// [`crate::flow_opt::FRAGMENT_BYTES`]), value. Holds for what is sent from now on.
    pub const UDP_SET_OPT: u32 = 29;
    /// As `CONNECT`, from a local address of the application's choice. args: cookie, address high,
    /// address low, port | congestion control << 16 | local port << 32, local address high, low. `NOT_LOCAL`: it is none
    /// of the dataplane's; `UNREACHABLE`: it is another device's than the way to the peer.
    pub const CONNECT_FROM: u32 = 30;
}

/// What a packet queue takes ([`call_op::PACKET_BIND`]).
pub mod packet_kind {
    /// Frames of an EtherType that is none of the dataplane's: the number is 0x0600 or more, and not
    /// IPv4's, ARP's, IPv6's or a VLAN tag's. Not on an interface that is shared with Linux.
    pub const ETHER_TYPE: u64 = 1;
    /// IPv4 packets to an address of the dataplane, of a protocol that is not ICMP, TCP or UDP. Their
    /// header was checked, and those that came in fragments are whole.
    pub const IP_PROTOCOL: u64 = 2;
    /// UDP datagrams to this port. Their headers and checksum were checked. They come to the thread of
    /// their flow group, as those of sockets do.
    pub const UDP_PORT: u64 = 3;
}

/// What [`PacketInfo::flags`] is made of.
pub mod packet_flag {
    /// Received UDP datagrams may have the sum of their pseudo-header for a checksum: the sender is on
    /// this machine.
    pub const PARTIAL_CHECKSUMS: u32 = 1;
    /// The peer can still change a received frame: copy what you check.
    pub const SHARED_FRAMES: u32 = 2;
    /// Transmit filters say what may be sent. Without, it is what comes from the device's own Ethernet
    /// address and, of IPv4 and ARP, in the name of an address of the dataplane.
    pub const TX_FILTERED: u32 = 4;
    /// Receive filters say what is heard.
    pub const RX_FILTERED: u32 = 8;
    /// Other EtherTypes than IPv4's and ARP's are the dataplane's as well.
    pub const ANY_ETHER_TYPE: u32 = 16;
}

/// Options of a flow ([`call_op::SET_OPT`]).
pub mod flow_opt {
    /// 1: Nagle's algorithm on (RFC 9293 3.7.4); off by default.
    pub const NAGLE: u64 = 1;
    /// Keepalive idle time in seconds, 0: off (RFC 9293 3.8.4).
    pub const KEEPALIVE_S: u64 = 2;
    /// How long data may stay unacknowledged before the connection is given up, ms, in steps of a
    /// tenth of a second; 0: two minutes (RFC 5482). Holds for an attempt to connect, for a peer that
    /// keeps its window closed, and instead of the number of keepalive probes, too.
    pub const USER_TIMEOUT_MS: u64 = 4;
    /// Seconds between keepalive probes, up to 0x7fff; 0: as configured, 75.
    pub const KEEPALIVE_INTERVAL_S: u64 = 8;
    /// Unanswered keepalive probes that end the connection, up to 127; 0: as configured, 9.
    pub const KEEPALIVE_PROBES: u64 = 9;
    /// Differentiated services code point of the packets, 0 (default) to 63 (RFC 9293 3.9.1.9).
    pub const DSCP: u64 = 5;
    /// Hop limit of the packets, 1 to 255; as configured, 64, by default (RFC 9293 3.9.2).
    pub const HOP_LIMIT: u64 = 6;
    /// Received bytes that the application may leave unread, about; 0: as configured, and no more than
    /// that. What the window has offered by then may still come (RFC 9293 3.8.6).
    pub const RECEIVE_BYTES: u64 = 7;
    /// Of a UDP socket. 0 (default): datagrams go with DF set, and `TOO_LONG` is what is too long for the
    /// device. Else, up to 0xffff: they go without it, and in fragments those that are longer, with the IP
    /// header, than this (68 at least, RFC 791) or the device's MTU. Of fragments but the first a vNIC's
    /// filter cannot see the ports: one that names some keeps them back.
    pub const FRAGMENT_BYTES: u64 = 10;
    /// Longest segment that is sent, bytes without options, down to 88: what the peer or the path wants
    /// shorter is shorter. Holds for what is sent from now on; 0 changes nothing.
    pub const SEGMENT_BYTES: u64 = 11;
    /// Congestion control: one of the three below. DCTCP needs a flow that uses ECN.
    pub const CONGESTION: u64 = 3;
    /// RFC 9438.
    pub const CUBIC: u64 = 0;
    /// RFC 5681 and RFC 6582.
    pub const RENO: u64 = 1;
    /// RFC 8257.
    pub const DCTCP: u64 = 2;
}

/// Kinds of event conditions ([`EventSlot::kind`]).
pub mod event_kind {
    /// A peer finished its handshake with a listener: `cookie` (of the listener), `handle`,
    /// `addr` and `port` of the peer.
    pub const KNOCK: u16 = 1;
    /// Outcome of `CONNECT`: `cookie`, `handle`; `code` is 0 or a [`crate::error`].
    pub const CONNECTED: u16 = 2;
    /// In-order data: `cookie`, `handle`, `data` (address), `len`. Yours until `RECV_DONE`.
    pub const RECV: u16 = 3;
    /// The peer will send no more: `cookie`, `handle`.
    pub const EOF: u16 = 4;
    /// Acknowledged: `cookie`, `handle`, `len` bytes; `data` is the window that is free now.
    /// `len` 0 announces a window that opened after `SENDV` took less than it was given.
    pub const SENT: u16 = 5;
    /// The flow is gone, the handle stale: `cookie`, `handle`, `code` is a [`crate::dead`].
    pub const DEAD: u16 = 6;
    /// A datagram: `cookie` of the socket, `data`, `len`, `addr`, `port` of the sender; `handle` and
    /// `more` are high and low half of the address that it was sent to (`local_addr`).
    pub const UDP_RECV: u16 = 7;
    /// The memory of a datagram is free again: `cookie` of the call.
    pub const UDP_SENT: u16 = 8;
    /// An application timer fired: `cookie`.
    pub const TIMER: u16 = 9;
    /// A flow group moves: `len` = group, `code` is a [`crate::migrated`], `data` the other thread.
    /// Nothing more comes of its flows in this event array.
    pub const MIGRATED: u16 = 10;
    /// This elastic thread is taken away or given back: `data` is a [`crate::revoke`].
    pub const REVOKE: u16 = 11;
    /// A frame: `cookie` of the packet queue, `data` (address of its Ethernet header), `len`. Yours
    /// until `PACKET_RECV_DONE`.
    pub const PACKET_RECV: u16 = 12;
    /// The memory of a frame is free again: `cookie` of the call.
    pub const PACKET_SENT: u16 = 13;
    /// Another elastic thread called `SIGNAL`: `len` is its number, `data` what it said.
    pub const SIGNAL: u16 = 14;
    /// Somebody says of a datagram that was sent (RFC 1122 4.1.3.3): `cookie` of the socket, `addr` and
    /// `port` it went to; `code` is an [`crate::error`]: `REFUSED` (nobody has the port), `TOO_LONG` or
    /// `UNREACHABLE`; `notes` are ICMP's type and code (RFC 792), then the MTU of the link with
    /// `TOO_LONG` (bytes with the IP header; 0: not said), or the octet at fault with a "parameter
    /// problem"; who says so is in `handle` and `more` (`local_addr`). `data` and `len`
    /// are what the message quotes of the datagram's own bytes, yours until `UDP_RECV_DONE`; with `len` 0
    /// there are none. A hint: anybody can send such a message.
    pub const UDP_ERROR: u16 = 15;
    /// Somebody says of a packet of a flow that is under way (RFC 9293 3.8.3): `cookie`, `handle`, `code`
    /// and `notes` as with `UDP_ERROR`, `addr` of who says so. A hint too: the flow goes on, and what ends
    /// it comes as `CONNECTED` or `DEAD`. Nothing is said of a flow that was not accepted yet.
    pub const FLOW_ERROR: u16 = 16;
}

/// What [`event_kind::REVOKE`] tells ([`EventSlot::data`]).
pub mod revoke {
    /// The thread was given back, and has flow groups again.
    pub const BACK: u64 = 0;
    /// The thread is about to be taken away: after the next `RUN_IO` its flow groups leave. Then
    /// `RUN_IO` sleeps until the thread is given back, though not longer than it was told to wait, or
    /// a tenth of a second if that is more. The thread's timers go on and end the sleep.
    pub const GOES: u64 = 1;
    /// All flow groups have left, as [`crate::call_op::DRAIN`] wanted: the application may leave.
    pub const DRAINED: u64 = 2;
}

/// Error codes: a negative [`CallSlot::ret`] is minus one of these.
pub mod error {
    /// No such call.
    pub const NO_SYS: i64 = 1;
    /// An argument makes no sense.
    pub const INVALID: i64 = 2;
    /// Stale, forged or foreign handle, listener, socket or timer.
    pub const BAD_HANDLE: i64 = 3;
    /// A pointer or length outside the memory that the call may name.
    pub const FAULT: i64 = 4;
    /// Out of flows, buffers or timers: try again later.
    pub const NO_RESOURCE: i64 = 5;
    /// The port is taken.
    pub const IN_USE: i64 = 6;
    /// The local address is not ours.
    pub const NOT_LOCAL: i64 = 7;
    /// No route, or the next hop does not answer ARP.
    pub const UNREACHABLE: i64 = 8;
    /// The peer refused the connection.
    pub const REFUSED: i64 = 9;
    /// The peer did not answer in time.
    pub const TIMED_OUT: i64 = 10;
    /// The connection was reset.
    pub const RESET: i64 = 11;
    /// The flow cannot do this in its state (sending after shutdown, accepting twice).
    pub const STATE: i64 = 12;
    /// The datagram is longer than the path allows.
    pub const TOO_LONG: i64 = 13;
    /// The flow's group is another elastic thread's: call there.
    pub const MOVED: i64 = 14;
    /// The vNIC may not send this.
    pub const FILTERED: i64 = 15;
}

/// Which end of a migration [`event_kind::MIGRATED`] tells of ([`EventSlot::code`]).
pub mod migrated {
    /// On the old thread: all events of the group's flows came before this one. Calls on their
    /// handles are carried out until the next `RUN_IO` has read its calls; later ones answer
    /// [`crate::error::MOVED`]. An application whose threads keep flows to themselves hands its
    /// part of them to the new thread before that `RUN_IO`. A `CONNECT` of that `RUN_IO` begins its
    /// flow in another group.
    pub const LEAVES: u16 = 0;
    /// On the new thread: the group's flows are here, under the handles and cookies that they had.
    /// Their events begin after the next `RUN_IO`, and with the cookies that its calls have set.
    /// A flow that nobody accepted yet knocks at the new thread's listener, if it was not told
    /// before; one that was told can be accepted here.
    pub const ARRIVED: u16 = 1;
}

/// Reasons of [`event_kind::DEAD`] ([`EventSlot::code`]).
pub mod dead {
    /// Both sides closed in order.
    pub const CLOSED: u16 = 0;
    /// The peer reset the connection.
    pub const RESET: u16 = 1;
    /// Retransmissions, probes or keepalives went unanswered.
    pub const TIMED_OUT: u16 = 2;
    /// The network says that the peer cannot be reached.
    pub const UNREACHABLE: u16 = 3;
}

/// One batched system call, a cache line. The application fills `op` and `args`; the dataplane
/// reads the slot once and overwrites `ret`: >= 0 is the answer, < 0 is minus an [`error`].
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallSlot {
    /// A number of [`call_op`].
    pub op: u32,
    /// Zero.
    pub reserved: u32,
    /// Written by the dataplane.
    pub ret: i64,
    /// Meaning by `op`.
    pub args: [u64; 6],
}

/// One event condition, a cache line; which fields hold is said at [`event_kind`].
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventSlot {
    /// A number of [`event_kind`].
    pub kind: u16,
    /// Outcome or reason.
    pub code: u16,
    /// Bytes.
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
    /// Zero, or what the kind says.
    pub notes: [u16; 3],
    /// Zero, or what the kind says.
    pub more: u64,
}

/// One piece of memory of a scatter-gather array: in transmit memory, or in a received buffer
/// that was not given back yet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SgEntry {
    /// Address.
    pub base: u64,
    /// Bytes.
    pub len: u64,
}

/// What `GET_INFO` tells of a flow.
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
    /// RFC 9293 state, 1 = LISTEN … 10 = TIME-WAIT, 11 = CLOSED in the order of section
    /// 3.3.2.
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
    /// Peer's window, bytes.
    pub snd_wnd_bytes: u32,
    /// Sent and not acknowledged, bytes.
    pub in_flight_bytes: u32,
    /// Largest segment we send, bytes.
    pub mss_bytes: u32,
    /// Segments sent again since the start.
    pub retransmits: u32,
    /// Zero.
    pub reserved: u32,
}

/// What `PACKET_INFO` tells of a packet queue's device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketInfo {
    /// Its Ethernet address.
    pub mac: [u8; 6],
    /// Its number.
    pub device: u16,
    /// Longest frame that can be sent, bytes from the Ethernet header on.
    pub frame_bytes_max: u32,
    /// Of [`packet_flag`].
    pub flags: u32,
    /// Packet queues that an elastic thread can have.
    pub queues_max: u32,
    /// Frames that may be held before `PACKET_RECV_DONE`; then further ones are lost.
    pub held_max: u32,
}

/// What the application finds at the address in [`ENV_HEADER`]; read-only for it.
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
    /// Its bytes.
    pub rx_len: u64,
    /// Transmit memory: `TX_ALLOC` gives out parts of it.
    pub tx_base: u64,
    /// Its bytes.
    pub tx_len: u64,
    /// Address of the dataplane (its first one).
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
    /// Address of [`CALLS_MAX`] [`CallSlot`]s; the application writes them.
    pub calls: u64,
    /// Address of [`EVENTS_MAX`] [`EventSlot`]s; the application only reads them.
    pub events: u64,
    /// Address of the [`ThreadStatus`]; the application only reads it.
    pub status: u64,
    /// Hardware thread that the elastic thread is pinned to when entered.
    pub cpu: u32,
    /// Zero.
    pub reserved: u32,
}

/// What the dataplane tells an elastic thread besides its events.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadStatus {
    /// Time of the last cycle, µs of the dataplane's monotonic clock.
    pub now_us: u64,
    /// 1 when a Linux signal waits for the application: unblock signals, then enter again.
    pub signal_pending: u32,
    /// Zero.
    pub reserved: u32,
}

/// The gate's operations: its first argument.
pub mod gate_op {
    /// a = thread index. The calling Linux thread becomes this elastic thread: pinned, with its
    /// signals blocked. Answers 0 or minus an [`crate::error`] (`IN_USE`: somebody else is it).
    pub const ENTER: u64 = 1;
    /// a = thread index, b = calls in the array, c = longest wait in µs for an event
    /// (0: one cycle, [`WAIT_FOREVER`]: no bound). Answers the number of events.
    pub const RUN_IO: u64 = 2;
    /// a = thread index. Gives the elastic thread back: the caller is an ordinary Linux thread again,
    /// with the signal mask and the affinity that it had, and may run wherever Linux lets it. Say
    /// [`crate::call_op::DRAIN`] before: flow groups that are still here are given to the other
    /// threads, but events of theirs that nobody has read are lost. Timers of the thread end.
    pub const LEAVE: u64 = 3;
    /// a = thread index. From now on, for good, the elastic thread has no Linux thread of its own:
    /// any thread of the process may call `RUN_IO` and `WATCH` on it, one at a time (`IN_USE` for
    /// another one). The callers are neither pinned nor are their signals blocked: they see to it
    /// that no handler runs code of theirs while they are inside. For programs whose threads know
    /// nothing of elastic threads.
    pub const SHARE: u64 = 4;
    /// a = thread index. Any thread at any time, signal handlers included: a `RUN_IO` that waits
    /// comes back at once, and if none does, the next one that would.
    pub const KICK: u64 = 5;
    /// a = thread index, b = a descriptor + 1 (0: none). From now on `RUN_IO` ends its wait also
    /// when that descriptor is readable.
    pub const WATCH: u64 = 6;
    /// `RUN_IO` waits until there is an event.
    pub const WAIT_FOREVER: u64 = u64::MAX;
}

const _: () = assert!(size_of::<CallSlot>() == 64);
const _: () = assert!(size_of::<EventSlot>() == 64);
const _: () = assert!(size_of::<SgEntry>() == 16);
const _: () = assert!(size_of::<FlowInfo>() == 80);
const _: () = assert!(size_of::<PacketInfo>() == 24);
const _: () = assert!(size_of::<ProcessHeader>() == 88);
const _: () = assert!(size_of::<ThreadArea>() == 32);
const _: () = assert!(size_of::<ThreadStatus>() == 64);

/// Maps an IPv4 address (network byte order) into an [`Addr`].
pub const fn v4(a: [u8; 4]) -> Addr {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a[0], a[1], a[2], a[3]]
}
