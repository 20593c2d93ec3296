//! Threads: who serves or loads where, and what comes of it.
use crate::args::{Args, Direction, Serve};
use crate::bulk::{BulkClient, BulkServer};
use crate::client::{EchoClient, Load};
use crate::report::{self, Sample};
use crate::server::{EchoServer, Limits};
use anyhow::{Context, Result, anyhow, bail};
use ix_apps::{clock, cpu, ix, linux, socket};
use libix::raw::{Process, Thread, Wait};
use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// Where the threads run.
enum Place {
    Ix(Process),
    Linux,
}

/// Carries out the command line.
pub fn run(args: &Args) -> Result<()> {
    if args.linux {
        socket::raise_descriptor_limit().context("cannot raise the limit of open files")?;
    }
    let place = if args.linux { Place::Linux } else { Place::Ix(find()?) };
    let threads = match (&place, args.threads) {
        (Place::Linux, threads) => threads.unwrap_or(1),
        (Place::Ix(process), threads) => threads.unwrap_or(process.threads()),
    };
    match (args.serve, args.client, args.bulk) {
        (Some(what), ..) => serve(args, &place, threads, what),
        (_, Some(to), Some(direction)) => bulk(args, &place, to, direction),
        (_, Some(to), None) => load(args, &place, threads.min(args.connections), to),
        _ => bail!("neither SIZE nor --client: see --help"),
    }
}

fn find() -> Result<Process> {
    Process::find().map_err(|error| anyhow!("{error}; or use Linux sockets by --linux"))
}

/// Serves until killed; says `ready` once all threads listen.
fn serve(args: &Args, place: &Place, threads: u32, what: Serve) -> Result<()> {
    let at = SocketAddr::new(args.addr, args.port);
    let (news, hear) = channel();
    thread::scope(|scope| {
        for index in 0..threads {
            let news = news.clone();
            scope.spawn(move || {
                let served = match place {
                    Place::Ix(process) => serve_ix(args, process, index, what, at, &news),
                    Place::Linux => serve_linux(args, index, what, at, &news),
                };
                // The receiver lives until all threads have ended.
                let _ = news.send(served.and(Err(anyhow!("thread {index} ended"))));
            });
        }
        let mut listening = 0;
        for event in hear.iter().take(threads as usize + 1) {
            match event {
                Ok(()) => listening += 1,
                // The other threads serve for ever: no use in waiting for them.
                Err(error) => exit(&error),
            }
            if listening == threads {
                let what = match what {
                    Serve::Echo(size) => format!("echo of {size} bytes"),
                    Serve::Bulk => "bulk".to_string(),
                };
                println!("ready: {what} on {at}, {threads} threads");
            }
        }
        Ok(())
    })
}

fn serve_ix(
    args: &Args,
    process: &Process,
    index: u32,
    what: Serve,
    at: SocketAddr,
    news: &Sender<Result<()>>,
) -> Result<()> {
    let thread = Thread::enter(process, index)?;
    let cannot = || format!("cannot listen on {at}");
    match what {
        Serve::Echo(size) => {
            let limits = Limits::of(args);
            let mut server = crate::ix::server(thread, size, limits, at).with_context(cannot)?;
            news.send(Ok(()))?;
            server.run()?;
        }
        Serve::Bulk => {
            let mut server = ix::server(thread, BulkServer::default(), at).with_context(cannot)?;
            news.send(Ok(()))?;
            server.run()?;
        }
    }
    Ok(())
}

fn serve_linux(
    args: &Args,
    index: u32,
    what: Serve,
    at: SocketAddr,
    news: &Sender<Result<()>>,
) -> Result<()> {
    pin(args, index)?;
    let listener = socket::listen(at).with_context(|| format!("cannot listen on {at}"))?;
    news.send(Ok(()))?;
    match what {
        Serve::Echo(size) => {
            linux::serve(listener, EchoServer::new(size, Limits::of(args)), args.spin)?;
        }
        Serve::Bulk => {
            linux::serve(listener, BulkServer::default(), args.spin)?;
        }
    }
    Ok(())
}

fn pin(args: &Args, index: u32) -> Result<()> {
    let Some(cpus) = &args.cpus else { return Ok(()) };
    let cpu = cpus.0[index as usize % cpus.0.len()];
    cpu::pin(cpu).with_context(|| format!("cannot pin to CPU {cpu}"))
}

/// Puts load on an echo server and reports.
fn load(args: &Args, place: &Place, threads: u32, to: SocketAddr) -> Result<()> {
    let start_ns = clock::now_ns();
    let warmup = args.warmup.unwrap_or((args.seconds / 10.0).min(1.0));
    let from_ns = start_ns + (warmup * 1e9) as u64;
    let load = Load {
        size: args.size,
        depth: args.depth,
        messages_per_connection: args.messages_per_connection,
        measured_ns: (from_ns, from_ns + (args.seconds * 1e9) as u64),
    };
    let mut total = Sample::default();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..threads)
            .map(|index| {
                let share = share(args.connections, threads, index);
                scope.spawn(move || match place {
                    Place::Ix(process) => load_ix(process, index, load, to, share),
                    Place::Linux => {
                        pin(args, index)?;
                        let client = EchoClient::new(load);
                        let client = linux::connect(to, share, client, args.spin)?;
                        Ok(client.into_sample())
                    }
                })
            })
            .collect();
        clients.into_iter().try_for_each(|client| join(client).map(|sample| total.merge(sample)))
    })?;
    if let Some(error) = &total.first_error {
        eprintln!("ix-echo: {} errors, the first: {error}", total.errors);
    }
    if total.messages() == 0 {
        let why = total.first_error.as_deref().unwrap_or("no answer within the time");
        bail!("no message came back from {to}: {why}");
    }
    report::print(&total.row(args, args.seconds), args.json);
    Ok(())
}

fn load_ix(
    process: &Process,
    index: u32,
    load: Load,
    to: SocketAddr,
    connections: usize,
) -> Result<Sample> {
    let thread = Thread::enter(process, index)?;
    let mut client = ix::client(thread, EchoClient::new(load), to, connections);
    client.run()?;
    ix::finish(&mut client)?;
    Ok(core::mem::take(client.handler().service().sample()))
}

fn share(connections: u32, threads: u32, index: u32) -> usize {
    (connections / threads + u32::from(index < connections % threads)) as usize
}

/// One bulk transfer.
fn bulk(args: &Args, place: &Place, to: SocketAddr, direction: Direction) -> Result<()> {
    let transfer = BulkClient::new(direction, args.bytes);
    let outcome = match place {
        Place::Ix(process) => {
            let mut client = ix::client(Thread::enter(process, 0)?, transfer, to, 1);
            client.run()?;
            // Lets the last acknowledgement and FIN out.
            client.turn(Wait::Poll)?;
            client.handler().service().outcome.take()
        }
        Place::Linux => {
            pin(args, 0)?;
            linux::connect(to, 1, transfer, args.spin)?.outcome
        }
    };
    let outcome = outcome.unwrap_or_else(|| Err("it never ended".to_string()));
    let (seconds, sent, received) = outcome.map_err(|why| anyhow!("transfer with {to}: {why}"))?;
    report::print(&report::bulk_row(args, seconds, sent, received, 0), args.json);
    Ok(())
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread panicked"))?
}

/// Ends the program although other threads still serve.
fn exit(error: &anyhow::Error) -> ! {
    eprintln!("ix-echo: {error:#}");
    std::process::exit(1);
}
