//! The benchmarks by their names on the command line.
use crate::args::{AllArgs, BenchArgs, DynamicArgs, GateArgs, ModelArgs, RatesArgs, ReportArgs};
use clap::Subcommand;

/// Help of `ix bench`.
pub const HELP: &str = "Runs one benchmark on IX and on Linux sockets, side by side in one run, on \
    links that it makes for itself and takes away. It prints a table; `× Linux` is IX's figure \
    divided by that of blocking Linux sockets at the same point.\n\n\
    Each row is the median of several runs. `--quick` gives a short look, `--json` prints the results \
    for programs, `--output FILE` writes them, and `ix bench report` makes a page of such files.\n\n\
    Examples:\n  \
    ix bench echo --quick\n  \
    ix bench echo --device tap --connections 1,64 --output echo.json\n  \
    ix bench all --quick && ix bench report";

const REPORT_HELP: &str = "Reads result files of benchmarks (--output) and writes one HTML page: first how \
    many times Linux IX is, then figures, tables, the machine, each command, and the papers' \
    results beside ours. --against sets a second folder of results beside them. The page needs \
    only a browser.\n\n\
    Examples:\n  \
    ix bench echo --quick --output echo.json && ix bench report echo.json\n  \
    ix bench report target/bench -o report.html\n  \
    ix bench report target/bench --against /tmp/bench-of-last-week";

/// The benchmarks.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Echo of messages of one size, by number of connections
    Echo(BenchArgs),
    /// One message back and forth on one connection, by message size (IX's bench_pingpong)
    Pingpong(BenchArgs),
    /// Short connections: few messages each, then a reset (IX's bench_short)
    Short(BenchArgs),
    /// One flow of bulk data in each direction
    Bulk(BenchArgs),
    /// Few messages in flight over more and more connections (IX's bench_connscaling)
    Connscaling(BenchArgs),
    /// Throughput against latency of key-value servers, for the ETC and USR workloads
    Memcached(BenchArgs),
    /// memcached over UDP, 90 % gets of 1,024 bytes (Arrakis' figure 4)
    MemcachedUdp(BenchArgs),
    /// A key-value server over UDP, step by step from sockets to the native interface (case study
    /// of Arrakis)
    KvSteps(BenchArgs),
    /// haproxy in front of web servers: requests per second of busy processor time
    Http(BenchArgs),
    /// The batch bound B at low and high load
    Batch(BenchArgs),
    /// Connections per second, by number of connections and by how they end
    Churn(BenchArgs),
    /// How soon a sleeping service receives a packet, and the cost of an idle service
    Wakeup(BenchArgs),
    /// What it costs that IX shares the address of Linux by port: IX, and Linux beside it
    Sharing(BenchArgs),
    /// Echo of datagrams, and the time in each part of the stack (Arrakis' table 1)
    UdpEcho(BenchArgs),
    /// Flow groups that move back and forth under full load (the papers' table of phases)
    Migration(BenchArgs),
    /// A controller that adds and parks a thread as the load rises and falls, with a background job
    #[command(long_about = crate::elastic::HELP)]
    Elastic(BenchArgs),
    /// Goodput over a slow path that loses, reorders and delays packets
    #[command(long_about = crate::path::LOSS_HELP)]
    Loss(BenchArgs),
    /// Sharing of a bottleneck by flows of IX and of Linux
    #[command(long_about = crate::path::FAIRNESS_HELP)]
    Fairness(BenchArgs),
    /// An honest client beside crowds of slow, half-open and closed peers; what they leave behind
    #[command(long_about = crate::hostile::HELP)]
    Hostile(BenchArgs),
    /// Rates and a shared interface: limits, pacing, weights, neighbours, handover
    #[command(long_about = crate::rates::HELP)]
    Rates(RatesArgs),
    /// All static configurations of the papers' server (a model), and the best of them
    Pareto(ModelArgs),
    /// Echo of somebody else's server beside IX and Linux: `ix bench peer -- COMMAND`
    #[command(long_about = crate::peer::HELP)]
    Peer(crate::peer::PeerArgs),
    /// Servers that know nothing of IX, on Linux and on IX: `ix bench program -- COMMAND`
    #[command(long_about = crate::program::HELP)]
    Program(crate::program::ProgramArgs),
    /// Cost of a crossing into the dataplane, a system call and a round trip between two processes;
    /// programs with and without the wall
    Gate(GateArgs),
    /// Features of AF_XDP one by one, with and without, on a veth pair
    #[command(long_about = crate::afxdp::HELP)]
    Afxdp(crate::afxdp::AfxdpArgs),
    /// The controller on the papers' server (a model): slope, step and sine+noise; energy and
    /// background job
    Dynamic(DynamicArgs),
    /// A service that runs for hours, with migrations, kills, link failures and restarts
    #[command(long_about = crate::soak::HELP)]
    Soak(crate::soak::SoakArgs),
    /// All benchmarks, one after another, with a results file each and one page for all
    All(AllArgs),
    /// The echo inside the driver, which udp-echo runs
    #[command(hide = true)]
    DeviceEcho(crate::driver::DriverArgs),
    /// One HTML page of results, with figures
    #[command(long_about = REPORT_HELP)]
    Report(ReportArgs),
}
