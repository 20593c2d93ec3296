//! Output: RFC 9293 section 3.8.6.2.1 (silly windows, Nagle), RFC 5681 (how much to send), section
//! 3.8.6.3 (when to acknowledge).
use crate::config::Config;
use crate::connect::ms_of;
use crate::ecn::NOT_ECT;
use crate::output::{Output, RxBuf, SegmentOut};
use crate::records::TxRecord;
use crate::state::State;
use crate::stats::TcpCounter;
use crate::tcb::{Flags, LossTimer, NEVER, Phase, Tcb, loss_of, reassembly_of};
use ix_wire::{SackBlocks, Seq, TcpFlags, TcpOptions};

/// Blocks beside a timestamp (RFC 2018 section 3), and without.
const SACK_BLOCKS_WITH_TIMESTAMP: usize = 3;
const SACK_BLOCKS: usize = 4;
/// Most segments in flight. A peer may offer tiny segments and a large window, and each of its
/// acknowledgements may make us look at all records (CVE-2019-11479).
const SEGMENTS_MAX: usize = 8192;
/// Pause before an acknowledgement is sent again for which no transmit buffer was free: as long as
/// nothing was heard of the peer, within these bounds.
const ACK_AGAIN_US: (u64, u64) = (5_000, 1_000_000);
/// A shorter pause is not idleness, whatever the timeout: RFC 5681 section 4.1 means that of RFC
/// 6298, which is at least a second (Linux: 0.2 s). A data centre's is as short as a client's
/// thought between two requests.
const IDLE_MIN_US: u32 = 200_000;

/// What a round of output has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    /// Something was sent.
    pub some: bool,
    /// Something has to wait for its time.
    pub held: bool,
}

impl Sent {
    fn and(self, other: Sent) -> Sent {
        Sent { some: self.some | other.some, held: self.held | other.held }
    }

    fn any(self) -> bool {
        self.some | self.held
    }
}

impl<B: RxBuf> Tcb<B> {
    /// Sends what is to be sent now: data, FIN, acknowledgements, window updates. To be called once
    /// per cycle for every connection that was touched, after the application's calls.
    pub fn output(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) {
        if self.state == State::Closed {
            return;
        }
        self.flags.clear(Flags::TX_BLOCKED);
        if let Some(len) = self.message_len(now_us) {
            if !self.send_message(cfg, now_us, len, out) {
                self.acknowledge(cfg, now_us, out);
            }
            if !self.leave_loss_timer_if_early(cfg) {
                self.arm_loss_timer(cfg, now_us);
            }
        } else if self.handshake_done() {
            if self.reassembly().is_some() && self.state.receives() {
                let before = self.rcv_nxt;
                self.drain_reassembly(out);
                if self.rcv_nxt != before {
                    self.flags.set(Flags::ACK_DELAYED);
                }
                self.take_fin(cfg, now_us, false, out);
            }
            let mut sent = Sent::default();
            if self.lost_bytes > 0 {
                sent = self.retransmit_lost(cfg, now_us, out);
            }
            let sent = sent.and(self.send_new(cfg, now_us, out));
            self.acknowledge(cfg, now_us, out);
            // The timer of an idle connection comes too late for what now waits for the window.
            let asleep = self.loss_at_us == NEVER
                || self.loss_timer == LossTimer::Idle && self.waits_without_flight();
            if sent.any() || self.flags.has(Flags::REARM) || asleep {
                if !sent.held && self.leave_loss_timer_if_early(cfg) {
                    return self.check();
                }
                self.arm_loss_timer(cfg, now_us);
                if sent.held {
                    self.arm_pace();
                }
            }
        } else {
            self.send_syn(cfg, now_us, out);
            // In SYN-RECEIVED a segment that is not acceptable is acknowledged too (RFC 9293
            // section 3.10.7.4), unless the SYN-ACK has just done it.
            if self.flags.has(Flags::ACK_NOW) && !self.records.is_empty() {
                self.send_ack(cfg, now_us, out);
            }
        }
        self.check();
    }

    /// Octets of what most output is: a request or a reply that goes into one segment, with a
    /// timestamp and nothing else, while nothing is in flight and nothing is amiss.
    #[inline(always)]
    fn message_len(&self, now_us: u64) -> Option<u32> {
        let len = self.snd_buf_bytes;
        let is_plain = self.state == State::Established
            && self.snd_nxt == self.snd_una
            && !self.records.is_large()
            && self.is_calm()
            && self.ecn.is_silent()
            && self.flags.bits() & (Flags::TIMESTAMPS | Flags::CWND_LIMITED) == Flags::TIMESTAMPS
            && len.wrapping_sub(1) < u32::from(self.mss)
            && len as i32 <= self.snd_room()
            && !self.was_idle(now_us);
        is_plain.then_some(len)
    }

    /// Sends that. The same as [`Self::send_new`], without what cannot be: nothing waits behind it,
    /// and neither window limits it.
    #[inline(always)]
    fn send_message(
        &mut self,
        cfg: &Config,
        now_us: u64,
        len: u32,
        out: &mut impl Output<B>,
    ) -> bool {
        let seq = self.snd_una;
        let seg = SegmentOut {
            seq,
            ack: self.rcv_nxt,
            flags: TcpFlags::ACK | TcpFlags::PSH,
            window: self.offer_window(cfg),
            ecn: NOT_ECT,
            options: TcpOptions {
                timestamp: Some((self.ts_at(now_us), self.ts_recent)),
                ..TcpOptions::NONE
            },
            payload_offset: 0,
            payload_len: len,
            retransmission: false,
        };
        if !self.transmit(&seg, out) {
            return false;
        }
        self.acknowledged_now();
        self.rto_base_us = now_us;
        self.records.push(TxRecord { sent_us: now_us, seq, len: len as u16, marks: 0 });
        self.snd_nxt = seq + len;
        self.last_snd_ms = ms_of(now_us);
        self.ack_pace.data_sent(cfg, now_us.saturating_sub(self.last_rcv_us));
        true
    }

    /// Whether [`Self::output`] may have something to do.
    #[inline]
    pub fn needs_output(&self) -> bool {
        let owed = Flags::ACK_NOW | Flags::ACK_DELAYED | Flags::TX_BLOCKED | Flags::REARM;
        self.state != State::Closed
            && (self.flags.has(owed)
                || self.lost_bytes > 0
                || self.snd_nxt == self.snd_una && !self.handshake_done()
                || self.unsent_bytes() > 0
                || self.fin_unsent())
    }

    /// Whether the last [`Self::output`] found no buffer, or no room beside others.
    #[inline]
    pub fn waits_for_room(&self) -> bool {
        self.flags.has(Flags::TX_BLOCKED)
    }

    pub(crate) fn timestamp(&self, now_us: u64) -> Option<(u32, u32)> {
        self.flags.has(Flags::TIMESTAMPS).then(|| (self.ts_at(now_us), self.ts_recent))
    }

    /// Options of an ordinary segment.
    #[inline(always)]
    fn options(&self, now_us: u64) -> TcpOptions {
        let mut options = TcpOptions { timestamp: self.timestamp(now_us), ..TcpOptions::NONE };
        if let Some(reassembly) = self.reassembly()
            && self.flags.has(Flags::SACK)
        {
            let timestamps = self.flags.has(Flags::TIMESTAMPS);
            let max = if timestamps { SACK_BLOCKS_WITH_TIMESTAMP } else { SACK_BLOCKS };
            options.sack = reassembly.sack_blocks(self.rcv_nxt, max);
        }
        options
    }

    /// Options without SACK blocks, so that a whole segment fits beside them.
    pub(crate) fn plain_options(&self, now_us: u64) -> TcpOptions {
        TcpOptions { timestamp: self.timestamp(now_us), ..TcpOptions::NONE }
    }

    /// Largest payload beside these options. SACK blocks that would leave no room for payload are
    /// dropped.
    fn fit(&self, options: &mut TcpOptions) -> u32 {
        if options.sack.is_empty() {
            return self.mss.into();
        }
        let bare = TcpOptions { sack: SackBlocks::EMPTY, ..*options };
        let sack_bytes = options.len() - bare.len();
        let mss = usize::from(self.mss);
        if sack_bytes >= mss / 2 {
            *options = bare;
            return mss as u32;
        }
        (mss - sack_bytes) as u32
    }

    pub(crate) fn transmit(&mut self, seg: &SegmentOut, out: &mut impl Output<B>) -> bool {
        let sent = out.transmit(&self.tuple, seg);
        if !sent {
            self.flags.set(Flags::TX_BLOCKED);
            out.count(TcpCounter::TransmitFailed);
        }
        sent
    }

    /// Records that a segment with ACK was sent: no acknowledgement is due any more.
    #[inline]
    pub(crate) fn acknowledged_now(&mut self) {
        self.last_ack_sent = self.rcv_nxt;
        self.flags.clear(Flags::ACK_NOW | Flags::ACK_DELAYED);
        self.delack_at_us = NEVER;
        if self.reassembly().is_some() {
            self.duplicate_reported();
        }
    }

    #[cold]
    fn duplicate_reported(&mut self) {
        if let Some(reassembly) = reassembly_of(&mut self.rare) {
            reassembly.clear_duplicate();
        }
        self.settle_reassembly();
    }

    /// Transmits `len` octets of the send stream from `seq`, with FIN if `marks` says so.
    #[inline(never)]
    fn emit(
        &mut self,
        cfg: &Config,
        seq: Seq,
        len: u32,
        marks: u16,
        options: TcpOptions,
        out: &mut impl Output<B>,
    ) -> bool {
        self.emit_here(cfg, seq, len, marks, options, out)
    }

    /// The same, inlined.
    #[inline(always)]
    fn emit_here(
        &mut self,
        cfg: &Config,
        seq: Seq,
        len: u32,
        marks: u16,
        options: TcpOptions,
        out: &mut impl Output<B>,
    ) -> bool {
        let mut flags = TcpFlags::ACK;
        if marks & TxRecord::FIN != 0 {
            flags |= TcpFlags::FIN;
        }
        if len > 0 && (seq + len == self.data_end() || marks & TxRecord::MESSAGE_END != 0) {
            flags |= TcpFlags::PSH;
        }
        let mut seg = SegmentOut {
            seq,
            ack: self.rcv_nxt,
            flags,
            window: self.offer_window(cfg),
            ecn: NOT_ECT,
            options,
            payload_offset: if len > 0 { (seq - self.data_una()) as u32 } else { 0 },
            payload_len: len,
            retransmission: marks & TxRecord::RETRANSMITTED != 0,
        };
        if !self.ecn.is_silent() {
            self.stamp_ecn(&mut seg);
        }
        let sent = self.transmit(&seg, out);
        if sent {
            if self.reassembly().is_some_and(|reassembly| reassembly.has_duplicate()) {
                out.count(TcpCounter::DsackSent);
            }
            self.acknowledged_now();
        }
        sent
    }

    /// Sends new data and FIN, as far as both windows and RFC 9293 section 3.8.6.2.1 allow.
    fn send_new(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) -> Sent {
        let (mut sent, mut window_limits) = (Sent::default(), false);
        if self.snd_nxt == self.snd_una && self.snd_buf_bytes > 0 {
            self.restart_after_idle(cfg, now_us);
        }
        loop {
            let (unsent, fin) = (self.unsent_bytes(), self.fin_unsent());
            if unsent == 0 && !fin {
                self.all_sent(sent.some);
                break;
            }
            let mut options = self.options(now_us);
            let mss = self.fit(&mut options);
            let message = self.until_message_end(unsent);
            if message > mss
                && self.loss().is_some()
                && options.sack.is_empty()
                && let Some(len) = self.path_probe_len(now_us, message)
            {
                if !self.send_path_probe(cfg, now_us, len, options, out) {
                    break;
                }
                sent.some = true;
                continue;
            }
            let len = message.min(mss).min(self.snd_room().max(0) as u32);
            // The end of a message that others follow does not wait for them.
            let is_end = len == message && message < unsent;
            if !is_end && !self.worth_sending(len, unsent, mss, fin) {
                window_limits = len < message.min(mss);
                break;
            }
            let pipe = self.pipe_bytes();
            if pipe > 0 && pipe + len > self.cwnd_bytes() {
                self.note_window_use(true);
                break;
            }
            if self.records.is_large() && self.is_too_early(now_us) {
                sent.held = true;
                break;
            }
            if pipe > 0 && self.records.len() >= SEGMENTS_MAX {
                break;
            }
            if pipe > 0 && !out.has_room() {
                self.flags.set(Flags::TX_BLOCKED);
                break;
            }
            if !self.send_next(cfg, now_us, len, options, out) {
                break;
            }
            sent.some = true;
            if len == unsent {
                self.all_sent(true);
                break;
            }
        }
        if window_limits || self.rare.is_some() {
            self.note_window_limit(window_limits, now_us);
        }
        sent
    }

    /// Nothing waits to be sent. `some`: something was sent.
    #[inline]
    fn all_sent(&mut self, some: bool) {
        if some && self.records.is_large() || self.flags.has(Flags::CWND_LIMITED) {
            // The window counts as used when it has no room for a full segment more.
            let used_bytes = self.pipe_bytes() + u32::from(self.mss);
            self.note_window_use(used_bytes > self.cwnd_bytes());
        }
    }

    /// Sends a segment that is longer than the path is known to take.
    #[cold]
    fn send_path_probe(
        &mut self,
        cfg: &Config,
        now_us: u64,
        len: u32,
        options: TcpOptions,
        out: &mut impl Output<B>,
    ) -> bool {
        let sent = self.send_one(cfg, now_us, len, options, out);
        if sent {
            self.path_probe_sent(len);
        }
        sent
    }

    /// Sends the next `len` octets, and FIN if they are the last.
    #[inline(never)]
    pub(crate) fn send_one(
        &mut self,
        cfg: &Config,
        now_us: u64,
        len: u32,
        options: TcpOptions,
        out: &mut impl Output<B>,
    ) -> bool {
        self.send_next(cfg, now_us, len, options, out)
    }

    /// The same, inlined for the segment that is nearly every one: to move what it is made of from
    /// function to function costs as much as what is done with it.
    #[inline(always)]
    fn send_next(
        &mut self,
        cfg: &Config,
        now_us: u64,
        len: u32,
        options: TcpOptions,
        out: &mut impl Output<B>,
    ) -> bool {
        let seq = self.snd_nxt;
        let fin = self.fin_unsent() && len == self.unsent_bytes();
        let mut marks = if fin { TxRecord::FIN } else { 0 };
        if self.is_message_end(seq + len) {
            marks |= TxRecord::MESSAGE_END;
        }
        if !self.emit_here(cfg, seq, len, marks, options, out) {
            return false;
        }
        if self.records.is_empty() {
            self.rto_base_us = now_us;
        }
        let octets = len + u32::from(fin);
        self.records.push(TxRecord { sent_us: now_us, seq, len: octets as u16, marks });
        self.snd_nxt = seq + octets;
        self.last_snd_ms = ms_of(now_us);
        if let Some(loss) = loss_of(&mut self.rare) {
            if self.phase == Phase::Recovery {
                loss.prr_out += octets;
            }
            self.model_sent(octets, now_us);
        }
        self.ack_pace.data_sent(cfg, now_us.saturating_sub(self.last_rcv_us));
        true
    }

    /// Sender's silly-window avoidance and Nagle's algorithm. `len` is how much of the `unsent`
    /// octets the windows allow.
    fn worth_sending(&self, len: u32, unsent: u32, mss: u32, fin: bool) -> bool {
        if len == unsent {
            // These are all octets. A FIN alone needs no window.
            let held_back =
                self.flags.has(Flags::NAGLE) && !fin && len < mss && self.snd_nxt != self.snd_una;
            return !held_back && (len > 0 || fin);
        }
        len >= mss || len > 0 && len >= self.snd_wnd_max / 2
    }

    /// Whether nothing was sent for so long that the window may have to restart.
    #[inline]
    fn was_idle(&self, now_us: u64) -> bool {
        self.idle_ms(now_us) > IDLE_MIN_US >> 10
    }

    /// How long nothing was sent, in units of 1,024 µs.
    #[inline]
    fn idle_ms(&self, now_us: u64) -> u32 {
        ms_of(now_us).wrapping_sub(self.last_snd_ms)
    }

    /// Restarts the congestion window after an idle time (RFC 5681 section 4.1).
    fn restart_after_idle(&mut self, cfg: &Config, now_us: u64) {
        if !self.was_idle(now_us) {
            return;
        }
        let idle_ms = self.idle_ms(now_us);
        let rto_us = self.rtt.rto_us(IDLE_MIN_US, cfg.max_rto_us, cfg.initial_rto_us);
        if idle_ms > rto_us >> 10 {
            let timeouts = idle_ms / (rto_us >> 10).max(1);
            self.cc.on_idle_restart(cfg.initial_window_segments, timeouts);
        }
    }

    /// Sends again what is taken to be lost, oldest first, as far as the congestion window allows.
    pub(crate) fn retransmit_lost(
        &mut self,
        cfg: &Config,
        now_us: u64,
        out: &mut impl Output<B>,
    ) -> Sent {
        let mut sent = Sent::default();
        if self.lost_bytes == 0 {
            return sent;
        }
        let mut options = self.options(now_us);
        let mss = self.fit(&mut options);
        let mut index = 0;
        while self.lost_bytes > 0 {
            let Some(record) = self.records.get(index).copied() else { break };
            if !record.has(TxRecord::LOST) {
                index += 1;
                continue;
            }
            let record = self.coalesce_lost(index, record, mss);
            let pipe = self.pipe_bytes();
            let len = u32::from(record.len).min(u32::from(self.mss));
            if pipe > 0 && pipe + len > self.cwnd_bytes() {
                self.flags.set(Flags::CWND_LIMITED);
                break;
            }
            if self.records.is_large() && self.is_too_early(now_us) {
                sent.held = true;
                break;
            }
            // A peer that has shrunk its window gets only the oldest segment (RFC 7323 section
            // 2.4).
            if index > 0 && (record.seq + len).gt(self.snd_una + self.snd_wnd) {
                break;
            }
            if !self.retransmit(index, cfg, now_us, out) {
                break;
            }
            sent.some = true;
            index += 1;
        }
        sent
    }

    /// Joins the lost record at `index` with the lost ones after it, up to one segment: a peer that
    /// could not receive many small segments should not get as many again.
    fn coalesce_lost(&mut self, index: usize, mut record: TxRecord, mss: u32) -> TxRecord {
        let edge = self.snd_una + self.snd_wnd;
        while let Some(next) = self.records.get(index + 1).copied() {
            let fin = next.has(TxRecord::FIN);
            let len = u32::from(record.len) + u32::from(next.len) - u32::from(fin);
            let ends = TxRecord::FIN | TxRecord::PROBE | TxRecord::MESSAGE_END;
            let kept = record.has(ends) || next.has(TxRecord::PROBE);
            if kept || !next.has(TxRecord::LOST) || len > mss || next.end().gt(edge) {
                break;
            }
            self.records.join(index);
            let Some(joined) = self.records.get(index).copied() else { break };
            record = joined;
        }
        record
    }

    /// Sends the record at `index` again, cut to what fits into one segment now.
    pub(crate) fn retransmit(
        &mut self,
        index: usize,
        cfg: &Config,
        now_us: u64,
        out: &mut impl Output<B>,
    ) -> bool {
        let mut options = self.options(now_us);
        let mss = self.fit(&mut options);
        let Some(mut record) = self.records.get(index).copied() else { return false };
        if record.has(TxRecord::LOST) {
            record = self.coalesce_lost(index, record, mss);
        }
        let fin = record.has(TxRecord::FIN);
        if u32::from(record.len) - u32::from(fin) > mss {
            self.records.split(index, mss as u16);
            if record.has(TxRecord::SACKED) {
                self.loss_mut().sacked_segs += 1;
            }
        }
        let Some(record) = self.records.get(index).copied() else { return false };
        let fin = record.has(TxRecord::FIN);
        let len = u32::from(record.len) - u32::from(fin);
        let marks = record.marks | TxRecord::RETRANSMITTED;
        if !self.emit(cfg, record.seq, len, marks, options, out) {
            return false;
        }
        self.note_retransmitted(index, now_us, out);
        true
    }

    pub(crate) fn note_retransmitted(
        &mut self,
        index: usize,
        now_us: u64,
        out: &mut impl Output<B>,
    ) {
        out.count(TcpCounter::Retransmits);
        self.retransmits = self.retransmits.saturating_add(1);
        self.last_snd_ms = ms_of(now_us);
        let ts = self.ts_at(now_us);
        if let Some(record) = self.records.get(index).copied() {
            self.path_probe_again(&record, now_us);
        }
        let Some(record) = self.records.get_mut(index) else { return };
        record.sent_us = now_us;
        record.marks |= TxRecord::RETRANSMITTED;
        let len = u32::from(record.len);
        if record.has(TxRecord::LOST) {
            record.marks &= !TxRecord::LOST;
            self.lost_bytes -= len;
        }
        if let Some(pace) = self.records.pace_mut() {
            pace.sent(len, now_us);
        }
        self.model_sent(len, now_us);
        if index == 0 {
            self.rto_base_us = now_us;
        }
        let recovering = self.phase == Phase::Recovery;
        if let Some(loss) = loss_of(&mut self.rare) {
            if recovering {
                loss.prr_out += len;
            }
            if let Some(retransmissions) = &mut loss.undo {
                *retransmissions += 1;
            }
            if !loss.retransmitted {
                loss.retransmitted = true;
                if !loss.resent_before {
                    loss.first_retransmit_ts = ts;
                }
            }
        }
    }

    /// Sends the acknowledgements that are still due after data had its chance to carry them (RFC
    /// 9293 section 3.8.6.3, RFC 5681 section 4.2).
    fn acknowledge(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) {
        if self.flags.has(Flags::ACK_NOW) {
            self.send_ack(cfg, now_us, out);
        } else if self.flags.has(Flags::ACK_DELAYED) {
            let owed = (self.rcv_nxt - self.last_ack_sent) as u32;
            let much = owed >= 2 * u32::from(self.rcv_mss) || self.window_update_due(cfg);
            if much || self.ack_pace.take_quick() {
                self.send_ack(cfg, now_us, out);
            } else if self.delack_at_us == NEVER {
                self.delack_at_us = now_us.saturating_add(self.ack_pace.wait_us(cfg).into());
            }
        } else if self.state.receives() && self.window_update_due(cfg) {
            self.send_ack(cfg, now_us, out);
        }
    }

    /// Sends an acknowledgement without data.
    pub(crate) fn send_ack(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) {
        let options = self.options(now_us);
        if !self.emit(cfg, self.snd_nxt, 0, 0, options, out) {
            self.flags.set(Flags::ACK_NOW);
            // Nothing else may ever happen on a connection whose peer waits for its window.
            let silence_us = now_us.saturating_sub(self.last_rcv_us);
            let pause_us = silence_us.clamp(ACK_AGAIN_US.0, ACK_AGAIN_US.1);
            self.delack_at_us = now_us.saturating_add(pause_us);
        }
    }

    /// Sends an empty segment one octet before the stream, to which every peer replies (RFC 9293
    /// section 3.8.4).
    pub(crate) fn send_keepalive(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) {
        out.count(TcpCounter::KeepaliveProbes);
        let options = self.options(now_us);
        self.emit(cfg, self.snd_una - 1, 0, 0, options, out);
    }

    /// Sends one octet into a closed window (RFC 9293 section 3.8.6.1).
    pub(crate) fn send_window_probe(
        &mut self,
        cfg: &Config,
        now_us: u64,
        out: &mut impl Output<B>,
    ) {
        out.count(TcpCounter::WindowProbes);
        if self.records.is_empty() {
            let mut options = self.options(now_us);
            self.fit(&mut options);
            let seq = self.snd_nxt;
            if self.emit(cfg, seq, 1, 0, options, out) {
                let marks = TxRecord::PROBE;
                self.records.push(TxRecord { sent_us: now_us, seq, len: 1, marks });
                self.snd_nxt = seq + 1;
            }
        } else {
            self.retransmit(0, cfg, now_us, out);
        }
    }
}
