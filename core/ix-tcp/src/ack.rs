//! The acknowledgement field, the window and the SACK blocks of an acceptable segment.
use crate::cc::Ack;
use crate::cc::hystart::{CSS_GROWTH_DIVISOR, Growth};
use crate::config::Config;
use crate::connect::ms_of;
use crate::ecn::EcnState;
use crate::output::{DeadReason, Output, RxBuf};
use crate::records::TxRecord;
use crate::state::State;
use crate::stats::TcpCounter;
use crate::tcb::{Flags, Phase, Tcb, loss_of};
use ix_wire::{Seq, TcpFlags, TcpHeader};

/// What one acknowledgement acknowledges.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckReport {
    /// Octets that it newly acknowledges cumulatively.
    pub acked: u32,
    /// Octets that it newly acknowledges, cumulatively or selectively.
    pub delivered: u32,
    /// Segments in these octets.
    pub packets: u32,
    /// A segment that was transmitted more than once was acknowledged.
    pub retransmitted: bool,
    /// Our FIN is acknowledged.
    pub fin: bool,
    /// The segment reported a duplicate (RFC 2883).
    pub dsack: Option<(Seq, Seq)>,
    /// Its SACK blocks acknowledge something new.
    pub sacked: bool,
    /// It is a duplicate acknowledgement (RFC 5681 section 2).
    pub duplicate: bool,
}

impl<B: RxBuf> Tcb<B> {
    /// Processes the acknowledgement of a segment that has passed all checks. `has_text`: the
    /// segment carries data or FIN, so it is not a duplicate acknowledgement.
    #[inline(never)]
    pub(crate) fn acknowledged(
        &mut self,
        cfg: &Config,
        now_us: u64,
        hdr: &TcpHeader,
        has_text: bool,
        out: &mut impl Output<B>,
    ) {
        self.acknowledged_here(cfg, now_us, hdr, has_text, out);
    }

    /// The same, inlined for the segment that was predicted.
    #[inline(always)]
    pub(crate) fn acknowledged_here(
        &mut self,
        cfg: &Config,
        now_us: u64,
        hdr: &TcpHeader,
        has_text: bool,
        out: &mut impl Output<B>,
    ) {
        let wnd_before = self.snd_wnd;
        let report = self.retire_here(now_us, hdr, out);
        if hdr.ack.ge(self.snd_una) {
            self.take_window(hdr, report.acked > 0);
        }
        if report.acked == 0
            && !has_text
            && let Some(loss) = loss_of(&mut self.rare)
        {
            loss.answered = true;
        }
        let quiet = report.acked == 0 && self.snd_wnd == wnd_before && hdr.options.sack.is_empty();
        if quiet && self.records.is_empty() {
            return;
        }
        self.digest(now_us, hdr, report, quiet && !has_text, out);
        if report.acked == 0 && self.snd_wnd != wnd_before {
            if wnd_before == 0 {
                // The window was closed, not the path: what is in flight is soon sent again, and
                // the time until the connection is given up starts anew.
                self.rtt.clear_backoff();
                self.rto_base_us = now_us;
                self.window_has_opened();
                self.withdraw_resent();
            }
            self.window_changed(cfg, wnd_before, out);
            self.arm_loss_timer(cfg, now_us);
        }
        if report.fin {
            self.fin_acknowledged(cfg, now_us, out);
        }
    }

    /// Removes what `hdr` acknowledges cumulatively from the records and the send stream.
    #[inline(never)]
    pub(crate) fn retire(
        &mut self,
        now_us: u64,
        hdr: &TcpHeader,
        out: &mut impl Output<B>,
    ) -> AckReport {
        self.retire_here(now_us, hdr, out)
    }

    /// The same, inlined.
    #[inline(always)]
    fn retire_here(&mut self, now_us: u64, hdr: &TcpHeader, out: &mut impl Output<B>) -> AckReport {
        let ack = hdr.ack;
        if ack.le(self.snd_una) {
            return AckReport::default();
        }
        #[cfg(feature = "planted")]
        if ack.0 <= self.snd_una.0 && crate::planted::is(crate::planted::Bug::WrongWrap) {
            return AckReport::default();
        }
        if let Some(record) = self.records.only_until(ack)
            && self.loss().is_none()
        {
            return self.retire_only(record, now_us, hdr, out);
        }
        self.retire_all(now_us, hdr, out)
    }

    /// [`Self::retire`] for whatever is in flight, some of which is acknowledged.
    #[inline(never)]
    fn retire_all(&mut self, now_us: u64, hdr: &TcpHeader, out: &mut impl Output<B>) -> AckReport {
        let mut report = AckReport::default();
        let ack = hdr.ack;
        let acked = (ack - self.snd_una) as u32;
        let mut control = 0;
        let (mut sample_sent_us, mut again_us) = (None, None);
        let samples = self.records.len() as u32;
        let mut fresh = false;
        while let Some(record) = self.records.first().copied() {
            fresh |= record.seq.lt(ack) && !record.has(TxRecord::RETRANSMITTED);
            if record.end().gt(ack) {
                self.retire_part(ack, &mut report, &mut control);
                break;
            }
            self.records.pop_first();
            self.forget_marks(&record);
            report.retransmitted |= record.has(TxRecord::RETRANSMITTED);
            report.fin |= record.has(TxRecord::FIN);
            control += u32::from(record.has(TxRecord::SYN)) + u32::from(record.has(TxRecord::FIN));
            if !record.has(TxRecord::SACKED) {
                report.delivered += u32::from(record.len);
                report.packets += 1;
                self.note_delivered(&record, now_us, hdr);
                self.tell_model(&record);
                let again = record.has(TxRecord::RETRANSMITTED);
                *(if again { &mut again_us } else { &mut sample_sent_us }) = Some(record.sent_us);
            }
        }
        report.acked = acked;
        self.snd_una = ack;
        if fresh {
            // RFC 8961 section 4, (4): data that was sent once has arrived. What was sent again
            // tells nothing of the path unless there is a sample: without it the timeout would be
            // as short as before, and expire again in vain.
            self.rtt.clear_backoff();
        } else {
            self.rtt.keep_backoff(self.phase == Phase::Open);
        }
        if let Some(sent_us) = again_us {
            // Whatever else is acknowledged has waited for the retransmission: it gives no sample.
            self.sample_retransmission(sent_us, now_us, hdr);
        } else if let Some(sent_us) = sample_sent_us {
            self.sample_rtt(now_us.saturating_sub(sent_us), samples, now_us);
        }
        self.rto_base_us = now_us;
        if let Some(loss) = loss_of(&mut self.rare) {
            loss.unanswered_since_us = 0;
        }
        let data = acked - control;
        debug_assert!(data <= self.snd_buf_bytes);
        if data > 0 {
            self.snd_buf_bytes = self.snd_buf_bytes.saturating_sub(data);
            out.acked(data);
        }
        report
    }

    /// The common case of [`Self::retire`]: everything in flight is one segment that was sent once,
    /// without SYN and FIN, and it is acknowledged.
    #[inline(always)]
    fn retire_only(
        &mut self,
        record: TxRecord,
        now_us: u64,
        hdr: &TcpHeader,
        out: &mut impl Output<B>,
    ) -> AckReport {
        let acked = u32::from(record.len);
        self.records.clear_only();
        self.note_delivered(&record, now_us, hdr);
        self.snd_una = hdr.ack;
        self.sample_rtt(now_us.saturating_sub(record.sent_us), 1, now_us);
        self.rto_base_us = now_us;
        debug_assert!(acked <= self.snd_buf_bytes);
        self.snd_buf_bytes = self.snd_buf_bytes.saturating_sub(acked);
        out.acked(acked);
        AckReport { acked, delivered: acked, packets: 1, ..AckReport::default() }
    }

    /// The first record is acknowledged up to `ack`, which is within it.
    fn retire_part(&mut self, ack: Seq, report: &mut AckReport, control: &mut u32) {
        let Some(record) = self.records.get_mut(0) else { return };
        let part = (ack - record.seq).max(0) as u16;
        if part == 0 {
            return;
        }
        record.seq = ack;
        record.len -= part;
        *control += u32::from(record.has(TxRecord::SYN));
        record.marks &= !TxRecord::SYN;
        report.retransmitted |= record.has(TxRecord::RETRANSMITTED);
        let part = u32::from(part);
        if record.has(TxRecord::SACKED) {
            self.sacked_bytes -= part;
            return;
        }
        if record.has(TxRecord::LOST) {
            self.lost_bytes -= part;
        }
        report.delivered += part;
    }

    /// Takes the round-trip time of a segment that was sent once.
    fn sample_rtt(&mut self, rtt_us: u64, flight_segs: u32, now_us: u64) {
        self.rtt.sample(rtt_us.min(u64::from(u32::MAX)) as u32, flight_segs / 2, now_us);
    }

    /// Takes a sample from a retransmitted segment. Only the echoed timestamp tells which copy was
    /// acknowledged (RFC 7323 section 4). If the acknowledgement was caused by something sent
    /// later, the time measures our timeouts and lost acknowledgements, not the path. So does the
    /// acknowledgement of a duplicate, which echoes an earlier copy (RFC 7323 section 4.3) and
    /// which a peer with SACK reports.
    fn sample_retransmission(&mut self, sent_us: u64, now_us: u64, hdr: &TcpHeader) {
        let Some((_, ecr)) = hdr.options.timestamp.filter(|_| self.flags.has(Flags::TIMESTAMPS))
        else {
            return;
        };
        if ecr == self.ts_at(sent_us) {
            if ms_of(sent_us) == self.last_snd_ms {
                self.sample_rtt(now_us.saturating_sub(sent_us), 1, now_us);
            }
            return;
        }
        let is_earlier = (self.ts_at(sent_us).wrapping_sub(ecr) as i32) > 0;
        let caused_by_it =
            self.flags.has(Flags::SACK) && !is_dsack(hdr.options.sack.as_slice(), hdr.ack);
        let round_trip_ms = self.ts_at(now_us).wrapping_sub(ecr);
        if is_earlier && caused_by_it && (round_trip_ms as i32) > 0 {
            let round_trip_us = round_trip_ms.saturating_mul(1000);
            if self.rtt.backoff() > 0 {
                // The timeout was spurious (RFC 4015 section 3.2).
                self.rtt.sample_longer_path(round_trip_us, now_us);
            } else {
                self.sample_rtt(u64::from(round_trip_us), 1, now_us);
            }
        }
    }

    /// Processes everything but the plain advance: duplicates, SACK, losses, congestion control,
    /// timer.
    #[inline(always)]
    fn digest(
        &mut self,
        now_us: u64,
        hdr: &TcpHeader,
        mut report: AckReport,
        quiet: bool,
        out: &mut impl Output<B>,
    ) {
        let plain = hdr.options.sack.is_empty()
            && self.phase == Phase::Open
            && self.loss().is_none()
            && self.sacked_bytes == 0
            && !quiet;
        let was_recovering = self.phase == Phase::Recovery;
        if !plain {
            self.digest_losses(now_us, hdr, &mut report, quiet, out);
        }
        let accurate = self.ecn.has(EcnState::ACCURATE);
        let marked_bytes = if accurate {
            self.take_ace(hdr, &report, out)
        } else if hdr.flags.contains(TcpFlags::ECE) && self.uses_ecn() {
            report.acked
        } else {
            0
        };
        if report.acked > 0 {
            if self.phase == Phase::Open {
                self.clear_dupacks();
            }
            // What ends recovery acknowledges what recovery has sent: the window is as reduced.
            if self.phase != Phase::Recovery && !was_recovering {
                self.grow_window(&report, marked_bytes, now_us);
            }
        }
        if accurate && marked_bytes > 0 {
            self.congestion_echoed(self.flight_bytes() + report.acked, out);
        }
        if report.acked > 0 || report.delivered > 0 || !plain {
            // After most acknowledgements data is sent, which sets the timer anyway.
            self.flags.set(Flags::REARM);
        }
    }

    /// What [`Self::digest`] looks at where something is missing, or may be.
    #[inline(never)]
    fn digest_losses(
        &mut self,
        now_us: u64,
        hdr: &TcpHeader,
        report: &mut AckReport,
        quiet: bool,
        out: &mut impl Output<B>,
    ) {
        report.duplicate = quiet && hdr.ack == self.snd_una;
        self.take_sack(now_us, hdr, report, out);
        self.detect_loss(now_us, hdr, report, out);
        self.follow_model(now_us, report);
    }

    #[inline(always)]
    fn grow_window(&mut self, report: &AckReport, marked_bytes: u32, now_us: u64) {
        // Most messages are far shorter than the window. (What is in flight by SACK is not more.)
        let is_plain = self.phase == Phase::Open && !self.records.is_large();
        let flight_bytes = self.flight_bytes().saturating_add(report.acked);
        if !is_plain || !self.cc.on_ack_within_half(flight_bytes, now_us) {
            self.grow_used_window(report, marked_bytes, now_us);
        }
    }

    #[inline(never)]
    fn grow_used_window(&mut self, report: &AckReport, marked_bytes: u32, now_us: u64) {
        let mut acked_bytes = match (self.phase, self.flags.has(Flags::SACK)) {
            // An acknowledgement may cover what has left the network long before. Without SACK
            // nothing tells how much of it (RFC 3465 section 2.3, L = 1).
            (Phase::Timeout, true) => report.delivered,
            (Phase::Timeout, false) => report.acked.min(self.mss.into()),
            _ => report.acked,
        };
        if self.records.is_large() && self.cc.in_first_slow_start() {
            acked_bytes = self.watch_slow_start(acked_bytes, now_us);
        }
        let ack = Ack {
            acked_bytes,
            in_flight_bytes: self.pipe_bytes(),
            most_in_flight_bytes: self.most_in_flight_bytes(),
            app_limited: !self.flags.has(Flags::CWND_LIMITED) && !self.cc.in_slow_start(),
            srtt_us: self.rtt.srtt_us(),
            marked_bytes,
        };
        self.cc.on_ack(&ack, now_us);
    }

    /// HyStart++ (RFC 9406 section 4.2). Returns the octets by which slow start may grow.
    #[inline(never)]
    fn watch_slow_start(&mut self, acked: u32, now_us: u64) -> u32 {
        let (una, nxt, rtt_us) = (self.snd_una, self.snd_nxt, self.rack_rtt_us);
        let held_back = (self.flags.has(Flags::CWND_LIMITED), self.rate().is_some());
        let Some(watch) = self.records.slow_start_mut() else { return acked };
        match watch.on_ack(rtt_us, (una, nxt), held_back, now_us) {
            Growth::Slow => acked,
            Growth::Conservative => acked / CSS_GROWTH_DIVISOR,
            Growth::Leave => {
                self.cc.leave_slow_start();
                acked
            }
        }
    }

    /// Marks the records that SACK blocks cover (RFC 2018, RFC 2883).
    fn take_sack(
        &mut self,
        now_us: u64,
        hdr: &TcpHeader,
        report: &mut AckReport,
        out: &mut impl Output<B>,
    ) {
        if !self.flags.has(Flags::SACK) {
            return;
        }
        let blocks = hdr.options.sack.as_slice();
        for (index, &(left, right)) in blocks.iter().enumerate() {
            if !left.lt(right) {
                continue;
            }
            if index == 0 && is_dsack(blocks, hdr.ack) {
                // Only something that was sent not long ago can have arrived twice.
                let recent = right.le(self.snd_nxt) && left.ge(self.snd_una - self.snd_wnd_max);
                if recent {
                    report.dsack = Some((left, right));
                    out.count(TcpCounter::DsackReceived);
                }
                continue;
            }
            if left.lt(self.snd_nxt) && right.gt(self.snd_una) && right.le(self.snd_nxt) {
                self.take_sack_block(now_us, hdr, left.max(self.snd_una), right, report);
            }
        }
    }

    fn take_sack_block(
        &mut self,
        now_us: u64,
        hdr: &TcpHeader,
        left: Seq,
        right: Seq,
        report: &mut AckReport,
    ) {
        let mut index = self.records.find(left);
        while let Some(record) = self.records.get(index).copied() {
            if record.end().gt(right) {
                break;
            }
            let news = record.seq.ge(left) && !record.has(TxRecord::SACKED);
            if news {
                self.forget_marks(&record);
                if let Some(record) = self.records.get_mut(index) {
                    record.marks = record.marks & !TxRecord::LOST | TxRecord::SACKED;
                }
                self.sacked_bytes += u32::from(record.len);
                self.loss_mut().sacked_segs += 1;
                report.sacked = true;
                report.packets += 1;
                report.delivered += u32::from(record.len);
                self.note_delivered(&record, now_us, hdr);
                self.tell_model(&record);
            }
            index += 1;
        }
    }

    fn fin_acknowledged(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) {
        match self.state {
            State::FinWait1 => {
                self.enter(State::FinWait2);
                self.start_fin_wait2(cfg, now_us);
            }
            State::Closing => self.enter_time_wait(cfg, now_us, out),
            State::LastAck => self.die(DeadReason::Closed, out),
            _ => debug_assert!(false, "FIN acknowledged in {:?}", self.state),
        }
    }
}

/// RFC 2883 section 4: the first block reports a duplicate if it is below the acknowledgement or
/// within the second block.
fn is_dsack(blocks: &[(Seq, Seq)], ack: Seq) -> bool {
    let Some(&(left, right)) = blocks.first() else { return false };
    let within =
        |&(outer_left, outer_right): &(Seq, Seq)| left.ge(outer_left) && right.le(outer_right);
    right.le(ack) || blocks.get(1).is_some_and(within)
}
