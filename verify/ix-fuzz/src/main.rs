//! `ix-fuzz`: runs targets on mutated inputs of their corpora, for a while, without libFuzzer.
#![forbid(unsafe_code)]

use clap::Parser;
use ix_fuzz::mutate::input;
use ix_fuzz::{TARGETS, Target, corpus, target};
use ix_random::Rng;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Runs fuzz targets; writes an input that fails to a file, and ends with its panic.
#[derive(Parser)]
#[command(name = "ix-fuzz")]
struct Args {
    /// Targets to run, one after another (default: all)
    targets: Vec<String>,
    /// Time for each target
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seed: the same seed gives the same inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run only this input
    #[arg(long, value_name = "FILE")]
    input: Option<std::path::PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let chosen: Result<Vec<Target>, &String> =
        args.targets.iter().map(|name| target(name).ok_or(name)).collect();
    let chosen = match chosen {
        Ok(chosen) if chosen.is_empty() => TARGETS.to_vec(),
        Ok(chosen) => chosen,
        Err(name) => {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            eprintln!("ix-fuzz: no target is called {name}; there are {}", names.join(", "));
            return ExitCode::from(2);
        }
    };
    if let Some(path) = &args.input {
        let Ok(bytes) = std::fs::read(path) else {
            eprintln!("ix-fuzz: cannot read {}", path.display());
            return ExitCode::FAILURE;
        };
        chosen.iter().for_each(|target| (target.run)(&bytes));
        return ExitCode::SUCCESS;
    }
    for target in chosen {
        fuzz(target, &args);
    }
    ExitCode::SUCCESS
}

/// The input that runs, for the investigation of a panic.
static LAST: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// A panic leaves its input in a file.
fn keep_input(name: &'static str) {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        usual(info);
        let file = std::env::temp_dir().join(format!("ix-fuzz-{name}-{}", std::process::id()));
        let bytes = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        match std::fs::write(&file, &*bytes) {
            Ok(()) => eprintln!("ix-fuzz: its input is in {}", file.display()),
            Err(e) => eprintln!("ix-fuzz: cannot write {}: {e}", file.display()),
        }
    }));
}

fn fuzz(target: Target, args: &Args) {
    let corpus = corpus(target.name);
    let mut rng = Rng::new(args.seed);
    let (begin, limit) = (Instant::now(), Duration::from_secs(args.seconds));
    let mut runs = 0u64;
    keep_input(target.name);
    while begin.elapsed() < limit {
        let bytes = input(&corpus, &mut rng);
        LAST.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&bytes);
        (target.run)(&bytes);
        runs += 1;
    }
    drop(std::panic::take_hook());
    let seconds = begin.elapsed().as_secs_f64();
    println!("{:<14} {runs:>10} runs in {seconds:.0} s, nothing found", target.name);
}
