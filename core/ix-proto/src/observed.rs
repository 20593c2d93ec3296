//! What elastic threads are, and how migrations end: words that the dataplane writes down and tools
//! show.

/// The state of an elastic thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "control", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "control", serde(rename_all = "kebab-case"))]
pub enum ThreadState {
    /// No Linux thread runs it: it was not entered yet, or was left for the background.
    #[default]
    Background,
    /// It runs the cycle and owns flow groups.
    Active,
    /// Its application was told that it goes, and its flow groups are leaving.
    Parking,
    /// It owns no flow group and sleeps.
    Parked,
    /// It is active, but its application has not returned for some milliseconds. Only readers
    /// report this state, because the thread itself cannot.
    NonResponsive,
}

impl ThreadState {
    /// All states, in the order of their numbers.
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

    /// The state with this number; the first one if there is none.
    pub fn of(number: u64) -> ThreadState {
        let known = usize::try_from(number).ok().and_then(|n| ThreadState::ALL.get(n));
        known.copied().unwrap_or_default()
    }

    /// Whether such a thread runs the cycle.
    pub const fn serves(self) -> bool {
        matches!(self, ThreadState::Active | ThreadState::Parking | ThreadState::NonResponsive)
    }
}

/// How a migration ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "control", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "control", serde(rename_all = "kebab-case"))]
pub enum MigrationEnd {
    /// The device reported that no packet of the groups is on its way to the old queue any more, or
    /// does not steer (flows are steered in software).
    #[default]
    Early,
    /// The migration waited for the bound.
    Bound,
    /// The old thread did not report in time that its queue is empty, because its application was
    /// non-responsive: the order of packets was given up.
    Overdue,
    /// Nothing moved: the target did not reply, is parked, or does not accept groups.
    Refused,
}

impl MigrationEnd {
    /// All of them, in the order of their numbers.
    pub const ALL: [MigrationEnd; 4] =
        [MigrationEnd::Early, MigrationEnd::Bound, MigrationEnd::Overdue, MigrationEnd::Refused];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            MigrationEnd::Early => "early",
            MigrationEnd::Bound => "bound",
            MigrationEnd::Overdue => "overdue",
            MigrationEnd::Refused => "refused",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places_in_the_list() {
        for (number, state) in ThreadState::ALL.into_iter().enumerate() {
            assert_eq!((state as usize, ThreadState::of(number as u64)), (number, state));
        }
        assert_eq!(ThreadState::of(u64::MAX), ThreadState::Background);
        let ends = MigrationEnd::ALL.into_iter().enumerate();
        assert!(ends.into_iter().all(|(number, end)| end as usize == number));
    }
}
