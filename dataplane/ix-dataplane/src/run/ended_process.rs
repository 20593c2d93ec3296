//! Closes the connections of a process that has ended while others of its program go on, however
//! it has ended; as `winding_up.rs` does for a whole program.
//!
//! It may have had as many connections as there are, and the others wait for none of them: each
//! cycle closes a few.
use crate::cycle::ElasticThread;
use crate::flows::Flows;
use crate::flows::flow::{Flow, Holder, TcpSocket, Waits};
use crate::flows::handle::FlowId;
use crate::flows::walk::LOOKS_MAX;
use crate::run::winding_up::WoundUp;
use crate::shared::mourning::{Stage, Still};
use crate::tcp::connections::End;
use crate::udp;
use ix_mem::PacketMemory;
use ix_proto::GroupSet;
use ix_proto::crossing::AttachmentId;
use ix_tcp::TcpCounter;

/// The receive frames that this flow still sends from, if it sends anything that process `number`
/// has given it.
fn still_sent(memory: &PacketMemory, socket: &TcpSocket, number: AttachmentId) -> Option<Vec<u32>> {
    let sendq = &socket.sendq;
    let is_giver = socket.owner == number || sendq.creditors().any(|to| to == number);
    let frames = if is_giver { sendq.received_frames(memory) } else { Vec::new() };
    let is_owed = sendq.creditors().any(|to| to == number);
    let refers = is_owed || !frames.is_empty() || sendq.refers_to(memory.arena_of(number.into()));
    refers.then_some(frames)
}

/// Whether this flow has something to send.
fn sends(flow: &Flow) -> bool {
    flow.socket.sendq.bytes() > 0
}

/// What this flow still sends of what a process has left, if it is here.
fn still_of(memory: &PacketMemory, flows: &mut Flows, number: AttachmentId, handle: u64) -> Still {
    let id = FlowId::from_handle(handle);
    // Another thread, or the next one, looks at flows of groups that are not here.
    if flows.groups.get(usize::from(id.group)).is_none_or(Option::is_none) {
        return Still::Elsewhere;
    }
    let flow = flows.get(id);
    let frames = flow.and_then(|flow| still_sent(memory, &flow.socket, number));
    frames.map_or(Still::Nothing, Still::Sends)
}

/// Whether the peer of this flow, which no process has any more, takes nothing.
fn is_in_vain(flows: &mut Flows, handle: u64, now_us: u64) -> bool {
    let flow = flows.get(FlowId::from_handle(handle));
    flow.is_some_and(|flow| flow.socket.holder == Holder::Orphan && flow.tcb.is_in_vain(now_us))
}

impl ElasticThread {
    /// A process of the program has ended, and others go on: gives the connections that wait at
    /// its listeners to others that listen there, and begins to close its own.
    pub fn end_process(&mut self, number: AttachmentId, now_us: u64) {
        self.begin_cycle(now_us);
        self.tell_nothing_more(number);
        for slot in self.tcp.listeners.of(number) {
            self.tcp.listeners.begin_to_end(slot);
        }
        self.tcp.end_listeners(&mut self.io, &mut self.flows);
        udp::end_all_of(&mut self.udp, &self.io.cx, number);
        self.packets.end_all_of(number);
        self.clear_app_timers(number);
        self.leave_estate(number);
        let cx = &mut self.io.cx;
        cx.attached.end(number, &cx.shared.memory, &mut cx.rx_pool);
        self.ended.add(number);
        self.close_some_ended();
        self.flush_touched();
        if self.mourn() {
            self.keep_house_soon(now_us);
        }
        if self.migrations.is_active() && !self.io.cx.attached.owes_any_return() {
            self.application_returned();
        }
    }

    /// A few flows are looked at: those that wait at listeners that end, and those of processes
    /// that have ended.
    #[cold]
    pub(crate) fn end_some(&mut self) {
        if self.tcp.listeners.is_any_ending() {
            self.changes += 1;
            self.tcp.end_listeners(&mut self.io, &mut self.flows);
        }
        self.close_some_ended();
    }

    /// Ends all listeners that end, and what waits there.
    #[cold]
    pub(crate) fn end_all_listeners(&mut self) {
        while self.tcp.listeners.is_any_ending() {
            self.tcp.end_listeners(&mut self.io, &mut self.flows);
        }
    }

    /// These groups leave the thread, and listeners that end stay: nothing there waits for them.
    pub(crate) fn end_waits_in(&mut self, groups: &GroupSet) {
        if self.tcp.listeners.is_any_ending() {
            let waits = |flow: &Flow| flow.socket.waits != Waits::Nowhere;
            for id in self.flows.ids_in(groups, waits) {
                self.tcp.end_wait(&mut self.io, &mut self.flows, id);
            }
        }
    }

    /// Closes a few flows of the first process that has ended. Returns whether it has to be called
    /// again.
    #[cold]
    pub(crate) fn close_some_ended(&mut self) -> bool {
        let Some(number) = self.ended.first() else { return false };
        // What waits at its listeners may go to another process; then it is not closed.
        if self.tcp.listeners.is_any_of_ending(number) {
            return true;
        }
        self.changes += 1;
        let some = self.ended.next_flows(&self.flows);
        let peek = |id: &FlowId| {
            self.flows.groups[usize::from(id.group)].as_ref().and_then(|group| group.peek(id.slot))
        };
        let of_it =
            |flow: &Flow| flow.socket.owner == number && flow.socket.holder != Holder::Orphan;
        let open = some.iter().filter(|id| peek(id).is_some_and(of_it)).copied().collect();
        self.close_or_leave(open);
        self.mourn_flows(&some, |ended| *ended == number);
        if self.ended.pop_if_through(&self.flows).is_some() {
            self.shared.mourning.close(number);
        }
        self.ended.is_any()
    }

    /// Flows of processes that have ended: those that they have left to others are theirs, and the
    /// rest is closed.
    fn close_or_leave(&mut self, mut flows: Vec<FlowId>) {
        flows.retain(|id| !self.tcp.inherit(&mut self.io, &mut self.flows, *id));
        self.close_all(flows, true, &mut WoundUp::default());
    }

    /// Closes all that [`Self::close_some_ended`] would.
    #[cold]
    pub(crate) fn close_all_ended(&mut self) {
        self.end_all_listeners();
        while self.close_some_ended() {}
    }

    /// Whether flows of processes that have ended may arrive from other threads.
    pub(crate) fn may_get_flows_of_ended(&self) -> bool {
        self.ended.is_any() || self.shared.mourning.has_any_ended()
    }

    /// Closes flows of processes that have ended, which have come from another thread with these
    /// groups.
    #[cold]
    pub(crate) fn close_ended(&mut self, groups: &GroupSet) {
        let attached = &self.io.cx.attached;
        let of_ended = |flow: &Flow| {
            let owner = attached.get(flow.socket.owner);
            flow.socket.holder != Holder::Orphan && owner.is_none_or(|owner| owner.has_ended())
        };
        let open = self.flows.ids_in(groups, of_ended);
        self.close_or_leave(open);
        self.flush_touched();
        let attached = &self.io.cx.attached;
        let has_ended = |number: &_| attached.get(*number).is_none_or(|of| of.has_ended());
        self.mourn_flows(&self.flows.ids_in(groups, sends), has_ended);
    }

    /// Notes which flows send what processes have given them: all processes have ended.
    pub(super) fn mourn_all(&self) {
        self.mourn_flows(&self.flows.ids_where(sends), |_| true);
    }

    /// Notes which of these flows send what processes have given them that have ended: those that
    /// `has_ended` selects.
    fn mourn_flows(&self, flows: &[FlowId], has_ended: impl Fn(&AttachmentId) -> bool) {
        let memory = &self.shared.memory;
        for id in flows {
            let group = self.flows.groups[usize::from(id.group)].as_ref();
            let flow = group.and_then(|group| group.peek(id.slot));
            let Some(flow) = flow.filter(|flow| sends(flow)) else { continue };
            let socket = &flow.socket;
            let givers = socket.sendq.addresses().filter_map(|address| memory.arena_with(address));
            let givers = givers.map(|number| number as AttachmentId);
            let all = givers.chain(socket.sendq.creditors()).chain([socket.owner]);
            let mut ended: Vec<AttachmentId> = all.filter(&has_ended).collect();
            ended.sort_unstable();
            ended.dedup();
            for number in ended {
                if let Some(frames) = still_sent(memory, socket, number) {
                    self.shared.mourning.add(number, id.handle(), frames);
                }
            }
        }
    }

    /// Numbers of processes are short, and these flows of ended ones send in vain: resets them, or
    /// their peers could keep every process that comes from the dataplane (RFC 6429).
    fn reset_in_vain(&mut self, flows: &[u64]) {
        if flows.is_empty() {
            return;
        }
        for handle in flows {
            self.io.cx.metrics.count_tcp(TcpCounter::ResetForNumbers);
            let id = FlowId::from_handle(*handle);
            self.tcp.end(&mut self.io, &mut self.flows, id, End::Abort);
        }
        self.changes += 1;
        self.flush_touched();
    }

    /// Looks which flows still send what processes have given them that have ended, and frees the
    /// frames of these that are no longer sent: some of them, each time. Returns whether others are
    /// to be looked at soon.
    pub(crate) fn mourn(&mut self) -> bool {
        // Until it is known which flows send from them, no frame is free.
        if self.ended.is_any() {
            return true;
        }
        let estates = self.io.cx.attached.estates();
        if !self.shared.mourning.is_any() && estates == 0 {
            if self.review.is_under_way() {
                self.review.goes_on(Stage::Over);
            }
            return false;
        }
        let shared = self.shared.clone();
        let mourning = &shared.mourning;
        let mut stage = self.review.stage((self.changes, mourning.changes()));
        if let Stage::Flows(from) = stage {
            let (flows, now_us) = (&mut self.flows, self.io.cx.now_us);
            let mut in_vain = Vec::new();
            let still = |number, flow| {
                let still = still_of(&shared.memory, flows, number, flow);
                let sends = matches!(still, Still::Sends(_)) && mourning.is_wanted(number);
                in_vain.extend((sends && is_in_vain(flows, flow, now_us)).then_some(flow));
                still
            };
            let next = mourning.review(from, LOOKS_MAX, still);
            stage = next.map_or(Stage::Frames(estates), Stage::Flows);
            self.reset_in_vain(&in_vain);
        }
        if let Stage::Frames(left) = stage {
            let looks = left.min(LOOKS_MAX);
            let cx = &mut self.io.cx;
            let is_sent = |number, frame| mourning.is_sent(number, frame);
            cx.attached.settle_estates(looks, is_sent, &mut cx.rx_pool);
            stage = if left > looks { Stage::Frames(left - looks) } else { Stage::Over };
        }
        self.review.goes_on(stage);
        // What has changed since it began is looked at soon, too.
        self.review.stage((self.changes, mourning.changes())) != Stage::Over
    }
}
