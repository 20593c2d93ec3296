//! TCP connections as a table.
use ix_proto::control::{Connection, Connections};
use ix_report::figure::{count, micros};
use ix_report::table::Table;

/// A line for each connection of an answer.
pub fn table(answer: &Connections) -> String {
    let list = &answer.connections;
    let rates = list.iter().any(|connection| connection.bytes_per_s.is_some());
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

fn row(connection: &Connection, rates: bool) -> Vec<String> {
    let Connection { peer, local, state, thread, flow_group, figures, bytes_per_s, .. } =
        connection;
    let ssthresh = match figures.ssthresh_bytes {
        // Before the first congestion there is none.
        bytes if bytes >= 1 << 30 => "-".to_owned(),
        bytes => count(bytes.into()),
    };
    let measured = |us: u32| match figures.srtt_us {
        0 => "-".to_owned(),
        _ => micros(us.into()),
    };
    let mut row = vec![peer.to_string(), local.port().to_string(), state.to_string()];
    row.extend([*thread, *flow_group].map(|n| count(n.into())));
    row.extend([count(figures.cwnd_bytes.into()), ssthresh]);
    row.extend([
        measured(figures.srtt_us),
        measured(figures.rttvar_us),
        micros(figures.rto_us.into()),
    ]);
    row.extend([figures.snd_wnd_bytes, figures.rcv_wnd_bytes].map(|bytes| count(bytes.into())));
    row.extend([figures.bytes_in, figures.bytes_out].map(|bytes| count(bytes as f64)));
    row.extend(rates.then(|| count(bytes_per_s.unwrap_or(0.0))));
    row.push(count(figures.retransmits.into()));
    row.push(count(f64::from(figures.snd_queued_bytes) + f64::from(figures.rcv_queued_bytes)));
    row.extend([figures.age_us, figures.idle_us].map(|us| duration(us as f64)));
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
pub fn remarks(answer: &Connections) -> Vec<String> {
    let Connections { total, matched, sort, left_out, .. } = answer;
    let (shown, missing) = (answer.connections.len(), answer.missing_flow_groups);
    let mut lines = Vec::new();
    if shown < *matched {
        lines.push(format!("the first {shown} by {sort} of {matched}; {total} connections in all"));
    }
    if !missing.is_empty() {
        lines.push(format!(
            "flow groups {missing} are missing: their thread did not come by in time (`ix ctl threads`)"
        ));
    }
    if *left_out > 0 {
        lines.push(format!("{left_out} connections came too quickly and were left out"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_proto::control::Sort;
    use ix_proto::survey::FlowFigures;

    #[test]
    fn a_line_says_what_is_known() {
        let connection = Connection {
            peer: "10.0.0.1:4000".parse().expect("an address"),
            local: "10.0.0.2:7".parse().expect("an address"),
            state: "ESTABLISHED".parse().expect("a state"),
            thread: 1,
            flow_group: 17,
            process: 0,
            figures: FlowFigures {
                cwnd_bytes: 14_600,
                ssthresh_bytes: 1 << 30,
                mss_bytes: 1460,
                srtt_us: 120,
                rttvar_us: 3,
                rto_us: 5000,
                bytes_in: 12_345,
                age_us: 90_000_000,
                idle_us: 2500,
                ..FlowFigures::default()
            },
            bytes_per_s: None,
        };
        let answer = Connections {
            total: 9,
            matched: 2,
            sort: Sort::Bytes,
            took_us: 10,
            missing_flow_groups: [3].into_iter().collect(),
            left_out: 0,
            connections: vec![connection],
        };
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
