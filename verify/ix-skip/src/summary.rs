//! The result of a run of `cargo test`: how many tests ran, which were skipped, and why.

use crate::{Allowed, Record};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Group of tests that their source marks with `#[ignore]`.
const IGNORED: &str = "ignored";

/// Counts of a run, and the tests that were skipped.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    passed: usize,
    failed: usize,
    results: Vec<String>,
    skipped: BTreeSet<Record>,
    /// Executables that have begun, and that have said their result.
    begun: usize,
    ended: usize,
    /// Names of tests that failed, and of those that passed, each once.
    failures: BTreeSet<String>,
    successes: BTreeSet<String>,
    /// Those that failed beside others, and passed when they ran again by themselves.
    alone: BTreeSet<String>,
}

impl Summary {
    /// Takes in a line that cargo or libtest printed on standard output.
    pub fn see(&mut self, line: &str) {
        if let Some(counts) = line.strip_prefix("test result: ") {
            let count = |name: &str| {
                let (before, _) = counts.split_once(name)?;
                before.rsplit([' ', '.']).find(|word| !word.is_empty())?.parse().ok()
            };
            let [passed, failed, ignored] =
                [" passed", " failed", " ignored"].map(|name| count(name).unwrap_or(0));
            self.passed += passed;
            self.failed += failed;
            self.ended += 1;
            if passed + failed + ignored > 0 {
                self.results.push(line.to_owned());
            }
        } else if is_begin(line) {
            self.begun += 1;
        } else if let Some((test, "ok")) = verdict(line) {
            self.successes.insert(test.to_owned());
        } else if let Some((test, "FAILED")) = verdict(line) {
            self.failures.insert(test.to_owned());
        } else if let Some((test, why)) = ignored(line) {
            self.skipped.insert(Record {
                group: IGNORED.to_owned(),
                package: String::new(),
                test: test.to_owned(),
                part: false,
                why: why.to_owned(),
                remedy: "cargo test --release -- --ignored".to_owned(),
            });
        }
    }

    /// Takes in the records that the tests of the run left.
    pub fn add(&mut self, records: &str) {
        self.skipped.extend(records.lines().filter_map(Record::parse));
    }

    /// Names of the tests that failed. `None`: something else failed too, such as an executable
    /// that ended before its result, or two tests of one name.
    pub fn failures(&self) -> Option<&BTreeSet<String>> {
        let is_all = self.begun == self.ended && self.failures.len() == self.failed;
        is_all.then_some(&self.failures)
    }

    /// Takes in a run of the tests that failed, each by itself: those that passed now are counted
    /// as passed, and named. Returns whether none is left.
    pub fn ran_alone(&mut self, again: &Summary) -> bool {
        let passes =
            |test: &&String| again.successes.contains(*test) && !again.failures.contains(*test);
        self.alone = self.failures.iter().filter(passes).cloned().collect();
        self.failed -= self.alone.len();
        self.passed += self.alone.len();
        self.failed == 0
    }

    /// A line for each test that passed only by itself.
    pub fn alone(&self) -> String {
        let line = |test| format!("failed beside other tests, passed by itself: {test}\n");
        self.alone.iter().map(line).collect()
    }

    /// Each skipped test once: whole tests, or parts of tests that ran otherwise.
    fn tests(&self, part: bool) -> BTreeMap<(&str, &str), &Record> {
        let of = self.skipped.iter().filter(|record| record.part == part);
        of.map(|record| ((record.package.as_str(), record.test.as_str()), record)).collect()
    }

    /// The skipped tests, by group, with what to do: a line each.
    pub fn list(&self) -> String {
        let mut text = String::new();
        let whole = self.tests(false);
        let mut groups: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
        for record in whole.values().copied().chain(self.tests(true).into_values()) {
            groups.entry(&record.group).or_default().push(record);
        }
        for (group, records) in groups {
            let _ = writeln!(text, "{group}:");
            for record in records {
                let part = if record.part { " (a part)" } else { "" };
                let Record { package, test, why, remedy, .. } = record;
                let _ = match group {
                    IGNORED => writeln!(text, "  {test}: {why}"),
                    _ => writeln!(text, "  {package} {test}{part}: {why}; {remedy}"),
                };
            }
        }
        text
    }

    /// One line: how many tests ran, how many were skipped, and why by group.
    pub fn sentence(&self) -> String {
        let whole = self.tests(false);
        let mut groups: BTreeMap<&str, usize> = BTreeMap::new();
        for record in whole.values() {
            *groups.entry(&record.group).or_default() += 1;
        }
        let why: Vec<String> =
            groups.iter().map(|(group, count)| format!("{count} {group}")).collect();
        let why = if why.is_empty() { String::new() } else { format!(" ({})", why.join(", ")) };
        let parts = match self.tests(true).len() {
            0 => String::new(),
            count => format!("; {count} ran without a part"),
        };
        let ran = self.ran() + self.failed;
        let skipped = whole.len();
        let executables = self.results.len();
        format!("{ran} tests ran ({executables} executables), {skipped} skipped{why}{parts}")
    }

    /// `N passed, N failed, N skipped`.
    pub fn counts(&self) -> String {
        format!(
            "{} passed, {} failed, {} skipped",
            self.ran(),
            self.failed,
            self.tests(false).len()
        )
    }

    /// The lines with libtest's counts, one for each executable that has tests.
    pub fn results(&self) -> String {
        self.results.join("\n")
    }

    /// Skipped tests that are not on the list, one sentence each. A test that its source ignores
    /// needs no entry on the list.
    pub fn surprises(&self, allowed: &Allowed) -> Vec<String> {
        let of = self.skipped.iter().filter(|record| record.group != IGNORED);
        let of = of.filter(|record| !allowed.has(record));
        let line = |record: &Record| {
            format!("{} {} {}: {}", record.group, record.package, record.test, record.sentence())
        };
        of.map(line).collect()
    }

    /// Tests that passed and were not skipped. libtest counts a skipped one as passed.
    fn ran(&self) -> usize {
        let skipped = self.tests(false).values().filter(|record| record.group != IGNORED).count();
        self.passed.saturating_sub(skipped)
    }
}

/// Whether an executable's tests begin with this line.
fn is_begin(line: &str) -> bool {
    let count = line.strip_prefix("running ").and_then(|rest| rest.split_once(" test"));
    count.is_some_and(|(count, rest)| count.parse::<usize>().is_ok() && rest.len() <= 1)
}

/// Name and verdict, from libtest's line about a test.
fn verdict(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("test ")?.split_once(" ... ")
}

/// Name and reason, from libtest's line about an ignored test.
fn ignored(line: &str) -> Option<(&str, &str)> {
    let (test, verdict) = verdict(line)?;
    let why = verdict.strip_prefix("ignored")?;
    Some((test, why.strip_prefix(", ").unwrap_or("for long runs")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
running 3 tests
test tap::one ... ok
test tap::two ... ok
test tap::long ... ignored, a minute

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s

running 2 tests
test other ... FAILED
test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

running 0 tests
test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    fn summary(records: &[&str]) -> Summary {
        let mut summary = Summary::default();
        OUTPUT.lines().for_each(|line| summary.see(line));
        summary.add(&records.join("\n"));
        summary
    }

    #[test]
    fn a_skipped_test_has_not_passed() {
        let one = "root\tix-nic\ttap::one\twhole\tno permission\trun it as root";
        // The second time for another device.
        let summary = summary(&[one, one, "program\tix\tping\tpart\tno ping\tapt-get install x"]);
        assert_eq!(summary.counts(), "2 passed, 1 failed, 2 skipped");
        assert_eq!(
            summary.sentence(),
            "3 tests ran (2 executables), 2 skipped (1 ignored, 1 root); 1 ran without a part"
        );
        assert_eq!(summary.results().lines().count(), 2);
        let list = summary.list();
        assert!(
            list.contains("root:\n  ix-nic tap::one: no permission; run it as root\n"),
            "{list}"
        );
        assert!(list.contains("  ix ping (a part): no ping; apt-get install x\n"), "{list}");
        assert!(list.contains("ignored:\n  tap::long: a minute\n"), "{list}");
    }

    #[test]
    fn a_test_that_passes_by_itself_is_named() {
        let mut first = summary(&[]);
        assert_eq!(first.failures(), Some(&BTreeSet::from(["other".to_owned()])));
        let run = |lines: &str| {
            let mut again = Summary::default();
            lines.lines().for_each(|line| again.see(line));
            again
        };
        let failed = run("running 1 test\ntest other ... FAILED\n");
        assert!(!first.clone().ran_alone(&failed), "it failed twice");
        assert!(!first.clone().ran_alone(&run("")), "it did not run");
        let two = run("test other ... ok\ntest other ... FAILED\n");
        assert!(!first.clone().ran_alone(&two), "one of two failed");
        assert!(first.ran_alone(&run("running 1 test\ntest other ... ok\n")));
        assert_eq!(first.counts(), "4 passed, 0 failed, 1 skipped");
        assert_eq!(first.alone(), "failed beside other tests, passed by itself: other\n");
    }

    #[test]
    fn a_crash_is_not_forgiven() {
        let mut crashed = summary(&[]);
        crashed.see("running 5 tests");
        assert_eq!(crashed.failures(), None);
        let mut twins = summary(&[]);
        twins.see("test other ... FAILED");
        twins.see("test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured");
        assert_eq!(twins.failures(), None);
    }

    #[test]
    fn nothing_skipped_needs_no_reasons() {
        let mut summary = Summary::default();
        summary.see("test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured");
        assert_eq!(summary.sentence(), "7 tests ran (1 executables), 0 skipped");
        assert_eq!(summary.counts(), "7 passed, 0 failed, 0 skipped");
        assert_eq!(summary.list(), "");
    }

    #[test]
    fn what_is_not_on_the_list_surprises() {
        let summary = summary(&[
            "root\tix-nic\ttap::one\twhole\tno permission\trun it as root",
            "hardware\tix\tmeter\twhole\tno counters\ta machine with counters",
        ]);
        let allowed = Allowed::parse("hardware * *").expect("a list");
        let surprises = summary.surprises(&allowed);
        assert_eq!(surprises.len(), 1);
        assert!(
            surprises[0].starts_with("root ix-nic tap::one: SKIPPED tap::one"),
            "{surprises:?}"
        );
    }
}
