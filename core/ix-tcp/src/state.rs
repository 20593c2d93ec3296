//! The states of RFC 9293 section 3.3.2.

/// State of a connection; the numbers are the order of RFC 9293 section 3.3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum State {
    /// Waits for any peer. Listeners have this state, a [`crate::Tcb`] never.
    Listen = 1,
    /// SYN sent.
    SynSent,
    /// SYN received and sent.
    SynReceived,
    /// Established: data may be sent and received.
    Established,
    /// We closed; our FIN is not acknowledged.
    FinWait1,
    /// We closed; our FIN is acknowledged.
    FinWait2,
    /// The peer closed.
    CloseWait,
    /// Both closed at once; our FIN is not acknowledged.
    Closing,
    /// The peer closed first, then we; our FIN is not acknowledged.
    LastAck,
    /// Both closed; old segments may still be on the way.
    TimeWait,
    /// No connection.
    Closed,
}

impl State {
    /// True if data and FIN of the peer may still arrive.
    #[inline]
    pub const fn receives(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// True if the application may append to the send stream.
    #[inline]
    pub const fn sends(self) -> bool {
        matches!(self, State::SynSent | State::SynReceived | State::Established | State::CloseWait)
    }

    /// True if SYNs were exchanged and acknowledged.
    #[inline]
    pub const fn synchronized(self) -> bool {
        !matches!(self, State::Listen | State::SynSent | State::SynReceived | State::Closed)
    }

    /// Whether the state diagram (RFC 9293 figure 5, with the errata) has this transition. Every
    /// state may change to CLOSED.
    pub const fn may_become(self, next: State) -> bool {
        use State::*;
        matches!(
            (self, next),
            (_, Closed)
                | (SynSent, SynReceived | Established)
                | (SynReceived, Established | FinWait1 | CloseWait)
                | (Established, FinWait1 | CloseWait)
                | (FinWait1, FinWait2 | Closing | TimeWait)
                | (FinWait2 | Closing, TimeWait)
                | (CloseWait, LastAck)
        )
    }
}
