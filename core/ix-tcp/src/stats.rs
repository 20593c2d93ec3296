//! Counters of what happens to connections.

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// An event that is counted; [`TcpCounter::name`] is the name in metrics.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum TcpCounter {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl TcpCounter {
            /// Every counter, in the order of its index.
            pub const ALL: &'static [TcpCounter] = &[$(TcpCounter::$variant,)+];
            /// Number of counters.
            pub const COUNT: usize = Self::ALL.len();

            /// Index of this counter in [`TcpStats`].
            #[inline]
            pub const fn index(self) -> usize {
                self as usize
            }

            /// Name in metrics and on the terminal.
            pub const fn name(self) -> &'static str {
                match self {
                    $(TcpCounter::$variant => $name,)+
                }
            }

            /// One sentence for the user: what is counted.
            pub const fn describe(self) -> &'static str {
                match self {
                    $(TcpCounter::$variant => concat!($($doc),+).trim_ascii(),)+
                }
            }
        }
    };
}

counters! {
    /// Segments transmitted again, for any reason.
    Retransmits = "retransmits",
    /// Retransmission timeouts (RFC 6298).
    Rto = "rto",
    /// Tail loss probes (RFC 8985 section 7).
    Tlp = "tlp",
    /// Loss recoveries entered by RACK or duplicate acknowledgements.
    Recoveries = "recoveries",
    /// Window reductions undone because no segment had been lost.
    Undos = "undos",
    /// Duplicate SACKs received (RFC 2883).
    DsackReceived = "dsack_received",
    /// Duplicate SACKs sent.
    DsackSent = "dsack_sent",
    /// Times that a peer dropped data which it had selectively acknowledged.
    SackReneged = "sack_reneged",
    /// Zero-window probes sent.
    WindowProbes = "window_probes",
    /// Keepalive probes sent.
    KeepaliveProbes = "keepalive_probes",
    /// Segments received out of order and queued.
    OutOfOrder = "out_of_order",
    /// Queued segments dropped to make room for earlier ones.
    OutOfOrderDropped = "out_of_order_dropped",
    /// Segments that contained nothing new.
    DuplicateSegments = "duplicate_segments",
    /// Segments outside the receive window.
    OutOfWindow = "out_of_window",
    /// Segments refused because the application holds too many buffers.
    RcvBufferLimit = "rcv_buffer_limit",
    /// Segments with data that arrived after the application had closed the connection.
    DataAfterClose = "data_after_close",
    /// Segments dropped by PAWS (RFC 7323 section 5).
    PawsDrop = "paws_drop",
    /// Segments without the negotiated timestamp (RFC 7323 section 3.2).
    TimestampMissing = "timestamp_missing",
    /// Segments without ACK, or with control bits that are invalid in the state.
    BadFlags = "bad_flags",
    /// Acknowledgements of data that was never sent, or far too old (RFC 5961 section 5).
    BadAck = "bad_ack",
    /// Challenge acknowledgements sent (RFC 5961).
    ChallengeAcks = "challenge_acks",
    /// Challenge acknowledgements suppressed by their rate limit.
    ChallengeAcksLimited = "challenge_acks_limited",
    /// RSTs received that were in the window but not at its left edge.
    InexactRst = "inexact_rst",
    /// Connections reset by the peer.
    ResetsReceived = "resets_received",
    /// RSTs sent by connections.
    ResetsSent = "resets_sent",
    /// Connections given up because retransmissions, probes or keepalives were not acknowledged.
    TimedOut = "timed_out",
    /// ICMP errors ignored because they quoted nothing in flight (RFC 5927).
    IcmpIgnored = "icmp_ignored",
    /// Packets received with the mark "congestion experienced" (RFC 3168).
    CeReceived = "ce_received",
    /// Window reductions because the peer echoed such a mark.
    EcnReductions = "ecn_reductions",
    /// Connections whose path changes or clears ECN fields (RFC 9768). They stop sending
    /// ECN-capable packets.
    EcnMangled = "ecn_mangled",
    /// Path MTU reductions.
    PmtuReduced = "pmtu_reduced",
    /// Reductions of the segment size because long segments were not acknowledged (RFC 4821 section
    /// 7.7).
    PmtuBlackHole = "pmtu_black_hole",
    /// Increases of the segment size because a probe of that length arrived (RFC 4821 section
    /// 7.6.1).
    PmtuRaised = "pmtu_raised",
    /// Segments not sent because no transmit buffer was free.
    TransmitFailed = "transmit_failed",
    /// Connections reset because receive buffers had run out, of which they held some, while their
    /// peers took nothing (RFC 6429).
    ResetForBuffers = "reset_for_buffers",
    /// Connections of processes that have ended, reset because few numbers of processes were free,
    /// while their peers took nothing (RFC 6429).
    ResetForNumbers = "reset_for_numbers",
}

/// One number for each [`TcpCounter`].
#[derive(Clone, Debug)]
pub struct TcpStats([u64; TcpCounter::COUNT]);

impl Default for TcpStats {
    fn default() -> Self {
        TcpStats([0; TcpCounter::COUNT])
    }
}

impl TcpStats {
    /// Adds one.
    #[inline]
    pub fn count(&mut self, counter: TcpCounter) {
        self.0[counter.index()] += 1;
    }

    /// The number so far.
    pub fn get(&self, counter: TcpCounter) -> u64 {
        self.0[counter.index()]
    }

    /// Every counter with its number.
    pub fn iter(&self) -> impl Iterator<Item = (TcpCounter, u64)> + '_ {
        TcpCounter::ALL.iter().map(|&counter| (counter, self.get(counter)))
    }
}
