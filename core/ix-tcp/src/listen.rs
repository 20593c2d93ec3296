//! Segments that belong to no connection: how they are refused, and what a listener does with a
//! SYN.
use crate::accurate;
use crate::config::{Config, MSS_MAX, MSS_MIN, mss_default_of};
use crate::ecn::{self, EcnMode, NOT_ECT};
use crate::output::SegmentOut;
use ix_wire::{IpAddr, Seq, TcpFlags, TcpHeader, TcpOptions};

/// What a peer offered in its SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerOptions {
    /// Largest payload that it accepts (RFC 9293 section 3.7.1: without the option 536,
    /// over IPv6 1220).
    pub mss: u16,
    /// Shift of its windows, if it offers scaling.
    pub window_scale: Option<u8>,
    /// It accepts selective acknowledgements.
    pub sack_permitted: bool,
    /// It sends timestamps.
    pub timestamps: bool,
    /// It asks for ECN, or (SYN-ACK) grants it.
    pub ecn: bool,
    /// It asks for accurate ECN (RFC 9768), or (SYN-ACK) grants it.
    pub accurate_ecn: bool,
}

impl PeerOptions {
    /// Reads them from a SYN or SYN-ACK of `peer`.
    pub fn of_syn(syn: &TcpHeader, peer: IpAddr) -> PeerOptions {
        let answers = syn.flags.contains(TcpFlags::ACK);
        PeerOptions {
            mss: syn.options.mss.unwrap_or(mss_default_of(peer)).clamp(MSS_MIN, MSS_MAX),
            window_scale: syn.options.window_scale.map(|shift| shift.min(14)),
            sack_permitted: syn.options.sack_permitted,
            timestamps: syn.options.timestamp.is_some(),
            ecn: if answers { ecn::grants(syn.flags) } else { ecn::asks(syn.flags) },
            accurate_ecn: match answers {
                true => accurate::grants(syn.flags),
                false => accurate::asks(syn.flags),
            },
        }
    }

    /// The options that the connection uses: those that both sides want.
    pub fn agreed(self, cfg: &Config) -> PeerOptions {
        PeerOptions {
            mss: self.mss.min(cfg.mss).clamp(MSS_MIN, MSS_MAX),
            window_scale: self.window_scale.filter(|_| cfg.window_scaling),
            sack_permitted: self.sack_permitted && cfg.sack,
            timestamps: self.timestamps && cfg.timestamps,
            ecn: self.ecn && cfg.ecn != EcnMode::Off,
            accurate_ecn: self.accurate_ecn && cfg.ecn.is_accurate(),
        }
    }
}

/// The reset for a segment without a connection (RFC 9293 section 3.10.7.1); `None` if the segment
/// is itself a reset. `payload_len`: bytes after the header.
pub fn reset_for(hdr: &TcpHeader, payload_len: u32) -> Option<SegmentOut> {
    if hdr.flags.contains(TcpFlags::RST) {
        return None;
    }
    let (seq, ack, flags) = if hdr.flags.contains(TcpFlags::ACK) {
        (hdr.ack, Seq(0), TcpFlags::RST)
    } else {
        let control = |flag| u32::from(hdr.flags.contains(flag));
        let seg_len = payload_len + control(TcpFlags::SYN) + control(TcpFlags::FIN);
        (Seq(0), hdr.seq + seg_len, TcpFlags::RST | TcpFlags::ACK)
    };
    Some(control_segment(seq, ack, flags, 0, TcpOptions::NONE))
}

/// The stateless SYN-ACK of a SYN cookie to `peer`. `tsval` already holds the cookie's low bits.
pub fn cookie_syn_ack(
    cfg: &Config,
    peer: IpAddr,
    syn: &TcpHeader,
    cookie: Seq,
    tsval: u32,
) -> SegmentOut {
    let agreed = PeerOptions::of_syn(syn, peer).agreed(cfg);
    // Window scale and SACK of the peer return only in the low bits of our echoed timestamp:
    // without timestamps they must not be offered.
    let timestamp =
        syn.options.timestamp.filter(|_| agreed.timestamps).map(|(val, _)| (tsval, val));
    let options = TcpOptions {
        mss: Some(cfg.mss_to(peer)),
        window_scale: agreed
            .window_scale
            .filter(|_| timestamp.is_some())
            .map(|_| cfg.window_shift()),
        sack_permitted: agreed.sack_permitted && timestamp.is_some(),
        timestamp,
        ..TcpOptions::NONE
    };
    let window = cfg.cookie_window();
    let mut flags = TcpFlags::SYN | TcpFlags::ACK;
    if agreed.ecn && timestamp.is_some() {
        flags |= TcpFlags::ECE;
    }
    control_segment(cookie, syn.seq + 1, flags, window, options)
}

fn control_segment(
    seq: Seq,
    ack: Seq,
    flags: TcpFlags,
    window: u16,
    options: TcpOptions,
) -> SegmentOut {
    let (payload_offset, payload_len, retransmission) = (0, 0, false);
    let ecn = NOT_ECT;
    SegmentOut {
        seq,
        ack,
        flags,
        window,
        ecn,
        options,
        payload_offset,
        payload_len,
        retransmission,
    }
}

/// What a listener does with a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynVerdict {
    /// Make a connection in SYN-RECEIVED ([`crate::Tcb::accept`]).
    Accept,
    /// Reply with a SYN cookie and keep no state (RFC 4987 section 3.6).
    Cookie,
    /// Drop it: the application does not accept fast enough. The peer will send it again.
    Drop,
}

/// The bounded backlog of one listener on one elastic thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    backlog: u32,
    half_open_max: u32,
    half_open: u32,
    knocking: u32,
}

impl Listener {
    /// A backlog of at most `backlog` established connections that the application has not
    /// accepted, and of `half_open_max` unfinished handshakes before SYN cookies are used.
    pub fn new(backlog: u32, half_open_max: u32) -> Listener {
        Listener { backlog: backlog.max(1), half_open_max, half_open: 0, knocking: 0 }
    }

    /// Changes the limits. What waits beyond them stays.
    pub fn set_limits(&mut self, backlog: u32, half_open_max: u32) {
        (self.backlog, self.half_open_max) = (backlog.max(1), half_open_max);
    }

    /// Whether no more connections may wait to be accepted. A handshake then does not finish: the
    /// last acknowledgement is ignored, and the SYN-ACK sent again, until there is room.
    pub fn is_full(&self) -> bool {
        self.knocking >= self.backlog
    }

    /// Decides on an arriving SYN. After `Accept` a connection is half open until
    /// [`Self::established`] or [`Self::half_open_died`].
    pub fn on_syn(&mut self) -> SynVerdict {
        if self.is_full() {
            SynVerdict::Drop
        } else if self.half_open >= self.half_open_max {
            SynVerdict::Cookie
        } else {
            self.half_open += 1;
            SynVerdict::Accept
        }
    }

    /// As [`Self::on_syn`], for a peer whose connection in TIME-WAIT gives way. Never a cookie,
    /// because its sequence number cannot be chosen above the old connection's. The new connection
    /// takes no more memory than the old one.
    pub fn on_syn_again(&mut self) -> SynVerdict {
        if self.is_full() {
            return SynVerdict::Drop;
        }
        self.half_open += 1;
        SynVerdict::Accept
    }

    /// Whether a connection from a valid SYN cookie may be made. If so, it counts as waiting until
    /// [`Self::accepted`].
    pub fn on_cookie(&mut self) -> bool {
        let room = !self.is_full();
        self.knocking += u32::from(room);
        room
    }

    /// A half-open connection finished its handshake and now waits to be accepted.
    pub fn established(&mut self) {
        self.half_open_died();
        self.knocking += 1;
    }

    /// A half-open connection ended.
    pub fn half_open_died(&mut self) {
        debug_assert!(self.half_open > 0, "half-open connections miscounted");
        self.half_open = self.half_open.saturating_sub(1);
    }

    /// A waiting connection was accepted or rejected, or ended.
    pub fn accepted(&mut self) {
        debug_assert!(self.knocking > 0, "waiting connections miscounted");
        self.knocking = self.knocking.saturating_sub(1);
    }

    /// At most `count` waiting connections wait no more.
    pub fn free(&mut self, count: u32) {
        self.knocking = self.knocking.saturating_sub(count);
    }

    /// Counts a half-open connection that comes from another thread's listener, even beyond the
    /// limits.
    pub fn half_open_came(&mut self) {
        self.half_open += 1;
    }

    /// Counts a waiting connection that comes from another thread's listener.
    pub fn knocking_came(&mut self) {
        self.knocking += 1;
    }

    /// Number of unfinished handshakes.
    pub fn half_open(&self) -> u32 {
        self.half_open
    }

    /// Number of connections that wait to be accepted.
    pub fn knocking(&self) -> u32 {
        self.knocking
    }

    /// True if SYNs get cookies now.
    pub fn uses_cookies(&self) -> bool {
        self.half_open >= self.half_open_max
    }
}
