//! Paths: no file of another package's sources, and no path of a machine.

use crate::{Finding, Tree};

/// An attribute or macro that takes another package's file today: file, and the reason.
pub type Exception = (&'static str, &'static str);

/// Folders of people's machines. In pieces, so that this file has none.
const MACHINES: [&[&str]; 3] = [&["/ho", "me/"], &["/ro", "ot/"], &["/Us", "ers/"]];

/// Where loom's models compile other packages' files with other atomics.
const LOOM: &str = "verify/loom/";

/// Checks `#[path]` and `include!` of all sources, and all texts for paths of a machine.
pub fn check(tree: &Tree, exceptions: &[Exception]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut needed = Vec::new();
    for (file, text) in tree.files().filter(|(file, _)| file.ends_with(".rs")) {
        if file.starts_with(LOOM) {
            continue;
        }
        for (index, line) in text.lines().enumerate() {
            let Some(path) = taken(line.trim_start()) else { continue };
            if !leaves_package(file, path) {
                continue;
            }
            if let Some((file, _)) = exceptions.iter().find(|(excepted, _)| *excepted == file) {
                needed.push(*file);
                continue;
            }
            findings.push(Finding {
                file: file.to_owned(),
                line: index + 1,
                what: format!("it takes a file of another package: {path}"),
                why: "a file belongs to one package; what two need is a library",
                remedy: "move it into a library in verify/ or below, and use that".to_owned(),
            });
        }
    }
    for (file, _) in exceptions.iter().filter(|(file, _)| !needed.contains(file)) {
        findings.push(Finding {
            file: "verify/ix-tidy/src/exceptions.rs".to_owned(),
            line: 1,
            what: format!("{file} takes no file of another package any more"),
            why: "the list of exceptions only shrinks",
            remedy: "delete the exception".to_owned(),
        });
    }
    let mut machines: Vec<String> = MACHINES.iter().map(|pieces| pieces.concat()).collect();
    machines.extend(tree.place().filter(|place| place.len() > 5).map(|place| format!("{place}/")));
    for (file, text) in tree.files() {
        for machine in machines.iter().filter(|machine| text.contains(machine.as_str())) {
            let lines = text.lines().enumerate().filter(|(_, line)| begins(line, machine));
            findings.extend(lines.map(|(index, _)| Finding {
                file: file.to_owned(),
                line: index + 1,
                what: format!("a path of a machine: {machine}"),
                why: "it exists on one machine, and says whose",
                remedy: "write a path below the root, or a placeholder".to_owned(),
            }));
        }
    }
    findings
}

/// Whether a path begins so in the line: not in the middle of a longer one.
fn begins(line: &str, machine: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || "_.-}/*".contains(c);
    line.match_indices(machine).any(|(at, _)| !line[..at].ends_with(inside))
}

/// The path that a line takes a Rust source from.
fn taken(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("#[path = \"").or_else(|| line.strip_prefix("include!(\""))?;
    rest.split('"').next()
}

/// Whether a path, from the folder of a file, is outside the file's package.
fn leaves_package(file: &str, path: &str) -> bool {
    let mut depth = file.split('/').count() as isize - 1;
    for name in path.split('/') {
        depth += match name {
            ".." => -1,
            "." => 0,
            _ => 1,
        };
        // ROOM/NAME are the package.
        if depth < 2 {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_belongs_to_one_package() {
        let inside = "#[path = \"../support/mod.rs\"]\nmod support;\n";
        let outside = "\n#[path = \"../../../ix-b/tests/x.rs\"]\nmod x;\n";
        let tree = |file: &str, text: &str| Tree::of(&[(file, text)]);
        assert_eq!(check(&tree("cli/ix/tests/serve/main.rs", inside), &[]), []);
        assert_eq!(check(&tree("verify/loom/src/a/b.rs", outside), &[]), []);
        let bad = tree("cli/ix/tests/serve/main.rs", outside);
        let findings = check(&bad, &[]);
        assert_eq!((findings.len(), findings[0].line), (1, 2));
        assert_eq!(check(&bad, &[("cli/ix/tests/serve/main.rs", "shared")]), []);
        let stale = check(&tree("a/b/c.rs", ""), &[("cli/ix/tests/serve/main.rs", "shared")]);
        assert_eq!(stale.len(), 1);
        let macros = tree("cli/ix/build.rs", "include!(\"../../host/x/y.rs\");\n");
        assert_eq!(check(&macros, &[]).len(), 1);
    }

    #[test]
    fn a_path_of_a_machine_is_found_in_any_text() {
        let path = format!("# see $folder/x{0}me/\n{0}me/somebody/ix\n", "/ho");
        let findings = check(&Tree::of(&[("docs/x.md", &path)]), &[]);
        assert_eq!((findings.len(), findings[0].line), (1, 2));
    }
}
