//! `ix sim`: runs seeds, and prints how to repeat a failing one.
use crate::lifetimes::{self, Lived};
use crate::plan::{Options, Plan, Scenario};
use crate::trace;
use crate::world::{Outcome, World};
use clap::Parser;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Runs whole hosts on a network that loses, delays, reorders, duplicates, corrupts and cuts, in
/// virtual time; checks that every byte arrives and that every resource is freed.
#[derive(Parser, Clone, Debug)]
#[command(name = "ix sim")]
struct Args {
    /// First seed; a seed always gives the same run
    #[arg(long)]
    seed: Option<u64>,
    /// Number of seeds
    #[arg(long, conflicts_with = "minutes")]
    runs: Option<u64>,
    /// Run seeds for this time instead
    #[arg(long)]
    minutes: Option<u64>,
    /// Load: bulk, echo, churn, lives, all; migration: all, with flow groups that migrate; life:
    /// all, with threads that the control plane parks and resumes
    #[arg(long, default_value = "all", value_parser = scenario)]
    scenario: Scenario,
    /// Run until this many connections have lived, each with many faults, and print statistics of
    /// their lives
    #[arg(long, conflicts_with_all = ["runs", "minutes", "loss", "bytes", "trace"])]
    lifetimes: Option<u64>,
    /// Number of parallel runs, for --lifetimes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=256))]
    jobs: u64,
    /// Lose frames with this probability, without other faults
    #[arg(long, value_parser = probability)]
    loss: Option<f64>,
    /// Bytes of each bulk stream
    #[arg(long)]
    bytes: Option<u64>,
    /// Print every frame that arrives
    #[arg(long)]
    trace: bool,
    /// Print a line for each run
    #[arg(long, short)]
    verbose: bool,
}

fn scenario(text: &str) -> Result<Scenario, &'static str> {
    match text {
        "bulk" => Ok(Scenario::Bulk),
        "echo" => Ok(Scenario::Echo),
        "churn" => Ok(Scenario::Churn),
        "lives" => Ok(Scenario::Lives),
        "all" => Ok(Scenario::All),
        "migration" => Ok(Scenario::Migration),
        "life" => Ok(Scenario::Life),
        _ => Err("not one of bulk, echo, churn, lives, migration, life, all"),
    }
}

fn probability(text: &str) -> Result<f64, &'static str> {
    match text.parse() {
        Ok(p) if (0.0..=0.5).contains(&p) => Ok(p),
        Ok(_) => Err("above 0.5, where no transport works"),
        Err(_) => Err("not a number"),
    }
}

/// Runs the simulator with these arguments (without the program's name).
pub fn cli(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let with_name = std::iter::once(OsString::from("ix sim")).chain(args);
    match Args::try_parse_from(with_name) {
        Ok(args) => run(&args),
        Err(error) => {
            let _ = error.print();
            if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS }
        }
    }
}

fn run(args: &Args) -> ExitCode {
    let first = args.seed.unwrap_or_else(any_seed);
    if let Some(lifetimes) = args.lifetimes {
        return run_lives(first, lifetimes, args);
    }
    let end = args.minutes.map(|m| Instant::now() + Duration::from_secs(60 * m));
    let default_runs = if args.seed.is_some() { 1 } else { 100 };
    let runs = args.runs.unwrap_or(if end.is_some() { u64::MAX } else { default_runs });
    println!("seed {first}, scenario {:?}", args.scenario);
    let begin = Instant::now();
    let (mut done, mut connections, mut bytes) = (0, 0, 0);
    let mut said = begin;
    while done < runs && end.is_none_or(|end| Instant::now() < end) {
        let seed = first.wrapping_add(done);
        let outcome = run_seed(seed, args);
        if !outcome.violations.is_empty() {
            report_failure(seed, args, &outcome);
            return ExitCode::FAILURE;
        }
        if args.verbose {
            println!("{}", summary(seed, &outcome));
        }
        done += 1;
        connections += outcome.connections;
        bytes += outcome.bytes;
        if said.elapsed() > Duration::from_secs(10) {
            said = Instant::now();
            println!("{done} runs, {connections} connections, {} MiB: all well", bytes >> 20);
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{done} runs in {seconds:.1} s: {connections} connections, {bytes} bytes; every byte \
         arrived, every flow, buffer and timer was freed"
    );
    ExitCode::SUCCESS
}

/// This many lives must have shown every state and every transition; of fewer lives the missing
/// ones are printed.
const LIVES_SHOW_ALL: u64 = 10_000;

/// Runs very many short lives.
fn run_lives(first: u64, lifetimes: u64, args: &Args) -> ExitCode {
    println!("seed {first}, {lifetimes} lifetimes, {} runs at a time", args.jobs);
    let begin = Instant::now();
    let lived = lifetimes::run(first, lifetimes, args.jobs, |lives, total| {
        println!("{lives} of {total} lives: all well");
    });
    match lived {
        Ok(Lived { lives, virtual_time }) => {
            println!(
                "{lives}in {:.1} s, {:.1} hours of virtual time, without a violation",
                begin.elapsed().as_secs_f64(),
                virtual_time.as_secs_f64() / 3600.0
            );
            let missing = lives.missing();
            for (from, to) in &missing {
                eprintln!("never seen: {from:?} → {to:?}");
            }
            let complete = missing.is_empty() || lifetimes < LIVES_SHOW_ALL;
            if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err((seed, outcome)) => {
            let args = Args { scenario: Scenario::Lives, ..args.clone() };
            report_failure(seed, &args, &outcome);
            ExitCode::FAILURE
        }
    }
}

/// One run. A panic within it prints how to repeat it, also if panics abort.
fn run_seed(seed: u64, args: &Args) -> Outcome {
    let replay = replay(seed, args);
    let earlier = std::sync::Arc::new(std::panic::take_hook());
    let hook = earlier.clone();
    std::panic::set_hook(Box::new(move |info| {
        hook(info);
        eprintln!("replay: {replay}");
    }));
    let options = Options { loss: args.loss, bulk_bytes: args.bytes };
    let mut world = World::new(seed, Plan::new(seed, args.scenario, &options));
    if args.trace {
        world.set_trace(Box::new(|at_us, port, frame| {
            println!("{at_us:>12} -> host {port}: {}", trace::describe(frame));
        }));
    }
    let outcome = world.run();
    drop(std::panic::take_hook());
    std::panic::set_hook(Box::new(move |info| earlier(info)));
    outcome
}

fn replay(seed: u64, args: &Args) -> String {
    let scenario = format!("{:?}", args.scenario).to_lowercase();
    let mut command = format!("ix sim --seed {seed} --scenario {scenario}");
    if let Some(loss) = args.loss {
        command += &format!(" --loss {loss}");
    }
    if let Some(bytes) = args.bytes {
        command += &format!(" --bytes {bytes}");
    }
    command
}

fn report_failure(seed: u64, args: &Args, outcome: &Outcome) {
    for what in &outcome.violations {
        eprintln!("violation: {what}");
    }
    eprintln!("{}", summary(seed, outcome));
    eprintln!("seed {seed} failed; replay: {}", replay(seed, args));
}

fn summary(seed: u64, outcome: &Outcome) -> String {
    let Outcome { connections, bytes, took_us, frames, .. } = outcome;
    let seconds = *took_us as f64 / 1e6;
    let mut text = format!(
        "seed {seed}: {connections} connections, {bytes} bytes in {seconds:.3} s of virtual time; \
         {frames:?}"
    );
    for (name, value) in &outcome.counters {
        text += &format!(" {name}={value}");
    }
    text
}

/// A seed that differs from the last one.
fn any_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Short enough to type.
    now.as_micros() as u64 % 1_000_000_000
}
