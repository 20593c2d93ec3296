//! Two sets of results side by side: each point that both have, before and now.
use super::read::{Results, Row};
use super::series::{self, number, word};
use super::summary::{PATH_KEYS, Spread, spread};
use super::text;

/// The outcome that a point is compared by, first that both have, and whether more is better.
const OUTCOMES: [(&str, bool); 10] = [
    ("msgs_per_busy_s", true),
    ("msgs_per_s", true),
    ("connections_per_s", true),
    ("mbit_per_s", true),
    ("one_way_us", false),
    ("wake_p50_us", false),
    ("p50_us", false),
    ("p99_us", false),
    ("total_ns", false),
    ("jain_index", true),
];
/// Keys of who was measured.
const WHO: [&str; 7] = ["system", "server", "mode", "device", "domain", "client", "client_mode"];

/// What became of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its runs overlap with those before.
    Same,
    /// All its runs are better than all before.
    Better,
    /// All its runs are worse.
    Worse,
}

/// A point that both have.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Who was measured.
    pub server: String,
    /// Which point.
    pub point: String,
    /// By which outcome.
    pub outcome: &'static str,
    /// Median, lowest and highest run.
    pub before: Spread,
    pub now: Spread,
    pub verdict: Verdict,
}

impl Change {
    /// How many times as much as before.
    pub fn ratio(&self) -> f64 {
        self.now.median / self.before.median
    }
}

/// All points of a benchmark that both sets have, in the order of the new one.
pub fn changes(before: &Results, now: &Results) -> Vec<Change> {
    let rows: Vec<&Row> = now.rows.iter().collect();
    let varying: Vec<&str> = keys().filter(|key| series::variety(&rows, key) > 1).collect();
    let change = |row: &&Row| {
        let old = before.rows.iter().find(|old| is_same(old, row))?;
        let (outcome, more) = OUTCOMES.iter().copied().find(|(key, _)| {
            [old, *row].iter().all(|row| number(row, key).is_some_and(|value| value > 0.0))
        })?;
        let (before, now) = (runs(old, outcome)?, runs(row, outcome)?);
        let verdict = match () {
            () if now.low > before.high => [Verdict::Worse, Verdict::Better][usize::from(more)],
            () if now.high < before.low => [Verdict::Better, Verdict::Worse][usize::from(more)],
            () => Verdict::Same,
        };
        let named = varying.iter().filter_map(|key| {
            let value = row.get(*key).filter(|value| !value.is_null())?;
            Some(format!("{} {}", text::heading(key), text::of_value(value)))
        });
        let point = named.collect::<Vec<_>>().join(", ");
        let server = series::label(row, &rows);
        Some(Change { server, point, outcome, before, now, verdict })
    };
    rows.iter().filter_map(change).collect()
}

/// Middle and ends of all changes, as parts of what was before.
pub fn overall(changes: &[Change]) -> Option<Spread> {
    spread(changes.iter().map(Change::ratio).filter(|ratio| ratio.is_finite()).collect())
}

/// Keys that make a point beside those of summaries: of sharing, rates, gate and soak.
const OWN_KEYS: [&str; 5] = ["address", "flows", "limit_for", "what", "from_s"];

/// Keys that make a point.
fn keys() -> impl Iterator<Item = &'static str> {
    series::POINT_KEYS.into_iter().chain(PATH_KEYS).chain(OWN_KEYS)
}

fn is_same(a: &Row, b: &Row) -> bool {
    WHO.iter().all(|key| word(a, key) == word(b, key))
        && keys()
            .all(|key| a.get(key).filter(|v| !v.is_null()) == b.get(key).filter(|v| !v.is_null()))
}

fn runs(row: &Row, key: &str) -> Option<Spread> {
    let median = number(row, key)?;
    let (low, high) = series::range(row, key, median);
    Some(Spread { median, low, high })
}
