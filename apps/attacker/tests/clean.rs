//! Programs of ours run behind the wall: their code has no key switch, not even by chance.
use ix_domain::scan::scan_file;
use std::path::Path;
use std::process::Command;

/// Packages whose program has their name.
const PROGRAMS: [&str; 5] = ["ix-attacker", "ix-echo", "ix-frames", "ix-httpd", "ix-kv"];
/// Built with them, as in `crates/ix/tests/support/mod.rs`: then they are what those tests have built.
const LIBRARIES: [&str; 2] = ["libix-c", "libix-event"];

#[test]
fn our_programs_have_no_bytes_of_a_key_switch() {
    let attacker = Path::new(env!("CARGO_BIN_EXE_ix-attacker"));
    let target = attacker.ancestors().nth(2).expect("target directory");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--target-dir"]).arg(target);
    cargo.args(PROGRAMS.iter().chain(&LIBRARIES).flat_map(|program| ["-p", program]));
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    assert!(cargo.status().expect("cargo").success(), "the programs do not build");
    for program in PROGRAMS {
        let file = std::fs::read(attacker.with_file_name(program)).expect("the program");
        let found = scan_file(&file).expect("an ELF file");
        assert!(
            found.is_empty(),
            "{program} cannot run behind the wall: by chance its code has the bytes of a key switch \
             at the offsets {found:x?}; an unlike order of its functions has them elsewhere: \
             `objdump -d` says which instruction it is"
        );
    }
}
