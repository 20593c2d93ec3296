//! A user for one dataplane or program alone, so that no other process of the machine may signal,
//! trace or read it: as systemd's DynamicUser, and of the same range, which no other user has.
//! systemd takes none that IX has, and IX none that systemd has, because who has a user holds its
//! lock in systemd's folder, too.
use ix_sys::process::{self, USERS_FOR_A_TIME, USERS_OF_IX};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Has a file for each user that was claimed; the holder of its lock has the user.
const FOLDER: &str = "/run/ix/users";
/// The same of systemd (its UIDS-GIDS and its code): who gives out a user locks its file
/// (flock(2)), and passes over those that are locked.
const FOLDER_OF_SYSTEMD: &str = "/run/systemd/dynamic-uid";
/// Is there where systemd manages the machine (sd_booted(3)).
const SYSTEMD_RUNS: &str = "/run/systemd/system";
/// Users with a name, who are nobody's for a time.
const NAMES: &str = "/etc/passwd";

/// A user that nobody else has as long as this lives.
pub struct OwnUser {
    id: u32,
    /// One in each folder.
    locks: Vec<File>,
}

impl OwnUser {
    /// Claims one; `None` if this process cannot become another user: it is not root, or only root
    /// of a namespace that has no such users.
    pub fn claim() -> io::Result<Option<OwnUser>> {
        if !OwnUser::can_be() {
            return Ok(None);
        }
        let mut folders = vec![Path::new(FOLDER)];
        let systemds = Path::new(FOLDER_OF_SYSTEMD);
        // It makes the folder when it gives out its first user. A container may have it to read.
        let is_there = systemds.exists() || Path::new(SYSTEMD_RUNS).exists();
        if is_there && can_lock_in(systemds) {
            folders.push(systemds);
        }
        let mut taken = users_of_processes();
        taken.extend(named(&fs::read_to_string(NAMES).unwrap_or_default()));
        OwnUser::claim_in(&folders, &taken).map(Some)
    }

    /// Whether this process can become such a user: it is root, and its namespace has them.
    pub fn can_be() -> bool {
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        process::is_root() && has_users(&map)
    }

    fn claim_in(folders: &[&Path], taken: &[u32]) -> io::Result<OwnUser> {
        for folder in folders {
            make(folder)?;
        }
        for id in USERS_FOR_A_TIME.filter(|id| !taken.contains(id)) {
            let locks = folders.iter().map(|folder| lock(&folder.join(id.to_string())));
            // The first one that is not free ends the look at this user.
            if let Some(locks) = locks.collect::<io::Result<Option<Vec<File>>>>()? {
                return Ok(OwnUser { id, locks });
            }
        }
        Err(io::Error::other("every user that IX gives out is in use"))
    }

    /// Copies of its locks, two at most. Nobody else has the user before they are closed.
    pub fn keep(&self) -> io::Result<Vec<OwnedFd>> {
        self.locks.iter().map(|lock| lock.as_fd().try_clone_to_owned()).collect()
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.id
    }
}

fn make(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)
}

/// Whether there can be locks in this folder.
fn can_lock_in(folder: &Path) -> bool {
    let first = folder.join(USERS_FOR_A_TIME.start().to_string());
    make(folder).and_then(|()| lock(&first)).is_ok()
}

/// A file with its lock; `None`: somebody else has it.
fn lock(path: &Path) -> io::Result<Option<File>> {
    loop {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(libc::O_NOFOLLOW).open(path)?;
        match file.try_lock() {
            // systemd removes a file while it holds its lock.
            Ok(()) if file.metadata()?.nlink() == 0 => {}
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(e)) => return Err(e),
        }
    }
}

/// The users that this text lists (passwd(5)).
fn named(passwd: &str) -> impl Iterator<Item = u32> {
    passwd.lines().filter_map(|line| line.split(':').nth(2)?.parse().ok())
}

/// Whether a namespace with this map has all [`USERS_OF_IX`] (user_namespaces(7)).
fn has_users(map: &str) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
        let (Some(first), Some(_), Some(count)) = (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        let (start, end) = (*USERS_OF_IX.start(), *USERS_OF_IX.end());
        first <= u64::from(start) && u64::from(end) < first + count
    })
}

/// The users of all processes: one may have been left behind.
fn users_of_processes() -> Vec<u32> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    processes.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.uid())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_without_such_users_has_none() {
        assert!(has_users("         0          0 4294967295\n"));
        assert!(has_users("0 1000 1\n1 100000 65536\n"));
        for map in ["0 0 1\n", "0 1000 1\n1 100000 60000\n", "", "0 x 4294967295\n"] {
            assert!(!has_users(map), "{map}");
        }
    }

    #[test]
    fn a_user_has_one_owner_at_a_time() {
        let folders = ["ix", "systemd"].map(|whose| {
            std::env::temp_dir().join(format!("ix-users-{}-{whose}", std::process::id()))
        });
        let first = *USERS_FOR_A_TIME.start();
        let passwd = format!("root:x:0:0::/root:/bin/sh\nstatic:x:{}:1::/:\nwrong\n", first + 1);
        let taken: Vec<u32> = named(&passwd).collect();
        let both = folders.each_ref().map(|folder| folder.as_path());
        let claim = || OwnUser::claim_in(&both, &taken).expect("claimed");
        let (one, other) = (claim(), claim());
        assert_eq!((one.id(), other.id()), (first, first + 2), "one is a user with a name");
        let kept = one.keep().expect("copies");
        drop(one);
        assert_eq!(claim().id(), first + 3, "somebody keeps it");
        drop(kept);
        assert_eq!(claim().id(), first);
        // systemd has given it out; what of it was ours is free again.
        let file = folders[1].join(first.to_string());
        let theirs = lock(&file).expect("opened").expect("free");
        assert_eq!(claim().id(), first + 1 + 2);
        assert!(lock(&folders[0].join(first.to_string())).expect("opened").is_some());
        fs::remove_file(&file).expect("removed");
        drop(theirs);
        assert_eq!(claim().id(), first);
        folders.iter().for_each(|folder| fs::remove_dir_all(folder).expect("removed"));
    }
}
