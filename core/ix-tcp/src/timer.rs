//! Timers: RFC 6298, RFC 8985 section 7, RFC 9293 sections 3.8.3, 3.8.4 and 3.8.6.1.
//!
//! Three times stand for all timers. An acknowledgement only stores a new one.
use crate::config::Config;
use crate::output::{DeadReason, Output, RxBuf};
use crate::records::TxRecord;
use crate::state::State;
use crate::stats::TcpCounter;
use crate::tcb::{Flags, LossTimer, NEVER, Phase, Tcb, USER_TIMEOUT_UNIT_US, loss_of};

/// Override timeout of the sender's silly-window avoidance (RFC 9293 section 3.8.6.2.1: 0.1 to 1
/// s). Also the pause before the next try if no transmit buffer was free.
const OVERRIDE_US: u64 = 100_000;
/// How long a peer that replies may keep its window closed after the application has closed the
/// connection: as on Linux, until probes that began 0.2 s apart would be two minutes apart.
const CLOSED_WINDOW_US: u64 = 204_600_000;
/// Pause between a reset that ends an old connection and the SYN that is then sent again.
const SYN_AGAIN_US: u64 = 2_000;
/// How long an idle connection keeps memory that it does not need any more.
pub(crate) const IDLE_US: u64 = 1_000_000;

/// Where buffers or numbers of processes are short, a peer may take nothing for so long.
const IN_VAIN_US: u64 = 1_000_000;

impl<B: RxBuf> Tcb<B> {
    /// When [`Self::timer`] must be called next; `u64::MAX`: never. It changes often. The caller
    /// may check it lazily, because an acknowledgement only moves it later.
    #[inline]
    pub fn deadline(&self) -> u64 {
        self.loss_at_us.min(self.delack_at_us).min(self.state_at_us)
    }

    /// Does what is due at `now_us`. Does nothing if nothing is due.
    pub fn timer(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) {
        if self.state != State::Closed && now_us >= self.delack_at_us {
            self.delack_at_us = NEVER;
            self.ack_pace.waited_in_vain();
            self.send_ack(cfg, now_us, out);
        }
        self.settle_loss_timer(cfg, now_us);
        if self.state != State::Closed && now_us >= self.loss_at_us {
            self.loss_expired(cfg, now_us, out);
        }
        if self.state != State::Closed && now_us >= self.state_at_us {
            self.state_expired(cfg, now_us, out);
        }
        self.check();
    }

    /// Sends the delayed acknowledgement if it is due and nothing else is. Returns whether all is
    /// done; if not, the connection needs [`Self::output`], as after [`Self::timer`].
    #[inline]
    pub fn acknowledge_late(
        &mut self,
        cfg: &Config,
        now_us: u64,
        out: &mut impl Output<B>,
    ) -> bool {
        let alone = self.state == State::Established
            && now_us >= self.delack_at_us
            && now_us < self.loss_at_us.min(self.state_at_us)
            && !self.flags.has(Flags::REARM);
        if alone {
            self.delack_at_us = NEVER;
            self.ack_pace.waited_in_vain();
            self.send_ack(cfg, now_us, out);
        }
        alone && !self.needs_output()
    }

    fn rto_us(&self, cfg: &Config) -> u64 {
        let (initial_us, allowance_us) = if self.handshake_done() {
            // There is no sample from the handshake: the SYN was retransmitted (RFC 6298 section
            // 5.7).
            (cfg.initial_rto_us.saturating_mul(3), self.delayed_ack_allowance_us(cfg))
        } else {
            (cfg.initial_rto_us, 0)
        };
        let rto_us = self.rtt.rto_us(cfg.min_rto_us, cfg.max_rto_us, initial_us);
        let rto_us = (u64::from(rto_us) + allowance_us).min(u64::from(cfg.max_rto_us));
        if self.rtt.backoff() == 0 { rto_us } else { rto_us + self.jitter_us(cfg, rto_us) }
    }

    /// The random part of a timeout that was doubled. Without it, connections that lost something
    /// at the same time would try again at the same times, and overflow the same queue until they
    /// give up. It only makes the timeout longer, because RFC 6298 gives the minimum. It differs
    /// for each doubling, but is the same however often the timer is set.
    #[cold]
    fn jitter_us(&self, cfg: &Config, rto_us: u64) -> u64 {
        let drawn = self.ts_offset.wrapping_add(u32::from(self.rtt.backoff()));
        // The finaliser of MurmurHash3: `ts_offset` is random, but neighbouring sums must not give
        // neighbouring results.
        let drawn = (drawn ^ drawn >> 16).wrapping_mul(0x85EB_CA6B);
        let drawn = (drawn ^ drawn >> 13).wrapping_mul(0xC2B2_AE35);
        let part = u64::from(drawn ^ drawn >> 16);
        (rto_us * u64::from(cfg.rto_jitter_percent) / 100 * part) >> 32
    }

    /// True if the octet in flight is a probe of a closed window.
    fn probing(&self) -> bool {
        self.records.first().is_some_and(|first| first.has(TxRecord::PROBE))
    }

    /// Sets the loss timer if that was left undone: by an acknowledgement, or because the time that
    /// it was set to was early enough and has come now. To be called before [`Self::deadline`] says
    /// whether anything is due.
    #[inline]
    pub fn settle_loss_timer(&mut self, cfg: &Config, now_us: u64) {
        if self.loss_timer == LossTimer::Earlier && now_us >= self.loss_at_us {
            // As if it had been set when data was last sent, or acknowledged.
            let last = self.records.len().checked_sub(1).and_then(|last| self.records.get(last));
            let sent_us = last.map_or(0, |last| last.sent_us);
            self.arm_loss_timer(cfg, self.rto_base_us.max(sent_us));
        } else if self.flags.has(Flags::REARM) {
            self.arm_loss_timer(cfg, now_us);
        }
    }

    /// Leaves the loss timer as it is set, and returns true, if timeout and tail loss probe cannot
    /// come before: the right time is computed when this one comes, and not for each message.
    #[inline]
    pub(crate) fn leave_loss_timer_if_early(&mut self, cfg: &Config) -> bool {
        let is_one =
            matches!(self.loss_timer, LossTimer::Earlier | LossTimer::Tlp | LossTimer::Rto);
        let (probe_us, timeout_us) = match self.one_in_flight() {
            true => (cfg.max_ack_delay_us, cfg.delayed_ack_allowance_us),
            false => (0, 0),
        };
        // Neither is shorter than this, whatever the path's round-trip time.
        let least_us = cfg.min_pto_us.saturating_add(probe_us);
        let least_us = least_us.min(cfg.min_rto_us.saturating_add(timeout_us)).min(cfg.max_rto_us);
        let keeps = is_one
            && self.loss().is_none()
            && !self.records.is_empty()
            && self.loss_at_us <= self.rto_base_us + u64::from(least_us);
        if keeps {
            self.loss_timer = LossTimer::Earlier;
            self.flags.clear(Flags::REARM);
        }
        keeps
    }

    /// Sets the loss timer to what must happen next.
    pub(crate) fn arm_loss_timer(&mut self, cfg: &Config, now_us: u64) {
        self.flags.clear(Flags::REARM);
        if self.state == State::Closed {
            return;
        }
        self.choose_loss_timer(cfg, now_us);
        if self.loss().is_some() {
            self.within_user_timeout(cfg);
            self.is_model_limited();
        }
    }

    fn choose_loss_timer(&mut self, cfg: &Config, now_us: u64) {
        if self.records.is_empty() {
            return self.arm_without_flight(cfg, now_us);
        }
        let rto_at_us = self.rto_base_us.saturating_add(self.rto_us(cfg));
        if self.probing() {
            (self.loss_timer, self.loss_at_us) = (LossTimer::Persist, rto_at_us);
            return;
        }
        (self.loss_timer, self.loss_at_us) = (LossTimer::Rto, rto_at_us);
        let reorder_at_us = self.loss().map_or(0, |loss| loss.reorder_at_us);
        if reorder_at_us != 0 {
            // If the path is known to reorder, RACK may wait longer than a timeout that is only a
            // little above the round-trip time. The timeout must not decide before RACK does.
            if reorder_at_us < rto_at_us || self.rtt.backoff() == 0 {
                (self.loss_timer, self.loss_at_us) = (LossTimer::Reorder, reorder_at_us);
            }
        } else if self.may_probe_tail() {
            // Where the timeout comes first, the probe takes its place (RFC 8985 section 7.2).
            let pto_at_us = now_us.saturating_add(self.probe_timeout_us(cfg));
            (self.loss_timer, self.loss_at_us) = (LossTimer::Tlp, pto_at_us.min(rto_at_us));
        }
    }

    /// Whether a tail loss probe may be sent (RFC 8985 section 7.2).
    fn may_probe_tail(&self) -> bool {
        self.flags.has(Flags::SACK)
            && self.handshake_done()
            && self.phase == Phase::Open
            && self.sacked_bytes == 0
            && self.lost_bytes == 0
            && self.rtt.backoff() == 0
            && self.snd_wnd > 0
            && self.loss().is_none_or(|loss| loss.tlp_end.is_none())
    }

    /// True if something is to be sent while nothing is in flight whose acknowledgement would let
    /// it out.
    pub(crate) fn waits_without_flight(&self) -> bool {
        self.records.is_empty()
            && (self.unsent_bytes() > 0 || self.fin_unsent() || !self.handshake_done())
    }

    fn arm_without_flight(&mut self, cfg: &Config, now_us: u64) {
        if self.waits_without_flight() {
            let closed = self.handshake_done() && self.snd_wnd == 0;
            let wait_us = if closed { self.rto_us(cfg) } else { OVERRIDE_US };
            if self.loss_timer != LossTimer::Persist || self.loss_at_us == NEVER {
                self.loss_at_us = now_us.saturating_add(wait_us);
            }
            self.loss_timer = LossTimer::Persist;
        } else if self.records.is_large() || self.loss().is_some_and(|loss| loss.is_past()) {
            (self.loss_timer, self.loss_at_us) = (LossTimer::Idle, now_us + IDLE_US);
        } else {
            (self.loss_timer, self.loss_at_us) = (LossTimer::Idle, NEVER);
        }
    }

    fn loss_expired(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) {
        self.loss_at_us = NEVER;
        #[cfg(feature = "planted")]
        if self.loss_timer == LossTimer::Rto
            && crate::planted::is(crate::planted::Bug::SkippedRetransmission)
        {
            self.rto_base_us = now_us;
            return self.arm_loss_timer(cfg, now_us);
        }
        match self.loss_timer {
            LossTimer::Rto => self.rto_expired(cfg, now_us, out),
            LossTimer::Tlp => self.probe_tail(cfg, now_us, out),
            LossTimer::Reorder => {
                let lost_before = self.lost_bytes;
                self.rack_detect(now_us);
                let newly_lost = self.lost_bytes > lost_before;
                if newly_lost && self.phase == Phase::Open && !self.only_probe_is_lost() {
                    self.enter_recovery(0, out);
                }
                self.retransmit_lost(cfg, now_us, out);
            }
            LossTimer::Persist => self.persist_expired(cfg, now_us, out),
            LossTimer::Idle => {
                if self.records.is_empty() {
                    if self.loss().is_some_and(|loss| loss.is_past()) {
                        self.take_loss();
                    }
                    self.records.shrink();
                }
            }
            // What was held back is sent by `output`.
            LossTimer::Pace => {}
            // Settled before.
            LossTimer::Earlier => {}
        }
        if self.loss_at_us == NEVER {
            self.arm_loss_timer(cfg, now_us);
        }
    }

    /// Processes an expired retransmission timer: RFC 6298 section 5.4 to 5.7, RFC 9293 section
    /// 3.8.3.
    fn rto_expired(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) {
        if self.given_up(cfg, now_us) {
            return self.die_unanswered(out);
        }
        if !self.handshake_done() {
            self.loss_mut().unanswered_syn = true;
            out.count(TcpCounter::Rto);
            self.mark_lost(0);
            self.rtt.back_off(self.rto_us(cfg));
            self.rto_base_us = now_us;
            self.output(cfg, now_us, out);
            return;
        }
        if cfg.path_search {
            self.suspect_black_hole(now_us, out);
        }
        self.take_timeout(now_us, out);
        self.rtt.back_off(self.rto_us(cfg));
        self.rto_base_us = now_us;
        self.loss_mut().answered = false;
        self.retransmit(0, cfg, now_us, out);
    }

    /// The peer replied to our SYN for an old connection, and our reset has ended that one: the
    /// peer will accept the SYN now. Only once, so that no one can make us send more than a SYN or
    /// two.
    pub(crate) fn hurry_syn(&mut self, now_us: u64) {
        if self.rtt.backoff() == 0 {
            self.loss_at_us = self.loss_at_us.min(now_us + SYN_AGAIN_US);
        }
    }

    /// Records that there was no reply. Returns whether that has lasted too long.
    fn given_up(&mut self, cfg: &Config, now_us: u64) -> bool {
        let backoff = self.rtt.backoff();
        let impatient = self.user_timeout() > 0;
        match self.state {
            State::SynSent if backoff >= cfg.syn_retries => return true,
            State::SynSent if impatient => return self.syn_given_up(cfg, now_us),
            State::SynSent => return false,
            State::SynReceived => return backoff >= cfg.syn_ack_retries,
            _ => {}
        }
        let last_rcv_us = self.last_rcv_us;
        let may_wait = self.snd_wnd == 0 && !self.needs_progress();
        let is_answered = last_rcv_us >= self.rto_base_us;
        let least_us = match self.user_timeout() {
            0 if self.snd_wnd == 0 => CLOSED_WINDOW_US,
            _ => 0,
        };
        let patience_us = self.patience_us(cfg);
        let loss = self.loss_mut();
        if loss.unanswered_since_us == 0 {
            loss.unanswered_since_us = now_us;
        }
        if may_wait && last_rcv_us > loss.unanswered_since_us {
            // A peer that replies may keep its window closed for as long as it likes (RFC 9293
            // section 3.8.6.1), but not if the application has closed the connection or has set a
            // user timeout (as on Linux). If it has replied to the last probe, this one is the
            // first without a reply, however long the pause was.
            loss.unanswered_since_us = if is_answered { now_us } else { last_rcv_us };
        }
        let replies = last_rcv_us > loss.unanswered_since_us;
        let patience_us = if replies { patience_us.max(least_us) } else { patience_us };
        now_us >= loss.unanswered_since_us.saturating_add(patience_us)
    }

    /// Whether only an acknowledgement of what was sent proves that the connection is alive.
    /// Otherwise its peer could hold it for ever, though the application has closed it, or has said
    /// how long it waits.
    fn needs_progress(&self) -> bool {
        let closed = || self.rare.as_ref().is_some_and(|rare| rare.must_progress);
        self.flags.has(Flags::ORPHAN) || self.user_timeout() > 0 || closed()
    }

    /// To be called when the application has closed the connection, and [`Self::close`] comes only
    /// when all is acknowledged. From now on the connection is given up if nothing is acknowledged
    /// for as long as a dead peer is waited for, however alive the peer is; if it replies that its
    /// window is closed, for as long as Linux waits then.
    pub fn must_progress(&mut self) {
        self.rare_mut().must_progress = true;
    }

    /// Whether the peer has taken nothing of what is sent for a second and more, though asked
    /// again: it is gone, or keeps its window closed. Where something is short that only
    /// acknowledgements free, the connection may be reset (RFC 6429).
    pub fn is_in_vain(&self, now_us: u64) -> bool {
        let since_us = self.loss().map_or(0, |loss| loss.unanswered_since_us);
        let in_vain = since_us != 0 && now_us >= since_us.saturating_add(IN_VAIN_US);
        in_vain && self.state.synchronized()
    }

    /// Buffers that the application has of this connection and cannot return soon, because it
    /// [is in vain](Self::is_in_vain).
    pub fn buffers_in_vain(&self, now_us: u64) -> u16 {
        if self.is_in_vain(now_us) { self.rcv_held_bufs } else { 0 }
    }

    /// To be called when the peer has opened its closed window, which proves that it is there.
    pub(crate) fn window_has_opened(&mut self) {
        if !self.needs_progress()
            && let Some(loss) = loss_of(&mut self.rare)
        {
            loss.unanswered_since_us = 0;
        }
    }

    /// The same for a SYN of an application with a user timeout (RFC 9293 section 3.9.1.1): counted
    /// from its first transmission.
    #[cold]
    fn syn_given_up(&mut self, cfg: &Config, now_us: u64) -> bool {
        let sent_us = self.rto_base_us;
        let patience_us = self.patience_us(cfg);
        let loss = self.loss_mut();
        if loss.unanswered_since_us == 0 {
            loss.unanswered_since_us = sent_us;
        }
        now_us >= loss.unanswered_since_us.saturating_add(patience_us)
    }

    /// How long data or a probe may stay without a reply: R2 of RFC 9293 section 3.8.3, or the user
    /// timeout (RFC 5482).
    fn patience_us(&self, cfg: &Config) -> u64 {
        match self.user_timeout() {
            0 => u64::from(cfg.r2_us),
            units => u64::from(units) * USER_TIMEOUT_UNIT_US,
        }
    }

    /// Sets the user timeout (RFC 9293 section 3.8.3, RFC 5482), in steps of 0.1 s, up to 6553 s;
    /// 0: as configured. It is counted from the first timeout of unacknowledged data, or of a probe
    /// of a window that stays closed; for a SYN that must be sent again, from its first
    /// transmission; with keepalive, from the last segment of the peer.
    pub fn set_user_timeout(&mut self, ms: u32) {
        let units = u64::from(ms) * 1000;
        let units = units.div_ceil(USER_TIMEOUT_UNIT_US).min(u64::from(u16::MAX)) as u16;
        if units != self.user_timeout() {
            self.rare_mut().user_timeout = units;
        }
    }

    fn user_timeout(&self) -> u16 {
        self.rare.as_ref().map_or(0, |rare| rare.user_timeout)
    }

    /// With a user timeout the loss timer expires at its end at the latest, as the timeout or probe
    /// that finds the peer gone.
    #[cold]
    fn within_user_timeout(&mut self, cfg: &Config) {
        let since_us = self.loss().map_or(0, |loss| loss.unanswered_since_us);
        if since_us == 0 {
            return;
        }
        let end_us = since_us.saturating_add(self.patience_us(cfg));
        if self.user_timeout() > 0 && end_us < self.loss_at_us && self.loss_at_us != NEVER {
            self.loss_at_us = end_us;
            if self.loss_timer != LossTimer::Persist {
                self.loss_timer = LossTimer::Rto;
            }
        }
    }

    fn die_unanswered(&mut self, out: &mut impl Output<B>) {
        let unreachable = self.flags.has(Flags::SOFT_ERROR);
        let reason = if unreachable { DeadReason::Unreachable } else { DeadReason::TimedOut };
        self.die(reason, out);
    }

    /// Probes the tail: with new data if there is some, else with the last segment again (RFC 8985
    /// section 7.3).
    fn probe_tail(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) {
        let unsent = self.until_message_end(self.unsent_bytes());
        let room = self.snd_room().max(0) as u32;
        let len = unsent.min(u32::from(self.mss)).min(room);
        let fresh = len > 0 && {
            let options = self.plain_options(now_us);
            self.send_one(cfg, now_us, len, options, out)
        };
        let again = !fresh && self.retransmit(self.records.len() - 1, cfg, now_us, out);
        if fresh || again {
            out.count(TcpCounter::Tlp);
        }
        // A probe for which no buffer was free counts as lost: the timeout comes next.
        let end = self.snd_nxt;
        let loss = self.loss_mut();
        loss.tlp_end = Some(end);
        loss.tlp_retransmit = again;
        self.rto_base_us = now_us;
    }

    /// Probes a closed window (RFC 9293 section 3.8.6.1), or overrides silly-window avoidance
    /// (section 3.8.6.2.1).
    fn persist_expired(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) {
        if !self.handshake_done() {
            return self.output(cfg, now_us, out);
        }
        let room = self.snd_room().max(0) as u32;
        let unsent = self.unsent_bytes();
        if !self.probing() && (room > 0 || unsent == 0) {
            if self.records.is_large() && self.is_too_early(now_us) {
                return;
            }
            let message = self.until_message_end(unsent);
            let len = message.min(room).min(u32::from(self.mss));
            let options = self.plain_options(now_us);
            if len > 0 || self.fin_unsent() {
                self.send_one(cfg, now_us, len, options, out);
            }
            return;
        }
        if self.given_up(cfg, now_us) {
            return self.die_unanswered(out);
        }
        self.send_window_probe(cfg, now_us, out);
        self.rtt.back_off(self.rto_us(cfg));
        self.rto_base_us = now_us;
    }

    fn state_expired(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) {
        self.state_at_us = NEVER;
        match self.state {
            State::TimeWait => self.die(DeadReason::Closed, out),
            State::FinWait2 if self.flags.has(Flags::ORPHAN) => self.die(DeadReason::Closed, out),
            _ => self.keepalive_expired(cfg, now_us, out),
        }
    }

    /// Sends a keepalive probe (RFC 9293 section 3.8.4): only on an idle connection, never at once.
    fn keepalive_expired(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) {
        if self.keepalive_idle_s == 0 {
            return;
        }
        let idle_us = u64::from(self.keepalive_idle_s) * 1_000_000;
        let due_us = self.last_rcv_us.saturating_add(idle_us);
        if self.keepalives == 0 && now_us < due_us {
            self.state_at_us = due_us;
            return;
        }
        if !self.records.is_empty() {
            // The retransmission timer already checks the peer.
            self.state_at_us = now_us.saturating_add(idle_us);
            return;
        }
        if self.keepalive_given_up(cfg, now_us) {
            return self.die_unanswered(out);
        }
        self.keepalives = self.keepalives.saturating_add(1);
        self.send_keepalive(cfg, now_us, out);
        let interval_us = match self.rare.as_ref().map_or(0, |rare| rare.keepalive_interval_s) {
            0 => u64::from(cfg.keepalive_interval_us),
            interval_s => u64::from(interval_s) * 1_000_000,
        };
        self.state_at_us = now_us.saturating_add(interval_us);
    }

    /// Whether keepalive ends the connection: after the user timeout, if there is one, else after
    /// too many probes without a reply.
    fn keepalive_given_up(&self, cfg: &Config, now_us: u64) -> bool {
        if self.user_timeout() > 0 {
            let end_us = self.last_rcv_us.saturating_add(self.patience_us(cfg));
            return self.keepalives > 0 && now_us >= end_us;
        }
        match self.rare.as_ref().map_or(0, |rare| rare.keepalive_probes) {
            0 => self.keepalives >= cfg.keepalive_probes,
            most => self.keepalives >= most,
        }
    }

    /// Seconds between keepalive probes; 0: as configured. A pause that has begun does not change.
    pub fn set_keepalive_interval(&mut self, interval_s: u16) {
        self.rare_mut().keepalive_interval_s = interval_s;
    }

    /// Keepalive probes without a reply that end the connection; 0: as configured.
    pub fn set_keepalive_probes(&mut self, most: u8) {
        self.rare_mut().keepalive_probes = most;
    }

    /// Turns on keepalive after `idle_s` idle seconds; 0: off (RFC 9293 section 3.8.4).
    pub fn set_keepalive(&mut self, idle_s: u16, now_us: u64) {
        self.keepalive_idle_s = idle_s;
        self.start_keepalive(now_us);
    }

    /// Records that the peer has been heard.
    #[inline]
    pub(crate) fn heard(&mut self, now_us: u64) {
        self.last_rcv_us = now_us;
        if self.keepalives > 0 {
            self.start_keepalive(now_us);
        }
    }

    pub(crate) fn start_keepalive(&mut self, now_us: u64) {
        let waits_to_die = self.state == State::TimeWait
            || self.state == State::FinWait2 && self.flags.has(Flags::ORPHAN);
        if waits_to_die || !self.state.synchronized() {
            return;
        }
        self.keepalives = 0;
        self.state_at_us = match self.keepalive_idle_s {
            0 => NEVER,
            idle_s => now_us.saturating_add(u64::from(idle_s) * 1_000_000),
        };
    }

    /// Limits FIN-WAIT-2: a peer that never closes must not hold the memory of an application that
    /// has closed.
    pub(crate) fn start_fin_wait2(&mut self, cfg: &Config, now_us: u64) {
        if self.state == State::FinWait2 && self.flags.has(Flags::ORPHAN) {
            self.state_at_us = now_us.saturating_add(u64::from(cfg.fin_wait2_us));
        }
    }
}
