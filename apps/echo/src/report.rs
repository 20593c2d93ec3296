//! What a client measured, as a table and as a row of JSON.
use crate::args::Args;
use crate::client::histogram;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// What one thread, or all of them, measured.
pub struct Sample {
    latency_ns: Histogram<u64>,
    /// Connections opened in the measured time.
    pub opened: u64,
    /// Datagrams that did not come back.
    pub lost: u64,
    /// Failed connections and wrong answers, at any time.
    pub errors: u64,
    /// The first of them.
    pub first_error: Option<String>,
}

impl Default for Sample {
    fn default() -> Sample {
        Sample { latency_ns: histogram(), opened: 0, lost: 0, errors: 0, first_error: None }
    }
}

impl Sample {
    /// A message that came back after so long.
    pub fn record(&mut self, latency_ns: u64) {
        self.latency_ns.saturating_record(latency_ns.max(1));
    }

    /// Messages.
    pub fn messages(&self) -> u64 {
        self.latency_ns.len()
    }

    /// Something went wrong.
    pub fn error(&mut self, why: &str) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| why.to_string());
    }

    /// Adds another thread's.
    pub fn merge(&mut self, other: Sample) {
        self.latency_ns += other.latency_ns;
        self.opened += other.opened;
        self.lost += other.lost;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
    }

    fn quantile_us(&self, quantile: f64) -> f64 {
        round(self.latency_ns.value_at_quantile(quantile) as f64 / 1000.0)
    }

    /// The row of an echo measurement.
    pub fn row(&self, args: &Args, seconds: f64) -> Value {
        let rate = |count: u64| round(count as f64 / seconds);
        json!({
            "system": system(args),
            "size": args.size,
            "connections": args.connections,
            "depth": args.depth,
            "messages_per_connection": args.messages_per_connection,
            "seconds": seconds,
            "messages": self.messages(),
            "msgs_per_s": rate(self.messages()),
            "mean_us": round(self.latency_ns.mean() / 1000.0),
            "p50_us": self.quantile_us(0.5),
            "p99_us": self.quantile_us(0.99),
            "p999_us": self.quantile_us(0.999),
            "max_us": round(self.latency_ns.max() as f64 / 1000.0),
            "lost": self.lost,
            "connections_opened": self.opened,
            "connections_per_s": rate(self.opened),
            "errors": self.errors,
        })
    }
}

/// The row of a bulk transfer.
pub fn bulk_row(args: &Args, seconds: f64, sent: u64, received: u64, errors: u64) -> Value {
    let mbit_per_s = |bytes: u64| round(bytes as f64 * 8.0 / 1e6 / seconds);
    json!({
        "system": system(args),
        "connections": 1,
        "bytes_sent": sent,
        "bytes_received": received,
        "seconds": seconds,
        "mbit_per_s": mbit_per_s(sent + received),
        "send_mbit_per_s": mbit_per_s(sent),
        "recv_mbit_per_s": mbit_per_s(received),
        "errors": errors,
    })
}

/// One line of JSON, or a table of the fields that were measured.
pub fn print(row: &Value, json: bool) {
    if json {
        return println!("{row}");
    }
    for (name, value) in row.as_object().into_iter().flatten().filter(|(_, v)| !v.is_null()) {
        println!("{name:<24} {}", value.to_string().trim_matches('"'));
    }
}

fn system(args: &Args) -> &'static str {
    match (args.linux, args.spin) {
        (false, _) => "ix",
        (true, false) => "linux",
        (true, true) => "linux-spin",
    }
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
