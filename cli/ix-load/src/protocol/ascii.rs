//! memcached's text protocol: `get` and `set`.
use super::{
    Ask, Datagram, Outcome, Partial, Protocol, Step, Workload, excerpt, put_udp_frame, udp_frame,
};
use crate::fault::Fault;
use std::io::Write;

/// Longest line of a reply: `VALUE`, a key, and three numbers.
const LINE_MOST: usize = 512;

const BODY: u8 = 1;
const TRAILER: u8 = 2;
const END: &[u8] = b"\r\nEND\r\n";

/// The protocol over a workload.
pub struct Ascii {
    workload: Workload,
    verify: bool,
    line: Vec<u8>,
}

impl Ascii {
    /// Values are compared if `verify` is set; keys and lengths always are.
    pub fn new(workload: Workload, verify: bool) -> Ascii {
        Ascii { workload, verify, line: Vec::with_capacity(LINE_MOST) }
    }

    /// Reads the first line of a reply; returns its length, or the outcome if there is nothing
    /// more.
    fn head(&mut self, ask: &Ask, partial: &mut Partial, data: &[u8]) -> Result<usize, Step> {
        let stores = self.workload.stores(ask);
        if stores && data.starts_with(b"STORED\r\n") {
            return Err(Step::Done(8, Outcome::Done));
        }
        if !stores && data.starts_with(b"END\r\n") {
            return Err(Step::Done(5, Outcome::Miss));
        }
        let Some(end) = data.iter().take(LINE_MOST).position(|byte| *byte == b'\n') else {
            return Err(if data.len() < LINE_MOST {
                Step::More(0)
            } else {
                Step::Wrong(Fault::BadReply, format!("no end of line in {}", excerpt(data)))
            });
        };
        let line = data[..end].strip_suffix(b"\r").unwrap_or(&data[..end]);
        if stores || !line.starts_with(b"VALUE ") {
            return Err(refusal(line));
        }
        self.line.clear();
        self.workload.records().put_key(ask.record, &mut self.line);
        let numbers = line[6..].strip_prefix(&self.line[..]).and_then(|l| l.strip_prefix(b" "));
        let Some(numbers) = numbers else {
            let what = format!("asked for {}, got {}", excerpt(&self.line), excerpt(line));
            return Err(Step::Wrong(Fault::WrongKey, what));
        };
        let mut numbers = numbers.split(|byte| *byte == b' ').map(number);
        let (Some(Some(flags)), Some(Some(bytes))) = (numbers.next(), numbers.next()) else {
            return Err(Step::Wrong(Fault::BadReply, excerpt(line)));
        };
        check_length(&self.workload, ask.record, flags, bytes)?;
        *partial = Partial { stage: BODY, bytes, word: flags };
        Ok(end + 1)
    }
}

/// Whether a value has the length of its version.
pub(super) fn check_length(
    workload: &Workload,
    record: u32,
    version: u32,
    bytes: u32,
) -> Result<(), Step> {
    let expected = workload.records().value_len(record, version);
    if expected == bytes {
        return Ok(());
    }
    let what = format!("record {record} version {version} has {expected} bytes, got {bytes}");
    Err(Step::Wrong(Fault::WrongLength, what))
}

fn refusal(line: &[u8]) -> Step {
    let refused = [&b"SERVER_ERROR"[..], b"CLIENT_ERROR", b"ERROR", b"NOT_STORED", b"BUSY"];
    let refused = refused.iter().any(|word| line.starts_with(word));
    Step::Wrong(if refused { Fault::ServerError } else { Fault::BadReply }, excerpt(line))
}

fn number(digits: &[u8]) -> Option<u32> {
    let value = |sum: u32, byte: &u8| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 { None } else { sum.checked_mul(10)?.checked_add(digit.into()) }
    };
    if digits.is_empty() { None } else { digits.iter().try_fold(0, value) }
}

impl Protocol for Ascii {
    #[inline]
    fn next(&mut self) -> Option<Ask> {
        self.workload.draw()
    }

    #[inline]
    fn encode(&mut self, ask: &Ask, out: &mut Vec<u8>) {
        let records = self.workload.records();
        if self.workload.stores(ask) {
            out.extend_from_slice(b"set ");
            records.put_key(ask.record, out);
            let bytes = records.value_len(ask.record, ask.version);
            // Writing to a vector cannot fail.
            let _ = write!(out, " {} 0 {bytes}\r\n", ask.version);
            records.put_value(ask.record, ask.version, out);
        } else {
            out.extend_from_slice(b"get ");
            records.put_key(ask.record, out);
        }
        out.extend_from_slice(b"\r\n");
    }

    fn decode(&mut self, ask: &Ask, partial: &mut Partial, data: &[u8]) -> Step {
        let mut at = 0;
        if partial.stage == 0 {
            at = match self.head(ask, partial, data) {
                Ok(read) => read,
                Err(step) => return step,
            };
        }
        if partial.stage == BODY {
            let n = (data.len() - at).min(partial.bytes as usize);
            let records = self.workload.records();
            let read = records.value_len(ask.record, partial.word) - partial.bytes;
            let body = &data[at..at + n];
            if self.verify && !records.matches(ask.record, partial.word, read.into(), body) {
                let what = format!("record {} has the value {}", ask.record, excerpt(body));
                return Step::Wrong(Fault::WrongValue, what);
            }
            partial.bytes -= n as u32;
            at += n;
            if partial.bytes > 0 {
                return Step::More(at);
            }
            partial.stage = TRAILER;
        }
        let rest = &data[at..];
        if rest.len() < END.len() && END.starts_with(rest) {
            return Step::More(at);
        }
        if rest.starts_with(END) {
            return Step::Done(at + END.len(), Outcome::Hit);
        }
        Step::Wrong(Fault::WrongLength, format!("after the value comes {}", excerpt(rest)))
    }

    fn encode_datagram(&mut self, ask: &Ask, out: &mut Vec<u8>) {
        put_udp_frame(ask.id, out);
        self.encode(ask, out);
    }

    fn datagram<'a>(&self, data: &'a [u8]) -> Option<Datagram<'a>> {
        udp_frame(data)
    }
}
