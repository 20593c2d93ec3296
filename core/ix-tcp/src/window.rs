//! Flow control both ways: RFC 9293 section 3.8.6, RFC 7323 section 2.
use crate::config::{Config, RCV_BUF_UNIT_BYTES};
use crate::output::{Output, RxBuf, TcpEvent};
use crate::records::TxRecord;
use crate::tcb::{Flags, Phase, Tcb};
use ix_wire::TcpHeader;

/// A peer with a smaller window than this may be waiting for more.
const STALL_BYTES: u32 = 32 << 10;

impl<B: RxBuf> Tcb<B> {
    /// How many bytes the sliding window takes now: what the peer's window allows, up to twice the
    /// congestion window, so that the next flight is there when this one is acknowledged.
    ///
    /// At least two segments are accepted even if the peer's window is closed, because something is
    /// needed to probe it with (RFC 9293 section 3.8.6.1).
    pub fn send_space(&self, cfg: &Config) -> u32 {
        self.space_within(cfg, self.snd_wnd)
    }

    #[inline]
    fn space_within(&self, cfg: &Config, snd_wnd: u32) -> u32 {
        if !self.state.sends() {
            return 0;
        }
        let floor = 2 * u32::from(self.mss);
        let two_flights = self.cc.cwnd_bytes().saturating_mul(2);
        let most = two_flights.min(cfg.snd_buf_max_bytes).max(cfg.snd_buf_bytes);
        snd_wnd.max(floor).min(most).saturating_sub(self.snd_buf_bytes)
    }

    /// Records that the application has appended `bytes` to the send stream: at most
    /// [`Self::send_space`], unless it has ended and these are its last ones.
    pub fn append(&mut self, bytes: u32) {
        debug_assert!(self.state.sends(), "append in {:?}", self.state);
        self.snd_buf_bytes += bytes;
    }

    /// Records that the application has returned `bytes` received bytes, and with them
    /// `buffers_freed` buffers.
    ///
    /// If the peer should learn of it, [`Self::needs_output`] becomes true: on a connection whose
    /// peer waits for the window nothing else may ever happen.
    pub fn recv_done(&mut self, cfg: &Config, bytes: u32, buffers_freed: u32) {
        debug_assert!(bytes <= self.rcv_held_bytes);
        debug_assert!(buffers_freed <= u32::from(self.rcv_held_bufs));
        self.rcv_held_bytes = self.rcv_held_bytes.saturating_sub(bytes);
        self.rcv_held_bufs = self.rcv_held_bufs.saturating_sub(buffers_freed as u16);
        let wakes = buffers_freed > 0 && self.was_starved();
        if self.state.receives() && (wakes || self.window_update_due(cfg)) {
            self.flags.set(Flags::ACK_NOW);
        }
    }

    /// Limits how many received bytes, approximately, the application holds, at most as many as a
    /// connection begins with; 0: as configured, and the limit follows what the application needs.
    /// What was offered remains offered (RFC 9293 section 3.8.6).
    pub fn set_receive_limit(&mut self, cfg: &Config, bytes: u32) {
        let is_limit = bytes > 0 && bytes < cfg.rcv_buf_bytes;
        let units = if is_limit { bytes.div_ceil(RCV_BUF_UNIT_BYTES) } else { 0 };
        // More than the units can express is more than any application has.
        self.rcv_buf = u16::try_from(units).unwrap_or(0);
        if bytes > 0 || self.rare.is_some() {
            self.rare_mut().right_size.is_fixed = bytes > 0;
        }
        if self.state.receives() && self.window_update_due(cfg) {
            self.flags.set(Flags::ACK_NOW);
        }
    }

    #[inline]
    pub(crate) fn rcv_buf_bytes(&self, cfg: &Config) -> u32 {
        match self.rcv_buf {
            0 => cfg.rcv_buf_first(),
            units => u32::from(units) * RCV_BUF_UNIT_BYTES,
        }
    }

    /// What can be received now, by bytes and by buffers (small segments must not use up the pool).
    #[inline]
    pub(crate) fn rcv_space(&self, cfg: &Config) -> u32 {
        let (bytes, buffers) = match self.rcv_buf {
            0 => (cfg.rcv_buf_bytes, cfg.rcv_buffers_first()),
            _ => (self.rcv_buf_bytes(cfg), self.rcv_buffers_own(cfg)),
        };
        let bytes = bytes.saturating_sub(self.rcv_held_bytes);
        let buffers = buffers.saturating_sub(u32::from(self.rcv_held_bufs));
        // What the shift cuts off is no reason to offer less than a segment.
        let in_each = cfg.rcv_buffer_bytes() + (1 << self.rcv_shift) - 1;
        bytes.min(buffers.saturating_mul(in_each))
    }

    /// The part of the offered window that the peer has not used.
    #[inline]
    pub(crate) fn rcv_wnd(&self) -> u32 {
        (self.rcv_adv - self.rcv_nxt) as u32
    }

    /// By how much the offered window could grow now.
    #[inline]
    fn rcv_gain(&self, cfg: &Config) -> u32 {
        let space = self.rcv_space(cfg).min(u32::from(u16::MAX) << self.rcv_shift);
        space.saturating_sub(self.rcv_wnd())
    }

    /// Receiver's silly-window avoidance: the right edge moves only in steps of this size (RFC 9293
    /// section 3.8.6.2.2).
    #[inline]
    fn rcv_step(&self, cfg: &Config) -> u32 {
        let buf = match self.rcv_buf {
            // A share is at least two segments, or what `rcv_segment_bytes` makes of them.
            0 => cfg.rcv_buf_bytes,
            _ => self.rcv_buf_bytes(cfg),
        };
        (buf / 2).min(cfg.rcv_segment_bytes())
    }

    /// The application has made room, and the peer may be waiting for it: send a window update.
    /// While much of the window is still open, the peer's next segment causes an acknowledgement
    /// soon enough. Of a buffer that has grown that is little, and a peer that is told so late
    /// waits for a round trip: it is also told when the window becomes three times as large.
    #[inline]
    pub(crate) fn window_update_due(&self, cfg: &Config) -> bool {
        let wnd = self.rcv_wnd();
        let is_open = match self.rcv_buf {
            0 => wnd >= STALL_BYTES || wnd >= cfg.rcv_buf_first() / 2,
            // A window that is that large cannot become three times as large.
            _ => wnd >= STALL_BYTES && wnd > self.rcv_buf_bytes(cfg) / 3,
        };
        !is_open && self.is_worth_an_update(cfg)
    }

    fn is_worth_an_update(&self, cfg: &Config) -> bool {
        let (wnd, buf, gain) = (self.rcv_wnd(), self.rcv_buf_bytes(cfg), self.rcv_gain(cfg));
        wnd < (buf / 2).min(STALL_BYTES) && gain >= self.rcv_step(cfg)
            || buf > cfg.rcv_buf_first() && gain >= wnd.saturating_mul(2).max(buf / 4)
    }

    /// The window field of a segment sent now; records what it offers. The right edge never moves
    /// left, except for what the shift cuts off (RFC 7323 section 2.4: the peer expects that; we
    /// accept up to the furthest edge that was ever offered).
    #[inline]
    pub(crate) fn offer_window(&mut self, cfg: &Config) -> u16 {
        let gain = self.rcv_gain(cfg);
        let mut wnd = self.rcv_wnd();
        // A SYN-ACK that is sent again cannot say more than its field holds, and so nothing that
        // was sent before it may.
        if gain >= self.rcv_step(cfg) && self.handshake_done() {
            wnd = wnd.saturating_add(gain);
        }
        let field = (wnd >> self.rcv_shift).min(u32::from(u16::MAX));
        self.rcv_adv = self.rcv_adv.max(self.rcv_nxt + (field << self.rcv_shift));
        field as u16
    }

    /// How much the peer's window allows beyond `snd_nxt`; negative after it shrank.
    #[inline]
    pub(crate) fn snd_room(&self) -> i32 {
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::WindowOffByOne) {
            return (self.snd_una + self.snd_wnd + 1) - self.snd_nxt;
        }
        (self.snd_una + self.snd_wnd) - self.snd_nxt
    }

    /// Takes the window of a segment whose acknowledgement is acceptable. `newer`: it acknowledged
    /// something new, so it cannot be an old one.
    #[inline]
    pub(crate) fn take_window(&mut self, hdr: &TcpHeader, newer: bool) {
        // RFC 9293 section 3.10.7.4. Only sequence numbers decide which segment is newer; the size
        // of the window does not.
        let fresh =
            self.snd_wl1.lt(hdr.seq) || (self.snd_wl1 == hdr.seq && self.snd_wl2.le(hdr.ack));
        if !(newer || fresh) {
            return;
        }
        self.snd_wnd = u32::from(hdr.window) << self.snd_shift;
        self.snd_wl1 = hdr.seq;
        self.snd_wl2 = hdr.ack;
        self.snd_wnd_max = self.snd_wnd_max.max(self.snd_wnd);
    }

    /// The window may have opened: the octet that probed it, if any, was not accepted and counts as
    /// unsent again, and the application may send more.
    pub(crate) fn window_changed(
        &mut self,
        cfg: &Config,
        wnd_before: u32,
        out: &mut impl Output<B>,
    ) {
        if self.snd_wnd > 0 {
            self.withdraw_probe();
        }
        let mss = u32::from(self.mss);
        if self.space_within(cfg, wnd_before) < mss && self.send_space(cfg) >= mss {
            out.event(TcpEvent::WindowOpen);
        }
    }

    /// The octet that probed a closed window was not accepted: it counts as unsent again, or, with
    /// FIN behind it, as lost.
    fn withdraw_probe(&mut self) {
        let Some(probe) = self.records.get_mut(0).filter(|first| first.has(TxRecord::PROBE)) else {
            return;
        };
        probe.marks &= !TxRecord::PROBE;
        let probe = *probe;
        self.rtt.clear_backoff();
        if self.records.len() > 1 {
            self.mark_lost(0);
        } else {
            self.records.pop_last();
            self.forget_marks(&probe);
            self.snd_nxt = probe.seq;
        }
    }

    /// The peer has opened the window that it had closed with data in flight. What was sent again
    /// meanwhile, as a probe, was not accepted either: it need not wait for another timeout.
    pub(crate) fn withdraw_resent(&mut self) {
        let resent = |first: &TxRecord| first.has(TxRecord::RETRANSMITTED);
        if self.phase == Phase::Timeout && self.records.first().is_some_and(resent) {
            self.mark_lost(0);
        }
    }

    /// Removes a record that leaves the queue from the sums.
    #[inline]
    pub(crate) fn forget_marks(&mut self, record: &TxRecord) {
        if record.has(TxRecord::SACKED) {
            self.sacked_bytes -= u32::from(record.len);
            self.loss_mut().sacked_segs -= 1;
        } else if record.has(TxRecord::LOST) {
            self.lost_bytes -= u32::from(record.len);
        }
    }
}
