//! Threads of a program, and where they run.
use crate::{cpu::Cpus, socket};
use anyhow::{Context, Result, anyhow};
use libix::raw::Process;
use std::sync::mpsc::{Sender, channel};

/// Where the threads run.
#[derive(Clone, Copy)]
pub enum Place {
    /// On elastic threads.
    Ix(Process),
    /// On Linux sockets.
    Linux,
}

impl Place {
    /// Linux if asked for, with as many descriptors as it allows; else the dataplane of this
    /// process.
    pub fn find(linux: bool) -> Result<Place> {
        if linux {
            socket::raise_descriptor_limit().context("cannot raise the limit of open files")?;
            return Ok(Place::Linux);
        }
        dataplane().map(Place::Ix)
    }

    /// `ix` or `linux`.
    pub fn name(&self) -> &'static str {
        match self {
            Place::Ix(_) => "ix",
            Place::Linux => "linux",
        }
    }

    /// This many threads if asked for; else one on Linux, and all of a dataplane's.
    pub fn threads(&self, asked: Option<u32>) -> u32 {
        asked.unwrap_or(match self {
            Place::Ix(process) => process.threads(),
            Place::Linux => 1,
        })
    }
}

/// The dataplane of this process.
pub fn dataplane() -> Result<Process> {
    Process::find().map_err(|error| anyhow!("{error}; or use Linux sockets with --linux"))
}

/// Pins the calling thread, the `index`-th, if there is a list of hardware threads.
pub fn pin(cpus: Option<&Cpus>, index: u32) -> Result<()> {
    let Some(cpus) = cpus else { return Ok(()) };
    let cpu = cpus.0[index as usize % cpus.0.len()];
    ix_sys::cpu::pin(cpu).with_context(|| format!("cannot pin to CPU {cpu}"))
}

/// By this a server's thread reports that it listens.
pub struct Listening(Sender<Result<()>>);

impl Listening {
    /// Reports that it listens.
    pub fn say(&self) {
        // The receiver lives until all threads have ended.
        let _ = self.0.send(Ok(()));
    }
}

/// Runs `serve` on threads 0 to `threads` - 1, and `ready` once all of them listen. They serve
/// without end: if one ends, the process ends with its error, which names the `program`.
pub fn serve(
    program: &str,
    threads: u32,
    serve: impl Fn(u32, &Listening) -> Result<()> + Sync,
    ready: impl FnOnce(),
) {
    let (news, hear) = channel();
    std::thread::scope(|scope| {
        for index in 0..threads {
            let (listening, serve) = (Listening(news.clone()), &serve);
            scope.spawn(move || {
                let served = serve(index, &listening);
                // The receiver lives until all threads have ended.
                let _ = listening.0.send(served.and(Err(anyhow!("thread {index} ended"))));
            });
        }
        let mut ready = Some(ready);
        for (listening, event) in (1..).zip(hear) {
            if let Err(error) = event {
                eprintln!("{program}: {error:#}");
                std::process::exit(1);
            }
            if listening == threads
                && let Some(ready) = ready.take()
            {
                ready();
            }
        }
    });
}
