//! HTTP/1.1 `GET` of one page over connections that stay open.
use super::{Ask, Datagram, Outcome, Partial, Protocol, Step, excerpt};
use crate::fault::Fault;
use ix_random::mix;

/// Longest head of a reply.
const HEAD_MOST: usize = 16 << 10;
/// Start of every reply.
const VERSION: &[u8] = b"HTTP/1.";
const BODY: u8 = 1;

/// Requests for one path. All replies must have the same length and bytes as the first.
pub struct Http {
    request: Vec<u8>,
    verify: bool,
    /// Length of the page, from the first reply.
    length: Option<u32>,
    /// Its hash, from the first reply.
    hash: Option<u32>,
}

impl Http {
    /// `host` is the server's name for the `Host` field.
    pub fn new(host: &str, path: &str, verify: bool) -> Http {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
        Http { request, verify, length: None, hash: None }
    }
}

/// Length of the head with its empty line.
fn head_end(data: &[u8]) -> Option<usize> {
    data.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// Returns the length of the body, or why the reply is wrong.
fn read_head(head: &[u8]) -> Result<u32, Step> {
    let text = std::str::from_utf8(head)
        .map_err(|_| Step::Wrong(Fault::BadReply, format!("the head is {}", excerpt(head))))?;
    let mut lines = text.split("\r\n");
    let status = lines.next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("200") {
        return Err(Step::Wrong(Fault::ServerError, format!("the server returned `{status}`")));
    }
    let field = |wanted: &str| {
        text.split("\r\n").skip(1).find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case(wanted).then(|| value.trim())
        })
    };
    field("content-length").and_then(|length| length.parse().ok()).ok_or_else(|| {
        let what = "a reply without Content-Length; chunked pages are not supported";
        Step::Wrong(Fault::BadReply, what.to_string())
    })
}

/// A running hash that does not depend on how the bytes are split.
fn hash(start: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(start, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

impl Protocol for Http {
    fn next(&mut self) -> Option<Ask> {
        Some(Ask::default())
    }

    fn encode(&mut self, _: &Ask, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.request);
    }

    fn decode(&mut self, _: &Ask, partial: &mut Partial, data: &[u8]) -> Step {
        let mut at = 0;
        if partial.stage == 0 {
            let begin = &data[..data.len().min(VERSION.len())];
            if !VERSION.starts_with(begin) {
                return Step::Wrong(Fault::BadReply, format!("no HTTP: {}", excerpt(data)));
            }
            let Some(end) = head_end(&data[..data.len().min(HEAD_MOST)]) else {
                let what = format!("no end of the head in {}", excerpt(data));
                let long = data.len() >= HEAD_MOST;
                return if long { Step::Wrong(Fault::BadReply, what) } else { Step::More(0) };
            };
            match read_head(&data[..end]) {
                Ok(bytes) => *partial = Partial { stage: BODY, bytes, word: mix(1) as u32 },
                Err(step) => return step,
            }
            let expected = *self.length.get_or_insert(partial.bytes);
            if expected != partial.bytes {
                let what = format!("a page of {expected} bytes before, now of {}", partial.bytes);
                return Step::Wrong(Fault::WrongLength, what);
            }
            at = end;
        }
        let n = (data.len() - at).min(partial.bytes as usize);
        if self.verify {
            partial.word = hash(partial.word, &data[at..at + n]);
        }
        partial.bytes -= n as u32;
        at += n;
        if partial.bytes > 0 {
            return Step::More(at);
        }
        if self.verify && *self.hash.get_or_insert(partial.word) != partial.word {
            let what = "the page differs from the first reply".to_string();
            return Step::Wrong(Fault::WrongValue, what);
        }
        Step::Done(at, Outcome::Done)
    }

    fn encode_datagram(&mut self, ask: &Ask, out: &mut Vec<u8>) {
        self.encode(ask, out);
    }

    fn datagram<'a>(&self, _: &'a [u8]) -> Option<Datagram<'a>> {
        None
    }
}
