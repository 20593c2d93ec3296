//! Rust sources reduced to code.

/// The source with comments, and the insides of strings and characters, replaced by blanks. Line
/// numbers stay the same.
pub fn code_of(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut code = bytes.to_vec();
    let mut blank = |from: usize, to: usize| {
        for byte in &mut code[from..to.min(bytes.len())] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
    };
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let word_before = at > 0 && is_word(bytes[at - 1]);
        if rest.starts_with(b"//") {
            let end = at + rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            blank(at, end);
            at = end;
        } else if rest.starts_with(b"/*") {
            let end = at + end_of_comment(rest);
            blank(at, end);
            at = end;
        } else if rest[0] == b'"' {
            let end = at + end_of_string(rest);
            blank(at + 1, end.saturating_sub(1));
            at = end;
        } else if let Some(len) = raw_string(rest).filter(|_| !word_before) {
            blank(at, at + len);
            at += len;
        } else if rest[0] == b'\'' {
            let len = character(rest);
            if len > 1 {
                blank(at + 1, at + len - 1);
            }
            at += len;
        } else {
            at += 1;
        }
    }
    String::from_utf8_lossy(&code).into_owned()
}

/// Whether a byte can be in a name.
pub fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Places of a word in code: byte offsets at which it stands alone.
pub fn places<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    code.match_indices(word).map(|(at, _)| at).filter(move |at| {
        let before = at.checked_sub(1).is_none_or(|before| !is_word(bytes[before]));
        before && bytes.get(at + word.len()).is_none_or(|after| !is_word(*after))
    })
}

/// The line of an offset, from 1.
pub fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count()
}

fn end_of_comment(text: &[u8]) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < text.len() {
        match &text[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => {
                (depth, at) = (depth - 1, at + 2);
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    text.len()
}

fn end_of_string(text: &[u8]) -> usize {
    let mut at = 1;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

/// Length of a raw string that begins here.
fn raw_string(text: &[u8]) -> Option<usize> {
    let after = text.strip_prefix(b"r").or_else(|| text.strip_prefix(b"br"))?;
    let hashes = after.iter().take_while(|byte| **byte == b'#').count();
    if after.get(hashes) != Some(&b'"') {
        return None;
    }
    let end = [&b"\""[..], &vec![b'#'; hashes]].concat();
    let begin = text.len() - after.len() + hashes + 1;
    let inside = &text[begin..];
    let len = inside.windows(end.len()).position(|window| window == end);
    Some(len.map_or(text.len(), |len| begin + len + end.len()))
}

/// Length of a character, or 1 where the mark begins a lifetime.
fn character(text: &[u8]) -> usize {
    match text.get(1) {
        Some(b'\\') => {
            3 + text[3.min(text.len())..].iter().position(|b| *b == b'\'').unwrap_or(0) + 1
        }
        Some(first) => {
            let len = match first {
                0..=0x7f => 1,
                0x80..=0xdf => 2,
                0xe0..=0xef => 3,
                _ => 4,
            };
            if text.get(1 + len) == Some(&b'\'') { len + 2 } else { 1 }
        }
        None => 1,
    }
    .min(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_no_code() {
        let source = "a // unsafe\nb /* unsafe /* x */ unsafe */ c \"unsafe \\\" unsafe\" d\n\
            r#\"unsafe \" unsafe\"# e '\"' f '\\'' g 'x h<'a> unsafe";
        let code = code_of(source);
        assert_eq!(code.len(), source.len());
        assert_eq!(code.lines().count(), source.lines().count());
        let words: Vec<&str> =
            code.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
        assert_eq!(words, ["a", "b", "c", "d", "e", "f", "g", "x", "h", "a", "unsafe"]);
    }

    #[test]
    fn words_stand_alone() {
        let code = "unsafe_code unsafe { my_unsafe unsafe";
        assert_eq!(places(code, "unsafe").collect::<Vec<_>>(), [12, 31]);
        assert_eq!(line_of("a\nb\nc", 4), 3);
    }
}
