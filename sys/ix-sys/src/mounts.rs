//! Mount namespaces (mount_namespaces(7)): what a process with one of its own sees differently.
use crate::check;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use std::ffi::{CStr, CString, OsString};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A mount, as `/proc/self/mountinfo` has it (proc(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its number.
    pub id: String,
    /// Number of the mount that it is in.
    pub parent: String,
    /// The part of the file system that is mounted.
    pub root: PathBuf,
    /// Where.
    pub point: PathBuf,
    /// Kind of the file system.
    pub kind: String,
    /// Options of this mount.
    flags: MountFlags,
}

impl Mount {
    /// All mounts of the calling thread's namespace.
    pub fn all() -> io::Result<Vec<Mount>> {
        let text = fs::read("/proc/thread-self/mountinfo")?;
        Ok(text.split(|byte| *byte == b'\n').filter_map(Mount::parse).collect())
    }

    fn parse(line: &[u8]) -> Option<Mount> {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let optional = words.get(6..)?.iter().position(|word| *word == b"-")?;
        let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
        Some(Mount {
            id: text(words[0]),
            parent: text(words[1]),
            root: unescaped(words[3]),
            point: unescaped(words[4]),
            kind: text(words.get(6 + optional + 1)?),
            flags: words[5].split(|byte| *byte == b',').map(flag).collect(),
        })
    }

    /// Whether its path leads to it. Another one may be mounted on it, or on a folder above.
    pub fn is_reached(&self) -> bool {
        let reached = || {
            let mut options = OpenOptions::new();
            let file = options.read(true).custom_flags(libc::O_PATH).open(&self.point)?;
            fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))
        };
        let information: io::Result<String> = reached();
        information.is_ok_and(|text| {
            text.lines()
                .any(|line| line.strip_prefix("mnt_id:").is_some_and(|id| id.trim() == self.id))
        })
    }

    /// Nobody writes through it.
    pub fn read_only(&self) -> io::Result<Change> {
        Ok(Change::ReadOnly { path: path_of(&self.point)?, flags: self.flags })
    }
}

/// A change of a mount namespace, ready to be made where only system calls may be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The mount at this path takes no writes.
    ReadOnly {
        /// Where it is mounted.
        path: CString,
        /// The options that it has.
        flags: MountFlags,
    },
    /// What is at this path becomes a mount, which takes no writes.
    Fixed(CString),
    /// The folder at this path becomes an empty one.
    Covered(CString),
    /// The mount at the first path, with all below, is at the second one from now on.
    Moved(CString, CString),
    /// The mount at this path, with all below, is no more.
    Gone(CString),
}

impl Change {
    /// [`Change::Fixed`].
    pub fn fixed(path: &Path) -> io::Result<Change> {
        path_of(path).map(Change::Fixed)
    }

    /// [`Change::Covered`].
    pub fn covered(path: &Path) -> io::Result<Change> {
        path_of(path).map(Change::Covered)
    }

    /// [`Change::Moved`].
    pub fn moved(from: &Path, to: &Path) -> io::Result<Change> {
        Ok(Change::Moved(path_of(from)?, path_of(to)?))
    }

    /// [`Change::Gone`].
    pub fn gone(path: &Path) -> io::Result<Change> {
        path_of(path).map(Change::Gone)
    }

    /// Makes it, in the calling process's namespace. Makes only system calls.
    pub fn make(&self) -> io::Result<()> {
        let again = |path: &CStr, flags| {
            let flags = MountFlags::BIND | MountFlags::RDONLY | flags;
            rustix::mount::mount_remount(path, flags, c"")
        };
        match self {
            Change::ReadOnly { path, flags } => again(path, *flags),
            // With what is mounted below.
            Change::Fixed(path) => rustix::mount::mount_bind_recursive(path, path)
                .and_then(|()| again(path, NOTHING_RUNS)),
            Change::Covered(path) => {
                let (kind, flags) = (c"tmpfs", MountFlags::RDONLY | NOTHING_RUNS);
                rustix::mount::mount(kind, path, kind, flags, c"size=4k,mode=555")
            }
            Change::Moved(from, to) => rustix::mount::mount_move(from, to),
            Change::Gone(path) => rustix::mount::unmount(path, UnmountFlags::DETACH),
        }?;
        Ok(())
    }

    /// What it does, for people.
    pub fn text(&self) -> String {
        match self {
            Change::ReadOnly { path, .. } | Change::Fixed(path) => {
                format!("make {} read-only", path.to_string_lossy())
            }
            Change::Covered(path) => format!("hide {}", path.to_string_lossy()),
            Change::Moved(from, to) => {
                format!("move {} to {}", from.to_string_lossy(), to.to_string_lossy())
            }
            Change::Gone(path) => format!("unmount {}", path.to_string_lossy()),
        }
    }
}

const NOTHING_RUNS: MountFlags =
    MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Moves the calling thread, with its process if that has no other one, into a new mount namespace
/// with the same mounts. What is mounted in the old one later arrives, but not below `/proc` and
/// `/sys`: there a process can have the machine mount something (autofs), which would come as it
/// is. Nothing goes back. Makes only system calls.
pub fn leave() -> io::Result<()> {
    // SAFETY: takes a number.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    let propagate =
        |at: &CStr, how| rustix::mount::mount_change(at, MountPropagationFlags::REC | how);
    propagate(c"/", MountPropagationFlags::DOWNSTREAM)?;
    for kernels in [c"/proc", c"/sys"] {
        // An error means that nothing is mounted there.
        let _ = propagate(kernels, MountPropagationFlags::PRIVATE);
    }
    Ok(())
}

fn flag(word: &[u8]) -> MountFlags {
    match word {
        b"ro" => MountFlags::RDONLY,
        b"nosuid" => MountFlags::NOSUID,
        b"nodev" => MountFlags::NODEV,
        b"noexec" => MountFlags::NOEXEC,
        b"noatime" => MountFlags::NOATIME,
        b"nodiratime" => MountFlags::NODIRATIME,
        b"relatime" => MountFlags::RELATIME,
        b"nosymfollow" => MountFlags::NOSYMFOLLOW,
        _ => MountFlags::empty(),
    }
}

/// A path whose blanks, tabs, newlines and backslashes are octal numbers.
fn unescaped(word: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, behind @ ..] = rest {
        let digits = behind
            .get(..3)
            .filter(|digits| *first == b'\\' && digits.iter().all(u8::is_ascii_digit));
        rest = match digits {
            Some(digits) => {
                bytes
                    .push(digits.iter().fold(0u8, |n, d| n.wrapping_mul(8).wrapping_add(d - b'0')));
                &behind[3..]
            }
            None => {
                bytes.push(*first);
                behind
            }
        };
    }
    OsString::from_vec(bytes).into()
}

fn path_of(path: &Path) -> io::Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_read_from_its_line() {
        let line = b"41 31 0:38 /a\\040b /sys/fs/c\\134d rw,nosuid,noexec,relatime shared:9 master:2 - cgroup2 x rw";
        let mount = Mount::parse(line).expect("a mount");
        let flags = MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::RELATIME;
        let (root, point) = ("/a b".into(), "/sys/fs/c\\d".into());
        let (id, parent) = ("41".into(), "31".into());
        let expected = Mount { id, parent, root, point, kind: "cgroup2".into(), flags };
        assert_eq!(mount, expected);
        for line in [&b""[..], b"1 2 3", b"1 2 0:3 / / rw no - ", b"1 2 0:3 / / rw shared:1"] {
            let kind = Mount::parse(line).map(|mount| mount.kind);
            assert!(kind.is_none_or(|kind| kind.is_empty()), "{line:?}");
        }
    }

    /// Also the mount of the root is found by its path, and one that another covers is not.
    #[test]
    fn a_covered_mount_is_not_reached() {
        let all = Mount::all().expect("mounts");
        let proc = all.iter().find(|mount| mount.point == Path::new("/proc") && mount.is_reached());
        let proc = proc.expect("/proc");
        let covered = Mount { id: "0".to_owned(), ..proc.clone() };
        assert!(!covered.is_reached());
    }

    /// What a process without rights over its mount namespace finds there.
    #[test]
    fn changes_are_made_for_the_process_alone() {
        if !crate::process::is_root() {
            let name = "changes_are_made_for_the_process_alone";
            return ix_skip::skip(name, ix_skip::Need::Root, "only root makes mount namespaces");
        }
        let folder = std::env::temp_dir().join(format!("ix-mounts-{}", std::process::id()));
        let [fixed, covered] = ["fixed", "covered"].map(|name| folder.join(name));
        for inside in [&fixed, &covered] {
            fs::create_dir_all(inside).expect("a folder");
            fs::write(inside.join("file"), "").expect("a file");
        }
        let changes =
            [Change::fixed(&fixed), Change::covered(&covered)].map(|c| c.expect("a path"));
        let paths = [&fixed, &covered].map(|path| path_of(&path.join("file")).expect("a path"));
        // SAFETY: the child makes system calls only.
        let child = match check(unsafe { libc::fork() }).expect("a child") {
            0 => {
                let made = leave().and_then(|()| changes.iter().try_for_each(Change::make));
                let open = |path: &CStr, flags| {
                    // SAFETY: a string that ends with a zero.
                    check(unsafe { libc::open(path.as_ptr(), flags) })
                        .err()
                        .and_then(|e| e.raw_os_error())
                };
                let refusals = [
                    open(&paths[0], libc::O_RDONLY).is_none(),
                    open(&paths[0], libc::O_WRONLY) == Some(libc::EROFS),
                    open(&paths[1], libc::O_RDONLY) == Some(libc::ENOENT),
                ];
                let status =
                    if made.is_err() { 100 } else { refusals.iter().filter(|is| **is).count() };
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(status as i32) }
            }
            pid => crate::process::wait(pid, true).expect("waited").expect("ended"),
        };
        assert_eq!(child.code(), Some(3));
        for inside in [&fixed, &covered] {
            fs::write(inside.join("file"), "x").expect("nothing has changed here");
        }
        fs::remove_dir_all(folder).expect("removed");
    }
}
