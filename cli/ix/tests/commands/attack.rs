//! The wall, in a guest with protection keys: this machine may have none.
use crate::support;
use crate::support::turn::Turn;
use ix_skip::{Need, skip};
use std::path::Path;
use std::process::Command;

/// What `.ci/guest` ends with where it cannot run.
const SKIPPED: i32 = 77;

/// Runs a command in a guest; `None`, loudly, where there can be none.
fn in_a_guest(name: &str, command: &[&str]) -> Option<(bool, String)> {
    let guest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/guest");
    let output = Command::new(guest)
        .args(command)
        .env("IX_GUEST_SECONDS", "900")
        .output()
        .expect(".ci/guest runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(SKIPPED) {
        let need = Need::Program("bash .ci/run installs a guest");
        skip(name, need, errors.trim());
        return None;
    }
    Some((output.status.success(), format!("{text}{errors}")))
}

/// The same is a part of `.ci/run`, with fewer random calls.
#[test]
#[ignore = "boots a guest: a minute or more"]
fn every_attack_is_refused_and_succeeds_without_the_wall() {
    let ix = env!("CARGO_BIN_EXE_ix");
    let name = "every_attack_is_refused_and_succeeds_without_the_wall";
    let attacker = support::build_program("ix-attacker");
    let attacker = attacker.to_str().expect("text");
    if let Some((success, text)) =
        in_a_guest(name, &["-f", attacker, ix, "attack", "--domain", "pku", "--fuzz", "100000"])
    {
        assert!(success, "{text}");
    }
}

/// Programs of libix, plain C programs and Debian's memcached, each with a client; and the corners
/// of the socket interface with the wall and without it. No other process can open the memory of a
/// program that starts, not even one of the same user.
#[test]
#[ignore = "boots a guest: a minute or more"]
fn programs_run_behind_the_wall() {
    let name = "programs_run_behind_the_wall";
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compile = |program: &str| {
        let source = folder.join(format!("../../app/libix-posix/tests/programs/{program}.c"));
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("guest-{program}"));
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-w", "-o"]).arg(&file).arg(source);
        assert!(cc.status().expect("cc; apt-get install gcc libc6-dev").success(), "{program}");
        file
    };
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libkeyswitch.so");
    let source = library.with_extension("c");
    let code = "void unused(void) { __asm__(\".byte 0xb8, 0x0f, 0x01, 0xef, 0\"); }\n";
    std::fs::write(&source, code).expect("a file");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source);
    assert!(cc.status().expect("cc").success(), "a library");
    let memcached = Path::new("/usr/bin/memcached");
    if !memcached.exists() {
        eprintln!("{name}: without memcached; apt-get install memcached");
    }
    let files = [
        env!("CARGO_BIN_EXE_ix").into(),
        compile("echo"),
        compile("corners"),
        support::build_program("ix-echo"),
        support::build_program("ix-kv"),
        support::build_program("ix-attacker").with_file_name("ix-mortal"),
        library,
        memcached.to_owned(),
        support::build_program("ix-attacker"),
    ];
    let script = folder.join("tests/commands/guest_programs.sh");
    let text = |file: &Path| file.to_str().expect("text").to_owned();
    let mut words = vec!["-f".to_owned(), text(&script)];
    let there = files.iter().filter(|file| file.exists());
    words.extend(there.flat_map(|file| ["-f".to_owned(), text(file)]));
    words.extend(["busybox".to_owned(), "sh".to_owned(), text(&script)]);
    words.extend(files.iter().map(|file| text(file)));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let Some((success, said)) = in_a_guest(name, &words) {
        assert!(success, "{said}");
    }
}

/// On this machine, whatever it has: by both ways into a process, and by the rights of root of a
/// namespace and of a child of the machine's root, each attack beside its control, and a client of
/// the same dataplane is served all the while.
#[test]
fn every_attack_on_a_dataplane_of_its_own_process_is_refused() {
    const LEAST: [usize; 2] = [2 * 60, 2 * 45];
    let _turn = Turn::part(2);
    let name = "every_attack_on_a_dataplane_of_its_own_process_is_refused";
    if support::command::namespace(name).is_none() {
        return;
    }
    support::build_program("ix-attacker");
    let ix = Command::new(env!("CARGO_BIN_EXE_ix"))
        .args(["attack", "--domain", "process", "--json"])
        .output();
    let output = ix.expect("the command starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    let root = usize::from(ix_sys::process::is_root());
    assert!(rows.len() >= LEAST[0] + root * LEAST[1], "{} rows: {text}", rows.len());
    for row in rows {
        assert!(row["refused"] == true && row["control_succeeds"] == true, "{row}");
        assert!(row["client_answers"].as_u64() > Some(0), "{row}");
    }
    assert_eq!(report["clients"].as_array().map(Vec::len), Some(2 + root), "{text}");
}

/// Tenants of a shared interface, on this machine: what a hostile one tries is refused, and what it
/// may do is not.
#[test]
fn no_tenant_can_be_another_or_have_what_is_anothers() {
    let _turn = Turn::part(2);
    let name = "no_tenant_can_be_another_or_have_what_is_anothers";
    if support::command::namespace(name).is_none() {
        return;
    }
    support::build_program("ix-attacker");
    let output =
        Command::new(env!("CARGO_BIN_EXE_ix")).args(["attack", "--vnic", "--json"]).output();
    let output = output.expect("the command starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 28, "{text}");
    for row in rows {
        assert!(row["refused"] == true && row["control_succeeds"] == true, "{row}");
    }
}
