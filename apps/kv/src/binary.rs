//! memcached's binary protocol (its doc/protocol_binary.txt).
use crate::expiry::Now;
use crate::item::Fresh;
use crate::reply::Reply;
use crate::session::{Answer, Context, Session, State, Step, Upload};
use crate::stats;
use crate::store::{Counted, Deleted, How, KEY_MAX, Outcome, Refusal, View};

/// First byte of a request.
pub const REQUEST: u8 = 0x80;
const RESPONSE: u8 = 0x81;
const HEADER_BYTES: usize = 24;
/// Expiration time of a counter that must not be made.
const NO_INITIAL: u32 = 0xffff_ffff;

#[derive(Clone, Copy)]
enum Status {
    Ok = 0,
    NotFound = 1,
    Exists = 2,
    TooLarge = 3,
    Invalid = 4,
    NotStored = 5,
    NotANumber = 6,
    Unknown = 0x81,
    NoMemory = 0x82,
}

impl Status {
    fn text(self) -> &'static [u8] {
        match self {
            Status::Ok => b"",
            Status::NotFound => b"Not found",
            Status::Exists => b"Data exists for key.",
            Status::TooLarge => b"Too large.",
            Status::Invalid => b"Invalid arguments",
            Status::NotStored => b"Not stored.",
            Status::NotANumber => b"Non-numeric server-side value for incr or decr",
            Status::Unknown => b"Unknown command",
            Status::NoMemory => b"Out of memory",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    Get { key: bool },
    Touch,
    GetAndTouch { key: bool },
    Store(How),
    Count { up: bool },
    Delete,
    Flush,
    Stat,
    Version,
    Noop,
    Quit,
}

/// The operation of a code, and whether its usual outcome is not answered.
fn operation(code: u8) -> Option<(Op, bool)> {
    Some(match code {
        0x00 => (Op::Get { key: false }, false),
        0x01 => (Op::Store(How::Set), false),
        0x02 => (Op::Store(How::Add), false),
        0x03 => (Op::Store(How::Replace), false),
        0x04 => (Op::Delete, false),
        0x05 => (Op::Count { up: true }, false),
        0x06 => (Op::Count { up: false }, false),
        0x07 => (Op::Quit, false),
        0x08 => (Op::Flush, false),
        0x09 => (Op::Get { key: false }, true),
        0x0a => (Op::Noop, false),
        0x0b => (Op::Version, false),
        0x0c => (Op::Get { key: true }, false),
        0x0d => (Op::Get { key: true }, true),
        0x0e => (Op::Store(How::Append), false),
        0x0f => (Op::Store(How::Prepend), false),
        0x10 => (Op::Stat, false),
        0x11 => (Op::Store(How::Set), true),
        0x12 => (Op::Store(How::Add), true),
        0x13 => (Op::Store(How::Replace), true),
        0x14 => (Op::Delete, true),
        0x15 => (Op::Count { up: true }, true),
        0x16 => (Op::Count { up: false }, true),
        0x17 => (Op::Quit, true),
        0x18 => (Op::Flush, true),
        0x19 => (Op::Store(How::Append), true),
        0x1a => (Op::Store(How::Prepend), true),
        0x1c => (Op::Touch, false),
        0x1d => (Op::GetAndTouch { key: false }, false),
        0x1e => (Op::GetAndTouch { key: false }, true),
        0x23 => (Op::GetAndTouch { key: true }, false),
        0x24 => (Op::GetAndTouch { key: true }, true),
        _ => return None,
    })
}

/// The header of a request.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    code: u8,
    quiet: bool,
    opaque: u32,
    cas: u64,
    key_len: usize,
    extras_len: usize,
    body_len: u64,
}

impl Request {
    fn read(header: &[u8; HEADER_BYTES]) -> Request {
        let word = |at: usize| {
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        Request {
            code: header[1],
            quiet: operation(header[1]).is_some_and(|(_, quiet)| quiet),
            opaque: word(12),
            cas: u64::from(word(16)) << 32 | u64::from(word(20)),
            key_len: u16::from_be_bytes([header[2], header[3]]).into(),
            extras_len: header[4].into(),
            body_len: word(8).into(),
        }
    }

    /// Bytes of the value.
    fn value_len(&self) -> Option<u64> {
        self.body_len.checked_sub((self.key_len + self.extras_len) as u64)
    }

    /// Appends the header of a response.
    fn head(&self, status: Status, parts: [usize; 3], cas: u64, reply: &mut Reply) {
        let [extras, key, value] = parts;
        let mut header = [0; HEADER_BYTES];
        header[0] = RESPONSE;
        header[1] = self.code;
        header[2..4].copy_from_slice(&(key as u16).to_be_bytes());
        header[4] = extras as u8;
        header[6..8].copy_from_slice(&(status as u16).to_be_bytes());
        header[8..12].copy_from_slice(&((extras + key + value) as u32).to_be_bytes());
        header[12..16].copy_from_slice(&self.opaque.to_be_bytes());
        header[16..24].copy_from_slice(&cas.to_be_bytes());
        reply.put(&header);
    }

    /// Appends a response that says only what became of the request.
    fn say(&self, status: Status, reply: &mut Reply) {
        self.head(status, [0, 0, status.text().len()], 0, reply);
        reply.put(status.text());
    }

    /// As expected: not answered where the client wants it so.
    fn fine(&self, cas: u64, value: &[u8], reply: &mut Reply) {
        if !self.quiet {
            self.head(Status::Ok, [0, 0, value.len()], cas, reply);
            reply.put(value);
        }
    }

    /// What became of a value.
    pub(crate) fn stored(&self, outcome: Outcome, how: How, reply: &mut Reply) {
        let joins = matches!(how, How::Append | How::Prepend);
        let status = match outcome {
            Outcome::Stored(cas) => return self.fine(cas, b"", reply),
            Outcome::Exists => Status::Exists,
            Outcome::NotStored | Outcome::Refused(_) if joins => Status::NotStored,
            Outcome::NotStored if how == How::Add => Status::Exists,
            Outcome::NotStored | Outcome::NotFound => Status::NotFound,
            Outcome::Refused(_) => Status::NoMemory,
        };
        self.say(status, reply);
    }
}

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
    let done = Step::Done(HEADER_BYTES + value_at);
    match op {
        Op::Get { key: with_key } => get(&request, key, with_key, None, context, reply),
        Op::GetAndTouch { key: with_key } => {
            let expires_s = Some(context.now.expires(word(extras, 0).into()));
            get(&request, key, with_key, expires_s, context, reply);
        }
        Op::Touch => touch(&request, key, extras, context, reply),
        Op::Store(how) => {
            let expires = if extras.is_empty() { 0 } else { word(extras, 4) };
            let flags = if extras.is_empty() { 0 } else { word(extras, 0) };
            let expires_s = context.now.expires(expires.into());
            let hash = context.store.hash(key);
            let value_len = value_len as u32;
            let fresh = Fresh { key, hash, flags, expires_s, value_len };
            store(session, &request, &fresh, how, context, reply);
        }
        Op::Count { up } => count(&request, key, extras, up, context, reply),
        Op::Delete => match context.store.delete(context.me, key, request.cas, context.now) {
            Deleted::Yes => request.fine(0, b"", reply),
            Deleted::NotFound => request.say(Status::NotFound, reply),
            Deleted::Exists => request.say(Status::Exists, reply),
        },
        Op::Flush => {
            let time = if extras.is_empty() { 0 } else { word(extras, 0) };
            let at_s = if time == 0 { 0 } else { context.now.expires(time.into()) };
            context.store.flush(context.me, at_s, context.now);
            request.fine(0, b"", reply);
        }
        Op::Stat => stat(&request, key, context, reply),
        Op::Version => request.fine(0, stats::VERSION.as_bytes(), reply),
        Op::Noop => request.fine(0, b"", reply),
        Op::Quit => {
            request.fine(0, b"", reply);
            session.state = State::Closed;
        }
    }
    done
}

/// After a request that cannot be right, nothing on the connection can be trusted.
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

/// Whether a request has the parts that its operation wants.
fn is_valid(op: Op, request: &Request, value_len: u64) -> bool {
    let (extras, key) = (request.extras_len, request.key_len);
    let key_fits = (1..=KEY_MAX).contains(&key);
    match op {
        Op::Get { .. } | Op::Delete => extras == 0 && key_fits && value_len == 0,
        Op::Touch | Op::GetAndTouch { .. } => extras == 4 && key_fits && value_len == 0,
        Op::Store(How::Append | How::Prepend) => extras == 0 && key_fits,
        Op::Store(_) => extras == 8 && key_fits,
        Op::Count { .. } => extras == 20 && key_fits && value_len == 0,
        Op::Flush => (extras == 0 || extras == 4) && key == 0 && value_len == 0,
        Op::Stat => extras == 0 && key <= KEY_MAX && value_len == 0,
        Op::Version | Op::Noop | Op::Quit => extras == 0 && key == 0 && value_len == 0,
    }
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
    let Context { store, me, now } = *context;
    let shown: &[u8] = if with_key { key } else { b"" };
    if let Some(expires_s) = expires_s
        && !store.touch(me, key, expires_s, now)
    {
        me.get_misses.add(1);
        return missing(request, with_key.then_some(key), reply);
    }
    // What an item already past its end is given out for once more.
    let now = if expires_s.is_some() { Now { s: 0, ..now } } else { now };
    let head = |view: &View, reply: &mut Reply| {
        request.head(Status::Ok, [4, shown.len(), view.len], view.cas, reply);
        reply.put(&view.flags.to_be_bytes());
        reply.put(shown);
    };
    let start = reply.bytes.len();
    let mut lend = false;
    let found = store.get(me, key, now, |view| {
        reply.bytes.truncate(start);
        head(view, reply);
        lend = reply.lends(view.len);
        if !lend {
            view.copy(&mut reply.bytes);
        }
    });
    if found && !lend {
        return;
    }
    reply.bytes.truncate(start);
    match store.lease(key, now).filter(|_| found) {
        Some((view, lease)) => {
            head(&view, reply);
            reply.lend(&view, lease);
        }
        None => missing(request, with_key.then_some(key), reply),
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
    // Whoever makes the counter first wins; the others count it.
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
