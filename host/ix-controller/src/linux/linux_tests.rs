use super::*;
use crate::test_support::observation;
use crate::{Clock, Core};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder with files as the kernel has them; removed when dropped.
struct Fake {
    root: PathBuf,
}

impl Fake {
    fn empty() -> Fake {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("ix-tree-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Fake { root: std::env::temp_dir().join(name) }
    }

    /// Two cores of two hardware threads at 1.2 to 2.4 GHz under `intel_pstate`, one package.
    fn server() -> Fake {
        let fake = Fake::empty();
        fake.put("sys/devices/system/cpu/online", "0-3\n");
        fake.put("sys/devices/system/cpu/intel_pstate/no_turbo", "1\n");
        for cpu in 0..4 {
            let at = format!("sys/devices/system/cpu/cpu{cpu}");
            let siblings = format!("{},{}\n", cpu % 2, cpu % 2 + 2);
            fake.put(&format!("{at}/topology/thread_siblings_list"), &siblings);
            fake.put(&format!("{at}/topology/physical_package_id"), "0\n");
            for (name, khz) in [
                ("cpuinfo_min_freq", "1200000"),
                ("cpuinfo_max_freq", "3100000"),
                ("base_frequency", "2400000"),
                ("scaling_min_freq", "1200000"),
                ("scaling_max_freq", "2400000"),
                ("energy_performance_preference", "balance_performance"),
            ] {
                fake.put(&format!("{at}/cpufreq/{name}"), &format!("{khz}\n"));
            }
            fake.put(&format!("{at}/power/pm_qos_resume_latency_us"), "0\n");
            fake.put(&format!("{at}/cpuidle/state1/name"), "C1\n");
        }
        fake.put_zone("intel-rapl:0", "package-0", 5_000_000);
        fake.put_zone("intel-rapl:0:0", "core", 1_000_000);
        fake.put_zone("intel-rapl:1", "psys", 9_000_000);
        fake.put_zone("intel-rapl-mmio:0", "package-0", 5_000_000);
        fake
    }

    fn put_zone(&self, zone: &str, name: &str, energy_uj: u64) {
        let at = format!("sys/class/powercap/{zone}");
        self.put(&format!("{at}/name"), name);
        self.put(&format!("{at}/energy_uj"), &energy_uj.to_string());
        self.put(&format!("{at}/max_energy_range_uj"), "262143328850");
    }

    /// A control group with a job of two threads and one below it with a third.
    fn with_group(self, cpuset: bool) -> Fake {
        self.put("proc/self/mounts", "tmpfs /dev/shm tmpfs rw 0 0\nnone /cg cgroup2 rw 0 0\n");
        self.put("proc/self/cgroup", "1:cpuset:/\n0::/user/us\n");
        self.put("cg/cgroup.controllers", if cpuset { "cpuset cpu memory\n" } else { "" });
        self.put("cg/cgroup.procs", "1\n");
        self.put("cg/cgroup.subtree_control", "");
        for group in ["cg/user/us", "cg/user", "cg/job", "cg/job/below"] {
            self.put(&format!("{group}/cgroup.procs"), "");
        }
        self.put("cg/job/cgroup.threads", "100\n101\n");
        self.put("cg/job/below/cgroup.threads", "102\n");
        self.put("cg/job/cgroup.freeze", "0\n");
        self.put("cg/job/cgroup.events", "populated 1\nfrozen 1\n");
        if cpuset {
            self.put("cg/job/cpuset.cpus", "\n");
            self.put("cg/job/cpu.weight", "100\n");
        }
        self
    }

    fn put(&self, file: &str, text: &str) {
        let path = self.root.join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }

    fn get(&self, file: &str) -> String {
        fs::read_to_string(self.root.join(file)).expect(file).trim().to_owned()
    }

    fn cpu(&self, cpu: u32, file: &str) -> String {
        self.get(&format!("sys/devices/system/cpu/cpu{cpu}/{file}"))
    }

    fn limits(&self, cpu: u32) -> [String; 2] {
        ["scaling_min_freq", "scaling_max_freq"].map(|f| self.cpu(cpu, &format!("cpufreq/{f}")))
    }

    fn tree(&self) -> Tree {
        Tree::at(&self.root)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn not_called(tid: u32, _: &[u32]) -> io::Result<()> {
    panic!("thread {tid} should be left alone")
}

/// A dataplane that accepts all steps.
struct Obedient(Vec<Observation>, Vec<Step>);

impl Dataplanes for Obedient {
    fn observe(&mut self, _now_us: u64) -> Vec<Observation> {
        self.0.clone()
    }

    fn apply(&mut self, _dataplane: DataplaneId, step: &Step) -> Result<(), StepError> {
        self.1.push(step.clone());
        Ok(())
    }
}

fn obedient() -> Obedient {
    Obedient(vec![observation(7, &[0, 1, 2, 3], &[0])], Vec::new())
}

#[test]
fn cores_are_read_with_those_that_are_online() {
    let fake = Fake::server();
    let core = |cpus: &[u32]| Core { cpus: cpus.to_vec(), package: 0 };
    assert_eq!(topology::cores(&fake.tree()), [core(&[0, 2]), core(&[1, 3])]);
    fake.put("sys/devices/system/cpu/online", "0-2\n");
    assert_eq!(topology::cores(&fake.tree()), [core(&[0, 2]), core(&[1])]);
    // Unplugged between two reads: its folder is already removed.
    fs::remove_dir_all(fake.root.join("sys/devices/system/cpu/cpu0/topology")).expect("gone");
    assert_eq!(topology::cores(&fake.tree()).len(), 3);
    for nonsense in ["", "x", "3-1", "0-99999999"] {
        fake.put("sys/devices/system/cpu/online", nonsense);
        assert_eq!(topology::cores(&fake.tree()), []);
    }
    assert_eq!(topology::cores(&Fake::empty().tree()), []);
}

#[test]
fn clocks_are_held_turbo_is_switched_and_all_is_put_back() {
    let fake = Fake::server();
    let mut clocks = Clocks::new(&fake.tree(), &[0, 1, 2, 3]);
    assert_eq!(clocks.khz().len(), 13);
    assert!(clocks.turbo() && clocks.missing().is_empty());
    assert_eq!(clocks.held(0), None, "the governor is free");
    clocks.hold(&[0, 2], Clock::Khz(1_700_000)).expect("held");
    assert_eq!(fake.limits(0), ["1700000", "1700000"]);
    assert_eq!(fake.limits(1), ["1200000", "2400000"]);
    assert_eq!(clocks.held(2), Some(Clock::Khz(1_700_000)));
    clocks.hold(&[0], Clock::Turbo).expect("held");
    assert_eq!(fake.limits(0), ["2400000", "3100000"]);
    assert_eq!(fake.get("sys/devices/system/cpu/intel_pstate/no_turbo"), "0");
    assert_eq!(fake.cpu(0, "cpufreq/energy_performance_preference"), "performance");
    assert_eq!(clocks.held(0), Some(Clock::Turbo));
    clocks.hold(&[0], Clock::Khz(1_200_000)).expect("held");
    assert_eq!(clocks.held(0), Some(Clock::Khz(1_200_000)));
    clocks.restore();
    assert_eq!(fake.limits(0), ["1200000", "2400000"]);
    assert_eq!(fake.get("sys/devices/system/cpu/intel_pstate/no_turbo"), "1");
    assert_eq!(fake.cpu(0, "cpufreq/energy_performance_preference"), "balance_performance");
}

#[test]
fn other_drivers_list_their_clocks_or_have_another_switch() {
    let fake = Fake::server();
    fs::remove_dir_all(fake.root.join("sys/devices/system/cpu/intel_pstate")).expect("gone");
    let clocks = |fake: &Fake| Clocks::new(&fake.tree(), &[0, 1]);
    assert!(!clocks(&fake).turbo());
    assert!(clocks(&fake).missing()[0].1.contains("no writable switch at"));
    fake.put("sys/devices/system/cpu/cpufreq/boost", "0\n");
    // acpi-cpufreq: turbo stands in the list, marked by 1 MHz.
    for cpu in [0, 1] {
        let file = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_available_frequencies");
        fake.put(&file, "2401000 2400000 1800000 1200000 \n");
    }
    let mut listed = clocks(&fake);
    assert_eq!(listed.khz(), [1_200_000, 1_800_000, 2_400_000]);
    listed.hold(&[0], Clock::Turbo).expect("held");
    assert_eq!(fake.get("sys/devices/system/cpu/cpufreq/boost"), "1");
    // amd-pstate: the nominal clock stands elsewhere.
    let fake = Fake::server();
    for cpu in [0, 1] {
        let at = format!("sys/devices/system/cpu/cpu{cpu}");
        fs::remove_file(fake.root.join(format!("{at}/cpufreq/base_frequency"))).expect("gone");
        fake.put(&format!("{at}/acpi_cppc/nominal_freq"), "2050\n");
    }
    assert_eq!(clocks(&fake).khz().last(), Some(&2_050_000));
}

#[test]
fn what_cannot_be_read_or_written_is_named() {
    let clocks = Clocks::new(&Fake::empty().tree(), &[0, 1]);
    assert_eq!((clocks.khz().len(), clocks.turbo(), clocks.held(0)), (0, false, None));
    assert!(clocks.missing()[0].1.starts_with("no cpufreq at /"));
    // A hardware thread that was unplugged after it was seen.
    let fake = Fake::server();
    let mut clocks = Clocks::new(&fake.tree(), &[0, 1, 2, 3]);
    fs::remove_dir_all(fake.root.join("sys/devices/system/cpu/cpu3/cpufreq")).expect("gone");
    let e = clocks.hold(&[3], Clock::Khz(1_200_000)).expect_err("gone").to_string();
    assert!(e.contains("cpu3/cpufreq/scaling_") && e.contains("No such file"), "{e}");
    // One that may only be read, by root as well.
    let locked = Fake::server();
    let file = locked.root.join("sys/devices/system/cpu/cpu1/cpufreq/scaling_max_freq");
    fs::remove_file(&file).expect("gone");
    std::os::unix::fs::symlink("/proc/sys/kernel/ngroups_max", &file).expect("made");
    let clocks = Clocks::new(&locked.tree(), &[0, 1]);
    assert_eq!((clocks.khz().len(), clocks.turbo()), (0, false));
    let why = &clocks.missing()[0].1;
    assert!(why.starts_with("cannot write /") && why.ends_with("run it as root"), "{why}");
    // Nonsense where a number should be.
    fake.put("sys/devices/system/cpu/cpu1/cpufreq/scaling_max_freq", "<unsupported>\n");
    let clocks = Clocks::new(&fake.tree(), &[0, 1]);
    assert_eq!((clocks.held(1), clocks.khz().len()), (None, 0));
}

#[test]
fn energy_goes_on_when_the_counter_goes_round() {
    let fake = Fake::server();
    let mut energy = Energy::new(&fake.tree());
    assert_eq!(energy.missing(), None);
    assert_eq!(energy.joules(), Some(0.0), "packages only, since the counter was opened");
    fake.put_zone("intel-rapl:0", "package-0", 262_143_000_000);
    let before = energy.joules().expect("counted");
    assert_eq!(before, 262_143.0 - 5.0);
    fake.put_zone("intel-rapl:0", "package-0", 500_000);
    let after = energy.joules().expect("counted");
    assert!((after - before - 0.828_850).abs() < 1e-6, "{}", after - before);
    assert_eq!(energy.watts(1_000_000), None);
    fake.put_zone("intel-rapl:0", "package-0", 2_500_000);
    assert_eq!(energy.watts(1_100_000), Some(20.0));
    assert_eq!(energy.watts(1_100_000), None, "no time has passed");
    // One that cannot be read for a while loses nothing.
    fs::remove_file(fake.root.join("sys/class/powercap/intel-rapl:0/energy_uj")).expect("gone");
    assert_eq!(energy.watts(1_200_000), Some(0.0));
    fake.put_zone("intel-rapl:0", "package-0", 6_500_000);
    assert_eq!(energy.watts(1_300_000), Some(40.0));
}

#[test]
fn without_energy_counters_it_is_said_why() {
    let mut none = Energy::new(&Fake::empty().tree());
    assert_eq!((none.joules(), none.watts(1)), (None, None));
    assert!(none.missing().expect("why").starts_with("no RAPL package below /"));
    let fake = Fake::empty();
    fake.put("sys/class/powercap/intel-rapl:0/name", "package-0");
    let why = Energy::new(&fake.tree()).missing().expect("why").to_owned();
    assert!(why.contains("energy_uj: No such file"), "{why}");
    let fake = Fake::empty();
    fake.put("sys/class/powercap/intel-rapl:0/name", "package-0");
    fake.put("sys/class/powercap/intel-rapl:0/energy_uj", "1");
    assert!(Energy::new(&fake.tree()).missing().expect("why").contains("max_energy_range_uj"));
}

#[test]
fn a_job_is_moved_frozen_and_given_back_by_its_group() {
    let fake = Fake::server().with_group(true);
    let job = Job::Group("job".into());
    let mut background = Background::new(&fake.tree(), &job, not_called).expect("there");
    assert_eq!(background.missing(), Vec::<String>::new());
    assert_eq!(fake.get("cg/job/cpu.weight"), "1");
    background.place(&[1, 2, 3]).expect("placed");
    assert_eq!(fake.get("cg/job/cpuset.cpus"), "1-3");
    background.place(&[]).expect("frozen");
    assert_eq!(fake.get("cg/job/cgroup.freeze"), "1");
    assert_eq!(fake.get("cg/job/cpuset.cpus"), "1-3");
    background.place(&[3]).expect("thawed");
    assert_eq!(
        (fake.get("cg/job/cgroup.freeze"), fake.get("cg/job/cpuset.cpus")),
        ("0".into(), "3".into())
    );
    background.place(&[]).expect("frozen");
    drop(background);
    assert_eq!(fake.get("cg/job/cgroup.freeze"), "0", "it goes on without us");
    assert_eq!(
        (fake.get("cg/job/cpuset.cpus"), fake.get("cg/job/cpu.weight")),
        ("".into(), "100".into())
    );
}

#[test]
fn without_a_cpuset_the_threads_are_moved_one_by_one() {
    static MOVED: Mutex<Vec<(u32, Vec<u32>)>> = Mutex::new(Vec::new());
    fn moved(tid: u32, cpus: &[u32]) -> io::Result<()> {
        MOVED.lock().expect("lock").push((tid, cpus.to_vec()));
        // One ends just then.
        if tid == 101 { Err(io::Error::from_raw_os_error(3)) } else { Ok(()) }
    }
    let fake = Fake::server().with_group(false);
    // The whole name works too.
    let job = Job::Group("/cg/job".into());
    let mut background = Background::new(&fake.tree(), &job, moved).expect("there");
    assert_eq!(background.missing().len(), 2);
    background.place(&[1]).expect("placed");
    background.place(&[1]).expect("nothing to do");
    let take = || std::mem::take(&mut *MOVED.lock().expect("lock"));
    assert_eq!(take(), [100, 101, 102].map(|tid| (tid, vec![1])));
    drop(background);
    assert_eq!(take(), [100, 101, 102].map(|tid| (tid, vec![0, 1, 2, 3])));
    // Somebody who may not.
    fn refused(_: u32, _: &[u32]) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(1))
    }
    let mut background = Background::new(&fake.tree(), &job, refused).expect("there");
    let e = background.place(&[1]).expect_err("refused").to_string();
    assert!(e.starts_with("cannot move thread 100: ") && e.ends_with("run it as root"), "{e}");
}

#[test]
fn a_process_gets_a_group_with_its_children_and_goes_home_afterwards() {
    let fake = Fake::server().with_group(true);
    let process = |pid: u32, parent: u32| {
        fake.put(&format!("proc/{pid}/stat"), &format!("{pid} (a (b) c) S {parent} 1 1 0"));
        fake.put(&format!("proc/{pid}/cgroup"), "0::/user\n");
    };
    for (pid, parent) in [(300, 1), (301, 300), (302, 301), (400, 1)] {
        process(pid, parent);
    }
    // The kernel would make these files with the folder.
    for name in ["cgroup.procs", "cgroup.freeze", "cgroup.threads", "cpuset.cpus"] {
        fake.put(&format!("cg/ix-background-300/{name}"), "");
    }
    let mut background =
        Background::new(&fake.tree(), &Job::Process(300), not_called).expect("there");
    assert_eq!(background.group(), PathBuf::from("/cg/ix-background-300"));
    assert_eq!(fake.get("cg/ix-background-300/cgroup.procs"), "302", "the last that was moved");
    assert_eq!(fake.get("cg/cgroup.subtree_control"), "+cpuset +cpu");
    background.place(&[]).expect("frozen");
    assert_eq!(fake.get("cg/ix-background-300/cgroup.freeze"), "1");
    fake.put("cg/ix-background-300/cgroup.procs", "300\n301\n302\n303\n");
    drop(background);
    assert_eq!(fake.get("cg/user/cgroup.procs"), "303", "also one born there");
    assert_eq!(fake.get("cg/ix-background-300/cgroup.freeze"), "0");
}

#[test]
fn jobs_that_cannot_be_had_are_refused_with_a_reason() {
    let fake = Fake::server().with_group(true);
    let refused = |fake: &Fake, job: &str| {
        let e = Background::new(&fake.tree(), &parse_job(job), not_called).expect_err(job);
        e.to_string()
    };
    assert!(refused(&fake, "nobody").contains("no control group at "));
    assert!(refused(&fake, "/cg").starts_with("the root control group"));
    assert!(refused(&fake, "user").contains("is in") && refused(&fake, "user").contains("itself"));
    assert!(refused(&fake, "4711").starts_with("no process 4711"));
    assert!(refused(&fake, "0").starts_with("no process 0"));
    assert!(refused(&Fake::server(), "job").starts_with("no cgroup v2 is mounted; mount"));
}

#[test]
fn steps_reach_files_and_dataplanes() {
    let fake = Fake::server().with_group(true);
    let job = Background::new(&fake.tree(), &Job::Group("job".into()), not_called).expect("there");
    let mut linux = Linux::new(&fake.tree(), obedient()).with_background(job, vec![1, 3]);
    assert_eq!(linux.machine().cores.len(), 2);
    assert_eq!((linux.machine().clocks_khz.len(), linux.machine().turbo), (13, true));
    assert!(linux.findings().iter().all(|finding| finding.missing.is_none()));
    let id = linux.observe(1)[0].dataplane;
    assert_eq!(fake.cpu(0, "power/pm_qos_resume_latency_us"), "50", "an elastic thread is there");
    assert_eq!(fake.cpu(1, "power/pm_qos_resume_latency_us"), "0");
    let clock = Step::Clock { cpus: vec![0, 2], clock: Clock::Khz(1_300_000) };
    for step in [clock, Step::Background { cpus: vec![0, 1, 3] }, Step::Resume { thread: 1 }] {
        linux.apply(2, id, &step).expect("done");
    }
    assert_eq!(linux.observe(2)[0].threads[2].clock, Some(Clock::Khz(1_300_000)));
    assert_eq!(fake.get("cg/job/cpuset.cpus"), "1,3", "where it may be");
    assert_eq!(fake.cpu(1, "power/pm_qos_resume_latency_us"), "50");
    linux.apply(3, id, &Step::Park { thread: 1 }).expect("done");
    assert_eq!(fake.cpu(1, "power/pm_qos_resume_latency_us"), "0");
    assert_eq!(linux.dataplanes().1, [Step::Resume { thread: 1 }, Step::Park { thread: 1 }]);
    linux.apply(3, id, &Step::Background { cpus: vec![0] }).expect("done");
    assert_eq!(fake.get("cg/job/cgroup.freeze"), "1", "nothing is left of where it may be");
    // A second later a core is offline.
    fake.put("sys/devices/system/cpu/online", "0,2\n");
    linux.observe(1_000_003);
    assert_eq!(linux.machine().cores.len(), 1);
    linux.restore();
    assert_eq!(fake.limits(0), ["1200000", "2400000"]);
    assert_eq!(fake.cpu(0, "power/pm_qos_resume_latency_us"), "0");
    assert_eq!(fake.get("cg/job/cgroup.freeze"), "0");
}

#[test]
fn what_a_killed_controller_left_is_restored() {
    let fake = Fake::server();
    let bound = "power/pm_qos_resume_latency_us";
    let mut linux = Linux::new(&fake.tree(), obedient());
    linux.observe(1);
    assert_eq!(fake.cpu(0, bound), "50");
    // The process has ended; another one has changed the bound of the next hardware thread.
    let records = fake.tree().path("run/ix/c-states");
    let own = fake.tree().names("run/ix/c-states");
    let text = std::fs::read_to_string(records.join(&own[0])).expect("written before the bound");
    std::fs::remove_file(records.join(&own[0])).expect("there");
    std::fs::write(records.join("4194305-0"), text + "1 0\n2 7\n").expect("written");
    fake.put("sys/devices/system/cpu/cpu1/power/pm_qos_resume_latency_us", "20\n");
    fake.put("sys/devices/system/cpu/cpu2/power/pm_qos_resume_latency_us", "n/a\n");
    let told = |fake: &Fake| {
        let findings = inspect(&fake.tree());
        findings.iter().find(|f| f.name == "c-states").map(ToString::to_string).expect("told")
    };
    assert!(told(&fake).contains("killed has left [0, 2] bounded; the next `ix run`"));
    drop(linux);
    Linux::new(&fake.tree(), obedient());
    assert_eq!([0, 1, 2].map(|cpu| fake.cpu(cpu, bound)), ["0", "20", "7"]);
    assert_eq!(fake.tree().names("run/ix/c-states"), Vec::<String>::new());
    assert!(!told(&fake).contains("killed"));
}

#[test]
fn a_machine_that_lacks_all_of_it_says_so() {
    let fake = Fake::empty();
    fake.put("sys/devices/system/cpu/online", "0-1\n");
    let findings = inspect(&fake.tree());
    assert!(findings.iter().all(|finding| finding.missing.is_some()), "{findings:?}");
    let names: Vec<_> = findings.iter().map(|finding| finding.name).collect();
    assert_eq!(names, ["clocks", "turbo", "energy", "c-states", "hyperthreads", "background"]);
    assert!(findings[0].to_string().starts_with("no clocks: no cpufreq at /"));
    let mut linux = Linux::new(&fake.tree(), obedient());
    let id = linux.observe(1)[0].dataplane;
    assert_eq!(linux.machine().clocks_khz, []);
    linux.apply(1, id, &Step::Background { cpus: vec![] }).expect("nothing to freeze");
    let clock = Step::Clock { cpus: vec![0], clock: Clock::Turbo };
    assert!(linux.apply(1, id, &clock).is_err());
}
