//! The files that benchmarks wrote with `--output`.
use ix_report::problem::{Problem, Result};
pub use ix_report::results::{Results, Row};
use serde::Deserialize;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where `ix bench all` puts its results.
const USUAL_FOLDER: &str = "target/bench";

/// All results in files and folders; in the usual folder when none is named.
pub fn results(named: &[PathBuf]) -> Result<Vec<Results>> {
    let usual = [PathBuf::from(USUAL_FOLDER)];
    let named = if named.is_empty() { &usual } else { named };
    let mut files = Vec::new();
    for path in named {
        if path.is_dir() {
            files.extend(json_files(path)?);
        } else {
            files.push(path.clone());
        }
    }
    if files.is_empty() {
        let folders: Vec<_> = named.iter().map(|path| path.display().to_string()).collect();
        return Err(Problem::new(format!("no results in {}", folders.join(", ")), "no *.json")
            .mend("run `ix bench all --quick` first"));
    }
    let mut results = files.iter().map(|file| one(file)).collect::<Result<Vec<_>>>()?;
    results.sort_by_key(|result| super::figures::place(&result.bench));
    Ok(results)
}

fn json_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let cannot = |e| Problem::new(format!("cannot read {}", folder.display()), e);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn one(file: &Path) -> Result<Results> {
    let cannot = || format!("cannot read {}", file.display());
    let text = fs::read_to_string(file).map_err(|e| {
        Problem::new(cannot(), e).mend("write one with `ix bench NAME --output FILE`")
    })?;
    let value: Value = serde_json::from_str(&text).map_err(|e| Problem::new(cannot(), e))?;
    let written = fs::metadata(file).and_then(|meta| meta.modified()).unwrap_or(UNIX_EPOCH);
    parse(&value, written).map_err(|why| {
        Problem::new(cannot(), why).mend("give files that `ix bench` wrote with --output")
    })
}

/// Reads an object. `written` is the time of its file, for files without a date.
pub fn parse(value: &Value, written: SystemTime) -> std::result::Result<Results, String> {
    let mut results = Results::deserialize(value).map_err(|e| e.to_string())?;
    if results.bench.is_empty() {
        return Err("it has no `bench`".to_owned());
    }
    if results.date.is_empty() {
        results.date = super::text::utc(written);
    }
    Ok(results)
}
