//! Parameters of all connections of a dataplane; read-only while it runs.

pub use crate::cc::Kind as CongestionControl;
pub use crate::ecn::EcnMode;

/// Smallest MSS that we believe, from a peer or from the path. Smaller ones only serve to make us
/// send many tiny packets (CVE-2019-11479).
pub const MSS_MIN: u16 = 64;
/// Largest MSS: transmit records hold the length of a segment, with SYN or FIN, in 16 bits.
pub const MSS_MAX: u16 = 65_000;
/// What a peer takes that sends no MSS option (RFC 9293 section 3.7.1, IPv4).
pub const MSS_DEFAULT: u16 = 536;
/// Bytes of IPv4 and TCP header without options: MTU minus this is the MSS.
pub const HEADER_BYTES: u16 = 40;

/// Parameters of TCP. Times are microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Largest payload in one packet: MTU - 40.
    pub mss: u16,
    /// Bytes that a flow may have received and not given back by `recv_done`.
    pub rcv_buf_bytes: u32,
    /// Buffers that a flow may hold, received and not given back; less than 65,536.
    pub rcv_buffers_max: u32,
    /// Bytes that a flow may have accepted to send and not seen acknowledged.
    pub snd_buf_bytes: u32,
    /// Lower bound of the retransmission timeout. RFC 6298 says 1 s; a data centre has
    /// round trips of microseconds, and delayed ACKs are allowed for apart from it.
    pub min_rto_us: u32,
    /// Upper bound of the retransmission timeout, backoff included (RFC 6298 2.5: >= 60 s).
    pub max_rto_us: u32,
    /// Retransmission timeout before the first measurement (RFC 6298 2.1).
    pub initial_rto_us: u32,
    /// A timeout that was doubled is longer by a random part of it, up to so many percent (also
    /// beyond `max_rto_us`), so that connections which lost together do not stay in step. 0: exact.
    pub rto_jitter_percent: u8,
    /// Lower bound of the tail loss probe's timeout.
    pub min_pto_us: u32,
    /// Added to the retransmission timeout while less than two full-sized segments are outstanding,
    /// because the peer may then delay its ACK (Linux: 40 ms and more).
    pub delayed_ack_allowance_us: u32,
    /// Added to the probe timeout then, for the same reason (RACK.max_ack_delay of RFC 8985
    /// section 7.2).
    pub max_ack_delay_us: u32,
    /// How long we delay an ACK that found no data to ride on (RFC 9293 3.8.6.3: < 0.5 s).
    pub delack_us: u32,
    /// Longest such delay, on a connection where data of our own followed soon after a shorter one.
    pub delack_max_us: u32,
    /// Acknowledgements sent at once at the start of a connection, so that the peer's slow start is
    /// not held up by our delays.
    pub quick_acks: u8,
    /// Longest stretch of full-sized segments without an ACK, however long the batch.
    pub max_stretch_segments: u8,
    /// TIME-WAIT (2 MSL).
    pub time_wait_us: u32,
    /// FIN-WAIT-2 without an application.
    pub fin_wait2_us: u32,
    /// Idle time before the first keepalive probe, seconds; 0: off (RFC 9293 3.8.4: default off).
    pub keepalive_idle_s: u16,
    /// Between keepalive probes.
    pub keepalive_interval_us: u32,
    /// Unanswered keepalive probes that end the connection.
    pub keepalive_probes: u8,
    /// Retransmissions of a SYN.
    pub syn_retries: u8,
    /// Retransmissions of a SYN-ACK.
    pub syn_ack_retries: u8,
    /// How long retransmissions or probes may go unanswered (R2 of RFC 9293 3.8.3: >= 100 s).
    pub r2_us: u32,
    /// Offer and accept selective acknowledgements.
    pub sack: bool,
    /// Offer and accept timestamps.
    pub timestamps: bool,
    /// Offer and accept window scaling.
    pub window_scaling: bool,
    /// Smallest shift that we offer, though the buffer needs less: room to grow for a buffer that
    /// changes, or the same windows on the wire as another stack's.
    pub window_shift_min: u8,
    /// Congestion control.
    pub congestion: CongestionControl,
    /// Explicit congestion notification (RFC 3168, RFC 9768). DCTCP asks for it unless it is off.
    /// Accurate ECN is not the default: it is younger than the hosts and boxes that it meets.
    pub ecn: EcnMode,
    /// Search for the path's MTU (RFC 4821) after long segments went unanswered or a router asked
    /// for shorter ones.
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
            rcv_buffers_max: 384,
            snd_buf_bytes: 1 << 20,
            min_rto_us: 5_000,
            max_rto_us: 60_000_000,
            initial_rto_us: 1_000_000,
            rto_jitter_percent: 25,
            min_pto_us: 2_000,
            delayed_ack_allowance_us: 45_000,
            max_ack_delay_us: 45_000,
            delack_us: 1_000,
            delack_max_us: 8_000,
            quick_acks: 16,
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
    /// Shift of our window: the smallest with which the whole receive buffer can be offered
    /// (RFC 7323 section 2.3: at most 14).
    pub fn window_shift(&self) -> u8 {
        let bits = 32 - self.rcv_buf_bytes.leading_zeros() as u8;
        bits.saturating_sub(16).max(self.window_shift_min).min(14)
    }
}
