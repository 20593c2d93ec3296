//! NewReno (RFC 5681, RFC 6582) with appropriate byte counting (RFC 3465).
use super::{Ack, CWND_MAX_BYTES, initial_window_bytes, reduced_bytes, slow_start};

/// Multiplicative decrease factor.
const BETA: (u64, u64) = (1, 2);

/// State of NewReno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewReno {
    pub(super) cwnd_bytes: u32,
    pub(super) ssthresh_bytes: u32,
    /// Bytes acknowledged in congestion avoidance that have not made the window grow yet.
    bytes_acked: u32,
    pub(super) mss: u16,
}

impl NewReno {
    pub(super) fn new(mss: u16, iw_segments: u32) -> Self {
        let mss = mss.max(1);
        NewReno {
            cwnd_bytes: initial_window_bytes(mss, iw_segments),
            ssthresh_bytes: CWND_MAX_BYTES,
            bytes_acked: 0,
            mss,
        }
    }

    fn mss_bytes(&self) -> u32 {
        u32::from(self.mss)
    }

    #[inline]
    pub(super) fn on_ack(&mut self, ack: &Ack) {
        if !ack.validates(self.cwnd_bytes) {
            return;
        }
        if self.cwnd_bytes < self.ssthresh_bytes {
            self.cwnd_bytes = slow_start(self.cwnd_bytes, self.ssthresh_bytes, ack.acked_bytes);
            return;
        }
        // RFC 3465 section 2.1: one segment for each window of acknowledged bytes.
        self.bytes_acked = self.bytes_acked.saturating_add(ack.acked_bytes);
        if self.bytes_acked >= self.cwnd_bytes {
            self.bytes_acked = (self.bytes_acked - self.cwnd_bytes).min(self.cwnd_bytes);
            self.cwnd_bytes = (self.cwnd_bytes + self.mss_bytes()).min(CWND_MAX_BYTES);
        }
    }

    pub(super) fn on_congestion(&mut self, flight_bytes: u32) {
        self.bytes_acked = 0;
        self.ssthresh_bytes = reduced_bytes(flight_bytes, self.cwnd_bytes, BETA, self.mss_bytes());
        self.cwnd_bytes = self.ssthresh_bytes;
    }

    pub(super) fn on_ecn(&mut self, flight_bytes: u32) {
        self.on_congestion(flight_bytes);
    }

    pub(super) fn on_rto(&mut self, first: bool, flight_bytes: u32) {
        if first {
            self.ssthresh_bytes =
                reduced_bytes(flight_bytes, self.cwnd_bytes, BETA, self.mss_bytes());
        }
        self.cwnd_bytes = self.mss_bytes();
        self.bytes_acked = 0;
    }

    pub(super) fn undo(&mut self, before: &NewReno) {
        self.cwnd_bytes = self.cwnd_bytes.max(before.cwnd_bytes);
        self.ssthresh_bytes = before.ssthresh_bytes;
    }

    pub(super) fn on_idle_restart(&mut self, cwnd_bytes: u32, threshold_bytes: u32) {
        self.cwnd_bytes = cwnd_bytes;
        self.ssthresh_bytes = threshold_bytes;
        self.bytes_acked = 0;
    }

    pub(super) fn set_mss(&mut self, mss: u16) {
        self.mss = mss.max(1);
        self.cwnd_bytes = self.cwnd_bytes.max(self.mss_bytes());
    }
}
