//! CUBIC (RFC 9438) in integers.
//!
//! Windows are bytes, times are milliseconds in 32 wrapping bits. Instead of the epoch's start and
//! K, the state holds the time at which the cubic curve crosses W_max, `epoch_start + K`. The curve
//! is then `W_max + C * (t - origin)^3`, on whichever side of W_max the epoch began. Time that must
//! not count (RFC 9438 section 5.8) moves the origin.
use super::{Ack, CWND_MAX_BYTES, initial_window_bytes, reduced_bytes, slow_start};

/// Multiplicative decrease factor beta_cubic = 0.7 (RFC 9438 section 4.6).
const BETA: (u64, u64) = (7, 10);
/// alpha_cubic = 3 * (1 - beta) / (1 + beta) = 9/17 (RFC 9438 section 4.3).
const ALPHA: (u64, u64) = (9, 17);
/// 1e9 / C: the curve rises by `mss * d^3 / CURVE_DIVISOR` bytes in d milliseconds, as C is 0.4
/// segments per second cubed (RFC 9438 section 5.1).
const CURVE_DIVISOR: u64 = 2_500_000_000;
/// d^3 fits in 63 bits up to this value (35 minutes, when the curve is far above any window).
const CURVE_MS_MAX: u32 = (1 << 21) - 1;

/// A byte with one possible value; the other values hold the tag of [`super::Control`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum TagRoom {
    Here = 0,
}

/// State of CUBIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cubic {
    pub(super) cwnd_bytes: u32,
    pub(super) ssthresh_bytes: u32,
    /// W_max; 0: the next epoch begins on the plateau, at the current window.
    w_max_bytes: u32,
    /// W_est, and its fraction in 1/256 bytes; 0: no epoch has begun.
    w_est_bytes: u32,
    w_est_fraction: u8,
    tag_room: TagRoom,
    pub(super) mss: u16,
    /// When the curve crosses W_max.
    origin_ms: u32,
    /// Time of the last acknowledgement.
    acked_at_ms: u32,
    /// cwnd_prior: the window before the last reduction.
    prior_cwnd_bytes: u32,
}

impl Cubic {
    pub(super) fn new(mss: u16, iw_segments: u32) -> Self {
        let mss = mss.max(1);
        Cubic {
            cwnd_bytes: initial_window_bytes(mss, iw_segments),
            ssthresh_bytes: CWND_MAX_BYTES,
            w_max_bytes: 0,
            w_est_bytes: 0,
            w_est_fraction: 0,
            tag_room: TagRoom::Here,
            mss,
            origin_ms: 0,
            acked_at_ms: 0,
            prior_cwnd_bytes: 0,
        }
    }

    fn mss_bytes(&self) -> u32 {
        u32::from(self.mss)
    }

    #[inline]
    pub(super) fn on_ack(&mut self, ack: &Ack, now_us: u64) {
        if !ack.validates(self.cwnd_bytes) {
            return self.leave_out_time(now_us);
        }
        let now_ms = (now_us / 1000) as u32;
        self.acked_at_ms = now_ms;
        if self.cwnd_bytes < self.ssthresh_bytes {
            self.cwnd_bytes = slow_start(self.cwnd_bytes, self.ssthresh_bytes, ack.acked_bytes);
        } else {
            self.avoid_congestion(ack, now_ms);
        }
    }

    /// An acknowledgement came while the window was not the limit: the time since the one before
    /// does not count (RFC 9438 section 5.8).
    #[inline]
    pub(super) fn leave_out_time(&mut self, now_us: u64) {
        let now_ms = (now_us / 1000) as u32;
        let since_last_ms = now_ms.wrapping_sub(self.acked_at_ms);
        self.acked_at_ms = now_ms;
        self.origin_ms = self.origin_ms.wrapping_add(since_last_ms);
    }

    fn avoid_congestion(&mut self, ack: &Ack, now_ms: u32) {
        if self.w_est_bytes == 0 {
            self.begin_epoch(now_ms);
        }
        self.grow_w_est(ack.acked_bytes);
        let cwnd_bytes = self.cwnd_bytes;
        // Section 4.3: in the Reno-friendly region the window is Reno's.
        let grown_bytes = if self.w_cubic_bytes(now_ms) < self.w_est_bytes {
            self.w_est_bytes.max(cwnd_bytes)
        } else {
            // Sections 4.2, 4.4, 4.5: approach the value that the curve has one round trip later,
            // by at most half a window per round trip.
            let later_ms = now_ms.wrapping_add(ack.srtt_us / 1000);
            let target_bytes =
                self.w_cubic_bytes(later_ms).clamp(cwnd_bytes, cwnd_bytes + cwnd_bytes / 2);
            let gap_bytes = u64::from(target_bytes - cwnd_bytes);
            let acked_bytes = u64::from(ack.acked_bytes.min(cwnd_bytes));
            cwnd_bytes + (gap_bytes * acked_bytes / u64::from(cwnd_bytes)) as u32
        };
        self.cwnd_bytes = grown_bytes.min(CWND_MAX_BYTES);
    }

    /// Places the curve so that it passes through the current window now. After a reduction this
    /// gives RFC 9438's K; after an undo the window continues where it was on the curve (section
    /// 4.9).
    fn begin_epoch(&mut self, now_ms: u32) {
        // Here the threshold is equal to the window, unless `leave_epoch` interrupted an epoch.
        self.w_est_bytes = self.ssthresh_bytes;
        self.w_est_fraction = 0;
        if self.w_max_bytes == 0 {
            // Slow start ended without a reduction, or followed a timeout: K = 0 (section 4.8).
            self.w_max_bytes = self.cwnd_bytes;
        }
        let gap_bytes = u64::from(self.w_max_bytes.abs_diff(self.cwnd_bytes));
        let k_ms = cube_root(gap_bytes * CURVE_DIVISOR / u64::from(self.mss_bytes()));
        self.origin_ms = if self.cwnd_bytes <= self.w_max_bytes {
            now_ms.wrapping_add(k_ms)
        } else {
            now_ms.wrapping_sub(k_ms)
        };
    }

    /// W_cubic at `at_ms` (RFC 9438 equation 1).
    fn w_cubic_bytes(&self, at_ms: u32) -> u32 {
        let past_ms = at_ms.wrapping_sub(self.origin_ms) as i32;
        let d_ms = u64::from(past_ms.unsigned_abs().min(CURVE_MS_MAX));
        let cube = d_ms * d_ms * d_ms;
        let mss_bytes = u64::from(self.mss_bytes());
        let offset_bytes =
            cube / CURVE_DIVISOR * mss_bytes + cube % CURVE_DIVISOR * mss_bytes / CURVE_DIVISOR;
        let w_max_bytes = u64::from(self.w_max_bytes);
        if past_ms < 0 {
            w_max_bytes.saturating_sub(offset_bytes) as u32
        } else {
            (w_max_bytes + offset_bytes).min(u64::from(CWND_MAX_BYTES)) as u32
        }
    }

    /// W_est grows by alpha segments per window of acknowledged bytes (RFC 9438 equation 4), and,
    /// once it is back at the window of the last reduction, as Reno's does.
    fn grow_w_est(&mut self, acked_bytes: u32) {
        let alpha = if self.w_est_bytes < self.prior_cwnd_bytes { ALPHA } else { (1, 1) };
        let acked_bytes = u64::from(acked_bytes.min(self.cwnd_bytes));
        // At most 2^30 * 2^16, so that the fraction's bits still fit.
        let product = acked_bytes * u64::from(self.mss_bytes()) * alpha.0 / alpha.1;
        let step = (product << 8) / u64::from(self.cwnd_bytes);
        let w_est = (u64::from(self.w_est_bytes) << 8) + u64::from(self.w_est_fraction) + step;
        self.w_est_bytes = (w_est >> 8).min(u64::from(CWND_MAX_BYTES)) as u32;
        self.w_est_fraction = w_est as u8;
    }

    /// Ends an epoch so that it can be continued. In congestion avoidance the threshold needs only
    /// to be below the window, so it can hold W_est.
    fn leave_epoch(&mut self) {
        if self.w_est_bytes != 0 {
            self.ssthresh_bytes = self.w_est_bytes.min(self.cwnd_bytes);
            self.w_est_bytes = 0;
        }
    }

    fn remember(&mut self) {
        self.leave_epoch();
        self.prior_cwnd_bytes = self.cwnd_bytes;
    }

    pub(super) fn on_congestion(&mut self) {
        self.remember();
        // Section 4.7, fast convergence: a flow that was reduced before it was back at W_max leaves
        // bandwidth to newcomers.
        self.w_max_bytes = if self.cwnd_bytes < self.w_max_bytes {
            let (numerator, denominator) = BETA;
            (u64::from(self.cwnd_bytes) * (denominator + numerator) / (2 * denominator)) as u32
        } else {
            self.cwnd_bytes
        };
        self.ssthresh_bytes = self.reduced_bytes();
        self.cwnd_bytes = self.ssthresh_bytes;
    }

    fn reduced_bytes(&self) -> u32 {
        reduced_bytes(self.cwnd_bytes, self.cwnd_bytes, BETA, self.mss_bytes())
    }

    pub(super) fn on_ecn(&mut self) {
        self.on_congestion();
    }

    pub(super) fn on_rto(&mut self, first: bool) {
        if first {
            self.remember();
            self.ssthresh_bytes = self.reduced_bytes();
        }
        self.cwnd_bytes = self.mss_bytes();
        self.w_est_bytes = 0;
        self.w_max_bytes = 0;
    }

    pub(super) fn undo(&mut self, before: &Cubic) {
        let mut before = *before;
        before.leave_epoch();
        self.cwnd_bytes = self.cwnd_bytes.max(before.cwnd_bytes);
        self.ssthresh_bytes = before.ssthresh_bytes;
        self.w_max_bytes = before.w_max_bytes;
        self.prior_cwnd_bytes = before.prior_cwnd_bytes;
        self.w_est_bytes = 0;
    }

    /// The window before the last reduction is the larger one of this and another time's.
    pub(super) fn take_larger_w_max(&mut self, other: &Cubic) {
        self.w_max_bytes = self.w_max_bytes.max(other.w_max_bytes);
        self.w_est_bytes = 0;
    }

    pub(super) fn on_idle_restart(&mut self, cwnd_bytes: u32, threshold_bytes: u32) {
        self.cwnd_bytes = cwnd_bytes;
        self.ssthresh_bytes = threshold_bytes;
        self.w_est_bytes = 0;
    }

    pub(super) fn set_mss(&mut self, mss: u16) {
        self.mss = mss.max(1);
        self.cwnd_bytes = self.cwnd_bytes.max(self.mss_bytes());
        // The steepness of the curve is in segments: place the curve anew.
        self.leave_epoch();
    }
}

/// Largest r with r^3 <= x, by Newton's method from above.
fn cube_root(x: u64) -> u32 {
    if x == 0 {
        return 0;
    }
    // 2^ceil(bits / 3) is not below the root, and Newton's iteration decreases to it monotonically.
    let bits = 64 - x.leading_zeros();
    let mut root = 1u64 << bits.div_ceil(3);
    loop {
        let next = (2 * root + x / (root * root)) / 3;
        if next >= root {
            return root as u32;
        }
        root = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cube_root_is_exact_at_cubes_and_their_neighbours() {
        for root in (1..2_642_245u64).step_by(997).chain([1, 2, 3, 2_642_245]) {
            let cube = root * root * root;
            assert_eq!(u64::from(cube_root(cube)), root);
            assert_eq!(u64::from(cube_root(cube - 1)), root - 1);
            assert_eq!(u64::from(cube_root(cube + 1)), root, "{root}");
        }
        assert_eq!(cube_root(u64::MAX), 2_642_245);
    }

    #[test]
    fn cube_root_agrees_with_floating_point() {
        let mut x = 1u64;
        while x < 1 << 62 {
            let float = (x as f64).cbrt();
            assert!((f64::from(cube_root(x)) - float).abs() <= 1.0, "{x}");
            x += x / 7 + 1;
        }
    }
}
