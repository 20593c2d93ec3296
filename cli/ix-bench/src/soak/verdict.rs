//! The verdict of a soak.
use super::Soak;
use super::watch::{Held, Sample};
use super::weather::SLICES;

/// A process's memory may grow by a tenth and this, KB, in its life: pools fill, and flow tables
/// grow once.
const GROWTH_KB: u64 = 8 << 10;
/// Descriptors that come and go: clients of the control socket.
const GROWTH_DESCRIPTORS: u64 = 8;
/// A life with fewer samples (one per second) is too short to judge growth.
const LIFE_MIN: usize = 60;
/// Latency of the second half may be at most this many times that of the first half, plus this, µs:
/// the load of other programs on the machine varies.
const SLOWER: u64 = 4;
const SLOWER_US: u64 = 2_000;
/// Messages without recent incidents in each half that are needed to compare their latencies.
const FAIR_MIN: u64 = 10_000;

/// One criterion and its result.
pub struct Finding {
    /// Name.
    pub what: &'static str,
    /// `None`: the soak was too short for it.
    pub good: Option<bool>,
    /// What was seen.
    pub seen: String,
}

impl Finding {
    fn new(what: &'static str, good: bool, seen: String) -> Finding {
        Finding { what, good: Some(good), seen }
    }

    fn word(&self) -> &'static str {
        match self.good {
            Some(true) => "good",
            Some(false) => "BAD",
            None => "-",
        }
    }
}

impl Soak {
    /// All findings.
    pub fn findings(&self) -> Vec<Finding> {
        let (clients, chaos) = (&self.clients, &self.chaos);
        let opened = format!(
            "{} opened; {} ended with a program that died; {} broke otherwise",
            clients.connections, clients.excused, clients.broken_count
        );
        let incidents = format!(
            "{} flow groups moved ({} commands refused), {} programs, {} brokers and {} controllers \
             killed, link {} times down and up",
            chaos.migrations,
            chaos.refused,
            chaos.programs,
            chaos.brokers,
            chaos.controllers,
            chaos.flaps
        );
        let each = [chaos.migrations, chaos.programs, chaos.controllers, chaos.flaps];
        let orphans = match chaos.orphans.first() {
            None => "no process outlived its parent".to_owned(),
            Some(first) => format!("{} times, first: {first}", chaos.orphans.len()),
        };
        let left = match self.watch.left.is_empty() {
            true => format!("all back {:.1} s after the end", self.watch.settled_s),
            false => format!("left at the end: {}", self.watch.left.join(", ")),
        };
        let octets = format!("{} messages, {} wrong octets", clients.messages, clients.wrong);
        vec![
            Finding::new("octets", clients.wrong == 0 && clients.messages > 0, octets),
            Finding::new("connections", clients.broken_count == 0, opened),
            Finding::new("incidents", each.iter().all(|&count| count > 0), incidents),
            Finding::new("processes", chaos.orphans.is_empty(), orphans),
            Finding::new("flows, buffers", self.watch.left.is_empty(), left),
            self.growth("memory, KB", |held| held.rss_kb, GROWTH_KB),
            self.growth("descriptors", |held| held.descriptors, GROWTH_DESCRIPTORS),
            self.latency(),
        ]
    }

    /// Compares late with early samples of each life of program and broker.
    fn growth(&self, what: &'static str, of: fn(&Held) -> u64, may_grow: u64) -> Finding {
        let lives = self.watch.samples.chunk_by(|a, b| a.pid == b.pid);
        let long: Vec<&[Sample]> = lives.filter(|life| life.len() >= LIFE_MIN).collect();
        let grown = long.iter().flat_map(|life| {
            [|s: &Sample| s.program, |s: &Sample| s.broker].map(|whose| {
                let middle_of = |part: &[Sample]| middle(part.iter().map(|s| of(&whose(s))));
                let (early, late) =
                    (&life[life.len() / 4..life.len() / 2], &life[life.len() * 3 / 4..]);
                (middle_of(early), middle_of(late))
            })
        });
        match grown.max_by_key(|(early, late)| late.saturating_sub(*early)) {
            None => Finding { what, good: None, seen: "no process lived long enough".to_owned() },
            Some((early, late)) => {
                let good = late <= early + early / 10 + may_grow;
                let seen = format!("most growth in one of {} lives: {early} to {late}", long.len());
                Finding::new(what, good, seen)
            }
        }
    }

    fn latency(&self) -> Finding {
        let halves =
            [0..SLICES / 2, SLICES / 2..SLICES].map(|half| self.clients.latency_over(half));
        let of = |quantile| halves.each_ref().map(|h| h.value_at_quantile(quantile));
        let ([p50, later_p50], [p99, later_p99]) = (of(0.5), of(0.99));
        let enough = halves.iter().all(|half| half.len() >= FAIR_MIN);
        Finding {
            what: "latency, µs",
            good: enough.then_some(later_p50 <= SLOWER * p50 + SLOWER_US),
            seen: format!(
                "first half p50 {p50}, p99 {p99}; second half p50 {later_p50}, p99 {later_p99}"
            ),
        }
    }

    /// `good` or `bad`.
    pub fn verdict(&self) -> &'static str {
        let bad = self.findings().iter().any(|finding| finding.good == Some(false));
        if bad { "bad" } else { "good" }
    }

    /// The table of findings.
    pub fn lines(&self) -> Vec<String> {
        let line = |f: &Finding| format!("{:<5} {:<15} {}", f.word(), f.what, f.seen);
        let mut lines: Vec<String> = self.findings().iter().map(line).collect();
        lines.extend(self.clients.broken.iter().map(|what| format!("      broke {what}")));
        lines.push(format!("verdict after {:.0} s: {}", self.seconds, self.verdict()));
        lines
    }

    /// The bad findings.
    pub fn bad(&self) -> Vec<String> {
        let bad = self.findings().into_iter().filter(|finding| finding.good == Some(false));
        bad.map(|finding| format!("{}: {}", finding.what, finding.seen)).collect()
    }
}

/// The median.
fn middle(values: impl Iterator<Item = u64>) -> u64 {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::{chaos, clients, watch};
    use super::*;

    /// A soak of two lives of the program without any fault.
    fn good() -> Soak {
        let mut clients = clients::Tally::new();
        (clients.messages, clients.connections) = (100_000, 900);
        clients.latency_us.iter_mut().for_each(|slice| slice.record_n(80, 5_000).expect("small"));
        let sample = |second: u64| Sample {
            slice: (second / 20) as usize,
            pid: 7 + second / 100,
            program: Held { rss_kb: 40_000, descriptors: 20 },
            broker: Held { rss_kb: 9_000, descriptors: 30 },
            flows: 7,
            frames: 12,
        };
        let samples = (0..200).map(sample).collect();
        let chaos = chaos::Tally {
            migrations: 100,
            programs: 1,
            controllers: 2,
            flaps: 3,
            ..chaos::Tally::default()
        };
        let watch = watch::Series { samples, left: Vec::new(), settled_s: 0.2 };
        Soak { seconds: 200.0, slice_s: 20.0, clients, chaos, watch, mode: String::new() }
    }

    #[track_caller]
    fn is_bad(spoil: impl FnOnce(&mut Soak), what: &str) {
        let mut soak = good();
        spoil(&mut soak);
        assert_eq!(soak.verdict(), "bad");
        let bad = soak.bad();
        assert!(bad.len() == 1 && bad[0].starts_with(what), "{bad:?}");
        assert!(soak.lines().iter().any(|line| line.starts_with("BAD")));
    }

    #[test]
    fn a_soak_without_incidents_in_it_is_none() {
        assert_eq!(good().bad(), Vec::<String>::new());
        assert!(good().findings().iter().all(|finding| finding.good == Some(true)));
        is_bad(|soak| soak.chaos.flaps = 0, "incidents");
    }

    #[test]
    fn what_is_wrong_is_named() {
        is_bad(|soak| soak.clients.wrong = 1, "octets");
        is_bad(|soak| soak.clients.broken_count = 1, "connections");
        is_bad(|soak| soak.chaos.orphans.push("a program".to_owned()), "processes");
        is_bad(|soak| soak.watch.left.push("1 flows".to_owned()), "flows, buffers");
        let late = |soak: &mut Soak| {
            soak.clients.latency_us[5..].iter_mut().for_each(|slice| {
                slice.record_n(60_000, 9_000).expect("small");
            });
        };
        is_bad(late, "latency");
    }

    #[test]
    fn growth_counts_within_a_life() {
        // 100 KB a second, also in the first life only.
        is_bad(|soak| grow(&mut soak.watch.samples[..100]), "memory");
        let leak = |soak: &mut Soak| {
            let lives = soak.watch.samples[100..].iter_mut().enumerate();
            lives.for_each(|(second, sample)| sample.broker.descriptors += second as u64);
        };
        is_bad(leak, "descriptors");
        // A new process that is larger than the one before has not grown.
        let mut soak = good();
        soak.watch.samples[100..].iter_mut().for_each(|sample| sample.program.rss_kb *= 2);
        assert_eq!(soak.verdict(), "good");
    }

    fn grow(life: &mut [Sample]) {
        let grown = life.iter_mut().enumerate();
        grown.for_each(|(second, sample)| sample.program.rss_kb += 400 * second as u64);
    }
}
