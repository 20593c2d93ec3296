//! A protocol without input and output.

/// What is to become of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Open,
    /// It ends in order, after what was sent.
    Close,
    /// It ends by a reset.
    Reset,
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// By our own verdict.
    Ours,
    /// The peer closed.
    Eof,
    /// It was reset, timed out, or never came to be.
    Failed(String),
}

/// A protocol: many connections, one thread. Time is monotonic, ns.
pub trait Service {
    /// State of a connection.
    type Conn;

    /// A connection is accepted or wanted; `None`: not now.
    fn open(&mut self) -> Option<Self::Conn>;

    /// It is connected.
    fn connected(&mut self, conn: &mut Self::Conn, now_ns: u64) {
        let _ = (conn, now_ns);
    }

    /// Bytes came in.
    fn input(&mut self, conn: &mut Self::Conn, data: &[u8], now_ns: u64);

    /// Bytes to be sent next; empty: none.
    fn output<'a>(&'a self, conn: &'a Self::Conn) -> &'a [u8];

    /// The first `bytes` of them were taken.
    fn advance(&mut self, conn: &mut Self::Conn, bytes: usize);

    /// Asked after each input and output.
    fn verdict(&self, conn: &Self::Conn) -> Verdict {
        let _ = conn;
        Verdict::Open
    }

    /// It ended. Answers whether a client is to open another one in its place.
    fn closed(&mut self, conn: Self::Conn, end: End) -> bool {
        let _ = (conn, end);
        false
    }

    /// The service has nothing more to do, and the connection is still open.
    fn left_open(&mut self, conn: &Self::Conn, now_ns: u64) {
        let _ = (conn, now_ns);
    }

    /// Whether the service has nothing more to do.
    fn finished(&self, now_ns: u64) -> bool {
        let _ = now_ns;
        false
    }
}
