//! The record that a survey makes of each flow.
use super::Flows;
use super::flow::Flow;
use super::group::FlowGroup;
use super::handle::FlowId;
use super::shelf::Kept;
use crate::context::Context;
use crate::observe::survey::{FlowRecord, SurveyArea};
use ix_proto::survey::FlowFigures;
use ix_tcp::State;
use ix_wire::FlowTuple;

impl Flows {
    /// Surveys some more slots; returns whether all flow groups here are done.
    pub fn survey(&self, cx: &Context, area: &SurveyArea, slots: usize) -> bool {
        let mut left = slots;
        for group in self.groups.iter().flatten() {
            let number = usize::from(group.id());
            let Some(first) = area.progress(number) else { continue };
            let slots = group.slots();
            let end = slots + group.shelf().entries() as u32;
            let last = end.min(first.saturating_add(left as u32)).max(first);
            for slot in first..last {
                group.prefetch_slot(slot + 2);
                if let Some(flow) = group.peek(slot) {
                    area.push(&record(cx, group, slot, flow));
                } else if let Some(index) = slot.checked_sub(slots)
                    && let Some(kept) = group.shelf().nth(index as usize)
                {
                    area.push(&record_of_kept(cx, group, index, kept));
                }
            }
            left -= (last - first) as usize;
            area.set_progress(number, (last < end).then_some(last));
            if last < end {
                return false;
            }
        }
        true
    }
}

/// Of a connection on the shelf only its state is known. The number that stands for its handle is
/// no handle.
fn record_of_kept(cx: &Context, group: &FlowGroup, index: u32, kept: &Kept) -> FlowRecord {
    FlowRecord {
        handle: FlowId { slot: index, ..FlowId::shelf_of(group.id()) }.handle(),
        ..record_of_tuple(cx, group, kept.wait.tuple())
    }
}

/// The record of a flow of which nothing else is known; it has no handle.
fn record_of_tuple(cx: &Context, group: &FlowGroup, tuple: &FlowTuple) -> FlowRecord {
    FlowRecord {
        handle: 0,
        local: tuple.local.0,
        peer: tuple.remote.0,
        local_port: tuple.local_port,
        peer_port: tuple.remote_port,
        thread: cx.index as u16,
        flow_group: group.id(),
        state: State::TimeWait as u32,
        process: 0,
        figures: FlowFigures::default(),
    }
}

fn record(cx: &Context, group: &FlowGroup, slot: u32, flow: &Flow) -> FlowRecord {
    let socket = &flow.socket;
    let info = flow.tcb.info(&cx.shared.config.tcp);
    FlowRecord {
        handle: group.id_of(slot).handle(),
        state: info.state as u32,
        process: socket.owner.into(),
        figures: FlowFigures {
            bytes_in: socket.bytes_in,
            bytes_out: socket.bytes_out,
            age_us: socket.age_us(cx.now_us),
            idle_us: flow.tcb.idle_us(cx.now_us),
            mss_bytes: info.mss_bytes,
            cwnd_bytes: info.cwnd_bytes,
            ssthresh_bytes: info.ssthresh_bytes,
            srtt_us: info.srtt_us,
            rttvar_us: info.rttvar_us,
            rto_us: info.rto_us,
            snd_wnd_bytes: info.snd_wnd_bytes,
            rcv_wnd_bytes: info.rcv_wnd_bytes,
            in_flight_bytes: info.in_flight_bytes,
            snd_queued_bytes: info.snd_queued_bytes,
            rcv_queued_bytes: info.rcv_queued_bytes,
            retransmits: info.retransmits,
        },
        ..record_of_tuple(cx, group, flow.tcb.tuple())
    }
}
