//! A skipped test as a line of a file.

/// A test that was skipped, whole or in part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    /// Name of the group: what kind of thing is missing.
    pub group: String,
    /// Package of the test.
    pub package: String,
    /// The test's name with its modules.
    pub test: String,
    /// Only a part of the test was skipped.
    pub part: bool,
    /// What was found missing.
    pub why: String,
    /// What to do so that the test runs.
    pub remedy: String,
}

impl Record {
    /// What a person reads: one line.
    pub fn sentence(&self) -> String {
        let part = if self.part { "a part of " } else { "" };
        format!("SKIPPED {part}{}: {}; {}", self.test, self.why, self.remedy)
    }

    /// A line of the file, with its line feed: fields separated by tabs.
    pub fn line(&self) -> String {
        let part = if self.part { "part" } else { "whole" };
        let fields = [&self.group, &self.package, &self.test, part, &self.why, &self.remedy];
        let clean = |field: &str| field.split(['\t', '\n', '\r']).collect::<Vec<_>>().join(" ");
        fields.map(clean).join("\t") + "\n"
    }

    /// Reads a line of the file; `None` when it is not a record.
    pub fn parse(line: &str) -> Option<Record> {
        let fields: Vec<&str> = line.split('\t').collect();
        let [group, package, test, part @ ("part" | "whole"), why, remedy] = fields[..] else {
            return None;
        };
        Some(Record {
            group: group.to_owned(),
            package: package.to_owned(),
            test: test.to_owned(),
            part: part == "part",
            why: why.to_owned(),
            remedy: remedy.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let record = Record {
            group: "root".to_owned(),
            package: "ix-nic".to_owned(),
            test: "tap::steers".to_owned(),
            part: true,
            why: "no permission\t(two\nlines)".to_owned(),
            remedy: "run it as root".to_owned(),
        };
        let line = record.line();
        assert_eq!(line.lines().count(), 1);
        let read = Record::parse(line.trim_end()).expect("a record");
        assert_eq!(read, Record { why: "no permission (two lines)".to_owned(), ..record });
        assert_eq!(Record::parse("root\tix-nic"), None);
        assert_eq!(Record::parse(""), None);
    }
}
