//! `ix attack`: attacks the dataplane from inside a program that runs on it, also by the rights of
//! root ([`rights`]). Each attack is repeated without the wall, where it must succeed (the positive
//! control). Meanwhile a client ([`client`]) must get every reply from the dataplane.
mod client;
mod peer;
mod rights;

use crate::args::{AttackArgs, Entry};
use client::{Client, LINK, OWN, PREFIX, Served};
use ix_report::domain::Domain;
use ix_report::problem::{Problem, Result};
use ix_report::wall::{attacker, has_keys};
use ix_sys::process;
use ix_testbed::Namespace;
use peer::Peer;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Parts of the wall that are left out in turn, to show what each one stops. An attack that no
/// single part stops is repeated without any wall.
const PARTS: [&str; 4] = ["keys", "calls", "code", "files"];

/// Walls that are attacked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wall {
    /// A process of the dataplane's own.
    Process,
    /// Protection keys.
    Keys,
}

/// Result of one attack.
struct Row {
    attack: String,
    succeeded: bool,
    detail: String,
    /// Replies to the client since the row before.
    served: u64,
}

/// How a program ended after its attacks.
struct Outcome {
    rows: Vec<Row>,
    client: Served,
}

/// Runs all attacks behind the wall and without it, for each way into a process.
pub fn main(args: &AttackArgs) -> Result<()> {
    if args.vnic {
        return crate::attack_vnic::main(&args.print);
    }
    let walls = match args.domain {
        Some(Domain::Process) => vec![Wall::Process],
        Some(Domain::None) => {
            let why = "--domain none is no wall";
            return Err(Problem::new("cannot attack", why).mend("write process or pku"));
        }
        Some(Domain::Pku) => {
            has_keys()?;
            vec![Wall::Keys]
        }
        None if has_keys().is_ok() => vec![Wall::Process, Wall::Keys],
        None => {
            eprintln!("ix: domain pku is not attacked: this machine has no protection keys");
            vec![Wall::Process]
        }
    };
    let attacker = attacker()?;
    let entries = args.entry.map_or(vec![Entry::Planted, Entry::Loading], |entry| vec![entry]);
    let mut reports = Vec::new();
    for wall in walls {
        for &entry in &entries {
            reports.push(attack(args, &attacker, wall, entry)?);
        }
        if wall == Wall::Process && process::is_root() {
            reports.push(rights::attack(&attacker)?);
        }
    }
    show(args, &reports)?;
    reports.iter().try_for_each(judge)
}

/// Results of all attacks on a program that was started in one way.
struct Report {
    domain: &'static str,
    entry: &'static str,
    rows: Vec<Value>,
    client: Served,
    /// Each attack has a control, and each control an attack.
    complete: bool,
}

fn attack(args: &AttackArgs, attacker: &Path, wall: Wall, entry: Entry) -> Result<Report> {
    let entry = match entry {
        Entry::Planted => "planted",
        Entry::Loading => "loading",
    };
    let run = |domain, without, word| run(args, attacker, entry, (domain, without), word);
    let mut control = Vec::new();
    let (domain, Outcome { rows: walled, client }, word) = match wall {
        Wall::Process => ("process", run("process", None, Some("apart"))?, "apart-control"),
        Wall::Keys => {
            let outcome = run("pku", None, None)?;
            for part in PARTS {
                let rows = twice(|| Ok(run("pku", Some(part), Some(part))?.rows))?;
                control.extend(rows.into_iter().map(|row| (part, row)));
            }
            ("pku", outcome, "none")
        }
    };
    let rows = twice(|| Ok(run("none", None, Some(word))?.rows))?;
    control.extend(rows.into_iter().map(|row| ("wall", row)));
    let row = |row: &Row| {
        let open = control.iter().find(|(_, other)| other.attack == row.attack);
        json!({
            "attack": row.attack,
            "domain": domain,
            "entry": entry,
            "refused": !row.succeeded,
            "detail": row.detail,
            "client_answers": row.served,
            "control_without": open.map(|(part, _)| *part),
            "control_succeeds": open.is_some_and(|(_, other)| other.succeeded),
            "control_detail": open.map(|(_, other)| other.detail.clone()),
        })
    };
    let complete = !walled.is_empty() && control.len() == walled.len();
    Ok(Report { domain, entry, rows: walled.iter().map(row).collect(), client, complete })
}

/// Makes controls, and once more where one did not succeed: it shows that its attack is one, and a
/// busy machine may disturb it.
fn twice(make: impl Fn() -> Result<Vec<Row>>) -> Result<Vec<Row>> {
    let mut rows = make()?;
    if rows.iter().any(|row| !row.succeeded) {
        for again in make()?.into_iter().filter(|row| row.succeeded) {
            rows.iter_mut().filter(|row| row.attack == again.attack).for_each(|row| {
                row.succeeded = true;
                row.detail.clone_from(&again.detail);
            });
        }
    }
    Ok(rows)
}

/// Says what is wrong with a row: the attack was not refused, or the control without the wall did
/// not succeed, which shows that the attack is one.
fn fault(row: &Value) -> String {
    let text = |key: &str| row[key].as_str().unwrap_or("unknown").to_owned();
    match row["refused"] == true {
        false => format!("`{}` was not refused ({})", text("attack"), text("detail")),
        true => format!(
            "`{}` did not succeed without the {} ({})",
            text("attack"),
            text("control_without"),
            text("control_detail")
        ),
    }
}

/// Judges whether the wall holds and the client was served.
fn judge(report: &Report) -> Result<()> {
    let Report { rows, client, .. } = report;
    if !report.complete {
        return Err(Problem::new(
            "attacks are missing",
            "a program ended before it had made all attacks",
        ));
    }
    let good = |row: &&Value| row["refused"] == true && row["control_succeeds"] == true;
    let bad: Vec<String> = rows.iter().filter(|row| !good(row)).map(fault).collect();
    if !bad.is_empty() {
        return Err(Problem::new("the wall does not hold", bad.join("; ")));
    }
    if client.lost > 0 || rows.iter().any(|row| row["client_answers"] == 0) {
        let why = format!("the client missed {} replies: {}", client.lost, client.why);
        return Err(Problem::new(
            "the wall holds, but the dataplane did not serve its client",
            why,
        ));
    }
    Ok(())
}

fn show(args: &AttackArgs, reports: &[Report]) -> Result<()> {
    let client = |report: &Report| {
        let Served { answered, lost, longest_ms, why } = &report.client;
        json!({
            "domain": report.domain,
            "entry": report.entry,
            "answered": answered,
            "lost": lost,
            "why": why,
            "longest_ms": longest_ms,
        })
    };
    let clients: Vec<_> = reports.iter().map(client).collect();
    let rows: Vec<_> = reports.iter().flat_map(|report| &report.rows).collect();
    let results = || Ok(json!({ "bench": "attack", "clients": clients, "rows": rows }));
    if !args.print.give(results)? {
        reports.iter().for_each(print);
    }
    Ok(())
}

fn print(report: &Report) {
    let Report { domain, entry, rows, .. } = report;
    ix_sys::outln!("from inside a program on a dataplane, --domain {domain} --entry {entry}:");
    for row in rows {
        let text = |key: &str| row[key].as_str().unwrap_or("").to_owned();
        let verdict = if row["refused"] == true { "refused" } else { "SUCCEEDED" };
        let control = if row["control_succeeds"] == true { "succeeds" } else { "REFUSED" };
        ix_sys::outln!(
            "{:<48} {verdict:<9} ({}; client served {} times); without the {}: {control} ({})",
            text("attack"),
            text("detail"),
            row["client_answers"],
            text("control_without"),
            text("control_detail")
        );
    }
    let (refused, all) = (rows.iter().filter(|row| row["refused"] == true).count(), rows.len());
    let controls = rows.iter().filter(|row| row["control_succeeds"] == true).count();
    ix_sys::outln!(
        "{refused} of {all} attacks refused; {controls} succeed without the part of the wall that stops them"
    );
    let Served { answered, lost, longest_ms, why } = &report.client;
    let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
    ix_sys::outln!(
        "another client, all the while: {answered} requests answered, {lost} not{why}; the slowest \
         took {longest_ms} ms"
    );
}

/// Runs one program that makes all attacks, on its own dataplane.
fn run(
    args: &AttackArgs,
    attacker: &Path,
    entry: &str,
    (domain, without): (&str, Option<&str>),
    word: Option<&str>,
) -> Result<Outcome> {
    let what = match without {
        Some(part) => format!("cannot attack a wall without {part}"),
        None => format!("cannot attack with --domain {domain} --entry {entry}"),
    };
    let image = ImageFile::new().map_err(|e| Problem::new(&what, e))?;
    let mut flags = vec!["--domain", domain, "--entry", entry, "--user", "65534"];
    flags.extend(without.iter().flat_map(|part| ["--without", part]));
    let (fuzz, seed) = (args.fuzz.to_string(), args.seed.to_string());
    let image = image.0.to_string_lossy();
    let mut words = vec![fuzz.as_str(), &seed, &image];
    words.extend(word);
    run_with(&what, attacker, &flags, &words)
}

/// Runs the attacker with these words, under `ix run` with these flags.
fn run_with(what: &str, attacker: &Path, flags: &[&str], words: &[&str]) -> Result<Outcome> {
    let problem = |e: &dyn std::fmt::Display| Problem::new(what, e);
    let ix = std::env::current_exe().map_err(|e| problem(&e))?;
    let namespace = Namespace::new().map_err(|e| problem(&e).mend("run it as root"))?;
    let link = std::env::temp_dir().join(format!("ix-attack-{}.memif", std::process::id()));
    let mut child = namespace
        .command(&ix, None)
        .args(["run", "--posix", "off"])
        .args(flags)
        .arg("--addr")
        .arg(format!("{OWN}/{PREFIX}"))
        .args(["--cpus", "0", "--nic", &format!("tap:{LINK}"), "--nic"])
        .arg(format!("memif:{},role=server", link.display()))
        .arg("--")
        .arg(attacker)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| problem(&e))?;
    let client = Client::start(namespace).map_err(|e| problem(&e));
    let output = child.stdout.take().map(BufReader::new);
    let mut rows = Vec::new();
    let mut said = String::new();
    let mut _peer = None;
    for line in output.into_iter().flat_map(BufRead::lines).map_while(std::io::Result::ok) {
        let words: Vec<&str> = line.split('\t').collect();
        match (words.as_slice(), &client) {
            ([name, verdict, detail, served], _) => rows.push(Row {
                attack: (*name).to_owned(),
                succeeded: *verdict == "succeeded",
                detail: (*detail).to_owned(),
                served: served.parse().unwrap_or(0),
            }),
            (["!flood", on], Ok(client)) => client.flood(*on == "1"),
            (["!streams", on], Ok(client)) => client.stream(*on == "1"),
            (["!peer", _], _) => match Peer::start(&link) {
                Ok(peer) => _peer = Some(peer),
                // The attacks on the peer's memory will fail.
                Err(e) => eprintln!("ix: no peer for a memif: {e}"),
            },
            _ => said = line,
        }
    }
    let status = child.wait().map_err(|e| problem(&e))?;
    let client = client?.finish();
    if !status.success() {
        let last =
            rows.last().map_or(String::new(), |row| format!("{}: {}", row.attack, row.detail));
        return Err(problem(&format!("the program ended with {status}; it printed {last}{said}")));
    }
    Ok(Outcome { rows, client })
}

/// The dataplane image, in a file that a program of another user can read.
struct ImageFile(PathBuf);

impl ImageFile {
    fn new() -> std::io::Result<ImageFile> {
        use std::os::unix::fs::PermissionsExt;
        let name = format!("ix-attack-image-{}", std::process::id());
        let file = ImageFile(std::env::temp_dir().join(name));
        std::fs::write(&file.0, crate::image::IMAGE)?;
        std::fs::set_permissions(&file.0, std::fs::Permissions::from_mode(0o644))?;
        Ok(file)
    }
}

impl Drop for ImageFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
