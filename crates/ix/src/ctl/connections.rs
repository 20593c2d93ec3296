//! TCP connections as a table.
use super::table::{Table, count, micros};
use serde_json::Value;

/// A line for each connection.
pub fn table(connections: &[Value]) -> String {
    let heading = [
        "local",
        "peer",
        "state",
        "th",
        "group",
        "srtt µs",
        "rto µs",
        "cwnd",
        "in flight",
        "again",
    ];
    let mut table = Table::new(&heading, &[0, 1, 2]);
    for connection in connections {
        let text = |name: &str| connection[name].as_str().unwrap_or("?").to_owned();
        let number = |name: &str| connection[name].as_f64().unwrap_or(0.0);
        table.row([
            text("local"),
            text("peer"),
            text("state"),
            count(number("thread")),
            count(number("flow_group")),
            micros(number("srtt_us")),
            micros(number("rto_us")),
            count(number("cwnd_bytes")),
            count(number("in_flight_bytes")),
            count(number("retransmits")),
        ]);
    }
    table.text()
}
