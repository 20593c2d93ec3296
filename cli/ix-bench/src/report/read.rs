//! The files that benchmarks wrote with `--output`.
use ix_report::problem::{Problem, Result};
use serde_json::{Map, Value};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where `ix bench all` puts its results.
const USUAL_FOLDER: &str = "target/bench";

/// One measured point: a flat object.
pub type Row = Map<String, Value>;

/// What one run of one benchmark wrote.
#[derive(Clone, Debug)]
pub struct Results {
    /// Name of the benchmark.
    pub bench: String,
    /// Facts about the machine.
    pub machine: Row,
    /// The command line.
    pub command: String,
    /// When, UTC.
    pub date: String,
    /// Notes that the reader must know.
    pub notes: Vec<String>,
    /// The points.
    pub rows: Vec<Row>,
    /// Runs second by second, of benchmarks that have them.
    pub timelines: Vec<Value>,
}

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
    let value = serde_json::from_str(&text).map_err(|e| Problem::new(cannot(), e))?;
    let written = fs::metadata(file).and_then(|meta| meta.modified()).unwrap_or(UNIX_EPOCH);
    parse(&value, written).map_err(|why| {
        Problem::new(cannot(), why).mend("give files that `ix bench` wrote with --output")
    })
}

/// Reads the object that DESIGN.md defines. `written` is the time of its file, for files without a
/// date.
pub fn parse(value: &Value, written: SystemTime) -> std::result::Result<Results, &'static str> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let rows = value.get("rows").and_then(Value::as_array).ok_or("it has no `rows`")?;
    let bench = text("bench");
    if bench.is_empty() {
        return Err("it has no `bench`");
    }
    let rows: Option<Vec<_>> = rows.iter().map(|row| row.as_object().cloned()).collect();
    let notes = value.get("notes").and_then(Value::as_array);
    let date = text("date");
    Ok(Results {
        bench,
        machine: value.get("machine").and_then(Value::as_object).cloned().unwrap_or_default(),
        command: text("command"),
        date: if date.is_empty() { super::text::utc(written) } else { date },
        notes: notes.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect(),
        rows: rows.ok_or("a row is not an object")?,
        timelines: value.get("timelines").and_then(Value::as_array).cloned().unwrap_or_default(),
    })
}
