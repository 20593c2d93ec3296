//! The control socket of a running dataplane: one request line in, one JSON line out.
//!
//! `stats` answers the counters. The socket belongs to `ix run`, not to the program.
use crate::args::CtlArgs;
use crate::problem::{Problem, Result};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(2);
/// Longest request line.
const REQUEST_MAX: u64 = 256;

/// Folders for control sockets that nobody named, best first: `/run/ix` for root, the user's own,
/// one below /tmp.
fn folders() -> Vec<PathBuf> {
    // SAFETY: cannot fail and touches no memory.
    let (root, uid) = unsafe { (libc::geteuid() == 0, libc::getuid()) };
    let system = root.then(|| PathBuf::from("/run/ix"));
    let users = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    let users = users.map(|dir| PathBuf::from(dir).join("ix"));
    let last = std::env::temp_dir().join(format!("ix-{uid}"));
    system.into_iter().chain(users).chain([last]).collect()
}

/// The first of [`folders`] that can be had, without the sockets that dead runs left there.
pub fn folder() -> Result<PathBuf> {
    let folders = folders();
    let folder = folders.iter().find(|folder| make_private(folder)).ok_or_else(|| {
        let names: Vec<_> = folders.iter().map(|f| f.display().to_string()).collect();
        Problem::new("no place for a control socket", format!("tried {}", names.join(", ")))
            .mend("name one with --control")
    })?;
    for path in sockets(folder).iter().filter(|path| is_dead(path)) {
        let _ = fs::remove_file(path);
    }
    Ok(folder.clone())
}

/// A socket that answers requests; its file goes when it is dropped.
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
}

impl Control {
    /// Listens at `path`, or at the usual place of process `pid`. Removes what dead runs left.
    pub fn listen(path: Option<&Path>, pid: i32) -> Result<Control> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => folder()?.join(format!("{pid}.sock")),
        };
        let bind = || match UnixListener::bind(&path) {
            Err(e) if e.kind() == ErrorKind::AddrInUse && is_dead(&path) => {
                fs::remove_file(&path)?;
                UnixListener::bind(&path)
            }
            other => other,
        };
        let listener = bind().map_err(|e| {
            Problem::new(format!("cannot listen at {}", path.display()), e)
                .mend("choose another place with --control")
        })?;
        Ok(Control { listener, path })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A descriptor that polls readable when somebody asks.
    pub fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.listener.as_fd()
    }

    /// Answers one request. A client that misbehaves costs at most a moment.
    pub fn serve_one(&self, snapshot: impl Fn() -> Value) {
        let Ok((stream, _)) = self.listener.accept() else { return };
        let _ = stream.set_read_timeout(Some(TIMEOUT));
        let _ = stream.set_write_timeout(Some(TIMEOUT));
        let mut request = String::new();
        let mut reader = BufReader::new((&stream).take(REQUEST_MAX));
        let answer = match reader.read_line(&mut request) {
            Err(_) => return,
            Ok(_) if request.trim() == "stats" => snapshot(),
            Ok(_) => json!({ "error": "no such request; there is `stats`" }),
        };
        // The asker may be gone; that is its own affair.
        let _ = (&stream).write_all(format!("{answer}\n").as_bytes());
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether the folder is there, ours alone, and writable.
fn make_private(folder: &Path) -> bool {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    // SAFETY: cannot fail and touches no memory.
    let uid = unsafe { libc::geteuid() };
    let ours = |m: fs::Metadata| m.is_dir() && m.uid() == uid && m.mode() & 0o777 == 0o700;
    made.is_ok() && fs::symlink_metadata(folder).is_ok_and(ours)
}

fn sockets(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "sock"));
    paths
}

/// A socket file that nobody listens at any more (its `ix run` was killed).
fn is_dead(path: &Path) -> bool {
    UnixStream::connect(path).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
}

/// Sends a request to a control socket.
pub fn ask(path: &Path, request: &str) -> Result<Value> {
    let problem = |e: std::io::Error| {
        let what = format!("cannot reach the dataplane at {}", path.display());
        Problem::new(what, e).mend("is its `ix run` alive?")
    };
    let mut stream = UnixStream::connect(path).map_err(problem)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(problem)?;
    stream.write_all(format!("{request}\n").as_bytes()).map_err(problem)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(problem)?;
    let value: Value = serde_json::from_str(&answer)
        .map_err(|e| Problem::new(format!("cannot read the answer of {}", path.display()), e))?;
    match value.get("error").and_then(Value::as_str) {
        Some(error) => Err(Problem::new(format!("{} refuses", path.display()), error)),
        None => Ok(value),
    }
}

/// The socket that the flags name, or the only one.
pub fn find(args: &CtlArgs) -> Result<PathBuf> {
    if let Some(path) = &args.control {
        return Ok(path.clone());
    }
    let mut alive: Vec<_> = folders().iter().flat_map(|folder| sockets(folder)).collect();
    alive.retain(|path| !is_dead(path));
    if let Some(pid) = args.pid {
        let name = format!("{pid}.sock");
        let found = alive.into_iter().find(|path| path.file_name() == Some(name.as_ref()));
        return found.ok_or_else(|| {
            Problem::new("no such dataplane", format!("process {pid} has none that we may reach"))
                .mend("name its socket with --control")
        });
    }
    match alive.len() {
        1 => Ok(alive.remove(0)),
        0 => {
            let folders: Vec<_> = folders().iter().map(|f| f.display().to_string()).collect();
            Err(Problem::new("no dataplane", format!("none listens in {}", folders.join(", ")))
                .mend("start one with `ix run`, or name its socket with --control"))
        }
        n => {
            let pids: Vec<_> =
                alive.iter().filter_map(|p| p.file_stem()?.to_str().map(str::to_owned)).collect();
            Err(Problem::new(format!("there are {n} dataplanes"), pids.join(", "))
                .mend("choose one with --pid"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temp(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("ix-control-{}-{name}.sock", std::process::id()))
    }

    #[test]
    fn a_request_gets_its_answer_and_nonsense_an_error() {
        let path = temp("answer");
        let control = Control::listen(Some(&path), 0).expect("listen");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..3 {
                    control.serve_one(|| json!({ "threads": [{ "flows": 7 }] }));
                }
            });
            assert_eq!(ask(&path, "stats").expect("answer")["threads"][0]["flows"], 7);
            let e = ask(&path, "explode").expect_err("refused");
            assert!(e.to_string().contains("no such request"), "{e}");
            // One that says nothing and goes.
            drop(UnixStream::connect(&path).expect("connect"));
        });
        drop(control);
        assert!(!path.exists(), "the file goes with the socket");
        assert!(ask(&path, "stats").is_err());
    }

    #[test]
    fn a_dead_socket_is_taken_over_and_a_living_one_is_not() {
        let path = temp("dead");
        drop(UnixListener::bind(&path).expect("bind"));
        assert!(path.exists(), "left behind");
        // A process that another test has just forked may hold the descriptor for a moment.
        for _ in 0..200 {
            if is_dead(&path) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let control = Control::listen(Some(&path), 0).expect("taken over");
        let e = Control::listen(Some(&path), 0).err().expect("taken");
        assert!(e.to_string().contains("--control"), "{e}");
        assert_eq!(control.path(), path);
    }
}
