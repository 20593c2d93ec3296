//! The command line of `ix ctl` and `ix top`.
use clap::{Args, Subcommand};
use ix_broker::control::{INTERVAL_MAX_MS, PeerFilter, Query, Sort, StateFilter, VnicDevice, find};
use ix_dataplane::GroupSet;
use ix_vnic::Filter;
use std::path::PathBuf;
use std::str::FromStr;

/// Overview of `ix ctl`.
pub const CTL_HELP: &str = "Asks a running dataplane for what it does, or to do something else. \
    It listens at a socket below /run/ix (root's), $XDG_RUNTIME_DIR/ix or /tmp/ix-UID: `PID.sock` \
    for operators, `PID.ro.sock` for looking only. File permissions say who may open which; \
    [control] in the configuration file of `ix run` sets them.\n\n\
    Examples:\n  \
    ix ctl status\n  \
    ix ctl threads --json | jq '.threads[].window.idle[0]'\n  \
    ix ctl migrate 0-31 --to 1\n  \
    ix ctl park 1 && ix ctl resume 1\n  \
    echo status | socat - UNIX:/run/ix/4711.sock";

const STATUS_HELP: &str = "Prints what a dataplane does now in a few lines: threads and what they \
    are, rate, queueing delay, the estimate of its tail, flows, drops.\n\n\
    Examples:\n  \
    ix ctl status\n  \
    ix ctl status --pid 4711 --json";

const THREADS_HELP: &str = "\
    Prints a line for each elastic thread: its state, its hardware thread, its flow groups \
    and flows, and the averages of the last windows of 10 ms: packets received a second, \
    queue depth Q, packets of a cycle, iteration time τ, queueing delay, the estimate of its \
    tail ⌈Q/B⌉·τ, and the share of the time without work.\n\n\
    States: active (runs the cycle), parking (its flow groups are leaving), parked (sleeps, \
    its hardware thread is Linux's), background (no elastic thread now), non-responsive (its \
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
    retransmission timeout, both windows, payload in and out, segments sent again, bytes \
    that wait (given to send and not acknowledged, received and not given back), age and \
    time without segments. The dataplane reports a few connections between two of its \
    cycles. --sort says which come first.\n\n\
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
    Tells the thread's application, moves its flow groups to the active threads, and lets it \
    sleep: Linux then has its hardware thread. The last active thread cannot be parked.\n\n\
    Examples:\n  \
    ix ctl park 1\n  \
    ix ctl park 1 && ix ctl threads";

const RESUME_HELP: &str = "Wakes a parked thread and gives it its share of the flow groups.\n\n\
    Examples:\n  \
    ix ctl resume 1";

const DRAIN_HELP: &str = "\
    Moves all flow groups of a thread to the other active threads. The thread continues to \
    run its cycle, without work; `park` gives its hardware thread back.\n\n\
    Examples:\n  \
    ix ctl drain 1 && ix ctl flow-groups";

const POLICY_HELP: &str = "\
    Prints which controller is in charge of the dataplane's threads and clocks, its policy, \
    and its last decision. With --set it gives the controller another policy: one of energy, \
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
    the filters and rates of single queues, and how many packets each has held back. Also \
    prints how many requests were refused, by reason (no-capability: forged, revoked or for \
    something else). Without filters for a direction everything passes.\n\n\
    Examples:\n  \
    ix ctl vnic\n  \
    ix ctl vnic --json | jq .drops";

const FILTER_HELP: &str = "\
    Grants, derives and revokes filters while traffic runs. A filter is a part of the space \
    of packet headers: `rx` or `tx`; `eth`, `ip`, `tcp` or `udp`; then any of `service \
    ADDRESSES[:PORTS]` (our end), `peer ADDRESSES[:PORTS]` (theirs), `service-mac`, \
    `peer-mac`, `vlan`, `type` (eth), `proto` (ip), with lists, ranges, networks and `*`. A \
    direction with filters passes only packets that a filter takes, and ARP for the filters' \
    addresses. Other packets are dropped and counted by reason (`ix ctl vnic`). ICMP needs a \
    filter of its own (`ip … proto 1`).\n\n\
    Each elastic thread has a queue pair. A filter that is assigned to a queue (--queue N) \
    belongs to that queue alone: other queues do not send by it (tx_foreign_queue), and \
    frames that programs receive below TCP and UDP (`rx eth type …`, `rx ip proto …`) go to \
    that queue if the filter takes them. Connections have the queue of their flow group, so \
    receive filters that take TCP, UDP, ICMP or ARP cannot be assigned to a queue.\n\n\
    Each filter comes with a capability of 32 digits. A process that knows it can derive \
    narrower filters, assign the filter to a queue, and revoke it, through the read-only \
    socket as well. Linux's own addresses, and what another holder has, are refused.\n\n\
    Examples:\n  \
    ix ctl filter create 'rx tcp service 10.0.0.5:80' --both\n  \
    ix ctl filter create 'tx ip service 10.0.0.5 peer 10.0.0.0/8' --holder web\n  \
    ix ctl filter derive 4fd2… 'rx tcp service 10.0.0.5:80 peer 10.1.0.0/16'\n  \
    ix ctl filter create 'rx eth type 0x88b5' --queue 1\n  \
    ix ctl filter assign 4fd2… --queue 0; ix ctl filter assign 4fd2… --queue none\n  \
    ix ctl filter revoke 4fd2…\n  \
    ix ctl filter remove 3; ix ctl filter remove --all";

const RATE_HELP: &str = "\
    Prints or changes how much a dataplane may send and receive. A rate is bits a second, \
    packets a second, or both, with a burst in bytes: `100Mbit`, `20kpps`, \
    `1Gbit,50kpps,burst=64k`. Sent packets are paced: at most 512 wait, and they leave \
    evenly. Received packets beyond the rate are dropped. Each elastic thread has an equal \
    part of the rate. With --queue the rates are those of one elastic thread's queue; the \
    lower of them and of its part holds. Bytes count from the Ethernet header on. --flow \
    paces each TCP and UDP flow by itself, in steps of 16 µs.\n\n\
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
    Prints, for each elastic thread, what share of the time each stage of the \
    cycle takes and what that is a packet, in ticks of the time stamp counter; how many packets \
    the cycles received; what the hardware thread executed, where hardware counters can be had; \
    and drops.\n\n\
    Examples:\n  \
    ix ctl stats\n  \
    ix ctl stats --interval 1\n  \
    ix ctl stats --json | jq '.threads[0].cost'";

const METRICS_HELP: &str = "Prints everything in Prometheus' text format. For a server to scrape, \
    start the dataplane with `ix run --metrics 127.0.0.1:9464` instead.\n\n\
    Examples:\n  \
    ix ctl metrics\n  \
    ix ctl metrics > /var/lib/node_exporter/textfile/ix.prom";

/// Requests to a running dataplane.
#[derive(Subcommand, Debug)]
pub enum CtlCommand {
    /// Say what a dataplane does now
    #[command(long_about = STATUS_HELP)]
    Status(LookArgs),
    /// List the elastic threads: states, flow groups, load, delays
    #[command(long_about = THREADS_HELP)]
    Threads(LookArgs),
    /// List flow groups: who owns them, which carry the load
    #[command(long_about = FLOW_GROUPS_HELP)]
    FlowGroups(FlowGroupsArgs),
    /// List TCP connections with what TCP knows of them
    #[command(long_about = CONNECTIONS_HELP)]
    Connections(ConnectionsArgs),
    /// Move flow groups to another elastic thread
    #[command(long_about = MIGRATE_HELP)]
    Migrate(MigrateArgs),
    /// Take an elastic thread's flow groups away and let it sleep
    #[command(long_about = PARK_HELP)]
    Park(ThreadArgs),
    /// Wake a parked elastic thread
    #[command(long_about = RESUME_HELP)]
    Resume(ThreadArgs),
    /// Move all flow groups of an elastic thread to the others
    #[command(long_about = DRAIN_HELP)]
    Drain(ThreadArgs),
    /// Print what a dataplane may send and receive, and what was held back
    #[command(long_about = VNIC_HELP)]
    Vnic(VnicArgs),
    /// Grant, hand on and revoke filters
    #[command(subcommand, long_about = FILTER_HELP)]
    Filter(FilterCommand),
    /// Print or change how much a dataplane may send and receive
    #[command(long_about = RATE_HELP)]
    Rate(RateArgs),
    /// Say who controls it and how, or give it another policy
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
    Metrics(CtlArgs),
}

/// Which dataplane.
#[derive(Args, Debug, Default)]
pub struct CtlArgs {
    /// Process number of the program (default: the only one that runs)
    #[arg(long, conflicts_with = "control")]
    pub pid: Option<i32>,
    /// Its control socket
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}

impl CtlArgs {
    /// The control socket that they name, or the only one.
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
    /// Print JSON
    #[arg(long)]
    pub json: bool,
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
    /// Count packets for so many seconds
    #[arg(long, value_name = "T", value_parser = interval, default_value = "0.5")]
    pub interval: f64,
}

/// Flags of `ix ctl connections`.
#[derive(Args, Debug)]
pub struct ConnectionsArgs {
    /// Which dataplane, and how to print
    #[command(flatten)]
    pub look: LookArgs,
    /// Only those of this elastic thread
    #[arg(long, value_name = "N")]
    pub thread: Option<usize>,
    /// Only those of these flow groups: `0-15,32`
    #[arg(long, value_name = "GROUPS")]
    pub flow_group: Option<GroupSet>,
    /// Only those to this peer: an address, address:port, or a network as 10.0.0.0/8
    #[arg(long)]
    pub peer: Option<PeerFilter>,
    /// Only those in this state: established, time-wait, ...
    #[arg(long)]
    pub state: Option<StateFilter>,
    /// What comes first
    #[arg(long, value_name = "BY", default_value_t)]
    pub sort: Sort,
    /// So many at most
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub limit: usize,
    /// Count bytes for so many seconds, for rates (with --sort rate 0.5)
    #[arg(long, value_name = "T", value_parser = rate_interval)]
    pub interval: Option<f64>,
}

impl ConnectionsArgs {
    /// As it is asked for.
    pub fn query(&self) -> Query {
        let usual = if self.sort == Sort::Rate { RATE_INTERVAL_S } else { 0.0 };
        Query {
            max: self.limit,
            thread: self.thread,
            groups: self.flow_group,
            peer: self.peer,
            state: self.state,
            sort: self.sort,
            interval_ms: (self.interval.unwrap_or(usual) * 1000.0) as u64,
        }
    }
}

/// Time between the two looks of a rate.
const RATE_INTERVAL_S: f64 = 0.5;

fn rate_interval(text: &str) -> Result<f64, String> {
    let most = INTERVAL_MAX_MS as f64 / 1000.0;
    match text.parse() {
        Ok(seconds) if (0.01..=most).contains(&seconds) => Ok(seconds),
        _ => Err(format!("not seconds between 0.01 and {most}")),
    }
}

/// Flags of `ix ctl migrate`.
#[derive(Args, Debug)]
pub struct MigrateArgs {
    /// Flow groups: numbers and ranges, `0-15,32`
    #[arg(value_name = "GROUPS")]
    pub groups: GroupSet,
    /// The elastic thread that gets them
    #[arg(long, value_name = "N")]
    pub to: usize,
    /// Which dataplane, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// Flags of requests about one elastic thread.
#[derive(Args, Debug)]
pub struct ThreadArgs {
    /// The elastic thread
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
    /// What to do; nothing: print
    #[command(subcommand)]
    pub command: Option<VnicCommand>,
    /// Which dataplane or shared interface, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// What to do with vNICs of a shared interface.
#[derive(Subcommand, Debug)]
pub enum VnicCommand {
    /// Make one: a link for `ix run --nic DEVICE`
    Create(VnicCreateArgs),
    /// Delete one: its traffic is Linux's at once
    Delete(VnicDeleteArgs),
}

/// Flags of `ix ctl vnic create`.
#[derive(Args, Debug)]
pub struct VnicCreateArgs {
    /// Its name: 1 to 10 lower-case letters, digits and dashes
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Its queue pairs: one for each elastic thread
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub queues: usize,
    /// A process: when it ends, the vNIC goes
    #[arg(long, value_name = "PID")]
    pub owner: Option<u32>,
    /// What its dataplane opens
    #[arg(long, value_enum, default_value = "afxdp")]
    pub device: VnicDevice,
    /// Which shared interface, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// Flags of `ix ctl vnic delete`.
#[derive(Args, Debug)]
pub struct VnicDeleteArgs {
    /// Its name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Which shared interface, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// What to do with filters.
#[derive(Subcommand, Debug)]
pub enum FilterCommand {
    /// Grant filters: from then on their direction carries nothing else
    Create(FilterCreateArgs),
    /// Make a capability for a part of a filter, or for all of it once more
    Derive(FilterDeriveArgs),
    /// Assign a filter to a queue of a dataplane, or to a vNIC of a shared interface
    Assign(FilterAssignArgs),
    /// Revoke a capability, and all that were derived from it
    Revoke(FilterRevokeArgs),
    /// Remove a filter by its number, or all: then everything passes again
    Remove(FilterRemoveArgs),
}

/// Flags of `ix ctl filter create`.
#[derive(Args, Debug)]
pub struct FilterCreateArgs {
    /// Each as one word: 'rx tcp service 10.0.0.5:80'
    #[arg(value_name = "FILTER", required = true)]
    pub filters: Vec<Filter>,
    /// Also for the other direction
    #[arg(long)]
    pub both: bool,
    /// Who holds them
    #[arg(long, value_name = "NAME")]
    pub holder: Option<String>,
    /// The vNIC of a shared interface that they are for
    #[arg(long, value_name = "NAME")]
    pub vnic: Option<String>,
    /// The queue of the dataplane that holds them alone
    #[arg(long, value_name = "N", conflicts_with = "vnic")]
    pub queue: Option<usize>,
    /// Which dataplane, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// Flags of `ix ctl filter derive`.
#[derive(Args, Debug)]
pub struct FilterDeriveArgs {
    /// Of the filter
    #[arg(value_name = "CAPABILITY")]
    pub capability: String,
    /// Its part (default: all of it)
    #[arg(value_name = "FILTER")]
    pub filter: Option<Filter>,
    /// Which dataplane, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// Flags of `ix ctl filter assign`.
#[derive(Args, Debug)]
pub struct FilterAssignArgs {
    /// Of the filter
    #[arg(value_name = "CAPABILITY")]
    pub capability: String,
    /// Of the vNIC of a shared interface that gets its packets
    #[arg(long, value_name = "CAPABILITY", required_unless_present = "queue")]
    pub to: Option<String>,
    /// The queue of the dataplane that holds it alone, or none: all do
    #[arg(long, value_name = "N", conflicts_with = "to")]
    pub queue: Option<QueueChoice>,
    /// Which dataplane or shared interface, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// A queue, or none in particular.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueChoice(pub Option<usize>);

impl FromStr for QueueChoice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<QueueChoice, &'static str> {
        match text {
            "none" => Ok(QueueChoice(None)),
            _ => {
                text.parse().map(|n| QueueChoice(Some(n))).map_err(|_| "not a number, and not none")
            }
        }
    }
}

/// Flags of `ix ctl filter revoke`.
#[derive(Args, Debug)]
pub struct FilterRevokeArgs {
    /// What ends
    #[arg(value_name = "CAPABILITY")]
    pub capability: String,
    /// Which dataplane, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// Flags of `ix ctl filter remove`.
#[derive(Args, Debug)]
pub struct FilterRemoveArgs {
    /// Its number
    #[arg(value_name = "N", required_unless_present = "all", conflicts_with = "all")]
    pub filter: Option<u32>,
    /// All of them
    #[arg(long)]
    pub all: bool,
    /// Which dataplane, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// Flags of `ix ctl rate`.
#[derive(Args, Debug)]
pub struct RateArgs {
    /// What may be received: 100Mbit, 20kpps, or none
    #[arg(long, value_name = "RATE")]
    pub rx: Option<String>,
    /// What may be sent
    #[arg(long, value_name = "RATE")]
    pub tx: Option<String>,
    /// What each flow may send, its packets evenly spread
    #[arg(long, value_name = "RATE", conflicts_with = "vnic")]
    pub flow: Option<String>,
    /// Of this vNIC of a shared interface
    #[arg(long, value_name = "NAME")]
    pub vnic: Option<String>,
    /// Of this queue of the dataplane: an elastic thread's
    #[arg(long, value_name = "N", conflicts_with = "vnic")]
    pub queue: Option<usize>,
    /// Its part of the full interface, beside the others' weights
    #[arg(long, value_name = "N", requires = "vnic")]
    pub weight: Option<u32>,
    /// Which dataplane, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// Flags of `ix ctl policy`.
#[derive(Args, Debug)]
pub struct PolicyArgs {
    /// Another policy: a TOML file, or one of energy, consolidation, minmax
    #[arg(long, value_name = "FILE")]
    pub set: Option<String>,
    /// Which dataplane, and how to print
    #[command(flatten)]
    pub look: LookArgs,
}

/// Flags of `ix ctl slo`.
#[derive(Args, Debug)]
pub struct SloArgs {
    /// Another bound, µs
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
    /// Print JSON; with --interval, an object a line
    #[arg(long)]
    pub json: bool,
    /// Print every counter, a line each
    #[arg(long, conflicts_with = "json")]
    pub all: bool,
    /// Print what was done in every T seconds, again and again
    #[arg(long, value_name = "T", value_parser = interval, conflicts_with = "all")]
    pub interval: Option<f64>,
    /// End after so many intervals
    #[arg(long, value_name = "N", requires = "interval")]
    pub count: Option<u64>,
}

fn interval(text: &str) -> Result<f64, &'static str> {
    match text.parse() {
        Ok(seconds) if (0.01..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("not seconds between 0.01 and 86400"),
    }
}
