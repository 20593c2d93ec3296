//! The rows of a result in JSON. The generator writes them; benchmarks read them.
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The result of a run, as far as others read it.
#[derive(Clone, Debug)]
pub struct LoadResult {
    seconds: Vec<Row>,
    summary: Row,
}

/// Figures of one second, or of the whole measured time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// When the second began, s; none: the row is of the whole time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<f64>,
    /// The rate that was asked for; none: a closed loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted_per_s: Option<f64>,
    /// Replies.
    pub msgs_per_s: f64,
    /// Latency of the load.
    #[serde(flatten)]
    pub latency: Latency,
    /// Replies to the measuring connections; none: there are no such connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measure_msgs_per_s: Option<f64>,
    /// Latency of the measuring connections.
    #[serde(flatten)]
    pub measure: MeasureLatency,
    /// Errors of all kinds.
    pub errors: u64,
    /// Share of reads that found a value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hit_rate: Option<f64>,
    /// Whether the rate that was asked for was reached; only of the whole time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<bool>,
    /// The generator's longest stall; only with a rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall_most_us: Option<f64>,
    /// Errors by kind, further figures, and in the row of the whole time the run's settings.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// Latencies, µs; none: there was no reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// Mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub avg_us: Option<f64>,
    /// Median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f64>,
    /// 90th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p90_us: Option<f64>,
    /// 95th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p95_us: Option<f64>,
    /// 99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    /// 99.9th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p999_us: Option<f64>,
    /// Maximum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_us: Option<f64>,
}

/// The same of the measuring connections, under names of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MeasureLatency {
    /// Mean.
    #[serde(rename = "measure_avg_us", skip_serializing_if = "Option::is_none")]
    pub avg_us: Option<f64>,
    /// Median.
    #[serde(rename = "measure_p50_us", skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f64>,
    /// 90th percentile.
    #[serde(rename = "measure_p90_us", skip_serializing_if = "Option::is_none")]
    pub p90_us: Option<f64>,
    /// 95th percentile.
    #[serde(rename = "measure_p95_us", skip_serializing_if = "Option::is_none")]
    pub p95_us: Option<f64>,
    /// 99th percentile.
    #[serde(rename = "measure_p99_us", skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    /// 99.9th percentile.
    #[serde(rename = "measure_p999_us", skip_serializing_if = "Option::is_none")]
    pub p999_us: Option<f64>,
    /// Maximum.
    #[serde(rename = "measure_max_us", skip_serializing_if = "Option::is_none")]
    pub max_us: Option<f64>,
}

impl From<Latency> for MeasureLatency {
    fn from(latency: Latency) -> MeasureLatency {
        let Latency { avg_us, p50_us, p90_us, p95_us, p99_us, p999_us, max_us } = latency;
        MeasureLatency { avg_us, p50_us, p90_us, p95_us, p99_us, p999_us, max_us }
    }
}

impl From<MeasureLatency> for Latency {
    fn from(latency: MeasureLatency) -> Latency {
        let MeasureLatency { avg_us, p50_us, p90_us, p95_us, p99_us, p999_us, max_us } = latency;
        Latency { avg_us, p50_us, p90_us, p95_us, p99_us, p999_us, max_us }
    }
}

impl LoadResult {
    /// Reads the object that a run writes: its rows are those of the seconds, then the row of the
    /// whole measured time.
    pub fn read(value: Value) -> Result<LoadResult, String> {
        #[derive(Deserialize)]
        struct Rows {
            rows: Vec<Row>,
        }
        let Rows { rows: mut seconds } =
            serde_json::from_value(value).map_err(|e| e.to_string())?;
        let summary = seconds.pop().ok_or("it has no rows")?;
        Ok(LoadResult { seconds, summary })
    }

    /// The row of the whole measured time.
    pub fn summary(&self) -> &Row {
        &self.summary
    }

    /// The rows of the seconds.
    pub fn seconds(&self) -> &[Row] {
        &self.seconds
    }
}

impl Row {
    /// All figures by their names in JSON.
    pub fn figures(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(figures)) => figures,
            _ => Map::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_are_read_as_they_are_written() {
        let latency = Latency { p50_us: Some(1.5), max_us: Some(9.0), ..Latency::default() };
        let row = Row {
            second: Some(-1.0),
            msgs_per_s: 1000.25,
            latency,
            measure: latency.into(),
            errors: 2,
            reached: Some(false),
            more: [("reset".to_owned(), json!(2)), ("stopped".to_owned(), Value::Null)]
                .into_iter()
                .collect(),
            ..Row::default()
        };
        let value = serde_json::to_value(&row).expect("JSON");
        assert_eq!((&value["p50_us"], &value["measure_max_us"]), (&json!(1.5), &json!(9.0)));
        assert!(value.get("hit_rate").is_none() && value.get("p99_us").is_none());
        let result = LoadResult::read(json!({ "bench": "load", "rows": [value] })).expect("read");
        assert_eq!((result.summary(), result.seconds()), (&row, &[][..]));
        assert!(LoadResult::read(json!({ "rows": [] })).is_err_and(|why| why.contains("no rows")));
        assert!(LoadResult::read(json!({ "rows": [{}] })).is_err());
    }
}
