//! Congestion control: how many bytes may be in flight.
//!
//! Loss *detection* and recovery are elsewhere (RFC 8985, RFC 6582); this module is only told what
//! they found. From [`Control::on_congestion`] to the end of that recovery the caller reports no
//! acknowledgements: the window is reduced at once and does not grow before recovery ends (RFC 6675
//! section 5). It is compared with what is in flight, so it need not be inflated.
pub(crate) mod bbr;
mod bbr_window;
mod cubic;
mod dctcp;
pub(crate) mod hystart;
mod new_reno;

pub use bbr_window::BbrWindow;
pub use cubic::Cubic;
pub use dctcp::Dctcp;
pub use new_reno::NewReno;

/// The congestion control algorithm of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// NewReno (RFC 5681 and RFC 6582).
    NewReno,
    /// DCTCP (RFC 8257). On a connection without ECN, CUBIC is used instead.
    Dctcp,
    /// BBR version 3 (draft-ietf-ccwg-bbr).
    Bbr,
}

impl Kind {
    /// Every algorithm with the name that Linux has for it.
    pub const ALL: [(&str, Kind); 4] = [
        ("cubic", Kind::Cubic),
        ("reno", Kind::NewReno),
        ("dctcp", Kind::Dctcp),
        ("bbr", Kind::Bbr),
    ];

    /// The algorithm of this name.
    pub fn named(name: &str) -> Option<Kind> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

/// Largest window, which a scaled window field can just express (RFC 7323 section 2.3).
pub const CWND_MAX_BYTES: u32 = 1 << 30;

/// What an acknowledgement of new data tells the congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Bytes that this acknowledgement newly covers. After a timeout only those that have just
    /// left the network.
    pub acked_bytes: u32,
    /// Bytes still in flight after it.
    pub in_flight_bytes: u32,
    /// Most bytes that were in flight since a window of data ago; 0: unknown.
    pub most_in_flight_bytes: u32,
    /// The application or the peer's window limited the sender, not the congestion window. Then the
    /// congestion window does not grow (RFC 7661 section 1, RFC 9438 section 5.8).
    pub app_limited: bool,
    /// Smoothed round-trip time.
    pub srtt_us: u32,
    /// Marked bytes that this acknowledgement reports: all that it covers if it echoes a mark (RFC
    /// 3168), or as many as were counted (RFC 9768). DCTCP uses their share. The windows of the
    /// other algorithms do not grow by such an acknowledgement (RFC 3168 section 6.1.2).
    pub marked_bytes: u32,
}

impl Ack {
    /// True if the flight has filled more than half of the window. If half of the window is unused,
    /// its growth means nothing for the path (RFC 7661 section 4.1); so it grows to twice the
    /// flight at most, as Linux's does.
    fn validates(&self, cwnd_bytes: u32) -> bool {
        let flight_bytes = self.in_flight_bytes.saturating_add(self.acked_bytes);
        let flight_bytes = flight_bytes.max(self.most_in_flight_bytes);
        !self.app_limited && self.marked_bytes == 0 && flight_bytes > cwnd_bytes / 2
    }
}

/// Congestion control of one connection: an enum, so that it is stored inline and called without a
/// table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// RFC 9438.
    Cubic(Cubic),
    /// RFC 5681 and RFC 6582.
    NewReno(NewReno),
    /// RFC 8257.
    Dctcp(Dctcp),
    /// draft-ietf-ccwg-bbr.
    Bbr(BbrWindow),
}

macro_rules! each {
    ($self:expr, $control:ident => $call:expr) => {
        match $self {
            Control::Cubic($control) => $call,
            Control::NewReno($control) => $call,
            Control::Dctcp($control) => $call,
            Control::Bbr($control) => $call,
        }
    };
}

impl Control {
    /// The state at the start of a connection.
    pub fn new(kind: Kind, mss: u16, iw_segments: u32) -> Self {
        match kind {
            Kind::Cubic => Control::Cubic(Cubic::new(mss, iw_segments)),
            Kind::NewReno => Control::NewReno(NewReno::new(mss, iw_segments)),
            Kind::Dctcp => Control::Dctcp(Dctcp::new(mss, iw_segments)),
            Kind::Bbr => Control::Bbr(BbrWindow::new(mss, iw_segments)),
        }
    }

    /// The algorithm.
    pub fn kind(&self) -> Kind {
        match self {
            Control::Cubic(_) => Kind::Cubic,
            Control::NewReno(_) => Kind::NewReno,
            Control::Dctcp(_) => Kind::Dctcp,
            Control::Bbr(_) => Kind::Bbr,
        }
    }

    /// The congestion window.
    #[inline]
    pub fn cwnd_bytes(&self) -> u32 {
        each!(self, control => control.cwnd_bytes)
    }

    /// The slow start threshold; [`CWND_MAX_BYTES`] before the first congestion.
    #[inline]
    pub fn ssthresh_bytes(&self) -> u32 {
        each!(self, control => control.ssthresh_bytes)
    }

    /// The threshold as others are told: BBR has none.
    pub fn told_ssthresh_bytes(&self) -> u32 {
        if self.kind() == Kind::Bbr { CWND_MAX_BYTES } else { self.ssthresh_bytes() }
    }

    /// True while the window is below the threshold.
    #[inline]
    pub fn in_slow_start(&self) -> bool {
        self.cwnd_bytes() < self.ssthresh_bytes()
    }

    /// To be called when new data was acknowledged outside of fast recovery.
    #[inline]
    pub fn on_ack(&mut self, ack: &Ack, now_us: u64) {
        match self {
            Control::Cubic(cubic) => cubic.on_ack(ack, now_us),
            Control::NewReno(reno) => reno.on_ack(ack),
            Control::Dctcp(dctcp) => dctcp.on_ack(ack),
            Control::Bbr(_) => {}
        }
    }

    /// [`Self::on_ack`] of CUBIC where at most these bytes were in flight since a window of data
    /// ago, if that is less than half of the window. Otherwise it does nothing and returns false.
    #[inline(always)]
    pub fn on_ack_within_half(&mut self, flight_bytes: u32, now_us: u64) -> bool {
        match self {
            Control::Cubic(cubic) if flight_bytes <= cubic.cwnd_bytes / 2 => {
                cubic.leave_out_time(now_us);
                true
            }
            _ => false,
        }
    }

    /// To be called when fast recovery begins, once for a window of data: reduces the window.
    ///
    /// `flight_bytes` is FlightSize (RFC 5681 section 2): sent and not cumulatively acknowledged.
    /// CUBIC reduces its window instead, which does not grow while it is not used (RFC 9438 section
    /// 4.6). What is in flight when a loss in a short message is found is only the rest of it.
    pub fn on_congestion(&mut self, flight_bytes: u32) {
        match self {
            Control::Cubic(cubic) => cubic.on_congestion(),
            Control::NewReno(reno) => reno.on_congestion(flight_bytes),
            Control::Dctcp(dctcp) => dctcp.on_congestion(flight_bytes),
            Control::Bbr(bbr) => bbr.on_congestion(flight_bytes),
        }
    }

    /// To be called when the peer has echoed a congestion mark, once for a window of data. This
    /// reduction is never undone.
    pub fn on_ecn(&mut self, flight_bytes: u32) {
        match self {
            Control::Cubic(cubic) => cubic.on_ecn(),
            Control::NewReno(reno) => reno.on_ecn(flight_bytes),
            Control::Dctcp(dctcp) => dctcp.on_ecn(),
            Control::Bbr(_) => {}
        }
    }

    /// Ends the first slow start, because it has filled the path (RFC 9406). Congestion avoidance
    /// begins.
    pub fn leave_slow_start(&mut self) {
        each!(self, control => control.ssthresh_bytes = control.cwnd_bytes);
    }

    /// True in the slow start that ends with the first congestion.
    #[inline]
    pub fn in_first_slow_start(&self) -> bool {
        self.ssthresh_bytes() == CWND_MAX_BYTES
    }

    /// Continues with another algorithm and the same window.
    pub fn change(&mut self, kind: Kind, mss: u16) {
        if self.kind() == kind {
            return;
        }
        let (cwnd_bytes, ssthresh_bytes) = (self.cwnd_bytes(), self.ssthresh_bytes());
        *self = Control::new(kind, mss, 1);
        let was_bbr = ssthresh_bytes == CWND_MAX_BYTES - 1;
        each!(self, control => control.cwnd_bytes = cwnd_bytes);
        if kind == Kind::Bbr {
            return;
        }
        // Another algorithm goes on where BBR was: it has found out what the path takes.
        let ssthresh_bytes = if was_bbr { cwnd_bytes } else { ssthresh_bytes };
        each!(self, control => control.ssthresh_bytes = ssthresh_bytes);
    }

    /// The window that BBR's model has computed.
    #[inline]
    pub(crate) fn set_modelled_cwnd(&mut self, bytes: u32) {
        if let Control::Bbr(window) = self {
            window.cwnd_bytes = bytes;
        }
    }

    /// To be called when the retransmission timer has expired. `first`: the timer had not
    /// retransmitted this segment before; later expirations do not change the threshold (RFC 5681
    /// section 3.1).
    pub fn on_rto(&mut self, first: bool, flight_bytes: u32) {
        match self {
            Control::Cubic(cubic) => cubic.on_rto(first),
            Control::NewReno(reno) => reno.on_rto(first, flight_bytes),
            Control::Dctcp(dctcp) => dctcp.on_rto(first, flight_bytes),
            Control::Bbr(bbr) => bbr.on_rto(first, flight_bytes),
        }
    }

    /// Undoes the reductions since the windows were these, because they were a mistake (DSACK,
    /// Eifel). Does nothing if another algorithm had them.
    pub fn undo(&mut self, before: &Control) {
        match (self, before) {
            (Control::Cubic(cubic), Control::Cubic(before)) => cubic.undo(before),
            (Control::NewReno(reno), Control::NewReno(before)) => reno.undo(before),
            (Control::Dctcp(dctcp), Control::Dctcp(before)) => dctcp.undo(before),
            // The model does it.
            _ => {}
        }
    }

    /// Raises the windows to those of another time, where they were larger: a reduction between was
    /// a mistake, and others have followed it.
    pub(crate) fn raise_to(&mut self, other: &Control) {
        if self.kind() != other.kind() || self.kind() == Kind::Bbr {
            return;
        }
        each!(self, control => {
            control.cwnd_bytes = control.cwnd_bytes.max(other.cwnd_bytes());
            control.ssthresh_bytes = control.ssthresh_bytes.max(other.ssthresh_bytes());
        });
        if let (Control::Cubic(cubic), Control::Cubic(other)) = (self, other) {
            cubic.take_larger_w_max(other);
        }
    }

    /// To be called when nothing was sent for so many retransmission timeouts: the window is stale
    /// (RFC 5681 section 4.1). It becomes half as large for each, down to the initial one, and the
    /// threshold remembers three quarters of it, as on Linux.
    pub fn on_idle_restart(&mut self, iw_segments: u32, timeouts: u32) {
        let cwnd_bytes = self.cwnd_bytes();
        let threshold_bytes = self.ssthresh_bytes().max(cwnd_bytes / 4 * 3);
        each!(self, control => {
            let least_bytes = initial_window_bytes(control.mss, iw_segments).min(cwnd_bytes);
            let halved_bytes = cwnd_bytes.checked_shr(timeouts).unwrap_or(0);
            control.on_idle_restart(halved_bytes.max(least_bytes), threshold_bytes);
        });
    }

    /// Changes the segment size (path MTU). The window keeps its bytes, because the path has
    /// carried that many, but is never below one segment.
    pub fn set_mss(&mut self, mss: u16) {
        each!(self, control => control.set_mss(mss))
    }
}

/// Initial window: `iw_segments` segments, limited in proportion to RFC 6928 section 2, which
/// allows at most `max(2 * MSS, 14600)` bytes for 10 segments.
fn initial_window_bytes(mss: u16, iw_segments: u32) -> u32 {
    let mss_bytes = u32::from(mss);
    let segments = iw_segments.clamp(1, CWND_MAX_BYTES >> 16);
    let bound_bytes = (2 * mss_bytes).max(segments * 1460);
    (segments * mss_bytes).min(bound_bytes)
}

/// Threshold after congestion: `flight * numerator / denominator`, at least two segments (RFC 5681
/// equation 4, RFC 9438 section 4.6). Limited transmit may have put a little more than a window in
/// flight, which does not count (RFC 5681 section 3.2).
fn reduced_bytes(flight_bytes: u32, cwnd_bytes: u32, beta: (u64, u64), mss_bytes: u32) -> u32 {
    let base_bytes = u64::from(flight_bytes.min(cwnd_bytes));
    ((base_bytes * beta.0 / beta.1) as u32).max(2 * mss_bytes)
}

/// Slow start with byte counting, up to the threshold. Peers with receive offload acknowledge many
/// segments at once. There is no limit for one acknowledgement, because large windows are paced
/// (RFC 9406 section 4.2, L = infinity), and after a timeout only what has just left the network
/// counts (`Tcb::grow_window`), the reason for RFC 3465's limit there.
fn slow_start(cwnd_bytes: u32, ssthresh_bytes: u32, acked_bytes: u32) -> u32 {
    cwnd_bytes.saturating_add(acked_bytes).min(ssthresh_bytes).min(CWND_MAX_BYTES)
}

#[cfg(test)]
mod tests;
