//! Servers at the server's end: programs inside `ix`, or installed ones.
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// A program that serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Program {
    /// `ix echo`.
    #[default]
    Echo,
    /// The echo inside the driver, on IX's devices only.
    Driver,
    /// `ix kv`, the key-value server.
    Kv,
    /// Debian's memcached; on IX unmodified.
    Memcached,
    /// Debian's haproxy; on IX unmodified.
    Haproxy,
    /// A command that the user names, in the arguments; on IX unmodified.
    Named,
}

impl Program {
    /// Name in results.
    pub fn name(self) -> &'static str {
        match self {
            Program::Echo => "ix-echo",
            Program::Driver => "driver",
            Program::Kv => "ix-kv",
            Program::Memcached => "memcached",
            Program::Haproxy => "haproxy",
            Program::Named => "program",
        }
    }

    /// Whether it is an unmodified program: not ours, and on Linux sockets unless IX provides them.
    pub fn is_unmodified(self) -> bool {
        matches!(self, Program::Memcached | Program::Haproxy | Program::Named)
    }
}

/// A server: the program, its arguments, and its part of the machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Serve {
    /// The program.
    pub program: Program,
    /// Its arguments, without address, port, threads and placement.
    pub arguments: Vec<String>,
    /// Arguments on IX only.
    pub only_ix: Vec<String>,
    /// Threads, each with a hardware thread if there are enough; 0 counts as 1.
    pub threads: usize,
    /// Batch bound B of the dataplane; `None`: the default.
    pub batch: Option<usize>,
    /// More flags of `ix run`.
    pub run_flags: Vec<String>,
    /// The servers behind it are on IX, at the client's end.
    pub behind_on_ix: bool,
    /// The program's own executable, instead of the same program inside `ix`.
    pub file: Option<PathBuf>,
    /// Whom an unmodified program runs as, if it is another one than `ix`.
    pub user: Option<String>,
}

impl Serve {
    /// `ix echo` with these arguments on one hardware thread.
    pub fn echo(arguments: &[String]) -> Serve {
        Serve { arguments: arguments.to_vec(), ..Serve::default() }
    }

    /// Number of threads, at least one.
    pub fn threads(&self) -> usize {
        self.threads.max(1)
    }

    /// The command line on IX: of the program inside `ix`, or of its own executable; it listens at
    /// `port`.
    pub(super) fn of_ix(&self, ix: &Path, port: u16) -> Vec<OsString> {
        let mut args = self.common(port);
        args.extend(self.only_ix.iter().map(OsString::from));
        match &self.file {
            Some(file) => args[0] = file.into(),
            None => args.insert(0, ix.into()),
        }
        args
    }

    fn common(&self, port: u16) -> Vec<OsString> {
        let name = if self.program == Program::Kv { "kv" } else { "echo" };
        let mut args: Vec<OsString> = vec![name.into()];
        args.extend(self.arguments.iter().map(OsString::from));
        args.extend(["--port".into(), port.to_string().into()]);
        args
    }

    /// The command line on Linux sockets.
    pub(super) fn of_linux(&self, port: u16, spin: bool, cpus: &[usize]) -> Vec<OsString> {
        let mut args = self.common(port);
        args.extend(linux_flags(spin).iter().map(OsString::from));
        args.extend(["--cpus".into(), list(cpus).into()]);
        args.extend(["--threads".into(), self.threads().to_string().into()]);
        args
    }
}

impl Serve {
    /// The same on Linux: `setpriv` is what `ix run --user` is on IX.
    pub(super) fn of_unmodified_on_linux(&self, address: IpAddr, port: u16) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        if let Some(user) = &self.user {
            words.extend(["setpriv", "--reuid", user, "--clear-groups"].map(Into::into));
        }
        words.extend(self.of_unmodified(address, port));
        words
    }

    /// Name and arguments of an unmodified program; memcached's are those of IX's bench_memcached.
    pub(super) fn of_unmodified(&self, address: IpAddr, port: u16) -> Vec<OsString> {
        if self.program == Program::Named {
            let words = [("{address}", address.to_string()), ("{port}", port.to_string())];
            let filled = |text: &String| {
                words.iter().fold(text.clone(), |text, (word, value)| text.replace(word, value))
            };
            return self.arguments.iter().map(|text| filled(text).into()).collect();
        }
        let mut args: Vec<OsString> = vec![self.program.name().into()];
        args.extend(self.arguments.iter().map(OsString::from));
        if self.program == Program::Haproxy {
            return args;
        }
        if !self.arguments.iter().any(|argument| argument == "-U") {
            args.extend(["-U", "0"].map(Into::into));
        }
        args.extend(["-u", "root", "-o", "hashpower=20", "-l"].map(Into::into));
        args.extend([address.to_string(), "-p".into(), port.to_string()].map(Into::into));
        args.extend(["-t".into(), self.threads().to_string().into()]);
        args
    }
}

/// Flags that make a program of ours use Linux sockets.
pub(super) fn linux_flags(spin: bool) -> &'static [&'static str] {
    if spin { &["--linux", "--spin"] } else { &["--linux"] }
}

/// Formats numbers as `0,2,5`.
pub(super) fn list(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}
