//! The budget: instructions per message that each scenario may take, in a file of the repository.
use crate::scenario::SCENARIOS;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Tolerance of the budget, per cent: the effect of another patch level of the compiler, C library
/// or processor.
pub const TOLERANCE_PERCENT: f64 = 3.0;

/// What IPv6 may cost more than IPv4 for the same exchange, per cent. Measured: 2.1.
pub const V6_PERCENT: f64 = 4.0;
/// Scenarios that differ in the family alone: IPv4, IPv6.
pub const FAMILIES: (&str, &str) = ("echo-64", "echo-64-v6");

/// Instructions per message, by scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budget(pub BTreeMap<String, u64>);

/// A result compared with its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Within the tolerance.
    Kept,
    /// Above it: a change made it more expensive.
    Exceeded,
    /// Below it: the budget should follow.
    Undercut,
    /// There is no budget for it.
    Unknown,
}

impl Budget {
    /// Path of the file.
    pub fn path() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("budget.toml")
    }

    /// Reads it; a missing file is an empty budget.
    pub fn read(path: &Path) -> Result<Budget> {
        match std::fs::read_to_string(path) {
            Ok(text) => Budget::parse(&text).with_context(|| format!("{}", path.display())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Budget::default()),
            Err(e) => Err(e).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    fn parse(text: &str) -> Result<Budget> {
        let table: BTreeMap<String, u64> = toml::from_str(text)?;
        if let Some(name) = table.keys().find(|name| SCENARIOS.iter().all(|s| s.name != **name)) {
            bail!("no scenario `{name}`; remove its line");
        }
        Ok(Budget(table))
    }

    /// Writes it.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = self.text();
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    fn text(&self) -> String {
        let mut text = "# Instructions a message, of both ends together. Written by\n\
                        # `cargo run --release -p ix-cost -- --accept`.\n"
            .to_owned();
        for scenario in &SCENARIOS {
            if let Some(budget) = self.0.get(scenario.name) {
                let _ = writeln!(text, "{} = {budget}", scenario.name);
            }
        }
        text
    }

    /// Compares.
    pub fn judge(&self, scenario: &str, instructions: f64) -> Verdict {
        let Some(&budget) = self.0.get(scenario) else { return Verdict::Unknown };
        let percent = difference_percent(instructions, budget);
        if percent > TOLERANCE_PERCENT {
            Verdict::Exceeded
        } else if percent < -TOLERANCE_PERCENT {
            Verdict::Undercut
        } else {
            Verdict::Kept
        }
    }
}

/// Difference from the budget, per cent.
pub fn difference_percent(instructions: f64, budget: u64) -> f64 {
    (instructions / budget.max(1) as f64 - 1.0) * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_per_cent_are_tolerated_both_ways() {
        let budget = Budget([("bulk".to_owned(), 1000)].into());
        let judge = |instructions| budget.judge("bulk", instructions);
        assert_eq!(judge(1029.0), Verdict::Kept);
        assert_eq!(judge(971.0), Verdict::Kept);
        assert_eq!(judge(1031.0), Verdict::Exceeded);
        assert_eq!(judge(969.0), Verdict::Undercut);
        assert_eq!(budget.judge("churn", 1.0), Verdict::Unknown);
    }

    #[test]
    fn what_is_written_is_read() {
        let budget = Budget([("bulk".to_owned(), 7), ("echo-64".to_owned(), 9)].into());
        assert_eq!(Budget::parse(&budget.text()).unwrap(), budget);
        assert!(Budget::parse("no-such = 1").is_err());
        assert!(Budget::parse("bulk = -1").is_err());
    }

    /// A long one is counted only by a run that names it.
    #[test]
    fn every_scenario_of_a_plain_run_has_a_budget() {
        let budget = Budget::read(&Budget::path()).unwrap();
        for scenario in SCENARIOS.iter().filter(|scenario| !scenario.is_long) {
            assert!(budget.0.contains_key(scenario.name), "{}: run --accept", scenario.name);
        }
    }
}
