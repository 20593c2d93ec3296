//! An honest tenant beside two others: they serve, compute all the time, or are hostile.
use super::rounded;
use super::shared::{PORT, Shared};
use crate::lab::Lab;
use crate::process::Process;
use ix_report::problem::{Problem, Result};
use ix_report::report::median;
use ix_report::wall::attacker;
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

const START: Duration = Duration::from_secs(30);
/// Name, address and flags of each tenant; the first one is honest always. A user of its own keeps
/// it from a tenant that runs as root; the hostile ones have a user of their own, and root's
/// default.
const TENANTS: [(&str, Ipv4Addr, &[&str]); 3] = [
    ("honest", Ipv4Addr::new(10, 66, 0, 11), &["--user", "own"]),
    ("second", Ipv4Addr::new(10, 66, 0, 12), &["--user", "own"]),
    ("third", Ipv4Addr::new(10, 66, 0, 13), &[]),
];
/// Connections of each client.
const CONNECTIONS: &str = "16";

/// What was seen of one run.
struct Seen {
    msgs_per_s: f64,
    p99_us: f64,
}

/// What hostile tenants said.
#[derive(Default)]
struct Attacks {
    made: u64,
    /// Own packets that a tenant has found in its memory.
    own: u64,
    /// Those that succeeded, in words.
    succeeded: Vec<String>,
}

/// What the two others do, in words.
const KINDS: [&str; 3] = ["serving", "computing", "hostile"];

/// Measures in turn beside each kind of others. An error if an attack succeeds.
pub(super) fn measure(lab: &Lab, quick: bool) -> Result<Vec<Value>> {
    let (seconds, runs) = if quick { (2, 3) } else { (5, 5) };
    let stage = Stage::new(lab)?;
    let mut attacks = Attacks::default();
    let [mut serving, mut computing, mut hostile] = [const { Vec::new() }; 3];
    for run in 1..=runs {
        eprintln!("ix: run {run}/{runs}: a tenant beside two others");
        serving.push(stage.beside_serving(seconds)?);
        computing.push(stage.beside_computing(seconds)?);
        hostile.push(stage.beside_hostile(seconds, run, &mut attacks)?);
    }
    stage.stop();
    attacks.check()?;
    let median = |seen: &[Seen], pick: fn(&Seen) -> f64| {
        median(&seen.iter().map(pick).collect::<Vec<_>>()).unwrap_or(0.0)
    };
    let of_serving = median(&serving, |s| s.msgs_per_s).max(1e-9);
    let rows = KINDS.iter().zip([serving, computing, hostile]).map(|(beside, seen)| {
        let rate = median(&seen, |s| s.msgs_per_s);
        let made = (*beside == "hostile").then_some(attacks.made);
        json!({
            "what": "tenants",
            "system": "ix",
            "device": "afxdp",
            "domain": "process",
            "beside": beside,
            "runs": runs,
            "msgs_per_s": rate.round(),
            "of_serving": rounded(rate / of_serving),
            "p99_us": rounded(median(&seen, |s| s.p99_us)),
            "attacks": made,
            "succeeded": made.map(|_| 0),
        })
    });
    Ok(rows.collect())
}

/// A shared interface, a vNIC for each tenant, and the honest tenant.
struct Stage<'a> {
    lab: &'a Lab,
    shared: Shared<'a>,
    devices: Vec<String>,
    honest: Process,
}

impl<'a> Stage<'a> {
    fn new(lab: &'a Lab) -> Result<Stage<'a>> {
        let shared = Shared::start(lab, "100Gbit")?;
        let mut devices = Vec::new();
        for (name, ip, _) in TENANTS {
            devices.push(shared.vnic(name, ip, None)?.0);
        }
        let honest = start(lab, &devices, 0, &serves(lab))?;
        let mut stage = Stage { lab, shared, devices, honest };
        stage.honest.wait_for_line("ready", START)?;
        Ok(stage)
    }

    fn stop(self) {
        self.honest.stop();
        self.shared.stop();
    }

    fn beside_serving(&self, seconds: u64) -> Result<Seen> {
        let others = self.others(&serves(self.lab))?;
        // Theirs begin before and end after the one that counts.
        let clients: Result<Vec<Process>> =
            (1..TENANTS.len()).map(|nth| self.client(nth, seconds + 2)).collect();
        let clients = clients?;
        std::thread::sleep(Duration::from_secs(1));
        let seen = self.seen(seconds)?;
        clients.into_iter().for_each(Process::stop);
        others.into_iter().for_each(Process::stop);
        Ok(seen)
    }

    fn beside_computing(&self, seconds: u64) -> Result<Seen> {
        let computes = ["/bin/sh", "-c", "echo ready; while :; do :; done"];
        let others = self.others(&computes)?;
        let seen = self.seen(seconds)?;
        others.into_iter().for_each(Process::stop);
        Ok(seen)
    }

    fn beside_hostile(&self, seconds: u64, seed: u64, attacks: &mut Attacks) -> Result<Seen> {
        let attacker = attacker()?.display().to_string();
        let broker = self.honest.pid().to_string();
        let (victim, client) = (TENANTS[0].1.to_string(), self.lab.linux_client().to_string());
        let seed = seed.to_string();
        let words = [attacker.as_str(), "tenant", &seed, &broker, &victim, &client];
        let mut hostile = Vec::new();
        for nth in 1..TENANTS.len() {
            let mut other = start(self.lab, &self.devices, nth, &words)?;
            let line = other.wait_for_line("round", START)?;
            attacks.hear(&line);
            self.send_to(nth)?;
            hostile.push(other);
        }
        let seen = self.seen(seconds)?;
        for mut other in hostile {
            other.check()?;
            while let Some(line) = other.next_line() {
                attacks.hear(&line);
            }
            other.stop();
        }
        Ok(seen)
    }

    /// The other tenants with this program, which says `ready`.
    fn others(&self, program: &[impl AsRef<str>]) -> Result<Vec<Process>> {
        let other = |nth| {
            let mut other = start(self.lab, &self.devices, nth, program)?;
            other.wait_for_line("ready", START)?;
            Ok(other)
        };
        (1..TENANTS.len()).map(other).collect()
    }

    /// Sends a tenant a datagram, of which it must see traces: that shows that it sees what it has.
    fn send_to(&self, nth: usize) -> Result<()> {
        let send = || {
            let socket = UdpSocket::bind((self.lab.linux_client(), 0))?;
            socket.send_to(&[0; 64], (TENANTS[nth].1, PORT)).map(drop)
        };
        let sent = self.lab.client_namespace().run(send);
        sent.map_err(|e| Problem::new("cannot send a tenant a datagram", e))
    }

    /// A closed loop with the honest tenant.
    fn seen(&self, seconds: u64) -> Result<Seen> {
        let result = self.client(0, seconds)?.result(Duration::from_secs(seconds) + START)?;
        let figure = |key: &str| result[key].as_f64().unwrap_or(0.0);
        Ok(Seen { msgs_per_s: figure("msgs_per_s"), p99_us: figure("p99_us") })
    }

    /// The client of a tenant.
    fn client(&self, nth: usize, seconds: u64) -> Result<Process> {
        let namespace = self.lab.client_namespace();
        let mut command = namespace.command(self.lab.ix_file(), Some(self.lab.cpus.1));
        let server = SocketAddr::from((TENANTS[nth].1, PORT)).to_string();
        command.args(["echo", "--client", &server, "--linux", "--size", "64", "--connections"]);
        command.args([CONNECTIONS, "--seconds", &seconds.to_string(), "--json"]);
        Process::start(command, "client")
    }
}

/// The program of an honest tenant.
fn serves(lab: &Lab) -> Vec<String> {
    let words = [&lab.ix_file().display().to_string(), "echo", "64", "--port"];
    words.into_iter().map(str::to_owned).chain([PORT.to_string()]).collect()
}

/// Starts a tenant behind the default wall.
fn start(
    lab: &Lab,
    devices: &[String],
    nth: usize,
    program: &[impl AsRef<str>],
) -> Result<Process> {
    let (name, ip, flags) = TENANTS[nth];
    let cpu = lab.cpus.0.to_string();
    let mut command = lab.server_namespace().command(lab.ix_file(), None);
    command.args(["run", "--nic", &devices[nth], "--addr", &format!("{ip}/24")]).args(flags);
    command.args(["--cpus", &cpu, "--program-cpus", &cpu, "--posix", "off", "--control"]);
    command.arg(lab.file(&format!("tenant-{name}.sock"))).arg("--");
    command.args(program.iter().map(AsRef::as_ref));
    Process::start(command, name)
}

impl Attacks {
    /// An error if one succeeded, or if the look for foreign packets would not have seen any.
    fn check(&mut self) -> Result<()> {
        if !self.succeeded.is_empty() {
            self.succeeded.sort_unstable();
            self.succeeded.dedup();
            let succeeded = self.succeeded.join("; ");
            return Err(Problem::new("attacks on a tenant succeeded", succeeded));
        }
        if self.own == 0 {
            let why = "the hostile tenants do not even see their own packets in memory";
            return Err(Problem::new("the look for foreign packets shows nothing", why));
        }
        Ok(())
    }

    /// Takes in a line of a hostile tenant.
    fn hear(&mut self, line: &str) {
        let Some(round) = line.strip_prefix("round ") else {
            self.succeeded.push(line.to_owned());
            return;
        };
        let numbers = round.split([' ', ':']).filter_map(|word| word.parse::<u64>().ok());
        if let [_, refused, succeeded, foreign, own] = numbers.collect::<Vec<_>>()[..] {
            self.made += refused + succeeded;
            self.own += own;
            if foreign > 0 {
                self.succeeded.push(format!("{foreign} frames of another tenant were read"));
            }
        }
    }
}
