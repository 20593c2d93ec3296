//! Checks of namespaces, TAP and AF_XDP, each opened in a new network namespace.
use super::{Check, State};
use ix_bench::lab::can_open_tap;
use ix_mem::{PacketMemory, Sizes};
use ix_netdev::{DeviceSpec, Namespace, OpenOptions, OpenedDevice, VethEnd};
use ix_nic::{RingSizes, Steering};
use ix_report::figure::plural;
use ix_report::machine::read;
use ix_sys::user_namespace;

const NEAR: &str = "ix-doctor0";
const FAR: &str = "ix-doctor1";
const AS_ROOT: &str = "sudo ix doctor";
const TRIAL_FRAMES: usize = 1024;

/// Whether a user without root can have a private link.
pub(super) fn user_namespaces() -> Check {
    match user_namespace::try_enter() {
        Ok(()) => Check::ok("userns", "`ix demo` and `ix bench` work without root, on tap"),
        Err(e) => {
            let limit = read("/proc/sys/user/max_user_namespaces");
            let mend = match limit.as_str() {
                "0" => "sysctl user.max_user_namespaces=10000",
                _ => {
                    "sysctl kernel.unprivileged_userns_clone=1 \
                      kernel.apparmor_restrict_unprivileged_userns=0"
                }
            };
            Check::limited("userns", format!("{e}: private links need root")).mend(mend)
        }
    }
}

/// Must run before the process has a second thread: without root it moves into a user namespace.
pub(super) fn checks() -> Vec<Check> {
    let mut checks = vec![interfaces(), memif()];
    let root = ix_sys::process::is_root();
    let namespace = if root { Ok(()) } else { user_namespace::enter() };
    match namespace.and_then(|()| Namespace::new()) {
        Err(e) => {
            for name in ["tap", "steering", "run", "afxdp"] {
                checks.push(Check::missing(name, format!("not tried: {e}")).mend(AS_ROOT));
            }
        }
        Ok(namespace) => {
            checks.extend(tap(&namespace, root));
            checks.push(run(&namespace));
            checks.extend(afxdp(&namespace));
        }
    }
    checks
}

/// Lists the interfaces that a dataplane could use.
fn interfaces() -> Check {
    let list = || {
        let here = Namespace::current()?;
        let links = here.links()?;
        let describe = |name: &str| {
            let driver = here.driver(name).unwrap_or_else(|_| "no driver".to_owned());
            let queues = here.channels(name).map_or(1, |c| c.rx.max(c.combined).max(1));
            let queues = plural(queues as usize, "queue");
            let interface = ix_sys::Interface::new(name);
            let rss = interface.ok().and_then(|interface| interface.rss());
            let table = match rss {
                Some(rss) => format!("redirection table of {} entries", rss.table.len()),
                None => "no redirection table: software steers flow groups".to_owned(),
            };
            format!("{name} ({driver}, {queues}, {table})")
        };
        let names = links.iter().filter(|link| link.name != "lo");
        Ok(names.map(|link| describe(&link.name)).collect::<Vec<_>>())
    };
    match list() {
        Ok(names) if names.is_empty() => {
            Check::limited("interfaces", "this machine has only the loopback interface")
        }
        Ok(names) => Check::ok("interfaces", names.join(", ")),
        Err(e) => Check::limited("interfaces", ix_sys::Error::to_string(&e)),
    }
}

/// Checks that memory can be shared with another process, which is all that memif needs.
fn memif() -> Check {
    let sizes = Sizes { rx_frames: TRIAL_FRAMES, tx_frames: TRIAL_FRAMES, arena_bytes: 0 };
    match ix_mem::MemoryFds::new(sizes) {
        Ok(_) => Check::ok("memif", "memory can be shared with another process on this machine"),
        Err(e) => Check::missing("memif", e.to_string()),
    }
}

fn tap(namespace: &Namespace, root: bool) -> Vec<Check> {
    let without =
        |check| vec![check, Check::missing("steering", "not tried: no tap could be opened")];
    if let Err(problem) = can_open_tap() {
        return without(Check::missing("tap", problem.reason()).mend(problem.what_mends()));
    }
    let opened = match open(namespace, "tap:ix-doctor,queues=2") {
        Err(why) => return without(Check::missing("tap", why)),
        Ok(opened) => opened,
    };
    let steering = if opened.info.steering == Steering::Table {
        Check::ok("steering", "TAP queues follow IX's redirection table")
    } else {
        let mend = if root { "" } else { AS_ROOT };
        Check::limited("steering", opened.info.mode.clone()).mend(mend)
    };
    let place = if root { "" } else { " in a user namespace, enough for demo and benchmarks" };
    vec![Check::ok("tap", format!("a device with two queues was opened{place}")), steering]
}

/// Runs `/bin/true` on a dataplane.
fn run(namespace: &Namespace) -> Check {
    let Ok(ix) = std::env::current_exe() else {
        return Check::missing("run", "cannot find the executable of ix");
    };
    let mut command = namespace.command(ix, None);
    command.args(["run", "--domain", "none", "--nic", "tap:ix-doctor", "--addr", "10.65.0.2/24"]);
    command.args(["--", "/bin/true"]);
    match command.output() {
        Ok(output) if output.status.success() => {
            Check::ok("run", "a program ran with the dataplane in its process")
        }
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            let last = errors.lines().last().unwrap_or("it printed nothing").to_owned();
            Check::missing("run", last.trim_start_matches("ix: "))
        }
        Err(e) => Check::missing("run", e.to_string()),
    }
}

/// Checks a socket in each mode on a virtual Ethernet pair.
fn afxdp(namespace: &Namespace) -> Vec<Check> {
    let pair = namespace
        .add_veth(&VethEnd::new(NEAR), namespace, &VethEnd::new(FAR))
        .and_then(|()| namespace.set_up(NEAR, true))
        .and_then(|()| namespace.set_up(FAR, true));
    if let Err(e) = pair {
        return vec![Check::missing("afxdp", e.to_string()).mend("modprobe veth")];
    }
    let tries = [
        ("copy", "afxdp-native", "the driver runs the XDP program before Linux sees a packet"),
        ("generic", "afxdp-generic", "works on every interface, but slower"),
        ("zerocopy", "afxdp-zerocopy", "the device writes into IX's packet memory"),
    ];
    let results: Vec<_> = tries
        .into_iter()
        .map(|(mode, name, meaning)| (name, meaning, bind(namespace, mode)))
        .collect();
    let summary = match results.iter().find(|(_, _, result)| result.is_ok()) {
        Some((_, _, Ok(mode))) => Check::ok("afxdp", format!("on veth: {mode}")),
        _ => {
            let why = results.iter().find_map(|(_, _, r)| r.clone().err()).unwrap_or_default();
            Check::missing("afxdp", why).mend(AS_ROOT)
        }
    };
    let some_work = summary.state != State::Missing;
    let each = results.into_iter().map(|(name, meaning, result)| match result {
        Ok(_) => Check::ok(name, meaning),
        Err(why) if some_work && name == "afxdp-zerocopy" => {
            let why = format!("not on veth ({why}); depends on the network card's driver");
            Check::limited(name, why)
        }
        Err(why) => Check::missing(name, why),
    });
    std::iter::once(summary).chain(each).collect()
}

fn open(namespace: &Namespace, spec: &str) -> Result<OpenedDevice, String> {
    let spec: DeviceSpec = spec.parse().map_err(|e| format!("{e}"))?;
    let options = OpenOptions {
        addresses: vec![ix_wire::IpAddr::v4([10, 65, 0, 2])],
        ..OpenOptions::default()
    };
    namespace.run(|| ix_netdev::open(&spec, &options)).map_err(|e| e.to_string())
}

/// Opens a socket in one mode, binds it to our memory, and lets packets in.
fn bind(namespace: &Namespace, mode: &str) -> Result<String, String> {
    let mut opened = open(namespace, &format!("afxdp:{NEAR},mode={mode}"))?;
    let sizes = Sizes { rx_frames: TRIAL_FRAMES, tx_frames: TRIAL_FRAMES, arena_bytes: 0 };
    let memory = PacketMemory::new(sizes).map_err(|e| e.to_string())?;
    let (mut pool, _) = memory.take_pools().ok_or("no frames")?;
    let fds = std::mem::take(&mut opened.queue_fds);
    let rings = RingSizes { rx: 256, fill: 512, tx: 256 };
    let nic = ix_nic::attach(&opened.info, 0, fds, &memory, &mut pool, rings)
        .map_err(|e| e.to_string())?;
    opened.finish(0).map_err(|e| e.to_string())?;
    Ok(nic.info().mode.clone())
}
