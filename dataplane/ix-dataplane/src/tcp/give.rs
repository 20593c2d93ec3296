//! A connection goes from one process of the program to another one.
use super::Tcp;
use super::calls::own_flow;
use crate::calls::Answer;
use crate::flows::Flows;
use crate::flows::flow::{Flow, Holder, Waits};
use crate::flows::handle::FlowId;
use crate::io::Io;
use ix_abi::{CallError, Endpoint, Event, GIVE_AT_END};
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
        if to == GIVE_AT_END {
            flow.socket.sendq.bequeath(token);
            return Ok(0);
        }
        let taker = AttachmentId::try_from(to).map_err(|_| CallError::Invalid)?;
        match io.cx.attached.get(taker) {
            None => return Err(CallError::Invalid),
            Some(one) if one.has_ended() || taker == caller => return Err(CallError::Invalid),
            Some(one) if !one.has_entered => return Err(CallError::State),
            Some(_) => {}
        }
        if flow.socket.holder != Holder::Application || !is_open(flow) {
            return Err(CallError::State);
        }
        if !flow.socket.sendq.owe(caller, flow.socket.cookie) {
            return Err(CallError::NoResource);
        }
        if flow.socket.acked_bytes > 0 {
            io.cx.announce_sent(&mut flow.socket, 0);
        }
        hand(io, flow, caller, taker, token);
        Ok(0)
    }

    /// The owner of a flow has ended. Gives the flow to another process, if the owner has left it
    /// to one; false: it is to be closed.
    #[cold]
    pub fn inherit(&mut self, io: &mut Io, flows: &mut Flows, id: FlowId) -> bool {
        let attached = &io.cx.attached;
        let goes_on = |number: &AttachmentId| {
            let one = attached.get(*number);
            one.is_some_and(|one| !one.has_ended() && one.has_entered)
        };
        let Some(heir) = attached.numbers().find(goes_on) else { return false };
        let Some(flow) = flows.get(id) else { return false };
        let Some(token) = flow.socket.sendq.legacy() else { return false };
        // One that was given to it and that it has not accepted is as good as its own.
        let is_its = match flow.socket.holder {
            Holder::Application => true,
            Holder::Knocking => flow.socket.listener == u16::MAX,
            _ => false,
        };
        let before = flow.socket.owner;
        if !is_its || !is_open(flow) || !flow.socket.sendq.owe(before, flow.socket.cookie) {
            return false;
        }
        // Nobody hears of what was acknowledged.
        flow.socket.acked_bytes = 0;
        hand(io, flow, before, heir, token);
        true
    }
}

fn is_open(flow: &Flow) -> bool {
    matches!(flow.tcb.state(), State::Established | State::CloseWait)
}

/// A flow is another process's from now on.
fn hand(io: &mut Io, flow: &mut Flow, from: AttachmentId, to: AttachmentId, token: u64) {
    let state = flow.tcb.state();
    let socket = &mut flow.socket;
    // What was returned is not announced again.
    socket.held.trim_front(&io.cx.shared.memory, socket.front_done);
    (socket.announced, socket.announced_bytes, socket.front_done) = (0, 0, 0);
    (socket.eof_pending, socket.announce_later) = (state == State::CloseWait, false);
    socket.window_opened = false;
    (socket.owner, socket.holder, socket.waits) = (to, Holder::Knocking, Waits::Knocking);
    // It waits at no listener.
    socket.listener = u16::MAX;
    let (tuple, handle) = (flow.tcb.tuple(), socket.handle);
    let peer = Endpoint { addr: tuple.remote.0, port: tuple.remote_port };
    let mut held = 0;
    socket.held.for_each(&io.cx.shared.memory, 0, |_, bytes| held += bytes as u64);
    let returned = socket.bytes_in - held;
    let event = Event::Given { token, handle, peer, from: from.into(), returned };
    io.cx.attached.push(to, event);
}
