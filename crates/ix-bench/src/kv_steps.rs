//! `ix bench kv-steps`: the Arrakis paper's case study, from sockets to the native interface.
//!
//! One key-value server over UDP with the workload of the paper's figure 4: by socket calls (on Linux, and
//! on IX unmodified), then on the native interface without its zero-copy, with it for what comes, for what
//! leaves, and for both.
use crate::args::BenchArgs;
use crate::lab::{Host, Lab};
use crate::memcached_udp::{VALUE_BYTES, figures, load};
use crate::plan::{length, or};
use crate::runner::Setup;
use crate::serve::{Program, Serve};
use ix_cli::problem::{Problem, Result};
use ix_cli::report::Row;
use serde_json::json;
use std::time::Duration;

/// How the server has its datagrams: what a row is called, where, flags of `ix run`, and on IX of `ix-kv`.
struct Step {
    name: &'static str,
    host: Host,
    run_flags: &'static [&'static str],
    only_ix: &'static [&'static str],
}

const STEPS: [Step; 6] = [
    Step { name: "Linux' sockets", host: Host::BLOCKING, run_flags: &[], only_ix: &[] },
    Step { name: "sockets", host: Host::Ix, run_flags: &["--posix", "on"], only_ix: &["--linux"] },
    native("native, copied", &["--udp-steps", "none"]),
    native("native receive", &["--udp-steps", "receive"]),
    native("native transmit", &["--udp-steps", "transmit"]),
    native("native both", &["--udp-steps", "both"]),
];

const fn native(name: &'static str, only_ix: &'static [&'static str]) -> Step {
    Step { name, host: Host::Ix, run_flags: &[], only_ix }
}

/// Sockets of the client: one for the latency, and as many as keep the server busy.
const SOCKETS: [usize; 2] = [1, 64];
/// Time for storing the records and for ending, on top of the measurement.
const SLACK: Duration = Duration::from_secs(60);

/// Measures everything; answers the rows.
pub fn measure(lab: &Lab, args: &BenchArgs, notes: &mut Vec<String>) -> Result<Vec<Row>> {
    if !lab.has_linux_client() {
        return Err(Problem::new("cannot compare with Linux", "its clients are on Linux sockets")
            .mend("use --device afxdp or tap"));
    }
    let (seconds, runs) = length(args);
    let mut all = Vec::new();
    for sockets in or(&args.connections, &SOCKETS) {
        for step in &STEPS {
            let setup = Setup { server: step.host, client: Host::BLOCKING };
            let also = vec![("server", json!(step.name))];
            let settings = "1 pinned thread, offloads on".to_owned();
            all.push((step, setup.row(lab, sockets, VALUE_BYTES, also, settings)));
        }
    }
    for run in 1..=runs {
        for (step, row) in &mut all {
            lab.set_offloads(true)?;
            let mut server = lab.start(step.host, &serve(step))?;
            let args = load(server.address(), row.connections, seconds);
            let timeout = Duration::from_secs_f64(seconds * 2.0) + SLACK;
            let result = lab.run_load(Host::BLOCKING, &mut server, &args, timeout)?;
            server.stop();
            let figures = figures(&result)?;
            let rate = figures.iter().find(|(key, _)| *key == "msgs_per_s").map_or(0.0, |f| f.1);
            let (name, sockets) = (step.name, row.connections);
            eprintln!("ix: run {run}/{runs}: {name}, {sockets} sockets: {rate:.0} requests/s");
            row.add(figures);
        }
    }
    notes.push(
        "copied: requests and replies are copied once more each, as the calls of sockets must; receive: \
         requests are read where they were received; transmit: replies are written into transmit memory"
            .to_owned(),
    );
    Ok(all.into_iter().map(|(_, row)| row).collect())
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
