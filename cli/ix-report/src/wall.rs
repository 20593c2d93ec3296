//! The wall between a program and its dataplane, as commands see it.
use crate::problem::{Problem, Result};
use std::path::PathBuf;

/// Whether processor and kernel have protection keys.
pub fn has_keys() -> Result<()> {
    if ix_sys::probe::protection_keys().is_ok() {
        return Ok(());
    }
    let why = "no memory protection keys here (processor, kernel, or virtual machine)";
    Err(Problem::new("cannot use --domain pku", why)
        .mend("use --domain process, the default, which needs none"))
}

/// The attacking program: beside this one, or along `PATH`.
pub fn attacker() -> Result<PathBuf> {
    const NAME: &str = "ix-attacker";
    let beside = std::env::current_exe().ok().map(|ix| ix.with_file_name(NAME));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places =
        beside.into_iter().chain(std::env::split_paths(&path).map(|folder| folder.join(NAME)));
    places.find(|file| file.is_file()).ok_or_else(|| {
        Problem::new("cannot attack", format!("{NAME} is neither beside ix nor along PATH"))
            .mend("cargo build -p ix-attacker")
    })
}
