//! `docs/programs.md` is made from the list of the tests.
use super::{PROGRAMS, Program};
use std::fmt::Write;

const HEAD: &str = "<!-- Written from cli/ix/tests/programs/served by a test; \
                    IX_BLESS=1 cargo test -p ix --test tests page_of_programs -->\n\
# Programs\n\n\
These programs run unmodified, as Debian 12 ships them, behind the wall that ships. Each is started\n\
by `ix run --nic ... --addr 10.0.0.2/24` and what the table says, and serves its own client in the\n\
test that is named. [Unmodified programs](guide/unmodified-programs.md) names others that were tried,\n\
and says what holds for all.\n\n";

fn page() -> String {
    let mut page = HEAD.to_owned();
    page.push_str("| program | version | started | tested by | what is done to it | watch for |\n");
    page.push_str("|---|---|---|---|---|---|\n");
    for Program { name, version, started, test, shown, watch } in PROGRAMS {
        let started = started.replace('|', "\\|");
        writeln!(page, "| {name} | {version} | `{started}` | `{test}` | {shown} | {watch} |")
            .expect("a string");
    }
    page
}

#[test]
fn the_page_of_programs_is_the_list_of_the_tests() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/programs.md");
    let page = page();
    if std::env::var_os("IX_BLESS").is_some() {
        std::fs::write(path, &page).expect("write the page");
    }
    let there = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(there, page, "say IX_BLESS=1 to write it");
}
