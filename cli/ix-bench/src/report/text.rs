//! Figures, dates and markup as text.
use ix_report::figure;
pub use ix_report::figure::tick as short;
use serde_json::Value;
use std::time::{SystemTime, UNIX_EPOCH};

/// Escapes text for HTML and SVG, in content and in quoted attributes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // XML has no way to write other control characters.
            c if c.is_control() && !"\t\n".contains(c) => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A figure for tables: three significant digits at least, thousands apart by a thin space that
/// does not break.
pub fn full(value: f64) -> String {
    figure::full(value, '\u{202f}')
}

/// A value of a row as text.
pub fn of_value(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Number(number) => number.as_f64().map_or(number.to_string(), full),
        Value::Array(values) => values.iter().map(of_value).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// `msgs_per_s` → `messages/s`.
pub fn heading(key: &str) -> String {
    match key {
        "msgs_per_s" => "messages/s".to_owned(),
        "connections_per_s" => "connections/s".to_owned(),
        "mbit_per_s" => "Mbit/s".to_owned(),
        "p50_us" => "median, µs".to_owned(),
        "one_way_us" => "one-way latency, µs".to_owned(),
        "batch" => "batch bound B".to_owned(),
        "second" => "time, s".to_owned(),
        "cycles_per_msg" => "cycles a message".to_owned(),
        "size" => "size, B".to_owned(),
        _ if key.contains("ratio_to_linux") => {
            key.replace("ratio_to_linux", "× Linux").replace('_', " ")
        }
        _ => {
            let units = [("_us", ", µs"), ("_ns", ", ns"), ("_bytes", ", B"), ("_per_s", "/s")];
            let unit = units.iter().find_map(|(end, unit)| Some((key.strip_suffix(end)?, unit)));
            let (name, unit) = unit.unwrap_or((key, &""));
            name.replace("_per_", "/").replace('_', " ") + unit
        }
    }
}

/// A date and time, UTC, to the minute.
pub fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, minutes) = (seconds / 86_400, seconds / 60 % 1440);
    let (year, month, day) = civil(days);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60, minutes % 60)
}

/// Year, month and day of a day since 1970: years that begin in March have their leap day last.
fn civil(days: u64) -> (u64, u64, u64) {
    // 400 years are 146,097 days; 719,468 days lie between 0000-03-01 and 1970-01-01.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let leaps = day_of_era / 1460 + day_of_era / 146_096;
    let year_of_era = (day_of_era + day_of_era / 36_524 - leaps) / 365;
    let day = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day + 2) / 153;
    let day = day - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn figures_keep_what_matters() {
        assert_eq!(full(-20_000.0), "-20\u{202f}000");
        assert_eq!(heading("p99_us"), "p99, µs");
        assert_eq!(heading("p50_ratio_to_linux_spinning"), "p50 × Linux spinning");
        assert_eq!(heading("instructions_per_msg"), "instructions/msg");
    }

    #[test]
    fn dates() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01 00:00 UTC");
        assert_eq!(at(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(at(784_111_777), "1994-11-06 08:49 UTC");
        assert_eq!(at(4_107_542_399), "2100-02-28 23:59 UTC");
    }
}
