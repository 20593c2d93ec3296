//! Which segments may be processed, and the replies to the others: RFC 9293 section 3.10.7.4 (first
//! to fifth), RFC 5961, RFC 7323 section 5, RFC 1337.
use crate::config::Config;
use crate::ecn::NOT_ECT;
use crate::output::{DeadReason, Output, RxBuf, SegmentOut};
use crate::state::State;
use crate::stats::TcpCounter;
use crate::tcb::{Flags, Tcb};
use ix_wire::{TcpFlags, TcpHeader};

/// A `ts_recent` that is older, in units of 2^20 µs, is not compared any more (RFC 7323 section
/// 5.5: 24 days).
const TS_RECENT_LIFE: u32 = 1_977_539;

impl<B: RxBuf> Tcb<B> {
    /// Whether a segment may be processed: RFC 9293 section 3.10.7.4, first to fourth, and the
    /// range check of the fifth. Replies to a segment that may not, where the RFCs say so.
    pub(crate) fn admit(
        &mut self,
        cfg: &Config,
        now_us: u64,
        hdr: &TcpHeader,
        len: u32,
        out: &mut impl Output<B>,
    ) -> bool {
        let rst = hdr.flags.contains(TcpFlags::RST);
        let syn = hdr.flags.contains(TcpFlags::SYN);
        if self.state == State::TimeWait && rst {
            self.take_reset_in_time_wait(hdr, out);
            return false;
        }
        if self.state == State::TimeWait && syn && !hdr.flags.contains(TcpFlags::ACK) {
            self.refuse_syn(now_us, out);
            return false;
        }
        if !self.check_timestamp(now_us, hdr, out) {
            return false;
        }
        let again = self.state == State::SynReceived && syn && hdr.seq + 1 == self.rcv_nxt;
        if again && !rst {
            // The peer's SYN was retransmitted, or, in a simultaneous open, this is its SYN-ACK.
            if !hdr.flags.contains(TcpFlags::ACK) {
                self.mark_all_lost();
                return false;
            }
        } else {
            if !self.check_sequence(cfg, now_us, hdr, len, out) {
                return false;
            }
            if rst {
                return self.take_reset(now_us, hdr, out);
            }
            if syn {
                // RFC 5961 section 4.2: only a peer that has lost its state replies with a reset.
                self.challenge(now_us, out);
                return false;
            }
        }
        if !hdr.flags.contains(TcpFlags::ACK) {
            out.count(TcpCounter::BadFlags);
            return false;
        }
        self.check_ack(now_us, hdr, out)
    }

    /// Checks the timestamp (RFC 7323 sections 3.2 and 5.3).
    fn check_timestamp(&mut self, now_us: u64, hdr: &TcpHeader, out: &mut impl Output<B>) -> bool {
        if !self.flags.has(Flags::TIMESTAMPS) || hdr.flags.contains(TcpFlags::RST) {
            return true;
        }
        let Some((val, _)) = hdr.options.timestamp else {
            // A SYN gets its reply anyway: the peer may have restarted without timestamps.
            if hdr.flags.contains(TcpFlags::SYN) {
                return true;
            }
            out.count(TcpCounter::TimestampMissing);
            return false;
        };
        let age = ((now_us >> 20) as u32).wrapping_sub(self.ts_recent_age);
        if (val.wrapping_sub(self.ts_recent) as i32) < 0 && age < TS_RECENT_LIFE {
            out.count(TcpCounter::PawsDrop);
            self.challenge(now_us, out);
            return false;
        }
        true
    }

    /// Checks the sequence number (RFC 9293 section 3.10.7.4, first).
    fn check_sequence(
        &mut self,
        cfg: &Config,
        now_us: u64,
        hdr: &TcpHeader,
        len: u32,
        out: &mut impl Output<B>,
    ) -> bool {
        let rst = hdr.flags.contains(TcpFlags::RST);
        let fin = hdr.flags.contains(TcpFlags::FIN);
        let seg_len = len + u32::from(hdr.flags.contains(TcpFlags::SYN)) + u32::from(fin);
        let end = hdr.seq + seg_len;
        let acceptable = if hdr.seq == self.rcv_nxt {
            // Also when the window is closed: acknowledgement and reset are processed, the data is
            // cut off.
            true
        } else if seg_len == 0 {
            // A peer that has filled our window sends at the right edge. Its acknowledgements must
            // count even if what it sent was lost.
            hdr.seq.ge(self.rcv_nxt)
                && (hdr.seq.lt(self.rcv_adv) || hdr.seq == self.rcv_adv && !rst)
        } else {
            hdr.seq.lt(self.rcv_adv) && end.gt(self.rcv_nxt)
        };
        if acceptable || rst {
            return acceptable;
        }
        if end.le(self.rcv_nxt) && len > 0 {
            self.note_duplicate(hdr.seq, hdr.seq + len, out);
        } else {
            out.count(TcpCounter::OutOfWindow);
        }
        if fin && self.state == State::TimeWait {
            // RFC 9293 section 3.10.7.4, eighth: the peer missed our last ACK.
            self.state_at_us = now_us.saturating_add(u64::from(cfg.time_wait_us));
        }
        if seg_len > 0 {
            self.flags.set(Flags::ACK_NOW);
        } else {
            // Most often a keepalive probe. Limited, because two ends that disagree would reply to
            // each other forever.
            self.answer_spaced(now_us, out);
        }
        false
    }

    /// Processes a reset within the window (RFC 5961 section 3.2). Always returns false.
    fn take_reset(&mut self, now_us: u64, hdr: &TcpHeader, out: &mut impl Output<B>) -> bool {
        if hdr.seq != self.rcv_nxt {
            out.count(TcpCounter::InexactRst);
            self.challenge(now_us, out);
            return false;
        }
        let reason = match self.state {
            State::SynReceived => DeadReason::Refused,
            State::Closing | State::LastAck => DeadReason::Closed,
            _ => DeadReason::Reset,
        };
        self.die(reason, out);
        false
    }

    /// Checks the acknowledgement (RFC 9293 section 3.10.7.4, fifth; RFC 5961 section 5.2).
    fn check_ack(&mut self, now_us: u64, hdr: &TcpHeader, out: &mut impl Output<B>) -> bool {
        let ack = hdr.ack;
        if self.state == State::SynReceived {
            let acceptable = ack.gt(self.snd_una) && ack.le(self.snd_nxt);
            if !acceptable {
                out.count(TcpCounter::BadAck);
                self.refuse(hdr, out);
            }
            return acceptable;
        }
        let oldest = self.snd_una - self.snd_wnd_max;
        let acceptable = ack.ge(oldest) && ack.le(self.snd_nxt);
        if !acceptable {
            out.count(TcpCounter::BadAck);
            self.challenge(now_us, out);
        }
        acceptable
    }

    /// Challenge ACK: an acknowledgement that tells the peer what we expect, and an attacker
    /// nothing (RFC 5961 section 7). It is sent at the next output, so that a batch causes at most
    /// one.
    fn challenge(&mut self, now_us: u64, out: &mut impl Output<B>) {
        if self.rare_mut().challenge_spacing.allow(now_us) && out.may_challenge(now_us) {
            out.count(TcpCounter::ChallengeAcks);
            self.flags.set(Flags::ACK_NOW);
        } else {
            out.count(TcpCounter::ChallengeAcksLimited);
        }
    }

    /// Acknowledges at the next output, at most once in [`SPACING_MS`]. The clock is the
    /// connection's own: of many peers each gets its answer, and what one has used tells nothing
    /// about another.
    ///
    /// [`SPACING_MS`]: crate::ack_limit::SPACING_MS
    pub(crate) fn answer_spaced(&mut self, now_us: u64, out: &mut impl Output<B>) {
        if self.rare_mut().challenge_spacing.allow(now_us) {
            out.count(TcpCounter::ChallengeAcks);
            self.flags.set(Flags::ACK_NOW);
        } else {
            out.count(TcpCounter::ChallengeAcksLimited);
        }
    }

    /// Replies to an acknowledgement of something that this connection never sent: RST with SEQ =
    /// SEG.ACK, but never to a RST (RFC 9293 section 3.10.7.3).
    pub(crate) fn refuse(&mut self, hdr: &TcpHeader, out: &mut impl Output<B>) {
        if let Some(reset) = crate::listen::reset_for(hdr, 0) {
            out.count(TcpCounter::ResetsSent);
            out.transmit(&self.tuple, &reset);
        }
    }

    /// Sends a reset: the connection is gone.
    pub(crate) fn send_reset(&mut self, now_us: u64, out: &mut impl Output<B>) {
        let reset = SegmentOut {
            seq: self.snd_nxt,
            ack: self.rcv_nxt,
            flags: TcpFlags::RST | TcpFlags::ACK,
            window: 0,
            ecn: NOT_ECT,
            // RFC 7323 section 3.2 requires the timestamp here too.
            options: self.plain_options(now_us),
            payload_offset: 0,
            payload_len: 0,
            retransmission: false,
        };
        out.count(TcpCounter::ResetsSent);
        out.transmit(&self.tuple, &reset);
    }

    /// Whether a segment acknowledges our SYN-ACK. A peer that was sent two different ones, one of
    /// them a cookie, tells by this which one it took.
    pub fn is_answered_by(&self, hdr: &TcpHeader) -> bool {
        hdr.ack == self.snd_una + 1
    }

    /// Refuses a SYN that is not known to be new (see [`Self::gives_way_to`]) with an
    /// acknowledgement. A peer that does not know this connection then resets it. The global limit
    /// would keep out most connections of a peer that restarts.
    fn refuse_syn(&mut self, now_us: u64, out: &mut impl Output<B>) {
        self.flags.set(Flags::SYN_REFUSED);
        self.answer_spaced(now_us, out);
    }

    /// Processes a reset in TIME-WAIT. It may not end TIME-WAIT early, because old duplicates cause
    /// resets (RFC 1337). The exception is the reset that replies to the acknowledgement of a
    /// refused SYN: the peer is opening the connection anew and has forgotten this one.
    fn take_reset_in_time_wait(&mut self, hdr: &TcpHeader, out: &mut impl Output<B>) {
        if self.flags.has(Flags::SYN_REFUSED) && hdr.seq == self.rcv_nxt {
            self.die(DeadReason::Closed, out);
        }
    }
}
