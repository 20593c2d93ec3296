//! Results: medians, the table on the terminal, and the JSON object.
use crate::domain::Domain;
use crate::machine::Machine;
use crate::output::OutputArgs;
use crate::problem::Result;
use crate::results::Results;
pub use crate::results::{now_utc, own_command};
use crate::{figure, table::layout};
use serde_json::{Map, Value, json};

/// Possible figures of a point, in the table's order: key, heading, decimals.
const FIGURES: [(&str, &str, usize); 78] = [
    ("wanted_per_s", "wanted/s", 0),
    ("msgs_per_s", "msg/s", 0),
    ("of_reference", "of reference", 3),
    ("connections_per_s", "conn/s", 0),
    ("mbit_per_s", "Mbit/s", 0),
    ("msgs_per_busy_s", "msg/busy s", 0),
    ("server_busy", "busy", 2),
    ("client_busy", "client busy", 2),
    ("forwarded_per_msg", "forwarded/msg", 3),
    ("avg_us", "avg µs", 1),
    ("p50_us", "p50 µs", 1),
    ("p99_us", "p99 µs", 1),
    ("one_way_us", "one way µs", 1),
    ("wake_p50_us", "heard p50 µs", 1),
    ("wake_p99_us", "heard p99 µs", 1),
    ("over_bare_us", "over bare µs", 1),
    ("sent_p50_us", "sent µs", 1),
    ("awake_p50_us", "awake p50 µs", 1),
    ("look_p50_us", "look µs", 1),
    ("look_p99_us", "look p99", 1),
    ("awake_look_p50_us", "awake look", 1),
    ("program_p50_us", "program µs", 1),
    ("program_p99_us", "program p99", 1),
    ("awake_program_p50_us", "awake program", 1),
    ("answer_p50_us", "answer µs", 1),
    ("answer_p99_us", "answer p99", 1),
    ("awake_answer_p50_us", "awake answer", 1),
    ("idle_cpu_us_per_s", "idle CPU µs/s", 0),
    ("idle_wakes_per_s", "idle wakes/s", 1),
    ("threads", "threads", 1),
    ("queueing_delay_us", "delay µs", 0),
    ("background_mb_per_s", "backgr. MB/s", 0),
    ("background_percent", "backgr. %", 0),
    ("load_cpu", "load CPU", 2),
    ("violations", "violations", 0),
    ("cycles_per_msg", "cycles/msg", 0),
    ("cpu_cycles_per_msg", "CPU cycles/msg", 0),
    ("instructions_per_msg", "CPU instr/msg", 0),
    ("cache_misses_per_msg", "misses/msg", 1),
    ("packets_per_msg", "pkts/msg", 2),
    ("batch_avg", "batch", 1),
    ("dataplane_share", "dataplane", 2),
    ("app_share", "app", 2),
    ("receive_ns", "receive ns", 0),
    ("stack_in_ns", "stack in ns", 0),
    ("scheduler_ns", "scheduler ns", 0),
    ("copy_in_ns", "copy in ns", 0),
    ("gate_ns", "gate ns", 0),
    ("app_ns", "app ns", 0),
    ("copy_out_ns", "copy out ns", 0),
    ("stack_out_ns", "stack out ns", 0),
    ("timers_ns", "timers ns", 0),
    ("transmit_ns", "transmit ns", 0),
    ("total_ns", "total ns", 0),
    ("jain_index", "Jain's index", 3),
    ("ix_share", "IX's share", 2),
    ("lost_packets", "lost", 0),
    ("overflowed_packets", "overflowed", 0),
    ("migrations", "migrations", 0),
    ("median_us", "pause µs", 0),
    ("median_wall_us", "wall pause µs", 0),
    ("p99_wall_us", "wall p99 µs", 0),
    ("lost", "lost", 0),
    ("reordered", "reordered", 0),
    ("broken_connections", "broken", 0),
    ("stalled_connections", "stalled", 0),
    ("errors", "errors", 0),
    ("rss_mb", "RSS MB", 1),
    ("broker_rss_mb", "broker MB", 1),
    ("descriptors", "fds", 0),
    ("broker_descriptors", "broker fds", 0),
    ("flows", "flows", 0),
    ("frames", "buffers", 0),
    ("of_alone", "of alone", 2),
    ("half_open", "half open", 0),
    ("memory_mb", "memory MB", 1),
    ("reset_for_buffers", "reset", 0),
    ("gone_s", "gone after s", 1),
];

/// One measured point: its parameters, and the samples of each figure.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// `ix`, `linux`, or the name of a peer: the server's system.
    pub system: String,
    /// What keeps the server's program out of its dataplane; `None`: it has none.
    pub domain: Option<Domain>,
    /// Mode of the system: `blocking`, `spinning`, or the device's.
    pub mode: String,
    /// `afxdp`, `tap` or `veth`.
    pub device: String,
    /// `linux` or `ix`: the load generator's system.
    pub client: String,
    /// Mode of the load generator.
    pub client_mode: String,
    /// Connections at a time.
    pub connections: usize,
    /// Bytes of a message.
    pub size: u64,
    /// More parameters of the point (`messages_per_connection`, `direction`), in order.
    pub also: Vec<(&'static str, Value)>,
    /// Settings of the server's system.
    pub settings: String,
    /// Samples of each figure that was measured.
    pub samples: Vec<(&'static str, Vec<f64>)>,
}

impl Row {
    /// Adds the figures of one run.
    pub fn add(&mut self, figures: impl IntoIterator<Item = (&'static str, f64)>) {
        for (key, value) in figures {
            match self.samples.iter_mut().find(|(name, _)| *name == key) {
                Some((_, samples)) => samples.push(value),
                None => self.samples.push((key, vec![value])),
            }
        }
    }

    /// Median of a figure.
    pub fn median(&self, key: &str) -> Option<f64> {
        self.samples.iter().find(|(name, _)| *name == key).and_then(|(_, s)| median(s))
    }

    /// Whether two rows are the same point on different systems.
    fn same_point(&self, other: &Row) -> bool {
        // A parameter that one system lacks (Linux has no batch bound) is ignored.
        let same = |(a, b): (&(_, Value), &(_, Value))| {
            a.0 == b.0 && (a.1 == b.1 || a.1.is_null() || b.1.is_null())
        };
        (self.connections, self.size, self.also.len())
            == (other.connections, other.size, other.also.len())
            && self.also.iter().zip(&other.also).all(same)
    }

    /// Whether it is Linux in this mode at both ends.
    fn is_linux(&self, mode: &str) -> bool {
        let (server, client) = ((&*self.system, &*self.mode), (&*self.client, &*self.client_mode));
        server == ("linux", mode) && client == server
    }

    /// The flat object of this row, with ratios to the same point on Linux, blocking and spinning.
    fn to_json(&self, blocking: Option<&Row>, spinning: Option<&Row>) -> Map<String, Value> {
        let mut row = Map::new();
        row.insert("system".into(), json!(self.system));
        if let Some(domain) = self.domain {
            row.insert("domain".into(), json!(domain.name()));
        }
        row.insert("mode".into(), json!(self.mode));
        row.insert("device".into(), json!(self.device));
        row.insert("client".into(), json!(self.client));
        row.insert("client_mode".into(), json!(self.client_mode));
        row.insert("connections".into(), json!(self.connections));
        row.insert("size".into(), json!(self.size));
        row.extend(self.also.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        row.insert("settings".into(), json!(self.settings));
        for (key, samples) in &self.samples {
            let fold = |f: fn(f64, f64) -> f64| samples.iter().copied().reduce(f);
            row.insert((*key).into(), json!(median(samples)));
            row.insert(format!("{key}_min"), json!(fold(f64::min)));
            row.insert(format!("{key}_max"), json!(fold(f64::max)));
        }
        row.insert("runs".into(), json!(self.samples.first().map_or(0, |(_, s)| s.len())));
        for (linux, suffix) in [(blocking, ""), (spinning, "_spinning")] {
            let Some(linux) = linux else { continue };
            let p50 = quotient(self.median("p50_us"), linux.median("p50_us"));
            for (name, ratio) in [("ratio", self.ratio(linux)), ("p50_ratio", p50)] {
                if let Some(ratio) = ratio {
                    row.insert(format!("{name}_to_linux{suffix}"), json!(ratio));
                }
            }
        }
        row
    }

    /// The wall, as a reader sees it behind a server's name.
    pub fn wall(&self) -> String {
        let behind = self.domain.filter(|domain| *domain != Domain::None);
        behind.map_or(String::new(), |domain| format!(", {}", domain.name()))
    }

    /// Our rate over Linux's.
    fn ratio(&self, linux: &Row) -> Option<f64> {
        ["msgs_per_s", "mbit_per_s"]
            .iter()
            .find_map(|key| quotient(self.median(key), linux.median(key)))
    }
}

fn quotient(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    let (a, b) = (a?, b?);
    (b > 0.0).then_some(a / b)
}

/// The middle sample, or the mean of the two middle ones; `None` without samples.
pub fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let high = sorted.get(sorted.len() / 2)?;
    let low = sorted.get((sorted.len() - 1) / 2)?;
    Some((high + low) / 2.0)
}

/// All results of one benchmark.
#[derive(Clone, Debug)]
pub struct Report {
    /// Name of the benchmark.
    pub bench: String,
    /// The machine that it ran on.
    pub machine: Machine,
    /// The measured points.
    pub rows: Vec<Row>,
    /// Notes for the reader, one per line.
    pub notes: Vec<String>,
    /// The command that repeats it.
    pub command: String,
}

impl Report {
    /// The same point on Linux in this mode.
    fn linux(&self, row: &Row, mode: &str) -> Option<&Row> {
        self.rows.iter().find(|other| other.is_linux(mode) && other.same_point(row))
    }

    /// The object of DESIGN.md.
    pub fn to_json(&self) -> Value {
        let row_to_json =
            |row: &Row| row.to_json(self.linux(row, "blocking"), self.linux(row, "spinning"));
        let rows: Vec<_> = self.rows.iter().map(row_to_json).collect();
        Results {
            command: self.command.clone(),
            ..Results::new(&self.bench, &self.machine, rows, self.notes.clone())
        }
        .to_json()
    }

    /// The table for the terminal.
    pub fn to_table(&self) -> String {
        let has = |key: &str| self.rows.iter().any(|row| row.median(key).is_some());
        let figures: Vec<_> = FIGURES.iter().filter(|(key, _, _)| has(key)).collect();
        let also: Vec<_> = self
            .rows
            .first()
            .map_or(Vec::new(), |row| row.also.iter().map(|(key, _)| *key).collect());
        let mut head = vec!["server".to_owned(), "client".into(), "conns".into(), "size".into()];
        head.extend(also.iter().map(|key| key.replace('_', " ")));
        head.extend(figures.iter().map(|(_, heading, _)| (*heading).to_owned()));
        head.extend(["× Linux".to_owned()]);
        head.extend(has("p50_us").then(|| "p50 × Linux".to_owned()));
        let mut lines = vec![head];
        for row in &self.rows {
            lines.push(self.table_line(row, &figures));
        }
        layout(&lines)
    }

    fn table_line(&self, row: &Row, figures: &[&(&str, &str, usize)]) -> Vec<String> {
        let mut line = vec![
            format!(
                "{} ({}{})",
                row.system,
                if row.system == "linux" { &row.mode } else { &row.device },
                row.wall()
            ),
            if row.client == "ix" {
                row.client.clone()
            } else {
                format!("{} ({})", row.client, row.client_mode)
            },
            row.connections.to_string(),
            row.size.to_string(),
        ];
        line.extend(row.also.iter().map(|(_, v)| match v {
            Value::Null => "-".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }));
        for (key, _, decimals) in figures {
            line.push(row.median(key).map_or(String::new(), |v| figure::fixed(v, *decimals)));
        }
        let linux = self.linux(row, "blocking");
        let ratio = linux.and_then(|linux| row.ratio(linux));
        let p50 = linux.and_then(|l| quotient(row.median("p50_us"), l.median("p50_us")));
        line.extend([ratio, p50].map(|r| r.map_or(String::new(), |r| figure::fixed(r, 2))));
        line
    }

    /// Prints the table, and writes the JSON if it was asked for.
    pub fn publish(&self, output: &OutputArgs) -> Result<()> {
        let text = format!(
            "\n{}\n{}\n{}",
            self.machine.summary(),
            self.to_table(),
            self.notes.iter().map(|note| format!("  {note}\n")).collect::<String>()
        );
        output.publish(&text, || self.to_json())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(system: &str, mode: &str, connections: usize, rate: &[f64]) -> Row {
        Row {
            system: system.into(),
            mode: mode.into(),
            device: "afxdp".into(),
            client: "linux".into(),
            client_mode: if system == "ix" { "blocking" } else { mode }.into(),
            connections,
            size: 64,
            samples: vec![
                ("msgs_per_s", rate.to_vec()),
                ("p50_us", rate.iter().map(|r| 1e6 / r).collect()),
            ],
            ..Row::default()
        }
    }

    fn report() -> Report {
        let rows = vec![
            row("linux", "blocking", 1, &[40_000.0, 50_000.0, 30_000.0]),
            row("linux", "spinning", 1, &[80_000.0]),
            row("ix", "copy", 1, &[100_000.0]),
            row("ix", "copy", 64, &[100_000.0]),
        ];
        Report {
            bench: "echo".into(),
            machine: Machine::read(),
            rows,
            notes: vec![],
            command: "ix bench echo".into(),
        }
    }

    #[test]
    fn ratios_are_to_blocking_linux_at_the_same_point() {
        let json = report().to_json();
        let rows = json["rows"].as_array().expect("rows");
        assert_eq!(rows[0]["msgs_per_s"], 40_000.0);
        assert_eq!((rows[0]["msgs_per_s_min"].as_f64()), Some(30_000.0));
        assert_eq!((rows[0]["msgs_per_s_max"].as_f64()), Some(50_000.0));
        assert_eq!(rows[1]["ratio_to_linux"], 2.0);
        assert_eq!(rows[2]["ratio_to_linux"], 2.5);
        assert_eq!(rows[2]["p50_ratio_to_linux"], 0.4);
        assert_eq!(rows[2]["ratio_to_linux_spinning"], 1.25);
        assert!(rows[3].get("ratio_to_linux").is_none(), "that point was not run on Linux");
        for row in rows {
            for key in ["system", "device", "client", "connections", "size"] {
                assert!(row.get(key).is_some(), "{key}");
            }
        }
    }

    #[test]
    fn the_table_has_a_line_a_row_and_aligned_columns() {
        let table = report().to_table();
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(lines[3].contains("100 000") && lines[3].contains("2.50"), "{table}");
        let ends: Vec<_> = lines[1..].iter().map(|l| l.find(" 000").map(|at| at + 4)).collect();
        assert!(ends.windows(2).all(|w| w[0] == w[1]), "{table}");
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
