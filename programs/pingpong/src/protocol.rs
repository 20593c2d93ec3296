//! The protocol of both ends.
//!
//! The client announces a round in 16 bytes (magic, message size, number of messages); the server
//! then returns each message when all of it has arrived. A short round finds how many messages fill
//! the time for a size; a long one is measured.
use hdrhistogram::Histogram;
use ix_programs::{End, Pattern, Service, Verdict};
use std::collections::VecDeque;

const MAGIC: &[u8; 4] = b"IXPP";
const HEADER_BYTES: usize = 16;
/// Messages of the short round.
const PROBES: u64 = 5;
/// Largest message.
pub const SIZE_MAX: u32 = 64 << 20;

fn header(size: u32, count: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(MAGIC);
    header[4..8].copy_from_slice(&size.to_le_bytes());
    header[8..].copy_from_slice(&count.to_le_bytes());
    header
}

fn parse(header: &[u8]) -> Option<(usize, u64)> {
    let size = u32::from_le_bytes(header.get(4..8)?.try_into().ok()?);
    let count = u64::from_le_bytes(header.get(8..16)?.try_into().ok()?);
    let sane = header[..4] == *MAGIC && (1..=SIZE_MAX).contains(&size);
    sane.then_some((size as usize, count))
}

/// The server's end.
#[derive(Default)]
pub struct PingServer;

/// A connection of the server's end.
#[derive(Default)]
pub struct Answering {
    /// A header or a message that is being received; a whole one is sent back.
    bytes: Vec<u8>,
    answered: usize,
    size: usize,
    left: u64,
    corrupt: bool,
}

impl Answering {
    fn wanted(&self) -> usize {
        if self.left == 0 { HEADER_BYTES } else { self.size }
    }

    fn is_whole_message(&self) -> bool {
        self.left > 0 && self.bytes.len() == self.size
    }
}

impl Service for PingServer {
    type Conn = Answering;

    fn open(&mut self) -> Option<Answering> {
        Some(Answering::default())
    }

    fn input(&mut self, conn: &mut Answering, data: &[u8], _: u64) {
        let mut data = data;
        while !data.is_empty() && !conn.corrupt {
            let n = data.len().min(conn.wanted() - conn.bytes.len());
            conn.bytes.extend_from_slice(&data[..n]);
            data = &data[n..];
            if n == 0 {
                // The client waits for each reply.
                conn.corrupt = true;
            } else if conn.left == 0 && conn.bytes.len() == HEADER_BYTES {
                match parse(&conn.bytes) {
                    Some((size, count)) => (conn.size, conn.left) = (size, count),
                    None => conn.corrupt = true,
                }
                conn.bytes.clear();
            }
        }
    }

    fn output<'a>(&'a self, conn: &'a Answering) -> &'a [u8] {
        if conn.is_whole_message() { &conn.bytes[conn.answered..] } else { &[] }
    }

    fn advance(&mut self, conn: &mut Answering, bytes: usize) {
        conn.answered += bytes;
        if conn.answered == conn.size {
            conn.bytes.clear();
            conn.answered = 0;
            conn.left -= 1;
        }
    }

    fn verdict(&self, conn: &Answering) -> Verdict {
        if conn.corrupt { Verdict::Reset } else { Verdict::Open }
    }
}

/// The measurement of one size.
pub struct Point {
    /// Bytes of a message.
    pub size: u32,
    /// Round trips, ns.
    pub round_trip_ns: Histogram<u64>,
}

/// The client's end: one connection, one message in flight.
pub struct PingClient {
    sizes: VecDeque<u32>,
    ns_per_size: u64,
    pattern: Pattern,
    /// Finished sizes.
    pub points: Vec<Point>,
    /// Why it ended early.
    pub error: Option<String>,
    ended: bool,
}

/// The connection of the client's end.
pub struct Asking {
    size: u32,
    probing: bool,
    left: u64,
    header: [u8; HEADER_BYTES],
    header_sent: usize,
    sent: u64,
    received: u64,
    started_ns: u64,
    round_trip_ns: Histogram<u64>,
    connected: bool,
    corrupt: bool,
    done: bool,
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("constant bounds")
}

impl PingClient {
    /// Measures each size for this time.
    pub fn new(sizes: &[u32], ns_per_size: u64) -> PingClient {
        PingClient {
            sizes: sizes.iter().copied().collect(),
            ns_per_size,
            pattern: Pattern::default(),
            points: Vec::new(),
            error: None,
            ended: false,
        }
    }

    fn round(conn: &mut Asking, probing: bool, count: u64, now_ns: u64) {
        conn.probing = probing;
        conn.left = count;
        conn.header = header(conn.size, count);
        conn.header_sent = 0;
        conn.round_trip_ns.reset();
        Self::message(conn, now_ns);
    }

    fn message(conn: &mut Asking, now_ns: u64) {
        (conn.sent, conn.received) = (0, 0);
        conn.started_ns = now_ns;
    }

    fn next_size(&mut self, conn: &mut Asking, now_ns: u64) {
        match self.sizes.pop_front() {
            Some(size) => {
                conn.size = size;
                Self::round(conn, true, PROBES, now_ns);
            }
            None => conn.done = true,
        }
    }

    /// A reply is complete.
    fn complete(&mut self, conn: &mut Asking, now_ns: u64) {
        conn.round_trip_ns.saturating_record((now_ns - conn.started_ns).max(1));
        conn.left -= 1;
        if conn.left > 0 {
            Self::message(conn, now_ns);
        } else if conn.probing {
            let typical_ns = conn.round_trip_ns.value_at_quantile(0.5).max(1);
            let count = (self.ns_per_size / typical_ns).clamp(PROBES, 1_000_000);
            Self::round(conn, false, count, now_ns);
        } else {
            let round_trip_ns = core::mem::replace(&mut conn.round_trip_ns, histogram());
            self.points.push(Point { size: conn.size, round_trip_ns });
            self.next_size(conn, now_ns);
        }
    }
}

impl Service for PingClient {
    type Conn = Asking;

    fn open(&mut self) -> Option<Asking> {
        Some(Asking {
            size: 0,
            probing: false,
            left: 0,
            header: [0; HEADER_BYTES],
            header_sent: HEADER_BYTES,
            sent: 0,
            received: 0,
            started_ns: 0,
            round_trip_ns: histogram(),
            connected: false,
            corrupt: false,
            done: false,
        })
    }

    fn connected(&mut self, conn: &mut Asking, now_ns: u64) {
        conn.connected = true;
        self.next_size(conn, now_ns);
    }

    fn input(&mut self, conn: &mut Asking, data: &[u8], now_ns: u64) {
        let room = u64::from(conn.size) - conn.received;
        if data.len() as u64 > room || !self.pattern.matches(conn.received, data) {
            conn.corrupt = true;
            return;
        }
        conn.received += data.len() as u64;
        if conn.received == u64::from(conn.size) {
            self.complete(conn, now_ns);
        }
    }

    fn output<'a>(&'a self, conn: &'a Asking) -> &'a [u8] {
        if !conn.connected || conn.done {
            &[]
        } else if conn.header_sent < HEADER_BYTES {
            &conn.header[conn.header_sent..]
        } else {
            self.pattern.at(conn.sent, u64::from(conn.size) - conn.sent)
        }
    }

    fn advance(&mut self, conn: &mut Asking, bytes: usize) {
        if conn.header_sent < HEADER_BYTES {
            conn.header_sent += bytes;
        } else {
            conn.sent += bytes as u64;
        }
    }

    fn verdict(&self, conn: &Asking) -> Verdict {
        match (conn.corrupt, conn.done) {
            (true, _) => Verdict::Reset,
            (false, true) => Verdict::Close,
            (false, false) => Verdict::Open,
        }
    }

    fn closed(&mut self, conn: Asking, end: End) -> bool {
        self.ended = true;
        self.error = match end {
            End::Ours if conn.corrupt => Some("the reply differs from the message".into()),
            End::Ours => None,
            End::Eof => Some("the server closed the connection".into()),
            End::Failed(why) => Some(why),
        };
        false
    }

    fn finished(&self, _: u64) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_programs::ix;
    use libix::loopback::{Config, Loopback};
    use libix::raw::Wait;

    #[test]
    fn sweeps_all_sizes_on_the_model() {
        let model = Loopback::new(2, Config::default());
        let at = "10.0.0.1:9".parse().unwrap();
        let sizes = [1, 64, 1500, 200_000];
        let mut server = ix::server(model.enter(0).unwrap(), PingServer, at).unwrap();
        let client = PingClient::new(&sizes, 1_000_000);
        let mut client = ix::client(model.enter(1).unwrap(), client, at, 1);
        while !client.handler().service().finished(0) {
            server.turn(Wait::Poll).unwrap();
            client.turn(Wait::Poll).unwrap();
        }
        let service = client.handler().service();
        assert_eq!(service.error, None);
        assert!(service.points.iter().map(|point| point.size).eq(sizes));
        assert!(service.points.iter().all(|point| point.round_trip_ns.len() >= PROBES));
    }

    #[test]
    fn nonsense_is_reset() {
        for nonsense in [header(0, 1), header(SIZE_MAX + 1, 1), [7; 16]] {
            let mut conn = PingServer.open().unwrap();
            PingServer.input(&mut conn, &nonsense[..9], 0);
            assert_eq!(PingServer.verdict(&conn), Verdict::Open);
            PingServer.input(&mut conn, &nonsense[9..], 0);
            assert_eq!(PingServer.verdict(&conn), Verdict::Reset);
        }
        let mut conn = PingServer.open().unwrap();
        PingServer.input(&mut conn, &header(4, 1), 0);
        PingServer.input(&mut conn, b"abcd?", 0);
        assert_eq!(PingServer.verdict(&conn), Verdict::Reset, "did not wait for the answer");
    }
}
