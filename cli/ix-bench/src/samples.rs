//! Ticks of a short operation, measured often enough to separate it from noise: percentiles, and
//! their row.
use serde_json::{Value, json};

/// Samples of operations that this process measures itself; each sample covers several operations.
pub(crate) const SAMPLES: usize = 201;

/// Percentiles 10, 50 and 90 of `sample`, which returns ticks of `each` operations.
pub(crate) fn percentiles(each: u32, mut sample: impl FnMut() -> u64) -> [f64; 3] {
    let mut all: Vec<f64> = (0..SAMPLES).map(|_| sample() as f64 / f64::from(each)).collect();
    all.sort_unstable_by(f64::total_cmp);
    [10, 50, 90].map(|percent| all[SAMPLES * percent / 100])
}

/// The row of three percentiles, in ticks, and of the median in ns.
pub(crate) fn row(
    what: &str,
    domain: Option<&str>,
    [low, mid, high]: [f64; 3],
    ticks_per_us: f64,
) -> Value {
    let round = |value: f64| (value * 10.0).round() / 10.0;
    let mut row = json!({
        "what": what,
        "cycles": round(mid),
        "cycles_p10": round(low),
        "cycles_p90": round(high),
        "ns": round(mid * 1000.0 / ticks_per_us.max(1.0)),
    });
    if let Some(domain) = domain {
        row["domain"] = domain.into();
    }
    row
}
