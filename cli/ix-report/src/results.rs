//! The JSON of a benchmark: the same types write it and read it.
use ix_sys::clock::{self, DateTime};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One measured point: a flat object, whose keys depend on the benchmark.
pub type Row = Map<String, Value>;

/// What one run of one benchmark writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The points.
    pub rows: Vec<Row>,
    /// Name of the benchmark.
    pub bench: String,
    /// Facts about the machine.
    #[serde(default)]
    pub machine: Row,
    /// The command line.
    #[serde(default)]
    pub command: String,
    /// When, UTC. Older files lack it.
    #[serde(default)]
    pub date: String,
    /// Notes that the reader must know.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Runs second by second, of benchmarks that have them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timelines: Vec<Timeline>,
}

impl Results {
    /// Those of this process, now.
    pub fn new(
        bench: &str,
        machine: &impl Serialize,
        rows: Vec<Row>,
        notes: Vec<String>,
    ) -> Results {
        Results {
            bench: bench.to_owned(),
            machine: object(machine),
            command: own_command(),
            date: now_utc(),
            notes,
            rows,
            timelines: Vec::new(),
        }
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        Value::Object(object(self))
    }
}

/// The command line of this process.
pub fn own_command() -> String {
    std::env::args().collect::<Vec<_>>().join(" ")
}

/// Date and time in UTC, in ISO 8601 format.
pub fn now_utc() -> String {
    let DateTime { year, month, day, hour, minute, second } = clock::now_utc();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The object that a structure is in JSON.
pub fn object(of: &impl Serialize) -> Row {
    match serde_json::to_value(of) {
        Ok(Value::Object(object)) => object,
        _ => Row::new(),
    }
}

/// A run of the controller second by second: the lists have a value for each second, and time 0 is
/// the start of the load's pattern.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Timeline {
    /// The load's pattern.
    pub pattern: String,
    /// The policy's name.
    pub policy: String,
    /// Whether the policy leaves hardware threads to a background job; else it saves power.
    pub background: bool,
    /// Time, s.
    pub at_s: Vec<f64>,
    /// Requests that were offered.
    pub offered_per_s: Vec<f64>,
    /// Requests with a reply.
    pub achieved_per_s: Vec<f64>,
    /// Latency.
    pub p99_us: Vec<f64>,
    /// Power.
    pub power_w: Vec<f64>,
    /// The least that any static configuration would have taken.
    pub bound_power_w: Vec<f64>,
    /// What the largest configuration would have taken.
    pub most_power_w: Vec<f64>,
    /// Work of the background job, of its peak.
    pub background_percent: Vec<f64>,
    /// The most that any static configuration would have left it.
    pub bound_background_percent: Vec<f64>,
    /// Changes of the configuration.
    pub events: Vec<Change>,
}

/// A change of the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// When, s.
    pub at_s: f64,
    /// To more resources.
    pub up: bool,
    /// The new one.
    #[serde(default)]
    pub configuration: String,
    /// The controller's reason.
    #[serde(default)]
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn results_are_read_as_they_are_written() {
        let row = object(&json!({ "system": "ix", "msgs_per_s": 1.5 }));
        let notes = vec!["a note".to_owned()];
        let mut results = Results::new("echo", &json!({ "kernel": "6.12" }), vec![row], notes);
        let timeline = Timeline { at_s: vec![0.0, 1.0], background: true, ..Timeline::default() };
        results.timelines.push(timeline);
        let json = results.to_json();
        assert_eq!((&json["bench"], &json["rows"][0]["msgs_per_s"]), (&json!("echo"), &json!(1.5)));
        assert!(json["machine"]["kernel"].is_string(), "{json}");
        assert_eq!(Results::deserialize(&json).expect("read"), results);
        let least = Results::deserialize(&json!({ "bench": "echo", "rows": [] })).expect("read");
        assert!(least.to_json().get("timelines").is_none());
        for wrong in [json!({ "bench": "echo" }), json!({ "bench": "echo", "rows": [1] })] {
            assert!(Results::deserialize(&wrong).is_err(), "{wrong}");
        }
    }
}
