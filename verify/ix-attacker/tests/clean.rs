//! Programs of ours run behind the wall by keys: their code has no key switch. A few bytes of other
//! instructions can look like one by chance, and then `--domain pku` refuses this very build.
use ix_entry::scan::scan_file;
use ix_skip::{Need, skip, skip_part};
use std::path::Path;
use std::process::Command;

const TEST: &str = "our_programs_have_no_key_switch";

/// Packages whose program has their name.
const PROGRAMS: [&str; 5] = ["ix-attacker", "ix-echo", "ix-frames", "ix-httpd", "ix-kv"];

#[test]
fn our_programs_have_no_key_switch() {
    let folder = ix_testbed::programs::build_beside(Path::new(env!("CARGO_BIN_EXE_ix-attacker")));
    for program in PROGRAMS {
        let path = folder.join(program);
        let file = std::fs::read(&path).expect("the program");
        let found = scan_file(&file).expect("an ELF file");
        if found.is_empty() {
            continue;
        }
        let Some(switches) = instructions(&path) else {
            return skip(TEST, Need::Program("apt install binutils"), "no objdump");
        };
        assert!(switches.is_empty(), "{program} changes keys: {switches:?}");
        let why = format!("by chance, code of {program} has the bytes of a key switch: {found:x?}");
        skip_part(TEST, Need::Layout("build it with another optimization"), why);
    }
}

/// The instructions of a program that change rights, as a disassembler finds them; `None` if there
/// is none.
fn instructions(program: &Path) -> Option<Vec<String>> {
    let output = Command::new("objdump").arg("-d").arg(program).output().ok()?;
    assert!(output.status.success(), "objdump: {output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("syscall") || text.contains("call"), "objdump has read no code");
    let is_switch = |line: &&str| line.contains("wrpkru") || line.contains("xrstor");
    Some(text.lines().filter(is_switch).map(str::to_owned).collect())
}
