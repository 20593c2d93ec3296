//! The command line: subcommands and flags.
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use ix_bench::args::Device;
use ix_bench::command::BenchCommand;
use ix_broker::marks::Whose;
use ix_ctl::ctl::args::CtlCommand;
use ix_proto::config::WallPart;
use ix_proto::device::DeviceKind;
use ix_report::domain::Domain;
use ix_report::output::{JsonArgs, MessageArgs, OutputArgs};
use std::ffi::OsString;
use std::path::PathBuf;

const RUN_HELP: &str = "Runs PROGRAM with its own TCP/IP dataplane. An unmodified program gets its sockets on IX; \
    what it binds to other addresses, and the loopback, stays Linux's.\n\n\
    Without --addr, on a network interface, the address of Linux is shared by port: the program's \
    ports are IX's, and all else stays Linux's. Without --nic too, the interface is that of Linux's \
    default route.\n\n\
    Examples:\n  \
    ix run memcached -u nobody\n  \
    ix run --nic eth0 memcached -u nobody -p 11211\n  \
    ix run --nic eth1 --addr 10.0.0.2/24 memcached -u nobody -p 11211\n  \
    ix run --nic tap:ix0,queues=2 --addr 192.0.2.2/24 --cpus 2,3 ix echo 64 --port 7\n  \
    ix run --nic memif:/run/link.memif --addr 10.0.0.2/24 ix echo 64\n  \
    ix run -c ix.toml ix echo 64\n\n\
    Flags of `ix run` stand before PROGRAM. Everything behind it belongs to the program.\n\n\
    The exit status is the program's, or 128 + N if signal N ended it; 125 if `ix run` itself \
    failed, 126 if PROGRAM cannot be executed, 127 if there is no such program.\n\n\
    The configuration file keeps IX's names; flags override it:\n  \
    host_addr = \"10.0.0.2/24\"\n  gateway_addr = \"10.0.0.1\"\n  \
    devices = [\"afxdp:eth1\"]\n  cpu = [2, 3]\n  batch = 64\n  \
    arp = [{ ip = \"10.0.0.9\", mac = \"02:00:00:00:00:09\" }]\n  \
    [tcp]\n  min_rto_us = 5000\n  congestion = \"cubic\"      # or reno, dctcp, bbr\n  \
    ecn = \"accept\"            # or off, ask, accept-accurate, ask-accurate\n  \
    [vnic]                     # filters and rates, as `ix ctl filter` and `ix ctl rate` say them\n  \
    filters = [\"rx ip service 10.0.0.2\", \"tx tcp service 10.0.0.2:80\"]\n  \
    tx_rate = \"1Gbit\"          # rx_rate, flow_rate\n  \
    [vnic.queue.1]             # what elastic thread 1's queue holds alone, and its own rates\n  \
    filters = [\"tx udp service 10.0.0.2:53\"]\n  tx_rate = \"20Mbit\"\n  \
    [control]                  # who may open the control sockets, by mode and group\n  \
    group = \"ix\"\n  mode = \"0660\"\n  read_only_mode = \"0666\"\n  metrics = \"127.0.0.1:9464\"";

const DEMO_HELP: &str = "Creates a private link between network namespaces of its own, runs the \
    echo service on IX and on Linux sockets behind it, and prints rate and latency of both side \
    by side. Everything that it creates disappears with it.\n\n\
    As root the link is a virtual Ethernet pair with AF_XDP; otherwise a TAP device in a user \
    namespace.";

const DOCTOR_HELP: &str = "Tries everything that IX needs, in a network namespace of its own, and \
    prints for each feature whether it works, why not, and a command that mends it. At the end \
    it says of each interface what IX would have there (mode, queues, MTU, address), and the \
    command to run next. Changes nothing.\n\n\
    The exit status is 0 when `ix run` can work with at least one kind of device.";

const COMPLETIONS_HELP: &str = "Prints a script that completes the commands and flags of ix in a \
    shell.\n\n\
    Examples:\n  \
    ix completions bash > /usr/share/bash-completion/completions/ix\n  \
    ix completions zsh > /usr/share/zsh/vendor-completions/_ix\n  \
    ix completions fish > /usr/share/fish/vendor_completions.d/ix.fish\n  \
    source <(ix completions bash)     # for this shell only";

const MAN_HELP: &str = "Prints the man page of ix, or writes the pages of all commands, such as \
    ix-run.1, and that of the configuration file, ix.toml.5 (in `man5` beside a `man1`).\n\n\
    Examples:\n  \
    ix man | man -l -\n  \
    ix man /usr/local/share/man/man1";

/// The whole command line.
#[derive(Parser, Debug)]
#[command(
    name = "ix",
    version,
    about = "IX, a protected dataplane operating system for latency-critical services",
    long_about = "IX gives a network service its own TCP/IP dataplane on dedicated hardware \
        threads: packets are polled from the network card, run through the protocol stack and \
        handed to the service, and its replies are sent, in one run to completion.\n\n\
        Start with `ix doctor` (what this machine can do, and the command to run next) and `ix demo` \
        (IX and Linux side by side). Then, as root:\n\n  \
        ix run memcached -u nobody -p 11211\n  \
        ix top                           # what it does, live\n  \
        ix ctl status                    # the same in a few lines",
    after_help = "Exit status: 0 on success only; 2 for a wrong command line. `ix run` returns \
        its program's status (128 + N: signal N ended it), 125 for its own failures, 126 if the \
        program cannot be executed, 127 if there is none."
)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a program on its own dataplane
    #[command(long_about = RUN_HELP)]
    Run(RunArgs),
    /// Compare a service on IX with one on Linux sockets, on this machine
    #[command(long_about = DEMO_HELP)]
    Demo(DemoArgs),
    /// Run one benchmark on IX and on Linux sockets
    #[command(subcommand, long_about = ix_bench::command::HELP)]
    Bench(BenchCommand),
    /// Talk to a running dataplane
    #[command(subcommand, long_about = ix_ctl::ctl::args::CTL_HELP)]
    Ctl(CtlCommand),
    /// Control the hardware threads and clocks of dataplanes by a policy
    #[command(long_about = ix_ctl::cp::HELP)]
    Cp(ix_ctl::cp::CpArgs),
    /// Share an interface among several dataplanes and Linux
    #[command(long_about = crate::share::HELP)]
    Share(crate::share::ShareArgs),
    /// Show a running dataplane live on the terminal
    #[command(long_about = ix_ctl::top::HELP)]
    Top(ix_ctl::top::TopArgs),
    /// Capture packets of a running dataplane into a pcapng file
    #[command(long_about = ix_ctl::pcap::HELP)]
    Pcap(ix_ctl::pcap::PcapArgs),
    /// Serve the metrics of all dataplanes of this host to Prometheus
    #[command(long_about = ix_ctl::exporter::HELP)]
    Exporter(ix_ctl::exporter::ExporterArgs),
    /// Check what IX can use on this machine, and how to get what is missing
    #[command(long_about = DOCTOR_HELP)]
    Doctor(DoctorArgs),
    /// Print the completions of a shell
    #[command(long_about = COMPLETIONS_HELP)]
    Completions(CompletionsArgs),
    /// Print the man page of ix, or write those of all commands
    #[command(long_about = MAN_HELP)]
    Man(ManArgs),
    /// Attack the wall from inside a program, with and without the wall
    Attack(AttackArgs),
    /// Put load on a server and measure its latency, from Linux sockets or from a dataplane
    #[command(disable_help_flag = true)]
    Load(EchoArgs),
    /// Simulate whole hosts in virtual time on a network with seeded faults
    #[command(disable_help_flag = true)]
    Sim(SimArgs),
    /// Run packet scripts (packetdrill's language) against the stack, in virtual time
    #[command(disable_help_flag = true)]
    Packets(SimArgs),
    /// The echo program that the demo and the benchmarks run (also on its own: ix-echo)
    #[command(disable_help_flag = true, hide = true)]
    Echo(EchoArgs),
    /// The key-value server that the benchmarks run (also on its own: ix-kv)
    #[command(disable_help_flag = true, hide = true)]
    Kv(EchoArgs),
    /// The web server that the benchmarks run (also on its own: ix-httpd)
    #[command(disable_help_flag = true, hide = true)]
    Httpd(EchoArgs),
    /// The papers' background job that the benchmarks run (also on its own: ix-background)
    #[command(disable_help_flag = true, hide = true)]
    Background(EchoArgs),
    /// Ends what a program has left whose `ix run` was killed (`ix run` starts it)
    #[command(hide = true)]
    Warden(WardenArgs),
    /// Holds the XDP program of an interface that runs share (`ix run` starts it)
    #[command(hide = true)]
    Keeper(KeeperArgs),
}

/// Arguments of the keeper of an interface.
#[derive(Debug, Args)]
pub struct KeeperArgs {
    /// The interface
    pub interface: String,
    /// It is no child of a run any more
    #[arg(long)]
    pub apart: bool,
}

/// Arguments of the warden of a run.
#[derive(Debug, Args)]
pub struct WardenArgs {
    /// Whom the program's processes run as
    pub whose: Whose,
    /// The run's word
    pub word: String,
    /// The file that lists the run's control groups
    pub file: Option<PathBuf>,
}

/// When a program's socket calls go to IX.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Posix {
    /// On, unless the program was written for IX
    #[default]
    Auto,
    /// Always
    On,
    /// Never: all its sockets are Linux's
    Off,
}

/// System calls that a program makes by instructions of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Syscalls {
    /// IX's in programs in Go and in static ones
    #[default]
    Auto,
    /// IX's in every program
    On,
    /// IX's in every program, and no instruction is rewritten: each call costs a signal
    Trap,
}

impl Syscalls {
    /// The word for the library.
    pub fn word(self) -> &'static str {
        match self {
            Syscalls::Auto => "",
            Syscalls::On => "on",
            Syscalls::Trap => "trap",
        }
    }
}

/// How the dataplane gets into the program's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Entry {
    /// Linux starts the program, and the dataplane is planted into it before its first instruction
    #[default]
    Planted,
    /// Linux starts the dataplane, which loads the program; for machines that forbid tracing
    Loading,
}

/// The help of `--nic`.
fn nic_help() -> String {
    let form = |kind: DeviceKind| format!("`{}{}`", kind.short_form(), kind.options());
    format!(
        "Device: {}; an interface's name alone means `afxdp:`; may be repeated (default, if no address \
         is named: the interface of Linux's default route)",
        DeviceKind::ALL.map(form).join(" or ")
    )
}

/// Flags of `ix run`.
#[derive(Args, Debug, Default)]
pub struct RunArgs {
    /// Configuration file
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Device; may be repeated
    #[arg(long, value_name = "SPEC", help = nic_help())]
    pub nic: Vec<String>,
    /// Addresses of the dataplane with prefix lengths: `10.0.0.2/24` or
    /// `10.0.0.2/24,2001:db8::2/64` (default: those of Linux on the interface, shared by port)
    #[arg(long, value_name = "CIDR")]
    pub addr: Option<String>,
    /// Where addresses of IPv6 come from beside `--addr`: `off`, or `auto`, from routers (RFC 4862)
    #[arg(long, value_name = "SOURCE")]
    pub addr6: Option<String>,
    /// Take an address of `--addr` away from Linux if Linux has it on the interface: every packet
    /// to it is IX's then, and what Linux serves there, such as ssh, is cut off
    #[arg(long)]
    pub take_address: bool,
    /// Share the address of Linux although a firewall of Linux has rules for the interface: it does
    /// not see the packets of the program's ports
    #[arg(long)]
    pub ignore_firewall: bool,
    /// Default gateways of addresses of `--addr`, one of each family: `10.0.0.1,2001:db8::1`
    #[arg(long, value_name = "IP")]
    pub gateway: Option<String>,
    /// Hardware threads, one for each elastic thread: `2,4-7`
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// Hardware threads of the program, like 2,4-5, with `--domain process` (default: those that
    /// --cpus does not name, or the same ones where there are no others)
    #[arg(long, value_name = "LIST")]
    pub program_cpus: Option<String>,
    /// What keeps the program out of the dataplane's memory (default: process)
    #[arg(long, value_enum)]
    pub domain: Option<Domain>,
    /// How the dataplane gets into the program's process
    #[arg(long, value_enum, default_value_t = Entry::Planted)]
    pub entry: Entry,
    /// User to run the program as, by name or number, behind a wall; `own`: a user for this run
    /// alone; `root`: the machine's root, against whom the wall does not hold. Without it: with
    /// `--domain process` the caller's own, or, for root, root of a user namespace; with
    /// `--domain pku` `own`
    #[arg(long, value_name = "USER", value_hint = ValueHint::Username, value_parser = program_user)]
    pub user: Option<ProgramUser>,
    /// Most processes and threads of the program (default: half of what the machine can have, where
    /// a control group can be made)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub pids_max: Option<u64>,
    /// Most memory of the program, like 512M, by a control group (default: no bound)
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub memory_max: Option<u64>,
    /// A part of the wall to leave out: keys, calls, code, files (for `ix attack`)
    #[arg(long, hide = true, value_name = "PART", value_parser = wall_part)]
    pub without: Option<WallPart>,
    /// When the program's socket calls go to IX
    #[arg(long, value_enum, default_value_t = Posix::Auto)]
    pub posix: Posix,
    /// Whose the system calls are that the program makes by instructions of its own, with
    /// `--domain process` (default: auto, or `on` if IX_SYSCALLS is set)
    #[arg(long, value_enum)]
    pub syscalls: Option<Syscalls>,
    /// Fail, with exit status 125, if the program ends and never used IX
    #[arg(long)]
    pub require_ix: bool,
    /// Batch bound B: most packets in one cycle, 1 to 1024 (default: 64)
    #[arg(long, value_name = "B")]
    pub batch: Option<usize>,
    /// Congestion control: cubic, reno, dctcp or bbr (default: cubic)
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,
    /// Explicit congestion notification: off, accept (if the peer asks), ask; accept-accurate or
    /// ask-accurate for accurate ECN, RFC 9768 (default: accept)
    #[arg(long, value_name = "MODE")]
    pub ecn: Option<String>,
    /// Write the dataplane's counters to this file as JSON when the program ends
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,
    /// Control socket for `ix ctl` (default: /run/ix/PID.sock, or in $XDG_RUNTIME_DIR)
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Policy that controls hardware threads and clocks, as with `ix cp`: a TOML file, or one of
    /// energy, consolidation, minmax
    #[arg(long, value_name = "FILE")]
    pub policy: Option<String>,
    /// Longest time, in µs, that a hardware thread of the dataplane may take to wake. 0: these
    /// threads never halt; Linux's idle loop polls, which costs energy but no time of other
    /// programs
    #[arg(long, value_name = "US", conflicts_with = "policy")]
    pub wake_us: Option<u32>,
    /// Upper bound on the queueing delay, µs (default: the policy's)
    #[arg(long, value_name = "US", requires = "policy")]
    pub slo_us: Option<f64>,
    /// Serve Prometheus metrics over HTTP at `ADDRESS:PORT`; a bare port is on the loopback address
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<String>,
    /// How to write messages
    #[command(flatten)]
    pub log: MessageArgs,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM [ARGS]")]
    pub program: Vec<OsString>,
}

/// Flags of `ix demo`.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Where the results go
    #[command(flatten)]
    pub output: OutputArgs,
    /// Length of one measurement
    #[arg(long, value_name = "T", default_value_t = 0.4)]
    pub seconds: f64,
    /// Number of measurements of each point; medians are printed
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub runs: usize,
    /// Device (default: afxdp as root, else tap)
    #[arg(long, value_enum)]
    pub device: Option<Device>,
}

/// Flags of `ix attack`.
#[derive(Args, Debug)]
pub struct AttackArgs {
    /// How to print: one row for each attack
    #[command(flatten)]
    pub print: JsonArgs,
    /// Attack the isolation of tenants on a shared interface instead of the wall (needs no
    /// protection keys)
    #[arg(long)]
    pub vnic: bool,
    /// Number of random system calls that the fuzzer makes
    #[arg(long, default_value_t = 20_000)]
    pub fuzz: u32,
    /// Seed of the fuzzer
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The wall to attack: process or pku (default: process, and pku on a machine that has keys)
    #[arg(long, value_enum)]
    pub domain: Option<Domain>,
    /// How the dataplane gets into the attacking process (default: each way in turn)
    #[arg(long, value_enum)]
    pub entry: Option<Entry>,
}

/// Flags of `ix doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// How to print
    #[command(flatten)]
    pub print: JsonArgs,
}

/// Flags of `ix completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// Flags of `ix man`.
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Folder for the pages of all commands and of ix.toml; it is made if there is none
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// Arguments of a program inside `ix` that parses them itself.
#[derive(Args, Debug)]
pub struct EchoArgs {
    /// Arguments of the program
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
}

/// Arguments of the simulator or of the packet scripts, which parse them themselves.
#[derive(Args, Debug)]
pub struct SimArgs {
    /// Arguments of the command
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
}

/// Whom a program runs as (`--user`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramUser {
    /// A user that no other run has.
    Own,
    /// This user with this group, by their numbers; 0 is root.
    Known {
        /// The user.
        user: u32,
        /// The group.
        group: u32,
    },
}

/// Linux's list of users.
const USERS: &str = "/etc/passwd";

/// A user by its number, by its name or by a word. A number is its group's as well.
fn program_user(text: &str) -> Result<ProgramUser, String> {
    let known = |(user, group)| ProgramUser::Known { user, group };
    match text {
        "own" => Ok(ProgramUser::Own),
        "root" => Ok(known((0, 0))),
        // The last number is no user's (setresuid(2)).
        _ => match text.parse() {
            Ok(id) if id != u32::MAX => Ok(known((id, id))),
            _ => {
                let users = std::fs::read_to_string(USERS).unwrap_or_default();
                user_of(&users, text).map(known).ok_or_else(|| {
                    format!(
                        "{USERS} has no such user; name one that it has, a user's number (`id -u \
                         NAME` prints one), `own` or `root`"
                    )
                })
            }
        },
    }
}

/// Numbers of a user and its group in a list of users (passwd(5)).
fn user_of(users: &str, name: &str) -> Option<(u32, u32)> {
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    // Behind the name and the password.
    let mut numbers = line.split(':').skip(2).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// A number of bytes, with K, M or G for powers of 1024.
fn bytes(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 1 << 10),
        Some((at, 'M' | 'm')) => (&text[..at], 1 << 20),
        Some((at, 'G' | 'g')) => (&text[..at], 1 << 30),
        _ => (text, 1u64),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| "write a number of bytes, like 512M".to_owned())
}

/// A part of the wall by its name.
fn wall_part(name: &str) -> Result<WallPart, String> {
    let found = WallPart::ALL.into_iter().find(|part| part.name() == name);
    found.ok_or_else(|| {
        let all = WallPart::ALL.map(WallPart::name).join(", ");
        format!("the wall has no such part; its parts are {all}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names_and_numbers() {
        let known = |user, group| Ok(ProgramUser::Known { user, group });
        assert_eq!(program_user("own"), Ok(ProgramUser::Own));
        assert_eq!((program_user("root"), program_user("7")), (known(0, 0), known(7, 7)));
        for wrong in ["4294967295", "-1", "", "no such user"] {
            let why = program_user(wrong).expect_err("no user");
            assert!(why.contains("no such user") && why.contains("id -u"), "{wrong}: {why}");
        }
        let users = "root:x:0:0:root:/root:/bin/sh\nmemcache:x:104:110::/:/bin/false\nbad:x:a:1";
        assert_eq!(user_of(users, "memcache"), Some((104, 110)));
        for wrong in ["memcach", "bad", "", "x"] {
            assert_eq!(user_of(users, wrong), None, "{wrong}");
        }
    }
}
