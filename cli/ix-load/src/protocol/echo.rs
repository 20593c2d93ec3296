//! Echo: the server returns the same bytes.
use super::{Ask, Datagram, Outcome, Partial, Protocol, Step, excerpt};
use crate::fault::Fault;
use ix_programs::Pattern;

/// Messages of one size, each from another offset of an endless pattern.
pub struct Echo {
    size: u32,
    next: u32,
    verify: bool,
    pattern: Pattern,
}

/// A datagram's message begins with its number.
pub(crate) const ID_BYTES: usize = 4;

impl Echo {
    /// Messages of `size` > 0 bytes.
    pub fn new(size: u32, seed: u64, verify: bool) -> Echo {
        Echo { size, next: seed as u32, verify, pattern: Pattern::default() }
    }

    fn put(&self, from: u32, to: u32, record: u32, out: &mut Vec<u8>) {
        let (mut at, end) = (u64::from(from), u64::from(to));
        while at < end {
            let piece = self.pattern.at(u64::from(record) + at, end - at);
            out.extend_from_slice(piece);
            at += piece.len() as u64;
        }
    }
}

impl Protocol for Echo {
    #[inline]
    fn next(&mut self) -> Option<Ask> {
        // 7919 is prime: the offset goes over the whole pattern.
        self.next = self.next.wrapping_add(7919) & 0x7fff_ffff;
        Some(Ask { record: self.next, ..Ask::default() })
    }

    #[inline]
    fn encode(&mut self, ask: &Ask, out: &mut Vec<u8>) {
        self.put(0, self.size, ask.record, out);
    }

    #[inline]
    fn decode(&mut self, ask: &Ask, partial: &mut Partial, data: &[u8]) -> Step {
        let n = data.len().min((self.size - partial.bytes) as usize);
        let place = u64::from(ask.record) + u64::from(partial.bytes);
        if self.verify && !self.pattern.matches(place, &data[..n]) {
            let what = format!("byte {} on: {}", partial.bytes, excerpt(&data[..n]));
            return Step::Wrong(Fault::WrongValue, format!("the echo differs from {what}"));
        }
        partial.bytes += n as u32;
        if partial.bytes == self.size { Step::Done(n, Outcome::Done) } else { Step::More(n) }
    }

    fn encode_datagram(&mut self, ask: &Ask, out: &mut Vec<u8>) {
        out.extend_from_slice(&ask.id.to_le_bytes());
        self.put(ID_BYTES as u32, self.size, ask.record, out);
    }

    fn decode_datagram(&mut self, ask: &Ask, data: &[u8]) -> Step {
        let mut partial = Partial { bytes: ID_BYTES as u32, ..Partial::default() };
        if self.size == partial.bytes && data.is_empty() {
            return Step::Done(0, Outcome::Done);
        }
        self.decode(ask, &mut partial, data)
    }

    fn datagram<'a>(&self, data: &'a [u8]) -> Option<Datagram<'a>> {
        let (id, payload) = data.split_first_chunk::<ID_BYTES>()?;
        let id = u32::from_le_bytes(*id);
        Some(Datagram { id, id_mask: u32::MAX, part: 0, parts: 1, payload })
    }
}
