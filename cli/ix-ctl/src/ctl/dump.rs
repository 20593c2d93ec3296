//! `ix ctl dump`: one file for a report of a fault.
use super::args::DumpArgs;
use super::json;
use crate::stats;
use ix_broker::control::{Client, exposition};
use ix_proto::control::{About, CONNECTIONS_MAX, Connections, Query, Request, Status, vnic};
use ix_report::problem::{Problem, Result};
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of a packet that hold headers alone, but for short ones: Ethernet, IPv4, TCP and its usual
/// options.
const HEADERS_BYTES: u32 = 66;
/// Bytes of a whole packet.
const WHOLE_BYTES: u32 = 9_216;

const README: &str = "\
What a running dataplane of IX and its machine say, for a report of a fault.

status.json       threads, flow groups, devices, migrations
stats.json        all counters, with what they cost
metrics.txt       the same for Prometheus
connections.json  TCP connections: addresses, ports, windows, times; no payload
vnic.json         filters and rates
about.json        how the run was started, its configuration file and its last messages
doctor.json       what the machine can do
capture.pcapng    packets, if asked for

A file NAME.missing holds the reason why NAME is not here.
";

/// The file that is written.
struct Archive {
    tar: tar::Builder<File>,
    path: PathBuf,
    at_s: u64,
    missing: usize,
}

/// Captures packets of the dataplane of a control socket into a file, for so many seconds, so many
/// bytes of each.
pub type Capture = fn(&Path, PathBuf, f64, u32) -> Result<()>;

/// Writes the file.
pub fn main(args: &DumpArgs, capture: Capture) -> Result<()> {
    let path = args.dataplane.find()?;
    let mut client = Client::connect(&path)?;
    // Without this there is no dataplane to report about.
    let stats = client.stats()?;
    let name = || PathBuf::from(format!("ix-dump-{}.tar", stats.pid));
    let mut archive = Archive::create(args.output.clone().unwrap_or_else(name))?;
    archive.add("README", README.as_bytes())?;
    archive.add_json("status.json", client.status().and_then(|status| json(&status)))?;
    archive.add_json("stats.json", stats::with_cost(&stats, None))?;
    archive.add("metrics.txt", exposition::text(&stats).as_bytes())?;
    archive.add_json("connections.json", connections(&mut client))?;
    let filters = client.get::<vnic::View>(&Request::Vnic);
    archive.add_json("vnic.json", filters.and_then(|view| json(&view)))?;
    let about = client.get::<About>(&Request::About { all: args.all });
    archive.add_json("about.json", about.and_then(|about| json(&about)))?;
    archive.add_json("doctor.json", doctor())?;
    if let Some(seconds) = args.capture {
        let captured = packets(capture, &path, &archive.path, seconds, args.all);
        archive.add_or_say("capture.pcapng", captured)?;
    }
    archive.end(&stats)
}

fn connections(client: &mut Client) -> Result<Value> {
    let query = Query { max: CONNECTIONS_MAX, ..Query::default() };
    json(&client.get::<Connections>(&Request::Connections(query))?)
}

/// What `ix doctor` says, whether or not IX can work here.
fn doctor() -> Result<Value> {
    let problem = |e: &dyn std::fmt::Display| Problem::new("cannot run `ix doctor`", e);
    let ix = std::env::current_exe().map_err(|e| problem(&e))?;
    let output = Command::new(ix).args(["doctor", "--json"]).output().map_err(|e| problem(&e))?;
    serde_json::from_slice(&output.stdout).map_err(|e| problem(&e))
}

/// Packets of so many seconds.
fn packets(
    capture: Capture,
    control: &Path,
    beside: &Path,
    seconds: f64,
    all: bool,
) -> Result<Vec<u8>> {
    let mut file = beside.as_os_str().to_owned();
    file.push(".pcapng");
    let file = PathBuf::from(file);
    let bytes_of_each = if all { WHOLE_BYTES } else { HEADERS_BYTES };
    let captured = capture(control, file.clone(), seconds, bytes_of_each);
    let bytes = captured.and_then(|()| {
        std::fs::read(&file).map_err(|e| Problem::new("cannot read the capture", e))
    });
    // There is none if the capture was refused.
    let _ = std::fs::remove_file(&file);
    bytes
}

impl Archive {
    /// For this user alone: it says much about the machine.
    fn create(path: PathBuf) -> Result<Archive> {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
        let file = file.map_err(|e| unwritten(&path, &e))?;
        let at_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |at| at.as_secs());
        Ok(Archive { tar: tar::Builder::new(file), path, at_s, missing: 0 })
    }

    fn add(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.at_s);
        let added = self.tar.append_data(&mut header, format!("ix-dump/{name}"), bytes);
        added.map_err(|e| unwritten(&self.path, &e))
    }

    fn add_json(&mut self, name: &str, value: Result<Value>) -> Result<()> {
        self.add_or_say(name, value.map(|value| format!("{value:#}\n").into_bytes()))
    }

    /// Adds it, or the reason why it is missing.
    fn add_or_say(&mut self, name: &str, bytes: Result<Vec<u8>>) -> Result<()> {
        match bytes {
            Ok(bytes) => self.add(name, &bytes),
            Err(problem) => {
                self.missing += 1;
                self.add(&format!("{name}.missing"), format!("{problem}\n").as_bytes())
            }
        }
    }

    fn end(mut self, stats: &Status) -> Result<()> {
        self.tar.finish().map_err(|e| unwritten(&self.path, &e))?;
        let path = self.path.display();
        println!("{} ({}): {path}", stats.name(), stats.pid);
        if self.missing > 0 {
            let what = ix_report::figure::plural(self.missing, "part");
            eprintln!("ix: {what} could not be had; the .missing files in {path} say why");
        }
        Ok(())
    }
}

fn unwritten(path: &Path, e: &std::io::Error) -> Problem {
    Problem::new(format!("cannot write {}", path.display()), e).mend("choose a file with --output")
}
