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
    /// The key-value server over UDP from sockets to the native interface, step by step (Arrakis'
    /// case study)
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
    /// What crossing into the dataplane costs, beside a system call and a round trip of two
    /// processes; and the programs with the wall and without it
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
