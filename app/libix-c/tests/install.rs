//! `install PREFIX`, and what a C programmer does next.
use ix_skip::{Need, skip};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Long, because it builds the libraries with the optimiser: for `.ci/run nightly`.
#[test]
#[ignore = "builds the libraries for release"]
fn a_program_builds_against_what_was_installed() {
    let prefix = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("prefix");
    let _ = std::fs::remove_dir_all(&prefix);
    let mut install = Command::new(env!("CARGO_BIN_EXE_ix-install"));
    let status = install.arg("install").arg(&prefix).status().expect("it runs");
    assert!(status.success());
    for file in [
        "include/ix.h",
        "lib/libix.a",
        "lib/libix.so",
        "lib/libix_event.a",
        "lib/pkgconfig/libix_event.pc",
        "lib/ix-libevent/libevent-2.1.so.7",
        "share/man/man3/libix.3",
        "share/man/man3/ix_send_received.3",
        "share/man/man7/libix-contract.7",
    ] {
        assert!(prefix.join(file).exists(), "{file}");
    }
    let config = prefix.join("lib/pkgconfig");
    let flags = |static_: &[&str]| {
        let mut command = Command::new("pkg-config");
        command.args(["--cflags", "--libs", "libix"]).args(static_).env("PKG_CONFIG_PATH", &config);
        let output = command.output().ok().filter(|output| output.status.success());
        output.map(|output| String::from_utf8(output.stdout).expect("text"))
    };
    let Some(shared) = flags(&[]) else {
        skip("a_program_builds", Need::Program("apt-get install pkgconf"), "no pkg-config");
        return;
    };
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/echo.c");
    let program = prefix.join("echo");
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(&program).arg(example).args(shared.split_whitespace());
    assert!(cc.status().expect("a C compiler").success());
    let mut command = Command::new(&program);
    let output = command.env("LD_LIBRARY_PATH", prefix.join("lib")).output().expect("it runs");
    assert!(String::from_utf8_lossy(&output.stderr).contains("not running under"), "{output:?}");
}

#[test]
fn without_words_it_says_what_to_do() {
    let output = Command::new(env!("CARGO_BIN_EXE_ix-install")).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(said.contains("write `install PREFIX`") && said.lines().count() == 1, "{said}");
}
