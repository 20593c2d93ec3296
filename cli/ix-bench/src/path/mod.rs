//! Benchmarks over a path with a bottleneck and its queue, loss, reordering and delay.
//!
//! The path is `ix_testbed::Bridge`, in user space and with a seed, because a kernel may lack
//! netem. IX and Linux send over the same interface into the same path, to the same Linux receiver.
mod cells;
mod fairness;
pub(crate) mod flows;
mod loss;
mod rounds;
mod senders;

use super::lab::{Lab, MIDDLE_CLIENT, MIDDLE_SERVER, Server};
use super::serve::Serve;
use crate::args::{BenchArgs, Device};
use flows::LinuxSource;
use ix_report::machine::Machine;
use ix_report::problem::{Problem, Result};
use ix_report::report::{Report, Row};
use ix_testbed::{Bridge, Loss, Namespace, PathSpec};
use serde_json::json;
use std::net::SocketAddr;

/// The benchmarks of this module.
pub const BENCHES: [&str; 2] = ["loss", "fairness"];

/// Help of `ix bench loss`.
pub const LOSS_HELP: &str = "Measures what IX and Linux carry over a path of 100 Mbit/s whose queue \
    holds one product of rate and round trip: round trips of 0.1 to 300 ms, loss of 0 to 5 % (also \
    in bursts), jitter of a tenth of the round trip, reordering; one flow and 16; bulk data to a \
    Linux receiver, bulk data from a Linux sender, and replies of 10 KB. Both use CUBIC, and BBR \
    where the name says so. The rows have names, such as `out-80ms-1%`; --only measures those \
    whose names contain one of some texts, --quick ten of them. Each run has another seed. A process of the benchmark simulates \
    the path. Needs root.";

/// Help of `ix bench fairness`.
pub const FAIRNESS_HELP: &str = "Measures how flows share a bottleneck of 100 Mbit/s and 10 ms: flows \
    of IX, flows of Linux, and both together. Prints Jain's index of their rates, and IX's share. A \
    process of the benchmark simulates the path. Needs root.";

/// Rate of the bottleneck.
const RATE_BIT_PER_S: u64 = 100_000_000;
/// The bottleneck's queue holds one product of rate and round trip, and this at least.
const QUEUE_MIN_BYTES: u64 = 30_000;

/// A path: its round trip and its faults, in the direction in which the data goes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Harm {
    rtt_us: u64,
    /// Longest further delay of a packet each way, in percent of the round trip.
    jitter_percent: f64,
    loss_percent: f64,
    /// Mean number of packets in a burst of losses.
    burst: f64,
    reorder_percent: f64,
}

/// 10 ms, without faults.
const PLAIN: Harm = Harm {
    rtt_us: 10_000,
    jitter_percent: 0.0,
    loss_percent: 0.0,
    burst: 1.0,
    reorder_percent: 0.0,
};

impl Harm {
    fn queue_bytes(self) -> u64 {
        (RATE_BIT_PER_S / 8 * self.rtt_us / 1_000_000).max(QUEUE_MIN_BYTES)
    }

    /// The direction of the data.
    fn there(self) -> PathSpec {
        let share = self.loss_percent / 100.0;
        PathSpec {
            rate_bit_per_s: RATE_BIT_PER_S,
            queue_bytes: self.queue_bytes(),
            loss: match share {
                0.0 => Loss::None,
                _ if self.burst > 1.0 => Loss::Bursty(share, self.burst),
                _ => Loss::Random(share),
            },
            reorder: self.reorder_percent / 100.0,
            reorder_ns: self.rtt_us * 500,
            ..self.back()
        }
    }

    /// The direction of the acknowledgements.
    fn back(self) -> PathSpec {
        let jitter_ns = (self.rtt_us as f64 * 10.0 * self.jitter_percent) as u64;
        PathSpec { jitter_ns, ..PathSpec::delay(self.rtt_us * 500) }
    }
}

/// Two ends and the path between them.
struct Place {
    lab: Lab,
    middle: Namespace,
}

impl Place {
    /// The path. `out`: data goes from the server to the client.
    fn bridge(&self, harm: Harm, out: bool, seed: u64) -> Result<Bridge> {
        let mut ways = [harm.there(), harm.back()];
        if !out {
            ways.reverse();
        }
        Bridge::start(&self.middle, [MIDDLE_SERVER, MIDDLE_CLIENT], ways, seed)
            .map_err(|e| Problem::new("cannot make the path", e))
    }

    /// Makes Linux forget what it has learnt of a path when its connections end: the next point has
    /// another one.
    fn forget_paths(&self) -> Result<()> {
        let no_metrics = || std::fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1");
        for namespace in [self.lab.server_namespace(), self.lab.client_namespace()] {
            let cannot = |e| Problem::new("cannot set tcp_no_metrics_save on Linux", e);
            namespace.run(no_metrics).map_err(cannot)?;
        }
        Ok(())
    }

    /// Starts a bulk server on IX with this congestion control.
    fn ix(&self, congestion: &str) -> Result<Server> {
        let run_flags = ["--congestion", congestion].map(str::to_owned).to_vec();
        let bulk = Serve { run_flags, ..Serve::echo(&["bulk".to_owned()]) };
        self.lab.start(self.lab.on_ix(), &bulk)
    }

    /// Starts one on Linux sockets.
    fn linux(&self, congestion: &str) -> Result<(LinuxSource, SocketAddr)> {
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
            "path: {} Mbit/s, a queue of one round trip, in user space with a seed; the client's \
             end is Linux",
            RATE_BIT_PER_S / 1_000_000
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
