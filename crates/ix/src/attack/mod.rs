//! `ix attack`: attacks on the dataplane from inside a program that runs on it, each with its positive
//! control: the same attack without the wall, which must succeed there.
mod code;
mod fuzz;
mod inside;
mod memory;
mod system;

use crate::args::AttackArgs;
use ix_cli::problem::{Problem, Result};
use serde_json::{Value, json};
use std::process::{Command, Stdio};

/// What became of one attack.
struct Row {
    attack: String,
    succeeded: bool,
    detail: String,
}

/// Runs all of them behind the wall and without it.
pub fn main(args: &AttackArgs) -> Result<()> {
    if args.inside {
        inside::main(args);
        return Ok(());
    }
    has_keys()?;
    let walled = run(args, "pku")?;
    let control = run(args, "none")?;
    let mut rows = Vec::new();
    let mut failures = 0;
    for row in &walled {
        let open = control.iter().find(|other| other.attack == row.attack);
        let has_control = open.is_some_and(|other| other.succeeded);
        let refused = !row.succeeded;
        failures += usize::from(!refused || !has_control);
        rows.push(json!({
            "attack": row.attack,
            "refused": refused,
            "detail": row.detail,
            "control_succeeds": has_control,
            "control_detail": open.map(|other| other.detail.clone()),
        }));
    }
    show(args, &rows);
    if walled.is_empty() || control.len() != walled.len() {
        return Err(Problem::new("attacks are missing", "a program ended before it had made all"));
    }
    if failures > 0 {
        let why = format!("{failures} were not refused, or did not succeed without the wall");
        return Err(Problem::new("the wall does not hold", why));
    }
    Ok(())
}

fn show(args: &AttackArgs, rows: &[Value]) {
    if args.json {
        println!("{:#}", json!({ "bench": "attack", "rows": rows }));
        return;
    }
    for row in rows {
        let text = |key: &str| row[key].as_str().unwrap_or("").to_owned();
        let verdict = if row["refused"] == true { "refused" } else { "SUCCEEDED" };
        let control = if row["control_succeeds"] == true { "succeeds" } else { "REFUSED" };
        println!(
            "{:<44} {verdict:<9} ({}); without the wall: {control} ({})",
            text("attack"),
            text("detail"),
            text("control_detail")
        );
    }
}

/// One program that makes all attacks, on a dataplane of its own.
fn run(args: &AttackArgs, domain: &str) -> Result<Vec<Row>> {
    let what = || format!("cannot attack with --domain {domain}");
    let ix = std::env::current_exe().map_err(|e| Problem::new(what(), e))?;
    let socket = std::env::temp_dir().join(format!("ix-attack-{}-{domain}", std::process::id()));
    let output = Command::new(&ix)
        .args(["run", "--domain", domain, "--addr", "10.9.0.2/24", "--cpus", "0", "--nic"])
        .arg(format!("memif:{}", socket.display()))
        .arg("--")
        .arg(&ix)
        .args(["attack", "--inside", "--fuzz", &args.fuzz.to_string()])
        .args(["--seed", &args.seed.to_string()])
        .stderr(Stdio::inherit())
        .output();
    let _ = std::fs::remove_file(socket);
    let output = output.map_err(|e| Problem::new(what(), e))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let why = format!("the program ended with {}; it said {text}", output.status);
        return Err(Problem::new(what(), why));
    }
    let row = |line: &str| {
        let mut words = line.splitn(3, '\t');
        let (attack, verdict) = (words.next()?.to_owned(), words.next()?);
        let detail = words.next()?.to_owned();
        Some(Row { attack, succeeded: verdict == "succeeded", detail })
    };
    Ok(text.lines().filter_map(row).collect())
}

/// Whether processor and kernel have protection keys.
pub fn has_keys() -> Result<()> {
    // SAFETY: no pointers; the key is given back at once.
    unsafe {
        let key = libc::syscall(libc::SYS_pkey_alloc, 0, 0);
        if key >= 0 {
            libc::syscall(libc::SYS_pkey_free, key);
            return Ok(());
        }
    }
    let why = "no memory protection keys here (processor, kernel, or virtual machine)";
    Err(Problem::new("cannot use --domain pku", why)
        .mend("say --domain none, with which the program can touch the dataplane's memory"))
}
