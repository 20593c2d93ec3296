//! C-states: how long a hardware thread may take to wake.
use super::files::{FileError, Tree};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Longest wake-up of a hardware thread that serves, µs. Deeper states are excluded, because an
/// elastic thread sleeps on its doorbell between bursts.
pub const SERVING_US: u32 = 50;
/// Former values, in a file for each process that has set bounds, named after the process. A
/// process that is killed restores nothing, and its bounds stay with the processors.
const RECORDS: &str = "run/ix/c-states";
/// The kernel's word for no latency at all: the idle loop polls. 0 means no bound.
const POLL: &str = "n/a";

/// Wake-up latencies that the kernel's idle governor heeds.
#[derive(Debug)]
pub struct Latency {
    tree: Tree,
    before: BTreeMap<u32, String>,
    /// Distinguishes the values of one process.
    number: usize,
}

impl Latency {
    /// Makes it for a tree.
    pub fn new(tree: &Tree) -> Latency {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        Latency { tree: tree.clone(), before: BTreeMap::new(), number }
    }

    /// Why there are no C-states to choose from.
    pub fn missing(&self) -> Option<String> {
        let folder = "sys/devices/system/cpu/cpu0/cpuidle/state1";
        let why = || format!("no C-states at {}", self.tree.path(folder).display());
        (!self.tree.has(folder)).then(why)
    }

    /// Bounds the wake-up of a hardware thread. 0: it never halts, and Linux's idle loop polls on
    /// it; `None`: it may sleep as deeply as it likes.
    pub fn bound(&mut self, cpu: u32, most_us: Option<u32>) -> Result<(), FileError> {
        let text = match most_us {
            None => "0".to_owned(),
            Some(0) => POLL.to_owned(),
            Some(us) => us.to_string(),
        };
        let now = self.tree.read(file(cpu))?;
        if now != text {
            if let Entry::Vacant(first) = self.before.entry(cpu) {
                first.insert(now);
                // The record comes first: without the bound it does no harm.
                self.record();
            }
            self.tree.write(file(cpu), &text)?;
        }
        Ok(())
    }

    /// Restores the former state.
    pub fn restore(&mut self) {
        for (cpu, text) in std::mem::take(&mut self.before) {
            let _ = self.tree.write(file(cpu), &text);
        }
        let _ = fs::remove_file(self.own_record());
    }

    /// Hardware threads whose bounds a killed process has left.
    pub fn left(&self) -> Vec<u32> {
        let mut cpus: Vec<u32> =
            self.dead().iter().flat_map(|(_, before)| before.keys().copied()).collect();
        cpus.retain(|cpu| self.is_bounded(*cpu));
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }

    /// Restores what killed processes have left.
    pub fn heal(&self) {
        for (name, before) in self.dead() {
            for (cpu, text) in before {
                // Another process's bound must stay.
                if self.is_bounded(cpu) {
                    let _ = self.tree.write(file(cpu), &text);
                }
            }
            let _ = fs::remove_file(self.tree.path(RECORDS).join(name));
        }
    }

    fn is_bounded(&self, cpu: u32) -> bool {
        self.tree.read(file(cpu)).is_ok_and(|now| now == SERVING_US.to_string() || now == POLL)
    }

    /// Records of processes that have ended, by file name.
    fn dead(&self) -> Vec<(String, BTreeMap<u32, String>)> {
        let own = std::process::id().to_string();
        let is_dead = |name: &String| {
            let pid = name.split('-').next().unwrap_or_default();
            pid != own && !self.tree.has(format!("proc/{pid}"))
        };
        let dead = self.tree.names(RECORDS).into_iter().filter(is_dead);
        let read = |name: String| {
            let text = self.tree.read(format!("{RECORDS}/{name}")).ok()?;
            let line = |line: &str| {
                let (cpu, before) = line.split_once(' ')?;
                Some((cpu.parse().ok()?, before.to_owned()))
            };
            Some((name, text.lines().filter_map(line).collect()))
        };
        dead.filter_map(read).collect()
    }

    fn own_record(&self) -> std::path::PathBuf {
        self.tree.path(RECORDS).join(format!("{}-{}", std::process::id(), self.number))
    }

    /// If it cannot be written, the bounds are still restored at a normal end.
    fn record(&self) {
        let lines = self.before.iter().map(|(cpu, before)| format!("{cpu} {before}\n"));
        let _ = fs::create_dir_all(self.tree.path(RECORDS));
        let _ = fs::write(self.own_record(), lines.collect::<String>());
    }
}

fn file(cpu: u32) -> String {
    format!("sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us")
}
