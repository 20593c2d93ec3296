//! Tenants on one interface.
use super::{ask, quantile, rounded};
use crate::lab::{Lab, SERVER_LINK};
use crate::path::flows::Receivers;
use crate::process::Process;
use crate::stalls::Stalls;
use ix_broker::control::Client;
use ix_proto::control::vnic::{FiltersCreated, RateChange, SharedVnic, View, VnicCreated};
use ix_proto::control::{Request, VnicDevice};
use ix_report::problem::{Problem, Result};
use ix_vnic::Rate;
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const START: Duration = Duration::from_secs(20);
pub(super) const PORT: u16 = 7;
pub(super) const TENANTS: [Ipv4Addr; 2] =
    [Ipv4Addr::new(10, 66, 0, 11), Ipv4Addr::new(10, 66, 0, 12)];

/// `ix share` on the server's end of the link.
pub(crate) struct Shared<'a> {
    lab: &'a Lab,
    process: Process,
    control: PathBuf,
}

impl<'a> Shared<'a> {
    pub(crate) fn start(lab: &'a Lab, speed: &str) -> Result<Shared<'a>> {
        let control = lab.file("share");
        let mut command = lab.server_namespace().command(lab.ix_file(), None);
        // Linux has the addresses of vNICs that end, and their filters are held until they are
        // revoked.
        command
            .args(["share", SERVER_LINK, "--overlap", "--speed", speed, "--filters", "4096"])
            .arg("--control")
            .arg(&control);
        let mut process = Process::start(command, "shared interface")?;
        let end = Instant::now() + START;
        while process.said("ix: sharing").is_none() {
            process.check()?;
            if Instant::now() > end {
                return Err(Problem::new(
                    "`ix share` hangs",
                    "it does not report that it is ready",
                ));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Shared { lab, process, control })
    }

    /// Makes a vNIC with all packets of an address; returns the device to open, and the capability
    /// of its receive filter.
    pub(crate) fn vnic(
        &self,
        name: &str,
        ip: Ipv4Addr,
        owner: Option<u32>,
    ) -> Result<(String, String)> {
        let create = Request::VnicCreate {
            name: name.to_owned(),
            queues: 1,
            owner,
            device: VnicDevice::Afxdp,
        };
        let mut client = Client::connect(&self.control)?;
        let created: VnicCreated = client.get(&create)?;
        let filter = |direction: &str| {
            let filter = format!("{direction} ip service {ip}").parse();
            filter.map_err(|e| Problem::new("cannot make a filter", e))
        };
        let grant = Request::FilterCreate {
            filters: vec![filter("rx")?, filter("tx")?],
            holder: Some(name.to_owned()),
            vnic: Some(name.to_owned()),
            queue: None,
        };
        let granted: FiltersCreated = client.get(&grant)?;
        let received = granted.filters.into_iter().next();
        let capability = received.map(|filter| filter.capability).unwrap_or_default();
        Ok((created.device, capability))
    }

    pub(super) fn rate(&self, name: &str, tx: RateChange, weight: u32) -> Result<()> {
        let request = Request::Rate {
            rx: RateChange::Keep,
            tx,
            flow: RateChange::Keep,
            vnic: Some(name.to_owned()),
            queue: None,
            weight: Some(weight),
        };
        ask(&self.control, &request).map(drop)
    }

    /// Packets of all vNICs that the kernel has dropped, for their rates or their weights.
    pub(super) fn dropped(&self) -> Result<u64> {
        Ok(self.vnics()?.iter().map(|vnic| vnic.over_rate + vnic.over_share).sum())
    }

    /// All vNICs.
    fn vnics(&self) -> Result<Vec<SharedVnic>> {
        match Client::connect(&self.control)?.get(&Request::Vnic)? {
            View::Shared(shared) => Ok(shared.vnics),
            View::Own(_) => Err(Problem::new("`ix share` lists no vNICs", "it is a dataplane")),
        }
    }

    /// Starts a dataplane on a vNIC, with `ix echo`.
    pub(super) fn tenant(
        &self,
        name: &str,
        ip: Ipv4Addr,
        cpu: usize,
        serves: &str,
    ) -> Result<Process> {
        let (device, _) = self.vnic(name, ip, None)?;
        let mut command = self.run(&device, ip, cpu, serves);
        command.arg("--port").arg(PORT.to_string());
        let mut process = Process::start(command, name)?;
        process.wait_for_line("ready", START)?;
        Ok(process)
    }

    fn run(&self, device: &str, ip: Ipv4Addr, cpu: usize, serves: &str) -> Command {
        let mut command = self.lab.server_namespace().command(self.lab.ix_file(), Some(cpu));
        command.args(["run", "--domain", "none", "--nic", device, "--addr"]);
        command.arg(format!("{ip}/24")).args(["--cpus", &cpu.to_string(), "--control"]);
        command.arg(self.lab.file(&format!("tenant-{ip}.sock"))).arg("--").arg(self.lab.ix_file());
        command.args(["echo", serves]);
        command
    }

    /// Figures of a closed loop of one connection, on the hardware thread of the paced tenant.
    fn round_trips(&self, ip: Ipv4Addr, seconds: u64) -> Result<Value> {
        let namespace = self.lab.client_namespace();
        let mut command = namespace.command(self.lab.ix_file(), Some(self.lab.cpus.0));
        command.args(["echo", "--client", &format!("{ip}:{PORT}"), "--linux", "--size", "64"]);
        command.args(["--connections", "1", "--seconds", &seconds.to_string(), "--json"]);
        Process::start(command, "client")?.result(Duration::from_secs(seconds) + START)
    }

    pub(crate) fn stop(self) {
        self.process.stop();
    }
}

/// The p99 of a paced tenant, alone and beside one that floods.
pub(super) fn neighbour(lab: &Lab, quick: bool) -> Result<Vec<Value>> {
    let (seconds, runs) = if quick { (1, 3) } else { (4, 5) };
    let shared = Shared::start(lab, "400Mbit")?;
    let paced = shared.tenant("paced", TENANTS[0], lab.cpus.0, "64")?;
    // The flood and its receiver run on the other hardware thread: only the interface is shared.
    let flood = shared.tenant("flood", TENANTS[1], lab.cpus.1, "bulk")?;
    let pinned = ix_sys::cpu::pin(lab.cpus.1);
    pinned.map_err(|e| Problem::new("cannot choose a hardware thread", e))?;
    shared.rate("paced", RateChange::Set(Rate::bits(100_000_000)), 1)?;
    shared.rate("flood", RateChange::Remove, 1)?;
    let (mut alone, mut beside, mut mbits) = (Vec::new(), Vec::new(), Vec::new());
    let figure = |value: &Value, key: &str| value[key].as_f64().unwrap_or(0.0);
    for run in 1..=runs {
        eprintln!("ix: run {run}/{runs}: a paced tenant, alone and beside a flood");
        let result = shared.round_trips(TENANTS[0], seconds)?;
        alone.push((figure(&result, "p50_us"), figure(&result, "p99_us")));
        let receivers =
            Receivers::start(lab.client_namespace(), &[SocketAddr::from((TENANTS[1], PORT))])?;
        let (start, before) = (Instant::now(), receivers.counts()[0]);
        let result = shared.round_trips(TENANTS[0], seconds)?;
        let bits = (receivers.counts()[0] - before) as f64 * 8.0;
        mbits.push(bits / 1e6 / start.elapsed().as_secs_f64());
        beside.push((figure(&result, "p50_us"), figure(&result, "p99_us")));
    }
    paced.stop();
    flood.stop();
    shared.stop();
    let median = |values: &[f64]| {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        quantile(&sorted, 0.5)
    };
    let of = |runs: &[(f64, f64)], pick: fn(&(f64, f64)) -> f64| {
        median(&runs.iter().map(pick).collect::<Vec<_>>())
    };
    let (p99_alone, p99_beside) = (of(&alone, |r| r.1), of(&beside, |r| r.1));
    Ok(vec![json!({
        "what": "neighbour",
        "system": "ix",
        "device": "afxdp",
        "runs": runs,
        "p50_us_alone": rounded(of(&alone, |r| r.0)),
        "p50_us_beside": rounded(of(&beside, |r| r.0)),
        "p99_us_alone": rounded(p99_alone),
        "p99_us_beside": rounded(p99_beside),
        "p99_ratio": rounded(p99_beside / p99_alone.max(1e-9)),
        "flood_mbit_per_s": rounded(median(&mbits)),
    })])
}

/// Rates of two tenants that send all they can over a full interface.
pub(super) fn weights(lab: &Lab, quick: bool) -> Result<Vec<Value>> {
    let seconds = if quick { 2.0 } else { 10.0 };
    let link = 400.0;
    let shared = Shared::start(lab, "400Mbit")?;
    let one = shared.tenant("one", TENANTS[0], lab.cpus.0, "bulk")?;
    let other = shared.tenant("other", TENANTS[1], lab.cpus.0, "bulk")?;
    let mut rows = Vec::new();
    for weight in [1, 3] {
        eprintln!("ix: two tenants with weights of 1 and {weight}");
        shared.rate("other", RateChange::Keep, weight)?;
        let servers = TENANTS.map(|ip| SocketAddr::from((ip, PORT)));
        // Several flows each, so that one slow flow matters less.
        let all: Vec<_> = servers.iter().flat_map(|server| [*server; 4]).collect();
        let receivers = Receivers::start(lab.client_namespace(), &all)?;
        // By then all know that the interface is full, and queues have drained.
        std::thread::sleep(Duration::from_secs(1));
        let dropped = shared.dropped()?;
        let rates = receivers.measure(0.0, seconds);
        let dropped = shared.dropped()? - dropped;
        let sums = [rates[..4].iter().sum::<f64>(), rates[4..].iter().sum::<f64>()];
        rows.push(json!({
            "what": "weights",
            "system": "ix",
            "device": "afxdp",
            "link_mbit_per_s": link,
            "weights": format!("1:{weight}"),
            "each_mbit_per_s": format!("{:.1}:{:.1}", sums[0], sums[1]),
            "ratio": rounded(sums[1] / sums[0].max(1e-9)),
            "used_percent": rounded((sums[0] + sums[1]) / link * 100.0),
            "kernel_dropped": dropped,
        }));
    }
    one.stop();
    other.stop();
    shared.stop();
    Ok(rows)
}

/// How a vNIC ends.
#[derive(Clone, Copy)]
enum End {
    /// Its owner, an idle process, is killed.
    Owner,
    /// Its owner is the `ix run` of its dataplane.
    Dataplane,
    /// It is deleted.
    Deleted,
    /// The capability of its receive filter is revoked.
    Revoked,
}

/// Time until Linux receives a vNIC's packets. Times in which the machine did not stand still are
/// reported separately, because a hardware thread that is taken away for ten milliseconds delays
/// everything.
pub(super) fn handover(lab: &Lab, quick: bool) -> Result<Vec<Value>> {
    let shared = Shared::start(lab, "10Gbit")?;
    let watch = |e| Problem::new("cannot watch the machine", e);
    let cpus = ix_sys::cpu::allowed();
    let linux = Sink::new(lab, TENANTS[0])?;
    let most = if quick { 20 } else { 100 };
    let mut rows = Vec::new();
    for (end, what, runs) in [
        (End::Owner, "owner killed", most),
        (End::Dataplane, "ix run killed", most / 3),
        (End::Deleted, "deleted", most),
        (End::Revoked, "capability revoked", most),
    ] {
        eprintln!("ix: {runs} vNICs: {what}");
        let (mut times, mut undisturbed_ms, mut disturbed) = (Vec::new(), 0f64, 0);
        let stalls = Stalls::watch(&cpus).map_err(watch)?;
        for _ in 0..runs {
            let (start, took) = linux.after(&shared, end)?;
            let took_ms = took.as_secs_f64() * 1e3;
            times.push(took_ms);
            match stalls.any_in(start, start + took) {
                true => disturbed += 1,
                false => undisturbed_ms = undisturbed_ms.max(took_ms),
            }
        }
        times.sort_unstable_by(f64::total_cmp);
        rows.push(json!({
            "what": "handover",
            "system": "ix",
            "device": "afxdp",
            "end": what,
            "runs": runs,
            "p50_ms": rounded(quantile(&times, 0.5)),
            "p90_ms": rounded(quantile(&times, 0.9)),
            "p99_ms": rounded(quantile(&times, 0.99)),
            "most_ms": rounded(quantile(&times, 1.0)),
            "disturbed_runs": disturbed,
            "most_undisturbed_ms": rounded(undisturbed_ms),
            "machine_stood_still_ms": rounded(stalls.longest().as_secs_f64() * 1e3),
        }));
    }
    drop(linux);
    shared.stop();
    Ok(rows)
}

/// A Linux socket at the address that vNICs hold, and a client that sends there all the time.
struct Sink {
    socket: UdpSocket,
    ip: Ipv4Addr,
    done: std::sync::Arc<AtomicBool>,
    sender: Option<std::thread::JoinHandle<()>>,
}

impl Sink {
    fn new(lab: &Lab, ip: Ipv4Addr) -> Result<Sink> {
        let cannot = |e: ix_testbed::Error| Problem::new("cannot prepare Linux's address", e);
        let socket = |e: std::io::Error| Problem::new("cannot open a socket", e);
        let server = lab.server_namespace();
        server.add_address(SERVER_LINK, ip, 24).map_err(cannot)?;
        let mac = server.link(SERVER_LINK).map_err(cannot)?.map_or([0; 6], |link| link.mac);
        let client = lab.client_namespace();
        client.add_neighbour(crate::lab::CLIENT_LINK, ip, mac).map_err(cannot)?;
        let sink = server.run(|| UdpSocket::bind((ip, 9))).map_err(socket)?;
        let from = client.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).map_err(socket)?;
        let done = std::sync::Arc::new(AtomicBool::new(false));
        let told = std::sync::Arc::clone(&done);
        let sender = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                let _ = from.send_to(b"whose?", (ip, 9));
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        Ok(Sink { socket: sink, ip, done, sender: Some(sender) })
    }

    /// Makes a vNIC and ends it; returns when, and the time until Linux received a datagram.
    fn after(&self, shared: &Shared<'_>, end: End) -> Result<(Instant, Duration)> {
        let mut owner = match end {
            End::Owner => Some(Owner::start(Command::new("sleep").arg("1000"))?),
            End::Dataplane => Some(Owner::waiting(shared, self.ip)?),
            End::Deleted | End::Revoked => None,
        };
        let owner_id = owner.as_ref().map(|owner| owner.0.id());
        let (_, capability) = shared.vnic("short", self.ip, owner_id)?;
        if let (End::Dataplane, Some(owner)) = (end, &mut owner) {
            owner.go(shared, self.ip)?;
        }
        let delete = Request::VnicDelete { name: "short".into() };
        let last = match end {
            End::Revoked => Request::FilterRevoke { capability },
            _ => delete.clone(),
        };
        self.hear_nothing()?;
        let start = Instant::now();
        let control = &shared.control;
        // The reply to a request comes when the link has been removed, too.
        let took = std::thread::scope(|scope| {
            scope.spawn(|| match &mut owner {
                Some(owner) => owner.0.kill().is_ok(),
                None => ask(control, &last).is_ok(),
            });
            self.hear(START).map(|()| start.elapsed())
        })?;
        if matches!(end, End::Revoked) {
            ask(control, &delete)?;
        }
        // Its link has been removed when the name is free.
        let until = Instant::now() + START;
        while !shared.vnics()?.is_empty() {
            if Instant::now() > until {
                return Err(Problem::new("a vNIC still exists", "its owner has ended"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok((start, took))
    }

    fn hear(&self, timeout: Duration) -> Result<()> {
        let cannot = |e| Problem::new("Linux receives nothing", e);
        self.socket.set_read_timeout(Some(timeout)).map_err(cannot)?;
        self.socket.recv(&mut [0; 64]).map(drop).map_err(cannot)
    }

    /// Reads until no more datagrams of the time before the vNIC arrive.
    fn hear_nothing(&self) -> Result<()> {
        let until = Instant::now() + START;
        while self.hear(Duration::from_millis(5)).is_ok() {
            if Instant::now() > until {
                return Err(Problem::new("Linux receives packets of a vNIC", "for 20 s"));
            }
        }
        Ok(())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        let _ = self.sender.take().map(std::thread::JoinHandle::join);
    }
}

/// A process that owns a vNIC. Dropping this kills it.
struct Owner(Child);

impl Owner {
    fn start(command: &mut Command) -> Result<Owner> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Owner).map_err(|e| Problem::new("cannot start the owner", e))
    }

    /// Becomes `ix run` on command: the vNIC needs its process ID first.
    fn waiting(shared: &Shared<'_>, ip: Ipv4Addr) -> Result<Owner> {
        let (lab, device) = (shared.lab, "afxdp:ixv-short");
        let run = shared.run(device, ip, lab.cpus.0, "64");
        let mut command = lab.server_namespace().command("sh", Some(lab.cpus.0));
        command.args(["-c", "read go; exec \"$@\"", "sh"]).arg(lab.ix_file()).args(run.get_args());
        Owner::start(&mut command)
    }

    /// Waits until its dataplane has started.
    fn go(&mut self, shared: &Shared<'_>, ip: Ipv4Addr) -> Result<()> {
        use std::io::Write;
        let told = self.0.stdin.take().map_or(Ok(()), |mut input| input.write_all(b"go\n"));
        told.map_err(|e| Problem::new("cannot start the owner's dataplane", e))?;
        let (until, control) =
            (Instant::now() + START, shared.lab.file(&format!("tenant-{ip}.sock")));
        while ask(&control, &Request::Status).is_err() {
            if Instant::now() > until {
                return Err(Problem::new("the owner's dataplane hangs", "it does not start"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.kill();
    }
}
