//! Where an elastic thread is now.
use super::Metric;

/// How long an application may keep an elastic thread before it counts as non-responsive, µs (TOCS
/// '16 section 4.5).
pub const NONRESPONSIVE_US: u64 = 10_000;

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the dataplane, awake.
    Dataplane,
    /// In the application, since this time.
    Application {
        /// µs of the monotonic clock.
        since_us: u64,
    },
    /// In the dataplane, asleep, since this time.
    Asleep {
        /// µs of the monotonic clock.
        since_us: u64,
    },
}

/// A [`Place`] in one word, so that it is never torn.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Whereabouts(Metric);

impl Whereabouts {
    /// Sets where the thread is.
    #[inline]
    pub fn set(&self, place: Place) {
        self.0.set(match place {
            Place::Dataplane => 0,
            Place::Application { since_us } => since_us << 2 | 1,
            Place::Asleep { since_us } => since_us << 2 | 2,
        });
    }

    /// Where the thread is.
    pub fn get(&self) -> Place {
        let word = self.0.get();
        let since_us = word >> 2;
        match word & 3 {
            1 => Place::Application { since_us },
            2 => Place::Asleep { since_us },
            _ => Place::Dataplane,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_what_they_were_given() {
        let whereabouts = Whereabouts::default();
        assert_eq!(whereabouts.get(), Place::Dataplane);
        for place in [
            Place::Application { since_us: 1 << 60 },
            Place::Asleep { since_us: 0 },
            Place::Dataplane,
        ] {
            whereabouts.set(place);
            assert_eq!(whereabouts.get(), place);
        }
    }
}
