//! Bulk transfer over one connection, every byte compared.
//!
//! The client sends a request of 16 bytes: a magic number, the direction, and the number of bytes
//! each way. The data follow, in both directions at once if asked for. When the server has received
//! and sent everything, it ends with 16 bytes: magic, whether all received bytes were right, and
//! their number. After these the client may send another request.
use crate::args::Direction;
use ix_programs::{End, Pattern, Service, Verdict};

const HEADER_BYTES: usize = 16;
const MAGIC: &[u8; 7] = b"IXBULK1";
/// The two directions have different content.
const DOWN_SEED: u64 = 12_345;

type Header = [u8; HEADER_BYTES];

fn header(kind: u8, bytes: u64) -> Header {
    let mut header = [0; HEADER_BYTES];
    header[..7].copy_from_slice(MAGIC);
    header[7] = kind;
    header[8..].copy_from_slice(&bytes.to_le_bytes());
    header
}

fn parse(header: &Header) -> Option<(u8, u64)> {
    let (magic, rest) = header.split_first_chunk::<7>()?;
    let bytes = u64::from_le_bytes(rest[1..].try_into().ok()?);
    (magic == MAGIC).then_some((rest[0], bytes))
}

const UP: u8 = 1;
const DOWN: u8 = 2;
const RIGHT: u8 = 0;
const WRONG: u8 = 1;

/// A received stream, which is checked.
#[derive(Default)]
struct Sink {
    seed: u64,
    wanted: u64,
    got: u64,
    wrong: bool,
}

impl Sink {
    /// Takes the expected part of `data` and returns the rest.
    fn take<'a>(&mut self, pattern: &Pattern, data: &'a [u8]) -> &'a [u8] {
        let n = (self.wanted - self.got).min(data.len() as u64);
        let (mine, rest) = data.split_at(n as usize);
        self.wrong |= !pattern.matches(self.seed + self.got, mine);
        self.got += n;
        rest
    }

    fn is_done(&self) -> bool {
        self.got == self.wanted
    }
}

/// A stream that is sent.
#[derive(Default)]
struct Source {
    seed: u64,
    wanted: u64,
    sent: u64,
}

/// A header of sixteen bytes that is being received.
#[derive(Default)]
struct Incoming {
    bytes: Header,
    have: usize,
}

impl Incoming {
    fn take<'a>(&mut self, data: &'a [u8]) -> &'a [u8] {
        let (mine, rest) = data.split_at(data.len().min(HEADER_BYTES - self.have));
        self.bytes[self.have..self.have + mine.len()].copy_from_slice(mine);
        self.have += mine.len();
        rest
    }

    fn whole(&self) -> Option<&Header> {
        (self.have == HEADER_BYTES).then_some(&self.bytes)
    }
}

/// One end of a transfer.
#[derive(Default)]
pub struct Transfer {
    sink: Sink,
    source: Source,
    incoming: Incoming,
    /// Header (client) or trailer (server), and how much of it was sent.
    note: Header,
    note_sent: usize,
    started: bool,
    corrupt: bool,
}

impl Transfer {
    /// Whether the server has sent everything.
    fn is_over(&self) -> bool {
        self.started && self.note_sent == HEADER_BYTES && !self.corrupt
    }

    fn data<'a>(&self, pattern: &'a Pattern) -> &'a [u8] {
        let source = &self.source;
        pattern.at(source.seed + source.sent, source.wanted - source.sent)
    }
}

/// Receives and sends as clients ask.
#[derive(Default)]
pub struct BulkServer {
    pattern: Pattern,
}

impl Service for BulkServer {
    type Conn = Transfer;

    fn open(&mut self) -> Option<Transfer> {
        Some(Transfer::default())
    }

    fn input(&mut self, conn: &mut Transfer, data: &[u8], _: u64) {
        let mut data = data;
        if conn.is_over() && !data.is_empty() {
            *conn = Transfer::default();
        }
        if !conn.started {
            data = conn.incoming.take(data);
            let Some(header) = conn.incoming.whole() else { return };
            let Some((directions, bytes)) = parse(header) else {
                conn.corrupt = true;
                return;
            };
            conn.started = true;
            let amount = |direction| if directions & direction != 0 { bytes } else { 0 };
            conn.sink.wanted = amount(UP);
            conn.source = Source { seed: DOWN_SEED, wanted: amount(DOWN), sent: 0 };
        }
        let rest = conn.sink.take(&self.pattern, data);
        conn.corrupt |= !rest.is_empty();
        if conn.sink.is_done() {
            let verdict = if conn.sink.wrong { WRONG } else { RIGHT };
            conn.note = header(verdict, conn.sink.got);
        }
    }

    fn output<'a>(&'a self, conn: &'a Transfer) -> &'a [u8] {
        let data = conn.data(&self.pattern);
        if data.is_empty() && conn.started && conn.sink.is_done() {
            return &conn.note[conn.note_sent..];
        }
        data
    }

    fn advance(&mut self, conn: &mut Transfer, bytes: usize) {
        if conn.source.sent < conn.source.wanted {
            conn.source.sent += bytes as u64;
        } else {
            conn.note_sent += bytes;
        }
    }

    fn verdict(&self, conn: &Transfer) -> Verdict {
        if conn.corrupt { Verdict::Reset } else { Verdict::Open }
    }
}

/// One transfer.
pub struct BulkClient {
    direction: Direction,
    bytes: u64,
    pattern: Pattern,
    started_ns: u64,
    /// Result: seconds, bytes sent and received, or what went wrong.
    pub outcome: Option<Result<(f64, u64, u64), String>>,
    ended_ns: u64,
}

impl BulkClient {
    /// A transfer of `bytes` each way.
    pub fn new(direction: Direction, bytes: u64) -> BulkClient {
        let pattern = Pattern::default();
        BulkClient { direction, bytes, pattern, started_ns: 0, outcome: None, ended_ns: 0 }
    }
}

impl Service for BulkClient {
    type Conn = Transfer;

    fn open(&mut self) -> Option<Transfer> {
        let directions = match self.direction {
            Direction::Send => UP,
            Direction::Recv => DOWN,
            Direction::Both => UP | DOWN,
        };
        let amount = |direction| if directions & direction != 0 { self.bytes } else { 0 };
        Some(Transfer {
            sink: Sink { seed: DOWN_SEED, wanted: amount(DOWN), ..Sink::default() },
            source: Source { wanted: amount(UP), ..Source::default() },
            note: header(directions, self.bytes),
            ..Transfer::default()
        })
    }

    fn connected(&mut self, conn: &mut Transfer, now_ns: u64) {
        conn.started = true;
        self.started_ns = now_ns;
    }

    fn input(&mut self, conn: &mut Transfer, data: &[u8], now_ns: u64) {
        let rest = conn.sink.take(&self.pattern, data);
        conn.corrupt |= !conn.incoming.take(rest).is_empty();
        self.ended_ns = now_ns;
    }

    fn output<'a>(&'a self, conn: &'a Transfer) -> &'a [u8] {
        match conn.note.get(conn.note_sent..) {
            _ if !conn.started => &[],
            Some(note) if !note.is_empty() => note,
            _ => conn.data(&self.pattern),
        }
    }

    fn advance(&mut self, conn: &mut Transfer, bytes: usize) {
        if conn.note_sent < HEADER_BYTES {
            conn.note_sent += bytes;
        } else {
            conn.source.sent += bytes as u64;
        }
    }

    fn verdict(&self, conn: &Transfer) -> Verdict {
        match conn.incoming.whole() {
            _ if conn.corrupt || conn.sink.wrong => Verdict::Reset,
            Some(_) => Verdict::Close,
            None => Verdict::Open,
        }
    }

    fn closed(&mut self, conn: Transfer, end: End) -> bool {
        let right = header(RIGHT, conn.source.wanted);
        self.outcome = Some(match end {
            End::Failed(why) => Err(why),
            End::Eof => Err("the server closed before the end".into()),
            End::Ours if conn.corrupt || conn.sink.wrong => {
                Err(format!("a wrong byte after at least {} right ones", conn.sink.got))
            }
            End::Ours if conn.incoming.bytes != right => Err("the server got wrong bytes".into()),
            End::Ours => {
                let seconds = (self.ended_ns - self.started_ns).max(1) as f64 / 1e9;
                Ok((seconds, conn.source.sent, conn.sink.got))
            }
        });
        false
    }

    fn finished(&self, _: u64) -> bool {
        self.outcome.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moves bytes between both ends in pieces of `step`, flipping one at `flip`.
    fn transfer(
        direction: Direction,
        step: usize,
        flip: Option<u64>,
    ) -> Result<(u64, u64), String> {
        let (mut server, mut client) = (BulkServer::default(), BulkClient::new(direction, 300_000));
        let (mut there, mut here) = (server.open().unwrap(), client.open().unwrap());
        client.connected(&mut here, 5);
        let mut carried = 0;
        let mut carry = |data: &[u8]| {
            let mut piece = data[..data.len().min(step)].to_vec();
            if let Some(at) =
                flip.and_then(|flip| piece.get_mut(flip.wrapping_sub(carried) as usize))
            {
                *at ^= 4;
            }
            carried += piece.len() as u64;
            piece
        };
        while client.verdict(&here) == Verdict::Open && server.verdict(&there) == Verdict::Open {
            let up = carry(client.output(&here));
            client.advance(&mut here, up.len());
            server.input(&mut there, &up, 6);
            let down = carry(server.output(&there));
            server.advance(&mut there, down.len());
            client.input(&mut here, &down, 7);
        }
        let end = if client.verdict(&here) == Verdict::Open { End::Eof } else { End::Ours };
        client.closed(here, end);
        client.outcome.unwrap().map(|(_, sent, received)| (sent, received))
    }

    #[test]
    fn a_connection_carries_one_transfer_after_another() {
        let mut server = BulkServer::default();
        let mut conn = server.open().unwrap();
        for bytes in [10_000, 16, 70_000] {
            let mut client = BulkClient::new(Direction::Recv, bytes);
            let mut here = client.open().unwrap();
            client.connected(&mut here, 5);
            while client.verdict(&here) == Verdict::Open {
                let up = client.output(&here).to_vec();
                client.advance(&mut here, up.len());
                server.input(&mut conn, &up, 6);
                let down = server.output(&conn).to_vec();
                server.advance(&mut conn, down.len());
                client.input(&mut here, &down, 7);
                assert_eq!(server.verdict(&conn), Verdict::Open);
            }
            client.closed(here, End::Ours);
            assert_eq!(client.outcome.unwrap().map(|(_, _, received)| received), Ok(bytes));
        }
    }

    #[test]
    fn all_bytes_arrive_and_wrong_ones_are_seen() {
        let amounts = |direction| match direction {
            Direction::Send => (300_000, 0),
            Direction::Recv => (0, 300_000),
            Direction::Both => (300_000, 300_000),
        };
        for direction in [Direction::Send, Direction::Recv, Direction::Both] {
            for step in [7, 1460, 100_000] {
                assert_eq!(transfer(direction, step, None), Ok(amounts(direction)));
                assert!(transfer(direction, step, Some(200_000)).is_err());
            }
            assert!(transfer(direction, 1460, Some(3)).is_err());
        }
    }
}
