//! Control groups of one run (cgroups(7)). The program's bounds its processes, its memory and its
//! hardware threads as a whole. The program has one group's share of processor time, and so has its
//! dataplane, or the two have one together: a tenant that starts a thousand threads gets as much of
//! a hardware thread as one with a single thread. Version 2 and version 1 of the interface both
//! serve, also side by side; where this process may make no group, the run has none.
//!
//! ```text
//! version 2   ix-4711-9c0ffee1               share of processor time
//!               program                      processes, memory, hardware threads
//!               dataplane                    if the two have one share
//!               broker                       this process, if it was alone in its group
//!             ix-4711-9c0ffee1-dataplane     share of processor time
//! version 1   cpu/ix-4711-9c0ffee1           the program, or both
//!             cpu/ix-…-dataplane             the dataplane
//!             pids/ix-…, memory/…, cpuset/…  the program
//! ```
//!
//! Where the two take turns on one hardware thread and the kernel holds the program to it, they
//! have one share together: `sched_yield` hands a hardware thread over within a group only, and a
//! turn takes half as long as with a sleep. A dataplane has a share of its own while it starts, and
//! again when many threads of its program keep it from its turn ([`Group::part_dataplane`]).
//!
//! Elsewhere the two have no group in common. Linux 6.18 lets a group whose threads run on several
//! hardware threads keep one of them for seconds, while nothing else runs there, if one of its
//! threads does nothing but fork: the group's weight on that hardware thread changes each time, and
//! with it what it has used is forgotten. With one group for both, any program whose dataplane was
//! busy on another hardware thread could do that.
//!
//! The groups are below this process's own, so that a service manager still finds the program.
//! Their name has this process's number, and a random one, so that it is never that of an earlier
//! process with this number: they are removed at the end, or, if this process is killed, by another
//! run ([`crate::group_locks`]).
use crate::group_locks::{self, GroupLock};
use ix_problem::{Problem, Result};
use ix_sys::process::Process;
use ix_sys::random;
use ix_sys::say;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Names of groups begin with this.
const PREFIX: &str = "ix-";
/// Controllers that bound the program.
const BOUNDS: [&str; 4] = ["pids", "memory", "cpuset", HUGE_PAGES];
/// The one that counts reserved huge pages.
const HUGE_PAGES: &str = "hugetlb";
/// Where Linux says how many of each size are reserved.
const RESERVED: &str = "/sys/kernel/mm/hugepages";
/// The one that divides processor time.
const SHARE: &str = "cpu";
/// In version 2: the groups below that of the run.
const PROGRAM: &str = "program";
const DATAPLANE: &str = "dataplane";
const BROKER: &str = "broker";
/// A group of the dataplane alone: the run's with this at its end.
const BESIDE: &str = "-dataplane";
/// The file of a group's processes. Who writes a process's number there moves it.
const PROCESSES: &str = "cgroup.procs";
/// Longest time that processes which have ended stay in their group.
const LEAVING: Duration = Duration::from_millis(100);
/// Longest time to end all processes of a group.
const ENDING: Duration = Duration::from_secs(1);

/// What bounds a program.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// Processes and threads; `None`: half of what the machine can have.
    pub pids: Option<u64>,
    /// Bytes of memory; `None`: no bound.
    pub memory_bytes: Option<u64>,
    /// Hardware threads; empty: no bound.
    pub cpus: Vec<usize>,
    /// These are one hardware thread, on which program and dataplane take turns.
    pub takes_turns: bool,
    /// The dataplane, whose packet memory may be reserved huge pages, is the program's process.
    /// Else the program leaves half of them to others.
    pub has_dataplane: bool,
}

/// The groups of one run, in each hierarchy. Dropping this removes them.
#[derive(Debug, Default)]
pub struct Group {
    /// All but those of version 2 that have others below them.
    all: Vec<PathBuf>,
    /// The latter.
    runs: Vec<PathBuf>,
    /// Where this process was, and where it has moved.
    moved: Option<(PathBuf, PathBuf)>,
    /// Those of the program alone.
    programs: Vec<PathBuf>,
    /// By these files a process joins: those of the program, and those of the dataplane.
    joins: Vec<Arc<File>>,
    dataplanes_joins: Vec<Arc<File>>,
    /// By these the dataplane gets a share together with the program.
    shares: Vec<Arc<File>>,
    /// The user has asked for a bound.
    needed: bool,
    /// Tells them from those of an earlier process with this one's number.
    mark: u32,
    /// No other run removes them as long as this is there.
    lock: Option<GroupLock>,
}

/// Ends all processes of these groups of programs.
pub(crate) fn end_all(programs: &[PathBuf]) {
    let end = Instant::now() + ENDING;
    for folder in programs {
        // No new ones come. Errors: the kernel is older, or the hierarchy has no such file.
        let _ = write(folder, "pids.max", "0");
        let _ = write(folder, "cgroup.kill", "1");
    }
    for folder in programs {
        while Instant::now() < end && !end_members(folder) {
            std::thread::sleep(ENDING / 500);
        }
    }
}

/// The program's group of a run, or of one hierarchy of it; `None`: the group is the dataplane's.
pub(crate) fn program_of(run: &Path) -> Option<PathBuf> {
    if run.as_os_str().as_encoded_bytes().ends_with(BESIDE.as_bytes()) {
        return None;
    }
    let below = run.join(PROGRAM);
    Some(if below.exists() { below } else { run.to_owned() })
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
    /// Makes the groups, and removes what killed runs have left. An error only if a bound was asked
    /// for that no group can have.
    pub fn make(bounds: &Bounds) -> Result<Group> {
        let needed = bounds.pids.is_some() || bounds.memory_bytes.is_some();
        let mut mark = [0; 4];
        // Without it, the number alone must do.
        let _ = random::fill(&mut mark);
        let mark = u32::from_ne_bytes(mark);
        let mut group = Group::default();
        (group.needed, group.mark) = (needed, mark);
        let (mut has_pids, mut has_memory) = (Err(none()), Err(none()));
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let mut places = places(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
        group.claim(&places);
        // What holds the program to its hardware threads comes before its share of their time.
        places.sort_by_key(|place| place.has(SHARE));
        // Whether the kernel holds the program to its hardware threads.
        let mut is_held = false;
        for place in places {
            let run = place.folder.join(group.name());
            let Ok(folder) = group.add(&place, &run) else { continue };
            let has = |name: &str| place.has(name);
            if has("pids") && has_pids.is_err() {
                let most = bounds.pids.or_else(half_of_all);
                let most = most.map_or("max".to_owned(), |most| most.to_string());
                has_pids = write(&folder, "pids.max", &most);
            }
            if let Some(bytes) = bounds.memory_bytes.filter(|_| has("memory")) {
                let file = if place.is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
                has_memory = write(&folder, file, &bytes.to_string()).or(has_memory);
            }
            if has("cpuset") {
                match bind(&place, &folder, &bounds.cpus) {
                    Ok(()) => is_held |= !bounds.cpus.is_empty(),
                    // Nobody can join a group of this hierarchy that has no hardware threads.
                    Err(_) if !place.is_v2 => group.forget(&folder),
                    Err(_) => {}
                }
            }
            if has(HUGE_PAGES) && !bounds.has_dataplane {
                leave_huge_pages(&place, &folder);
            }
            if has(SHARE) {
                // An error leaves the dataplane in the group of this process.
                let _ = group.add_dataplane(&place, &run, bounds.takes_turns && is_held);
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
                        "start `ix run` as root with control groups (mount -t cgroup2), alone in \
                         one of its own (systemd-run --scope ix run ...), or leave {flag} out"
                    ),
                ));
            }
        }
        Ok(group)
    }

    /// The files by which the program joins its groups: it writes `0`.
    pub fn joins(&self) -> Vec<Arc<File>> {
        self.joins.clone()
    }

    /// The same for the dataplane.
    pub fn dataplanes_joins(&self) -> Vec<Arc<File>> {
        self.dataplanes_joins.clone()
    }

    /// An error if this process runs outside of the program's groups and the user has asked for a
    /// bound.
    pub fn must_hold(&self, process: &Process) -> Result<()> {
        let holds = |folder: &PathBuf| has(folder, process.pid());
        // One that has ended is in none.
        if !self.needed || self.programs.iter().all(holds) || process.has_ended() {
            return Ok(());
        }
        Err(Problem::new("cannot bound the program", "it may not join its control group")
            .mend("start `ix run` as root, or leave --pids-max and --memory-max out"))
    }

    /// Ends all processes of the program; `false` if no group holds them.
    pub fn kill(&self) -> bool {
        end_all(&self.programs);
        !self.programs.is_empty()
    }

    /// The file that lists the groups, if there is one of the program that can be ended.
    pub fn file_of_ends(&self) -> Option<&Path> {
        self.lock.as_ref().filter(|_| !self.programs.is_empty()).map(GroupLock::path)
    }

    /// The name of its groups.
    fn name(&self) -> String {
        format!("{PREFIX}{}-{:08x}", std::process::id(), self.mark)
    }

    /// Removes what killed runs have left, and keeps other runs from removing the groups that are
    /// made in these places. Where no such claim can be made nobody removes them but this run.
    fn claim(&mut self, places: &[Place]) {
        let Ok(folder) = group_locks::folder() else { return };
        group_locks::sweep(&folder, remove_run);
        let name = self.name();
        let runs = places.iter().map(|place| place.folder.join(&name));
        let groups: Vec<_> = runs.flat_map(|run| [dataplane_beside(&run), run]).collect();
        self.lock = GroupLock::take(&folder, &name, &groups)
            .inspect_err(|e| {
                say!(
                    "cannot claim the control groups of this run ({e}): if it is killed, they \
                     are left; look at {}",
                    folder.display()
                );
            })
            .ok();
    }

    /// Makes the program's group of a hierarchy, in that of the run, and returns it.
    fn add(&mut self, place: &Place, run: &Path) -> io::Result<PathBuf> {
        fs::create_dir(run)?;
        let program = if place.is_v2 { run.join(PROGRAM) } else { run.to_owned() };
        self.all.push(program.clone());
        if place.is_v2 {
            self.runs.push(run.to_owned());
            if is_alone(&place.folder) {
                self.move_to(&place.folder, run.join(BROKER))?;
            }
            set(&place.folder, '+', BOUNDS.iter().chain([&SHARE]));
            set(run, '+', &BOUNDS);
            fs::create_dir(&program)?;
        }
        self.joins.push(join_of(&program)?);
        if place.bounds() {
            self.programs.push(program.clone());
        }
        Ok(program)
    }

    /// Makes the dataplane's group, beside that of the run. `together`: it may also have a share
    /// together with the program.
    fn add_dataplane(&mut self, place: &Place, run: &Path, together: bool) -> io::Result<()> {
        let beside = dataplane_beside(run);
        self.all.push(beside.clone());
        fs::create_dir(&beside)?;
        self.dataplanes_joins.push(join_of(&beside)?);
        if !together {
            return Ok(());
        }
        let mut shared = run.to_owned();
        if place.is_v2 {
            shared.push(DATAPLANE);
            self.all.push(shared.clone());
            fs::create_dir(&shared)?;
        }
        self.shares.push(join_of(&shared)?);
        Ok(())
    }

    /// Gives the dataplane a share of processor time together with the program, if it may have
    /// one. False: it may not, or it has ended.
    pub fn join_dataplane(&self, pid: u32) -> bool {
        move_by(&self.shares, pid)
    }

    /// Gives the dataplane a share of processor time of its own again. False: it has ended.
    pub fn part_dataplane(&self, pid: u32) -> bool {
        move_by(&self.dataplanes_joins, pid)
    }

    /// Moves this process out of a group: one that has processes gives those below it no
    /// controllers.
    fn move_to(&mut self, from: &Path, to: PathBuf) -> io::Result<()> {
        fs::create_dir(&to)?;
        self.moved = Some((from.to_owned(), to.clone()));
        write(&to, PROCESSES, &std::process::id().to_string())
    }

    /// Removes the program's group that was added last.
    fn forget(&mut self, folder: &Path) {
        self.joins.pop();
        self.programs.pop();
        // An error means that it stays until the end, or until another run.
        let _ = fs::remove_dir(folder);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let end = Instant::now() + LEAVING;
        let remove = |folder: &PathBuf| {
            // A process that the program has left behind keeps it, and another run removes it.
            while fs::remove_dir(folder).is_err() && folder.exists() && Instant::now() < end {
                std::thread::sleep(LEAVING / 50);
            }
        };
        self.all.iter().for_each(remove);
        if let Some((home, own)) = &self.moved {
            set(home, '-', BOUNDS.iter().chain([&SHARE]));
            // An error leaves this process where it is, and the group to another run.
            let _ = write(home, PROCESSES, &std::process::id().to_string());
            remove(own);
        }
        self.runs.iter().for_each(remove);
    }
}

impl Place {
    /// Whether its groups can have this controller.
    fn has(&self, name: &str) -> bool {
        self.is_v2 || self.controllers.iter().any(|one| one == name)
    }

    /// Whether groups of this hierarchy bound a program.
    fn bounds(&self) -> bool {
        BOUNDS.iter().any(|name| self.has(name))
    }
}

/// The file by which a process joins a group.
fn join_of(folder: &Path) -> io::Result<Arc<File>> {
    OpenOptions::new().write(true).open(folder.join(PROCESSES)).map(Arc::new)
}

/// Moves a process into groups by their files; false if it joins none.
fn move_by(files: &[Arc<File>], pid: u32) -> bool {
    let pid = pid.to_string();
    let join = |file: &&Arc<File>| io::Write::write_all(&mut &***file, pid.as_bytes()).is_ok();
    files.iter().filter(join).count() > 0
}

/// Gives the groups below one these controllers ('+'), or takes them ('-').
fn set<'a>(folder: &Path, sign: char, controllers: impl IntoIterator<Item = &'a &'static str>) {
    for controller in controllers {
        // Without it, or if the group has processes of its own, those below have no such bound.
        let _ = write(folder, "cgroup.subtree_control", &format!("{sign}{controller}"));
    }
}

/// Whether no other process is in this group, which is not the root of its hierarchy.
fn is_alone(folder: &Path) -> bool {
    let own = std::process::id().to_string();
    members(folder).lines().eq([own.as_str()]) && folder.join("cgroup.type").exists()
}

fn none() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "no control group that has this bound can be made")
}

/// A fork bomb leaves half of all processes to others.
fn half_of_all() -> Option<u64> {
    let most: u64 = fs::read_to_string("/proc/sys/kernel/pid_max").ok()?.trim().parse().ok()?;
    Some(most / 2)
}

/// Bounds a group to half of the huge pages of each size that are reserved, or that Linux may still
/// reserve: anybody may map them, and a dataplane that finds none is slower. What cannot be bounded
/// is not: the kernel is older (Linux 5.7), or has no such controller.
fn leave_huge_pages(place: &Place, folder: &Path) {
    for entry in fs::read_dir(RESERVED).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let kb = name.to_str().and_then(|name| name.strip_prefix("hugepages-")?.strip_suffix("kB"));
        let Some(kb) = kb.and_then(|kb| kb.parse::<u64>().ok()) else { continue };
        let number = |file: &str| -> u64 {
            let text = fs::read_to_string(entry.path().join(file)).unwrap_or_default();
            text.trim().parse().unwrap_or(0)
        };
        let pages = number("nr_hugepages") + number("nr_overcommit_hugepages");
        if pages > 0 {
            let bytes = pages / 2 * (kb << 10);
            let _ = write(folder, &limit_of_huge_pages(kb, place.is_v2), &bytes.to_string());
        }
    }
}

/// The file of a group's limit on huge pages of this size: on those that are set aside for
/// mappings, so that `mmap` fails, and no access.
fn limit_of_huge_pages(kb: u64, is_v2: bool) -> String {
    let size = match kb {
        kb if kb >= 1 << 20 => format!("{}GB", kb >> 20),
        kb if kb >= 1 << 10 => format!("{}MB", kb >> 10),
        kb => format!("{kb}KB"),
    };
    let limit = if is_v2 { "max" } else { "limit_in_bytes" };
    format!("{HUGE_PAGES}.{size}.rsvd.{limit}")
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

/// The numbers of the processes in this group, a line each; of a group that is gone, none.
fn members(folder: &Path) -> String {
    fs::read_to_string(folder.join(PROCESSES)).unwrap_or_default()
}

/// Whether a process is in this group.
fn has(folder: &Path, pid: u32) -> bool {
    members(folder).lines().any(|line| line.parse() == Ok(pid))
}

/// Ends those who are in this group now; true if there is nobody.
fn end_members(folder: &Path) -> bool {
    let members = members(folder);
    for pid in members.lines().filter_map(|line| line.parse::<u32>().ok()) {
        // Errors mean that it has ended. Its number is another one's only before it was opened.
        let process = Process::open(pid).ok().filter(|_| has(folder, pid));
        let _ = process.map(|process| process.signal(libc::SIGKILL));
    }
    members.is_empty()
}

/// Moves this process out of the broker's group of a run that was killed, if it is there: the group
/// cannot be removed before. Nobody else is in the run's groups any more.
pub(crate) fn leave_brokers_group(run: &Path) {
    let broker = run.join(BROKER);
    let Some(home) = run.parent().filter(|_| has(&broker, std::process::id())) else { return };
    // One that gives those below it controllers takes no processes.
    for folder in [run, home] {
        set(folder, '-', BOUNDS.iter().chain([&SHARE]));
    }
    // An error leaves the group to another run.
    let _ = write(home, PROCESSES, &std::process::id().to_string());
}

/// The group of the dataplane of a run.
fn dataplane_beside(run: &Path) -> PathBuf {
    let mut name = run.as_os_str().to_owned();
    name.push(BESIDE);
    name.into()
}

/// Removes a group of a run that was killed, with those below it. Fails as long as one of its
/// processes runs.
pub(crate) fn remove_run(run: &Path) {
    for below in [PROGRAM, DATAPLANE, BROKER, ""] {
        let _ = fs::remove_dir(run.join(below));
    }
}

/// Moves this process into a group of this name below its own, for good: it outlives the run that
/// has started it, and a group in which others are gives those below it no controllers. Its last
/// process removes it ([`leave_apart`]).
pub fn set_apart(name: &str) {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let places = places(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
    for place in places.into_iter().filter(|place| place.is_v2) {
        let folder = place.folder.join(name);
        // Where it may make no group, no run may.
        let _ = fs::create_dir(&folder);
        let _ = write(&folder, PROCESSES, &std::process::id().to_string());
    }
}

/// Leaves the group of [`set_apart`] and removes it, at the end of this process. It stays where the
/// group above gives those below it controllers.
pub fn leave_apart(name: &str) {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let places = places(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
    for place in places.into_iter().filter(|place| place.is_v2 && place.folder.ends_with(name)) {
        let Some(above) = place.folder.parent() else { continue };
        let _ = write(above, PROCESSES, &std::process::id().to_string());
        let _ = fs::remove_dir(&place.folder);
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
        let is_used = |name: &String| name == SHARE || BOUNDS.contains(&name.as_str());
        if !is_v2 && !controllers.iter().any(is_used) {
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
    use std::process::Command;

    #[test]
    fn limits_on_huge_pages_are_named_by_their_size() {
        assert_eq!(limit_of_huge_pages(2048, true), "hugetlb.2MB.rsvd.max");
        assert_eq!(limit_of_huge_pages(1 << 20, false), "hugetlb.1GB.rsvd.limit_in_bytes");
        assert_eq!(limit_of_huge_pages(64, true), "hugetlb.64KB.rsvd.max");
    }

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
                place("/sys/fs/cgroup/cpu,cpuacct/x", &["cpu", "cpuacct"]),
                place("/sys/fs/cgroup/unified/user.slice/one.scope", &[]),
            ]
        );
        // A group above what is mounted here.
        assert_eq!(places("8:memory:/\n", mounts), []);
        assert_eq!(places("x\n::\n", ""), []);
    }

    /// Needs no control groups: their files read like others.
    #[test]
    fn whoever_has_ended_need_be_in_no_group() {
        let folder = std::env::temp_dir().join(format!("ix-members-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("cgroup.procs"), "1\n").expect("a file");
        let mut group = Group::default();
        (group.all, group.programs, group.needed) =
            (vec![folder.clone()], vec![folder.clone()], true);
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
        let process = Process::open(child.id()).expect("a process");
        let text = group.must_hold(&process).expect_err("it is outside").to_string();
        assert!(text.contains("it may not join its control group"), "{text}");
        child.kill().expect("killed");
        child.wait().expect("ended");
        group.must_hold(&process).expect("it has ended");
        fs::remove_dir_all(folder).expect("removed");
    }
}
