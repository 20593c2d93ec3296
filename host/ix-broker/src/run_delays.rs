//! How long the threads of a dataplane wait for their hardware thread, as Linux counts it
//! (`schedstat`, proc(5)). A kernel that counts nothing says nothing.
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::time::{Duration, Instant};

/// Time between two looks.
const PERIOD: Duration = Duration::from_millis(500);
/// One thread that computes all the time keeps another one waiting for about 3 ms. Waits that are
/// longer than this on average are for several.
const LONG: Duration = Duration::from_millis(8);
/// A single wait says little, unless it is as long as this many.
const WAITS_MIN: u64 = 3;

/// The waits of one process.
#[derive(Debug)]
pub struct RunDelays {
    pid: u32,
    seen: Threads,
    due: Instant,
}

/// The waits of each thread, by its number.
type Threads = BTreeMap<OsString, Waits>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waits {
    count: u64,
    ns: u64,
}

impl RunDelays {
    /// From now on.
    pub fn of(pid: u32) -> RunDelays {
        RunDelays { pid, seen: threads_of(pid), due: Instant::now() + PERIOD }
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// When to look next.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Looks, if it is time; whether the waits of a thread since the last look were long.
    pub fn look(&mut self) -> bool {
        let now = Instant::now();
        if now < self.due {
            return false;
        }
        self.due = now + PERIOD;
        let before = std::mem::replace(&mut self.seen, threads_of(self.pid));
        let mut both =
            self.seen.iter().filter_map(|(thread, now)| Some((now, before.get(thread)?)));
        both.any(|(now, before)| now.are_long_since(*before))
    }
}

fn threads_of(pid: u32) -> Threads {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Threads::new() };
    let waits = |thread: fs::DirEntry| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        Some((thread.file_name(), Waits::parse(&text)?))
    };
    threads.flatten().filter_map(waits).collect()
}

impl Waits {
    /// Time run, time waited, and the number of times that it ran.
    fn parse(schedstat: &str) -> Option<Waits> {
        let mut numbers = schedstat.split_ascii_whitespace().skip(1).map(str::parse);
        let (ns, count) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        Some(Waits { count, ns })
    }

    fn are_long_since(self, before: Waits) -> bool {
        let count = self.count.saturating_sub(before.count);
        let ns = self.ns.saturating_sub(before.ns);
        ns >= count.max(WAITS_MIN).saturating_mul(LONG.as_nanos() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_long_if_they_are_on_average() {
        let waits = |text| Waits::parse(text).expect(text);
        assert_eq!(waits("5 7 9\n"), Waits { count: 9, ns: 7 });
        assert_eq!([Waits::parse(""), Waits::parse("1 x 2")], [None, None]);
        let before = waits("0 1000000000 100");
        for (now, are_long) in [
            ("0 1032000000 104", true),
            ("0 1031999999 104", false),
            ("0 1020000000 102", false),
            ("0 1024000000 101", true),
            ("0 1000000000 100", false),
            ("0 900000000 200", false),
        ] {
            assert_eq!(waits(now).are_long_since(before), are_long, "{now}");
        }
    }

    #[test]
    fn a_process_that_runs_has_no_long_waits() {
        let mut delays = RunDelays::of(std::process::id());
        assert!(!delays.look(), "it is too early");
        delays.due = Instant::now();
        assert!(!delays.look());
        assert_eq!(threads_of(u32::MAX), Threads::new());
    }
}
