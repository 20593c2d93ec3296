//! The load: messages whose echoes are timed and compared.
use crate::args::Close;
use crate::sample::Sample;
use crate::window::Window;
use ix_programs::{End, Pattern, Service, Verdict};
use std::collections::VecDeque;
use std::rc::Rc;

/// After this many failures in a row no further connection is opened.
const FAILURES_IN_A_ROW: u32 = 100;
/// Longest time from the first connection until the last one is established, ns.
const ALL_CONNECT_NS: u64 = 2_500_000_000;
/// A connection that waits longer for a reply counts as stalled.
const STALLED_NS: u64 = 1_000_000_000;

/// Load of each connection, and the measured time.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes of a message.
    pub size: u64,
    /// Most messages in flight.
    pub depth: u32,
    /// Number of connections that must be established before the measured time begins.
    pub connections: usize,
    /// Messages after which the connection ends and another is opened.
    pub messages_per_connection: Option<u64>,
    /// How a connection ends then.
    pub close: Close,
    /// When to measure.
    pub window: Window,
}

/// The client's side of one thread.
pub struct EchoClient {
    load: Load,
    pattern: Rc<Pattern>,
    opened: u64,
    connected: usize,
    /// When the first connection was established, ns.
    first_ns: Option<u64>,
    failures: u32,
    sample: Sample,
}

/// One connection: positions in its endless stream of bytes.
pub struct Stream {
    /// Its offset in the pattern.
    seed: u64,
    sent: u64,
    may_send: u64,
    received: u64,
    /// When the messages in flight were sent.
    started_ns: VecDeque<u64>,
    connected: bool,
    corrupt: bool,
}

impl EchoClient {
    /// A client that has not begun.
    pub fn new(load: Load) -> EchoClient {
        EchoClient {
            load,
            pattern: Rc::new(Pattern::default()),
            opened: 0,
            connected: 0,
            first_ns: None,
            failures: 0,
            sample: Sample::default(),
        }
    }

    /// What was measured.
    pub fn into_sample(self) -> Sample {
        self.sample
    }

    /// What was measured so far.
    pub fn sample(&mut self) -> &mut Sample {
        &mut self.sample
    }

    /// Begins the measured time if all connections are established, or have had their time: of many
    /// handshakes at once some are lost while the peer's Ethernet address is asked for, and come
    /// back after a second.
    fn begin(&mut self, now_ns: u64) {
        let first_ns = *self.first_ns.get_or_insert(now_ns);
        if self.connected >= self.load.connections || now_ns - first_ns >= ALL_CONNECT_NS {
            self.load.window.begin(now_ns);
        }
    }

    fn limit(&self) -> u64 {
        self.load.messages_per_connection.unwrap_or(u64::MAX)
    }

    /// Whether the connection has carried all its messages.
    fn is_complete(&self, conn: &Stream) -> bool {
        conn.received / self.load.size >= self.limit()
    }

    fn release(&mut self, conn: &mut Stream, now_ns: u64) {
        if conn.may_send / self.load.size < self.limit() {
            conn.may_send += self.load.size;
            conn.started_ns.push_back(now_ns);
        }
    }

    /// A whole message has come back.
    fn complete(&mut self, conn: &mut Stream, now_ns: u64) {
        let Some(started_ns) = conn.started_ns.pop_front() else { return };
        if !self.load.window.has_begun() {
            self.begin(now_ns);
        }
        if self.load.window.contains(started_ns) && self.load.window.contains(now_ns) {
            self.sample.record(now_ns - started_ns);
        }
        self.release(conn, now_ns);
    }
}

impl Service for EchoClient {
    type Conn = Stream;

    fn open(&mut self) -> Option<Stream> {
        self.opened += 1;
        Some(Stream {
            seed: self.opened * 7919,
            sent: 0,
            may_send: 0,
            received: 0,
            started_ns: VecDeque::with_capacity(self.load.depth as usize),
            connected: false,
            corrupt: false,
        })
    }

    fn connected(&mut self, conn: &mut Stream, now_ns: u64) {
        conn.connected = true;
        self.failures = 0;
        self.connected += 1;
        self.begin(now_ns);
        self.sample.opened += u64::from(self.load.window.contains(now_ns));
        for _ in 0..self.load.depth {
            self.release(conn, now_ns);
        }
    }

    fn input(&mut self, conn: &mut Stream, data: &[u8], now_ns: u64) {
        let asked = conn.may_send - conn.received;
        if data.len() as u64 > asked || !self.pattern.matches(conn.seed + conn.received, data) {
            conn.corrupt = true;
            return;
        }
        let before = conn.received / self.load.size;
        conn.received += data.len() as u64;
        for _ in before..conn.received / self.load.size {
            self.complete(conn, now_ns);
        }
    }

    fn output<'a>(&'a self, conn: &'a Stream) -> &'a [u8] {
        self.pattern.at(conn.seed + conn.sent, conn.may_send - conn.sent)
    }

    fn advance(&mut self, conn: &mut Stream, bytes: usize) {
        conn.sent += bytes as u64;
    }

    fn verdict(&self, conn: &Stream) -> Verdict {
        let all = self.is_complete(conn);
        match self.load.close {
            _ if conn.corrupt => Verdict::Reset,
            Close::Reset if all => Verdict::Reset,
            Close::Fin if all => Verdict::Close,
            _ => Verdict::Open,
        }
    }

    fn closed(&mut self, conn: Stream, end: End) -> bool {
        match end {
            End::Ours if !conn.corrupt => return true,
            End::Ours => self.sample.error("the reply differs from the message"),
            End::Eof if self.load.close == Close::Wait && self.is_complete(&conn) => return true,
            End::Eof => self.sample.error("the server closed the connection"),
            End::Failed(why) => self.sample.error(&why),
        }
        if !conn.connected || conn.received == 0 {
            self.failures += 1;
        }
        self.failures < FAILURES_IN_A_ROW
    }

    fn left_open(&mut self, conn: &Stream, now_ns: u64) {
        let waits = conn.started_ns.front().is_some_and(|at| now_ns - at > STALLED_NS);
        self.sample.stalled += u64::from(waits);
    }

    fn finished(&self, now_ns: u64) -> bool {
        self.load.window.is_over(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(load: Load) -> (EchoClient, Stream) {
        let mut client = EchoClient::new(load);
        let mut conn = client.open().unwrap();
        client.connected(&mut conn, 100);
        (client, conn)
    }

    fn load() -> Load {
        Load {
            size: 10,
            depth: 2,
            connections: 1,
            messages_per_connection: Some(3),
            close: Close::Reset,
            window: Window::new(0, 0, 900),
        }
    }

    #[test]
    fn counts_only_right_and_timely_answers() {
        let (mut client, mut conn) = client(load());
        let data = client.output(&conn).to_vec();
        assert_eq!(data.len(), 20);
        client.advance(&mut conn, 20);
        assert!(client.output(&conn).is_empty());
        client.input(&mut conn, &data[..15], 300);
        assert_eq!(client.sample.messages(), 1);
        // The third and last message was released.
        assert_eq!(client.output(&conn).len(), 10);
        let last = client.output(&conn).to_vec();
        client.advance(&mut conn, 10);
        client.input(&mut conn, &data[15..], 2000);
        assert_eq!(client.sample.messages(), 1, "too late to count");
        assert_eq!(client.verdict(&conn), Verdict::Open);
        client.input(&mut conn, &last, 2100);
        assert_eq!(client.verdict(&conn), Verdict::Reset);
        client.load.close = Close::Fin;
        assert_eq!(client.verdict(&conn), Verdict::Close);
        assert!(client.closed(conn, End::Ours));
        assert_eq!(client.sample.errors, 0);
    }

    #[test]
    fn measures_when_all_are_connected_or_have_had_their_time() {
        let load = Load { connections: 2, messages_per_connection: None, ..load() };
        let (mut client, mut conn) = client(load);
        let message = client.output(&conn)[..10].to_vec();
        client.advance(&mut conn, 20);
        client.input(&mut conn, &message, 300);
        assert_eq!(client.sample.messages(), 0, "one of two");
        let mut second = client.open().unwrap();
        client.connected(&mut second, 400);
        assert!(client.load.window.contains(400));
        let mut waits = EchoClient::new(load);
        for (now_ns, has_begun) in
            [(100, false), (99 + ALL_CONNECT_NS, false), (100 + ALL_CONNECT_NS, true)]
        {
            waits.begin(now_ns);
            assert_eq!(waits.load.window.has_begun(), has_begun);
        }
    }

    #[test]
    fn sees_wrong_content_and_too_much() {
        for wrong in [b"x".as_slice(), &[0; 40]] {
            let (mut client, mut conn) = client(load());
            client.input(&mut conn, wrong, 200);
            assert_eq!(client.verdict(&conn), Verdict::Reset);
            client.closed(conn, End::Ours);
            assert_eq!(client.sample.errors, 1);
        }
    }

    #[test]
    fn a_connection_that_waits_too_long_has_stalled() {
        let (mut client, mut conn) = client(load());
        client.left_open(&conn, 100 + STALLED_NS);
        assert_eq!(client.sample.stalled, 0);
        client.left_open(&conn, 101 + STALLED_NS);
        conn.started_ns.clear();
        client.left_open(&conn, u64::MAX);
        assert_eq!(client.sample.stalled, 1);
    }

    #[test]
    fn gives_up_after_many_failures_in_a_row() {
        let mut client = EchoClient::new(load());
        let tried = (0..).take_while(|_| {
            let conn = client.open().unwrap();
            client.closed(conn, End::Failed("refused".into()))
        });
        assert_eq!(tried.count() as u32, FAILURES_IN_A_ROW - 1);
    }
}
