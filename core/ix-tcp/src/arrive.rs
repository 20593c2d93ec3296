//! Processes an arriving segment: RFC 9293 section 3.10.7, with RFC 5961 and RFC 7323 section 5.
use crate::accurate::ACE_BITS;
use crate::config::Config;
use crate::ecn::EcnState;
use crate::output::{DeadReason, Output, RxBuf, TcpEvent};
use crate::state::State;
use crate::stats::TcpCounter;
use crate::tcb::{Flags, Tcb};
use ix_wire::{Seq, TcpFlags, TcpHeader};

/// The parts of a segment that are not processed yet.
struct Arrived<B> {
    seq: Seq,
    payload: Option<B>,
    fin: bool,
}

impl<B: RxBuf> Tcb<B> {
    /// Processes an arriving segment (RFC 9293 section 3.10.7). The payload is delivered through
    /// `out`, or queued.
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
            self.acknowledged_here(cfg, now_us, hdr, payload.is_some(), out);
            if let Some(buf) = payload {
                let before = self.rcv_nxt;
                self.take_in_order(cfg, buf, out);
                self.right_size_if_due(before, cfg, now_us, hdr.options.timestamp, out);
                self.acknowledge_stretch(cfg, now_us, out);
            }
        } else {
            self.unpredicted(cfg, now_us, hdr, payload, 0, out);
        }
        self.check();
    }

    /// The same for a segment whose `len` octets of text could not be kept: as if it had them, but
    /// they are not received. It is no duplicate acknowledgement, and what it acknowledges counts
    /// even if its text begins before the window.
    #[cold]
    pub fn segment_without_text(
        &mut self,
        cfg: &Config,
        now_us: u64,
        hdr: &TcpHeader,
        len: u32,
        out: &mut impl Output<B>,
    ) {
        self.unpredicted(cfg, now_us, hdr, None, len, out);
        self.check();
    }

    /// Header prediction: true for the next segment of an established connection that has missed
    /// none.
    #[inline]
    fn is_predicted(&self, hdr: &TcpHeader, payload: Option<&B>) -> bool {
        const IGNORED: u16 = TcpFlags::PSH.union(TcpFlags::URG).union(TcpFlags::AE).0;
        const COUNTED: u16 = IGNORED | ACE_BITS.0;
        let ignored = if self.ecn.has(EcnState::ACCURATE) { COUNTED } else { IGNORED };
        let acked = (hdr.ack - self.snd_una) as u32;
        let timely = match hdr.options.timestamp {
            Some((val, _)) => val.wrapping_sub(self.ts_recent) as i32 >= 0,
            None => !self.flags.has(Flags::TIMESTAMPS),
        };
        self.state == State::Established
            && hdr.flags.0 & !ignored == TcpFlags::ACK.0
            && hdr.seq == self.rcv_nxt
            && acked <= self.flight_bytes()
            && timely
            && self.reassembly().is_none()
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
        missing: u32,
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
            _ => self.arrive_synchronized(cfg, now_us, hdr, payload, missing, out),
        };
        if let Some(arrived) = arrived {
            self.take_text(cfg, now_us, arrived, out);
        }
    }

    /// A segment arrives in SYN-SENT (RFC 9293 section 3.10.7.3).
    fn arrive_syn_sent(
        &mut self,
        cfg: &Config,
        now_us: u64,
        hdr: &TcpHeader,
        mut payload: Option<B>,
        out: &mut impl Output<B>,
    ) -> Option<Arrived<B>> {
        let has_ack = hdr.flags.contains(TcpFlags::ACK);
        let ack_acceptable = has_ack && hdr.ack.gt(self.snd_una) && hdr.ack.le(self.snd_nxt);
        let syn = hdr.flags.contains(TcpFlags::SYN);
        if has_ack && !ack_acceptable {
            out.count(TcpCounter::BadAck);
            if !hdr.flags.contains(TcpFlags::RST) {
                self.refuse(hdr, out);
                // A peer that still has an old connection replies by a bare ACK.
                if !syn && !hdr.flags.contains(TcpFlags::FIN) && payload.is_none() {
                    self.hurry_syn(now_us);
                }
            }
        } else if hdr.flags.contains(TcpFlags::RST) {
            // Only a reset that acknowledges our SYN can be the peer's.
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
                // Simultaneous open: our SYN is sent again, and acknowledges theirs. Text is kept
                // until the connection is made (RFC 9293 section 3.10.7.3); a FIN comes again.
                self.mark_all_lost();
                let room = self.rcv_wnd() as usize;
                if let Some(mut buf) = payload.take_if(|_| room > 0) {
                    buf.truncate(room.min(buf.len()));
                    self.take_out_of_order(cfg, hdr.seq + 1, buf, out);
                }
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

    /// RFC 9293 section 3.10.7.4, first to fifth: checks the segment and processes its
    /// acknowledgement. `missing` is the length of text that is not there.
    fn arrive_synchronized(
        &mut self,
        cfg: &Config,
        now_us: u64,
        hdr: &TcpHeader,
        payload: Option<B>,
        missing: u32,
        out: &mut impl Output<B>,
    ) -> Option<Arrived<B>> {
        let len = payload.as_ref().map_or(missing, |buf| buf.len() as u32);
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
            // `check_timestamp` has made sure that this one is newer, or the old one expired.
            self.remember_ts(val, now_us);
        }
        self.heard(now_us);
        let data_seq = hdr.seq + u32::from(hdr.flags.contains(TcpFlags::SYN));
        if self.state == State::SynReceived {
            self.complete_handshake(cfg, now_us, hdr, out);
        } else {
            let bare = len == 0 && !hdr.flags.contains(TcpFlags::FIN);
            let flight = self.flight_bytes();
            self.acknowledged(cfg, now_us, hdr, !bare, out);
            let classic = !self.ecn.has(EcnState::ACCURATE);
            if classic && hdr.flags.contains(TcpFlags::ECE) && hdr.ack.ge(self.snd_una) {
                self.congestion_echoed(flight, out);
            }
        }
        let orphaned = self.flags.has(Flags::ORPHAN) && self.state.receives();
        if orphaned && len > 0 && (data_seq + len).gt(self.rcv_nxt) {
            // The application will not read it: reset, or the peer thinks that it was read (RFC
            // 2525 section 2.17).
            out.count(TcpCounter::DataAfterClose);
            if let Some(buf) = payload {
                out.discard(buf);
            }
            self.send_reset(now_us, out);
            self.die(DeadReason::Closed, out);
            return None;
        }
        let fin = hdr.flags.contains(TcpFlags::FIN);
        if self.state == State::TimeWait && (len > 0 || fin || hdr.seq != self.rcv_nxt) {
            // RFC 9293 section 3.10.7.4, eighth. What is older was acknowledged already. A number
            // beyond the end of the peer's stream is none of the connection's.
            self.answer_spaced(now_us, out);
        }
        self.trim_left(data_seq, payload, fin, out)
    }

    /// `hdr`, which is acceptable, acknowledges our SYN, and the peer's SYN has arrived.
    fn complete_handshake(
        &mut self,
        cfg: &Config,
        now_us: u64,
        hdr: &TcpHeader,
        out: &mut impl Output<B>,
    ) {
        // The windows of segments without SYN are scaled (RFC 7323 section 2.2).
        let shift = self.snd_shift;
        if hdr.flags.contains(TcpFlags::SYN) {
            self.snd_shift = 0;
        }
        self.retire(now_us, hdr, out);
        self.take_window(hdr, true);
        self.snd_shift = shift;
        self.enter(State::Established);
        self.rack_fack = self.snd_una;
        if self.ecn.has(EcnState::ACCURATE) && !hdr.flags.contains(TcpFlags::SYN) {
            self.take_first_ace(hdr, out);
        }
        self.leave_handshake_losses(cfg);
        self.start_keepalive(now_us);
        out.event(TcpEvent::Established);
        if self.flags.has(Flags::FIN_QUEUED) {
            self.enter(State::FinWait1);
        }
        self.arm_loss_timer(cfg, now_us);
    }

    /// Cuts off what was received before.
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

    /// Cuts off what is beyond the window, and drops what the state does not use.
    fn trim_right(
        &mut self,
        seq: Seq,
        mut payload: Option<B>,
        mut fin: bool,
        out: &mut impl Output<B>,
    ) -> Option<Arrived<B>> {
        let ends_at = self.reassembly().and_then(|reassembly| reassembly.fin());
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
                // It may be a probe of our closed window, which needs a reply.
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

    /// Processes data and FIN (RFC 9293 section 3.10.7.4, seventh and eighth).
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
                let before = self.rcv_nxt;
                self.take_in_order(cfg, buf, out);
                // What fills a gap echoes an older timestamp than the others.
                self.right_size_if_due(before, cfg, now_us, None, out);
            } else {
                self.take_out_of_order(cfg, arrived.seq, buf, out);
            }
        }
        if arrived.fin {
            self.note_fin(end);
        }
        if arrived.fin && end == self.rcv_nxt || self.reassembly().is_some() {
            self.take_fin(cfg, now_us, arrived.fin && end == self.rcv_nxt, out);
        }
        self.acknowledge_stretch(cfg, now_us, out);
    }

    /// Acknowledges within a long batch, so that the peer's window is not used up meanwhile.
    #[inline]
    fn acknowledge_stretch(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) {
        let stretch = u32::from(cfg.max_stretch_segments) * u32::from(self.rcv_mss);
        if (self.rcv_nxt - self.last_ack_sent) as u32 >= stretch && self.state != State::Closed {
            self.send_ack(cfg, now_us, out);
        }
    }
}
