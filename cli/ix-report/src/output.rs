//! Where the results of a measurement go: `--json` and `--output`, the same for all commands.
use crate::problem::{Problem, Result};
use clap::Args;
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
            false => print!("{table}"),
        }
        if *self == OutputArgs::default() {
            return Ok(());
        }
        let results = results();
        if self.is_stdout() {
            println!("{results:#}");
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
