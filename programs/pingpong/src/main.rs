//! NetPIPE-like ping-pong on IX and on Linux sockets.
#![forbid(unsafe_code)]
mod linux;
mod protocol;

use anyhow::{Context, Result, bail};
use clap::Parser;
use ix_programs::ix;
use ix_programs::threads::dataplane;
use ix_sys::cpu;
use libix::raw::{Thread, Wait};
use protocol::{PingClient, PingServer, Point, SIZE_MAX};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

/// NetPIPE-like ping-pong on IX and on Linux sockets: one connection, one message in flight,
/// one-way latency (half a round trip) and goodput for each message size.
///
/// Without --client it is the server. Under `ix run` it uses the dataplane; with --linux, blocking
/// sockets.
#[derive(Parser, Debug)]
#[command(
    version,
    after_help = "\
Examples:
  ix run --nic afxdp:veth1 --addr 10.0.0.2/24 ix-pingpong
  ix-pingpong --client 10.0.0.2:5002 --linux --spin --sizes 64,1024,65536 --json"
)]
struct Args {
    /// Client: address of the server.
    #[arg(long, value_name = "ADDR:PORT")]
    client: Option<SocketAddr>,
    /// Server: port to listen on.
    #[arg(long, default_value_t = 5002)]
    port: u16,
    /// Server: address to listen on.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    addr: IpAddr,
    /// Use Linux sockets.
    #[arg(long)]
    linux: bool,
    /// Linux: spin on the socket instead of sleeping in it.
    #[arg(long, requires = "linux")]
    spin: bool,
    /// Linux: hardware thread to pin to.
    #[arg(long, requires = "linux")]
    cpu: Option<usize>,
    /// Client: message sizes in bytes.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=i64::from(SIZE_MAX)),
        default_value = "64,256,1024,4096,16384,65536,131072,262144,524288"
    )]
    sizes: Vec<u32>,
    /// Client: time for each size.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Client: print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    ix_programs::exit_code("ix-pingpong", run(&Args::parse()))
}

fn run(args: &Args) -> Result<()> {
    if let Some(cpu) = args.cpu {
        cpu::pin(cpu).with_context(|| format!("cannot pin to CPU {cpu}"))?;
    }
    match (args.client, args.linux) {
        (None, true) => serve_linux(args),
        (None, false) => serve_ix(args),
        (Some(to), _) => {
            let seconds = Duration::try_from_secs_f64(args.seconds).context("--seconds")?;
            let client = PingClient::new(&args.sizes, seconds.as_nanos() as u64);
            let client =
                if args.linux { play_linux(args, client, to) } else { play_ix(client, to) }?;
            if let Some(why) = client.error {
                bail!("{to}: {why}");
            }
            report(args, &client.points);
            Ok(())
        }
    }
}

fn enter() -> Result<Thread> {
    Ok(Thread::enter(&dataplane()?, 0)?)
}

fn serve_ix(args: &Args) -> Result<()> {
    let at = SocketAddr::new(args.addr, args.port);
    let listen = || format!("cannot listen on {at}");
    let mut server = ix::server(enter()?, PingServer, at).with_context(listen)?;
    ix_sys::outln!("ready: ping-pong on {at}");
    Ok(server.run()?)
}

fn play_ix(client: PingClient, to: SocketAddr) -> Result<PingClient> {
    let mut client = ix::client(enter()?, client, to, 1);
    client.run()?;
    // Lets the last acknowledgement and FIN be sent.
    client.turn(Wait::Poll)?;
    let service = client.handler().service();
    Ok(core::mem::replace(service, PingClient::new(&[], 0)))
}

fn serve_linux(args: &Args) -> Result<()> {
    let at = SocketAddr::new(args.addr, args.port);
    let listener = TcpListener::bind(at).with_context(|| format!("cannot listen on {at}"))?;
    ix_sys::outln!("ready: ping-pong on {at}");
    loop {
        // A failed connection concerns its client only.
        let served = listener
            .accept()
            .and_then(|(stream, _)| linux::drive(&stream, &mut PingServer, args.spin));
        if let Err(error) = served {
            eprintln!("ix-pingpong: a connection failed: {error}");
        }
    }
}

fn play_linux(args: &Args, mut client: PingClient, to: SocketAddr) -> Result<PingClient> {
    let stream = TcpStream::connect(to).with_context(|| format!("cannot connect to {to}"))?;
    linux::drive(&stream, &mut client, args.spin)?;
    Ok(client)
}

fn row(args: &Args, point: &Point) -> Value {
    let round = |value: f64| (value * 1000.0).round() / 1000.0;
    let us = |ns: u64| ns as f64 / 1000.0;
    let round_trip_us = us(point.round_trip_ns.value_at_quantile(0.5));
    let one_way_us = round_trip_us / 2.0;
    json!({
        "system": match (args.linux, args.spin) {
            (false, _) => "ix",
            (true, false) => "linux",
            (true, true) => "linux-spin",
        },
        "connections": 1,
        "size": point.size,
        "messages": point.round_trip_ns.len(),
        "one_way_us": round(one_way_us),
        "p50_us": round(round_trip_us),
        "p99_us": round(us(point.round_trip_ns.value_at_quantile(0.99))),
        "min_us": round(us(point.round_trip_ns.min())),
        "mbit_per_s": round(f64::from(point.size) * 8.0 / one_way_us),
        "errors": 0,
    })
}

fn report(args: &Args, points: &[Point]) {
    let rows: Vec<Value> = points.iter().map(|point| row(args, point)).collect();
    if args.json {
        return ix_sys::outln!("{}", json!({ "rows": rows }));
    }
    ix_sys::outln!("{:>10} {:>14} {:>14} {:>10}", "size", "one-way µs", "Mbit/s", "messages");
    for row in &rows {
        let number = |name: &str| row[name].as_f64().unwrap_or(0.0);
        ix_sys::outln!(
            "{:>10} {:>14.3} {:>14.1} {:>10}",
            row["size"],
            number("one_way_us"),
            number("mbit_per_s"),
            row["messages"]
        );
    }
}
