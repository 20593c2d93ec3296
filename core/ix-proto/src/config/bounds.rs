//! What a number of the configuration may be: one place for all code that reads one from the user,
//! and for the dataplane that gets it.
use core::fmt;

/// The values that a number may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The least.
    pub least: u64,
    /// The most.
    pub most: u64,
    /// It may be 0 as well, which switches something off.
    pub or_zero: bool,
}

/// A number beyond its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    /// The number.
    pub number: u64,
    /// Its bounds.
    pub bounds: Bounds,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bounds { least, most, or_zero } = self.bounds;
        let zero = if or_zero { "0, or " } else { "" };
        write!(f, "{} is out of range: {zero}{least} to {most}", self.number)
    }
}

impl std::error::Error for OutOfRange {}

const fn from(least: u64, most: u64) -> Bounds {
    Bounds { least, most, or_zero: false }
}

impl Bounds {
    /// Refuses a number beyond them.
    pub fn check(self, number: u64) -> Result<u64, OutOfRange> {
        let within = (self.least..=self.most).contains(&number) || self.or_zero && number == 0;
        if within { Ok(number) } else { Err(OutOfRange { number, bounds: self }) }
    }
}

/// Prefix length of an IPv4 network.
pub const PREFIX: Bounds = from(0, 32);
/// Prefix length of an IPv6 network.
pub const PREFIX_V6: Bounds = from(0, 128);
/// Elastic threads. Where a packet's origin is a byte, three more values stand for other origins.
pub const THREADS: Bounds = from(1, 253);
/// Batch bound B, packets.
pub const BATCH: Bounds = from(1, 1024);
/// Receive frames, and frames for built packets, of each elastic thread.
pub const FRAMES: Bounds = from(256, 1 << 22);
/// Transmit memory of the application, MB.
pub const ARENA_MB: Bounds = from(2, 1 << 16);
/// Flows of each elastic thread.
pub const FLOWS: Bounds = from(1, 1 << 24);
/// See [`super::Config::orphans_max`].
pub const ORPHANS: Bounds = from(1, 1 << 24);
/// Application timers of each elastic thread.
pub const TIMERS: Bounds = from(1, 1 << 24);
/// Backlog of a listener.
pub const BACKLOG: Bounds = from(1, 1 << 20);
/// Length of a queue, packets.
pub const QUEUE: Bounds = from(0, 1 << 16);
/// Hop limit.
pub const TTL: Bounds = from(1, 255);
/// `use_tempaddr`
pub const USE_TEMPADDR: Bounds = from(0, 2);
/// Time without work before an elastic thread sleeps, µs.
pub const IDLE_SPIN_US: Bounds = from(0, 10_000_000);
/// How long an application may stay away, µs. An idle elastic thread comes back every millisecond;
/// who does not has something to do.
pub const NONRESPONSIVE_US: Bounds = Bounds { least: 1_000, most: 3_600_000_000, or_zero: true };
/// Retransmission timeout of TCP, µs.
pub const MIN_RTO_US: Bounds = from(100, 60_000_000);
/// Delay of an acknowledgement, µs (RFC 9293 section 3.8.6.3: less than 0.5 s).
pub const DELACK_US: Bounds = from(0, 500_000);
/// TIME-WAIT, µs.
pub const TIME_WAIT_US: Bounds = from(0, 240_000_000);
/// Buffers that a flow may hold, received and not returned.
pub const RCV_BUFFERS: Bounds = from(8, 512);
/// Our addresses.
pub const ADDRESSES: Bounds = from(1, 256);
/// Static ARP entries: they reach the dataplane in one message, with the filters.
pub const ARP_ENTRIES: Bounds = from(0, 512);
/// Routes: they reach the dataplane in the same message.
pub const ROUTES: Bounds = from(0, 256);
/// Metric of a route.
pub const METRIC: Bounds = from(0, u32::MAX as u64);
