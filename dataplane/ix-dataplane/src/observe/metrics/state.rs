//! What an elastic thread is, and where it is just now.
use super::Metric;

/// So long may an application keep an elastic thread before it counts as non-responsive, µs (TOCS
/// '16 section 4.5).
pub const NONRESPONSIVE_US: u64 = 10_000;

/// What an elastic thread is at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThreadState {
    /// No Linux thread is this elastic thread: it was not entered yet, or left for the background.
    #[default]
    Background,
    /// It runs the cycle and owns flow groups.
    Active,
    /// Its application was told that it goes, its flow groups are leaving.
    Parking,
    /// It owns no flow group and sleeps.
    Parked,
    /// It is active, but its application has not come back for [`NONRESPONSIVE_US`]. Only readers
    /// say so: the thread itself cannot.
    NonResponsive,
}

impl ThreadState {
    /// All of them, in the order of their numbers.
    pub const ALL: [ThreadState; 5] = [
        ThreadState::Background,
        ThreadState::Active,
        ThreadState::Parking,
        ThreadState::Parked,
        ThreadState::NonResponsive,
    ];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            ThreadState::Background => "background",
            ThreadState::Active => "active",
            ThreadState::Parking => "parking",
            ThreadState::Parked => "parked",
            ThreadState::NonResponsive => "non-responsive",
        }
    }

    /// The one with this number; what is none is taken for the first.
    pub(crate) fn of(number: u64) -> ThreadState {
        let known = usize::try_from(number).ok().and_then(|n| ThreadState::ALL.get(n));
        known.copied().unwrap_or_default()
    }
}

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
    /// Says where the thread is.
    #[inline]
    pub fn set(&self, place: Place) {
        self.0.set(match place {
            Place::Dataplane => 0,
            Place::Application { since_us } => since_us << 2 | 1,
            Place::Asleep { since_us } => since_us << 2 | 2,
        });
    }

    /// Where it is.
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
        for (number, state) in ThreadState::ALL.into_iter().enumerate() {
            assert_eq!((state as usize, ThreadState::of(number as u64)), (number, state));
        }
        assert_eq!(ThreadState::of(u64::MAX), ThreadState::Background);
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
