//! Where control sockets are, and who may open them.
use ix_problem::{Problem, Result};
use ix_sys::{process, socket};
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Folders for control sockets without a configured path, best first: `/run/ix` for root, the
/// user's own folder, a folder below /tmp.
fn folders() -> Vec<PathBuf> {
    let uid = user_outside(process::user_id());
    let system = process::is_root().then(|| PathBuf::from(SYSTEM));
    let users = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    let users = users.map(|dir| PathBuf::from(dir).join("ix"));
    let last = std::env::temp_dir().join(format!("ix-{uid}"));
    system.into_iter().chain(users).chain([last]).collect()
}

/// This process's user as the namespace of users outside its own knows it: several users may be
/// root of namespaces of their own, and have one `/tmp`.
fn user_outside(uid: u32) -> u32 {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.lines().find_map(|line| mapped(line, uid)).unwrap_or(uid)
}

/// What a line of a uid_map (user_namespaces(7)) makes of a user: first inside, first outside, how
/// many.
fn mapped(line: &str, uid: u32) -> Option<u32> {
    let mut numbers = line.split_whitespace().map_while(|number| number.parse::<u32>().ok());
    let (inside, outside, count) = (numbers.next()?, numbers.next()?, numbers.next()?);
    let nth = uid.checked_sub(inside).filter(|nth| *nth < count)?;
    outside.checked_add(nth)
}

/// At most this many connections wait to be accepted.
const BACKLOG: i32 = 128;
/// Longest that a look whether somebody listens at a socket may take.
const KNOCK_WITHIN: Duration = Duration::from_millis(10);
/// A socket file that is younger belongs to a run that starts: between bind(2) and listen(2) it
/// refuses connections as that of a dead run does.
const DEAD_FROM: Duration = Duration::from_secs(10);
/// Root's folder. Other users look here too, for sockets that they may open.
const SYSTEM: &str = "/run/ix";

/// The first usable one of [`folders`]. Sockets that dead runs left there are removed.
pub fn folder() -> Result<PathBuf> {
    let folders = folders();
    let folder = folders.iter().find(|folder| make(folder)).ok_or_else(|| {
        let names: Vec<_> = folders.iter().map(|f| f.display().to_string()).collect();
        Problem::new("no place for a control socket", format!("tried {}", names.join(", ")))
            .mend("name one with --control")
    })?;
    remove_dead(folder, SystemTime::now());
    Ok(folder.clone())
}

/// Removes the sockets of a folder that dead runs have left.
fn remove_dead(folder: &Path, now: SystemTime) {
    let is_old = |path: &PathBuf| {
        let made = fs::symlink_metadata(path).and_then(|of| of.modified());
        made.is_ok_and(|made| now.duration_since(made).is_ok_and(|age| age >= DEAD_FROM))
    };
    for path in sockets(folder).iter().filter(|path| is_old(path) && is_dead(path)) {
        let _ = fs::remove_file(path);
    }
}

/// Whether the folder exists, belongs to this user, and nobody else can create files in it. Others
/// may enter it: each socket has its own mode.
fn make(folder: &Path) -> bool {
    let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(folder);
    let uid = process::user_id();
    let ours = fs::symlink_metadata(folder).is_ok_and(|m| m.is_dir() && m.uid() == uid);
    made.is_ok() && ours && fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).is_ok()
}

/// Who may open the sockets of a dataplane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Mode of the operators' socket.
    pub mode: u32,
    /// Its group, by name or number (default: the user's own).
    pub group: Option<String>,
    /// Mode of the read-only socket.
    pub read_only_mode: u32,
    /// Its group.
    pub read_only_group: Option<String>,
    /// Address on which metrics are served over HTTP; by default they are not.
    pub metrics: Option<SocketAddr>,
}

impl Default for Access {
    fn default() -> Access {
        let (mode, read_only_mode) = (0o600, 0o660);
        Access { mode, group: None, read_only_mode, read_only_group: None, metrics: None }
    }
}

impl Access {
    /// Listens for scrapes of the metrics, if that is configured.
    pub fn bind_metrics(&self) -> Result<Option<TcpListener>> {
        self.metrics.map(|address| listen_for_scrapes(address, "--metrics")).transpose()
    }
}

/// Listens for scrapes at the address that this flag has named.
pub fn listen_for_scrapes(address: SocketAddr, flag: &str) -> Result<TcpListener> {
    TcpListener::bind(address).map_err(|e| {
        Problem::new(format!("cannot serve metrics at {address}"), e)
            .mend(format!("choose another place, for example {flag} 127.0.0.1:9465"))
    })
}

/// Where metrics are served, as the user writes it: a port alone is of the loopback address.
pub fn scrape_address(text: &str) -> Option<SocketAddr> {
    let port = text.parse().map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    port.or_else(|_| text.parse()).ok()
}

/// The sockets of one dataplane. Their files are removed when it is dropped.
pub struct Sockets {
    /// For operators.
    pub operator: UnixListener,
    /// For reading only.
    pub read_only: UnixListener,
    path: PathBuf,
}

impl Sockets {
    /// Listens at `path`, or at the default path of process `pid`. Removes what dead runs left.
    pub fn listen(path: Option<&Path>, pid: i32, access: &Access) -> Result<Sockets> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => folder()?.join(format!("{pid}.sock")),
        };
        let listen = |path: &Path, mode: u32, group: &Option<String>| {
            let problem = |e: io::Error| {
                Problem::new(format!("cannot listen at {}", path.display()), e)
                    .mend("choose another place with --control, or see [control] in the file")
            };
            let gid = group.as_deref().map(group_id).transpose().map_err(problem)?;
            bind(path, mode, gid).map_err(problem)
        };
        let operator = listen(&path, access.mode, &access.group)?;
        match listen(&read_only(&path), access.read_only_mode, &access.read_only_group) {
            Ok(read_only) => Ok(Sockets { operator, read_only, path }),
            Err(problem) => {
                let _ = fs::remove_file(&path);
                Err(problem)
            }
        }
    }

    /// Path of the operators' socket.
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

/// Binds, and replaces the socket file of a dead run. At no time may more users open the file than
/// `mode` allows.
fn bind(path: &Path, mode: u32, gid: Option<u32>) -> io::Result<UnixListener> {
    let listen = || socket::listen_unix_closed(path, BACKLOG);
    let listener = match listen() {
        Err(e) if e.kind() == ErrorKind::AddrInUse && is_dead(path) => {
            fs::remove_file(path)?;
            listen()?
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
    let listener = UnixListener::from(listener);
    listener.set_nonblocking(true)?;
    Ok(listener)
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

/// Operators' sockets in a folder, with the read-only ones beside them.
pub fn sockets(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "sock"));
    paths
}

/// Whether nobody listens at a socket file any more (its `ix run` was killed).
fn is_dead(path: &Path) -> bool {
    knock(path).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
}

/// Whether this user may open a socket, and somebody listens there: also one that is stopped, and
/// has more clients waiting than its queue holds.
fn opens(path: &Path) -> bool {
    knock(path).map_or_else(|e| e.kind() == ErrorKind::WouldBlock, |()| true)
}

fn knock(path: &Path) -> io::Result<()> {
    socket::connect_unix_within(path, KNOCK_WITHIN).map(drop)
}

/// A dataplane that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The socket that we may open: the operators' socket if possible.
    pub path: PathBuf,
    /// Process number of its program.
    pub pid: i32,
}

impl Found {
    /// Its program's name, as Linux has it, and its process number.
    fn shown(&self) -> String {
        let name = fs::read_to_string(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        match name.trim_end() {
            "" => self.pid.to_string(),
            name => format!("{name} ({})", self.pid),
        }
    }
}

/// All dataplanes that this user may reach, by process number.
pub fn all() -> Vec<Found> {
    let mut found: Vec<Found> = listed().into_iter().filter_map(reachable).collect();
    found.sort_by_key(|found| found.pid);
    found
}

/// The operators' sockets of all dataplanes that this user might reach. Dead runs may have left
/// some of them: nobody was asked.
pub fn listed() -> Vec<Found> {
    let mut folders = folders();
    if !folders.iter().any(|folder| folder == Path::new(SYSTEM)) {
        folders.insert(0, SYSTEM.into());
    }
    // What another user has put below /tmp in our name is not looked at.
    let trusted = |folder: &PathBuf| {
        fs::symlink_metadata(folder)
            .is_ok_and(|m| m.is_dir() && [0, process::user_id()].contains(&m.uid()))
    };
    let paths = folders.iter().filter(|folder| trusted(folder)).flat_map(|f| sockets(f));
    paths.filter_map(|path| Some(Found { pid: pid_of(&path)?, path })).collect()
}

/// The process number that an operators' socket without a configured path is called by.
fn pid_of(path: &Path) -> Option<i32> {
    path.file_stem()?.to_str()?.parse().ok()
}

/// The dataplane of an operators' socket, through that socket or through the read-only one beside
/// it.
fn reachable(listed: Found) -> Option<Found> {
    let Found { path, pid } = listed;
    let path = [path.clone(), read_only(&path)].into_iter().find(|path| opens(path))?;
    Some(Found { path, pid })
}

/// The process that listens at a socket: the `ix run` of a dataplane.
fn server_of(path: &Path) -> Option<i32> {
    let socket = socket::connect_unix_within(path, KNOCK_WITHIN).ok()?;
    let process = socket::peer_process(socket.as_fd()).ok()?;
    i32::try_from(process.pid()).ok()
}

/// The socket at this path, or that of this process, which is the program or its `ix run`, or the
/// only one that exists.
pub fn find(path: Option<&Path>, pid: Option<i32>) -> Result<PathBuf> {
    if let Some(path) = path {
        return Ok(path.to_owned());
    }
    let mut alive = all();
    if let Some(pid) = pid {
        let of_program = alive.iter().find(|found| found.pid == pid);
        let of_run = || alive.iter().find(|found| server_of(&found.path) == Some(pid));
        return of_program.or_else(of_run).map(|found| found.path.clone()).ok_or_else(|| {
            Problem::new(
                "no such dataplane",
                format!("process {pid} has none that this user may reach"),
            )
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
            let all: Vec<_> = alive.iter().map(Found::shown).collect();
            Err(Problem::new(format!("there are {n} dataplanes"), all.join(", "))
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
    fn users_are_told_apart_by_their_numbers_outside() {
        for (line, uid, expected) in [
            ("         0          0 4294967295", 1000, Some(1000)),
            ("0 1234 1", 0, Some(1234)),
            ("0 1234 1", 1, None),
            ("100 5000 10", 109, Some(5009)),
            ("100 5000 10", 99, None),
            ("0 4294967295 2", 1, None),
            ("nonsense", 0, None),
        ] {
            assert_eq!(mapped(line, uid), expected, "{line}");
        }
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
    fn a_dataplane_is_known_by_its_program_and_by_its_run() {
        let path = temp("server");
        let listener = UnixListener::bind(&path).expect("bind");
        let own = std::process::id() as i32;
        assert_eq!(server_of(&path), Some(own));
        drop(listener);
        assert_eq!(server_of(&path), None, "nobody listens");
        fs::remove_file(&path).expect("removed");
        let name = fs::read_to_string("/proc/self/comm").expect("a name");
        let found = |pid| Found { path: path.clone(), pid };
        assert_eq!(found(own).shown(), format!("{} ({own})", name.trim_end()));
        assert_eq!(found(-1).shown(), "-1", "it has ended");
    }

    /// A run that starts has bound its socket and does not listen yet, while another run looks for
    /// what dead runs have left.
    #[test]
    fn a_socket_of_a_run_that_starts_is_not_taken_for_a_dead_one() {
        let folder = std::env::temp_dir().join(format!("ix-place-{}", std::process::id()));
        fs::create_dir(&folder).expect("made");
        let path = folder.join("7.sock");
        drop(UnixListener::bind(&path).expect("bind"));
        let now = SystemTime::now();
        remove_dead(&folder, now);
        assert!(path.exists(), "it has just been made");
        let living = UnixListener::bind(folder.join("8.sock")).expect("bind");
        remove_dead(&folder, now + 2 * DEAD_FROM);
        assert!(!path.exists(), "nothing listens there");
        assert!(folder.join("8.sock").exists(), "it lives");
        drop(living);
        fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn modes_say_who_may_open_them() {
        let path = temp("modes");
        let sockets = Sockets::listen(Some(&path), 0, &Access::default()).expect("listen");
        assert_eq!((mode(&path), mode(&read_only(&path))), (0o600, 0o660));
        drop(sockets);
        let group = Some("0".to_owned());
        let access = Access { mode: 0o660, group, read_only_mode: 0o666, ..Access::default() };
        if process::is_root() {
            let _sockets = Sockets::listen(Some(&path), 0, &access).expect("listen");
            assert_eq!((mode(&path), mode(&read_only(&path))), (0o660, 0o666));
        }
        let group = Some("no such group".to_owned());
        for wrong in [
            Access { group: group.clone(), ..Access::default() },
            Access { read_only_group: group, ..Access::default() },
        ] {
            assert!(Sockets::listen(Some(&path), 0, &wrong).is_err(), "{wrong:?}");
            assert!(!path.exists(), "{wrong:?}");
        }
    }

    #[test]
    fn a_read_only_socket_stands_beside_its_operators() {
        assert_eq!(read_only(Path::new("/run/ix/7.sock")), Path::new("/run/ix/7.ro.sock"));
        assert_eq!(read_only(Path::new("lab-1")), Path::new("lab-1.ro"));
        assert_eq!(pid_of(Path::new("/run/ix/7.sock")), Some(7));
        assert_eq!(pid_of(Path::new("/run/ix/7.ro.sock")), None, "has no process number");
    }
}
