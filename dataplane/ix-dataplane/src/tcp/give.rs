//! A connection goes from one process of the program to another one.
use super::Tcp;
use super::calls::own_flow;
use crate::calls::Answer;
use crate::flows::Flows;
use crate::flows::flow::{Holder, Waits};
use crate::io::Io;
use ix_abi::{CallError, Endpoint, Event};
use ix_proto::crossing::AttachmentId;
use ix_tcp::State;

impl Tcp {
    /// Gives a flow of the caller to another process. What was received and not returned is
    /// announced to that one once it accepts; what the caller has given to send stays its own until
    /// it is acknowledged.
    #[cold]
    pub fn give(
        &mut self,
        io: &mut Io,
        flows: &mut Flows,
        handle: u64,
        to: u32,
        token: u64,
    ) -> Answer {
        let caller = io.cx.caller;
        let flow = own_flow(&mut flows.groups, handle, caller)?;
        let taker = AttachmentId::try_from(to).map_err(|_| CallError::Invalid)?;
        match io.cx.attached.get(taker) {
            None => return Err(CallError::Invalid),
            Some(one) if one.has_ended() || taker == caller => return Err(CallError::Invalid),
            Some(one) if !one.has_entered => return Err(CallError::State),
            Some(_) => {}
        }
        let state = flow.tcb.state();
        let is_open = matches!(state, State::Established | State::CloseWait);
        let socket = &mut flow.socket;
        if socket.holder != Holder::Application || !is_open {
            return Err(CallError::State);
        }
        if !socket.sendq.owe(caller, socket.cookie) {
            return Err(CallError::NoResource);
        }
        if socket.acked_bytes > 0 {
            io.cx.announce_sent(socket, 0);
        }
        // What was returned is not announced again.
        socket.held.trim_front(&io.cx.shared.memory, socket.front_done);
        (socket.announced, socket.announced_bytes, socket.front_done) = (0, 0, 0);
        (socket.eof_pending, socket.announce_later) = (state == State::CloseWait, false);
        socket.window_opened = false;
        (socket.owner, socket.holder, socket.waits) = (taker, Holder::Knocking, Waits::Knocking);
        // It waits at no listener.
        socket.listener = u16::MAX;
        let (tuple, handle) = (flow.tcb.tuple(), socket.id.handle());
        let peer = Endpoint { addr: tuple.remote.0, port: tuple.remote_port };
        let event = Event::Given { token, handle, peer, from: caller.into() };
        io.cx.attached.push(taker, event);
        Ok(0)
    }
}
