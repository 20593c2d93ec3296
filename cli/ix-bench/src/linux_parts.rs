//! Time of a datagram in each part of Linux (Arrakis' table 1), with the server running and with
//! its hardware thread idle. `ix-echo --parts` reports what it measures; waking costs what a
//! sleeping server measures beyond a running one.
use crate::args::BenchArgs;
use crate::lab::{Host, Lab};
use crate::ping::Pinger;
use crate::plan::{UDP_SIZES, length, or};
use crate::runner::Setup;
use crate::serve::Serve;
use ix_echo::parts::{PARTS, Parts};
use ix_report::problem::{Problem, Result};
use ix_report::report::Row;
use serde_json::json;
use std::time::Duration;

/// Samples of each kind, as many as in the paper.
const SAMPLES: usize = 1000;
const QUICK_SAMPLES: usize = 100;
/// Every fourth datagram is whole in both directions; some are lost or have no time stamp.
const ROUNDS_PER_SAMPLE: usize = 5;
/// Pause before each datagram to a server that must sleep.
const PAUSE: Duration = Duration::from_millis(1);
const START: Duration = Duration::from_secs(20);

/// Measures all sizes.
pub fn measure(lab: &Lab, args: &BenchArgs, notes: &mut Vec<String>) -> Result<Vec<Row>> {
    let (_, runs) = length(args);
    let samples = if args.quick { QUICK_SAMPLES } else { SAMPLES };
    let mut rows = Vec::new();
    for size in or(&args.size, &UDP_SIZES) {
        let [mut running, mut idle] = [Host::SPINNING, Host::BLOCKING].map(|server| {
            let kind = if server == Host::SPINNING { "running" } else { "idle" };
            let also =
                vec![("in_flight", json!(1)), ("server", json!(format!("one a call, {kind}")))];
            let setup = Setup { server, client: Host::SPINNING };
            setup.row(lab, 1, size, also, "recvmsg, sendto, a datagram a call".to_owned())
        });
        for run in 1..=runs {
            let base = parts(lab, size, samples, Host::SPINNING, Duration::ZERO)?;
            let slept = parts(lab, size, samples, Host::BLOCKING, PAUSE)?;
            eprintln!("ix: run {run}/{runs}: {size} B, where the time goes on Linux");
            running.add(figures(&base, 0.0));
            idle.add(figures(&slept, (slept.in_ns - base.in_ns).max(0.0)));
        }
        rows.extend([running, idle]);
    }
    notes.push(format!(
        "Linux, running and idle: medians of {samples} datagrams, one in flight, from the device's \
         hand-over to the program and from its call to the device (SO_TIMESTAMPING); copies: what \
         datagrams cut to 8 bytes save; gate: a system call and back; scheduler: what a \
         sleeping server measures beyond a running one"
    ));
    Ok(rows)
}

/// Figures of a row, ns.
fn figures(parts: &Parts, scheduler_ns: f64) -> Vec<(&'static str, f64)> {
    // Into the kernel with the reply, and out of it with the request.
    let half = parts.crossing_ns / 2.0;
    let stack_in = parts.in_ns - parts.copy_in_ns - half - scheduler_ns;
    let stack_out = parts.out_ns - parts.copy_out_ns - half;
    vec![
        ("stack_in_ns", stack_in.max(0.0)),
        ("scheduler_ns", scheduler_ns),
        ("copy_in_ns", parts.copy_in_ns),
        ("gate_ns", parts.crossing_ns),
        ("copy_out_ns", parts.copy_out_ns),
        ("stack_out_ns", stack_out.max(0.0)),
        ("total_ns", parts.in_ns + parts.out_ns),
    ]
}

fn parts(lab: &Lab, size: u64, samples: usize, host: Host, pause: Duration) -> Result<Parts> {
    let count = samples.to_string();
    let serve = Serve::echo(&[size.to_string(), "--udp".into(), "--parts".into(), count]);
    lab.set_offloads(true)?;
    let mut server = lab.start(host, &serve)?;
    let (cpu, at) = (lab.cpus.1, server.address());
    let ask = || -> Result<()> {
        let pinned = ix_sys::cpu::pin(cpu);
        pinned.map_err(|e| Problem::new("cannot choose a hardware thread", e))?;
        let mut pinger = Pinger::new(lab, at, size as usize)?;
        pinger.wait_for_answer(START)?;
        pinger.rounds(samples * ROUNDS_PER_SAMPLE, pause).map(drop)
    };
    let asked = std::thread::scope(|scope| scope.spawn(ask).join());
    let panicked = |_| Err(Problem::new("cannot ask the server", "the client panicked"));
    asked.unwrap_or_else(panicked)?;
    let told = server.wait_for(PARTS, START)?;
    server.stop();
    serde_json::from_str(told.trim_start_matches(PARTS))
        .map_err(|e| Problem::new("cannot read where the time goes", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_make_the_whole() {
        let parts = Parts {
            in_ns: 1000.0,
            copy_in_ns: 100.0,
            out_ns: 800.0,
            copy_out_ns: 50.0,
            crossing_ns: 60.0,
        };
        for scheduler_ns in [0.0, 300.0] {
            let figures = figures(&parts, scheduler_ns);
            let (total, parts) = figures.split_last().expect("some");
            assert_eq!(parts.iter().map(|(_, ns)| ns).sum::<f64>(), total.1);
        }
    }
}
