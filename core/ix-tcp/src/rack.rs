//! Time-based loss detection: RACK-TLP, RFC 8985.
use crate::ack::AckReport;
use crate::config::Config;
use crate::loss::{DUP_THRESH, REO_PERSIST};
use crate::output::{Output, RxBuf};
use crate::records::TxRecord;
use crate::stats::TcpCounter;
use crate::tcb::{Flags, Phase, Tcb, loss_of};
use ix_wire::{Seq, TcpHeader};

/// Longest distance of reordered segments that is told (Linux' `tcp_max_reordering`).
const REORDERING_SEGS_MAX: u32 = 300;

/// RFC 8985 section 5.3: of two segments sent in the same microsecond, the one with the later octet
/// is the later.
fn sent_after(a_us: u64, a_end: Seq, b_us: u64, b_end: Seq) -> bool {
    a_us > b_us || a_us == b_us && a_end.gt(b_end)
}

impl<B: RxBuf> Tcb<B> {
    /// Records a delivered segment: RFC 8985 section 6.2 steps 1 to 3.
    #[inline]
    pub(crate) fn note_delivered(&mut self, record: &TxRecord, now_us: u64, hdr: &TcpHeader) {
        let end = record.end();
        let retransmitted = record.has(TxRecord::RETRANSMITTED);
        if end.gt(self.rack_fack) {
            self.rack_fack = end;
        } else if !retransmitted && end.lt(self.rack_fack) {
            self.flags.set(Flags::REORDERING);
            self.note_distance((self.rack_fack - record.seq) as u32);
        }
        let rtt_us = now_us.saturating_sub(record.sent_us).min(u64::from(u32::MAX)) as u32;
        if retransmitted {
            // The acknowledgement may be for the first transmission.
            if rtt_us < self.rtt.min_rtt_us() {
                return;
            }
            if let Some((_, ecr)) = hdr.options.timestamp
                && self.flags.has(Flags::TIMESTAMPS)
                && (ecr.wrapping_sub(self.ts_at(record.sent_us)) as i32) < 0
            {
                return;
            }
        }
        self.rack_rtt_us = rtt_us;
        if sent_after(record.sent_us, end, self.rack_xmit_us, self.rack_end) {
            self.rack_xmit_us = record.sent_us;
            self.rack_end = end;
        }
    }

    /// Something has arrived this many octets before the end of what had arrived.
    #[cold]
    fn note_distance(&mut self, octets: u32) {
        let segs = octets.div_ceil(self.mss.into()).min(REORDERING_SEGS_MAX) as u16;
        let loss = self.loss_mut();
        loss.reordering_segs = loss.reordering_segs.max(segs);
    }

    /// RFC 8985 section 6.2 step 4: widens the reordering window while it is too narrow.
    pub(crate) fn adapt_reordering_window(&mut self, dsack: bool) {
        let (snd_una, snd_nxt) = (self.snd_una, self.snd_nxt);
        if !dsack && self.loss().is_none() {
            return;
        }
        let loss = self.loss_mut();
        if loss.dsack_round.is_some_and(|round| snd_una.ge(round)) {
            loss.dsack_round = None;
        }
        if dsack && loss.dsack_round.is_none() {
            loss.dsack_round = Some(snd_nxt);
            loss.reo_mult = loss.reo_mult.saturating_add(1);
            loss.reo_persist = REO_PERSIST;
        }
    }

    fn reordering_window_us(&self) -> u32 {
        if !self.flags.has(Flags::REORDERING)
            && (self.phase != Phase::Open || self.sacked_segs() >= DUP_THRESH)
        {
            return 0;
        }
        let mult = self.loss().map_or(1, |loss| u32::from(loss.reo_mult));
        (self.rtt.min_rtt_us() / 4).saturating_mul(mult).min(self.rtt.srtt_us())
    }

    /// RFC 8985 section 6.2 step 5: marks as lost what was sent long enough before something
    /// delivered. Returns how long to wait for the rest, µs; 0: nothing to wait for.
    pub(crate) fn rack_mark_lost(&mut self, now_us: u64) -> u64 {
        if self.rack_xmit_us == 0 {
            return 0;
        }
        let patience_us = u64::from(self.rack_rtt_us) + u64::from(self.reordering_window_us());
        let mut wait_us = 0;
        for index in 0..self.records.len() {
            let Some(record) = self.records.get(index).copied() else { break };
            if record.has(TxRecord::SACKED | TxRecord::LOST | TxRecord::PROBE) {
                continue;
            }
            if !sent_after(self.rack_xmit_us, self.rack_end, record.sent_us, record.end()) {
                if record.has(TxRecord::RETRANSMITTED) {
                    continue;
                }
                // This one was sent for the first time, as were all that follow, and those later.
                break;
            }
            let due_us = record.sent_us.saturating_add(patience_us);
            if due_us <= now_us {
                self.mark_lost(index);
            } else {
                wait_us = wait_us.max(due_us - now_us);
            }
        }
        wait_us
    }

    /// RFC 8985 section 6.3: marks what a retransmission timeout shows to be lost.
    pub(crate) fn mark_lost_by_timeout(&mut self, now_us: u64, out: &mut impl Output<B>) {
        if self.records.first().is_some_and(|first| first.has(TxRecord::SACKED)) {
            // A receiver may drop data that it has acknowledged only selectively (RFC 2018 section
            // 8).
            out.count(TcpCounter::SackReneged);
            for index in 0..self.records.len() {
                if let Some(record) = self.records.get_mut(index) {
                    record.marks &= !TxRecord::SACKED;
                }
            }
            self.sacked_bytes = 0;
            self.loss_mut().sacked_segs = 0;
        }
        let patience_us = u64::from(self.rack_rtt_us) + u64::from(self.reordering_window_us());
        for index in 0..self.records.len() {
            let Some(record) = self.records.get(index).copied() else { break };
            let overdue = record.sent_us.saturating_add(patience_us) <= now_us;
            if index == 0 || overdue || !self.flags.has(Flags::SACK) {
                self.mark_lost(index);
            }
        }
    }

    /// Marks one record lost, unless it is delivered or already marked.
    pub(crate) fn mark_lost(&mut self, index: usize) {
        if let Some(record) = self.records.get_mut(index)
            && !record.has(TxRecord::SACKED | TxRecord::LOST)
        {
            record.marks |= TxRecord::LOST;
            self.lost_bytes += u32::from(record.len);
            let record = *record;
            self.with_bbr(|bbr| {
                bbr.lost(record.sent_us, record.len.into(), record.end().0);
            });
        }
    }

    /// Marks everything outstanding lost.
    pub(crate) fn mark_all_lost(&mut self) {
        for index in 0..self.records.len() {
            self.mark_lost(index);
        }
    }

    /// RFC 8985 section 7.2: how long to wait for an acknowledgement before a tail loss probe.
    pub(crate) fn probe_timeout_us(&self, cfg: &Config) -> u64 {
        let base_us = if self.rtt.has_sample() {
            self.rtt.srtt_us().saturating_mul(2)
        } else {
            cfg.initial_rto_us
        };
        let allowance_us = if self.one_in_flight() { cfg.max_ack_delay_us } else { 0 };
        u64::from(base_us.max(cfg.min_pto_us)) + u64::from(allowance_us)
    }

    /// The peer may delay an acknowledgement while less than two full-sized segments are
    /// outstanding (RFC 9293 section 3.8.6.3).
    pub(crate) fn delayed_ack_allowance_us(&self, cfg: &Config) -> u64 {
        if self.one_in_flight() { u64::from(cfg.delayed_ack_allowance_us) } else { 0 }
    }

    #[inline]
    pub(crate) fn one_in_flight(&self) -> bool {
        self.flight_bytes() < 2 * u32::from(self.mss)
    }

    /// RFC 8985 section 7.4.2: what an acknowledgement proves about a tail loss probe.
    pub(crate) fn judge_probe(
        &mut self,
        ack: Seq,
        report: &AckReport,
        has_sack: bool,
        out: &mut impl Output<B>,
    ) {
        let flight = self.flight_bytes();
        let phase = self.phase;
        let Some(loss) = loss_of(&mut self.rare) else { return };
        let Some(end) = loss.tlp_end.filter(|end| ack.ge(*end)) else { return };
        let both_arrived = report.dsack.is_some_and(|(_, right)| right == end);
        if !loss.tlp_retransmit || both_arrived {
            loss.tlp_end = None;
        } else if ack.gt(end) {
            // The probe has filled a hole: there was a loss, and so congestion.
            loss.tlp_end = None;
            if phase == Phase::Open {
                loss.undo_to = Some(self.cc);
                self.cc.on_congestion(flight.max(report.acked));
                out.count(TcpCounter::Recoveries);
            }
        } else if report.duplicate && !has_sack {
            loss.tlp_end = None;
        }
    }
}
