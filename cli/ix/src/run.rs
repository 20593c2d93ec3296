//! `ix run`: a program on a dataplane of its own.
//!
//! Checks everything before it touches anything, opens the devices (which needs privilege), and
//! becomes the program's broker; ends as the program ends.
use crate::args::{Entry, RunArgs};
use crate::image::IMAGE;
use crate::isn_key;
use crate::settings::{Settings, vnic_refused};
use ix_broker::link_rates::LinkRates;
use ix_broker::run::{Broker, Outfit};
use ix_broker::vnic::Vnic;
use ix_controller::linux::{Latency, Tree};
use ix_ctl::cp::Embedded;
use ix_netdev::Namespace;
use ix_netdev::{DeviceSpec, OpenError, OpenOptions, OpenedDevice, SharedMemory};
use ix_report::domain::Domain;
use ix_report::problem::{Problem, Result, STATUS_NOT_EXECUTABLE, STATUS_NOT_FOUND};
use ix_report::report::write_json;
use ix_sys::limits::{self, Limit, Resource};
use ix_sys::{Interface, process, random};
use ix_vnic::Gate;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the XDP program of a killed process may stay.
const LEAVING: Duration = Duration::from_millis(200);

/// Runs it; answers the program's exit status.
pub fn main(args: &RunArgs) -> Result<u8> {
    let settings = Settings::from_args(args)?;
    if let Some(policy) = &args.policy {
        Embedded::check(policy, args.slo_us)?;
    }
    let specs = device_specs(&settings)?;
    let program = find_program(args.program.first().map_or(OsStr::new(""), |p| p))?;
    has_descriptors(&program)?;
    let walled = domain_of(args.domain)? == Domain::Pku;
    if walled {
        raise_descriptors();
    }
    let preload = crate::posix::preload(args.posix, &program, &settings, walled)?;
    let mut keys = Keys::random()?;
    let kept = ix_broker::control::folder().ok();
    keys.isn_secret =
        isn_key::of_addresses(kept.as_deref(), &settings.addresses(), keys.isn_secret);
    let domain = if walled { ix_launch::Domain::Pku } else { ix_launch::Domain::None };
    let entry = match args.entry {
        Entry::Planted => ix_launch::Entry::Planted,
        Entry::Loading => ix_launch::Entry::Loading,
    };
    let user = if walled { user_of(args.user)? } else { None };
    let (cpus, access, gate) = (settings.cpus(), settings.access.clone(), settings.gate());
    let left_out = args.without.as_ref().map_or(String::new(), |part| {
        eprintln!("ix: the wall stands without its {part}: the program can get through");
        format!("without={part}\n")
    });
    let again: Box<dyn Fn() -> Result<Outfit>> = Box::new(move || {
        let memory = shared_memory(&specs, &settings)?;
        let devices = open_devices(&specs, &settings, &keys, &memory)?;
        let mut text = dataplane_text(&settings, &keys, &devices);
        text.push_str(&left_out);
        let shares = devices.iter().any(OpenedDevice::shares_memory);
        let memory = memory.map(|memory| memory.fd).filter(|_| shares);
        Ok(Outfit { text, devices, memory })
    });
    let outfit = again()?;
    let vnic = vnic(&gate, cpus.len(), &outfit.devices)?;
    match user {
        _ if !walled => eprintln!("ix: domain none: the program can touch the dataplane's memory"),
        Some((user, _)) => {
            eprintln!("ix: domain pku: the program runs as user {user}")
        }
        None => eprintln!("ix: domain pku"),
    }
    let name = program.display().to_string();
    shared_cpus(&cpus).iter().for_each(|line| eprintln!("ix: {line}"));
    let argv = args.program.clone();
    let wake_ups = WakeUps::bound(&cpus, args.wake_us)?;
    let broker = Broker {
        image: IMAGE,
        program,
        args: argv,
        cpus,
        outfit,
        again,
        access,
        preload,
        domain,
        entry,
        vnic,
        user,
    };
    let mut running = broker.start(args.control.as_deref())?;
    let controller = args
        .policy
        .as_ref()
        .map(|policy| Embedded::start(policy, args.slo_us, running.control_path().to_owned()));
    let controller = controller.transpose()?;
    let exit = running.wait()?;
    running.close_devices();
    drop(wake_ups);
    ix_broker::leftovers::reap();
    drop(controller);
    if let Some(path) = &args.stats {
        write_json(path, &running.snapshot())?;
    }
    if exit.is_crash() {
        eprintln!("ix: {name} crashed: {exit}{}", running.where_it_faulted(exit));
    }
    Ok(exit.status())
}

/// Bounds on how long hardware threads take to wake, as long as this is there.
struct WakeUps(Latency);

impl WakeUps {
    fn bound(cpus: &[usize], most_us: Option<u32>) -> Result<WakeUps> {
        let mut latency = Latency::new(&Tree::default());
        latency.heal();
        if let Some(us) = most_us {
            if let Some(why) = latency.missing() {
                eprintln!("ix: --wake-us changes nothing here: {why}");
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

/// The wall that is asked for, which must be possible here; a program without one is only for who asks for
/// it.
fn domain_of(wanted: Option<Domain>) -> Result<Domain> {
    if wanted == Some(Domain::None) {
        return Ok(Domain::None);
    }
    let Some(why) = crate::doctor::wall::lacking() else { return Ok(Domain::Pku) };
    let what = match wanted {
        Some(_) => "cannot use --domain pku",
        None => "cannot keep the program out of its dataplane's memory",
    };
    Err(Problem::new(what, why)
        .mend("say --domain none, with which the program can touch that memory"))
}

/// The vNIC with the filters and rates of the configuration.
fn vnic(gate: &Gate, queues: usize, devices: &[OpenedDevice]) -> Result<Vnic> {
    let mut vnic = Vnic::new(gate, queues).map_err(vnic_refused)?;
    // Only a real interface's speed says anything; a tap's is a number that somebody has set.
    let real = devices.iter().filter(|device| device.info.kind == "afxdp");
    let speed = |device: &OpenedDevice| Interface::new(&device.info.name).ok()?.speed_bits_per_s();
    vnic.set_link(real.filter_map(speed).min()).map_err(vnic_refused)?;
    if let [device] = devices {
        let link = Namespace::current().and_then(|here| here.link(&device.info.name));
        let alias = link.ok().flatten().map_or(String::new(), |link| link.alias);
        vnic.set_link_rates(LinkRates::read(&alias));
    }
    Ok(vnic)
}

/// The dataplane's descriptors have numbers of their own, beside those that the program can have.
fn has_descriptors(program: &Path) -> Result<()> {
    const LEAST: u64 = 2 * ix_launch::RESERVED_FDS as u64;
    let few = limits::get(Resource::Descriptors).ok().filter(|limit| limit.soft < LEAST);
    let Some(limit) = few else { return Ok(()) };
    let why = format!("{} descriptors are few: the dataplane alone has 64", limit.soft);
    Err(Problem::new(format!("cannot run {}", program.display()), why).mend("ulimit -n 1024"))
}

/// Behind the wall a program cannot have the numbers from its soft limit on, where the dataplane's
/// descriptors lie: so that lies where its hard limit allows.
fn raise_descriptors() {
    // More make the kernel's table, which each fork copies, long for nothing.
    const ENOUGH: u64 = 16384;
    // Where it is not allowed all stays as it is.
    if let Ok(limit) = limits::get(Resource::Descriptors)
        && limit.soft < ENOUGH
    {
        let _ = limits::set(Resource::Descriptors, Limit { soft: limit.hard.min(ENOUGH), ..limit });
    }
}

/// Whom a program behind the wall runs as: never root, and never with what root leaves it.
fn user_of(wanted: Option<u32>) -> Result<Option<(u32, u32)>> {
    const NOBODY: u32 = 65534;
    let own = process::user_id();
    match wanted.unwrap_or(NOBODY) {
        0 => {
            Err(Problem::new("cannot run it as root with --domain pku", "root owns its processes")
                .mend("name another user with --user"))
        }
        user if own == 0 => Ok(Some((user, user))),
        _ => Ok(None),
    }
}

/// A line for each hardware thread that several elastic threads are to share.
fn shared_cpus(cpus: &[usize]) -> Vec<String> {
    let count = |cpu: usize| cpus.iter().filter(|other| **other == cpu).count();
    let mut shared: Vec<usize> = cpus.iter().copied().filter(|cpu| count(*cpu) > 1).collect();
    shared.sort_unstable();
    shared.dedup();
    let line = |cpu: usize| {
        let threads = count(cpu);
        format!(
            "hardware thread {cpu} is shared by {threads} elastic threads: they take turns, and wait"
        )
    };
    shared.into_iter().map(line).collect()
}

/// Reads the device specifications. Where one does not say how many queues, it gets one for each
/// elastic thread.
fn device_specs(settings: &Settings) -> Result<Vec<DeviceSpec>> {
    let threads = settings.cpus().len();
    let mut specs: Vec<DeviceSpec> = Vec::new();
    for text in &settings.devices {
        let says = text.split(',').any(|word| word.starts_with("queues="));
        let full = if says { text.clone() } else { format!("{text},queues={threads}") };
        let spec: DeviceSpec = full.parse().map_err(|_| {
            // What the user wrote must stand in the message, not what we made of it.
            let why = text.parse::<DeviceSpec>().err().map_or(String::new(), |e| e.to_string());
            Problem::new("cannot use a device", why)
        })?;
        if spec.queues() != threads {
            let why = format!("it has {} queues for {threads} elastic threads", spec.queues());
            return Err(Problem::new(format!("cannot use the device `{text}`"), why)
                .mend(format!("say queues={threads}, or other --cpus")));
        }
        if specs.iter().any(|other| other.name() == spec.name()) {
            let why = "it is named twice";
            return Err(Problem::new(format!("cannot use the device `{text}` twice"), why));
        }
        specs.push(spec);
    }
    Ok(specs)
}

/// The program's file: as it is named with a slash, else along PATH.
fn find_program(name: &OsStr) -> Result<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let what = || format!("cannot run {}", name.to_string_lossy());
    let path = if name.as_bytes().contains(&b'/') {
        PathBuf::from(name)
    } else {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let mut found = std::env::split_paths(&folders).map(|folder| folder.join(name));
        found.find(|path| is_executable(path)).ok_or_else(|| {
            Problem::new(what(), "no such program along PATH")
                .mend("give its path")
                .with_status(STATUS_NOT_FOUND)
        })?
    };
    let metadata = path.metadata().map_err(|e| {
        Problem::new(what(), e).mend("check the path").with_status(STATUS_NOT_FOUND)
    })?;
    let refuse = |why: &str| Problem::new(what(), why).with_status(STATUS_NOT_EXECUTABLE);
    if metadata.is_dir() {
        return Err(refuse("it is a folder").mend("name a program"));
    }
    if !is_executable(&path) {
        return Err(refuse("it is not executable").mend(format!("chmod +x {}", path.display())));
    }
    Ok(path)
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Secrets of one run.
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

    /// The flow hash's key as two numbers, as `ix_dataplane::Config` reads it from its text.
    fn flow_hash_key(&self) -> [u64; 2] {
        let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| self.flow_hash[at + i]));
        [half(0), half(8)]
    }
}

/// Packet memory that a peer may be let into, where a device is of that kind.
fn shared_memory(specs: &[DeviceSpec], settings: &Settings) -> Result<Option<SharedMemory>> {
    if !specs.iter().any(|spec| spec.to_string().starts_with("memif:")) {
        return Ok(None);
    }
    let sizes = settings.memory_sizes();
    let fd = ix_mem::memory_fd(sizes).map_err(|e| Problem::new("no packet memory", e))?;
    Ok(Some(SharedMemory { fd: Arc::new(fd), sizes }))
}

fn open_devices(
    specs: &[DeviceSpec],
    settings: &Settings,
    keys: &Keys,
    memory: &Option<SharedMemory>,
) -> Result<Vec<OpenedDevice>> {
    let options = OpenOptions {
        addresses: settings.addresses().iter().map(|a| ix_wire::IpAddr::v4(a.octets())).collect(),
        flow_hash_key: keys.flow_hash_key(),
        filters: ix_broker::vnic::receive_filters(&settings.gate()),
        memory: memory.clone(),
        has_keeper: true,
    };
    let open = |spec| {
        open_once_free(spec, &options).map_err(|e| Problem::new(format!("cannot open {spec}"), e))
    };
    specs.iter().map(open).collect()
}

/// Of an `ix run` that was just killed, the XDP program is there a moment longer.
fn open_once_free(
    spec: &DeviceSpec,
    options: &OpenOptions,
) -> std::result::Result<OpenedDevice, OpenError> {
    let end = Instant::now() + LEAVING;
    loop {
        match ix_netdev::open(spec, options) {
            Err(OpenError::ProgramPresent { .. }) if Instant::now() < end => {
                std::thread::sleep(LEAVING / 20);
            }
            outcome => return outcome,
        }
    }
}

/// The configuration as the dataplane reads it: settings, secrets, one line a device.
fn dataplane_text(settings: &Settings, keys: &Keys, devices: &[OpenedDevice]) -> String {
    let hex = |bytes: &[u8; 16]| format!("{:032x}", u128::from_be_bytes(*bytes));
    // What the vNIC has comes with what is in force when a dataplane begins.
    let lines = settings.text();
    let of_vnic = |line: &&str| !line.starts_with("vnic_");
    let mut text: String = lines.lines().filter(of_vnic).flat_map(|line| [line, "\n"]).collect();
    text.push_str(&format!("flow_hash_key={}\n", hex(&keys.flow_hash)));
    text.push_str(&format!("secret={}\n", hex(&keys.secret)));
    text.push_str(&format!("isn_secret={}\n", hex(&keys.isn_secret)));
    for device in devices {
        text.push_str(&format!("nic={}\n", device.info.to_line()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        assert_eq!(find_program("/bin/sh".as_ref()).expect("found"), Path::new("/bin/sh"));
        assert!(find_program("sh".as_ref()).expect("along PATH").is_absolute());
        for (name, status) in [
            ("no-such-program", STATUS_NOT_FOUND),
            ("/no/such", STATUS_NOT_FOUND),
            ("", STATUS_NOT_FOUND),
            ("/etc", STATUS_NOT_EXECUTABLE),
            ("/etc/passwd", STATUS_NOT_EXECUTABLE),
        ] {
            assert_eq!(find_program(name.as_ref()).expect_err(name).status(), status, "{name}");
        }
    }

    #[test]
    fn devices_have_a_queue_for_each_elastic_thread() {
        let settings = |devices: &[&str]| Settings::for_test("0,1", devices);
        let specs = device_specs(&settings(&["tap:a", "tap:b,queues=2"])).expect("fine");
        assert!(specs.iter().all(|spec| spec.queues() == 2));
        for (wrong, says) in [
            (&["tap:a,queues=1"][..], "1 queues for 2"),
            (&["tap:a", "tap:a"], "twice"),
            (&["dpdk:a"], "`dpdk:a`: no such kind"),
        ] {
            let e = device_specs(&settings(wrong)).expect_err("refused").to_string();
            assert!(e.contains(says), "{e}");
        }
    }
}
