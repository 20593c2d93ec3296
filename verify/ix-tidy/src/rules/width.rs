//! Width of lines. rustfmt breaks code but leaves comments as they are.

use crate::{Finding, Tree};
use std::collections::BTreeMap;

const WHY: &str = "comments are read beside code, at the width that rustfmt gives code";

/// Wide comments of a room, today: at most so many.
pub type Exception = (&'static str, usize);

/// Checks comments of all Rust sources against `max_width` of rustfmt.toml.
pub fn check(tree: &Tree, exceptions: &[Exception]) -> Vec<Finding> {
    let config = tree.text("rustfmt.toml").unwrap_or_default();
    let width = config.lines().find_map(|line| line.strip_prefix("max_width = "));
    let width: usize = width.and_then(|width| width.trim().parse().ok()).unwrap_or(100);
    let mut rooms: BTreeMap<&str, Vec<Finding>> = BTreeMap::new();
    for (file, text) in tree.files().filter(|(file, _)| file.ends_with(".rs")) {
        for (index, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            // A word without blanks, such as an address, cannot be broken.
            let breaks = line.split_whitespace().nth(2).is_some();
            if columns > width && line.trim_start().starts_with("//") && breaks {
                rooms.entry(file.split('/').next().unwrap_or_default()).or_default().push(
                    Finding {
                        file: file.to_owned(),
                        line: index + 1,
                        what: format!("a comment of {columns} columns, at most {width}"),
                        why: WHY,
                        remedy: "break the line".to_owned(),
                    },
                );
            }
        }
    }
    let mut findings = Vec::new();
    for (room, mut all) in rooms {
        let allowed = exceptions.iter().find(|(name, _)| *name == room).map_or(0, |entry| entry.1);
        let count = all.len();
        if count > allowed {
            // Which of them are new is not known.
            if allowed > 0 {
                all.truncate(1);
                all[0].what =
                    format!("{count} wide comments in {room}/, at most {allowed}: {}", all[0].what);
            }
            findings.append(&mut all);
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_as_wide_as_code() {
        let good = format!("// {}\nlet s = \"{}\";\n", "x ".repeat(48), "x ".repeat(80));
        let bad = format!("{good}    // {}\n// https://{}\n", "é ".repeat(48), "x".repeat(100));
        let file = "core/ix-a/src/lib.rs";
        assert_eq!(check(&Tree::of(&[(file, &good)]), &[]), []);
        let findings = check(&Tree::of(&[(file, &bad)]), &[]);
        assert_eq!(findings.len(), 1);
        assert_eq!(
            (findings[0].line, findings[0].what.as_str()),
            (3, "a comment of 103 columns, at most 100")
        );
        assert_eq!(check(&Tree::of(&[(file, &bad)]), &[("core", 1)]), []);
        let more = check(&Tree::of(&[(file, &bad.repeat(2))]), &[("core", 1)]);
        assert_eq!(more.len(), 1);
        assert!(more[0].what.starts_with("2 wide comments in core/, at most 1: "), "{more:?}");
        let narrow =
            Tree::of(&[(file, "// one two three four\n"), ("rustfmt.toml", "max_width = 10\n")]);
        assert_eq!(check(&narrow, &[]).len(), 1);
    }
}
