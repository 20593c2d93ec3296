//! memcached's binary protocol (its doc/protocol_binary.txt).
mod wire;

use crate::context::Context;
use crate::item::Fresh;
use crate::reply::Reply;
use crate::session::{Answer, Session, State, Step, Upload};
use crate::stats;
use crate::store::{Counted, Deleted, How, Outcome, Refusal};
use wire::{HEADER_BYTES, Op, Status, is_valid, operation};

pub(crate) use wire::{REQUEST, Request};

/// Expiration time of a counter that must not be created.
const NO_INITIAL: u32 = 0xffff_ffff;

/// One request, or its part before the value.
#[inline]
pub(crate) fn request(
    session: &mut Session,
    input: &[u8],
    context: &Context<'_>,
    reply: &mut Reply,
) -> Step {
    if input[0] != REQUEST {
        session.state = State::Closed;
        return Step::Done(input.len());
    }
    let Some((header, rest)) = input.split_first_chunk::<HEADER_BYTES>() else { return Step::More };
    let request = Request::read(header);
    let Some(value_len) = request.value_len() else {
        return refuse(session, &request, Status::Unknown, input, reply);
    };
    let Some((op, _)) = operation(request.code) else {
        request.say(Status::Unknown, reply);
        if request.body_len > 0 {
            session.state = State::Swallow(request.body_len);
        }
        return Step::Done(HEADER_BYTES);
    };
    if !is_valid(op, &request, value_len) {
        return refuse(session, &request, Status::Invalid, input, reply);
    }
    let (key_at, value_at) = (request.extras_len, request.extras_len + request.key_len);
    let Some(front) = rest.get(..value_at) else { return Step::More };
    let (extras, key) = front.split_at(key_at);
    carry_out(session, (op, &request), (extras, key, value_len as u32), context, reply);
    Step::Done(HEADER_BYTES + value_at)
}

/// Carries out a request whose parts are complete: extras, key and the length of the value.
#[inline]
fn carry_out(
    session: &mut Session,
    (op, request): (Op, &Request),
    (extras, key, value_len): (&[u8], &[u8], u32),
    context: &Context<'_>,
    reply: &mut Reply,
) {
    match op {
        Op::Get { key: with_key } => get(request, key, with_key, None, context, reply),
        Op::GetAndTouch { key: with_key } => {
            let expires_s = Some(context.now.expires(word(extras, 0).into()));
            get(request, key, with_key, expires_s, context, reply);
        }
        Op::Touch => touch(request, key, extras, context, reply),
        Op::Store(how) => {
            let expires = if extras.is_empty() { 0 } else { word(extras, 4) };
            let flags = if extras.is_empty() { 0 } else { word(extras, 0) };
            let expires_s = context.now.expires(expires.into());
            let hash = context.store.hash(key);
            let fresh = Fresh { key, hash, flags, expires_s, value_len };
            store(session, request, &fresh, how, context, reply);
        }
        Op::Count { up } => count(request, key, extras, up, context, reply),
        Op::Delete => delete(request, key, context, reply),
        Op::Flush => flush(request, extras, context, reply),
        Op::Stat => stat(request, key, context, reply),
        Op::Version => request.fine(0, stats::VERSION.as_bytes(), reply),
        Op::Noop => request.fine(0, b"", reply),
        Op::Quit => {
            request.fine(0, b"", reply);
            session.state = State::Closed;
        }
    }
}

/// After a malformed request the rest of the connection cannot be parsed.
fn refuse(
    session: &mut Session,
    request: &Request,
    status: Status,
    input: &[u8],
    reply: &mut Reply,
) -> Step {
    request.say(status, reply);
    session.state = State::Closed;
    Step::Done(input.len())
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |word| u32::from_be_bytes(*word))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |long| u64::from_be_bytes(*long))
}

fn missing(request: &Request, key: Option<&[u8]>, reply: &mut Reply) {
    match key {
        _ if request.quiet => {}
        None => request.say(Status::NotFound, reply),
        Some(key) => {
            request.head(Status::NotFound, [0, key.len(), 0], 0, reply);
            reply.put(key);
        }
    }
}

fn get(
    request: &Request,
    key: &[u8],
    with_key: bool,
    expires_s: Option<u32>,
    context: &Context<'_>,
    reply: &mut Reply,
) {
    let shown: &[u8] = if with_key { key } else { b"" };
    let found = context.show(key, expires_s, reply, |view, reply| {
        request.head(Status::Ok, [4, shown.len(), view.len], view.cas, reply);
        reply.put(&view.flags.to_be_bytes());
        reply.put(shown);
    });
    if !found {
        missing(request, with_key.then_some(key), reply);
    }
}

fn touch(request: &Request, key: &[u8], extras: &[u8], context: &Context<'_>, reply: &mut Reply) {
    let Context { store, me, now } = *context;
    let expires_s = now.expires(word(extras, 0).into());
    if !store.touch(me, key, expires_s, now) {
        return request.say(Status::NotFound, reply);
    }
    let mut seen = (0, 0u32);
    store.peek(key, |view| seen = (view.cas, view.flags));
    request.head(Status::Ok, [4, 0, 0], seen.0, reply);
    reply.put(&seen.1.to_be_bytes());
}

fn store(
    session: &mut Session,
    request: &Request,
    fresh: &Fresh<'_>,
    how: How,
    context: &Context<'_>,
    reply: &mut Reply,
) {
    let Context { store, me, now } = *context;
    let len = fresh.value_len;
    match store.draft(me, fresh, now) {
        Ok(draft) => {
            let answer = Answer::Binary(*request);
            let (cas, len, tail) = (request.cas, len as usize, [0; 2]);
            session.state = State::Value(Upload { draft, how, cas, have: 0, len, tail, answer });
            if len == 0 {
                session.value(b"", context, reply);
            }
        }
        Err(refusal) => {
            let too_large = refusal == Refusal::TooLarge;
            request.say(if too_large { Status::TooLarge } else { Status::NoMemory }, reply);
            if how == How::Set {
                store.forget(me, fresh.key);
            }
            if len > 0 {
                session.state = State::Swallow(len.into());
            }
        }
    }
}

fn count(
    request: &Request,
    key: &[u8],
    extras: &[u8],
    up: bool,
    context: &Context<'_>,
    reply: &mut Reply,
) {
    let Context { store, me, now } = *context;
    let (delta, initial, expires) = (long(extras, 0), long(extras, 8), word(extras, 16));
    // One client creates the counter; the others change it.
    for _ in 0..2 {
        match store.count(me, key, delta, up, request.cas, now) {
            Counted::Value(value, cas) => {
                return request.fine(cas, &value.to_be_bytes(), reply);
            }
            Counted::NotANumber => return request.say(Status::NotANumber, reply),
            Counted::Exists => return request.say(Status::Exists, reply),
            Counted::Refused => return request.say(Status::NoMemory, reply),
            Counted::NotFound if expires == NO_INITIAL => {
                return request.say(Status::NotFound, reply);
            }
            Counted::NotFound => {}
        }
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(initial).as_bytes();
        let (hash, expires_s) = (store.hash(key), now.expires(expires.into()));
        let value_len = digits.len() as u32;
        let fresh = Fresh { key, hash, flags: 0, expires_s, value_len };
        let Ok(mut draft) = store.draft(me, &fresh, now) else {
            return request.say(Status::NoMemory, reply);
        };
        draft.write(0, digits);
        if let Outcome::Stored(cas) = store.commit(me, draft, How::Add, 0, now) {
            return request.fine(cas, &initial.to_be_bytes(), reply);
        }
    }
    request.say(Status::NotStored, reply);
}

fn stat(request: &Request, key: &[u8], context: &Context<'_>, reply: &mut Reply) {
    let end = |reply: &mut Reply| request.head(Status::Ok, [0; 3], 0, reply);
    if key == b"reset" {
        stats::reset(context.store);
        return end(reply);
    }
    let known = stats::each(key, context, |name, value| {
        request.head(Status::Ok, [0, name.len(), value.len()], 0, reply);
        reply.put(name.as_bytes());
        reply.put(value.as_bytes());
    });
    if known { end(reply) } else { request.say(Status::NotFound, reply) }
}

fn delete(request: &Request, key: &[u8], context: &Context<'_>, reply: &mut Reply) {
    match context.store.delete(context.me, key, request.cas, context.now) {
        Deleted::Yes => request.fine(0, b"", reply),
        Deleted::NotFound => request.say(Status::NotFound, reply),
        Deleted::Exists => request.say(Status::Exists, reply),
    }
}

fn flush(request: &Request, extras: &[u8], context: &Context<'_>, reply: &mut Reply) {
    let time = if extras.is_empty() { 0 } else { word(extras, 0) };
    let at_s = if time == 0 { 0 } else { context.now.expires(time.into()) };
    context.store.flush(context.me, at_s, context.now);
    request.fine(0, b"", reply);
}
