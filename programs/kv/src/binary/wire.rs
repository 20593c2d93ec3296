//! Headers and operations of the binary protocol.
use crate::reply::Reply;
use crate::store::{How, KEY_MAX, Outcome};

/// First byte of a request.
pub const REQUEST: u8 = 0x80;
const RESPONSE: u8 = 0x81;
pub(super) const HEADER_BYTES: usize = 24;

/// Result of a request.
#[derive(Clone, Copy)]
pub(super) enum Status {
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

/// Operation of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
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

/// The operation of a code, and whether its usual result gets no reply.
pub(super) fn operation(code: u8) -> Option<(Op, bool)> {
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
    pub(super) code: u8,
    pub(super) quiet: bool,
    opaque: u32,
    pub(super) cas: u64,
    pub(super) key_len: usize,
    pub(super) extras_len: usize,
    pub(super) body_len: u64,
}

impl Request {
    pub(super) fn read(header: &[u8; HEADER_BYTES]) -> Request {
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
    pub(super) fn value_len(&self) -> Option<u64> {
        self.body_len.checked_sub((self.key_len + self.extras_len) as u64)
    }

    /// Appends the header of a response.
    pub(super) fn head(&self, status: Status, parts: [usize; 3], cas: u64, reply: &mut Reply) {
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

    /// Appends a response that has only a result.
    pub(super) fn say(&self, status: Status, reply: &mut Reply) {
        self.head(status, [0, 0, status.text().len()], 0, reply);
        reply.put(status.text());
    }

    /// The expected result: no reply if the client asked for none.
    pub(super) fn fine(&self, cas: u64, value: &[u8], reply: &mut Reply) {
        if !self.quiet {
            self.head(Status::Ok, [0, 0, value.len()], cas, reply);
            reply.put(value);
        }
    }

    /// Replies with the result of storing a value.
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

/// Whether a request has the parts that its operation needs.
pub(super) fn is_valid(op: Op, request: &Request, value_len: u64) -> bool {
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
