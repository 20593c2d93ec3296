//! What `ix ctl stats` says.
use crate::support::PATIENCE;
use serde_json::Value;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// All counters of a dataplane at one time.
pub struct Stats(Value);

impl Stats {
    /// Asks the dataplane behind a control socket.
    #[track_caller]
    pub fn ask(control: &Path) -> Stats {
        let end = Instant::now() + PATIENCE;
        loop {
            let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
            let output =
                command.args(["ctl", "stats", "--json", "--control"]).arg(control).output();
            let output = output.expect("the command starts");
            if output.status.success() {
                return Stats(serde_json::from_slice(&output.stdout).expect("JSON"));
            }
            let why = String::from_utf8_lossy(&output.stderr);
            let starts = why.contains("its dataplane is still starting");
            assert!(starts && Instant::now() < end, "{why}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A counter, such as `flows` or `drops.no_flow`, of each elastic thread.
    #[track_caller]
    pub fn each(&self, name: &str) -> Vec<u64> {
        let threads = self.0["threads"].as_array().expect("threads").iter();
        let value = |thread: &Value| {
            let value = name.split('.').fold(thread, |value, part| &value[part]);
            value.as_u64().unwrap_or_else(|| panic!("no counter {name}: {self}"))
        };
        threads.map(value).collect()
    }

    /// The same, of all threads together.
    #[track_caller]
    pub fn total(&self, name: &str) -> u64 {
        self.each(name).iter().sum()
    }

    /// Sum of all counters of dropped packets.
    pub fn drops(&self) -> u64 {
        let threads = self.0["threads"].as_array().expect("threads").iter();
        let drops = threads.flat_map(|thread| thread["drops"].as_object().expect("drops").values());
        drops.filter_map(Value::as_u64).sum()
    }

    /// A value by its path, such as `threads.0.state`.
    #[track_caller]
    pub fn value(&self, path: &str) -> &Value {
        let pointer = format!("/{}", path.replace('.', "/"));
        self.0.pointer(&pointer).unwrap_or_else(|| panic!("no {path}: {}", self.0))
    }

    /// A number by its path.
    #[track_caller]
    pub fn number(&self, path: &str) -> u64 {
        self.value(path).as_u64().unwrap_or_else(|| panic!("{path} is no number"))
    }

    /// A text by its path.
    #[track_caller]
    pub fn text(&self, path: &str) -> String {
        self.value(path).as_str().unwrap_or_else(|| panic!("{path} is no text")).to_owned()
    }

    /// What an elastic thread does: `active`, `parked`, ... One whose application has not come back
    /// for a moment, as on a busy machine, is active.
    pub fn state(&self, thread: usize) -> String {
        let state = self.text(&format!("threads.{thread}.state"));
        if state == "non-responsive" { "active".to_owned() } else { state }
    }

    /// The program's process.
    pub fn pid(&self) -> i32 {
        self.0["pid"].as_i64().expect("pid") as i32
    }

    /// What is still held although nobody should hold anything.
    pub fn leftovers(&self) -> Vec<String> {
        let zero = ["flows", "half_open", "time_wait", "app_timers"];
        let held = zero.iter().map(|name| (*name, self.total(name), 0));
        let frames = [
            ("rx_frames_in_use", "rx_frames_in_device"),
            ("tx_frames_in_use", "tx_frames_in_device"),
        ];
        let frames =
            frames.iter().map(|(used, device)| (*used, self.total(used), self.total(device)));
        let wrong = held.chain(frames).filter(|(_, is, should)| is != should);
        wrong.map(|(name, is, should)| format!("{name}: {is}, not {should}")).collect()
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "left: {:?}", self.leftovers())?;
        for (i, thread) in self.0["threads"].as_array().into_iter().flatten().enumerate() {
            write!(f, "thread {i}:")?;
            write_nonzero(f, "", thread)?;
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Zeroes only hide what matters.
fn write_nonzero(f: &mut fmt::Formatter<'_>, name: &str, value: &Value) -> fmt::Result {
    match value {
        Value::Object(map) => map.iter().try_for_each(|(key, value)| {
            let dot = if name.is_empty() { "" } else { "." };
            write_nonzero(f, &format!("{name}{dot}{key}"), value)
        }),
        Value::Number(n) if n.as_u64() != Some(0) => write!(f, " {name}={n}"),
        _ => Ok(()),
    }
}
