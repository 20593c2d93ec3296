//! Batched system calls, one constructor each. [`ix_abi::call_op`] says what they mean.
use super::TxBuf;
use crate::addr;
use ix_abi::{Call, Cookie, FlowInfo, Handle, PacketInfo, call_op};
use std::net::SocketAddr;

/// A batched system call, ready for [`super::Thread::push`].
#[derive(Clone, Copy, Debug)]
pub struct Batched(pub(super) Call);

impl Batched {
    /// A [`connect`] or [`connect_from`] of a flow that begins with one of [`ix_abi::flow_opt`]'s
    /// congestion controls.
    pub fn with_congestion(mut self, algorithm: u64) -> Batched {
        debug_assert!(matches!(self.0.op, call_op::CONNECT | call_op::CONNECT_FROM));
        self.0.args[3] |= (1 + algorithm) << 16;
        self
    }

    /// The flow that it is about.
    pub(crate) fn handle(&self) -> Option<Handle> {
        use call_op::*;
        let about_flow = matches!(
            self.0.op,
            ACCEPT
                | REJECT
                | SENDV
                | RECV_DONE
                | SHUTDOWN
                | CLOSE
                | ABORT
                | SET_OPT
                | GET_INFO
                | SET_COOKIE
        );
        about_flow.then_some(self.0.args[0])
    }
}

impl Batched {
    /// Whether it names a connection by its cookie, or gives memory back: the engine makes such
    /// calls itself.
    pub(crate) fn is_engines(&self) -> bool {
        use call_op::*;
        matches!(
            self.0.op,
            CONNECT
                | CONNECT_FROM
                | ACCEPT
                | SET_COOKIE
                | RECV_DONE
                | UDP_RECV_DONE
                | CLOSE
                | ABORT
        )
    }
}

pub(super) fn batched<const N: usize>(op: u32, args: [u64; N]) -> Batched {
    let mut call = Call { op, ..Call::default() };
    call.args[..N].copy_from_slice(&args);
    Batched(call)
}

/// Answers a listener id. `backlog` 0: the dataplane's default.
pub fn listen(at: SocketAddr, backlog: u32, cookie: Cookie) -> Batched {
    let [high, low] = addr::words(addr::to_abi(at.ip()));
    batched(call_op::LISTEN, [high, low, at.port().into(), backlog.into(), cookie])
}

/// Ends a listener.
pub fn unlisten(listener: u64) -> Batched {
    batched(call_op::UNLISTEN, [listener])
}

/// Answers a handle; the outcome comes as an event. `local_port` 0: any.
pub fn connect(cookie: Cookie, to: SocketAddr, local_port: u16) -> Batched {
    let [high, low] = addr::words(addr::to_abi(to.ip()));
    batched(call_op::CONNECT, [cookie, high, low, to.port().into(), local_port.into()])
}

/// As [`connect`], from this address of ours and port (0: any).
pub fn connect_from(cookie: Cookie, to: SocketAddr, from: SocketAddr) -> Batched {
    let [high, low] = addr::words(addr::to_abi(to.ip()));
    let [from_high, from_low] = addr::words(addr::to_abi(from.ip()));
    let ports = u64::from(to.port()) | u64::from(from.port()) << 32;
    batched(call_op::CONNECT_FROM, [cookie, high, low, ports, from_high, from_low])
}

/// Takes a flow that knocked.
pub fn accept(handle: Handle, cookie: Cookie) -> Batched {
    batched(call_op::ACCEPT, [handle, cookie])
}

/// Refuses a flow that knocked.
pub fn reject(handle: Handle) -> Batched {
    batched(call_op::REJECT, [handle])
}

/// Gives a flow another cookie, from the next event on.
pub fn set_cookie(handle: Handle, cookie: Cookie) -> Batched {
    batched(call_op::SET_COOKIE, [handle, cookie])
}

/// Gives received bytes back, oldest first. Memory of theirs must not be read afterwards; that
/// promise is made at [`super::Received::bytes`].
pub fn recv_done(handle: Handle, bytes: u64) -> Batched {
    batched(call_op::RECV_DONE, [handle, bytes])
}

/// Sends FIN after what was sent.
pub fn shutdown(handle: Handle) -> Batched {
    batched(call_op::SHUTDOWN, [handle])
}

/// Ends the flow in order; the handle is dead.
pub fn close(handle: Handle) -> Batched {
    batched(call_op::CLOSE, [handle])
}

/// Resets the flow; the handle is dead.
pub fn abort(handle: Handle) -> Batched {
    batched(call_op::ABORT, [handle])
}

/// Sets an option of [`ix_abi::flow_opt`].
pub fn set_opt(handle: Handle, option: u64, value: u64) -> Batched {
    batched(call_op::SET_OPT, [handle, option, value])
}

/// Writes an [`ix_abi::FlowInfo`] into `to`, to be read by [`flow_info`] once the call was
/// answered. Keep the buffer until then.
pub fn get_info(handle: Handle, to: &mut TxBuf) -> Batched {
    to.clear();
    to.extend(&[0; size_of::<FlowInfo>()]);
    batched(call_op::GET_INFO, [handle, to.base()])
}

/// What [`get_info`] has written.
pub fn flow_info(from: &TxBuf) -> Option<FlowInfo> {
    let bytes = from.get(..size_of::<FlowInfo>())?;
    // SAFETY: that many bytes are readable, and any bytes are a `FlowInfo`.
    Some(unsafe { bytes.as_ptr().cast::<FlowInfo>().read_unaligned() })
}

/// Answers a UDP socket id.
pub fn udp_bind(at: SocketAddr, cookie: Cookie) -> Batched {
    let [high, low] = addr::words(addr::to_abi(at.ip()));
    batched(call_op::UDP_BIND, [high, low, at.port().into(), cookie])
}

/// Ends a UDP socket.
pub fn udp_unbind(socket: u64) -> Batched {
    batched(call_op::UDP_UNBIND, [socket])
}

/// Sets how a UDP socket sends: `DSCP` or `HOP_LIMIT` of [`ix_abi::flow_opt`].
pub fn udp_set_opt(socket: u64, option: u64, value: u64) -> Batched {
    batched(call_op::UDP_SET_OPT, [socket, option, value])
}

/// Gives the buffer of a datagram back.
pub fn udp_recv_done(data: super::Received) -> Batched {
    batched(call_op::UDP_RECV_DONE, [data.base()])
}

/// Answers the id of a packet queue on a device: it takes frames of a kind of
/// [`ix_abi::packet_kind`] with this number.
pub fn packet_bind(device: u32, kind: u64, number: u64, cookie: Cookie) -> Batched {
    batched(call_op::PACKET_BIND, [device.into(), kind, number, cookie])
}

/// Ends a packet queue.
pub fn packet_unbind(queue: u64) -> Batched {
    batched(call_op::PACKET_UNBIND, [queue])
}

/// Gives the buffer of a frame back.
pub fn packet_recv_done(data: super::Received) -> Batched {
    batched(call_op::PACKET_RECV_DONE, [data.base()])
}

/// Writes an [`ix_abi::PacketInfo`] into `to`, to be read by [`packet_info_in`] once the call was
/// answered. Keep the buffer until then.
pub fn packet_info(queue: u64, to: &mut TxBuf) -> Batched {
    to.clear();
    to.extend(&[0; size_of::<PacketInfo>()]);
    batched(call_op::PACKET_INFO, [queue, to.base()])
}

/// What [`packet_info`] has written.
pub fn packet_info_in(from: &TxBuf) -> Option<PacketInfo> {
    let bytes = from.get(..size_of::<PacketInfo>())?;
    // SAFETY: that many bytes are readable, and any bytes are a `PacketInfo`.
    Some(unsafe { bytes.as_ptr().cast::<PacketInfo>().read_unaligned() })
}

/// Has another elastic thread hear a number.
pub fn signal(thread: u32, value: u64) -> Batched {
    batched(call_op::SIGNAL, [thread.into(), value])
}

/// Answers a timer id; fires once.
pub fn timer_set(cookie: Cookie, delay_us: u64) -> Batched {
    batched(call_op::TIMER_SET, [cookie, delay_us])
}

/// Stops a timer.
pub fn timer_cancel(timer: u64) -> Batched {
    batched(call_op::TIMER_CANCEL, [timer])
}

/// Has the flow groups of this thread go to the others, so that it can leave
/// ([`super::Event::Drained`]).
pub fn drain() -> Batched {
    batched(call_op::DRAIN, [])
}

/// Answers the address of `bytes` of transmit memory, for [`super::Thread::adopt_tx`].
pub fn tx_alloc(bytes: u64) -> Batched {
    batched(call_op::TX_ALLOC, [bytes])
}
