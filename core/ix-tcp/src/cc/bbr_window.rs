//! The window that BBR has set last. The model itself ([`super::bbr`]) is with the state of loss
//! recovery, which other connections rarely have: it sees every acknowledgement and every loss.
use super::{CWND_MAX_BYTES, initial_window_bytes};

/// BBR has no threshold. It is not [`CWND_MAX_BYTES`], which would mean HyStart++'s slow start.
const NO_THRESHOLD_BYTES: u32 = CWND_MAX_BYTES - 1;

/// The congestion window of BBR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BbrWindow {
    pub(super) cwnd_bytes: u32,
    pub(super) ssthresh_bytes: u32,
    pub(super) mss: u16,
}

/// The model does all of this.
impl BbrWindow {
    pub(super) fn new(mss: u16, iw_segments: u32) -> Self {
        let mss = mss.max(1);
        let cwnd_bytes = initial_window_bytes(mss, iw_segments);
        BbrWindow { cwnd_bytes, ssthresh_bytes: NO_THRESHOLD_BYTES, mss }
    }

    pub(super) fn on_congestion(&mut self, _flight_bytes: u32) {}

    pub(super) fn on_rto(&mut self, _first: bool, _flight_bytes: u32) {}

    pub(super) fn on_idle_restart(&mut self, _cwnd_bytes: u32, _threshold_bytes: u32) {}

    pub(super) fn set_mss(&mut self, mss: u16) {
        self.mss = mss.max(1);
        self.cwnd_bytes = self.cwnd_bytes.max(self.mss.into());
        self.ssthresh_bytes = NO_THRESHOLD_BYTES;
    }
}
