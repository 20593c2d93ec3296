//! The measured time: it begins when replies come, not with the program, because devices and
//! handshakes take time to start.

/// Longest wait for that, ns.
const GIVE_UP_NS: u64 = 5_000_000_000;

/// When to measure. Times are ns of one clock.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    give_up_ns: u64,
    warmup_ns: u64,
    seconds_ns: u64,
    measured_ns: Option<(u64, u64)>,
}

impl Window {
    /// For a program that starts at `now_ns`.
    pub fn new(now_ns: u64, warmup_ns: u64, seconds_ns: u64) -> Window {
        Window { give_up_ns: now_ns + GIVE_UP_NS, warmup_ns, seconds_ns, measured_ns: None }
    }

    /// A reply has arrived: the clock starts, if it has not.
    pub fn begin(&mut self, now_ns: u64) {
        let from_ns = now_ns + self.warmup_ns;
        self.measured_ns.get_or_insert((from_ns, from_ns + self.seconds_ns));
    }

    /// Whether the clock has started.
    pub fn has_begun(&self) -> bool {
        self.measured_ns.is_some()
    }

    /// Whether this is in the measured time.
    pub fn contains(&self, now_ns: u64) -> bool {
        self.measured_ns.is_some_and(|(from, to)| (from..to).contains(&now_ns))
    }

    /// Whether the measured time is over, or no reply ever arrived.
    pub fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.measured_ns.map_or(self.give_up_ns, |(_, to_ns)| to_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_once_something_works() {
        let mut window = Window::new(100, 10, 50);
        assert!(!window.contains(120) && !window.is_over(1_000_000));
        assert!(window.is_over(100 + GIVE_UP_NS));
        window.begin(1000);
        window.begin(2000);
        assert!(!window.contains(1009) && window.contains(1010) && window.contains(1059));
        assert!(!window.contains(1060) && window.is_over(1060));
    }
}
