//! Closes the connections of a program, or of one of its processes, that has ended, however.
//!
//! It does as Linux does for a process's sockets. What was given to send is sent, and FIN after it.
//! A connection with received data that was not read, and a handshake in progress, get RST (RFC
//! 2525 section 2.17). What has not ended in both directions in time is reset too, because soon
//! nothing here will reply.
use crate::clock::monotonic_ns;
use crate::cycle::ElasticThread;
use crate::events::EventWriter;
use crate::flows::Flows;
use crate::flows::flow::{Flow, Holder, TcpSocket};
use crate::flows::handle::FlowId;
use crate::observe::metrics::Place;
use crate::run::boot::Dataplane;
use crate::run::runner::Runner;
use crate::shared::mourning::{Stage, Still};
use crate::tcp::connections::End;
use crate::tcp::listeners::Listeners;
use ix_mem::PacketMemory;
use ix_proto::GroupSet;
use ix_proto::crossing::AttachmentId;
use ix_tcp::State;

/// Pause after a turn in which nothing happened, µs.
const PAUSE_US: u64 = 200;
/// Time for the last packets to leave the device, µs.
const FLUSH_US: u64 = 20_000;
/// Most flows, or frames, of processes that have ended which are looked at in one cycle.
const LOOKS_MAX: usize = 64;

/// The result for the program's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WoundUp {
    /// Number of connections that it left open.
    pub open: usize,
    /// Number of these that were reset.
    pub reset: usize,
}

impl Dataplane {
    /// Closes all connections and stops listening. Returns when all have ended, at the latest a
    /// moment after `patience_us`.
    ///
    /// # Safety
    /// The program has ended: nobody uses any elastic thread, now or later.
    pub unsafe fn wind_up(&self, patience_us: u64) -> WoundUp {
        let mut done = WoundUp::default();
        // The same origin as the threads' clocks.
        let end_us = now_us() + patience_us;
        for index in 0..self.threads() {
            let place = self.page.thread(index).whereabouts.get();
            // SAFETY: the caller's promise.
            let thread = unsafe { &mut (*self.runners[index].get()).thread };
            // Within a cycle its state may be half changed, so as little as possible is done with
            // it.
            let may_close = !matches!(place, Place::Dataplane);
            thread.begin_winding_up(may_close, now_us(), &mut done);
        }
        // SAFETY: as above.
        let mut runners = || self.runners.iter().map(|runner| unsafe { &mut *runner.get() });
        runners().for_each(|runner| _ = runner.thread.mourn());
        turn_until(end_us, &mut runners, |thread| thread.unfinished() == 0);
        runners().for_each(|runner| done.reset += runner.thread.reset_all());
        let flush_us = now_us() + FLUSH_US;
        turn_until(flush_us, &mut runners, |thread| !thread.has_unsent());
        done
    }
}

fn now_us() -> u64 {
    monotonic_ns() / 1000
}

fn turn_until<'a, I: Iterator<Item = &'a mut Runner>>(
    end_us: u64,
    runners: &mut impl FnMut() -> I,
    is_done: impl Fn(&ElasticThread) -> bool,
) {
    loop {
        let now_us = now_us();
        let (mut done, mut busy) = (true, false);
        for runner in runners() {
            runner.turn_alone(now_us);
            busy |= runner.busy;
            done &= is_done(&runner.thread);
        }
        if done || now_us >= end_us {
            return;
        }
        if !busy {
            std::thread::sleep(std::time::Duration::from_micros(PAUSE_US));
        }
    }
}

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

impl ElasticThread {
    fn begin_winding_up(&mut self, may_close: bool, now_us: u64, done: &mut WoundUp) {
        self.begin_cycle(now_us);
        for number in self.io.cx.attached.numbers() {
            self.tell_nothing_more(number);
        }
        let open = self.flows.ids_where(|flow| flow.socket.holder != Holder::Orphan);
        self.close_all(open, may_close, done);
        self.tcp.listeners = Listeners::default();
        self.mourn_here(None, |_| true);
        for number in self.io.cx.attached.numbers() {
            self.leave_estate(number);
            self.shared.mourning.close(number);
        }
    }

    fn close_all(&mut self, flows: Vec<FlowId>, may_close: bool, done: &mut WoundUp) {
        for id in flows {
            let Some(flow) = self.flows.get(id) else { continue };
            let is_ours = matches!(flow.socket.holder, Holder::Application | Holder::Knocking);
            let is_read = flow.socket.holder == Holder::Application && flow.socket.held.is_empty();
            let how = if may_close && is_read { End::Close } else { End::Abort };
            done.open += usize::from(is_ours);
            done.reset += usize::from(is_ours && how == End::Abort);
            self.tcp.stop_waiting(&mut self.flows, id);
            self.tcp.end(&mut self.io, &mut self.flows, id, how);
        }
    }

    /// A process of the program has ended, and others go on: closes its connections, and gives
    /// those that wait at its listeners to others that listen there.
    pub fn end_process(&mut self, number: AttachmentId, now_us: u64) {
        self.begin_cycle(now_us);
        self.tell_nothing_more(number);
        for slot in self.tcp.listeners.of(number) {
            self.tcp.end_listener(&mut self.io, &mut self.flows, slot);
        }
        let of_it =
            |flow: &Flow| flow.socket.owner == number && flow.socket.holder != Holder::Orphan;
        let open = self.flows.ids_where(of_it);
        self.close_all(open, true, &mut WoundUp::default());
        let sockets: Vec<_> = self.udp.iter().filter(|s| s.owner == number).map(|s| s.id).collect();
        for id in sockets {
            self.udp.unbind(id);
        }
        self.packets.end_all_of(number);
        self.clear_app_timers(number);
        self.leave_estate(number);
        let cx = &mut self.io.cx;
        cx.attached.end(number, &cx.shared.memory, &mut cx.rx_pool);
        self.flush_touched();
        self.mourn_here(None, |ended| *ended == number);
        self.shared.mourning.close(number);
        self.changes += 1;
        if self.mourn() {
            self.keep_house_soon(now_us);
        }
        if self.migrations.is_active() && !self.io.cx.attached.owes_any_return() {
            self.application_returned();
        }
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
        self.close_all(open, true, &mut WoundUp::default());
        self.flush_touched();
        let attached = &self.io.cx.attached;
        let has_ended = |number: &_| attached.get(*number).is_none_or(|of| of.has_ended());
        self.mourn_here(Some(groups), has_ended);
    }

    /// Notes which flows here, or in these groups, send what processes have given them that have
    /// ended: those that `has_ended` selects.
    fn mourn_here(&self, groups: Option<&GroupSet>, has_ended: impl Fn(&AttachmentId) -> bool) {
        let memory = &self.shared.memory;
        let sends = |flow: &Flow| flow.socket.sendq.bytes() > 0;
        let flows = &self.flows;
        let sending = match groups {
            Some(groups) => flows.ids_in(groups, sends),
            None => flows.ids_where(sends),
        };
        for id in sending {
            let group = self.flows.groups[usize::from(id.group)].as_ref();
            let Some(flow) = group.and_then(|group| group.peek(id.slot)) else { continue };
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

    /// Events for this process are dropped from here on.
    fn tell_nothing_more(&mut self, number: AttachmentId) {
        self.io.cx.attached.set_present(number, true);
        self.io.cx.attached[number].events = EventWriter::closed();
    }

    /// Keeps the frames that a process holds and may have sent on.
    fn leave_estate(&mut self, number: AttachmentId) {
        let cx = &mut self.io.cx;
        cx.attached.bequeath(number, &cx.shared.memory);
        cx.lent.take_all_back(number, |mbuf| cx.attached.leave_frame(number, mbuf));
    }

    /// Looks which flows still send what processes have given them that have ended, and frees the
    /// frames of these that are no longer sent: some of them, each time. Returns whether others are
    /// to be looked at soon.
    pub(crate) fn mourn(&mut self) -> bool {
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
            let flows = &mut self.flows;
            let still = |number, flow| still_of(&shared.memory, flows, number, flow);
            let next = mourning.review(from, LOOKS_MAX, still);
            stage = next.map_or(Stage::Frames(estates), Stage::Flows);
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

    /// Number of connections whose peers would wait forever.
    pub(crate) fn unfinished(&self) -> usize {
        self.flows.ids_where(|flow| flow.tcb.state() != State::TimeWait).len()
    }

    fn reset_all(&mut self) -> usize {
        let all = self.flows.ids_where(|flow| flow.tcb.state() != State::TimeWait);
        all.iter().for_each(|id| self.tcp.end(&mut self.io, &mut self.flows, *id, End::Abort));
        all.len()
    }

    fn has_unsent(&self) -> bool {
        let queued = self.io.ports.iter().any(|port| !port.queue.is_empty());
        queued || self.is_transmitting() || !self.flows.touched.is_empty()
    }
}
