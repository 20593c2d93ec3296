//! `ix bench soak`: serves a port for hours, while all kinds of incidents happen.
//!
//! Clients on Linux sockets send without a pause: messages on connections that last, connections
//! that come and go, bulk data. Meanwhile flow groups migrate, the link goes down and up, and the
//! controller, the program and its broker are killed and started again. Clients compare every
//! octet. A connection may break only while the program is dead; a link that was down may only
//! delay. Memory, descriptors, flows, buffers and latency are watched all the time, and the soak
//! ends with a verdict.
mod chaos;
mod clients;
mod verdict;
mod watch;
mod weather;

use crate::args::Device;
use crate::choose_device;
use crate::lab::{Host, Lab};
use chaos::Chaos;
use clap::Args;
use clients::Clients;
use ix_report::machine::Machine;
use ix_report::output::OutputArgs;
use ix_report::problem::{Problem, Result};
use ix_report::report::{Report, Row, own_command};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use watch::Watch;
pub(crate) use watch::rss_kb;
use weather::{SLICES, Weather};

/// Help of the command.
pub const HELP: &str = "Serves a port under load for hours, while incidents happen: flow groups \
    migrate ten times per second, the link goes down and up, and the controller, the program and \
    `ix run` above it are killed and started again. Clients compare every octet. The soak ends with \
    a verdict on octets, connections, processes, memory, descriptors, flows, buffers and latency, and \
    fails if the verdict is bad.\n\n\
    Examples:\n  \
    ix bench soak --hours 24 --output soak.json\n  \
    ix bench soak --minutes 5";

/// Flags of `ix bench soak`.
#[derive(Args, Debug, Clone)]
pub struct SoakArgs {
    /// Duration in hours; fractions are allowed (default: 1)
    #[arg(long, value_name = "H", value_parser = length, conflicts_with_all = ["minutes", "seconds"])]
    pub hours: Option<f64>,
    /// Duration in minutes
    #[arg(long, value_name = "M", value_parser = length, conflicts_with = "seconds")]
    pub minutes: Option<f64>,
    /// Duration in seconds, at least 15
    #[arg(long, value_name = "S", value_parser = length)]
    pub seconds: Option<f64>,
    /// Device under IX: afxdp or tap (default: afxdp as root, tap otherwise)
    #[arg(long, value_enum)]
    pub device: Option<Device>,
    /// Seed of the random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Where the results go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Default duration: an hour.
const USUAL_S: f64 = 3600.0;
/// In less time not every incident happens.
const LEAST_S: f64 = 15.0;
/// Ten years.
const MOST_S: f64 = 3.2e8;
/// Time between two lines of progress.
const SAY_EVERY: Duration = Duration::from_secs(60);

fn length(text: &str) -> std::result::Result<f64, &'static str> {
    match text.parse() {
        Ok(length) if f64::is_finite(length) && length > 0.0 => Ok(length),
        _ => Err("not a positive number"),
    }
}

impl SoakArgs {
    fn time(&self) -> Duration {
        let hours = self.hours.map(|hours| hours * 3600.0);
        let seconds = hours.or(self.minutes.map(|m| m * 60.0)).or(self.seconds);
        Duration::from_secs_f64(seconds.unwrap_or(USUAL_S).clamp(LEAST_S, MOST_S))
    }
}

/// Runs the soak, publishes the results, and fails if the verdict is bad.
pub fn main(args: &SoakArgs) -> Result<()> {
    let (device, why) = choose_device(args.device)?;
    if device == Device::Memif {
        return Err(Problem::new("cannot soak a memif", "its clients are on Linux")
            .mend("use --device afxdp or tap"));
    }
    let lab = Lab::new(device)?;
    let machine = Machine::read();
    eprintln!("ix: {}", machine.summary());
    let soak = run(&lab, args)?;
    let mut notes = vec![
        "domain none: the program can access the dataplane's memory".to_owned(),
        "memory, descriptors, flows and buffers: the highest value in each part".to_owned(),
        "latency: of messages on lasting connections when no incident had happened for 3 s"
            .to_owned(),
    ];
    notes.extend(why);
    notes.extend(soak.lines());
    let rows = soak.rows(&lab);
    let report = Report { bench: "soak".to_owned(), machine, rows, notes, command: own_command() };
    report.publish(&args.output)?;
    match soak.bad().first() {
        None => Ok(()),
        Some(what) => Err(Problem::new("the soak failed", what)
            .mend(format!("repeat it: ix bench soak --seed {} with the same duration", args.seed))),
    }
}

/// All results.
struct Soak {
    seconds: f64,
    slice_s: f64,
    clients: clients::Tally,
    chaos: chaos::Tally,
    watch: watch::Series,
    mode: String,
}

fn run(lab: &Lab, args: &SoakArgs) -> Result<Soak> {
    let time = args.time();
    let weather = Weather::new(time);
    let mut chaos = Chaos::begin(lab, args.seed, time, &weather)?;
    let mode = chaos.mode();
    let mut watch = Watch::new(chaos.control());
    let clients = std::thread::scope(|scope| {
        let clients = Clients::start(scope, lab, chaos.address(), &weather);
        let lived = live(&mut chaos, &mut watch, &weather, time);
        chaos.calm_down();
        // The clients must end also if the run has failed: the scope waits for them.
        weather.end();
        let tally = clients.join();
        lived.map(|()| tally)
    })?;
    let seconds = weather.elapsed().as_secs_f64();
    watch.wait_for_nothing();
    let (chaos, watch) = (chaos.end(), watch.end());
    Ok(Soak { seconds, slice_s: weather.slice_s(), clients, chaos, watch, mode })
}

/// Causes incidents and watches until the time is over.
fn live(chaos: &mut Chaos<'_>, watch: &mut Watch, weather: &Weather, time: Duration) -> Result<()> {
    let mut said = Instant::now();
    while weather.elapsed() < time {
        chaos.turn()?;
        watch.look(chaos.broker(), weather);
        if said.elapsed() > SAY_EVERY {
            said = Instant::now();
            let seconds = weather.elapsed().as_secs();
            eprintln!("ix: {seconds} of {} s: {}", time.as_secs(), weather.summary());
        }
    }
    Ok(())
}

impl Soak {
    /// One row for each part, and one for the whole.
    fn rows(&self, lab: &Lab) -> Vec<Row> {
        let row = |from_s: Value, verdict: Value| Row {
            system: "ix".to_owned(),
            domain: Host::IX.domain(),
            mode: self.mode.clone(),
            device: lab.device_of(Host::IX).to_owned(),
            client: "linux".to_owned(),
            client_mode: "blocking".to_owned(),
            connections: clients::CONNECTIONS,
            size: clients::SIZE as u64,
            also: vec![("from_s", from_s), ("verdict", verdict)],
            settings: "2 threads, domain none".to_owned(),
            ..Row::default()
        };
        let part = |slice: usize| {
            let from_s = (self.slice_s * slice as f64).round();
            let mut row = row(json!(from_s), Value::Null);
            row.add(self.clients.slice_figures(slice, self.slice_s));
            row.add(self.watch.slice_figures(slice));
            row
        };
        let mut rows: Vec<Row> = (0..SLICES).map(part).collect();
        let mut whole = row(Value::Null, json!(self.verdict()));
        whole.add([("seconds", self.seconds)]);
        whole.add(self.clients.figures(self.seconds));
        whole.add(self.chaos.figures());
        whole.add(self.watch.figures());
        rows.push(whole);
        rows
    }
}
