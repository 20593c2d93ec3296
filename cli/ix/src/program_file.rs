//! The file of the program that `ix run` runs.
use ix_report::problem::{Problem, Result, STATUS_NOT_EXECUTABLE, STATUS_NOT_FOUND};
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Finds the program's file: the name itself if it has a slash, else along PATH.
pub fn find_program(name: &OsStr) -> Result<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let what = || format!("cannot run {}", name.to_string_lossy());
    let path = if name.as_bytes().contains(&b'/') {
        PathBuf::from(name)
    } else {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let mut found = std::env::split_paths(&folders).map(|folder| folder.join(name));
        found.find(|path| is_executable(path)).ok_or_else(|| {
            Problem::new(what(), "PATH has no such program")
                .mend("give the path of the program")
                .with_status(STATUS_NOT_FOUND)
        })?
    };
    let metadata = path.metadata().map_err(|e| {
        Problem::new(what(), e).mend("check the path").with_status(STATUS_NOT_FOUND)
    })?;
    let refuse = |why: &str| Problem::new(what(), why).with_status(STATUS_NOT_EXECUTABLE);
    if metadata.is_dir() {
        return Err(refuse("it is a folder").mend("give the path of a program"));
    }
    if !is_executable(&path) {
        return Err(refuse("it is not executable").mend(format!("chmod +x {}", path.display())));
    }
    Ok(path)
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        assert_eq!(find_program("/bin/sh".as_ref()).expect("found"), Path::new("/bin/sh"));
        assert!(find_program("sh".as_ref()).expect("along PATH").is_absolute());
        for (name, status) in [
            ("no-such-program", STATUS_NOT_FOUND),
            ("/no/such", STATUS_NOT_FOUND),
            ("", STATUS_NOT_FOUND),
            ("/etc", STATUS_NOT_EXECUTABLE),
            ("/etc/passwd", STATUS_NOT_EXECUTABLE),
        ] {
            assert_eq!(find_program(name.as_ref()).expect_err(name).status(), status, "{name}");
        }
    }
}
