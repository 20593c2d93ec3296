//! How connections begin at a listener and how they end; their timers and what the path reports.
//! The calls that listen and connect are in `calls.rs`.
use super::Tcp;
use super::listeners::HeaderFields;
use super::output::announce;
use crate::context::Context;
use crate::flows::flow::{Ending, Facts, Flow, Holder, Payload};
use crate::flows::handle::FlowId;
use crate::flows::shelf::Kept;
use crate::flows::{Flows, Groups, flow_and_alarm, flow_of, schedule, touch};
use crate::io::Io;
use crate::receive::batch::Work;
use ix_proto::crossing::AttachmentId;
use ix_tcp::icmp::IcmpError;
use ix_tcp::{DeadReason, State, Tcb, TcpCounter};
use ix_wire::{FlowTuple, Seq, TcpHeader, TcpPacket};

/// How the application ends a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// In order.
    Close,
    /// By reset.
    Abort,
}

/// The MSS of devices that take packets of at most so many bytes.
pub(crate) fn mss_of(mtu: usize) -> u16 {
    let mss = mtu.min(ix_nic::MTU_MAX).saturating_sub(usize::from(ix_tcp::HEADER_BYTES));
    (mss as u16).max(ix_tcp::MSS_MIN)
}

/// Most flows that wait for room and are looked at in one go.
const TURNS: usize = 64;
/// Most flows that [`visit_some`] looks at.
const VISITED_AT_ONCE: usize = 256;
/// Most flows that [`Tcp::muster`] looks at.
const MUSTERED_AT_ONCE: usize = 32;
/// Most flows that are reset at once because frames are short.
const RELIEVED_AT_ONCE: usize = 8;
/// Most flows in TIME-WAIT that are ended for one new flow.
const RECYCLED_AT_ONCE: usize = 64;

impl Tcp {
    /// Removes a flow with all that it holds; its handle is stale from now on.
    pub fn remove(&mut self, io: &mut Io, flows: &mut Flows, id: FlowId) {
        if id.is_shelf() {
            return flows.remove(&io.cx, id);
        }
        let Some(flow) = flow_of(&mut flows.groups, id) else { return };
        self.listeners.stop_waiting(&mut flow.socket);
        flow.tcb.release(&mut io.of(&mut flow.socket));
        io.cx.bury(&mut flow.socket);
        flows.remove(&io.cx, id);
        debug_assert!(flows.count > 0 || io.cx.promises.bytes() == 0, "a promise of no flow");
    }

    /// Frames are short: counts the flows that hold none. Looks at some flows at a time.
    #[cold]
    pub fn muster(&self, flows: &mut Flows) {
        self.review(flows, |_| {});
    }

    /// The same, and discards what waits behind gaps beyond what every flow may hold now.
    #[cold]
    pub fn muster_and_prune(&self, io: &mut Io, flows: &mut Flows) {
        self.review(flows, |flow| flow.tcb.prune(&self.config, &mut io.of(&mut flow.socket)));
    }

    /// Counts some more flows that hold no frame, and does something with each flow that it sees.
    fn review(&self, flows: &mut Flows, mut act: impl FnMut(&mut Flow)) {
        let Flows { groups, muster, .. } = flows;
        let mut left = MUSTERED_AT_ONCE;
        for _ in 0..groups.len() {
            if let Some(group) = &mut groups[muster.group] {
                while muster.slot < group.slots() {
                    if left == 0 {
                        return;
                    }
                    left -= 1;
                    if let Some(flow) = group.at(muster.slot) {
                        muster.saw(flow.tcb.rcv_held_bufs() > 0);
                        act(flow);
                    }
                    muster.slot += 1;
                }
            }
            muster.next_group(groups.len());
        }
    }

    /// Almost no frame is left. Of the connections whose peers take nothing, resets those that hold
    /// most frames, or no other client would be served until they are given up (RFC 6429). Looks at
    /// some flows at a time.
    #[cold]
    pub fn relieve(&self, io: &mut Io, flows: &mut Flows) {
        let (now_us, mut left) = (io.cx.now_us, VISITED_AT_ONCE);
        let mut holders: Vec<(u16, FlowId)> = Vec::with_capacity(VISITED_AT_ONCE);
        let Flows { groups, relieved: (number, slot), .. } = flows;
        for _ in 0..groups.len() {
            if let Some(group) = &groups[*number] {
                while *slot < group.slots() && left > 0 {
                    if let Some(flow) = group.peek(*slot) {
                        left -= 1;
                        let holder = (flow.tcb.buffers_in_vain(now_us), flow.socket.id());
                        holders.extend((holder.0 > 0).then_some(holder));
                    }
                    *slot += 1;
                }
            }
            if left == 0 {
                break;
            }
            (*number, *slot) = ((*number + 1) % groups.len(), 0);
        }
        holders.sort_unstable_by_key(|(frames, _)| core::cmp::Reverse(*frames));
        for (_, id) in holders.into_iter().take(RELIEVED_AT_ONCE) {
            io.cx.metrics.count_tcp(TcpCounter::ResetForBuffers);
            self.reset(io, flows, id);
        }
    }

    /// Resets a flow, and tells the application.
    fn reset(&self, io: &mut Io, flows: &mut Flows, id: FlowId) {
        let Flows { groups, touched, .. } = flows;
        let Some(flow) = flow_of(groups, id) else { return };
        flow.tcb.abort(&self.config, io.cx.now_us, &mut io.of(&mut flow.socket));
        io.cx.flow_dead(&mut flow.socket, DeadReason::Reset);
        touch(touched, &mut flow.socket);
    }

    /// Where there is little left to promise, takes back what was promised to flows that are idle.
    /// Looks at some flows at a time.
    pub fn rest_idle(&self, io: &mut Io, flows: &mut Flows) {
        if !io.cx.promises.take_short() {
            return;
        }
        let Flows { groups, rested, .. } = flows;
        visit_some(io, groups, rested, |io, flow| {
            flow.tcb.rest(io.cx.now_us, &mut io.of(&mut flow.socket));
        });
    }

    /// Removes a flow from its listener's backlog.
    pub fn stop_waiting(&mut self, flows: &mut Flows, id: FlowId) {
        if let Some(flow) = flows.get(id) {
            self.listeners.stop_waiting(&mut flow.socket);
        }
    }

    /// Sends what the touched flows have to send, sets their timers and removes those that have
    /// ended. For flows that `quiets` selects, no event is written yet.
    #[inline]
    pub fn flush(
        &mut self,
        io: &mut Io,
        flows: &mut Flows,
        mut quiets: impl FnMut(FlowId) -> bool,
    ) {
        if !flows.crowded.is_empty() {
            self.flush_crowded(io, flows, &mut quiets);
        }
        let mut touched = std::mem::take(&mut flows.touched);
        for id in touched.drain(..) {
            if !quiets(id) {
                self.flush_flow(io, flows, id);
            }
        }
        flows.touched = touched;
    }

    /// Lets flows that wait for room send, one after the other, as long as there is some. Those
    /// that need more wait for their next turn.
    #[cold]
    fn flush_crowded(
        &mut self,
        io: &mut Io,
        flows: &mut Flows,
        quiets: &mut impl FnMut(FlowId) -> bool,
    ) {
        // Where the next one stands: those before it wait for another device.
        let mut next = 0;
        for _ in 0..flows.crowded.len().min(TURNS) {
            let Some(&id) = flows.crowded.get(next) else { return };
            if let Some(flow) = flows.get(id) {
                if !io.has_room(flow.socket.port) {
                    if io.ports.len() == 1 {
                        return;
                    }
                    next += 1;
                    continue;
                }
                flow.socket.facts.put(Facts::CROWDED, false);
            }
            flows.crowded.remove(next);
            if !quiets(id) {
                self.flush_flow(io, flows, id);
            }
        }
    }

    #[inline(always)]
    fn flush_flow(&mut self, io: &mut Io, flows: &mut Flows, id: FlowId) {
        let Flows { groups, wheel, crowded, .. } = flows;
        let Some((flow, alarm_us)) = flow_and_alarm(groups, id) else { return };
        flow.socket.touched = false;
        let now_us = io.cx.now_us;
        flow.tcb.output(&self.config, now_us, &mut io.of(&mut flow.socket));
        if flow.tcb.waits_for_room() && !flow.socket.facts.has(Facts::CROWDED) {
            flow.socket.facts.put(Facts::CROWDED, true);
            crowded.push_back(id);
        }
        if flow.tcb.is_dead() {
            self.remove(io, flows, id);
        } else if flow.tcb.state() == State::TimeWait && may_be_shelved(flow) {
            shelve(io, flows, id);
        } else {
            schedule(wheel, flow, alarm_us);
            if flow.tcb.state() != State::Established {
                let ending = flow.ending();
                if ending != flow.socket.ending {
                    flows.recount(&io.cx, id, ending);
                }
            }
        }
    }

    /// The flow that a SYN opens. Its sequence numbers begin at `floor` or above, if there is one.
    pub fn new_passive(
        &self,
        cx: &Context,
        syn: &TcpHeader,
        tuple: &FlowTuple,
        floor: Option<Seq>,
    ) -> Tcb<Payload> {
        let (iss, ts_offset) = self.secrets.start_of(tuple, cx.now_us);
        let iss = floor.map_or(iss, |floor| iss.max(floor));
        Tcb::accept(&self.config, *tuple, syn, iss, ts_offset, cx.now_us)
    }

    /// The connection that an ACK opens, if it has a valid SYN cookie.
    pub fn open_cookie(
        &self,
        cx: &Context,
        ack: &TcpHeader,
        tuple: &FlowTuple,
    ) -> Option<Tcb<Payload>> {
        self.secrets.open_cookie(&self.config, ack, tuple, cx.now_us)
    }

    /// Replies to a SYN with a cookie.
    pub fn send_cookie(
        &self,
        io: &mut Io,
        port: u8,
        packet: &TcpPacket,
        tuple: &FlowTuple,
        fields: HeaderFields,
    ) {
        let mut answer = self.secrets.cookie_for(&self.config, &packet.header, tuple, io.cx.now_us);
        if fields.segment_bytes > 0 {
            let limited = answer.options.mss.map(|mss| mss.min(fields.segment_bytes));
            answer.options.mss = limited;
        }
        io.cx.metrics.counters.syn_cookies.add(1);
        let hops = match fields.hops {
            0 => io.cx.hop_limit(tuple.remote),
            hops => hops,
        };
        io.send_reply_with(port, packet.ip.eth_src, tuple, &answer, (hops, fields.tos));
    }
}

impl Tcp {
    /// Processes a fired timer of a flow.
    pub fn fire(&self, io: &mut Io, flows: &mut Flows, id: FlowId) {
        let Flows { groups, wheel, touched, .. } = flows;
        let now_us = io.cx.now_us;
        if id.is_shelf() {
            return flows.end_kept(&io.cx, id);
        }
        let Some((flow, alarm_us)) = flow_and_alarm(groups, id) else { return };
        // Another entry of this cycle may have processed it.
        if *alarm_us > now_us {
            return;
        }
        *alarm_us = u64::MAX;
        flow.tcb.settle_loss_timer(&self.config, now_us);
        let out = &mut io.of(&mut flow.socket);
        if flow.tcb.deadline() > now_us || flow.tcb.acknowledge_late(&self.config, now_us, out) {
            schedule(wheel, flow, alarm_us);
            return;
        }
        flow.tcb.timer(&self.config, now_us, out);
        touch(touched, &mut flow.socket);
    }

    /// Gives an ICMP error about a sent segment to its flow, which checks it (RFC 5927), and to the
    /// application (RFC 9293 section 3.8.3).
    pub fn path_error(&self, io: &mut Io, flows: &mut Flows, work: &Work, error: &IcmpError) {
        let Flows { groups, touched, .. } = flows;
        let hash = io.cx.shared.flow_hash.hash(&error.tuple);
        let Some(group) = groups[usize::from(work.group)].as_mut() else { return };
        let Some(slot) = group.find(hash, &error.tuple) else { return };
        let Some(flow) = group.at(slot) else { return };
        let now_us = io.cx.now_us;
        let (kind, seq) = (error.kind.path_error(), error.quoted_seq);
        if flow.tcb.believes_error(seq) {
            io.cx.announce_error(&flow.socket, error);
        }
        let out = &mut io.of(&mut flow.socket);
        flow.tcb.icmp_error(&self.config, now_us, kind, seq, out);
        touch(touched, &mut flow.socket);
    }

    /// Tells flows whose SYN no host of the link would take.
    #[cold]
    pub fn end_without_hop(&self, io: &mut Io, flows: &mut Flows) {
        for tuple in std::mem::take(&mut io.cx.without_hop) {
            let Flows { groups, touched, .. } = flows;
            let hash = io.cx.shared.flow_hash.hash(&tuple);
            let found = groups.iter_mut().flatten().find_map(|group| {
                let slot = group.find(hash, &tuple)?;
                group.at(slot)
            });
            let Some(flow) = found else { continue };
            flow.tcb.next_hop_failed(&mut io.of(&mut flow.socket));
            touch(touched, &mut flow.socket);
        }
    }

    /// The devices take packets of at most `mtu` bytes now: new flows say so, others send no longer
    /// ones.
    pub fn fit_to_devices(&mut self, io: &mut Io, flows: &mut Flows, mtu: usize) {
        let mss = mss_of(mtu);
        if std::mem::replace(&mut self.config.mss, mss) == mss {
            return;
        }
        let mtu = mss + ix_tcp::HEADER_BYTES;
        for id in flows.ids_where(|flow| flow.tcb.exceeds(mtu)) {
            let Flows { groups, touched, .. } = flows;
            let Some(flow) = flow_of(groups, id) else { continue };
            let now_us = io.cx.now_us;
            let out = &mut io.of(&mut flow.socket);
            flow.tcb.device_takes(&self.config, now_us, mtu, out);
            touch(touched, &mut flow.socket);
        }
    }

    /// Makes room for another flow, if there is none, by ending those that have been in TIME-WAIT
    /// for longest: one, or some more where groups that have arrived have brought too many flows.
    #[inline]
    pub fn make_room(&mut self, io: &mut Io, flows: &mut Flows) {
        let flows_max = io.cx.shared.config.flows_max;
        for _ in 0..RECYCLED_AT_ONCE {
            if flows.count < flows_max {
                return;
            }
            let Some(id) = flows.oldest_in_time_wait(&io.cx) else { return };
            io.cx.metrics.counters.time_wait_recycled.add(1);
            self.remove(io, flows, id);
        }
    }

    /// The application gives up a flow, which ends by itself. If too many do so already, it is
    /// reset instead, as on Linux (`tcp_max_orphans`).
    pub fn end(&self, io: &mut Io, flows: &mut Flows, id: FlowId, how: End) {
        let is_full = flows.orphans >= io.cx.shared.config.orphans_max();
        let Flows { groups, touched, .. } = flows;
        let Some(flow) = flow_of(groups, id) else { return };
        let how = match how {
            End::Close if is_full && becomes_orphan(flow) => {
                io.cx.metrics.counters.orphans_reset.add(1);
                End::Abort
            }
            how => how,
        };
        let now_us = io.cx.now_us;
        let cfg = &self.config;
        flow.socket.holder = Holder::Orphan;
        match how {
            End::Close => flow.tcb.close(cfg, now_us, &mut io.of(&mut flow.socket)),
            End::Abort => flow.tcb.abort(cfg, now_us, &mut io.of(&mut flow.socket)),
        }
        io.cx.bury_received(&mut flow.socket);
        touch(touched, &mut flow.socket);
        let ending = flow.ending();
        if !flow.tcb.is_dead() && ending != flow.socket.ending {
            flows.recount(&io.cx, id, ending);
        }
    }

    /// The application has closed a flow, but keeps the memory of what was not acknowledged. It is
    /// bounded as if it had given it up.
    pub fn let_go(&self, io: &mut Io, flows: &mut Flows, id: FlowId) {
        let is_full = flows.orphans >= io.cx.shared.config.orphans_max();
        let Some(flow) = flows.get(id) else { return };
        if is_full && becomes_orphan(flow) {
            io.cx.metrics.counters.orphans_reset.add(1);
            return self.reset(io, flows, id);
        }
        flow.socket.facts.put(Facts::CLOSED, true);
        flow.tcb.must_progress();
        let ending = flow.ending();
        if ending != flow.socket.ending {
            flows.recount(&io.cx, id, ending);
        }
    }
}

/// Whether a flow in TIME-WAIT has nothing else to do.
fn may_be_shelved(flow: &Flow) -> bool {
    let socket = &flow.socket;
    socket.holder == Holder::Orphan && !socket.facts.has(Facts::CROWDED) && socket.is_bare()
}

/// Keeps of a flow in TIME-WAIT only what that needs, if it can.
fn shelve(io: &mut Io, flows: &mut Flows, id: FlowId) {
    let Some(flow) = flows.get(id) else { return };
    if let Some(wait) = flow.tcb.time_wait() {
        let kept = Kept::new(wait, flow.socket.port, flow.socket.tos);
        flow.tcb.release(&mut io.of(&mut flow.socket));
        if flows.shelve(&io.cx, id, kept) {
            return;
        }
    }
    let Flows { groups, wheel, .. } = flows;
    let Some((flow, alarm_us)) = flow_and_alarm(groups, id) else { return };
    schedule(wheel, flow, alarm_us);
    let ending = flow.ending();
    if ending != flow.socket.ending {
        flows.recount(&io.cx, id, ending);
    }
}

/// Whether a flow that is closed now adds to those without a holder.
fn becomes_orphan(flow: &Flow) -> bool {
    let state = flow.tcb.state();
    let waits = matches!(state, State::TimeWait | State::FinWait2 | State::SynSent | State::Closed);
    !waits && flow.socket.ending == Ending::No
}

/// Looks at the next flows of groups in which large windows are promised; `at` is the group and
/// slot at which it continues.
fn visit_some(
    io: &mut Io,
    groups: &mut Groups,
    at: &mut (usize, u32),
    mut visit: impl FnMut(&mut Io, &mut Flow),
) {
    let mut left = VISITED_AT_ONCE;
    for _ in 0..groups.len() {
        let (number, slot) = at;
        if io.cx.promises.of(*number) > 0
            && let Some(group) = &mut groups[*number]
        {
            while *slot < group.slots() {
                if left == 0 {
                    return;
                }
                left -= 1;
                if let Some(flow) = group.at(*slot) {
                    visit(io, flow);
                }
                *slot += 1;
            }
        }
        *at = ((*number + 1) % groups.len(), 0);
    }
}

/// Announces to a process data that arrived before it accepted the flow, or while it computed.
pub(crate) fn announce_early_data(cx: &mut Context, flows: &mut Flows, to: AttachmentId) {
    while cx.attached[to].events.has_room() {
        let Some(handle) = cx.attached[to].to_announce.pop_front() else { return };
        let Some(flow) = flows.get(FlowId::from_handle(handle)) else { continue };
        if flow.socket.holder != Holder::Application || flow.socket.owner != to {
            continue;
        }
        let Context { shared, attached, .. } = &mut *cx;
        let socket = &mut flow.socket;
        let held = std::mem::take(&mut socket.held);
        let skip = socket.announced as usize;
        held.for_each(&shared.memory, skip, |addr, len| {
            announce(attached, socket, addr, len as u32);
        });
        socket.held = held;
        if socket.eof_pending {
            cx.announce_eof(socket);
        }
        if std::mem::take(&mut socket.announce_later)
            && (socket.acked_bytes > 0 || socket.window_opened)
        {
            let space = flow.tcb.send_space(&cx.shared.config.tcp);
            cx.announce_sent(socket, space);
        }
    }
}
