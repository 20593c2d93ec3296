//! Threads and reports.
use crate::Second;
use crate::args::Args;
use crate::job::Job;
use anyhow::{Context, Result, anyhow};
use serde_json::json;
use std::io::{ErrorKind, Write};
use std::thread;
use std::time::{Duration, Instant};

/// Works and reports until the end, or until the reader of the reports is gone.
pub fn run(args: &Args) -> Result<()> {
    let threads = match args.threads {
        Some(threads) => threads as usize,
        None => thread::available_parallelism().context("cannot count hardware threads")?.get(),
    };
    let bytes = usize::try_from(args.bytes).unwrap_or(usize::MAX);
    let job = Job::new(bytes, threads).ok_or_else(|| {
        anyhow!("no memory for an array of {bytes} bytes; choose a smaller one with --bytes")
    })?;
    thread::scope(|scope| {
        let outcome = (0..threads).try_for_each(|number| {
            let job = &job;
            let pin = move || match &args.cpus {
                Some(cpus) => {
                    let cpu = cpus.0[number % cpus.0.len()];
                    ix_sys::cpu::pin(cpu).with_context(|| {
                        format!("cannot run on hardware thread {cpu}; choose others with --cpus")
                    })
                }
                None => Ok(()),
            };
            let (send, told) = std::sync::mpsc::channel();
            let work = move || {
                let pinned = pin();
                let goes = pinned.is_ok();
                // The other end waits for exactly this.
                let _ = send.send(pinned);
                if goes {
                    job.work(number);
                }
            };
            thread::Builder::new().spawn_scoped(scope, work).context("cannot start a thread")?;
            told.recv().context("a thread ended at once")?
        });
        let outcome = outcome.and_then(|()| report(args, &job, threads));
        job.stop();
        outcome
    })
}

/// Reports each interval, and the total at the end.
fn report(args: &Args, job: &Job, threads: usize) -> Result<()> {
    let start = Instant::now();
    let end = args.seconds.map(|seconds| start + Duration::from_secs_f64(seconds));
    let interval = Duration::from_secs_f64(args.interval);
    let first = job.done();
    let (mut since, mut before) = (start, first);
    loop {
        // A freeze of this job freezes this thread, too, so the true time since the last report
        // counts.
        let next = since + interval;
        let wake = end.map_or(next, |end| next.min(end));
        thread::sleep(wake.saturating_duration_since(Instant::now()));
        let (now, done) = (Instant::now(), job.done());
        let rate = rate(done - before, now - since);
        let at_s = (now - start).as_secs_f64();
        let line = match args.json {
            true => serde_json::to_string(&Second { at_s, threads, bytes_per_s: rate })?,
            false => format!("{at_s:8.1} s  {:10.1} MB/s", rate / 1e6),
        };
        if !say(&line)? {
            return Ok(());
        }
        (since, before) = (now, done);
        if end.is_some_and(|end| now >= end) {
            break;
        }
    }
    let whole = rate(before - first, since - start);
    let seconds = (since - start).as_secs_f64();
    let line = match args.json {
        true => {
            json!({"whole": true, "seconds": seconds, "threads": threads, "bytes_per_s": whole})
                .to_string()
        }
        false => {
            format!("{seconds:8.1} s  {:10.1} MB/s on average, {threads} threads", whole / 1e6)
        }
    };
    say(&line).map(drop)
}

fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64().max(1e-9)
}

/// Writes a line at once; `false`: the reader is gone.
fn say(line: &str) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(e).context("cannot write a report"),
    }
}
