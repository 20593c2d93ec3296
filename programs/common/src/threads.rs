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
    /// Linux if asked for, with as many descriptors as it allows; else the dataplane around us.
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

    /// So many threads if asked for; else one on Linux, and all of a dataplane's.
    pub fn threads(&self, asked: Option<u32>) -> u32 {
        asked.unwrap_or(match self {
            Place::Ix(process) => process.threads(),
            Place::Linux => 1,
        })
    }
}

/// The dataplane around this process.
pub fn dataplane() -> Result<Process> {
    Process::find().map_err(|error| anyhow!("{error}; or use Linux sockets with --linux"))
}

/// Puts the calling thread, the `index`-th, on its hardware thread if there is a list of them.
pub fn pin(cpus: Option<&Cpus>, index: u32) -> Result<()> {
    let Some(cpus) = cpus else { return Ok(()) };
    let cpu = cpus.0[index as usize % cpus.0.len()];
    ix_sys::cpu::pin(cpu).with_context(|| format!("cannot pin to CPU {cpu}"))
}

/// By which a server's thread says that it listens.
pub struct Listening(Sender<Result<()>>);

impl Listening {
    /// It listens now.
    pub fn say(&self) {
        // The receiver lives until all threads have ended.
        let _ = self.0.send(Ok(()));
    }
}

/// Runs `serve` on threads 0 to `threads` - 1, and `ready` once all of them listen. They serve for
/// ever: the first one that ends ends the process, with its error, which names the `program`.
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
