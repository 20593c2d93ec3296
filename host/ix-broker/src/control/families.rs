//! The text formats of metrics: families of series, each family in one piece.
//!
//! OpenMetrics and Prometheus' text format want all series of a name together, also those of
//! several dataplanes, and each series once. So series are collected by name, and a second series
//! with the same labels, which only a dataplane that makes things up would cause, is left out.
use std::collections::{BTreeMap, HashSet};
use std::fmt::{Display, Write};

/// A text format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format, version 0.0.4.
    #[default]
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// Its media type.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Longest value of a label, in characters.
const LABEL_MAX: usize = 256;
/// Most series of one dataplane. One with 256 elastic threads has about half as many.
const SERIES_MAX: usize = 100_000;

/// All families of a page.
#[derive(Default)]
pub struct Families {
    all: Vec<Family>,
    /// Where the family of a name is.
    by_name: BTreeMap<String, usize>,
    /// The family of [`Families::head`].
    current: usize,
    /// Labels of every series from now on.
    source: Vec<(&'static str, String)>,
    /// Series of this source that may still come.
    room: usize,
    seen: HashSet<String>,
}

/// All series of one name.
struct Family {
    name: String,
    kind: &'static str,
    help: String,
    lines: String,
}

impl Families {
    /// The dataplane that the next series belong to, by its labels.
    pub fn source<const N: usize>(&mut self, labels: [(&'static str, String); N]) {
        self.source = labels.into();
        self.room = SERIES_MAX;
    }

    /// What follows is of this family.
    pub fn head(&mut self, name: &str, kind: &'static str, help: &str) {
        self.current = *self.by_name.entry(name.to_owned()).or_insert_with(|| {
            let (name, help) = (name.to_owned(), help.to_owned());
            self.all.push(Family { name, kind, help, lines: String::new() });
            self.all.len() - 1
        });
    }

    /// A series of the family.
    pub fn put(&mut self, name: &str, labels: &[(&str, &dyn Display)], value: impl Display) {
        let series = self.series(name, labels);
        if self.takes(&series) {
            let _ = writeln!(self.all[self.current].lines, "{series} {value}");
        }
    }

    /// The series of a histogram, from what each bucket has by itself. There is one more of these
    /// than of bounds; without any there is no histogram.
    pub fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &dyn Display)],
        bounds: impl Iterator<Item = f64>,
        counts: &[u64],
        sum: f64,
    ) {
        // Its series belong together: a second one of the same labels is left out as a whole.
        let total = self.series(&format!("{name}_count"), labels);
        if counts.is_empty() || !self.takes(&total) {
            return;
        }
        let mut below = 0u64;
        for (bound, count) in bounds.map(Some).chain([None]).zip(counts) {
            below = below.saturating_add(*count);
            // OpenMetrics has floating-point numbers here.
            let bound = bound.map_or_else(|| "+Inf".to_owned(), |bound| format!("{bound:?}"));
            let mut labels = labels.to_vec();
            labels.push(("le", &bound));
            let series = self.series(&format!("{name}_bucket"), &labels);
            let _ = writeln!(self.all[self.current].lines, "{series} {below}");
        }
        let of_sum = self.series(&format!("{name}_sum"), labels);
        let _ = writeln!(self.all[self.current].lines, "{of_sum} {sum}\n{total} {below}");
    }

    /// Name and labels. A label of its own goes before that of the dataplane.
    fn series(&self, name: &str, labels: &[(&str, &dyn Display)]) -> String {
        let own = |name: &str| labels.iter().any(|(label, _)| *label == name);
        let shared = self.source.iter().filter(|(name, _)| !own(name));
        let shared = shared.map(|(name, value)| (*name, value as &dyn Display));
        let labels: Vec<String> = shared
            .chain(labels.iter().copied())
            .map(|(name, value)| format!("{name}=\"{}\"", escape(value)))
            .collect();
        let labels =
            if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        format!("ix_{name}{labels}")
    }

    /// Whether a series is new, and there is room for it.
    fn takes(&mut self, series: &str) -> bool {
        let has_room = self.source.is_empty() || self.room > 0;
        self.room = self.room.saturating_sub(1);
        has_room && self.seen.insert(series.to_owned())
    }

    /// The page. Families without series are left out.
    pub fn text(&self, format: Format) -> String {
        let mut page = String::new();
        for Family { name, kind, help, lines } in self.all.iter().filter(|f| !f.lines.is_empty()) {
            // In OpenMetrics the end of the name belongs to the series; Prometheus' own format has
            // no kind for what only informs.
            let (name, kind) = match (format, *kind) {
                (Format::Text, "info") => (name.as_str(), "gauge"),
                (Format::OpenMetrics, "info") => (without(name, "_info"), "info"),
                (Format::OpenMetrics, "counter") => (without(name, "_total"), "counter"),
                (_, kind) => (name.as_str(), kind),
            };
            let _ = write!(page, "# HELP ix_{name} {help}.\n# TYPE ix_{name} {kind}\n{lines}");
        }
        if format == Format::OpenMetrics {
            page.push_str("# EOF\n");
        }
        page
    }
}

fn without<'a>(name: &'a str, end: &str) -> &'a str {
    name.strip_suffix(end).unwrap_or(name)
}

/// A label's value as it may stand between quotes.
fn escape(value: &dyn Display) -> String {
    let value: String = value.to_string().chars().take(LABEL_MAX).collect();
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
