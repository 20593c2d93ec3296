//! Runs `cargo test` and says at the end how many tests ran, how many were skipped, and why.
//!
//! `ix-tests [--allow FILE] [--summary FILE] [--alone N] [WORDS OF cargo test]`; without words,
//! `--workspace`.
//! `--allow`: fails for a skipped test that is not on this list. `--summary`: writes the last lines
//! to this file too. `--alone`: runs all tests whatever fails, then those that failed once more,
//! one at a time, if they are at most N. One that passes now is named at the end and counts as
//! passed: many tests wait for packets, and a machine with few hardware threads may starve them.
#![forbid(unsafe_code)]
use ix_skip::{Allowed, RECORDS, Summary};
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("ix-tests: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the tests; returns whether all is well.
fn run() -> Result<bool, String> {
    let mut words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut option = |name: &str| -> Result<Option<PathBuf>, String> {
        let Some(at) = words.iter().position(|word| word == name) else { return Ok(None) };
        if at + 1 == words.len() {
            return Err(format!("{name} needs a word after it; see the head of its source"));
        }
        let value = words.remove(at + 1);
        words.remove(at);
        Ok(Some(value.into()))
    };
    let (allow, summary_file) = (option("--allow")?, option("--summary")?);
    let alone_max = match option("--alone")? {
        None => 0,
        Some(count) => {
            let count = count.to_str().and_then(|count| count.parse().ok());
            count.ok_or("--alone needs a number of tests; write `--alone 4`")?
        }
    };
    if words.is_empty() {
        words.push("--workspace".into());
    }
    let allowed = match &allow {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|e| format!("cannot read {}: {e}", path.display()))?;
            Some(Allowed::parse(&text).map_err(|why| format!("{}: {why}", path.display()))?)
        }
        None => None,
    };
    // Beside this command, in the target folder.
    let own = std::env::current_exe().map_err(|e| format!("cannot find its own path: {e}"))?;
    let records = own.with_file_name(format!("skipped-tests-{}", std::process::id()));
    std::fs::write(&records, "").map_err(|e| format!("cannot write {}: {e}", records.display()))?;
    let tested = test_twice(&words, &records, alone_max);
    let text = std::fs::read_to_string(&records);
    // A file that stays does no harm: its name has the process id.
    let _ = std::fs::remove_file(&records);
    let (mut summary, passed) = tested?;
    summary.add(&text.map_err(|e| format!("cannot read {}: {e}", records.display()))?);

    let list = summary.list();
    if !list.is_empty() {
        println!("\nskipped tests\n{list}");
    }
    let surprises = allowed.map(|allowed| summary.surprises(&allowed)).unwrap_or_default();
    let mut last = summary.results() + "\n\n";
    for surprise in &surprises {
        last += &format!("error: skipped, and not on the list: {surprise}\n");
    }
    if let (false, Some(path)) = (surprises.is_empty(), &allow) {
        last += &format!(
            "help: install what they need, or allow them in {} with the reason\n",
            path.display()
        );
    }
    last += &summary.alone();
    last += &format!("{}\n{}\n", summary.sentence(), summary.counts());
    print!("{last}");
    if let Some(path) = summary_file {
        let written = std::fs::write(&path, &last);
        written.map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    Ok(passed && surprises.is_empty())
}

/// Runs the tests, and those that failed once more if they are at most `alone_max`. Returns the
/// counts, and whether all passed.
fn test_twice(
    words: &[OsString],
    records: &Path,
    alone_max: usize,
) -> Result<(Summary, bool), String> {
    let mut summary = Summary::default();
    let mut words = words.to_vec();
    if words.iter().any(|word| word == "--") && alone_max > 0 {
        return Err("--alone chooses tests itself; leave out `--` and what follows".into());
    }
    if alone_max > 0 {
        words.insert(0, "--no-fail-fast".into());
    }
    let passed = test(&words, records, &mut summary)?;
    let failures = summary.failures().filter(|failures| (1..=alone_max).contains(&failures.len()));
    let (false, Some(failures)) = (passed, failures) else { return Ok((summary, passed)) };
    println!("\nagain, one at a time: the tests that failed");
    let mut again = Summary::default();
    for failure in failures {
        // Not `--test-threads=1`: it prints the name first, and the test's output before the
        // verdict.
        let words = words.iter().map(OsString::as_os_str);
        let one: Vec<_> = words.chain(["--", "--exact", failure].map(OsStr::new)).collect();
        test(&one, records, &mut again)?;
    }
    let passed = summary.ran_alone(&again);
    Ok((summary, passed))
}

/// Runs `cargo test` with these words, prints what it prints, and counts. Returns whether it
/// succeeded.
fn test(
    words: &[impl AsRef<OsStr>],
    records: &Path,
    summary: &mut Summary,
) -> Result<bool, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // The `cargo run` that started this command set these variables. They are not for the tests.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_")) {
            command.env_remove(name);
        }
    }
    command.arg("test").args(words).env(RECORDS, records).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|e| format!("cannot run cargo: {e}"))?;
    let output = child.stdout.take().expect("it was asked for");
    let mut terminal = std::io::stdout();
    for line in BufReader::new(output).split(b'\n') {
        let line = line.map_err(|e| format!("cannot read what cargo prints: {e}"))?;
        // The reader may have gone; the tests go on.
        let _ = terminal.write_all(&line).and_then(|()| terminal.write_all(b"\n"));
        summary.see(&String::from_utf8_lossy(&line));
    }
    let status = child.wait().map_err(|e| format!("cannot wait for cargo: {e}"))?;
    Ok(status.success())
}
