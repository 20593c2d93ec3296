//! An elastic thread's part in a survey.
use super::{FlowRecord, SurveyArea};
use crate::cycle::ElasticThread;
use crate::flows::flow::Flow;
use crate::flows::group::FlowGroup;
use std::sync::atomic::{Ordering, fence};

/// Slots that are looked at between two cycles: about as long as a few packets take.
pub(crate) const SLICE: usize = 32;

impl ElasticThread {
    /// Does some of this thread's part in the survey that runs: looks at no more than `slots`.
    #[cold]
    pub(crate) fn attend_survey(&mut self, slots: usize, now_us: u64) {
        let shared = self.shared.clone();
        let updates = &shared.updates;
        // Before the look: a survey that begins meanwhile orders again.
        updates.survey_done(self.io.index);
        let Some(survey) = updates.surveys.get() else { return };
        if now_us > survey.until_us {
            updates.surveys.end(survey.serial);
            return;
        }
        if !self.survey(&survey.area, slots, now_us) {
            return updates.order_survey(self.io.index);
        }
        // Of two threads that are done at once, one sees both.
        fence(Ordering::SeqCst);
        if survey.area.missing().is_empty() && updates.surveys.end(survey.serial) {
            updates.tell_surveyed(survey.serial);
        }
    }

    /// Whether all flow groups here are surveyed.
    fn survey(&self, area: &SurveyArea, slots: usize, now_us: u64) -> bool {
        let mut left = slots;
        for group in self.groups.iter().flatten() {
            let number = usize::from(group.id());
            let Some(first) = area.progress(number) else { continue };
            let end = group.slots();
            let last = end.min(first.saturating_add(left as u32)).max(first);
            for slot in first..last {
                group.prefetch_slot(slot + 2);
                if let Some(flow) = group.peek(slot) {
                    area.push(&self.record(group, slot, flow, now_us));
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

    fn record(&self, group: &FlowGroup, slot: u32, flow: &Flow, now_us: u64) -> FlowRecord {
        let (side, tuple) = (&flow.side, flow.tcb.tuple());
        let info = flow.tcb.info(&self.shared.config.tcp);
        FlowRecord {
            handle: group.id_of(slot).handle(),
            local: tuple.local.0,
            peer: tuple.remote.0,
            bytes_in: side.bytes_in,
            bytes_out: side.bytes_out,
            age_us: side.age_us(now_us),
            idle_us: flow.tcb.idle_us(now_us),
            local_port: tuple.local_port,
            peer_port: tuple.remote_port,
            thread: self.io.index as u16,
            flow_group: group.id(),
            state: info.state as u32,
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
            reserved: 0,
        }
    }
}
