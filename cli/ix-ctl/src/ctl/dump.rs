//! `ix ctl dump`: one file for a report of a fault.
use super::args::DumpArgs;
use super::json;
use crate::stats;
use ix_broker::control::{Client, exposition};
use ix_proto::control::{About, CONNECTIONS_MAX, Connections, Query, Request, Status, vnic};
use ix_report::problem::{Problem, Result};
use serde_json::Value;
use std::fs::{File, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

const README: &str = "\
What a running dataplane of IX and its machine say, for a report of a fault.

status.json       threads, flow groups, devices, migrations
stats.json        all counters, with what they cost
metrics.txt       the same for Prometheus
connections.json  TCP connections: addresses, ports, windows, times; no payload
vnic.json         filters and rates
about.json        its version of ix, how the run was started, its configuration file and its last
                  messages, also what it has said in the program: what that listens on, and whose
                  it is (IX's or Linux's)
doctor.json       what the machine can do
capture.pcapng    packets, if asked for

A file NAME.missing holds the reason why NAME is not here.
";

/// Its mode: only the owner reads it.
const OWN_MODE: u32 = 0o600;

/// The file that is written.
struct Archive {
    tar: tar::Builder<File>,
    path: PathBuf,
    at_s: u64,
    missing: Vec<String>,
}

/// Captures packets of the dataplane of a control socket into a file, for some seconds: their
/// headers, or whole ones.
pub type Capture = fn(&Path, PathBuf, f64, bool) -> Result<()>;

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
    let ix = client.hello().ix.clone();
    archive.add_json("about.json", about.and_then(|about| about_with(&about, &ix)))?;
    archive.add_json("doctor.json", doctor())?;
    if let Some(seconds) = args.capture {
        let captured = packets(capture, &path, seconds, args.all);
        archive.add_or_say("capture.pcapng", captured)?;
    }
    archive.end(&stats, args.json)
}

/// What is known of the run, with the version of its ix.
fn about_with(about: &About, ix: &str) -> Result<Value> {
    let mut about = json(about)?;
    about["ix"] = ix.into();
    Ok(about)
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
fn packets(capture: Capture, control: &Path, seconds: f64, all: bool) -> Result<Vec<u8>> {
    let name = format!("ix-dump-{}.pcapng", std::process::id());
    let file = std::env::temp_dir().join(name);
    // For this user alone, and none that somebody else has made.
    let made = File::options().write(true).create_new(true).mode(OWN_MODE).open(&file);
    made.map_err(|e| unwritten(&file, &e))?;
    let captured = capture(control, file.clone(), seconds, all);
    let bytes = captured.and_then(|()| {
        std::fs::read(&file).map_err(|e| Problem::new("cannot read the capture", e))
    });
    // It is ours; if it cannot be removed it holds nothing that the archive does not.
    let _ = std::fs::remove_file(&file);
    bytes
}

impl Archive {
    /// For this user alone: it says much about the machine.
    fn create(path: PathBuf) -> Result<Archive> {
        let open = || {
            let mut options = File::options();
            options.write(true).create(true).truncate(true).mode(OWN_MODE);
            let file = options.open(&path)?;
            // One that was there may be everybody's.
            if file.metadata()?.is_file() {
                file.set_permissions(Permissions::from_mode(OWN_MODE))?;
            }
            Ok(file)
        };
        let file = open().map_err(|e| unwritten(&path, &e))?;
        let at_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |at| at.as_secs());
        Ok(Archive { tar: tar::Builder::new(file), path, at_s, missing: Vec::new() })
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
                self.missing.push(name.to_owned());
                self.add(&format!("{name}.missing"), format!("{problem}\n").as_bytes())
            }
        }
    }

    fn end(mut self, stats: &Status, as_json: bool) -> Result<()> {
        self.tar.finish().map_err(|e| unwritten(&self.path, &e))?;
        let path = self.path.display();
        if as_json {
            let (pid, file) = (stats.pid, path.to_string());
            let told = serde_json::json!({ "pid": pid, "file": file, "missing": self.missing });
            ix_sys::outln!("{told:#}");
            return Ok(());
        }
        ix_sys::outln!("{} ({}): {path}", stats.name(), stats.pid);
        if !self.missing.is_empty() {
            let what = ix_report::figure::plural(self.missing.len(), "part");
            eprintln!("ix: {what} could not be had; the .missing files in {path} say why");
        }
        Ok(())
    }
}

fn unwritten(path: &Path, e: &std::io::Error) -> Problem {
    Problem::new(format!("cannot write {}", path.display()), e).mend("choose a file with --output")
}
