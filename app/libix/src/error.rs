//! Outcomes across the wall as closed enums.
use core::fmt;
use ix_abi::DeadReason;

/// Why a batched system call, a connection attempt or the gate failed.
pub use ix_abi::CallError as Error;

/// Why a connection is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dead {
    /// Both sides closed in order.
    Closed,
    /// The peer reset the connection.
    Reset,
    /// Retransmissions, probes or keepalives went unanswered.
    TimedOut,
    /// The network says that the peer cannot be reached.
    Unreachable,
    /// It never came to be: the connection attempt failed.
    NotConnected(Error),
    /// The dataplane refused a call on it.
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
            Dead::TimedOut => f.write_str("the peer no longer answers"),
            Dead::Unreachable => f.write_str("the peer cannot be reached any more"),
            Dead::NotConnected(error) => write!(f, "not connected: {error}"),
            Dead::Failed(error) => write!(f, "failed: {error}"),
        }
    }
}
