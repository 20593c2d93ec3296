//! `ix bench gate`: the cost of crossing into the dataplane, beside the cost of other walls: a
//! system call, and two processes that wake each other. Programs are measured in each domain that
//! the machine has, alternating in one run.
use super::calls;
use super::lab::{Host, Lab};
use super::serve::{Program, Serve};
use crate::args::{Device, GateArgs};
use crate::samples::{percentiles, row};
use ix_report::domain::Domain;
use ix_report::machine::Machine;
use ix_report::problem::{Problem, Result};
use ix_report::results::{Results, Row};
use ix_report::table::layout;
use ix_report::wall::{attacker, has_keys};
use ix_sys::{Responder, cpu, event};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::hint::black_box;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

const SYSTEM_CALLS: u32 = 1000;
const ROUND_TRIPS: u32 = 100;
/// Longest time beyond a load's length.
const SLACK: Duration = Duration::from_secs(30);
/// Programs that are measured in each domain, with numbers of connections.
const LOADS: [(Program, &str); 4] =
    [(Program::Echo, "1"), (Program::Echo, "64"), (Program::Echo, "1024"), (Program::Kv, "64")];
const NO_KEYS: &str = "this machine has no protection keys";

/// Measures and prints.
pub fn main(args: &GateArgs) -> Result<()> {
    if let Some(to) = args.calls_to {
        return calls::subject(to);
    }
    let domains = Domain::or_all(&args.domain);
    let keys = has_keys().is_ok();
    let ticks_per_us = ix_dataplane::Clock::new().ticks_per_us() as f64;
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    for crossing in CROSSINGS.iter().filter(|crossing| domains.contains(&crossing.domain)) {
        rows.push(measured(crossing, keys, ticks_per_us)?);
    }
    if !keys && args.domain.is_empty() {
        rows.push(json!({ "what": "crossing", "domain": "pku", "missing": NO_KEYS }));
        notes.push(format!("domain pku is not measured: {NO_KEYS}"));
    }
    let getpid = getpid_ticks();
    rows.push(row("getpid", None, getpid, ticks_per_us));
    let eventfd = eventfd_ticks().map_err(|e| Problem::new("cannot measure eventfds", e))?;
    rows.push(row("eventfd round trip", None, eventfd, ticks_per_us));
    let programs = programs(args, &domains);
    notes.extend(NOTES.map(str::to_owned));
    match intercepted(args, ticks_per_us) {
        Ok(more) => {
            rows.extend(more);
            notes.push(
                "sockets: calls of an unmodified program whose bytes are already there; over_native_ns: \
                 less the cycle that epoll_wait runs, and less the time of Linux itself"
                    .to_owned(),
            );
        }
        Err(why) => notes.push(format!("calls of sockets are not measured: {why}")),
    }
    match programs {
        Ok(more) => rows.extend(more),
        Err(why) => notes.push(format!("the programs are not compared: {why}")),
    }
    publish(args, &rows, &notes)
}

/// A way to cross into the dataplane.
struct Crossing {
    /// Of the row.
    what: &'static str,
    domain: Domain,
    /// The program has a hardware thread of its own.
    is_apart: bool,
    /// What the attacker does: here without attacks, on its own dataplane.
    word: &'static str,
}

/// All kinds: within one process; and between two that take turns on one hardware thread, of which
/// each has one, and of which the dataplane's has gone to sleep.
const CROSSINGS: [Crossing; 5] = [
    Crossing { what: "crossing", domain: Domain::None, is_apart: false, word: "crossing" },
    Crossing { what: "crossing", domain: Domain::Process, is_apart: false, word: "crossing" },
    Crossing {
        what: "crossing, a hardware thread each",
        domain: Domain::Process,
        is_apart: true,
        word: "crossing",
    },
    Crossing {
        what: "crossing, the dataplane asleep",
        domain: Domain::Process,
        is_apart: false,
        word: "wake",
    },
    Crossing { what: "crossing", domain: Domain::Pku, is_apart: false, word: "crossing" },
];

const NOTES: [&str; 2] = [
    "cycles: of the time stamp counter, median; a crossing is a call of the gate with a number of \
     calls that the dataplane refuses at once",
    "eventfd round trip: two processes on one hardware thread wake each other",
];

/// Measures a crossing, if the machine has what it takes.
fn measured(crossing: &Crossing, keys: bool, ticks_per_us: f64) -> Result<Value> {
    let Crossing { what, domain, is_apart, .. } = crossing;
    let lacks = match domain {
        Domain::Pku if !keys => Some(NO_KEYS),
        _ if *is_apart && cpu::allowed().len() < 2 => {
            Some("this process may use one hardware thread")
        }
        _ => None,
    };
    match lacks {
        Some(why) => Ok(json!({ "what": what, "domain": domain.name(), "missing": why })),
        None => cross(crossing, ticks_per_us),
    }
}

/// Runs a program that crosses.
fn cross(crossing: &Crossing, ticks_per_us: f64) -> Result<Value> {
    let domain = crossing.domain.name();
    let what = || format!("cannot measure a crossing with --domain {domain}");
    let ix = std::env::current_exe().map_err(|e| Problem::new(what(), e))?;
    let socket = std::env::temp_dir().join(format!("ix-gate-{}-{domain}", std::process::id()));
    let cpus = cpu::allowed();
    let own = cpus[0].to_string();
    let programs = cpus.get(usize::from(crossing.is_apart)).unwrap_or(&cpus[0]).to_string();
    let output = Command::new(&ix)
        .args(["run", "--domain", domain, "--posix", "off", "--addr", "10.9.0.2/24"])
        .args(["--cpus", &own, "--program-cpus", &programs, "--nic"])
        .arg(format!("memif:{}", socket.display()))
        .arg("--")
        .arg(attacker()?)
        .arg(crossing.word)
        .stdin(Stdio::null())
        .output();
    let _ = std::fs::remove_file(socket);
    let output = output.map_err(|e| Problem::new(what(), e))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match <[f64; 3]>::try_from(numbers) {
        Ok(numbers) if output.status.success() => {
            Ok(row(crossing.what, Some(domain), numbers, ticks_per_us))
        }
        _ => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(Problem::new(
                what(),
                said.lines().last().unwrap_or("it printed nothing").to_owned(),
            ))
        }
    }
}

fn getpid_ticks() -> [f64; 3] {
    percentiles(SYSTEM_CALLS, || {
        let start = ix_dataplane::ticks();
        for _ in 0..SYSTEM_CALLS {
            black_box(std::process::id());
        }
        ix_dataplane::ticks() - start
    })
}

/// A process that replies on the same hardware thread.
fn eventfd_ticks() -> std::io::Result<[f64; 3]> {
    let (there, back) = (event::open_blocking()?, event::open_blocking()?);
    let before = cpu::allowed();
    cpu::pin(before[0])?;
    let responder = Responder::new(there.as_fd(), back.as_fd());
    let ticks = responder.as_ref().map(|_| {
        percentiles(ROUND_TRIPS, || {
            let start = ix_dataplane::ticks();
            for _ in 0..ROUND_TRIPS {
                event::ring(there.as_fd());
                event::wait(back.as_fd());
            }
            ix_dataplane::ticks() - start
        })
    });
    let ticks = ticks.ok();
    let refused = responder.err();
    cpu::pin_to(&before)?;
    ticks.ok_or_else(|| refused.unwrap_or_else(std::io::Error::last_os_error))
}

/// A program's own executable, beside this one. The command `ix` has many times as much code, and
/// so more often, by chance, bytes that the wall refuses.
fn file_of(program: Program) -> Result<PathBuf> {
    let beside = std::env::current_exe().map(|ix| ix.with_file_name(program.name()));
    beside.ok().filter(|file| file.is_file()).ok_or_else(|| {
        let what = format!("cannot measure {}", program.name());
        Problem::new(what, "its executable is not beside ix")
            .mend("cargo build --release --workspace")
    })
}

/// Measures the cost of calls in programs that are not written for IX.
fn intercepted(args: &GateArgs, ticks_per_us: f64) -> Result<Vec<Value>> {
    let (device, _) = super::choose_device(args.device.or(Some(Device::Memif)))?;
    calls::rows(&Lab::new(device)?, ticks_per_us)
}

/// Measures echo and key-value server, alternating between the domains.
fn programs(args: &GateArgs, domains: &[Domain]) -> Result<Vec<Value>> {
    let (device, _) = super::choose_device(args.device.or(Some(Device::Memif)))?;
    let lab = Lab::new(device)?;
    let (runs, seconds) = if args.quick { (1, "0.3") } else { (5, "1") };
    let client = if lab.has_ix_client() { Host::IX } else { Host::BLOCKING };
    // Beside none, if only others are wanted.
    let others = domains.iter().map(|domain| domain.name()).filter(|domain| *domain != "none");
    let domains = std::iter::once("none").chain(others);
    // In the order of the loads, and the domains of each together.
    let mut samples: BTreeMap<(usize, &str), Vec<(f64, f64)>> = BTreeMap::new();
    for _ in 0..runs {
        for (number, (program, connections)) in LOADS.into_iter().enumerate() {
            for domain in domains.clone() {
                let figures = load(&lab, client, program, connections, domain, seconds)?;
                samples.entry((number, domain)).or_default().push(figures);
            }
        }
    }
    let median = |values: Vec<f64>| {
        let mut values = values;
        values.sort_unstable_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let medians = |figures: &[(f64, f64)]| {
        let rate = median(figures.iter().map(|f| f.0).collect());
        (rate, median(figures.iter().map(|f| f.1).collect()))
    };
    let mut rows = Vec::new();
    for ((number, domain), figures) in &samples {
        let (rate, p50_us) = medians(figures);
        let (program, connections) = LOADS[*number];
        let mut row = json!({
            "what": program.name(),
            "connections": connections.parse::<u32>().unwrap_or(0),
            "domain": domain,
            "device": device.name(),
            "client": client.system(),
            "msgs_per_s": rate.round(),
            "p50_us": p50_us,
            "runs": figures.len(),
        });
        match samples.get(&(*number, "none")) {
            Some(none) if *domain != "none" => {
                let (none_rate, none_us) = medians(none);
                row["ratio_to_none"] = json!((rate / none_rate * 1000.0).round() / 1000.0);
                row["more_p50_us"] = json!(((p50_us - none_us) * 1000.0).round() / 1000.0);
            }
            _ => {}
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Messages per second and their median latency, µs.
fn load(
    lab: &Lab,
    client: Host,
    program: Program,
    connections: &str,
    domain: &str,
    seconds: &str,
) -> Result<(f64, f64)> {
    let run_flags = ["--domain", domain].map(str::to_owned).to_vec();
    let arguments = match program {
        Program::Kv => ["-m", "256"].map(str::to_owned).to_vec(),
        _ => vec!["64".to_owned()],
    };
    let file = Some(file_of(program)?);
    let serve = Serve { program, arguments, run_flags, file, ..Serve::default() };
    let mut server = lab.start(Host::IX, &serve)?;
    let timeout = SLACK;
    let result = if program == Program::Kv {
        let address = server.address().to_string();
        let words = ["load", &address, "--protocol", "memcached-binary", "--workload", "usr"];
        let mut load: Vec<OsString> = words.map(Into::into).into();
        let words = ["--records", "10000", "--quiet", "--connections", connections];
        load.extend(words.map(Into::into));
        load.extend(["--json", "-", "--seconds", seconds].map(Into::into));
        let result = lab.run_load(client, &mut server, &load, timeout)?;
        let summary = result.summary();
        (summary.msgs_per_s, summary.latency.p50_us.unwrap_or(0.0))
    } else {
        let words = ["--size", "64", "--connections", connections, "--seconds", seconds];
        let result = lab.run_client(client, &mut server, &words.map(str::to_owned), timeout)?;
        let number = |key: &str| result[key].as_f64().unwrap_or(0.0);
        (number("msgs_per_s"), number("p50_us"))
    };
    server.stop();
    Ok(result)
}

fn publish(args: &GateArgs, rows: &[Value], notes: &[String]) -> Result<()> {
    let machine = Machine::read();
    let all: Vec<Row> = rows.iter().filter_map(|row| row.as_object().cloned()).collect();
    let notes_of = notes.iter().map(ToString::to_string).collect();
    let report = Results::new("gate", &machine, all, notes_of).to_json();
    let mut text = format!("{}\n\n{}\n", machine.summary(), table(rows));
    notes.iter().for_each(|note| text += &format!("{note}\n"));
    args.output.publish(&text, || report)
}

fn table(rows: &[Value]) -> String {
    const COLUMNS: [&str; 10] = [
        "connections",
        "domain",
        "cycles",
        "ns",
        "over_native_ns",
        "msgs_per_s",
        "p50_us",
        "ratio_to_none",
        "more_p50_us",
        "missing",
    ];
    let mut lines = vec![std::iter::once("what").chain(COLUMNS).map(str::to_owned).collect()];
    for row in rows {
        let none = Map::new();
        let row = row.as_object().unwrap_or(&none);
        let cell = |key: &str| match row.get(key) {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => String::new(),
        };
        lines.push(std::iter::once("what").chain(COLUMNS).map(cell).collect::<Vec<_>>());
    }
    layout(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_process_measures_is_of_the_right_order() {
        let [low, mid, high] = getpid_ticks();
        assert!(0.0 < low && low <= mid && mid <= high, "{low} {mid} {high}");
        let row = row("getpid", None, [low, mid, high], 2000.0);
        assert!(row["cycles"].as_f64() > Some(0.0) && row.get("domain").is_none(), "{row}");
        let [_, trip, _] = eventfd_ticks().expect("eventfds");
        assert!(trip > mid, "a round trip of processes takes longer than a system call");
        let missing = json!({ "what": "crossing", "domain": "pku", "missing": "no keys" });
        let table = table(&[row, missing]);
        assert!(table.contains("getpid") && table.contains("no keys"), "{table}");
    }
}
