//! One scrape of the metrics over HTTP: it reads a request head, sends a page and closes.
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Longest request head.
const HEAD_MAX: usize = 4096;
/// Longest that one scrape may take.
const TIME_MAX: Duration = Duration::from_secs(5);

/// A client that wants metrics.
pub struct Scrape {
    pub stream: TcpStream,
    head: Vec<u8>,
    answer: Vec<u8>,
    sent: usize,
    pub until: Instant,
}

/// What to do about a scrape.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// The request is not complete yet.
    Wait,
    /// The client wants the metrics.
    Page,
    /// The client gets only this status.
    Refuse(&'static str),
}

impl Scrape {
    pub fn new(stream: TcpStream, now: Instant) -> io::Result<Scrape> {
        stream.set_nonblocking(true)?;
        let (head, answer) = (Vec::new(), Vec::new());
        Ok(Scrape { stream, head, answer, sent: 0, until: now + TIME_MAX })
    }

    /// Reads what has arrived.
    pub fn receive(&mut self) -> io::Result<Next> {
        let mut bytes = [0; HEAD_MAX];
        let room = HEAD_MAX - self.head.len();
        match (&self.stream).read(&mut bytes[..room]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => self.head.extend(&bytes[..n]),
            Err(e) if is_later(&e) => {}
            Err(e) => return Err(e),
        }
        Ok(next(&self.head))
    }

    /// Replies with a page of this type.
    pub fn answer(&mut self, status: &str, media_type: &str, body: &str) -> io::Result<bool> {
        let length = body.len();
        self.answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{body}"
        )
        .into_bytes();
        self.flush()
    }

    /// Whether the reply is set.
    pub fn is_answered(&self) -> bool {
        !self.answer.is_empty()
    }

    /// Sends what the socket takes; returns whether that was all.
    pub fn flush(&mut self) -> io::Result<bool> {
        while self.sent < self.answer.len() {
            match (&self.stream).write(&self.answer[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if is_later(&e) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        // Data that the client still sends must not reset the connection before it has read the
        // page.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        Ok(true)
    }
}

/// What to do about this head.
fn next(head: &[u8]) -> Next {
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let whole = head.windows(4).any(|end| end == b"\r\n\r\n");
    if !whole {
        let long = head.len() >= HEAD_MAX;
        return if long { Next::Refuse("431 Request Header Fields Too Large") } else { Next::Wait };
    }
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_ascii_whitespace();
    let (method, target) = (words.next(), words.next());
    let http = words.next().is_some_and(|version| version.starts_with("HTTP/1."));
    let path = target.and_then(|target| target.split('?').next());
    match (method, path) {
        _ if !http => Next::Refuse("400 Bad Request"),
        (Some("GET"), Some("/metrics")) => Next::Page,
        (Some("GET"), _) => Next::Refuse("404 Not Found"),
        _ => Next::Refuse("405 Method Not Allowed"),
    }
}

fn is_later(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_metrics_are_there() {
        for (head, what) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", Next::Page),
            ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", Next::Page),
            ("GET /metr", Next::Wait),
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n", Next::Wait),
            ("GET / HTTP/1.1\r\n\r\n", Next::Refuse("404 Not Found")),
            ("POST /metrics HTTP/1.1\r\n\r\n", Next::Refuse("405 Method Not Allowed")),
            ("\r\n\r\n", Next::Refuse("400 Bad Request")),
            ("GET /metrics SPDY/3\r\n\r\n", Next::Refuse("400 Bad Request")),
        ] {
            assert_eq!(next(head.as_bytes()), what, "{head:?}");
        }
        let long = vec![b'a'; HEAD_MAX];
        assert_eq!(next(&long), Next::Refuse("431 Request Header Fields Too Large"));
    }
}
