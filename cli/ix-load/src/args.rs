//! The command line.
use crate::Dataplane;
use clap::{Args, Parser, ValueEnum};
use ix_workload::arrivals::Arrival;
use ix_workload::law::Law;
use ix_workload::pattern::Rate;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

const EXAMPLES: &str = "Examples:\n  \
    ix load 10.0.0.1:7 --connections 64 --size 64\n      \
    closed loop: each connection sends the next message when the echo is back\n  \
    ix load 10.0.0.1:11211 --protocol memcached --workload usr --records 1000000 \\\n      \
    --connections 256 --depth 4 --rate 500000 --measure-connections 32\n      \
    open loop at 500,000 requests per second; a separate client with 32 connections measures\n      \
    latency as well\n  \
    ix load 10.0.0.1:11211 --protocol memcached-binary --workload etc \\\n      \
    --pattern triangle:10000:6500000:240:0 --stop-latency 50:750 --seconds 120\n      \
    the papers' search: stop when the median exceeds 750 µs\n  \
    ix load 10.0.0.1:7 --nic afxdp:eth1 --addr 10.0.0.9/24 --cpus 3\n      \
    load from a dataplane of its own\n  \
    ix load 10.0.0.1:80 --protocol http --path /page.txt --back-ends /srv/www@8001,8002 \\\n      \
    --nic memif:/run/proxy --addr 10.0.0.9/24\n      \
    load on a proxy, and the web servers behind it\n  \
    ix load agent --listen 0.0.0.0:7777      (on each client machine)\n  \
    ix load 10.0.0.1:11211 --agents c1:7777,c2:7777 --rate 3000000 ...\n      \
    the agents generate the load; this machine only measures\n\n\
    TARGET: HOST:PORT, several separated by commas. A bare port or range of ports belongs to the \
    host before it: `10.0.0.1:7000-7007,10.0.0.2:7000`. An IPv6 address has brackets: \
    `[2001:db8::1]:7`. Connections are spread over all targets.\n\n\
    DIST: N, uniform:a:b, normal:m:s, exponential:l, pareto:loc:scale:shape, \
    gev:loc:scale:shape, lognormal:m:s, bimodal:p:a:b, fb_key, fb_value, file:PATH.\n\n\
    Exit status: 0 on success; 1 if the load could not run, 2 for a wrong command line, 3 if \
    too many gets missed, 4 if there were errors or an agent was lost.";

/// Protocol of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ProtocolName {
    /// The server returns the same bytes
    Echo,
    /// memcached's text protocol
    Memcached,
    /// memcached's binary protocol
    MemcachedBinary,
    /// HTTP/1.1 GET of one page
    Http,
}

/// Workloads of Atikoglu et al.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum WorkloadName {
    /// Keys fb_key, values fb_value, 3.3 % updates, gaps fb_ia
    Etc,
    /// Keys of 19 bytes, values of 2, 0.2 % updates
    Usr,
}

/// How requests are spread over records.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PopularityName {
    /// Evenly.
    Uniform,
    /// By Zipf's law with this exponent.
    Zipf(f64),
}

/// Pages, and the ports that they are served at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackEndsAt {
    /// The pages.
    pub folder: PathBuf,
    /// At least one.
    pub ports: Vec<u16>,
}

impl core::str::FromStr for BackEndsAt {
    type Err = String;

    fn from_str(text: &str) -> Result<BackEndsAt, String> {
        let (folder, ports) = text.rsplit_once('@').ok_or("write FOLDER@PORT[,PORT...]")?;
        let ports = ports.split(',').map(|port| match port.parse() {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(format!("`{port}` is not a port")),
        });
        Ok(BackEndsAt { folder: folder.into(), ports: ports.collect::<Result<_, _>>()? })
    }
}

/// Flags of `ix load`.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "ix load",
    about = "Puts load on a server and measures its latency",
    long_about = "Puts load on a server and measures rate and latency, from Linux sockets or from \
        a dataplane of its own (--nic).\n\n\
        With --rate or --pattern the loop is open: requests are due at times drawn in advance, and \
        latency counts from the time a request was due, even if it was sent later. Otherwise the \
        loop is closed: a connection sends its next request after a reply. A closed loop hides how \
        long clients would wait for a slow server, so use --rate to measure latency.",
    after_long_help = EXAMPLES,
    args_override_self = true
)]
pub struct LoadArgs {
    /// Server: HOST:PORT, or several
    #[arg(value_name = "TARGET")]
    pub target: String,
    /// Protocol
    #[arg(long, value_enum, default_value = "echo")]
    pub protocol: ProtocolName,
    /// Use UDP instead of TCP
    #[arg(long)]
    pub udp: bool,
    /// Use only IPv6 addresses of the hosts
    #[arg(short = '6', long)]
    pub ipv6: bool,

    /// Where it runs.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Number of threads (default: 1; on a dataplane, one for each elastic thread)
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
    /// Local addresses to connect from; each has at least 28,000 ports
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub source: Vec<IpAddr>,

    /// Number of connections, all threads together
    #[arg(short = 'c', long, value_name = "N", default_value_t = 16)]
    pub connections: u32,
    /// Most requests in flight on each connection
    #[arg(long, value_name = "D", default_value_t = 1)]
    pub depth: u32,
    /// Requests per second, all connections together (open loop)
    #[arg(long, value_name = "QPS")]
    pub rate: Option<f64>,
    /// Distribution of the gaps between requests (default: poisson; fb with --workload etc)
    #[arg(long, value_enum)]
    pub arrival: Option<Arrival>,
    /// Rate that changes: triangle:MIN:MAX:PERIOD:HOLD, qtriangle:MIN:MAX:PERIOD:STEP,
    /// sin_noise:MIN:MAX:PERIOD:NOISE:REDRAW (seconds)
    #[arg(long, value_name = "PATTERN", conflicts_with = "rate")]
    pub pattern: Option<Rate>,
    /// Stop when the P-th percentile of latency within a second exceeds US µs: `99:500`
    #[arg(long, value_name = "P:US", value_parser = stop_latency)]
    pub stop_latency: Option<(f64, f64)>,

    /// Size of an echo message, bytes
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    pub size: u32,
    /// Requests after which a connection is reset and opened again
    #[arg(long, value_name = "M")]
    pub messages_per_connection: Option<u64>,
    /// Path of the page
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub path: String,

    /// Also serve the pages of this folder, as the web servers behind a proxy under test (with
    /// --nic)
    #[arg(long, value_name = "FOLDER@PORTS", value_parser = str::parse::<BackEndsAt>)]
    pub back_ends: Option<BackEndsAt>,

    /// Keys, values, updates and gaps of a published workload
    #[arg(long, value_enum)]
    pub workload: Option<WorkloadName>,
    /// Size of a key, bytes (default: 30)
    #[arg(long, value_name = "DIST")]
    pub key_size: Option<Law>,
    /// Size of a value, bytes (default: 200)
    #[arg(long, value_name = "DIST")]
    pub value_size: Option<Law>,
    /// Share of requests that store a value, 0 to 1 (default: 0)
    #[arg(long, value_name = "F")]
    pub update: Option<f64>,
    /// Number of records
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub records: u32,
    /// Popularity of records: uniform or zipf:S
    #[arg(long, value_name = "LAW", default_value = "uniform", value_parser = popularity)]
    pub popularity: PopularityName,
    /// Do not store the records first
    #[arg(long)]
    pub no_preload: bool,
    /// Store the records and end
    #[arg(long, conflicts_with = "no_preload")]
    pub preload_only: bool,
    /// Allow more than 2 % of the gets to miss
    #[arg(long)]
    pub allow_misses: bool,
    /// Do not compare replies with what was stored
    #[arg(long)]
    pub no_verify: bool,

    /// Duration of the measurement, s
    #[arg(long, value_name = "T", default_value_t = 5.0)]
    pub seconds: f64,
    /// Duration of the load before the measurement, s (default: a tenth of it, at most 1)
    #[arg(long, value_name = "T")]
    pub warmup: Option<f64>,
    /// Time after which a missing reply is an error, s (default: 5; 1 with --udp)
    #[arg(long, value_name = "T")]
    pub timeout: Option<f64>,

    /// Connections of a separate client that makes little load and whose latency is reported
    /// separately (default: 0; 32 with --agents, as in the papers)
    #[arg(long, value_name = "N")]
    pub measure_connections: Option<u32>,
    /// Requests per second of that client
    #[arg(long, value_name = "QPS", default_value_t = 2000.0)]
    pub measure_rate: f64,
    /// Most requests in flight on each connection of that client
    #[arg(long, value_name = "D", default_value_t = 1)]
    pub measure_depth: u32,

    /// Machines that generate the load: HOST:PORT of each `ix load agent`, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub agents: Vec<String>,

    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print the result as JSON on standard output. `--json FILE` is the same as `--output FILE`
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Also write the result to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print no progress
    #[arg(short, long)]
    pub quiet: bool,
    /// Name of the server in the result, such as `ix` or `linux`
    #[arg(long, value_name = "NAME", default_value = "server")]
    pub system: String,

    /// The arguments as given, for agents to parse them again.
    #[arg(skip)]
    pub command_line: Vec<String>,
}

/// Flags for where a load or an agent runs.
#[derive(Args, Clone, Debug)]
pub struct PlaceArgs {
    /// Run on a dataplane with this device: `afxdp:IFNAME`, `tap:NAME` or `memif:PATH`
    #[arg(long, value_name = "SPEC", requires = "addr")]
    pub nic: Option<String>,
    /// Address of the dataplane: `10.0.0.9/24`
    #[arg(long, value_name = "CIDR", requires = "nic")]
    pub addr: Option<String>,
    /// Gateway of the dataplane
    #[arg(long, value_name = "IP", requires = "nic")]
    pub gateway: Option<String>,
    /// Batch bound of the dataplane: most packets in one cycle
    #[arg(long, value_name = "B", requires = "nic")]
    pub batch: Option<usize>,
    /// Hardware threads: `2,4-7`
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// Poll all the time, never sleep
    #[arg(long)]
    pub spin: bool,
    /// On Linux sockets: sleep until a request is due, instead of polling during the last
    /// millisecond; for a load that shares its processor. Late timers then count as latency
    #[arg(long, conflicts_with_all = ["spin", "nic"])]
    pub sleep: bool,
}

impl PlaceArgs {
    /// Returns the dataplane that the flags ask for, with the arguments to run there.
    pub fn dataplane(&self, arguments: Vec<OsString>) -> Option<Dataplane> {
        Some(Dataplane {
            nic: self.nic.clone()?,
            addr: self.addr.clone()?,
            gateway: self.gateway.clone(),
            cpus: self.cpus.clone(),
            batch: self.batch,
            arguments,
        })
    }
}

/// Flags of `ix load agent`.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "ix load agent",
    about = "Makes load when a master asks for it",
    long_about = "Waits for `ix load … --agents` on another machine (the master), makes the load \
        that the master asks for, and reports to it each second. Everyone who can connect can make \
        the agent send: listen on a private network only."
)]
pub struct AgentArgs {
    /// Address to listen on for masters
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: SocketAddr,
    /// Where it runs.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Number of threads (default: the master's number; on a dataplane, one for each elastic
    /// thread)
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
    /// Exit after one run
    #[arg(long)]
    pub once: bool,
}

fn stop_latency(text: &str) -> Result<(f64, f64), String> {
    let numbers =
        text.split_once(':').and_then(|(p, us)| Some((p.parse().ok()?, us.parse().ok()?)));
    match numbers {
        Some((p, us)) if (0.0..=100.0).contains(&p) && us > 0.0 => Ok((p, us)),
        _ => Err("not PERCENTILE:MICROSECONDS, such as 99:500".to_string()),
    }
}

fn popularity(text: &str) -> Result<PopularityName, String> {
    if text == "uniform" {
        return Ok(PopularityName::Uniform);
    }
    let exponent = text.strip_prefix("zipf:").and_then(|s| s.parse().ok());
    match exponent {
        Some(s) if (0.0..=20.0).contains(&s) => Ok(PopularityName::Zipf(s)),
        _ => Err("not uniform, nor zipf:S with S from 0 to 20".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_ends_have_a_folder_and_ports() {
        let at = "/srv/a@b@8001,8002".parse();
        assert_eq!(at, Ok(BackEndsAt { folder: "/srv/a@b".into(), ports: vec![8001, 8002] }));
        for wrong in ["/srv", "/srv@", "/srv@0", "/srv@80,", "/srv@65536", "/srv@web"] {
            assert!(wrong.parse::<BackEndsAt>().is_err(), "{wrong}");
        }
    }
}
