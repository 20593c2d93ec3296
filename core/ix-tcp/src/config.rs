//! Parameters of all connections of a dataplane, read-only while it runs.
use ix_wire::IpAddr;

pub use crate::cc::Kind as CongestionControl;
pub use crate::ecn::EcnMode;

/// Smallest MSS that is accepted, from a peer or from the path. Smaller ones only serve to make us
/// send many tiny packets (CVE-2019-11479).
pub const MSS_MIN: u16 = 64;
/// Largest MSS: transmit records hold the length of a segment, with SYN or FIN, in 16 bits.
pub const MSS_MAX: u16 = 65_000;
/// MSS of a peer that sends no MSS option (RFC 9293 section 3.7.1, IPv4).
pub const MSS_DEFAULT: u16 = 536;
/// The same over IPv6, whose links all take 1,280 octets.
const MSS_DEFAULT_V6: u16 = 1220;
/// Bytes of IPv4 and TCP header without options: MTU minus this is the MSS.
pub const HEADER_BYTES: u16 = 40;
/// How much longer the header of IPv6 is than that of IPv4.
const V6_BYTES_MORE: u16 = 20;

/// [`HEADER_BYTES`] of packets to an address of either family.
pub(crate) fn header_bytes_to(remote: IpAddr) -> u16 {
    HEADER_BYTES + if remote.is_v6() { V6_BYTES_MORE } else { 0 }
}

/// MSS of a peer that sends no MSS option.
pub(crate) fn mss_default_of(remote: IpAddr) -> u16 {
    if remote.is_v6() { MSS_DEFAULT_V6 } else { MSS_DEFAULT }
}

/// Unit of the size of a receive buffer. The largest one is four megabytes.
pub(crate) const RCV_BUF_UNIT_BYTES: u32 = 64;
/// The largest buffer holds at most this many times as many full segments as the first one.
const FACTOR_MAX: u32 = 8;

/// Bytes of a frame that every device receives into one buffer: the smallest buffer is that of a
/// memif client.
const RCV_BUFFER_BYTES: u32 = 1600;
/// Ethernet, IPv4 and TCP with a timestamp.
const HEADERS_BYTES_USUAL: u32 = 66;

/// Parameters of TCP. Times are in microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Largest payload in one packet over IPv4: MTU - 40.
    pub mss: u16,
    /// Most received bytes that `recv_done` has not returned, of a flow that begins.
    pub rcv_buf_bytes: u32,
    /// The same of a flow whose application takes much in a round trip, while memory is free; at
    /// most four megabytes. Not more than `rcv_buf_bytes`: the size stays as it is.
    pub rcv_buf_max_bytes: u32,
    /// Most received buffers of a flow that were not returned, with a receive buffer of the first
    /// size; less than 65,536.
    pub rcv_buffers_max: u32,
    /// Buffers that a flow may hold now by its share of memory, before its application has shown
    /// that it takes more; at least two. It may change at any time: no window that was offered
    /// becomes smaller.
    pub rcv_share: u32,
    /// Most bytes that were accepted for sending and are not acknowledged, of a flow with a small
    /// congestion window.
    pub snd_buf_bytes: u32,
    /// The same of one with a large one. Not more than `snd_buf_bytes`: the congestion window does
    /// not matter.
    pub snd_buf_max_bytes: u32,
    /// Lower bound of what the retransmission timeout is longer than the round-trip time, and so of
    /// the timeout. RFC 6298 has 1 s for the latter; in a data centre round trips take
    /// microseconds, and delayed ACKs have an allowance of their own. On longer paths it grows (see
    /// `rtt.rs`).
    pub min_rto_us: u32,
    /// Upper bound of the retransmission timeout, backoff included (RFC 6298 2.5: >= 60 s).
    pub max_rto_us: u32,
    /// Retransmission timeout before the first measurement (RFC 6298 2.1).
    pub initial_rto_us: u32,
    /// A timeout that was doubled is made longer by a random part of it, at most this many percent
    /// (also beyond `max_rto_us`), so that connections which lost packets together do not stay in
    /// step. 0: exact.
    pub rto_jitter_percent: u8,
    /// Lower bound of the tail loss probe's timeout.
    pub min_pto_us: u32,
    /// Added to the retransmission timeout while less than two full-sized segments are outstanding,
    /// because the peer may delay its ACK (Linux: 40 ms and more).
    pub delayed_ack_allowance_us: u32,
    /// Added to the probe timeout in the same case, for the same reason (RACK.max_ack_delay of RFC
    /// 8985 section 7.2).
    pub max_ack_delay_us: u32,
    /// How long an ACK waits for data that can carry it (RFC 9293 3.8.6.3: < 0.5 s).
    pub delack_us: u32,
    /// Longest such wait, on a connection where our own data followed soon after a shorter one.
    pub delack_max_us: u32,
    /// Acknowledgements that do not wait at the start of a connection, so that they do not delay
    /// the peer's slow start.
    pub quick_acks: u8,
    /// Most full-sized segments without an ACK, however long the batch is.
    pub max_stretch_segments: u8,
    /// Length of TIME-WAIT (2 MSL).
    pub time_wait_us: u32,
    /// Longest FIN-WAIT-2 after the application has closed.
    pub fin_wait2_us: u32,
    /// Idle time before the first keepalive probe, seconds; 0: off (RFC 9293 3.8.4: default off).
    pub keepalive_idle_s: u16,
    /// Time between keepalive probes.
    pub keepalive_interval_us: u32,
    /// Unanswered keepalive probes that end the connection.
    pub keepalive_probes: u8,
    /// Retransmissions of a SYN.
    pub syn_retries: u8,
    /// Retransmissions of a SYN-ACK.
    pub syn_ack_retries: u8,
    /// How long retransmissions or probes may stay unanswered (R2 of RFC 9293 3.8.3: >= 100 s).
    pub r2_us: u32,
    /// Offer and accept selective acknowledgements.
    pub sack: bool,
    /// Offer and accept timestamps.
    pub timestamps: bool,
    /// Offer and accept window scaling.
    pub window_scaling: bool,
    /// Smallest window shift that is offered, even if the buffer needs less: room to grow for a
    /// buffer that changes, or the same windows on the wire as another stack's.
    pub window_shift_min: u8,
    /// Congestion control algorithm.
    pub congestion: CongestionControl,
    /// Explicit congestion notification (RFC 3168, RFC 9768). DCTCP asks for it unless it is off.
    /// Accurate ECN is not the default, because many hosts and middleboxes are older than it.
    pub ecn: EcnMode,
    /// Search for the path's MTU (RFC 4821) after long segments were not acknowledged or a router
    /// asked for shorter ones.
    pub path_search: bool,
    /// Initial window, segments (RFC 6928).
    pub initial_window_segments: u32,
    /// Nagle's algorithm for new connections.
    pub nagle: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            mss: 1460,
            rcv_buf_bytes: 512 << 10,
            rcv_buf_max_bytes: 4_000_000,
            rcv_buffers_max: 384,
            rcv_share: u32::MAX,
            snd_buf_bytes: 256 << 10,
            snd_buf_max_bytes: 4 << 20,
            min_rto_us: 5_000,
            max_rto_us: 60_000_000,
            initial_rto_us: 1_000_000,
            rto_jitter_percent: 25,
            min_pto_us: 2_000,
            delayed_ack_allowance_us: 45_000,
            max_ack_delay_us: 45_000,
            delack_us: 1_000,
            delack_max_us: 8_000,
            quick_acks: 15,
            max_stretch_segments: 16,
            time_wait_us: 60_000_000,
            fin_wait2_us: 60_000_000,
            keepalive_idle_s: 0,
            keepalive_interval_us: 75_000_000,
            keepalive_probes: 9,
            syn_retries: 6,
            syn_ack_retries: 5,
            r2_us: 120_000_000,
            sack: true,
            timestamps: true,
            window_scaling: true,
            window_shift_min: 0,
            congestion: CongestionControl::Cubic,
            ecn: EcnMode::Accept,
            path_search: true,
            initial_window_segments: 10,
            nagle: false,
        }
    }
}

impl Config {
    /// Largest payload in one packet to an address.
    pub fn mss_to(&self, remote: IpAddr) -> u16 {
        self.mss + HEADER_BYTES - header_bytes_to(remote)
    }

    /// Bytes of each receive buffer that segments of full size fill, on average.
    #[inline]
    pub fn rcv_buffer_bytes(&self) -> u32 {
        match self.fills_several() {
            false => self.mss.into(),
            true => self.of_long_segments(),
        }
    }

    /// Whether a segment of full size fills several receive buffers.
    #[inline]
    fn fills_several(&self) -> bool {
        u32::from(self.mss) + HEADERS_BYTES_USUAL > RCV_BUFFER_BYTES
    }

    /// The step in which a window moves: a segment of full size, but no more than half of what the
    /// buffers of a flow hold, or a small window would never open again.
    #[inline]
    pub(crate) fn rcv_segment_bytes(&self) -> u32 {
        match self.fills_several() {
            false => self.mss.into(),
            true => self.of_long_step(),
        }
    }

    #[inline(never)]
    fn of_long_step(&self) -> u32 {
        let half = self.rcv_buffers_first().saturating_mul(self.of_long_segments()) / 2;
        half.clamp(1, self.mss.into())
    }

    /// The same where a segment fills several.
    #[inline(never)]
    fn of_long_segments(&self) -> u32 {
        let mss = u32::from(self.mss);
        mss / (mss + HEADERS_BYTES_USUAL).div_ceil(RCV_BUFFER_BYTES)
    }

    /// Shift of our window: the smallest that can offer the whole receive buffer when it is largest
    /// (RFC 7323 section 2.3: at most 14).
    pub fn window_shift(&self) -> u8 {
        let bits = 32 - self.rcv_buf_bytes.max(self.rcv_buf_most()).leading_zeros() as u8;
        bits.saturating_sub(16).max(self.window_shift_min).min(14)
    }

    /// Buffers that a flow may hold as it begins.
    #[inline]
    pub(crate) fn rcv_buffers_first(&self) -> u32 {
        self.rcv_buffers_max.min(self.rcv_share)
    }

    /// The size of the receive buffer with which a flow begins.
    #[inline]
    pub(crate) fn rcv_buf_first(&self) -> u32 {
        self.rcv_buf_bytes.min(self.rcv_share.saturating_mul(self.rcv_buffer_bytes()))
    }

    /// The window of a SYN-ACK with a cookie. Nothing is remembered of it, so it is always the
    /// same.
    pub(crate) fn cookie_window(&self) -> u16 {
        let by_buffers = self.rcv_buffers_max.saturating_mul(self.rcv_buffer_bytes());
        self.rcv_buf_bytes.min(by_buffers).min(u32::from(u16::MAX)) as u16
    }

    /// The largest receive buffer of a connection.
    pub(crate) fn rcv_buf_most(&self) -> u32 {
        let by_buffers = self.rcv_buffers_max.saturating_mul(FACTOR_MAX * self.rcv_buffer_bytes());
        let by_units = u32::from(u16::MAX) * RCV_BUF_UNIT_BYTES;
        self.rcv_buf_max_bytes.min(by_buffers).min(by_units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_receive_buffer_counts() {
        let of_mss = |mss| Config { mss, ..Config::default() }.rcv_buffer_bytes();
        assert_eq!([1460, 1534].map(of_mss), [1460, 1534], "one buffer each");
        assert_eq!([1535, 1600, 1726].map(of_mss), [767, 800, 863], "two");
    }
}
