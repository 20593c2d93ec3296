//! Results of calls and connections as closed enums.
use core::fmt;
use ix_abi::DeadReason;

/// Why a batched system call, a connection attempt or the gate failed.
pub use ix_abi::CallError as Error;

/// Why a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dead {
    /// Both sides closed it normally.
    Closed,
    /// The peer reset the connection.
    Reset,
    /// The peer did not acknowledge retransmissions, probes or keepalives.
    TimedOut,
    /// The network reports that the peer cannot be reached.
    Unreachable,
    /// The connection attempt failed.
    NotConnected(Error),
    /// The dataplane refused a call on the connection.
    Failed(Error),
}

impl From<DeadReason> for Dead {
    fn from(reason: DeadReason) -> Dead {
        match reason {
            DeadReason::Closed => Dead::Closed,
            DeadReason::Reset => Dead::Reset,
            DeadReason::TimedOut => Dead::TimedOut,
            DeadReason::Unreachable => Dead::Unreachable,
        }
    }
}

impl fmt::Display for Dead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dead::Closed => f.write_str("closed"),
            Dead::Reset => f.write_str("reset by the peer"),
            Dead::TimedOut => f.write_str("the peer no longer replies"),
            Dead::Unreachable => f.write_str("the peer can no longer be reached"),
            Dead::NotConnected(error) => write!(f, "not connected: {error}"),
            Dead::Failed(error) => write!(f, "failed: {error}"),
        }
    }
}
