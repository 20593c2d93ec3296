//! Who may use whom: each room uses only those before it.

use crate::tree::ROOMS;
use crate::{Dependency, Finding, Kind, Package, Tree};
use std::collections::{BTreeMap, BTreeSet};

const WHY: &str = "the top folders are the architecture: each uses only those before it";

/// Rooms whose packages use less than what stands before them.
const NARROW: [(&str, &[&str]); 2] = [("core", &["core"]), ("app", &["sys", "core", "app"])];

/// A dependency that breaks the rule today: package, what it uses, and the reason.
pub type Exception = (&'static str, &'static str, &'static str);

/// Checks every manifest.
pub fn check(tree: &Tree, exceptions: &[Exception]) -> Vec<Finding> {
    let packages = tree.packages();
    let rooms: BTreeMap<&str, &str> =
        packages.iter().map(|package| (package.name.as_str(), package.room())).collect();
    let (mut findings, mut needed) = (Vec::new(), BTreeSet::new());
    for package in &packages {
        for dependency in &package.dependencies {
            let Some(room) = rooms.get(dependency.name.as_str()) else { continue };
            if may(package, dependency, room) {
                continue;
            }
            let pair = (package.name.as_str(), dependency.name.as_str());
            if exceptions.iter().any(|(user, used, _)| (*user, *used) == pair) {
                needed.insert(pair);
                continue;
            }
            findings.push(Finding {
                file: package.manifest.clone(),
                line: dependency.line,
                what: format!("{}/ uses {room}/: {} uses {}", package.room(), pair.0, pair.1),
                why: WHY,
                remedy: format!(
                    "move what is needed of {} to a room before {}/, or turn the dependency round",
                    pair.1,
                    package.room()
                ),
            });
        }
    }
    for (user, used, _) in exceptions.iter().filter(|(a, b, _)| !needed.contains(&(*a, *b))) {
        findings.push(Finding {
            file: "verify/ix-tidy/src/exceptions.rs".to_owned(),
            line: 1,
            what: format!("{user} uses {used} no longer against the rule"),
            why: "the list of exceptions only shrinks",
            remedy: "delete the exception".to_owned(),
        });
    }
    findings
}

fn may(package: &Package, dependency: &Dependency, room: &str) -> bool {
    if dependency.kind == Kind::Dev && room == "verify" {
        return true;
    }
    let own = package.room();
    if let Some((_, rooms)) = NARROW.iter().find(|(narrow, _)| *narrow == own) {
        return rooms.contains(&room);
    }
    let order = |room: &str| ROOMS.iter().position(|name| *name == room);
    order(room) <= order(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(core: &str, app: &str) -> Tree {
        Tree::of(&[
            ("core/ix-a/Cargo.toml", &format!("[package]\nname = \"ix-a\"\n{core}")),
            ("host/ix-b/Cargo.toml", "[package]\nname = \"ix-b\"\n[dependencies]\nix-a = \"1\"\n"),
            ("app/ix-c/Cargo.toml", &format!("[package]\nname = \"ix-c\"\n{app}")),
            ("verify/ix-d/Cargo.toml", "[package]\nname = \"ix-d\"\n"),
        ])
    }

    #[test]
    fn a_room_uses_those_before_it() {
        let good = tree("[dev-dependencies]\nix-d = \"1\"\n", "[dependencies]\nix-a = \"1\"\n");
        assert_eq!(check(&good, &[]), []);
        let bad = tree("[dependencies]\nix-b = \"1\"\n", "[dependencies]\nserde = \"1\"\n");
        let findings = check(&bad, &[]);
        assert_eq!(findings.len(), 1);
        assert_eq!((findings[0].file.as_str(), findings[0].line), ("core/ix-a/Cargo.toml", 4));
        assert_eq!(findings[0].what, "core/ uses host/: ix-a uses ix-b");
    }

    #[test]
    fn programs_sides_know_neither_host_nor_dataplane() {
        let bad = tree("", "[dev-dependencies]\nix-b = \"1\"\n");
        assert_eq!(check(&bad, &[])[0].what, "app/ uses host/: ix-c uses ix-b");
        assert_eq!(check(&bad, &[("ix-c", "ix-b", "it must")]), []);
    }

    #[test]
    fn an_exception_that_nothing_needs_is_deleted() {
        let findings = check(&tree("", ""), &[("ix-c", "ix-b", "it must")]);
        assert_eq!(findings[0].what, "ix-c uses ix-b no longer against the rule");
    }
}
