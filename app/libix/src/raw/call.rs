//! Constructors of batched system calls. [`ix_abi::Call`] describes them.
use crate::addr;
use ix_abi::{Call, Congestion, Cookie, FlowOption, Handle, SourceList};
use std::net::{IpAddr, SocketAddr};

/// A batched system call, ready for [`super::Thread::push`].
#[derive(Clone, Copy, Debug)]
pub struct Batched(pub(super) Call);

impl Batched {
    /// Sets the congestion control of a new flow in a [`connect`] or [`connect_from`]. Other calls
    /// stay unchanged.
    pub fn with_congestion(mut self, algorithm: Congestion) -> Batched {
        match &mut self.0 {
            Call::Connect { congestion, .. } | Call::ConnectFrom { congestion, .. } => {
                *congestion = Some(algorithm);
            }
            _ => debug_assert!(false, "not a connection attempt"),
        }
        self
    }

    /// The flow of the call.
    pub(crate) fn handle(&self) -> Option<Handle> {
        self.0.handle()
    }
}

impl Batched {
    /// Whether the call names a connection by its cookie, or gives memory back: only the engine
    /// makes such calls.
    pub(crate) fn is_engines(&self) -> bool {
        matches!(
            self.0,
            Call::Connect { .. }
                | Call::ConnectFrom { .. }
                | Call::Accept { .. }
                | Call::SetCookie { .. }
                | Call::Give { .. }
                | Call::RecvDone { .. }
                | Call::UdpRecvDone { .. }
                | Call::Close { .. }
                | Call::Abort { .. }
        )
    }
}

/// Returns a listener id. `backlog` 0: the dataplane's default.
pub fn listen(at: SocketAddr, backlog: u32, cookie: Cookie) -> Batched {
    Batched(Call::Listen { at: addr::endpoint(at), backlog, cookie, holds: false })
}

/// The same, where a connection that knocks keeps its place in the backlog until [`backlog`] frees
/// it.
pub fn listen_holding(at: SocketAddr, backlog: u32, cookie: Cookie) -> Batched {
    Batched(Call::Listen { at: addr::endpoint(at), backlog, cookie, holds: true })
}

/// Changes the backlog of a listener (0: leaves it), and frees places that it holds.
pub fn backlog(listener: u64, backlog: u32, freed: u32) -> Batched {
    Batched(Call::Backlog { listener, backlog, freed })
}

/// Sets code point, hop limit or longest segment of the replies to SYNs, over IPv6 or IPv4, and of
/// the connections that come of them.
pub fn listen_opt(listener: u64, option: FlowOption, is_v6: bool) -> Batched {
    Batched(Call::ListenOpt { listener, option, is_v6 })
}

/// Closes a listener.
pub fn unlisten(listener: u64) -> Batched {
    Batched(Call::Unlisten { listener })
}

/// Returns a handle; an event reports the outcome. `local_port` 0: any.
pub fn connect(cookie: Cookie, to: SocketAddr, local_port: u16) -> Batched {
    Batched(Call::Connect { cookie, to: addr::endpoint(to), congestion: None, local_port })
}

/// As [`connect`], from this address and port of ours (0: any).
pub fn connect_from(cookie: Cookie, to: SocketAddr, from: SocketAddr) -> Batched {
    let (to, from) = (addr::endpoint(to), addr::endpoint(from));
    Batched(Call::ConnectFrom { cookie, to, congestion: None, from })
}

/// Accepts a flow that knocked.
pub fn accept(handle: Handle, cookie: Cookie) -> Batched {
    Batched(Call::Accept { handle, cookie })
}

/// Rejects a flow that knocked.
pub fn reject(handle: Handle) -> Batched {
    Batched(Call::Reject { handle })
}

/// Gives a flow another cookie, from the next event on.
pub fn set_cookie(handle: Handle, cookie: Cookie) -> Batched {
    Batched(Call::SetCookie { handle, cookie })
}

/// Gives received bytes back, oldest first. Their memory must not be read afterwards; the caller
/// promises that at [`super::Received::bytes`].
pub fn recv_done(handle: Handle, bytes: u64) -> Batched {
    Batched(Call::RecvDone { handle, bytes })
}

/// Sends FIN after the bytes sent before.
pub fn shutdown(handle: Handle) -> Batched {
    Batched(Call::Shutdown { handle })
}

/// Closes the flow; its handle becomes invalid.
pub fn close(handle: Handle) -> Batched {
    Batched(Call::Close { handle })
}

/// Resets the flow; its handle becomes invalid.
pub fn abort(handle: Handle) -> Batched {
    Batched(Call::Abort { handle })
}

/// Sets an option of a flow, or of [`ix_abi::OPENED_LAST`].
pub fn set_opt(handle: Handle, option: FlowOption) -> Batched {
    Batched(Call::SetOpt { handle, option })
}

/// Returns a UDP socket id.
pub fn udp_bind(at: SocketAddr, cookie: Cookie) -> Batched {
    Batched(Call::UdpBind { at: addr::endpoint(at), cookie })
}

/// Returns a UDP socket id. Other processes of the program may have the same address and port; with
/// `takes`, what arrives there is the caller's from now on.
pub fn udp_share(at: SocketAddr, cookie: Cookie, takes: bool) -> Batched {
    Batched(Call::UdpShare { at: addr::endpoint(at), cookie, takes })
}

/// Closes a UDP socket.
pub fn udp_unbind(socket: u64) -> Batched {
    Batched(Call::UdpUnbind { socket: id(socket) })
}

/// Sets an option of a UDP socket: code point, hop limit, or which datagrams go in fragments.
pub fn udp_set_opt(socket: u64, option: FlowOption) -> Batched {
    Batched(Call::UdpSetOpt { socket: id(socket), option })
}

/// Sets which sources of a group a UDP socket listens to: all but these, or these alone; without
/// any it leaves the group. `sources`: address in transmit memory of their addresses
/// ([`address`]), which stay until the call has returned, and their number.
pub fn udp_listen(socket: u64, group: IpAddr, excludes: bool, sources: (u64, u64)) -> Batched {
    let sources = SourceList { addr: sources.0, count: sources.1 };
    Batched(Call::UdpListen { socket: id(socket), group: addr::to_abi(group), excludes, sources })
}

/// An address as the contract has it.
pub fn address(of: IpAddr) -> ix_abi::Addr {
    addr::to_abi(of)
}

/// Gives the buffer of a datagram back.
pub fn udp_recv_done(data: super::Received) -> Batched {
    Batched(Call::UdpRecvDone { data: data.base() })
}

/// Returns the id of a packet queue on a device: it receives frames of a kind of
/// [`ix_abi::packet_kind`] with this number.
pub fn packet_bind(device: u32, kind: u64, number: u64, cookie: Cookie) -> Batched {
    Batched(Call::PacketBind { device, kind, number, cookie })
}

/// Closes a packet queue.
pub fn packet_unbind(queue: u64) -> Batched {
    Batched(Call::PacketUnbind { queue: id(queue) })
}

/// Gives the buffer of a frame back.
pub fn packet_recv_done(data: super::Received) -> Batched {
    Batched(Call::PacketRecvDone { data: data.base() })
}

/// Gives a connection to another process of the program ([`super::Process::attachment`]), which
/// hears [`super::Event::Given`] with `token`. The caller reads nothing of it any more; `Sent` goes
/// on to say when the memory is free of what it has sent. Refused ([`ix_abi::CallError::State`])
/// while the connection's flow group moves between elastic threads: the caller keeps it, and may
/// ask again when its group has arrived.
pub fn give(handle: Handle, to: u32, token: Cookie) -> Batched {
    Batched(Call::Give { handle, to, token })
}

/// The connection stays with the caller, and goes to another process of the program when the caller
/// has ended, which hears [`super::Event::Given`] with `token`; 0: it is closed then.
pub fn give_at_end(handle: Handle, token: Cookie) -> Batched {
    Batched(Call::Give { handle, to: ix_abi::GIVE_AT_END, token })
}

/// Makes another process of the program ([`super::Process::attachment`]) return from its wait, with
/// [`super::Event::Signal`] and the number 0.
pub fn nudge(to: u32) -> Batched {
    Batched(Call::Nudge { to })
}

/// Sends a number to another elastic thread.
pub fn signal(thread: u32, value: u64) -> Batched {
    Batched(Call::Signal { thread, value })
}

/// Returns the id of a timer that fires once.
pub fn timer_set(cookie: Cookie, delay_us: u64) -> Batched {
    Batched(Call::TimerSet { cookie, delay_us })
}

/// Stops a timer.
pub fn timer_cancel(timer: u64) -> Batched {
    Batched(Call::TimerCancel { timer })
}

/// Moves the flow groups of this thread to the others, so that it can leave
/// ([`super::Event::Drained`]).
pub fn drain() -> Batched {
    Batched(Call::Drain)
}

/// Returns the address of `bytes` of transmit memory, for [`super::Thread::adopt_tx`].
pub fn tx_alloc(bytes: u64) -> Batched {
    Batched(Call::TxAlloc { bytes })
}

/// Number of a socket or packet queue in the contract. The dataplane gives out 32 bits; a longer
/// number, which a program made up, names none.
pub(super) fn id(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
