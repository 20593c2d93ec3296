//! A strict parser of Prometheus' text format: what it refuses, a server might refuse, too.
use std::collections::{BTreeMap, BTreeSet};

/// All samples by series, as written.
pub struct Samples(BTreeMap<String, f64>);

impl Samples {
    /// Parses the text.
    ///
    /// # Panics
    /// On any violation of the format.
    #[track_caller]
    pub fn parse(text: &str) -> Samples {
        assert!(text.ends_with('\n'), "the last line must end as well");
        let (mut samples, mut types) = (BTreeMap::new(), BTreeMap::<String, String>::new());
        let (mut helped, mut family) = (BTreeSet::new(), String::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
                assert!(is_name(name) && !help.is_empty(), "{line}");
                assert!(helped.insert(name.to_owned()), "twice: {line}");
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
                let kinds = ["counter", "gauge", "histogram", "summary"];
                assert!(kinds.contains(&kind), "{line}");
                assert!(helped.contains(name), "no help before {line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "twice: {line}");
                family = name.to_owned();
            } else {
                let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
                let value: f64 = value.parse().unwrap_or_else(|e| panic!("{e}: {line}"));
                assert!(value.is_finite() && value >= 0.0, "{line}");
                let name = series.split('{').next().expect("there is a first");
                assert!(is_name(name), "{line}");
                let plain = match types[&family].as_str() {
                    "histogram" => {
                        ["_bucket", "_sum", "_count"].map(|end| format!("{family}{end}"))
                    }
                    "summary" => ["", "_sum", "_count"].map(|end| format!("{family}{end}")),
                    _ => ["", "", ""].map(|_| family.clone()),
                };
                assert!(plain.iter().any(|p| p == name), "{name} is not of {family}");
                check_labels(series);
                assert!(samples.insert(series.to_owned(), value).is_none(), "twice: {line}");
            }
        }
        let samples = Samples(samples);
        types.iter().filter(|(_, kind)| *kind == "histogram").for_each(|(name, _)| {
            samples.check_histogram(name);
        });
        samples
    }

    /// The value of a series.
    pub fn get(&self, series: &str) -> Option<f64> {
        self.0.get(series).copied()
    }

    /// The sum of all series of a name that have these labels; `None` if there is none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels = labels.iter().map(|(label, value)| format!("{label}=\"{value}\""));
        let labels: Vec<String> = labels.collect();
        let is_of = |series: &str| {
            let (of, rest) = series.split_once('{').unwrap_or((series, ""));
            of == name && labels.iter().all(|label| has_label(rest, label))
        };
        let mut values = self.0.iter().filter(|(series, _)| is_of(series)).map(|(_, value)| value);
        let first = values.next()?;
        Some(values.fold(*first, |sum, value| sum + value))
    }

    /// Each bucket includes those below it; the last one includes all.
    #[track_caller]
    fn check_histogram(&self, name: &str) {
        let counts = self.0.iter().filter(|(s, _)| s.starts_with(&format!("{name}_count")));
        for (series, count) in counts {
            let labels =
                series.trim_start_matches(&format!("{name}_count{{")).trim_end_matches('}');
            let prefix = format!("{name}_bucket{{{labels},le=\"");
            let buckets = self.0.iter().filter_map(|(series, value)| {
                let bound = series.strip_prefix(&prefix)?.trim_end_matches("\"}").replace('+', "");
                Some((bound.parse::<f64>().expect("a bound"), *value))
            });
            let mut buckets: Vec<_> = buckets.collect();
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(buckets.is_sorted_by(|a, b| a.1 <= b.1), "{name}: {buckets:?}");
            assert_eq!(buckets.last(), Some(&(f64::INFINITY, *count)), "{name}");
        }
    }
}

/// Whether the labels of a series, as written, have this one.
fn has_label(labels: &str, label: &str) -> bool {
    let begins = |at: usize| at == 0 || labels[..at].ends_with(',');
    labels.match_indices(label).any(|(at, _)| begins(at))
}

fn is_name(name: &str) -> bool {
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.starts_with("ix_") && name.chars().all(fine)
}

/// Parses `{name="value",…}` with the three defined escapes.
#[track_caller]
fn check_labels(series: &str) {
    let Some((_, labels)) = series.split_once('{') else { return };
    let mut rest = labels.strip_suffix('}').unwrap_or_else(|| panic!("{series}"));
    let mut seen = BTreeSet::new();
    while !rest.is_empty() {
        let (name, value) = rest.split_once("=\"").unwrap_or_else(|| panic!("{series}"));
        let fine = |c: char| c.is_ascii_lowercase() || c == '_';
        assert!(!name.is_empty() && name.chars().all(fine), "{series}");
        assert!(seen.insert(name.to_owned()), "twice {name}: {series}");
        let mut escaped = false;
        let end = value.char_indices().find_map(|(i, c)| match c {
            _ if escaped => {
                assert!(matches!(c, '\\' | '"' | 'n'), "{series}");
                escaped = false;
                None
            }
            '\\' => {
                escaped = true;
                None
            }
            '"' => Some(i),
            _ => None,
        });
        let end = end.unwrap_or_else(|| panic!("no end: {series}"));
        rest = &value[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
}
