//! Attacks by the number of root's user, where the kernel asks for that and not for root's rights:
//! control groups and other files of the kernel, signals, sockets of the broker. Those that could
//! do harm only open what they would write to.
use crate::aim::{Aim, Attack, Whom};
use crate::call;
use crate::rights::MOUNT;
use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

const CLONE_NEWNS: u64 = libc::CLONE_NEWNS as u64;
/// A program that the kernel starts when a process crashes.
const SYSCTL: &str = "kernel/core_pattern";
/// Files by which root steers the kernel, of which each kernel has one.
const STEERING: [&str; 3] =
    ["kernel/rcu_expedited", "kernel/mm/transparent_hugepage/enabled", "kernel/profiling"];
/// Longest time until a broker greets.
const GREETING: Duration = Duration::from_secs(5);
/// Time that a signal takes.
const ARRIVAL: Duration = Duration::from_millis(200);

/// Whether this machine has what is attacked.
type IsThere = fn() -> bool;

/// All attacks: name, whether it can be tried, and what is tried.
pub const ATTACKS: &[(&str, IsThere, Attack)] = &[
    ("leave its control group", has_group, |_| {
        let parents = own_groups().filter_map(|group| group.parent().map(Path::to_owned));
        any(parents.map(|parent| write(&parent.join("cgroup.procs"), "0")))
    }),
    ("move the dataplane into a control group", has_group, |aim| {
        // For the machine's root the one that it is in.
        let process =
            if aim.whom == Whom::Root { aim.dataplane.to_string() } else { "self".to_owned() };
        let groups = groups_of(&process).map(|group| group.join("cgroup.procs"));
        any(groups.map(|members| write(&members, &aim.dataplane.to_string())))
    }),
    ("a control group, to freeze or kill who is in it", has_groups, |_| make_groups()),
    ("the bounds of its control group", has_bounds, |_| {
        let bounds = own_groups().map(|group| group.join("pids.max"));
        any(bounds.filter(|file| file.exists()).map(|file| open_to_write(&file)))
    }),
    ("control groups, mounted to be written again", has_groups, |aim| {
        private(aim, 0)?;
        let flags = libc::MS_REMOUNT | libc::MS_BIND;
        let mounts = cgroup_mounts().into_iter().map(|(point, ..)| mount(None, &point, flags));
        any(mounts)?;
        make_groups()
    }),
    ("control groups, unmounted", has_groups, |aim| {
        private(aim, 0)?;
        any(cgroup_mounts().into_iter().map(|(point, ..)| {
            let path = CString::new(point.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
            let flags = libc::MNT_DETACH as u64;
            call(libc::SYS_umount2, [path.as_ptr() as u64, flags, 0, 0, 0, 0]).map(drop)
        }))
    }),
    ("control groups, mounted in a namespace of its own", has_v2, |aim| {
        private(aim, libc::CLONE_NEWCGROUP as u64)?;
        mount(Some("cgroup2"), Path::new(MOUNT), 0)?;
        make_group(Path::new(MOUNT))
    }),
    ("/proc/sys", always, |_| open_to_write(&Path::new("/proc/sys").join(SYSCTL))),
    ("/proc/sys of a procfs of its own", always, |aim| {
        private(aim, libc::CLONE_NEWPID as u64)?;
        in_first_process(|| {
            mount(Some("proc"), Path::new(MOUNT), 0)?;
            open_to_write(&Path::new(MOUNT).join("sys").join(SYSCTL))
        })
    }),
    (
        "/proc/sysrq-trigger",
        || Path::new("/proc/sysrq-trigger").exists(),
        |_| open_to_write(Path::new("/proc/sysrq-trigger")),
    ),
    ("/sys", has_steering, |_| open_to_write(&steering("/sys"))),
    ("/sys, mounted to be written again", has_steering, |aim| {
        private(aim, 0)?;
        mount(None, Path::new("/sys"), libc::MS_REMOUNT | libc::MS_BIND)?;
        open_to_write(&steering("/sys"))
    }),
    ("a sysfs of its own", has_steering, |aim| {
        private(aim, libc::CLONE_NEWNET as u64)?;
        mount(Some("sysfs"), Path::new(MOUNT), 0)?;
        open_to_write(&steering(MOUNT))
    }),
    ("a file beside the operators' sockets of all runs", always, |_| {
        let file = Path::new("/run/ix").join(format!("attack-{}", std::process::id()));
        fs::write(&file, "").and_then(|()| fs::remove_file(&file)).map_err(|e| e.to_string())
    }),
    ("the greeting of its operators' socket", always, |aim| {
        let mut stream = UnixStream::connect(&aim.control).map_err(|e| e.to_string())?;
        stream.set_read_timeout(Some(GREETING)).map_err(|e| e.to_string())?;
        let mut greeting = [0; 256];
        match stream.read(&mut greeting).map_err(|e| e.to_string())? {
            read if greeting[..read].starts_with(b"{\"hello\"") => Ok(()),
            read => Err(format!("it says {:?}", String::from_utf8_lossy(&greeting[..read]))),
        }
    }),
    ("a signal by the owner of a descriptor", always, signal_by_owner),
];

fn always() -> bool {
    true
}

/// Succeeds if one of these does.
fn any(outcomes: impl Iterator<Item = Result<(), String>>) -> Result<(), String> {
    let mut last = Err("there is none".to_owned());
    for outcome in outcomes {
        last = outcome;
        if last.is_ok() {
            break;
        }
    }
    last
}

fn open_to_write(path: &Path) -> Result<(), String> {
    OpenOptions::new().write(true).open(path).map(drop).map_err(|e| e.to_string())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    let file = OpenOptions::new().write(true).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|e| e.to_string())
}

/// Mounts of control groups: where, whether it is version 2, and the options.
fn cgroup_mounts() -> Vec<(PathBuf, bool, String)> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mount = |line: &str| {
        let (mount, system) = line.split_once(" - ")?;
        let (kind, options) = system.split_once(' ')?;
        let point = mount.split(' ').nth(4)?;
        kind.starts_with("cgroup").then(|| (point.into(), kind == "cgroup2", options.to_owned()))
    };
    text.lines().filter_map(mount).collect()
}

/// The control groups of a process, where the whole of their hierarchy is mounted.
fn groups_of(process: &str) -> impl Iterator<Item = PathBuf> {
    let text = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
    let mounts = cgroup_mounts();
    let folder = move |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let is_it = |(_, is_v2, options): &&(PathBuf, bool, String)| match controllers {
            "" => *is_v2,
            some => {
                !is_v2 && options.split([',', ' ']).any(|word| some.split(',').any(|c| c == word))
            }
        };
        let (point, ..) = mounts.iter().find(is_it)?;
        Some(point.join(path.trim_start_matches('/')))
    };
    text.lines().filter_map(folder).collect::<Vec<_>>().into_iter()
}

/// Those that its run has made.
fn own_groups() -> impl Iterator<Item = PathBuf> {
    let is_own =
        |group: &PathBuf| group.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ix-"));
    groups_of("self").filter(is_own)
}

fn has_group() -> bool {
    own_groups().next().is_some()
}

fn has_bounds() -> bool {
    own_groups().any(|group| group.join("pids.max").exists())
}

fn has_groups() -> bool {
    !cgroup_mounts().is_empty()
}

fn has_v2() -> bool {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    known.lines().any(|line| line.ends_with("\tcgroup2"))
}

fn make_groups() -> Result<(), String> {
    any(cgroup_mounts().into_iter().map(|(point, ..)| make_group(&point)))
}

fn make_group(parent: &Path) -> Result<(), String> {
    let group = parent.join(format!("attack-{}", std::process::id()));
    fs::create_dir(&group).and_then(|()| fs::remove_dir(&group)).map_err(|e| e.to_string())
}

fn steering(root: &str) -> PathBuf {
    let paths = STEERING.map(|file| Path::new(root).join(file));
    paths.iter().find(|path| path.exists()).unwrap_or(&paths[0]).clone()
}

fn has_steering() -> bool {
    steering("/sys").exists()
}

/// A mount namespace of its own, and others; root of a user namespace too, unless it is the
/// machine's root.
fn private(aim: &Aim, namespaces: u64) -> Result<(), String> {
    let user = if aim.whom == Whom::Root { 0 } else { libc::CLONE_NEWUSER as u64 };
    call(libc::SYS_unshare, [namespaces | user | CLONE_NEWNS, 0, 0, 0, 0, 0])?;
    let root = c"/".as_ptr() as u64;
    call(libc::SYS_mount, [0, root, 0, libc::MS_REC | libc::MS_PRIVATE, 0, 0]).map(drop)
}

fn mount(kind: Option<&str>, at: &Path, flags: u64) -> Result<(), String> {
    let path = CString::new(at.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
    let kind = kind.map(CString::new).transpose().map_err(|e| e.to_string())?;
    let kind = kind.as_ref().map_or(0, |kind| kind.as_ptr() as u64);
    call(libc::SYS_mount, [kind, path.as_ptr() as u64, kind, flags, 0, 0]).map(drop)
}

/// The first process of a namespace that was made.
fn in_first_process(attack: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let outcome = crate::in_a_copy(|| attack().map(|()| String::new()));
    outcome.map(drop)
}

/// The kernel signals the owner of a descriptor when something arrives there, and asks whether
/// the process that has named the owner is root. The signal is one that the dataplane never looks
/// at, but that waits for it.
fn signal_by_owner(aim: &Aim) -> Result<(), String> {
    const SIGNAL: i32 = libc::SIGURG;
    let (ours, theirs) = UnixStream::pair().map_err(|e| e.to_string())?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&ours) as u64;
    let control = |command: i32, to: u64| call(libc::SYS_fcntl, [fd, command as u64, to, 0, 0, 0]);
    control(libc::F_SETOWN, aim.dataplane)?;
    const F_SETSIG: i32 = 10;
    control(F_SETSIG, SIGNAL as u64)?;
    control(libc::F_SETFL, (libc::O_ASYNC | libc::O_NONBLOCK) as u64)?;
    (&theirs).write_all(b"x").map_err(|e| e.to_string())?;
    std::thread::sleep(ARRIVAL);
    let status = fs::read_to_string(format!("/proc/{}/status", aim.dataplane));
    let status = status.map_err(|e| e.to_string())?;
    let mut waiting = status.lines().filter_map(|line| {
        let bits = line.strip_prefix("ShdPnd:").or_else(|| line.strip_prefix("SigPnd:"))?;
        u64::from_str_radix(bits.trim(), 16).ok()
    });
    match waiting.any(|bits| bits & 1 << (SIGNAL - 1) != 0) {
        true => Ok(()),
        false => Err("it has not arrived".to_owned()),
    }
}
