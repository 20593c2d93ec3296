//! The benchmarks by their names on the command line.
use crate::args::{AllArgs, BenchArgs, DynamicArgs, GateArgs, ModelArgs, RatesArgs, ReportArgs};
use clap::Subcommand;

const REPORT_HELP: &str = "Reads what benchmarks wrote with --json and writes one HTML page: figures, \
    tables, the machine, each command, and the papers' results beside ours. The page needs nothing \
    but a browser.\n\n\
    Examples:\n  \
    ix bench echo --quick --json echo.json && ix bench report echo.json\n  \
    ix bench report target/bench -o report.html";

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
    /// A key-value server over UDP, step by step from sockets to the native interface (Arrakis'
    /// case study)
    KvSteps(BenchArgs),
    /// haproxy in front of web servers: requests per second of busy processor time
    Http(BenchArgs),
    /// The batch bound B at low and at high load
    Batch(BenchArgs),
    /// Connections per second, by number of connections and by the way they end
    Churn(BenchArgs),
    /// How soon a sleeping service receives a packet, and what an idle service costs
    Wakeup(BenchArgs),
    /// Echo of datagrams, and where the time of each packet goes (Arrakis' table 1)
    UdpEcho(BenchArgs),
    /// Flow groups moved back and forth under full load (the papers' table of phases)
    Migration(BenchArgs),
    /// A load that rises and falls, a controller that adds and parks a thread, a background job
    #[command(long_about = crate::elastic::HELP)]
    Elastic(BenchArgs),
    /// Goodput over a slow link that loses, reorders and delays packets
    #[command(long_about = crate::path::LOSS_HELP)]
    Loss(BenchArgs),
    /// How flows share a bottleneck: IX's flows with each other and with Linux's
    #[command(long_about = crate::path::FAIRNESS_HELP)]
    Fairness(BenchArgs),
    /// Rate specifiers and a shared interface: limits, pacing, weights, neighbours, handover
    #[command(long_about = crate::rates::HELP)]
    Rates(RatesArgs),
    /// All static configurations of the papers' server (a model), and the best ones
    Pareto(ModelArgs),
    /// What a crossing into the dataplane costs, compared with a system call and with a round trip
    /// between two processes; programs with and without the wall
    Gate(GateArgs),
    /// The controller on the papers' server (a model): slope, step, sine+noise; energy, background
    Dynamic(DynamicArgs),
    /// A service for hours, while migrations, kills, link flaps and restarts happen
    #[command(long_about = crate::soak::HELP)]
    Soak(crate::soak::SoakArgs),
    /// All benchmarks, one after another: a file of results each, and one page of all
    All(AllArgs),
    /// The echo inside the driver, as udp-echo runs it
    #[command(hide = true)]
    DeviceEcho(crate::driver::DriverArgs),
    /// One HTML page of the results, with figures
    #[command(long_about = REPORT_HELP)]
    Report(ReportArgs),
}
