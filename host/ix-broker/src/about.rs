//! How a run was started, and what it has said: for reports of faults. Secrets are left out.
use ix_proto::control::About;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Most bytes of the configuration file that are told.
const FILE_MAX: usize = 64 << 10;
/// What stands for something that is left out.
const LEFT_OUT: &str = "…";
/// Words that may hold a secret, up to the next comma or the end of what they stand in.
const SECRET: &str = "secret=";

/// The command line of this process.
struct Started {
    /// Its own words.
    own: Vec<String>,
    /// The program and its arguments.
    program: Vec<String>,
    /// The configuration file.
    file: Option<PathBuf>,
}

static STARTED: OnceLock<Started> = OnceLock::new();

/// Notes the words of this process, the last of which are those of the program.
pub fn note(words: Vec<OsString>, of_program: usize) {
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let (own, program) = words.split_at(words.len().saturating_sub(of_program));
    let file = file_of(own).and_then(|path| std::path::absolute(path).ok());
    // The first one counts: a process is one run.
    let _ = STARTED.set(Started { own: own.to_vec(), program: program.to_vec(), file });
}

/// The configuration file that these words name.
fn file_of(own: &[String]) -> Option<&str> {
    let after = |flag: &str| {
        let at = own.iter().position(|word| word == flag)?;
        own.get(at + 1).map(String::as_str)
    };
    let joined = own.iter().find_map(|word| word.strip_prefix("--config="));
    after("-c").or_else(|| after("--config")).or(joined)
}

/// Tells how this run was started. The program's arguments and secrets are told with `all` only.
/// `of_program`: what the library in the program has said, each line behind its time.
pub fn tell(all: bool, of_program: Vec<String>) -> About {
    let lines = in_order(ix_sys::log::last(), of_program).into_iter();
    let log = lines.map(|line| if all { line } else { without_secrets(&line) }).collect();
    let Some(started) = STARTED.get() else { return About { log, ..About::default() } };
    let file = started.file.as_ref().and_then(|path| std::fs::read(path).ok());
    let config = file.map(|bytes| {
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(FILE_MAX)]);
        if all { text.into_owned() } else { without_secrets(&text) }
    });
    About { command: command(started, all), config, log }
}

/// The lines of both by their times, and of the program's that they are. A program may have written
/// lines without a time.
fn in_order(own: Vec<String>, of_program: Vec<String>) -> Vec<String> {
    let of_program = of_program.iter().map(|line| {
        let (at, text) = line.split_once(' ').unwrap_or(("", line));
        format!("{at} program: {text}")
    });
    let mut all: Vec<String> = own.into_iter().chain(of_program).collect();
    all.sort_by(|one, other| one.split(' ').next().cmp(&other.split(' ').next()));
    all
}

fn command(started: &Started, all: bool) -> Vec<String> {
    let mut words = started.own.clone();
    if all {
        words.extend(started.program.iter().cloned());
        return words;
    }
    words.iter_mut().for_each(|word| *word = hidden(word, |_| None));
    words.extend(started.program.first().cloned());
    if started.program.len() > 1 {
        words.push(LEFT_OUT.to_owned());
    }
    words
}

/// A text of lines in which no value of `secret=` is left. Such a value may have blanks, and ends
/// with the quotes that it stands in.
fn without_secrets(text: &str) -> String {
    hidden(text, |before| {
        let line = before.rsplit('\n').next().unwrap_or_default();
        line.chars().rfind(|c| ['"', '\'', '`'].contains(c))
    })
}

/// A text without the values of `secret=`. `quote`: what ends a value, of what stands before it.
fn hidden(text: &str, quote: impl Fn(&str) -> Option<char>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(SECRET) {
        let (before, value) = rest.split_at(at + SECRET.len());
        let quote = quote(before);
        out.push_str(before);
        out.push_str(LEFT_OUT);
        let mut last = '\0';
        let ends = |c: char| {
            let is_escaped = std::mem::replace(&mut last, c) == '\\';
            c == ',' || c == '\n' || Some(c) == quote && !is_escaped
        };
        rest = value.find(ends).map_or("", |end| &value[end..]);
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn neither_secrets_nor_arguments_are_told_unasked() {
        let started = Started {
            own: words("ix run --nic memif:/run/a,secret=hunter2,mtu=1500 --batch 4"),
            program: words("redis-server --requirepass hunter3"),
            file: None,
        };
        let told = command(&started, false).join(" ");
        let expected = "ix run --nic memif:/run/a,secret=…,mtu=1500 --batch 4 redis-server …";
        assert_eq!(told, expected);
        let all = command(&started, true).join(" ");
        assert!(all.contains("hunter2") && all.contains("hunter3"), "{all}");
        let file = "devices = [\"memif:/a,secret=x\", 'memif:/b,secret=y,id=1']\nbatch = 4\n";
        let expected = "devices = [\"memif:/a,secret=…\", 'memif:/b,secret=…,id=1']\nbatch = 4\n";
        assert_eq!(without_secrets(file), expected);
        assert_eq!(without_secrets("secret="), "secret=…");
        for (line, expected) in [
            (
                "devices = \"memif:/a,secret=it's a \\\" b\"\nttl = 9",
                "devices = \"memif:/a,secret=…\"\nttl = 9",
            ),
            ("nic = 'memif:/a,secret=two words'", "nic = 'memif:/a,secret=…'"),
            (
                "cannot use `--nic memif:/a,secret=two words`: why",
                "cannot use `--nic memif:/a,secret=…`: why",
            ),
        ] {
            assert_eq!(without_secrets(line), expected);
        }
        let spec = "memif:/it's,secret=\"two words'".to_owned();
        let started = Started { own: vec![spec], program: vec![], file: None };
        assert_eq!(command(&started, false), ["memif:/it's,secret=…"]);
    }

    #[test]
    fn lines_of_both_are_in_the_order_of_their_times() {
        let lines = |all: &[&str]| all.iter().map(|line| (*line).to_owned()).collect();
        let own = lines(&["2026-01-01T00:00:01.000Z b", "2026-01-01T00:00:01.000Z a"]);
        let of_program = lines(&["2026-01-01T00:00:00.999Z c", "forged"]);
        let expected = [
            " program: forged",
            "2026-01-01T00:00:00.999Z program: c",
            "2026-01-01T00:00:01.000Z b",
            "2026-01-01T00:00:01.000Z a",
        ];
        assert_eq!(in_order(own, of_program), expected);
    }

    #[test]
    fn the_file_is_found_however_it_is_named() {
        for line in
            ["ix run -c f.toml", "ix run --config f.toml --batch 4", "ix run --config=f.toml"]
        {
            assert_eq!(file_of(&words(line)), Some("f.toml"), "{line}");
        }
        assert_eq!(file_of(&words("ix run --nic eth0")), None);
    }
}
