//! `ix bench wakeup`: how soon a service that sleeps has a packet, and what it costs while nobody asks.
//!
//! A datagram is sent after a pause in which the server has fallen asleep; the server's program says when
//! it had it. Both clocks are the machine's. Beside it the same without a pause, where the server on IX
//! is awake: the difference is what waking takes. And beside all a bare wake-up of this machine, with no
//! packet in it: what is above that is the packet's way and the system's.
use crate::args::{BenchArgs, Device};
use crate::bare;
use crate::lab::{Host, Lab};
use crate::ping::{Asked, Pinger, quantile_us};
use crate::plan::{MESSAGE_BYTES, length};
use crate::runner::Setup;
use crate::serve::Serve;
use crate::tenants::Tenants;
use ix_controller::linux::{Latency, Tree};
use ix_report::problem::{Problem, Result};
use ix_report::report::Row;
use serde_json::json;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between questions: far longer than any server spins.
const PAUSE: Duration = Duration::from_millis(4);
/// Questions that are not measured: addresses are asked for, caches and pools filled.
const WARM: usize = 20;
const START: Duration = Duration::from_secs(20);

/// A server that has no datagrams: a thread that another rings.
const BARE: &str = "eventfd";
/// How a server has its datagrams: by a blocking socket of Linux; on IX by the event loop's callback, or by
/// waiting for a packet queue (Arrakis' `event_wait_queues`).
const SERVERS: [(Host, &str); 4] = [
    (Host::BLOCKING, BARE),
    (Host::BLOCKING, "socket"),
    (Host::Ix, "callback"),
    (Host::Ix, "wait_queues"),
];
/// What the server's hardware thread does while nobody asks: it halts, or waits in whatever state Linux
/// chooses; Linux' idle loop polls on it (`ix run --wake-us 0`); or another program computes.
const NEIGHBOURS: [&str; 3] = [NONE, POLLS, COMPUTES];
const NONE: &str = "none";
const POLLS: &str = "none, polls";
const COMPUTES: &str = "computes";

/// Measures everything; answers the rows.
pub fn measure(lab: &Lab, args: &BenchArgs, notes: &mut Vec<String>) -> Result<Vec<Row>> {
    if lab.device() == Device::Memif {
        return Err(Problem::new("cannot measure waking over memif", "the client is on Linux")
            .mend("use --device afxdp or tap"));
    }
    let (seconds, runs) = length(args);
    let questions = ((seconds * 400.0) as usize).max(50);
    let mut neighbours = NEIGHBOURS.to_vec();
    if let Err(e) = Bound::new(lab.cpus.0) {
        notes.push(format!("without an idle loop that polls: {e}"));
        neighbours.retain(|neighbour| *neighbour != POLLS);
    }
    let mut rows = Vec::new();
    for (server, kind) in SERVERS {
        let setup = Setup { server, client: Host::SPINNING };
        for &neighbour in &neighbours {
            let also = vec![("server", json!(kind)), ("neighbour", json!(neighbour))];
            let settings = format!("asked every {} ms", PAUSE.as_millis());
            let mut row = setup.row(lab, 1, MESSAGE_BYTES, also, settings);
            if kind == BARE {
                (row.system, row.device) = ("bare".to_owned(), "none".to_owned());
            }
            rows.push(row);
        }
    }
    for run in 1..=runs {
        let mut bare_us = vec![0.0; neighbours.len()];
        for (index, row) in rows.iter_mut().enumerate() {
            let (server, kind) = SERVERS[index / neighbours.len()];
            let bare_us = &mut bare_us[index % neighbours.len()];
            let neighbour = neighbours[index % neighbours.len()];
            let _bound = (neighbour == POLLS).then(|| Bound::new(lab.cpus.0)).transpose()?;
            let mut figures = match kind {
                BARE => measure_bare(lab, neighbour, questions)?,
                _ => measure_one(lab, (server, kind), neighbour, questions, seconds)?,
            };
            let p50 = figures.iter().find(|(key, _)| *key == "wake_p50_us").map_or(0.0, |f| f.1);
            match kind {
                BARE => *bare_us = p50,
                _ => figures.push(("over_bare_us", p50 - *bare_us)),
            }
            eprintln!(
                "ix: run {run}/{runs}: {} ({kind}), neighbour {}: heard after {p50:.1} µs",
                row.system, neighbour
            );
            row.add(figures);
        }
    }
    notes.push(format!(
        "heard: from when a datagram is handed to the client's end of the link until the server's program \
         has it, after {} ms of silence; sent: before that, in the client's call; over bare: beyond what \
         waking a thread takes here that another rings by an eventfd; awake: the same at once after an \
         answer; idle: processor time of all processes of the service while nobody asks",
        PAUSE.as_millis()
    ));
    notes.push(
        "polls: Linux' idle loop on the server's hardware thread looks for work instead of halting (`ix run \
         --wake-us 0`); computes: another program has the server's hardware thread for itself"
            .to_owned(),
    );
    if lab.device() == Device::Afxdp {
        notes.push("IX: a tenant of `ix share`, on a vNIC".to_owned());
    }
    Ok(rows)
}

fn measure_one(
    lab: &Lab,
    (host, kind): (Host, &str),
    neighbour: &str,
    questions: usize,
    seconds: f64,
) -> Result<Vec<(&'static str, f64)>> {
    let mut serve = Serve::echo(&[MESSAGE_BYTES.to_string(), "--udp".into(), "--stamp".into()]);
    if kind == "wait_queues" {
        serve.only_ix.push("--packets".into());
    }
    let count = usize::from(lab.device() == Device::Afxdp);
    let tenants = Tenants::start(lab, host, count, |_| serve.clone())?;
    let server = &tenants.servers[0];
    let mut figures = Vec::new();
    if neighbour == NONE {
        figures.extend(idle(server.pid(), Duration::from_secs_f64(seconds.max(1.0))));
    }
    let at = server.address();
    let ask = || -> Result<(Vec<Asked>, Vec<Asked>)> {
        let pinned = ix_sys::cpu::pin(lab.cpus.1);
        pinned.map_err(|e| Problem::new("cannot choose a hardware thread", e))?;
        let mut pinger = Pinger::new(lab, at, MESSAGE_BYTES as usize)?;
        pinger.wait_for_answer(START)?;
        pinger.note_leaving()?;
        pinger.rounds(WARM, PAUSE)?;
        let asleep = pinger.rounds(questions, PAUSE)?;
        Ok((asleep, pinger.rounds(questions, Duration::ZERO)?))
    };
    let panicked = |_| Err(Problem::new("cannot ask the server", "the client panicked"));
    let rounds = beside(computes(lab, neighbour), || {
        std::thread::scope(|scope| scope.spawn(ask).join()).unwrap_or_else(panicked)
    });
    let (asleep, awake) = rounds?;
    tenants.stop();
    let times = |rounds: &[Asked], pick: fn(&Asked) -> f64| -> Vec<f64> {
        rounds.iter().map(pick).collect()
    };
    let mut heard = times(&asleep, |asked| asked.heard_ns);
    figures.push(("wake_p50_us", quantile_us(&mut heard, 0.5)));
    figures.push(("wake_p99_us", quantile_us(&mut heard, 0.99)));
    figures.push(("sent_p50_us", quantile_us(&mut times(&asleep, |asked| asked.sent_ns), 0.5)));
    figures.push(("awake_p50_us", quantile_us(&mut times(&awake, |asked| asked.heard_ns), 0.5)));
    Ok(figures)
}

/// Without packets.
fn measure_bare(lab: &Lab, neighbour: &str, questions: usize) -> Result<Vec<(&'static str, f64)>> {
    let times = beside(computes(lab, neighbour), || bare::wake_ups(lab.cpus, questions, PAUSE));
    let mut times = times.map_err(|e| Problem::new("cannot measure a bare wake-up", e))?;
    Ok([("wake_p50_us", 0.5), ("wake_p99_us", 0.99)]
        .map(|(key, part)| (key, quantile_us(&mut times, part)))
        .to_vec())
}

/// Where the neighbour computes, if it does.
fn computes(lab: &Lab, neighbour: &str) -> Option<usize> {
    (neighbour == COMPUTES).then_some(lab.cpus.0)
}

/// Does something while another program computes on a hardware thread, if one is named.
fn beside<T>(cpu: Option<usize>, work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let done = &done;
        cpu.map(|cpu| scope.spawn(move || compute(cpu, done)));
        let outcome = work();
        done.store(true, Ordering::Relaxed);
        outcome
    })
}

/// While it is there, Linux' idle loop polls on a hardware thread.
struct Bound(Latency);

impl Bound {
    fn new(cpu: usize) -> Result<Bound> {
        let mut latency = Latency::new(&Tree::default());
        let bound = latency.bound(cpu as u32, Some(0));
        bound.map_err(|e| Problem::new("cannot keep a hardware thread awake", e))?;
        Ok(Bound(latency))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.0.restore();
    }
}

/// A program that never waits.
fn compute(cpu: usize, done: &AtomicBool) {
    // Where it cannot be pinned it disturbs less, and the figures are better than they should be.
    let _ = ix_sys::cpu::pin(cpu);
    while !done.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

/// Processor time that a service needs while nobody asks, and how often it is woken.
fn idle(pid: i32, time: Duration) -> [(&'static str, f64); 2] {
    // What starting took is over, and the threads sleep.
    std::thread::sleep(Duration::from_millis(200));
    let (start, before) = (Instant::now(), usage(pid));
    std::thread::sleep(time);
    let (seconds, after) = (start.elapsed().as_secs_f64(), usage(pid));
    let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
    [
        ("idle_cpu_us_per_s", each(before.0, after.0) / 1000.0),
        ("idle_wakes_per_s", each(before.1, after.1)),
    ]
}

/// Nanoseconds on a processor, and sleeps, of a process and all below it.
fn usage(pid: i32) -> (u64, u64) {
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let mut sum = (0, 0);
    for task in tasks.into_iter().flatten().flatten().map(|task| task.path()) {
        let schedstat = read(task.join("schedstat"));
        sum.0 += schedstat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
        let status = read(task.join("status"));
        let sleeps = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
        sum.1 += sleeps.and_then(|n| n.trim().parse().ok()).unwrap_or(0);
        for child in read(task.join("children")).split_whitespace() {
            let below = child.parse().map_or((0, 0), usage);
            sum = (sum.0 + below.0, sum.1 + below.1);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_computes_is_seen_to() {
        // A process of its own: of this one, threads of other tests end meanwhile, and take their time along.
        let mut program = std::process::Command::new("sh");
        let mut program = program.args(["-c", "while :; do sleep 0.01; done"]).spawn().unwrap();
        let own = program.id() as i32;
        let before = usage(own);
        let start = Instant::now();
        let after = loop {
            let after = usage(own);
            if (after.0 > before.0 && after.1 > before.1) || start.elapsed() > START {
                break after;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        program.kill().and_then(|()| program.wait()).unwrap();
        assert!(after.0 > before.0 && after.1 > before.1, "{before:?} {after:?}");
        assert_eq!(usage(-1), (0, 0));
    }
}
