//! The bytes of responses, ready in memory that can be sent from again and again.
//!
//! Pages never change, so their bodies are put into sendable memory once. Heads carry the date:
//! each one is written at most once per second, and then shared by all responses of that second. A
//! short page is written after its head, so that the response is one piece.
use crate::session::{Answer, Persistence, What};
use crate::site::Site;
use crate::status::Status;
use std::io::Write;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest body that is written after its head: both together fill a small block of transmit
/// memory.
const INLINE_BYTES: usize = 2048 - 256;
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
const PERSISTENCES: usize = 3;

/// Memory that can be sent from.
pub trait Memory {
    /// A piece of the memory; clones are the same piece.
    type Block: Deref<Target = [u8]> + Clone;
    /// Longest block.
    const LARGEST_BYTES: usize;

    /// A block with this content, of [`Memory::LARGEST_BYTES`] at most; `None`: no memory now.
    fn block(&self, content: &[u8]) -> Option<Self::Block>;
}

/// A head, perhaps with the body after it.
struct Written<B> {
    second: u64,
    block: B,
    head_bytes: usize,
}

/// The responses of one thread.
pub struct Answers<M: Memory> {
    memory: M,
    site: Arc<Site>,
    /// Bodies that are not written after their heads, page by page.
    bodies: Vec<Vec<M::Block>>,
    /// For each page and status, one for each [`Persistence`].
    heads: Vec<Option<Written<M::Block>>>,
    go_on: Option<M::Block>,
    scratch: Vec<u8>,
    date: Date,
}

impl<M: Memory> Answers<M> {
    /// Without any page in memory: see [`Answers::load`].
    pub fn new(memory: M, site: Arc<Site>) -> Answers<M> {
        let entries = site.pages().len() + Status::ALL.len();
        Answers {
            memory,
            bodies: Vec::with_capacity(site.pages().len()),
            heads: (0..entries * PERSISTENCES).map(|_| None).collect(),
            site,
            go_on: None,
            scratch: Vec::with_capacity(2 * INLINE_BYTES),
            date: Date::default(),
        }
    }

    /// Puts pages into memory; returns whether all are there. If not, there is no memory now: call
    /// it again later.
    pub fn load(&mut self) -> bool {
        while let Some(page) = self.site.pages().get(self.bodies.len()) {
            let inline = page.body.len() <= INLINE_BYTES;
            let body = if inline { &[][..] } else { &page.body };
            let blocks = body.chunks(M::LARGEST_BYTES);
            let Some(blocks) = blocks.map(|c| self.memory.block(c)).collect() else {
                return false;
            };
            self.bodies.push(blocks);
        }
        if self.go_on.is_none() {
            self.go_on = self.memory.block(CONTINUE);
        }
        self.go_on.is_some()
    }

    /// The site.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// Updates the date when a second has passed; `now_us` is of any monotonic clock.
    #[inline]
    pub fn set_time(&mut self, now_us: u64, wall: impl FnOnce() -> SystemTime) {
        if now_us >= self.date.expires_us {
            self.date.renew(now_us, wall());
        }
    }

    /// Appends the pieces of a response, in order; `false`: there is no memory now, and nothing was
    /// appended.
    pub fn give(&mut self, answer: Answer, mut piece: impl FnMut(&M::Block, Range<usize>)) -> bool {
        let entry = match answer.what {
            What::Page(page) => page as usize,
            What::Status(status) => self.site.pages().len() + status.index(),
            What::Continue => {
                let Some(block) = &self.go_on else { return false };
                piece(block, 0..CONTINUE.len());
                return true;
            }
        };
        let slot = entry * PERSISTENCES + answer.persistence as usize;
        let current = self.heads[slot].as_ref().is_some_and(|w| w.second == self.date.second);
        if !current && !self.write(slot, answer) {
            return false;
        }
        let Some(written) = &self.heads[slot] else { return false };
        if answer.head_only {
            piece(&written.block, 0..written.head_bytes);
            return true;
        }
        piece(&written.block, 0..written.block.len());
        for block in self.bodies.get(entry).into_iter().flatten() {
            piece(block, 0..block.len());
        }
        true
    }

    /// Writes a head, and a short body after it.
    fn write(&mut self, slot: usize, answer: Answer) -> bool {
        let mut text = core::mem::take(&mut self.scratch);
        text.clear();
        let head_bytes = self.format(&mut text, answer);
        let mut block = self.memory.block(&text);
        if block.is_none() {
            // Frees unused heads of past seconds.
            let second = self.date.second;
            let stale = |head: &mut Option<Written<_>>| head.take_if(|h| h.second != second);
            self.heads.iter_mut().for_each(|head| drop(stale(head)));
            block = self.memory.block(&text);
        }
        self.scratch = text;
        let Some(block) = block else { return false };
        self.heads[slot] = Some(Written { second: self.date.second, block, head_bytes });
        true
    }

    fn format(&self, text: &mut Vec<u8>, answer: Answer) -> usize {
        let (status, media_type, body) = match answer.what {
            What::Page(page) => {
                let page = &self.site.pages()[page as usize];
                ("200 OK", page.media_type, &page.body[..])
            }
            What::Status(status) => (status.text(), "text/plain", status.text().as_bytes()),
            What::Continue => ("100 Continue", "text/plain", &b""[..]),
        };
        // Writing to a vector cannot fail.
        let _ = write!(
            text,
            "HTTP/1.1 {status}\r\nServer: ix-httpd\r\nDate: {}\r\nContent-Type: {media_type}\r\n\
             Content-Length: {}\r\n",
            self.date.text,
            body.len(),
        );
        if answer.what == What::Status(Status::MethodNotAllowed) {
            text.extend(b"Allow: GET, HEAD\r\n");
        }
        match answer.persistence {
            Persistence::Implied => {}
            Persistence::KeepAlive => text.extend(b"Connection: keep-alive\r\n"),
            Persistence::Close => text.extend(b"Connection: close\r\n"),
        }
        text.extend(b"\r\n");
        let head_bytes = text.len();
        if body.len() <= INLINE_BYTES {
            text.extend(body);
        }
        head_bytes
    }
}

/// The date of this second.
#[derive(Default)]
struct Date {
    second: u64,
    text: String,
    expires_us: u64,
}

impl Date {
    fn renew(&mut self, now_us: u64, wall: SystemTime) {
        let since = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.second = since.as_secs();
        self.text = httpdate::fmt_http_date(UNIX_EPOCH + since);
        self.expires_us = now_us + 1_000_000 - u64::from(since.subsec_micros());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::time::Duration;

    /// Memory with room for this many blocks.
    struct Few(Cell<usize>);
    impl Memory for Few {
        type Block = Vec<u8>;
        const LARGEST_BYTES: usize = 4096;
        fn block(&self, content: &[u8]) -> Option<Vec<u8>> {
            assert!(content.len() <= Self::LARGEST_BYTES);
            let left = self.0.get().checked_sub(1)?;
            self.0.set(left);
            Some(content.to_vec())
        }
    }

    fn answers(blocks: usize) -> Answers<Few> {
        let mut site = Site::new(1 << 20);
        site.add_synthetic(5).unwrap();
        site.add_synthetic(10_000).unwrap();
        Answers::new(Few(Cell::new(blocks)), Arc::new(site))
    }

    fn at(seconds_ms: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(seconds_ms)
    }

    fn text(answers: &mut Answers<Few>, answer: Answer) -> Option<(String, usize)> {
        let (mut bytes, mut pieces) = (Vec::new(), 0);
        let given = answers.give(answer, |block, range| {
            bytes.extend(&block[range]);
            pieces += 1;
        });
        given.then(|| (String::from_utf8(bytes).unwrap(), pieces))
    }

    const GET: Answer =
        Answer { what: What::Page(0), persistence: Persistence::Implied, head_only: false };

    #[test]
    fn answers_are_complete() {
        let mut answers = answers(100);
        assert!(answers.load());
        // RFC 9110 section 5.6.7 has this date.
        answers.set_time(0, || at(784_111_777_000));
        let head = "HTTP/1.1 200 OK\r\nServer: ix-httpd\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
                    Content-Type: text/plain; charset=utf-8\r\nContent-Length: 5\r\n";
        assert_eq!(text(&mut answers, GET), Some((format!("{head}\r\nAll w"), 1)));
        let only_head = Answer { head_only: true, ..GET };
        assert_eq!(text(&mut answers, only_head), Some((format!("{head}\r\n"), 1)));
        let last = Answer { persistence: Persistence::Close, ..GET };
        let wanted = format!("{head}Connection: close\r\n\r\nAll w");
        assert_eq!(text(&mut answers, last), Some((wanted, 1)));
        let (long, pieces) = text(&mut answers, Answer { what: What::Page(1), ..GET }).unwrap();
        assert!(long.contains("Content-Length: 10000\r\n") && pieces == 4);
        assert_eq!(long.split_once("\r\n\r\n").unwrap().1.len(), 10_000);
        let not_allowed = Answer { what: What::Status(Status::MethodNotAllowed), ..GET };
        let (refusal, _) = text(&mut answers, not_allowed).unwrap();
        assert!(refusal.contains("Allow: GET, HEAD\r\n"), "{refusal}");
        let go_on = Answer { what: What::Continue, ..GET };
        assert_eq!(text(&mut answers, go_on), Some(("HTTP/1.1 100 Continue\r\n\r\n".into(), 1)));
    }

    #[test]
    fn the_date_is_written_once_a_second() {
        // The long page's three blocks and `100 Continue`.
        let mut answers = answers(4 + 2);
        assert!(answers.load());
        answers.set_time(7_000_000, || at(1_400));
        let first = text(&mut answers, GET).unwrap().0;
        answers.set_time(7_599_999, || panic!("not yet"));
        assert_eq!(text(&mut answers, GET).unwrap().0, first);
        answers.set_time(7_600_000, || at(2_000));
        assert_ne!(text(&mut answers, GET).unwrap().0, first);
        answers.set_time(8_600_000, || at(3_000));
        assert_eq!(text(&mut answers, GET), None, "memory was for two heads");
    }

    #[test]
    fn loading_goes_on_when_memory_comes() {
        let mut answers = answers(2);
        assert!(!answers.load());
        answers.memory.0.set(4);
        assert!(answers.load());
    }
}
