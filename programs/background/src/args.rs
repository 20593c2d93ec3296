//! The command line.
use clap::Parser;
use ix_programs::cpu::Cpus;
use std::str::FromStr;

/// The papers' background job: SHA-1 over an array in endless loops, and its throughput.
#[derive(Parser, Debug, Clone)]
#[command(
    version,
    after_help = "\
Examples:
  ix-background
  ix-background --threads 2 --cpus 0-1 --seconds 10 --json
  systemd-run --scope -p CPUWeight=1 ix-background --json"
)]
pub struct Args {
    /// Number of threads (default: one for each hardware thread that this process may use).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub threads: Option<u32>,
    /// Hardware threads to pin to, such as 0,2-3; threads take them in turn.
    #[arg(long, value_name = "LIST", value_parser = Cpus::from_str)]
    pub cpus: Option<Cpus>,
    /// Size of the array that all threads read, bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 40 << 20, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub bytes: u64,
    /// Exit after this many seconds (default: never).
    #[arg(long, value_name = "T", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// Report every T seconds.
    #[arg(long, value_name = "T", default_value_t = 1.0, value_parser = seconds)]
    pub interval: f64,
    /// Report as JSON, one object per line.
    #[arg(long)]
    pub json: bool,
}

fn seconds(text: &str) -> Result<f64, &'static str> {
    match text.parse() {
        Ok(seconds) if (0.001..=1e9).contains(&seconds) => Ok(seconds),
        _ => Err("not a number of seconds from 0.001 to 1000000000"),
    }
}
