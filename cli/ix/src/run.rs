//! `ix run`: runs a program on its own dataplane.
//!
//! Checks everything before it changes anything, opens the devices (which needs privilege), and
//! becomes the program's broker. Ends when the program ends.
use crate::args::{Entry, ProgramUser, RunArgs};
use crate::hints;
use crate::image::IMAGE;
use crate::isn_key;
use crate::program_file::find_program;
use crate::settings::{Settings, vnic_refused};
use crate::sharing::Sharing;
use crate::{linux_address, linux_firewall, tap_network};
use ix_broker::group::{Bounds, Group};
use ix_broker::link_rates::LinkRates;
use ix_broker::marks::{Marks, Whose};
use ix_broker::own_user::OwnUser;
use ix_broker::program_root::ProgramRoot;
use ix_broker::run::{Again, Broker, DataplaneSetup};
use ix_broker::service_manager::ServiceManager;
use ix_broker::vnic::Vnic;
use ix_broker::warden::Warden;
use ix_controller::linux::{Latency, Tree};
use ix_ctl::cp::Embedded;
use ix_entry::ReservedFds;
use ix_netdev::Namespace;
use ix_netdev::{DeviceSpec, HeldPorts, OpenError, OpenOptions, OpenedDevice, SharedMemory};
use ix_proto::Config;
use ix_proto::config::{Addr6, WallPart, queues_max};
use ix_proto::device::{NicInfo, NicKind};
use ix_report::domain::Domain;
use ix_report::figure::plural;
use ix_report::output::write_json;
use ix_report::problem::{Problem, Result, STATUS_NOT_FOUND};
use ix_sys::limits::{self, Limit, Resource};
use ix_sys::process::{self, USERS_OF_IX};
use ix_sys::say;
use ix_sys::{Interface, random};
use ix_vnic::VnicRules;
use ix_wire::{IpAddr, ipv6};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The user of a program that cannot have one of its own.
const NOBODY: u32 = 65534;
/// Time that the XDP program of a killed process may take to go.
const LEAVING: Duration = Duration::from_millis(200);
/// The same of an interface that runs share: when its keeper was killed, they end first.
const RUNS_LEAVING: Duration = Duration::from_secs(2);

/// Runs the program; returns its exit status.
pub fn main(args: &RunArgs) -> Result<u8> {
    // The program may be of the same user, and this process has what it must not have.
    process::forbid_tracing().map_err(|e| Problem::new("cannot protect the broker", e))?;
    process::hide_user().map_err(|e| {
        Problem::new("cannot protect the broker from the program: root may not change its user", e)
            .mend("let it have CAP_SETUID and CAP_SETGID, or start `ix run` as another user")
    })?;
    args.log.apply();
    let mut settings =
        Settings::from_args(args).map_err(|problem| where_flags_stand(args, problem))?;
    if let Some(policy) = &args.policy {
        Embedded::check(policy, args.slo_us)?;
    }
    let manager =
        ServiceManager::find().map_err(|e| Problem::new("cannot tell the service manager", e))?;
    let specs = device_specs(&settings)?;
    if !args.take_address && !settings.config.shares_address {
        linux_address::refuse(&settings)?;
    }
    let program = find_program(args.program.first().map_or(OsStr::new(""), |p| p))?;
    let wall = domain_of(args.domain)?;
    if wall == Domain::Pku {
        raise_descriptors();
    }
    has_descriptors(&program, &specs, settings.cpus().len())?;
    let Whom { user, root, own_user } = whom(wall, args.user)?;
    let program_user = user.map_or(process::user_id(), |(user, _)| user);
    let interface = settings.interfaces().first().cloned().unwrap_or_default();
    if settings.config.shares_address {
        linux_firewall::check(&interface, args.ignore_firewall)?;
    } else if args.ignore_firewall {
        say!("--ignore-firewall does nothing here: it is for the address of Linux, without --addr");
    }
    let threads = settings.cpus().len();
    let sharing = Sharing::begin(&mut settings.config, &interface, program_user, threads)?;
    let cannot_use = crate::posix::cannot_use(args.posix, &program);
    let unused = crate::posix::why_unused(args.posix, &program, &settings);
    let helps = (root.as_ref(), sharing.as_ref());
    let how = (args.posix, crate::posix::syscalls(args.syscalls));
    let preload = crate::posix::preload(how, &program, &settings, wall, helps)?;
    let mut keys = Keys::random()?;
    let kept = ix_broker::control::folder().ok();
    keys.isn_secret =
        isn_key::of_addresses(kept.as_deref(), &settings.addresses(), keys.isn_secret);
    let domain = match wall {
        Domain::None => ix_launch::Domain::None,
        Domain::Process => ix_launch::Domain::Process,
        Domain::Pku => ix_launch::Domain::Pku,
    };
    let entry = match args.entry {
        Entry::Planted => ix_launch::Entry::Planted,
        Entry::Loading => ix_launch::Entry::Loading,
    };
    let program_cpus = match wall {
        Domain::Process => program_cpus(&settings.cpus(), args.program_cpus.as_deref())?,
        _ => Vec::new(),
    };
    let group = Group::make(&Bounds {
        pids: args.pids_max,
        memory_bytes: args.memory_max,
        takes_turns: program_cpus.len() == 1 && program_cpus == settings.cpus(),
        has_dataplane: wall != Domain::Process,
        cpus: program_cpus.clone(),
    })?;
    let marks = marks(program_user, root.as_ref(), own_user.as_ref())?;
    let mut warden = keeps(root.as_ref(), own_user.as_ref())
        .and_then(|keeps| Warden::start(&group, &marks, keeps, &["warden"]))
        .map_err(|e| Problem::new("cannot start the process that ends what a run leaves", e))?;
    let (cpus, access, rules) =
        (settings.cpus(), settings.access.clone(), settings.config.vnic_rules.clone());
    let without: Vec<WallPart> = args.without.into_iter().collect();
    for part in &without {
        let part = part.name();
        say!("the wall is incomplete, without its {part}: the program can access the dataplane");
    }
    let no_filters = why_no_filters(&settings);
    let elsewhere = tap_network::elsewhere(&settings);
    let ports = sharing.as_ref().map(Sharing::ports);
    let typed: Vec<(String, String)> = specs
        .iter()
        .zip(&settings.devices)
        .map(|(spec, text)| (spec.name().to_owned(), settings.source.device(text)))
        .collect();
    let again: Again = Box::new(move |arena| {
        let memory = shared_memory(&specs, &settings, wall, arena)?;
        let ports = sharing.as_ref().map(Sharing::ports);
        let devices = open_devices(&specs, &settings, &keys, (&memory, ports))?;
        let shared = sharing.as_ref().map(|sharing| sharing.address(&devices)).transpose()?;
        let config = Config {
            flow_hash_key: keys.flow_hash_key(),
            secret: keys.secret,
            isn_secret: keys.isn_secret,
            ..settings.config.clone()
        };
        let shares = wall == Domain::Process || devices.iter().any(OpenedDevice::shares_memory);
        let memory = memory.filter(|_| shares);
        let (without, shared) = (without.clone(), shared.flatten());
        Ok(DataplaneSetup { config, without, devices, memory, shared })
    });
    let setup = again(None)?;
    let mut vnic = vnic(&rules, cpus.len(), &setup.devices)?;
    if let Some(why) = no_filters {
        vnic.refuse_filters(why);
    }
    match wall {
        Domain::None => {
            say!("domain none: the program can access the dataplane's memory");
            let is_root = |user: &ProgramUser| matches!(user, ProgramUser::Known { user: 0, .. });
            let wanted = args.user.filter(|user| !is_root(user));
            if wanted.is_some() && process::is_root() {
                say!(
                    "--user does nothing with --domain none: the program runs as root, in the \
                     process of its dataplane; leave --domain none out to have it run as that user"
                );
            }
        }
        Domain::Process => {
            let s = if program_cpus.len() == 1 { "" } else { "s" };
            let cpus = listed(&program_cpus);
            let user = user.map_or(String::new(), |(user, _)| format!(" as user {user}"));
            say!("domain process: the program runs{user} on hardware thread{s} {cpus}");
        }
        Domain::Pku => match user {
            Some((user, _)) => say!("domain pku: the program runs as user {user}"),
            None => say!("domain pku"),
        },
    }
    if let Some(line) = line_about_root(wall, user, root.is_some()) {
        say!("{line}");
    }
    if root.as_ref().is_some_and(|root| !root.is_scoped()) {
        say!(
            "this kernel cannot keep signals of the program from other processes (Linux 6.12 \
             with Landlock does): it can end its dataplane, and root's processes; name another \
             user with --user to prevent that"
        );
    }
    let name = program.display().to_string();
    shared_cpus(&cpus).iter().for_each(|line| say!("{line}"));
    elsewhere.iter().for_each(|line| say!("{line}"));
    if let Some(hint) = hints::more_threads(&args.program, cpus.len(), &ix_sys::cpu::allowed()) {
        say!("{hint}");
    }
    let argv = args.program.clone();
    let wake_ups = WakeUps::bound(&cpus, args.wake_us)?;
    let broker = Broker {
        image: IMAGE,
        program,
        args: argv,
        cpus,
        setup,
        again,
        access,
        preload,
        domain,
        entry,
        vnic,
        user,
        root,
        group,
        marks,
        program_cpus,
        manager,
    };
    let blame = |problem| blame_device(problem, &typed);
    let mut running = broker.start(args.control.as_deref()).map_err(blame)?;
    warden.has_channel(running.channel_inode());
    let controller = args
        .policy
        .as_ref()
        .map(|policy| Embedded::start(policy, args.slo_us, running.control_path().to_owned()));
    let controller = controller.transpose()?;
    let exit = running.wait();
    running.close_devices();
    // Linux has all of them when this process has ended.
    ports.iter().for_each(|ports| ports.leave());
    let exit = exit.map_err(blame)?;
    drop((wake_ups, own_user, warden));
    if wall != Domain::Process {
        // There a child that is left may be the survivor, which must end; here it is a daemon.
        ix_broker::leftovers::reap();
    }
    drop(controller);
    if let Some(path) = &args.stats {
        let look = serde_json::to_value(running.snapshot());
        let problem = |e| Problem::new("cannot write what the dataplane says", e);
        write_json(path, &look.map_err(problem)?)?;
    }
    if exit.is_crash() {
        say!("{name} crashed: {exit}{}", running.where_it_faulted(exit));
    }
    if cannot_use || !running.has_begun() {
        let refused = running.refused_bind().filter(|_| !cannot_use);
        let unused = match refused {
            Some(refused) => crate::posix::why_refused(refused.errno, refused.port),
            None => unused,
        };
        if args.require_ix {
            return Err(unused);
        }
        // It may have refused a flag that was meant for `ix run`.
        let meant = ["--nic", "--addr", "--cpus", "--user", "--domain", "--ignore-firewall"];
        if exit.status() != 0
            && let Some(hint) = crate::command_line::behind_the_program(&args.program, &meant)
        {
            say!("hint: {hint}, if it was meant for `ix run`");
        }
        // What could not even start has said why, and a port that was refused is told once.
        if exit.status() != STATUS_NOT_FOUND && !refused.is_some_and(|refused| refused.told) {
            say!("{unused}");
        }
    }
    Ok(exit.status())
}

/// A dataplane that cannot use a device says so of the interface, and what cannot run then is the
/// program. What was wrong is the device, as the user typed it.
fn blame_device(problem: Problem, typed: &[(String, String)]) -> Problem {
    let is_of = |(name, _): &&(String, String)| problem.why().contains(&format!("`{name}`"));
    let Some((_, device)) = typed.iter().find(is_of) else { return problem };
    if !problem.what().starts_with("cannot run ") {
        return problem;
    }
    Problem::new(format!("cannot use {device}"), problem.why())
        .mend(problem.what_mends())
        .with_status(problem.status())
}

/// A problem of settings, which may be that a flag stands behind the program.
fn where_flags_stand(args: &RunArgs, problem: Problem) -> Problem {
    let lacks = [
        ("--nic", args.nic.is_empty()),
        ("--addr", args.addr.is_none()),
        ("--config", args.config.is_none()),
    ];
    let lacks: Vec<&str> = lacks.into_iter().filter(|(_, lacks)| *lacks).map(|(f, _)| f).collect();
    let is_of_these = lacks.iter().any(|flag| problem.why().contains(flag));
    match crate::command_line::behind_the_program(&args.program, &lacks) {
        Some(mend) if is_of_these => problem.mend(mend),
        _ => problem,
    }
}

/// Bounds on the time that hardware threads take to wake; dropping this lifts them.
struct WakeUps(Latency);

impl WakeUps {
    fn bound(cpus: &[usize], most_us: Option<u32>) -> Result<WakeUps> {
        let mut latency = Latency::new(&Tree::default());
        latency.heal();
        if let Some(us) = most_us {
            if let Some(why) = latency.missing() {
                say!("--wake-us has no effect on this machine: {why}");
            }
            for cpu in cpus {
                let bound = latency.bound(*cpu as u32, Some(us));
                bound.map_err(|e| Problem::new("cannot use --wake-us", e))?;
            }
        }
        Ok(WakeUps(latency))
    }
}

impl Drop for WakeUps {
    fn drop(&mut self) {
        self.0.restore();
    }
}

/// Returns the wall to use; fails if this machine lacks it. Every machine has that between
/// processes.
fn domain_of(wanted: Option<Domain>) -> Result<Domain> {
    let wanted = wanted.unwrap_or(Domain::Process);
    match crate::doctor::wall::lacking().filter(|_| wanted == Domain::Pku) {
        None => Ok(wanted),
        Some(why) => Err(Problem::new("cannot use --domain pku", why)
            .mend("leave --domain out: a process of its own protects the dataplane everywhere")),
    }
}

/// Why a dataplane cannot have filters.
fn why_no_filters(settings: &Settings) -> Option<&'static str> {
    if settings.config.shares_address {
        return Some("filters are for an address of IX's own, and this one is Linux's (--addr)");
    }
    (settings.config.addr6 == Addr6::Auto)
        .then_some("routers give the dataplane its addresses, and a filter names addresses (addr6)")
}

/// Makes the vNIC with the filters and rates of the configuration.
fn vnic(rules: &VnicRules, queues: usize, devices: &[OpenedDevice]) -> Result<Vnic> {
    let mut vnic = Vnic::new(rules, queues).map_err(vnic_refused)?;
    // Only a real interface knows its speed; a tap's speed is a number that somebody set.
    let real = devices.iter().filter(|device| matches!(device.info.kind, NicKind::Afxdp(_)));
    let speed = |device: &OpenedDevice| Interface::new(&device.info.name).ok()?.speed_bits_per_s();
    vnic.set_link(real.filter_map(speed).min()).map_err(vnic_refused)?;
    if let [device] = devices {
        let link = Namespace::current().and_then(|here| here.link(&device.info.name));
        let alias = link.ok().flatten().map_or(String::new(), |link| link.alias);
        vnic.set_link_rates(LinkRates::read(&alias));
    }
    Ok(vnic)
}

/// The dataplane's descriptors have their own numbers, besides those that the program may use.
fn has_descriptors(program: &Path, specs: &[DeviceSpec], threads: usize) -> Result<()> {
    let Ok(Limit { soft, .. }) = limits::get(Resource::Descriptors) else { return Ok(()) };
    let (has, what) =
        (ReservedFds::for_limit(soft).count(), format!("cannot run {}", program.display()));
    if soft < ReservedFds::LIMIT_MIN {
        let why = format!("the limit of {soft} descriptors is too low: the dataplane uses {has}");
        return Err(Problem::new(what, why).mend("ulimit -n 1024"));
    }
    let memory = if specs.iter().any(DeviceSpec::may_share_memory) { 3 } else { 0 };
    let queues: usize = specs.iter().map(DeviceSpec::sockets).sum();
    let needed = ReservedFds::needed(1 + memory + queues, threads);
    if needed <= has {
        return Ok(());
    }
    let why = format!(
        "{} and {} need {needed} descriptors, and of {soft} (ulimit -n) the dataplane has {has}",
        plural(threads, "elastic thread"),
        plural(specs.len(), "device"),
    );
    let fewer = "give fewer hardware threads with --cpus";
    Err(Problem::new(what, why).mend(match ReservedFds::limit_for(needed) {
        Some(limit) => format!("ulimit -n {limit}, or {fewer}"),
        None => fewer.to_owned(),
    }))
}

/// Behind the wall a program cannot use descriptor numbers from its soft limit on, where the
/// dataplane's descriptors are. So the soft limit is raised to the hard limit.
fn raise_descriptors() {
    // More would only enlarge the kernel's table, which each fork copies.
    const ENOUGH: u64 = 16384;
    // If the limit cannot be raised, it stays.
    if let Ok(limit) = limits::get(Resource::Descriptors)
        && limit.soft < ENOUGH
    {
        let _ = limits::set(Resource::Descriptors, Limit { soft: limit.hard.min(ENOUGH), ..limit });
    }
}

/// Whom a program runs as.
struct Whom {
    /// User and group, if they differ from the caller's.
    user: Option<(u32, u32)>,
    /// The namespace whose root it is.
    root: Option<ProgramRoot>,
    /// Keeps the user from other runs.
    own_user: Option<OwnUser>,
}

fn whom(wall: Domain, wanted: Option<ProgramUser>) -> Result<Whom> {
    let nobody_else = Whom { user: None, root: None, own_user: None };
    let is_root = process::is_root();
    match (wall, wanted) {
        (Domain::None, _) => Ok(nobody_else),
        (Domain::Process, None) => {
            let root = if is_root { ProgramRoot::make()? } else { None };
            Ok(Whom { root, ..nobody_else })
        }
        (Domain::Pku, None) => {
            let own_user = claim()?;
            let nobody = is_root.then_some((NOBODY, NOBODY));
            let user = own_user.as_ref().map(|user| (user.id(), user.id())).or(nobody);
            Ok(Whom { user, own_user, ..nobody_else })
        }
        (_, Some(ProgramUser::Own)) => {
            let why = "this takes root, in a user namespace that has users 61184 to 65520";
            let problem = || Problem::new("cannot give the program a user of its own", why);
            let user = claim()?.ok_or_else(|| problem().mend("start `ix run` as root"))?;
            Ok(Whom { user: Some((user.id(), user.id())), own_user: Some(user), ..nobody_else })
        }
        (_, Some(ProgramUser::Known { user, group })) => {
            may_be(wall, user)?;
            Ok(Whom { user: (is_root && user != 0).then_some((user, group)), ..nobody_else })
        }
    }
}

/// By what the program's processes are known.
fn marks(user: u32, root: Option<&ProgramRoot>, own_user: Option<&OwnUser>) -> Result<Marks> {
    let whose = match (root, own_user) {
        (Some(root), _) => Whose::Namespace(root.root().namespace().inode()),
        (None, Some(own)) => Whose::OwnUser(own.id()),
        (None, None) => Whose::User(user),
    };
    let mut word = [0; 8];
    random::fill(&mut word).map_err(|e| Problem::new("cannot draw a random number", e))?;
    Ok(Marks { whose, word: format!("{:016x}", u64::from_ne_bytes(word)), channel: None })
}

/// What must stay open so that no other run's processes have the user or the namespace: Linux gives
/// the number of a namespace that is gone to the next one.
fn keeps(root: Option<&ProgramRoot>, own: Option<&OwnUser>) -> std::io::Result<Vec<OwnedFd>> {
    match (root, own) {
        (Some(root), _) => Ok(vec![root.root().namespace().as_fd().try_clone_to_owned()?]),
        (None, Some(own)) => own.keep(),
        (None, None) => Ok(Vec::new()),
    }
}

fn claim() -> Result<Option<OwnUser>> {
    OwnUser::claim().map_err(|e| Problem::new("cannot give the program a user of its own", e))
}

/// Whether a program may run as the user of this number.
fn may_be(wall: Domain, id: u32) -> Result<()> {
    let refused = |why: &str| Problem::new(format!("cannot run the program as user {id}"), why);
    if id == 0 && wall == Domain::Pku {
        return Err(Problem::new(
            "cannot run as root with --domain pku",
            "root may trace any process",
        )
        .mend("give another user with --user"));
    }
    if USERS_OF_IX.contains(&id) {
        let (first, last) = (USERS_OF_IX.start(), USERS_OF_IX.end());
        let why = format!("users {first} to {last} are given out, each to one run");
        return Err(refused(&why).mend("name another user, or --user own"));
    }
    if !process::is_root() && id != process::user_id() {
        return Err(refused("only root can run a program as another user")
            .mend("leave --user out, or start `ix run` as root"));
    }
    Ok(())
}

/// What root's program must know of its rights, and of the wall.
fn line_about_root(wall: Domain, user: Option<(u32, u32)>, has_namespace: bool) -> Option<String> {
    let is_root = wall == Domain::Process && process::is_root() && user.is_none();
    let line = match has_namespace {
        true => {
            "the program runs as root of a user namespace, without root's rights over the system, \
             its network and its dataplane (--user root gives it those)"
        }
        false => {
            "the program runs as root, which may trace any process: the wall holds against its \
             unprivileged children only; name another user with --user"
        }
    };
    is_root.then(|| line.to_owned())
}

/// The hardware threads of a program whose dataplane has `cpus` and is another process: those that
/// the user names, else the others that it may use, else the same.
fn program_cpus(cpus: &[usize], wanted: Option<&str>) -> Result<Vec<usize>> {
    let allowed = ix_sys::cpu::allowed();
    let Some(text) = wanted else {
        let others: Vec<_> = allowed.into_iter().filter(|cpu| !cpus.contains(cpu)).collect();
        return Ok(if others.is_empty() { cpus.to_vec() } else { others });
    };
    let refused = |why: String| {
        Problem::new(format!("cannot use `--program-cpus {text}`"), why)
            .mend(format!("choose among {}", listed(&allowed)))
    };
    let wanted = ix_sys::cpu::parse_list(text).filter(|cpus| !cpus.is_empty());
    let wanted = wanted.ok_or_else(|| refused("it is not a list like 2,4-5".to_owned()))?;
    match wanted.iter().find(|cpu| !allowed.contains(cpu)) {
        None => Ok(without_repeats(wanted)),
        Some(cpu) => Err(refused(format!("hardware thread {cpu} is not one that it may use"))),
    }
}

fn without_repeats(mut cpus: Vec<usize>) -> Vec<usize> {
    cpus.sort_unstable();
    cpus.dedup();
    cpus
}

/// Numbers as the user gives them.
fn listed(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Returns a line for each hardware thread that several elastic threads share.
fn shared_cpus(cpus: &[usize]) -> Vec<String> {
    let count = |cpu: usize| cpus.iter().filter(|other| **other == cpu).count();
    let mut shared: Vec<usize> = cpus.iter().copied().filter(|cpu| count(*cpu) > 1).collect();
    shared.sort_unstable();
    shared.dedup();
    let line = |cpu: usize| {
        let threads = count(cpu);
        format!(
            "hardware thread {cpu} is shared by {threads} elastic threads, which run in turn and wait"
        )
    };
    shared.into_iter().map(line).collect()
}

/// Parses the device specifications. A device without `queues` gets one for each elastic thread.
fn device_specs(settings: &Settings) -> Result<Vec<DeviceSpec>> {
    let threads = settings.cpus().len();
    let mut specs: Vec<DeviceSpec> = Vec::new();
    for text in &settings.devices {
        let says = text.split(',').any(|word| word.starts_with("queues="));
        let what = format!("cannot use {}", settings.source.device(text));
        let spec: DeviceSpec = text.parse().map_err(|e| Problem::new(&what, e))?;
        let spec = if says { Ok(spec) } else { spec.with_queues(threads) }.map_err(|most| {
            let queues = plural(threads, "queue");
            let why = format!("{queues}, one for each elastic thread, at most {most}");
            Problem::new(&what, why).mend("give fewer hardware threads with --cpus")
        })?;
        if spec.queues() != threads {
            let queues = plural(spec.queues(), "queue");
            let why = format!("it has {queues} for {}", plural(threads, "elastic thread"));
            return Err(
                Problem::new(&what, why).mend(format!("use queues={threads}, or another --cpus"))
            );
        }
        specs.push(spec);
    }
    let queues: usize = specs.iter().map(DeviceSpec::sockets).sum();
    let most = queues_max(specs.len());
    if queues > most {
        let all: Vec<String> = settings.devices.iter().map(|d| format!("--nic {d}")).collect();
        let why = format!("{}: {queues} queues in all, at most {most}", all.join(" "));
        let fewer = match queues > threads * specs.len() {
            true => "fewer queues (ethtool -L)",
            false => "fewer hardware threads with --cpus",
        };
        return Err(Problem::new("cannot use the devices", why)
            .mend(format!("use fewer devices, or {fewer}")));
    }
    Ok(specs)
}

/// Random keys of one run.
struct Keys {
    flow_hash: [u8; 16],
    secret: [u8; 16],
    isn_secret: [u8; 16],
}

impl Keys {
    fn random() -> Result<Keys> {
        let mut bytes = [0u8; 48];
        random::fill(&mut bytes).map_err(|why| Problem::new("cannot draw random keys", why))?;
        let mut keys = Keys { flow_hash: [0; 16], secret: [0; 16], isn_secret: [0; 16] };
        keys.flow_hash.copy_from_slice(&bytes[..16]);
        keys.secret.copy_from_slice(&bytes[16..32]);
        keys.isn_secret.copy_from_slice(&bytes[32..]);
        Ok(keys)
    }

    /// Returns the flow hash's key as two numbers.
    fn flow_hash_key(&self) -> [u64; 2] {
        let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| self.flow_hash[at + i]));
        [half(0), half(8)]
    }
}

/// Makes the packet memory that a peer may map, if a device needs that (memif), or a program in
/// another process. `arena` is the program's transmit memory, if it has that already.
fn shared_memory(
    specs: &[DeviceSpec],
    settings: &Settings,
    wall: Domain,
    arena: Option<BorrowedFd<'_>>,
) -> Result<Option<SharedMemory>> {
    let sizes = ix_dataplane::memory_sizes(&settings.config);
    let apart = wall == Domain::Process;
    if !apart && !specs.iter().any(|spec| spec.to_string().starts_with("memif:")) {
        return Ok(None);
    }
    let fds = match apart {
        true => ix_mem::MemoryFds::for_another_process(sizes),
        false => ix_mem::MemoryFds::new(sizes),
    };
    let mut fds = fds.map_err(|e| Problem::new("cannot allocate packet memory", e))?;
    if let Some(arena) = arena {
        let copy = arena.try_clone_to_owned();
        fds.arena = copy.map_err(|e| Problem::new("cannot keep packet memory", e))?;
    }
    Ok(Some(SharedMemory { fds: Arc::new(fds), sizes }))
}

fn open_devices(
    specs: &[DeviceSpec],
    settings: &Settings,
    keys: &Keys,
    (memory, ports): (&Option<SharedMemory>, Option<Arc<HeldPorts>>),
) -> Result<Vec<OpenedDevice>> {
    // Those of Linux may have changed since.
    let shared = ports.as_ref().map(|ports| ports.addresses());
    let shared = shared.map(|all| all.into_iter().map(IpAddr::from).collect());
    let options = OpenOptions {
        addresses: shared.unwrap_or_else(|| settings.addresses()),
        // The dataplane says which, once it runs.
        groups: Vec::new(),
        broadcasts: settings.broadcasts(),
        flow_hash_key: keys.flow_hash_key(),
        filters: ix_broker::vnic::receive_filters(&settings.config.vnic_rules),
        memory: memory.clone(),
        shared: ports,
        has_keeper: true,
    };
    let open = |(spec, text): (&DeviceSpec, &String)| {
        let what = || format!("cannot open {}", settings.source.device(text));
        open_once_free(spec, &options).map_err(|e| Problem::new(what(), e))
    };
    let devices: Vec<OpenedDevice> =
        specs.iter().zip(&settings.devices).map(open).collect::<Result<_>>()?;
    if let Some(addr) = settings.addresses().iter().find(|addr| addr.is_v6()) {
        devices.iter().try_for_each(|device| carries_v6(&device.info, *addr))?;
    }
    Ok(devices)
}

/// Refuses a device that IPv6 cannot use.
fn carries_v6(device: &NicInfo, addr: IpAddr) -> Result<()> {
    let (name, mtu) = (&device.name, device.mtu);
    // RFC 8200 section 5.
    let least = ipv6::MTU_MIN;
    if mtu < usize::from(least) {
        let why = format!("IPv6 needs an MTU of {least}, and its MTU is {mtu}");
        return Err(Problem::new(format!("cannot use the address {addr} on {name}"), why)
            .mend(format!("ip link set {name} mtu {least}, or more")));
    }
    Ok(())
}

/// After an `ix run` was killed, its XDP program stays for a moment.
fn open_once_free(
    spec: &DeviceSpec,
    options: &OpenOptions,
) -> std::result::Result<OpenedDevice, OpenError> {
    let end = Instant::now() + if options.shared.is_some() { RUNS_LEAVING } else { LEAVING };
    loop {
        match ix_netdev::open(spec, options) {
            Err(OpenError::ProgramPresent { .. } | OpenError::SharedByRuns { .. })
                if Instant::now() < end =>
            {
                std::thread::sleep(LEAVING / 20);
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_a_queue_for_each_elastic_thread() {
        let settings = |devices: &[&str]| Settings::for_test("0,1", devices);
        let specs = device_specs(&settings(&["tap:a", "tap:b,queues=2"])).expect("fine");
        assert!(specs.iter().all(|spec| spec.queues() == 2));
        for (wrong, says) in [
            (&["tap:a,queues=1"][..], "it has 1 queue for 2 elastic threads"),
            (&["dpdk:a"], "no such kind"),
        ] {
            let e = device_specs(&settings(wrong)).expect_err("refused").to_string();
            assert!(e.contains(says), "{e}");
        }
        let cpus = |count: usize| vec!["0"; count].join(",");
        let many =
            |count, devices: &[&str]| device_specs(&Settings::for_test(&cpus(count), devices));
        assert!(many(128, &["tap:a"]).is_ok() && many(123, &["tap:a", "tap:b"]).is_ok());
        for (count, devices, says) in [
            (130, &["tap:a"][..], "130 queues, one for each elastic thread, at most 128"),
            (128, &["tap:a", "tap:b"], "--nic tap:a --nic tap:b: 256 queues in all, at most 247"),
            (17, &["memif:/tmp/a"], "17 queues, one for each elastic thread, at most 16"),
        ] {
            let e = many(count, devices).expect_err("refused").to_string();
            assert!(e.contains(says), "{e}");
        }
    }
}
