//! Numbers as memcached's C library parses them.

/// A sign, digits, and after them the end or white space; leading white space is allowed.
fn digits(text: &[u8]) -> Option<(bool, u64)> {
    let text = text.trim_ascii_start();
    let (negative, text) = match text.split_first() {
        Some((b'-', rest)) => (true, rest),
        Some((b'+', rest)) => (false, rest),
        _ => (false, text),
    };
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let ends = text.get(end).is_none_or(|byte| byte.is_ascii_whitespace() || *byte == 0x0b);
    if end == 0 || !ends {
        return None;
    }
    let value = text[..end].iter().try_fold(0u64, |value, digit| {
        value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })?;
    Some((negative, value))
}

/// 0 to 2^64 - 1.
pub fn unsigned(text: &[u8]) -> Option<u64> {
    digits(text).filter(|&(negative, value)| !negative || value == 0).map(|number| number.1)
}

/// -2^63 to 2^63 - 1.
pub fn signed(text: &[u8]) -> Option<i64> {
    let (negative, value) = digits(text)?;
    let value = i128::from(value);
    i64::try_from(if negative { -value } else { value }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_strtoull_and_strtoll() {
        assert_eq!(unsigned(b"0"), Some(0));
        assert_eq!(unsigned(b" 12"), Some(12));
        assert_eq!(unsigned(b"12 x"), Some(12));
        assert_eq!(unsigned(b"+12"), Some(12));
        assert_eq!(unsigned(b"18446744073709551615"), Some(u64::MAX));
        for wrong in [&b"18446744073709551616"[..], b"", b"-1", b"+", b"1x", b"x", b"1.5", b" "] {
            assert_eq!(unsigned(wrong), None);
        }
        assert_eq!(signed(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(signed(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(
            (signed(b"9223372036854775808"), signed(b"--1"), signed(b"-")),
            (None, None, None)
        );
    }
}
