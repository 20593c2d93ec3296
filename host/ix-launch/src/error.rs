//! Why a program could not be started on IX: one line each, with the remedy.
use std::io;
use std::path::PathBuf;

/// Why [`crate::launch`] failed. The program has then not run a single instruction.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// No such file, and no such name along `PATH`.
    #[error("cannot run {}: no such program; check the name, or give its path", .0.display())]
    NotFound(PathBuf),
    /// A directory.
    #[error("cannot run {}: it is a directory; name a program in it", .0.display())]
    Directory(PathBuf),
    /// The user may not execute it.
    #[error(
        "cannot run {path}: permission denied; try chmod +x, or let the program's user enter the \
         folders above it (namei -l {path})", path = .0.display()
    )]
    NoPermission(PathBuf),
    /// Neither ELF nor a script.
    #[error(
        "cannot run {}: neither an executable nor a script; a script needs a first line like \
         #!/bin/sh", .0.display()
    )]
    NotExecutable(PathBuf),
    /// For another machine.
    #[error("cannot run {}: not made for x86-64; build it for this machine", .0.display())]
    WrongMachine(PathBuf),
    /// The file exists, its interpreter or dynamic loader does not.
    #[error(
        "cannot run {}: its interpreter is missing; see its first line, or `readelf -l` of it",
        .0.display()
    )]
    NoInterpreter(PathBuf),
    /// Linux does not let us trace our own child.
    #[error(
        "cannot plant the dataplane: tracing is refused ({0}); run without strace or gdb -f, \
         lower kernel.yama.ptrace_scope, or say --entry loading"
    )]
    TraceRefused(io::Error),
    /// The process ended before the dataplane was in it.
    #[error("cannot plant the dataplane: the process ended early ({0})")]
    Died(crate::Exit),
    /// Linux, or a filter of system calls, has no such call for us.
    #[error(
        "cannot plant the dataplane: {0} is refused; IX needs Linux 6.12 or newer, and a container \
         or another filter of system calls must allow {0}"
    )]
    Refused(&'static str),
    /// Another system call failed.
    #[error("cannot plant the dataplane: {what}: {error}")]
    System {
        /// The action.
        what: &'static str,
        /// Linux's reason.
        error: io::Error,
    },
}

/// For `map_err`: adds the action.
pub(crate) fn system(what: &'static str) -> impl Fn(io::Error) -> LaunchError {
    move |error| match error.raw_os_error() {
        Some(libc::ENOSYS) => LaunchError::Refused(what),
        _ => LaunchError::System { what, error },
    }
}
