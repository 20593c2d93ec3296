//! What a user may want to know before a program starts.
use std::ffi::OsString;
use std::path::Path;

/// Flags of well-known programs that set how many threads serve.
const THREAD_FLAGS: [(&str, &[&str]); 4] = [
    ("memcached", &["-t", "--threads"]),
    ("redis-server", &["--io-threads"]),
    ("valkey-server", &["--io-threads"]),
    ("wrk", &["-t", "--threads"]),
];

/// What to say of a program that is told to have more threads than its dataplane.
pub fn more_threads(words: &[OsString], elastic: usize, allowed: &[usize]) -> Option<String> {
    let (program, args) = words.split_first()?;
    let name = Path::new(program).file_name()?.to_str()?;
    let (_, flags) = THREAD_FLAGS.iter().find(|(known, _)| *known == name)?;
    let (flag, count) = threads_of(flags, args)?;
    if count <= elastic {
        return None;
    }
    let has = match elastic {
        1 => "one elastic thread".to_owned(),
        count => format!("{count} elastic threads"),
    };
    let mend = match allowed.get(..count) {
        Some(cpus) => format!("--cpus {} gives each its own", listed(cpus)),
        None => {
            let least = allowed.len().max(1);
            format!("this machine has hardware threads for {least}: `{flag} {least}` costs less")
        }
    };
    Some(format!("`{flag} {count}` is for {count} threads, which share {has}: {mend}"))
}

/// Hardware threads as --cpus takes them.
fn listed(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// The flag that sets the number of threads, and the number; the last one counts.
fn threads_of<'f>(flags: &[&'f str], args: &[OsString]) -> Option<(&'f str, usize)> {
    let mut found = None;
    for (at, arg) in args.iter().enumerate() {
        let Some(arg) = arg.to_str() else { continue };
        for &flag in flags {
            let value = match arg.strip_prefix(flag) {
                Some("") => args.get(at + 1).and_then(|value| value.to_str()),
                Some(rest) if flag.starts_with("--") => rest.strip_prefix('='),
                rest => rest,
            };
            if let Some(count) = value.and_then(|value| value.parse().ok()) {
                found = Some((flag, count));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(line: &str, elastic: usize, allowed: &[usize]) -> Option<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        more_threads(&words, elastic, allowed)
    }

    #[test]
    fn more_threads_than_the_dataplane_has_are_a_hint() {
        for (line, elastic, allowed, says) in [
            ("memcached -t 2", 1, &[0, 1][..], "one elastic thread: --cpus 0,1 gives each"),
            ("/usr/bin/memcached -t4 -m 64", 2, &[0, 2, 4, 6], "2 elastic threads: --cpus 0,2,4,6"),
            ("memcached --threads=3 -p 1", 1, &[0, 1], "threads for 2: `--threads 2` costs less"),
            ("redis-server --io-threads 4", 1, &[0], "threads for 1: `--io-threads 1` costs less"),
            ("memcached -t 1 -t 2", 1, &[0, 1], "`-t 2` is for 2 threads"),
        ] {
            let said = hint(line, elastic, allowed).unwrap_or_default();
            assert!(said.contains(says), "{line}: {said}");
        }
        for line in ["memcached -t 2", "memcached -p 11211", "memcached -t", "redis-server -t 9"] {
            assert_eq!(hint(line, 2, &[0, 1]), None, "{line}");
        }
        // Another program's flag.
        assert_eq!(hint("sort -t 7", 1, &[0]), None);
    }
}
