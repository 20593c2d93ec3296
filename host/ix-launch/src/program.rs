//! Finds the file of a program's name, and why Linux would not run it.
use crate::LaunchError;
use ix_sys::program_file::{self, Elf};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The file of a name: the name itself if it has a slash, else the first match along `path`.
pub fn resolve(program: &Path, path: Option<&OsStr>) -> Option<PathBuf> {
    if program.as_os_str().as_bytes().contains(&b'/') {
        return program.exists().then(|| program.to_owned());
    }
    std::env::split_paths(path?).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Refuses files that cannot be programs. (The C library would give them to a shell.)
pub fn check(program: &Path) -> Result<(), LaunchError> {
    let Some(file) = resolve(program, std::env::var_os("PATH").as_deref()) else {
        return Err(LaunchError::NotFound(program.to_owned()));
    };
    // A file that cannot be read may still be executable: then `execve` decides.
    let Ok(head) = head(&file) else { return Ok(()) };
    match program_file::elf(&head) {
        Some(Elf::Ours(_)) => Ok(()),
        Some(Elf::Foreign) => Err(LaunchError::WrongMachine(file)),
        None if head.starts_with(b"#!") || !is_executable(&file) => Ok(()),
        None => Err(LaunchError::NotExecutable(file)),
    }
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Turns an error of `execve` into one with a remedy.
pub fn diagnose(program: &Path, error: io::Error) -> LaunchError {
    let Some(file) = resolve(program, std::env::var_os("PATH").as_deref()) else {
        return LaunchError::NotFound(program.to_owned());
    };
    match error.raw_os_error() {
        Some(libc::ENOENT) => LaunchError::NoInterpreter(file),
        Some(libc::EACCES) if file.is_dir() => LaunchError::Directory(file),
        Some(libc::EACCES) => LaunchError::NoPermission(file),
        Some(libc::ENOEXEC) => LaunchError::NotExecutable(file),
        Some(libc::EPERM) => LaunchError::TraceRefused(error),
        _ => LaunchError::System { what: "execve", error },
    }
}

/// The first bytes of a file.
fn head(file: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    File::open(file)?.take(64).read_to_end(&mut head)?;
    Ok(head)
}
