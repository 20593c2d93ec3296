//! Where `unsafe` may be: only in the packages of CONTRIBUTING.md's table; all others forbid it.

use crate::source::{code_of, line_of, places};
use crate::{Finding, Tree};
use std::collections::BTreeMap;

/// The page with the table: packages in a row's first cell, what their `unsafe` is for in its
/// second.
pub const PAGE: &str = "CONTRIBUTING.md";
/// The heading above the table.
pub const HEADING: &str = "## Crates and their unsafe code";

const WHY: &str = "an audit of the tree reads the packages with `unsafe`, and no others";
const FORBID: &str = "#![forbid(unsafe_code)]";

/// Compares the list with the sources.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let listed = listed(tree.text(PAGE).unwrap_or_default());
    let mut findings = Vec::new();
    let mut found = |file: &str, line: usize, what: String, remedy: &str| {
        let (file, remedy) = (file.to_owned(), remedy.to_owned());
        findings.push(Finding { file, line, what, why: WHY, remedy });
    };
    for package in tree.packages() {
        let name = package.name.as_str();
        let first = first_unsafe(tree, &package.folder);
        match (first, listed.get(name)) {
            (Some((file, line)), None) => found(
                &file,
                line,
                format!("`unsafe` in {name}, which is not in the table"),
                "do without, or add the package to the table of CONTRIBUTING.md with what it is for",
            ),
            (Some(_), Some((line, ""))) => {
                found(
                    PAGE,
                    *line,
                    format!("{name}: no word of what its `unsafe` is for"),
                    "say it",
                );
            }
            (Some((file, line)), Some(_)) if package.room() == "core" => found(
                &file,
                line,
                format!("`unsafe` in {name}: core/ is pure"),
                "move it to sys/ or dataplane/",
            ),
            (None, Some((line, _))) => {
                found(
                    PAGE,
                    *line,
                    format!("{name} has no `unsafe` any more"),
                    "delete it from the table",
                );
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
        if listed.contains_key(name) {
            continue;
        }
        for (file, text) in tree.within(&format!("{}/src/", package.folder), ".rs") {
            let inner = file.trim_start_matches(&format!("{}/src/", package.folder));
            let is_root = ["lib.rs", "main.rs"].contains(&inner) || inner.starts_with("bin/");
            if is_root && !text.lines().any(|line| line.trim() == FORBID) {
                found(
                    file,
                    1,
                    format!("{name} does not forbid `unsafe`"),
                    &format!("write {FORBID}"),
                );
            }
        }
    }
    let packages = tree.packages();
    for (name, (line, _)) in &listed {
        if packages.iter().all(|package| package.name != *name) {
            found(PAGE, *line, format!("there is no package {name}"), "delete it from the table");
        }
    }
    findings
}

/// Packages of the table: line and reason.
fn listed(page: &str) -> BTreeMap<&str, (usize, &str)> {
    let lines = page.lines().enumerate().skip_while(|(_, line)| *line != HEADING).skip(1);
    let rows = lines.take_while(|(_, line)| !line.starts_with("## "));
    let mut listed = BTreeMap::new();
    for (index, row) in rows.filter(|(_, line)| line.starts_with("| `")) {
        let mut cells = row.trim_matches('|').split(" | ");
        let (names, reason) = (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
        // Names stand between backticks: every second piece.
        for name in names.split('`').skip(1).step_by(2) {
            listed.insert(name, (index + 1, reason.trim()));
        }
    }
    listed
}

/// File and line of the first `unsafe` of a package's library and programs.
fn first_unsafe(tree: &Tree, folder: &str) -> Option<(String, usize)> {
    tree.within(&format!("{folder}/src/"), ".rs").find_map(|(file, text)| {
        let code = text.contains("unsafe").then(|| code_of(text))?;
        let at = places(&code, "unsafe").next()?;
        Some((file.to_owned(), line_of(&code, at)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(source: &str, list: &str) -> Tree {
        Tree::of(&[
            ("core/ix-a/Cargo.toml", "[package]\nname = \"ix-a\"\n"),
            ("core/ix-a/src/lib.rs", "#![forbid(unsafe_code)]\n// unsafe\n"),
            ("host/ix-b/Cargo.toml", "[package]\nname = \"ix-b\"\n"),
            ("host/ix-b/src/lib.rs", source),
            (PAGE, &format!("| `no` | row |\n{HEADING}\n\n{list}\n## More\n| `no` | row |\n")),
        ])
    }

    #[test]
    fn the_list_is_what_the_sources_have() {
        assert_eq!(
            check(&tree(
                "fn f() { unsafe {} }\n",
                "| crate | its |\n|---|---|\n| `ix-b` | system calls |\n"
            )),
            []
        );
        assert_eq!(check(&tree("#![forbid(unsafe_code)]\n", "")), []);
    }

    #[test]
    fn new_unsafe_is_found() {
        let findings = check(&tree("#![forbid(unsafe_code)]\n\nfn f() { unsafe {} }\n", ""));
        assert_eq!(findings.len(), 1);
        assert_eq!((findings[0].file.as_str(), findings[0].line), ("host/ix-b/src/lib.rs", 3));
    }

    #[test]
    fn a_package_off_the_list_forbids_it() {
        assert_eq!(check(&tree("fn f() {}\n", ""))[0].what, "ix-b does not forbid `unsafe`");
    }

    #[test]
    fn the_list_has_no_old_lines_and_no_mute_ones() {
        let what = |source, list| check(&tree(source, list)).remove(0).what;
        assert_eq!(what("fn f() {}\n", "| `ix-b` | x |"), "ix-b has no `unsafe` any more");
        let mute = what("fn f() { unsafe {} }\n", "| `ix-b` |  |");
        assert_eq!(mute, "ix-b: no word of what its `unsafe` is for");
        assert_eq!(what("#![forbid(unsafe_code)]\n", "| `ix-z` | x |"), "there is no package ix-z");
    }

    #[test]
    fn the_core_is_pure_whatever_the_list_says() {
        let tree = Tree::of(&[
            ("core/ix-a/Cargo.toml", "[package]\nname = \"ix-a\"\n"),
            ("core/ix-a/src/lib.rs", "fn f() { unsafe {} }\n"),
            (PAGE, &format!("{HEADING}\n| `ix-a`, `ix-b` | speed |\n")),
        ]);
        let what: Vec<_> = check(&tree).into_iter().map(|finding| finding.what).collect();
        assert_eq!(what[1], "there is no package ix-b");
        assert_eq!(what[0], "`unsafe` in ix-a: core/ is pure");
    }
}
