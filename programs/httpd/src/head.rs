//! The head of a request (RFC 9112 sections 2 to 6): its target, and where its body ends.
use crate::status::Status;
use std::borrow::Cow;

/// Longest accepted head.
pub const HEAD_BYTES: usize = 8 << 10;
/// Most accepted header fields.
const FIELDS: usize = 64;

/// The method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET: the page.
    Get,
    /// HEAD: only the head of its response.
    Head,
    /// A registered method that does not apply to a page in memory.
    Other,
    /// A method that RFC 9110 does not register.
    Unknown,
}

/// How the body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// This many bytes; mostly none.
    Length(u64),
    /// Chunked transfer coding.
    Chunked,
}

/// A complete head.
#[derive(Debug, PartialEq, Eq)]
pub struct Head<'a> {
    /// Its bytes.
    pub len: usize,
    /// The method.
    pub method: Method,
    /// The target's path, decoded.
    pub path: Cow<'a, [u8]>,
    /// HTTP/1.0, not HTTP/1.1.
    pub old: bool,
    /// The client may send more requests.
    pub persistent: bool,
    /// The body.
    pub body: Body,
    /// The client waits for `100 Continue` before it sends the body.
    pub expects_continue: bool,
}

/// Parses the head at the front of `data`. `None`: it is not complete.
pub fn parse(data: &[u8]) -> Option<Result<Head<'_>, Status>> {
    let within = &data[..data.len().min(HEAD_BYTES)];
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(within) {
        Ok(httparse::Status::Complete(len)) => Some(interpret(len, &request)),
        Ok(httparse::Status::Partial) if within.len() < HEAD_BYTES => None,
        Ok(httparse::Status::Partial) if within.contains(&b'\n') => {
            Some(Err(Status::HeaderFieldsTooLarge))
        }
        Ok(httparse::Status::Partial) => Some(Err(Status::UriTooLong)),
        Err(httparse::Error::TooManyHeaders) => Some(Err(Status::HeaderFieldsTooLarge)),
        Err(httparse::Error::Version) => version_error(within),
        Err(_) => Some(Err(Status::BadRequest)),
    }
}

/// Distinguishes HTTP of another version from other protocols. `None`: the line's end is missing.
fn version_error(data: &[u8]) -> Option<Result<Head<'_>, Status>> {
    let end = data.iter().position(|&byte| byte == b'\n');
    let line = match end {
        Some(end) => data[..end].trim_ascii_end(),
        None if data.len() < HEAD_BYTES => return None,
        None => return Some(Err(Status::UriTooLong)),
    };
    let word = line.rsplit(|&byte| byte == b' ').next().unwrap_or(line);
    let digits = word.strip_prefix(b"HTTP/");
    let looks_right = digits.is_some_and(|v| matches!(v, [b'0'..=b'9', b'.', b'0'..=b'9']));
    Some(Err(if looks_right { Status::VersionNotSupported } else { Status::BadRequest }))
}

fn interpret<'a>(len: usize, request: &httparse::Request<'_, 'a>) -> Result<Head<'a>, Status> {
    let old = request.version == Some(0);
    let fields = Fields::read(request.headers)?;
    if fields.hosts > 1 || (fields.hosts == 0 && !old) {
        return Err(Status::BadRequest);
    }
    let method = match request.method.unwrap_or_default() {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" | "PUT" | "DELETE" | "CONNECT" | "OPTIONS" | "TRACE" | "PATCH" => Method::Other,
        _ => Method::Unknown,
    };
    let path = match method {
        Method::Get | Method::Head => path(request.path.unwrap_or_default().as_bytes())?,
        // The forms of other methods' targets are not checked.
        Method::Other | Method::Unknown => Cow::Borrowed(&b""[..]),
    };
    let body = match (fields.codings, fields.length) {
        // Another server on the way may have used either one (RFC 9112 section 11.2).
        (1.., Some(_)) => return Err(Status::BadRequest),
        (1.., None) if old => return Err(Status::BadRequest),
        (1.., None) if fields.only_chunked => Body::Chunked,
        (1.., None) => return Err(Status::NotImplemented),
        (0, length) => Body::Length(length.unwrap_or(0)),
    };
    if fields.expects_other {
        return Err(Status::ExpectationFailed);
    }
    Ok(Head {
        len,
        method,
        path,
        old,
        persistent: !fields.close && (!old || fields.keep_alive),
        body,
        expects_continue: fields.expects_continue && !old && body != Body::Length(0),
    })
}

/// The relevant header fields.
#[derive(Default)]
struct Fields {
    hosts: usize,
    length: Option<u64>,
    codings: usize,
    only_chunked: bool,
    close: bool,
    keep_alive: bool,
    expects_continue: bool,
    expects_other: bool,
}

impl Fields {
    fn read(headers: &[httparse::Header<'_>]) -> Result<Fields, Status> {
        let mut fields = Fields::default();
        for header in headers {
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            match header.name.len() {
                4 if is("host") => fields.hosts += 1,
                6 if is("expect") => match header.value.eq_ignore_ascii_case(b"100-continue") {
                    true => fields.expects_continue = true,
                    false => fields.expects_other = true,
                },
                10 if is("connection") => {
                    for option in list(header.value) {
                        fields.close |= option.eq_ignore_ascii_case(b"close");
                        fields.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                    }
                }
                14 if is("content-length") => fields.add_length(header.value)?,
                17 if is("transfer-encoding") => {
                    for coding in list(header.value) {
                        fields.codings += 1;
                        let chunked = coding.eq_ignore_ascii_case(b"chunked");
                        fields.only_chunked = chunked && fields.codings == 1;
                    }
                    // A field without a coding is suspicious.
                    fields.codings = fields.codings.max(1);
                }
                _ => {}
            }
        }
        Ok(fields)
    }

    /// Parses a length; repetitions of the same one, in a list or another field, are allowed.
    fn add_length(&mut self, value: &[u8]) -> Result<(), Status> {
        for text in value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
            let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
            let length = core::str::from_utf8(text).ok().filter(|_| digits);
            let length = length.ok_or(Status::BadRequest)?;
            // More than 64 bits is a length as well, but is not accepted.
            let length = length.parse().unwrap_or(u64::MAX);
            if self.length.is_some_and(|other| other != length) {
                return Err(Status::BadRequest);
            }
            self.length = Some(length);
        }
        Ok(())
    }
}

/// The elements of a list (RFC 9110 section 5.6.1), empty ones left out.
fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

/// The path of a target in origin or absolute form, decoded.
fn path(target: &[u8]) -> Result<Cow<'_, [u8]>, Status> {
    let path = match target.first() {
        Some(b'/') => target,
        _ => {
            let scheme = target.get(..7).ok_or(Status::BadRequest)?;
            if !scheme.eq_ignore_ascii_case(b"http://") {
                return Err(Status::BadRequest);
            }
            let rest = &target[7..];
            let authority = rest.iter().position(|byte| b"/?#".contains(byte));
            match &rest[authority.unwrap_or(rest.len())..] {
                path @ [b'/', ..] => path,
                _ => b"/",
            }
        }
    };
    let end = path.iter().position(|byte| b"?#".contains(byte)).unwrap_or(path.len());
    decode(&path[..end])
}

/// Decodes percent-encoding (RFC 3986 section 2.1).
fn decode(path: &[u8]) -> Result<Cow<'_, [u8]>, Status> {
    if !path.contains(&b'%') {
        return Ok(Cow::Borrowed(path));
    }
    let mut decoded = Vec::with_capacity(path.len());
    let mut bytes = path.iter();
    while let Some(&byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|&byte| (byte as char).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(Status::BadRequest) };
        decoded.push((high << 4 | low) as u8);
    }
    Ok(Cow::Owned(decoded))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A head with these lines after the request line.
    fn with(line: &str, fields: &[&str]) -> String {
        let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        format!("{line}\r\n{fields}\r\n")
    }

    #[track_caller]
    fn accepted(text: &str) -> Head<'_> {
        parse(text.as_bytes()).expect("complete").expect("accepted")
    }

    #[track_caller]
    fn refused(text: &str) -> Status {
        parse(text.as_bytes()).expect("complete").expect_err("refused")
    }

    #[test]
    fn targets() {
        for (target, path) in [
            ("/", "/"),
            ("/a/b.html?x=/y", "/a/b.html"),
            ("/a%20b%2Fc", "/a b/c"),
            ("http://h", "/"),
            ("HTTP://h:80/p?q", "/p"),
            ("http://h?q", "/"),
            ("/a#f", "/a"),
        ] {
            let text = with(&format!("GET {target} HTTP/1.1"), &["Host: h"]);
            assert_eq!(*accepted(&text).path, *path.as_bytes(), "{target}");
        }
        for target in ["*", "x", "/%", "/%4", "/%zz", "https://h/", "ftp://h/"] {
            let text = with(&format!("GET {target} HTTP/1.1"), &["Host: h"]);
            assert_eq!(refused(&text), Status::BadRequest, "{target}");
        }
        for line in ["OPTIONS * HTTP/1.1", "CONNECT h:80 HTTP/1.1", "POST / HTTP/1.1"] {
            assert_eq!(accepted(&with(line, &["Host: h"])).method, Method::Other);
        }
        assert_eq!(accepted(&with("BREW / HTTP/1.1", &["Host: h"])).method, Method::Unknown);
    }

    #[test]
    fn persistence() {
        for (version, field, persistent) in [
            ("1.1", "X: y", true),
            ("1.1", "Connection: close", false),
            ("1.1", "connection: Foo , CLOSE", false),
            ("1.0", "X: y", false),
            ("1.0", "Connection: Keep-Alive", true),
            ("1.0", "Connection: keep-alive, close", false),
        ] {
            let text = with(&format!("GET / HTTP/{version}"), &["Host: h", field]);
            assert_eq!(accepted(&text).persistent, persistent, "{version} {field}");
        }
    }

    #[test]
    fn bodies() {
        let post = |fields: &[&str]| with("POST / HTTP/1.1", &[&["Host: h"], fields].concat());
        assert_eq!(accepted(&post(&[])).body, Body::Length(0));
        assert_eq!(accepted(&post(&["Content-Length: 12"])).body, Body::Length(12));
        assert_eq!(accepted(&post(&["Content-Length: 12, 12"])).body, Body::Length(12));
        assert_eq!(accepted(&post(&["Transfer-Encoding: Chunked"])).body, Body::Chunked);
        let huge = post(&["Content-Length: 99999999999999999999999"]);
        assert_eq!(accepted(&huge).body, Body::Length(u64::MAX));
        for fields in [
            &["Content-Length: 1", "Content-Length: 2"][..],
            &["Content-Length: +1"],
            &["Content-Length: -1"],
            &["Content-Length: 0x1"],
            &["Content-Length:"],
            &["Content-Length: 1", "Transfer-Encoding: chunked"],
        ] {
            assert_eq!(refused(&post(fields)), Status::BadRequest, "{fields:?}");
        }
        for coding in ["gzip", "gzip, chunked", "chunked, chunked", "chunked, gzip", ""] {
            let text = post(&[&format!("Transfer-Encoding: {coding}")]);
            assert_eq!(refused(&text), Status::NotImplemented, "{coding}");
        }
        let old = with("POST / HTTP/1.0", &["Transfer-Encoding: chunked"]);
        assert_eq!(refused(&old), Status::BadRequest);
        let expecting = post(&["Content-Length: 1", "Expect: 100-Continue"]);
        assert!(accepted(&expecting).expects_continue);
        assert!(!accepted(&post(&["Expect: 100-continue"])).expects_continue, "without a body");
        assert_eq!(refused(&post(&["Expect: wonders"])), Status::ExpectationFailed);
    }

    #[test]
    fn heads_that_are_none() {
        for (text, status) in [
            (with("GET / HTTP/2.0", &[]), Status::VersionNotSupported),
            (with("GET / HTTP/1.2", &["Host: h"]), Status::VersionNotSupported),
            (with("GET / FTP/1.1", &[]), Status::BadRequest),
            (with("GET /", &[]), Status::BadRequest),
            (with("GET / HTTP/1.1", &[]), Status::BadRequest),
            (with("GET / HTTP/1.1", &["Host: a", "Host: b"]), Status::BadRequest),
            (with("GET / HTTP/1.1", &["Host: a", "Bad Name: b"]), Status::BadRequest),
            (with("GET / HTTP/1.1", &["Host: a", " folded"]), Status::BadRequest),
            ("\x16\x03\x01\x02".to_owned(), Status::BadRequest),
            (with("GET / HTTP/1.1", &["A: b"; 65]), Status::HeaderFieldsTooLarge),
            (with(&format!("GET /{} HTTP/1.1", "x".repeat(9000)), &[]), Status::UriTooLong),
            (
                with("GET / HTTP/1.1", &["Host: h", &format!("X: {}", "x".repeat(9000))]),
                Status::HeaderFieldsTooLarge,
            ),
        ] {
            assert_eq!(refused(&text), status, "{text:.60}");
        }
        for text in ["GET / HTTP/1.1\r\nHost: h\r\n", "GET", "GET / HTTP/2", ""] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }
}
