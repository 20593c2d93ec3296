//! A segment arrives: RFC 9293 section 3.10.7, with RFC 5961 and RFC 7323 section 5.
use crate::config::Config;
use crate::output::{DeadReason, Output, RxBuf, SegmentOut, TcpEvent};
use crate::state::State;
use crate::stats::TcpCounter;
use crate::tcb::{Flags, Phase, Tcb};
use ix_wire::{Seq, TcpFlags, TcpHeader, TcpOptions};

/// A `ts_recent` older than this many units of 2^20 µs proves nothing (RFC 7323 section 5.5:
/// 24 days).
const TS_RECENT_LIFE: u32 = 1_977_539;

/// The parts of a segment that are still to be processed.
struct Arrived<B> {
    seq: Seq,
    payload: Option<B>,
    fin: bool,
}

impl<B: RxBuf> Tcb<B> {
    /// A segment arrives (RFC 9293 section 3.10.7). The payload leaves through `out`, or is queued.
    pub fn segment(
        &mut self,
        cfg: &Config,
        now_us: u64,
        hdr: &TcpHeader,
        payload: Option<B>,
        out: &mut impl Output<B>,
    ) {
        if self.is_predicted(hdr, payload.as_ref()) {
            self.heard(now_us);
            if let Some((val, _)) = hdr.options.timestamp
                && self.flags.has(Flags::TIMESTAMPS)
                && hdr.seq.le(self.last_ack_sent)
            {
                self.remember_ts(val, now_us);
            }
            self.acknowledged(cfg, now_us, hdr, payload.is_some(), out);
            if let Some(buf) = payload {
                self.take_in_order(cfg, buf, out);
                self.acknowledge_stretch(cfg, now_us, out);
            }
        } else {
            self.unpredicted(cfg, now_us, hdr, payload, out);
        }
        self.check();
    }

    /// Header prediction: the next segment of an established connection on which nothing is
    /// missing in either direction.
    #[inline]
    fn is_predicted(&self, hdr: &TcpHeader, payload: Option<&B>) -> bool {
        const IGNORED: u8 = TcpFlags::PSH.union(TcpFlags::URG).0 | 0xc0;
        let acked = (hdr.ack - self.snd_una) as u32;
        let timely = match hdr.options.timestamp {
            Some((val, _)) => val.wrapping_sub(self.ts_recent) as i32 >= 0,
            None => !self.flags.has(Flags::TIMESTAMPS),
        };
        self.state == State::Established
            && hdr.flags.0 & !IGNORED == TcpFlags::ACK.0
            && hdr.seq == self.rcv_nxt
            && acked <= self.flight_bytes()
            && timely
            && self.phase == Phase::Open
            && self.reassembly.is_none()
            && !self.flags.has(Flags::ORPHAN)
            && payload.is_none_or(|buf| buf.len() > 0 && buf.len() as u32 <= self.rcv_wnd())
    }

    #[cold]
    fn unpredicted(
        &mut self,
        cfg: &Config,
        now_us: u64,
        hdr: &TcpHeader,
        payload: Option<B>,
        out: &mut impl Output<B>,
    ) {
        let payload = match payload {
            Some(buf) if buf.len() == 0 => {
                out.discard(buf);
                None
            }
            other => other,
        };
        let arrived = match self.state {
            State::Closed | State::Listen => {
                if let Some(buf) = payload {
                    out.discard(buf);
                }
                None
            }
            State::SynSent => self.arrive_syn_sent(cfg, now_us, hdr, payload, out),
            _ => self.arrive_synchronized(cfg, now_us, hdr, payload, out),
        };
        if let Some(arrived) = arrived {
            self.take_text(cfg, now_us, arrived, out);
        }
    }

    /// RFC 9293 section 3.10.7.3.
    fn arrive_syn_sent(
        &mut self,
        cfg: &Config,
        now_us: u64,
        hdr: &TcpHeader,
        payload: Option<B>,
        out: &mut impl Output<B>,
    ) -> Option<Arrived<B>> {
        let has_ack = hdr.flags.contains(TcpFlags::ACK);
        let ack_acceptable = has_ack && hdr.ack.gt(self.snd_una) && hdr.ack.le(self.snd_nxt);
        let syn = hdr.flags.contains(TcpFlags::SYN);
        if has_ack && !ack_acceptable {
            out.count(TcpCounter::BadAck);
            self.refuse(hdr, out);
        } else if hdr.flags.contains(TcpFlags::RST) {
            // Only a reset that acknowledges our SYN comes from the peer.
            if ack_acceptable {
                self.die(DeadReason::Refused, out);
            }
        } else if syn {
            self.last_rcv_us = now_us;
            self.peer_syn(cfg, hdr, now_us);
            self.enter(State::SynReceived);
            if has_ack {
                self.complete_handshake(cfg, now_us, hdr, out);
            } else {
                // Simultaneous open: our SYN goes again, with the acknowledgement of theirs.
                self.mark_all_lost();
            }
            self.flags.set(Flags::ACK_NOW);
            if has_ack {
                let fin = hdr.flags.contains(TcpFlags::FIN);
                return self.trim_right(hdr.seq + 1, payload, fin, out);
            }
        } else {
            out.count(TcpCounter::BadFlags);
        }
        if let Some(buf) = payload {
            out.discard(buf);
        }
        None
    }

    /// RFC 9293 section 3.10.7.4, first to fifth: what may pass, and its acknowledgement.
    fn arrive_synchronized(
        &mut self,
        cfg: &Config,
        now_us: u64,
        hdr: &TcpHeader,
        payload: Option<B>,
        out: &mut impl Output<B>,
    ) -> Option<Arrived<B>> {
        let len = payload.as_ref().map_or(0, |buf| buf.len() as u32);
        if !self.admit(cfg, now_us, hdr, len, out) {
            if let Some(buf) = payload {
                out.discard(buf);
            }
            return None;
        }
        if let Some((val, _)) = hdr.options.timestamp
            && self.flags.has(Flags::TIMESTAMPS)
            && hdr.seq.le(self.last_ack_sent)
        {
            // `check_timestamp` has seen to it that this one is newer, or the old one void.
            self.remember_ts(val, now_us);
        }
        self.heard(now_us);
        let data_seq = hdr.seq + u32::from(hdr.flags.contains(TcpFlags::SYN));
        if self.state == State::SynReceived {
            self.complete_handshake(cfg, now_us, hdr, out);
        } else {
            let bare = len == 0 && !hdr.flags.contains(TcpFlags::FIN);
            self.acknowledged(cfg, now_us, hdr, !bare, out);
        }
        let orphaned = self.flags.has(Flags::ORPHAN) && self.state.receives();
        if orphaned && len > 0 && (data_seq + len).gt(self.rcv_nxt) {
            // Nobody will read it: say so, lest the peer think it was (RFC 2525 section 2.17).
            out.count(TcpCounter::DataAfterClose);
            if let Some(buf) = payload {
                out.discard(buf);
            }
            self.send_reset(out);
            self.die(DeadReason::Closed, out);
            return None;
        }
        let fin = hdr.flags.contains(TcpFlags::FIN);
        self.trim_left(data_seq, payload, fin, out)
    }

    /// RFC 9293 section 3.10.7.4, first to fourth, and the range check of the fifth: whether the
    /// segment may be processed. Answers it otherwise.
    fn admit(
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
            // RFC 1337: a reset must not end TIME-WAIT early.
            return false;
        }
        if !self.check_timestamp(now_us, hdr, out) {
            return false;
        }
        let again = self.state == State::SynReceived && syn && hdr.seq + 1 == self.rcv_nxt;
        if again && !rst {
            // The peer's SYN again, or, in a simultaneous open, its SYN-ACK.
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
                // RFC 5961 section 4.2: only a peer that has lost its state will answer with a reset.
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

    /// RFC 7323 sections 3.2 and 5.3.
    fn check_timestamp(&mut self, now_us: u64, hdr: &TcpHeader, out: &mut impl Output<B>) -> bool {
        if !self.flags.has(Flags::TIMESTAMPS) || hdr.flags.contains(TcpFlags::RST) {
            return true;
        }
        let Some((val, _)) = hdr.options.timestamp else {
            // A SYN is answered anyway: the peer may have started anew without timestamps.
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

    /// RFC 9293 section 3.10.7.4, first.
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
            // Also when the window is closed: acknowledgement and reset count, the text is cut off.
            true
        } else if seg_len == 0 {
            // The right edge itself is where a peer stands that has filled our window; its
            // acknowledgements must count even if we lost what it sent.
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
            // Bounded, because two ends that disagree would answer each other for ever.
            self.challenge(now_us, out);
        }
        false
    }

    /// A reset within the window: RFC 5961 section 3.2. Always answers false.
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

    /// RFC 9293 section 3.10.7.4, fifth; RFC 5961 section 5.2.
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

    /// Our SYN is acknowledged by `hdr`, which is acceptable; the peer's SYN is here.
    fn complete_handshake(
        &mut self,
        cfg: &Config,
        now_us: u64,
        hdr: &TcpHeader,
        out: &mut impl Output<B>,
    ) {
        // Windows of segments without SYN are scaled (RFC 7323 section 2.2).
        let shift = self.snd_shift;
        if hdr.flags.contains(TcpFlags::SYN) {
            self.snd_shift = 0;
        }
        self.retire(now_us, hdr, out);
        self.take_window(hdr, true);
        self.snd_shift = shift;
        self.enter(State::Established);
        self.rack_fack = self.snd_una;
        self.leave_handshake_losses(cfg);
        self.start_keepalive(now_us);
        out.event(TcpEvent::Established);
        if self.flags.has(Flags::FIN_QUEUED) {
            self.enter(State::FinWait1);
        }
        self.arm_loss_timer(cfg, now_us);
    }

    /// Cuts off what has been received before.
    fn trim_left(
        &mut self,
        mut seq: Seq,
        mut payload: Option<B>,
        fin: bool,
        out: &mut impl Output<B>,
    ) -> Option<Arrived<B>> {
        if let Some(mut buf) = payload.take() {
            let len = buf.len() as u32;
            let old = (self.rcv_nxt - seq).clamp(0, len as i32) as u32;
            if old > 0 {
                self.note_duplicate(seq, seq + old, out);
                buf.trim_front(old as usize);
                seq += old;
            }
            if old == len { out.discard(buf) } else { payload = Some(buf) }
        }
        self.trim_right(seq, payload, fin, out)
    }

    /// Cuts off what lies beyond the window, and drops what the state has no use for.
    fn trim_right(
        &mut self,
        seq: Seq,
        mut payload: Option<B>,
        mut fin: bool,
        out: &mut impl Output<B>,
    ) -> Option<Arrived<B>> {
        let ends_at = self.reassembly.as_ref().and_then(|reassembly| reassembly.fin());
        let edge = ends_at.map_or(self.rcv_adv, |end| end.min(self.rcv_adv));
        if let Some(mut buf) = payload.take() {
            let len = buf.len() as u32;
            let room = (edge - seq).clamp(0, len as i32) as u32;
            if !self.state.receives() {
                out.count(TcpCounter::DataAfterClose);
                out.discard(buf);
                return None;
            }
            if room < len {
                // Also a probe of our closed window: it wants an answer.
                out.count(TcpCounter::OutOfWindow);
                self.flags.set(Flags::ACK_NOW);
                fin = false;
            }
            if room == 0 {
                out.discard(buf);
            } else {
                buf.truncate(room as usize);
                payload = Some(buf);
            }
        }
        let receives = self.state.receives();
        Some(Arrived { seq, payload, fin: fin && receives })
    }

    /// RFC 9293 section 3.10.7.4, seventh and eighth.
    fn take_text(
        &mut self,
        cfg: &Config,
        now_us: u64,
        arrived: Arrived<B>,
        out: &mut impl Output<B>,
    ) {
        if self.state == State::Closed {
            if let Some(buf) = arrived.payload {
                out.discard(buf);
            }
            return;
        }
        let mut end = arrived.seq;
        if let Some(buf) = arrived.payload {
            end += buf.len() as u32;
            if arrived.seq == self.rcv_nxt {
                self.take_in_order(cfg, buf, out);
            } else {
                self.take_out_of_order(cfg, arrived.seq, buf, out);
            }
        }
        if arrived.fin {
            self.note_fin(end);
        }
        if arrived.fin && end == self.rcv_nxt || self.reassembly.is_some() {
            self.take_fin(cfg, now_us, arrived.fin && end == self.rcv_nxt, out);
        }
        self.acknowledge_stretch(cfg, now_us, out);
    }

    /// However long the batch, the peer's window must not run dry meanwhile.
    #[inline]
    fn acknowledge_stretch(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) {
        let stretch = u32::from(cfg.max_stretch_segments) * u32::from(self.rcv_mss);
        if (self.rcv_nxt - self.last_ack_sent) as u32 >= stretch && self.state != State::Closed {
            self.send_ack(cfg, now_us, out);
        }
    }

    /// An acknowledgement that tells a peer what we expect, and an attacker nothing (RFC 5961
    /// section 7). It goes out at the next output, so that a batch elicits at most one.
    pub(crate) fn challenge(&mut self, now_us: u64, out: &mut impl Output<B>) {
        if self.challenge_spacing.allow(now_us) && out.may_challenge(now_us) {
            out.count(TcpCounter::ChallengeAcks);
            self.flags.set(Flags::ACK_NOW);
        } else {
            out.count(TcpCounter::ChallengeAcksLimited);
        }
    }

    /// Answers an acknowledgement of something that this connection never sent: RST with
    /// SEQ = SEG.ACK, never in answer to a RST (RFC 9293 section 3.10.7.3).
    fn refuse(&mut self, hdr: &TcpHeader, out: &mut impl Output<B>) {
        if let Some(reset) = crate::listen::reset_for(hdr, 0) {
            out.count(TcpCounter::ResetsSent);
            out.transmit(&self.tuple, &reset);
        }
    }

    /// Tells the peer that the connection is gone.
    pub(crate) fn send_reset(&mut self, out: &mut impl Output<B>) {
        let reset = SegmentOut {
            seq: self.snd_nxt,
            ack: self.rcv_nxt,
            flags: TcpFlags::RST | TcpFlags::ACK,
            window: 0,
            options: TcpOptions::NONE,
            payload_offset: 0,
            payload_len: 0,
            retransmission: false,
        };
        out.count(TcpCounter::ResetsSent);
        out.transmit(&self.tuple, &reset);
    }

    /// Whether a segment acknowledges our SYN-ACK: of a peer that was sent two different ones (one
    /// of them a cookie), it tells which it took.
    pub fn is_answered_by(&self, hdr: &TcpHeader) -> bool {
        hdr.ack == self.snd_una + 1
    }

    /// Whether this connection, in TIME-WAIT, may be forgotten in favour of a new SYN of the peer
    /// (RFC 6191 section 2; RFC 9293 section 3.6.1). The caller then frees it and asks the listener.
    pub fn gives_way_to(&self, syn: &TcpHeader) -> bool {
        const MASK: u8 = TcpFlags::SYN.0 | TcpFlags::ACK.0 | TcpFlags::RST.0 | TcpFlags::FIN.0;
        if self.state != State::TimeWait || syn.flags.0 & MASK != TcpFlags::SYN.0 {
            return false;
        }
        match syn.options.timestamp {
            Some((val, _)) if self.flags.has(Flags::TIMESTAMPS) => {
                let newer = val.wrapping_sub(self.ts_recent) as i32;
                newer > 0 || (newer == 0 && syn.seq.gt(self.rcv_nxt))
            }
            _ => syn.seq.gt(self.rcv_nxt),
        }
    }
}
