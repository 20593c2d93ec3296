//! The front page of every crate says in one sentence what it is for.

use crate::{Finding, Tree};

/// Most letters of the sentence.
const LETTERS_MAX: usize = 240;

/// Checks the first lines of all libraries and programs.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in tree.packages() {
        let src = format!("{}/src/", package.folder);
        for (file, text) in tree.within(&src, ".rs") {
            let inner = &file[src.len()..];
            if !["lib.rs", "main.rs"].contains(&inner) && !inner.starts_with("bin/") {
                continue;
            }
            if let Some(what) = wrong(text) {
                findings.push(Finding {
                    file: file.to_owned(),
                    line: 1,
                    what,
                    why: "a newcomer reads the front page first, and often nothing else",
                    remedy: "begin with `//! ` and one sentence that says what it is for"
                        .to_owned(),
                });
            }
        }
    }
    findings
}

/// What is wrong with the beginning of a crate.
fn wrong(text: &str) -> Option<String> {
    let page = text.lines().map_while(|line| line.strip_prefix("//!"));
    let paragraph: Vec<&str> = page.map(str::trim).take_while(|line| !line.is_empty()).collect();
    if paragraph.is_empty() {
        return Some("no front page".to_owned());
    }
    let paragraph = paragraph.join(" ");
    let ends = [". ", ": ", "? "].map(|end| paragraph.find(end).unwrap_or(paragraph.len()));
    let letters = ends.into_iter().min().unwrap_or(0);
    if letters > LETTERS_MAX {
        return Some(format!("a first sentence of {letters} letters, at most {LETTERS_MAX}"));
    }
    let ended = [".", ":"].iter().any(|end| paragraph.ends_with(end));
    (!ended || paragraph.split(' ').count() < 3)
        .then(|| "the front page has no sentence".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(page: &str) -> Vec<String> {
        let tree = Tree::of(&[
            ("core/ix-a/Cargo.toml", "[package]\nname = \"ix-a\"\n"),
            ("core/ix-a/src/lib.rs", page),
            ("core/ix-a/src/other.rs", ""),
        ]);
        check(&tree).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn a_front_page_is_a_sentence() {
        assert_eq!(what("//! Packet formats,\n//! and checksums.\n\nfn f() {}\n"), [""; 0]);
        assert_eq!(what("use x;\n"), ["no front page"]);
        assert_eq!(what("//! Formats\n"), ["the front page has no sentence"]);
        let long = format!("//! It is {}.\n", "so ".repeat(100));
        assert_eq!(what(&long)[0], "a first sentence of 307 letters, at most 240");
    }
}
