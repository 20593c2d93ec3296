//! memcached's ASCII protocol (its doc/protocol.txt), with its errors: the reply to a client's
//! error has memcached's text, and reading continues where memcached's would.
mod keys;
mod words;

use crate::context::Context;
use crate::item::Fresh;
use crate::number;
use crate::reply::Reply;
use crate::session::{Answer, Session, State, Step, Upload};
use crate::stats;
use crate::store::{Counted, Deleted, How, KEY_MAX, Outcome, Refusal};
use words::Words;

pub(crate) use keys::Keys;

/// An incomplete request beyond this length must be a long `get`.
const LINE_MAX: usize = 2048;

const ERROR: &[u8] = b"ERROR\r\n";
const BAD_LINE: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
const BAD_TIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
const BAD_DELETE: &[u8] =
    b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
const NO_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";

/// One request, or the beginning of a long one.
#[inline]
pub(crate) fn request(
    session: &mut Session,
    input: &[u8],
    context: &Context<'_>,
    reply: &mut Reply,
) -> Step {
    let Some(end) = memchr::memchr(b'\n', input) else { return unfinished(session, input) };
    let line = &input[..end];
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let all = end + 1;
    if let Some(rest) = line.strip_prefix(b"get ")
        && !rest.is_empty()
        && rest.len() <= KEY_MAX
        && memchr::memchr(b' ', rest).is_none()
    {
        Keys { cas: false, expires_s: None }.answer(rest, context, reply);
        reply.put(b"END\r\n");
        return Step::Done(all);
    }
    let words = Words::of(line);
    let (keys, before) = match retrieval(&words, context) {
        Ok(Some(keys)) => keys,
        Ok(None) => {
            command(session, &words, context, reply);
            return Step::Done(all);
        }
        Err(refusal) => {
            reply.put(refusal);
            return Step::Done(all);
        }
    };
    let at = words::behind(line, before);
    if line[at..].split(|&byte| byte == b' ').any(|key| key.len() > KEY_MAX) {
        reply.put(BAD_LINE);
        return Step::Done(all);
    }
    session.state = State::Keys(keys);
    Step::Done(at)
}

/// What a command does with keys, and the number of words before them; `None`: it reads none.
fn retrieval(
    words: &Words<'_>,
    context: &Context<'_>,
) -> Result<Option<(Keys, usize)>, &'static [u8]> {
    Ok(match words.list[0] {
        _ if words.count < 2 => None,
        b"get" | b"bget" => Some((Keys { cas: false, expires_s: None }, 1)),
        b"gets" => Some((Keys { cas: true, expires_s: None }, 1)),
        verb @ (b"gat" | b"gats") => {
            let time = number::signed(words.list[1]).ok_or(BAD_TIME)?;
            let expires_s = Some(context.now.expires(i64::from(time as i32)));
            Some((Keys { cas: verb == b"gats", expires_s }, 2))
        }
        _ => None,
    })
}

/// An incomplete line.
fn unfinished(session: &mut Session, input: &[u8]) -> Step {
    if input.len() <= LINE_MAX {
        return Step::More;
    }
    for (verb, cas) in [(&b"get "[..], false), (b"gets ", true)] {
        if input.starts_with(verb) {
            session.state = State::Keys(Keys { cas, expires_s: None });
            return Step::Done(verb.len());
        }
    }
    session.state = State::Closed;
    Step::Done(input.len())
}

fn say(noreply: bool, text: &[u8], reply: &mut Reply) {
    if !noreply {
        reply.put(text);
    }
}

fn command(session: &mut Session, words: &Words<'_>, context: &Context<'_>, reply: &mut Reply) {
    let count = words.count;
    match words.list[0] {
        b"set" if count == 5 || count == 6 => store(session, words, How::Set, context, reply),
        b"add" if count == 5 || count == 6 => store(session, words, How::Add, context, reply),
        b"replace" if count == 5 || count == 6 => {
            store(session, words, How::Replace, context, reply);
        }
        b"append" if count == 5 || count == 6 => store(session, words, How::Append, context, reply),
        b"prepend" if count == 5 || count == 6 => {
            store(session, words, How::Prepend, context, reply);
        }
        b"cas" if count == 6 || count == 7 => store(session, words, How::Set, context, reply),
        b"incr" if count == 3 || count == 4 => count_command(words, true, context, reply),
        b"decr" if count == 3 || count == 4 => count_command(words, false, context, reply),
        b"delete" if (2..=4).contains(&count) => delete(words, context, reply),
        b"touch" if count == 3 || count == 4 => touch(words, context, reply),
        b"flush_all" if (1..=3).contains(&count) => flush(words, context, reply),
        b"stats" => stats_command(words, context, reply),
        b"version" => {
            reply.put(b"VERSION ");
            reply.put(stats::VERSION.as_bytes());
            reply.put(b"\r\n");
        }
        b"verbosity" if count > 1 => verbosity(words, reply),
        b"quit" => session.state = State::Closed,
        b"shutdown" => reply.put(b"ERROR: shutdown not enabled\r\n"),
        _ => reply.put(ERROR),
    }
}

fn store(
    session: &mut Session,
    words: &Words<'_>,
    how: How,
    context: &Context<'_>,
    reply: &mut Reply,
) {
    let Context { store, me, now } = *context;
    let [verb, key, flags, time, len, unique, ..] = words.list;
    let noreply = words.noreply();
    let is_cas = verb == b"cas";
    let numbers = (number::unsigned(flags), number::signed(time), number::signed(len));
    let unique = if is_cas { number::unsigned(unique) } else { Some(0) };
    let (Some(flags), Some(time), Some(len)) = numbers else {
        return say(noreply, BAD_LINE, reply);
    };
    // As in C's assignment to 32 bits.
    let (flags, time, len) = (flags as u32, i64::from(time as i32), len as i32);
    let (Some(unique), true) = (unique, key.len() <= KEY_MAX && (0..=i32::MAX - 2).contains(&len))
    else {
        return say(noreply, BAD_LINE, reply);
    };
    let expires_s = now.expires(time);
    let value_len = len.unsigned_abs();
    let fresh = Fresh { key, hash: store.hash(key), flags, expires_s, value_len };
    match store.draft(me, &fresh, now) {
        Ok(draft) => {
            // No item has the number 0: a `cas` with it always fails.
            let cas = if is_cas && unique == 0 { u64::MAX } else { unique };
            let (len, answer) = (value_len as usize, Answer::Ascii { noreply });
            let tail = [0; 2];
            session.state = State::Value(Upload { draft, how, cas, have: 0, len, tail, answer });
        }
        Err(refusal) => {
            let too_large = refusal == Refusal::TooLarge;
            say(noreply, if too_large { TOO_LARGE } else { NO_MEMORY }, reply);
            if how == How::Set && !is_cas {
                store.forget(me, key);
            }
            session.state = State::Swallow(u64::from(value_len) + 2);
        }
    }
}

/// Replies with the result of storing a value.
pub(crate) fn stored(outcome: Outcome, noreply: bool, reply: &mut Reply) {
    let text: &[u8] = match outcome {
        Outcome::Stored(_) => b"STORED\r\n",
        Outcome::NotStored | Outcome::Refused(_) => b"NOT_STORED\r\n",
        Outcome::Exists => b"EXISTS\r\n",
        Outcome::NotFound => b"NOT_FOUND\r\n",
    };
    say(noreply, text, reply);
}

/// A value is not followed by the end of a line.
pub(crate) fn bad_chunk(noreply: bool, reply: &mut Reply) {
    say(noreply, b"CLIENT_ERROR bad data chunk\r\n", reply);
}

fn count_command(words: &Words<'_>, up: bool, context: &Context<'_>, reply: &mut Reply) {
    let (key, noreply) = (words.list[1], words.noreply());
    if key.len() > KEY_MAX {
        return say(noreply, BAD_LINE, reply);
    }
    let Some(delta) = number::unsigned(words.list[2]) else {
        return say(noreply, b"CLIENT_ERROR invalid numeric delta argument\r\n", reply);
    };
    let Context { store, me, now } = *context;
    match store.count(me, key, delta, up, 0, now) {
        Counted::Value(value, _) if !noreply => {
            reply.put_number(value);
            reply.put(b"\r\n");
        }
        Counted::Value(..) => {}
        Counted::NotFound | Counted::Exists => say(noreply, b"NOT_FOUND\r\n", reply),
        Counted::NotANumber => {
            let text = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
            say(noreply, text, reply);
        }
        Counted::Refused => say(noreply, b"SERVER_ERROR out of memory in incr\r\n", reply),
    }
}

fn delete(words: &Words<'_>, context: &Context<'_>, reply: &mut Reply) {
    let (key, noreply) = (words.list[1], words.noreply());
    // Very old clients send a time of 0.
    let fine = match words.count {
        2 => true,
        3 => words.list[2] == b"0" || noreply,
        _ => words.list[2] == b"0" && noreply,
    };
    if !fine {
        return reply.put(BAD_DELETE);
    }
    if key.len() > KEY_MAX {
        return say(noreply, BAD_LINE, reply);
    }
    let text: &[u8] = match context.store.delete(context.me, key, 0, context.now) {
        Deleted::Yes => b"DELETED\r\n",
        Deleted::NotFound | Deleted::Exists => b"NOT_FOUND\r\n",
    };
    say(noreply, text, reply);
}

fn touch(words: &Words<'_>, context: &Context<'_>, reply: &mut Reply) {
    let (key, noreply) = (words.list[1], words.noreply());
    if key.len() > KEY_MAX {
        return say(noreply, BAD_LINE, reply);
    }
    let Some(time) = number::signed(words.list[2]) else { return say(noreply, BAD_TIME, reply) };
    let expires_s = context.now.expires(i64::from(time as i32));
    let found = context.store.touch(context.me, key, expires_s, context.now);
    say(noreply, if found { b"TOUCHED\r\n" } else { b"NOT_FOUND\r\n" }, reply);
}

fn flush(words: &Words<'_>, context: &Context<'_>, reply: &mut Reply) {
    let noreply = words.noreply();
    let time = match words.count - usize::from(noreply) {
        1 => Some(0),
        _ => number::signed(words.list[1]),
    };
    let Some(time) = time else { return say(noreply, BAD_TIME, reply) };
    let time = i64::from(time as i32);
    let at_s = if time > 0 { context.now.expires(time) } else { 0 };
    context.store.flush(context.me, at_s, context.now);
    say(noreply, b"OK\r\n", reply);
}

fn verbosity(words: &Words<'_>, reply: &mut Reply) {
    let noreply = words.noreply();
    let level = number::unsigned(words.list[1]);
    if noreply || level.is_some() {
        return say(noreply, b"OK\r\n", reply);
    }
    reply.put(BAD_LINE);
}

fn stats_command(words: &Words<'_>, context: &Context<'_>, reply: &mut Reply) {
    let what = if words.count > 1 { words.list[1] } else { b"" };
    if what == b"reset" {
        stats::reset(context.store);
        return reply.put(b"RESET\r\n");
    }
    let known = stats::each(what, context, |name, value| {
        for part in ["STAT ", name, " ", value, "\r\n"] {
            reply.put(part.as_bytes());
        }
    });
    reply.put(if known { b"END\r\n" } else { ERROR });
}
