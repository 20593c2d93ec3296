//! Where the results of a measurement go: `--json` and `--output`, the same for all commands.
use crate::problem::{Problem, Result};
use clap::{Args, ValueEnum};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Flags of commands that print a table and can give the same as JSON.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputArgs {
    /// Print the results as JSON on standard output. `--json FILE` is the same as `--output FILE`
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Also write the results to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Flags of commands whose results are one object of JSON.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct JsonArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Also write the result to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

impl JsonArgs {
    /// Gives the JSON to all who asked for it. Returns whether standard output has it, so that
    /// nothing else can be there.
    pub fn give(&self, results: impl FnOnce() -> Result<Value>) -> Result<bool> {
        if *self == JsonArgs::default() {
            return Ok(false);
        }
        let results = results()?;
        let to_file = self.output.as_ref().filter(|path| path.as_os_str() != "-");
        to_file.map_or(Ok(()), |path| write_json(path, &results))?;
        let prints = self.json || self.output.is_some() && to_file.is_none();
        if prints {
            ix_sys::outln!("{results:#}");
        }
        Ok(prints)
    }
}

/// How a command that goes on writes what it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people
    #[default]
    Text,
    /// A JSON object a line: time, level, message
    Json,
}

/// Flags of commands that go on and print nothing but messages.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageArgs {
    /// How to write messages
    #[command(flatten)]
    pub log: LogArgs,
    /// The same as `--log-format json`
    #[arg(long, conflicts_with = "log_format")]
    pub json: bool,
}

impl MessageArgs {
    /// From now on messages are written so.
    pub fn apply(self) {
        let log_format = if self.json { LogFormat::Json } else { self.log.log_format };
        LogArgs { log_format }.apply();
    }
}

/// Flags of commands that go on.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogArgs {
    /// How to write messages on standard error
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

impl LogArgs {
    /// From now on messages are written so.
    pub fn apply(self) {
        if self.log_format == LogFormat::Json {
            ix_sys::log::use_json();
        }
    }
}

impl OutputArgs {
    /// To a file, besides the table.
    pub fn to_file(file: PathBuf) -> OutputArgs {
        OutputArgs { json: None, output: Some(file) }
    }

    /// Whether standard output has the JSON, so that the table cannot be there.
    pub fn is_stdout(&self) -> bool {
        [&self.json, &self.output].into_iter().flatten().any(|path| path.as_os_str() == "-")
    }

    /// Prints the table, on standard error if the JSON is on standard output, and gives the JSON to
    /// all who asked for it.
    pub fn publish(&self, table: &str, results: impl FnOnce() -> Value) -> Result<()> {
        match self.is_stdout() {
            true => eprint!("{table}"),
            false => ix_sys::out!("{table}"),
        }
        if *self == OutputArgs::default() {
            return Ok(());
        }
        let results = results();
        if self.is_stdout() {
            ix_sys::outln!("{results:#}");
        }
        let files = [&self.json, &self.output].into_iter().flatten();
        files.filter(|path| path.as_os_str() != "-").try_for_each(|path| write_json(path, &results))
    }
}

/// Writes a JSON file.
pub fn write_json(path: &Path, value: &Value) -> Result<()> {
    std::fs::write(path, format!("{value:#}\n")).map_err(|e| {
        Problem::new(format!("cannot write {}", path.display()), e).mend("choose another file")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::json;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        output: OutputArgs,
        #[arg(long)]
        quick: bool,
    }

    fn read(line: &str) -> OutputArgs {
        Command::try_parse_from(line.split(' ')).expect("fine").output
    }

    #[test]
    fn json_is_a_flag_and_output_a_file() {
        for (line, stdout) in [
            ("x", false),
            ("x --json", true),
            ("x --json --quick", true),
            ("x --json -", true),
            ("x --json results", false),
            ("x --output results", false),
            ("x --json --output results", true),
            ("x --output -", true),
        ] {
            assert_eq!(read(line).is_stdout(), stdout, "{line}");
        }
        assert!(Command::try_parse_from(["x", "--json", "--quick"]).expect("fine").quick);
    }

    #[test]
    fn an_object_goes_to_whoever_asked() {
        let folder = std::env::temp_dir().join(format!("ix-json-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("out");
        let args = |json, output| JsonArgs { json, output };
        let give = |args: JsonArgs| args.give(|| Ok(json!({ "a": 1 }))).expect("given");
        assert!(!give(args(false, Some(file.clone()))), "the text goes to standard output");
        let text = std::fs::read_to_string(&file).expect("a file");
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON")["a"], 1);
        assert!(give(args(true, None)) && give(args(false, Some("-".into()))));
        let nobody = args(false, None).give(|| panic!("nobody asked"));
        assert!(!nobody.expect("nothing to do"));
        args(false, Some("/no/such/folder/x".into()))
            .give(|| Ok(json!({})))
            .expect_err("no folder");
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn each_file_that_is_named_is_written() {
        let folder = std::env::temp_dir().join(format!("ix-output-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        for flag in ["--json", "--output"] {
            let file = folder.join(flag);
            let args = read(&format!("x {flag} {}", file.display()));
            args.publish("", || json!({ "rows": [1] })).expect("written");
            let text = std::fs::read_to_string(&file).expect("a file");
            assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON")["rows"][0], 1);
        }
        std::fs::remove_dir_all(&folder).expect("removed");
        let missing = read("x --output /no/such/folder/file").publish("", || json!({}));
        assert!(missing.expect_err("no folder").to_string().contains("/no/such/folder/file"));
        read("x").publish("", || panic!("nobody asked")).expect("nothing to do");
    }
}
