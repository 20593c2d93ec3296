//! The verdict on a received packet: the part that processes it returns a verdict, and the cycle
//! counts and captures the packet.
use crate::observe::metrics::{LocalDrop, ThreadMetrics};
use ix_wire::DropReason;

/// `Err`: the packet, or its payload, was dropped, and why.
pub(crate) type Verdict = Result<(), Dropped>;

/// Why a packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// It is malformed or not for this dataplane.
    Packet(DropReason),
    /// It is well formed, but not needed, or there is no room for it.
    Local(LocalDrop),
}

impl Dropped {
    /// Counts it under its reason.
    pub fn count(self, metrics: &ThreadMetrics) {
        match self {
            Dropped::Packet(reason) => metrics.drop_packet(reason),
            Dropped::Local(reason) => metrics.drop_local(reason),
        }
    }

    /// The number of its reason among [`crate::capture::drop_names`].
    pub fn index(self) -> u8 {
        match self {
            Dropped::Packet(reason) => reason.index() as u8,
            Dropped::Local(reason) => (DropReason::COUNT + reason as usize) as u8,
        }
    }
}

impl From<DropReason> for Dropped {
    fn from(reason: DropReason) -> Dropped {
        Dropped::Packet(reason)
    }
}

impl From<LocalDrop> for Dropped {
    fn from(reason: LocalDrop) -> Dropped {
        Dropped::Local(reason)
    }
}
