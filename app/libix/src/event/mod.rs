//! An event loop in the style of libevent, one for each elastic thread.
//!
//! A [`Handler`] is called for events of connections and acts through [`Conn`] (one connection) and
//! [`Io`] (the loop). Its actions in a cycle are only noted. Before the next cycle every changed
//! connection appends at most one `recv_done` and one `sendv` to the batch, however often it was
//! read and written.
//!
//! * **Receive** is without a copy: [`Conn::received`] returns slices of packet buffers. The
//!   handler calls [`Conn::consume`] for the bytes that it is done with, now or later; until then
//!   they count against the receive window. [`Conn::send_received`] sends them from the packet
//!   buffers.
//! * **Send** takes as much as the connection may hold ([`Io::set_send_limit`]) and returns how
//!   much that was: 0 is back-pressure, and [`Handler::on_writable`] its end. Memory is kept until
//!   it is acknowledged.
//! * **End**: [`Conn::shutdown`] closes our direction, [`Conn::close`] closes both after the bytes
//!   given to send, [`Conn::abort`] resets. After `close` and `abort` the handler is not called for
//!   the connection.
//! * **Migration**: connections of a service on several elastic threads move from loop to loop with
//!   their flow groups ([`Team`]); [`Handler::on_migrate_out`] and [`Handler::on_migrate_in`]
//!   report it. Timers and UDP sockets stay with their thread.
//! * **Datagrams** arrive by [`Handler::on_datagram`] at sockets of [`EventLoop::udp_bind`] and
//!   leave by [`Io::udp_send`]; as always with UDP, a datagram is lost if resources are missing.
//! * **Packets** of a program's own protocol arrive whole at packet queues ([`Io::packet_bind`]),
//!   by [`Handler::on_packets`] or [`EventLoop::wait_queues`], and leave by [`Io::packet_send`].
//!   Doorbells ([`Io::set_bell`]) notify other threads of the program.
//! * **Signals** go from loop to loop ([`Io::signal`], [`Handler::on_signal`]).
//! * **Renewal**: if the dataplane ends, in a process of its own, all connections are dead, and the
//!   loop goes on with another one ([`Handler::on_renewed`]). It waits until the loops of all
//!   elastic threads have noticed.

mod bell;
mod conn;
mod io;
mod migrate;
mod observer;
mod packets;
mod team;
mod udp;

use crate::engine::tell_failures;
use crate::error::{Dead, Error};
use crate::raw::{Thread, Wait, call};
use io::Pending;
use observer::LoopObserver;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;

pub use crate::engine::{Lease, Release};
pub use bell::{Bell, Occasion};
pub use conn::Conn;
pub use io::Io;

pub use packets::{Claim, Frame, PIECES_MAX, Piece, Priority};
pub use team::Team;

/// How many connections [`EventLoop::abort_all`] resets in a cycle, and how long such a cycle and
/// the last one take, so that a peer can take the resets.
const RESETS_AT_ONCE: usize = 256;
const RESETS_US: u64 = 100;
const LAST_RESETS_US: u64 = 1_000;

/// A service: its methods are called for events. Ids are never reused, and an id of one loop has no
/// meaning in another.
pub trait Handler {
    /// What the service keeps for each connection.
    type State;

    /// A peer connected to `listener`: returns the state of the connection, or `None` to refuse it.
    fn on_accept(
        &mut self,
        io: &mut Io<Self::State>,
        listener: u64,
        peer: SocketAddr,
    ) -> Option<Self::State> {
        let _ = (io, listener, peer);
        None
    }

    /// An accepted or outgoing connection is open.
    fn on_connected(&mut self, conn: &mut Conn<'_, Self::State>) {
        let _ = conn;
    }

    /// More bytes arrived; bytes that were not consumed before are still there.
    fn on_readable(&mut self, conn: &mut Conn<'_, Self::State>);

    /// The peer has acknowledged `bytes` more.
    fn on_sent(&mut self, conn: &mut Conn<'_, Self::State>, bytes: u32) {
        let _ = (conn, bytes);
    }

    /// A connection that took fewer bytes than it was given has room again.
    fn on_writable(&mut self, conn: &mut Conn<'_, Self::State>) {
        let _ = conn;
    }

    /// The peer has closed its direction. Closes the connection unless the handler overrides this.
    fn on_eof(&mut self, conn: &mut Conn<'_, Self::State>) {
        conn.close();
    }

    /// The connection has ended, or an attempt failed; the last call for it. Unread bytes can still
    /// be read.
    fn on_dead(&mut self, conn: &mut Conn<'_, Self::State>, why: Dead) {
        let _ = (conn, why);
    }

    /// A datagram arrived at a UDP socket. Its bytes are in the packet buffer, for this call only.
    fn on_datagram(
        &mut self,
        io: &mut Io<Self::State>,
        socket: u64,
        from: SocketAddr,
        data: &[u8],
    ) {
        let _ = (io, socket, from, data);
    }

    /// A host reports that a datagram of this socket did not arrive: the port is closed
    /// ([`Error::Refused`]), the datagram is longer than the path's `mtu` ([`Error::TooLong`]; 0:
    /// unknown), or there is no route ([`Error::Unreachable`]). This is a hint: any host can send
    /// such a message.
    fn on_datagram_error(
        &mut self,
        io: &mut Io<Self::State>,
        socket: u64,
        to: SocketAddr,
        why: Error,
        mtu: u16,
    ) {
        let _ = (io, socket, to, why, mtu);
    }

    /// Frames arrived at a packet queue: [`Io::packet_receive`] takes them, now or later.
    fn on_packets(&mut self, io: &mut Io<Self::State>, queue: u64) {
        let _ = (io, queue);
    }

    /// The memory of a frame that was sent with `cookie` is free; or the frame was not sent.
    fn on_packet_sent(
        &mut self,
        io: &mut Io<Self::State>,
        queue: u64,
        cookie: u64,
        outcome: Result<(), Error>,
    ) {
        let _ = (io, queue, cookie, outcome);
    }

    /// The loop of elastic thread `from` sent this value ([`Io::signal`]).
    fn on_signal(&mut self, io: &mut Io<Self::State>, from: u32, value: u64) {
        let _ = (io, from, value);
    }

    /// All events of a cycle were handled; the next cycle follows.
    fn on_cycle(&mut self, io: &mut Io<Self::State>) {
        let _ = io;
    }

    /// The timer that was set with `token` has fired.
    fn on_timer(&mut self, io: &mut Io<Self::State>, token: u64) {
        let _ = (io, token);
    }

    /// The connection is about to move to the loop of elastic thread `to`, with its state and all
    /// unsent and unacknowledged bytes: forget what this thread keeps about it. Its id becomes
    /// invalid.
    fn on_migrate_out(&mut self, conn: &mut Conn<'_, Self::State>, to: u32) {
        let _ = (conn, to);
    }

    /// The connection has moved here from elastic thread `from`. It has a new id.
    fn on_migrate_in(&mut self, conn: &mut Conn<'_, Self::State>, from: u32) {
        let _ = (conn, from);
    }

    /// This elastic thread is about to be parked: its connections move next.
    fn on_revoke(&mut self, io: &mut Io<Self::State>) {
        let _ = io;
    }

    /// This elastic thread was resumed.
    fn on_restore(&mut self, io: &mut Io<Self::State>) {
        let _ = io;
    }

    /// The dataplane had ended, and there is another one. [`Handler::on_dead`] was called for all
    /// connections before ([`Error::Lost`]). Listeners, UDP sockets, packet queues and timers are
    /// the same as before; what was on its way to peers or other threads is lost. Frames that were
    /// taken from packet queues have other content.
    fn on_renewed(&mut self, io: &mut Io<Self::State>) {
        let _ = io;
    }
}

/// A service on one elastic thread.
pub struct EventLoop<H: Handler> {
    handler: H,
    /// Dropped after all that may refer to its memory.
    io: Io<H::State>,
}

impl<H: Handler> EventLoop<H> {
    /// A loop without listeners and connections. Connections whose flow group moves to another
    /// elastic thread are reset: see [`EventLoop::in_team`].
    pub fn new(thread: Thread, handler: H) -> EventLoop<H> {
        EventLoop { io: Io::new(thread, None), handler }
    }

    /// A loop whose connections move to and from the loops of other elastic threads with their flow
    /// groups.
    pub fn in_team(thread: Thread, handler: H, team: &Team<H::State>) -> EventLoop<H> {
        EventLoop { io: Io::new(thread, Some(team)), handler }
    }

    /// The loop, for use between cycles.
    pub fn io(&mut self) -> &mut Io<H::State> {
        &mut self.io
    }

    /// The service.
    pub fn handler(&mut self) -> &mut H {
        &mut self.handler
    }

    /// Loop and service.
    pub fn parts(&mut self) -> (&mut Io<H::State>, &mut H) {
        (&mut self.io, &mut self.handler)
    }

    /// Opens a listener and returns its id; runs cycles until then. `backlog` 0: the dataplane's
    /// default.
    pub fn listen(&mut self, at: SocketAddr, backlog: u32) -> Result<u64, Error> {
        let id = self.io.listen(at, backlog);
        loop {
            self.turn(Wait::Poll)?;
            if let Some(outcome) = self.io.listener_outcome(id) {
                return outcome.map(|()| id);
            }
        }
    }

    /// Opens a UDP socket and returns its id; runs cycles until then. Port 0: any free one.
    pub fn udp_bind(&mut self, at: SocketAddr) -> Result<u64, Error> {
        let id = self.io.udp_bind(at);
        loop {
            self.turn(Wait::Poll)?;
            if let Some(outcome) = self.io.udp_outcome(id) {
                return outcome.map(|()| id);
            }
        }
    }

    /// Transmit memory that all threads of the program may use, for the life of the program
    /// ([`Conn::send_lent`]); runs cycles until it is there.
    pub fn shared_memory(&mut self, bytes: u64) -> Result<&'static [AtomicU64], Error> {
        let mut asked = None;
        loop {
            // The dataplane that was asked may end.
            if asked.replace(self.io.lost) != Some(self.io.lost) {
                self.io.engine.push(call::tx_alloc(bytes), Pending::SharedMemory);
            }
            self.turn(Wait::Poll)?;
            if let Some(outcome) = self.io.shared.take() {
                return outcome;
            }
        }
    }

    /// Runs until [`Io::stop`].
    pub fn run(&mut self) -> Result<(), Error> {
        while !self.io.take_stop() {
            self.turn(Wait::Forever)?;
        }
        Ok(())
    }

    /// Resets all connections, without a callback, and waits until the resets are sent: a few at a
    /// time, because a device takes only so many packets at once, and packets that wait for it are
    /// lost when the program ends.
    pub fn abort_all(&mut self) -> Result<(), Error> {
        let all = self.io.engine.doom_all();
        for some in all.chunks(RESETS_AT_ONCE) {
            some.iter().for_each(|id| self.io.touch(*id));
            self.turn(Wait::Us(RESETS_US))?;
        }
        self.turn(Wait::Us(LAST_RESETS_US))
    }

    /// Makes this an ordinary Linux thread while `work` runs, and then the elastic thread again.
    /// Before that its connections move to the other threads, if the loop is in a team; its timers
    /// and UDP sockets wait. `Err`: `work` did not run, because it is the last active thread
    /// ([`Error::State`]) or the dataplane has ended meanwhile ([`Error::Lost`]); or the dataplane
    /// does not take the thread back, and the loop has ended.
    pub fn in_background<R>(&mut self, work: impl FnOnce(&mut H) -> R) -> Result<R, Error> {
        self.io.drain();
        let lost = self.io.lost;
        while !self.io.drained {
            self.turn(Wait::Forever)?;
            if self.io.lost != lost {
                return Err(Error::Lost);
            }
            if let Some(refused) = self.io.drain_refused.take() {
                return Err(refused);
            }
        }
        // Calls of the last events come first.
        while self.io.has_calls() {
            self.turn(Wait::Poll)?;
        }
        let (io, handler) = (&mut self.io, &mut self.handler);
        let result = io.engine.thread_mut().in_background(|| work(handler));
        io.restart_timers();
        result.map_err(|(error, _)| error)
    }

    /// Runs one cycle: the batch is carried out, then the handler is called for all events. An
    /// error means that the dataplane refuses to run this thread.
    pub fn turn(&mut self, wait: Wait) -> Result<(), Error> {
        match self.io.run_io(wait) {
            Err(Error::Lost) => return self.renew(),
            outcome => outcome?,
        }
        self.io.settle();
        crate::engine::tell(&mut LoopObserver(self));
        if self.io.engine.has_starved() {
            self.feed_starved();
        }
        self.report_packets();
        self.handler.on_cycle(&mut self.io);
        Ok(())
    }

    /// The dataplane has ended: tells of the end of all connections, and waits for another one.
    #[cold]
    fn renew(&mut self) -> Result<(), Error> {
        self.io.lose();
        self.tell_lost(false);
        self.report_packets();
        self.io.engine.renew()?;
        // Other threads may have sent some connections before they knew.
        self.tell_lost(true);
        self.handler.on_renewed(&mut self.io);
        Ok(())
    }

    fn tell_lost(&mut self, is_new: bool) {
        let here = self.io.thread_index();
        for id in self.io.unpack_lost(is_new) {
            self.tell(id, |handler, conn| handler.on_migrate_in(conn, here));
        }
        tell_failures(&mut LoopObserver(self));
    }

    /// Calls the handler about a connection that it has not ended.
    #[inline]
    fn tell(&mut self, id: u64, call: impl FnOnce(&mut H, &mut Conn<'_, H::State>)) {
        if let Some(mut conn) = self.io.conn(id) {
            call(&mut self.handler, &mut conn);
        }
    }

    /// Handles connections that lacked transmit memory: no event of theirs reports that there is
    /// memory again.
    fn feed_starved(&mut self) {
        for id in self.io.engine.take_starved() {
            if let Some(connection) = self.io.connection_mut(id)
                && core::mem::take(&mut connection.wants_room)
            {
                self.tell(id, |handler, conn| handler.on_writable(conn));
            }
        }
    }
}
