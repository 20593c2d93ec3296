//! `docs/programs.md` and a page for each program are made from the list of the tests.
use super::{PROGRAMS, Program};
use std::fmt::Write;
use std::path::{Path, PathBuf};

const MADE: &str = "<!-- Written from cli/ix/tests/programs/served by a test; \
                    IX_BLESS=1 cargo test -p ix --test tests page_of_programs -->\n";
const HEAD: &str = "# Programs\n\n\
These programs run unmodified, as Debian 12 ships them, behind the wall that ships. Each is started\n\
by `ix run --nic ... --addr 10.0.0.2/24` and what its page says, and serves its own client in the\n\
test that is named. [Unmodified programs](guide/unmodified-programs.md) names others that were tried,\n\
and says what holds for all.\n\n";

/// What was measured beside Linux, by the program's name. `ix bench program` measures the others.
const FIGURES: &[(&str, &str)] = &[
    (
        "PostgreSQL",
        "by `ix bench program --user $(id -u postgres) --connections 32 --rate 'tps =' --load \
         'pgbench -h {address} -p {port} -U postgres -S -c {connections} -T {seconds} postgres' \
         -- /usr/lib/postgresql/15/bin/postgres -D DATA -c listen_addresses={address} -c \
         port={port}`, where server and dataplane have one of two hardware threads together: \
         0.79 to 0.97 of Linux's rate in four runs by hand, two of 4 s and two of 6 s, beside \
         one other job, 0.47 to 0.75 where builds wanted both hardware threads. The queries \
         themselves take three quarters of Linux's time there, so no stack can be much faster. \
         `pgbench -C`, a connection and so a process for each transaction: 0.85 to 1 of Linux's \
         rate (three runs, busy machine, one of them of an older library); while builds ran both \
         were too slow to be compared. Where the dataplane keeps one of two hardware threads to itself, \
         PostgreSQL has the other one: 50 to 87 a second with `-C`, Linux with both 145 to 160",
    ),
    ("haproxy", "requests for each busy second: [Results](../results.md#haproxy)"),
];
const NOT_MEASURED: &str = "not measured";

fn figure(name: &str) -> &'static str {
    let found = FIGURES.iter().find(|(of, _)| *of == name);
    found.map_or(NOT_MEASURED, |(_, figure)| figure)
}

/// The name of a program's page.
fn file(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-") + ".md"
}

fn table() -> String {
    let mut page = format!("{MADE}{HEAD}");
    page.push_str("| program | version | tested by | beside Linux |\n|---|---|---|---|\n");
    for Program { name, version, test, .. } in PROGRAMS {
        let measured = if figure(name) == NOT_MEASURED { NOT_MEASURED } else { "measured" };
        let file = file(name);
        writeln!(page, "| [{name}](programs/{file}) | {version} | `{test}` | {measured} |")
            .expect("a string");
    }
    page
}

fn page(program: &Program) -> String {
    let Program { name, version, started, test, shown, watch } = program;
    let figure = figure(name);
    format!(
        "{MADE}# {name}\n\n\
         One of the [programs](../programs.md) that run unmodified.\n\n\
         - **Version**: {version}.\n\
         - **Started** by `ix run --nic ... --addr 10.0.0.2/24` and `{started}`.\n\
         - **Tested** by `{test}`: {shown}.\n\
         - **Beside Linux**: {figure}.\n\
         - **Watch for**: {watch}.\n"
    )
}

#[test]
fn the_page_of_programs_is_the_list_of_the_tests() {
    let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"));
    let own = PROGRAMS
        .iter()
        .map(|program| (docs.join("programs").join(file(program.name)), page(program)));
    let pages: Vec<(PathBuf, String)> = own.chain([(docs.join("programs.md"), table())]).collect();
    if std::env::var_os("IX_BLESS").is_some() {
        std::fs::create_dir_all(docs.join("programs")).expect("a folder");
        pages.iter().for_each(|(path, page)| std::fs::write(path, page).expect("write the page"));
    }
    for (path, page) in &pages {
        let there = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(&there, page, "{}: say IX_BLESS=1 to write it", path.display());
    }
    let there = std::fs::read_dir(docs.join("programs")).expect("the pages").flatten();
    let old: Vec<_> = there
        .map(|file| file.path())
        .filter(|path| pages.iter().all(|(page, _)| page != path))
        .collect();
    assert!(old.is_empty(), "of no program: {old:?}");
    let unknown = FIGURES.iter().filter(|(name, _)| PROGRAMS.iter().all(|one| one.name != *name));
    assert_eq!(unknown.count(), 0, "figures of no program");
}
