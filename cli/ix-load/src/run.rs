//! One run: threads, their common start, their seconds, the result.
use crate::clock::Clock;
use crate::engine::Interval;
use crate::master;
use crate::plan::Plan;
use crate::report::{self, Collected, HIT_RATE_LEAST};
use crate::worker::{self, Hub, News};
use crate::{STATUS_ERRORS, STATUS_MISSES};
use anyhow::{Context, Result, anyhow, bail};
use ix_programs::threads::Place;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The start is announced this long ahead.
const AHEAD_NS: u64 = 2_000_000;
/// How often a waiting thread checks whether the run ends.
const LOOK: Duration = Duration::from_secs(1);
/// Threads that report nothing for this long hang.
const SILENCE: Duration = Duration::from_secs(30);

/// Runs a plan on this machine and prints the report; returns the exit status.
pub fn run(plan: Plan, machine: &dyn Fn() -> Value) -> Result<u8> {
    if !plan.args.agents.is_empty() {
        return master::run(plan, machine);
    }
    let place = place()?;
    let mut collected = Collected::new(plan.clone(), place.name());
    let quiet = plan.args.quiet;
    let show = |collected: &mut Collected, happening: Happening| {
        match happening {
            Happening::Stored(stored) if !quiet => {
                eprintln!("stored {stored} of {} records", plan.args.records);
            }
            Happening::Interval(interval, threads) => {
                if let Some(second) = collected.add(*interval, threads) {
                    if !quiet {
                        eprintln!("{}", report::progress(&second.row));
                    }
                    return second.stop;
                }
            }
            Happening::Stored(_) | Happening::Ready | Happening::Alive => {}
        }
        None
    };
    let outcome = local(&plan, place, |happening| show(&mut collected, happening), &mut || Ok(()))?;
    collected.stopped = outcome.stopped;
    conclude(&plan, collected, outcome.failed, machine)
}

/// Where the threads of this process run.
pub fn place() -> Result<Place> {
    use libix::raw::FindError;
    match libix::raw::Process::find() {
        Ok(process) => Ok(Place::Ix(process)),
        Err(FindError::NotUnderIx) => Ok(Place::Linux),
        Err(error) => Err(anyhow!("{error}")),
    }
}

/// Events of a run.
pub enum Happening {
    /// This many records are stored in all.
    Stored(u64),
    /// All threads are connected.
    Ready,
    /// One thread's second, and the number of threads.
    Interval(Box<Interval>, usize),
    /// Nothing happened for a second.
    Alive,
}

/// How the threads ended.
pub struct Outcome {
    /// Why the run was stopped early.
    pub stopped: Option<String>,
    /// The first thread that failed after the start.
    pub failed: Option<anyhow::Error>,
}

/// Runs the threads of this process. `happened` may return why the run must stop; `barrier` waits
/// for the other machines once all threads are ready.
pub fn local(
    plan: &Plan,
    place: Place,
    mut happened: impl FnMut(Happening) -> Option<String>,
    barrier: &mut dyn FnMut() -> Result<()>,
) -> Result<Outcome> {
    if matches!(place, Place::Linux) {
        ix_programs::socket::raise_descriptor_limit()
            .context("cannot raise the limit of open files")?;
    }
    let threads = plan.threads(place.threads(plan.args.threads));
    if matches!(place, Place::Ix(_)) && plan.args.udp && threads > 1 {
        bail!(
            "--udp on a dataplane needs exactly one elastic thread; give one hardware thread in --cpus"
        );
    }
    let hub = Hub {
        plan: plan.clone(),
        threads,
        clock: Clock::calibrated(),
        go_ns: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    let (news, hear) = channel();
    thread::scope(|scope| {
        let hub = &hub;
        for index in 0..threads {
            let news = news.clone();
            scope.spawn(move || worker::run(hub, place, index, &news));
        }
        drop(news);
        let outcome = listen(hub, &hear, &mut happened, barrier);
        // The threads end in any case.
        hub.stop.store(true, Ordering::Relaxed);
        outcome
    })
}

fn listen(
    hub: &Hub,
    hear: &Receiver<News>,
    happened: &mut dyn FnMut(Happening) -> Option<String>,
    barrier: &mut dyn FnMut() -> Result<()>,
) -> Result<Outcome> {
    let mut outcome = Outcome { stopped: None, failed: None };
    let (mut ready, mut ended, mut stored) = (0, 0, 0);
    let (mut last_told, mut last_news) = (Instant::now(), Instant::now());
    let threads = hub.threads as usize;
    while ended < threads {
        let event = match hear.recv_timeout(LOOK) {
            Ok(event) => event,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if last_news.elapsed() > SILENCE && ready == threads => {
                bail!("the load threads have not reported for 30 s");
            }
            Err(RecvTimeoutError::Timeout) => {
                stop(hub, &mut outcome, happened(Happening::Alive));
                continue;
            }
        };
        last_news = Instant::now();
        match event {
            News::Stored(more) => {
                stored += more;
                if last_told.elapsed() > Duration::from_secs(1) {
                    last_told = Instant::now();
                    happened(Happening::Stored(stored));
                }
            }
            News::Ready => {
                ready += 1;
                if ready == threads {
                    happened(Happening::Ready);
                    barrier()?;
                    hub.go_ns.store(hub.clock.now_ns() + AHEAD_NS, Ordering::Release);
                }
            }
            News::Interval(interval) => {
                stop(hub, &mut outcome, happened(Happening::Interval(interval, threads)));
            }
            News::Ended(Ok(())) => ended += 1,
            News::Ended(Err(error)) if ready < threads => return Err(error),
            News::Ended(Err(error)) => {
                ended += 1;
                outcome.failed.get_or_insert(error);
                hub.stop.store(true, Ordering::Relaxed);
            }
        }
    }
    Ok(outcome)
}

/// Ends the threads early if there is a reason.
fn stop(hub: &Hub, outcome: &mut Outcome, why: Option<String>) {
    if let Some(why) = why {
        outcome.stopped.get_or_insert(why);
        hub.stop.store(true, Ordering::Relaxed);
    }
}

/// Prints the result and returns its exit status.
pub fn conclude(
    plan: &Plan,
    mut collected: Collected,
    failed: Option<anyhow::Error>,
    machine: &dyn Fn() -> Value,
) -> Result<u8> {
    if plan.args.preload_only {
        ix_sys::outln!("stored {} records", plan.args.records);
        return Ok(0);
    }
    collected.flush();
    if collected.answers() == 0 {
        let first = collected.faults().kinds().next().map(|(_, _, what)| what.to_owned());
        let why = first.unwrap_or_else(|| "no reply within the time limit".to_string());
        return Err(failed
            .unwrap_or_else(|| anyhow!("{why}"))
            .context(format!("no request to {} got a reply", plan.args.target)));
    }
    let summary = collected.summary();
    let places: Vec<&PathBuf> =
        [&plan.args.json, &plan.args.output].into_iter().flatten().collect();
    if !places.iter().any(|path| path.as_os_str() == "-") {
        ix_sys::out!("{}", report::table(&summary));
    }
    for line in collected.remarks() {
        eprintln!("ix load: {line}");
    }
    if !places.is_empty() {
        let command: Vec<String> = std::env::args().collect();
        let object = json!({
            "bench": "load",
            "machine": machine(),
            "command": command.join(" "),
            "rows": collected.rows(),
        });
        places.iter().try_for_each(|path| write_json(path, &object))?;
    }
    if let Some(error) = &failed {
        eprintln!("ix load: {error:#}");
    }
    let missed = collected.hit_rate().is_some_and(|rate| rate < HIT_RATE_LEAST);
    if missed && !plan.args.allow_misses {
        let rate = collected.hit_rate().unwrap_or_default() * 100.0;
        eprintln!(
            "ix load: only {rate:.2} % of gets found a value, too few for a result; give the server \
             more memory, use fewer --records, or use --allow-misses"
        );
        return Ok(STATUS_MISSES);
    }
    let errors = collected.faults().total() > 0 || collected.partial || failed.is_some();
    Ok(if errors { STATUS_ERRORS } else { 0 })
}

fn write_json(path: &Path, object: &Value) -> Result<()> {
    if path == Path::new("-") {
        let mut out = std::io::stdout().lock();
        return writeln!(out, "{object}").context("cannot write the result");
    }
    std::fs::write(path, format!("{object}\n"))
        .with_context(|| format!("cannot write the result to {}", path.display()))
}
