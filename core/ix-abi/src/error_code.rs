//! Return codes and reasons as closed enums.
use crate::{dead, error};
use core::fmt;

/// Why a batched system call, a connection attempt or the gate failed: the codes of [`error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CallError {
    /// No such call.
    NoSys = error::NO_SYS as u8,
    /// An argument is out of range or contradicts another one.
    Invalid = error::INVALID as u8,
    /// A stale, forged or foreign handle, listener, socket or timer.
    BadHandle = error::BAD_HANDLE as u8,
    /// A pointer or length outside the memory that the call may name.
    Fault = error::FAULT as u8,
    /// The dataplane has no flow, buffer, timer or transmit memory left: try again later.
    NoResource = error::NO_RESOURCE as u8,
    /// The port is in use, or another Linux thread runs the elastic thread.
    InUse = error::IN_USE as u8,
    /// The local address is not the dataplane's.
    NotLocal = error::NOT_LOCAL as u8,
    /// No route, or the next hop does not reply to ARP.
    Unreachable = error::UNREACHABLE as u8,
    /// The peer refused the connection.
    Refused = error::REFUSED as u8,
    /// The peer did not reply in time.
    TimedOut = error::TIMED_OUT as u8,
    /// The connection was reset.
    Reset = error::RESET as u8,
    /// The flow cannot do this in its state.
    State = error::STATE as u8,
    /// The datagram is longer than the path allows.
    TooLong = error::TOO_LONG as u8,
    /// The flow group belongs to another elastic thread.
    Moved = error::MOVED as u8,
    /// The vNIC may not send this.
    Filtered = error::FILTERED as u8,
    /// The dataplane has ended, and all connections with it.
    Lost = error::LOST as u8,
    /// It is not known yet whether Linux has the port: make the call again in a later cycle.
    Again = error::AGAIN as u8,
}

impl CallError {
    /// Every error, in the order of the codes.
    pub const ALL: [CallError; 17] = [
        CallError::NoSys,
        CallError::Invalid,
        CallError::BadHandle,
        CallError::Fault,
        CallError::NoResource,
        CallError::InUse,
        CallError::NotLocal,
        CallError::Unreachable,
        CallError::Refused,
        CallError::TimedOut,
        CallError::Reset,
        CallError::State,
        CallError::TooLong,
        CallError::Moved,
        CallError::Filtered,
        CallError::Lost,
        CallError::Again,
    ];

    /// The positive code of [`error`].
    #[inline]
    pub const fn code(self) -> i64 {
        self as i64
    }

    /// The error with this positive code. A code that is not in [`error`] reads as
    /// [`CallError::Invalid`]: both ends check [`crate::ABI_VERSION`], so a correct peer sends
    /// none.
    pub const fn from_code(code: i64) -> CallError {
        if code >= 1 && code <= CallError::ALL.len() as i64 {
            CallError::ALL[code as usize - 1]
        } else {
            CallError::Invalid
        }
    }

    /// Encodes the return value of a call or of the gate: a value below 2^63 as it is, an error as
    /// minus its code.
    #[inline]
    pub const fn encode(result: Result<u64, CallError>) -> i64 {
        match result {
            Ok(value) => value as i64,
            Err(error) => -error.code(),
        }
    }

    /// Decodes the return value of a call or of the gate.
    #[inline]
    pub const fn check(ret: i64) -> Result<u64, CallError> {
        if ret >= 0 { Ok(ret as u64) } else { Err(CallError::from_code(ret.wrapping_neg())) }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CallError::NoSys => "the dataplane has no such call",
            CallError::Invalid => "invalid argument",
            CallError::BadHandle => "no such flow, listener, socket, packet queue or timer",
            CallError::Fault => "address outside the memory that the call may use",
            CallError::NoResource => {
                "the dataplane has no flow, buffer, timer or memory left; try again later"
            }
            CallError::InUse => "already in use",
            CallError::NotLocal => "not an address of this dataplane",
            CallError::Unreachable => "the peer cannot be reached",
            CallError::Refused => "the peer refused the connection",
            CallError::TimedOut => "the peer did not reply in time",
            CallError::Reset => "the connection was reset",
            CallError::State => "the flow cannot do this in its state",
            CallError::TooLong => "the datagram is longer than the path allows",
            CallError::Moved => "the flow group belongs to another elastic thread",
            CallError::Filtered => "the vNIC's rules forbid sending this",
            CallError::Lost => "the dataplane has ended, and all connections with it",
            CallError::Again => "not known yet; make the call again in a later cycle",
        })
    }
}

impl core::error::Error for CallError {}

/// Why a flow is gone: the codes of [`dead`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum DeadReason {
    /// Both sides closed in order.
    Closed = dead::CLOSED,
    /// The peer reset the connection.
    Reset = dead::RESET,
    /// Retransmissions, probes or keepalives went unanswered.
    TimedOut = dead::TIMED_OUT,
    /// The network says that the peer cannot be reached.
    Unreachable = dead::UNREACHABLE,
}

impl DeadReason {
    /// The code of [`dead`].
    #[inline]
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The reason with this code. A code that is not in [`dead`] reads as a reset.
    pub const fn from_code(code: u16) -> DeadReason {
        match code {
            dead::CLOSED => DeadReason::Closed,
            dead::TIMED_OUT => DeadReason::TimedOut,
            dead::UNREACHABLE => DeadReason::Unreachable,
            _ => DeadReason::Reset,
        }
    }
}
