//! `ix bench`: IX and Linux over the same private link, alternating, in one run.
#![forbid(unsafe_code)]

mod afxdp;
mod all;
pub mod args;
mod bare;
mod breakdown;
mod busy;
mod calls;
pub mod command;
pub mod driver;
mod dynamic;
pub mod elastic;
mod gate;
mod hostile;
mod http;
mod kv_steps;
pub mod lab;
mod linux_parts;
mod memcached;
mod memcached_udp;
mod migration;
mod model;
mod pareto;
pub mod path;
pub mod peer;
mod ping;
mod plan;
mod process;
pub mod program;
mod rates;
mod remarks;
pub mod report;
mod runner;
mod samples;
pub mod serve;
mod sharing;
mod soak;
mod stalls;
mod tenants;
mod wakeup;

use crate::args::{BenchArgs, Client, Device};
use crate::command::BenchCommand;
use ix_report::domain::Domain;
use ix_report::machine::Machine;
use ix_report::problem::{Problem, Result};
use ix_report::report::{Report, own_command};
use lab::{Host, Lab, PeerEnd};
pub use plan::Plan;
pub use runner::{Setup, measure};

/// Runs a benchmark and prints its results.
pub fn main(command: &BenchCommand) -> Result<()> {
    let (name, args) = match command {
        BenchCommand::Echo(args) => ("echo", args),
        BenchCommand::Pingpong(args) => ("pingpong", args),
        BenchCommand::Short(args) => ("short", args),
        BenchCommand::Bulk(args) => ("bulk", args),
        BenchCommand::Report(args) => return report::main(args),
        BenchCommand::DeviceEcho(args) => return driver::main(args),
        BenchCommand::Connscaling(args) => ("connscaling", args),
        BenchCommand::Batch(args) => ("batch", args),
        BenchCommand::Churn(args) => ("churn", args),
        BenchCommand::UdpEcho(args) => ("udp-echo", args),
        BenchCommand::Wakeup(args) => ("wakeup", args),
        BenchCommand::Sharing(args) => ("sharing", args),
        BenchCommand::Memcached(args) => ("memcached", args),
        BenchCommand::MemcachedUdp(args) => ("memcached-udp", args),
        BenchCommand::KvSteps(args) => ("kv-steps", args),
        BenchCommand::Http(args) => ("http", args),
        BenchCommand::Elastic(args) => ("elastic", args),
        BenchCommand::Migration(args) => ("migration", args),
        BenchCommand::Loss(args) => ("loss", args),
        BenchCommand::Fairness(args) => ("fairness", args),
        BenchCommand::Hostile(args) => ("hostile", args),
        BenchCommand::Peer(args) => ("peer", &args.bench),
        BenchCommand::Program(args) => ("program", &args.bench),
        BenchCommand::Gate(args) => return gate::main(args),
        BenchCommand::Afxdp(args) => return afxdp::main(args),
        BenchCommand::Rates(args) => return rates::main(args),
        BenchCommand::Pareto(args) => return pareto::main(args),
        BenchCommand::Dynamic(args) => return dynamic::main(args),
        BenchCommand::Soak(args) => return soak::main(args),
        BenchCommand::All(args) => return all::main(args),
    };
    if args.domain.contains(&Domain::Pku) {
        let why = "this benchmark runs with --domain none";
        return Err(Problem::new("cannot measure with --domain pku", why).mend(
            "`ix bench gate` measures echo and key-value server with the wall and without it",
        ));
    }
    if args.domain.len() > 1 && ONE_WALL.contains(&name) {
        let why = format!("{name} measures one domain at a time");
        return Err(Problem::new("cannot measure several domains", why)
            .mend("name one with --domain, and run it again with another"));
    }
    if args.ipv6 && !OVER_IPV6.contains(&name) {
        let why = format!("{name} has servers or parts of its own that know IPv4 addresses");
        return Err(Problem::new("cannot measure over IPv6", why)
            .mend(format!("leave out -6, or take one of {}", OVER_IPV6.join(", "))));
    }
    // A link whose ends lose no packets shows best what migrations do.
    let usual = (name == "migration").then_some(Device::Memif);
    let (device, why) = choose_device(args.device.or(usual))?;
    let peer = if let BenchCommand::Peer(args) = command { Some(args.end(device)?) } else { None };
    let mut report = match command {
        BenchCommand::Program(args) => run_programs(args, device)?,
        _ => run(name, args, device, own_command(), peer)?,
    };
    report.notes.extend(why);
    report.publish(&args.output)
}

/// Benchmarks that measure programs in one domain only.
const ONE_WALL: [&str; 4] = ["elastic", "migration", "loss", "fairness"];

/// Benchmarks that can be measured over IPv6: those of `ix echo` over TCP.
const OVER_IPV6: [&str; 7] = ["echo", "pingpong", "short", "bulk", "connscaling", "batch", "churn"];

/// Runs the benchmark `name` on a private link.
fn run(
    name: &str,
    args: &BenchArgs,
    device: Device,
    command: String,
    peer: Option<PeerEnd>,
) -> Result<Report> {
    if path::BENCHES.contains(&name) {
        return path::run(name, args, device, command);
    }
    let mut lab = Lab::in_domains(device, &args.domain)?;
    lab.peer = peer;
    if args.ipv6 {
        lab.speak_ipv6()?;
    }
    let machine = Machine::read();
    eprintln!("ix: {}", machine.summary());
    let mut notes = common_notes(&lab);
    let rows = match name {
        "memcached" => memcached::measure(&lab, args, &mut notes)?,
        "memcached-udp" => memcached_udp::measure(&lab, args, &mut notes)?,
        "kv-steps" => kv_steps::measure(&lab, args, &mut notes)?,
        "http" => http::measure(&lab, args, &mut notes)?,
        "wakeup" => wakeup::measure(&lab, args, &mut notes)?,
        "hostile" => hostile::measure(&lab, args, &mut notes)?,
        "sharing" => sharing::measure(&lab, args, &mut notes)?,
        "elastic" => elastic::measure(&lab, args, &mut notes)?,
        "migration" => migration::measure(&lab, args, &mut notes)?,
        "peer" => peer::measure_all(&lab, args, &mut notes)?,
        _ => {
            let setups = setups(&lab, args)?;
            let mut plan = Plan::of(name, args, lab.server_cpus.len());
            // On memif and tap the echo inside the driver has no counterpart at the other side.
            let drives = |point: &plan::Point| point.server.program == serve::Program::Driver;
            plan.points.retain(|point| lab.device() == Device::Afxdp || !drives(point));
            let mut rows = measure(&lab, &plan, &setups, &mut notes)?;
            if name == "udp-echo" && lab.has_linux_client() {
                rows.extend(linux_parts::measure(&lab, args, &mut notes)?);
            }
            rows
        }
    };
    match name {
        "pingpong" => notes.extend(remarks::half_bandwidth(&rows)),
        "batch" => notes.extend(remarks::batch_at_low_load(&rows)),
        "connscaling" => notes.extend(remarks::scaling(&rows)),
        "udp-echo" => notes.extend([
            "Linux at full load: the whole time of a packet; its parts were measured with one in flight"
                .to_owned(),
            "driver: frames are sent back below any stack; client busy: busy share of \
             the client's hardware thread; at 1 the client is the limit, not the server"
                .to_owned(),
            "server on IX: the dataplane's UDP; packets: the program's own UDP over whole frames; \
             sockets: the Linux program, unmodified"
                .to_owned(),
        ]),
        "churn" => notes.extend([
            "Linux: at most 16384 connections in TIME-WAIT, and a port is free again after 1 s"
                .to_owned(),
            "a client on IX has 22,768 ports; when all are in TIME-WAIT, errors are counted".to_owned(),
        ]),
        _ => {}
    }
    Ok(Report { bench: name.to_owned(), machine, rows, notes, command })
}

/// Runs `ix bench program` on a private link.
fn run_programs(args: &program::ProgramArgs, device: Device) -> Result<Report> {
    let lab = Lab::in_domains(device, &args.bench.domain)?;
    let machine = Machine::read();
    eprintln!("ix: {}", machine.summary());
    let mut notes = common_notes(&lab);
    let rows = program::measure(&lab, args, &mut notes)?;
    Ok(Report { bench: "program".to_owned(), machine, rows, notes, command: own_command() })
}

/// Chooses the device; also returns why if the user did not. Without root this moves the process
/// into a user namespace, so it must run before any thread is started.
pub fn choose_device(asked: Option<Device>) -> Result<(Device, Option<String>)> {
    if ix_sys::process::is_root() {
        return Ok((asked.unwrap_or(Device::Afxdp), None));
    }
    ix_sys::user_namespace::enter().map_err(|e| {
        Problem::new("cannot make a private link without root", e)
            .mend("run it as root, or see `ix doctor`")
    })?;
    if asked == Some(Device::Afxdp) {
        let why = "loading XDP programs needs root, not a user namespace's root";
        return Err(Problem::new("cannot use afxdp", why).mend("run it as root, or --device tap"));
    }
    if asked == Some(Device::Memif) {
        return Ok((Device::Memif, None));
    }
    let why = "without root: TAP in a user namespace (AF_XDP and steering programs need root)";
    Ok((Device::Tap, Some(why.to_owned())))
}

/// Whether PATH has a program.
fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The pairs of systems to measure.
fn setups(lab: &Lab, args: &BenchArgs) -> Result<Vec<Setup>> {
    chosen(lab, args, all_setups(lab))
}

/// Of these pairs those with the kind of client that was asked for.
fn chosen(lab: &Lab, args: &BenchArgs, all: Vec<Setup>) -> Result<Vec<Setup>> {
    let Some(client) = args.client else { return Ok(all) };
    check_client(lab, client)?;
    let wanted = |s: &Setup| match client {
        Client::Ix => s.client.is_ix() || s.server.is_linux(),
        Client::Linux => !s.client.is_ix(),
    };
    Ok(all.into_iter().filter(wanted).collect())
}

/// Refuses a client that the device does not support.
fn check_client(lab: &Lab, client: Client) -> Result<()> {
    if client == Client::Linux && !lab.has_linux_client() {
        return Err(Problem::new(
            "cannot run the client on Linux",
            "memif connects only IX with IX",
        )
        .mend("use --client ix, or another --device"));
    }
    if client == Client::Ix && !lab.has_ix_client() {
        return Err(Problem::new(
            "cannot run the client on IX",
            "IX can use only one end of a tap",
        )
        .mend("use --device afxdp or --client linux"));
    }
    Ok(())
}

/// All pairs that a device allows; the others are compared with Linux, blocking.
pub fn all_setups(lab: &Lab) -> Vec<Setup> {
    let mut setups = vec![
        Setup { server: Host::BLOCKING, client: Host::BLOCKING },
        Setup { server: Host::SPINNING, client: Host::SPINNING },
    ];
    if lab.has_linux_client() {
        for server in lab.each_on_ix() {
            setups.push(Setup { server, client: Host::BLOCKING });
            setups.push(Setup { server, client: Host::SPINNING });
        }
    }
    if lab.has_ix_client() {
        setups.extend(lab.each_on_ix().map(|server| Setup { server, client: Host::IX }));
    }
    setups
}

/// Notes for every comparison.
pub fn common_notes(lab: &Lab) -> Vec<String> {
    let mut notes: Vec<String> =
        lab.domains.iter().map(|domain| domain.note().to_owned()).collect();
    notes.extend(lab.is_v6().then(|| "over IPv6, at both ends of every row".to_owned()));
    notes.extend([
        "cycles/msg: of the dataplane without the application, by the time stamp counter"
            .to_owned(),
        format!("Linux's congestion control on the link: {}", lab.congestion_control()),
        "Linux's rows: pinned threads, SO_REUSEPORT, TCP_NODELAY, offloads on unless a row says \
         off; no busy polling of the device, because a veth does not profit from it"
            .to_owned(),
    ]);
    if lab.device_of(Host::IX) == "tap" {
        notes.push(
            "IX is behind a tap, Linux's server behind a veth, because Linux cannot use the program's end of a \
             tap; in a row with offloads off, both ends of the device have none"
                .to_owned(),
        );
    }
    if lab.cpus.0 == lab.cpus.1 {
        notes.push("one hardware thread only: server and client share it".to_owned());
    } else {
        notes.push(format!(
            "server on hardware thread {}, client on {}; × Linux compares with blocking sockets \
             at both ends",
            lab.cpus.0, lab.cpus.1
        ));
    }
    notes
}
