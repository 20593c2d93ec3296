//! Outcomes across the wall as closed enums.
use core::fmt;
use ix_abi::{dead, error};

/// Why a batched system call, a connection attempt or the gate failed ([`ix_abi::error`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Error {
    /// No such call.
    NoSys,
    /// An argument makes no sense.
    Invalid,
    /// Stale, forged or foreign handle, listener, socket or timer.
    BadHandle,
    /// A pointer or length outside the memory that the call may name.
    Fault,
    /// Out of flows, buffers, timers or transmit memory: try again later.
    NoResource,
    /// The port is taken, or the elastic thread is somebody else.
    InUse,
    /// The local address is not ours.
    NotLocal,
    /// No route, or the next hop does not answer ARP.
    Unreachable,
    /// The peer refused the connection.
    Refused,
    /// The peer did not answer in time.
    TimedOut,
    /// The connection was reset.
    Reset,
    /// The flow cannot do this in its state.
    State,
    /// The datagram is longer than the path allows.
    TooLong,
    /// The flow group is another elastic thread's.
    Moved,
    /// The vNIC may not send this.
    Filtered,
    /// A code that this version of libix does not know.
    Unknown,
}

impl Error {
    /// From a positive code of [`ix_abi::error`].
    pub fn from_code(code: i64) -> Error {
        match code {
            error::NO_SYS => Error::NoSys,
            error::INVALID => Error::Invalid,
            error::BAD_HANDLE => Error::BadHandle,
            error::FAULT => Error::Fault,
            error::NO_RESOURCE => Error::NoResource,
            error::IN_USE => Error::InUse,
            error::NOT_LOCAL => Error::NotLocal,
            error::UNREACHABLE => Error::Unreachable,
            error::REFUSED => Error::Refused,
            error::TIMED_OUT => Error::TimedOut,
            error::RESET => Error::Reset,
            error::STATE => Error::State,
            error::TOO_LONG => Error::TooLong,
            error::MOVED => Error::Moved,
            error::FILTERED => Error::Filtered,
            _ => Error::Unknown,
        }
    }

    /// From what a call or the gate answered: >= 0 is the answer, < 0 minus a code.
    #[inline]
    pub fn check(answer: i64) -> Result<u64, Error> {
        if answer >= 0 { Ok(answer as u64) } else { Err(Error::from_code(answer.wrapping_neg())) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::NoSys => "the dataplane has no such call",
            Error::Invalid => "an argument makes no sense",
            Error::BadHandle => "no such flow, listener, socket or timer",
            Error::Fault => "memory that the call may not name",
            Error::NoResource => "the dataplane is out of flows, buffers or memory",
            Error::InUse => "already in use",
            Error::NotLocal => "not an address of this dataplane",
            Error::Unreachable => "the peer cannot be reached",
            Error::Refused => "the peer refused the connection",
            Error::TimedOut => "the peer did not answer in time",
            Error::Reset => "the connection was reset",
            Error::State => "the flow cannot do this in its state",
            Error::TooLong => "the datagram is longer than the path allows",
            Error::Moved => "its flow group went to another elastic thread",
            Error::Filtered => "the vNIC may not send this",
            Error::Unknown => "the dataplane gave an unknown error code",
        })
    }
}

impl std::error::Error for Error {}

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

impl Dead {
    /// From a code of [`ix_abi::dead`]; a code from the future counts as a reset.
    pub fn from_code(code: u16) -> Dead {
        match code {
            dead::CLOSED => Dead::Closed,
            dead::TIMED_OUT => Dead::TimedOut,
            dead::UNREACHABLE => Dead::Unreachable,
            _ => Dead::Reset,
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
