//! Where the dataplanes' sockets are.
use ix_broker::control::{Found, listed, read_only, sockets};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Most sockets that are looked at: each gets a thread.
const MOST: usize = 1024;

/// The default folders, and what the user has named.
#[derive(Clone, Debug, Default)]
pub struct Places {
    named: Vec<PathBuf>,
}

impl Places {
    /// With these sockets, or folders of them.
    pub fn new(named: &[PathBuf]) -> Places {
        Places { named: named.to_vec() }
    }

    /// All sockets that are there now, by path, with the process number that the name has (0:
    /// none). Nobody is asked.
    pub fn list(&self) -> BTreeMap<PathBuf, u32> {
        let found = listed().into_iter().chain(self.named.iter().flat_map(|path| named(path)));
        found.take(MOST).map(|Found { path, pid }| (looking(path), pid.max(0) as u32)).collect()
    }
}

/// The dataplanes of a path that the user has named.
fn named(path: &Path) -> Vec<Found> {
    let found = |path: PathBuf| {
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        let pid = stem.and_then(|stem| stem.parse().ok()).unwrap_or(0);
        Found { path, pid }
    };
    if !path.is_dir() {
        return vec![found(path.to_owned())];
    }
    let is_read_only = |path: &PathBuf| {
        path.file_stem().is_some_and(|stem| Path::new(stem).extension().is_some_and(|e| e == "ro"))
    };
    sockets(path).into_iter().filter(|path| !is_read_only(path)).map(found).collect()
}

/// The socket through which one looks: the read-only one, where there is one.
fn looking(path: PathBuf) -> PathBuf {
    let beside = read_only(&path);
    if beside.exists() { beside } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_folder_stands_for_its_dataplanes() {
        let folder = std::env::temp_dir().join(format!("ix-places-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a folder");
        for name in ["7.sock", "7.ro.sock", "lab.sock", "notes.txt"] {
            UnixListener::bind(folder.join(name)).expect("a socket");
        }
        let alone = folder.join("gone.sock");
        let places = Places::new(&[folder.clone(), alone.clone(), folder.join("7.sock")]);
        let mine: BTreeMap<_, _> =
            places.list().into_iter().filter(|(path, _)| path.starts_with(&folder)).collect();
        std::fs::remove_dir_all(&folder).expect("removed");
        let expected = [(folder.join("7.ro.sock"), 7), (alone, 0), (folder.join("lab.sock"), 0)];
        assert_eq!(mine, expected.into());
    }
}
