//! Common parts of the benchmarks on the papers' server in virtual time.
use ix_controller::Configuration;
use ix_model::space;
use ix_report::machine::Machine;
use ix_report::output::OutputArgs;
use ix_report::problem::Result;
use ix_report::results::{self, Timeline};
use ix_report::table::layout;
use serde_json::{Map, Value, json};

/// Results of a benchmark on the model.
pub struct Results {
    /// Name of the benchmark.
    pub bench: &'static str,
    /// The points.
    pub rows: Vec<Map<String, Value>>,
    /// Values second by second, if there are any.
    pub timelines: Vec<Timeline>,
    /// Tables for the terminal, each with its heading.
    pub tables: Vec<(String, Vec<Vec<String>>)>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

impl Results {
    /// Prints the tables, and writes the JSON if it was asked for.
    pub fn publish(&self, output: &OutputArgs) -> Result<()> {
        let mut text = String::new();
        for (heading, lines) in &self.tables {
            text += &format!("\n{heading}\n{}", layout(lines));
        }
        text.push('\n');
        for note in &self.notes {
            text += &format!("  {note}\n");
        }
        output.publish(&text, || self.to_json())
    }

    fn to_json(&self) -> Value {
        let (rows, notes) = (self.rows.clone(), self.notes.clone());
        let timelines = self.timelines.clone();
        let all = results::Results::new(self.bench, &Machine::read(), rows, notes);
        results::Results { timelines, ..all }.to_json()
    }
}

/// Common fields of every row of the model.
pub fn row(system: &str) -> Map<String, Value> {
    let Value::Object(row) = json!({
        "system": system,
        "device": "model",
        "client": "model",
        "connections": ix_model::papers::CONNECTIONS,
        "size": 2,
    }) else {
        unreachable!("an object is an object");
    };
    row
}

/// Adds the fields of a configuration.
pub fn add_configuration(row: &mut Map<String, Value>, configuration: &Configuration) {
    row.insert("configuration".into(), json!(configuration.to_string()));
    row.insert("cores".into(), json!(configuration.cores));
    row.insert("threads_per_core".into(), json!(configuration.threads_per_core));
    row.insert("clock_khz".into(), json!(space::khz_of(configuration)));
}

/// Formats a figure for a table.
pub fn cell(value: f64, decimals: usize) -> String {
    format!("{value:.decimals$}")
}

/// Makes a table's line of words.
pub fn line(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Notes for all results.
pub fn notes(seed: u64) -> Vec<String> {
    vec![
        "a model of the papers' server (Xeon E5-2665, 8 cores, 16 hardware threads) in virtual \
         time, not this machine; its constants and their sources: verify/ix-model/src/papers.rs"
            .to_owned(),
        format!("memcached, USR, 2,720 connections; seed {seed}: the same seed, the same figures"),
    ]
}
