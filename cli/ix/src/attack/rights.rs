//! Attacks by the rights of a program whose dataplane is a process of its own: as root of a user
//! namespace, as `ix run` starts it for root, and as an unprivileged child of the machine's root.
//! The machine's root itself (`--user root`) is not stopped: that is each attack's positive
//! control.
use super::client::{LINK, Served};
use super::{Outcome, Report, Row, run_with};
use ix_report::problem::Result;
use ix_sys::landlock::SignalScope;
use serde_json::{Value, json};
use std::path::Path;

/// Attacks on limits of other processes.
const LIMITS: [&str; 3] = ["prlimit", "prlimit: no more processor time", "prlimit of the broker"];
/// The attack that only Landlock stops.
const BY_OWNER: &str = "a signal by the owner of a descriptor";

/// Runs the attacks as each of these.
pub fn attack(attacker: &Path) -> Result<Report> {
    // In some virtual machines root has no right to other processes' limits.
    let mut left_out = if may_limit_others() { vec![] } else { LIMITS.to_vec() };
    if SignalScope::new().is_err() {
        eprintln!("ix: {BY_OWNER} is not tried: this kernel has no Landlock with it (Linux 6.12)");
        left_out.push(BY_OWNER);
    }
    // Where the program can reach it: /run/ix is hidden from it.
    let control = std::env::temp_dir().join(format!("ix-attack-{}.sock", std::process::id()));
    let control = control.display().to_string();
    let run = |flags: &[&str], whom: &str| {
        let flags = [&["--domain", "process", "--control", &control], flags].concat();
        let what = format!("cannot attack with {} as {whom}", flags.join(" "));
        let words = [&["rights", whom, LINK, &control], &left_out[..]].concat();
        run_with(&what, attacker, &flags, &words)
    };
    let (root, machine) = (run(&[], "program")?, ["--user", "root"]);
    let (control, child) = (run(&machine, "root")?, run(&machine, "child")?);
    let complete = [&root, &control, &child]
        .iter()
        .all(|outcome| !outcome.rows.is_empty() && outcome.rows.len() == control.rows.len());
    let tell = |outcome: &Outcome, whom: &str, without: &str| -> Vec<Value> {
        outcome.rows.iter().map(|made| row(made, whom, without, &control.rows)).collect()
    };
    let mut rows = tell(&root, "namespace's root", "namespace");
    rows.extend(tell(&child, "root's child", "change of its user"));
    let client = together(root.client, child.client);
    Ok(Report { domain: "process", entry: "planted, by root's rights", rows, client, complete })
}

fn row(made: &Row, whom: &str, without: &str, control: &[Row]) -> Value {
    let open = control.iter().find(|other| other.attack == made.attack);
    json!({
        "attack": format!("{} ({whom})", made.attack),
        "domain": "process",
        "entry": "planted",
        "refused": !made.succeeded,
        "detail": made.detail,
        "client_answers": made.served,
        "control_without": without,
        "control_succeeds": open.is_some_and(|other| other.succeeded),
        "control_detail": open.map(|other| other.detail.clone()),
    })
}

/// Of two clients, one after the other.
fn together(one: Served, other: Served) -> Served {
    Served {
        answered: one.answered + other.answered,
        lost: one.lost + other.lost,
        longest_ms: one.longest_ms.max(other.longest_ms),
        why: if one.why.is_empty() { other.why } else { one.why },
    }
}

fn may_limit_others() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = rights.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    rights.is_some_and(|bits| bits & 1 << CAP_SYS_RESOURCE != 0)
}
