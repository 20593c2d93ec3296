//! What became of a received packet: a part that handles one returns a verdict, and the cycle
//! counts and captures it.
use crate::observe::metrics::{LocalDrop, ThreadMetrics};
use ix_wire::DropReason;

/// A packet, or its payload, went no further, and why.
pub(crate) type Verdict = Result<(), Dropped>;

/// Why a packet goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// It is malformed or not for us.
    Packet(DropReason),
    /// It is well formed, but there is no use or no room for it.
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
