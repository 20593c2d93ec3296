//! Very many connection lifetimes under faults, on any number of Linux threads.
use crate::observer::Lives;
use crate::plan::{Options, Plan, Scenario};
use crate::world::{Outcome, World};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time between two lines of progress.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// One run of a seed.
pub fn run_seed(seed: u64) -> Outcome {
    World::new(seed, Plan::new(seed, Scenario::Lives, &Options::default())).run()
}

/// Results of runs without a violation.
pub struct Lived {
    /// The connections' lives.
    pub lives: Lives,
    /// Virtual time of all runs together.
    pub virtual_time: Duration,
}

/// State that the threads share.
struct Progress {
    next_seed: u64,
    lives: Lives,
    virtual_time: Duration,
    failed: Option<(u64, Box<Outcome>)>,
    said: Instant,
}

/// Runs seeds from `first` on, `jobs` at a time. Stops when this many connections have lived, or
/// when one run has failed; then the error is that run's seed. Calls `say` with the progress.
pub fn run(
    first: u64,
    lifetimes: u64,
    jobs: u64,
    say: impl Fn(u64, u64) + Sync,
) -> Result<Lived, (u64, Box<Outcome>)> {
    let progress = Mutex::new(Progress {
        next_seed: first,
        lives: Lives::default(),
        virtual_time: Duration::ZERO,
        failed: None,
        said: Instant::now(),
    });
    let lock = || progress.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let work = || loop {
        let seed = {
            let mut progress = lock();
            if progress.lives.count >= lifetimes || progress.failed.is_some() {
                return;
            }
            progress.next_seed += 1;
            progress.next_seed - 1
        };
        let outcome = run_seed(seed);
        let mut progress = lock();
        progress.lives.add(&outcome.lives);
        progress.virtual_time += Duration::from_micros(outcome.took_us);
        if !outcome.violations.is_empty() {
            progress.failed.get_or_insert((seed, Box::new(outcome)));
        }
        if progress.said.elapsed() > SAY_EVERY {
            progress.said = Instant::now();
            say(progress.lives.count, lifetimes);
        }
    };
    std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    let progress = progress.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    match progress.failed {
        Some(failed) => Err(failed),
        None => Ok(Lived { lives: progress.lives, virtual_time: progress.virtual_time }),
    }
}
