//! `ix bench all`: every benchmark, one after another, each with its results in a file.
use super::{choose_device, installed, rates, run};
use crate::args::{AllArgs, BenchArgs, Device, RatesArgs, ReportArgs};
use ix_report::domain::Domain;
use ix_report::output::OutputArgs;
use ix_report::problem::{Problem, Result};
use std::time::{Duration, Instant};

/// The benchmarks in order, each with its share of the whole time.
const BENCHES: [(&str, f64); 15] = [
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
];

/// Runs all benchmarks. Those that fail are listed at the end; the results of the others stay.
pub fn main(args: &AllArgs) -> Result<()> {
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
        let file = args.dir.join(format!("{name}.json"));
        let outcome = match *name {
            "rates" => rates::main(&RatesArgs {
                only: Vec::new(),
                quick: args.quick,
                output: OutputArgs::to_file(file),
            }),
            _ => {
                run(name, &bench_args(args), device, command(name, args), None).and_then(|mut r| {
                    r.notes.extend(why.clone());
                    r.publish(&OutputArgs::to_file(file))
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

/// Why a benchmark cannot run here with any flags.
fn cannot(name: &str, device: Device) -> Option<&'static str> {
    let root = ix_sys::process::is_root();
    match name {
        "wakeup" if device == Device::Memif => {
            Some("its clients are on Linux, and memif connects IX to IX only")
        }
        "sharing" if device != Device::Afxdp => Some("only AF_XDP shares an interface with Linux"),
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
    flag("domain", Some(domains.join(",")));
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
