//! TCP connections as a table.
use super::table::{Table, count, micros};
use serde_json::Value;

/// A line for each connection of an answer.
pub fn table(answer: &Value) -> String {
    let list = answer["connections"].as_array().map_or(&[][..], Vec::as_slice);
    let rates = list.iter().any(|connection| connection["bytes_per_s"].is_number());
    let mut heading = vec![
        "peer", "port", "state", "th", "grp", "cwnd", "ssthresh", "srtt µs", "rttvar", "rto",
        "snd wnd", "rcv wnd", "in", "out",
    ];
    heading.extend(rates.then_some("B/s"));
    heading.extend(["rtx", "queued", "age", "idle"]);
    let mut table = Table::new(&heading, &[0, 2]);
    for connection in list {
        table.row(row(connection, rates));
    }
    table.text()
}

fn row(connection: &Value, rates: bool) -> Vec<String> {
    let text = |name: &str| connection[name].as_str().unwrap_or("?").to_owned();
    let number = |name: &str| connection[name].as_f64().unwrap_or(0.0);
    let bytes = |name: &str| count(number(name));
    let port = text("local").rsplit(':').next().unwrap_or("?").to_owned();
    // As large as can be: there is no threshold yet.
    let ssthresh = match number("ssthresh_bytes") {
        v if v >= f64::from(u32::MAX / 2) => "-".to_owned(),
        v => count(v),
    };
    let measured = |name: &str| match number("srtt_us") {
        0.0 => "-".to_owned(),
        _ => micros(number(name)),
    };
    let mut row = vec![text("peer"), port, text("state")];
    row.extend([bytes("thread"), bytes("flow_group"), bytes("cwnd_bytes"), ssthresh]);
    row.extend([measured("srtt_us"), measured("rttvar_us"), micros(number("rto_us"))]);
    row.extend(["snd_wnd_bytes", "rcv_wnd_bytes", "bytes_in", "bytes_out"].map(bytes));
    row.extend(rates.then(|| bytes("bytes_per_s")));
    row.push(bytes("retransmits"));
    row.push(count(number("snd_queued_bytes") + number("rcv_queued_bytes")));
    row.extend(["age_us", "idle_us"].map(|name| duration(number(name))));
    row
}

/// A time in at most five characters.
fn duration(us: f64) -> String {
    match us / 1e6 {
        s if s < 0.001 => format!("{us:.0}us"),
        s if s < 1.0 => format!("{:.0}ms", us / 1e3),
        s if s < 100.0 => format!("{s:.1}s"),
        s if s < 6_000.0 => format!("{:.0}m", s / 60.0),
        s if s < 360_000.0 => format!("{:.0}h", s / 3_600.0),
        s => format!("{:.0}d", s / 86_400.0),
    }
}

/// What an answer does not have, a line each.
pub fn remarks(answer: &Value) -> Vec<String> {
    let number = |name: &str| answer[name].as_u64().unwrap_or(0);
    let shown = answer["connections"].as_array().map_or(0, Vec::len) as u64;
    let mut lines = Vec::new();
    if shown < number("matched") {
        let (matched, total) = (number("matched"), number("total"));
        let by = answer["sort"].as_str().unwrap_or("?");
        lines.push(format!("the first {shown} by {by} of {matched}; {total} connections in all"));
    }
    if let Some(groups) = answer["missing_flow_groups"].as_str().filter(|groups| *groups != "-") {
        lines.push(format!(
            "flow groups {groups} are missing: their thread did not come by in time (`ix ctl threads`)"
        ));
    }
    if number("left_out") > 0 {
        lines
            .push(format!("{} connections came too quickly and were left out", number("left_out")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_says_what_is_known() {
        let answer = json!({ "total": 9, "matched": 2, "sort": "bytes", "missing_flow_groups": "3",
            "connections": [{ "peer": "10.0.0.1:4000", "local": "10.0.0.2:7", "state": "ESTABLISHED",
                "thread": 1, "flow_group": 17, "cwnd_bytes": 14600, "ssthresh_bytes": u32::MAX,
                "srtt_us": 120, "rttvar_us": 3, "rto_us": 5000, "bytes_in": 12345, "age_us": 90e6,
                "idle_us": 2500 }] });
        let text = table(&answer);
        let line = text.lines().nth(1).expect("a line");
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(&words[..7], ["10.0.0.1:4000", "7", "ESTABLISHED", "1", "17", "14.6k", "-"]);
        assert_eq!(&words[words.len() - 2..], ["90.0s", "2ms"]);
        let remarks = remarks(&answer);
        assert!(remarks[0].contains("first 1 by bytes of 2") && remarks[1].contains("groups 3"));
    }

    #[test]
    fn times_stay_short() {
        let all = [999.0, 1e3, 999e3, 99.9e6, 100e6, 7e9, 1e12].map(duration);
        assert_eq!(all, ["999us", "1ms", "999ms", "99.9s", "2m", "2h", "12d"]);
    }
}
