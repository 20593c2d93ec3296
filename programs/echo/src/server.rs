//! The echo protocol of a server, as in IX's echoserver: a reply is sent when the whole message has
//! arrived.
use crate::args::Args;
use ix_programs::{End, Service, Verdict};
use std::time::{Duration, Instant};

/// Limits of a server.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Most connections at one time.
    pub connections: usize,
    /// Messages of a connection, which is then closed.
    pub messages: u64,
    /// Work for each message: time for which the processor is kept busy.
    pub work: Duration,
}

impl Limits {
    /// From the command line.
    pub fn of(args: &Args) -> Limits {
        Limits {
            connections: args.max_conn.unwrap_or(usize::MAX),
            messages: args.messages_per_connection.unwrap_or(u64::MAX),
            work: Duration::from_nanos((args.work_us * 1000.0) as u64),
        }
    }

    /// Does the work of this many messages.
    pub fn work(&self, messages: u64) {
        if self.work.is_zero() {
            return;
        }
        let (start, length) = (Instant::now(), self.work.saturating_mul(messages as u32));
        while start.elapsed() < length {
            std::hint::spin_loop();
        }
    }
}

/// Echoes messages of a fixed size.
pub struct EchoServer {
    size: usize,
    limits: Limits,
    live: usize,
}

/// Received bytes, and how many of them were echoed.
#[derive(Default)]
pub struct Messages {
    bytes: Vec<u8>,
    answered: usize,
    /// Messages echoed in full.
    done: u64,
}

impl EchoServer {
    /// For messages of `size` bytes.
    pub fn new(size: usize, limits: Limits) -> EchoServer {
        EchoServer { size, limits, live: 0 }
    }
}

impl Service for EchoServer {
    type Conn = Messages;

    fn open(&mut self) -> Option<Messages> {
        let room = self.live < self.limits.connections;
        self.live += usize::from(room);
        room.then(Messages::default)
    }

    fn input(&mut self, conn: &mut Messages, data: &[u8], _: u64) {
        conn.bytes.extend_from_slice(data);
    }

    fn output<'a>(&'a self, conn: &'a Messages) -> &'a [u8] {
        // `answered` counts from the start of a message, so whole messages end at multiples.
        let whole = conn.bytes.len() / self.size * self.size;
        &conn.bytes[conn.answered..whole.max(conn.answered)]
    }

    fn advance(&mut self, conn: &mut Messages, bytes: usize) {
        conn.answered += bytes;
        let whole = conn.answered / self.size * self.size;
        if whole > 0 && conn.answered == whole {
            conn.bytes.drain(..whole);
            conn.answered = 0;
            let messages = (whole / self.size) as u64;
            conn.done += messages;
            self.limits.work(messages);
        }
    }

    fn verdict(&self, conn: &Messages) -> Verdict {
        if conn.done >= self.limits.messages { Verdict::Close } else { Verdict::Open }
    }

    fn closed(&mut self, _: Messages, _: End) -> bool {
        self.live -= 1;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_before_the_whole_message() {
        let mut server =
            EchoServer::new(4, Limits { connections: 1, messages: 5, work: Duration::ZERO });
        let mut conn = server.open().unwrap();
        assert!(server.open().is_none());
        server.input(&mut conn, b"abc", 0);
        assert_eq!(server.output(&conn), b"");
        server.input(&mut conn, b"defghi", 0);
        assert_eq!(server.output(&conn), b"abcdefgh");
        server.advance(&mut conn, 3);
        assert_eq!(server.output(&conn), b"defgh");
        server.advance(&mut conn, 1);
        assert_eq!(server.output(&conn), b"efgh");
        server.advance(&mut conn, 4);
        server.input(&mut conn, b"jkl", 0);
        assert_eq!(server.output(&conn), b"ijkl");
        assert_eq!(server.verdict(&conn), Verdict::Open);
        server.advance(&mut conn, 4);
        server.input(&mut conn, b"mnopqrst", 0);
        server.advance(&mut conn, 8);
        assert_eq!(server.verdict(&conn), Verdict::Close);
        server.closed(conn, End::Eof);
        assert!(server.open().is_some());
    }
}
