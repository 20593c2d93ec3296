//! One connection: bytes in, replies out, without its own input or output.
//!
//! Requests are parsed in place. Only the beginning of an incomplete request is kept here
//! ([`Session::feed`]), and it is short: values go to their item as they arrive, and the keys of a
//! long `get` are replied to one by one.
use crate::context::Context;
use crate::reply::Reply;
use crate::store::{Draft, How, Outcome};
use crate::{ascii, binary};

/// Bytes by which a request in pieces is completed.
const CARRY_STEP: usize = 512;
/// Capacity that is kept for the next such request.
const CARRY_KEPT: usize = 1024;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    /// Nothing was received yet.
    Unknown,
    Ascii,
    Binary,
}

/// How to reply with the result of storing a value.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    Ascii { noreply: bool },
    Binary(binary::Request),
}

/// A value that is being received.
pub(crate) struct Upload {
    pub draft: Draft,
    pub how: How,
    /// Number that the item must have; 0: any.
    pub cas: u64,
    pub have: usize,
    pub len: usize,
    /// The two bytes after a value in ASCII.
    pub tail: [u8; 2],
    pub answer: Answer,
}

/// What comes next on the connection.
pub(crate) enum State {
    /// A request.
    Request,
    /// The rest of a value.
    Value(Upload),
    /// This many bytes to skip.
    Swallow(u64),
    /// Keys, up to the end of the line.
    Keys(ascii::Keys),
    /// The rest of a line to skip.
    Line,
    /// Nothing: the connection is closed.
    Closed,
}

/// How far a request was parsed.
pub(crate) enum Step {
    /// This many bytes were handled.
    Done(usize),
    /// More bytes are needed.
    More,
}

/// One connection.
pub struct Session {
    protocol: Protocol,
    pub(crate) state: State,
    /// Beginning of an incomplete request.
    carry: Vec<u8>,
}

impl Default for Session {
    fn default() -> Session {
        Session { protocol: Protocol::Unknown, state: State::Request, carry: Vec::new() }
    }
}

impl Session {
    /// Whether to close the connection after the reply.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    fn stops(&self, reply: &Reply) -> bool {
        reply.is_full() || self.is_closed()
    }

    /// Carries out requests and returns how many bytes were taken: all, unless the reply is full
    /// (feed the rest after sending it, also if the rest is empty) or the connection is closed.
    #[inline]
    pub fn feed(&mut self, input: &[u8], context: &Context<'_>, reply: &mut Reply) -> usize {
        let mut taken = 0;
        if !self.carry.is_empty() {
            taken = self.complete(input, context, reply);
            if !self.carry.is_empty() {
                return taken;
            }
        }
        taken += self.process(&input[taken..], context, reply);
        if taken < input.len() && !self.stops(reply) {
            self.carry.extend_from_slice(&input[taken..]);
            taken = input.len();
        }
        taken
    }

    /// Adds to the beginning of a request until it is complete.
    fn complete(&mut self, input: &[u8], context: &Context<'_>, reply: &mut Reply) -> usize {
        let mut carry = core::mem::take(&mut self.carry);
        let mut taken = 0;
        loop {
            let old = carry.len();
            let added = CARRY_STEP.min(input.len() - taken);
            carry.extend_from_slice(&input[taken..taken + added]);
            let done = self.process(&carry, context, reply);
            if done >= old {
                // The rest is also in the input.
                taken += done - old;
                carry.clear();
                break;
            }
            carry.drain(..done);
            taken += added;
            if taken == input.len() || self.stops(reply) {
                break;
            }
        }
        if carry.is_empty() {
            carry.shrink_to(CARRY_KEPT);
        }
        self.carry = carry;
        taken
    }

    /// Carries out complete requests; returns the number of their bytes.
    #[inline]
    fn process(&mut self, input: &[u8], context: &Context<'_>, reply: &mut Reply) -> usize {
        let mut done = 0;
        while done < input.len() && !self.stops(reply) {
            let rest = &input[done..];
            let step = match &mut self.state {
                State::Request => self.request(rest, context, reply),
                State::Value(_) => Step::Done(self.value(rest, context, reply)),
                State::Keys(keys) => {
                    let (step, next) = keys.read(rest, context, reply);
                    if let Some(next) = next {
                        self.state = next;
                    }
                    step
                }
                State::Swallow(left) => {
                    let n = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= n as u64;
                    if *left == 0 {
                        self.state = State::Request;
                    }
                    Step::Done(n)
                }
                State::Line => match memchr::memchr(b'\n', rest) {
                    Some(end) => {
                        self.state = State::Request;
                        Step::Done(end + 1)
                    }
                    None => Step::Done(rest.len()),
                },
                State::Closed => Step::More,
            };
            match step {
                Step::Done(n) => done += n,
                Step::More => break,
            }
        }
        done
    }

    #[inline]
    fn request(&mut self, input: &[u8], context: &Context<'_>, reply: &mut Reply) -> Step {
        match self.protocol {
            Protocol::Ascii => ascii::request(self, input, context, reply),
            Protocol::Binary => binary::request(self, input, context, reply),
            Protocol::Unknown => {
                let is_binary = input[0] == binary::REQUEST;
                self.protocol = if is_binary { Protocol::Binary } else { Protocol::Ascii };
                Step::Done(0)
            }
        }
    }

    /// Takes the received part of a value, and ends the command at its last byte.
    pub(crate) fn value(&mut self, input: &[u8], cx: &Context<'_>, reply: &mut Reply) -> usize {
        let State::Value(upload) = &mut self.state else { return 0 };
        let tail_len = if matches!(upload.answer, Answer::Ascii { .. }) { 2 } else { 0 };
        let body = upload.len.saturating_sub(upload.have).min(input.len());
        if body > 0 {
            upload.draft.write(upload.have, &input[..body]);
            upload.have += body;
        }
        let mut taken = body;
        while upload.have >= upload.len
            && upload.have < upload.len + tail_len
            && let Some(byte) = input.get(taken)
        {
            upload.tail[upload.have - upload.len] = *byte;
            upload.have += 1;
            taken += 1;
        }
        if upload.have == upload.len + tail_len
            && let State::Value(upload) = core::mem::replace(&mut self.state, State::Request)
        {
            upload.finish(cx, reply);
        }
        taken
    }
}

impl Upload {
    fn finish(self, context: &Context<'_>, reply: &mut Reply) {
        let Upload { draft, how, cas, tail, answer, .. } = self;
        let commit =
            |draft| -> Outcome { context.store.commit(context.me, draft, how, cas, context.now) };
        match answer {
            Answer::Ascii { noreply } if tail != *b"\r\n" => ascii::bad_chunk(noreply, reply),
            Answer::Ascii { noreply } => ascii::stored(commit(draft), noreply, reply),
            Answer::Binary(request) => request.stored(commit(draft), how, reply),
        }
    }
}
