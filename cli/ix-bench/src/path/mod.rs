//! Benchmarks over a path with a bottleneck and its queue, loss, reordering and delay.
//!
//! The path is `ix_testbed::Bridge`, in user space and with a seed, because a kernel may lack
//! netem. IX and Linux send over the same interface into the same path, to the same Linux receiver.
mod fairness;
pub(crate) mod flows;
mod loss;

use super::lab::{Lab, MIDDLE_CLIENT, MIDDLE_SERVER, Server};
use super::serve::Serve;
use crate::args::{BenchArgs, Device};
use flows::LinuxSource;
use ix_report::machine::Machine;
use ix_report::problem::{Problem, Result};
use ix_report::report::{Report, Row};
use ix_testbed::{Bridge, Loss, Namespace, PathSpec};
use serde_json::json;
use std::net::SocketAddrV4;

/// The benchmarks of this module.
pub const BENCHES: [&str; 2] = ["loss", "fairness"];

/// Help of `ix bench loss`.
pub const LOSS_HELP: &str = "Measures goodput of one bulk flow to a Linux receiver over a path of \
    100 Mbit/s and 10 ms round trip. The path loses 0, 0.1, 1 and 5 % of the packets (also in \
    bursts), or reorders 2 %. The sender is IX, Linux with the same congestion control, and Linux \
    with its other ones. A process of the benchmark simulates the path, with a seed. Needs root.";

/// Help of `ix bench fairness`.
pub const FAIRNESS_HELP: &str = "Measures how flows share a bottleneck of 100 Mbit/s and 10 ms: flows \
    of IX, flows of Linux, and both together. Prints Jain's index of their rates, and IX's share. A \
    process of the benchmark simulates the path. Needs root.";

/// Rate and queue (one product of rate and round-trip time) of the bottleneck, and delay each way.
const RATE_BIT_PER_S: u64 = 100_000_000;
const QUEUE_BYTES: u64 = 125_000;
const DELAY_NS: u64 = 5_000_000;

/// Faults of the path, besides rate, queue and delay.
#[derive(Clone, Copy, Debug, Default)]
struct Harm {
    loss_percent: f64,
    /// Mean number of packets in a burst of losses.
    burst: f64,
    reorder_percent: f64,
}

impl Harm {
    /// The direction from server to client.
    fn there(self) -> PathSpec {
        let share = self.loss_percent / 100.0;
        PathSpec {
            rate_bit_per_s: RATE_BIT_PER_S,
            queue_bytes: QUEUE_BYTES,
            loss: match share {
                0.0 => Loss::None,
                _ if self.burst > 1.0 => Loss::Bursty(share, self.burst),
                _ => Loss::Random(share),
            },
            reorder: self.reorder_percent / 100.0,
            reorder_ns: DELAY_NS,
            ..PathSpec::delay(DELAY_NS)
        }
    }
}

/// Two ends and the path between them.
struct Place {
    lab: Lab,
    middle: Namespace,
}

impl Place {
    fn bridge(&self, harm: Harm, seed: u64) -> Result<Bridge> {
        let ways = [harm.there(), PathSpec::delay(DELAY_NS)];
        Bridge::start(&self.middle, [MIDDLE_SERVER, MIDDLE_CLIENT], ways, seed)
            .map_err(|e| Problem::new("cannot make the path", e))
    }

    /// Starts a bulk server on IX with this congestion control.
    fn ix(&self, congestion: &str) -> Result<Server> {
        let run_flags = ["--congestion", congestion].map(str::to_owned).to_vec();
        let bulk = Serve { run_flags, ..Serve::echo(&["bulk".to_owned()]) };
        self.lab.start(self.lab.on_ix(), &bulk)
    }

    /// Starts one on Linux sockets.
    fn linux(&self, congestion: &str) -> Result<(LinuxSource, SocketAddrV4)> {
        let (namespace, address) = self.lab.linux_server();
        Ok((LinuxSource::start(namespace, address, congestion)?, address))
    }

    /// Returns those of `wanted` that this kernel has.
    fn of_linux(&self, wanted: &[&'static str], notes: &mut Vec<String>) -> Vec<&'static str> {
        let path = "/proc/sys/net/ipv4/tcp_available_congestion_control";
        let known = std::fs::read_to_string(path).unwrap_or_default();
        let has = |name: &&str| known.split_whitespace().any(|known| known == *name);
        let (there, missing): (Vec<&str>, Vec<&str>) = wanted.iter().partition(|name| has(name));
        if !missing.is_empty() {
            notes.push(format!("this kernel has no {}", missing.join(", ")));
        }
        there
    }
}

/// Makes a row for a Linux receiver with a sender of this system and congestion control.
fn row(system: &str, congestion: &str, connections: usize) -> Row {
    let (mode, device) = match system {
        "linux" => ("blocking", "veth"),
        _ => ("run to completion", "afxdp"),
    };
    Row {
        system: system.to_owned(),
        mode: mode.to_owned(),
        device: device.to_owned(),
        client: "linux".to_owned(),
        client_mode: "blocking".to_owned(),
        connections,
        also: vec![("congestion", json!(congestion))],
        ..Row::default()
    }
}

/// Runs one of [`BENCHES`].
pub fn run(name: &str, args: &BenchArgs, device: Device, command: String) -> Result<Report> {
    if device != Device::Afxdp {
        let why = "IX and Linux must share an interface, which needs AF_XDP";
        return Err(Problem::new(format!("cannot measure {name} on {}", device.name()), why)
            .mend("run it as root, with --device afxdp"));
    }
    let (mut lab, middle) = Lab::apart()?;
    let domain = args.domain.first().copied().unwrap_or_default();
    lab.domains = vec![domain];
    let place = Place { lab, middle };
    let machine = Machine::read();
    eprintln!("ix: {}", machine.summary());
    let mut notes = vec![
        format!(
            "path: {} Mbit/s, {} ms round trip, a queue of {} KB, in user space with a seed; the \
             receiver is Linux",
            RATE_BIT_PER_S / 1_000_000,
            2 * DELAY_NS / 1_000_000,
            QUEUE_BYTES / 1000
        ),
        domain.note().to_owned(),
    ];
    let mut rows = match name {
        "fairness" => fairness::measure(&place, args, &mut notes)?,
        _ => loss::measure(&place, args, &mut notes)?,
    };
    for row in rows.iter_mut().filter(|row| row.system == "ix") {
        row.domain = Some(domain);
    }
    Ok(Report { bench: name.to_owned(), machine, rows, notes, command })
}
