//! Reads the command line, and teaches the right one where it is wrong.
use crate::args::Cli;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Parser};
use ix_report::problem::{Problem, STATUS_OWN_FAILURE};
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Exit status for a wrong command line, but for that of `ix run`.
const STATUS_WRONG: u8 = 2;

/// What the arguments are, if they are no command to run.
#[derive(Debug)]
pub enum Other {
    /// Help or the version, for standard output.
    Help(clap::Error),
    /// They are wrong, as clap says it in several lines.
    Wrong(clap::Error, u8),
    /// They are wrong, and it is known how they would be right.
    Taught(Problem),
}

/// Reads the arguments of this process, the command's name among them.
pub fn read(args: &[OsString]) -> Result<Cli, Other> {
    Cli::try_parse_from(args).map_err(|error| {
        if !error.use_stderr() {
            return Other::Help(error);
        }
        let status = if is_run(args) { STATUS_OWN_FAILURE } else { STATUS_WRONG };
        match teach(&error, args) {
            Some(problem) => Other::Taught(problem.with_status(status)),
            None => Other::Wrong(error, status),
        }
    })
}

/// Whether a command line, right or wrong, is one of `ix run`.
fn is_run(args: &[OsString]) -> bool {
    path_of(&built(), args).first().is_some_and(|word| word == "run")
}

/// Whether the command, right or wrong, prints JSON, and so its errors too. Programs inside `ix`
/// print their own.
pub fn wants_json(args: &[OsString]) -> bool {
    const OWN: [&str; 8] = ["run", "load", "sim", "packets", "echo", "kv", "httpd", "background"];
    let is_json = |arg: &OsString| {
        let arg = arg.to_string_lossy();
        arg == "--json" || arg.starts_with("--json=")
    };
    let path = path_of(&built(), args);
    let first = path.first().map_or("", String::as_str);
    args.iter().skip(1).any(is_json) && !OWN.contains(&first)
}

/// Whether a wrong command line asks for messages as JSON. Where it is wrong, the program cannot be
/// told from a flag's value, so only words behind `--` are not looked at.
pub fn wants_json_log(args: &[OsString]) -> bool {
    const FLAG: &str = "--log-format";
    let own = args.iter().skip(1).take_while(|word| *word != "--");
    let own: Vec<_> = own.map(|word| word.to_string_lossy()).collect();
    let is_pair = |pair: &[Cow<'_, str>]| pair[0] == FLAG && pair[1] == "json";
    let is_one = |word: &Cow<'_, str>| *word == "--json" || *word == format!("{FLAG}=json");
    own.windows(2).any(is_pair) || own.iter().any(is_one)
}

/// What clap says of a wrong command line, without its usage.
pub fn as_problem(error: &clap::Error) -> Problem {
    let text = error.to_string();
    let what = text.split("\n\n").next().unwrap_or_default();
    let what = what.strip_prefix("error: ").unwrap_or(what);
    let words: Vec<&str> = what.split_whitespace().collect();
    Problem::new("cannot use the command line", words.join(" ")).mend("see the command's --help")
}

/// The definition of the command line.
fn built() -> Command {
    let mut ix = Cli::command();
    ix.build();
    ix
}

/// The names of commands in a command line. What belongs to a program is not looked at.
fn path_of(ix: &Command, args: &[OsString]) -> Vec<String> {
    let (mut command, mut path) = (ix, Vec::new());
    for arg in args.iter().skip(1) {
        let Some(below) = arg.to_str().and_then(|word| command.find_subcommand(word)) else {
            continue;
        };
        path.push(below.get_name().to_owned());
        command = below;
        if !command.has_subcommands() {
            break;
        }
    }
    path
}

/// The command of a path.
fn command_at<'c>(ix: &'c Command, path: &[String]) -> Option<&'c Command> {
    path.iter().try_fold(ix, |command, name| command.find_subcommand(name))
}

/// What would be right instead, if that is known.
fn teach(error: &clap::Error, args: &[OsString]) -> Option<Problem> {
    let said = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let ix = built();
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let typed = said(ContextKind::InvalidArg)?;
            let flag = typed.split('=').next().unwrap_or_default();
            let path = path_of(&ix, args);
            let command = command_at(&ix, &path).filter(|_| !path.is_empty())?;
            let name = format!("ix {}", path.join(" "));
            let what = format!("cannot use `{typed}` here");
            if has_flag(command, flag) {
                let rest: Vec<&OsStr> = without_path(args, &path);
                let right = format!("{name} {}", joined(&rest));
                return Some(
                    Problem::new(what, format!("it is a flag of `{name}`, and stands behind that"))
                        .mend(format!("write `{right}`")),
                );
            }
            (path == ["run"]).then(|| {
                let why = "`ix run` has no such flag; those of the program stand behind it";
                Problem::new(what, why)
                    .mend("write `ix run [FLAGS] PROGRAM [ARGS]`; `ix run --help` has the flags")
            })
        }
        ErrorKind::InvalidSubcommand => {
            let word = said(ContextKind::InvalidSubcommand)?;
            let is_first = args.get(1).is_some_and(|arg| *arg == *word);
            let found = is_first && crate::program_file::find_program(word.as_ref()).is_ok();
            found.then(|| {
                let words: Vec<&OsStr> = args.iter().skip(1).map(OsString::as_os_str).collect();
                Problem::new(format!("cannot use `{word}`"), "it is a program, not a command of ix")
                    .mend(format!("write `ix run {}`", joined(&words)))
            })
        }
        _ => None,
    }
}

fn has_flag(command: &Command, flag: &str) -> bool {
    flag_of(command, flag).is_some()
}

/// The flag of a command that `--NAME` is.
fn flag_of<'c>(command: &'c Command, flag: &str) -> Option<&'c clap::Arg> {
    let long = flag.strip_prefix("--")?;
    command.get_arguments().find(|arg| arg.get_long() == Some(long))
}

/// The arguments without the names of the commands.
fn without_path<'a>(args: &'a [OsString], path: &[String]) -> Vec<&'a OsStr> {
    let mut names = path.iter().peekable();
    let others = args.iter().skip(1).filter(|arg| {
        let is_name = names.peek().is_some_and(|name| **arg == ***name);
        if is_name {
            names.next();
        }
        !is_name
    });
    others.map(OsString::as_os_str).collect()
}

/// The words of a command line, in quotes where a shell needs them.
fn joined(words: &[&OsStr]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:,=@%+[]".contains(c);
    let quoted = |word: &&OsStr| {
        let word = word.to_string_lossy();
        let is_plain = !word.is_empty() && word.chars().all(plain);
        if is_plain { word.into_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// For an `ix run` that lacks one of these flags: how to write it, if the flag stands behind the
/// program with a value where it takes one. There it is the program's own.
pub fn behind_the_program(program: &[OsString], flags: &[&str]) -> Option<String> {
    let ix = built();
    let run = ix.find_subcommand("run")?;
    let (first, args) = program.split_first()?;
    let name_of = |arg: &OsStr| {
        let text = arg.to_string_lossy();
        text.split('=').next().unwrap_or_default().to_owned()
    };
    let lacking = args.iter().map(|arg| name_of(arg)).find(|name| flags.contains(&&**name))?;
    let (mut own, mut rest) = (Vec::new(), vec![first.as_os_str()]);
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let flag = flag_of(run, &name_of(word));
        match &flag {
            Some(_) => own.push(word.as_os_str()),
            None => rest.push(word),
        }
        let takes = flag.is_some_and(|arg| arg.get_action().takes_values());
        if takes && !word.to_string_lossy().contains('=') {
            own.push(words.next()?.as_os_str());
        }
    }
    let name = first.to_string_lossy();
    let right = format!("ix run {} {}", joined(&own), joined(&rest));
    Some(format!("`{lacking}` behind {name} is {name}'s own; write `{right}`"))
}

/// Whether a `--nic` behind the program names a device: then it was likely meant for `ix run`. A
/// program may have such a flag of its own, with another meaning.
pub fn means_device(program: &[OsString]) -> bool {
    let words: Vec<_> = program.iter().map(|word| word.to_string_lossy()).collect();
    let is_device = |value: &str| {
        let has_kind = ["afxdp:", "tap:", "memif:"].iter().any(|kind| value.starts_with(kind));
        has_kind || !value.is_empty() && Path::new("/sys/class/net").join(value).exists()
    };
    let behind = words.iter().skip(1).zip(words.iter().skip(2).map(Some).chain([None]));
    behind.into_iter().any(|(word, next)| match word.strip_prefix("--nic") {
        Some("") => next.is_some_and(|value| is_device(value)),
        Some(rest) => rest.strip_prefix('=').is_some_and(is_device),
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn program(line: &str) -> Vec<OsString> {
        match read(&words(line)).expect("a command").command {
            crate::args::Command::Run(run) => run.program,
            other => panic!("{other:?}"),
        }
    }

    fn taught(line: &str) -> Problem {
        match read(&words(line)) {
            Err(Other::Taught(problem)) => problem,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn all_behind_the_program_belongs_to_it() {
        for (line, expected) in [
            ("ix run memcached -p 11211", "memcached -p 11211"),
            ("ix run --nic eth0 sh -c x -- --nic y", "sh -c x -- --nic y"),
            ("ix run --nic eth0 -- sh -c x -- y", "sh -c x -- y"),
            ("ix run --nic eth0 -- -odd --help", "-odd --help"),
            ("ix run --batch 2 curl --help", "curl --help"),
            ("ix run curl --version", "curl --version"),
        ] {
            assert_eq!(program(line), words(expected), "{line}");
        }
    }

    #[test]
    fn a_wrong_order_of_flags_teaches_the_right_one() {
        for (line, status, says) in [
            ("ix --nic eth0 run sh -c x", 125, "write `ix run --nic eth0 sh -c x`"),
            ("ix --nic=eth0 run sh", 125, "write `ix run --nic=eth0 sh`"),
            ("ix run -p 11211 memcached", 125, "`-p` here"),
            ("ix run --pid 11211 memcached", 125, "those of the program stand behind it"),
            ("ix ctl --pid 7 stats", 2, "write `ix ctl stats --pid 7`"),
            ("ix --json doctor", 2, "write `ix doctor --json`"),
            ("ix sh -c x", 2, "write `ix run sh -c x`"),
        ] {
            let problem = taught(line);
            assert!(problem.to_string().contains(says), "{line}: {problem}");
            assert_eq!(problem.status(), status, "{line}");
        }
        for line in ["ix fly", "ix --speed", "ix bench nothing", "ix ctl stats --speed"] {
            assert!(matches!(read(&words(line)), Err(Other::Wrong(_, 2))), "{line}");
        }
        assert!(matches!(read(&words("ix run")), Err(Other::Wrong(_, 125))));
        assert!(matches!(read(&words("ix run --help")), Err(Other::Help(_))));
    }

    #[test]
    fn flags_behind_the_program_are_found() {
        let program = words("memcached -p 1 --nic eth0 --addr=10.0.0.2/24 -m 64");
        let taught = behind_the_program(&program, &["--nic"]).expect("it stands there");
        let right = "`ix run --nic eth0 --addr=10.0.0.2/24 memcached -p 1 -m 64`";
        assert!(taught.contains("`--nic` behind memcached") && taught.contains(right), "{taught}");
        assert_eq!(behind_the_program(&words("memcached -p 1"), &["--nic"]), None);
        assert_eq!(behind_the_program(&words("--nic eth0"), &["--nic"]), None);
        assert_eq!(behind_the_program(&words("memcached --nic"), &["--nic"]), None, "no value");
    }

    #[test]
    fn a_flag_behind_the_program_means_a_device_if_it_names_one() {
        for (line, expected) in [
            ("memcached --nic lo", true),
            ("memcached --nic=tap:ix0 -p 1", true),
            ("memcached -p 1 --nic afxdp:eth7", true),
            ("trainer --nic fast", false),
            ("trainer --nic", false),
            ("trainer --nics lo", false),
            ("--nic lo", false),
        ] {
            assert_eq!(means_device(&words(line)), expected, "{line}");
        }
    }

    #[test]
    fn errors_are_json_where_the_output_would_be() {
        for (line, expected) in [
            ("ix doctor --json", true),
            ("ix ctl stats --speed --json", true),
            ("ix bench echo --json=x", true),
            ("ix doctor", false),
            ("ix run memcached --json", false),
            ("ix load 10.0.0.2:7 --json", false),
        ] {
            assert_eq!(wants_json(&words(line)), expected, "{line}");
        }
        let Err(Other::Wrong(error, _)) = read(&words("ix ctl stats --speed --json")) else {
            panic!("it was taken");
        };
        let problem = as_problem(&error);
        let why = problem.why();
        assert!(why.contains("'--speed'") && !why.contains("Usage"), "{problem}");
    }

    #[test]
    fn messages_are_json_also_where_the_line_is_wrong() {
        for (line, expected) in [
            ("ix run --log-format json --nosuch true", true),
            ("ix run --log-format=json", true),
            ("ix cp --speed --log-format json", true),
            ("ix run --json --nosuch true", true),
            ("ix run --log-format text --nosuch", false),
            ("ix run --nosuch -- true --log-format json", false),
            ("ix run --nosuch true", false),
        ] {
            assert_eq!(wants_json_log(&words(line)), expected, "{line}");
        }
    }

    #[test]
    fn words_are_quoted_as_a_shell_needs_it() {
        let words = ["sh", "-c", "echo 'a b'", ""].map(OsStr::new);
        assert_eq!(joined(&words), r"sh -c 'echo '\''a b'\''' ''");
    }
}
