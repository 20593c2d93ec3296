//! Documented enums and structs of a Rust source that `rustfmt` has formatted.
//!
//! Requests, configuration keys and settings are types whose documentation is written once, beside
//! the code. It is the source of the reference pages.

/// A variant of an enum, or a field of a struct or of a variant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Its documentation as one paragraph.
    pub doc: String,
    /// Its type; for a variant its content in parentheses, or nothing.
    pub kind: String,
    /// Its attributes, such as `#[serde(default)]`.
    pub attributes: Vec<String>,
    /// The named fields of a variant.
    pub fields: Vec<Member>,
}

/// The members of `pub enum name` or `pub struct name` in `source`; `None` if there is none.
pub fn members(source: &str, name: &str) -> Option<Vec<Member>> {
    let heads = ["enum", "struct"].map(|kind| format!("pub {kind} {name} {{"));
    let mut lines = source.lines().skip_while(|line| !heads.iter().any(|head| line == head));
    lines.next()?;
    let mut found: Vec<Member> = Vec::new();
    let mut next = [Member::default(), Member::default()];
    let mut attribute: Option<String> = None;
    for line in lines.take_while(|line| *line != "}") {
        let text = line.trim();
        if let Some(open) = &mut attribute {
            open.push_str(text);
            if text.ends_with(")]") {
                next[level(line).min(1)].attributes.extend(attribute.take());
            }
            continue;
        }
        let member = &mut next[level(line).min(1)];
        if let Some(doc) = text.strip_prefix("///") {
            member.doc = format!("{} {}", member.doc, doc.trim()).trim().to_owned();
        } else if text.starts_with("#[") {
            match text.ends_with(']') {
                true => member.attributes.push(text.to_owned()),
                false => attribute = Some(text.to_owned()),
            }
        } else if level(line) == 0 && !text.starts_with('}') && !text.starts_with("//") {
            let mut done = std::mem::take(member);
            (done.name, done.kind) = name_and_kind(text);
            found.push(done);
        } else if level(line) == 1 && !text.starts_with('}') && !text.starts_with("//") {
            let mut done = std::mem::take(member);
            (done.name, done.kind) = name_and_kind(text);
            found.last_mut()?.fields.push(done);
        }
    }
    Some(found)
}

/// 0: a member of the item, 1: a field of a variant.
fn level(line: &str) -> usize {
    (line.len() - line.trim_start().len()) / 4 - usize::from(line.starts_with("    "))
}

/// `pub name: Kind,`, `Name(Kind),`, `Name {` or `Name,`.
fn name_and_kind(text: &str) -> (String, String) {
    let text = text.trim_end_matches([',', '{', ' ']);
    let text = text.strip_prefix("pub ").unwrap_or(text);
    let (name, kind) = match text.split_once(": ") {
        Some(both) => both,
        None => match text.split_once('(') {
            Some((name, kind)) => (name, kind.trim_end_matches(')')),
            None => (text, ""),
        },
    };
    (name.trim().to_owned(), kind.trim().to_owned())
}

/// `FilterCreate` as `filter-create`.
pub fn kebab(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.push(c.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
/// One request.
#[derive(Clone)]
pub enum Request {
    /// All counters.
    Stats,
    /// Moves flow groups
    /// to a thread.
    Migrate {
        /// These.
        #[serde(default, with = \"text\")]
        groups: GroupSet,
        /// The thread.
        to: usize,
    },
    /// Connections.
    Connections(Query),
}

pub struct Query {
    /// At most.
    pub max: usize,
}
";

    #[test]
    fn variants_and_fields_are_read() {
        let request = members(SOURCE, "Request").expect("an enum");
        let names: Vec<&str> = request.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(names, ["Stats", "Migrate", "Connections"]);
        assert_eq!(request[1].doc, "Moves flow groups to a thread.");
        assert_eq!(request[1].fields[0].kind, "GroupSet");
        assert_eq!(request[1].fields[0].attributes, ["#[serde(default, with = \"text\")]"]);
        assert_eq!(request[1].fields[1].doc, "The thread.");
        assert_eq!(request[2].kind, "Query");
        let query = members(SOURCE, "Query").expect("a struct");
        assert_eq!((query[0].name.as_str(), query[0].kind.as_str()), ("max", "usize"));
        assert_eq!(members(SOURCE, "Other"), None);
        assert_eq!(kebab("FilterCreate"), "filter-create");
    }
}
