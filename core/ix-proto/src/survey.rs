//! The memory of a survey, which the dataplane fills and the broker reads: a [`Header`], then
//! [`FlowRecord`]s. Both map it; `ix_dataplane::SurveyArea` is that mapping.
use core::sync::atomic::AtomicU64;
use ix_wire::FLOW_GROUPS;

/// A record of one connection. Times are µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FlowRecord {
    /// Its handle; 0: there is no record here yet.
    pub handle: u64,
    /// The local address, IPv4 mapped.
    pub local: [u8; 16],
    /// The peer's address.
    pub peer: [u8; 16],
    /// Payload received in order, bytes.
    pub bytes_in: u64,
    /// Payload acknowledged by the peer, bytes.
    pub bytes_out: u64,
    /// Time since its first segment.
    pub age_us: u64,
    /// Time since a segment was received or data was sent.
    pub idle_us: u64,
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
    /// Largest payload of a segment.
    pub mss_bytes: u32,
    /// Congestion window.
    pub cwnd_bytes: u32,
    /// Slow-start threshold.
    pub ssthresh_bytes: u32,
    /// Smoothed round-trip time; 0: not measured yet.
    pub srtt_us: u32,
    /// Its variation.
    pub rttvar_us: u32,
    /// Retransmission timeout.
    pub rto_us: u32,
    /// The peer's window.
    pub snd_wnd_bytes: u32,
    /// Ours.
    pub rcv_wnd_bytes: u32,
    /// Sent, and neither acknowledged nor taken for lost.
    pub in_flight_bytes: u32,
    /// Given to send and not acknowledged.
    pub snd_queued_bytes: u32,
    /// Received in order, and with the application.
    pub rcv_queued_bytes: u32,
    /// Segments sent again.
    pub retransmits: u32,
    /// Makes the size a multiple of eight.
    pub reserved: u32,
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
        assert_eq!(offset_of!(FlowRecord, bytes_in), 40);
        assert_eq!(offset_of!(FlowRecord, local_port), 72);
        assert_eq!(offset_of!(FlowRecord, state), 80);
        assert_eq!(size_of::<FlowRecord>(), 80 + 14 * 4);
        assert_eq!(bytes_for(0), 8 * (1 + FLOW_GROUPS));
        assert_eq!(bytes_for(3) - bytes_for(2), size_of::<FlowRecord>());
    }
}
