//! State of a connection for both back ends, and the end of their patience.
use crate::session::{Answer, Session};

/// How long the server waits for a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// For a request from its first byte on; and for the peer's FIN after the last response.
    pub request_us: u64,
    /// For the next request, and for a peer that takes no bytes.
    pub idle_us: u64,
}

impl Patience {
    pub fn shortest_us(&self) -> u64 {
        self.request_us.min(self.idle_us)
    }
}

/// A connection.
#[derive(Default)]
pub(crate) struct Peer {
    pub session: Session,
    /// A response for which there was no memory.
    pub pending: Option<Answer>,
    /// FIN follows the last response.
    pub shut: bool,
    /// The peer has closed its direction.
    pub eof: bool,
    /// When the present wait began.
    pub since_us: u64,
}

/// What to do with a connection whose time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// Reply that the request was too slow.
    Answer,
    /// It was idle: close it normally.
    Close,
    /// The peer takes no bytes, or does not close: reset.
    Abort,
}

impl Peer {
    pub fn new(now_us: u64) -> Peer {
        Peer { since_us: now_us, ..Peer::default() }
    }

    /// When patience ends, and what to do then. `sending`: bytes wait for the peer.
    pub fn due(&self, sending: bool, patience: &Patience) -> (u64, Overdue) {
        let (wait_us, then) = if sending {
            (patience.idle_us, Overdue::Abort)
        } else if self.shut {
            (patience.request_us, Overdue::Abort)
        } else if self.session.in_request() {
            (patience.request_us, Overdue::Answer)
        } else {
            (patience.idle_us, Overdue::Close)
        };
        (self.since_us + wait_us, then)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::Site;

    #[test]
    fn patience_depends_on_what_is_waited_for() {
        let patience = Patience { request_us: 10, idle_us: 60 };
        let mut peer = Peer::new(1000);
        assert_eq!(peer.due(false, &patience), (1060, Overdue::Close));
        peer.session.read(b"GET", &Site::default());
        assert_eq!(peer.due(false, &patience), (1010, Overdue::Answer));
        assert_eq!(peer.due(true, &patience), (1060, Overdue::Abort));
        peer.shut = true;
        assert_eq!(peer.due(false, &patience), (1010, Overdue::Abort));
        assert_eq!(patience.shortest_us(), 10);
    }
}
