//! The dataplane's counters, in memory that it shares with the broker, and the hardware's.
//!
//! The hardware's are counted for the elastic threads' hardware threads as a whole, dataplane,
//! application and kernel together, and read when somebody asks: the packet path pays nothing.
use ix_dataplane::histogram::Histogram;
use ix_dataplane::metrics::{ControlPage, PageError, Snapshot, ThreadSnapshot, WindowMetrics};
use ix_proto::control::{
    Commands, CycleTicks, Group, Hardware, Status, TIME_BOUNDS_US, Thread, Times, Wall, Window,
};
use ix_sys::fd::fixed_memfd;
use ix_sys::meter::{Count, Meter};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

/// A control page: the broker makes the memory, the dataplane fills it.
pub struct Counters {
    file: File,
    threads: usize,
    /// One for each elastic thread, or why there is none.
    meters: io::Result<Vec<Meter>>,
}

/// Why there are no counters of a dataplane that has not begun.
const UNBEGUN: &str = "nothing to show: the program has not waited for a socket of IX so far (lines \
                       of `ix run` say whose its sockets are), or its dataplane is still starting";

impl Counters {
    /// Memory for an elastic thread on each of these hardware threads. Its size is sealed, so that
    /// no side can make the other one fault by truncating it.
    pub fn new(cpus: &[usize]) -> io::Result<Counters> {
        let memory = fixed_memfd(c"ix-controller", ControlPage::bytes_for(cpus.len()), false)?;
        let file = File::from(memory);
        let meters = cpus.iter().map(|&cpu| Meter::of_cpu(cpu)).collect();
        Ok(Counters { file, threads: cpus.len(), meters })
    }

    /// Elastic threads, in whatever state.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The descriptor for the dataplane.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Forgets what a dataplane that has ended has counted, flows that it had above all. The next
    /// one begins with a page of zeroes.
    pub fn clear(&self) -> io::Result<()> {
        self.file.write_all_at(&vec![0; ControlPage::bytes_for(self.threads)], 0)
    }

    /// Address and instruction of the program's last fault, if it was one of this signal.
    pub fn fault(&self, signal: i32) -> Option<(u64, u64)> {
        ControlPage::open(self.fd()).ok()?.wall().fault(signal)
    }

    /// Flows on all threads.
    pub fn flows(&self) -> usize {
        let Ok(page) = ControlPage::open(self.fd()) else { return 0 };
        // The dataplane writes the numbers, which can be any.
        let flows = (0..page.threads()).map(|thread| page.thread(thread).counters.flows.get());
        flows.fold(0, |sum: usize, flows| sum.saturating_add(flows as usize))
    }

    /// Whether the dataplane has carried out what the program asked for, its listeners above all.
    pub fn has_served(&self) -> bool {
        let Ok(page) = ControlPage::open(self.fd()) else { return false };
        (0..page.threads()).any(|thread| {
            let counters = &page.thread(thread).counters;
            counters.calls.get() > counters.call_errors.get()
        })
    }

    /// The counters, or why there are none. Hardware counters that cannot be had are left out, and
    /// `hardware_missing` says why.
    pub fn status(&self) -> Result<Status, String> {
        let page = ControlPage::open(self.fd()).map_err(|e| match e {
            PageError::NotAPage => UNBEGUN.to_owned(),
            e => e.to_string(),
        })?;
        let mut status = status_of(&Snapshot::of(&page));
        match &self.meters {
            Ok(meters) => add_hardware(&mut status, meters.iter().map(Meter::read)),
            Err(e) => status.hardware_missing = Some(format!("{e}; see `ix doctor`")),
        }
        Ok(status)
    }
}

/// What the control page says, for the control socket.
pub fn status_of(snapshot: &Snapshot) -> Status {
    let commands = snapshot.commands;
    Status {
        now_us: snapshot.now_us,
        ticks_per_us: snapshot.ticks_per_us,
        batch_bound: snapshot.batch_bound,
        threads: snapshot.threads.iter().map(|of| thread(of, snapshot.ticks_per_us)).collect(),
        groups: snapshot
            .groups
            .iter()
            .map(|group| Group { thread: group.owner, packets: group.packets })
            .collect(),
        commands: Commands {
            running: commands.running,
            ended: commands.ended,
            done: commands.done,
            refused: commands.refused,
            timed_out: commands.timed_out,
        },
        wall: Wall { stands: snapshot.walled, refused: named(&snapshot.refused) },
        migrations_ever: snapshot.migrations_ever,
        migrations: snapshot.migrations.clone(),
        ..Status::default()
    }
}

fn thread(thread: &ThreadSnapshot, ticks_per_us: u64) -> Thread {
    Thread {
        state: thread.state,
        cpu: thread.cpu,
        flow_groups: thread.owned,
        wake_ns: thread.wake_ns,
        window: window(&thread.window),
        drops: named(&thread.drops),
        tcp: named(&thread.tcp),
        stage_ticks: named(&thread.stage_ticks),
        batches: thread.batches.to_vec(),
        busy_cycle_ticks: cycle_ticks(&thread.busy_cycle_ticks),
        busy_cycles_took: times(&thread.busy_cycle_ticks, ticks_per_us),
        packets_waited: times(&thread.queueing_delay_ns, 1_000),
        hardware: None,
        counters: named(&thread.counters),
    }
}

/// With three digits behind the point.
fn window(window: &WindowMetrics) -> Window {
    let rounded = |values: [f64; 3]| values.map(|value| (value * 1000.0).round() / 1000.0);
    Window {
        queueing_delay_us: rounded(window.queueing_delay_us),
        queue_depth: rounded(window.queue_depth),
        batch: rounded(window.batch),
        iteration_us: rounded(window.iteration_us),
        idle: rounded(window.idle),
        rate_per_s: rounded(window.rate_per_s),
    }
}

fn cycle_ticks(lengths: &Histogram) -> CycleTicks {
    CycleTicks {
        count: lengths.count(),
        mean: lengths.mean().round() as u64,
        p50: lengths.percentile(50.0),
        p99: lengths.percentile(99.0),
        p999: lengths.percentile(99.9),
        max: lengths.max(),
    }
}

/// A histogram of this many units a microsecond; 0: unknown, so nothing is. A bucket that reaches
/// beyond a bound counts with the next one: a time may count as up to 1/32 longer than it was.
fn times(lengths: &Histogram, per_us: u64) -> Times {
    if per_us == 0 {
        return Times::default();
    }
    let mut counts = vec![0u64; TIME_BOUNDS_US.len() + 1];
    for (most, count) in lengths.buckets() {
        let over = |bound: u32| u64::from(bound).saturating_mul(per_us) < most;
        let at = TIME_BOUNDS_US.partition_point(|bound| over(*bound));
        counts[at] = counts[at].saturating_add(count);
    }
    let sum_ns = u128::from(lengths.sum()) * 1_000 / u128::from(per_us);
    Times { counts, sum_ns: sum_ns.try_into().unwrap_or(u64::MAX) }
}

fn named(counts: &[(&'static str, u64)]) -> BTreeMap<String, u64> {
    counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

/// Gives each thread what its hardware thread has executed.
fn add_hardware(status: &mut Status, counts: impl Iterator<Item = Count>) {
    for (thread, count) in status.threads.iter_mut().zip(counts) {
        let Count { cycles, instructions, cache_misses } = count;
        thread.hardware = Some(Hardware { cycles, instructions, cache_misses });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_dataplane::metrics::LocalDrop;
    use ix_wire::DropReason;

    #[test]
    fn they_come_from_the_page_that_the_dataplane_makes() {
        let counters = Counters::new(&[0, 0]).expect("memory");
        assert!(counters.status().expect_err("why").contains("starting"));
        // The dataplane's side.
        let page = ControlPage::create(counters.fd(), 2, 2500).expect("made");
        page.thread(1).counters.flows.set(7);
        let status = counters.status().expect("counters");
        assert_eq!(status.ticks_per_us, 2500);
        assert_eq!(status.threads[1].counter("flows"), 7);
        assert!(counters.file.set_len(0).is_err(), "sealed");
    }

    #[test]
    fn hardware_counters_are_there_or_it_is_said_why() {
        let counters = Counters::new(&[0]).expect("memory");
        let page = ControlPage::create(counters.fd(), 1, 2500).expect("made");
        let status = counters.status().expect("counters");
        assert_eq!(status.threads[0].hardware.is_some(), status.hardware_missing.is_none());
        assert_eq!(counters.meters.is_ok(), status.hardware_missing.is_none());
        drop(page);
        let mut status =
            Status { threads: vec![Thread::default(), Thread::default()], ..Status::default() };
        let count = |cache_misses| Count { cycles: 5, instructions: 6, cache_misses };
        add_hardware(&mut status, [count(Some(7)), count(None)].into_iter());
        let all = Hardware { cycles: 5, instructions: 6, cache_misses: Some(7) };
        assert_eq!(status.threads[0].hardware, Some(all));
        assert_eq!(status.threads[1].hardware.and_then(|counted| counted.cache_misses), None);
    }

    #[test]
    fn times_are_told_apart_by_their_bounds() {
        let mut lengths = Histogram::new();
        for us in [1, 3, 3, 150, 5_000_000] {
            lengths.record(us * 2_000);
        }
        let Times { counts, sum_ns } = times(&lengths, 2_000);
        let at = |bound| TIME_BOUNDS_US.iter().position(|b| *b == bound).expect("a bound");
        let some: Vec<usize> = (0..counts.len()).filter(|&i| counts[i] > 0).collect();
        // What is at a bound may be in a bucket that reaches beyond it.
        assert_eq!(some, [at(2), at(5), at(200), counts.len() - 1]);
        assert_eq!((counts[at(5)], sum_ns), (2, 5_000_157_000));
        assert_eq!(times(&lengths, 0), Times::default());
    }

    #[test]
    fn metrics_have_every_drop_reason() {
        let status = status_of(&Snapshot::of(&ControlPage::anonymous(1).expect("memory")));
        let page = crate::control::exposition::text(&status);
        let parser = DropReason::ALL.iter().map(|reason| reason.name());
        for name in parser.chain(LocalDrop::ALL.iter().map(|reason| reason.name())) {
            let line = format!("thread=\"0\",reason=\"{name}\"}} 0\n");
            assert_eq!(page.matches(&line).count(), 1, "{name}: {page}");
        }
    }

    #[test]
    fn json_has_every_name_once() {
        let snapshot = Snapshot::of(&ControlPage::anonymous(1).expect("memory"));
        let status = status_of(&snapshot);
        let json = serde_json::to_string(&status.threads[0]).expect("JSON");
        let thread = &snapshot.threads[0];
        for (name, _) in thread.counters.iter().chain(&thread.drops).chain(&thread.tcp) {
            // A stage of the cycle is called as a counter is.
            let times = if *name == "calls" { 2 } else { 1 };
            assert_eq!(json.matches(&format!("\"{name}\":")).count(), times, "{name}");
        }
        let again: Thread = serde_json::from_str(&json).expect("the same words");
        assert_eq!(again, status.threads[0]);
    }
}
