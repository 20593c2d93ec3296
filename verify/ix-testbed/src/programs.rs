//! Programs and libraries that tests start or link, and that cargo does not build for them.
use std::path::{Path, PathBuf};
use std::process::Command;

/// Built in one step, so that shared dependencies are compiled once.
const OTHERS: [&str; 7] =
    ["ix-attacker", "ix-echo", "ix-frames", "ix-httpd", "ix-kv", "libix-c", "libix-event"];

/// An environment variable that says that they are built: `.ci/run` sets it, because its other
/// builds would delay this one.
const BUILT: &str = "IX_OTHERS_BUILT";

/// Builds them beside a program that cargo has built; returns its folder.
///
/// # Panics
/// If they do not build.
pub fn build_beside(program: &Path) -> PathBuf {
    let folder = program.parent().expect("a folder");
    if std::env::var_os(BUILT).is_some() {
        return folder.to_owned();
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet"]).args(OTHERS.iter().flat_map(|package| ["-p", package]));
    cargo.arg("--target-dir").arg(folder.parent().expect("target directory"));
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    assert!(cargo.status().expect("cargo").success(), "{OTHERS:?} do not build");
    folder.to_owned()
}
