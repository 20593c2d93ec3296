// How the image is built; included by the build script of `ix` and by the tests of `ix-launch`.
//
// The image needs code generation flags of its own (`+crt-static`), which cargo can only set for a
// whole build. So it is built by a separate cargo, in a separate target directory, always
// optimised.
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";
const RUSTFLAGS: [&str; 2] = ["-Ctarget-feature=+crt-static", "-Crelocation-model=pie"];

/// Whether `cargo` sets this variable for the processes that it starts. Such variables are for
/// another package and another way to compile, and must not reach the separate cargo.
fn is_cargos_own(name: &str) -> bool {
    const KEEP: [&str; 3] = ["CARGO_HOME", "CARGO_NET_OFFLINE", "CARGO_TERM_COLOR"];
    const ALSO: [&str; 9] = [
        "RUSTFLAGS",
        "RUSTC",
        "RUSTDOC",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "CLIPPY_ARGS",
        "OUT_DIR",
        "TARGET",
        "PROFILE",
    ];
    (name.starts_with("CARGO") && !KEEP.contains(&name)) || ALSO.contains(&name)
}

/// Builds it below `target_dir`; returns its path.
fn build_image(cargo: &OsString, workspace: &Path, target_dir: &Path) -> Result<PathBuf, String> {
    build(cargo, workspace, target_dir, "ix-image", &RUSTFLAGS)?;
    Ok(target_dir.join(TARGET).join("release/ix-image"))
}

/// Builds a package below `target_dir`, optimised, with these flags.
fn build(
    cargo: &OsString,
    workspace: &Path,
    target_dir: &Path,
    package: &str,
    flags: &[&str],
) -> Result<(), String> {
    let mut command = Command::new(cargo);
    for (name, _) in std::env::vars_os() {
        if is_cargos_own(&name.to_string_lossy()) {
            command.env_remove(name);
        }
    }
    let status = command
        .current_dir(workspace)
        .args(["build", "--release", "--quiet", "--package", package, "--target", TARGET])
        .arg("--target-dir")
        .arg(target_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .status()
        .map_err(|e| format!("cannot start {}: {e}", cargo.to_string_lossy()))?;
    if !status.success() {
        return Err(format!("building {package} for the `ix` command failed ({status})"));
    }
    Ok(())
}
