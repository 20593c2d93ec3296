//! The committed header and man pages are what the sources say (`IX_BLESS=1` writes them), C
//! compilers agree on every size and offset, and the pages can be read.

use crate::generate::layout::layouts;
use crate::generate::names::{declare, structure};
use crate::generate::{contract, library};
use ix_skip::{Need, skip};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn committed_files_are_what_the_sources_say() {
    let (contract, library) = (contract(), library());
    for (file, text) in [
        ("include/ix.h", crate::generate::ixh::header(&contract, &library, &layouts())),
        ("man/libix.3", crate::generate::man::library(&library)),
        ("man/libix-contract.7", crate::generate::man::contract(&contract)),
    ] {
        let path = Path::new(ROOT).join(file);
        if std::env::var_os("IX_BLESS").is_some() {
            std::fs::write(&path, &text).expect("write");
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == text, "{file} is stale: IX_BLESS=1 cargo test -p libix-c writes it");
    }
}

/// How many C functions the sources in a folder export.
fn exported_below(folder: &Path) -> usize {
    let files =
        std::fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path());
    let exported = |path: std::path::PathBuf| match path.is_dir() {
        true => exported_below(&path),
        false => {
            let text = std::fs::read_to_string(path).expect("text");
            text.matches("#[unsafe(no_mangle)]").count()
        }
    };
    files.map(exported).sum()
}

#[test]
fn every_function_is_declared_and_no_other() {
    let exported = exported_below(&Path::new(ROOT).join("src"));
    let is_function = |item: &&crate::generate::parse::Item| {
        matches!(item.what, crate::generate::parse::What::Function { .. })
    };
    let declared = library().iter().flat_map(|part| &part.items).filter(is_function).count();
    assert!(exported > 30);
    assert_eq!(exported, declared);
}

/// A C program that does not compile where a size or an offset is another.
fn assertions() -> String {
    let mut c = String::from("#include <ix.h>\n#include <stdalign.h>\n");
    for layout in layouts() {
        let name = structure(layout.name);
        let mut check = |what: String, is: usize| {
            writeln!(c, "_Static_assert({what} == {is}, \"{what}\");").expect("a string");
        };
        check(format!("sizeof({name})"), layout.size);
        check(format!("alignof({name})"), layout.align);
        for (field, at, size) in layout.fields {
            check(format!("offsetof({name}, {field})"), at);
            check(format!("sizeof((({name} *)0)->{field})"), size);
        }
    }
    c
}

#[test]
fn c_and_cpp_compilers_agree_on_sizes_and_offsets() {
    let c = assertions();
    assert!(c.lines().count() > 100);
    let cpp = c.replace("_Static_assert", "static_assert");
    let wrong = c.replacen("== 64,", "== 65,", 1);
    for (compiler, language, std, source, fits) in [
        ("cc", "c", "-std=c11", &c, true),
        ("cc", "c", "-std=gnu17", &c, true),
        ("c++", "c++", "-std=c++11", &cpp, true),
        ("cc", "c", "-std=c11", &wrong, false),
    ] {
        let source = write(&format!("sizes-{language}{std}-{fits}"), source);
        let mut command = Command::new(compiler);
        command.args(["-x", language, std, "-Wall", "-Wextra", "-pedantic", "-Werror"]);
        command.args(["-fsyntax-only", "-I"]).arg(Path::new(ROOT).join("include")).arg(&source);
        let Some(output) = run(command, "c_and_cpp_compilers_agree", "gcc g++ libc6-dev") else {
            continue;
        };
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), fits, "{compiler} {std}: {said}");
    }
}

#[test]
fn man_pages_render() {
    for page in ["libix.3", "libix-contract.7"] {
        let mut command = Command::new("man");
        command.args(["--warnings", "-E", "UTF-8", "-l"]);
        command.arg(Path::new(ROOT).join("man").join(page)).env("MANWIDTH", "100");
        let Some(output) = run(command, "man_pages_render", "man-db") else { return };
        let (text, said) = (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned());
        assert!(output.status.success() && said.is_empty(), "{page}: {said}");
        let text = String::from_utf8(text).expect("text");
        let wanted = if page == "libix.3" { "ix_send_received(" } else { "IX_CALL_RECV_DONE" };
        assert!(text.contains(wanted) && text.lines().count() > 200, "{page}:\n{text}");
        assert!(!text.contains("\\f") && !text.contains("[`"), "{page}:\n{text}");
    }
}

#[test]
fn the_contracts_page_names_what_the_header_has() {
    let words = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| word.starts_with("ix_")).map(str::to_owned).collect()
    };
    let page = words(&crate::generate::man::contract(&contract()));
    assert!(page.len() > 5, "{page:?}");
    let header = words(&crate::generate::ixh::header(&contract(), &library(), &layouts()));
    let unknown: Vec<_> = page.difference(&header).collect();
    assert!(unknown.is_empty(), "a C program does not have {unknown:?}");
}

#[test]
fn declarations() {
    for (ty, name, c) in [
        ("*const c_void", "data", "const void *data"),
        ("*mut *mut c_void", "state", "void **state"),
        ("[u64; 6]", "args", "uint64_t args[6]"),
        ("*mut ix_loop", "loop", "ix_loop *loop"),
        (
            "Option<unsafe extern \"C\" fn(argument: *mut c_void) -> c_int>",
            "call",
            "int (*call)(void *argument)",
        ),
    ] {
        assert_eq!(declare(ty, name), c);
    }
}

fn write(name: &str, text: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name.replace(['=', '+'], "_"));
    std::fs::write(&path, text).expect("write");
    path
}

/// Runs a tool; `None`, said loudly, where it is not installed.
fn run(mut command: Command, test: &str, packages: &str) -> Option<Output> {
    match command.output() {
        Ok(output) => Some(output),
        Err(e) => {
            let tool = command.get_program().to_string_lossy();
            let remedy = format!("apt-get install {packages}");
            skip(test, Need::Program(&remedy), format_args!("{tool}: {e}"));
            None
        }
    }
}
