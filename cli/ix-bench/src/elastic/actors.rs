//! The other participants besides server and load: the background job, the controller, and the
//! observer.
use super::super::process::Process;
use super::machine::{Machine, give_weight};
use ix_background::Second;
use ix_broker::control::Client;
use ix_proto::control::{Request, Status};
use ix_report::control_log::{Decision, Entry, Line};
use ix_report::problem::{Problem, Result};
use ix_sys::command::{Step, before_exec};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Time between two reports of the job, s.
const REPORT_S: &str = "0.25";
/// Longest wait for one of its reports.
const PATIENCE: Duration = Duration::from_secs(10);

/// The background job: one thread with the lowest priority that Linux has.
pub struct Background {
    process: Process,
    /// Bytes of work that it has reported.
    done: f64,
    /// Time of its last report, s since its start.
    at_s: f64,
}

impl Background {
    pub fn start(ix: &Path, cpu: usize) -> Result<Background> {
        let mut command = Command::new(ix);
        command.args(["background", "--threads", "1", "--cpus", &cpu.to_string(), "--json"]);
        command.args(["--interval", REPORT_S]);
        before_exec(&mut command, vec![Step::OnlyWhenIdle]);
        let process = Process::start(command, "background job")?;
        Ok(Background { process, done: 0.0, at_s: 0.0 })
    }

    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Its rate when it runs undisturbed, bytes per second.
    pub fn alone(&mut self, time: Duration) -> Result<f64> {
        let line = self.process.wait_for_line("{", PATIENCE)?;
        self.take(&line);
        let (done, at_s) = (self.done, self.at_s);
        std::thread::sleep(time);
        let rate = (self.done() - done) / (self.at_s - at_s);
        if rate.is_finite() && rate > 0.0 {
            return Ok(rate);
        }
        Err(Problem::new("the background job hangs", "it does not report its rate"))
    }

    /// Its work so far, bytes.
    pub fn done(&mut self) -> f64 {
        while let Some(line) = self.process.next_line() {
            self.take(&line);
        }
        self.done
    }

    /// A report: the rate since the report before.
    fn take(&mut self, line: &str) {
        // The line at the end is another.
        if let Ok(Second { at_s, bytes_per_s, .. }) = serde_json::from_str(line) {
            self.done += bytes_per_s * (at_s - self.at_s);
            self.at_s = at_s;
        }
    }
}

/// The controller, as a separate process.
pub struct Controller {
    process: Process,
}

impl Controller {
    pub fn start(
        ix: &Path,
        policy: &Path,
        dataplane: &Path,
        job: i32,
        cpu: usize,
    ) -> Result<Controller> {
        let mut command = Command::new(ix);
        command.args(["cp", "--json", "--background", &job.to_string(), "--policy"]).arg(policy);
        command.args(["--background-cpus", &cpu.to_string(), "--control"]).arg(dataplane);
        Ok(Controller { process: Process::start(command, "controller")? })
    }

    /// Ends it; returns its decisions, one per line.
    pub fn stop(mut self) -> Vec<String> {
        let mut decisions = Vec::new();
        while let Some(line) = self.process.next_line() {
            let entry = serde_json::from_str(&line).map(|line: Line| line.entry);
            if let Ok(Entry::Decision(Decision { from, to, why, .. })) = entry {
                decisions.push(format!("rung {from} to {to}: {why}"));
            }
        }
        self.process.stop();
        decisions
    }
}

/// Observations of one second, besides the load's own figures.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Elastic threads that served, on average.
    pub threads: f64,
    /// Longest queueing delay that the dataplane reported, µs.
    pub queueing_delay_us: f64,
    /// The load's share of one hardware thread.
    pub load_cpu: f64,
    /// Work of the background job, bytes per second.
    pub background_per_s: f64,
    /// Time that the host and other programs took from the dataplane, ms.
    pub taken_ms: f64,
}

/// Observes the dataplane, the load, the job and the machine.
pub struct Watch {
    client: Client,
    machine: Machine,
    /// Time that the second thread took to wake, µs, each time it was resumed.
    pub wakes_us: Vec<f64>,
    /// Its last known wake-up.
    wake_ns: u64,
}

impl Watch {
    pub fn new(path: &Path) -> Result<Watch> {
        let mut client = Client::connect(path)?;
        let view = client.status()?;
        give_weight(&view);
        Ok(Watch { client, machine: Machine::of(&view), wakes_us: Vec::new(), wake_ns: 0 })
    }

    pub fn park(&mut self, thread: usize) -> Result<()> {
        self.client.ask(&Request::Park { thread }).map(drop)
    }

    /// Observes for `seconds` seconds, after a first part that does not count.
    pub fn each_second(
        &mut self,
        job: &mut Background,
        load: i32,
        before_s: f64,
        seconds: f64,
    ) -> Vec<Seen> {
        let start = Instant::now() + Duration::from_secs_f64(before_s);
        std::thread::sleep(start.saturating_duration_since(Instant::now()));
        let (mut used, mut done) = (cpu_time_s(load), job.done());
        let mut taken_ms = self.machine.taken_ms();
        let mut all = Vec::new();
        for second in 1..=seconds.round() as u32 {
            let end = start + Duration::from_secs(1) * second;
            let mut seen = self.look_until(end);
            let now = cpu_time_s(load);
            (seen.load_cpu, used) = ((now - used).max(0.0), now);
            let reported = job.done();
            (seen.background_per_s, done) = (reported - done, reported);
            let taken = self.machine.taken_ms();
            (seen.taken_ms, taken_ms) = ((taken - taken_ms).max(0.0), taken);
            all.push(seen);
        }
        all
    }

    /// Observes ten times per second.
    fn look_until(&mut self, end: Instant) -> Seen {
        let (mut looks, mut seen) = (0.0, Seen::default());
        while Instant::now() < end {
            if let Ok(view) = self.client.status() {
                let serving = view.serving().count();
                looks += 1.0;
                seen.threads += serving as f64;
                seen.queueing_delay_us = seen.queueing_delay_us.max(view.queueing_delay_us());
                self.note_wake(&view);
            }
            let next = Instant::now() + Duration::from_millis(100);
            std::thread::sleep(next.min(end).saturating_duration_since(Instant::now()));
        }
        seen.threads /= f64::max(looks, 1.0);
        seen
    }

    /// One wake-up shows in many observations; parking shows as one, too.
    fn note_wake(&mut self, view: &Status) {
        let Some(second) = view.threads.last() else { return };
        let wake_ns = second.wake_ns;
        let resumed = view.serving().count() == view.threads.len();
        if resumed && wake_ns != self.wake_ns {
            self.wakes_us.push(wake_ns as f64 / 1000.0);
        }
        self.wake_ns = wake_ns;
    }
}

/// Processor time that a process has used so far, s; 0 if it has ended.
fn cpu_time_s(pid: i32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The second field may contain blanks, but ends with a bracket.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: f64 = rest.split_whitespace().skip(11).take(2).flat_map(str::parse::<f64>).sum();
    ticks / ix_sys::process::ticks_per_s() as f64
}
