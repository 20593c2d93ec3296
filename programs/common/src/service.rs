//! A protocol without input and output.

/// What a service decides about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It stays open.
    Open,
    /// Close it after the bytes given to send.
    Close,
    /// Reset it.
    Reset,
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// By our own verdict.
    Ours,
    /// The peer closed.
    Eof,
    /// It was reset, timed out, or could not be opened.
    Failed(String),
}

/// A protocol: many connections, one thread. Time is monotonic, ns.
pub trait Service {
    /// State of a connection.
    type Conn;

    /// A connection was accepted, or may be opened; `None`: not now.
    fn open(&mut self) -> Option<Self::Conn>;

    /// It is connected.
    fn connected(&mut self, conn: &mut Self::Conn, now_ns: u64) {
        let _ = (conn, now_ns);
    }

    /// Bytes arrived.
    fn input(&mut self, conn: &mut Self::Conn, data: &[u8], now_ns: u64);

    /// The next bytes to send; empty: none.
    fn output<'a>(&'a self, conn: &'a Self::Conn) -> &'a [u8];

    /// The first `bytes` of them were taken.
    fn advance(&mut self, conn: &mut Self::Conn, bytes: usize);

    /// Called after each input and output.
    fn verdict(&self, conn: &Self::Conn) -> Verdict {
        let _ = conn;
        Verdict::Open
    }

    /// The connection ended. Returns whether a client opens another one in its place.
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
