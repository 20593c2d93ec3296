//! The command line of `ix ctl` and `ix top`.
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use ix_broker::control::find;
use ix_dataplane::GroupSet;
use ix_proto::control::{INTERVAL_MAX_MS, PeerFilter, Query, Sort, StateFilter, VnicDevice};
use ix_report::output::JsonArgs;
use ix_vnic::Filter;
use std::path::PathBuf;
use std::str::FromStr;

/// Help of `ix ctl`.
pub const CTL_HELP: &str = "Prints the state of a running dataplane, or changes it. With several on this \
    machine, name one with --pid, the process ID of its program or of its `ix run`.\n\n\
    Each dataplane has two control sockets in /run/ix (root's dataplanes), $XDG_RUNTIME_DIR/ix or \
    /tmp/ix-UID: `PID.sock` for operators, and the read-only `PID.ro.sock`. File permissions say \
    who may open which; [control] in the configuration file of `ix run` sets them.\n\n\
    Examples:\n  \
    ix ctl status\n  \
    ix ctl threads --json | jq '.threads[].window.idle[0]'\n  \
    ix ctl migrate 0-31 --to 1\n  \
    ix ctl park 1 && ix ctl resume 1\n  \
    echo status | socat - UNIX:/run/ix/4711.sock";

const STATUS_HELP: &str = "Prints the state of a dataplane in a few lines: threads and their states, \
    rate, queueing delay, the estimate of its tail, flows, drops.\n\n\
    Examples:\n  \
    ix ctl status\n  \
    ix ctl status --pid 4711 --json";

const THREADS_HELP: &str = "\
    Prints a line for each elastic thread: its state, its hardware thread, its flow groups \
    and flows, and the averages of the last windows of 10 ms: packets received per \
    second, queue depth Q, packets per cycle, iteration time τ, queueing delay, the estimate \
    of its tail ⌈Q/B⌉·τ, and the share of idle time.\n\n\
    States: active (runs the cycle), parking (its flow groups are leaving), parked (sleeps; \
    Linux uses its hardware thread), background (an ordinary Linux thread now), non-responsive (its \
    application has not returned for 10 ms).\n\n\
    Examples:\n  \
    ix ctl threads\n  \
    watch -n 1 ix ctl threads";

const FLOW_GROUPS_HELP: &str = "Prints which elastic thread owns which flow groups, and which \
    groups carry the load. A flow belongs to the group that its addresses and ports hash to.\n\n\
    Examples:\n  \
    ix ctl flow-groups\n  \
    ix ctl flow-groups --all --interval 5";

const CONNECTIONS_HELP: &str = "\
    Prints a line for each TCP connection: peer, local port, state, elastic thread and flow \
    group, congestion window and slow-start threshold, round-trip time with its variation, \
    retransmission timeout, both windows, payload in and out, retransmitted segments, \
    waiting bytes (sent and not acknowledged; received and not returned by the application), \
    age and idle time. The dataplane reports a few connections after each cycle. --sort gives \
    the order.\n\n\
    Examples:\n  \
    ix ctl connections\n  \
    ix ctl connections --sort rate --limit 20\n  \
    ix ctl connections --peer 10.1.0.0/16 --state established --json\n  \
    ix ctl connections --thread 1 --flow-group 0-31 --sort retransmits";

const MIGRATE_HELP: &str = "Moves flow groups, with all their flows, to another elastic thread; no \
    packet is lost or reordered. GROUPS are numbers and ranges.\n\n\
    Examples:\n  \
    ix ctl migrate 0-31 --to 1\n  \
    ix ctl migrate 5,7,64-127 --to 0";

const PARK_HELP: &str = "\
    Tells the thread's application, moves the thread's flow groups to the active threads, and \
    lets the thread sleep: Linux then uses its hardware thread. The last active thread cannot be parked.\n\n\
    Examples:\n  \
    ix ctl park 1\n  \
    ix ctl park 1 && ix ctl threads";

const RESUME_HELP: &str = "Wakes a parked thread and moves its share of the flow groups to it.\n\n\
    Examples:\n  \
    ix ctl resume 1";

const DRAIN_HELP: &str = "\
    Moves all flow groups of a thread to the other active threads. The thread still \
    runs its cycle, without work; `ix ctl park` gives its hardware thread to Linux.\n\n\
    Examples:\n  \
    ix ctl drain 1 && ix ctl flow-groups";

const POLICY_HELP: &str = "\
    Prints which controller controls the dataplane's threads and clocks, its policy, and its \
    last decision. With --set it gives the controller another policy: one of energy, \
    consolidation, minmax, or a TOML file. A controller reads its own file again when the \
    file changes.\n\n\
    Examples:\n  \
    ix ctl policy\n  \
    ix ctl policy --set consolidation\n  \
    ix cp --print-policy energy > my.toml; ix ctl policy --set ./my.toml";

const SLO_HELP: &str = "\
    Prints the bound on the queueing delay that the controller keeps for this dataplane, or \
    sets another, in µs.\n\n\
    Examples:\n  \
    ix ctl slo\n  \
    ix ctl slo --set 200";

const VNIC_HELP: &str = "\
    Prints what a dataplane may send and receive: its filters with their holders, its rates, \
    the filters and rates of single queues, and how many packets each has dropped or delayed. \
    Also prints how many requests were refused, by reason (no-capability: the capability was \
    forged, revoked or for something else). A direction without filters passes everything.\n\n\
    Examples:\n  \
    ix ctl vnic\n  \
    ix ctl vnic --json | jq .drops";

const FILTER_HELP: &str = "\
    Grants, derives and revokes filters while traffic runs. A filter is a part of the space \
    of packet headers: `rx` or `tx`; `eth`, `ip`, `tcp` or `udp`, of IPv6 `ip6`, `tcp6` or `udp6`; \
    then any of `service ADDRESSES[:PORTS]` (the local end), `peer ADDRESSES[:PORTS]` (the remote \
    end), `service-mac`, `peer-mac`, `vlan`, `type` (eth), `proto` (ip, ip6), with lists, ranges, \
    networks and `*`. IPv6 addresses before ports stand in brackets (`tcp service \
    [2001:db8::5]:80`); with them `ip`, `tcp` and `udp` are of IPv6. A direction with filters passes \
    only packets that a filter takes, and ARP and Neighbour Discovery for the filters' addresses. \
    Other packets are dropped and counted by reason (`ix ctl vnic`). ICMP needs a filter of its own \
    (`ip … proto 1`, `ip6 … proto 58`).\n\n\
    Each elastic thread has a queue pair. A filter that is assigned to a queue (--queue N) \
    belongs to that queue alone: packets that other queues send by it are dropped \
    (tx_foreign_queue), and frames that programs receive below TCP and UDP (`rx eth type …`, \
    `rx ip proto …`) go to that queue if the filter takes them. The flow group of a connection \
    decides its queue, so receive filters that take TCP, UDP, ICMP or ARP cannot be assigned to \
    a queue.\n\n\
    Each filter comes with a capability of 32 digits. A process that knows it can derive \
    narrower filters, assign the filter to a queue, and revoke it, also through the \
    read-only socket. Filters for Linux's own addresses, and for what another holder has, are \
    refused.\n\n\
    Examples:\n  \
    ix ctl filter create 'rx tcp service 10.0.0.5:80' --both\n  \
    ix ctl filter create 'tx ip service 10.0.0.5 peer 10.0.0.0/8' --holder web\n  \
    ix ctl filter derive 4fd2… 'rx tcp service 10.0.0.5:80 peer 10.1.0.0/16'\n  \
    ix ctl filter create 'rx eth type 0x88b5' --queue 1\n  \
    ix ctl filter assign 4fd2… --queue 0; ix ctl filter assign 4fd2… --queue none\n  \
    ix ctl filter revoke 4fd2…\n  \
    ix ctl filter remove 3; ix ctl filter remove --all";

const RATE_HELP: &str = "\
    Prints or changes how much a dataplane may send and receive. A rate is bits per second, \
    packets per second, or both, with a burst in bytes: `100Mbit`, `20kpps`, \
    `1Gbit,50kpps,burst=64k`. Sent packets are paced evenly, and at most 512 \
    wait. Received packets beyond the rate are dropped. Each elastic thread gets an equal part \
    of the rate. --queue sets the rates of one elastic thread's queue; if its part of the \
    dataplane's rate is lower, that applies. Bytes count from the Ethernet header on. --flow \
    paces each TCP and UDP flow separately, in steps of 16 µs.\n\n\
    On a shared interface (`ix share`) the kernel enforces the rates of a vNIC (--vnic): \
    packets beyond them are dropped and counted. A full interface is divided by weight.\n\n\
    Examples:\n  \
    ix ctl rate\n  \
    ix ctl rate --tx 100Mbit --rx 20kpps\n  \
    ix ctl rate --flow 10Mbit\n  \
    ix ctl rate --queue 0 --tx 20Mbit\n  \
    ix ctl rate --tx none; ix ctl rate --queue 0 --tx none\n  \
    ix ctl rate --vnic web --tx 1Gbit --weight 3 --control /run/ix/eth1.share";

const STATS_HELP: &str = "\
    Prints for each elastic thread: the share of time in each stage of the cycle, and its time \
    per packet in ticks of the time stamp counter; how many packets the cycles received; what \
    the hardware thread executed, if hardware counters are available; and drops.\n\n\
    Examples:\n  \
    ix ctl stats\n  \
    ix ctl stats --interval 1\n  \
    ix ctl stats --json | jq '.threads[0].cost'";

const METRICS_HELP: &str = "Prints all metrics in Prometheus' text format. To let a server scrape \
    them, and those of all dataplanes, run `ix exporter` instead.\n\n\
    Examples:\n  \
    ix ctl metrics\n  \
    ix ctl metrics > /var/lib/node_exporter/textfile/ix.prom";

const DUMP_HELP: &str = "\
    Writes one file, a tar archive, for a report of a fault: status, counters, connections, filters, the \
    command line and the configuration file of `ix run`, its last messages, and what `ix doctor` \
    says. It has addresses and ports of peers. It has no payload, no arguments of the program and no secrets of \
    devices, unless --all asks for them. --capture adds packets: their headers, with --all whole ones. It never \
    has the program's environment, nor keys of the dataplane. Only its owner may read it.\n\n\
    What cannot be had, such as with the read-only socket alone, has its reason in its place.\n\n\
    Examples:\n  \
    ix ctl dump\n  \
    ix ctl dump --capture 5 --output fault.tar && tar tf fault.tar";

/// Requests to a running dataplane.
#[derive(Subcommand, Debug)]
pub enum CtlCommand {
    /// Print the state of a dataplane
    #[command(long_about = STATUS_HELP)]
    Status(LookArgs),
    /// List the elastic threads: states, flow groups, load, delays
    #[command(long_about = THREADS_HELP)]
    Threads(LookArgs),
    /// List flow groups: their owners, and which carry the load
    #[command(long_about = FLOW_GROUPS_HELP)]
    FlowGroups(FlowGroupsArgs),
    /// List TCP connections with their TCP state
    #[command(long_about = CONNECTIONS_HELP)]
    Connections(ConnectionsArgs),
    /// Move flow groups to another elastic thread
    #[command(long_about = MIGRATE_HELP)]
    Migrate(MigrateArgs),
    /// Move an elastic thread's flow groups away and let it sleep
    #[command(long_about = PARK_HELP)]
    Park(ThreadArgs),
    /// Wake a parked elastic thread
    #[command(long_about = RESUME_HELP)]
    Resume(ThreadArgs),
    /// Move all flow groups of an elastic thread to the others
    #[command(long_about = DRAIN_HELP)]
    Drain(ThreadArgs),
    /// Print what a dataplane may send and receive, and what was dropped or delayed
    #[command(long_about = VNIC_HELP)]
    Vnic(VnicArgs),
    /// Grant, derive, assign and revoke filters
    #[command(subcommand, long_about = FILTER_HELP)]
    Filter(FilterCommand),
    /// Print or change how much a dataplane may send and receive
    #[command(long_about = RATE_HELP)]
    Rate(RateArgs),
    /// Print the controller and its policy, or set another policy
    #[command(long_about = POLICY_HELP)]
    Policy(PolicyArgs),
    /// Print or change the bound on the queueing delay
    #[command(long_about = SLO_HELP)]
    Slo(SloArgs),
    /// Print where a dataplane's time goes, stage by stage, and its counters
    #[command(long_about = STATS_HELP)]
    Stats(StatsArgs),
    /// Print all metrics in Prometheus' text format
    #[command(long_about = METRICS_HELP)]
    Metrics(MetricsArgs),
    /// Write one file with all that a report of a fault needs
    #[command(long_about = DUMP_HELP)]
    Dump(DumpArgs),
}

/// Flags of `ix ctl metrics`.
#[derive(Args, Debug)]
pub struct MetricsArgs {
    /// Which dataplane
    #[command(flatten)]
    pub dataplane: CtlArgs,
    /// Write the text to this file instead
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Flags of `ix ctl dump`.
#[derive(Args, Debug)]
pub struct DumpArgs {
    /// Which dataplane
    #[command(flatten)]
    pub dataplane: CtlArgs,
    /// The file to write (default: ix-dump-PID.tar)
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Also capture packets for this many seconds
    #[arg(long, value_name = "T", value_parser = interval)]
    pub capture: Option<f64>,
    /// Print which file it is as JSON, and what it lacks
    #[arg(long)]
    pub json: bool,
    /// Also what may be secret: the program's arguments, secrets of devices, and whole packets
    #[arg(long)]
    pub all: bool,
}

/// Which dataplane.
#[derive(Args, Debug, Default)]
pub struct CtlArgs {
    /// Process ID of the program or of its `ix run` (default: the only one that runs)
    #[arg(long, conflicts_with = "control")]
    pub pid: Option<i32>,
    /// Path of its control socket
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}

impl CtlArgs {
    /// Returns the control socket that the flags name, or the only one.
    pub fn find(&self) -> ix_report::problem::Result<PathBuf> {
        find(self.control.as_deref(), self.pid)
    }
}

/// Flags of requests that only look.
#[derive(Args, Debug)]
pub struct LookArgs {
    /// Which dataplane
    #[command(flatten)]
    pub dataplane: CtlArgs,
    /// How to print
    #[command(flatten)]
    pub print: JsonArgs,
}

/// Flags of `ix ctl flow-groups`.
#[derive(Args, Debug)]
pub struct FlowGroupsArgs {
    /// Which dataplane, and how to print
    #[command(flatten)]
    pub look: LookArgs,
    /// Print a line for each flow group
    #[arg(long)]
    pub all: bool,
    /// Seconds to count packets for
    #[arg(long, value_name = "T", value_parser = interval, default_value = "0.5")]
    pub interval: f64,
}

/// Flags of `ix ctl connections`.
#[derive(Args, Debug)]
pub struct ConnectionsArgs {
    /// Which dataplane, and how to print
    #[command(flatten)]
    pub look: LookArgs,
    /// Only connections of this elastic thread
    #[arg(long, value_name = "N")]
    pub thread: Option<usize>,
    /// Only connections of this process of the program (`ix ctl status` lists them)
    #[arg(long, value_name = "PID")]
    pub process: Option<u32>,
    /// Only connections of these flow groups: `0-15,32`
    #[arg(long, value_name = "GROUPS")]
    pub flow_group: Option<GroupSet>,
    /// Only connections to this peer: ADDRESS, ADDRESS:PORT, or a network such as 10.0.0.0/8
    #[arg(long)]
    pub peer: Option<PeerFilter>,
    /// Only connections in this state: established, time-wait, …
    #[arg(long)]
    pub state: Option<StateFilter>,
    /// Order of the lines
    #[arg(long, value_name = "BY", default_value_t, value_parser = sorts())]
    pub sort: Sort,
    /// Print at most this many
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub limit: usize,
    /// Seconds to count bytes for, to print rates (default: 0.5 with --sort rate, else none)
    #[arg(long, value_name = "T", value_parser = rate_interval)]
    pub interval: Option<f64>,
}

impl ConnectionsArgs {
    /// Returns the query for the dataplane.
    pub fn query(&self) -> Query {
        let usual = if self.sort == Sort::Rate { RATE_INTERVAL_S } else { 0.0 };
        Query {
            max: self.limit,
            thread: self.thread,
            process: self.process,
            groups: self.flow_group,
            peer: self.peer,
            state: self.state,
            sort: self.sort,
            interval_ms: (self.interval.unwrap_or(usual) * 1000.0) as u64,
        }
    }
}

/// Default time between the two surveys of a rate.
const RATE_INTERVAL_S: f64 = 0.5;

fn sorts() -> impl TypedValueParser<Value = Sort> {
    let value = |sort: Sort| PossibleValue::new(sort.name()).help(sort.describe());
    let named = |name: String| Sort::ALL.into_iter().find(|sort| sort.name() == name);
    PossibleValuesParser::new(Sort::ALL.map(value)).map(move |name| named(name).unwrap_or_default())
}

fn devices() -> impl TypedValueParser<Value = VnicDevice> {
    let value = |device: VnicDevice| PossibleValue::new(device.name()).help(device.describe());
    let named = |name: String| VnicDevice::ALL.into_iter().find(|device| device.name() == name);
    PossibleValuesParser::new(VnicDevice::ALL.map(value))
        .map(move |name| named(name).unwrap_or_default())
}

fn rate_interval(text: &str) -> Result<f64, String> {
    let most = INTERVAL_MAX_MS as f64 / 1000.0;
    match text.parse() {
        Ok(seconds) if (0.01..=most).contains(&seconds) => Ok(seconds),
        _ => Err(format!("not a number of seconds from 0.01 to {most}")),
    }
}

/// Flags of `ix ctl migrate`.
#[derive(Args, Debug)]
pub struct MigrateArgs {
    /// Flow groups: numbers and ranges, `0-15,32`
    #[arg(value_name = "GROUPS")]
    pub groups: GroupSet,
    /// The elastic thread that gets the flow groups
    #[arg(long, value_name = "N")]
    pub to: usize,
    /// Which dataplane, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// Flags of requests about one elastic thread.
#[derive(Args, Debug)]
pub struct ThreadArgs {
    /// Number of the elastic thread
    #[arg(value_name = "N")]
    pub thread: usize,
    /// Which dataplane, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// Flags of `ix ctl vnic`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct VnicArgs {
    /// What to do; without it, the vNIC is printed
    #[command(subcommand)]
    pub command: Option<VnicCommand>,
    /// Which dataplane or shared interface, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// What to do with vNICs of a shared interface.
#[derive(Subcommand, Debug)]
pub enum VnicCommand {
    /// Create a vNIC: a link for `ix run --nic DEVICE`
    Create(VnicCreateArgs),
    /// Delete a vNIC: Linux gets its packets at once
    Delete(VnicDeleteArgs),
}

/// Flags of `ix ctl vnic create`.
#[derive(Args, Debug)]
pub struct VnicCreateArgs {
    /// Name of the vNIC: 1 to 10 lower-case letters, digits and dashes
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Number of queue pairs: one for each elastic thread
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub queues: usize,
    /// Process that owns the vNIC: when it ends, the vNIC is removed
    #[arg(long, value_name = "PID")]
    pub owner: Option<u32>,
    /// Device that the dataplane opens
    #[arg(long, default_value = "afxdp", value_parser = devices())]
    pub device: VnicDevice,
    /// Which shared interface, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// Flags of `ix ctl vnic delete`.
#[derive(Args, Debug)]
pub struct VnicDeleteArgs {
    /// Name of the vNIC
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Which shared interface, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// What to do with filters.
#[derive(Subcommand, Debug)]
pub enum FilterCommand {
    /// Grant filters: their direction then passes nothing else
    Create(FilterCreateArgs),
    /// Create a capability for a part of a filter, or another one for all of it
    Derive(FilterDeriveArgs),
    /// Assign a filter to a queue of a dataplane, or to a vNIC of a shared interface
    Assign(FilterAssignArgs),
    /// Revoke a capability, and all capabilities derived from it
    Revoke(FilterRevokeArgs),
    /// Remove one filter by number, or all; without filters everything passes
    Remove(FilterRemoveArgs),
}

/// Flags of `ix ctl filter create`.
#[derive(Args, Debug)]
pub struct FilterCreateArgs {
    /// Filters, each in quotes: 'rx tcp service 10.0.0.5:80'
    #[arg(value_name = "FILTER", required = true)]
    pub filters: Vec<Filter>,
    /// Grant each filter for the other direction, too
    #[arg(long)]
    pub both: bool,
    /// Name of the holder
    #[arg(long, value_name = "NAME")]
    pub holder: Option<String>,
    /// vNIC of a shared interface that gets the filters
    #[arg(long, value_name = "NAME")]
    pub vnic: Option<String>,
    /// Queue of the dataplane that alone gets the filters
    #[arg(long, value_name = "N", conflicts_with = "vnic")]
    pub queue: Option<usize>,
    /// Which dataplane, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// Flags of `ix ctl filter derive`.
#[derive(Args, Debug)]
pub struct FilterDeriveArgs {
    /// Capability of the filter
    #[arg(value_name = "CAPABILITY")]
    pub capability: String,
    /// Part of the filter (default: all of it)
    #[arg(value_name = "FILTER")]
    pub filter: Option<Filter>,
    /// Which dataplane, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// Flags of `ix ctl filter assign`.
#[derive(Args, Debug)]
pub struct FilterAssignArgs {
    /// Capability of the filter
    #[arg(value_name = "CAPABILITY")]
    pub capability: String,
    /// Capability of the vNIC of a shared interface that gets the filter's packets
    #[arg(long, value_name = "CAPABILITY", required_unless_present = "queue")]
    pub to: Option<String>,
    /// Queue of the dataplane that alone gets the filter; none: all queues get it
    #[arg(long, value_name = "N", conflicts_with = "to")]
    pub queue: Option<QueueChoice>,
    /// Which dataplane or shared interface, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// A queue number, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueChoice(pub Option<usize>);

impl FromStr for QueueChoice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<QueueChoice, &'static str> {
        match text {
            "none" => Ok(QueueChoice(None)),
            _ => {
                text.parse().map(|n| QueueChoice(Some(n))).map_err(|_| "neither a number nor none")
            }
        }
    }
}

/// Flags of `ix ctl filter revoke`.
#[derive(Args, Debug)]
pub struct FilterRevokeArgs {
    /// The capability to revoke
    #[arg(value_name = "CAPABILITY")]
    pub capability: String,
    /// Which dataplane, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// Flags of `ix ctl filter remove`.
#[derive(Args, Debug)]
pub struct FilterRemoveArgs {
    /// Number of the filter
    #[arg(value_name = "N", required_unless_present = "all", conflicts_with = "all")]
    pub filter: Option<u32>,
    /// Remove all filters
    #[arg(long)]
    pub all: bool,
    /// Which dataplane, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// Flags of `ix ctl rate`.
#[derive(Args, Debug)]
pub struct RateArgs {
    /// Rate of received packets: 100Mbit, 20kpps, or none
    #[arg(long, value_name = "RATE")]
    pub rx: Option<String>,
    /// Rate of sent packets
    #[arg(long, value_name = "RATE")]
    pub tx: Option<String>,
    /// Rate of sent packets of each flow, evenly spread
    #[arg(long, value_name = "RATE", conflicts_with = "vnic")]
    pub flow: Option<String>,
    /// For this vNIC of a shared interface
    #[arg(long, value_name = "NAME")]
    pub vnic: Option<String>,
    /// For this queue of the dataplane: the number of its elastic thread
    #[arg(long, value_name = "N", conflicts_with = "vnic")]
    pub queue: Option<usize>,
    /// Weight of the vNIC: its part of a full interface, relative to the others' weights
    #[arg(long, value_name = "N", requires = "vnic")]
    pub weight: Option<u32>,
    /// Which dataplane, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// Flags of `ix ctl policy`.
#[derive(Args, Debug)]
pub struct PolicyArgs {
    /// Policy to set: a TOML file, or one of energy, consolidation, minmax
    #[arg(long, value_name = "FILE")]
    pub set: Option<String>,
    /// Which dataplane, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// Flags of `ix ctl slo`.
#[derive(Args, Debug)]
pub struct SloArgs {
    /// Bound to set, µs
    #[arg(long, value_name = "US")]
    pub set: Option<f64>,
    /// Which dataplane, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// Flags of `ix ctl stats`.
#[derive(Args, Debug)]
pub struct StatsArgs {
    /// Which dataplane
    #[command(flatten)]
    pub dataplane: CtlArgs,
    /// Print JSON; with --interval, one object per line
    #[arg(long)]
    pub json: bool,
    /// Also write the counters to this file as JSON
    #[arg(long, value_name = "FILE", conflicts_with = "interval")]
    pub output: Option<PathBuf>,
    /// Print every counter, one per line
    #[arg(long, conflicts_with = "json")]
    pub all: bool,
    /// Print the counts of each interval of T seconds, again and again
    #[arg(long, value_name = "T", value_parser = interval, conflicts_with = "all")]
    pub interval: Option<f64>,
    /// End after this many intervals
    #[arg(long, value_name = "N", requires = "interval")]
    pub count: Option<u64>,
}

fn interval(text: &str) -> Result<f64, &'static str> {
    match text.parse() {
        Ok(seconds) if (0.01..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("not a number of seconds from 0.01 to 86400"),
    }
}
