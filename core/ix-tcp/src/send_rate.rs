//! The rate at which a connection sends, and what waits for its time ([`crate::pace`]).
use crate::output::RxBuf;
use crate::pace::{AVOIDANCE_PERCENT, BURST_SEGMENTS, RTT_MIN_US, Rate, SLOW_START_PERCENT};
use crate::tcb::{LossTimer, Tcb};

impl<B: RxBuf> Tcb<B> {
    /// The rate at which the connection sends; `None`: as fast as its window allows.
    pub(crate) fn rate(&self) -> Option<Rate> {
        let own = match self.loss().and_then(|loss| loss.bbr.as_deref()) {
            Some(bbr) => {
                Some(Rate { bytes_per_s: bbr.pacing_rate(), burst_bytes: bbr.send_quantum() })
            }
            None => self.rate_of_window(),
        };
        let Some(limit) = self.records.pace_limit() else { return own };
        // A millisecond of it, and two segments at least.
        let burst_bytes = ((limit / 1000).min(64 << 10) as u32).max(2 * u32::from(self.mss));
        match own {
            Some(own) if own.bytes_per_s <= limit => Some(own),
            _ => Some(Rate { bytes_per_s: limit, burst_bytes }),
        }
    }

    fn rate_of_window(&self) -> Option<Rate> {
        let (cwnd_bytes, srtt_us) = (self.cc.cwnd_bytes(), self.rtt.srtt_us());
        let burst_bytes = BURST_SEGMENTS * u32::from(self.mss);
        if cwnd_bytes <= burst_bytes || srtt_us < RTT_MIN_US {
            return None;
        }
        let percent = match cwnd_bytes < self.cc.ssthresh_bytes() / 2 {
            true => SLOW_START_PERCENT,
            false => AVOIDANCE_PERCENT,
        };
        let bytes_per_s = u64::from(cwnd_bytes) * percent * 10_000 / u64::from(srtt_us);
        Some(Rate { bytes_per_s, burst_bytes })
    }

    /// Whether the next segment has to wait for its time. For connections with much in flight.
    #[inline]
    pub(crate) fn is_too_early(&mut self, now_us: u64) -> bool {
        // Bulk data in a data centre: neither BBR, nor a limit, nor a long path.
        let is_free = self.loss().is_none()
            && self.rtt.srtt_us() < RTT_MIN_US
            && self.records.pace_limit().is_none();
        !is_free && self.must_wait(now_us)
    }

    fn must_wait(&mut self, now_us: u64) -> bool {
        let rate = self.rate();
        self.records.pace_mut().is_some_and(|pace| pace.is_too_early(rate, now_us))
    }

    /// Makes the loss timer expire when what was held back may be sent, if it does not before.
    #[cold]
    pub(crate) fn arm_pace(&mut self) {
        let due_us = self.records.pace_mut().map_or(u64::MAX, |pace| pace.due_us);
        if due_us < self.loss_at_us {
            (self.loss_timer, self.loss_at_us) = (LossTimer::Pace, due_us);
        }
    }

    /// Limits the rate at which data is sent, bytes per second (`SO_MAX_PACING_RATE` of sockets);
    /// `None`: only what the congestion control says.
    pub fn set_max_pacing_rate(&mut self, bytes_per_s: Option<u64>) {
        self.records.limit_pace(bytes_per_s);
    }
}
