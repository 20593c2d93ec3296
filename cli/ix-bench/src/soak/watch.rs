//! Reads memory, descriptors, flows and buffers once per second.
use super::weather::{SLICES, Weather};
use ix_broker::control::Client;
use ix_proto::control::Status;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time between two samples.
const EVERY: Duration = Duration::from_secs(1);
/// Time for everything to be freed at the end: TIME-WAIT is 60 s.
const SETTLE: Duration = Duration::from_secs(120);
/// Time between two samples at the end.
const SOON: Duration = Duration::from_millis(200);

/// One sample.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Part of the soak.
    pub slice: usize,
    /// The program's process.
    pub pid: u64,
    /// Its memory, KB, and its descriptors.
    pub program: Held,
    /// Those of `ix run`.
    pub broker: Held,
    /// Flows, with those half open and in TIME-WAIT.
    pub flows: u64,
    /// Frames that are neither free nor in a device.
    pub frames: u64,
}

/// What a process uses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    /// Resident memory, KB.
    pub rss_kb: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

impl Held {
    /// All zero if the process has ended.
    fn of(pid: u64) -> Held {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd"));
        Held { rss_kb: rss_kb(pid), descriptors: open.map_or(0, |entries| entries.count() as u64) }
    }
}

/// Resident memory of a process, KB; 0 if it has ended.
pub fn rss_kb(pid: u64) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// All samples.
#[derive(Debug, Default)]
pub struct Series {
    /// In order of time.
    pub samples: Vec<Sample>,
    /// What was not freed at the end, in words.
    pub left: Vec<String>,
    /// Time until everything was freed.
    pub settled_s: f64,
}

impl Series {
    /// Figures for the summary row.
    pub fn figures(&self) -> Vec<(&'static str, f64)> {
        let mut figures = highest(self.samples.iter());
        figures.extend([("samples", self.samples.len() as f64), ("settled_s", self.settled_s)]);
        figures
    }

    /// Figures for the row of a part.
    pub fn slice_figures(&self, slice: usize) -> Vec<(&'static str, f64)> {
        debug_assert!(slice < SLICES);
        highest(self.samples.iter().filter(|sample| sample.slice == slice))
    }
}

/// The highest value of each; empty without samples.
fn highest<'a>(samples: impl Iterator<Item = &'a Sample> + Clone) -> Vec<(&'static str, f64)> {
    let most = |of: fn(&Sample) -> u64| Some(samples.clone().map(of).max()? as f64);
    let kinds: [(&'static str, Option<f64>); 6] = [
        ("rss_mb", most(|s| s.program.rss_kb).map(|kb| kb / 1024.0)),
        ("broker_rss_mb", most(|s| s.broker.rss_kb).map(|kb| kb / 1024.0)),
        ("descriptors", most(|s| s.program.descriptors)),
        ("broker_descriptors", most(|s| s.broker.descriptors)),
        ("flows", most(|s| s.flows)),
        ("frames", most(|s| s.frames)),
    ];
    kinds.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Takes the samples.
pub struct Watch {
    control: PathBuf,
    looked: Instant,
    series: Series,
}

impl Watch {
    /// Makes it for a control socket.
    pub fn new(control: PathBuf) -> Watch {
        Watch { control, looked: Instant::now(), series: Series::default() }
    }

    /// Takes a sample if it is due. A dead program has none.
    pub fn look(&mut self, broker: Option<i32>, weather: &Weather) {
        if self.looked.elapsed() < EVERY {
            return;
        }
        self.looked = Instant::now();
        let Some(view) = ask(&self.control) else { return };
        self.series.samples.push(Sample {
            slice: weather.slice(),
            pid: view.pid.into(),
            program: Held::of(view.pid.into()),
            broker: broker.map(|pid| Held::of(pid as u64)).unwrap_or_default(),
            flows: view.total("flows") + view.total("half_open") + view.total("time_wait"),
            frames: frames(&view).iter().map(|(_, count)| count).sum(),
        });
    }

    /// The clients have ended: waits until everything is freed.
    pub fn wait_for_nothing(&mut self) {
        let begin = Instant::now();
        loop {
            self.series.left = match ask(&self.control) {
                Some(view) => left(&view),
                None => vec!["the dataplane does not reply".to_owned()],
            };
            if self.series.left.is_empty() || begin.elapsed() > SETTLE {
                break;
            }
            std::thread::sleep(SOON);
        }
        self.series.settled_s = begin.elapsed().as_secs_f64();
    }

    /// All samples.
    pub fn end(self) -> Series {
        self.series
    }
}

fn ask(control: &Path) -> Option<Status> {
    Client::connect(control).and_then(|mut client| client.stats()).ok()
}

/// Frames that are neither free nor in a device, by kind.
fn frames(view: &Status) -> [(&'static str, u64); 2] {
    let held = |used, device| view.total(used).saturating_sub(view.total(device));
    [
        ("receive buffers", held("rx_frames_in_use", "rx_frames_in_device")),
        ("transmit buffers", held("tx_frames_in_use", "tx_frames_in_device")),
    ]
}

fn left(view: &Status) -> Vec<String> {
    let flows = ["flows", "half_open", "time_wait"].map(|name| (name, view.total(name)));
    let all = flows.into_iter().chain(frames(view));
    all.filter(|(_, count)| *count > 0).map(|(name, count)| format!("{count} {name}")).collect()
}
