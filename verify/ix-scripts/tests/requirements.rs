//! `docs/requirements.md` is what code, scripts and the list say, and every row has both.
use std::path::Path;

#[test]
fn every_requirement_has_its_code_and_something_that_shows_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (table, wrong) = ix_scripts::requirements::requirements(&root).unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let page = root.join("docs/requirements.md");
    if std::env::var_os("IX_WRITE").is_some() {
        std::fs::write(&page, table).unwrap();
        return;
    }
    let written = std::fs::read_to_string(&page).unwrap_or_default();
    let same = without_places(&written) == without_places(&table);
    assert!(same, "docs/requirements.md is old: run this test with IX_WRITE=1");
}

/// The table without files of code: a comment that moves is no reason to write the page anew.
fn without_places(table: &str) -> String {
    let code = |cell: &str| cell.starts_with(" core/") || cell.starts_with(" dataplane/");
    let place = |cell: &&str| !code(cell) && *cell != " — ";
    let line = |line: &str| line.split('|').filter(place).collect::<Vec<_>>().join("|");
    table.lines().map(line).collect::<Vec<_>>().join("\n")
}
