//! What packages install beside the command: completions for shells and man pages, both made of
//! the command line's definition.
use crate::args::{CompletionsArgs, ManArgs};
use clap::Command;
use ix_report::problem::{Problem, Result};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

/// The reference of the configuration file, from which its man page is made.
const CONFIGURATION: &str = include_str!("../../../docs/reference/configuration.md");

/// The whole command line, with the commands that read their arguments themselves.
pub fn whole() -> Command {
    use clap::CommandFactory;
    let load = ix_load::args::LoadArgs::command().name("load");
    let agent = ix_load::args::AgentArgs::command().name("agent");
    let load = load.subcommand(agent).subcommand_negates_reqs(true);
    crate::args::Cli::command().mut_subcommand("load", |_| load)
}

/// `ix completions SHELL`.
pub fn completions(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut whole(), "ix", &mut script);
    print(&script)
}

/// `ix man [DIR]`: pages of commands in DIR, and that of the file in `man5` beside it if DIR is a
/// `man1`.
pub fn man(args: &ManArgs) -> Result<()> {
    let Some(folder) = &args.dir else {
        let mut ix = whole();
        ix.build();
        let mut page = Vec::new();
        let rendered = clap_mangen::Man::new(ix).render(&mut page);
        rendered.map_err(|e| Problem::new("cannot make the man page", e))?;
        return print(&page);
    };
    std::fs::create_dir_all(folder).map_err(|e| {
        Problem::new(format!("cannot make the folder {}", folder.display()), e)
            .mend("choose another folder")
    })?;
    let cannot = |e| {
        Problem::new(format!("cannot write man pages to {}", folder.display()), e)
            .mend("choose another folder")
    };
    clap_mangen::generate_to(whole(), folder).map_err(cannot)?;
    // man(1) looks for it beside the folder of commands.
    let formats = match folder.file_name() {
        Some(name) if name == "man1" => folder.with_file_name("man5"),
        _ => folder.clone(),
    };
    std::fs::create_dir_all(&formats).map_err(cannot)?;
    write(&formats, "ix.toml.5", &configuration_page(CONFIGURATION)).map_err(cannot)
}

fn write(folder: &Path, name: &str, page: &str) -> std::io::Result<()> {
    std::fs::write(folder.join(name), page)
}

fn print(bytes: &[u8]) -> Result<()> {
    let written = std::io::stdout().write_all(bytes);
    written.map_err(|e| Problem::new("cannot write to standard output", e))
}

/// Makes the man page of the reference: headings, paragraphs, examples, and tables whose rows are
/// key, value, default and meaning.
fn configuration_page(markdown: &str) -> String {
    let mut page = String::from(
        ".TH ix.toml 5\n.SH NAME\nix.toml \\- the configuration file of ix run\n.SH DESCRIPTION\n",
    );
    let mut is_example = false;
    let mut lines = markdown.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("```") {
            page.push_str(if is_example { ".fi\n.RE\n.PP\n" } else { ".PP\n.RS 4\n.nf\n" });
            is_example = !is_example;
        } else if is_example {
            let _ = writeln!(page, "{}", escaped(line));
        } else if let Some(heading) = line.strip_prefix("## ") {
            let _ = writeln!(page, ".SH {}", plain(heading).to_uppercase());
        } else if line.starts_with("|---") || line.starts_with("<!--") || line.starts_with("# ") {
        } else if lines.peek().is_some_and(|next| next.starts_with("|---")) {
            // The head of a table.
        } else if line.starts_with('|') {
            page.push_str(&row(line));
        } else if line.is_empty() {
            page.push_str(".PP\n");
        } else {
            let _ = writeln!(page, "{}", plain(line));
        }
    }
    page.push_str(".SH SEE ALSO\n\\fBix\\-run\\fR(1), \\fBix\\-doctor\\fR(1)\n");
    page
}

/// A row of a table: its first cell is the term, the last one its meaning.
fn row(line: &str) -> String {
    let cells = line.trim_matches('|').replace("\\|", "\u{0}");
    let cells: Vec<String> =
        cells.split('|').map(|cell| plain(&cell.trim().replace('\u{0}', "|"))).collect();
    let Some((key, rest)) = cells.split_first() else { return String::new() };
    let mut text = format!(".TP\n\\fB{key}\\fR\n");
    if let Some((meaning, between)) = rest.split_last() {
        let _ = writeln!(text, "{meaning}");
        if let [value, default] = between {
            let _ = writeln!(text, ".br\nValue: {value}. Default: {default}.");
        }
    }
    text
}

/// Markdown's markup taken off: of code, and of links but their text.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(open) = rest.find('[') {
        let link = rest[open..].find("](").map(|at| open + at);
        let end = link.and_then(|at| rest[at..].find(')').map(|end| at + end));
        match (link, end) {
            (Some(middle), Some(end)) if !rest[open..middle].contains('`') => {
                plain.push_str(&rest[..open]);
                plain.push_str(&rest[open + 1..middle]);
                rest = &rest[end + 1..];
            }
            _ => {
                plain.push_str(&rest[..=open]);
                rest = &rest[open + 1..];
            }
        }
    }
    plain.push_str(rest);
    escaped(&plain.replace('`', ""))
}

/// Text that roff takes as it stands.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    match text.chars().next() {
        Some('.' | '\'') => format!("\\&{text}"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_is_shown_has_a_man_page() {
        let folder = std::env::temp_dir().join(format!("ix-man-{}", std::process::id()));
        man(&ManArgs { dir: Some(folder.clone()) }).expect("written");
        let page = |name: &str| {
            std::fs::read_to_string(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
        };
        fn check(command: &Command, name: &str, page: &dyn Fn(&str) -> String) {
            assert!(page(&format!("{name}.1")).contains(".SH NAME"), "{name}");
            for below in command.get_subcommands().filter(|c| !c.is_hide_set()) {
                check(below, &format!("{name}-{}", below.get_name()), page);
            }
        }
        check(&whole(), "ix", &page);
        assert!(page("ix-run.1").contains("program\\-cpus"));
        assert!(page("ix-load.1").contains("connections"));
        let toml = page("ix.toml.5");
        for key in ["devices", "host_addr", "gateway_addr", "local_ports", "min_rto_us"] {
            assert!(toml.contains(&format!(".TP\n\\fB{key}\\fR\n")), "{key}: {toml}");
        }
        assert!(!toml.contains("IX_BLESS"), "what only this project's authors run: {toml}");
        assert!(!toml.contains("](") && !toml.contains("|---") && !toml.contains("<!--"), "{toml}");
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn a_folder_that_cannot_be_is_named() {
        let told = man(&ManArgs { dir: Some("/proc/version/man".into()) }).expect_err("no folder");
        assert!(told.to_string().contains("/proc/version/man"), "{told}");
    }

    #[test]
    fn markup_is_taken_off() {
        assert_eq!(plain("see [the `x`](a.md) and [y](b.md)"), "see [the x](a.md) and y");
        assert_eq!(plain("`.x` of `[tcp]`"), "\\&.x of [tcp]");
        assert_eq!(
            row("| `a\\|b` | 1 | 2 | what |"),
            ".TP\n\\fBa|b\\fR\nwhat\n.br\nValue: 1. Default: 2.\n"
        );
    }
}
