//! One scrape of the metrics over HTTP/1 (RFC 9112): it reads a request head, sends a page and
//! closes.
use super::families::Format;
use httparse::{EMPTY_HEADER, Header, Request};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Longest request head.
const HEAD_MAX: usize = 4096;
/// Most fields of a request head.
const FIELDS_MAX: usize = 64;
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
    /// The client wants the metrics in this format.
    Page(Format),
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

    /// Replies with nothing but a status.
    pub fn refuse(&mut self, status: &str) -> io::Result<bool> {
        self.answer(status, "text/plain", &format!("{status}\n"))
    }

    /// Replies with a page of this type.
    pub fn answer(&mut self, status: &str, media_type: &str, body: &str) -> io::Result<bool> {
        let length = body.len();
        // RFC 9110, section 15.5.6: a reply that refuses a method says which there are.
        let allow = if status == NO_METHOD { "Allow: GET\r\n" } else { "" };
        self.answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\n\
             {allow}Connection: close\r\n\r\n{body}"
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

const NO_METHOD: &str = "405 Method Not Allowed";

/// What to do about this head.
fn next(head: &[u8]) -> Next {
    const TOO_LONG: Next = Next::Refuse("431 Request Header Fields Too Large");
    let mut fields = [EMPTY_HEADER; FIELDS_MAX];
    let mut request = Request::new(&mut fields);
    match request.parse(head) {
        Ok(status) if status.is_complete() => {}
        Ok(_) if head.len() < HEAD_MAX => return Next::Wait,
        Ok(_) | Err(httparse::Error::TooManyHeaders) => return TOO_LONG,
        Err(httparse::Error::Version) => return Next::Refuse("505 HTTP Version Not Supported"),
        Err(_) => return Next::Refuse("400 Bad Request"),
    }
    let path = request.path.and_then(|target| target.split('?').next());
    match (request.method, path) {
        (Some("GET"), Some("/metrics")) => Next::Page(format(request.headers)),
        (Some("GET"), _) => Next::Refuse("404 Not Found"),
        _ => Next::Refuse(NO_METHOD),
    }
}

/// The format that the client asks for. OpenMetrics goes to whom names it, however much he would
/// like the other one.
fn format(fields: &[Header<'_>]) -> Format {
    let accepts = fields.iter().filter(|field| field.name.eq_ignore_ascii_case("accept"));
    let types = accepts.filter_map(|field| std::str::from_utf8(field.value).ok());
    let mut names = types.flat_map(|types| types.split(',')).map(|media| {
        let name = media.split(';').next().unwrap_or_default();
        name.trim().eq_ignore_ascii_case("application/openmetrics-text")
    });
    if names.any(|is_open| is_open) { Format::OpenMetrics } else { Format::Text }
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
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", Next::Page(Format::Text)),
            ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", Next::Page(Format::Text)),
            ("GET /metrics HTTP/1.1\naccept: */*\n\n", Next::Page(Format::Text)),
            ("GET /metr", Next::Wait),
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n", Next::Wait),
            ("GET / HTTP/1.1\r\n\r\n", Next::Refuse("404 Not Found")),
            ("POST /metrics HTTP/1.1\r\n\r\n", Next::Refuse("405 Method Not Allowed")),
            ("\r\n\r\n", Next::Wait),
            ("GET\r\n\r\n", Next::Refuse("400 Bad Request")),
            ("GET /metrics\r\n\r\n", Next::Refuse("400 Bad Request")),
            ("GET /metrics HTTP/1.1\r\nHo st: x\r\n\r\n", Next::Refuse("400 Bad Request")),
            ("GET /metrics HTTP/2.0\r\n\r\n", Next::Refuse("505 HTTP Version Not Supported")),
        ] {
            assert_eq!(next(head.as_bytes()), what, "{head:?}");
        }
        // What the server of Debian 12 sends.
        let accept = "Accept: application/openmetrics-text;version=1.0.0,\
            application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let head = format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{accept}\r\n\r\n");
        assert_eq!(next(head.as_bytes()), Next::Page(Format::OpenMetrics));
        let too_long = Next::Refuse("431 Request Header Fields Too Large");
        assert_eq!(next(&[b'a'; HEAD_MAX]), too_long);
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(FIELDS_MAX + 1));
        assert_eq!(next(many.as_bytes()), too_long);
    }
}
