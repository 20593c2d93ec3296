//! Reads the declarations of our own sources: a file that `rustfmt` has formatted, line by line.
//! What it does not understand is a panic, so that nothing is left out silently.

/// Declarations of a file or of a module within it.
#[derive(Default)]
pub struct Part {
    /// Name of the module; empty for a file's own.
    pub name: String,
    /// What it says about itself.
    pub doc: Vec<String>,
    pub items: Vec<Item>,
}

/// A documented declaration.
pub struct Item {
    pub doc: Vec<String>,
    pub what: What,
}

pub enum What {
    Const { name: String, value: String },
    Struct { name: String, aligned: bool, fields: Vec<Field> },
    Opaque { name: String },
    Function { name: String, arguments: Vec<(String, String)>, result: String },
}

/// A member of a structure.
pub struct Field {
    pub doc: Vec<String>,
    pub name: String,
    pub ty: String,
}

/// The parts of a source; the first one is the file's own.
pub fn parse(source: &str) -> Vec<Part> {
    let mut parts = vec![Part::default()];
    let mut current = 0;
    let (mut doc, mut attributes) = (Vec::new(), String::new());
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let text = line.trim();
        if let Some(said) = text.strip_prefix("//!") {
            parts[current].doc.push(said.trim().to_owned());
        } else if let Some(said) = text.strip_prefix("///") {
            doc.push(said.trim().to_owned());
        } else if text.starts_with("#[") {
            attributes.push_str(text);
        } else if let Some(name) = text.strip_prefix("pub mod ").and_then(|t| t.strip_suffix(" {"))
        {
            let doc = core::mem::take(&mut doc);
            parts.push(Part { name: name.to_owned(), doc, items: Vec::new() });
            current = parts.len() - 1;
        } else if line == "}" {
            current = 0;
        } else {
            let declared = text.starts_with("pub ") && (current > 0 || !line.starts_with(' '));
            let what = if declared { declaration(text, &attributes, &mut lines) } else { None };
            let doc = core::mem::take(&mut doc);
            attributes.clear();
            if let Some(what) = what {
                assert!(!doc.is_empty(), "not documented: {text}");
                parts[current].items.push(Item { doc: public(doc), what });
            }
        }
    }
    parts
}

/// What a C programmer reads: not what Rust's callers promise.
fn public(doc: Vec<String>) -> Vec<String> {
    let mut doc: Vec<_> = doc.into_iter().take_while(|line| line != "# Safety").collect();
    while doc.last().is_some_and(|line| line.is_empty()) {
        doc.pop();
    }
    doc
}

fn declaration<'a>(
    text: &str,
    attributes: &str,
    lines: &mut impl Iterator<Item = &'a str>,
) -> Option<What> {
    let mut whole = |until: &[char]| {
        let mut whole = text.to_owned();
        while !whole.ends_with(until) {
            whole.push(' ');
            whole.push_str(lines.next().expect("more of a declaration").trim());
        }
        whole
    };
    if let Some(rest) = text.strip_prefix("pub const ") {
        if rest.starts_with("fn ") {
            return None;
        }
        let (name, rest) = rest.split_once(": ").expect("a constant has a type");
        let (_, value) = rest.split_once(" = ").expect("a constant has a value");
        return Some(What::Const { name: name.into(), value: value.trim_end_matches(';').into() });
    }
    if attributes.contains("no_mangle") {
        return Some(function(&whole(&['{'])));
    }
    let name = text.strip_prefix("pub struct ")?;
    let name: String = name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    if !attributes.contains("#[repr(C") {
        return name.starts_with("ix_").then_some(What::Opaque { name });
    }
    let aligned = attributes.contains("align(64)");
    Some(What::Struct { name, aligned, fields: fields(lines) })
}

fn fields<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Vec<Field> {
    let (mut fields, mut doc, mut open) = (Vec::new(), Vec::new(), String::new());
    for line in lines {
        let text = line.trim();
        if line == "}" {
            break;
        } else if let Some(said) = text.strip_prefix("///") {
            doc.push(said.trim().to_owned());
            continue;
        }
        open.push_str(text);
        open.push(' ');
        if open.ends_with(", ") && depth(&open) == 0 {
            let field = open.trim().trim_end_matches(',');
            let (name, ty) = field.split_once(':').expect("a field has a type");
            let name = name.trim().trim_start_matches("pub ").to_owned();
            let doc = core::mem::take(&mut doc);
            fields.push(Field { doc, name, ty: ty.trim().to_owned() });
            open.clear();
        }
    }
    fields
}

fn function(text: &str) -> What {
    let (_, rest) = text.split_once(" fn ").expect("a function");
    let (name, rest) = rest.split_once('(').expect("arguments");
    let close = close_of(rest);
    let result = rest[close + 1..].trim().trim_end_matches('{').trim();
    let result = result.strip_prefix("->").unwrap_or("()").trim();
    What::Function {
        name: name.to_owned(),
        arguments: arguments(&rest[..close]),
        result: result.to_owned(),
    }
}

/// Names and types of a list.
pub fn arguments(list: &str) -> Vec<(String, String)> {
    let (mut arguments, mut open) = (Vec::new(), String::new());
    for piece in list.split(',') {
        open.push_str(piece);
        if depth(&open) == 0 {
            if let Some((name, ty)) = open.split_once(':') {
                let name = name.trim().trim_end_matches('_');
                arguments.push((name.to_owned(), ty.trim().to_owned()));
            }
            open.clear();
        } else {
            open.push(',');
        }
    }
    arguments
}

/// Where the bracket that is open before `text` closes.
pub fn close_of(text: &str) -> usize {
    let closes = |(at, _): &(usize, char)| depth(&text[..=*at]) < 0;
    text.char_indices().find(closes).expect("a closing bracket").0
}

/// Brackets that are open.
fn depth(text: &str) -> i32 {
    let text = text.replace("->", "");
    let count = |of: &[char]| text.matches(of).count() as i32;
    count(&['(', '<', '[']) - count(&[')', '>', ']'])
}
