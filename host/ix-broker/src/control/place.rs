//! Where control sockets are, and who may open them.
use ix_problem::{Problem, Result};
use serde::Deserialize;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Folders for control sockets that nobody named, best first: `/run/ix` for root, the user's own,
/// one below /tmp.
fn folders() -> Vec<PathBuf> {
    // SAFETY: cannot fail and touches no memory.
    let (root, uid) = unsafe { (libc::geteuid() == 0, libc::getuid()) };
    let system = root.then(|| PathBuf::from(SYSTEM));
    let users = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    let users = users.map(|dir| PathBuf::from(dir).join("ix"));
    let last = std::env::temp_dir().join(format!("ix-{uid}"));
    system.into_iter().chain(users).chain([last]).collect()
}

/// Root's folder: others look here as well, for sockets that they may open.
const SYSTEM: &str = "/run/ix";

/// The first of [`folders`] that can be had, without the sockets that dead runs left there.
pub fn folder() -> Result<PathBuf> {
    let folders = folders();
    let folder = folders.iter().find(|folder| make(folder)).ok_or_else(|| {
        let names: Vec<_> = folders.iter().map(|f| f.display().to_string()).collect();
        Problem::new("no place for a control socket", format!("tried {}", names.join(", ")))
            .mend("name one with --control")
    })?;
    for path in sockets(folder).iter().filter(|path| is_dead(path)) {
        let _ = fs::remove_file(path);
    }
    Ok(folder.clone())
}

/// Whether the folder is there, ours, and nobody else can put anything into it. Others may look
/// through it: what a socket is for, its own mode says.
fn make(folder: &Path) -> bool {
    let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(folder);
    // SAFETY: cannot fail and touches no memory.
    let uid = unsafe { libc::geteuid() };
    let ours = fs::symlink_metadata(folder).is_ok_and(|m| m.is_dir() && m.uid() == uid);
    made.is_ok() && ours && fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).is_ok()
}

/// Who may open the sockets of a dataplane.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Access {
    /// Mode of the operators' socket, as `chmod` writes it.
    mode: String,
    /// Its group, by name or number (default: the user's own).
    group: Option<String>,
    /// Mode of the socket to look through.
    read_only_mode: String,
    /// Its group.
    read_only_group: Option<String>,
    /// Where metrics are served over HTTP; not at all by default.
    pub metrics: Option<String>,
}

impl Default for Access {
    fn default() -> Access {
        let (mode, read_only_mode) = ("0600".to_owned(), "0660".to_owned());
        Access { mode, group: None, read_only_mode, read_only_group: None, metrics: None }
    }
}

impl Access {
    /// Listens for scrapes of the metrics, where that is wanted: at `ADDRESS:PORT`, or at a port of
    /// the loopback address.
    pub fn bind_metrics(&self) -> Result<Option<TcpListener>> {
        let Some(text) = &self.metrics else { return Ok(None) };
        let problem = |e: &dyn std::fmt::Display| {
            Problem::new(format!("cannot serve metrics at `{text}`"), e)
                .mend("say ADDRESS:PORT or a port, for example --metrics 127.0.0.1:9464")
        };
        let port = text.parse().map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let address: SocketAddr = port.or_else(|_| text.parse()).map_err(|e| problem(&e))?;
        TcpListener::bind(address).map(Some).map_err(|e| problem(&e))
    }
}

/// The sockets of one dataplane; their files go when it is dropped.
pub struct Sockets {
    /// For operators.
    pub operator: UnixListener,
    /// For looking.
    pub read_only: UnixListener,
    path: PathBuf,
}

impl Sockets {
    /// Listens at `path`, or at the usual place of process `pid`. Removes what dead runs left.
    pub fn listen(path: Option<&Path>, pid: i32, access: &Access) -> Result<Sockets> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => folder()?.join(format!("{pid}.sock")),
        };
        let listen = |path: &Path, mode: &str, group: &Option<String>| {
            let problem = |e: io::Error| {
                Problem::new(format!("cannot listen at {}", path.display()), e)
                    .mend("choose another place with --control, or see [control] in the file")
            };
            let mode = u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o777);
            let mode = mode.ok_or_else(|| problem(io::Error::other("its mode is no mode")))?;
            let gid = group.as_deref().map(group_id).transpose().map_err(problem)?;
            bind(path, mode, gid).map_err(problem)
        };
        let operator = listen(&path, &access.mode, &access.group)?;
        match listen(&read_only(&path), &access.read_only_mode, &access.read_only_group) {
            Ok(read_only) => Ok(Sockets { operator, read_only, path }),
            Err(problem) => {
                let _ = fs::remove_file(&path);
                Err(problem)
            }
        }
    }

    /// Where operators ask.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(read_only(&self.path));
    }
}

/// The read-only socket beside an operators' socket: `7.ro.sock` beside `7.sock`.
pub fn read_only(path: &Path) -> PathBuf {
    match path.extension() {
        Some(extension) => {
            let mut word = std::ffi::OsString::from("ro.");
            word.push(extension);
            path.with_extension(word)
        }
        None => path.with_extension("ro"),
    }
}

/// Binds, and takes over what a dead run left. At no time is the file open to more than it should.
fn bind(path: &Path, mode: u32, gid: Option<u32>) -> io::Result<UnixListener> {
    let listener = match bind_closed(path) {
        Err(e) if e.kind() == ErrorKind::AddrInUse && is_dead(path) => {
            fs::remove_file(path)?;
            bind_closed(path)?
        }
        other => other?,
    };
    let open = || -> io::Result<()> {
        if let Some(gid) = gid {
            std::os::unix::fs::lchown(path, None, Some(gid))?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    };
    open().inspect_err(|_| drop(fs::remove_file(path)))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A listener whose file nobody may open yet.
fn bind_closed(path: &Path) -> io::Result<UnixListener> {
    let check = |ret: i32| if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers; the descriptor is new and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(check(libc::socket(libc::AF_UNIX, kind, 0))?) };
    // SAFETY: all zeroes is a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() || bytes.contains(&0) || bytes.len() >= address.sun_path.len() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a path of at most 107 bytes"));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let length = std::mem::size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: an open descriptor; an address with its length. A socket's mode before it is bound
    // is that of the file that bind makes.
    unsafe {
        check(libc::fchmod(socket.as_raw_fd(), 0))?;
        check(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length))?;
        check(libc::listen(socket.as_raw_fd(), 128))?;
    }
    Ok(UnixListener::from(socket))
}

/// The number of a group, from its name or number.
fn group_id(name: &str) -> io::Result<u32> {
    let entry = |line: &str| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    };
    let known = || fs::read_to_string("/etc/group").ok()?.lines().find_map(entry);
    let missing = || io::Error::new(ErrorKind::NotFound, format!("there is no group `{name}`"));
    name.parse().ok().or_else(known).ok_or_else(missing)
}

/// Operators' sockets in a folder.
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

/// A dataplane that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The socket that we may open, operators' if possible.
    pub path: PathBuf,
    /// Process number of its program.
    pub pid: i32,
}

/// All dataplanes that we may reach, by process number.
pub fn all() -> Vec<Found> {
    let mut folders = folders();
    if !folders.iter().any(|folder| folder == Path::new(SYSTEM)) {
        folders.insert(0, SYSTEM.into());
    }
    let paths = folders.iter().flat_map(|folder| sockets(folder));
    let mut found: Vec<Found> = paths.filter_map(|path| reachable(&path)).collect();
    found.sort_by_key(|found| found.pid);
    found
}

/// The dataplane of an operators' socket, through that or through the one beside it.
fn reachable(path: &Path) -> Option<Found> {
    let pid = path.file_stem()?.to_str()?.parse().ok()?;
    let opens = |path: &PathBuf| UnixStream::connect(path).is_ok();
    let path = [path.to_owned(), read_only(path)].into_iter().find(opens)?;
    Some(Found { path, pid })
}

/// The socket at this path, else that of this process, else the only one that there is.
pub fn find(path: Option<&Path>, pid: Option<i32>) -> Result<PathBuf> {
    if let Some(path) = path {
        return Ok(path.to_owned());
    }
    let mut alive = all();
    if let Some(pid) = pid {
        let found = alive.into_iter().find(|found| found.pid == pid);
        return found.map(|found| found.path).ok_or_else(|| {
            Problem::new("no such dataplane", format!("process {pid} has none that we may reach"))
                .mend("name its socket with --control")
        });
    }
    match alive.len() {
        1 => Ok(alive.remove(0).path),
        0 => {
            let folders: Vec<_> = folders().iter().map(|f| f.display().to_string()).collect();
            Err(Problem::new("no dataplane", format!("none listens in {}", folders.join(", ")))
                .mend("start one with `ix run`, or name its socket with --control"))
        }
        n => {
            let pids: Vec<_> = alive.iter().map(|found| found.pid.to_string()).collect();
            Err(Problem::new(format!("there are {n} dataplanes"), pids.join(", "))
                .mend("choose one with --pid"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temp(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("ix-place-{}-{name}.sock", std::process::id()))
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).expect("there").mode() & 0o777
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
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let access = Access::default();
        let sockets = Sockets::listen(Some(&path), 0, &access).expect("taken over");
        let e = Sockets::listen(Some(&path), 0, &access).err().expect("taken");
        assert!(e.to_string().contains("--control"), "{e}");
        assert_eq!(sockets.path(), path);
        drop(sockets);
        assert!(!path.exists() && !read_only(&path).exists(), "the files go with the sockets");
    }

    #[test]
    fn modes_say_who_may_open_them() {
        let path = temp("modes");
        let sockets = Sockets::listen(Some(&path), 0, &Access::default()).expect("listen");
        assert_eq!((mode(&path), mode(&read_only(&path))), (0o600, 0o660));
        drop(sockets);
        let access: Access =
            toml::from_str("mode = \"0660\"\ngroup = \"0\"\nread_only_mode = \"0666\"").expect("");
        // SAFETY: cannot fail and touches no memory.
        if unsafe { libc::geteuid() } == 0 {
            let _sockets = Sockets::listen(Some(&path), 0, &access).expect("listen");
            assert_eq!((mode(&path), mode(&read_only(&path))), (0o660, 0o666));
        }
        for wrong in ["mode = \"rwx\"", "mode = \"1777\"", "group = \"no such group\""] {
            let access: Access = toml::from_str(wrong).expect("fine as TOML");
            assert!(Sockets::listen(Some(&path), 0, &access).is_err(), "{wrong}");
            assert!(!path.exists(), "{wrong}");
        }
    }

    #[test]
    fn a_read_only_socket_stands_beside_its_operators() {
        assert_eq!(read_only(Path::new("/run/ix/7.sock")), Path::new("/run/ix/7.ro.sock"));
        assert_eq!(read_only(Path::new("lab-1")), Path::new("lab-1.ro"));
        assert!(reachable(Path::new("/run/ix/7.ro.sock")).is_none(), "has no process number");
    }
}
