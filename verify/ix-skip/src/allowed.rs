//! The committed list of tests that may be skipped.

use crate::Record;

/// Tests that may be skipped: `GROUP PACKAGE TEST` a line, `#` begins a comment. A `*` for PACKAGE
/// or TEST, or at TEST's end, stands for any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed(Vec<[String; 3]>);

impl Allowed {
    /// Reads the list; the error names the line.
    pub fn parse(text: &str) -> Result<Allowed, String> {
        let mut rules = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let words: Vec<&str> =
                line.split('#').next().unwrap_or_default().split_whitespace().collect();
            match words[..] {
                [] => {}
                [group, package, test] => {
                    rules.push([group, package, test].map(str::to_owned));
                }
                _ => {
                    return Err(format!(
                        "line {}: `{line}` is not GROUP PACKAGE TEST; write three words",
                        number + 1
                    ));
                }
            }
        }
        Ok(Allowed(rules))
    }

    /// Whether the list has this test.
    pub fn has(&self, record: &Record) -> bool {
        let fits = |pattern: &str, text: &str| match pattern.strip_suffix('*') {
            Some(begin) => text.starts_with(begin),
            None => pattern == text,
        };
        self.0.iter().any(|[group, package, test]| {
            *group == record.group && fits(package, &record.package) && fits(test, &record.test)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(group: &str, package: &str, test: &str) -> Record {
        Record {
            group: group.to_owned(),
            package: package.to_owned(),
            test: test.to_owned(),
            part: false,
            why: String::new(),
            remedy: String::new(),
        }
    }

    #[test]
    fn patterns_fit_whole_names_and_beginnings() {
        let list = "# head\nroot ix-nic tap::one # why\n\nhardware * *\nkernel ix-nic afxdp::*\n";
        let list = Allowed::parse(list).expect("a list");
        assert!(list.has(&record("root", "ix-nic", "tap::one")));
        assert!(!list.has(&record("root", "ix-nic", "tap::one_more")));
        assert!(!list.has(&record("root", "ix-mem", "tap::one")));
        assert!(list.has(&record("hardware", "ix-report", "meter::counts")));
        assert!(list.has(&record("kernel", "ix-nic", "afxdp::x")));
        assert!(!list.has(&record("kernel", "ix-nic", "tap::x")));
    }

    #[test]
    fn a_line_with_too_few_words_is_named() {
        let error = Allowed::parse("root * *\nroot ix-nic\n").expect_err("two words");
        assert!(error.starts_with("line 2: `root ix-nic` is not GROUP PACKAGE TEST"), "{error}");
    }
}
