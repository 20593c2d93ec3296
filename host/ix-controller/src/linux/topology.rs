//! Online hardware threads, and which of them share a core.
use super::files::{Tree, parse_list};
use crate::Core;

const CPUS: &str = "sys/devices/system/cpu";

/// Online hardware threads, ascending; empty if the kernel does not list them.
pub fn online(tree: &Tree) -> Vec<u32> {
    let text = tree.read(format!("{CPUS}/online")).unwrap_or_default();
    parse_list(&text).unwrap_or_default()
}

/// Cores with their online hardware threads. A hardware thread without topology counts as a core.
pub fn cores(tree: &Tree) -> Vec<Core> {
    let online = online(tree);
    let mut cores: Vec<Core> = Vec::new();
    for &cpu in &online {
        if cores.iter().any(|core| core.cpus.contains(&cpu)) {
            continue;
        }
        let folder = format!("{CPUS}/cpu{cpu}/topology");
        let siblings = tree.read(format!("{folder}/thread_siblings_list")).ok();
        let mut cpus = siblings.and_then(|text| parse_list(&text)).unwrap_or_default();
        // Siblings may go offline between two reads.
        cpus.retain(|sibling| online.contains(sibling));
        if !cpus.contains(&cpu) {
            cpus = vec![cpu];
        }
        cpus.sort_unstable();
        let package = tree.number(format!("{folder}/physical_package_id")).unwrap_or(0) as u32;
        cores.push(Core { cpus, package });
    }
    cores
}
