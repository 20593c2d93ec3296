//! `ix cp`: the controller as a process, and inside `ix run --policy`.
//!
//! It attaches to dataplanes through their control sockets, as every other client does. It may
//! start and stop at any time: it continues from the state that it finds, and dataplanes run
//! without it.
mod events;
mod member;
mod members;
mod policy;
mod signals;
mod talk;

use clap::Args;
use events::Log;
use ix_controller::linux::{Background, Linux, Tree, parse_job, parse_list};
use ix_controller::policy::BUILT_IN;
use ix_controller::{ControlLoop, Platform, TICK_US};
use ix_report::output::LogArgs;
use ix_report::problem::{Problem, Result};
use ix_sys::say;
use members::{DryRun, Members};
use policy::PolicySource;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Help of the command.
pub const HELP: &str = "Watches the dataplanes of this machine and gives each only the hardware threads and \
    the clock that its load needs. It decides ten times a second by a policy: a bound on the \
    queueing delay (`slo_us`) and a ladder of configurations. It logs each decision in one line with \
    the numbers that led to it. It reads the policy again when its file changes or on SIGHUP; \
    `ix ctl policy` and `ix ctl slo` change the policy of one dataplane.\n\n\
    The controller may start and stop at any time: it continues from the state that it finds, and \
    dataplanes run without it. On SIGINT and SIGTERM it restores clocks and the background job.\n\n\
    Examples:\n  \
    ix cp --print-policy energy > my.toml\n  \
    ix cp --policy my.toml --slo-us 200\n  \
    ix cp --policy consolidation --background batch.slice\n  \
    ix cp --policy energy --dry-run";

/// Time between two checks of the policy's file.
const FILE_EVERY: Duration = Duration::from_secs(1);

/// Flags of `ix cp`.
#[derive(Args, Debug, Default)]
pub struct CpArgs {
    /// The policy: a TOML file, or one of energy, consolidation, minmax
    #[arg(long, value_name = "FILE", default_value = "energy")]
    pub policy: String,
    /// Upper bound on the queueing delay, µs (default: the policy's)
    #[arg(long, value_name = "US")]
    pub slo_us: Option<f64>,
    /// Background job that gets the remaining time: a control group (v2) or a process
    #[arg(long, value_name = "CGROUP|PID")]
    pub background: Option<String>,
    /// Hardware threads where the background job may run (default: all)
    #[arg(long, value_name = "LIST", requires = "background")]
    pub background_cpus: Option<String>,
    /// Control only the dataplane of this program: its process ID (may be repeated)
    #[arg(long, value_name = "PID")]
    pub pid: Vec<i32>,
    /// Control only the dataplane of this control socket (may be repeated)
    #[arg(long, value_name = "PATH", conflicts_with = "pid")]
    pub control: Vec<PathBuf>,
    /// Log the decisions without carrying them out
    #[arg(long)]
    pub dry_run: bool,
    /// Log JSON objects, and once a second the state of each dataplane
    #[arg(long)]
    pub json: bool,
    /// How to write messages
    #[command(flatten)]
    pub log: LogArgs,
    /// Print a built-in policy as a starting point, and end
    #[arg(long, value_name = "NAME", exclusive = true,
          value_parser = ["energy", "consolidation", "minmax"])]
    pub print_policy: Option<String>,
}

/// Runs until a signal ends it.
pub fn main(args: &CpArgs) -> Result<()> {
    if let Some(name) = &args.print_policy {
        if let Some((_, text)) = BUILT_IN.iter().find(|(known, _)| known == name) {
            ix_sys::out!("{text}");
        }
        return Ok(());
    }
    args.log.apply();
    let mut source = PolicySource::open(&args.policy, args.slo_us)?;
    let members = Members::new(&args.pid, &args.control)?;
    let linux = with_background(Linux::new(&Tree::default(), members), args)?;
    signals::catch()?;
    let log = Log::new(args.json, args.dry_run);
    let mut control = Driver::new(&mut source, linux, log, args.dry_run)?;
    control.run(&|| signals::ended())
}

fn with_background(linux: Linux<Members>, args: &CpArgs) -> Result<Linux<Members>> {
    let Some(job) = &args.background else { return Ok(linux) };
    let problem = |e: &dyn std::fmt::Display| {
        Problem::new(format!("cannot control the background job `{job}`"), e)
    };
    let tree = Tree::default();
    let online = ix_controller::linux::online(&tree);
    let cpus = match &args.background_cpus {
        None => Vec::new(),
        Some(text) => {
            let cpus = parse_list(text).filter(|cpus| !cpus.is_empty());
            let cpus = cpus.ok_or_else(|| {
                problem(&format!("`{text}` is not a list of hardware threads"))
                    .mend("for example --background-cpus 2-7")
            })?;
            if let Some(cpu) = cpus.iter().find(|cpu| !online.contains(cpu)) {
                let there = ix_controller::ranges(&online);
                return Err(problem(&format!("this machine has no hardware thread {cpu}"))
                    .mend(format!("choose from {there} with --background-cpus")));
            }
            cpus
        }
    };
    if args.dry_run {
        return Ok(linux);
    }
    let background =
        Background::new(&tree, &parse_job(job), set_affinity).map_err(|e| problem(&e))?;
    Ok(linux.with_background(background, cpus))
}

/// Lets any thread run on these hardware threads only.
fn set_affinity(thread: u32, cpus: &[u32]) -> std::io::Result<()> {
    let cpus: Vec<usize> = cpus.iter().map(|cpu| *cpu as usize).collect();
    ix_sys::cpu::pin_thread(thread as i32, &cpus)
}

/// The loop on this machine's clock.
struct Driver<'a> {
    control: ControlLoop<DryRun<Linux<Members>>>,
    source: &'a mut PolicySource,
    log: Log,
}

impl<'a> Driver<'a> {
    fn new(
        source: &'a mut PolicySource,
        mut linux: Linux<Members>,
        log: Log,
        dry_run: bool,
    ) -> Result<Driver<'a>> {
        let policy = source.read()?;
        for finding in linux.findings().iter().filter(|finding| finding.missing.is_some()) {
            log.say(&finding.to_string());
        }
        let there = linux.machine().cores.len();
        let (name, slo_us) = (&policy.name, policy.slo_us);
        log.say(&format!("policy {name}, at most {slo_us} µs of queueing delay, {there} cores"));
        let platform = DryRun { platform: linux, on: dry_run };
        Ok(Driver { control: ControlLoop::new(policy, platform), source, log })
    }

    /// Runs ten rounds per second until `ended`.
    fn run(&mut self, ended: &dyn Fn() -> bool) -> Result<()> {
        let start = Instant::now();
        let mut turns = 0u64;
        let mut looked = Instant::now();
        while !ended() {
            if signals::take_reload() || looked.elapsed() >= FILE_EVERY {
                looked = Instant::now();
                self.reload();
            }
            let now_us = start.elapsed().as_micros() as u64;
            let events = self.control.turn(now_us);
            for event in &events {
                self.log.event(event);
            }
            self.report(&events, now_us);
            turns += 1;
            // A round that took too long is not repeated.
            turns = turns.max(start.elapsed().as_micros() as u64 / TICK_US);
            let next = start + Duration::from_micros(turns * TICK_US);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        self.control.platform().platform.restore();
        Ok(())
    }

    fn reload(&mut self) {
        match self.source.changed() {
            None => {}
            Some(Ok(policy)) => {
                self.log.say(&format!("policy {} from {}", policy.name, self.source.name()));
                self.control.controller().set_policy(policy);
            }
            Some(Err(problem)) => {
                self.log.say(&format!("{problem}; the policy before stays in force"))
            }
        }
    }

    /// Reports to the dataplanes, and carries out what their operators ask for.
    fn report(&mut self, events: &[ix_controller::Event], now_us: u64) {
        let log = &self.log;
        let linux = &mut self.control.platform().platform;
        let members = linux.dataplanes();
        members.notice(events);
        members.take_lines().iter().for_each(|line| log.say(line));
        if !members.report_due(now_us) {
            return;
        }
        let watts = linux.watts(now_us);
        let (controller, platform) = self.control.parts();
        let members = platform.platform.dataplanes();
        let requests = members.report(|id| controller.policy_of(id).clone(), watts);
        let policy = controller.policy().clone();
        for state in members.states(watts) {
            self.log.state(&state);
        }
        for (id, request) in requests {
            match policy::requested(&policy, &request) {
                Ok(policy) => {
                    let (name, slo_us) = (&policy.name, policy.slo_us);
                    let line = format!(
                        "policy {name}, at most {slo_us} µs, for {}: its operator has set it",
                        id.0
                    );
                    self.log.say(&line);
                    self.control.controller().set_policy_of(id, policy);
                }
                Err(problem) => self.log.say(&problem.to_string()),
            }
        }
    }
}

/// The loop inside `ix run`: a thread that is a client of its own broker's control socket.
pub struct Embedded {
    thread: Option<JoinHandle<()>>,
    ended: Arc<AtomicBool>,
}

impl Embedded {
    /// Checks the policy before anything is started.
    pub fn check(policy: &str, slo_us: Option<f64>) -> Result<()> {
        PolicySource::open(policy, slo_us)?.read().map(|_| ())
    }

    /// Controls the dataplane that listens at a control socket.
    pub fn start(policy: &str, slo_us: Option<f64>, control: PathBuf) -> Result<Embedded> {
        let mut source = PolicySource::open(policy, slo_us)?;
        let ended = Arc::new(AtomicBool::new(false));
        let stop = ended.clone();
        let drive = move || {
            signals::block_all();
            let run = || -> Result<()> {
                let members = Members::of(control)?;
                let linux = Linux::new(&Tree::default(), members);
                let log = Log::new(false, false);
                let mut driver = Driver::new(&mut source, linux, log, false)?;
                driver.run(&|| stop.load(Ordering::Relaxed))
            };
            if let Err(problem) = run() {
                say!("{problem}");
            }
        };
        let thread = std::thread::Builder::new().name("ix-cp".to_owned()).spawn(drive);
        let thread = thread.map_err(|e| Problem::new("cannot start the controller", e))?;
        Ok(Embedded { thread: Some(thread), ended })
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
