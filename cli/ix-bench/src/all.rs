//! `ix bench all`: every benchmark, one after another, each with its results in a file.
use super::{ONE_WALL, choose_device, dynamic, gate, installed, pareto, rates, run, soak};
use crate::args::{AllArgs, BenchArgs, Device, DynamicArgs, GateArgs, ModelArgs, RatesArgs};
use crate::args::{Platform, ReportArgs};
use ix_report::domain::Domain;
use ix_report::output::OutputArgs;
use ix_report::problem::{Problem, Result};
use std::time::{Duration, Instant};

/// The benchmarks in order, each with its share of the whole time.
const BENCHES: [(&str, f64); 24] = [
    ("echo", 2.0),
    ("pingpong", 2.0),
    ("short", 2.0),
    ("connscaling", 3.0),
    ("memcached", 6.0),
    ("memcached-udp", 4.0),
    ("kv-steps", 2.0),
    ("http", 2.0),
    ("batch", 2.0),
    ("udp-echo", 3.0),
    ("wakeup", 1.0),
    ("sharing", 2.0),
    ("churn", 4.0),
    ("bulk", 2.0),
    ("rates", 2.0),
    ("elastic", 3.0),
    ("migration", 3.0),
    ("loss", 8.0),
    ("fairness", 4.0),
    ("hostile", 3.0),
    ("gate", 4.0),
    ("pareto", 0.2),
    ("dynamic", 0.2),
    ("soak", 2.0),
];

/// How long the soak is, s; with `--quick`. Alone it is an hour.
const SOAK_S: (f64, f64) = (120.0, 15.0);
/// What `ix bench dynamic` runs, as it does alone.
const PATTERNS: [&str; 3] = ["slope", "step", "sine+noise"];
const POLICIES: [&str; 2] = ["energy", "consolidation"];
/// The seed where there is one.
const SEED: u64 = 1;

/// Runs all benchmarks. Those that fail are listed at the end; the results of the others stay.
pub fn main(args: &AllArgs) -> Result<()> {
    let named = args.domain.clone();
    let args = &AllArgs { domain: Domain::or_all(&args.domain), ..args.clone() };
    let chosen = choose(&args.only)?;
    let (device, why) = choose_device(args.device)?;
    let no_folder = |e| Problem::new(format!("cannot make the folder {}", args.dir.display()), e);
    std::fs::create_dir_all(&args.dir).map_err(no_folder)?;
    let start = Instant::now();
    let whole: f64 = chosen.iter().map(|(_, part)| part).sum();
    let (mut done, mut failed) = (0.0, Vec::new());
    for (number, (name, part)) in chosen.iter().enumerate() {
        let told = progress(start.elapsed(), done / whole);
        eprintln!("ix: {name} ({} of {}), {told}", number + 1, chosen.len());
        done += part;
        if let Some(why) = cannot(name, device) {
            eprintln!("ix: {name} is skipped: {why}");
            continue;
        }
        let output = OutputArgs::to_file(args.dir.join(format!("{name}.json")));
        let outcome = match alone(name, args, (device, &named), &output) {
            Some(outcome) => outcome,
            None => {
                // Those that measure one domain: that which was named, or the usual one.
                let one: Vec<Domain> = named.iter().copied().take(1).collect();
                let is_one = ONE_WALL.contains(name);
                let args = &AllArgs {
                    domain: if is_one { one } else { args.domain.clone() },
                    ..args.clone()
                };
                // As alone: a link whose ends lose no packets shows best what migrations do.
                let usual = if *name == "migration" { Device::Memif } else { device };
                let device = args.device.unwrap_or(usual);
                run(name, &bench_args(args), device, command(name, args), None).and_then(|mut r| {
                    r.notes.extend(why.clone());
                    r.publish(&output)
                })
            }
        };
        if let Err(problem) = outcome {
            eprintln!("ix: {name} failed: {problem}");
            failed.push(*name);
        }
    }
    let took = start.elapsed().as_secs();
    eprintln!("ix: {} benchmarks in {took} s, results in {}", chosen.len(), args.dir.display());
    if failed.len() < chosen.len() {
        let (files, output) = (vec![args.dir.clone()], args.dir.join("report.html"));
        super::report::main(&ReportArgs { against: None, files, output })?;
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(Problem::new(
        format!("{} of {} benchmarks failed", failed.len(), chosen.len()),
        failed.join(", "),
    )
    .mend("see the reasons above; `ix bench NAME` runs one alone"))
}

/// Runs a benchmark that has flags of its own; `None`: it has those of all.
fn alone(
    name: &str,
    args: &AllArgs,
    (device, named): (Device, &[Domain]),
    output: &OutputArgs,
) -> Option<Result<()>> {
    let (quick, output) = (args.quick, output.clone());
    let model = ModelArgs { seed: SEED, quick, output: output.clone() };
    Some(match name {
        "rates" => rates::main(&RatesArgs { only: Vec::new(), quick, output }),
        "gate" => gate::main(&GateArgs {
            domain: named.to_vec(),
            device: args.device,
            quick,
            output,
            calls_to: None,
        }),
        "pareto" => pareto::main(&model),
        "dynamic" => dynamic::main(&DynamicArgs {
            platform: Platform::Simulated,
            pattern: PATTERNS.map(str::to_owned).to_vec(),
            policy: POLICIES.map(str::to_owned).to_vec(),
            model,
        }),
        "soak" => soak::main(&soak::SoakArgs {
            hours: None,
            minutes: None,
            seconds: Some(if quick { SOAK_S.1 } else { SOAK_S.0 }),
            device: Some(device),
            seed: SEED,
            output,
        }),
        _ => return None,
    })
}

/// Why a benchmark cannot run here with any flags.
fn cannot(name: &str, device: Device) -> Option<&'static str> {
    let root = ix_sys::process::is_root();
    match name {
        "wakeup" if device == Device::Memif => {
            Some("its clients are on Linux, and memif connects IX to IX only")
        }
        "sharing" if device != Device::Afxdp => Some("only AF_XDP shares an interface with Linux"),
        "loss" | "fairness" if device != Device::Afxdp => {
            Some("IX and Linux must share an interface, which needs AF_XDP")
        }
        "soak" if device == Device::Memif => {
            Some("its clients are on Linux, and memif connects IX to IX only")
        }
        "http" if !installed("haproxy") => Some("apt-get install haproxy"),
        "rates" if !root => Some("sharing an interface needs root"),
        _ => None,
    }
}

fn choose(only: &[String]) -> Result<Vec<(&'static str, f64)>> {
    let names = || BENCHES.map(|(name, _)| name).join(", ");
    if let Some(unknown) = only.iter().find(|o| BENCHES.iter().all(|(name, _)| name != o)) {
        return Err(
            Problem::new("no such benchmark", unknown).mend(format!("choose from {}", names()))
        );
    }
    let wanted = |(name, _): &(&str, f64)| only.is_empty() || only.iter().any(|o| o == name);
    Ok(BENCHES.into_iter().filter(wanted).collect())
}

fn bench_args(args: &AllArgs) -> BenchArgs {
    BenchArgs {
        server: None,
        device: args.device,
        client: args.client,
        seconds: args.seconds,
        runs: args.runs,
        domain: args.domain.clone(),
        quick: args.quick,
        ..BenchArgs::default()
    }
}

/// The command that repeats one benchmark.
fn command(name: &str, args: &AllArgs) -> String {
    let mut command = format!("ix bench {name}");
    let mut flag = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            command.push_str(&format!(" --{name} {value}"));
        }
    };
    flag("device", args.device.map(|device| device.name().to_owned()));
    flag("client", args.client.map(|client| client.name().to_owned()));
    let domains = args.domain.iter().map(|domain| domain.name()).collect::<Vec<_>>();
    flag("domain", Some(domains.join(",")).filter(|domains| !domains.is_empty()));
    flag("seconds", args.seconds.map(|seconds| seconds.to_string()));
    flag("runs", args.runs.map(|runs| runs.to_string()));
    if args.quick {
        command.push_str(" --quick");
    }
    command
}

/// Elapsed time and, from the part that is done, the time left.
fn progress(elapsed: Duration, done: f64) -> String {
    let elapsed_s = elapsed.as_secs_f64();
    if done <= 0.0 {
        return format!("{elapsed_s:.0} s so far");
    }
    format!("{elapsed_s:.0} s so far, about {:.0} s left", elapsed_s / done - elapsed_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Client;

    fn args() -> AllArgs {
        AllArgs {
            quick: true,
            dir: "x".into(),
            only: vec![],
            device: Some(Device::Afxdp),
            client: Some(Client::Ix),
            seconds: None,
            runs: Some(2),
            domain: vec![Domain::None, Domain::Process],
        }
    }

    #[test]
    fn the_command_of_each_is_told() {
        let text =
            "ix bench short --device afxdp --client ix --domain none,process --runs 2 --quick";
        assert_eq!(command("short", &args()), text);
    }

    #[test]
    fn only_those_that_exist() {
        assert_eq!(choose(&[]).expect("all").len(), BENCHES.len());
        let chosen = choose(&["batch".into(), "echo".into()]).expect("two");
        assert!(chosen.iter().map(|(name, _)| *name).eq(["echo", "batch"]));
        let problem = choose(&["nothing".into()]).expect_err("unknown").to_string();
        assert!(problem.contains("nothing") && problem.contains("udp-echo"), "{problem}");
    }

    #[test]
    fn the_rest_is_estimated() {
        assert_eq!(progress(Duration::from_secs(3), 0.0), "3 s so far");
        assert_eq!(progress(Duration::from_secs(30), 0.25), "30 s so far, about 90 s left");
    }
}
