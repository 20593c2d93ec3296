//! The run second by second, and remarks about it.
use super::actors::Seen;

/// A second that is too slow is a violation. Within this many seconds of a change of threads it is
/// one that the papers' runs have as well.
const CHANGE_S: usize = 2;
/// If another program takes the hardware thread for this long in a second, ms, one request in a
/// hundred is late: half a percent of them arrives meanwhile, and as many before the queue is short
/// again.
const TAKEN_MS: f64 = 5.0;
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// One second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Second {
    pub wanted_per_s: f64,
    pub msgs_per_s: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub errors: f64,
    /// The longest time that the load itself stood still, ms.
    pub stall_ms: f64,
    pub seen: Seen,
}

/// The whole run.
pub struct Timeline {
    pub seconds: Vec<Second>,
    /// Rate of the background job when it runs undisturbed, bytes per second.
    pub alone: f64,
    pub slo_us: f64,
    /// The controller's decisions.
    pub decisions: Vec<String>,
    /// Time that the second thread took to wake, µs.
    pub wakes_us: Vec<f64>,
}

/// Seconds whose 99th percentile was above the objective.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Violations {
    /// Near a change of threads.
    pub near_changes: usize,
    /// Others, in which the machine took the hardware thread away.
    pub of_machine: usize,
    /// All others.
    pub others: usize,
}

impl Timeline {
    /// Seconds whose 99th percentile was above the objective.
    pub fn violations(&self) -> Violations {
        let mut violations = Violations::default();
        for (second, at) in self.seconds.iter().enumerate() {
            if at.p99_us <= self.slo_us {
            } else if self.is_near_change(second) {
                violations.near_changes += 1;
            } else if at.seen.taken_ms.max(at.stall_ms) >= TAKEN_MS {
                violations.of_machine += 1;
            } else {
                violations.others += 1;
            }
        }
        violations
    }

    /// Whether the threads changed in this second or shortly before.
    fn is_near_change(&self, second: usize) -> bool {
        let threads = |i: usize| self.seconds[i].seen.threads;
        let first = second.saturating_sub(CHANGE_S);
        (first..=second).any(|i| {
            let changes = i > 0 && (threads(i) - threads(i - 1)).abs() > 0.01;
            changes || (threads(i).fract() > 0.01 && threads(i).fract() < 0.99)
        })
    }

    /// Share of the background job's undisturbed work, %.
    pub fn background_percent(&self) -> f64 {
        let done: f64 = self.seconds.iter().map(|s| s.seen.background_per_s).sum();
        100.0 * done / (self.alone * self.seconds.len().max(1) as f64).max(1.0)
    }

    /// Figures of a second.
    pub fn figures(&self, second: &Second) -> Vec<(&'static str, f64)> {
        let Second { wanted_per_s, msgs_per_s, p50_us, p99_us, errors, stall_ms, seen } = *second;
        vec![
            ("wanted_per_s", wanted_per_s),
            ("msgs_per_s", msgs_per_s),
            ("p50_us", p50_us),
            ("p99_us", p99_us),
            ("threads", seen.threads),
            ("queueing_delay_us", seen.queueing_delay_us),
            ("background_mb_per_s", seen.background_per_s / 1e6),
            ("load_cpu", seen.load_cpu),
            ("taken_ms", seen.taken_ms),
            ("load_stall_ms", stall_ms),
            ("errors", errors),
        ]
    }

    /// Means and sums over the run.
    pub fn whole(&self) -> Vec<(&'static str, f64)> {
        let n = self.seconds.len().max(1) as f64;
        let mean = |of: fn(&Second) -> f64| self.seconds.iter().map(of).sum::<f64>() / n;
        let Violations { near_changes, of_machine, others } = self.violations();
        let mut whole = vec![
            ("wanted_per_s", mean(|s| s.wanted_per_s)),
            ("msgs_per_s", mean(|s| s.msgs_per_s)),
            ("threads", mean(|s| s.seen.threads)),
            ("background_mb_per_s", mean(|s| s.seen.background_per_s) / 1e6),
            ("background_percent", self.background_percent()),
            ("load_cpu", mean(|s| s.seen.load_cpu)),
            ("taken_ms", mean(|s| s.seen.taken_ms)),
            ("slo_us", self.slo_us),
            ("violations_near_changes", near_changes as f64),
            ("violations_of_machine", of_machine as f64),
            ("violations", (near_changes + of_machine + others) as f64),
            ("errors", self.seconds.iter().map(|s| s.errors).sum()),
        ];
        if let Some(most) = self.wakes_us.iter().copied().reduce(f64::max) {
            whole.push(("wake_us", median(&self.wakes_us)));
            whole.push(("wake_most_us", most));
        }
        whole
    }

    /// The run as curves of characters.
    pub fn figure(&self) -> Vec<String> {
        let curve = |name: &str, unit: &str, of: &dyn Fn(&Second) -> f64| {
            let values: Vec<f64> = self.seconds.iter().map(of).collect();
            let most = values.iter().copied().fold(0.0, f64::max);
            let level = |value: &f64| {
                let level = if most > 0.0 { value / most * 7.0 } else { 0.0 };
                LEVELS[(level.round() as usize).min(LEVELS.len() - 1)]
            };
            let curve: String = values.iter().map(level).collect();
            format!("{name:<16} {curve}  most {most:.0} {unit}")
        };
        vec![
            curve("requests wanted", "/s", &|s| s.wanted_per_s),
            curve("answered", "/s", &|s| s.msgs_per_s),
            curve("elastic threads", "", &|s| s.seen.threads),
            curve("p99", "µs", &|s| s.p99_us.min(2.0 * self.slo_us)),
            curve("background job", "MB/s", &|s| s.seen.background_per_s / 1e6),
        ]
    }

    /// Remarks, one per line.
    pub fn remarks(&self) -> Vec<String> {
        let Violations { near_changes, of_machine, others } = self.violations();
        let mean_cpu = self.seconds.iter().map(|s| s.seen.load_cpu).sum::<f64>()
            / self.seconds.len().max(1) as f64;
        let mut lines = vec![
            format!(
                "p99 above {:.0} µs in {} of {} seconds: {near_changes} within {CHANGE_S} s of a \
                 change of threads (the papers count these too), {of_machine} in which the host or other \
                 programs took {TAKEN_MS:.0} ms or more, {others} others",
                self.slo_us,
                near_changes + of_machine + others,
                self.seconds.len(),
            ),
            format!(
                "the background job did {:.0} % of its undisturbed work; with two threads all the \
                 time it would have done none",
                self.background_percent()
            ),
            format!(
                "the load is paced and sleeps between requests: it uses {:.0} % of a hardware thread, the \
                 second elastic thread's",
                100.0 * mean_cpu
            ),
        ];
        if let Some(most) = self.wakes_us.iter().copied().reduce(f64::max) {
            lines.push(format!(
                "the second thread was resumed {} times and woke in {:.0} µs (median), {most:.0} µs at \
                 most",
                self.wakes_us.len(),
                median(&self.wakes_us),
            ));
        }
        lines.extend(self.decisions.iter().map(|decision| format!("controller: {decision}")));
        lines
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(threads: &[f64], p99_us: &[f64]) -> Timeline {
        let second = |(&threads, &p99_us): (&f64, &f64)| {
            let seen = Seen { threads, background_per_s: 50.0, load_cpu: 0.25, ..Seen::default() };
            Second { p99_us, wanted_per_s: 10.0, msgs_per_s: 9.0, seen, ..Second::default() }
        };
        let seconds = threads.iter().zip(p99_us).map(second).collect();
        let (decisions, wakes_us) = (vec!["up".to_owned()], vec![30.0, 20.0, 40.0]);
        Timeline { seconds, alone: 100.0, slo_us: 500.0, decisions, wakes_us }
    }

    #[test]
    fn violations_near_a_change_are_told_from_others() {
        let threads = [1.0, 1.0, 1.4, 2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0];
        let p99 = [100.0, 600.0, 700.0, 800.0, 100.0, 100.0, 600.0, 900.0, 100.0, 501.0];
        let mut run = timeline(&threads, &p99);
        // Seconds 2, 3, 7 and 9 follow a change; 1 and 6 do not.
        let all =
            |near_changes, of_machine, others| Violations { near_changes, of_machine, others };
        assert_eq!(run.violations(), all(4, 0, 2));
        run.seconds[1].seen.taken_ms = 5.0;
        run.seconds[3].seen.taken_ms = 50.0;
        assert_eq!(run.violations(), all(4, 1, 1));
        run.seconds[6].stall_ms = 7.0;
        assert_eq!(run.violations(), all(4, 2, 0));
        assert_eq!(timeline(&[1.0; 3], &[500.0; 3]).violations(), all(0, 0, 0));
    }

    #[test]
    fn the_whole_is_the_mean_of_its_seconds() {
        let run = timeline(&[1.0, 2.0], &[100.0, 100.0]);
        let whole = run.whole();
        let get = |key: &str| whole.iter().find(|(name, _)| *name == key).expect(key).1;
        assert_eq!((get("threads"), get("background_percent"), get("load_cpu")), (1.5, 50.0, 0.25));
        assert_eq!((get("msgs_per_s"), get("violations")), (9.0, 0.0));
        assert_eq!((get("wake_us"), get("wake_most_us")), (30.0, 40.0));
        let figure = run.figure();
        assert!(figure[2].contains("▅█"), "{figure:?}");
        assert!(run.remarks().iter().any(|line| line == "controller: up"));
    }
}
