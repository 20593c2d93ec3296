//! Remarks under a table, about several rows together.
use ix_report::report::Row;

/// For each series of a ping-pong over sizes: the message size at which half of the best goodput is
/// reached (NetPIPE's half-bandwidth point).
pub fn half_bandwidth(rows: &[Row]) -> Vec<String> {
    let name = |row: &Row| {
        let system = if row.system == "ix" { &row.device } else { &row.mode };
        format!("{} ({system}), {} client ({})", row.system, row.client, row.client_mode)
    };
    let mut names: Vec<String> = rows.iter().map(name).collect();
    names.dedup();
    let mut seen = Vec::new();
    let mut lines = Vec::new();
    for series in names {
        if seen.contains(&series) {
            continue;
        }
        let mut points: Vec<(f64, f64)> = rows
            .iter()
            .filter(|row| name(row) == series)
            .filter_map(|row| Some((row.size as f64, row.median("mbit_per_s")?)))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        if let Some((size, peak)) = half_point(&points) {
            lines.push(format!(
                "{series}: half of its best goodput ({peak:.0} Mbit/s) at {} B",
                size.round()
            ));
        }
        seen.push(series);
    }
    lines
}

/// The size at which a rising curve of (size, goodput) crosses half of its peak, on a logarithmic
/// scale of sizes, and the peak. `None` if the curve starts above that.
fn half_point(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let peak = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let half = peak / 2.0;
    points.windows(2).find_map(|pair| {
        let [(small, low), (large, high)] = [pair[0], pair[1]];
        let crosses = low < half && half <= high;
        let part = (half - low) / (high - low);
        crosses.then(|| ((small.ln() + part * (large.ln() - small.ln())).exp(), peak))
    })
}

/// The batch bound must not cost latency at low load: compares the largest bound with B = 1.
pub fn batch_at_low_load(rows: &[Row]) -> Option<String> {
    let low = |batch: u64| {
        let also = |row: &Row, key: &str| row.also.iter().find(|(name, _)| *name == key).cloned();
        let row = rows.iter().find(|row| {
            also(row, "batch").is_some_and(|(_, b)| b == batch)
                && also(row, "load").is_some_and(|(_, load)| load == "low")
        })?;
        row.median("p50_us")
    };
    let bounds = rows
        .iter()
        .filter_map(|row| row.also.iter().find(|(name, _)| *name == "batch")?.1.as_u64());
    let most = bounds.max().filter(|&most| most > 1)?;
    let percent = (low(most)? / low(1)? - 1.0) * 100.0;
    Some(format!("low load: p50 with B = {most} is {percent:+.1} % against B = 1 (5 % is allowed)"))
}

/// The share of the best rate that is left at the most connections.
pub fn scaling(rows: &[Row]) -> Option<String> {
    let ix: Vec<(usize, f64)> = rows
        .iter()
        .filter(|row| row.system == "ix")
        .filter_map(|row| Some((row.connections, row.median("msgs_per_s")?)))
        .collect();
    let most = ix.iter().map(|(connections, _)| *connections).max()?;
    let best = |of: &mut dyn Iterator<Item = f64>| of.fold(0.0, f64::max);
    let peak = best(&mut ix.iter().map(|(_, rate)| *rate));
    let last = best(&mut ix.iter().filter(|(c, _)| *c == most).map(|(_, rate)| *rate));
    let percent = 100.0 * last / peak;
    Some(format!("IX at {most} connections keeps {percent:.0} % of its peak ({peak:.0} msg/s)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_half_bandwidth_point_is_interpolated() {
        assert_eq!(half_point(&[(10.0, 1.0), (100.0, 10.0)]).map(|p| p.1), Some(10.0));
        let (size, _) = half_point(&[(10.0, 0.0), (1000.0, 10.0)]).expect("crosses");
        assert!((size - 100.0).abs() < 1e-6);
        assert_eq!(half_point(&[(10.0, 9.0), (1000.0, 10.0)]), None);
        assert_eq!(half_point(&[]), None);
    }

    #[test]
    fn lines_name_the_series() {
        let row = |system: &str, size, mbit| {
            let mut row = Row { system: system.into(), size, ..Row::default() };
            row.add([("mbit_per_s", mbit)]);
            row
        };
        let rows = [row("ix", 64, 1.0), row("linux", 64, 1.0), row("ix", 6400, 9.0)];
        let lines = half_bandwidth(&rows);
        assert_eq!(lines.len(), 1, "Linux has one size only: {lines:?}");
        assert!(lines[0].starts_with("ix ") && lines[0].contains("9 Mbit/s"), "{lines:?}");
    }

    #[test]
    fn what_is_left_of_the_peak() {
        let row = |connections, rate| {
            let mut row = Row { system: "ix".into(), connections, ..Row::default() };
            row.add([("msgs_per_s", rate)]);
            row
        };
        let line = scaling(&[row(10, 50.0), row(100, 200.0), row(1000, 150.0)]).expect("a line");
        assert!(line.contains("1000 connections keeps 75 %"), "{line}");
    }
}
