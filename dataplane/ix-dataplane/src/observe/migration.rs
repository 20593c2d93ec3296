//! The record of a migration: the papers' phases (TOCS '16, Table V).
use ix_proto::GroupSet;

pub use ix_proto::MigrationEnd;

/// One finished migration. The phases follow each other and add up to `total_us`; times are those
/// of the cycles in which things happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MigrationRecord {
    /// The caller's number for it ([`crate::ElasticThread::migrate`]).
    pub command: u64,
    /// The flow groups that moved.
    pub groups: GroupSet,
    /// The old elastic thread.
    pub from: u16,
    /// The new elastic thread.
    pub to: u16,
    /// Flows that moved.
    pub flows: u32,
    /// When the groups were offered to the target, µs.
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
