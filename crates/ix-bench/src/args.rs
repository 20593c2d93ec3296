//! The command line of `ix bench`.
use clap::{Args, Subcommand, ValueEnum};
use ix_cli::domain::Domain;
use std::path::PathBuf;

const REPORT_HELP: &str = "Reads what benchmarks wrote with --json and writes one HTML page: figures, \
    tables, the machine, each command, and the papers' results beside ours. The page needs nothing \
    but a browser.\n\n\
    Examples:\n  \
    ix bench echo --quick --json echo.json && ix bench report echo.json\n  \
    ix bench report target/bench -o report.html";

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
    /// Its name in results and device specifications.
    pub fn name(self) -> &'static str {
        match self {
            Device::Afxdp => "afxdp",
            Device::Tap => "tap",
            Device::Memif => "memif",
        }
    }
}

/// On what the load generator runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Client {
    /// Linux sockets
    Linux,
    /// IX
    Ix,
}

/// How a server on IX calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ServerKind {
    /// Written for IX: ix-kv
    Native,
    /// Unmodified, through sockets: Debian's memcached
    Posix,
}

impl Client {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Client::Linux => "linux",
            Client::Ix => "ix",
        }
    }
}

/// The benchmarks.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Echo of one message size over the number of connections
    Echo(BenchArgs),
    /// One message back and forth on one connection, over sizes (IX's bench_pingpong)
    Pingpong(BenchArgs),
    /// Connections that carry few messages and end by reset (IX's bench_short)
    Short(BenchArgs),
    /// One flow of bulk data in each direction
    Bulk(BenchArgs),
    /// Few messages under way on ever more connections (IX's bench_connscaling)
    Connscaling(BenchArgs),
    /// Throughput against latency of key-value servers, for the ETC and USR workloads
    Memcached(BenchArgs),
    /// memcached over UDP, 90 % gets of 1,024 bytes (Arrakis' figure 4)
    MemcachedUdp(BenchArgs),
    /// The key-value server over UDP from sockets to the native interface, step by step (Arrakis' case
    /// study)
    KvSteps(BenchArgs),
    /// haproxy in front of web servers: requests by second that its hardware thread is busy
    Http(BenchArgs),
    /// The batch bound B at low and at high load
    Batch(BenchArgs),
    /// Connections a second, by how many there are and how they end
    Churn(BenchArgs),
    /// How soon a service that sleeps has a packet, and what it costs while nobody asks
    Wakeup(BenchArgs),
    /// Echo of datagrams, and where the time of a packet goes (Arrakis' table 1)
    UdpEcho(BenchArgs),
    /// Flow groups moved back and forth under full load (the papers' table of phases)
    Migration(BenchArgs),
    /// A load that goes up and down, a controller that adds and parks a thread, a background job
    #[command(long_about = crate::elastic::HELP)]
    Elastic(BenchArgs),
    /// Goodput over a slow link that loses, reorders and delays packets
    #[command(long_about = crate::path::LOSS_HELP)]
    Loss(BenchArgs),
    /// How flows share a bottleneck: IX's with each other and with Linux's
    #[command(long_about = crate::path::FAIRNESS_HELP)]
    Fairness(BenchArgs),
    /// Rate specifiers and a shared interface: limits, pacing, weights, neighbours, handover
    #[command(long_about = crate::rates::HELP)]
    Rates(RatesArgs),
    /// All static configurations of the papers' server (a model), and the frontiers they make
    Pareto(ModelArgs),
    /// What crossing into the dataplane costs, beside a system call and a round trip of two processes;
    /// and the programs with the wall and without it
    Gate(GateArgs),
    /// The controller on the papers' server (a model): slope, step, sine+noise; energy, background
    Dynamic(DynamicArgs),
    /// A served port for hours, while migrations, kills, link flaps and restarts happen at once
    #[command(long_about = crate::soak::HELP)]
    Soak(crate::soak::SoakArgs),
    /// All of them, one after the other, each with its results in a file, and a page of them all
    All(AllArgs),
    /// The echo inside the driver, as udp-echo runs it
    #[command(hide = true)]
    DeviceEcho(crate::driver::DriverArgs),
    /// One HTML page of all results, with figures
    #[command(long_about = REPORT_HELP)]
    Report(ReportArgs),
}

/// Flags of benchmarks on the papers' server in virtual time.
#[derive(Args, Debug, Clone)]
pub struct ModelArgs {
    /// Seed of all that is random
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Nothing to shorten: virtual time is quick
    #[arg(long, hide = true)]
    pub quick: bool,
    /// Write the results to this file as well, as JSON (`-`: standard output)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// What `ix bench dynamic` drives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Platform {
    /// The papers' server in virtual time
    #[default]
    Simulated,
}

/// Flags of `ix bench dynamic`.
#[derive(Args, Debug, Clone)]
pub struct DynamicArgs {
    /// What is driven; on this machine: `ix bench elastic`
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
    /// Policies: names that `ix cp` knows, or files
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "energy,consolidation"
    )]
    pub policy: Vec<String>,
    /// What all benchmarks on the model have
    #[command(flatten)]
    pub model: ModelArgs,
}

/// Flags of `ix bench report`.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Files that benchmarks wrote with --json, or folders of them (default: target/bench)
    #[arg(value_name = "FILES")]
    pub files: Vec<PathBuf>,
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
    /// Folder for the results, one file a benchmark
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    pub dir: PathBuf,
    /// Only these benchmarks: `echo,short`
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Device under IX (default: afxdp as root, tap otherwise)
    #[arg(long, value_enum)]
    pub device: Option<Device>,
    /// Only this kind of load generator (default: linux, and ix where the device allows it)
    #[arg(long, value_enum)]
    pub client: Option<Client>,
    /// Length of one measurement
    #[arg(long, value_name = "T")]
    pub seconds: Option<f64>,
    /// Measurements of each point; medians are reported
    #[arg(long, value_name = "N")]
    pub runs: Option<usize>,
}

/// Flags that all benchmarks share.
#[derive(Args, Debug, Clone, Default)]
pub struct BenchArgs {
    /// Device under IX (default: afxdp as root, tap otherwise)
    #[arg(long, value_enum)]
    pub device: Option<Device>,
    /// Only this kind of load generator (default: linux, and ix where the device allows it)
    #[arg(long, value_enum)]
    pub client: Option<Client>,
    /// Only this kind of server on IX, beside those on Linux (memcached only; default: both)
    #[arg(long, value_enum)]
    pub server: Option<ServerKind>,
    /// Numbers of connections: `1,16,64`
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub connections: Vec<usize>,
    /// Message sizes in bytes (bulk: bytes to move)
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub size: Vec<u64>,
    /// Numbers of the server's cores, where they matter: `1,2`
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub cores: Vec<usize>,
    /// Numbers of server processes, each with a hardware thread and a vNIC of its own: `1,2` (memcached-udp
    /// and http on afxdp)
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = processes)]
    pub processes: Vec<usize>,
    /// Messages of a connection, where connections end: `1,64`
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub messages: Vec<u64>,
    /// Batch bounds, where they matter: `1,64`
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub batch: Vec<usize>,
    /// Length of one measurement
    #[arg(long, value_name = "T")]
    pub seconds: Option<f64>,
    /// Measurements of each point; medians are reported
    #[arg(long, value_name = "N")]
    pub runs: Option<usize>,
    /// What keeps the program out of the dataplane's memory
    #[arg(long, value_enum, default_value = "none")]
    pub domain: Domain,
    /// Fewer points and short runs
    #[arg(long)]
    pub quick: bool,
    /// Write the results to this file as well, as JSON (`-`: standard output)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// As many as a shared interface has ports for, and somebody would want.
fn processes(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| (1..=16).contains(n));
    number.ok_or_else(|| "not a number of processes from 1 to 16".to_owned())
}

/// Flags of `ix bench rates`.
#[derive(Args, Debug, Clone)]
pub struct RatesArgs {
    /// Only these parts: limits, gaps, neighbour, weights, handover
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Short runs
    #[arg(long)]
    pub quick: bool,
    /// Write the results to this file as well, as JSON (`-`: standard output)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Flags of `ix bench gate`.
#[derive(Args, Debug, Clone)]
pub struct GateArgs {
    /// Device under the programs that are compared (default: memif)
    #[arg(long, value_enum)]
    pub device: Option<Device>,
    /// Short runs
    #[arg(long)]
    pub quick: bool,
    /// Write the results to this file as well, as JSON (`-`: standard output)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Only times calls of sockets against this `ix-echo`: what runs under `ix run`
    #[arg(long, value_name = "ADDR", hide = true)]
    pub calls_to: Option<std::net::SocketAddr>,
}
