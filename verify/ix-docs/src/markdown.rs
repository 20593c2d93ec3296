//! The links and file names of a Markdown document.
//!
//! This parses the Markdown that our documents use: ATX headings, inline links, link definitions,
//! code spans and fenced code.

/// A document that was read once.
#[derive(Debug, Default)]
pub struct Document {
    /// Targets of links, as written.
    pub links: Vec<String>,
    /// Labels of link definitions, with their targets.
    pub definitions: Vec<(String, String)>,
    /// Anchors of the headings, as GitHub and mdBook make them.
    pub anchors: Vec<String>,
    /// Content of code spans, without fenced code.
    pub code: Vec<String>,
}

impl Document {
    /// Parses a document.
    pub fn read(text: &str) -> Document {
        let mut document = Document::default();
        let mut prose = String::new();
        let mut fenced = false;
        for line in text.lines() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
                continue;
            }
            if fenced {
                continue;
            }
            if let Some(title) = heading(line) {
                let anchor = document.new_anchor(&slug(title));
                document.anchors.push(anchor);
            }
            match definition(line) {
                Some((label, target)) => {
                    document.definitions.push((label.to_owned(), target.to_owned()));
                }
                None => {
                    prose.push_str(line);
                    prose.push('\n');
                }
            }
        }
        let mut spans = prose.split('`');
        let mut words = String::new();
        while let Some(plain) = spans.next() {
            words.push_str(plain);
            if let Some(code) = spans.next() {
                document.code.push(code.replace('\n', " "));
                words.push('x');
            }
        }
        document.links.extend(inline_links(&words));
        document.links.extend(document.definitions.iter().map(|(_, target)| target.clone()));
        document
    }

    /// The second heading of a name gets `-1`, the third `-2`.
    fn new_anchor(&self, slug: &str) -> String {
        let taken = |name: &str| self.anchors.iter().any(|anchor| anchor == name);
        if !taken(slug) {
            return slug.to_owned();
        }
        let numbered = |n: usize| format!("{slug}-{n}");
        (1..).map(numbered).find(|name| !taken(name)).unwrap_or_default()
    }
}

/// The title of a line that is a heading.
pub fn heading(line: &str) -> Option<&str> {
    let title = line.trim_start_matches('#');
    let level = line.len() - title.len();
    ((1..=6).contains(&level) && title.starts_with(' ')).then(|| title.trim())
}

/// The anchor of a heading: lower case, blanks as hyphens, other punctuation left out.
pub fn slug(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// `[label]: target`.
fn definition(line: &str) -> Option<(&str, &str)> {
    let (label, target) = line.strip_prefix('[')?.split_once("]: ")?;
    Some((label, target.trim()))
}

/// Targets of `[text](target)`.
fn inline_links(text: &str) -> Vec<String> {
    let ends = text.match_indices("](").map(|(at, mark)| &text[at + mark.len()..]);
    ends.filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.split_whitespace().next().unwrap_or_default().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_headings_and_code_are_found() {
        let document = Document::read(
            "# The `ix` command: a tour\n[one](a.md#b) and [two](c.md),\n`not [a](link)` \
             ``x``\n```\n[no](no.md) `no.rs`\n# no\n```\n## Twice\n## Twice\n\n[three]: d.md\n",
        );
        assert_eq!(document.links, ["a.md#b", "c.md", "d.md"]);
        assert_eq!(document.anchors, ["the-ix-command-a-tour", "twice", "twice-1"]);
        assert_eq!(document.definitions, [("three".to_owned(), "d.md".to_owned())]);
        assert!(document.code.contains(&"not [a](link)".to_owned()));
        assert!(!document.code.iter().any(|code| code.contains("no.rs")));
    }
}
