//! Checks of kernel, processor, memory, power and counters.
use super::Check;
use ix_mem::{MemoryFds, PacketMemory, PageKind, Sizes};
use ix_report::machine::{governor, read};
use ix_report::meter::Meter;
use ix_sys::cpu;
use ix_sys::limits::{self, Resource};
use std::io;
use std::path::Path;

/// Oldest kernel that IX supports: the first where the alternate signal stack may have another
/// protection key.
const KERNEL_MIN: (u32, u32) = (6, 12);
/// Packet memory of one elastic thread with the default numbers of frames, rounded up.
const MEMLOCK_WANTED: u64 = 256 << 20;

pub(super) fn checks() -> Vec<Check> {
    let mut checks = vec![
        kernel(),
        fsgsbase(),
        planting(),
        huge_pages(),
        memlock(),
        hardware_threads(),
        isolation(),
        frequency(),
        rapl(),
        counters(),
        congestion_control(),
    ];
    checks.extend(super::wall::checks());
    checks.extend(control());
    checks
}

/// Returns what policies of `ix cp` can use, besides clocks and energy.
fn control() -> Vec<Check> {
    let findings = ix_controller::linux::inspect(&ix_controller::linux::Tree::default());
    let others = findings.into_iter().filter(|f| !["clocks", "energy"].contains(&f.name));
    let check = |finding: ix_controller::linux::Finding| match finding.missing {
        None => Check::ok(finding.name, finding.note),
        Some(why) => Check::limited(finding.name, format!("{why}; {}", finding.note)),
    };
    others.map(check).collect()
}

fn kernel() -> Check {
    let release = read("/proc/sys/kernel/osrelease");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= KERNEL_MIN {
        return Check::ok("kernel", format!("Linux {release}"));
    }
    let why = format!("Linux {release}; IX needs {}.{} or later", KERNEL_MIN.0, KERNEL_MIN.1);
    Check::limited("kernel", why).mend("boot a newer kernel")
}

fn fsgsbase() -> Check {
    if ix_sys::probe::fsgsbase() {
        return Check::ok("fsgsbase", "programs can switch their thread-local storage");
    }
    let why =
        "the processor or the kernel lacks it; the gate between program and dataplane needs it";
    Check::missing("fsgsbase", why).mend("boot without `nofsgsbase`, on a processor that has it")
}

/// The dataplane gets into the program's process by ptrace of our own child.
fn planting() -> Check {
    match read("/proc/sys/kernel/yama/ptrace_scope").as_str() {
        "3" => Check::missing("planting", "Yama forbids tracing of every process")
            .mend("reboot with `kernel.yama.ptrace_scope` below 3"),
        _ => Check::ok("planting", "a process may trace its own children"),
    }
}

fn huge_pages() -> Check {
    let folder = "/sys/kernel/mm/hugepages/hugepages-2048kB";
    let free = read(format!("{folder}/free_hugepages"));
    let sizes = Sizes { rx_frames: 1, tx_frames: 1, arena_bytes: 1 };
    let memory = MemoryFds::new(sizes).and_then(|fds| PacketMemory::map(fds.as_fds(), sizes));
    match memory.map(|mut memory| memory.populate()) {
        Ok(PageKind::Huge2M) => Check::ok("hugepages", format!("{free} pages of 2 MB are free")),
        Ok(PageKind::Merged2M) => Check::ok("hugepages", "Linux merges pages into 2 MB on request"),
        small => {
            let why = match small {
                Err(e) => e.to_string(),
                Ok(_) => format!(
                    "{free} pages of 2 MB are free, and Linux does not merge pages on request"
                ),
            };
            let why = format!("{why}; packet memory uses pages of 4 KB");
            Check::limited("hugepages", why).mend("echo 256 > /proc/sys/vm/nr_hugepages")
        }
    }
}

fn memlock() -> Check {
    const CAP_IPC_LOCK: u32 = 14;
    if has_capability(CAP_IPC_LOCK) {
        return Check::ok("memlock", "no limit applies (CAP_IPC_LOCK)");
    }
    let limit = limits::get(Resource::LockedMemory).map_or(0, |limit| limit.soft);
    if limit >= MEMLOCK_WANTED {
        return Check::ok("memlock", "enough memory may be locked");
    }
    let why = format!("{} KB may be locked; AF_XDP locks its packet memory", limit >> 10);
    Check::limited("memlock", why).mend("ulimit -l unlimited (as root), or give CAP_IPC_LOCK")
}

/// Whether a capability is effective.
fn has_capability(number: u32) -> bool {
    let status = read("/proc/self/status");
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|set| set & 1 << number != 0)
}

fn hardware_threads() -> Check {
    let cpus = cpu::allowed();
    let siblings = |cpu: &usize| {
        let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        cpu::parse_list(&read(file)).unwrap_or_default()
    };
    let shared = cpus.iter().any(|cpu| siblings(cpu).iter().any(|s| s != cpu && cpus.contains(s)));
    let threads = if shared { "some share a core" } else { "none shares a core" };
    if cpus.len() > 1 {
        let count = cpus.len();
        let why = format!("this process may run on {count} hardware threads, {threads}");
        return Check::ok("cpus", why);
    }
    let why = "this process may run on 1 hardware thread";
    Check::limited("cpus", format!("{why}; each elastic thread needs its own"))
        .mend("give the machine more processors, or this process more of them with `taskset`")
}

fn isolation() -> Check {
    let isolated = read("/sys/devices/system/cpu/isolated");
    if !isolated.is_empty() {
        return Check::ok("isolation", format!("hardware threads {isolated} are isolated"));
    }
    Check::limited("isolation", "Linux may schedule other work on every hardware thread")
        .mend("boot with isolcpus=managed_irq,LIST nohz_full=LIST for the lowest tail latency")
}

fn frequency() -> Check {
    if !Path::new("/sys/devices/system/cpu/cpu0/cpufreq").exists() {
        let why =
            "this machine has no cpufreq (virtual machines have none): clocks cannot be controlled";
        return Check::limited("cpufreq", why);
    }
    match governor().as_str() {
        "performance" => Check::ok("cpufreq", "governor performance"),
        other => Check::limited("cpufreq", format!("governor {other}: measurements will vary"))
            .mend("echo performance | tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"),
    }
}

fn rapl() -> Check {
    let file = "/sys/class/powercap/intel-rapl:0/energy_uj";
    match std::fs::read_to_string(file) {
        Ok(_) => Check::ok("rapl", "energy can be measured"),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            Check::limited("rapl", format!("{file}: {e}")).mend(format!("chmod a+r {file}"))
        }
        Err(_) => {
            Check::limited("rapl", "this machine has no energy counters: energy is not reported")
        }
    }
}

fn counters() -> Check {
    let paranoid = read("/proc/sys/kernel/perf_event_paranoid");
    let meter = match Meter::of_this_thread() {
        Ok(meter) => meter,
        Err(e) => {
            let why =
                format!("no hardware counters ({e}): instructions per message are not reported");
            return Check::limited("counters", why)
                .mend("sysctl kernel.perf_event_paranoid=0, if the machine has counters");
        }
    };
    std::hint::black_box((0..100_000u64).fold(0, |sum, n| std::hint::black_box(sum ^ n)));
    if meter.read().cycles == 0 {
        return Check::limited("counters", "hardware counters can be opened, but count nothing");
    }
    match Meter::of_cpu(cpu::allowed()[0]) {
        Ok(_) => Check::ok("counters", "cycles and instructions are counted, also in the kernel"),
        Err(_) => {
            let why = format!(
                "programs are counted, but not the kernel (perf_event_paranoid is {paranoid})"
            );
            Check::limited("counters", why).mend("sysctl kernel.perf_event_paranoid=0")
        }
    }
}

fn congestion_control() -> Check {
    let used = read("/proc/sys/net/ipv4/tcp_congestion_control");
    let all = read("/proc/sys/net/ipv4/tcp_available_congestion_control");
    Check::ok("congestion", format!("Linux uses {used} and has {all}; IX uses CUBIC by default"))
}
