//! A real process in a real control group: frozen, moved, and restored.
use ix_controller::linux::{Background, BackgroundError, Job, Tree, online};
use ix_skip::{Need, skip, skip_part};
use std::io;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// A process that always computes; killed at the end.
struct Busy(Child);

impl Busy {
    fn start() -> Busy {
        Busy(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("sh"))
    }

    /// Processor time so far, in Linux's ticks.
    fn used(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).expect("alive");
        let (_, rest) = stat.rsplit_once(')').expect("a name");
        let times = rest.split_whitespace().skip(11).take(2);
        times.map(|text| text.parse::<u64>().expect("a number")).sum()
    }

    fn runs(&self) {
        let before = self.used();
        eventually("it runs", || self.used() > before);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn set_affinity(thread: u32, cpus: &[u32]) -> io::Result<()> {
    let list = cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let done = Command::new("taskset").args(["-cp", &list, &thread.to_string()]).output()?;
    if done.status.success() { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

fn allowed(pid: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("alive");
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t"));
    line.expect("a list").to_owned()
}

#[test]
fn a_process_is_frozen_moved_and_given_back() {
    let test = "a_process_is_frozen_moved_and_given_back";
    let (tree, job) = (Tree::default(), Busy::start());
    let pid = job.0.id();
    let home = || std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("alive");
    let before = home();
    let mut background = match Background::new(&tree, &Job::Process(pid), set_affinity) {
        Ok(background) => background,
        Err(
            e @ (BackgroundError::NoMount | BackgroundError::Make(..) | BackgroundError::File(_)),
        ) => {
            return skip(test, Need::Root, e);
        }
        Err(e) => panic!("{e}"),
    };
    let group = tree.path(background.group());
    assert_ne!(home(), before, "it has a group of its own");
    match std::fs::read_to_string(group.join("cpu.weight")) {
        Ok(weight) => assert_eq!(weight.trim(), "1"),
        Err(_) => {
            let said = background.missing();
            assert!(said.iter().any(|line| line.starts_with("no cpu controller: ")), "{said:?}");
            let need = Need::Kernel("boot with cgroup version 2 only: cgroup_no_v1=all");
            skip_part(test, need, "version 1 of cgroups has the cpu controller");
        }
    }
    let cpus = online(&tree);
    for cpu in [cpus[0], cpus[cpus.len() - 1], cpus[0]] {
        background.place(&[cpu]).expect("moved");
        assert_eq!(allowed(pid), cpu.to_string());
        job.runs();
        background.place(&[]).expect("frozen");
        let events = || std::fs::read_to_string(group.join("cgroup.events")).expect("events");
        eventually("frozen", || events().contains("frozen 1"));
        let used = job.used();
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(job.used(), used, "it stands still");
    }
    drop(background);
    job.runs();
    assert_eq!(home(), before, "back where it came from");
    assert!(!group.exists());
}
