//! `ix bench kv-steps`: the Arrakis paper's case study, from sockets to the native interface.
//!
//! One key-value server over UDP with the workload of the paper's figure 4: on socket calls (on
//! Linux, and on IX unmodified), then on the native interface without zero-copy, with it for
//! requests, for replies, and for both. The paper had five client machines, so its rates show the
//! server's cost. Here client and server have one hardware thread each, and a Linux client often
//! limits the rate. So the server's time per request is compared. Over memif the client is on a
//! dataplane and sends faster than any of these servers replies.
use crate::args::BenchArgs;
use crate::breakdown::breakdown;
use crate::busy::Busy;
use crate::lab::{Host, Lab, Load, Server};
use crate::memcached_udp::{VALUE_BYTES, figures, load};
use crate::plan::{length, or};
use crate::runner::{Setup, usage};
use crate::serve::{Program, Serve};
use ix_report::cost;
use ix_report::problem::Result;
use ix_report::report::Row;
use serde_json::json;
use std::time::{Duration, Instant};

/// How the server gets its datagrams: name of the row, system, flags of `ix run`, and on IX of
/// `ix-kv`.
struct Step {
    name: &'static str,
    /// The server is on IX; otherwise on Linux.
    on_ix: bool,
    run_flags: &'static [&'static str],
    only_ix: &'static [&'static str],
}

const STEPS: [Step; 6] = [
    Step { name: "Linux' sockets", on_ix: false, run_flags: &[], only_ix: &[] },
    Step { name: "sockets", on_ix: true, run_flags: &["--posix", "on"], only_ix: &["--linux"] },
    native("native, copied", &["--udp-steps", "none"]),
    native("native receive", &["--udp-steps", "receive"]),
    native("native transmit", &["--udp-steps", "transmit"]),
    native("native both", &["--udp-steps", "both"]),
];

const fn native(name: &'static str, only_ix: &'static [&'static str]) -> Step {
    Step { name, on_ix: true, run_flags: &[], only_ix }
}

/// Sockets of the client: one to measure latency, and enough to keep the server busy.
const SOCKETS: [usize; 2] = [1, 64];
/// Longest time for storing the records and for ending, beyond the measurement.
const SLACK: Duration = Duration::from_secs(60);
/// After this many requests the records are stored.
const BEGUN: u64 = 300;

/// Measures all points; returns the rows.
pub fn measure(lab: &Lab, args: &BenchArgs, notes: &mut Vec<String>) -> Result<Vec<Row>> {
    let (seconds, runs) = length(args);
    let client = if lab.has_linux_client() { Host::BLOCKING } else { Host::IX };
    if client.is_ix() {
        notes.push(
            "over memif the load is on a dataplane, so only the server's work limits the rate; \
             Linux cannot be measured on such a link"
                .to_owned(),
        );
    }
    let steps = || STEPS.iter().filter(|step| !client.is_ix() || step.on_ix);
    let mut all = Vec::new();
    for sockets in or(&args.connections, &SOCKETS) {
        for step in steps() {
            let hosts = match step.on_ix {
                true => lab.each_on_ix().collect(),
                false => vec![Host::BLOCKING],
            };
            for server in hosts {
                let setup = Setup { server, client };
                let also = vec![("server", json!(step.name))];
                let settings = "1 pinned thread, offloads on".to_owned();
                let row = setup.row(lab, sockets, VALUE_BYTES, also, settings);
                all.push((step, server, row));
            }
        }
    }
    for run in 1..=runs {
        for (step, host, row) in &mut all {
            lab.set_offloads(true)?;
            let mut server = lab.start(*host, &serve(step))?;
            let args = load(server.address(), row.connections, seconds);
            let timeout = Duration::from_secs_f64(seconds * 2.0) + SLACK;
            let mut load = lab.start_load(client, &args)?;
            let spent = spend(lab, &server, &mut load, seconds)?;
            let mut figures = figures(&load.finish_load(&mut server, timeout)?);
            server.stop();
            figures.extend(spent);
            let of = |key| figures.iter().find(|(name, _)| *name == key).map_or(0.0, |f| f.1);
            eprintln!(
                "ix: run {run}/{runs}: {}, {} sockets: {:.0} requests/s, {:.0} ns of the server for each",
                step.name,
                row.connections,
                of("msgs_per_s"),
                of("total_ns")
            );
            row.add(figures);
        }
    }
    notes.push(
        "copied: requests and replies are copied once more, as with socket calls; receive: \
         requests are read in place; transmit: replies are written into transmit memory"
            .to_owned(),
    );
    notes.push(
        "total: time per request of the server's hardware thread, in the middle of the load: on IX the \
         stages of its cycles, without waiting; on Linux all time that was not idle. The transmit stage, \
         and Linux's total, include the client's stack, because on a veth the sender does the \
         receiver's work; likewise the client does part of the Linux server's receiving. client busy: \
         busy share of the client's hardware thread. Where it is 1 the server waits for requests, its \
         batches (packets per cycle) are short and each packet costs more, so compare only rows with \
         similar batches"
            .to_owned(),
    );
    Ok(all.into_iter().map(|(_, _, row)| row).collect())
}

/// Time per request of the server, and busy share of the client, in the middle of a load.
fn spend(
    lab: &Lab,
    server: &Server,
    load: &mut Load,
    seconds: f64,
) -> Result<Vec<(&'static str, f64)>> {
    let (before, end) = (Look::at(lab, server), Instant::now() + SLACK);
    let begun = |look: &Look| look.requests >= before.requests + BEGUN;
    while !begun(&Look::at(lab, server)) && Instant::now() < end {
        if load.check().is_err() {
            // Its message at the end is the better reason.
            return Ok(Vec::new());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_secs_f64(seconds * 0.2));
    let (busy, client) = (Busy::of(lab.cpus.0), Busy::of(lab.cpus.1));
    let before = Look::at(lab, server);
    std::thread::sleep(Duration::from_secs_f64(seconds * 0.4));
    let after = Look::at(lab, server);
    let mut figures = Vec::new();
    figures.extend(client.and_then(Busy::share).map(|share| ("client_busy", share)));
    let requests = after.requests.saturating_sub(before.requests).max(1) as f64;
    match (after.used, before.used) {
        (Some((after, ticks_per_us)), Some((before, _))) => {
            let used = after.since(&before);
            figures.extend(breakdown(&used, ticks_per_us, None));
            figures.extend(used.batch_avg().map(|packets| ("batch_avg", packets)));
        }
        _ => {
            let seconds = (after.at - before.at).as_secs_f64();
            let busy = busy.and_then(Busy::share);
            figures.extend(busy.map(|share| ("total_ns", share * seconds * 1e9 / requests)));
        }
    }
    Ok(figures)
}

/// Requests that a server has received, and on IX what it spent.
struct Look {
    at: Instant,
    requests: u64,
    used: Option<(cost::Figures, f64)>,
}

impl Look {
    fn at(lab: &Lab, server: &Server) -> Look {
        let used = usage(server);
        let requests = match &used {
            Some((used, _)) => used.rx_packets,
            None => lab.server_namespace().run(|| datagrams().unwrap_or(0)),
        };
        Look { at: Instant::now(), requests, used }
    }
}

/// Datagrams that programs in the calling thread's namespace have received so far.
fn datagrams() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").ok()?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split(' ').position(|name| name == "InDatagrams")?;
    values.split(' ').nth(at)?.parse().ok()
}

fn serve(step: &Step) -> Serve {
    let texts = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    Serve {
        program: Program::Kv,
        arguments: texts(&["-m", "64", "-U", "7"]),
        only_ix: texts(step.only_ix),
        run_flags: texts(step.run_flags),
        ..Serve::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_counted() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let before = datagrams().expect("Linux counts them");
        socket.send_to(b"one", socket.local_addr().expect("its address")).expect("sent");
        socket.recv(&mut [0; 8]).expect("received");
        assert!(datagrams().expect("still") > before);
    }
}
