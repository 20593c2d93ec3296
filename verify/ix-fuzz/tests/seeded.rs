//! Each target on its corpus and on inputs made of it by a seed: seconds here, hours with `ix-fuzz`
//! or libFuzzer (`verify/fuzz/`).
use ix_fuzz::mutate::input;
use ix_fuzz::{TARGETS, corpus, target};
use ix_random::Rng;
use std::path::Path;

/// Prints the input of a run that did not come to its end.
struct Show<'a>(&'a [u8]);

impl Drop for Show<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the input: {:02x?}", self.0);
        }
    }
}

fn runs(name: &str, count: usize) {
    let target = target(name).expect("a target of this name");
    let corpus = corpus(name);
    assert!(!corpus.is_empty(), "verify/fuzz/corpus/{name} is empty");
    let run = |bytes: &[u8]| {
        let show = Show(bytes);
        (target.run)(bytes);
        drop(show);
    };
    corpus.iter().for_each(|bytes| run(bytes));
    let mut rng = Rng::new(2026);
    (0..count).for_each(|_| run(&input(&corpus, &mut rng)));
}

#[test]
fn wire() {
    runs("wire", 20_000);
}

#[test]
fn tcp() {
    runs("tcp", 2_000);
}

#[test]
fn fragments() {
    runs("fragments", 5_000);
}

#[test]
fn link() {
    runs("link", 5_000);
}

#[test]
fn abi() {
    runs("abi", 500);
}

#[test]
fn memif_control() {
    runs("memif_control", 200);
}

#[test]
fn control_socket() {
    runs("control_socket", 300);
}

#[test]
fn memcached() {
    runs("memcached", 5_000);
}

#[test]
fn checksum() {
    runs("checksum", 5_000);
}

#[test]
fn toeplitz() {
    runs("toeplitz", 1_000);
}

#[test]
fn wheel() {
    runs("wheel", 300);
}

#[test]
fn flow_table() {
    runs("flow_table", 300);
}

#[test]
fn reassembly() {
    runs("reassembly", 2_000);
}

#[test]
fn sack() {
    runs("sack", 2_000);
}

/// A target that libFuzzer does not know, or the other way round, is never run.
#[test]
fn each_target_is_libfuzzers_too() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    let manifest =
        std::fs::read_to_string(folder.join("Cargo.toml")).expect("verify/fuzz/Cargo.toml");
    for target in TARGETS {
        let name = target.name;
        assert!(folder.join(format!("fuzz_targets/{name}.rs")).exists(), "{name}");
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
    }
    assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len());
}
