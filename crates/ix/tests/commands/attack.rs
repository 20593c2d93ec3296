//! The wall, in a guest with protection keys: this machine may have none.
use crate::support;
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
        eprintln!("{name}: skipped: {}", errors.trim());
        return None;
    }
    Some((output.status.success(), format!("{text}{errors}")))
}

#[test]
#[ignore = "boots a guest: a minute or more"]
fn every_attack_is_refused_and_succeeds_without_the_wall() {
    let ix = env!("CARGO_BIN_EXE_ix");
    let name = "every_attack_is_refused_and_succeeds_without_the_wall";
    let attacker = support::build_program("ix-attacker");
    let attacker = attacker.to_str().expect("text");
    if let Some((success, text)) = in_a_guest(name, &["-f", attacker, ix, "attack"]) {
        assert!(success, "{text}");
    }
}
