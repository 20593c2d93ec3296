//! A line and its words.

/// Most words of a command that are listed.
const WORDS_MAX: usize = 8;

/// The words of a line.
pub(super) struct Words<'a> {
    pub(super) list: [&'a [u8]; WORDS_MAX],
    /// May be more than are listed.
    pub(super) count: usize,
}

impl<'a> Words<'a> {
    pub(super) fn of(line: &'a [u8]) -> Words<'a> {
        let mut words = Words { list: [&[]; WORDS_MAX], count: 0 };
        for word in line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()) {
            if let Some(slot) = words.list.get_mut(words.count) {
                *slot = word;
            }
            words.count += 1;
        }
        words
    }

    /// Whether the last word is `word`.
    pub(super) fn noreply(&self) -> bool {
        self.count <= WORDS_MAX && self.count > 0 && self.list[self.count - 1] == b"noreply"
    }
}

/// Offset of the words after the first `count`.
pub(super) fn behind(line: &[u8], count: usize) -> usize {
    let mut at = 0;
    for _ in 0..count {
        at += line[at..].iter().position(|&byte| byte != b' ').unwrap_or(0);
        at += line[at..].iter().position(|&byte| byte == b' ').unwrap_or(line.len() - at);
    }
    at
}
