//! `ix exporter`: the metrics of all dataplanes of a host, served over HTTP as one text.
//!
//! One thread serves the clients and waits for none of them. Each dataplane is asked by a thread of
//! its own, so one that hangs is missing in the text and holds up nobody.
//!
//! * `asker`: asks all dataplanes, and waits for them only so long.
//! * `places`: where their sockets are.
mod asker;
mod places;

use asker::Asker;
use clap::Args;
use ix_broker::control::exposition::{self, Answered, Format};
use ix_broker::control::{Scrapes, Wish, listen_for_scrapes, scrape_address};
use ix_report::output::MessageArgs;
use ix_report::problem::{Problem, Result};
use ix_sys::poll::{PollFd, poll};
use ix_sys::say;
use places::Places;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Help of the command.
pub const HELP: &str = "Serves the metrics of all dataplanes of this host at /metrics, for Prometheus: \
    each series names its program, process, device and elastic thread. It asks every dataplane at \
    each scrape, through its read-only socket. One that does not answer within a second has \
    ix_dataplane_up 0; the others' metrics are not late by more than that.\n\n\
    It needs no rights but to open the read-only sockets: start the dataplanes with \
    `read_only_group` or `read_only_mode` in the [control] part of their configuration, and the \
    exporter as a user of that group.\n\n\
    Examples:\n  \
    ix exporter\n  \
    ix exporter --listen 10.0.0.5:9464\n  \
    ix exporter --control /run/user/1000/ix      # another user's dataplanes too\n  \
    ix exporter --once > /var/lib/node_exporter/textfile/ix.prom";

/// Answers as old as this are good enough for the next scrape, however many clients there are.
const FRESH: Duration = Duration::from_millis(100);

/// Flags of `ix exporter`.
#[derive(Args, Debug)]
pub struct ExporterArgs {
    /// Where to serve; a bare port is on the loopback address
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9464", value_parser = address)]
    pub listen: SocketAddr,
    /// Also the dataplane of this control socket, or those of all sockets in this folder (may be
    /// repeated)
    #[arg(long, value_name = "PATH")]
    pub control: Vec<PathBuf>,
    /// Print the text once, and end
    #[arg(long)]
    pub once: bool,
    /// How to write messages
    #[command(flatten)]
    pub log: MessageArgs,
}

fn address(text: &str) -> std::result::Result<SocketAddr, &'static str> {
    scrape_address(text).ok_or("not ADDRESS:PORT or a port, for example 127.0.0.1:9464")
}

/// Serves until a signal ends it.
pub fn main(args: &ExporterArgs) -> Result<()> {
    args.log.apply();
    let cannot = |e: io::Error| Problem::new("cannot serve metrics", e);
    let mut asker = Asker::new(Places::new(&args.control)).map_err(cannot)?;
    if args.once {
        ix_sys::out!("{}", exposition::all(&ask_once(&mut asker).map_err(cannot)?, Format::Text));
        return Ok(());
    }
    let listener = listen_for_scrapes(args.listen, "--listen")?;
    let address = listener.local_addr().map_err(cannot)?;
    let mut scrapes = Scrapes::new(listener).map_err(cannot)?;
    say!("metrics of all dataplanes at http://{address}/metrics");
    serve(&mut scrapes, &mut asker).map_err(cannot)
}

/// What all dataplanes answer now.
fn ask_once(asker: &mut Asker) -> io::Result<Vec<Answered>> {
    asker.begin(Instant::now());
    loop {
        if let Some(answers) = asker.step(Instant::now()) {
            return Ok(answers);
        }
        wait(&mut [PollFd::readable(&asker.bell())], asker.due())?;
    }
}

/// Serves all clients, for ever.
fn serve(scrapes: &mut Scrapes, asker: &mut Asker) -> io::Result<()> {
    let mut waiting: Vec<Wish> = Vec::new();
    let mut last: Option<(Instant, Vec<Answered>)> = None;
    loop {
        let mut lines = Vec::new();
        waiting.extend(scrapes.serve(Instant::now(), &mut lines));
        lines.iter().for_each(|line| say!("{line}"));
        let now = Instant::now();
        last = asker.step(now).map(|answers| (now, answers)).or(last);
        last = last.filter(|(at, _)| now < *at + FRESH);
        match &last {
            Some((_, answers)) => give(scrapes, &mut waiting, answers),
            None if !waiting.is_empty() && asker.due().is_none() => asker.begin(now),
            None => {}
        }
        let due = scrapes.due().into_iter().chain(asker.due()).min();
        wait(&mut [PollFd::readable(&scrapes.fd()), PollFd::readable(&asker.bell())], due)?;
    }
}

/// Answers all who wait.
fn give(scrapes: &mut Scrapes, waiting: &mut Vec<Wish>, answers: &[Answered]) {
    for format in [Format::Text, Format::OpenMetrics] {
        if waiting.iter().any(|wish| wish.format == format) {
            let page = exposition::all(answers, format);
            let wishes = waiting.iter().filter(|wish| wish.format == format);
            wishes.for_each(|wish| scrapes.answer(*wish, Ok(&page)));
        }
    }
    waiting.clear();
}

/// Waits for one of these, or until then.
fn wait(fds: &mut [PollFd], until: Option<Instant>) -> io::Result<()> {
    let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
    match poll(fds, timeout) {
        Err(e) if e.kind() != ErrorKind::Interrupted => Err(e),
        _ => Ok(()),
    }
}
