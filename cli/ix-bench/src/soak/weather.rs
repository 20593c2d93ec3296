//! What happens to the service now, as its clients must know it to judge what they see.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// After something happened, latency does not count for so long.
const AFTERMATH: Duration = Duration::from_secs(3);
/// Parts of a soak that have a row of their own.
pub const SLICES: usize = 10;

/// Shared by those who make it and those who live in it.
pub struct Weather {
    begin: Instant,
    time: Duration,
    over: AtomicBool,
    /// Odd while the program is dead.
    deaths: AtomicU64,
    /// Until then (ms since the beginning) latency does not count.
    rough_until_ms: AtomicU64,
    messages: AtomicU64,
    connections: AtomicU64,
}

impl Weather {
    /// Of a soak of this length that begins now. The beginning is rough: caches are cold.
    pub fn new(time: Duration) -> Weather {
        let weather = Weather {
            begin: Instant::now(),
            time,
            over: AtomicBool::new(false),
            deaths: AtomicU64::new(0),
            rough_until_ms: AtomicU64::new(0),
            messages: AtomicU64::new(0),
            connections: AtomicU64::new(0),
        };
        weather.rough();
        weather
    }

    /// Since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// The part of the soak that it is now.
    pub fn slice(&self) -> usize {
        let part = self.elapsed().as_secs_f64() / self.time.as_secs_f64();
        ((part * SLICES as f64) as usize).min(SLICES - 1)
    }

    /// How long a part is.
    pub fn slice_s(&self) -> f64 {
        self.time.as_secs_f64() / SLICES as f64
    }

    /// The program is about to die, or serves again.
    pub fn turn_of_death(&self) {
        self.deaths.fetch_add(1, Ordering::SeqCst);
        self.rough();
    }

    /// Something happens now that may cost time.
    pub fn rough(&self) {
        let until = (self.elapsed() + AFTERMATH).as_millis() as u64;
        self.rough_until_ms.store(until, Ordering::SeqCst);
    }

    /// Whether something happened a moment ago.
    pub fn is_rough(&self) -> bool {
        (self.elapsed().as_millis() as u64) < self.rough_until_ms.load(Ordering::SeqCst)
    }

    /// Clients shall end.
    pub fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    /// Whether they shall.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// To be asked before what [`Weather::excuses`] is asked of.
    pub fn deaths(&self) -> u64 {
        self.deaths.load(Ordering::SeqCst)
    }

    /// Whether what began at this count of deaths may have met one.
    pub fn excuses(&self, before: u64) -> bool {
        before % 2 == 1 || self.deaths() != before
    }

    /// So many messages came back.
    pub fn count_messages(&self, messages: u64) {
        self.messages.fetch_add(messages, Ordering::Relaxed);
    }

    /// A connection was opened.
    pub fn count_connection(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// So far.
    pub fn summary(&self) -> String {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        format!("{} messages, {} connections", count(&self.messages), count(&self.connections))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_excuses_what_it_met_and_nothing_else() {
        let weather = Weather::new(Duration::from_secs(100));
        assert!(weather.is_rough() && weather.slice() == 0);
        let before = weather.deaths();
        assert!(!weather.excuses(before));
        weather.turn_of_death();
        assert!(weather.excuses(before), "it died meanwhile");
        let during = weather.deaths();
        weather.turn_of_death();
        assert!(weather.excuses(during), "it was dead when this began");
        assert!(!weather.excuses(weather.deaths()), "it serves again");
    }
}
