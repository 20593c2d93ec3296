//! Looks at memory, descriptors, flows and buffers, once a second.
use super::weather::{SLICES, Weather};
use ix_broker::control::{Client, Request, View};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// At the end everything must be back by then: TIME-WAIT is 60 s.
const SETTLE: Duration = Duration::from_secs(120);
/// Between two looks then.
const SOON: Duration = Duration::from_millis(200);

/// What was seen at a time.
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
    /// Flows, those half open and in TIME-WAIT included.
    pub flows: u64,
    /// Frames that are neither free nor a device's.
    pub frames: u64,
}

/// What a process has of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    /// Resident memory, KB.
    pub rss_kb: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

impl Held {
    /// All zeroes when it is gone.
    fn of(pid: u64) -> Held {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let rss_kb = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        let open = std::fs::read_dir(format!("/proc/{pid}/fd"));
        Held {
            rss_kb: rss_kb.unwrap_or(0),
            descriptors: open.map_or(0, |entries| entries.count() as u64),
        }
    }
}

/// Everything that was seen.
#[derive(Debug, Default)]
pub struct Series {
    /// In order.
    pub samples: Vec<Sample>,
    /// What had not come back at the end, in words.
    pub left: Vec<String>,
    /// How long it took until everything had.
    pub settled_s: f64,
}

impl Series {
    /// Figures for the row of the whole.
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

/// The highest of each; nothing of nothing.
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

/// Who looks.
pub struct Watch {
    control: PathBuf,
    looked: Instant,
    series: Series,
}

impl Watch {
    /// Asks there.
    pub fn new(control: PathBuf) -> Watch {
        Watch { control, looked: Instant::now(), series: Series::default() }
    }

    /// Looks, if it is time. A program that is dead has nothing to say.
    pub fn look(&mut self, broker: Option<i32>, weather: &Weather) {
        if self.looked.elapsed() < EVERY {
            return;
        }
        self.looked = Instant::now();
        let Some(view) = ask(&self.control) else { return };
        self.series.samples.push(Sample {
            slice: weather.slice(),
            pid: view.pid,
            program: Held::of(view.pid),
            broker: broker.map(|pid| Held::of(pid as u64)).unwrap_or_default(),
            flows: view.total("flows") + view.total("half_open") + view.total("time_wait"),
            frames: frames(&view).iter().map(|(_, count)| count).sum(),
        });
    }

    /// The clients have gone: waits until nothing is left of them.
    pub fn wait_for_nothing(&mut self) {
        let begin = Instant::now();
        loop {
            self.series.left = match ask(&self.control) {
                Some(view) => left(&view),
                None => vec!["the dataplane does not answer".to_owned()],
            };
            if self.series.left.is_empty() || begin.elapsed() > SETTLE {
                break;
            }
            std::thread::sleep(SOON);
        }
        self.series.settled_s = begin.elapsed().as_secs_f64();
    }

    /// Everything that was seen.
    pub fn end(self) -> Series {
        self.series
    }
}

fn ask(control: &Path) -> Option<View> {
    let answer = Client::connect(control).and_then(|mut client| client.ask(&Request::Stats));
    answer.and_then(|value| View::read(&value)).ok()
}

/// Frames that are neither free nor a device's, by kind.
fn frames(view: &View) -> [(&'static str, u64); 2] {
    let held = |used, device| view.total(used).saturating_sub(view.total(device));
    [
        ("receive buffers", held("rx_frames_in_use", "rx_frames_in_device")),
        ("transmit buffers", held("tx_frames_in_use", "tx_frames_in_device")),
    ]
}

fn left(view: &View) -> Vec<String> {
    let flows = ["flows", "half_open", "time_wait"].map(|name| (name, view.total(name)));
    let all = flows.into_iter().chain(frames(view));
    all.filter(|(_, count)| *count > 0).map(|(name, count)| format!("{count} {name}")).collect()
}
