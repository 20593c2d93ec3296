//! Which run has which control groups. For each run there is a file that lists them, and whose lock
//! (flock) the run holds as long as it lives: another run removes what is left of one that was
//! killed. A process's number says nothing to whoever is in another PID namespace.
//!
//! The files are in a folder that no other user may enter. Whoever can open a file can lock it for
//! ever, and everybody can open the folders of control groups.
use ix_problem::{Problem, Result};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Below the folder of control sockets, which is this user's.
const FOLDER: &str = "groups";
/// How long a claim is tried while other runs sweep.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(1);
/// A file that each group has, that at the top of a hierarchy too.
const IN_EACH_GROUP: &str = "cgroup.procs";
/// Between the groups in a file.
const SEPARATOR: u8 = 0;

/// The groups of a run, which no other run removes. Dropping this removes the file, if no group is
/// left.
#[derive(Debug)]
pub struct GroupLock {
    _locked: File,
    path: PathBuf,
    groups: Vec<PathBuf>,
}

/// Where the files are: a folder that belongs to this user, and that no other one may enter.
pub fn folder() -> Result<PathBuf> {
    let folder = crate::control::folder()?.join(FOLDER);
    let problem = |e| Problem::new(format!("cannot use {}", folder.display()), e);
    make(&folder).map_err(problem)?;
    Ok(folder)
}

fn make(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    // Not of what a symbolic link leads to.
    let found = fs::symlink_metadata(folder)?;
    let is_ours = found.is_dir() && found.uid() == ix_sys::process::user_id();
    let is_private = found.mode() & 0o077 == 0;
    if is_ours && is_private { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

impl GroupLock {
    /// Claims these groups, before they are made. An error if another run has a file of this name.
    ///
    /// A run that sweeps may lock the new file first, find no groups in it, and remove it: so this
    /// is tried again for a bounded time.
    pub fn take(folder: &Path, name: &str, groups: &[PathBuf]) -> io::Result<GroupLock> {
        let end = Instant::now() + PATIENCE;
        loop {
            match GroupLock::try_take(folder, name, groups) {
                Err(e) if is_swept(&e) && Instant::now() < end => std::thread::sleep(PAUSE),
                result => return result,
            }
        }
    }

    fn try_take(folder: &Path, name: &str, groups: &[PathBuf]) -> io::Result<GroupLock> {
        let path = folder.join(name);
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&path)?;
        file.try_lock()?;
        // Another run may have had the lock for a moment, and found a file without groups.
        if file.metadata()?.nlink() == 0 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let separator: &[u8] = &[SEPARATOR];
        let names: Vec<&[u8]> = groups.iter().map(|group| group.as_os_str().as_bytes()).collect();
        file.write_all(&names.join(separator))?;
        Ok(GroupLock { _locked: file, path, groups: groups.to_vec() })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether another run looks at the file at this moment, or has just removed it.
fn is_swept(e: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, Interrupted, WouldBlock};
    matches!(e.kind(), AlreadyExists | Interrupted | WouldBlock)
}

impl Drop for GroupLock {
    fn drop(&mut self) {
        // A process that the program has left behind keeps a group. Another run removes both.
        if !self.groups.iter().any(|group| group.exists()) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes the groups of runs that were killed, by `remove`, and their files.
pub fn sweep(folder: &Path, mut remove: impl FnMut(&Path)) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if let Some(left) = Left::find(&entry.path()) {
            left.remove(&mut remove);
        }
    }
}

/// What a run that was killed has left. Its file is locked as long as this is there: who removes it
/// without the lock may remove that of a run which is about to begin.
pub struct Left {
    _locked: File,
    path: PathBuf,
    /// Its groups.
    pub groups: Vec<PathBuf>,
}

impl Left {
    /// Of the run of this file; `None` if it lives, if another process looks at the file at this
    /// moment, or if there is no file.
    pub fn find(path: &Path) -> Option<Left> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).custom_flags(libc::O_NOFOLLOW).open(path).ok()?;
        // Its owner has the lock as long as that lives.
        file.try_lock().ok()?;
        // Another process may have removed it since, and its owner made another one.
        let found = fs::symlink_metadata(path).ok()?;
        if found.ino() != file.metadata().ok()?.ino() {
            return None;
        }
        let mut names = Vec::new();
        file.read_to_end(&mut names).ok()?;
        let groups =
            names.split(|byte| *byte == SEPARATOR).map(|name| Path::new(OsStr::from_bytes(name)));
        // A file lists groups whose names begin with its own.
        let own = path.file_name().unwrap_or_default().as_bytes();
        let is_own =
            |group: &&Path| group.file_name().is_some_and(|name| name.as_bytes().starts_with(own));
        let groups = groups.filter(is_own).map(Path::to_owned).collect();
        Some(Left { _locked: file, path: path.to_owned(), groups })
    }

    /// Removes the groups by `remove`, and the file. Returns whether nothing is left.
    pub fn remove(&self, remove: impl FnMut(&Path)) -> bool {
        self.groups.iter().map(PathBuf::as_path).for_each(remove);
        let is_over = self.groups.iter().all(|group| is_gone(group));
        if is_over {
            let _ = fs::remove_file(&self.path);
        }
        is_over
    }
}

/// Whether a group is gone. Who is where its hierarchy is not mounted (`ip netns exec` mounts
/// `/sys` anew) does not see it, and knows nothing of it.
fn is_gone(group: &Path) -> bool {
    let mut above = group.ancestors().skip(1).skip_while(|folder| !folder.exists());
    !group.exists() && above.next().is_some_and(|folder| folder.join(IN_EACH_GROUP).exists())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("ix-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    #[test]
    fn what_killed_runs_leave_is_removed_and_nothing_else() {
        let folder = scratch("group-locks");
        let (locks, groups) = (folder.join("locks"), folder.join("groups"));
        make(&locks).expect("a folder");
        fs::create_dir(&groups).expect("a folder");
        fs::write(groups.join(IN_EACH_GROUP), "").expect("a file");
        let take = |name: &str| {
            let group = groups.join(name);
            let lock =
                GroupLock::take(&locks, name, std::slice::from_ref(&group)).expect("nobody has it");
            fs::create_dir_all(&group).expect("a group");
            lock
        };
        let (living, killed) = (take("ix-1-a"), take("ix-2-b"));
        // Dropping it would be an orderly end.
        let mut killed = std::mem::ManuallyDrop::new(killed);
        killed._locked = File::open("/dev/null").expect("a file");
        let foreign = groups.join("other");
        fs::create_dir_all(&foreign).expect("a group");
        fs::write(locks.join("ix-3-c"), foreign.as_os_str().as_bytes()).expect("a file");
        // Another user can open and lock the folder of a group.
        let other = File::open(groups.join("ix-2-b")).expect("a folder");
        other.lock().expect("nobody has it");
        sweep(&locks, |group| fs::remove_dir(group).expect("removed"));
        let names = |folder: &Path| {
            let entries = fs::read_dir(folder).expect("a folder").flatten();
            let mut names: Vec<_> =
                entries.map(|entry| entry.file_name().into_string().expect("text")).collect();
            names.sort();
            names
        };
        assert_eq!(
            (names(&groups), names(&locks)),
            (
                [IN_EACH_GROUP, "ix-1-a", "other"].map(str::to_owned).to_vec(),
                vec!["ix-1-a".to_owned()],
            )
        );
        fs::remove_dir(groups.join("ix-1-a")).expect("removed");
        drop(living);
        assert!(names(&locks).is_empty());
        fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn a_group_is_gone_only_for_who_sees_its_hierarchy() {
        let folder = scratch("group-views");
        let group = folder.join("scope/ix-1-a");
        assert!(!is_gone(&group), "nothing is mounted there");
        fs::write(folder.join(IN_EACH_GROUP), "").expect("a file");
        assert!(is_gone(&group), "with the one above it");
        fs::create_dir_all(&group).expect("a group");
        assert!(!is_gone(&group));
        fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn a_folder_that_others_may_enter_or_have_made_is_not_used() {
        let folder = scratch("group-folders");
        let [own, open, link] = ["own", "open", "link"].map(|name| folder.join(name));
        make(&own).expect("made");
        make(&own).expect("there already");
        fs::create_dir(&open).expect("made");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).expect("a mode");
        make(&open).expect_err("others may enter it");
        symlink(&own, &link).expect("a link");
        make(&link).expect_err("a link");
        // Nor is a file that is there already.
        symlink("/dev/null", own.join("ix-1")).expect("a link");
        GroupLock::take(&own, "ix-1", &[]).expect_err("a link");
        fs::remove_dir_all(folder).expect("removed");
    }

    /// Runs that begin while others sweep keep their claims.
    #[test]
    fn claims_are_kept_while_others_sweep() {
        const RUNS: usize = 300;
        let folder = scratch("group-claims");
        let (locks, groups) = (folder.join("locks"), folder.join("groups"));
        make(&locks).expect("a folder");
        fs::create_dir_all(&groups).expect("a folder");
        fs::write(groups.join(IN_EACH_GROUP), "").expect("a file");
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let order = std::sync::atomic::Ordering::Relaxed;
        let is_kept = std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_over.load(order) {
                        sweep(&locks, |group| _ = fs::remove_dir(group));
                    }
                });
            }
            let runs: Vec<Option<GroupLock>> = (0..RUNS)
                .map(|number| {
                    let name = format!("ix-{number}-a");
                    let group = groups.join(&name);
                    let lock = GroupLock::take(&locks, &name, std::slice::from_ref(&group));
                    fs::create_dir(group).expect("a group");
                    lock.ok()
                })
                .collect();
            // Whatever they have begun is over.
            std::thread::sleep(Duration::from_millis(20));
            is_over.store(true, order);
            let is_there = |lock: &GroupLock| lock.path.exists() && lock.groups[0].exists();
            runs.iter().map(|lock| lock.as_ref().is_some_and(is_there)).collect::<Vec<_>>()
        });
        assert_eq!(is_kept, [true; RUNS]);
        fs::remove_dir_all(folder).expect("removed");
    }
}
