//! What is written down of each migration: the papers' phases (TOCS '16, Table V).
use ix_proto::GroupSet;

/// How a migration ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MigrationEnd {
    /// The device said that no packet of the groups is on its way to the old queue any more, or had
    /// no part in it (flows steered in software).
    #[default]
    Early,
    /// The bound was waited for.
    Bound,
    /// The old thread did not come back in time to say that its queue is empty: order was given up,
    /// and the application on the old thread is to blame.
    Overdue,
    /// Nothing moved: the target did not answer, is parked, or does not take groups.
    Refused,
}

impl MigrationEnd {
    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            MigrationEnd::Early => "early",
            MigrationEnd::Bound => "bound",
            MigrationEnd::Overdue => "overdue",
            MigrationEnd::Refused => "refused",
        }
    }
}

/// One finished migration. The phases follow each other and add up to `total_us`; times are those
/// of the cycles in which things happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MigrationRecord {
    /// The caller's number for it ([`crate::ElasticThread::migrate`]).
    pub command: u64,
    /// Which flow groups moved.
    pub groups: GroupSet,
    /// From this elastic thread.
    pub from: u16,
    /// To this one.
    pub to: u16,
    /// Flows that moved.
    pub flows: u32,
    /// When the target was asked whether it is there, µs.
    pub start_us: u64,
    /// Until the old thread holds the groups' packets and has rewritten the redirection tables.
    pub prepare_us: u32,
    /// Until the old thread's application has heard of it and come back, and the groups were
    /// shipped.
    pub wait_us: u32,
    /// Until the new thread has them, its application has heard of it and come back.
    pub rpc_us: u32,
    /// Until the deferred packets are processed and no earlier packet can come any more.
    pub deferred_us: u32,
    /// All of it.
    pub total_us: u32,
    /// For so long nobody handled packets of the groups: from the first packet that could have been
    /// held by the old thread to the first that the new one could handle.
    pub pause_us: u32,
    /// Of that: the thread whose turn it was did not run. Never too much, but perhaps too little.
    pub descheduled_us: u32,
    /// Packets that were deferred, at either end.
    pub packets: u32,
    /// How it ended.
    pub end: MigrationEnd,
}
