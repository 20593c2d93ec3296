//! A user for one dataplane alone, so that no other process of the machine may signal, trace or
//! read it: as systemd's DynamicUser, and of the same range, which no other user has.
use ix_sys::process;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Users that systemd gives out for a time.
const USERS: RangeInclusive<u32> = 61184..=65519;
/// Has a file for each user that was claimed; whoever holds its lock has the user.
const FOLDER: &str = "/run/ix/users";

/// A user that nobody else has as long as this lives.
pub struct OwnUser {
    id: u32,
    _lock: File,
}

impl OwnUser {
    /// Claims one; `None` if this process is not root, and so cannot become another user.
    pub fn claim() -> io::Result<Option<OwnUser>> {
        if !process::is_root() {
            return Ok(None);
        }
        OwnUser::claim_in(Path::new(FOLDER), &users_of_processes()).map(Some)
    }

    fn claim_in(folder: &Path, taken: &[u32]) -> io::Result<OwnUser> {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
        for id in USERS.filter(|id| !taken.contains(id)) {
            let path = folder.join(id.to_string());
            let mut options = OpenOptions::new();
            let lock = options.write(true).create(true).truncate(false).mode(0o600).open(path)?;
            match lock.try_lock() {
                Ok(()) => return Ok(OwnUser { id, _lock: lock }),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(e)) => return Err(e),
            }
        }
        Err(io::Error::other("every user for a dataplane is in use"))
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.id
    }
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
    fn a_user_has_one_owner_at_a_time() {
        let folder = std::env::temp_dir().join(format!("ix-users-{}", std::process::id()));
        let first = *USERS.start();
        let taken = [first + 1];
        let claim = || OwnUser::claim_in(&folder, &taken).expect("claimed");
        let (one, other) = (claim(), claim());
        assert_eq!((one.id(), other.id()), (first, first + 2), "one is in use by a process");
        drop(one);
        assert_eq!(claim().id(), first);
        fs::remove_dir_all(folder).expect("removed");
    }
}
