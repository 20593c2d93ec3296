//! The threads of the load, and their common result.
use crate::args::Args;
use crate::client::{EchoClient, Load};
use crate::report;
use crate::rounds::{Plan, Rounds};
use crate::sample::Sample;
use crate::udp::UdpLoad;
use crate::window::Window;
use crate::{rounds_ix, rounds_linux, udp_ix, udp_linux};
use anyhow::{Result, anyhow, bail};
use ix_programs::threads::{Place, pin};
use ix_programs::{clock, ix, linux};
use libix::raw::{Process, Thread};
use std::net::SocketAddr;
use std::thread;

/// Puts load on an echo server and reports.
pub fn load(args: &Args, place: &Place, threads: u32, to: SocketAddr) -> Result<()> {
    let start_ns = clock::now_ns();
    let mut total = Sample::default();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..threads)
            .map(|index| {
                let connections = share(args.connections, threads, index);
                scope.spawn(move || {
                    if let Place::Linux = place {
                        pin(args.cpus.as_ref(), index)?;
                    }
                    let one = One { args, place, index, to, connections };
                    match (args.udp, args.in_flight) {
                        (true, _) => one.datagrams(start_ns),
                        (_, Some(in_flight)) => one.rounds(share(in_flight, threads, index)),
                        _ => one.echo(start_ns),
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
        let why = total.first_error.as_deref().unwrap_or("no reply within the time limit");
        bail!("no message returned from {to}: {why}");
    }
    report::print(&report::echo_row(args, args.seconds, &total), args.json);
    Ok(())
}

/// One thread of the load.
struct One<'a> {
    args: &'a Args,
    place: &'a Place,
    index: u32,
    to: SocketAddr,
    connections: usize,
}

impl One<'_> {
    fn warmup_ns(&self) -> u64 {
        let warmup = self.args.warmup.unwrap_or((self.args.seconds / 10.0).min(1.0));
        (warmup * 1e9) as u64
    }

    fn seconds_ns(&self) -> u64 {
        (self.args.seconds * 1e9) as u64
    }

    fn window(&self, start_ns: u64) -> Window {
        Window::new(start_ns, self.warmup_ns(), self.seconds_ns())
    }

    fn enter(&self, process: &Process) -> Result<Thread> {
        Ok(Thread::enter(process, self.index)?)
    }

    /// Each connection has its messages in flight.
    fn echo(&self, start_ns: u64) -> Result<Sample> {
        let client = EchoClient::new(Load {
            size: self.args.size,
            depth: self.args.depth,
            connections: match self.args.messages_per_connection {
                Some(_) => 1,
                None => self.connections,
            },
            messages_per_connection: self.args.messages_per_connection,
            close: self.args.close,
            window: self.window(start_ns),
        });
        let Place::Ix(process) = self.place else {
            let client = linux::connect(self.to, self.connections, client, self.args.spin)?;
            return Ok(client.into_sample());
        };
        let mut client = ix::client(self.enter(process)?, client, self.to, self.connections);
        client.run()?;
        ix::finish(&mut client)?;
        Ok(core::mem::take(client.handler().service().sample()))
    }

    /// A few of very many connections have a message in flight.
    fn rounds(&self, in_flight: usize) -> Result<Sample> {
        let mut rounds = Rounds::new(Plan {
            size: self.args.size as usize,
            connections: self.connections,
            in_flight: in_flight.max(1),
            warmup_ns: self.warmup_ns(),
            seconds_ns: self.seconds_ns(),
            seed: 0x1234_5678 + u64::from(self.index),
        });
        let port = |n: u16| self.to.port().saturating_add(n);
        let targets: Vec<_> =
            (0..self.args.ports).map(|n| SocketAddr::new(self.to.ip(), port(n))).collect();
        let started = |open: usize| eprintln!("ix-echo: {open} connections open, measuring");
        match self.place {
            Place::Ix(process) => {
                rounds_ix::play(self.enter(process)?, &mut rounds, &targets, started)?;
            }
            Place::Linux => rounds_linux::play(&mut rounds, &targets, self.args.spin, started)?,
        }
        let open = rounds.alive();
        let mut sample = rounds.take_sample();
        sample.opened = open as u64;
        Ok(sample)
    }

    /// Load of datagrams.
    fn datagrams(&self, start_ns: u64) -> Result<Sample> {
        let depth = self.args.depth;
        let mut load = UdpLoad::new(self.args.size, depth, self.window(start_ns));
        match self.place {
            Place::Ix(process) => {
                udp_ix::load(self.enter(process)?, self.to, &mut load, depth)?;
            }
            Place::Linux => udp_linux::load(self.to, &mut load, self.args.spin)?,
        }
        Ok(load.into_sample())
    }
}

fn share(connections: u32, threads: u32, index: u32) -> usize {
    (connections / threads + u32::from(index < connections % threads)) as usize
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread panicked"))?
}
