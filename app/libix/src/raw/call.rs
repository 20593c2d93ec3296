//! Batched system calls, one constructor each. [`ix_abi::Call`] says what they mean.
use super::TxBuf;
use crate::addr;
use ix_abi::{Call, Congestion, Cookie, FlowInfo, Handle, PacketInfo};
use std::net::SocketAddr;

/// A batched system call, ready for [`super::Thread::push`].
#[derive(Clone, Copy, Debug)]
pub struct Batched(pub(super) Call);

impl Batched {
    /// A [`connect`] or [`connect_from`] of a flow that begins with this congestion control. Any other
    /// call stays as it is.
    pub fn with_congestion(mut self, algorithm: Congestion) -> Batched {
        match &mut self.0 {
            Call::Connect { congestion, .. } | Call::ConnectFrom { congestion, .. } => {
                *congestion = Some(algorithm);
            }
            _ => debug_assert!(false, "not a connection attempt"),
        }
        self
    }

    /// The flow that it is about.
    pub(crate) fn handle(&self) -> Option<Handle> {
        self.0.handle()
    }
}

impl Batched {
    /// Whether it names a connection by its cookie, or gives memory back: the engine makes such
    /// calls itself.
    pub(crate) fn is_engines(&self) -> bool {
        matches!(
            self.0,
            Call::Connect { .. }
                | Call::ConnectFrom { .. }
                | Call::Accept { .. }
                | Call::SetCookie { .. }
                | Call::RecvDone { .. }
                | Call::UdpRecvDone { .. }
                | Call::Close { .. }
                | Call::Abort { .. }
        )
    }
}

/// Answers a listener id. `backlog` 0: the dataplane's default.
pub fn listen(at: SocketAddr, backlog: u32, cookie: Cookie) -> Batched {
    Batched(Call::Listen { at: addr::endpoint(at), backlog, cookie })
}

/// Ends a listener.
pub fn unlisten(listener: u64) -> Batched {
    Batched(Call::Unlisten { listener })
}

/// Answers a handle; the outcome comes as an event. `local_port` 0: any.
pub fn connect(cookie: Cookie, to: SocketAddr, local_port: u16) -> Batched {
    Batched(Call::Connect { cookie, to: addr::endpoint(to), congestion: None, local_port })
}

/// As [`connect`], from this address of ours and port (0: any).
pub fn connect_from(cookie: Cookie, to: SocketAddr, from: SocketAddr) -> Batched {
    let (to, from) = (addr::endpoint(to), addr::endpoint(from));
    Batched(Call::ConnectFrom { cookie, to, congestion: None, from })
}

/// Takes a flow that knocked.
pub fn accept(handle: Handle, cookie: Cookie) -> Batched {
    Batched(Call::Accept { handle, cookie })
}

/// Refuses a flow that knocked.
pub fn reject(handle: Handle) -> Batched {
    Batched(Call::Reject { handle })
}

/// Gives a flow another cookie, from the next event on.
pub fn set_cookie(handle: Handle, cookie: Cookie) -> Batched {
    Batched(Call::SetCookie { handle, cookie })
}

/// Gives received bytes back, oldest first. Memory of theirs must not be read afterwards; that
/// promise is made at [`super::Received::bytes`].
pub fn recv_done(handle: Handle, bytes: u64) -> Batched {
    Batched(Call::RecvDone { handle, bytes })
}

/// Sends FIN after what was sent.
pub fn shutdown(handle: Handle) -> Batched {
    Batched(Call::Shutdown { handle })
}

/// Ends the flow in order; the handle is dead.
pub fn close(handle: Handle) -> Batched {
    Batched(Call::Close { handle })
}

/// Resets the flow; the handle is dead.
pub fn abort(handle: Handle) -> Batched {
    Batched(Call::Abort { handle })
}

/// Sets an option of [`ix_abi::flow_opt`].
pub fn set_opt(handle: Handle, option: u64, value: u64) -> Batched {
    Batched(Call::SetOpt { handle, option, value })
}

/// Writes an [`ix_abi::FlowInfo`] into `to`, to be read by [`flow_info`] once the call was
/// answered. Keep the buffer until then.
pub fn get_info(handle: Handle, to: &mut TxBuf) -> Batched {
    to.clear();
    to.extend(&[0; size_of::<FlowInfo>()]);
    Batched(Call::GetInfo { handle, to: to.base() })
}

/// What [`get_info`] has written.
pub fn flow_info(from: &TxBuf) -> Option<FlowInfo> {
    let bytes = from.get(..size_of::<FlowInfo>())?;
    // SAFETY: that many bytes are readable, and any bytes are a `FlowInfo`.
    Some(unsafe { bytes.as_ptr().cast::<FlowInfo>().read_unaligned() })
}

/// Answers a UDP socket id.
pub fn udp_bind(at: SocketAddr, cookie: Cookie) -> Batched {
    Batched(Call::UdpBind { at: addr::endpoint(at), cookie })
}

/// Ends a UDP socket.
pub fn udp_unbind(socket: u64) -> Batched {
    Batched(Call::UdpUnbind { socket: id(socket) })
}

/// Sets how a UDP socket sends: `DSCP` or `HOP_LIMIT` of [`ix_abi::flow_opt`].
pub fn udp_set_opt(socket: u64, option: u64, value: u64) -> Batched {
    Batched(Call::UdpSetOpt { socket: id(socket), option, value })
}

/// Gives the buffer of a datagram back.
pub fn udp_recv_done(data: super::Received) -> Batched {
    Batched(Call::UdpRecvDone { data: data.base() })
}

/// Answers the id of a packet queue on a device: it takes frames of a kind of
/// [`ix_abi::packet_kind`] with this number.
pub fn packet_bind(device: u32, kind: u64, number: u64, cookie: Cookie) -> Batched {
    Batched(Call::PacketBind { device, kind, number, cookie })
}

/// Ends a packet queue.
pub fn packet_unbind(queue: u64) -> Batched {
    Batched(Call::PacketUnbind { queue: id(queue) })
}

/// Gives the buffer of a frame back.
pub fn packet_recv_done(data: super::Received) -> Batched {
    Batched(Call::PacketRecvDone { data: data.base() })
}

/// Writes an [`ix_abi::PacketInfo`] into `to`, to be read by [`packet_info_in`] once the call was
/// answered. Keep the buffer until then.
pub fn packet_info(queue: u64, to: &mut TxBuf) -> Batched {
    to.clear();
    to.extend(&[0; size_of::<PacketInfo>()]);
    Batched(Call::PacketInfo { queue: id(queue), to: to.base() })
}

/// What [`packet_info`] has written.
pub fn packet_info_in(from: &TxBuf) -> Option<PacketInfo> {
    let bytes = from.get(..size_of::<PacketInfo>())?;
    // SAFETY: that many bytes are readable, and any bytes are a `PacketInfo`.
    Some(unsafe { bytes.as_ptr().cast::<PacketInfo>().read_unaligned() })
}

/// Has another elastic thread hear a number.
pub fn signal(thread: u32, value: u64) -> Batched {
    Batched(Call::Signal { thread, value })
}

/// Answers a timer id; fires once.
pub fn timer_set(cookie: Cookie, delay_us: u64) -> Batched {
    Batched(Call::TimerSet { cookie, delay_us })
}

/// Stops a timer.
pub fn timer_cancel(timer: u64) -> Batched {
    Batched(Call::TimerCancel { timer })
}

/// Has the flow groups of this thread go to the others, so that it can leave
/// ([`super::Event::Drained`]).
pub fn drain() -> Batched {
    Batched(Call::Drain)
}

/// Answers the address of `bytes` of transmit memory, for [`super::Thread::adopt_tx`].
pub fn tx_alloc(bytes: u64) -> Batched {
    Batched(Call::TxAlloc { bytes })
}

/// The number of a socket or packet queue as the contract has it. The dataplane gave it out with 32
/// bits; a program that made up a longer one names none.
pub(super) fn id(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
