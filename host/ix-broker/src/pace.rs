//! How fast dataplanes follow one another. A program that lets go of its dataplane and asks for
//! another one, again and again, makes its broker open and attach devices each time.
use std::time::{Duration, Instant};

/// In the long run one is started in this time.
const EVERY: Duration = Duration::from_millis(250);
/// So much of that time may be used before it has passed: 20 dataplanes of a program that starts
/// many short processes wait for nothing.
const AHEAD: Duration = Duration::from_secs(5);

/// When dataplanes may be started.
#[derive(Default)]
pub struct Pace {
    /// Their time is used up to here.
    until: Option<Instant>,
}

impl Pace {
    /// One is to be started now; returns how long it must wait.
    pub fn start(&mut self, now: Instant) -> Duration {
        let until = self.until.map_or(now, |until| until.max(now)) + EVERY;
        self.until = Some(until);
        until.saturating_duration_since(now + AHEAD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_start_at_once_and_more_one_after_the_other() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        for _ in 0..20 {
            assert_eq!(pace.start(now), Duration::ZERO);
        }
        for _ in 0..100 {
            let wait = pace.start(now);
            assert_eq!(wait, EVERY);
            now += wait;
        }
        now += 2 * AHEAD;
        assert!((0..20).all(|_| pace.start(now).is_zero()) && !pace.start(now).is_zero());
    }
}
