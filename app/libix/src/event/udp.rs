//! UDP sockets of an event loop.
use super::io::Io;
use crate::error::Error;
use crate::raw::TxBuf;
use ix_abi::FlowOption;
use std::net::{IpAddr, SocketAddr};

impl<S> Io<S> {
    /// Opens a UDP socket of this elastic thread and returns its id; [`Io::udp_outcome`] reports
    /// the result ([`super::EventLoop::udp_bind`] waits for it). Other threads may bind the same
    /// port: each gets the datagrams of its flow groups. Port 0: any free one.
    pub fn udp_bind(&mut self, at: SocketAddr) -> u64 {
        self.engine.udp_bind(at, ())
    }

    /// Whether the socket was opened, once that is known; a refused socket is forgotten.
    pub fn udp_outcome(&mut self, socket: u64) -> Option<Result<(), Error>> {
        self.engine.udp_outcome(socket)
    }

    /// In [`super::Handler::on_datagram`]: our address to which the datagram was sent. It is useful
    /// for a socket bound to all addresses; to reply from that address, bind another socket to it.
    pub fn udp_asked(&self) -> Option<IpAddr> {
        self.asked
    }

    /// Sets an option of a socket from now on: code point or hop limit. `false`: the socket is not
    /// open.
    pub fn udp_set_opt(&mut self, socket: u64, option: FlowOption) -> bool {
        self.engine.udp_set_opt(socket, option)
    }

    /// Listens to a group from the next cycle on. Each socket of the group's port gets what is sent
    /// to it that is bound to every address or to the group. `false`: the socket is not open.
    pub fn udp_join(&mut self, socket: u64, group: IpAddr) -> bool {
        self.engine.udp_listen(socket, group, true)
    }

    /// Listens to a group no more.
    pub fn udp_leave(&mut self, socket: u64, group: IpAddr) -> bool {
        self.engine.udp_listen(socket, group, false)
    }

    /// Closes a UDP socket.
    pub fn udp_unbind(&mut self, socket: u64) {
        self.engine.udp_unbind(socket);
    }

    /// Copies a datagram into transmit memory and sends it with this cycle's batch. `false`: it was
    /// not taken, because memory is short or the socket is not open.
    pub fn udp_send(&mut self, socket: u64, to: SocketAddr, data: &[u8]) -> bool {
        let Some(mut buf) = self.tx().alloc(data.len()) else { return false };
        buf.extend(data) == data.len() && self.udp_send_zc(socket, to, buf).is_ok()
    }

    /// Sends a whole buffer as one datagram without a copy; `Err`: it was not taken.
    pub fn udp_send_zc(&mut self, socket: u64, to: SocketAddr, buf: TxBuf) -> Result<(), TxBuf> {
        self.engine.udp_send(socket, to, buf)
    }

    /// Datagrams that were taken, and then refused by the dataplane: no buffers, no route, too
    /// long.
    pub fn udp_lost(&self) -> u64 {
        self.engine.udp_lost()
    }

    pub(super) fn has_socket(&self, socket: u64) -> bool {
        self.engine.udp_state(socket).is_some()
    }
}
