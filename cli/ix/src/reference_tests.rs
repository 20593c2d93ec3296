//! The page of the book about the command line, made from clap's definition of it.
use crate::args::Cli;
use clap::{Arg, Command, CommandFactory};
use std::collections::BTreeMap;
use std::fmt::Write;

const HEAD: &str = "# Command line

Made from the code by `IX_BLESS=1 cargo test -p ix --lib reference`; do not edit.

Exit status: 0 on success only; 2 for a wrong command line. `ix run` returns its program's status, 128 + N if signal N
ended it; 125 for its own failures, 126 if the program cannot be executed, 127 if there is none. An error is one line:
what, why, and what to do; with `--json` it is `{\"error\": …, \"why\": …, \"mend\": …}` on standard error. `ix sim`,
`ix packets` and the programs inside `ix` (`ix echo`, `ix kv`, `ix httpd`, `ix background`) read their arguments
themselves: ask them with `--help`.
";

/// Tables of arguments, with the first command that has each.
type Seen = BTreeMap<String, String>;

fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut seen = Seen::new();
    let mut ix = Cli::command();
    ix.build();
    for command in ix.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        match command.get_name() {
            // `ix load` parses its arguments itself.
            "load" => {
                section(&mut page, &mut seen, &ix_load::args::LoadArgs::command(), "", 2);
                section(&mut page, &mut seen, &ix_load::args::AgentArgs::command(), "", 3);
            }
            _ => section(&mut page, &mut seen, command, "ix ", 2),
        }
    }
    page
}

/// Writes a command and the commands below it.
fn section(page: &mut String, seen: &mut Seen, command: &Command, parents: &str, level: usize) {
    let name = format!("{parents}{}", command.get_name());
    let _ = writeln!(page, "\n{} {name}\n", "#".repeat(level));
    let about = command.get_long_about().or(command.get_about());
    text(page, &about.map(ToString::to_string).unwrap_or_default());
    if let Some(after) = command.get_after_long_help().or(command.get_after_help()) {
        page.push('\n');
        text(page, &after.to_string());
    }
    let shown =
        |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let arguments: Vec<&Arg> = command.get_arguments().filter(shown).collect();
    let rows: String = arguments
        .iter()
        .map(|arg| format!("| `{}` | {} |\n", written(arg), cell(&meaning(arg))))
        .collect();
    match seen.get(&rows) {
        _ if rows.is_empty() => {}
        Some(other) => {
            let anchor = other.replace(' ', "-");
            let _ = writeln!(page, "\nArguments: those of [`{other}`](#{anchor}).");
        }
        None => {
            let _ = write!(page, "\n| argument | meaning |\n|---|---|\n{rows}");
            seen.insert(rows, name.clone());
        }
    }
    for below in command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        section(page, seen, below, &format!("{name} "), (level + 1).min(4));
    }
}

/// Writes help text: its indented parts are examples.
fn text(page: &mut String, help: &str) {
    let mut example = false;
    for line in help.lines() {
        let indented = line.starts_with("  ");
        if indented != example {
            page.push_str(if indented && !page.ends_with("\n\n") { "\n```\n" } else { "```\n" });
            example = indented;
        }
        let line = if indented { line.get(2..).unwrap_or_default().to_owned() } else { cell(line) };
        let _ = writeln!(page, "{}", line.trim_end());
    }
    if example {
        page.push_str("```\n");
    }
}

/// Returns an argument as a user types it: `-c`, `--config FILE`.
fn written(arg: &Arg) -> String {
    let values: Vec<&str> =
        arg.get_value_names().unwrap_or_default().iter().map(|name| name.as_str()).collect();
    let value = match arg.get_action().takes_values() {
        true => values.join(" "),
        false => String::new(),
    };
    let long = arg.get_long().map(|long| format!("--{long}"));
    let short = arg.get_short().map(|short| format!("-{short}"));
    let flags: Vec<String> = short.into_iter().chain(long).collect();
    let text = format!("{} {value}", flags.join(", "));
    text.trim().replace('|', "\\|")
}

fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help());
    let mut text = help.map(ToString::to_string).unwrap_or_default().replace('\n', " ");
    let takes = arg.get_action().takes_values() && !arg.is_hide_possible_values_set();
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|value| takes && !value.is_hide_set())
        .map(|value| match value.get_help() {
            Some(help) => format!("`{}`: {help}", value.get_name()),
            None => format!("`{}`", value.get_name()),
        })
        .collect();
    if !values.is_empty() {
        let _ = write!(text, ". One of {}", values.join("; "));
    }
    let defaults: Vec<String> =
        arg.get_default_values().iter().map(|v| v.to_string_lossy().into_owned()).collect();
    if takes && !defaults.is_empty() {
        let _ = write!(text, ". Default: `{}`", defaults.join(" "));
    }
    text
}

/// Makes text safe for Markdown: outside of code, markup is escaped.
fn cell(text: &str) -> String {
    let mut cell = String::new();
    let mut code = false;
    for c in text.chars() {
        match c {
            '`' => code = !code,
            '|' => cell.push('\\'),
            '<' | '*' if !code => cell.push('\\'),
            _ => {}
        }
        cell.push(c);
    }
    cell
}

#[test]
fn the_page_is_what_the_command_line_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/command-line.md");
    let page = page();
    if std::env::var_os("IX_BLESS").is_some() {
        std::fs::write(path, &page).expect("the page can be written");
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == page,
        "docs/reference/command-line.md is out of date: IX_BLESS=1 cargo test -p ix --lib reference writes it"
    );
}
