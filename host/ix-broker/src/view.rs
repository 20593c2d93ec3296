//! What root of a namespace sees of the machine's files: all, but it cannot write to the kernel.
//! The files by which root steers the kernel belong to root, and the kernel asks most of them only
//! whether the writer is that user, which root of a namespace is.
use ix_sys::mounts::{Change, Mount};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Sockets, locks and keys of all runs.
const RUNS: &str = "/run/ix";
/// Where the kernel shows itself.
const KERNEL: &str = "/sys";
/// Kinds of file systems that are interfaces of the kernel, wherever they are mounted. By those of
/// control groups a process leaves its own, and freezes, kills or pins any other one.
const KERNELS: [&str; 12] = [
    "cgroup",
    "cgroup2",
    "sysfs",
    "binfmt_misc",
    "configfs",
    "efivarfs",
    "pstore",
    "resctrl",
    "securityfs",
    "selinuxfs",
    "smackfs",
    "xenfs",
];
/// Those that show what other processes do, or that a mount without writes does not keep.
const SECRETS: [&str; 3] = ["bpf", "debugfs", "tracefs"];
/// What is in `/proc` beside processes, and takes writes.
const PROC: [&str; 9] =
    ["acpi", "bus", "driver", "dynamic_debug", "fs", "irq", "scsi", "sys", "sysrq-trigger"];

/// Kinds that a process may mount anew where its namespace shows all of one. Linux does not ask
/// whether a path leads there.
const ANEW: [&str; 2] = ["proc", "sysfs"];
/// Where a mount may be for a moment.
const ASIDE: [&str; 6] = ["/run", "/tmp", "/var", "/usr", "/etc", "/dev"];

/// The changes that make it so, in order.
pub fn of_root() -> io::Result<Vec<Change>> {
    // Other runs make it later, if there is none yet.
    fs::DirBuilder::new().recursive(true).mode(0o755).create(RUNS)?;
    let all = Mount::all()?;
    let mut changes = without_hidden(&all)?;
    changes.push(Change::covered(Path::new(RUNS))?);
    let mut covered: Vec<PathBuf> = Vec::new();
    for mount in &all {
        if covered.iter().any(|point| mount.point.starts_with(point)) {
            continue;
        }
        let is_secret = SECRETS.contains(&mount.kind.as_str()) && mount.point.is_dir();
        if is_secret && mount.is_reached() {
            changes.push(Change::covered(&mount.point)?);
            covered.push(mount.point.clone());
        } else {
            changes.extend(of_mount(mount, &all)?);
        }
    }
    Ok(changes)
}

/// Removes a procfs or sysfs to which no path leads, because another mount is over a folder above.
/// With such a one Linux would let the program mount another one, which takes writes.
fn without_hidden(all: &[Mount]) -> io::Result<Vec<Change>> {
    let mut changes = Vec::new();
    let mut gone: Vec<&Mount> = Vec::new();
    for mount in all.iter().filter(|mount| ANEW.contains(&mount.kind.as_str())) {
        // What is below one that is removed goes with it.
        if ancestors(mount, all).any(|above| gone.iter().any(|other| other.id == above.id)) {
            continue;
        }
        let covers = covers(mount, all);
        // One with something on its own root counts as hidden for Linux too.
        let is_under = |other: &Mount| other.parent == mount.id && other.point == mount.point;
        if mount.root != Path::new("/") || covers.is_empty() || all.iter().any(is_under) {
            continue;
        }
        let is_free = |aside: &&Path| {
            // No path leads past what is moved there, nor there below what is moved away.
            let meets =
                |other: &Mount| aside.starts_with(&other.point) || other.point.starts_with(aside);
            aside.is_dir() && !covers.iter().any(|cover| meets(cover)) && !meets(mount)
        };
        // Where there is none, the root itself is over it.
        let Some(aside) = ASIDE.map(Path::new).into_iter().find(is_free) else { continue };
        for cover in &covers {
            changes.push(Change::moved(&cover.point, aside)?);
        }
        changes.push(Change::gone(&mount.point)?);
        gone.push(mount);
        // They lie on one another there.
        for cover in covers.iter().rev() {
            changes.push(Change::moved(aside, &cover.point)?);
        }
    }
    Ok(changes)
}

/// The mounts that a mount lies in, from the nearest one on.
fn ancestors<'a>(mount: &'a Mount, all: &'a [Mount]) -> impl Iterator<Item = &'a Mount> {
    let parent = |of: &Mount| all.iter().find(|other| other.id == of.parent && other.id != of.id);
    std::iter::successors(parent(mount), move |above| parent(above))
}

/// The mounts over folders above a mount, in the order in which they can be moved away.
fn covers<'a>(mount: &'a Mount, all: &'a [Mount]) -> Vec<&'a Mount> {
    let mut covers = Vec::new();
    let mut below = mount;
    for above in ancestors(mount, all) {
        let is_over = |other: &&Mount| {
            other.parent == above.id
                && other.id != below.id
                && below.point.starts_with(&other.point)
        };
        let mut over: Vec<&Mount> = all.iter().filter(is_over).collect();
        over.sort_by_key(|other| other.point.components().count());
        covers.splice(..0, over.into_iter().flat_map(|cover| stack_on(cover, all)));
        below = above;
    }
    covers
}

/// What lies on a mount at the same place, the topmost one first, and then the mount itself.
fn stack_on<'a>(mount: &'a Mount, all: &'a [Mount]) -> Vec<&'a Mount> {
    let on = |below: &Mount| {
        let is_on = |other: &&Mount| {
            other.parent == below.id && other.id != below.id && other.point == below.point
        };
        all.iter().find(is_on)
    };
    let mut stack: Vec<&Mount> = std::iter::successors(Some(mount), |below| on(below)).collect();
    stack.reverse();
    stack
}

/// For a mount that stays visible.
fn of_mount(mount: &Mount, all: &[Mount]) -> io::Result<Vec<Change>> {
    let kind = mount.kind.as_str();
    let is_kernels = [&KERNELS[..], &SECRETS].concat().contains(&kind)
        || mount.point.starts_with(KERNEL)
        || is_in_proc(mount, all);
    if !(is_kernels || kind == "proc") || !mount.is_reached() {
        return Ok(Vec::new());
    }
    if is_kernels {
        return Ok(vec![mount.read_only()?]);
    }
    let is_part = |name: &&str| mount.root.starts_with(Path::new("/").join(name));
    if PROC.iter().any(is_part) {
        return Ok(vec![mount.read_only()?]);
    }
    let parts = PROC.iter().map(|name| mount.point.join(name));
    let there = parts.filter(|path| mount.root == Path::new("/") && path.exists());
    there.map(|path| Change::fixed(&path)).collect()
}

/// Whether it is mounted on what a procfs has beside processes, as that of the NFS server is. To
/// look at an autofs could have the machine mount something.
fn is_in_proc(mount: &Mount, all: &[Mount]) -> bool {
    let mut procs = all.iter().filter(|proc| proc.kind == "proc" && proc.root == Path::new("/"));
    let is_on =
        |proc: &Mount| PROC.iter().any(|name| mount.point.starts_with(proc.point.join(name)));
    mount.kind != "autofs" && procs.any(is_on)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_skip::{Need, skip};
    use ix_sys::mounts;
    use std::process::Command;

    /// Runs a command in the calling thread's namespaces.
    fn sh(text: &str) -> bool {
        let output = Command::new("sh").args(["-ec", text]).output().expect("a shell");
        println!("{text}: {}", String::from_utf8_lossy(&output.stderr));
        output.status.success()
    }

    /// In a mount namespace of its own, with these mounts made before. Returns whether each of the
    /// commands succeeds without and with the changes.
    fn tried(mounts: &str, commands: [&str; 2]) -> [[bool; 2]; 2] {
        let (mounts, commands) = (mounts.to_owned(), commands.map(str::to_owned));
        let tried = std::thread::spawn(move || {
            mounts::leave().expect("a mount namespace");
            assert!(sh(&mounts), "{mounts}");
            let try_all = || commands.each_ref().map(|command| sh(command));
            let without = try_all();
            let changes = of_root().expect("changes");
            changes.iter().for_each(|change| {
                change.make().unwrap_or_else(|e| panic!("{}: {e}", change.text()));
            });
            let with = try_all();
            [0, 1].map(|nth| [without[nth], with[nth]])
        });
        tried.join().expect("it has tried")
    }

    /// A procfs under a mount would let a program mount another one, whose files take writes.
    #[test]
    fn what_no_path_leads_to_and_what_is_below_proc_helps_nobody() {
        let name = "what_no_path_leads_to_and_what_is_below_proc_helps_nobody";
        if !ix_sys::process::is_root() {
            return skip(name, Need::Root, "only root makes mount namespaces");
        }
        const PROCFS: &str = "unshare -Urmpf mount -t proc proc /tmp";
        let folder = std::env::temp_dir().join(format!("ix-view-{}", std::process::id()));
        fs::create_dir_all(folder.join("a/b")).expect("a folder");
        let at = folder.display();
        let file = folder.join("a/b/of-the-cover");
        let write = "echo > /proc/fs/file";
        // Two covers, one on the other.
        let mounts = format!(
            "mount -t proc proc {at}/a/b; mount -t tmpfs x {at}/a; mount -t tmpfs x {at}; \
             mkdir -p {at}/a/b; touch {}; mount -t tmpfs x /proc/fs",
            file.display()
        );
        let outcome = tried(&mounts, [PROCFS, write]);
        if outcome[0][0] {
            assert_eq!(outcome, [[true, false]; 2]);
        } else {
            skip(name, Need::Kernel("user namespaces"), "none can be made");
            assert_eq!(outcome[1], [true, false]);
        }
        // On one point, beside the place where it would be moved, and with one in the other.
        let run = format!("/run/ix-view-{}", std::process::id());
        fs::create_dir_all(format!("{run}/a/b")).expect("a folder");
        let others = [
            format!(
                "mount -t proc proc {at}/a/b; mount -t tmpfs x {at}/a; mount -t tmpfs y {at}/a; \
                 mkdir -p {at}/a/b; touch {}",
                file.display()
            ),
            format!(
                "mount -t proc proc {run}/a/b; mount -t tmpfs x {run}/a; mount -t tmpfs y {at}/a; \
                 mkdir -p {at}/a/b; touch {}",
                file.display()
            ),
            format!(
                "mount -t proc proc {at}/a/b; mount -t proc proc {at}/a/b/fs; \
                 mount -t tmpfs x {at}; mkdir -p {at}/a/b; touch {}",
                file.display()
            ),
        ];
        let seen = format!("test -f {}", file.display());
        for mounts in others {
            let tried = tried(&mounts, [PROCFS, &seen]);
            assert_eq!(tried, [[outcome[0][0], false], [true; 2]], "{mounts}");
        }
        fs::remove_dir_all(run).expect("removed");
        // What covers it is where it was.
        let seen = format!("test -f {}", file.display());
        assert_eq!(tried(&mounts, [&seen, "test -d /run/ix"]), [[true; 2]; 2]);
        fs::remove_dir_all(folder).expect("removed");
    }
}
