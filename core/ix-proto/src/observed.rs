//! What elastic threads are and what migrations were: records that the dataplane writes and tools
//! show.
use crate::GroupSet;

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

/// One finished migration (the papers' phases: TOCS '16, Table V). The phases follow each other and
/// add up to `total_us`; times are those of the cycles in which things happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "control", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "control", serde(default))]
pub struct MigrationRecord {
    /// Number of the command that it belongs to.
    pub command: u64,
    /// The flow groups that moved.
    #[cfg_attr(feature = "control", serde(with = "crate::control::text::one"))]
    pub flow_groups: GroupSet,
    /// The old elastic thread.
    pub from: u16,
    /// The new elastic thread.
    pub to: u16,
    /// Flows that moved.
    pub flows: u32,
    /// When the groups were offered to the target, µs of the host's monotonic clock.
    pub start_us: u64,
    /// Until the old thread holds the groups' packets and has changed the redirection tables.
    pub prepare_us: u32,
    /// Until the old thread's application was told and has returned, and the groups were sent.
    pub wait_us: u32,
    /// Until the new thread has them, and its application was told and has returned.
    pub rpc_us: u32,
    /// Until the deferred packets are processed and no earlier packet can arrive any more.
    pub deferred_us: u32,
    /// The whole migration.
    pub total_us: u32,
    /// How long no thread processed packets of the groups: from the first packet that the old
    /// thread could have held to the first that the new one could process.
    pub pause_us: u32,
    /// The part of the pause in which the thread concerned did not run. Never too much, but
    /// possibly too little.
    pub descheduled_us: u32,
    /// Number of packets that were deferred, at either end.
    pub packets: u32,
    /// How it ended.
    pub end: MigrationEnd,
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
