//! The service of a C program as an event loop's handler.
use super::{ix_callbacks, ix_loop};
use crate::types::{State, ix_endpoint};
use core::ffi::c_void;
use ix_abi::dead;
use libix::event::{Conn, Handler, Io};
use libix::{Dead, Error};
use std::net::SocketAddr;

/// Calls the program's callbacks.
pub(crate) struct Callbacks {
    pub(crate) table: ix_callbacks,
    /// The loop of this handler; null until it is known.
    pub(crate) owner: *const ix_loop,
    /// Number of callbacks so far, to detect an idle loop.
    pub(crate) told: u64,
}

impl Callbacks {
    pub(crate) fn new(table: ix_callbacks) -> Callbacks {
        Callbacks { table, owner: core::ptr::null(), told: 0 }
    }

    /// Lets the program use the loop during a callback.
    fn tell<R>(&mut self, io: &mut Io<State>, call: impl FnOnce(*mut ix_loop) -> R) -> R {
        self.told += 1;
        // SAFETY: the loop lives while its event loop runs, and its maker has set `owner`.
        let owner = unsafe { &*self.owner };
        owner.lend(io, || call(self.owner.cast_mut()))
    }

    /// Lets the program use the loop during a callback about a connection.
    fn tell_of<R>(
        &mut self,
        conn: &mut Conn<'_, State>,
        call: impl FnOnce(*mut ix_loop, u64, *mut c_void) -> R,
    ) -> R {
        let (id, state) = (conn.id(), conn.state().0);
        self.tell(conn.io(), |owner| call(owner, id, state))
    }
}

/// Minus an error, or a number of `ix_abi::dead`.
pub(crate) fn reason(why: Dead) -> i64 {
    match why {
        Dead::Closed => dead::CLOSED.into(),
        Dead::Reset => dead::RESET.into(),
        Dead::TimedOut => dead::TIMED_OUT.into(),
        Dead::Unreachable => dead::UNREACHABLE.into(),
        Dead::NotConnected(error) | Dead::Failed(error) => crate::error::code(error),
    }
}

// By the promise of `ix_loop_new`, the callbacks are functions of these types. Every `SAFETY` below
// relies on that.
impl Handler for Callbacks {
    type State = State;

    fn on_accept(&mut self, io: &mut Io<State>, listener: u64, peer: SocketAddr) -> Option<State> {
        let accepted = self.table.accepted?;
        let (peer, mut state) = (ix_endpoint::new(peer), core::ptr::null_mut());
        // SAFETY: see above; both pointers are to locals.
        let takes = self.tell(io, |owner| unsafe { accepted(owner, listener, &peer, &mut state) });
        (takes != 0).then_some(State(state))
    }

    fn on_connected(&mut self, conn: &mut Conn<'_, State>) {
        let Some(call) = self.table.connected else { return };
        // SAFETY: see above.
        self.tell_of(conn, |owner, id, state| unsafe { call(owner, id, state) });
    }

    fn on_readable(&mut self, conn: &mut Conn<'_, State>) {
        match self.table.readable {
            // SAFETY: see above.
            Some(call) => self.tell_of(conn, |owner, id, state| unsafe { call(owner, id, state) }),
            None => conn.consume(usize::MAX),
        }
    }

    fn on_sent(&mut self, conn: &mut Conn<'_, State>, bytes: u32) {
        let Some(call) = self.table.sent else { return };
        // SAFETY: see above.
        self.tell_of(conn, |owner, id, state| unsafe { call(owner, id, state, bytes) });
    }

    fn on_writable(&mut self, conn: &mut Conn<'_, State>) {
        let Some(call) = self.table.writable else { return };
        // SAFETY: see above.
        self.tell_of(conn, |owner, id, state| unsafe { call(owner, id, state) });
    }

    fn on_eof(&mut self, conn: &mut Conn<'_, State>) {
        match self.table.eof {
            // SAFETY: see above.
            Some(call) => self.tell_of(conn, |owner, id, state| unsafe { call(owner, id, state) }),
            None => conn.close(),
        }
    }

    fn on_dead(&mut self, conn: &mut Conn<'_, State>, why: Dead) {
        let (Some(call), reason) = (self.table.dead, reason(why)) else { return };
        // SAFETY: see above.
        self.tell_of(conn, |owner, id, state| unsafe { call(owner, id, state, reason) });
    }

    fn on_datagram(&mut self, io: &mut Io<State>, socket: u64, from: SocketAddr, data: &[u8]) {
        let (Some(call), from) = (self.table.datagram, ix_endpoint::new(from)) else { return };
        // SAFETY: see above; a local, and the bytes of a slice.
        self.tell(io, |owner| unsafe {
            call(owner, socket, &from, data.as_ptr().cast(), data.len());
        });
    }

    fn on_datagram_error(
        &mut self,
        io: &mut Io<State>,
        socket: u64,
        to: SocketAddr,
        why: Error,
        mtu: u16,
    ) {
        let (Some(call), to) = (self.table.datagram_error, ix_endpoint::new(to)) else { return };
        let why = crate::error::code(why);
        // SAFETY: see above; a local.
        self.tell(io, |owner| unsafe { call(owner, socket, &to, why, mtu) });
    }

    fn on_cycle(&mut self, io: &mut Io<State>) {
        let Some(call) = self.table.cycle else { return };
        let told = self.told;
        // SAFETY: see above.
        self.tell(io, |owner| unsafe { call(owner) });
        self.told = told;
    }

    fn on_timer(&mut self, io: &mut Io<State>, token: u64) {
        let Some(call) = self.table.timer else { return };
        // SAFETY: see above.
        self.tell(io, |owner| unsafe { call(owner, token) });
    }

    fn on_migrate_out(&mut self, conn: &mut Conn<'_, State>, to: u32) {
        let Some(call) = self.table.migrate_out else { return };
        // SAFETY: see above.
        self.tell_of(conn, |owner, id, state| unsafe { call(owner, id, state, to) });
    }

    fn on_migrate_in(&mut self, conn: &mut Conn<'_, State>, from: u32) {
        let Some(call) = self.table.migrate_in else { return };
        // SAFETY: see above.
        self.tell_of(conn, |owner, id, state| unsafe { call(owner, id, state, from) });
    }

    fn on_revoke(&mut self, io: &mut Io<State>) {
        let Some(call) = self.table.revoke else { return };
        // SAFETY: see above.
        self.tell(io, |owner| unsafe { call(owner) });
    }

    fn on_packets(&mut self, io: &mut Io<State>, queue: u64) {
        let Some(call) = self.table.packets else { return };
        // SAFETY: see above.
        self.tell(io, |owner| unsafe { call(owner, queue) });
    }

    fn on_packet_sent(
        &mut self,
        io: &mut Io<State>,
        queue: u64,
        cookie: u64,
        outcome: Result<(), Error>,
    ) {
        let Some(call) = self.table.packet_sent else { return };
        let outcome = outcome.map_or_else(crate::error::code, |()| 0);
        // SAFETY: see above.
        self.tell(io, |owner| unsafe { call(owner, queue, cookie, outcome) });
    }

    fn on_signal(&mut self, io: &mut Io<State>, from: u32, value: u64) {
        let Some(call) = self.table.signal else { return };
        // SAFETY: see above.
        self.tell(io, |owner| unsafe { call(owner, from, value) });
    }

    fn on_restore(&mut self, io: &mut Io<State>) {
        let Some(call) = self.table.restore else { return };
        // SAFETY: see above.
        self.tell(io, |owner| unsafe { call(owner) });
    }
}
