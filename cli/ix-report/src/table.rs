//! Tables for people.
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

/// Lines of which the first is the heading and the first two columns hold words.
pub fn layout(lines: &[Vec<String>]) -> String {
    Table { rows: lines.to_vec(), words: &[0, 1] }.text()
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
}
