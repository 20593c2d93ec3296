//! The queue pairs of a memif, in the dataplane's process.
mod client;
#[cfg(test)]
mod hostile_tests;
mod nic;
mod partial;
mod server;

pub(crate) use nic::MemifNic;

use super::page::{Direction, Receiver, Sender, Taken};
use super::ring::Ring;
use super::{MemifRole, Plan, RingPlace, ring_bytes};
use crate::{DeviceDrops, Fence, RxPacket, SetReta};
use ix_mem::{Mbuf, PacketMemory, Pool};
use ix_sys::Mapping;
use ix_wire::FLOW_GROUPS;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Fewest frames worth offering at once: four descriptors per cache line, eight lines.
const REFILL_BURST: u16 = 32;

/// What a device needs from its thread to receive or send.
struct Context<'a> {
    memory: &'a PacketMemory,
    pool: &'a mut Pool,
    regions: &'a [Mapping],
    drops: &'a mut DeviceDrops,
}

/// A ring to receive from.
trait RxRing {
    /// Appends at most `max` packets, and gives the device new frames for them.
    fn receive(&mut self, cx: &mut Context<'_>, max: usize, out: &mut Vec<RxPacket>);
    /// Number of waiting packets.
    fn waiting(&self) -> usize;
    /// Everything before this index was taken.
    fn next(&self) -> u16;
    /// The ring itself.
    fn ring(&self) -> &Ring;
    /// Number of frames that the ring holds.
    fn held(&self) -> usize;
    /// Returns them to the pool.
    fn close(&mut self, pool: &mut Pool);
}

/// A ring to send to.
trait TxRing {
    /// Appends a packet, which the peer sees after `publish`. Returns it if there is no room.
    fn push(&mut self, cx: &mut Context<'_>, mbuf: Mbuf) -> Result<(), Mbuf>;
    /// Publishes what was appended; false if there is nothing new.
    fn publish(&mut self) -> bool;
    /// Everything before this index is published.
    fn published(&self) -> u16;
    /// Takes back the frames of packets that the peer has taken.
    fn reclaim(&mut self, pool: &mut Pool);
    /// Fetches the peer's buffers that are filled soon, from the one this far behind the next.
    fn fetch_ahead(&self, from: u16, regions: &[Mapping]) {
        let _ = (from, regions);
    }
    /// The ring itself.
    fn ring(&self) -> &Ring;
    /// Number of frames that the ring holds.
    fn held(&self) -> usize;
    /// Returns them to the pool.
    fn close(&mut self, pool: &mut Pool);
}

/// The mapped memory of a link, for all queues.
pub(crate) struct LinkMemory {
    regions: Vec<Mapping>,
    /// Wakes the peer's queues.
    tx_bells: Vec<OwnedFd>,
}

// SAFETY: the mappings never change; accesses to what they map are atomic, or of the one queue
// that a ring belongs to.
unsafe impl Sync for LinkMemory {}

impl LinkMemory {
    /// Maps the regions of a checked plan. Returns also the eventfds of our queues, if they come
    /// along.
    fn new(plan: &Plan, mut fds: Vec<OwnedFd>) -> io::Result<(LinkMemory, Vec<OwnedFd>)> {
        let ours = if plan.role == MemifRole::Server { plan.queues } else { 0 };
        if fds.len() != plan.regions.len() + ours + plan.peer_queues {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut bells = fds.split_off(plan.regions.len());
        let tx_bells = bells.split_off(ours);
        // A peer can promise memory without having it, so none is taken before it is used.
        let map =
            |(bytes, fd): (&u64, &OwnedFd)| Mapping::of_fd_lazily(fd.as_fd(), *bytes as usize);
        let regions = plan.regions.iter().zip(&fds).map(map).collect::<io::Result<_>>()?;
        Ok((LinkMemory { regions, tx_bells }, bells))
    }

    fn ring(&self, place: &RingPlace) -> Ring {
        let count = ring_bytes(place.log2_size) / 16;
        let mapping = &self.regions[usize::from(place.region)];
        let base = mapping.at::<[u64; 2]>(u64::from(place.offset), count).cast();
        // SAFETY: `at` checked that the ring lies within the mapping; a plan's offsets are
        // multiples of 16; the owner of a ring of this memory has an `Arc` of it.
        unsafe { Ring::new(base, place.log2_size) }
    }
}

/// What one queue gets of a link.
pub(crate) struct QueueLink {
    plan: Arc<Plan>,
    memory: Arc<LinkMemory>,
    rx_bell: Option<OwnedFd>,
    sender: Option<Sender>,
    table: Option<Arc<dyn SetReta>>,
    /// A client's: where it says how far it has taken its rings.
    taken: Option<Taken>,
}

/// The dataplane's redirection table in the steering page of a link.
struct PageTable {
    receiver: Receiver<Arc<LinkMemory>>,
    queues: usize,
}

impl PageTable {
    fn of(plan: &Plan, memory: &Arc<LinkMemory>) -> Option<Arc<dyn SetReta>> {
        let page = &memory.regions[usize::from(plan.steering?)];
        let direction = match plan.role {
            MemifRole::Server => Direction::ToServer,
            MemifRole::Client => Direction::ToClient,
        };
        // SAFETY: the receiver keeps an `Arc` of the mapping.
        let receiver = unsafe { Receiver::of(page, direction, plan.peer_queues, memory.clone()) };
        let queues = plan.queues;
        (queues > 1).then(|| Arc::new(PageTable { receiver, queues }) as Arc<dyn SetReta>)
    }
}

impl SetReta for PageTable {
    fn set(&self, flow_group: usize, queue: usize) -> io::Result<()> {
        if flow_group >= FLOW_GROUPS || queue >= self.queues {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.receiver.set(flow_group, queue as u8);
        Ok(())
    }

    fn settled(&self) -> bool {
        self.receiver.settled()
    }

    fn is_sending(&self) -> bool {
        self.receiver.is_sending()
    }
}

/// What one queue had published to one of the peer's, and how far the peer is.
struct RingFence {
    ring: Ring,
    /// A server's: the client says here how far it is.
    taken: Option<Taken>,
    sender: usize,
    published: u16,
}

/// What one queue had published.
struct LinkFence {
    rings: Vec<RingFence>,
    /// Keeps rings and page.
    _memory: Arc<LinkMemory>,
}

impl Fence for LinkFence {
    fn passed(&self) -> bool {
        self.rings.iter().all(|ring| {
            let taken = match &ring.taken {
                Some(taken) => taken.get(ring.sender),
                None => Some(ring.ring.tail()),
            };
            taken.is_none_or(|taken| taken.wrapping_sub(ring.published) as i16 >= 0)
        })
    }
}

/// Maps a link, and makes each queue's part of it.
pub(crate) fn link(plan: Plan, fds: Vec<OwnedFd>) -> io::Result<Vec<QueueLink>> {
    let (memory, bells) = LinkMemory::new(&plan, fds)?;
    let (plan, memory) = (Arc::new(plan), Arc::new(memory));
    let table = PageTable::of(&plan, &memory);
    let mut bells = bells.into_iter();
    let direction = match plan.role {
        MemifRole::Server => Direction::ToClient,
        MemifRole::Client => Direction::ToServer,
    };
    let part = |queue| QueueLink {
        plan: plan.clone(),
        memory: memory.clone(),
        rx_bell: bells.next(),
        table: table.clone(),
        taken: plan.steering.filter(|_| plan.role == MemifRole::Client).map(|region| {
            let page = &memory.regions[usize::from(region)];
            // SAFETY: as for the sender.
            unsafe { Taken::new(page, Direction::ToClient, queue) }
        }),
        // With one queue to send to there is nothing to choose, but the epochs must be seen.
        sender: plan.steering.map(|region| {
            let page = &memory.regions[usize::from(region)];
            // SAFETY: the sender stays beside its `Arc` of the mapping.
            unsafe { Sender::new(page, direction, queue, plan.peer_queues) }
        }),
    };
    Ok((0..plan.queues).map(part).collect())
}
