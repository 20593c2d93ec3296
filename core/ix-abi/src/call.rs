//! Batched system calls as typed values, and their encoding in a [`CallSlot`].
use crate::{
    Addr, CallError, CallSlot, Cookie, FlowOption, Handle, LISTENS_TO_ALL_BUT, LISTENS_TO_ONLY,
    call_op, flow_opt,
};

/// A batched system call. The constants of [`call_op`] say what each one does and returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Does nothing; the dataplane leaves the slot's `ret` as it is.
    Nop,
    /// Listens at an address; returns a listener id.
    Listen {
        /// The local address (unspecified: every address of the dataplane) and port.
        at: Endpoint,
        /// Connections that may wait to be accepted (0: the dataplane's default).
        backlog: u32,
        /// The application's name of the listener.
        cookie: Cookie,
        /// A connection that knocks keeps its place until [`Call::Backlog`] frees it.
        holds: bool,
    },
    /// Frees places of a listener that holds them, and changes how many there are.
    Backlog {
        /// Its id.
        listener: u64,
        /// Connections that may wait to be accepted from now on; 0: as before.
        backlog: u32,
        /// How many places are free now.
        freed: u32,
    },
    /// Sets an option of the replies to SYNs, and of the connections that come of them.
    ListenOpt {
        /// Its id.
        listener: u64,
        /// Code point, hop limit or longest segment.
        option: FlowOption,
        /// Over IPv6; otherwise over IPv4.
        is_v6: bool,
    },
    /// Ends a listener.
    Unlisten {
        /// Its id.
        listener: u64,
    },
    /// Connects; returns a handle.
    Connect {
        /// The application's name of the flow.
        cookie: Cookie,
        /// The peer.
        to: Endpoint,
        /// Congestion control; `None`: as configured.
        congestion: Option<Congestion>,
        /// The local port; 0: any.
        local_port: u16,
    },
    /// Connects from a local address of the application's choice; returns a handle.
    ConnectFrom {
        /// The application's name of the flow.
        cookie: Cookie,
        /// The peer.
        to: Endpoint,
        /// Congestion control; `None`: as configured.
        congestion: Option<Congestion>,
        /// The local address (unspecified: the route's) and port (0: any).
        from: Endpoint,
    },
    /// Takes a flow that knocked.
    Accept {
        /// The flow.
        handle: Handle,
        /// The application's name of the flow.
        cookie: Cookie,
    },
    /// Refuses a flow that knocked.
    Reject {
        /// The flow.
        handle: Handle,
    },
    /// Sends; returns how many bytes the window took.
    SendV {
        /// The flow.
        handle: Handle,
        /// What to send.
        sg: SgArray,
        /// FIN follows the last byte, as by [`Call::Shutdown`], if the window takes them all.
        fin: bool,
        /// A message ends with the last byte (`MSG_EOR` of sockets), if the window takes them all:
        /// what is sent later begins a segment of its own.
        eor: bool,
        /// Bytes of received buffers that are given back first, as by [`Call::RecvDone`]; 0: none.
        done: u64,
    },
    /// Gives received buffers back, oldest first.
    RecvDone {
        /// The flow.
        handle: Handle,
        /// Bytes of these buffers.
        bytes: u64,
    },
    /// Sends FIN after what was sent.
    Shutdown {
        /// The flow.
        handle: Handle,
    },
    /// Closes both directions in order.
    Close {
        /// The flow.
        handle: Handle,
    },
    /// Resets the connection.
    Abort {
        /// The flow.
        handle: Handle,
    },
    /// Sets an option of a flow.
    SetOpt {
        /// The flow, or [`crate::OPENED_LAST`].
        handle: Handle,
        /// The option and its value.
        option: FlowOption,
    },
    /// Writes a [`crate::FlowInfo`].
    GetInfo {
        /// The flow.
        handle: Handle,
        /// Address in transmit memory that the structure is written to.
        to: u64,
    },
    /// Binds a UDP socket; returns its id.
    UdpBind {
        /// The local address (unspecified: every address of the dataplane) and port (0: any).
        at: Endpoint,
        /// The application's name of the socket.
        cookie: Cookie,
    },
    /// As [`Call::UdpBind`], where other processes of the program may have the same address and
    /// port: each of them may send. Returns the same id again when it is called again.
    UdpShare {
        /// The local address and port, which is not 0.
        at: Endpoint,
        /// The application's name of the socket.
        cookie: Cookie,
        /// The caller gets what arrives from now on, until another process does so. Without it, it
        /// gets what arrives only if no other process has the port, or when those have ended.
        takes: bool,
    },
    /// Ends a UDP socket.
    UdpUnbind {
        /// Its id.
        socket: u32,
    },
    /// Sends a datagram; returns its bytes.
    UdpSendV {
        /// Id of the socket.
        socket: u32,
        /// The receiver.
        to: Endpoint,
        /// What to send.
        sg: SgArray,
        /// Comes back with [`crate::Event::UdpSent`].
        cookie: Cookie,
    },
    /// Gives the buffer of a datagram back.
    UdpRecvDone {
        /// Address of its data.
        data: u64,
    },
    /// Sets an option of a UDP socket.
    UdpSetOpt {
        /// Id of the socket.
        socket: u32,
        /// The option and its value.
        option: FlowOption,
    },
    /// Sets which sources of a group a UDP socket listens to.
    UdpListen {
        /// Id of the socket.
        socket: u32,
        /// The group.
        group: Addr,
        /// All sources but these; else these alone.
        excludes: bool,
        /// Address in transmit memory of the sources' addresses, and their number.
        sources: SourceList,
    },
    /// Sets a timer that fires once; returns its id.
    TimerSet {
        /// The application's name of the timer.
        cookie: Cookie,
        /// When it fires, µs from now.
        delay_us: u64,
    },
    /// Stops a timer.
    TimerCancel {
        /// Its id.
        timer: u64,
    },
    /// Allocates transmit memory; returns its address.
    TxAlloc {
        /// Bytes.
        bytes: u64,
    },
    /// Frees transmit memory.
    TxFree {
        /// Its address, as it was returned.
        addr: u64,
        /// Its bytes, as they were allocated.
        bytes: u64,
    },
    /// Changes the cookie of a flow.
    SetCookie {
        /// The flow.
        handle: Handle,
        /// The application's name of the flow from now on.
        cookie: Cookie,
    },
    /// Moves the flow groups of this elastic thread to the others.
    Drain,
    /// Binds a packet queue; returns its id.
    PacketBind {
        /// Number of the device.
        device: u32,
        /// What the queue takes: a number of [`crate::packet_kind`].
        kind: u64,
        /// The EtherType, protocol or port.
        number: u64,
        /// The application's name of the queue.
        cookie: Cookie,
    },
    /// Ends a packet queue.
    PacketUnbind {
        /// Its id.
        queue: u32,
    },
    /// Sends a whole frame; returns its bytes.
    PacketSendV {
        /// Id of the packet queue.
        queue: u32,
        /// What to send.
        sg: SgArray,
        /// Comes back with [`crate::Event::PacketSent`].
        cookie: Cookie,
    },
    /// Gives the buffer of a frame back.
    PacketRecvDone {
        /// Address of the frame.
        data: u64,
    },
    /// Writes a [`crate::PacketInfo`].
    PacketInfo {
        /// Id of the packet queue.
        queue: u32,
        /// Address in transmit memory that the structure is written to.
        to: u64,
    },
    /// Gives a connection to another process of the program.
    Give {
        /// The flow.
        handle: Handle,
        /// The number of that process.
        to: u32,
        /// Comes with [`crate::Event::Given`].
        token: Cookie,
    },
    /// Sends a number to another elastic thread.
    Signal {
        /// Index of that thread.
        thread: u32,
        /// The number.
        value: u64,
    },
    /// Makes another process of the program return from its wait.
    Nudge {
        /// The number of that process.
        to: u32,
    },
}

/// An address and a port of the transport protocol, in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The address.
    pub addr: Addr,
    /// The port.
    pub port: u16,
}

/// Addresses in transmit memory, each of 16 octets. The dataplane checks both fields before it
/// reads them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SourceList {
    /// Address of the first one.
    pub addr: u64,
    /// Their number, at most [`crate::GROUP_SOURCES_MAX`].
    pub count: u64,
}

/// A scatter-gather array in transmit memory. The dataplane checks both fields before it reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SgArray {
    /// Address of the first [`crate::SgEntry`].
    pub addr: u64,
    /// Number of entries, at most [`crate::SG_MAX`].
    pub entries: u64,
}

/// Congestion control of a flow: the values of [`flow_opt::CONGESTION`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Congestion {
    /// RFC 9438.
    Cubic = flow_opt::CUBIC as u8,
    /// NewReno: RFC 5681 and RFC 6582.
    Reno = flow_opt::RENO as u8,
    /// RFC 8257.
    Dctcp = flow_opt::DCTCP as u8,
    /// BBR version 3.
    Bbr = flow_opt::BBR as u8,
}

impl Congestion {
    /// Every algorithm, in the order of the numbers.
    pub const ALL: [Congestion; 4] =
        [Congestion::Cubic, Congestion::Reno, Congestion::Dctcp, Congestion::Bbr];

    /// The name that Linux has for it.
    pub const fn name(self) -> &'static str {
        match self {
            Congestion::Cubic => "cubic",
            Congestion::Reno => "reno",
            Congestion::Dctcp => "dctcp",
            Congestion::Bbr => "bbr",
        }
    }

    /// The algorithm with this name.
    pub fn named(name: &[u8]) -> Option<Congestion> {
        Congestion::ALL.into_iter().find(|algorithm| algorithm.name().as_bytes() == name)
    }

    /// The number of [`flow_opt`].
    pub const fn number(self) -> u64 {
        self as u64
    }

    /// The algorithm with this number of [`flow_opt`].
    pub const fn from_number(number: u64) -> Option<Congestion> {
        match number {
            flow_opt::CUBIC => Some(Congestion::Cubic),
            flow_opt::RENO => Some(Congestion::Reno),
            flow_opt::DCTCP => Some(Congestion::Dctcp),
            flow_opt::BBR => Some(Congestion::Bbr),
            _ => None,
        }
    }
}

impl Call {
    /// Encodes the call into a slot whose `ret` is 0. Inlined: where the operation is known, only
    /// the stores of the arguments remain.
    #[inline(always)]
    pub const fn encode(self) -> CallSlot {
        let (op, args) = match self {
            Call::Nop => (call_op::NOP, [0; 6]),
            Call::Listen { at, backlog, cookie, holds } => {
                let [high, low] = words(at.addr);
                let args = [high, low, at.port as u64, backlog as u64, cookie, holds as u64];
                (call_op::LISTEN, args)
            }
            Call::Backlog { listener, backlog, freed } => {
                (call_op::BACKLOG, [listener, backlog as u64, freed as u64, 0, 0, 0])
            }
            Call::ListenOpt { listener, option, is_v6 } => {
                let [option, value] = option.encode();
                let version = if is_v6 { 6 } else { 4 };
                (call_op::LISTEN_OPT, [listener, option, value, version, 0, 0])
            }
            Call::Unlisten { listener } => (call_op::UNLISTEN, [listener, 0, 0, 0, 0, 0]),
            Call::Connect { cookie, to, congestion, local_port } => {
                let [high, low] = words(to.addr);
                let options = connect_word(to.port, congestion, 0);
                (call_op::CONNECT, [cookie, high, low, options, local_port as u64, 0])
            }
            Call::ConnectFrom { cookie, to, congestion, from } => {
                let [high, low] = words(to.addr);
                let options = connect_word(to.port, congestion, from.port);
                let [from_high, from_low] = words(from.addr);
                (call_op::CONNECT_FROM, [cookie, high, low, options, from_high, from_low])
            }
            Call::Accept { handle, cookie } => (call_op::ACCEPT, [handle, cookie, 0, 0, 0, 0]),
            Call::Reject { handle } => (call_op::REJECT, [handle, 0, 0, 0, 0, 0]),
            Call::SendV { handle, sg, fin, eor, done } => {
                let ends = fin as u64 | (eor as u64) << 1;
                (call_op::SENDV, [handle, sg.addr, sg.entries, ends, done, 0])
            }
            Call::RecvDone { handle, bytes } => (call_op::RECV_DONE, [handle, bytes, 0, 0, 0, 0]),
            Call::Shutdown { handle } => (call_op::SHUTDOWN, [handle, 0, 0, 0, 0, 0]),
            Call::Close { handle } => (call_op::CLOSE, [handle, 0, 0, 0, 0, 0]),
            Call::Abort { handle } => (call_op::ABORT, [handle, 0, 0, 0, 0, 0]),
            Call::SetOpt { handle, option } => {
                let [option, value] = option.encode();
                (call_op::SET_OPT, [handle, option, value, 0, 0, 0])
            }
            Call::GetInfo { handle, to } => (call_op::GET_INFO, [handle, to, 0, 0, 0, 0]),
            Call::UdpBind { at, cookie } => {
                let [high, low] = words(at.addr);
                (call_op::UDP_BIND, [high, low, at.port as u64, cookie, 0, 0])
            }
            Call::UdpShare { at, cookie, takes } => {
                let [high, low] = words(at.addr);
                let shares = SHARES + takes as u64;
                (call_op::UDP_BIND, [high, low, at.port as u64, cookie, shares, 0])
            }
            Call::UdpUnbind { socket } => (call_op::UDP_UNBIND, [socket as u64, 0, 0, 0, 0, 0]),
            Call::UdpSendV { socket, to, sg, cookie } => {
                let [high, low] = words(to.addr);
                let socket_port = socket as u64 | (to.port as u64) << 32;
                (call_op::UDP_SENDV, [socket_port, sg.addr, sg.entries, high, low, cookie])
            }
            Call::UdpRecvDone { data } => (call_op::UDP_RECV_DONE, [data, 0, 0, 0, 0, 0]),
            Call::UdpSetOpt { socket, option } => {
                let [option, value] = option.encode();
                (call_op::UDP_SET_OPT, [socket as u64, option, value, 0, 0, 0])
            }
            Call::UdpListen { socket, group, excludes, sources } => {
                let [high, low] = words(group);
                let args = [socket as u64, high, low, excludes as u64, sources.addr, sources.count];
                (call_op::UDP_LISTEN, args)
            }
            Call::TimerSet { cookie, delay_us } => {
                (call_op::TIMER_SET, [cookie, delay_us, 0, 0, 0, 0])
            }
            Call::TimerCancel { timer } => (call_op::TIMER_CANCEL, [timer, 0, 0, 0, 0, 0]),
            Call::TxAlloc { bytes } => (call_op::TX_ALLOC, [bytes, 0, 0, 0, 0, 0]),
            Call::TxFree { addr, bytes } => (call_op::TX_FREE, [addr, bytes, 0, 0, 0, 0]),
            Call::SetCookie { handle, cookie } => {
                (call_op::SET_COOKIE, [handle, cookie, 0, 0, 0, 0])
            }
            Call::Drain => (call_op::DRAIN, [0; 6]),
            Call::PacketBind { device, kind, number, cookie } => {
                (call_op::PACKET_BIND, [device as u64, kind, number, cookie, 0, 0])
            }
            Call::PacketUnbind { queue } => (call_op::PACKET_UNBIND, [queue as u64, 0, 0, 0, 0, 0]),
            Call::PacketSendV { queue, sg, cookie } => {
                (call_op::PACKET_SENDV, [queue as u64, sg.addr, sg.entries, cookie, 0, 0])
            }
            Call::PacketRecvDone { data } => (call_op::PACKET_RECV_DONE, [data, 0, 0, 0, 0, 0]),
            Call::PacketInfo { queue, to } => {
                (call_op::PACKET_INFO, [queue as u64, to, 0, 0, 0, 0])
            }
            Call::Give { handle, to, token } => {
                (call_op::GIVE, [handle, to as u64, token, 0, 0, 0])
            }
            Call::Signal { thread, value } => (call_op::SIGNAL, [thread as u64, value, 0, 0, 0, 0]),
            Call::Nudge { to } => (call_op::NUDGE, [to as u64, 0, 0, 0, 0, 0]),
        };
        CallSlot { op, reserved: 0, ret: 0, args }
    }

    /// Decodes a slot, whatever bits it holds. Arguments that the call does not have are ignored.
    ///
    /// # Errors
    /// [`CallError::NoSys`] for an operation that is not in [`call_op`], [`CallError::BadHandle`]
    /// for a socket or packet queue whose number is too large, [`CallError::Invalid`] for any other
    /// argument that is too large for its type, and for an unknown option.
    #[inline(always)]
    pub fn decode(slot: &CallSlot) -> Result<Call, CallError> {
        let a = &slot.args;
        Ok(match slot.op {
            call_op::NOP => Call::Nop,
            call_op::SENDV => Call::SendV {
                handle: a[0],
                sg: sg(a[1], a[2]),
                fin: a[3] & 1 != 0,
                eor: a[3] & 2 != 0,
                done: a[4],
            },
            call_op::RECV_DONE => Call::RecvDone { handle: a[0], bytes: a[1] },
            call_op::ACCEPT => Call::Accept { handle: a[0], cookie: a[1] },
            call_op::REJECT => Call::Reject { handle: a[0] },
            call_op::CLOSE => Call::Close { handle: a[0] },
            call_op::ABORT => Call::Abort { handle: a[0] },
            call_op::SHUTDOWN => Call::Shutdown { handle: a[0] },
            call_op::CONNECT => Call::Connect {
                cookie: a[0],
                to: Endpoint { addr: addr(a[1], a[2]), port: number(a[3] & !CONGESTION_BITS)? },
                congestion: congestion(a[3])?,
                local_port: number(a[4])?,
            },
            call_op::CONNECT_FROM => Call::ConnectFrom {
                cookie: a[0],
                to: Endpoint { addr: addr(a[1], a[2]), port: a[3] as u16 },
                congestion: congestion(a[3])?,
                from: Endpoint { addr: addr(a[4], a[5]), port: number(a[3] >> 32)? },
            },
            call_op::LISTEN => Call::Listen {
                at: Endpoint { addr: addr(a[0], a[1]), port: number(a[2])? },
                backlog: number(a[3])?,
                cookie: a[4],
                holds: match a[5] {
                    0 => false,
                    1 => true,
                    _ => return Err(CallError::Invalid),
                },
            },
            call_op::BACKLOG => {
                Call::Backlog { listener: a[0], backlog: number(a[1])?, freed: number(a[2])? }
            }
            call_op::UNLISTEN => Call::Unlisten { listener: a[0] },
            call_op::SET_COOKIE => Call::SetCookie { handle: a[0], cookie: a[1] },
            call_op::DRAIN => Call::Drain,
            call_op::SET_OPT => {
                Call::SetOpt { handle: a[0], option: FlowOption::decode(a[1], a[2])? }
            }
            call_op::GET_INFO => Call::GetInfo { handle: a[0], to: a[1] },
            call_op::UDP_BIND => {
                let at = Endpoint { addr: addr(a[0], a[1]), port: number(a[2])? };
                match a[4] {
                    0 => Call::UdpBind { at, cookie: a[3] },
                    SHARES => Call::UdpShare { at, cookie: a[3], takes: false },
                    SHARES_AND_TAKES => Call::UdpShare { at, cookie: a[3], takes: true },
                    _ => return Err(CallError::Invalid),
                }
            }
            call_op::UDP_UNBIND => Call::UdpUnbind { socket: id(a[0])? },
            call_op::UDP_SENDV => Call::UdpSendV {
                socket: a[0] as u32,
                to: Endpoint { addr: addr(a[3], a[4]), port: number(a[0] >> 32)? },
                sg: sg(a[1], a[2]),
                cookie: a[5],
            },
            call_op::UDP_RECV_DONE => Call::UdpRecvDone { data: a[0] },
            call_op::UDP_SET_OPT => {
                Call::UdpSetOpt { socket: id(a[0])?, option: FlowOption::decode(a[1], a[2])? }
            }
            call_op::UDP_LISTEN => Call::UdpListen {
                socket: id(a[0])?,
                group: addr(a[1], a[2]),
                excludes: match a[3] {
                    LISTENS_TO_ONLY => false,
                    LISTENS_TO_ALL_BUT => true,
                    _ => return Err(CallError::Invalid),
                },
                sources: SourceList { addr: a[4], count: a[5] },
            },
            call_op::TIMER_SET => Call::TimerSet { cookie: a[0], delay_us: a[1] },
            call_op::TIMER_CANCEL => Call::TimerCancel { timer: a[0] },
            call_op::TX_ALLOC => Call::TxAlloc { bytes: a[0] },
            call_op::TX_FREE => Call::TxFree { addr: a[0], bytes: a[1] },
            call_op::PACKET_BIND => {
                Call::PacketBind { device: number(a[0])?, kind: a[1], number: a[2], cookie: a[3] }
            }
            call_op::PACKET_UNBIND => Call::PacketUnbind { queue: id(a[0])? },
            call_op::PACKET_SENDV => {
                Call::PacketSendV { queue: id(a[0])?, sg: sg(a[1], a[2]), cookie: a[3] }
            }
            call_op::PACKET_RECV_DONE => Call::PacketRecvDone { data: a[0] },
            call_op::PACKET_INFO => Call::PacketInfo { queue: id(a[0])?, to: a[1] },
            call_op::GIVE => Call::Give { handle: a[0], to: number(a[1])?, token: a[2] },
            call_op::SIGNAL => Call::Signal { thread: number(a[0])?, value: a[1] },
            call_op::NUDGE => Call::Nudge { to: number(a[0])? },
            call_op::LISTEN_OPT => Call::ListenOpt {
                listener: a[0],
                option: FlowOption::decode(a[1], a[2])?,
                is_v6: match a[3] {
                    4 => false,
                    6 => true,
                    _ => return Err(CallError::Invalid),
                },
            },
            _ => return Err(CallError::NoSys),
        })
    }

    /// The handle of the flow that the call names, if it names one.
    #[inline]
    pub const fn handle(&self) -> Option<Handle> {
        match *self {
            Call::Accept { handle, .. }
            | Call::Reject { handle }
            | Call::SendV { handle, .. }
            | Call::RecvDone { handle, .. }
            | Call::Shutdown { handle }
            | Call::Close { handle }
            | Call::Abort { handle }
            | Call::SetOpt { handle, .. }
            | Call::GetInfo { handle, .. }
            | Call::Give { handle, .. }
            | Call::SetCookie { handle, .. } => Some(handle),
            _ => None,
        }
    }
}

/// Congestion control in the options word of `CONNECT` and `CONNECT_FROM`: 0 for the configured
/// one, else 1 + a number of [`flow_opt`].
const CONGESTION_BITS: u64 = 0xffff << 16;
/// Of [`Call::UdpShare`], in a word that [`Call::UdpBind`] leaves 0.
const SHARES: u64 = 1;
const SHARES_AND_TAKES: u64 = 2;

/// The options word of `CONNECT` and `CONNECT_FROM`. The peer's port is in its low 16 bits.
const fn connect_word(port: u16, congestion: Option<Congestion>, local_port: u16) -> u64 {
    let congestion = match congestion {
        None => 0,
        Some(algorithm) => 1 + algorithm.number(),
    };
    port as u64 | congestion << 16 | (local_port as u64) << 32
}

fn congestion(word: u64) -> Result<Option<Congestion>, CallError> {
    match (word & CONGESTION_BITS) >> 16 {
        0 => Ok(None),
        n => Congestion::from_number(n - 1).map(Some).ok_or(CallError::Invalid),
    }
}

/// The high and the low half of an address.
pub(crate) const fn words(addr: Addr) -> [u64; 2] {
    let value = u128::from_be_bytes(addr);
    [(value >> 64) as u64, value as u64]
}

/// The address with these halves.
pub(crate) const fn addr(high: u64, low: u64) -> Addr {
    ((high as u128) << 64 | low as u128).to_be_bytes()
}

const fn sg(addr: u64, entries: u64) -> SgArray {
    SgArray { addr, entries }
}

fn number<T: TryFrom<u64>>(word: u64) -> Result<T, CallError> {
    T::try_from(word).map_err(|_| CallError::Invalid)
}

fn id(word: u64) -> Result<u32, CallError> {
    u32::try_from(word).map_err(|_| CallError::BadHandle)
}
