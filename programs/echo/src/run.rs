//! Threads of a server or a load, and their results.
use crate::args::{Args, Direction, Serve};
use crate::bulk::{BulkClient, BulkServer, Transfer};
use crate::ix::Partial;
use crate::parts;
use crate::report;
use crate::run_load::load;
use crate::server::{EchoServer, Limits};
use crate::stamp;
use crate::udp_ix::UdpEcho;
use crate::udp_linux;
use crate::udp_packets::PacketEcho;
use anyhow::{Context, Result, anyhow, bail};
use ix_programs::threads::{self, Listening, Place, pin};
use ix_programs::{ix, linux, socket};
use libix::event::Team;
use libix::raw::{Process, Thread, Wait};
use std::net::SocketAddr;

/// Carries out the command line.
pub fn run(args: &Args) -> Result<()> {
    args.check().map_err(|why| anyhow!(why))?;
    let place = Place::find(args.linux)?;
    let threads = place.threads(args.threads);
    match (args.serve, args.client, args.bulk) {
        (Some(what), ..) => serve(args, &place, threads, what),
        (_, Some(to), Some(direction)) => bulk(args, &place, to, direction),
        (_, Some(to), None) => load(args, &place, threads.min(args.connections), to),
        _ => bail!("give SIZE (a server) or --client (a client); see --help"),
    }
}

/// Serves until killed; says `ready` once all threads listen.
fn serve(args: &Args, place: &Place, threads: u32, what: Serve) -> Result<()> {
    let ports = args.port..=args.port.checked_add(args.ports - 1).context("--ports: too many")?;
    let at: Vec<_> = ports.map(|port| SocketAddr::new(args.addr, port)).collect();
    let at = &at[..];
    let ready = || {
        let what = match what {
            Serve::Echo(size) => format!("echo of {size} bytes"),
            Serve::Bulk => "bulk".to_string(),
        };
        let over = if args.udp { " over UDP" } else { "" };
        ix_sys::outln!("ready: {what}{over} on {}, {threads} threads", at[0]);
    };
    let teams = Teams { echo: Team::new(threads), bulk: Team::new(threads) };
    let serve = |index, listening: &Listening| match place {
        Place::Ix(process) => serve_ix(args, process, index, what, at, &teams, listening),
        Place::Linux => serve_linux(args, index, what, at, listening),
    };
    threads::serve("ix-echo", threads, serve, ready);
    Ok(())
}

/// By which connections find the other threads.
struct Teams {
    echo: Team<Partial>,
    bulk: Team<Option<Transfer>>,
}

fn serve_ix(
    args: &Args,
    process: &Process,
    index: u32,
    what: Serve,
    at: &[SocketAddr],
    teams: &Teams,
    listening: &Listening,
) -> Result<()> {
    let thread = Thread::enter(process, index)?;
    let cannot = || format!("cannot listen on {}", at[0]);
    match what {
        Serve::Echo(_) if args.stamp => stamp::serve_ix(thread, at[0], args.packets, listening)?,
        Serve::Echo(_) if args.packets => {
            let mut server = PacketEcho::new(thread, at[0].port())?;
            listening.say();
            let wait = if args.poll { Wait::Poll } else { Wait::Forever };
            loop {
                server.turn(wait)?;
            }
        }
        Serve::Echo(_) if args.udp => {
            let mut server = UdpEcho::new(thread, at[0], args.fragments)?;
            listening.say();
            let wait = if args.poll { Wait::Poll } else { Wait::Forever };
            loop {
                server.turn(wait)?;
            }
        }
        Serve::Echo(size) => {
            let limits = Limits::of(args);
            let server = crate::ix::server(thread, size, limits, at, &teams.echo);
            let mut server = server.with_context(cannot)?;
            listening.say();
            server.run()?;
        }
        Serve::Bulk => {
            let bulk = BulkServer::default();
            let server = ix::server_in_team(thread, bulk, at[0], &teams.bulk);
            let mut server = server.with_context(cannot)?;
            listening.say();
            server.run()?;
        }
    }
    Ok(())
}

fn serve_linux(
    args: &Args,
    index: u32,
    what: Serve,
    at: &[SocketAddr],
    listening: &Listening,
) -> Result<()> {
    pin(args.cpus.as_ref(), index)?;
    if args.udp {
        let socket = socket::bind_udp(at[0]).with_context(|| format!("cannot bind {}", at[0]))?;
        listening.say();
        if let Some(samples) = args.parts {
            parts::serve(&socket, args.spin, samples)?;
        }
        if args.stamp {
            stamp::serve_linux(&socket, args.spin)?;
        }
        return Ok(udp_linux::serve(&socket, args.spin, args.burst as usize)?);
    }
    let listen = |&at: &_| socket::listen(at).with_context(|| format!("cannot listen on {at}"));
    let listeners = at.iter().map(listen).collect::<Result<Vec<_>>>()?;
    listening.say();
    match what {
        Serve::Echo(size) => {
            linux::serve_all(listeners, EchoServer::new(size, Limits::of(args)), args.spin)?;
        }
        Serve::Bulk => {
            linux::serve_all(listeners, BulkServer::default(), args.spin)?;
        }
    }
    Ok(())
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
            pin(args.cpus.as_ref(), 0)?;
            linux::connect(to, 1, transfer, args.spin)?.outcome
        }
    };
    let outcome = outcome.unwrap_or_else(|| Err("it never ended".to_string()));
    let (seconds, sent, received) = outcome.map_err(|why| anyhow!("transfer with {to}: {why}"))?;
    report::print(&report::bulk_row(args, seconds, sent, received, 0), args.json);
    Ok(())
}
