//! How large a receive buffer must be: dynamic right-sizing, as Linux' `tcp_rcv_space_adjust`.
//!
//! Once in a round trip the buffer should be twice as large as what the application has taken in
//! that round trip: enough for a peer whose congestion window doubles, and none for an application
//! that does not read.
use ix_wire::Seq;

/// The measurement of one round trip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RightSize {
    /// The application has set the size itself.
    pub is_fixed: bool,
    /// A measurement has begun.
    has_begun: bool,
    /// Where in the stream the application was when the present round trip began.
    taken: Seq,
    /// When that was, the lower bits of µs.
    began_us: u32,
    /// How much it took in the round trip before.
    taken_before: u32,
    /// Round-trip time; 0: unknown.
    rtt_us: u32,
}

impl RightSize {
    /// A sample of the round-trip time. As on Linux it becomes shorter at once and longer slowly,
    /// because a peer that had nothing to send looks like a long path.
    pub fn sample(&mut self, sample_us: u32) {
        if self.rtt_us == 0 || sample_us < self.rtt_us {
            self.rtt_us = sample_us;
        } else {
            self.rtt_us += (sample_us - self.rtt_us) / 8;
        }
    }

    /// The application has come to `taken` in the stream. Once in a round trip returns how large
    /// the buffer should be, apart from spare room.
    pub fn measure(&mut self, taken: Seq, now_us: u32) -> Option<u32> {
        let since_us = now_us.wrapping_sub(self.began_us);
        if self.has_begun && (self.rtt_us == 0 || since_us < self.rtt_us) {
            return None;
        }
        let first = !core::mem::replace(&mut self.has_begun, true);
        let bytes = if first { 0 } else { (taken - self.taken).max(0) as u32 };
        // While the peer's window doubles it is twice as large again before the next measurement.
        let doubles = bytes / 3 >= self.taken_before / 2;
        (self.taken, self.began_us, self.taken_before) = (taken, now_us, bytes);
        Some(bytes.saturating_mul(if doubles { 4 } else { 2 }))
    }
}
