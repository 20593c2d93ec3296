//! DCTCP (RFC 8257): the window shrinks in proportion to the share of marked bytes.
use super::{Ack, CWND_MAX_BYTES, initial_window_bytes, reduced_bytes, slow_start};

/// alpha of a path that marks all packets. This is the initial value (RFC 8257 section 4.2).
const ALPHA_ONE: u16 = 1 << 15;
/// g = 1/16 (RFC 8257 section 4.2).
const GAIN_SHIFT: u32 = 4;
/// Reduction after a loss, as Reno's (RFC 8257 section 3.4).
const BETA: (u64, u64) = (1, 2);

/// State of DCTCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dctcp {
    pub(super) cwnd_bytes: u32,
    pub(super) ssthresh_bytes: u32,
    /// Observation window (RFC 8257 section 3.3): its bytes not acknowledged yet, its acknowledged
    /// bytes, and those of them that were marked.
    left_bytes: u32,
    total_bytes: u32,
    marked_bytes: u32,
    /// DCTCP.Alpha, in units of 1 / [`ALPHA_ONE`].
    alpha: u16,
    pub(super) mss: u16,
}

impl Dctcp {
    pub(super) fn new(mss: u16, iw_segments: u32) -> Self {
        let mss = mss.max(1);
        Dctcp {
            cwnd_bytes: initial_window_bytes(mss, iw_segments),
            ssthresh_bytes: CWND_MAX_BYTES,
            left_bytes: 0,
            total_bytes: 0,
            marked_bytes: 0,
            alpha: ALPHA_ONE,
            mss,
        }
    }

    fn mss_bytes(&self) -> u32 {
        u32::from(self.mss)
    }

    /// DCTCP.Alpha in thousandths.
    pub fn alpha_permille(&self) -> u32 {
        u32::from(self.alpha) * 1000 / u32::from(ALPHA_ONE)
    }

    #[inline]
    pub(super) fn on_ack(&mut self, ack: &Ack) {
        let round_over = self.observe(ack);
        if !ack.validates(self.cwnd_bytes) {
            return;
        }
        if self.cwnd_bytes < self.ssthresh_bytes {
            self.cwnd_bytes = slow_start(self.cwnd_bytes, self.ssthresh_bytes, ack.acked_bytes);
            return;
        }
        if round_over {
            self.cwnd_bytes = (self.cwnd_bytes + self.mss_bytes()).min(CWND_MAX_BYTES);
        }
    }

    /// RFC 8257 section 3.3: averages the share of marked bytes once per window of data. Returns
    /// whether an observation window has ended.
    fn observe(&mut self, ack: &Ack) -> bool {
        self.total_bytes = self.total_bytes.saturating_add(ack.acked_bytes);
        self.marked_bytes = self.marked_bytes.saturating_add(ack.marked_bytes);
        if ack.acked_bytes < self.left_bytes {
            self.left_bytes -= ack.acked_bytes;
            return false;
        }
        let share = u64::from(self.marked_bytes) * u64::from(ALPHA_ONE);
        let share = share / u64::from(self.total_bytes.max(1));
        // Marks of an earlier window may be reported late.
        let share = share.min(u64::from(ALPHA_ONE)) as u16;
        // alpha = (1 - g) * alpha + g * M, rounded up so that it does not stand still above zero.
        let kept = self.alpha - self.alpha.div_ceil(1 << GAIN_SHIFT);
        self.alpha = (kept + (share >> GAIN_SHIFT)).min(ALPHA_ONE);
        (self.total_bytes, self.marked_bytes) = (0, 0);
        self.left_bytes = ack.in_flight_bytes;
        true
    }

    /// Once for each window of data with marks: cwnd = cwnd * (1 - alpha / 2).
    pub(super) fn on_ecn(&mut self) {
        let cut = u64::from(self.cwnd_bytes) * u64::from(self.alpha) / (2 * u64::from(ALPHA_ONE));
        self.cwnd_bytes = (self.cwnd_bytes - cut as u32).max(2 * self.mss_bytes());
        self.ssthresh_bytes = self.cwnd_bytes;
    }

    pub(super) fn on_congestion(&mut self, flight_bytes: u32) {
        self.ssthresh_bytes = reduced_bytes(flight_bytes, self.cwnd_bytes, BETA, self.mss_bytes());
        self.cwnd_bytes = self.ssthresh_bytes;
    }

    pub(super) fn on_rto(&mut self, first: bool, flight_bytes: u32) {
        if first {
            self.ssthresh_bytes =
                reduced_bytes(flight_bytes, self.cwnd_bytes, BETA, self.mss_bytes());
        }
        self.cwnd_bytes = self.mss_bytes();
    }

    pub(super) fn undo(&mut self, before: &Dctcp) {
        self.cwnd_bytes = self.cwnd_bytes.max(before.cwnd_bytes);
        self.ssthresh_bytes = before.ssthresh_bytes;
    }

    pub(super) fn on_idle_restart(&mut self, cwnd_bytes: u32, threshold_bytes: u32) {
        self.cwnd_bytes = cwnd_bytes;
        self.ssthresh_bytes = threshold_bytes;
        self.left_bytes = 0;
    }

    pub(super) fn set_mss(&mut self, mss: u16) {
        self.mss = mss.max(1);
        self.cwnd_bytes = self.cwnd_bytes.max(self.mss_bytes());
    }
}
