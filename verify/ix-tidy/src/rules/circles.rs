//! Circles among the parts of a package: its modules at the top of `src`.

use crate::source::{code_of, is_word, line_of, places};
use crate::{Finding, Package, Tree};
use std::collections::{BTreeMap, BTreeSet};

const WHY: &str = "in a circle no part can be read, tested or changed without the others";

/// A package, and the modules of it that are in a circle today.
pub type Exception = (&'static str, &'static [&'static str]);

/// What uses what, and where first: file and line.
type Uses<'a> = BTreeMap<&'a str, BTreeMap<&'a str, (String, usize)>>;

/// Whether a file below `src` is only for tests: of a part, or what several of them are made of.
fn is_test(file: &str) -> bool {
    ["tests.rs", "test_net.rs", "test_rig.rs"].iter().any(|end| file.ends_with(end))
}

/// Checks that no module of any package is in a circle, save those in `circles`, which are in one
/// today.
pub fn check(tree: &Tree, circles: &[Exception]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in tree.packages() {
        let circle = circles.iter().find(|(name, _)| *name == package.name);
        let circle = circle.map_or(&[][..], |(_, modules)| modules);
        findings.extend(check_package(tree, &package, circle));
    }
    findings
}

fn check_package(tree: &Tree, package: &Package, circle: &[&str]) -> Vec<Finding> {
    let src = format!("{}/src/", package.folder);
    let roots = ["lib.rs", "main.rs"].map(|root| tree.text(&format!("{src}{root}")));
    let root = code_of(&roots.map(Option::unwrap_or_default).join("\n"));
    let modules: Vec<String> = modules(&root);
    let exported = exported(&root, &modules);
    let mut uses: Uses<'_> = modules.iter().map(|name| (name.as_str(), BTreeMap::new())).collect();
    for (file, text) in tree.within(&src, ".rs") {
        let inner = &file[src.len()..];
        let own = inner.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        // Tests of a part may use any other; whole files of them are named so.
        if !uses.contains_key(own) || is_test(inner) {
            continue;
        }
        let code = code_of(text);
        let code = &code[..code.find("#[cfg(test)]\nmod ").unwrap_or(code.len())];
        for at in places(code, "crate") {
            for name in named(&code[at + "crate".len()..]) {
                let to =
                    modules.iter().find(|module| *module == name).or_else(|| exported.get(name));
                if let Some(to) = to.filter(|to| *to != own) {
                    let place = || (file.to_owned(), line_of(code, at));
                    let of = uses.get_mut(own).expect("looked at above");
                    of.entry(to).or_insert_with(place);
                }
            }
        }
    }
    let in_circle: BTreeSet<&str> =
        uses.keys().copied().filter(|module| reaches(&uses, module, module)).collect();
    let mut findings = Vec::new();
    for module in in_circle.iter().filter(|module| !circle.contains(module)) {
        for (to, (file, line)) in &uses[module] {
            if reaches(&uses, to, module) {
                findings.push(Finding {
                    file: file.clone(),
                    line: *line,
                    what: format!("`{module}` uses `{to}`, which comes back to `{module}`"),
                    why: WHY,
                    remedy: "pass what is needed as an argument, or return a verdict".to_owned(),
                });
            }
        }
    }
    for module in circle.iter().filter(|module| !in_circle.contains(*module)) {
        findings.push(Finding {
            file: "verify/ix-tidy/src/exceptions.rs".to_owned(),
            line: 1,
            what: format!("`{module}` of {} is in no circle any more", package.name),
            why: "the list of exceptions only shrinks",
            remedy: "delete it from CIRCLES".to_owned(),
        });
    }
    findings
}

/// Names of the modules that a file declares.
fn modules(code: &str) -> Vec<String> {
    let names = code.lines().filter_map(|line| {
        let line = line.trim_start_matches("pub ").trim_start_matches("pub(crate) ");
        line.strip_prefix("mod ")?.strip_suffix(';')
    });
    names.map(str::to_owned).collect()
}

/// What the root passes on, and of which module it is.
fn exported(code: &str, modules: &[String]) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for statement in code.split(';') {
        let Some(at) = places(statement, "use").next() else { continue };
        let names: Vec<&str> = words(&statement[at + 3..]).collect();
        let names = names.strip_prefix(&["crate"][..]).unwrap_or(&names);
        let names = names.strip_prefix(&["self"][..]).unwrap_or(names);
        if let Some((module, names)) = names.split_first()
            && modules.iter().any(|name| name == module)
        {
            all.extend(names.iter().map(|name| ((*name).to_owned(), (*module).to_owned())));
        }
    }
    all
}

/// Names after `crate`: of `::a::b` it is `a`, of `::{a::b, c}` they are `a` and `c`.
fn named(after: &str) -> Vec<&str> {
    let Some(after) = after.strip_prefix("::") else { return Vec::new() };
    let Some(list) = after.strip_prefix('{') else { return words(after).take(1).collect() };
    let (mut depth, mut begin, mut names) = (0, true, Vec::new());
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => begin = true,
            _ if begin && (letter.is_alphabetic() || letter == '_') => {
                names.extend(words(&list[at..]).next());
                begin = false;
            }
            _ => {}
        }
    }
    names
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii() || !is_word(c as u8)).filter(|word| !word.is_empty())
}

/// Whether there is a way of at least one step.
fn reaches(uses: &Uses<'_>, from: &str, to: &str) -> bool {
    let mut seen = BTreeSet::new();
    let mut next = vec![from];
    while let Some(module) = next.pop() {
        for used in uses.get(module).into_iter().flat_map(|used| used.keys()) {
            if *used == to {
                return true;
            }
            if seen.insert(*used) {
                next.push(used);
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A package `core/ix-a` with these sources.
    fn tree(files: &[(&str, &str)]) -> Tree {
        let files = files.iter().map(|(name, text)| (format!("core/ix-a/src/{name}"), *text));
        let mut files: Vec<(String, &str)> = files.collect();
        files.push(("core/ix-a/Cargo.toml".to_owned(), "[package]\nname = \"ix-a\"\n"));
        Tree::of(&files.iter().map(|(name, text)| (name.as_str(), *text)).collect::<Vec<_>>())
    }

    #[test]
    fn a_circle_is_found_with_its_lines() {
        let root = ("lib.rs", "mod a;\npub mod b;\nmod c;\npub use c::deep::{Thing, Other};\n");
        let good =
            [root, ("a.rs", "use crate::{b::X, Thing};\n"), ("b/mod.rs", "use crate::c::Y;\n")];
        assert_eq!(check(&tree(&good), &[]), []);
        let bad =
            [&good[..], &[("c/deep.rs", "//! Deep.\nuse crate::{c::Z, a::{Q, R}};\n")]].concat();
        let what: Vec<_> = check(&tree(&bad), &[]).into_iter().map(|f| (f.line, f.what)).collect();
        assert!(
            what.contains(&(2, "`c` uses `a`, which comes back to `c`".to_owned())),
            "{what:?}"
        );
        // By the root's name for it.
        assert!(
            what.contains(&(1, "`a` uses `c`, which comes back to `a`".to_owned())),
            "{what:?}"
        );
        assert_eq!(check(&tree(&bad), &[("ix-a", &["a", "b", "c"])]), []);
        let elsewhere = check(&tree(&bad), &[("ix-b", &["a", "b", "c"])]);
        assert_eq!(elsewhere.len(), what.len(), "an exception is for its package only");
        assert_eq!(check(&tree(&good), &[("ix-a", &["a"])]).len(), 1);
    }

    #[test]
    fn tests_and_comments_make_no_circle() {
        let root = ("lib.rs", "mod a;\nmod b;\n");
        let b = "// crate::a\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n";
        let files =
            [root, ("a.rs", "use crate::b;\n"), ("b.rs", b), ("b/x_tests.rs", "use crate::a;")];
        assert_eq!(check(&tree(&files), &[]), []);
    }
}
