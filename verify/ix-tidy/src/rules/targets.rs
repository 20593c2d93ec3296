//! No test is left out by a manifest that names the executables itself.

use crate::manifest::value;
use crate::source::{code_of, places};
use crate::{Finding, Tree};

const WHY: &str = "a test that is never compiled fails nobody";

/// Checks the manifests against the files beside them.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in tree.packages() {
        let mut found = |file: &str, what: String, remedy: &str| {
            let (file, remedy) = (file.to_owned(), remedy.to_owned());
            findings.push(Finding { file, line: 1, what, why: WHY, remedy });
        };
        let folder = &package.folder;
        let named = |key: &str| -> Vec<&str> {
            package.sections("test").filter_map(|section| value(section, key)).collect()
        };
        let by_hand =
            package.sections("package").any(|section| value(section, "autotests") == Some("false"));
        let root = format!("{folder}/tests/main.rs");
        let modules = code_of(tree.text(&root).unwrap_or_default());
        for (file, _) in tree.within(&format!("{folder}/tests/"), ".rs") {
            let inner = &file[folder.len() + 1..];
            let name = inner.trim_start_matches("tests/").trim_end_matches(".rs");
            let is_module = modules.lines().any(|line| line == format!("mod {name};"));
            if by_hand && !name.contains('/') && !named("path").contains(&inner) && !is_module {
                found(file, "no executable has this file".to_owned(), "name it in tests/main.rs");
            }
        }
        for section in package.sections("lib").filter(|s| value(s, "doctest") == Some("false")) {
            let _ = section;
            for (file, text) in tree.within(&format!("{folder}/src/"), ".rs") {
                if let Some(line) = example(text) {
                    found(
                        file,
                        format!("line {line}: an example that is not run"),
                        "delete `doctest = false` from the manifest, or mark it ```text",
                    );
                }
            }
        }
        for section in package.sections("bin").filter(|s| value(s, "test") == Some("false")) {
            let path = value(section, "path").unwrap_or("src/main.rs");
            let file = format!("{folder}/{path}");
            let code = code_of(tree.text(&file).unwrap_or_default());
            if places(&code, "test").any(|at| code[..at].ends_with("#[")) {
                let remedy = "move the test into the library, or delete `test = false`";
                found(&file, "a test in a program that is not tested".to_owned(), remedy);
            }
        }
    }
    findings
}

/// The line of the first documentation example that would be compiled.
fn example(text: &str) -> Option<usize> {
    let mut inside = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let doc = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"));
        let Some(language) = doc.and_then(|doc| doc.trim_start().strip_prefix("```")) else {
            continue;
        };
        if !inside && ["", "rust", "no_run", "should_panic"].contains(&language.trim()) {
            return Some(index + 1);
        }
        inside = !inside;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"ix-a\"\nautotests = false\n[lib]\ndoctest = false\n\
        [[bin]]\nname = \"a\"\npath = \"src/main.rs\"\ntest = false\n\
        [[test]]\nname = \"tests\"\npath = \"tests/main.rs\"\n[[test]]\npath = \"tests/own.rs\"\n";

    fn what(files: &[(&str, &str)]) -> Vec<String> {
        let manifest = [("core/ix-a/Cargo.toml", MANIFEST)];
        check(&Tree::of(&[&manifest, files].concat())).into_iter().map(|f| f.what).collect()
    }

    #[test]
    fn every_file_of_tests_is_in_an_executable() {
        let files = [
            ("core/ix-a/tests/main.rs", "mod one;\n// mod two;\n"),
            ("core/ix-a/tests/one.rs", ""),
            ("core/ix-a/tests/own.rs", ""),
            ("core/ix-a/tests/support/mod.rs", ""),
        ];
        assert_eq!(what(&files), [""; 0]);
        let more = [&files[..], &[("core/ix-a/tests/two.rs", "")]].concat();
        assert_eq!(what(&more), ["no executable has this file"]);
    }

    #[test]
    fn examples_and_tests_of_programs_are_run() {
        let text = "//! A.\n//! ```text\n//! x\n//! ```\n";
        assert_eq!(what(&[("core/ix-a/src/lib.rs", text)]), [""; 0]);
        let example = "//! A.\n//! ```\n//! let x = 1;\n//! ```\n";
        assert_eq!(
            what(&[("core/ix-a/src/lib.rs", example)]),
            ["line 2: an example that is not run"]
        );
        let test = "#[test]\nfn f() {}\n";
        assert_eq!(
            what(&[("core/ix-a/src/main.rs", test)]),
            ["a test in a program that is not tested"]
        );
    }
}
