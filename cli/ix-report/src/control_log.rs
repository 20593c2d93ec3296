//! What `ix cp --json` writes: an object a line.
use serde::{Deserialize, Serialize};

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// When, s since 1970.
    pub time_s: f64,
    /// What.
    #[serde(flatten)]
    pub entry: Entry,
}

/// What a line is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Entry {
    /// Anything else.
    Note {
        /// For people.
        line: String,
    },
    /// A decision, and what came of it.
    Decision(Decision),
    /// What a dataplane does.
    State(State),
}

/// A change of a dataplane's configuration. Rungs of the policy's ladder count from 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The dataplane.
    pub pid: u32,
    /// Its program.
    pub program: String,
    /// The rung before.
    pub from: usize,
    /// The rung from now on.
    pub to: usize,
    /// How many there are.
    pub rungs: usize,
    /// Cores of the configuration.
    pub cores: u32,
    /// Hardware threads of each.
    pub threads_per_core: u32,
    /// Their clock, if the configuration has one.
    pub clock: Option<String>,
    /// The reason.
    pub why: String,
    /// What was done, in order.
    pub steps: Vec<Step>,
    /// Whether all of it was.
    pub done: bool,
    /// Why not.
    pub error: Option<String>,
}

/// A step of a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[allow(missing_docs, reason = "as ix_controller::Step has them")]
pub enum Step {
    Clock { clock: String, cpus: Vec<u32> },
    Background { background: Vec<u32> },
    Resume { resume: u16 },
    Park { park: u16 },
    Migrate { migrate: usize, from: u16, to: u16 },
}

/// What a dataplane does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The dataplane.
    pub pid: u32,
    /// Its program.
    pub program: String,
    /// The policy.
    pub policy: String,
    /// The largest tail that it aims at.
    pub slo_us: f64,
    /// The rung of its ladder, from 1.
    pub rung: usize,
    /// How many there are.
    pub rungs: usize,
    /// Elastic threads that serve.
    pub threads: Vec<usize>,
    /// Packets of all of them.
    pub rate_per_s: f64,
    /// The longest queueing delay.
    pub delay_us: f64,
    /// Their idle share, on average.
    pub idle: f64,
    /// Power, where the machine tells it.
    pub power_w: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_is_read_as_it_is_written() {
        let steps = vec![
            Step::Clock { clock: "1.20 GHz".into(), cpus: vec![1] },
            Step::Background { background: vec![] },
            Step::Resume { resume: 1 },
            Step::Park { park: 2 },
            Step::Migrate { migrate: 64, from: 0, to: 1 },
        ];
        let decision = Decision {
            pid: 7,
            program: "memcached".into(),
            from: 1,
            to: 2,
            rungs: 9,
            cores: 2,
            threads_per_core: 1,
            clock: None,
            why: "delay".into(),
            steps,
            done: true,
            error: None,
        };
        for entry in [Entry::Note { line: "hello".into() }, Entry::Decision(decision)] {
            let line = Line { time_s: 1.5, entry };
            let json = serde_json::to_value(&line).expect("JSON");
            assert_eq!(json["time_s"], json!(1.5));
            assert!(json["event"].is_string() && json.get("entry").is_none(), "{json}");
            assert_eq!(Line::deserialize(&json).expect("read"), line);
        }
    }
}
