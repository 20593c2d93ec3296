//! Keys and values as functions of a record's number and version. So every reply can be checked,
//! whichever client stored the record.
use ix_programs::Pattern;
use ix_random::{Rng, mix};
use ix_workload::law::Law;

/// Longest key of memcached.
pub const KEY_MOST: u32 = 250;
/// Longest value: memcached's default limit of an item, less its header and key.
pub const VALUE_MOST: u32 = 1_000_000;

/// The records of a workload.
pub struct Records {
    count: u32,
    lengths: KeyLengths,
    values: Law,
    pattern: Pattern,
}

enum KeyLengths {
    Same(u8),
    /// Drawn once for each record: the distribution would cost more than the request.
    Each(Vec<u8>),
}

impl Records {
    /// `count` > 0 records. A key has at least as many bytes as the largest number has digits.
    pub fn new(count: u32, keys: &Law, values: Law) -> Records {
        let least = (count.max(2) - 1).ilog10() + 1;
        let lengths = match keys {
            Law::Fixed(bytes) => KeyLengths::Same((*bytes as u32).clamp(least, KEY_MOST) as u8),
            law => {
                let draw = |record| law.draw_size(&mut Rng::new(record), least, KEY_MOST) as u8;
                KeyLengths::Each((0..u64::from(count)).map(draw).collect())
            }
        };
        Records { count, lengths, values, pattern: Pattern::default() }
    }

    /// Number of records.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of a key.
    #[inline]
    pub fn key_len(&self, record: u32) -> usize {
        match &self.lengths {
            KeyLengths::Same(bytes) => usize::from(*bytes),
            KeyLengths::Each(lengths) => usize::from(lengths[record as usize]),
        }
    }

    /// Appends a key: the record's number with zeros in front.
    #[inline]
    pub fn put_key(&self, record: u32, out: &mut Vec<u8>) {
        let mut key = [b'0'; KEY_MOST as usize];
        let mut at = key.len();
        let mut left = record;
        while left > 0 {
            at -= 1;
            key[at] = b'0' + (left % 10) as u8;
            left /= 10;
        }
        out.extend_from_slice(&key[key.len() - self.key_len(record)..]);
    }

    /// Length of a version of a value.
    #[inline]
    pub fn value_len(&self, record: u32, version: u32) -> u32 {
        match self.values {
            Law::Fixed(bytes) => (bytes as u32).min(VALUE_MOST),
            ref law => {
                let seed = u64::from(version) << 32 | u64::from(record);
                law.draw_size(&mut Rng::new(seed), 0, VALUE_MOST)
            }
        }
    }

    fn position(&self, record: u32, version: u32) -> u64 {
        mix(u64::from(version) << 32 | u64::from(record)) >> 32
    }

    /// Appends a value.
    #[inline]
    pub fn put_value(&self, record: u32, version: u32, out: &mut Vec<u8>) {
        let mut left = u64::from(self.value_len(record, version));
        let mut position = self.position(record, version);
        while left > 0 {
            let piece = self.pattern.at(position, left);
            out.extend_from_slice(piece);
            position += piece.len() as u64;
            left -= piece.len() as u64;
        }
    }

    /// Whether `data` equals the bytes from `offset` of a value.
    #[inline]
    pub fn matches(&self, record: u32, version: u32, offset: u64, data: &[u8]) -> bool {
        self.pattern.matches(self.position(record, version) + offset, data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_workload::law::FB_KEY;
    use std::collections::HashSet;

    #[test]
    fn keys_are_distinct_and_as_long_as_their_law_says() {
        let records = Records::new(20_000, &FB_KEY, Law::FbValue);
        let mut seen = HashSet::new();
        let mut total = 0;
        for record in 0..20_000 {
            let mut key = Vec::new();
            records.put_key(record, &mut key);
            assert_eq!(key.len(), records.key_len(record));
            assert!(key.iter().all(|byte| byte.is_ascii_digit()));
            total += key.len();
            assert!(seen.insert(key));
        }
        // Mean of the law: location + scale (Γ(1 - shape) - 1) / shape, Γ(0.921312) = 1.05197.
        let mean = 30.7984 + 8.20449 * (1.05197 - 1.0) / 0.078688;
        assert!((total as f64 / 20_000.0 - mean).abs() < 0.5, "{}", total as f64 / 20_000.0);
    }

    #[test]
    fn keys_of_usr() {
        let records = Records::new(1_000_000, &Law::Fixed(19.0), Law::Fixed(2.0));
        let mut key = Vec::new();
        records.put_key(123_456, &mut key);
        assert_eq!(key, b"0000000000000123456");
        let short = Records::new(1_000_000, &Law::Fixed(1.0), Law::Fixed(2.0));
        assert_eq!(short.key_len(0), 6, "no two records share a key");
    }

    #[test]
    fn values_depend_on_record_and_version() {
        let records = Records::new(100, &Law::Fixed(10.0), Law::Fixed(200_000.0));
        let value = |record, version| {
            let mut out = Vec::new();
            records.put_value(record, version, &mut out);
            out
        };
        assert_eq!(value(1, 0).len(), 200_000);
        assert!(records.matches(1, 0, 70_000, &value(1, 0)[70_000..]));
        assert_ne!(value(1, 0), value(1, 1));
        assert_ne!(value(1, 0), value(2, 0));
        assert!(!records.matches(1, 1, 0, &value(1, 0)));
    }
}
