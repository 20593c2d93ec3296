//! The Internet checksum against RFC 1071 word by word, however it is cut in pieces.
use crate::bytes::Bytes;
use ix_wire::checksum::{Checksum, checksum, update_u16};

/// Sums 16-bit words in ones' complement, one at a time.
fn naive(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|w| [w[0], w.get(1).copied().unwrap_or(0)]);
    let sum = words.fold(0u32, |sum, word| {
        let sum = sum + u32::from(u16::from_be_bytes(word));
        (sum & 0xffff) + (sum >> 16)
    });
    !(sum as u16)
}

/// Whole, in three pieces, and after a change (RFC 1624).
pub fn run(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let (first, second) = (usize::from(bytes.u8()), usize::from(bytes.u8()));
    let data = bytes.take(usize::MAX);
    let expected = naive(data);
    assert_eq!(checksum(data), expected);
    let (a, rest) = data.split_at(first.min(data.len()));
    let (b, c) = rest.split_at(second.min(rest.len()));
    let mut sum = Checksum::of(a);
    sum.add_bytes(b);
    sum.append(Checksum::of(c));
    assert_eq!(sum.finish(), expected, "in pieces of {}, {} and {}", a.len(), b.len(), c.len());
    // A packet that carries its checksum is valid, and with any other it is not.
    if data.len().is_multiple_of(2) {
        let carried = |check: u16| Checksum::of(&[data, &check.to_be_bytes()].concat()).is_valid();
        assert!(carried(expected) && !carried(expected.wrapping_add(1)));
    }
    if let [old_high, old_low, rest @ ..] = data {
        let new = [first as u8, second as u8];
        let old = u16::from_be_bytes([*old_high, *old_low]);
        let updated = update_u16(expected, old, u16::from_be_bytes(new));
        // Both zeros of ones' complement are zero.
        let zero = |check: u16| if check == 0xffff { 0 } else { check };
        assert_eq!(zero(updated), zero(naive(&[&new, rest].concat())));
    }
}
