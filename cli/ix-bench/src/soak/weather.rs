//! The incidents of the moment, which clients must know to judge what they see.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// For this time after an incident latency does not count.
const AFTERMATH: Duration = Duration::from_secs(3);
/// Parts of a soak with their own rows.
pub const SLICES: usize = 10;

/// Shared by the clients and those that cause the incidents.
pub struct Weather {
    begin: Instant,
    time: Duration,
    over: AtomicBool,
    /// Odd while the program is dead.
    deaths: AtomicU64,
    /// Until then (ms since the start) latency does not count.
    rough_until_ms: AtomicU64,
    messages: AtomicU64,
    connections: AtomicU64,
}

impl Weather {
    /// For a soak of this length that begins now. Its start counts as an incident: caches are cold.
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

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// The current part of the soak.
    pub fn slice(&self) -> usize {
        let part = self.elapsed().as_secs_f64() / self.time.as_secs_f64();
        ((part * SLICES as f64) as usize).min(SLICES - 1)
    }

    /// Length of a part.
    pub fn slice_s(&self) -> f64 {
        self.time.as_secs_f64() / SLICES as f64
    }

    /// The program is about to be killed, or serves again.
    pub fn turn_of_death(&self) {
        self.deaths.fetch_add(1, Ordering::SeqCst);
        self.rough();
    }

    /// An incident happens now.
    pub fn rough(&self) {
        let until = (self.elapsed() + AFTERMATH).as_millis() as u64;
        self.rough_until_ms.store(until, Ordering::SeqCst);
    }

    /// Whether an incident happened recently.
    pub fn is_rough(&self) -> bool {
        (self.elapsed().as_millis() as u64) < self.rough_until_ms.load(Ordering::SeqCst)
    }

    /// Tells the clients to end.
    pub fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    /// Whether clients must end.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Count of deaths, to be read before the action that [`Weather::excuses`] is called for.
    pub fn deaths(&self) -> u64 {
        self.deaths.load(Ordering::SeqCst)
    }

    /// Whether an action that began at this count of deaths may have met one.
    pub fn excuses(&self, before: u64) -> bool {
        before % 2 == 1 || self.deaths() != before
    }

    /// Counts messages that came back.
    pub fn count_messages(&self, messages: u64) {
        self.messages.fetch_add(messages, Ordering::Relaxed);
    }

    /// Counts a connection that was opened.
    pub fn count_connection(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// One line of progress.
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
