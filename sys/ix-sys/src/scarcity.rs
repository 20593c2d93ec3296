//! A server whose process has no descriptor left: `accept` fails, the client stays in the queue,
//! and the listener stays readable. Whoever tries again at once does nothing else.
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

/// How long a listener is left alone then. Its clients wait that long at most once there is room.
const PAUSE: Duration = Duration::from_millis(100);
/// Time between two lines that say so.
const SAYING: Duration = Duration::from_secs(60);

/// When listeners may be tried again, and how often it was in vain.
#[derive(Debug, Default)]
pub struct Scarcity {
    until: Option<Instant>,
    count: u64,
    said: Option<Instant>,
}

impl Scarcity {
    /// Nobody is accepted until then, if anything is scarce.
    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Whether clients may be accepted now; true once after each pause.
    pub fn has_passed(&mut self, now: Instant) -> bool {
        self.until.take_if(|until| *until <= now).is_some()
    }

    /// `accept` has failed with this error. Begins a pause if it would fail again at once. Returns
    /// what the user is told, the first time and once a minute.
    pub fn failed(&mut self, error: &io::Error, now: Instant) -> Option<String> {
        let goes_on = [ErrorKind::WouldBlock, ErrorKind::Interrupted, ErrorKind::ConnectionAborted];
        if goes_on.contains(&error.kind()) {
            return None;
        }
        self.until = Some(now + PAUSE);
        self.count += 1;
        if self.said.is_some_and(|said| now < said + SAYING) {
            return None;
        }
        self.said = Some(now);
        let mend = match error.raw_os_error() {
            Some(libc::EMFILE) => "raise the limit on its descriptors (ulimit -n)",
            Some(libc::ENFILE) => "raise the machine's limit (sysctl fs.file-max)",
            _ => "find out what the machine lacks",
        };
        let count = match self.count {
            1 => "once".to_owned(),
            count => format!("{count} times"),
        };
        Some(format!("no client can be accepted ({error}; {count} so far): they wait; {mend}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_failure_is_a_pause_and_one_line_a_minute() {
        let (mut scarcity, mut now) = (Scarcity::default(), Instant::now());
        let full = || io::Error::from_raw_os_error(libc::EMFILE);
        assert_eq!(scarcity.failed(&ErrorKind::WouldBlock.into(), now), None);
        assert_eq!(scarcity.until(), None, "there was nobody");
        let line = scarcity.failed(&full(), now).expect("a line");
        assert!(line.contains("once so far") && line.contains("ulimit -n"), "{line}");
        assert!(!scarcity.has_passed(now) && scarcity.until().is_some());
        now += PAUSE;
        assert!(scarcity.has_passed(now) && !scarcity.has_passed(now));
        assert_eq!(scarcity.failed(&full(), now), None, "it was said");
        now += SAYING;
        let line = scarcity.failed(&full(), now).expect("a line");
        assert!(line.contains("3 times so far"), "{line}");
    }
}
