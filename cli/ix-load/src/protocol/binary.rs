//! memcached's binary protocol: `get` and `set`.
use super::ascii::check_length;
use super::{
    Ask, Datagram, Outcome, Partial, Protocol, Step, Workload, excerpt, put_udp_frame, udp_frame,
};
use crate::fault::Fault;

const REQUEST: u8 = 0x80;
const RESPONSE: u8 = 0x81;
const GET: u8 = 0x00;
const SET: u8 = 0x01;
const HEADER: usize = 24;
/// Flags in front of a value.
const GET_EXTRAS: usize = 4;
/// Flags and expiry in a request to store.
const SET_EXTRAS: u8 = 8;

const NO_ERROR: u16 = 0;
const KEY_NOT_FOUND: u16 = 1;

const BODY: u8 = 1;
/// Text that explains an error.
const EXPLAINED_MISS: u8 = 2;

/// The protocol over a workload.
pub struct Binary {
    workload: Workload,
    verify: bool,
}

impl Binary {
    /// Values are compared if `verify` is set; lengths and request numbers always are.
    pub fn new(workload: Workload, verify: bool) -> Binary {
        Binary { workload, verify }
    }

    fn head(&mut self, ask: &Ask, partial: &mut Partial, data: &[u8]) -> Result<usize, Step> {
        if data[0] != RESPONSE {
            let what = format!("not a binary reply: {}", excerpt(data));
            return Err(Step::Wrong(Fault::BadReply, what));
        }
        if data.len() < HEADER {
            return Err(Step::More(0));
        }
        let half = |at: usize| u16::from_be_bytes([data[at], data[at + 1]]);
        let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| data[at + i]));
        let (op, extras, status, body, opaque) = (data[1], data[4], half(6), word(8), word(12));
        let stores = self.workload.stores(ask);
        if opaque != ask.id || op != (if stores { SET } else { GET }) {
            let what = format!("reply {opaque} to operation {op}, asked for {}", ask.id);
            return Err(Step::Wrong(Fault::WrongKey, what));
        }
        match (status, stores) {
            (NO_ERROR, true) if body == 0 => Err(Step::Done(HEADER, Outcome::Done)),
            (NO_ERROR, false) if usize::from(extras) == GET_EXTRAS && half(2) == 0 => {
                if data.len() < HEADER + GET_EXTRAS {
                    return Err(Step::More(0));
                }
                let bytes = body.saturating_sub(GET_EXTRAS as u32);
                let version = word(HEADER);
                check_length(&self.workload, ask.record, version, bytes)?;
                *partial = Partial { stage: BODY, bytes, word: version };
                Ok(HEADER + GET_EXTRAS)
            }
            (KEY_NOT_FOUND, false) => {
                *partial = Partial { stage: EXPLAINED_MISS, bytes: body, word: 0 };
                Ok(HEADER)
            }
            (NO_ERROR, _) => Err(Step::Wrong(Fault::BadReply, format!("body of {body} bytes"))),
            (status, _) => Err(Step::Wrong(Fault::ServerError, format!("status {status}"))),
        }
    }
}

impl Protocol for Binary {
    #[inline]
    fn next(&mut self) -> Option<Ask> {
        self.workload.draw()
    }

    #[inline]
    fn encode(&mut self, ask: &Ask, out: &mut Vec<u8>) {
        let records = self.workload.records();
        let stores = self.workload.stores(ask);
        let key = records.key_len(ask.record) as u16;
        let (op, extras) = if stores { (SET, SET_EXTRAS) } else { (GET, 0) };
        let mut body = u32::from(key) + u32::from(extras);
        if stores {
            body += records.value_len(ask.record, ask.version);
        }
        let mut header = [0; HEADER];
        (header[0], header[1], header[4]) = (REQUEST, op, extras);
        header[2..4].copy_from_slice(&key.to_be_bytes());
        header[8..12].copy_from_slice(&body.to_be_bytes());
        header[12..16].copy_from_slice(&ask.id.to_be_bytes());
        out.extend_from_slice(&header);
        if stores {
            out.extend_from_slice(&ask.version.to_be_bytes());
            out.extend_from_slice(&[0; 4]);
        }
        records.put_key(ask.record, out);
        if stores {
            records.put_value(ask.record, ask.version, out);
        }
    }

    #[inline]
    fn decode(&mut self, ask: &Ask, partial: &mut Partial, data: &[u8]) -> Step {
        let mut at = 0;
        if partial.stage == 0 {
            at = match self.head(ask, partial, data) {
                Ok(read) => read,
                Err(step) => return step,
            };
        }
        let n = (data.len() - at).min(partial.bytes as usize);
        if partial.stage == BODY && self.verify {
            let records = self.workload.records();
            let read = records.value_len(ask.record, partial.word) - partial.bytes;
            let body = &data[at..at + n];
            if !records.matches(ask.record, partial.word, read.into(), body) {
                let what = format!("record {} has the value {}", ask.record, excerpt(body));
                return Step::Wrong(Fault::WrongValue, what);
            }
        }
        partial.bytes -= n as u32;
        at += n;
        match (partial.bytes, partial.stage) {
            (0, BODY) => Step::Done(at, Outcome::Hit),
            (0, _) => Step::Done(at, Outcome::Miss),
            _ => Step::More(at),
        }
    }

    fn encode_datagram(&mut self, ask: &Ask, out: &mut Vec<u8>) {
        put_udp_frame(ask.id, out);
        self.encode(ask, out);
    }

    fn datagram<'a>(&self, data: &'a [u8]) -> Option<Datagram<'a>> {
        udp_frame(data)
    }
}
