//! One connection without input and output: request bytes in, responses out.
use crate::chunked::{Chunked, Progress};
use crate::head::{self, Body, HEAD_BYTES, Head, Method};
use crate::site::Site;
use crate::status::Status;

/// Longest request body that is read to its end; a longer one ends the connection.
pub const BODY_BYTES: u64 = 1 << 20;

/// Content of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A page of the site.
    Page(u32),
    /// An error.
    Status(Status),
    /// `100 Continue`; the response proper follows.
    Continue,
}

/// What a response states about the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing: it stays open, as in HTTP/1.1.
    Implied,
    /// `Connection: keep-alive`, for HTTP/1.0.
    KeepAlive,
    /// `Connection: close`: this is the last response.
    Close,
}

/// One response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its content.
    pub what: What,
    /// Whether the connection stays open.
    pub persistence: Persistence,
    /// Without the body: the response to `HEAD`.
    pub head_only: bool,
}

impl Answer {
    /// An error after which the connection ends.
    pub fn last(status: Status) -> Answer {
        let what = What::Status(status);
        Answer { what, persistence: Persistence::Close, head_only: false }
    }
}

/// State of a connection.
#[derive(Debug)]
enum State {
    /// In a head, or between requests.
    Head,
    /// In a body of which this many bytes are missing; then the response.
    Body(u64, Answer),
    /// In a chunked body; then the response.
    Chunked(Chunked, Answer),
    /// The last response was given.
    Over,
}

/// One connection.
#[derive(Debug)]
pub struct Session {
    state: State,
    /// The beginning of an incomplete head.
    partial: Vec<u8>,
}

impl Default for Session {
    fn default() -> Session {
        Session { state: State::Head, partial: Vec::new() }
    }
}

impl Session {
    /// Whether a request has begun and has no response yet.
    pub fn in_request(&self) -> bool {
        match self.state {
            State::Head => !self.partial.is_empty(),
            State::Body(..) | State::Chunked(..) => true,
            State::Over => false,
        }
    }

    /// Whether the last response was given: further input is dropped.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// The request did not arrive in time.
    pub fn time_out(&mut self) -> Answer {
        self.state = State::Over;
        Answer::last(Status::RequestTimeout)
    }

    /// Reads from the front of `data`: returns how many bytes, and the resulting response. Without
    /// a response, all of `data` was read.
    pub fn read(&mut self, data: &[u8], site: &Site) -> (usize, Option<Answer>) {
        let mut at = 0;
        let mut answer = None;
        while at < data.len() && answer.is_none() {
            let rest = &data[at..];
            let (used, next) = match &mut self.state {
                State::Over => (rest.len(), None),
                State::Head => self.read_head(rest, site),
                State::Body(left, then) => {
                    let used = (*left).min(rest.len() as u64);
                    *left -= used;
                    (used as usize, (*left == 0).then_some(*then))
                }
                State::Chunked(chunked, then) => {
                    let (used, progress) = chunked.read(rest);
                    let next = match progress {
                        Progress::More => None,
                        Progress::End => Some(*then),
                        Progress::Bad => Some(Answer::last(Status::BadRequest)),
                        Progress::TooLong => Some(Answer::last(Status::ContentTooLarge)),
                    };
                    (used, next)
                }
            };
            at += used;
            if let Some(Answer { what, persistence, .. }) = next {
                answer = next;
                if persistence == Persistence::Close {
                    self.state = State::Over;
                } else if what != What::Continue {
                    self.state = State::Head;
                }
            }
        }
        (at, answer)
    }

    /// Parses a head in pieces of any length.
    fn read_head(&mut self, data: &[u8], site: &Site) -> (usize, Option<Answer>) {
        if self.partial.is_empty() {
            // Empty lines before a request are ignored (RFC 9112 section 2.2).
            let blank = data.iter().take_while(|byte| b"\r\n".contains(byte)).count();
            if blank > 0 {
                return (blank, None);
            }
            return match head::parse(data) {
                Some(outcome) => self.begin(outcome, data.len(), 0, site),
                None => {
                    self.partial.extend_from_slice(data);
                    (data.len(), None)
                }
            };
        }
        let before = self.partial.len();
        let new = &data[..data.len().min(HEAD_BYTES - before)];
        self.partial.extend_from_slice(new);
        // Only the end of a line can complete a head, or show an error.
        if !new.contains(&b'\n') && self.partial.len() < HEAD_BYTES {
            return (new.len(), None);
        }
        let partial = core::mem::take(&mut self.partial);
        match head::parse(&partial) {
            Some(outcome) => self.begin(outcome, new.len(), before, site),
            None => {
                self.partial = partial;
                (new.len(), None)
            }
        }
    }

    /// Continues after a head of which `before` bytes had been read earlier.
    fn begin(
        &mut self,
        outcome: Result<Head<'_>, Status>,
        bytes: usize,
        before: usize,
        site: &Site,
    ) -> (usize, Option<Answer>) {
        let head = match outcome {
            Ok(head) => head,
            Err(status) => return (bytes, Some(Answer::last(status))),
        };
        let used = head.len - before;
        let mut answer = answer_to(&head, site);
        match head.body {
            Body::Length(0) => return (used, Some(answer)),
            Body::Length(length) if length > BODY_BYTES => {
                return (used, Some(Answer::last(Status::ContentTooLarge)));
            }
            Body::Length(length) => self.state = State::Body(length, answer),
            Body::Chunked => self.state = State::Chunked(Chunked::new(BODY_BYTES), answer),
        }
        if !head.expects_continue {
            return (used, None);
        }
        answer.what = What::Continue;
        answer.persistence = Persistence::Implied;
        (used, Some(answer))
    }
}

fn answer_to(head: &Head<'_>, site: &Site) -> Answer {
    let what = match head.method {
        Method::Get | Method::Head => {
            site.find(&head.path).map_or(What::Status(Status::NotFound), What::Page)
        }
        Method::Other => What::Status(Status::MethodNotAllowed),
        Method::Unknown => What::Status(Status::NotImplemented),
    };
    let persistence = match (head.persistent, head.old) {
        (false, _) => Persistence::Close,
        (true, true) => Persistence::KeepAlive,
        (true, false) => Persistence::Implied,
    };
    Answer { what, persistence, head_only: head.method == Method::Head }
}

#[cfg(test)]
mod tests;
