//! `ix packets`: plays scripts, and says where one and the stack part.
use crate::readme::scripts;
use crate::{Options, parse, run};
use clap::Parser;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Plays packet scripts (packetdrill's language) against the stack, in virtual time.
#[derive(Parser, Clone, Debug)]
#[command(name = "ix packets")]
struct Args {
    /// Scripts, or folders of scripts (`*.pkt`)
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Read scripts written for other stacks: PSH, window scales, windows and packets after the
    /// script's end do not matter
    #[arg(long)]
    lenient: bool,
    /// Play scripts that name no family over IPv6, with an MTU that is longer by what its header is
    #[arg(long)]
    ipv6: bool,
    /// Play with the parameters that ship, not with the timeouts that scripts usually count on
    #[arg(long)]
    shipped: bool,
    /// One line of JSON for each script
    #[arg(long)]
    json: bool,
    /// Say only which scripts fail
    #[arg(long, short)]
    quiet: bool,
}

/// Plays scripts as the command line says (without the program's name).
pub fn cli(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let with_name = std::iter::once(OsString::from("ix packets")).chain(args);
    match Args::try_parse_from(with_name) {
        Ok(args) => play_all(&args),
        Err(error) => {
            let _ = error.print();
            if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS }
        }
    }
}

fn play_all(args: &Args) -> ExitCode {
    let mut files = Vec::new();
    for path in &args.files {
        match if path.is_dir() { scripts(path) } else { Ok(vec![path.clone()]) } {
            Ok(found) => files.extend(found),
            Err(error) => {
                eprintln!("{}: {error}: name a script or a folder of scripts", path.display());
                return ExitCode::from(2);
            }
        }
    }
    let begin = Instant::now();
    let (mut passed, mut failed, mut unsupported) = (0, 0, 0);
    for file in &files {
        let Args { lenient, ipv6, shipped, .. } = *args;
        let row = play(file, Options { lenient, ipv6, shipped, ..Options::default() });
        match row["outcome"].as_str() {
            Some("pass") => passed += 1,
            Some("unsupported") => unsupported += 1,
            _ => failed += 1,
        }
        if args.json {
            println!("{row}");
        } else if row["outcome"] != "pass" {
            println!("{}: {}", row["outcome"].as_str().unwrap_or(""), text_of(&row));
        } else if !args.quiet {
            println!("pass: {}", file.display());
        }
    }
    if !args.json {
        let ms = begin.elapsed().as_millis();
        let unsupported = match unsupported {
            0 => String::new(),
            n => format!(", {n} ask for what is not built"),
        };
        println!("{passed} of {} scripts pass, {failed} fail{unsupported} ({ms} ms)", files.len());
    }
    if passed == files.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn text_of(row: &Value) -> String {
    let mut text = format!("{}:{}: {}", str_of(row, "file"), row["line"], str_of(row, "why"));
    for (name, label) in [("expected", "expected"), ("actual", "actual  ")] {
        if let Some(packet) = row[name].as_str() {
            text.push_str(&format!("\n    {label}  {packet}"));
        }
    }
    text
}

fn str_of<'a>(row: &'a Value, name: &str) -> &'a str {
    row[name].as_str().unwrap_or("")
}

/// Plays one script: its row.
fn play(file: &Path, options: Options) -> Value {
    let name = file.display().to_string();
    let bad = |line: usize, why: String, outcome: &str| json!({"system": "ix", "file": name, "outcome": outcome, "line": line, "why": why});
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => return bad(0, format!("{error}"), "fail"),
    };
    let script = match parse(&name, &text) {
        Ok(script) => script,
        Err(error) => return bad(error.line, error.why, "unsupported"),
    };
    let begin = Instant::now();
    match run(&script, options) {
        Ok(played) => json!({
            "system": "ix",
            "file": name,
            "outcome": "pass",
            "packets": played.packets,
            "virtual_us": played.virtual_us,
            "real_us": begin.elapsed().as_micros() as u64,
        }),
        Err(failure) => {
            let outcome = if failure.unsupported { "unsupported" } else { "fail" };
            let mut row = bad(failure.line, failure.why, outcome);
            row["expected"] = json!(failure.expected);
            row["actual"] = json!(failure.actual);
            row
        }
    }
}
