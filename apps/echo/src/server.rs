//! The echo protocol of a server, as IX's echoserver has it: an answer is held until the whole
//! message has come.
use ix_apps::{End, Service};

/// Echoes messages of a fixed size.
pub struct EchoServer {
    size: usize,
    max_conn: usize,
    live: usize,
}

/// Bytes that came, and how many of them were answered.
#[derive(Default)]
pub struct Messages {
    bytes: Vec<u8>,
    answered: usize,
}

impl EchoServer {
    /// For so many connections at most.
    pub fn new(size: usize, max_conn: Option<usize>) -> EchoServer {
        EchoServer { size, max_conn: max_conn.unwrap_or(usize::MAX), live: 0 }
    }
}

impl Service for EchoServer {
    type Conn = Messages;

    fn open(&mut self) -> Option<Messages> {
        let room = self.live < self.max_conn;
        self.live += usize::from(room);
        room.then(Messages::default)
    }

    fn input(&mut self, conn: &mut Messages, data: &[u8], _: u64) {
        conn.bytes.extend_from_slice(data);
    }

    fn output<'a>(&'a self, conn: &'a Messages) -> &'a [u8] {
        // `answered` counts from the start of a message, and so whole messages end at multiples.
        let whole = conn.bytes.len() / self.size * self.size;
        &conn.bytes[conn.answered..whole.max(conn.answered)]
    }

    fn advance(&mut self, conn: &mut Messages, bytes: usize) {
        conn.answered += bytes;
        let whole = conn.answered / self.size * self.size;
        if whole > 0 && conn.answered == whole {
            conn.bytes.drain(..whole);
            conn.answered = 0;
        }
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
        let mut server = EchoServer::new(4, Some(1));
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
        server.closed(conn, End::Eof);
        assert!(server.open().is_some());
    }
}
