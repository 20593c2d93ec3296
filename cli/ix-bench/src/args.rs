//! Flags of `ix bench`.
use clap::{Args, ValueEnum};
use ix_proto::device::DeviceKind;
use ix_report::domain::Domain;
use ix_report::output::OutputArgs;
use std::path::PathBuf;

/// Kinds of device that a benchmark can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// AF_XDP sockets on a virtual Ethernet link (needs root)
    Afxdp,
    /// A TAP device (works in a user namespace)
    Tap,
    /// Shared memory between two processes
    Memif,
}

impl Device {
    /// Name in results and device specifications.
    pub fn name(self) -> &'static str {
        match self {
            Device::Afxdp => DeviceKind::Afxdp.name(),
            Device::Tap => DeviceKind::Tap.name(),
            Device::Memif => DeviceKind::Memif.name(),
        }
    }
}

/// Where the load generator runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Client {
    /// Linux sockets
    Linux,
    /// IX
    Ix,
}

/// Kind of server on IX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ServerKind {
    /// ix-kv, written for IX
    Native,
    /// Debian's memcached, unmodified, through sockets
    Posix,
}

impl Client {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Client::Linux => "linux",
            Client::Ix => "ix",
        }
    }
}

/// Flags of benchmarks on the papers' server in virtual time.
#[derive(Args, Debug, Clone)]
pub struct ModelArgs {
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// No effect here: virtual time is already fast
    #[arg(long, hide = true)]
    pub quick: bool,
    /// Where the results go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// What the controller of `ix bench dynamic` drives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Platform {
    /// The papers' server in virtual time
    #[default]
    Simulated,
}

/// Flags of `ix bench dynamic`.
#[derive(Args, Debug, Clone)]
pub struct DynamicArgs {
    /// What the controller drives; for this machine use `ix bench elastic`
    #[arg(long, value_enum, default_value = "simulated")]
    pub platform: Platform,
    /// Load patterns: slope, step, sine+noise
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "slope,step,sine+noise"
    )]
    pub pattern: Vec<String>,
    /// Policies: built-in names of `ix cp`, or files
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "energy,consolidation"
    )]
    pub policy: Vec<String>,
    /// Flags of all benchmarks on the model
    #[command(flatten)]
    pub model: ModelArgs,
}

/// Flags of `ix bench report`.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Files written by benchmarks with --output, or folders of them (default: target/bench)
    #[arg(value_name = "FILES")]
    pub files: Vec<PathBuf>,
    /// Set these results beside those: what has changed since then, point by point
    #[arg(long, value_name = "FOLDER")]
    pub against: Option<PathBuf>,
    /// Write the page to this file
    #[arg(short = 'o', long, value_name = "FILE", default_value = "report.html")]
    pub output: PathBuf,
}

/// Flags of `ix bench all`.
#[derive(Args, Debug, Clone)]
pub struct AllArgs {
    /// Fewer points and short runs
    #[arg(long)]
    pub quick: bool,
    /// Folder for the results, one file for each benchmark
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    pub dir: PathBuf,
    /// Only these benchmarks: `echo,short`
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Device under IX (default: afxdp as root, tap otherwise)
    #[arg(long, value_enum)]
    pub device: Option<Device>,
    /// Only this kind of load generator (default: linux; also ix if the device allows it)
    #[arg(long, value_enum)]
    pub client: Option<Client>,
    /// Duration of one measurement
    #[arg(long, value_name = "T")]
    pub seconds: Option<f64>,
    /// Measurements of each point; the medians are reported
    #[arg(long, value_name = "N")]
    pub runs: Option<usize>,
    /// What keeps the program out of the dataplane's memory, side by side (default: each domain
    /// that this machine has)
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub domain: Vec<Domain>,
}

/// Flags that all benchmarks share.
#[derive(Args, Debug, Clone, Default)]
pub struct BenchArgs {
    /// Device under IX (default: afxdp as root, tap otherwise)
    #[arg(long, value_enum)]
    pub device: Option<Device>,
    /// Only this kind of load generator (default: linux; also ix if the device allows it)
    #[arg(long, value_enum)]
    pub client: Option<Client>,
    /// Only this kind of server on IX (memcached only; default: both). Servers on Linux are always
    /// measured
    #[arg(long, value_enum)]
    pub server: Option<ServerKind>,
    /// Numbers of connections: `1,16,64`
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub connections: Vec<usize>,
    /// Message sizes, bytes (for bulk: bytes to transfer)
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub size: Vec<u64>,
    /// Numbers of cores of the server, for benchmarks that use them: `1,2`
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub cores: Vec<usize>,
    /// Numbers of server processes, each with its own hardware thread and vNIC: `1,2`
    /// (memcached-udp and http on afxdp)
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = processes)]
    pub processes: Vec<usize>,
    /// Messages per connection, for benchmarks whose connections end: `1,64`
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub messages: Vec<u64>,
    /// Batch bounds, for benchmarks that use them: `1,64`
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub batch: Vec<usize>,
    /// Largest IP packets of the link, bytes, for bulk: `1500,9000`
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = mtu)]
    pub mtu: Vec<u32>,
    /// Only points whose names contain one of these, or that have this name, for benchmarks whose
    /// points have names (loss): `80ms,replies`
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Duration of one measurement
    #[arg(long, value_name = "T")]
    pub seconds: Option<f64>,
    /// Measurements of each point; the medians are reported
    #[arg(long, value_name = "N")]
    pub runs: Option<usize>,
    /// What keeps the program out of the dataplane's memory; several are measured side by side:
    /// `none,process`
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',', default_value = "none")]
    pub domain: Vec<Domain>,
    /// Over IPv6, Linux as well (echo, pingpong, short, bulk, connscaling, batch, churn)
    #[arg(short = '6', long)]
    pub ipv6: bool,
    /// Fewer points and short runs
    #[arg(long)]
    pub quick: bool,
    /// Where the results go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Parses a number of processes, at most as many as a shared interface has ports for.
fn processes(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| (1..=16).contains(n));
    number.ok_or_else(|| "not a number of processes from 1 to 16".to_owned())
}

/// Parses an MTU that every device takes.
fn mtu(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|n| (1280..=9216).contains(n));
    number.ok_or_else(|| "not a number of bytes from 1280 to 9216".to_owned())
}

/// Flags of `ix bench rates`.
#[derive(Args, Debug, Clone)]
pub struct RatesArgs {
    /// Only these parts: limits, gaps, neighbour, weights, handover, tenants
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Short runs
    #[arg(long)]
    pub quick: bool,
    /// Where the results go
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of `ix bench gate`.
#[derive(Args, Debug, Clone)]
pub struct GateArgs {
    /// Only these domains (default: those that this machine has)
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub domain: Vec<Domain>,
    /// Device of the programs that are compared (default: memif)
    #[arg(long, value_enum)]
    pub device: Option<Device>,
    /// Short runs
    #[arg(long)]
    pub quick: bool,
    /// Where the results go
    #[command(flatten)]
    pub output: OutputArgs,
    /// Only time socket calls against this `ix-echo` (the part that runs under `ix run`)
    #[arg(long, value_name = "ADDR", hide = true)]
    pub calls_to: Option<std::net::SocketAddr>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benchmarks_know_every_kind_of_device() {
        for kind in DeviceKind::ALL {
            let device = Device::from_str(kind.name(), false);
            assert_eq!(device.map(Device::name), Ok(kind.name()));
        }
        assert_eq!(Device::value_variants().len(), DeviceKind::ALL.len());
    }
}
