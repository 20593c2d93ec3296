//! Why a peer is refused; what both users read.
use super::super::message::MessageError;
use std::fmt;
use std::io;

/// Why there is no link with this peer.
#[derive(Debug)]
#[allow(missing_docs)] // The messages say what each is.
pub enum Refusal {
    Message(MessageError),
    Unexpected(&'static str),
    Version {
        min: u16,
        max: u16,
    },
    Interface {
        asked: u32,
        ours: u32,
    },
    Mode(u8),
    Secret,
    Name(String),
    RegionOrder(u16),
    RegionSize {
        region: u16,
        bytes: u64,
    },
    RegionMissing(u16),
    RegionShrinks(u16),
    RingOrder(u16),
    RingPlace(u16),
    RingCookie(u16),
    RingCount {
        peer: usize,
        ours: usize,
    },
    RingSize,
    NoEventfd,
    Descriptors {
        message: &'static str,
        count: usize,
    },
    Steering,
    Slow,
    /// The peer refuses us, for this reason.
    Peer(String),
    System(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(e: io::Error) -> Refusal {
        Refusal::System(e)
    }
}

/// The protocol's version as people write it.
fn version(v: u16) -> String {
    format!("{}.{}", v >> 8, v & 0xff)
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Refusal::*;
        match self {
            Message(e) => write!(f, "{e}"),
            Unexpected(what) => write!(f, "it sent {what} out of order"),
            Version { min, max } if min == max => {
                write!(f, "it speaks version {} of memif, IX speaks 2.0", version(*min))
            }
            Version { min, max } => {
                let (min, max) = (version(*min), version(*max));
                write!(f, "it speaks versions {min} to {max} of memif, IX speaks 2.0")
            }
            Interface { asked, ours } => {
                write!(f, "it asks for id={asked}, but this side has id={ours}")
            }
            Mode(mode) => write!(f, "its mode is {mode}, but only Ethernet (0) is supported"),
            Secret => write!(f, "its secret= differs; give both sides the same"),
            Name(name) => write!(f, "it is `{name}`, which is another version of IX"),
            RegionOrder(n) => write!(f, "region {n} is out of order, or beyond the last"),
            RegionSize { region, bytes } => {
                write!(f, "region {region} has fewer than the stated {bytes} bytes")
            }
            RegionMissing(n) => write!(f, "there is no region {n}"),
            RegionShrinks(n) => {
                write!(f, "region {n} could shrink; it must be sealed (F_SEAL_SHRINK)")
            }
            RingOrder(n) => write!(f, "ring {n} is out of order, or beyond the last"),
            RingPlace(n) => write!(f, "ring {n} is not within its region"),
            RingCookie(n) => write!(f, "ring {n} does not begin with memif's cookie"),
            RingCount { peer, ours } => {
                let plural = if *peer == 1 { "" } else { "s" };
                write!(
                    f,
                    "it has {peer} queue{plural}, this side has {ours}; give both the same queues=N"
                )
            }
            RingSize => write!(f, "it allows no ring of 2 descriptors or more"),
            NoEventfd => write!(f, "the descriptor of a ring is not an eventfd"),
            Descriptors { message, count } => {
                write!(f, "its {message} came with {count} descriptors")
            }
            Steering => write!(f, "its steering page is missing"),
            Slow => write!(f, "it did not complete the handshake in time"),
            Peer(reason) if reason.is_empty() => write!(f, "it refused the connection"),
            Peer(reason) => write!(f, "it refused the connection: {reason}"),
            System(e) => write!(f, "{e}"),
        }
    }
}
