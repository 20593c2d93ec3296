//! Counts the instructions of a message, and compares them with the budget.
//!
//! Two hosts in one process (`pair.rs`), each an elastic thread with a libix event loop, on a wire
//! in memory and in virtual time, run a scenario under callgrind at two lengths. The difference is
//! the cost of the messages between, without start-up, and without the wire and the scenarios
//! themselves. The count does not depend on the load of the machine, so a change of one per cent is
//! significant.
#![forbid(unsafe_code)]

mod budget;
mod callgrind;
mod flame;
mod map;
mod pair;
mod scenario;
mod shared;
mod wire;

use anyhow::{Context, Result, bail};
use budget::{Budget, FAMILIES, TOLERANCE_PERCENT, V6_PERCENT, Verdict, difference_percent};
use callgrind::{Place, Profile};
use clap::{Parser, ValueEnum};
use scenario::{SCENARIOS, Scenario};
use std::path::PathBuf;
use std::process::ExitCode;

/// Counts the instructions of a message, under callgrind, and compares them with budget.toml.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  ix-cost                          all scenarios, by crate
  ix-cost echo-64 --by function    where the instructions of one go
  ix-cost --accept                 make what there is the budget
  ix-cost echo-64 --map --flame .  instructions and cache misses of a message, and a flame graph
  ix-cost echo-64 --play 1000000   play natively and time it, or run it under another tool
  ix-cost --shared                 lines of memory that two elastic threads share")]
struct Args {
    /// Scenarios (default: all that do not take long; with `--map` truly all).
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(SCENARIOS.map(|s| s.name)))]
    scenarios: Vec<String>,
    /// Break the instructions down by this.
    #[arg(long, value_enum, default_value_t = By::Crate)]
    by: By,
    /// Rows of the breakdown.
    #[arg(long, default_value_t = 15)]
    top: usize,
    /// Write the results into the budget.
    #[arg(long)]
    accept: bool,
    /// Run this many messages without counting.
    #[arg(long, value_name = "MESSAGES", conflicts_with = "accept")]
    play: Option<u64>,
    /// Print what a message costs by function, and where data misses the caches by line, with
    /// simulated caches.
    #[arg(long, conflicts_with_all = ["accept", "play"])]
    map: bool,
    /// Write a flame graph of each scenario into this folder.
    #[arg(long, value_name = "FOLDER", requires = "map")]
    flame: Option<PathBuf>,
    /// Print which lines of memory one of two elastic threads writes and the other touches, and
    /// fail where that is on the path of a message.
    #[arg(long, conflicts_with_all = ["accept", "play", "map", "scenarios"])]
    shared: bool,
    /// What `--shared` runs under another tool.
    #[arg(long, hide = true, value_enum)]
    play_shared: Option<shared::Queues>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    Crate,
    File,
    Function,
    Line,
}

/// Cost of a scenario per message.
struct Cost {
    scenario: &'static Scenario,
    /// Instructions of both ends, without those of the scenario and the wire.
    instructions: f64,
    /// Instructions of the client and of the server, with those.
    sides: [f64; 2],
    messages: u64,
    profile: Profile,
}

/// Crates that are not counted: this one, and the rig that it uses.
const HARNESS: [&str; 2] = [env!("CARGO_PKG_NAME"), "ix-rig"];

/// What `.ci/run` takes for a step that cannot run here.
const STATUS_SKIPPED: u8 = 77;

/// What became of a run.
enum End {
    Kept,
    Broken,
    /// The tool that counts is missing.
    Skipped,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(End::Kept) => ExitCode::SUCCESS,
        Ok(End::Broken) => ExitCode::FAILURE,
        Ok(End::Skipped) => STATUS_SKIPPED.into(),
        Err(error) => {
            eprintln!("ix-cost: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures what the arguments name, and compares it with the budget.
fn run(args: &Args) -> Result<End> {
    let named = args.scenarios.iter().filter_map(|name| Scenario::named(name));
    let mut scenarios: Vec<&'static Scenario> = named.collect();
    if scenarios.is_empty() {
        scenarios = SCENARIOS.iter().filter(|s| args.map || !s.is_long).collect();
    }
    if let Some(messages) = args.play {
        scenarios.iter().for_each(|scenario| play(scenario, messages));
        return Ok(End::Kept);
    }
    if let Some(queues) = args.play_shared {
        shared::play(queues);
        return Ok(End::Kept);
    }
    if cfg!(debug_assertions) {
        bail!("this build is not optimised, its counts mean nothing; use `cargo run --release`");
    }
    if !callgrind::is_there() {
        println!("SKIPPED the instruction budget: no valgrind (apt-get install valgrind)");
        return Ok(End::Skipped);
    }
    if args.shared {
        return Ok(if shared::judge()? { End::Kept } else { End::Broken });
    }
    if args.map {
        return map::print(&scenarios, args.top, args.flame.as_deref()).map(|()| End::Kept);
    }
    let costs = scenarios.into_iter().map(|s| measure(s, false)).collect::<Result<Vec<_>>>()?;
    let budget = Budget::read(&Budget::path())?;
    summary(&costs, &budget);
    breakdown(&costs, args.by, args.top);
    let kept = if args.accept { accept(&costs, budget)? } else { judge(&costs, &budget) };
    Ok(if kept { End::Kept } else { End::Broken })
}

/// Runs natively: to measure time, or under another tool than callgrind. The first word is the
/// count.
fn play(scenario: &Scenario, messages: u64) {
    let start_ns = processor_ns();
    let mut warm = None;
    let done = scenario.play(messages, |messages| warm = Some((messages, processor_ns())));
    // A short run is counted as a whole.
    let (before, since_ns) = warm.unwrap_or((0, start_ns));
    let ns = (processor_ns() - since_ns) as f64 / (done - before) as f64;
    println!("{done} messages of {}, {ns:.0} ns each, both ends on one core", scenario.name);
}

/// Processor time of this thread, ns, so that what else runs on the machine does not count. 0 where
/// Linux does not say it.
fn processor_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

fn measure(scenario: &'static Scenario, caches: bool) -> Result<Cost> {
    // Two cores are common: both lengths run at once.
    let (short, long) = std::thread::scope(|scope| {
        let short = scope.spawn(|| callgrind::run(scenario.name, scenario.warm, caches));
        let long = callgrind::run(scenario.name, scenario.warm + scenario.counted, caches);
        (short.join(), long)
    });
    let short = short.ok().context("a thread panicked")??;
    let long = long?;
    let messages = long.messages - short.messages;
    let profile = long.profile.minus(&short.profile);
    let ours = |(name, _): &(String, u64)| !HARNESS.contains(&name.as_str());
    let instructions: u64 = profile.by(Place::krate).iter().filter(|c| ours(c)).map(|c| c.1).sum();
    let each = |count: u64| count as f64 / messages as f64;
    let sides = profile.sides.map(each);
    Ok(Cost { scenario, instructions: each(instructions), sides, messages, profile })
}

fn summary(costs: &[Cost], budget: &Budget) {
    println!(
        "{:<10} {:>12} {:>9} {:>8} {:>9} {:>9}  a message is",
        "scenario", "instructions", "budget", "±", "client", "server"
    );
    for cost in costs {
        let name = cost.scenario.name;
        let (limit, percent) = match budget.0.get(name) {
            Some(&limit) => {
                let percent = difference_percent(cost.instructions, limit);
                (limit.to_string(), format!("{percent:+.1} %"))
            }
            None => ("none".to_owned(), String::new()),
        };
        println!(
            "{name:<10} {:>12.0} {limit:>9} {percent:>8} {:>9.0} {:>9.0}  {}",
            cost.instructions, cost.sides[0], cost.sides[1], cost.scenario.what
        );
    }
}

fn breakdown(costs: &[Cost], by: By, top: usize) {
    let key = |place: &Place| match by {
        By::Crate => place.krate(),
        By::File => place.source(),
        By::Function => place.function_name().to_owned(),
        By::Line => place.source_line(),
    };
    for cost in costs {
        println!("\n{}: instructions per message by {}", cost.scenario.name, by_name(by));
        for (name, count) in cost.profile.by(key).into_iter().take(top) {
            println!("{:>9.1}  {name}", count as f64 / cost.messages as f64);
        }
    }
}

fn by_name(by: By) -> &'static str {
    match by {
        By::Crate => "crate (ix-cost and ix-rig, the harness, are not counted above)",
        By::File => "source file",
        By::Function => "function",
        By::Line => "line",
    }
}

fn accept(costs: &[Cost], mut budget: Budget) -> Result<bool> {
    for cost in costs {
        budget.0.insert(cost.scenario.name.to_owned(), cost.instructions.round() as u64);
    }
    budget.write(&Budget::path())?;
    println!("\nwritten to {}", Budget::path().display());
    Ok(true)
}

fn judge(costs: &[Cost], budget: &Budget) -> bool {
    let names = |wanted: Verdict| {
        let of = |cost: &&Cost| budget.judge(cost.scenario.name, cost.instructions) == wanted;
        costs.iter().filter(of).map(|cost| cost.scenario.name).collect::<Vec<_>>().join(", ")
    };
    let (exceeded, undercut) = (names(Verdict::Exceeded), names(Verdict::Undercut));
    let unknown = names(Verdict::Unknown);
    println!();
    if !undercut.is_empty() {
        println!("{undercut}: below the budget; lower it with --accept");
    }
    if !unknown.is_empty() {
        println!("{unknown}: without a budget; set it with --accept");
    }
    if !exceeded.is_empty() {
        println!(
            "{exceeded}: more than {TOLERANCE_PERCENT} % above the budget; find out why with \
             --by function, or say why it must be so and --accept"
        );
    }
    let of = |name: &str| costs.iter().find(|cost| cost.scenario.name == name);
    let mut families_agree = true;
    if let (Some(v4), Some(v6)) = (of(FAMILIES.0), of(FAMILIES.1)) {
        let percent = (v6.instructions / v4.instructions - 1.0) * 100.0;
        families_agree = percent <= V6_PERCENT;
        let says = if families_agree { "at most" } else { "which is more than" };
        println!("{}: {percent:+.1} % of {}, {says} {V6_PERCENT} %", FAMILIES.1, FAMILIES.0);
    }
    exceeded.is_empty() && unknown.is_empty() && families_agree
}
