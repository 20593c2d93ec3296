//! The rules of the tree as tests: they read the tree as text and report what is out of place.
//!
//! `cargo test -p ix-tidy` checks the whole tree in well under two seconds. Each rule is a function
//! from a [`Tree`] to [`Finding`]s. A finding says where, what, why and what to do. [`exceptions`]
//! lists what breaks a rule today, with its reason. An exception that is no longer needed is a
//! finding too, so the list only shrinks.
#![forbid(unsafe_code)]
pub mod exceptions;
mod manifest;
pub mod rules;
mod source;
mod tree;

pub use manifest::{Dependency, Kind, Package};
pub use source::code_of;
pub use tree::Tree;

use std::fmt;

/// Something out of place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Path below the root.
    pub file: String,
    /// Line in it, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
    /// Why there is a rule.
    pub why: &'static str,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { file, line, what, why, remedy } = self;
        write!(f, "{file}:{line}: {what}\n    why: {why}\n    do:  {remedy}")
    }
}

/// Everything out of place in a tree, by file.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut all = Vec::new();
    all.extend(rules::dependencies::check(tree, exceptions::DEPENDENCIES));
    all.extend(rules::unsafe_code::check(tree));
    all.extend(rules::width::check(tree, exceptions::WIDE_COMMENTS));
    all.extend(rules::paths::check(tree, exceptions::PATHS));
    all.extend(rules::circles::check(tree, exceptions::CIRCLES));
    all.extend(rules::front_page::check(tree));
    all.extend(rules::targets::check(tree));
    all.extend(rules::typed_words::check(tree));
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_house_is_tidy() {
        let tree = Tree::read(&Tree::root()).expect("the tree can be read");
        assert!(tree.packages().len() > 20, "the tree was found");
        let findings = check(&tree);
        let text: Vec<String> = findings.iter().map(Finding::to_string).collect();
        assert!(findings.is_empty(), "{} things out of place\n\n{}\n", text.len(), text.join("\n"));
    }

    #[test]
    fn a_finding_says_where_what_why_and_what_to_do() {
        let finding = Finding {
            file: "core/x/src/lib.rs".to_owned(),
            line: 3,
            what: "too wide".to_owned(),
            why: "columns",
            remedy: "break it".to_owned(),
        };
        let text = "core/x/src/lib.rs:3: too wide\n    why: columns\n    do:  break it";
        assert_eq!(finding.to_string(), text);
    }
}
