//! Time that the machine takes from the dataplane: by its hypervisor, and by other programs on the
//! first elastic thread's hardware thread.
use crate::busy::numbers_of;
use ix_proto::control::Status;
use ix_report::problem::{Problem, Result};
use ix_sys::scheduling::{self, Policy};
use ix_sys::{cpu, process};
use std::io;
use std::path::{Path, PathBuf};

/// Sources of these times.
pub struct Machine {
    /// Hardware threads of the elastic threads.
    cpus: Vec<u32>,
    /// `schedstat` of the Linux thread that is the first elastic thread.
    first: Option<PathBuf>,
    tick_ms: f64,
}

impl Machine {
    /// Finds the sources for a dataplane whose elastic threads run.
    pub fn of(view: &Status) -> Machine {
        let cpus: Vec<u32> = view.threads.iter().map(|thread| thread.cpu).collect();
        let tasks = PathBuf::from(format!("/proc/{}/task", view.pid));
        let first = cpus.first().and_then(|cpu| pinned_to(&tasks, *cpu));
        Machine { cpus, first, tick_ms: 1000.0 / process::ticks_per_s() as f64 }
    }

    /// Time taken so far, ms. The load and the job of this benchmark use the second hardware
    /// thread, so there only the hypervisor counts.
    pub fn taken_ms(&self) -> f64 {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let stolen: f64 = self.cpus.iter().map(|cpu| stolen_ticks(&stat, *cpu)).sum();
        let first = self.first.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
        stolen * self.tick_ms + waited_ms(&first.unwrap_or_default())
    }
}

/// Finds the thread that is pinned to one hardware thread.
fn pinned_to(tasks: &Path, cpu: u32) -> Option<PathBuf> {
    let wanted = format!("Cpus_allowed_list:\t{cpu}");
    let pinned = |task: &PathBuf| {
        let status = std::fs::read_to_string(task.join("status")).unwrap_or_default();
        status.lines().any(|line| line == wanted)
    };
    let mut tasks = std::fs::read_dir(tasks).ok()?.flatten().map(|entry| entry.path());
    tasks.find(pinned).map(|task| task.join("schedstat"))
}

/// `steal` of a hardware thread in `/proc/stat`.
fn stolen_ticks(stat: &str, cpu: u32) -> f64 {
    numbers_of(stat, cpu as usize).map_or(0.0, |numbers| numbers[7] as f64)
}

/// Time that a thread was ready and did not run: the second number of its `schedstat`, ns.
fn waited_ms(schedstat: &str) -> f64 {
    let waited_ns = schedstat.split_whitespace().nth(1).and_then(|text| text.parse::<f64>().ok());
    waited_ns.unwrap_or(0.0) / 1e6
}

/// Gives the elastic threads the greatest weight that Linux has, also against other programs of
/// their session, because the papers give them whole cores. If that fails, the effect shows as time
/// taken.
pub fn give_weight(view: &Status) {
    let tasks = PathBuf::from(format!("/proc/{}/task", view.pid));
    for thread in &view.threads {
        let task = pinned_to(&tasks, thread.cpu);
        let name = task.as_deref().and_then(Path::parent).and_then(Path::file_name);
        let Some(task) = name.and_then(|name| name.to_str()?.parse().ok()) else { continue };
        let _ = scheduling::set_nice(task, -20);
    }
}

/// Pins a process to one hardware thread and gives it priority there. The load stands for other
/// machines, and the observer and the controller for a control plane with its own core.
pub fn put_first(pid: i32, cpu: usize) -> io::Result<()> {
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let name = task?.file_name();
        let Some(task) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        cpu::pin_thread(task, &[cpu])?;
        scheduling::set_policy(task, Policy::RoundRobin(1))?;
    }
    Ok(())
}

/// This process while it observes: beside the first elastic thread and never late. Its session,
/// which has the dataplane, comes before all others (`sched(7)`, autogroups).
pub struct Aside {
    cpus: Vec<usize>,
    session: Option<String>,
}

const SESSION: &str = "/proc/self/autogroup";

impl Aside {
    /// Begins; dropping the value ends it.
    pub fn on(cpu: usize) -> Result<Aside> {
        let cpus = cpu::allowed();
        put_first(std::process::id() as i32, cpu)
            .map_err(|e| Problem::new("cannot keep off the dataplane's hardware thread", e))?;
        // "/autogroup-12 nice 0", if the kernel has autogroups.
        let session = std::fs::read_to_string(SESSION).unwrap_or_default();
        let session = session.split_whitespace().last().map(str::to_owned);
        let _ = std::fs::write(SESSION, "-20");
        Ok(Aside { cpus, session })
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            let _ = std::fs::write(SESSION, session);
        }
        let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let names = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
        for task in names {
            // A thread that has ended meanwhile needs neither.
            let _ = cpu::pin_thread(task, &self.cpus);
            let _ = scheduling::set_policy(task, Policy::Other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_skip::{Need, skip};

    #[test]
    fn linux_says_what_was_taken() {
        let stat =
            "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 18 0 0\ncpu1 0 0 0 0 0 0 0 28 0 0\n";
        assert_eq!((stolen_ticks(stat, 0), stolen_ticks(stat, 1)), (18.0, 28.0));
        assert_eq!(stolen_ticks(stat, 10), 0.0);
        assert_eq!((waited_ms("7 2500000 3\n"), waited_ms("")), (2.5, 0.0));
    }

    #[test]
    fn the_thread_on_a_hardware_thread_is_found() {
        let cpus = cpu::allowed();
        if cpus.len() < 2 {
            let test = "the_thread_on_a_hardware_thread_is_found";
            skip(test, Need::Cpus(2), "with one CPU every thread is on it");
            return;
        }
        let cpu = cpus[0];
        let (to, from) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let task = process::thread_id();
            cpu::pin_thread(task, &[cpu]).expect("allowed");
            to.send(task).expect("heard");
            let _ = ended.recv();
        });
        let task = from.recv().expect("said");
        let found = pinned_to(Path::new("/proc/self/task"), cpu as u32).expect("found");
        assert!(found.ends_with(format!("{task}/schedstat")), "{}", found.display());
        assert!(std::fs::read_to_string(found).is_ok());
        drop(end);
        thread.join().expect("ended");
    }
}
