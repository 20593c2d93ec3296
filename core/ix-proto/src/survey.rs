//! The memory of a survey, which the dataplane fills and the broker reads: a [`Header`], then
//! [`FlowRecord`]s. Both map it; `ix_dataplane::SurveyArea` is that mapping.
use core::sync::atomic::AtomicU64;
use ix_wire::FLOW_GROUPS;

/// A record of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FlowRecord {
    /// Its handle; 0: there is no record here yet.
    pub handle: u64,
    /// The local address, IPv4 mapped.
    pub local: [u8; 16],
    /// The peer's address.
    pub peer: [u8; 16],
    /// The local port.
    pub local_port: u16,
    /// The peer's port.
    pub peer_port: u16,
    /// The elastic thread that owns it.
    pub thread: u16,
    /// Its flow group.
    pub flow_group: u16,
    /// Number of its [`ix_tcp::State`].
    pub state: u32,
    /// The process of the program that it belongs to, by its number (`Sharer`).
    pub process: u32,
    /// What was measured.
    pub figures: FlowFigures,
}

/// What is measured of one connection: in a [`FlowRecord`], and in what tools read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "control", derive(serde::Serialize, serde::Deserialize))]
#[repr(C)]
pub struct FlowFigures {
    /// Payload received in order.
    pub bytes_in: u64,
    /// Payload acknowledged by the peer.
    pub bytes_out: u64,
    /// Time since its first segment.
    pub age_us: u64,
    /// Time since a segment was received or data was sent.
    pub idle_us: u64,
    /// Largest payload of a segment.
    pub mss_bytes: u32,
    /// Congestion window.
    pub cwnd_bytes: u32,
    /// Slow-start threshold; the largest number: there is none yet.
    pub ssthresh_bytes: u32,
    /// Smoothed round-trip time; 0: not measured yet.
    pub srtt_us: u32,
    /// Its variation.
    pub rttvar_us: u32,
    /// Retransmission timeout.
    pub rto_us: u32,
    /// The peer's window.
    pub snd_wnd_bytes: u32,
    /// Our window.
    pub rcv_wnd_bytes: u32,
    /// Bytes sent, and neither acknowledged nor taken for lost.
    pub in_flight_bytes: u32,
    /// Bytes that the application has given and the peer has not acknowledged.
    pub snd_queued_bytes: u32,
    /// Bytes received in order that the application has not given back.
    pub rcv_queued_bytes: u32,
    /// Segments sent again.
    pub retransmits: u32,
}

/// Begins the memory. All zero: nothing was surveyed.
#[repr(C)]
pub struct Header {
    /// Records that were begun, those beyond the end included.
    pub claimed: AtomicU64,
    /// The next slot of each group, or [`DONE`].
    pub progress: [AtomicU64; FLOW_GROUPS],
}

/// Progress of a group that was surveyed.
pub const DONE: u64 = u64::MAX;

/// Bytes of the memory for so many records.
pub const fn bytes_for(records: usize) -> usize {
    size_of::<Header>() + records * size_of::<FlowRecord>()
}

const _: () = assert!(size_of::<Header>().is_multiple_of(align_of::<FlowRecord>()));
const _: () = assert!(size_of::<FlowRecord>().is_multiple_of(8));

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    /// Nothing between the fields, so that no byte of a record is left as it was.
    #[test]
    fn the_memory_has_no_gaps() {
        assert_eq!(offset_of!(FlowRecord, handle), 0, "it says whether the record is there");
        assert_eq!(offset_of!(FlowRecord, local_port), 40);
        assert_eq!(offset_of!(FlowRecord, state), 48);
        assert_eq!(offset_of!(FlowRecord, figures), 56);
        assert_eq!(offset_of!(FlowFigures, mss_bytes), 32);
        assert_eq!(size_of::<FlowRecord>(), 56 + 32 + 12 * 4);
        assert_eq!(bytes_for(0), 8 * (1 + FLOW_GROUPS));
        assert_eq!(bytes_for(3) - bytes_for(2), size_of::<FlowRecord>());
    }
}
