//! How much of the congestion window is used.
//!
//! An acknowledgement says little of that: when it arrives, what it acknowledges is no longer in
//! flight, and an application that had to wait for it may have nothing more to send. So what counts
//! is the most that was in flight since a window of data ago, and whether the window has held
//! anything back since then (RFC 7661 section 4.2, Linux's `tcp_cwnd_validate`). A window that is
//! not used does not grow, and therefore CUBIC may reduce it as it is, and not what happens to be
//! in flight when a loss is found (RFC 9438 section 4.6).
use crate::output::RxBuf;
use crate::records::WindowUse;
use crate::tcb::{Flags, Tcb};

impl<B: RxBuf> Tcb<B> {
    /// To be called when nothing more can be sent now. `is_limited`: because of the window.
    #[inline(never)]
    pub(crate) fn note_window_use(&mut self, is_limited: bool) {
        let flight_bytes = self.flight_bytes();
        let (snd_una, snd_nxt) = (self.snd_una, self.snd_nxt);
        let was_limited = self.flags.has(Flags::CWND_LIMITED);
        if let Some(used) = self.records.window_use_mut() {
            let is_over = snd_una.ge(used.until) || used.until.gt(snd_nxt);
            let is_more = !was_limited && flight_bytes > used.most_bytes;
            if !(is_over || is_limited || is_more) {
                return;
            }
            *used = WindowUse { until: snd_nxt, most_bytes: flight_bytes };
        }
        if is_limited {
            self.flags.set(Flags::CWND_LIMITED);
        } else {
            self.flags.clear(Flags::CWND_LIMITED);
        }
    }

    /// Most bytes that were in flight since a window of data ago; 0: unknown.
    pub(crate) fn most_in_flight_bytes(&self) -> u32 {
        self.records.window_use().map_or(0, |used| used.most_bytes)
    }
}
