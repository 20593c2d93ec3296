//! Keys of a `get`, each replied to as it is read.
use super::BAD_LINE;
use crate::context::Context;
use crate::reply::Reply;
use crate::session::{State, Step};
use crate::store::{KEY_MAX, View};

/// What a `get` of some kind does with its keys.
#[derive(Clone, Copy)]
pub(crate) struct Keys {
    pub(super) cas: bool,
    /// Items get this expiration time.
    pub(super) expires_s: Option<u32>,
}

impl Keys {
    /// Replies to the keys that are there; also writes the end after the last one.
    pub(crate) fn read(
        self,
        input: &[u8],
        context: &Context<'_>,
        reply: &mut Reply,
    ) -> (Step, Option<State>) {
        let mut done = 0;
        while !reply.is_full() {
            let rest = &input[done..];
            let Some(end) = memchr::memchr2(b' ', b'\n', rest) else {
                if rest.len() > KEY_MAX + 1 {
                    reply.put(BAD_LINE);
                    return (Step::Done(input.len()), Some(State::Line));
                }
                let step = if done > 0 { Step::Done(done) } else { Step::More };
                return (step, None);
            };
            let last = rest[end] == b'\n';
            let key = &rest[..end];
            let key = if last { key.strip_suffix(b"\r").unwrap_or(key) } else { key };
            done += end + 1;
            if key.len() > KEY_MAX {
                reply.put(BAD_LINE);
                return (Step::Done(done), Some(if last { State::Request } else { State::Line }));
            }
            if !key.is_empty() {
                self.answer(key, context, reply);
            }
            if last {
                reply.put(b"END\r\n");
                return (Step::Done(done), Some(State::Request));
            }
        }
        (Step::Done(done), None)
    }

    /// Replies to one key: its value, or nothing.
    #[inline]
    pub(super) fn answer(self, key: &[u8], context: &Context<'_>, reply: &mut Reply) {
        let head = |view: &View, reply: &mut Reply| self.head(key, view, reply);
        if context.show(key, self.expires_s, reply, head) {
            reply.put(b"\r\n");
        }
    }

    #[inline]
    fn head(self, key: &[u8], view: &View, reply: &mut Reply) {
        reply.put(b"VALUE ");
        reply.put(key);
        reply.put(b" ");
        reply.put_number(view.flags.into());
        reply.put(b" ");
        reply.put_number(view.len as u64);
        if self.cas {
            reply.put(b" ");
            reply.put_number(view.cas);
        }
        reply.put(b"\r\n");
    }
}
