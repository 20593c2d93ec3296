//! Tables and numbers for people.
use std::fmt::Write;

/// A table: numbers to the right, words to the left.
pub struct Table {
    rows: Vec<Vec<String>>,
    /// Columns of words.
    words: &'static [usize],
}

impl Table {
    /// One with a heading; `words` are the columns that hold no numbers.
    pub fn new(heading: &[&str], words: &'static [usize]) -> Table {
        Table { rows: vec![heading.iter().map(|h| (*h).to_owned()).collect()], words }
    }

    /// Adds a line.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The whole.
    pub fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let (width, gap) = (widths[column], if column > 0 { "  " } else { "" });
                let _ = match self.words.contains(&column) {
                    true => write!(line, "{gap}{cell:<width$}"),
                    false => write!(line, "{gap}{cell:>width$}"),
                };
            }
            let _ = writeln!(out, "{}", line.trim_end());
        }
        out
    }
}

/// A count in at most five characters: `950`, `12.3k`, `4.56M`.
pub fn count(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v < 999.5 => return format!("{value:.0}"),
        v if v < 999_500.0 => (value / 1e3, "k"),
        v if v < 999_500_000.0 => (value / 1e6, "M"),
        v if v < 999.5e9 => (value / 1e9, "G"),
        _ => (value / 1e12, "T"),
    };
    let decimals = match scaled.abs() {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{scaled:.decimals$}{unit}")
}

/// Microseconds, with a digit behind the point below ten of them.
pub fn micros(value: f64) -> String {
    match value {
        v if v < 9.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// A share in percent.
pub fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// `1 thread`, `2 threads`.
pub fn plural(n: usize, word: &str) -> String {
    if n == 1 { format!("1 {word}") } else { format!("{n} {word}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_their_heading() {
        let mut table = Table::new(&["n", "state", "µs"], &[1]);
        table.row(["0".to_owned(), "on".to_owned(), "10.5".to_owned()]);
        table.row(["12".to_owned(), "parked".to_owned(), "-".to_owned()]);
        assert_eq!(table.text(), " n  state     µs\n 0  on      10.5\n12  parked     -\n");
    }

    #[test]
    fn numbers_stay_short() {
        for (value, text) in [
            (0.0, "0"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (9_994.0, "9.99k"),
            (9_996.0, "10.0k"),
            (12_345.0, "12.3k"),
            (123_456.0, "123k"),
            (999_600.0, "1.00M"),
            (4_560_000.0, "4.56M"),
            (7.8e12, "7.80T"),
        ] {
            assert_eq!(count(value), text);
        }
        assert_eq!([micros(0.04), micros(9.94), micros(9.96)], ["0.0", "9.9", "10"]);
    }
}
