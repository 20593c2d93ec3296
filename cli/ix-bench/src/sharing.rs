//! `ix bench sharing`: what it costs that an address is shared by port, IX and Linux.
//!
//! IX at an address of its own, then at Linux's, of which it has a port; and a service of Linux at
//! that address with nothing on the interface, beside an XDP program that passes everything, and
//! beside IX that shares the address and is idle. All in turn in each run, so that ratios are of
//! neighbours in time.
use crate::args::{BenchArgs, Device};
use crate::lab::{Host, Lab, SERVER_LINK, Server, Spot};
use crate::plan::{MESSAGE_BYTES, length, or};
use crate::runner::Setup;
use crate::serve::Serve;
use ix_report::problem::{Problem, Result};
use ix_report::report::Row;
use ix_sys::Interface;
use ix_sys::bpf::{Insn, PROGRAM_XDP_FRAGS, Program, ProgramKind};
use serde_json::{Value, json};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Connections of the promise that sharing costs little.
const CONNECTIONS: usize = 64;
/// Port of the measured server, and of IX that is idle beside one of Linux.
const PORT: u16 = 7;
const IDLE_PORT: u16 = 9;
/// Longest time for warm-up, connecting and ending, beyond the measurement.
const SLACK: Duration = Duration::from_secs(30);
/// XDP in the driver (linux/if_link.h).
const ATTACH_NATIVE: u32 = 1 << 2;
/// `r0 = XDP_PASS; exit` (RFC 9669 section 4).
const PASS: [Insn; 2] =
    [Insn { code: 0xb7, regs: 0, off: 0, imm: 2 }, Insn { code: 0x95, regs: 0, off: 0, imm: 0 }];

/// Whose the port is, and what is on the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    /// IX's, at an address of its own.
    Own,
    /// IX's, at the address of Linux.
    Shared,
    /// Linux's; no XDP program.
    Alone,
    /// Linux's; a program that passes everything.
    Passed,
    /// Linux's; the program of IX, which is idle.
    BesideIx,
}

impl Case {
    const ALL: [Case; 5] = [Case::Own, Case::Shared, Case::Alone, Case::Passed, Case::BesideIx];

    fn is_ix(self) -> bool {
        matches!(self, Case::Own | Case::Shared)
    }

    fn name(self) -> &'static str {
        match self {
            Case::Own => "IX's own",
            Case::Shared => "shared",
            Case::Alone => "Linux's, no XDP",
            Case::Passed => "Linux's, XDP passes",
            Case::BesideIx => "Linux's, idle IX",
        }
    }

    /// What it is set against.
    fn reference(self) -> Option<Case> {
        match self {
            Case::Shared => Some(Case::Own),
            Case::BesideIx => Some(Case::Passed),
            Case::Own | Case::Alone | Case::Passed => None,
        }
    }
}

/// Measures all cases; returns the rows.
pub fn measure(lab: &Lab, args: &BenchArgs, notes: &mut Vec<String>) -> Result<Vec<Row>> {
    if lab.device() != Device::Afxdp {
        let why = "only AF_XDP shares an interface with Linux";
        return Err(Problem::new("cannot measure sharing", why).mend("use --device afxdp"));
    }
    let (seconds, runs) = length(args);
    let size = args.size.first().copied().unwrap_or(MESSAGE_BYTES);
    let mut rows: Vec<(Case, usize, Row)> = Vec::new();
    for connections in or(&args.connections, &[CONNECTIONS]) {
        for case in Case::ALL {
            let server = if case.is_ix() { lab.on_ix() } else { Host::BLOCKING };
            let setup = Setup { server, client: Host::BLOCKING };
            let also = vec![("address", json!(case.name()))];
            let row = setup.row(lab, connections, size, also, "1 pinned thread".to_owned());
            rows.push((case, connections, row));
        }
    }
    for run in 1..=runs {
        let mut rates: Vec<(Case, usize, f64)> = Vec::new();
        for (case, connections, row) in &mut rows {
            let mut figures = measure_one(lab, *case, (*connections, size), seconds)?;
            let rate = figures.iter().find(|(key, _)| *key == "msgs_per_s").map_or(0.0, |f| f.1);
            let is_reference = |(of, at, _): &&(Case, usize, f64)| {
                Some(*of) == case.reference() && at == connections
            };
            if let Some((.., reference)) = rates.iter().find(is_reference) {
                figures.push(("of_reference", rate / reference.max(1.0)));
            }
            eprintln!(
                "ix: run {run}/{runs}: {}, {connections} connections: {rate:.0} msg/s",
                case.name()
            );
            rates.push((*case, *connections, rate));
            row.add(figures);
        }
    }
    notes.push(
        "of reference: median over runs of the rate divided by the reference's in the same run: \
         shared by IX's own address, idle IX by the XDP program that passes everything"
            .to_owned(),
    );
    Ok(rows.into_iter().map(|(.., row)| row).collect())
}

fn measure_one(
    lab: &Lab,
    case: Case,
    (connections, size): (usize, u64),
    seconds: f64,
) -> Result<Vec<(&'static str, f64)>> {
    let serve = Serve::echo(&[size.to_string()]);
    let at = |port: u16, is_shared: bool| {
        // Where Linux has the address, no other is named: it is shared.
        let link = || (SERVER_LINK.to_owned(), lab.linux_address());
        Spot { cpu: lab.cpus.0, port, vnic: is_shared.then(link) }
    };
    let host = if case.is_ix() { lab.on_ix() } else { Host::BLOCKING };
    let _passes = if case == Case::Passed { Some(pass_all(lab)?) } else { None };
    let idle = if case == Case::BesideIx {
        Some(lab.start_at(lab.on_ix(), &serve, Some(&at(IDLE_PORT, true)))?)
    } else {
        None
    };
    let mut server = match case {
        Case::Own => lab.start(host, &serve)?,
        _ => lab.start_at(host, &serve, Some(&at(PORT, case == Case::Shared)))?,
    };
    let words = |words: &[(&str, String)]| -> Vec<String> {
        words.iter().flat_map(|(flag, value)| [(*flag).to_owned(), value.clone()]).collect()
    };
    let client = words(&[
        ("--connections", connections.to_string()),
        ("--size", size.to_string()),
        ("--seconds", seconds.to_string()),
    ]);
    let timeout = Duration::from_secs_f64(seconds * 2.0) + SLACK;
    let said = lab.run_client(Host::BLOCKING, &mut server, &client, timeout)?;
    server.stop();
    idle.map(Server::stop);
    let figure = |key: &'static str| Some((key, said.get(key).and_then(Value::as_f64)?));
    Ok(["msgs_per_s", "p50_us", "p99_us", "errors"].into_iter().filter_map(figure).collect())
}

/// Attaches a program that passes everything to the server's end of the link, as long as the
/// descriptor is open.
fn pass_all(lab: &Lab) -> Result<OwnedFd> {
    let attach = || -> io::Result<OwnedFd> {
        let program = Program::load(ProgramKind::Xdp, c"ix_pass", &PASS, PROGRAM_XDP_FRAGS)?;
        program.attach_xdp(Interface::new(SERVER_LINK)?.index()?, ATTACH_NATIVE)
    };
    let attached = lab.server_namespace().run(attach);
    attached.map_err(|e| Problem::new("cannot attach an XDP program", e).mend("see `ix doctor`"))
}
