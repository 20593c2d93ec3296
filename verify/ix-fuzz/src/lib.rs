//! Fuzz targets. Each is a function of bytes that panics when something is wrong, so that libFuzzer
//! (`verify/fuzz/`, with coverage and sanitizers), this crate's own driver (`ix-fuzz TARGET
//! --seconds 60`) and `cargo test` (a short run by seed, and every input that ever failed) run the
//! same code.
//!
//! There are two kinds: targets that feed a component with anything and check that it neither
//! panics nor loses a resource, and targets that compare a structure with a naive model of it.
#![forbid(unsafe_code)]

pub mod bytes;
pub mod mutate;
mod targets;

use std::path::PathBuf;

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, and the name of its folder in `verify/fuzz/corpus`.
    pub name: &'static str,
    /// Panics if the input shows an error.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "wire", run: targets::wire::run },
    Target { name: "tcp", run: targets::tcp::run },
    Target { name: "fragments", run: targets::fragments::run },
    Target { name: "link", run: targets::link::run },
    Target { name: "abi", run: targets::abi::run },
    Target { name: "memif_control", run: targets::memif::run },
    Target { name: "control_socket", run: targets::control::run },
    Target { name: "memcached", run: targets::memcached::run },
    Target { name: "checksum", run: targets::checksum::run },
    Target { name: "toeplitz", run: targets::toeplitz::run },
    Target { name: "wheel", run: targets::models::wheel },
    Target { name: "flow_table", run: targets::models::flow_table },
    Target { name: "reassembly", run: targets::models::reassembly },
    Target { name: "sack", run: targets::models::sack },
];

/// The target of this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().copied().find(|target| target.name == name)
}

/// Runs a target, for libFuzzer.
///
/// # Panics
/// If the input shows an error, or there is no such target.
pub fn run(name: &str, bytes: &[u8]) {
    let target = target(name).unwrap_or_else(|| panic!("no target is called {name}"));
    (target.run)(bytes);
}

/// The committed inputs of a target, in order of their names.
pub fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(name);
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().filter_map(|path| std::fs::read(path).ok()).collect()
}
