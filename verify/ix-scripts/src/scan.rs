//! A cursor over the text of a script: white space, comments, words, and where an error is.

/// What is wrong with a script, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The script.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// What, and why.
    pub why: String,
}

impl std::fmt::Display for ParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.why)
    }
}

impl std::error::Error for ParseError {}

/// The cursor.
pub struct Scan<'a> {
    file: &'a str,
    text: &'a str,
    at: usize,
    /// Line of the cursor, from 1.
    pub line: usize,
}

pub type Parsed<T> = Result<T, ParseError>;

impl<'a> Scan<'a> {
    pub fn new(file: &'a str, text: &'a str) -> Scan<'a> {
        Scan { file, text, at: 0, line: 1 }
    }

    pub fn error<T>(&self, why: impl Into<String>) -> Parsed<T> {
        Err(ParseError { file: self.file.to_string(), line: self.line, why: why.into() })
    }

    /// What is left of the text.
    pub fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    pub fn skip(&mut self, bytes: usize) {
        self.line += self.text[self.at..self.at + bytes].matches('\n').count();
        self.at += bytes;
    }

    /// Skips white space and comments (`//`, `/* */`).
    pub fn blank(&mut self) -> Parsed<()> {
        loop {
            let rest = self.rest();
            let spaces = rest.len() - rest.trim_start().len();
            if spaces > 0 {
                self.skip(spaces);
            } else if rest.starts_with("//") {
                self.skip(rest.find('\n').unwrap_or(rest.len()));
            } else if rest.starts_with("/*") {
                match rest.find("*/") {
                    Some(end) => self.skip(end + 2),
                    None => return self.error("a comment begins with `/*` and does not end"),
                }
            } else {
                return Ok(());
            }
        }
    }

    /// The next character after white space and comments.
    pub fn peek(&mut self) -> Parsed<Option<char>> {
        self.blank()?;
        Ok(self.rest().chars().next())
    }

    /// Takes `token` if it comes next.
    pub fn eat(&mut self, token: &str) -> Parsed<bool> {
        self.blank()?;
        let here = self.rest().starts_with(token);
        if here {
            self.skip(token.len());
        }
        Ok(here)
    }

    /// Takes the word `word` if it comes next.
    pub fn eat_word(&mut self, word: &str) -> Parsed<bool> {
        self.blank()?;
        let here = self.word_here() == word;
        if here {
            self.skip(word.len());
        }
        Ok(here)
    }

    pub fn expect(&mut self, token: &str) -> Parsed<()> {
        if self.eat(token)? { Ok(()) } else { self.unexpected(&format!("`{token}`")) }
    }

    /// An error about what comes next.
    pub fn unexpected<T>(&self, wanted: &str) -> Parsed<T> {
        let line = self.rest().lines().next().unwrap_or("");
        match line.trim() {
            "" => self.error(format!("expected {wanted}, found the end of the line")),
            found => {
                let found: String = found.chars().take(30).collect();
                self.error(format!("expected {wanted}, found `{found}`"))
            }
        }
    }

    /// The word that begins at the cursor; empty when none does.
    pub fn word_here(&self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    }

    pub fn word(&mut self, what: &str) -> Parsed<&'a str> {
        self.blank()?;
        let word = self.word_here();
        if word.is_empty() {
            return self.unexpected(what);
        }
        self.skip(word.len());
        Ok(word)
    }

    /// A number: decimal, hexadecimal (`0x`), or negative.
    pub fn number(&mut self, what: &str) -> Parsed<i64> {
        self.blank()?;
        let rest = self.rest();
        let sign = usize::from(rest.starts_with('-') || rest.starts_with('+'));
        let end = rest[sign..].find(|c: char| !c.is_ascii_alphanumeric());
        let text = &rest[..end.map_or(rest.len(), |end| end + sign)];
        let digits = &text[sign..];
        let parsed = match digits.strip_prefix("0x") {
            Some(hex) => i64::from_str_radix(hex, 16).ok(),
            None => digits.parse().ok(),
        };
        match parsed {
            Some(n) => {
                self.skip(text.len());
                Ok(if text.starts_with('-') { -n } else { n })
            }
            None => self.unexpected(what),
        }
    }

    /// A number that fits.
    pub fn fit<T: TryFrom<i64>>(&mut self, what: &str) -> Parsed<T> {
        let number = self.number(what)?;
        match T::try_from(number) {
            Ok(n) => Ok(n),
            Err(_) => self.error(format!("{number} is out of range for {what}")),
        }
    }

    /// A sequence number: 32 bits, or a negative one that wraps.
    pub fn sequence(&mut self, what: &str) -> Parsed<u32> {
        let number = self.number(what)?;
        if !(-(1i64 << 31)..1 << 32).contains(&number) {
            return self.error(format!("{number} is no sequence number"));
        }
        Ok(number as u32)
    }

    /// Text up to `end`, which is taken too.
    pub fn until(&mut self, end: &str, what: &str) -> Parsed<&'a str> {
        let rest = self.rest();
        match rest.find(end) {
            Some(at) => {
                self.skip(at + end.len());
                Ok(&rest[..at])
            }
            None => self.error(format!("{what} does not end with `{end}`")),
        }
    }
}
