//! A C program that makes the calls that packetdrill makes; packetdrill itself is not in this tree.
use ix_skip::{Need, skip};
use std::path::PathBuf;
use std::process::Command;

/// The library that was built for this test, and lies beside it.
fn library() -> PathBuf {
    std::env::current_exe().expect("a path").with_file_name("libix_packetdrill.so")
}

#[test]
fn it_answers_as_packetdrill_expects() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/plug.c");
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("plug");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Wextra", "-o"]).arg(&program).arg(source);
    let Ok(output) = cc.args(["-lpthread", "-ldl"]).output() else {
        let need = Need::Program("apt-get install gcc");
        return skip("it_answers_as_packetdrill_expects", need, "no cc");
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = Command::new(&program).arg(library()).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "as packetdrill expects\n", "{said}");
}

#[test]
fn flags_that_make_no_sense_end_it_with_a_line() {
    let code = "import ctypes, sys; \
        ctypes.CDLL(sys.argv[1]).packetdrill_interface_init(sys.argv[2].encode(), bytes(1024))";
    let run =
        |flags: &str| Command::new("python3").args(["-c", code]).arg(library()).arg(flags).output();
    for (flags, why) in [
        ("foo", "NAME=VALUE"),
        ("mtu=9", "MTU"),
        ("net.ipv4.nothing=1", "nothing"),
        ("local=fd00::1", "two families"),
    ] {
        let Ok(output) = run(flags) else {
            let need = Need::Program("apt-get install python3");
            return skip("flags_that_make_no_sense_end_it_with_a_line", need, "no python3");
        };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{flags}: {said}");
        assert_eq!(said.trim().lines().count(), 1, "{said}");
    }
}
