//! The background job: a control group (v2), or a process with its children, for which a group is
//! made.
//!
//! The group freezes the job, which it cannot ignore as it could a signal. If the group has no
//! `cpuset` controller, the affinity of its threads is set: that binds them as well, unless a
//! thread sets its own.
use super::files::{FileError, Tree};
use crate::ranges;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fmt, io, thread};

/// Weight of the job against 100 of others in the same place: the least that the kernel allows.
const WEIGHT: &str = "1";
/// A group is frozen when all its threads have entered the kernel: longest wait for that.
const FREEZE_WITHIN: Duration = Duration::from_millis(50);
/// Most groups below the job's that are searched.
const GROUPS_MAX: usize = 1000;

/// What the user named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    /// A control group, from the mount or from its root.
    Group(PathBuf),
    /// A process, with all its children.
    Process(u32),
}

/// Binds a thread to hardware threads.
pub type SetAffinity = fn(u32, &[u32]) -> io::Result<()>;

/// Why the background job cannot be controlled or moved.
#[derive(Debug)]
pub enum BackgroundError {
    /// There is no control group file system of version 2.
    NoMount,
    /// No such group.
    NoGroup(PathBuf),
    /// No such process.
    NoProcess(u32),
    /// The root group, which would freeze the controller as well.
    Root,
    /// The controller itself is in that group.
    Ourselves(PathBuf),
    /// A file of the group, and the reason.
    File(FileError),
    /// A group could not be made.
    Make(PathBuf, io::Error),
    /// Not all threads could be moved: the first one, and the reason.
    Affinity(u32, io::Error),
}

impl fmt::Display for BackgroundError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use BackgroundError as E;
        match self {
            E::NoMount => {
                write!(f, "no cgroup v2 is mounted; mount -t cgroup2 none /sys/fs/cgroup/unified")
            }
            E::NoGroup(path) => {
                write!(f, "no control group at {}; make it with mkdir", path.display())
            }
            E::NoProcess(pid) => write!(f, "no process {pid}; has it ended?"),
            E::Root => {
                write!(f, "the root control group has all processes in it; name one below it")
            }
            E::Ourselves(path) => {
                write!(f, "the controller itself is in {}; name another group", path.display())
            }
            E::File(e) => e.fmt(f),
            E::Make(path, e) => write!(f, "cannot make {}: {e}; run it as root", path.display()),
            E::Affinity(tid, e) => write!(f, "cannot move thread {tid}: {e}; run it as root"),
        }
    }
}

impl std::error::Error for BackgroundError {}

impl From<FileError> for BackgroundError {
    fn from(e: FileError) -> BackgroundError {
        BackgroundError::File(e)
    }
}

/// The background job under control. Dropping it restores the former state.
#[derive(Debug)]
pub struct Background {
    tree: Tree,
    group: PathBuf,
    set_affinity: SetAffinity,
    /// The groups that processes came from.
    from: Vec<(u32, PathBuf)>,
    /// The former `cpuset.cpus`; `None`: threads are moved one by one.
    cpuset: Option<String>,
    weight: Option<String>,
    /// All online hardware threads, to restore at the end.
    online: Vec<u32>,
    /// Its present hardware threads; `None`: not known.
    cpus: Option<Vec<u32>>,
}

impl Background {
    /// Takes control of a job; it stays where it runs for now.
    pub fn new(
        tree: &Tree,
        job: &Job,
        set_affinity: SetAffinity,
    ) -> Result<Background, BackgroundError> {
        let mount = mount(tree).ok_or(BackgroundError::NoMount)?;
        let (group, from) = match job {
            Job::Group(path) => (find_group(tree, &mount, path)?, Vec::new()),
            Job::Process(pid) => make_group(tree, &mount, *pid)?,
        };
        if let Job::Group(_) = job {
            tree.may_write(group.join("cgroup.freeze"))?;
        }
        let mut background = Background {
            tree: tree.clone(),
            group,
            set_affinity,
            from,
            cpuset: None,
            weight: None,
            online: super::topology::online(tree),
            cpus: None,
        };
        for (pid, _) in background.from.clone() {
            // A child may have ended meanwhile.
            let moved = background.write("cgroup.procs", &pid.to_string());
            if let (Err(e), Job::Process(named)) = (moved, job)
                && *named == pid
            {
                return Err(e.into());
            }
        }
        if tree.has(background.file("cpuset.cpus")) {
            background.cpuset = Some(tree.read(background.file("cpuset.cpus"))?);
        }
        if let Ok(weight) = tree.read(background.file("cpu.weight")) {
            background.weight = background.write("cpu.weight", WEIGHT).is_ok().then_some(weight);
        }
        Ok(background)
    }

    /// The group's folder, from the tree's root.
    pub fn group(&self) -> &Path {
        &self.group
    }

    /// What the control group lacks, and what is done instead.
    pub fn missing(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.cpuset.is_none() {
            lines.push("no cpuset controller: threads are moved by their affinity".to_owned());
        }
        if self.weight.is_none() {
            lines.push("no cpu controller: its weight stays".to_owned());
        }
        lines
    }

    /// Runs the job on these hardware threads only; on none: freezes it.
    pub fn place(&mut self, cpus: &[u32]) -> Result<(), BackgroundError> {
        if self.cpus.as_deref() == Some(cpus) {
            return Ok(());
        }
        self.cpus = None;
        if cpus.is_empty() {
            self.freeze()?;
        } else {
            match self.cpuset {
                Some(_) => self.write("cpuset.cpus", &ranges(cpus))?,
                None => self.move_threads(cpus)?,
            }
            self.write("cgroup.freeze", "0")?;
        }
        self.cpus = Some(cpus.to_vec());
        Ok(())
    }

    fn freeze(&self) -> Result<(), BackgroundError> {
        self.write("cgroup.freeze", "1")?;
        let until = Instant::now() + FREEZE_WITHIN;
        let frozen = || {
            let events = self.tree.read(self.file("cgroup.events")).unwrap_or_default();
            !events.lines().any(|line| line == "frozen 0")
        };
        // A thread in an uninterruptible sleep freezes when it wakes: until then it does not run
        // either.
        while !frozen() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Repeats until no thread is new: one that was started meanwhile has its parent's old
    /// affinity.
    fn move_threads(&self, cpus: &[u32]) -> Result<(), BackgroundError> {
        let mut done = BTreeSet::new();
        for _ in 0..10 {
            let threads: Vec<u32> =
                self.threads().into_iter().filter(|tid| done.insert(*tid)).collect();
            if threads.is_empty() {
                return Ok(());
            }
            for tid in threads {
                match (self.set_affinity)(tid, cpus) {
                    // It has ended.
                    Err(e) if e.raw_os_error() == Some(NO_SUCH_PROCESS) => {}
                    Err(e) => return Err(BackgroundError::Affinity(tid, e)),
                    Ok(()) => {}
                }
            }
        }
        Ok(())
    }

    /// Threads of the group and of those below it.
    fn threads(&self) -> Vec<u32> {
        let mut groups = vec![self.group.clone()];
        let mut threads = Vec::new();
        let mut at = 0;
        while at < groups.len().min(GROUPS_MAX) {
            let group = groups[at].clone();
            at += 1;
            let text = self.tree.read(group.join("cgroup.threads")).unwrap_or_default();
            threads.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
            let below = self.tree.names(&group).into_iter().map(|name| group.join(name));
            groups.extend(below.filter(|path| self.tree.has(path.join("cgroup.procs"))));
        }
        threads
    }

    fn file(&self, name: &str) -> PathBuf {
        self.group.join(name)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), FileError> {
        self.tree.write(self.file(name), text)
    }
}

impl Drop for Background {
    /// Moves the job back, running, with its former hardware threads.
    fn drop(&mut self) {
        match &self.cpuset {
            Some(cpus) => {
                // An empty list is written as a line end.
                let text = if cpus.is_empty() { "\n" } else { cpus };
                let _ = self.write("cpuset.cpus", text);
            }
            None if self.cpus.is_some() => {
                let _ = self.move_threads(&self.online);
            }
            None => {}
        }
        if let Some(weight) = &self.weight {
            let _ = self.write("cpu.weight", weight);
        }
        let _ = self.write("cgroup.freeze", "0");
        if self.from.is_empty() {
            return;
        }
        // Also processes that were started in the group.
        let (_, home) = &self.from[0];
        let text = self.tree.read(self.file("cgroup.procs")).unwrap_or_default();
        for pid in text.lines().filter_map(|line| line.parse::<u32>().ok()) {
            let old = self.from.iter().find(|(known, _)| *known == pid);
            let old = old.map_or(home, |(_, group)| group);
            let _ = self.tree.write(old.join("cgroup.procs"), &pid.to_string());
        }
        let _ = std::fs::remove_dir(self.tree.path(&self.group));
    }
}

/// `ESRCH`.
const NO_SUCH_PROCESS: i32 = 3;

/// Where cgroup v2 is mounted.
fn mount(tree: &Tree) -> Option<PathBuf> {
    let mounts = tree.read("proc/self/mounts").ok()?;
    let of = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let (path, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(path))
    };
    mounts.lines().find_map(of)
}

fn find_group(tree: &Tree, mount: &Path, path: &Path) -> Result<PathBuf, BackgroundError> {
    // Relative to the file system's root or to the mount.
    let whole = if path.starts_with(mount) {
        path.to_owned()
    } else {
        mount.join(path.strip_prefix("/").unwrap_or(path))
    };
    if whole == *mount {
        return Err(BackgroundError::Root);
    }
    if !tree.has(whole.join("cgroup.procs")) {
        return Err(BackgroundError::NoGroup(tree.path(whole)));
    }
    let ours = group_of(tree, mount, "self");
    if ours.is_some_and(|ours| ours.starts_with(&whole)) {
        return Err(BackgroundError::Ourselves(tree.path(whole)));
    }
    Ok(whole)
}

/// Makes a group for a process and its children; returns where each came from, the process first.
fn make_group(
    tree: &Tree,
    mount: &Path,
    pid: u32,
) -> Result<(PathBuf, Vec<(u32, PathBuf)>), BackgroundError> {
    let home = |pid: u32| group_of(tree, mount, &pid.to_string());
    if pid == 0 || home(pid).is_none() {
        return Err(BackgroundError::NoProcess(pid));
    }
    let family = family(tree, pid);
    if family.contains(&std::process::id()) {
        return Err(BackgroundError::Ourselves(tree.path(format!("proc/{pid}"))));
    }
    let group = mount.join(format!("ix-background-{pid}"));
    // A controller that was killed may have left the process in this group: its former group is
    // unknown.
    let home = |pid: u32| home(pid).map(|old| if old == group { mount.to_owned() } else { old });
    let from = family.into_iter().filter_map(|pid| Some((pid, home(pid)?))).collect();
    match std::fs::create_dir(tree.path(&group)) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(BackgroundError::Make(tree.path(group), e));
        }
        _ => {}
    }
    // Fails if the root has given its controllers to version 1.
    let _ = tree.write(mount.join("cgroup.subtree_control"), "+cpuset +cpu");
    Ok((group, from))
}

/// A process's group of version 2.
fn group_of(tree: &Tree, mount: &Path, pid: &str) -> Option<PathBuf> {
    let text = tree.read(format!("proc/{pid}/cgroup")).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(mount.join(path.trim_start_matches('/')))
}

/// A process and all its descendants; the process first.
fn family(tree: &Tree, pid: u32) -> Vec<u32> {
    let parent = |pid: u32| -> Option<u32> {
        let stat = tree.read(format!("proc/{pid}/stat")).ok()?;
        // The name may contain anything, also parentheses.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let all = tree.names("proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    let parents: Vec<(u32, u32)> = all.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut family = vec![pid];
    let mut at = 0;
    while at < family.len() {
        let parent = family[at];
        let children = parents.iter().filter(|(child, of)| *of == parent && *child != parent);
        let children: Vec<u32> =
            children.map(|(child, _)| *child).filter(|child| !family.contains(child)).collect();
        family.extend(children);
        at += 1;
    }
    family
}

/// Whether a text names a process or a group.
pub fn parse_job(text: &str) -> Job {
    match text.parse() {
        Ok(pid) => Job::Process(pid),
        Err(_) => Job::Group(PathBuf::from(text)),
    }
}

/// Whether this machine can control a background job.
pub(super) fn inspect(tree: &Tree) -> super::Finding {
    let name = "background";
    let Some(mount) = mount(tree) else {
        let (missing, note) = (Some("no cgroup v2 is mounted".to_owned()), "no background job");
        return super::Finding { name, missing, note: note.to_owned() };
    };
    let controllers = tree.read(mount.join("cgroup.controllers")).unwrap_or_default();
    let lacks = !controllers.split_whitespace().any(|word| word == "cpuset");
    let missing = lacks.then(|| format!("no cpuset controller at {}", tree.path(&mount).display()));
    let note = match lacks {
        true => "a background job is frozen by its group and moved by its threads' affinity",
        false => "a background job is frozen and moved by its control group",
    };
    super::Finding { name, missing, note: note.to_owned() }
}
