//! Every link has a target, every page is in the book, every named file exists.
use crate::markdown::Document;
use crate::tree;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Top folders: a name in code that begins with one of them is a path from the root.
const FOLDERS: [&str; 11] = [
    ".ci/",
    "app/",
    "cli/",
    "core/",
    "dataplane/",
    "docs/",
    "host/",
    "packaging/",
    "programs/",
    "sys/",
    "verify/",
];

/// Pages that the book takes from outside of `docs`, with the page that includes them.
const INCLUDED: [(&str, &str); 2] =
    [("ARCHITECTURE.md", "docs/architecture.md"), ("CONTRIBUTING.md", "docs/contributing.md")];

struct Book {
    files: BTreeSet<String>,
    documents: BTreeMap<String, Document>,
}

impl Book {
    fn read() -> Book {
        let root = tree::root();
        let files = tree::files(&root).expect("the repository can be read");
        let ours = |path: &&String| {
            path.ends_with(".md") && (!path.contains('/') || path.starts_with("docs/"))
        };
        let read = |path: &String| {
            let text = fs::read_to_string(root.join(path)).expect("a document can be read");
            (path.clone(), Document::read(&text))
        };
        let documents = files.iter().filter(ours).map(read).collect();
        Book { files, documents }
    }

    /// The error of a link in a document, if there is one.
    fn problem(&self, from: &str, link: &str) -> Option<String> {
        if link.contains("://") || link.starts_with("mailto:") {
            return None;
        }
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        let target = if path.is_empty() { from.to_owned() } else { tree::resolve(from, path) };
        if !self.files.contains(&target) {
            return Some(format!("{from}: `{link}`: there is no {target}"));
        }
        let outside = from.starts_with("docs/") && !target.starts_with("docs/");
        if outside {
            return Some(format!(
                "{from}: `{link}` leaves the book; name the file in code instead"
            ));
        }
        let document = self.documents.get(&target)?;
        let known = anchor.is_empty() || document.anchors.iter().any(|a| a == anchor);
        (!known).then(|| format!("{from}: `{link}`: {target} has no heading for #{anchor}"))
    }
}

#[test]
fn links_lead_somewhere() {
    let book = Book::read();
    let each = book.documents.iter();
    let links = each.flat_map(|(from, d)| d.links.iter().map(move |link| (from, link)));
    let dead: Vec<String> = links.filter_map(|(from, link)| book.problem(from, link)).collect();
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
}

#[test]
fn every_page_is_in_the_book() {
    let book = Book::read();
    let summary = &book.documents["docs/SUMMARY.md"];
    let listed: BTreeSet<String> =
        summary.links.iter().map(|link| tree::resolve("docs/SUMMARY.md", link)).collect();
    let pages = book.documents.keys().filter(|path| path.starts_with("docs/"));
    let orphans: Vec<&String> =
        pages.filter(|path| *path != "docs/SUMMARY.md" && !listed.contains(*path)).collect();
    assert!(orphans.is_empty(), "not in docs/SUMMARY.md: {orphans:?}");
    let twice = summary.links.len() - listed.len();
    assert_eq!(twice, 0, "docs/SUMMARY.md lists a page twice");
}

#[test]
fn pages_from_outside_have_the_same_links_in_the_book() {
    let book = Book::read();
    for (source, page) in INCLUDED {
        let labels = |path: &str| {
            let targets = book.documents[path].definitions.iter();
            targets
                .map(|(label, to)| (label.clone(), tree::resolve(path, to)))
                .collect::<BTreeMap<_, _>>()
        };
        let (mut ours, theirs) = (labels(source), labels(page));
        // A link to a page of the book means the page that includes it, not the file.
        for target in ours.values_mut() {
            if let Some((_, page)) = INCLUDED.iter().find(|(source, _)| source == target) {
                *target = (*page).to_owned();
            }
        }
        assert_eq!(ours, theirs, "link definitions of {source} and of {page}");
    }
}

#[test]
fn files_that_are_named_exist() {
    let book = Book::read();
    let mut missing = Vec::new();
    for (from, document) in &book.documents {
        // The change log names files of the past.
        if from == "docs/CHANGELOG.md" {
            continue;
        }
        for name in document.code.iter().flat_map(|code| code.split([' ', ','])) {
            if !exists(&book.files, name) {
                missing.push(format!("{from}: `{name}`"));
            }
        }
    }
    missing.dedup();
    assert!(missing.is_empty(), "named, and not there:\n{}", missing.join("\n"));
}

/// Whether a name in code is either no path of ours, or an existing one.
fn exists(files: &BTreeSet<String>, name: &str) -> bool {
    // `file.rs:12` and `file.rs::item` name the file; `name/` its folder.
    let name = name.split(':').next().unwrap_or(name).trim_end_matches('/');
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let placeholder = name.chars().any(|c| !plain(c)) || name.split('/').any(is_placeholder);
    if placeholder || name.is_empty() {
        return true;
    }
    if FOLDERS.iter().any(|folder| name.starts_with(folder)) {
        return files.contains(name);
    }
    // A source by the end of its path: `afxdp/ring.rs`.
    if name.ends_with(".rs") && !name.starts_with('.') {
        let end = format!("/{name}");
        return files.iter().any(|file| file.ends_with(&end));
    }
    true
}

/// A placeholder in a path, as in `docs/design/TOPIC.md`.
fn is_placeholder(part: &str) -> bool {
    let stem = part.split('.').next().unwrap_or(part);
    let capital = stem.len() > 1 && stem.chars().all(|c| c.is_ascii_uppercase());
    let ours = ["README", "SUMMARY", "SPECIFICATION", "SECURITY", "CHANGELOG"];
    capital && !ours.contains(&stem)
}

#[test]
fn the_readme_can_be_read_in_four_minutes() {
    let text = fs::read_to_string(tree::root().join("README.md")).expect("a README");
    let (lines, words) = (text.lines().count(), text.split_whitespace().count());
    assert!(lines <= 170, "README.md has {lines} lines; move details to docs/guide");
    assert!(words <= 1100, "README.md has {words} words; move details to docs/guide");
    for command in ["cargo run --release -- demo", "cargo test --workspace"] {
        assert!(text.contains(command), "README.md must name `{command}`");
    }
}

#[test]
fn tests_that_the_specification_names_exist() {
    let book = Book::read();
    let root = tree::root();
    let sources = book.files.iter().filter(|path| path.ends_with(".rs"));
    let code: String =
        sources.filter_map(|path| fs::read_to_string(root.join(path)).ok()).collect();
    let spec = &book.documents["docs/SPECIFICATION.md"];
    let is_test = |name: &&String| {
        name.contains('_')
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let missing: Vec<&String> = spec
        .code
        .iter()
        .filter(is_test)
        .filter(|name| !code.contains(&format!("fn {name}(")))
        .collect();
    assert!(missing.is_empty(), "docs/SPECIFICATION.md names tests that do not exist: {missing:?}");
}

#[test]
fn the_service_of_the_readme_is_the_one_that_is_compiled() {
    let root = tree::root();
    let library = fs::read_to_string(root.join("app/libix/src/lib.rs")).expect("libix");
    let block = library.split("//! ```").nth(1).expect("an example in libix");
    let code = |text: &str| -> Vec<String> {
        let lines = text.lines().map(|l| l.strip_prefix("//!").unwrap_or(l).trim().to_owned());
        lines.filter(|line| !line.is_empty()).collect()
    };
    let hidden = |line: &String| line.strip_prefix("# ").unwrap_or(line).to_owned();
    let compiled: Vec<String> = code(block).iter().skip(1).map(hidden).collect();
    for page in ["README.md", "docs/guide/first-service.md"] {
        let text = fs::read_to_string(root.join(page)).expect("a page");
        let shown = text.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
        assert_eq!(code(shown.unwrap_or_default()), compiled, "the service of {page}");
    }
}

#[test]
fn design_pages_open_with_their_question() {
    let root = tree::root();
    let read = |path: &str| fs::read_to_string(root.join(path)).expect("a page");
    let map = read("ARCHITECTURE.md");
    for path in tree::files(&root).expect("the repository can be read") {
        let Some(name) = path.strip_prefix("docs/design/") else { continue };
        let text = read(&path);
        let title = text.lines().next().and_then(|line| line.strip_prefix("# "));
        let question = text.lines().nth(2).map(|line| line.trim_matches('*')).unwrap_or_default();
        assert!(question.ends_with('?'), "{path} does not open with a question: {question}");
        let row = format!(
            "| [{}][{}] | {question} |",
            title.unwrap_or_default(),
            name.trim_end_matches(".md")
        );
        assert!(map.contains(&row), "ARCHITECTURE.md has no such row: {row}");
    }
}

#[test]
fn the_glossary_is_in_order_and_has_each_word_once() {
    let text = fs::read_to_string(tree::root().join("docs/glossary.md")).expect("a glossary");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let words: Vec<String> = rows
        .map(|(word, _)| {
            word.split(" (*papers*").next().unwrap_or(word).replace('`', "").to_lowercase()
        })
        .filter(|word| word != "word")
        .collect();
    for pair in words.windows(2) {
        assert!(pair[0] < pair[1], "`{}` stands before `{}`", pair[0], pair[1]);
    }
}
