//! Facts about this machine, which every result lists.
use ix_sys::cpu;
use serde::Serialize;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// The machine of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Model name of the processor.
    pub cpu: String,
    /// Hardware threads that this process may run on.
    pub cpus: usize,
    /// Hardware threads of one core.
    pub threads_per_core: usize,
    /// Kernel release.
    pub kernel: String,
    /// The kernel's default congestion control.
    pub congestion_control: String,
    /// Frequency governor, or why there is none.
    pub governor: String,
    /// Mitigations of processor bugs that are on.
    pub mitigations: Vec<String>,
    /// The system runs on a hypervisor.
    pub virtual_machine: bool,
    /// Revision of the source tree that the command stands in, if any.
    pub revision: Option<String>,
}

impl Machine {
    /// Reads the facts.
    pub fn read() -> Machine {
        let cpuinfo = read("/proc/cpuinfo");
        let field = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':')).map(|(_, v)| v.trim().to_owned())
        };
        let siblings = read("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list");
        Machine {
            cpu: field("model name").unwrap_or_else(|| "unknown".to_owned()),
            cpus: cpu::allowed().len(),
            threads_per_core: cpu::parse_list(&siblings).map_or(1, |list| list.len().max(1)),
            kernel: read("/proc/sys/kernel/osrelease"),
            congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control"),
            governor: governor(),
            mitigations: mitigations(),
            virtual_machine: field("flags").is_some_and(|f| f.contains(" hypervisor")),
            revision: std::env::current_exe().ok().as_deref().and_then(revision),
        }
    }

    /// The facts as JSON.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// The facts in one line.
    pub fn summary(&self) -> String {
        format!(
            "{} × {}{}, Linux {}, congestion control {}, governor {}",
            self.cpus,
            self.cpu,
            if self.virtual_machine { " (virtual machine)" } else { "" },
            self.kernel,
            self.congestion_control,
            self.governor,
        )
    }
}

/// A small file of the kernel, trimmed; empty if it does not exist.
pub fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// The frequency governor of the first hardware thread.
pub fn governor() -> String {
    let name = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    if name.is_empty() { "none (no cpufreq here)".to_owned() } else { name }
}

/// One entry for each bug that this processor has.
fn mitigations() -> Vec<String> {
    let Ok(bugs) = fs::read_dir("/sys/devices/system/cpu/vulnerabilities") else {
        return Vec::new();
    };
    let mut lines: Vec<String> = bugs
        .flatten()
        .map(|bug| (bug.file_name().to_string_lossy().into_owned(), read(bug.path())))
        .filter(|(_, state)| !state.starts_with("Not affected"))
        .map(|(name, state)| format!("{name}: {state}"))
        .collect();
    lines.sort();
    lines
}

/// The commit that is checked out in the first repository above `start`.
fn revision(start: &Path) -> Option<String> {
    let git = start.ancestors().map(|dir| dir.join(".git")).find(|git| git.exists())?;
    // In a linked work tree `.git` is a file with the path of the rest.
    let git = match fs::read_to_string(&git) {
        Ok(text) => PathBuf::from(text.strip_prefix("gitdir:")?.trim()),
        Err(_) => git,
    };
    let head = read(git.join("HEAD"));
    let Some(name) = head.strip_prefix("ref: ") else { return Some(head) };
    let common = match fs::read_to_string(git.join("commondir")) {
        Ok(text) => git.join(text.trim()),
        Err(_) => git,
    };
    let loose = read(common.join(name));
    if !loose.is_empty() {
        return Some(loose);
    }
    let packed = read(common.join("packed-refs"));
    let line = packed.lines().find(|line| line.ends_with(&format!(" {name}")))?;
    line.split(' ').next().map(str::to_owned)
}

/// Hardware threads for the two ends of a benchmark, server and client: half of the cores each,
/// best first; the same one twice on a machine that has only one.
pub fn split_cpus() -> (Vec<usize>, Vec<usize>) {
    let core = |cpu: usize| {
        let topology = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
        (read(format!("{topology}/physical_package_id")), read(format!("{topology}/core_id")))
    };
    split(cpu::allowed().into_iter().map(|cpu| (cpu, core(cpu))).collect())
}

/// Whole cores for one end or the other; the first hardware threads of each core come first.
fn split<C: PartialEq + Clone>(cpus: Vec<(usize, C)>) -> (Vec<usize>, Vec<usize>) {
    let mut cores: Vec<(C, Vec<usize>)> = Vec::new();
    for (cpu, core) in cpus {
        match cores.iter_mut().find(|(known, _)| *known == core) {
            Some((_, list)) => list.push(cpu),
            None => cores.push((core, vec![cpu])),
        }
    }
    // A single core's hardware threads are parted after all.
    if let [(core, threads)] = &mut cores[..]
        && threads.len() > 1
    {
        let part = (core.clone(), threads.split_off(threads.len() / 2));
        cores.push(part);
    }
    // Low numbers have the interrupts and the system's own work, so the server gets the high ones.
    let (client, server) = cores.split_at(cores.len() / 2);
    let first_threads_first = |cores: Vec<&Vec<usize>>| {
        let deepest = cores.iter().map(|threads| threads.len()).max().unwrap_or(0);
        let mut list = Vec::new();
        for n in 0..deepest {
            list.extend(cores.iter().filter_map(|threads| threads.get(n)));
        }
        list
    };
    let mut server = first_threads_first(server.iter().rev().map(|(_, t)| t).collect());
    if server.is_empty() {
        server.push(0);
    }
    let client = first_threads_first(client.iter().rev().map(|(_, t)| t).collect());
    let client = if client.is_empty() { server.clone() } else { client };
    (server, client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_processor_and_a_kernel() {
        let machine = Machine::read();
        assert!(machine.cpus > 0 && machine.threads_per_core > 0);
        assert!(machine.kernel.contains('.') && machine.cpu != "unknown");
    }

    #[test]
    fn the_revision_is_found_loose_and_packed() {
        let dir = std::env::temp_dir().join(format!("ix-revision-{}", std::process::id()));
        let git = dir.join(".git");
        fs::create_dir_all(git.join("refs/heads")).expect("mkdir");
        fs::create_dir_all(dir.join("target/release")).expect("mkdir");
        fs::write(git.join("HEAD"), "ref: refs/heads/main\n").expect("write");
        fs::write(git.join("packed-refs"), "# pack\nabc123 refs/heads/main\n").expect("write");
        let exe = dir.join("target/release/ix");
        assert_eq!(revision(&exe).as_deref(), Some("abc123"));
        fs::write(git.join("refs/heads/main"), "def456\n").expect("write");
        assert_eq!(revision(&exe).as_deref(), Some("def456"));
        fs::write(git.join("HEAD"), "fff\n").expect("write");
        assert_eq!(revision(&exe).as_deref(), Some("fff"));
        fs::remove_dir_all(&dir).expect("clean up");
        assert_eq!(revision(&exe), None);
    }

    #[test]
    fn the_two_ends_share_no_core_without_need() {
        let ends = |cores: &[usize]| split(cores.iter().copied().enumerate().collect());
        assert_eq!(ends(&[0]), (vec![0], vec![0]));
        assert_eq!(ends(&[0, 1]), (vec![1], vec![0]));
        // One core with two hardware threads.
        assert_eq!(ends(&[0, 0]), (vec![1], vec![0]));
        // Four cores with two hardware threads each, numbered as Linux does.
        let (server, client) = ends(&[0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!((server, client), (vec![3, 2, 7, 6], vec![1, 0, 5, 4]));
        let (server, client) = split_cpus();
        assert_eq!(server == client, cpu::allowed().len() == 1);
    }
}
