//! `ix attack`: attacks on the dataplane from inside a program that runs on it, each with its positive
//! control: the same attack without the wall, which must succeed there.
use crate::args::AttackArgs;
use ix_cli::problem::{Problem, Result};
use ix_cli::wall::{attacker, has_keys};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Parts of the wall that are left out in turn, to show what each of them stops. What none of them stops
/// alone is made without any wall.
const PARTS: [&str; 4] = ["keys", "calls", "code", "files"];

/// What became of one attack.
struct Row {
    attack: String,
    succeeded: bool,
    detail: String,
}

/// Runs all of them behind the wall and without it.
pub fn main(args: &AttackArgs) -> Result<()> {
    has_keys()?;
    let attacker = attacker()?;
    let walled = run(args, &attacker, "pku", None)?;
    let mut control = Vec::new();
    for part in PARTS {
        let rows = run(args, &attacker, "pku", Some(part))?;
        control.extend(rows.into_iter().map(|row| (part, row)));
    }
    let rows = run(args, &attacker, "none", None)?;
    control.extend(rows.into_iter().map(|row| ("wall", row)));
    let mut rows = Vec::new();
    let mut failures = 0;
    for row in &walled {
        let open = control.iter().find(|(_, other)| other.attack == row.attack);
        let has_control = open.is_some_and(|(_, other)| other.succeeded);
        let refused = !row.succeeded;
        failures += usize::from(!refused || !has_control);
        rows.push(json!({
            "attack": row.attack,
            "refused": refused,
            "detail": row.detail,
            "control_without": open.map(|(part, _)| *part),
            "control_succeeds": has_control,
            "control_detail": open.map(|(_, other)| other.detail.clone()),
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
            "{:<48} {verdict:<9} ({}); without the {}: {control} ({})",
            text("attack"),
            text("detail"),
            text("control_without"),
            text("control_detail")
        );
    }
}

/// One program that makes all attacks, on a dataplane of its own.
fn run(
    args: &AttackArgs,
    attacker: &Path,
    domain: &str,
    without: Option<&str>,
) -> Result<Vec<Row>> {
    let what = || match without {
        Some(part) => format!("cannot attack a wall without {part}"),
        None => format!("cannot attack with --domain {domain}"),
    };
    let ix = std::env::current_exe().map_err(|e| Problem::new(what(), e))?;
    let socket = std::env::temp_dir().join(format!("ix-attack-{}-{domain}", std::process::id()));
    let image = ImageFile::new().map_err(|e| Problem::new(what(), e))?;
    let output = Command::new(&ix)
        .args(["run", "--domain", domain, "--posix", "off"])
        .args(without.iter().flat_map(|part| ["--without", part]))
        .args(["--addr", "10.9.0.2/24", "--cpus", "0", "--nic"])
        .arg(format!("memif:{}", socket.display()))
        .arg("--")
        .arg(attacker)
        .args([args.fuzz.to_string(), args.seed.to_string()])
        .arg(&image.0)
        .args(without.or((domain == "none").then_some("none")))
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

/// The dataplane's code, where a program that runs as another user can read it.
struct ImageFile(PathBuf);

impl ImageFile {
    fn new() -> std::io::Result<ImageFile> {
        use std::os::unix::fs::PermissionsExt;
        let name = format!("ix-attack-image-{}", std::process::id());
        let file = ImageFile(std::env::temp_dir().join(name));
        std::fs::write(&file.0, crate::broker::image_bytes())?;
        std::fs::set_permissions(&file.0, std::fs::Permissions::from_mode(0o644))?;
        Ok(file)
    }
}

impl Drop for ImageFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
