//! The part of JSON (RFC 8259) that the control socket uses, so that the library needs no
//! dependency.
use core::fmt::Write;

/// A value. Numbers stay as they are written.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

/// Most levels of nested lists and objects.
const DEPTH_MAX: usize = 32;

impl Json {
    /// Parses a value; `None`: the text is not JSON, or has more after the value.
    pub(super) fn parse(text: &str) -> Option<Json> {
        let mut reader = Reader { rest: text, depth: 0 };
        let value = reader.value()?;
        reader.space();
        reader.rest.is_empty().then_some(value)
    }

    /// A field of an object.
    pub(super) fn get(&self, name: &str) -> Option<&Json> {
        let Json::Object(fields) = self else { return None };
        fields.iter().find(|(field, _)| field == name).map(|(_, value)| value)
    }

    pub(super) fn text(&self) -> Option<&str> {
        if let Json::Text(text) = self { Some(text) } else { None }
    }

    pub(super) fn number(&self) -> Option<u64> {
        if let Json::Number(number) = self { number.parse().ok() } else { None }
    }

    pub(super) fn list(&self) -> &[Json] {
        if let Json::List(list) = self { list } else { &[] }
    }
}

struct Reader<'a> {
    rest: &'a str,
    depth: usize,
}

impl Reader<'_> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    fn take(&mut self, word: &str) -> Option<()> {
        self.space();
        self.rest = self.rest.strip_prefix(word)?;
        Some(())
    }

    fn value(&mut self) -> Option<Json> {
        self.space();
        match self.rest.chars().next()? {
            'n' => self.take("null").map(|()| Json::Null),
            't' => self.take("true").map(|()| Json::Bool(true)),
            'f' => self.take("false").map(|()| Json::Bool(false)),
            '"' => self.text().map(Json::Text),
            '[' => self.several("[", "]", Reader::value).map(Json::List),
            '{' => self.several("{", "}", Reader::field).map(Json::Object),
            _ => self.number(),
        }
    }

    fn number(&mut self) -> Option<Json> {
        let is_number = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E');
        let len = self.rest.find(|c| !is_number(c)).unwrap_or(self.rest.len());
        let (number, rest) = self.rest.split_at(len);
        number.parse::<f64>().ok()?;
        self.rest = rest;
        Some(Json::Number(number.to_owned()))
    }

    fn field(&mut self) -> Option<(String, Json)> {
        self.space();
        let name = self.text()?;
        self.take(":")?;
        Some((name, self.value()?))
    }

    fn several<T>(
        &mut self,
        open: &str,
        close: &str,
        one: impl Fn(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        self.take(open)?;
        self.depth += 1;
        let mut all = Vec::new();
        if self.depth > DEPTH_MAX {
            return None;
        }
        while self.take(close).is_none() {
            if !all.is_empty() {
                self.take(",")?;
            }
            all.push(one(self)?);
        }
        self.depth -= 1;
        Some(all)
    }

    fn text(&mut self) -> Option<String> {
        self.take("\"")?;
        let mut text = String::new();
        let mut chars = self.rest.chars();
        loop {
            match chars.next()? {
                '"' => break,
                '\\' => text.push(match chars.next()? {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    'u' => {
                        let mut code = 0;
                        for _ in 0..4 {
                            code = code << 4 | chars.next()?.to_digit(16)?;
                        }
                        // The control socket sends no characters beyond the first plane.
                        char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
                    }
                    other => other,
                }),
                other => text.push(other),
            }
        }
        self.rest = chars.as_str();
        Some(text)
    }
}

/// A text as JSON writes it.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => drop(write!(out, "\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_are_read_and_what_is_none_is_not() {
        let text = r#" {"a": [1, -2.5e3, null, true], "b": {"c": "x\n\"A\\"}, "d": []} "#;
        let value = Json::parse(text).expect("JSON");
        assert_eq!(value.get("a").expect("a").list()[0].number(), Some(1));
        assert_eq!(value.get("b").and_then(|b| b.get("c")?.text()), Some("x\n\"A\\"));
        assert_eq!(value.get("d").map(Json::list), Some(&[][..]));
        assert_eq!(value.get("e"), None);
        let deep = "[".repeat(100_000);
        for wrong in ["", "{", "[1 2]", "{\"a\"}", "nul", "1 2", "\"a", "-", "[,]", &deep] {
            assert_eq!(Json::parse(wrong), None, "{}", &wrong[..wrong.len().min(20)]);
        }
    }

    proptest! {
        #[test]
        fn what_is_quoted_is_read_as_it_was(text in "\\PC*|[\\x00-\\x7f]*") {
            prop_assert_eq!(Json::parse(&quoted(&text)), Some(Json::Text(text)));
        }

        #[test]
        fn nothing_makes_it_panic(text in "[\\[\\]{}\",:0-9a-z\\\\ ]{0,40}") {
            let _ = Json::parse(&text);
        }
    }
}
