//! What both back ends know of a connection, and when their patience with it ends.
use crate::session::{Answer, Session};

/// How long is waited for a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// For a request from its first byte on; and for the peer's FIN after the last answer.
    pub request_us: u64,
    /// For the next request, and for a peer that takes nothing of what is sent.
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
    /// An answer that there was no memory for.
    pub pending: Option<Answer>,
    /// FIN goes out behind the last answer.
    pub shut: bool,
    /// The peer sends no more.
    pub eof: bool,
    /// When what is being waited for began.
    pub since_us: u64,
}

/// What to do about a connection whose time is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// Say that the request was too slow.
    Answer,
    /// It idled: end it in order.
    Close,
    /// The peer takes nothing, or does not go: reset.
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
