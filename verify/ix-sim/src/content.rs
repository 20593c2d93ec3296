//! Content of streams: each byte follows from a key and its position. So each byte can be checked
//! alone, and a lost, repeated or moved byte shows.

/// Byte `position` of the stream with this key.
#[cfg(test)]
fn byte(key: u64, position: u64) -> u8 {
    word(key, position / 8).to_le_bytes()[position as usize % 8]
}

/// Eight bytes of the stream.
#[inline]
fn word(key: u64, index: u64) -> u64 {
    ix_random::mix(key ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The stream's bytes from `position` on.
pub fn fill(key: u64, position: u64, to: &mut [u8]) {
    walk(key, position, to.len(), |range, bytes| to[range].copy_from_slice(bytes));
}

/// Position of the first wrong byte.
pub fn mismatch(key: u64, position: u64, bytes: &[u8]) -> Option<u64> {
    let mut wrong = None;
    walk(key, position, bytes.len(), |range, expected| {
        let got = &bytes[range.clone()];
        if wrong.is_none() && got != expected {
            let at = got.iter().zip(expected).take_while(|(a, b)| a == b).count();
            wrong = Some(position + (range.start + at) as u64);
        }
    });
    wrong
}

/// Steps through `len` bytes in pieces of at most eight.
fn walk(key: u64, position: u64, len: usize, mut step: impl FnMut(std::ops::Range<usize>, &[u8])) {
    let mut done = 0;
    while done < len {
        let at = position + done as u64;
        let skip = at as usize % 8;
        let n = (8 - skip).min(len - done);
        step(done..done + n, &word(key, at / 8).to_le_bytes()[skip..skip + n]);
        done += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_checked() {
        for (position, len) in [(0, 64), (5, 3), (13, 100), (1 << 40, 9), (7, 1)] {
            let mut bytes = vec![0; len];
            fill(77, position, &mut bytes);
            assert!((0..len).all(|i| bytes[i] == byte(77, position + i as u64)));
            assert_eq!(mismatch(77, position, &bytes), None);
            for i in 0..len {
                bytes[i] ^= 0x40;
                assert_eq!(mismatch(77, position, &bytes), Some(position + i as u64));
                bytes[i] ^= 0x40;
            }
        }
    }

    #[test]
    fn other_streams_and_other_positions_differ() {
        let mut bytes = vec![0; 4096];
        fill(1, 0, &mut bytes);
        assert!(mismatch(2, 0, &bytes).is_some_and(|at| at < 8));
        for shift in [1, 8, 64, 1460] {
            assert!(mismatch(1, shift, &bytes).is_some_and(|at| at < shift + 8));
        }
    }
}
