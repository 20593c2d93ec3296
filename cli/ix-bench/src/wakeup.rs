//! `ix bench wakeup`: how soon a sleeping service receives a packet, and its cost while idle.
//!
//! A datagram is sent after a pause in which the server has fallen asleep; the server's program
//! reports when it received it. Both clocks are the machine's. The same without a pause, where the
//! server on IX is awake, shows the cost of waking. A bare wake-up of this machine, without a
//! packet, shows the least possible time: the rest is the packet's path and the system.
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

/// Pause between requests: far longer than any server spins.
const PAUSE: Duration = Duration::from_millis(4);
/// Requests that are not measured: they resolve addresses and fill caches and pools.
const WARM: usize = 20;
const START: Duration = Duration::from_secs(20);

/// A server without datagrams: a thread that another one wakes.
const BARE: &str = "eventfd";
/// How a server receives datagrams: by a blocking Linux socket; on IX by the event loop's callback,
/// or by waiting for a packet queue (Arrakis' `event_wait_queues`).
const ON_LINUX: [&str; 2] = [BARE, "socket"];
const ON_IX: [&str; 2] = ["callback", "wait_queues"];
/// What the server's hardware thread does while the service is idle: it halts, or waits in any
/// state that Linux chooses; Linux's idle loop polls on it (`ix run --wake-us 0`); or another
/// program computes.
const NEIGHBOURS: [&str; 3] = [NONE, POLLS, COMPUTES];
const NONE: &str = "none";
const POLLS: &str = "none, polls";
const COMPUTES: &str = "computes";

/// Measures all points; returns the rows.
pub fn measure(lab: &Lab, args: &BenchArgs, notes: &mut Vec<String>) -> Result<Vec<Row>> {
    if lab.device() == Device::Memif {
        return Err(Problem::new("cannot measure waking over memif", "the client is on Linux")
            .mend("use --device afxdp or tap"));
    }
    let (seconds, runs) = length(args);
    let questions = ((seconds * 400.0) as usize).max(50);
    let mut neighbours = NEIGHBOURS.to_vec();
    if let Err(e) = Bound::new(lab.cpus.0) {
        notes.push(format!("no measurement with a polling idle loop: {e}"));
        neighbours.retain(|neighbour| *neighbour != POLLS);
    }
    let mut rows = Vec::new();
    let on_linux = ON_LINUX.map(|kind| (Host::BLOCKING, kind)).into_iter();
    let on_ix = lab.each_on_ix().flat_map(|server| ON_IX.map(|kind| (server, kind)));
    let servers: Vec<(Host, &str)> = on_linux.chain(on_ix).collect();
    for &(server, kind) in &servers {
        let setup = Setup { server, client: Host::SPINNING };
        for &neighbour in &neighbours {
            let also = vec![("server", json!(kind)), ("neighbour", json!(neighbour))];
            let settings = format!("one request every {} ms", PAUSE.as_millis());
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
            let (server, kind) = servers[index / neighbours.len()];
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
                "ix: run {run}/{runs}: {} ({kind}), neighbour {}: received after {p50:.1} µs",
                row.system, neighbour
            );
            row.add(figures);
        }
    }
    notes.push(format!(
        "heard: from when the client's end of the link has a datagram until the server's program \
         receives it, after {} ms of silence; sent: time before that, in the client's call; over bare: heard \
         less the time to wake a thread by an eventfd on this machine; awake: heard right after a \
         reply; idle: processor time of all processes of the idle service",
        PAUSE.as_millis()
    ));
    notes.push(
        "polls: Linux's idle loop on the server's hardware thread polls for work instead of halting (`ix run \
         --wake-us 0`); computes: another program has the server's hardware thread for itself"
            .to_owned(),
    );
    notes.push(
        "steps: look: from the client's end of the link until the dataplane, awake again, finds the datagram at \
         its first look at the rings; program: from then until the program has it; answer: from then \
         until the client has the reply; awake look, program, answer: the same steps right after a reply"
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
    let panicked =
        |_| Err(Problem::new("cannot send requests to the server", "the client panicked"));
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
    for (step, names) in STEPS.into_iter().filter(|(step, _)| host.is_ix() || !step.is_inside) {
        let [p50, p99, awake_p50] = names;
        figures.push((p50, quantile_us(&mut times(&asleep, step.pick), 0.5)));
        figures.push((p99, quantile_us(&mut times(&asleep, step.pick), 0.99)));
        figures.push((awake_p50, quantile_us(&mut times(&awake, step.pick), 0.5)));
    }
    Ok(figures)
}

/// A part of the way of a request.
#[derive(Clone, Copy)]
struct Step {
    pick: fn(&Asked) -> f64,
    /// It is between the dataplane's first look and its program: nothing on Linux.
    is_inside: bool,
}

/// The steps, with the names of their median and p99 where the server slept, and of their median
/// where it was awake: from the client's end of the link until the dataplane finds the datagram at
/// its first look at the rings (the kernel's path, the wake-up, the return from the wait); from
/// then until the program has it; from then until the client has the reply.
const STEPS: [(Step, [&str; 3]); 3] = [
    (
        Step { pick: |asked| asked.looked_ns, is_inside: true },
        ["look_p50_us", "look_p99_us", "awake_look_p50_us"],
    ),
    (
        Step { pick: |asked| asked.heard_ns - asked.looked_ns, is_inside: true },
        ["program_p50_us", "program_p99_us", "awake_program_p50_us"],
    ),
    (
        Step { pick: |asked| asked.answered_ns, is_inside: false },
        ["answer_p50_us", "answer_p99_us", "awake_answer_p50_us"],
    ),
];

/// The bare wake-up.
fn measure_bare(lab: &Lab, neighbour: &str, questions: usize) -> Result<Vec<(&'static str, f64)>> {
    let times = beside(computes(lab, neighbour), || bare::wake_ups(lab.cpus, questions, PAUSE));
    let mut times = times.map_err(|e| Problem::new("cannot measure a bare wake-up", e))?;
    Ok([("wake_p50_us", 0.5), ("wake_p99_us", 0.99)]
        .map(|(key, part)| (key, quantile_us(&mut times, part)))
        .to_vec())
}

/// The hardware thread where the neighbour computes, if it does.
fn computes(lab: &Lab, neighbour: &str) -> Option<usize> {
    (neighbour == COMPUTES).then_some(lab.cpus.0)
}

/// Runs a function while another program computes on a hardware thread, if one is given.
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

/// While this exists, Linux's idle loop polls on a hardware thread.
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
    // If it cannot be pinned, it disturbs less, and the figures look better than they are.
    let _ = ix_sys::cpu::pin(cpu);
    while !done.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

/// Processor time that an idle service needs, and how often it wakes.
fn idle(pid: i32, time: Duration) -> [(&'static str, f64); 2] {
    // Starting is over by then, and the threads sleep.
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

/// Nanoseconds on a processor, and sleeps, of a process and all its descendants.
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
        // A separate process: threads of other tests in this one end meanwhile, and take their
        // times away.
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
