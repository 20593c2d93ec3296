//! UDP sockets of an event loop.
use super::io::Io;
use crate::error::Error;
use crate::raw::TxBuf;
use std::net::{IpAddr, SocketAddr};

impl<S> Io<S> {
    /// Opens a UDP socket of this elastic thread and answers its id; [`Io::udp_outcome`] says what
    /// came of it ([`super::EventLoop::udp_bind`] waits for that). Other threads may bind the same
    /// port: each gets the datagrams of its flow groups. Port 0: any that is free.
    pub fn udp_bind(&mut self, at: SocketAddr) -> u64 {
        self.engine.udp_bind(at, ())
    }

    /// Whether the socket was opened, once that is known; a refused one is forgotten.
    pub fn udp_outcome(&mut self, socket: u64) -> Option<Result<(), Error>> {
        self.engine.udp_outcome(socket)
    }

    /// In [`super::Handler::on_datagram`]: the address of ours that the datagram was sent to. A
    /// socket of every address hears it here; to answer from it, bind another one to it.
    pub fn udp_asked(&self) -> Option<IpAddr> {
        self.asked
    }

    /// Sets how a socket sends from now on: `DSCP` or `HOP_LIMIT` of [`ix_abi::flow_opt`]. `false`:
    /// it is not open.
    pub fn udp_set_opt(&mut self, socket: u64, option: u64, value: u64) -> bool {
        self.engine.udp_set_opt(socket, option, value)
    }

    /// Ends a UDP socket.
    pub fn udp_unbind(&mut self, socket: u64) {
        self.engine.udp_unbind(socket);
    }

    /// Copies a datagram into transmit memory and sends it with this cycle's batch. `false`: it was
    /// not taken, for lack of memory or because the socket is not open.
    pub fn udp_send(&mut self, socket: u64, to: SocketAddr, data: &[u8]) -> bool {
        let Some(mut buf) = self.tx().alloc(data.len()) else { return false };
        buf.extend(data) == data.len() && self.udp_send_zc(socket, to, buf).is_ok()
    }

    /// Sends a whole buffer as one datagram without a copy; `Err`: it was not taken.
    pub fn udp_send_zc(&mut self, socket: u64, to: SocketAddr, buf: TxBuf) -> Result<(), TxBuf> {
        self.engine.udp_send(socket, to, buf)
    }

    /// Datagrams that were taken and then refused by the dataplane: no buffers, no route, too long.
    pub fn udp_lost(&self) -> u64 {
        self.engine.udp_lost()
    }

    pub(super) fn has_socket(&self, socket: u64) -> bool {
        self.engine.udp_state(socket).is_some()
    }
}
