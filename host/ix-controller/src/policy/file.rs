//! Policies as TOML: reading, checking, writing.
use super::{Add, Down, Exception, Gain, Ladder, Level, Policy, Up};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Built-in policies, by name.
pub const BUILT_IN: [(&str, &str); 3] = [
    ("energy", include_str!("../../policies/energy.toml")),
    ("consolidation", include_str!("../../policies/consolidation.toml")),
    ("minmax", include_str!("../../policies/minmax.toml")),
];

/// Why a policy is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    /// The key; empty if the file is not TOML.
    pub key: String,
    /// What is wrong with it.
    pub why: String,
    /// What to write instead.
    pub mend: String,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        write!(f, "{}; {}", self.why, self.mend)
    }
}

impl std::error::Error for PolicyError {}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    name: String,
    slo_us: f64,
    base: BaseTable,
    ladder: LadderTable,
    #[serde(default)]
    gain: GainTable,
    #[serde(default)]
    up: UpTable,
    #[serde(default)]
    down: DownTable,
    #[serde(default, rename = "dataplane", skip_serializing_if = "Vec::is_empty")]
    dataplanes: Vec<DataplaneTable>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BaseTable {
    cores: Word,
    threads_per_core: Word,
    clock: Word,
}

/// A number or a word.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "neither a whole number nor a word")]
enum Word {
    Number(u32),
    Name(String),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LadderTable {
    add: Vec<String>,
    #[serde(default)]
    background: bool,
}

/// A table of numbers, each with a default and a range.
macro_rules! numbers {
    ($table:ident, $section:literal, $of:ident { $($field:ident: $kind:ty = $range:expr, $mend:literal;)* }) => {
        #[derive(Default, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct $table { $($field: Option<$kind>,)* }

        impl $table {
            fn read(&self) -> Result<$of, PolicyError> {
                let mut values = $of::default();
                $(if let Some(value) = self.$field {
                    let key = concat!($section, ".", stringify!($field));
                    check(key, f64::from(value), $range, $mend)?;
                    values.$field = value;
                })*
                Ok(values)
            }

            fn write(values: &$of) -> $table {
                $table { $($field: Some(values.$field),)* }
            }
        }
    };
}

numbers!(GainTable, "gain", Gain {
    hyperthreads: f64 = 0.0..=1.0, "the papers measured 0.3";
    turbo: f64 = 0.0..=1.0, "turbo's clock over the nominal one, less 1: 0.16 is usual";
    batching: f64 = 0.0..=100.0, "0.3 makes the papers' 29 % by batches of 16";
});
numbers!(UpTable, "up", Up {
    busy_max: f64 = 0.5..=1.0, "a share of the time, such as 0.95; 1 to wait for queues";
    hold_ms: f64 = 0.0..=60_000.0, "milliseconds, such as 200";
});
numbers!(DownTable, "down", Down {
    margin: f64 = 1.0..=10.0, "a factor on the ratio of configurations, such as 1.2";
    busy_max: f64 = 0.1..=1.0, "a share of the time, such as 0.9";
    window_ms: f64 = 100.0..=600_000.0, "milliseconds, such as 1000";
    queue_max: f64 = 0.0..=1e6, "packets, such as 8";
    rungs_max: u32 = 1.0..=1e6, "a number of rungs, such as 1";
    regret_s: f64 = 0.0..=1e6, "seconds, such as 600";
});

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DataplaneTable {
    program: String,
    slo_us: Option<f64>,
    weight: Option<f64>,
}

const SLO_US: std::ops::RangeInclusive<f64> = 1.0..=10_000_000.0;
const SLO_MEND: &str = "microseconds, such as 300 for an SLO of 500 µs";
const COUNT_MEND: &str = "a number from 1 on, or \"all\"";
const CLOCK_MEND: &str = "\"lowest\", \"nominal\", or MHz such as 1200";

impl Policy {
    /// Parses a policy and checks all that does not depend on a machine.
    pub fn parse(text: &str) -> Result<Policy, PolicyError> {
        let file: PolicyFile = toml::from_str(text).map_err(|e| no_toml(&e, text))?;
        check("slo_us", file.slo_us, SLO_US, SLO_MEND)?;
        let base = &file.base;
        let policy = Policy {
            name: file.name,
            slo_us: file.slo_us,
            ladder: Ladder {
                cores: count("base.cores", &base.cores)?,
                threads_per_core: count("base.threads_per_core", &base.threads_per_core)?,
                clock: clock("base.clock", &base.clock)?,
                add: adds(&file.ladder.add)?,
                background: file.ladder.background,
            },
            gain: file.gain.read()?,
            up: file.up.read()?,
            down: file.down.read()?,
            dataplanes: exceptions(&file.dataplanes)?,
        };
        // Otherwise a step up would follow each step down.
        if policy.down.busy_max >= policy.up.busy_max {
            let (up, down) = (policy.up.busy_max, policy.down.busy_max);
            let why =
                format!("{down} is not below up.busy_max = {up}: a step down would be undone");
            return Err(error("down.busy_max", why, format!("write less than {up}")));
        }
        Ok(policy)
    }

    /// Returns a built-in policy.
    pub fn built_in(name: &str) -> Option<Policy> {
        let (_, text) = BUILT_IN.iter().find(|(known, _)| *known == name)?;
        Policy::parse(text).ok()
    }

    /// The policy as a file that parses to the same policy.
    pub fn to_toml(&self) -> String {
        let ladder = &self.ladder;
        let file = PolicyFile {
            name: self.name.clone(),
            slo_us: self.slo_us,
            base: BaseTable {
                cores: word(ladder.cores, 1),
                threads_per_core: word(ladder.threads_per_core, 1),
                clock: match ladder.clock {
                    Level::Lowest => Word::Name("lowest".to_owned()),
                    Level::Highest => Word::Name("nominal".to_owned()),
                    Level::Exactly(khz) => Word::Number(khz / 1000),
                },
            },
            ladder: LadderTable {
                add: ladder.add.iter().map(|add| add.name().to_owned()).collect(),
                background: ladder.background,
            },
            gain: GainTable::write(&self.gain),
            up: UpTable::write(&self.up),
            down: DownTable::write(&self.down),
            dataplanes: self.dataplanes.iter().map(exception_table).collect(),
        };
        // Plain tables of numbers and words can always be written.
        toml::to_string(&file).unwrap_or_default()
    }

    /// The policy with another bound, for all dataplanes without their own.
    pub fn with_slo_us(mut self, slo_us: f64) -> Result<Policy, PolicyError> {
        check("slo_us", slo_us, SLO_US, SLO_MEND)?;
        self.slo_us = slo_us;
        Ok(self)
    }
}

fn error(key: &str, why: impl Into<String>, mend: impl Into<String>) -> PolicyError {
    PolicyError { key: key.to_owned(), why: why.into(), mend: mend.into() }
}

fn check(
    key: &str,
    value: f64,
    range: std::ops::RangeInclusive<f64>,
    mend: &str,
) -> Result<(), PolicyError> {
    if range.contains(&value) {
        return Ok(());
    }
    let why = format!("{value} is not between {} and {}", range.start(), range.end());
    Err(error(key, why, format!("write {mend}")))
}

fn no_toml(e: &toml::de::Error, text: &str) -> PolicyError {
    let at = e.span().map_or(0, |span| span.start.min(text.len()));
    let line = text.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count() + 1;
    let why = e.message().split_whitespace().collect::<Vec<_>>().join(" ");
    error("", format!("line {line}: {why}"), "`ix cp --print-policy energy` prints an example")
}

fn count(key: &str, word: &Word) -> Result<Level, PolicyError> {
    match word {
        Word::Number(n @ 1..=4096) => Ok(Level::Exactly(*n)),
        Word::Name(name) if name == "all" => Ok(Level::Highest),
        other => Err(wrong_word(key, other, COUNT_MEND)),
    }
}

fn clock(key: &str, word: &Word) -> Result<Level, PolicyError> {
    match word {
        Word::Number(mhz @ 100..=20_000) => Ok(Level::Exactly(mhz * 1000)),
        Word::Name(name) if name == "lowest" => Ok(Level::Lowest),
        Word::Name(name) if name == "nominal" => Ok(Level::Highest),
        other => Err(wrong_word(key, other, CLOCK_MEND)),
    }
}

fn wrong_word(key: &str, word: &Word, mend: &str) -> PolicyError {
    let written = match word {
        Word::Number(n) => n.to_string(),
        Word::Name(name) => format!("\"{name}\""),
    };
    error(key, format!("{written} is not valid here"), format!("write {mend}"))
}

fn word(level: Level, lowest: u32) -> Word {
    match level {
        Level::Lowest => Word::Number(lowest),
        Level::Highest => Word::Name("all".to_owned()),
        Level::Exactly(n) => Word::Number(n),
    }
}

fn adds(names: &[String]) -> Result<Vec<Add>, PolicyError> {
    const KEY: &str = "ladder.add";
    let known = Add::ALL.map(|add| format!("\"{}\"", add.name())).join(", ");
    let mut adds: Vec<Add> = Vec::new();
    for name in names {
        let Some(add) = Add::ALL.into_iter().find(|add| add.name() == name) else {
            return Err(error(
                KEY,
                format!("no such step \"{name}\""),
                format!("choose from {known}"),
            ));
        };
        if adds.contains(&add) {
            return Err(error(KEY, format!("\"{name}\" is there twice"), "keep one of them"));
        }
        let after = match adds.last() {
            Some(Add::Everything) => Some("everything"),
            Some(Add::Turbo) if add == Add::Clock => Some("turbo"),
            _ => None,
        };
        if let Some(after) = after {
            let why = format!("\"{name}\" adds nothing after \"{after}\"");
            return Err(error(KEY, why, format!("put \"{after}\" last")));
        }
        adds.push(add);
    }
    if adds.is_empty() {
        return Err(error(KEY, "a ladder needs more than one rung", format!("name {known}")));
    }
    Ok(adds)
}

fn exceptions(tables: &[DataplaneTable]) -> Result<Vec<Exception>, PolicyError> {
    let mut list: Vec<Exception> = Vec::new();
    for table in tables {
        if table.program.is_empty() || table.program.contains('/') {
            let why = format!("\"{}\" is not a program's name", table.program);
            return Err(error("dataplane.program", why, "write it without its folder"));
        }
        if list.iter().any(|e| e.program == table.program) {
            let why = format!("\"{}\" is there twice", table.program);
            return Err(error("dataplane.program", why, "keep one of them"));
        }
        if let Some(slo_us) = table.slo_us {
            check("dataplane.slo_us", slo_us, SLO_US, SLO_MEND)?;
        }
        let weight = table.weight.unwrap_or(1.0);
        check(
            "dataplane.weight",
            weight,
            0.01..=100.0,
            "a weight relative to 1 of others, such as 2",
        )?;
        list.push(Exception { program: table.program.clone(), slo_us: table.slo_us, weight });
    }
    Ok(list)
}

fn exception_table(exception: &Exception) -> DataplaneTable {
    DataplaneTable {
        program: exception.program.clone(),
        slo_us: exception.slo_us,
        weight: Some(exception.weight),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_command_carries_is_whole_and_survives_writing() {
        for (name, text) in BUILT_IN {
            let policy = Policy::parse(text).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(policy.name, name);
            assert_eq!(policy.slo_us, 300.0);
            assert_eq!(Policy::parse(&policy.to_toml()), Ok(policy.clone()), "{name}");
            assert_eq!(Policy::built_in(name), Some(policy));
        }
        assert_eq!(Policy::built_in("none"), None);
    }

    #[test]
    fn every_key_survives_writing() {
        let (text, _) = BUILT_IN[1].1.split_once("[up]").expect("its own");
        let mut text = text.replace("cores = 1", "cores = 3");
        text = text.replace("\"nominal\"", "1700").replace("\"all\"", "2");
        text.push_str(
            "[gain]\nhyperthreads = 0.2\nturbo = 0.15\n[up]\nbusy_max = 0.9\nhold_ms = 100\n\
             [down]\nmargin = 1.5\nbusy_max = 0.7\nwindow_ms = 4000\nqueue_max = 2\n\
             rungs_max = 1\nregret_s = 60\n\
             [[dataplane]]\nprogram = 'ix-kv'\nslo_us = 100\nweight = 2\n\
             [[dataplane]]\nprogram = 'ix-echo'\n",
        );
        let policy = Policy::parse(&text).expect("right");
        assert_eq!(policy.ladder.cores, Level::Exactly(3));
        assert_eq!(policy.ladder.clock, Level::Exactly(1_700_000));
        assert_eq!((policy.down.rungs_max, policy.gain.turbo), (1, 0.15));
        assert_eq!((policy.slo_us_of("ix-kv"), policy.weight_of("ix-kv")), (100.0, 2.0));
        assert_eq!((policy.slo_us_of("ix-echo"), policy.weight_of("cat")), (300.0, 1.0));
        assert_eq!(Policy::parse(&policy.to_toml()), Ok(policy));
    }

    #[test]
    fn nonsense_is_named_with_its_key_its_reason_and_what_mends_it() {
        let energy = BUILT_IN[0].1;
        let replaced = |what: &str, by: &str| {
            assert!(energy.contains(what), "{what}");
            energy.replace(what, by)
        };
        let appended = |tail: &str| format!("{energy}\n{tail}\n");
        let add = "[\"cores\", \"hyperthreads\", \"clock\", \"turbo\"]";
        for (text, key, says) in [
            (replaced("slo_us = 300", "slo_us = 0"), "slo_us", "0 is not between 1"),
            (replaced("slo_us = 300", "slo_us = -5.0"), "slo_us", "-5 is not"),
            (replaced("slo_us = 300", "slo_us = nan"), "slo_us", "NaN is not"),
            (replaced("slo_us = 300", ""), "", "missing field `slo_us`"),
            (replaced("slo_us = 300", "slo_us = 'fast'"), "", "line 6: invalid type"),
            (replaced("slo_us", "slow_us"), "", "unknown field `slow_us`"),
            (replaced("\nname", "\nname = ="), "", "line 3"),
            (replaced("cores = 1", "cores = 0"), "base.cores", "0 is not valid"),
            (replaced("cores = 1", "cores = 'most'"), "base.cores", "\"most\" is not valid"),
            (replaced("cores = 1", "cores = 1.5"), "", "neither a whole number nor a word"),
            (replaced("= \"lowest\"", "= 7"), "base.clock", "write \"lowest\""),
            (replaced("\"lowest\"\n", "\"turbo\"\n"), "base.clock", "\"turbo\" is not valid"),
            (replaced(add, "[]"), "ladder.add", "needs more than one rung"),
            (replaced(add, "['ram']"), "ladder.add", "no such step \"ram\"; choose from \"cores\""),
            (replaced(add, "['cores', 'cores']"), "ladder.add", "is there twice"),
            (replaced(add, "['turbo', 'clock']"), "ladder.add", "put \"turbo\" last"),
            (replaced(add, "['everything', 'cores']"), "ladder.add", "adds nothing after"),
            (appended("[gain]\nhyperthreads = 2"), "gain.hyperthreads", "between 0 and 1"),
            (appended("[up]\nbusy_max = 0.2"), "up.busy_max", "write a share"),
            (appended("[down]\nmargin = 0.5"), "down.margin", "0.5 is not between 1"),
            (appended("[down]\nbusy_max = 0.97"), "down.busy_max", "would be undone"),
            (appended("[down]\nrungs_max = 0"), "down.rungs_max", "0 is not"),
            (appended("[down]\nfast = 1"), "", "unknown field `fast`"),
            (appended("[[dataplane]]\nprogram = '/bin/a'"), "dataplane.program", "folder"),
            (appended("[[dataplane]]\nprogram = 'a'\nweight = 0"), "dataplane.weight", "0 is"),
            (appended("[[dataplane]]\nprogram = 'a'\nslo_us = 0"), "dataplane.slo_us", "0 is"),
            (
                appended("[[dataplane]]\nprogram = 'a'\n[[dataplane]]\nprogram = 'a'"),
                "dataplane.program",
                "is there twice",
            ),
        ] {
            let e = Policy::parse(&text).expect_err(&text);
            assert_eq!(e.key, key, "{e}");
            let line = e.to_string();
            assert!(line.contains(says), "{line}");
            assert!(!line.contains('\n') && line.contains("; "), "{line}");
        }
        let e = Policy::built_in("energy").expect("known").with_slo_us(0.0).expect_err("nonsense");
        assert_eq!(e.key, "slo_us");
    }
}
