//! Builds the packages that the command carries inside: the dataplane image, and the library for
//! unmodified programs. Used by the command's build script and by tests of the launcher.
//!
//! The image needs code generation flags of its own (`+crt-static`), which cargo can only set for a
//! whole build. So each is built by a separate cargo, in a separate target folder, and always
//! optimised.
#![forbid(unsafe_code)]
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Cargo's profile for what runs for each message.
const PROFILE: &str = "datapath";
const IMAGE_FLAGS: [&str; 2] = ["-Ctarget-feature=+crt-static", "-Crelocation-model=pie"];

/// Where to build: with which cargo, from which workspace.
#[derive(Clone, Copy, Debug)]
pub struct Builder<'a> {
    /// The cargo to run.
    pub cargo: &'a OsStr,
    /// The folder of the workspace.
    pub workspace: &'a Path,
    /// A profile of the dataplane by which the image is compiled, as `packaging/profile` makes it.
    pub profile: Option<&'a Path>,
}

impl Builder<'_> {
    /// Builds the image below `target_dir`; returns its path.
    pub fn image(&self, target_dir: &Path) -> Result<PathBuf, String> {
        let profile = self.profile.map(|path| format!("-Cprofile-use={}", path.display()));
        let flags: Vec<&str> = IMAGE_FLAGS.into_iter().chain(profile.as_deref()).collect();
        self.build("ix-image", &flags, target_dir)?;
        Ok(target_dir.join(TARGET).join(PROFILE).join("ix-image"))
    }

    /// Builds the library for unmodified programs below `target_dir`; returns its path. It uses the
    /// C library of the program that loads it.
    pub fn posix_library(&self, target_dir: &Path) -> Result<PathBuf, String> {
        self.build("libix-posix", &[], target_dir)?;
        Ok(target_dir.join(TARGET).join(PROFILE).join("libix_posix.so"))
    }

    fn build(&self, package: &str, flags: &[&str], target_dir: &Path) -> Result<(), String> {
        let mut command = Command::new(self.cargo);
        for (name, _) in std::env::vars_os() {
            if is_cargos_own(&name.to_string_lossy()) {
                command.env_remove(name);
            }
        }
        let status = command
            .current_dir(self.workspace)
            .args(["build", "--quiet", "--profile", PROFILE])
            .args(["--package", package, "--target", TARGET])
            .arg("--target-dir")
            .arg(target_dir)
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
            .status()
            .map_err(|e| format!("cannot start {}: {e}", self.cargo.display()))?;
        if !status.success() {
            return Err(format!("building {package} for the `ix` command failed ({status})"));
        }
        Ok(())
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_separate_cargo_is_not_told_of_the_package_that_is_being_built() {
        for name in ["CARGO_PKG_NAME", "CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS", "OUT_DIR", "TARGET"]
        {
            assert!(is_cargos_own(name), "{name}");
        }
        for name in ["CARGO_HOME", "CARGO_NET_OFFLINE", "RUSTUP_HOME", "PATH"] {
            assert!(!is_cargos_own(name), "{name}");
        }
    }
}
