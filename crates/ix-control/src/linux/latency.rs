//! C-states: how long a hardware thread may take to wake.
use super::files::{FileError, Tree};
use std::collections::BTreeMap;

/// Longest wake-up of a hardware thread that serves, µs. Deeper states stay shut: an elastic thread
/// sleeps on its doorbell between bursts.
pub const SERVING_US: u32 = 50;

/// Wake-up latencies that the kernel's idle governor heeds.
#[derive(Debug)]
pub struct Latency {
    tree: Tree,
    before: BTreeMap<String, String>,
}

impl Latency {
    /// Of this tree.
    pub fn new(tree: &Tree) -> Latency {
        Latency { tree: tree.clone(), before: BTreeMap::new() }
    }

    /// Whether there are C-states to choose from.
    pub fn missing(&self) -> Option<String> {
        let folder = "sys/devices/system/cpu/cpu0/cpuidle/state1";
        let why = || format!("no C-states at {}", self.tree.path(folder).display());
        (!self.tree.has(folder)).then(why)
    }

    /// Bounds the wake-up of a hardware thread; `None`: it may sleep as deeply as it likes.
    pub fn bound(&mut self, cpu: u32, most_us: Option<u32>) -> Result<(), FileError> {
        let file = format!("sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us");
        // 0 is no bound; "n/a" would be no latency at all.
        let text = most_us.unwrap_or(0).to_string();
        let now = self.tree.read(&file)?;
        if now != text {
            self.tree.write(&file, &text)?;
            self.before.entry(file).or_insert(now);
        }
        Ok(())
    }

    /// Leaves everything as it was found.
    pub fn restore(&mut self) {
        for (file, text) in std::mem::take(&mut self.before) {
            let _ = self.tree.write(file, &text);
        }
    }
}
