//! What the elastic threads of one dataplane share. On the common path they only read it.
mod app_memory;
pub mod arena;
pub mod claims;
pub(crate) mod learnt;
pub mod linux_hops;
pub mod mourning;
pub mod neighbor_table;
pub mod outgoing;
pub mod spare;
pub mod vnic_rules;
pub mod waker;

use crate::broker::Updates;
use crate::config::Config;
use crate::shared::arena::Arena;
use crate::shared::claims::Claims;
use crate::shared::mourning::Mourning;
use crate::shared::neighbor_table::NeighborTable;
use crate::shared::spare::Spare;
pub use crate::shared::waker::Waker;
use ix_mem::PacketMemory;
use ix_proto::GroupSet;
use ix_proto::crossing::{ATTACHMENTS_MAX, AttachmentId};
use ix_tcp::isn::{self, Key};
use ix_wire::{FLOW_GROUPS, FlowHash, MacAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

/// The transmit memory of one process of the program.
pub(crate) struct Lot {
    pub arena: Arena,
    /// Tells the next dataplane of the process how much of it was given out.
    pub publish: Option<Box<dyn Fn(u64) + Send>>,
}

/// Shared by all elastic threads of a dataplane.
pub struct Shared {
    /// Configuration, fixed at start.
    pub config: Config,
    /// Packet memory.
    pub memory: PacketMemory,
    /// The dataplane's own flow hash, for devices that have none.
    pub flow_hash: FlowHash,
    /// What the labels of IPv6 flows are made with.
    label_key: u64,
    /// The ARP table: the one exception to sharing nothing.
    pub neighbors: NeighborTable,
    /// Ports of an address that is shared with Linux.
    pub(crate) claims: Claims,
    /// Packets to our own addresses have been sent ([`crate::looped`]).
    pub(crate) loops: AtomicBool,
    /// Which elastic thread owns each flow group.
    owners: [AtomicU16; FLOW_GROUPS],
    /// Transmit memory that the processes of the program have not allocated, for each of them.
    pub(crate) lots: [Mutex<Lot>; ATTACHMENTS_MAX],
    /// Flows that send what processes that have ended have given them.
    pub mourning: Mourning,
    /// Receive frames between the threads' pools.
    pub spare: Spare,
    /// Sleeping elastic threads and how to wake them.
    pub wakers: Vec<Waker>,
    /// Wakes the guard.
    pub guard: Waker,
    /// Updates of devices.
    pub updates: Updates,
    /// The running captures.
    pub captures: crate::observe::capture::Captures,
    /// The vNIC's rules: what may be sent and received.
    pub(crate) vnic_rules: vnic_rules::SharedRules,
    /// The state of each thread, and the owners of flow groups.
    pub lives: crate::life::Lives,
}

impl Shared {
    /// Flow groups and ARP: the devices' addresses are `macs`. Flow groups are dealt out to
    /// `threads` elastic threads, round robin.
    pub fn new(
        config: Config,
        memory: PacketMemory,
        wakers: Vec<Waker>,
        macs: &[MacAddr],
        now_us: u64,
    ) -> Shared {
        let threads = wakers.len() as u16;
        let arena = memory.arena();
        Shared {
            label_key: isn::label_key(&key_of(&config.secret)),
            flow_hash: FlowHash::new(config.flow_hash_key),
            neighbors: NeighborTable::new(&config, macs, now_us),
            claims: Claims::new(&config),
            loops: AtomicBool::new(false),
            owners: std::array::from_fn(|group| AtomicU16::new(group as u16 % threads)),
            mourning: Mourning::new(wakers.len()),
            spare: Spare::new(wakers.len(), config.rx_frames),
            guard: Waker::new(-1),
            updates: Updates::new(wakers.len()),
            captures: Default::default(),
            lives: crate::life::Lives::new(wakers.len(), |group| group % usize::from(threads)),
            vnic_rules: vnic_rules::SharedRules::new(config.vnic_rules.clone()),
            config,
            memory,
            lots: std::array::from_fn(|_| {
                Mutex::new(Lot { arena: Arena::new(arena), publish: None })
            }),
            wakers,
        }
    }

    /// Transmit memory of a process: what lies before this offset belongs to it already. From now
    /// on `publish` gets the end of what was given out.
    pub(crate) fn continue_from(
        &self,
        of: AttachmentId,
        given_bytes: u64,
        publish: Box<dyn Fn(u64) + Send>,
    ) {
        let lot = &self.lots[usize::from(of)];
        let mut lot = lot.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        lot.arena.clear();
        lot.arena.give(given_bytes);
        publish(lot.arena.end());
        lot.publish = Some(publish);
    }

    /// A process has ended: nothing of its transmit memory is given out any more.
    pub(crate) fn end_lot(&self, of: AttachmentId) {
        let lot = &self.lots[usize::from(of)];
        lot.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).publish = None;
    }

    /// Number of elastic threads.
    pub fn threads(&self) -> usize {
        self.wakers.len()
    }

    /// Wakes an elastic thread if it sleeps.
    pub(crate) fn ring_thread(&self, index: usize) {
        let waker = &self.wakers[index];
        if waker.must_ring() {
            crate::doorbell::ring(waker.fd());
        }
    }

    /// The elastic thread that owns a flow group.
    #[inline]
    pub fn owner(&self, group: usize) -> usize {
        self.owners[group].load(Ordering::Relaxed) as usize
    }

    /// Sets the owner of a flow group that was sent to another thread. It may not have arrived yet.
    pub(crate) fn set_owner(&self, group: usize, thread: usize) {
        self.owners[group].store(thread as u16, Ordering::Relaxed);
    }

    /// The flow label of packets of the flow with this hash.
    #[inline]
    pub(crate) fn flow_label(&self, hash: u64) -> u32 {
        isn::flow_label(self.label_key, hash)
    }

    /// The flow groups that an elastic thread owns now.
    pub fn groups_of(&self, thread: usize) -> GroupSet {
        (0..FLOW_GROUPS).filter(|&group| self.owner(group) == thread).collect()
    }
}

/// The key made from the dataplane's secret.
pub(crate) fn key_of(secret: &[u8; 16]) -> Key {
    let half = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| secret[at + i]));
    Key([half(0), half(8)])
}
