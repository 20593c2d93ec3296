//! Words between processes: types in host/, no JSON by hand.

use crate::source::{code_of, places};
use crate::{Finding, Tree};

const WHY: &str = "what processes tell each other are types with one codec for both ends";
const REMEDY: &str = "give it a type in core/ix-proto/src/control";

/// Checks the sources of host/, without their tests.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let sources = tree.within("host/", ".rs").filter(|(file, _)| file.contains("/src/"));
    for (file, text) in sources.filter(|(file, _)| !file.ends_with("tests.rs")) {
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
        let code = code_of(text);
        let made = places(&code, "json").filter(|at| code[at + 4..].starts_with("!("));
        let read = code.match_indices("[\"").map(|(at, _)| at).filter(|at| is_index(&code, *at));
        let all = made.map(|at| (at, "JSON made by hand"));
        for (at, what) in all.chain(read.map(|at| (at, "a value read by the name of a key"))) {
            findings.push(Finding {
                file: file.to_owned(),
                line: code[..at].matches('\n').count() + 1,
                what: what.to_owned(),
                why: WHY,
                remedy: REMEDY.to_owned(),
            });
        }
    }
    findings
}

/// Whether a bracket at this place belongs to the value in front of it.
fn is_index(code: &str, at: usize) -> bool {
    let before = code[..at].chars().next_back();
    before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | ')' | ']' | '?'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_host_are_types() {
        let good = "let names = [\"a\"];\nf(&[\"b\"]);\n// json!({})\nlet s = \"json!(1)\";\n\
                    #[cfg(test)]\nmod tests {\n    fn f() { json!({}); }\n}\n";
        let bad = "let v = json!({ \"a\": 1 });\nlet a = v[\"a\"];\nlet b = ask()?[\"b\"];\n";
        let file = "host/ix-a/src/lib.rs";
        assert_eq!(check(&Tree::of(&[(file, good)])), []);
        let lines: Vec<usize> = check(&Tree::of(&[(file, bad)])).iter().map(|f| f.line).collect();
        assert_eq!(lines, [1, 2, 3]);
        for file in ["cli/ix-a/src/lib.rs", "host/ix-a/tests/a.rs", "host/ix-a/src/tests.rs"] {
            assert_eq!(check(&Tree::of(&[(file, bad)])), [], "{file}");
        }
    }
}
