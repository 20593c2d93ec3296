//! The measurement as a table and as a row of JSON.
use crate::args::Args;
use crate::sample::Sample;
use serde_json::{Value, json};

/// The row of an echo measurement.
pub fn echo_row(args: &Args, seconds: f64, sample: &Sample) -> Value {
    let latency_ns = &sample.latency_ns;
    let quantile_us = |quantile| round(latency_ns.value_at_quantile(quantile) as f64 / 1000.0);
    let rate = |count: u64| round(count as f64 / seconds);
    json!({
        "system": system(args),
        "size": args.size,
        "connections": args.connections,
        "depth": args.depth,
        "messages_per_connection": args.messages_per_connection,
        "seconds": seconds,
        "messages": sample.messages(),
        "msgs_per_s": rate(sample.messages()),
        "mean_us": round(latency_ns.mean() / 1000.0),
        "p50_us": quantile_us(0.5),
        "p99_us": quantile_us(0.99),
        "p999_us": quantile_us(0.999),
        "max_us": round(latency_ns.max() as f64 / 1000.0),
        "lost": sample.lost,
        "stalled": sample.stalled,
        "connections_opened": sample.opened,
        "connections_per_s": rate(sample.opened),
        "errors": sample.errors,
    })
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
        return ix_sys::outln!("{row}");
    }
    for (name, value) in row.as_object().into_iter().flatten().filter(|(_, v)| !v.is_null()) {
        ix_sys::outln!("{name:<24} {}", value.to_string().trim_matches('"'));
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
