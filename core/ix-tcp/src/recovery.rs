//! Reaction to a loss: RFC 6675 and RFC 6582 (when to enter and leave recovery), RFC 9937 (how much
//! to send in it), RFC 3522 and RFC 3708 (when it was a mistake).
use crate::ack::AckReport;
use crate::config::Config;
use crate::ecn::EcnState;
use crate::loss::{DUP_THRESH, Earlier, LossState};
use crate::output::{Output, RxBuf};
use crate::records::TxRecord;
use crate::stats::TcpCounter;
use crate::tcb::{Flags, LossTimer, Phase, Tcb, loss_of};
use ix_wire::TcpHeader;

impl<B: RxBuf> Tcb<B> {
    /// The recovery state, made when it is first needed.
    pub(crate) fn loss_mut(&mut self) -> &mut LossState {
        let snd_una = self.snd_una;
        self.rare_mut().loss.get_or_insert_with(|| Box::new(LossState::new(snd_una)))
    }

    /// Octets in the network: neither acknowledged nor taken to be lost. Every outstanding octet is
    /// in exactly one of these counts, in whatever order it was sacked, lost, sent again and
    /// acknowledged (cf. gvisor#14092).
    #[inline]
    pub(crate) fn pipe_bytes(&self) -> u32 {
        self.flight_bytes() - self.sacked_bytes - self.lost_bytes - self.presumed_sacked_bytes()
    }

    /// From a peer without SACK each duplicate acknowledgement means that a segment has arrived
    /// (RFC 6582 section 3.2 inflates the window instead).
    fn presumed_sacked_bytes(&self) -> u32 {
        let dupacks = u32::from(self.dupacks());
        if dupacks == 0 {
            return 0;
        }
        let first = self.records.first().map_or(0, |record| u32::from(record.len));
        let others = self.flight_bytes().saturating_sub(first);
        let lost_others = self.lost_bytes.saturating_sub(first);
        (dupacks * u32::from(self.mss)).min(others.saturating_sub(lost_others))
    }

    /// The congestion window now: that of recovery, if there is one.
    #[inline]
    pub(crate) fn cwnd_bytes(&self) -> u32 {
        match (self.phase, self.loss()) {
            (Phase::Recovery, Some(loss)) if loss.bbr.is_none() => loss.prr_cwnd,
            _ => self.cc.cwnd_bytes(),
        }
    }

    /// Detects losses, from an acknowledgement that was not plain.
    pub(crate) fn detect_loss(
        &mut self,
        now_us: u64,
        hdr: &TcpHeader,
        report: &AckReport,
        out: &mut impl Output<B>,
    ) {
        self.adapt_reordering_window(report.dsack.is_some());
        self.judge_probe(hdr.ack, report, !hdr.options.sack.is_empty(), out);
        self.consider_undo(hdr, report, out);
        self.consider_exit();
        self.judge_path_probe(now_us, out);
        let lost_before = self.lost_bytes;
        let delivered = if self.flags.has(Flags::SACK) {
            self.rack_detect(now_us);
            report.delivered
        } else {
            self.new_reno(report)
        };
        let newly_lost = self.lost_bytes > lost_before;
        if newly_lost && self.phase == Phase::Open && !self.only_probe_is_lost() {
            self.enter_recovery(delivered, out);
        }
        if self.phase == Phase::Recovery {
            self.pace_recovery(delivered, report.acked > 0 && !newly_lost);
        }
    }

    /// RFC 8985 section 6.2 step 5, with the timer for what may still be lost.
    pub(crate) fn rack_detect(&mut self, now_us: u64) {
        let wait_us = self.rack_mark_lost(now_us);
        if wait_us > 0 || self.loss().is_some() {
            let reorder_at_us = if wait_us > 0 { now_us.saturating_add(wait_us) } else { 0 };
            self.loss_mut().reorder_at_us = reorder_at_us;
        }
    }

    /// Recovery for peers without SACK (RFC 6582). Returns the octets that the acknowledgement
    /// delivered.
    fn new_reno(&mut self, report: &AckReport) -> u32 {
        let mss = u32::from(self.mss);
        if report.acked > 0 {
            // The segments that duplicate acknowledgements stood for are now acknowledged.
            let presumed = (report.acked / mss).saturating_sub(1).min(u32::from(self.dupacks()));
            if let Some(loss) = loss_of(&mut self.rare) {
                loss.dupacks -= presumed as u16;
            }
            if self.phase == Phase::Recovery {
                // Partial acknowledgement: the next hole is lost too.
                self.mark_lost(0);
            }
            return report.acked.saturating_sub(presumed * mss);
        }
        let probing = self.records.first().is_none_or(|first| first.has(TxRecord::PROBE));
        if !report.duplicate || probing || self.snd_wnd == 0 {
            return 0;
        }
        let snd_una = self.snd_una;
        let loss = self.loss_mut();
        loss.dupacks = loss.dupacks.saturating_add(1);
        // After a timeout, duplicates of its retransmissions are no sign of loss (section 4).
        let fresh = snd_una.gt(loss.recover) || !loss.retransmitted;
        if loss.dupacks >= DUP_THRESH && self.phase == Phase::Open && fresh {
            self.mark_lost(0);
        }
        mss
    }

    /// Begins recovery: one reduction per window of data. `delivered`: octets that the
    /// acknowledgement which showed the loss has delivered itself (RFC 9937 section 6.1).
    pub(crate) fn enter_recovery(&mut self, delivered: u32, out: &mut impl Output<B>) {
        out.count(TcpCounter::Recoveries);
        let (recover, flight) = (self.snd_nxt, self.flight_bytes());
        let pipe = self.pipe_bytes() + self.lost_bytes + delivered;
        let (before, undo_from) = (self.cc, self.snd_una);
        self.cc.on_congestion(flight);
        self.phase = Phase::Recovery;
        if let Some(bbr) = self.bbr_mut() {
            bbr.enter_recovery();
        }
        let mss = u32::from(self.mss);
        let cwnd = self.pipe_bytes() + mss;
        let resent_before = self.are_resent_in_flight();
        let loss = self.loss_mut();
        loss.recover = recover;
        loss.resent_before = resent_before;
        loss.prr_delivered = 0;
        loss.prr_out = 0;
        loss.prr_flight = pipe.max(mss);
        // The first retransmission is sent whatever the window is (RFC 9937 section 6.2).
        loss.prr_cwnd = cwnd;
        let awaited = loss.undo.filter(|awaited| *awaited > 0);
        loss.earlier =
            awaited.zip(loss.before).map(|(awaited, before)| Earlier { awaited, before });
        (loss.undo, loss.undo_from, loss.before) = (Some(0), undo_from, Some(before));
        loss.undo_to = Some(before);
        loss.retransmitted = false;
        loss.interrupted = false;
        loss.tlp_end = None;
    }

    /// Whether something in flight was sent again by an earlier recovery. Its acknowledgement
    /// echoes the time of that, which is before the first retransmission of one that begins now,
    /// and is no sign that this one is a mistake.
    fn are_resent_in_flight(&self) -> bool {
        let mut records = (0..self.records.len()).filter_map(|index| self.records.get(index));
        records.any(|record| record.has(TxRecord::RETRANSMITTED))
    }

    /// RFC 9937 section 6.2: proportional rate reduction. `safe`: the acknowledgement advanced and
    /// showed no further loss.
    fn pace_recovery(&mut self, delivered: u32, safe: bool) {
        let (pipe, ssthresh) = (self.pipe_bytes(), self.cc.ssthresh_bytes());
        let mss = u32::from(self.mss);
        let loss = self.loss_mut();
        loss.prr_delivered = loss.prr_delivered.saturating_add(delivered);
        let allowance = if pipe > ssthresh {
            let target = u64::from(loss.prr_delivered) * u64::from(ssthresh);
            (target.div_ceil(u64::from(loss.prr_flight)) as u32).saturating_sub(loss.prr_out)
        } else {
            let conserved = loss.prr_delivered.saturating_sub(loss.prr_out).max(delivered);
            let limit = conserved + if safe { mss } else { 0 };
            limit.min(ssthresh - pipe)
        };
        let allowance = if loss.prr_out == 0 { allowance.max(mss) } else { allowance };
        loss.prr_cwnd = pipe + allowance;
    }

    /// Ends recovery if everything that was outstanding when it began is acknowledged.
    fn consider_exit(&mut self) {
        let Some(loss) = loss_of(&mut self.rare) else { return };
        if self.phase == Phase::Open || self.snd_una.lt(loss.recover) {
            return;
        }
        loss.reo_persist = loss.reo_persist.saturating_sub(1);
        if loss.reo_persist == 0 {
            loss.reo_mult = 1;
        }
        loss.dupacks = 0;
        self.phase = Phase::Open;
        self.with_bbr(|bbr| bbr.leave_recovery());
    }

    /// Undoes the reduction after a loss that was none: the acknowledgement echoes a timestamp from
    /// before the first retransmission (Eifel, RFC 3522), or every retransmission was reported as a
    /// duplicate (RFC 3708).
    fn consider_undo(&mut self, hdr: &TcpHeader, report: &AckReport, out: &mut impl Output<B>) {
        let timestamps = self.flags.has(Flags::TIMESTAMPS);
        let recovering = self.phase != Phase::Open;
        let Some(loss) = loss_of(&mut self.rare) else { return };
        let dsack = report.dsack.filter(|(left, _)| left.ge(loss.undo_from));
        if report.dsack.is_some() && dsack.is_none() {
            return self.consider_earlier(out);
        }
        let Some(retransmissions) = &mut loss.undo else { return };
        if !loss.retransmitted {
            return;
        }
        // A DSACK may arrive after the end of recovery, because it reports a retransmission.
        let echoes_original = timestamps
            && recovering
            && report.acked > 0
            && report.retransmitted
            && hdr.options.timestamp.is_some_and(|(_, ecr)| {
                ecr != 0 && (ecr.wrapping_sub(loss.first_retransmit_ts) as i32) < 0
            });
        if dsack.is_some() && *retransmissions > 0 {
            *retransmissions -= 1;
            if *retransmissions == 0 {
                self.undo(out);
                return;
            }
        }
        if echoes_original {
            self.undo(out);
        }
    }

    /// A retransmission of before this recovery was reported as a duplicate. Once all of the
    /// recovery before it were, that one was a mistake: the windows are as if only this one had
    /// happened, or none if that was a mistake too. On a path that reorders, the next recovery
    /// begins before the reports about the last one have come.
    fn consider_earlier(&mut self, out: &mut impl Output<B>) {
        let flight = self.flight_bytes();
        let Some(loss) = loss_of(&mut self.rare) else { return };
        let Some(earlier) = loss.earlier.as_mut().filter(|earlier| earlier.awaited > 0) else {
            return;
        };
        earlier.awaited -= 1;
        if earlier.awaited == 0 {
            let mut windows = earlier.before;
            if loss.undo.is_some() {
                windows.on_congestion(flight);
            }
            out.count(TcpCounter::Undos);
            self.cc.raise_to(&windows);
        }
    }

    fn undo(&mut self, out: &mut impl Output<B>) {
        out.count(TcpCounter::Undos);
        if let Some(before) = loss_of(&mut self.rare).and_then(|loss| loss.undo_to.take()) {
            self.cc.undo(&before);
        }
        let earlier = self.loss().and_then(|loss| loss.earlier);
        if let Some(earlier) = earlier.filter(|earlier| earlier.awaited == 0) {
            self.cc.raise_to(&earlier.before);
        }
        self.with_bbr(|bbr| bbr.undo());
        self.phase = Phase::Open;
        if let Some(loss) = loss_of(&mut self.rare) {
            loss.dupacks = 0;
            loss.undo = None;
            if loss.interrupted {
                // The timeout was a mistake, but the losses before it were not; for what RACK finds
                // lost again the window was already reduced.
                loss.interrupted = false;
                self.phase = Phase::Recovery;
            }
        }
        for index in 0..self.records.len() {
            if let Some(record) = self.records.get_mut(index) {
                record.marks &= !TxRecord::LOST;
            }
        }
        self.lost_bytes = 0;
    }

    /// Processes an expired retransmission timer: RFC 6298 section 5, RFC 5681 section 3.1.
    pub(crate) fn take_timeout(&mut self, now_us: u64, out: &mut impl Output<B>) {
        out.count(TcpCounter::Rto);
        let first = self.rtt.backoff() == 0;
        let (recover, flight) = (self.snd_nxt, self.flight_bytes());
        self.clear_dupacks();
        self.mark_lost_by_timeout(now_us, out);
        let before = self.cc;
        self.cc.on_rto(first, flight);
        let pipe = self.pipe_bytes();
        self.with_bbr(|bbr| bbr.on_rto(pipe));
        let restarted = self.phase != Phase::Timeout;
        let interrupted = self.phase == Phase::Recovery;
        self.phase = Phase::Timeout;
        let oldest = self.snd_una;
        let loss = self.loss_mut();
        loss.recover = recover;
        loss.tlp_end = None;
        if first {
            loss.undo_to = Some(before);
        }
        if restarted {
            // What advances shows that the first copy of the oldest has arrived, or the one that
            // recovery has sent: the timeout was a mistake either way.
            loss.resent_before = false;
            (loss.undo, loss.undo_from) = (Some(0), oldest);
            (loss.before, loss.earlier) = (None, None);
            loss.retransmitted = false;
            loss.interrupted = interrupted;
        }
        self.loss_timer = LossTimer::Rto;
    }

    /// Ends the handshake. A lost SYN is no congestion of the data's path, but the connection then
    /// starts with one segment (RFC 5681 section 3.1).
    pub(crate) fn leave_handshake_losses(&mut self, cfg: &Config) {
        self.ecn.put(EcnState::SYN_AGAIN, false);
        let lost_syn = self.take_loss().is_some_and(|loss| loss.unanswered_syn);
        self.phase = Phase::Open;
        // RFC 6298 section 5.7: after a lost SYN, data begins with a timeout of three seconds.
        self.rtt.clear_backoff();
        let segments = if lost_syn { 1 } else { cfg.initial_window_segments };
        self.cc = crate::cc::Control::new(self.cc.kind(), self.mss, segments);
        self.start_bbr();
    }
}
