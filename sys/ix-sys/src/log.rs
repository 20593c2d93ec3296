//! What a command says on standard error, as lines of text or of JSON; the last ones are kept for
//! whoever asks.
use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Most lines that are kept.
const KEPT_MAX: usize = 200;

/// Environment variable of unmodified programs: `json` if their lines are to be JSON.
pub const FORMAT_ENV: &str = "IX_LOG_FORMAT";

static AS_JSON: AtomicBool = AtomicBool::new(false);
static KEPT: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// How grave a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The command goes on.
    Info,
    /// It has failed.
    Error,
}

/// Writes lines of JSON from now on: objects with `time`, `level` and `message`.
pub fn use_json() {
    AS_JSON.store(true, Ordering::Relaxed);
}

/// Whether lines are JSON.
pub fn is_json() -> bool {
    AS_JSON.load(Ordering::Relaxed)
}

/// Says a line, which is formatted as by `format!`.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => {
        $crate::log::line($crate::log::Level::Info, format_args!($($text)*))
    };
}

/// Says a line.
pub fn line(level: Level, text: fmt::Arguments<'_>) {
    let text = one_line(&text.to_string());
    let at = now_ms();
    let line = written(at, level, &text);
    // Nobody may read it any more.
    let _ = writeln!(std::io::stderr(), "{line}");
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.len() >= KEPT_MAX {
        kept.pop_front();
    }
    kept.push_back(format!("{} {text}", time(at)));
}

/// A line as it is written, for those who write it themselves.
pub fn formatted(level: Level, text: &str) -> String {
    written(now_ms(), level, &one_line(text))
}

/// The text without characters that would end the line or that a terminal would obey: a program may
/// have chosen it, or an interface's name. They are written as in Rust's strings.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => line.extend(c.escape_default()),
            false => line.push(c),
        }
    }
    line
}

fn written(at_ms: u64, level: Level, text: &str) -> String {
    if is_json() { json(at_ms, level, text) } else { format!("ix: {text}") }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |at| at.as_millis() as u64)
}

/// The last lines, oldest first, each after its time.
pub fn last() -> Vec<String> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
}

fn json(at_ms: u64, level: Level, text: &str) -> String {
    let level = if level == Level::Error { "error" } else { "info" };
    let mut line = format!("{{\"time\":\"{}\",\"level\":\"{level}\",\"message\":\"", time(at_ms));
    for c in text.chars() {
        let _ = match c {
            '"' | '\\' => write!(line, "\\{c}"),
            c if u32::from(c) < 0x20 => write!(line, "\\u{:04x}", u32::from(c)),
            c => write!(line, "{c}"),
        };
    }
    line + "\"}"
}

/// A moment in milliseconds since the epoch as RFC 3339 writes it, in UTC.
pub fn time(at_ms: u64) -> String {
    let (days, ms) = (at_ms / 86_400_000, at_ms % 86_400_000);
    let (year, month, day) = date(days);
    let (s, ms) = (ms / 1000, ms % 1000);
    let (hour, minute, second) = (s / 3600, s / 60 % 60, s % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Year, month and day of so many days after 1 January 1970.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    // From 1 March of the year 0, so that leap days end years.
    let day = days + 719_468;
    let (era, of_era) = (day / DAYS_OF_400_YEARS, day % DAYS_OF_400_YEARS);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339s() {
        for (ms, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_735_689_599_000, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(time(ms), expected);
        }
    }

    #[test]
    fn json_is_one_line_whatever_the_text() {
        let line = json(0, Level::Error, "a \"b\" \\ c\nd\u{1} µs");
        let expected = "{\"time\":\"1970-01-01T00:00:00.000Z\",\"level\":\"error\",\
             \"message\":\"a \\\"b\\\" \\\\ c\\u000ad\\u0001 µs\"}";
        assert_eq!(line, expected);
    }

    #[test]
    fn a_line_is_one_line_and_no_order_to_a_terminal() {
        let text = "cannot: \u{1b}[2Jx\nix: all is well\u{9b}31m, \u{fc}\t";
        let line = "cannot: \\u{1b}[2Jx\\nix: all is well\\u{9b}31m, \u{fc}\\t";
        assert_eq!(one_line(text), line);
        assert!(formatted(Level::Info, text).ends_with(line));
        crate::say!("{text}");
        assert!(last().iter().any(|said| said.ends_with(line)));
    }

    #[test]
    fn the_last_lines_are_kept() {
        for n in 0..KEPT_MAX + 5 {
            crate::say!("line {n}");
        }
        let last = last();
        assert_eq!(last.len(), KEPT_MAX);
        // Another test says a line of its own, at any time.
        let own: Vec<&String> = last.iter().filter(|line| line.contains("Z line ")).collect();
        assert!(own.len() >= KEPT_MAX - 1 && own.last().is_some_and(|l| l.ends_with("line 204")));
        assert!(!last.iter().any(|line| line.ends_with("Z line 3")), "the first ones are gone");
    }
}
