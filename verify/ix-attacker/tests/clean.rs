//! Programs of ours run behind the wall: their code has no key switch, not even by chance.
use ix_entry::scan::scan_file;
use std::path::Path;

/// Packages whose program has their name.
const PROGRAMS: [&str; 5] = ["ix-attacker", "ix-echo", "ix-frames", "ix-httpd", "ix-kv"];

#[test]
fn our_programs_have_no_bytes_of_a_key_switch() {
    let folder = ix_testbed::programs::build_beside(Path::new(env!("CARGO_BIN_EXE_ix-attacker")));
    for program in PROGRAMS {
        let file = std::fs::read(folder.join(program)).expect("the program");
        let found = scan_file(&file).expect("an ELF file");
        assert!(
            found.is_empty(),
            "{program} cannot run behind the wall: by chance its code has the bytes of a key switch \
             at the offsets {found:x?}; an unlike order of its functions has them elsewhere: \
             `objdump -d` says which instruction it is"
        );
    }
}
