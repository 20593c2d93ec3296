//! A control group for the program of one run (cgroups(7)), so that its processes, its memory and
//! its hardware threads are bounded as a whole. Version 2 and version 1 of the interface both
//! serve, also side by side; where this process may make no group, there is none.
//!
//! The group is below this process's own, so that a service manager still finds the program. Its
//! name has this process's number: it is removed at the end, or, if this process is killed, by
//! another run.
use ix_problem::{Problem, Result};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Names of groups begin with this.
const PREFIX: &str = "ix-";
/// Controllers that are used.
const CONTROLLERS: [&str; 3] = ["pids", "memory", "cpuset"];
/// Longest time that processes which have ended stay in their group.
const LEAVING: Duration = Duration::from_millis(100);

/// What bounds a program.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// Processes and threads; `None`: half of what the machine can have.
    pub pids: Option<u64>,
    /// Bytes of memory; `None`: no bound.
    pub memory_bytes: Option<u64>,
    /// Hardware threads; empty: no bound.
    pub cpus: Vec<usize>,
}

/// The groups of one program, one in each hierarchy. Dropping this removes them.
#[derive(Debug)]
pub struct Group {
    folders: Vec<PathBuf>,
    joins: Vec<Arc<File>>,
    /// The user has asked for a bound.
    needed: bool,
}

/// Where this process's own group of a hierarchy is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    folder: PathBuf,
    is_v2: bool,
    /// The controllers of a hierarchy of version 1.
    controllers: Vec<String>,
}

impl Group {
    /// Makes the groups. An error only if a bound was asked for that no group can have.
    pub fn make(bounds: &Bounds) -> Result<Group> {
        let needed = bounds.pids.is_some() || bounds.memory_bytes.is_some();
        let mut group = Group { folders: Vec::new(), joins: Vec::new(), needed };
        let (mut has_pids, mut has_memory) = (Err(none()), Err(none()));
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        for place in places(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo")) {
            sweep(&place.folder);
            let Ok(folder) = group.add(&place) else { continue };
            let has = |name: &str| place.is_v2 || place.controllers.iter().any(|c| c == name);
            if has("pids") && has_pids.is_err() {
                let most = bounds.pids.or_else(half_of_all);
                let most = most.map_or("max".to_owned(), |most| most.to_string());
                has_pids = write(&folder, "pids.max", &most);
            }
            if let Some(bytes) = bounds.memory_bytes.filter(|_| has("memory")) {
                let file = if place.is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
                has_memory = write(&folder, file, &bytes.to_string()).or(has_memory);
            }
            if has("cpuset") && bind(&place, &folder, &bounds.cpus).is_err() && !place.is_v2 {
                // Nobody can join a group of this hierarchy that has no hardware threads.
                group.forget(&folder);
            }
        }
        let asked = [
            (bounds.pids.map(|_| "--pids-max"), has_pids),
            (bounds.memory_bytes.map(|_| "--memory-max"), has_memory),
        ];
        for (flag, outcome) in asked {
            if let (Some(flag), Err(e)) = (flag, outcome) {
                return Err(Problem::new(format!("cannot bound the program with {flag}"), e).mend(
                    format!(
                        "start `ix run` as root with control groups (mount -t cgroup2), or leave \
                         {flag} out"
                    ),
                ));
            }
        }
        Ok(group)
    }

    /// The files by which a process joins the groups: it writes `0`.
    pub fn joins(&self) -> Vec<Arc<File>> {
        self.joins.clone()
    }

    /// An error if this process is not in the groups and the user has asked for a bound.
    pub fn must_hold(&self, pid: u32) -> Result<()> {
        let pid = pid.to_string();
        let holds = |folder: &PathBuf| {
            let members = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            members.lines().any(|line| line == pid)
        };
        if !self.needed || self.folders.iter().all(holds) {
            return Ok(());
        }
        Err(Problem::new("cannot bound the program", "it may not join its control group")
            .mend("start `ix run` as root, or leave --pids-max and --memory-max out"))
    }

    fn add(&mut self, place: &Place) -> io::Result<PathBuf> {
        if place.is_v2 {
            for controller in CONTROLLERS {
                // Without it, or if the parent has processes of its own, the group has no such
                // bound.
                let _ = write(&place.folder, "cgroup.subtree_control", &format!("+{controller}"));
            }
        }
        let folder = place.folder.join(format!("{PREFIX}{}", std::process::id()));
        match fs::create_dir(&folder) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        self.folders.push(folder.clone());
        let join = OpenOptions::new().write(true).open(folder.join("cgroup.procs"))?;
        self.joins.push(Arc::new(join));
        Ok(folder)
    }

    /// Removes the group that was added last.
    fn forget(&mut self, folder: &Path) {
        self.joins.pop();
        self.folders.pop();
        // An error means that it stays until another run.
        let _ = fs::remove_dir(folder);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let end = Instant::now() + LEAVING;
        for folder in &self.folders {
            // A process that the program has left behind keeps it, and another run removes it.
            while fs::remove_dir(folder).is_err() && folder.exists() && Instant::now() < end {
                std::thread::sleep(LEAVING / 50);
            }
        }
    }
}

fn none() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "no control group that has this bound can be made")
}

/// A fork bomb leaves half of all processes to others.
fn half_of_all() -> Option<u64> {
    let most: u64 = fs::read_to_string("/proc/sys/kernel/pid_max").ok()?.trim().parse().ok()?;
    Some(most / 2)
}

fn write(folder: &Path, file: &str, text: &str) -> io::Result<()> {
    // Never made: files of groups exist, or the kernel lacks the controller.
    let mut options = OpenOptions::new();
    io::Write::write_all(&mut options.write(true).open(folder.join(file))?, text.as_bytes())
}

/// Bounds the hardware threads. In version 1 they, and memory, must be set before anybody joins.
fn bind(place: &Place, folder: &Path, cpus: &[usize]) -> io::Result<()> {
    let parents = |file: &str| fs::read_to_string(place.folder.join(file));
    let mut list = cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    if !place.is_v2 {
        write(folder, "cpuset.mems", parents("cpuset.mems")?.trim())?;
        if list.is_empty() {
            list = parents("cpuset.cpus")?.trim().to_owned();
        }
    }
    if list.is_empty() { Ok(()) } else { write(folder, "cpuset.cpus", &list) }
}

/// Removes the groups of runs that were killed.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Fails as long as one of its processes runs.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The places of this process's own groups, of what the kernel says of a process and of its mounts
/// (`cgroup` and `mountinfo` in `/proc/self`).
fn places(groups: &str, mounts: &str) -> Vec<Place> {
    let mut places = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let controllers: Vec<String> = controllers.split(',').map(str::to_owned).collect();
        let is_v2 = controllers == [""];
        if !is_v2 && !controllers.iter().any(|c| CONTROLLERS.contains(&c.as_str())) {
            continue;
        }
        let folder = mounts.lines().find_map(|line| {
            let (mount, system) = line.split_once(" - ")?;
            let mut words = mount.split(' ').skip(3);
            let (root, point) = (words.next()?, words.next()?);
            let mut words = system.split(' ');
            let (kind, options) = (words.next()?, words.nth(1)?);
            let is_it = match is_v2 {
                true => kind == "cgroup2",
                false => kind == "cgroup" && options.split(',').any(|o| o == controllers[0]),
            };
            let below = Path::new(path).strip_prefix(root).ok().filter(|_| is_it)?;
            // Without a slash at its end.
            Some(Path::new(point).components().chain(below.components()).collect())
        });
        let controllers = if is_v2 { Vec::new() } else { controllers };
        places.extend(folder.map(|folder| Place { folder, is_v2, controllers }));
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_below_the_mounts_of_their_hierarchies() {
        let place = |folder: &str, controllers: &[&str]| Place {
            folder: folder.into(),
            is_v2: controllers.is_empty(),
            controllers: controllers.iter().map(|name| (*name).to_owned()).collect(),
        };
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw\n\
             31 30 0:27 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n\
             33 30 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
             34 30 0:31 /docker/a /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             35 30 0:32 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n";
        let groups = "9:pids:/\n8:memory:/docker/a/b\n7:cpuset:/\n3:cpu,cpuacct:/x\n\
             1:name=systemd:/init.scope\n0::/user.slice/one.scope\n";
        assert_eq!(
            places(groups, mounts),
            [
                place("/sys/fs/cgroup/pids", &["pids"]),
                place("/sys/fs/cgroup/memory/b", &["memory"]),
                place("/sys/fs/cgroup/unified/user.slice/one.scope", &[]),
            ]
        );
        // A group above what is mounted here.
        assert_eq!(places("8:memory:/\n", mounts), []);
        assert_eq!(places("x\n::\n", ""), []);
    }

    #[test]
    fn what_killed_runs_leave_is_removed_and_nothing_else() {
        let parent = std::env::temp_dir().join(format!("ix-groups-{}", std::process::id()));
        let own = format!("ix-{}", std::process::id());
        // No process has so large a number.
        for name in ["ix-4194305", "ix-x", "other", &own] {
            fs::create_dir_all(parent.join(name)).expect("a folder");
        }
        sweep(&parent);
        let mut left: Vec<_> = fs::read_dir(&parent)
            .expect("folder")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
            .collect();
        left.sort();
        assert_eq!(left, [own.as_str(), "ix-x", "other"]);
        fs::remove_dir_all(parent).expect("removed");
    }
}
