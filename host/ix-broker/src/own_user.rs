//! A user for one dataplane or program alone, so that no other process of the machine may signal,
//! trace or read it: as systemd's DynamicUser, and of the same range, which no other user has.
use ix_sys::process::{self, USER_OF_NO_PROCESS, USERS_FOR_A_TIME};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Has a file for each user that was claimed; the holder of its lock has the user.
const FOLDER: &str = "/run/ix/users";

/// A user that nobody else has as long as this lives.
pub struct OwnUser {
    id: u32,
    lock: File,
}

impl OwnUser {
    /// Claims one; `None` if this process cannot become another user: it is not root, or only root
    /// of a namespace that has no such users.
    pub fn claim() -> io::Result<Option<OwnUser>> {
        if !OwnUser::can_be() {
            return Ok(None);
        }
        OwnUser::claim_in(Path::new(FOLDER), &users_of_processes()).map(Some)
    }

    /// Whether this process can become such a user: it is root, and its namespace has them.
    pub fn can_be() -> bool {
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        process::is_root() && has_users(&map)
    }

    fn claim_in(folder: &Path, taken: &[u32]) -> io::Result<OwnUser> {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
        let free = |id: &u32| *id != USER_OF_NO_PROCESS && !taken.contains(id);
        for id in USERS_FOR_A_TIME.filter(free) {
            let path = folder.join(id.to_string());
            let mut options = OpenOptions::new();
            let lock = options.write(true).create(true).truncate(false).mode(0o600).open(path)?;
            match lock.try_lock() {
                Ok(()) => return Ok(OwnUser { id, lock }),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(e)) => return Err(e),
            }
        }
        Err(io::Error::other("every user that IX gives out is in use"))
    }

    /// A copy of its lock. Nobody else has the user before it is closed.
    pub fn keep(&self) -> io::Result<OwnedFd> {
        self.lock.as_fd().try_clone_to_owned()
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.id
    }
}

/// Whether a namespace with this map has all [`USERS_FOR_A_TIME`] (user_namespaces(7)).
fn has_users(map: &str) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
        let (Some(first), Some(_), Some(count)) = (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        let (start, end) = (*USERS_FOR_A_TIME.start(), *USERS_FOR_A_TIME.end());
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
        let folder = std::env::temp_dir().join(format!("ix-users-{}", std::process::id()));
        let first = *USERS_FOR_A_TIME.start();
        let taken = [first + 1];
        let claim = || OwnUser::claim_in(&folder, &taken).expect("claimed");
        let (one, other) = (claim(), claim());
        assert_eq!((one.id(), other.id()), (first, first + 2), "one is in use by a process");
        let kept = one.keep().expect("a copy");
        drop(one);
        assert_eq!(claim().id(), first + 3, "somebody keeps it");
        drop(kept);
        assert_eq!(claim().id(), first);
        fs::remove_dir_all(folder).expect("removed");
    }
}
